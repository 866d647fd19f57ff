//! Sections with figures: memory over time, RDDs, execution memory, executors.

use std::collections::BTreeMap;

use super::chart::{Size, Unit, chart};
use super::markup::Markup;
use super::page::no_walks;
use super::tables::{Cell, Column, table};
use super::timeline::{Timeline, size_name};
use super::{Facts, shortened};
use crate::aggregate::view::{FigureRow, Number, PagesRow, RddRow};
use crate::ctl::human;

/// RDDs that have charts of their own.
const SINGLE_RDDS: usize = 12;
/// Rows of the tables of tasks and stages.
const ROWS: usize = 20;
/// Rows of the tables of RDDs.
const RDD_ROWS: usize = 200;

const LARGE: Size = Size {
    width: 1140.0,
    height: 260.0,
};
const SMALL: Size = Size {
    width: 380.0,
    height: 170.0,
};

fn rdd_name(facts: &Facts, id: u32) -> String {
    let name = facts
        .rdds
        .iter()
        .filter(|row| row.rdd_id == Some(id))
        .find_map(|row| row.name.as_deref());
    name.map_or_else(
        || format!("RDD {id}"),
        |name| format!("{id}: {}", shortened(name, 60)),
    )
}

/// What all executors held, by RDD, region, page size and node.
pub fn memory(body: &mut Markup, facts: &Facts, timeline: &Timeline<'_>) {
    if !timeline.is_drawable() {
        body.line(
            "p",
            &[("class", "empty")],
            "There are not enough points yet: the daemon takes one every few seconds.",
        );
        return;
    }
    let times = &timeline.times_ms;
    let rdds = timeline.by_rdd(|id| rdd_name(facts, id));
    chart(body, "Held, by RDD", times, &rdds, &[], Unit::Bytes, LARGE);
    body.element("div", &[("class", "charts")], |charts| {
        for (title, series) in [
            ("By region of Spark's memory", timeline.by_region(None)),
            ("By page size", timeline.by_page_size(None)),
            ("By NUMA node", timeline.by_node(None)),
        ] {
            chart(charts, title, times, &series, &[], Unit::Bytes, SMALL);
        }
        match timeline.faults_per_second() {
            Some(faults) => chart(
                charts,
                "Page faults per second",
                times,
                &[faults],
                &[],
                Unit::PerSecond,
                SMALL,
            ),
            None => {
                charts.line("p", &[("class", "empty")], "page faults: not measured");
            }
        }
    });
}

/// One RDD of all executors of this worker.
struct Rdd<'a> {
    id: Option<u32>,
    rows: Vec<&'a RddRow>,
    pages: Vec<&'a PagesRow>,
}

impl Rdd<'_> {
    fn sum(&self, of: impl Fn(&RddRow) -> u64) -> u64 {
        self.rows
            .iter()
            .map(|row| of(row))
            .fold(0, u64::saturating_add)
    }

    fn maybe(&self, of: impl Fn(&RddRow) -> Option<u64>) -> Option<u64> {
        self.rows
            .iter()
            .filter_map(|row| of(row))
            .reduce(u64::saturating_add)
    }

    fn seen(&self, of: impl Fn(&PagesRow) -> Option<u64>) -> Option<u64> {
        self.pages
            .iter()
            .filter_map(|row| of(row))
            .reduce(u64::saturating_add)
    }

    fn name(&self) -> Cell {
        let name = self
            .rows
            .iter()
            .find_map(|row| row.name.as_deref())
            .unwrap_or("(no name)");
        let site = self.rows.iter().find_map(|row| row.call_site.as_deref());
        let shown = match self.id {
            Some(id) => format!("{id}: {}", shortened(name, 160)),
            None => name.to_owned(),
        };
        Cell::Name(shown, shortened(site.unwrap_or_default(), 160))
    }

    /// A ratio of page walks over all executors: the mean, by their cycles.
    fn walk_ratio(&self, figure: &str) -> Option<f64> {
        let (mut cycles, mut weighted) = (0.0, 0.0);
        for row in &self.rows {
            let ratio = row
                .walks
                .page_walks
                .get(figure)
                .and_then(|figure| figure.ratio);
            if let (Some(ratio), Some(Number::Whole(own))) = (ratio, row.walks.flat.get("cycles")) {
                cycles += *own as f64;
                weighted += ratio.value * *own as f64;
            }
        }
        (cycles > 0.0).then(|| weighted / cycles)
    }

    fn walk_sum(&self, of: impl Fn(&FigureRow) -> u64, figure: &str) -> Option<u64> {
        let figures = self
            .rows
            .iter()
            .filter_map(|row| row.walks.page_walks.get(figure));
        figures.map(of).reduce(u64::saturating_add)
    }

    /// What it costs: the first of page walks and page faults that is there.
    fn cost(&self, figures: &[String]) -> (u64, u64) {
        let walks = figures
            .iter()
            .filter_map(|figure| self.walk_sum(|figure| figure.events.value as u64, figure));
        (
            walks.max().unwrap_or(0),
            self.maybe(|row| row.faults.page_faults).unwrap_or(0),
        )
    }
}

