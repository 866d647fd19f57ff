//! Sections with figures: memory over time, execution memory, executors.

use smtt_model::rows::{ExecutorId, ExecutorKind, ExecutorRow};
use smtt_model::sort::small::sort_by_key;
use smtt_model::units;

use super::chart::{Size, Unit, chart};
use super::document::folded;
use super::markup::Markup;
use super::rdds::{bytes_or_none, groups, in_common, rdd_names};
use super::tables::{Cell, Column, table};
use super::timeline::Timeline;
use super::{Facts, shortened};

/// Groups of RDDs that have charts of their own.
const SINGLE: usize = 12;
/// Rows of the tables of tasks and stages.
const ROWS: usize = 20;

/// Rows of the table of executors.
const EXECUTORS: usize = 1000;

/// The group of an RDD by its id.
fn group_name(facts: &Facts, id: u32) -> String {
    let mut rows = facts.rdds.iter().filter(|row| row.rdd_id == Some(id));
    let named = rows.clone().find(|row| row.name.is_some());
    let row = named.or_else(|| rows.next());
    row.map_or_else(
        || format!("RDD {id}"),
        |row| shortened(&rdd_names(facts, row), 80),
    )
}

/// The worker of an executor; absent on a page of one worker.
fn host(row: &ExecutorRow) -> Cell {
    match &row.who.worker {
        Some(worker) => Cell::Name(shortened(worker, 100), String::new()),
        None => Cell::Absent,
    }
}

/// An executor by its id and, on a page of several workers, its worker.
pub fn executor(who: &ExecutorId) -> Cell {
    let id = who.executor_id.as_deref().map(|id| shortened(id, 40));
    match (id, &who.worker) {
        (Some(id), Some(worker)) => Cell::Name(id, shortened(worker, 100)),
        (id, _) => Cell::words(id),
    }
}

/// Memory of all executors over time, by group of RDDs, region, page size and node.
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
    let groups = timeline.by_group(|id| group_name(facts, id));
    let title = format!("Memory held, by {} of the RDDs", in_common(facts.by));
    chart(body, &title, times, &groups, &[], Unit::Bytes, Size::Large);
    body.element("div", &[("class", "charts")], |charts| {
        for (title, series) in [
            ("By region of Spark's memory", timeline.by_region(None)),
            ("By page size", timeline.by_page_size(None)),
            ("By NUMA node", timeline.by_node(None)),
        ] {
            chart(charts, title, times, &series, &[], Unit::Bytes, Size::Small);
        }
        match timeline.faults_per_second() {
            Some(faults) => chart(
                charts,
                "Page faults per second",
                times,
                &[faults],
                &[],
                Unit::PerSecond,
                Size::Small,
            ),
            None => {
                charts.line("p", &[("class", "empty")], "page faults: not measured");
            }
        }
    });
}

/// Charts of the RDDs that held most bytes for most of the time.
pub fn single(body: &mut Markup, facts: &Facts, timeline: &Timeline<'_>) {
    let mut groups = groups(facts, timeline);
    groups.retain(|group| group.byte_seconds > 0.0);
    if groups.is_empty() {
        body.line(
            "p",
            &[("class", "empty")],
            "No RDD held memory at two points of time.",
        );
        return;
    }
    sort_by_key(&mut groups, |group| {
        std::cmp::Reverse(group.byte_seconds as u64)
    });
    for (at, group) in groups.iter().take(SINGLE).enumerate() {
        let area = format!("{}·s", units::bytes(group.byte_seconds as u64));
        folded(body, "h3", at == 0, &group.label, &area, |body| {
            body.element("div", &[("class", "charts")], |charts| {
                let ids = Some(&group.ids);
                for (title, series) in [
                    ("By region", timeline.by_region(ids)),
                    ("By page size", timeline.by_page_size(ids)),
                    ("By NUMA node", timeline.by_node(ids)),
                ] {
                    let times = &timeline.times_ms;
                    chart(charts, title, times, &series, &[], Unit::Bytes, Size::Small);
                }
            });
        });
    }
    if groups.len() > SINGLE {
        let more = groups.len() - SINGLE;
        body.line(
            "p",
            &[("class", "soft")],
            &format!("{more} that held less have no charts of their own."),
        );
    }
}

