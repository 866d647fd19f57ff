//! Tables of RDDs: memory, placement and cost.

use std::collections::BTreeMap;

use smtt_model::rows::{FigureRow, Number, RddOverExecutors as Rdd, RddRow, made_at};
use smtt_model::sort::small::sort_by_key;
use smtt_model::units;

use super::document::no_walks;
use super::markup::Markup;
use super::tables::{Cell, Column, table};
use super::timeline::size_name;
use super::{Facts, shortened};

/// Rows of the tables of RDDs.
const RDD_ROWS: usize = 200;

/// Figures of page walks that have columns.
const FIGURES: usize = 24;
/// Page sizes or nodes of an RDD that are shown: more than machines have.
const PARTS: usize = 64;

/// Adds to a sum that what workers send may not overflow.
fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

/// Figures of an RDD in these tables.
trait Figures {
    fn copies(&self) -> u64;
    fn name_cell(&self) -> Cell;
    fn walk_ratio(&self, figure: &str) -> Option<f64>;
    fn walk_sum(&self, of: impl Fn(&FigureRow) -> u64, figure: &str) -> Option<u64>;
    fn cost(&self, figures: &[String]) -> (u64, u64);
}

impl Figures for Rdd<'_> {
    /// Replication of each partition according to the storage level.
    fn copies(&self) -> u64 {
        let words = |level: &str| {
            let copies = level.split(' ').find_map(|word| word.strip_suffix('x'));
            copies.and_then(|copies| copies.parse().ok())
        };
        let levels = self
            .rows
            .iter()
            .filter_map(|row| row.storage_level.as_deref());
        levels.filter_map(words).max().unwrap_or(1)
    }

    fn name_cell(&self) -> Cell {
        let name = self.name().unwrap_or("(no name)");
        let site = made_at(self.call_site(), self.node());
        let shown = match self.id {
            Some(id) => format!("{id}: {}", shortened(name, 160)),
            None => name.to_owned(),
        };
        Cell::Name(shown, shortened(&site.unwrap_or_default(), 160))
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

    /// Cost for sorting: page walks where measured, else page faults.
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
    // A table has room for those of a CPU.
    names.retain(|name| name.len() <= 100);
    names.truncate(FIGURES);
    names
}

fn grouped(facts: &Facts) -> Vec<Rdd<'_>> {
    Rdd::group(&facts.rdds, &facts.pages)
}