/// Figures of page walks that any RDD has.
pub fn walk_columns(facts: &Facts) -> Vec<String> {
    let mut names: Vec<String> = facts
        .rdds
        .iter()
        .flat_map(|row| row.walks.page_walks.keys().cloned())
        .collect();
    names.sort();
    names.dedup();
    names
}

fn grouped(facts: &Facts) -> Vec<Rdd<'_>> {
    let mut rdds: BTreeMap<(Option<u32>, Option<&str>), Rdd<'_>> = BTreeMap::new();
    for row in &facts.rdds {
        // Rows without an id are told apart by their names: work of no RDD, and what had no room.
        let name = row.name.as_deref().filter(|_| row.rdd_id.is_none());
        let new = || Rdd {
            id: row.rdd_id,
            rows: Vec::new(),
            pages: Vec::new(),
        };
        rdds.entry((row.rdd_id, name))
            .or_insert_with(new)
            .rows
            .push(row);
    }
    for row in &facts.pages {
        let name = row.name.as_deref().filter(|_| row.rdd_id.is_none());
        if let Some(rdd) = rdds.get_mut(&(row.rdd_id, name)) {
            rdd.pages.push(row);
        }
    }
    rdds.into_values().collect()
}

/// What RDDs hold and where, and what they cost.
pub fn rdds(body: &mut Markup, facts: &Facts) {
    let figures = walk_columns(facts);
    let mut holding: Vec<Rdd<'_>> = grouped(facts);
    holding.retain(|rdd| {
        rdd.sum(|row| row.storage_memory_peak_bytes + row.execution_memory_peak_bytes) > 0
    });
    holding.sort_by_key(|rdd| {
        let now = rdd.sum(|row| row.storage_memory_bytes + row.execution_memory_bytes);
        std::cmp::Reverse((
            now,
            rdd.sum(|row| row.storage_memory_peak_bytes + row.execution_memory_peak_bytes),
        ))
    });
    body.line("h3", &[], "What they hold, and where");
    if holding.is_empty() {
        body.line(
            "p",
            &[("class", "empty")],
            "No RDD held memory on this worker.",
        );
    } else {
        let left = cut(&mut holding);
        let absent = table(body, "holding", holding_columns(&holding));
        note(body, &absent, "", left);
    }
    let mut costly: Vec<Rdd<'_>> = grouped(facts);
    costly.retain(|rdd| rdd.cost(&figures) != (0, 0));
    costly.sort_by_key(|rdd| std::cmp::Reverse(rdd.cost(&figures)));
    body.line("h3", &[], "What they cost");
    if costly.is_empty() {
        body.line(
            "p",
            &[("class", "empty")],
            "No page faults or page walks were counted for an RDD.",
        );
        return;
    }
    let left = cut(&mut costly);
    let absent = table(body, "costing", cost_columns(&costly, &figures));
    let why = if figures.is_empty() {
        format!("Page walks were not measured: {}.", no_walks(facts))
    } else {
        "Ratios are to the RDD's own cycles, the mean over executors; the first figure decides the order.".to_owned()
    };
    note(body, &absent, &why, left);
}