/// Execution memory over time, and its largest holders.
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
            Size::Large,
        );
    }
    let mut rows: Vec<_> = facts
        .stages
        .iter()
        .filter(|row| row.execution_memory_peak_bytes > 0)
        .collect();
    sort_by_key(&mut rows, |row| {
        std::cmp::Reverse(row.execution_memory_peak_bytes)
    });
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
                    executor(&row.who)
                }),
                Column::new(
                    "Largest task, at most",
                    "the most execution memory of one of its tasks",
                    &rows,
                    |row| bytes_or_none(row.execution_memory_peak_bytes),
                ),
                Column::new("Tasks", "that ended here", &rows, |row| {
                    Cell::count(
                        row.tasks_succeeded
                            .saturating_add(row.tasks_failed)
                            .saturating_add(row.tasks_killed),
                    )
                }),
                Column::new("Task time", "of ended tasks", &rows, |row| {
                    Cell::maybe(Some(row.task_time_ns), units::duration)
                }),
                Column::new("Page faults", "of its tasks", &rows, |row| {
                    Cell::maybe(row.faults.page_faults, units::count)
                }),
            ],
        );
    }
    let mut tasks: Vec<_> = facts
        .tasks
        .iter()
        .filter(|row| row.execution_memory_peak_bytes > 0)
        .collect();
    sort_by_key(&mut tasks, |row| {
        std::cmp::Reverse(row.execution_memory_peak_bytes)
    });
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
                    Cell::maybe(row.stage_id.map(u64::from), |id| {
                        format!("{id}.{}", row.stage_attempt.unwrap_or(0))
                    })
                }),
                Column::new("Partition", "that it computes", &tasks, |row| {
                    Cell::maybe(row.partition.map(u64::from), |id| id.to_string())
                }),
                Column::new("Executor", "id of the executor", &tasks, |row| {
                    executor(&row.who)
                }),
                Column::new(
                    "Execution memory, at most",
                    "the most that it held",
                    &tasks,
                    |row| bytes_or_none(row.execution_memory_peak_bytes),
                ),
                Column::new(
                    "Duration",
                    "from its start to its end, or so far",
                    &tasks,
                    |row| Cell::maybe(row.duration_ns, units::duration),
                ),
                Column::new("Page faults", "of it", &tasks, |row| {
                    Cell::maybe(row.faults.page_faults, units::count)
                }),
            ],
        );
    }
}

/// The executors, of each worker.
pub fn executors(body: &mut Markup, facts: &Facts) {
    let all = &facts.application.executors;
    let rows = &all[..all.len().min(EXECUTORS)];
    let process = |row: &ExecutorRow| facts.process(&row.who);
    table(
        body,
        "processes",
        vec![
            Column::new("Worker", "that the executor runs on", rows, host),
            Column::new("Executor", "id and process", rows, |row| {
                let id = shortened(row.who.executor_id.as_deref().unwrap_or("unknown"), 60);
                let kind = match row.kind {
                    ExecutorKind::Executor => "",
                    ExecutorKind::Driver => ", runs no tasks, in no sum",
                };
                let state = row.state.name();
                Cell::Name(id, format!("pid {}, {state}{kind}", row.who.pid))
            }),
            Column::new("Heap, at most", "the largest Java heap", rows, |row| {
                Cell::maybe(row.heap_max_bytes, units::bytes)
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
            Column::new("Page faults", "with a context or without", rows, |row| {
                Cell::maybe(row.faults.page_faults, units::count)
            }),
            Column::new(
                "Without context",
                "share of page faults of the collector, compilers and others",
                rows,
                |row| Cell::real(row.unattributed_share, units::share),
            ),
            Column::new(
                "Before tracing",
                "page faults of the process before they were counted: in no other figure",
                rows,
                |row| Cell::maybe(row.page_faults_before_tracing, units::count),
            ),
            Column::new(
                "Of collector threads",
                "page faults of garbage collection",
                rows,
                |row| {
                    let counted = row.faults.page_faults.is_some();
                    Cell::maybe(
                        counted.then(|| row.unattributed.get("gc_thread").copied().unwrap_or(0)),
                        units::count,
                    )
                },
            ),
            Column::new("Major", "those that waited for a disk", rows, |row| {
                Cell::maybe(row.faults.page_faults_major, units::count)
            }),
            Column::new("CPU time", "of the process", rows, |row| {
                let times = process(row)
                    .and_then(|process| Some(process.user_ns?.saturating_add(process.system_ns?)));
                Cell::maybe(times, units::duration)
            }),
            Column::new("In the kernel", "of the CPU time", rows, |row| {
                Cell::maybe(
                    process(row).and_then(|process| process.system_ns),
                    units::duration,
                )
            }),
            Column::new(
                "Nodes of its CPUs",
                "NUMA nodes that it may run on",
                rows,
                |row| {
                    let nodes = process(row).and_then(|process| process.cpu_nodes.clone());
                    Cell::words(nodes.map(|nodes| {
                        nodes
                            .iter()
                            .map(u32::to_string)
                            .collect::<Vec<_>>()
                            .join(", ")
                    }))
                },
            ),
            Column::new("JVM options", "those that advice depends on", rows, |row| {
                let options = process(row).and_then(|process| process.options.clone());
                match options.filter(|options| !options.is_empty()) {
                    Some(options) => Cell::Name(shortened(&options.join(" "), 1000), String::new()),
                    None => Cell::Absent,
                }
            }),
        ],
    );
    if all.len() > rows.len() {
        let more = all.len() - rows.len();
        body.line(
            "p",
            &[("class", "soft")],
            &format!(
                "{more} executors with fewer page faults are left out; smtt-ctl executors has them."
            ),
        );
    }
}