/// Writes the tables of RDDs: memory, placement and cost.
pub fn rdds(body: &mut Markup, facts: &Facts) {
    let figures = walk_columns(facts);
    let mut holding: Vec<Rdd<'_>> = grouped(facts);
    let most = |row: &RddRow| {
        let storage = row.storage_memory_peak_bytes;
        storage.saturating_add(row.execution_memory_peak_bytes)
    };
    let now = |row: &RddRow| {
        let storage = row.storage_memory_bytes;
        storage.saturating_add(row.execution_memory_bytes)
    };
    holding.retain(|rdd| rdd.sum(most) > 0);
    sort_by_key(&mut holding, |rdd| {
        std::cmp::Reverse((rdd.sum(now), rdd.sum(most)))
    });
    body.line("h3", &[], "What they hold, and where");
    if holding.is_empty() {
        body.line(
            "p",
            &[("class", "empty")],
            match facts.asked {
                None => "No RDD held memory on this worker.",
                Some(_) => "No RDD held memory on these workers.",
            },
        );
    } else {
        let left = cut(&mut holding);
        let absent = table(body, "holding", holding_columns(&holding));
        note(body, &absent, "", left);
    }
    let mut costly: Vec<Rdd<'_>> = grouped(facts);
    costly.retain(|rdd| rdd.cost(&figures) != (0, 0));
    sort_by_key(&mut costly, |rdd| std::cmp::Reverse(rdd.cost(&figures)));
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

/// Bytes; zero as a plain 0.
pub fn bytes_or_none(bytes: u64) -> Cell {
    Cell::Value(if bytes == 0 {
        "0".to_owned()
    } else {
        units::bytes(bytes)
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
                match (rdd.name_cell(), level.map(|level| shortened(level, 60))) {
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
            "partitions in memory here, of all of the RDD; blocks, where each partition has several",
            rdds,
            |rdd| {
                let all = rdd.rows.iter().find_map(|row| row.partitions);
                let copies = rdd.copies();
                let cached = units::count(rdd.sum(|row| row.partitions_cached));
                Cell::Value(match all.map(units::count) {
                    None => cached,
                    Some(all) if copies > 1 => format!("{cached} of {copies} × {all}"),
                    Some(all) => format!("{cached} of {all}"),
                })
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
                    format!("{tilde}{}", units::bytes(bytes))
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
                let stored = rdd.sum(|row| row.blocks_stored.saturating_add(row.blocks_found)) > 0;
                Cell::maybe(
                    rdd.maybe(|row| row.block_reads).filter(|_| stored),
                    units::count,
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
                    units::count,
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
                add(sizes.entry(size.page_bytes).or_default(), size.bytes);
            }
            let class = |bytes: u64| match bytes {
                0..0x10_0000 => "small",
                0x10_0000..0x4000_0000 => "huge",
                _ => "giant",
            };
            let sizes = sizes.into_iter().take(PARTS);
            Cell::Parts(
                sizes
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
                add(nodes.entry(node.node).or_default(), node.bytes);
            }
            let part = |(node, bytes): (u32, u64)| {
                (format!("k{}", node % 8 + 1), bytes, format!("node {node}"))
            };
            Cell::Parts(nodes.into_iter().take(PARTS).map(part).collect())
        }),
        Column::new("Swapped", "bytes in swap", rdds, |rdd| {
            Cell::maybe(rdd.seen(|row| row.swapped_bytes), |bytes| {
                if bytes == 0 {
                    "0".to_owned()
                } else {
                    units::bytes(bytes)
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
                    .filter(|(local, remote)| local.saturating_add(*remote) > 0);
                Cell::maybe(share, |(local, remote)| {
                    units::share(remote as f64 / (local as f64 + remote as f64))
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
        Rdd::name_cell,
    )];
    for figure in figures {
        let words = figure
            .replacen("page_walk", "Page walk", 1)
            .replace('_', " ");
        columns.push(Column::new(&words, "events, from samples", rdds, |rdd| {
            Cell::maybe(
                rdd.walk_sum(|figure| figure.events.value as u64, figure),
                units::count,
            )
        }));
        let kind = rdds
            .iter()
            .flat_map(|rdd| &rdd.rows)
            .find_map(|row| row.walks.page_walks.get(figure)?.ratio_is.clone());
        if let Some(kind) = kind {
            let means = "to the cycles of the RDD, the mean over executors";
            columns.push(Column::new(
                &format!("{words}, {}", shortened(&kind, 40)),
                means,
                rdds,
                |rdd| {
                    Cell::maybe(rdd.walk_ratio(figure), |ratio| match kind.as_str() {
                        "occupancy" => format!("{ratio:.4}"),
                        _ => units::small_share(ratio),
                    })
                },
            ));
        }
        columns.push(Column::new(
            "Samples",
            "samples that these are known from",
            rdds,
            |rdd| Cell::maybe(rdd.walk_sum(|figure| figure.samples, figure), units::count),
        ));
    }
    let faults = [
        ("Page faults", "in contexts that name the RDD"),
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
            Cell::maybe(rdd.maybe(of), units::count)
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
                let faults = context.faults.page_faults.unwrap_or(0);
                add(doing.entry(name).or_default(), faults);
            }
            let most = doing
                .into_iter()
                .max_by_key(|(_, faults)| *faults)
                .filter(|(_, faults)| *faults > 0);
            Cell::maybe(most, |(name, _)| shortened(&name, 60))
        },
    ));
    columns
}