fn cut(rdds: &mut Vec<Rdd<'_>>) -> usize {
    let left = rdds.len().saturating_sub(RDD_ROWS);
    rdds.truncate(RDD_ROWS);
    left
}

fn note(body: &mut Markup, absent: &[String], why: &str, left: usize) {
    let mut words = why.to_owned();
    if !absent.is_empty() {
        words.push_str(&format!(
            " Not measured, so without a column: {}.",
            absent.join(", ")
        ));
    }
    if left > 0 {
        words.push_str(&format!(
            " {left} more RDDs are left out; smtt-ctl rdds has them."
        ));
    }
    if !words.is_empty() {
        body.line("p", &[("class", "soft")], words.trim_start());
    }
}

fn bytes_or_none(bytes: u64) -> Cell {
    Cell::Value(if bytes == 0 {
        "0".to_owned()
    } else {
        human::bytes(bytes)
    })
}

fn holding_columns(rdds: &[Rdd<'_>]) -> Vec<Column> {
    vec![
        Column::new(
            "RDD",
            "id, name, where it was made, storage level",
            rdds,
            |rdd| {
                let level = rdd.rows.iter().find_map(|row| row.storage_level.as_deref());
                match (rdd.name(), level.map(|level| shortened(level, 60))) {
                    (Cell::Name(name, site), Some(level)) if site.is_empty() => {
                        Cell::Name(name, level)
                    }
                    (Cell::Name(name, site), Some(level)) => {
                        Cell::Name(name, format!("{site}; {level}"))
                    }
                    (cell, _) => cell,
                }
            },
        ),
        Column::new(
            "Cached",
            "partitions in the memory of this worker, of all of the RDD",
            rdds,
            |rdd| {
                let all = rdd.rows.iter().find_map(|row| row.partitions);
                let cached = human::count(rdd.sum(|row| row.partitions_cached));
                Cell::Value(all.map_or_else(
                    || cached.clone(),
                    |all| format!("{cached} of {}", human::count(all)),
                ))
            },
        ),
        Column::new(
            "Storage",
            "storage memory now, as Spark accounts for it",
            rdds,
            |rdd| {
                let tilde = if rdd.rows.iter().any(|row| row.storage_memory_estimated) {
                    "~"
                } else {
                    ""
                };
                let bytes = rdd.sum(|row| row.storage_memory_bytes);
                Cell::Value(if bytes == 0 {
                    "0".to_owned()
                } else {
                    format!("{tilde}{}", human::bytes(bytes))
                })
            },
        ),
        Column::new(
            "At most",
            "the most storage memory: peaks of the executors added up",
            rdds,
            |rdd| bytes_or_none(rdd.sum(|row| row.storage_memory_peak_bytes)),
        ),
        Column::new(
            "Execution at most",
            "the most execution memory: peaks of the executors added up",
            rdds,
            |rdd| bytes_or_none(rdd.sum(|row| row.execution_memory_peak_bytes)),
        ),
        Column::new(
            "Reads",
            "reads of its blocks, one per task and block",
            rdds,
            |rdd| {
                let stored = rdd.sum(|row| row.blocks_stored + row.blocks_found) > 0;
                Cell::maybe(
                    rdd.maybe(|row| row.block_reads).filter(|_| stored),
                    human::count,
                )
            },
        ),
        Column::new(
            "Stored again",
            "blocks that had left memory before",
            rdds,
            |rdd| {
                let stored = rdd.sum(|row| row.blocks_stored);
                Cell::maybe(
                    (stored > 0).then(|| rdd.sum(|row| row.blocks_stored_again)),
                    human::count,
                )
            },
        ),
        Column::new("Page sizes", "bytes in memory by page size", rdds, |rdd| {
            let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
            for size in rdd
                .pages
                .iter()
                .filter_map(|row| row.page_sizes.as_ref())
                .flatten()
            {
                *sizes.entry(size.page_bytes).or_default() += size.bytes;
            }
            let class = |bytes: u64| match bytes {
                0..0x10_0000 => "small",
                0x10_0000..0x4000_0000 => "huge",
                _ => "giant",
            };
            Cell::Parts(
                sizes
                    .into_iter()
                    .map(|(size, bytes)| (class(size).to_owned(), bytes, size_name(size)))
                    .collect(),
            )
        }),
        Column::new("Nodes", "bytes in memory by NUMA node", rdds, |rdd| {
            let mut nodes: BTreeMap<u32, u64> = BTreeMap::new();
            for node in rdd
                .pages
                .iter()
                .filter_map(|row| row.nodes.as_ref())
                .flatten()
            {
                *nodes.entry(node.node).or_default() += node.bytes;
            }
            let part = |(node, bytes): (u32, u64)| {
                (format!("k{}", node % 8 + 1), bytes, format!("node {node}"))
            };
            Cell::Parts(nodes.into_iter().map(part).collect())
        }),
        Column::new("Swapped", "bytes in swap", rdds, |rdd| {
            Cell::maybe(rdd.seen(|row| row.swapped_bytes), |bytes| {
                if bytes == 0 {
                    "0".to_owned()
                } else {
                    human::bytes(bytes)
                }
            })
        }),
        Column::new(
            "Remote reads",
            "share of read bytes that came from another node than the CPU's",
            rdds,
            |rdd| {
                let local = rdd.seen(|row| row.read_local_bytes);
                let remote = rdd.seen(|row| row.read_remote_bytes);
                let share = local
                    .zip(remote)
                    .filter(|(local, remote)| local + remote > 0);
                Cell::maybe(share, |(local, remote)| {
                    human::share(remote as f64 / (local + remote) as f64)
                })
            },
        ),
    ]
}

fn cost_columns(rdds: &[Rdd<'_>], figures: &[String]) -> Vec<Column> {
    let mut columns = vec![Column::new(
        "RDD",
        "id, name, where it was made",
        rdds,
        Rdd::name,
    )];
    for figure in figures {
        let words = figure.replace('_', " ");
        columns.push(Column::new(&words, "events, from samples", rdds, |rdd| {
            Cell::maybe(
                rdd.walk_sum(|figure| figure.events.value as u64, figure),
                human::count,
            )
        }));
        let kind = rdds
            .iter()
            .flat_map(|rdd| &rdd.rows)
            .find_map(|row| row.walks.page_walks.get(figure)?.ratio_is.clone());
        if let Some(kind) = kind {
            let means = "to the cycles of the RDD, the mean over executors";
            columns.push(Column::new(
                &format!("{words}, {kind}"),
                means,
                rdds,
                |rdd| {
                    Cell::maybe(rdd.walk_ratio(figure), |ratio| match kind.as_str() {
                        "occupancy" => format!("{ratio:.4}"),
                        _ => human::small_share(ratio),
                    })
                },
            ));
        }
        columns.push(Column::new(
            "samples",
            "samples that these are known from",
            rdds,
            |rdd| Cell::maybe(rdd.walk_sum(|figure| figure.samples, figure), human::count),
        ));
    }
    let faults = [
        ("Page faults", "all of them"),
        ("By reads", "loads and instruction fetches"),
        ("By writes", "stores"),
        ("Major", "those that waited for a disk"),
    ];
    for (at, (heading, means)) in faults.into_iter().enumerate() {
        columns.push(Column::new(heading, means, rdds, |rdd| {
            let of = |row: &RddRow| {
                let faults = &row.faults;
                [
                    faults.page_faults,
                    faults.page_faults_read,
                    faults.page_faults_write,
                    faults.page_faults_major,
                ][at]
            };
            Cell::maybe(rdd.maybe(of), human::count)
        }));
    }
    columns.push(Column::new(
        "Most of them while",
        "the activity and access with most page faults",
        rdds,
        |rdd| {
            let mut doing: BTreeMap<String, u64> = BTreeMap::new();
            for context in rdd.rows.iter().flat_map(|row| &row.contexts) {
                let name = context.activity.replace('_', " ");
                *doing.entry(name).or_default() += context.faults.page_faults.unwrap_or(0);
            }
            let most = doing
                .into_iter()
                .max_by_key(|(_, faults)| *faults)
                .filter(|(_, faults)| *faults > 0);
            Cell::maybe(most, |(name, _)| name)
        },
    ));
    columns
}

/// Charts of the RDDs that held most.
pub fn single_rdds(body: &mut Markup, facts: &Facts, timeline: &Timeline<'_>) {
    let rdds = timeline.largest_rdds();
    if !timeline.is_drawable() || rdds.is_empty() {
        body.line(
            "p",
            &[("class", "empty")],
            "No RDD held memory at two points of time.",
        );
        return;
    }
    for id in rdds.iter().take(SINGLE_RDDS) {
        body.element("h3", &[], |h3| {
            h3.claimed(&rdd_name(facts, *id));
        });
        body.element("div", &[("class", "charts")], |charts| {
            for (title, series) in [
                ("By region", timeline.by_region(Some(*id))),
                ("By page size", timeline.by_page_size(Some(*id))),
                ("By NUMA node", timeline.by_node(Some(*id))),
            ] {
                chart(
                    charts,
                    title,
                    &timeline.times_ms,
                    &series,
                    &[],
                    Unit::Bytes,
                    SMALL,
                );
            }
        });
    }
    if rdds.len() > SINGLE_RDDS {
        let more = rdds.len() - SINGLE_RDDS;
        body.line(
            "p",
            &[("class", "soft")],
            &format!("{more} RDDs that held less have no charts of their own."),
        );
    }
}

/// Execution memory over time, and who held most.
pub fn execution(body: &mut Markup, facts: &Facts, timeline: &Timeline<'_>) {
    let stages = timeline.by_stage(|id| {
        let name = facts
            .stages
            .iter()
            .filter(|row| row.stage_id == Some(id))
            .find_map(|row| row.name.as_deref());
        format!(
            "stage {id}{}",
            name.map(|name| format!(": {}", shortened(name, 50)))
                .unwrap_or_default()
        )
    });
    if !timeline.is_drawable() || stages.is_empty() {
        body.line("p", &[("class", "empty")], "No task held execution memory when a point was taken; what lives shorter is in the peaks below.");
    } else {
        let most = timeline.largest_task();
        chart(
            body,
            "Execution memory, by stage",
            &timeline.times_ms,
            &stages,
            &[most],
            Unit::Bytes,
            LARGE,
        );
    }
    let mut rows: Vec<_> = facts
        .stages
        .iter()
        .filter(|row| row.execution_memory_peak_bytes > 0)
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.execution_memory_peak_bytes));
    rows.truncate(ROWS);
    if !rows.is_empty() {
        body.line("h3", &[], "Stages with the largest tasks");
        table(
            body,
            "stages",
            vec![
                Column::new("Stage", "id, attempt and name", &rows, |row| {
                    let id = row
                        .stage_id
                        .map_or_else(|| "?".to_owned(), |id| id.to_string());
                    Cell::Name(
                        format!(
                            "{id}: {}",
                            shortened(row.name.as_deref().unwrap_or_default(), 120)
                        ),
                        String::new(),
                    )
                }),
                Column::new("Executor", "id of the executor", &rows, |row| {
                    Cell::maybe(row.who.executor_id.clone(), |id| shortened(&id, 40))
                }),
                Column::new(
                    "Largest task, at most",
                    "the most execution memory of one of its tasks",
                    &rows,
                    |row| Cell::Value(human::bytes(row.execution_memory_peak_bytes)),
                ),
                Column::new("Tasks", "that ended here", &rows, |row| {
                    Cell::Value(human::count(
                        row.tasks_succeeded + row.tasks_failed + row.tasks_killed,
                    ))
                }),
                Column::new("Task time", "of ended tasks", &rows, |row| {
                    Cell::Value(human::duration(row.task_time_ns))
                }),
                Column::new("Page faults", "of its tasks", &rows, |row| {
                    Cell::maybe(row.faults.page_faults, human::count)
                }),
            ],
        );
    }
    let mut tasks: Vec<_> = facts
        .tasks
        .iter()
        .filter(|row| row.execution_memory_peak_bytes > 0)
        .collect();
    tasks.sort_by_key(|row| std::cmp::Reverse(row.execution_memory_peak_bytes));
    tasks.truncate(ROWS);
    if !tasks.is_empty() {
        body.line("h3", &[], "Tasks that held most");
        table(
            body,
            "tasks",
            vec![
                Column::new("Task", "id of the attempt", &tasks, |row| {
                    Cell::maybe(row.task_attempt_id, |id| id.to_string())
                }),
                Column::new("Stage", "id and attempt", &tasks, |row| {
                    Cell::maybe(row.stage_id, |id| {
                        format!("{id}.{}", row.stage_attempt.unwrap_or(0))
                    })
                }),
                Column::new("Partition", "that it computes", &tasks, |row| {
                    Cell::maybe(row.partition, |id| id.to_string())
                }),
                Column::new("Executor", "id of the executor", &tasks, |row| {
                    Cell::maybe(row.who.executor_id.clone(), |id| shortened(&id, 40))
                }),
                Column::new(
                    "Execution memory, at most",
                    "the most that it held",
                    &tasks,
                    |row| Cell::Value(human::bytes(row.execution_memory_peak_bytes)),
                ),
                Column::new(
                    "Duration",
                    "from its start to its end, or so far",
                    &tasks,
                    |row| Cell::maybe(row.duration_ns, human::duration),
                ),
                Column::new("Page faults", "of it", &tasks, |row| {
                    Cell::maybe(row.faults.page_faults, human::count)
                }),
            ],
        );
    }
}

/// The executors of this worker.
pub fn executors(body: &mut Markup, facts: &Facts) {
    let rows = &facts.application.executors;
    let process = |pid: u32| facts.surroundings.processes.get(&pid);
    table(
        body,
        "processes",
        vec![
            Column::new("Executor", "id and process", rows, |row| {
                let id = shortened(row.who.executor_id.as_deref().unwrap_or("unknown"), 60);
                Cell::Name(id, format!("pid {}, {}", row.who.pid, row.state))
            }),
            Column::new("Heap, at most", "the largest Java heap", rows, |row| {
                Cell::maybe(row.heap_max_bytes, human::bytes)
            }),
            Column::new("Storage", "storage memory now", rows, |row| {
                bytes_or_none(row.storage_memory_bytes)
            }),
            Column::new("At most", "the most storage memory", rows, |row| {
                bytes_or_none(row.storage_memory_peak_bytes)
            }),
            Column::new(
                "Execution at most",
                "the most execution memory",
                rows,
                |row| bytes_or_none(row.execution_memory_peak_bytes),
            ),
            Column::new("Page faults", "all of them", rows, |row| {
                Cell::maybe(row.faults.page_faults, human::count)
            }),
            Column::new(
                "Without context",
                "of them, of the collector, compilers and others",
                rows,
                |row| Cell::maybe(row.unattributed_share, human::share),
            ),
            Column::new(
                "Of collector threads",
                "page faults of garbage collection",
                rows,
                |row| {
                    let counted = row.faults.page_faults.is_some();
                    Cell::maybe(
                        counted.then(|| row.unattributed.get("gc_thread").copied().unwrap_or(0)),
                        human::count,
                    )
                },
            ),
            Column::new("Major", "those that waited for a disk", rows, |row| {
                Cell::maybe(row.faults.page_faults_major, human::count)
            }),
            Column::new("CPU time", "of the process", rows, |row| {
                let times = process(row.who.pid)
                    .and_then(|process| Some(process.user_ns? + process.system_ns?));
                Cell::maybe(times, human::duration)
            }),
            Column::new("In the kernel", "of the CPU time", rows, |row| {
                Cell::maybe(
                    process(row.who.pid).and_then(|process| process.system_ns),
                    human::duration,
                )
            }),
            Column::new(
                "Nodes of its CPUs",
                "NUMA nodes that it may run on",
                rows,
                |row| {
                    let nodes = process(row.who.pid).and_then(|process| process.cpu_nodes.clone());
                    Cell::maybe(nodes, |nodes| {
                        nodes
                            .iter()
                            .map(u32::to_string)
                            .collect::<Vec<_>>()
                            .join(", ")
                    })
                },
            ),
            Column::new("JVM options", "those that advice depends on", rows, |row| {
                let options = process(row.who.pid).and_then(|process| process.options.clone());
                match options.filter(|options| !options.is_empty()) {
                    Some(options) => Cell::Name(options.join(" "), String::new()),
                    None => Cell::Absent,
                }
            }),
        ],
    );
}
