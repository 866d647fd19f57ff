//! Tables of RDDs that have something in common: memory, placement and cost.

use std::collections::{BTreeMap, BTreeSet};

use smtt_model::rows::{
    FigureRow, GroupBy, Number, RddOverExecutors as Rdd, RddRow, made_at, rdd_group,
};
use smtt_model::sort::small::{Gather as _, sort_by, sort_by_key};
use smtt_model::units;

use super::document::no_walks;
use super::markup::Markup;
use super::tables::{Cell, Column, table};
use super::timeline::{Timeline, size_name};
use super::{Facts, shortened};
use crate::args::By;

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

/// RDDs that have something in common, over all executors.
pub struct Group<'a> {
    /// What they have in common.
    pub label: String,
    /// Their ids; none for work without an RDD.
    pub ids: BTreeSet<u32>,
    /// Bytes times seconds of their memory, from the points over time.
    pub byte_seconds: f64,
    sum: Rdd<'a>,
}

impl<'a> std::ops::Deref for Group<'a> {
    type Target = Rdd<'a>;

    fn deref(&self) -> &Rdd<'a> {
        &self.sum
    }
}

/// What RDDs of a page have in common, in words.
pub const fn in_common(by: Option<By>) -> &'static str {
    match by {
        None => "name or call site",
        Some(By::Query) => "query",
        Some(By::Node) => "plan node",
        Some(By::Callsite) => "call site",
        Some(By::Name) => "name",
        Some(By::Rdd) => "RDD",
    }
}

/// The group of an RDD. By default the name that the application gave it; where Spark named it by its class, such as
/// `MapPartitionsRDD`, the call site.
pub fn rdd_names(facts: &Facts, row: &RddRow) -> String {
    let is_given = |name: &str| !name.is_empty() && (name.contains(' ') || !name.ends_with("RDD"));
    let name = row.name.as_deref();
    match facts.by {
        Some(By::Rdd) => match (row.rdd_id, name) {
            (Some(id), Some(name)) => format!("{id}: {name}"),
            (Some(id), None) => format!("RDD {id}"),
            (None, name) => name.unwrap_or("(no name)").to_owned(),
        },
        Some(by) => rdd_group(row, by.into()),
        None if row.rdd_id.is_none() || name.is_some_and(is_given) => rdd_group(row, GroupBy::Name),
        None if row.call_site.is_some() => rdd_group(row, GroupBy::CallSite),
        None => rdd_group(row, GroupBy::Name),
    }
}

/// The groups of a page by their names.
pub fn groups<'a>(facts: &'a Facts, timeline: &Timeline<'_>) -> Vec<Group<'a>> {
    let areas = timeline.byte_seconds();
    let mut groups: BTreeMap<String, Group<'a>> = BTreeMap::new();
    for rdd in Rdd::group(&facts.rdds, &facts.pages) {
        // An executor may not know the name of an RDD yet.
        let named = rdd.rows.iter().find(|row| row.name.is_some());
        let Some(row) = named.or(rdd.rows.first()) else {
            continue;
        };
        let label = rdd_names(facts, row);
        let group = groups.entry(label.clone()).or_insert_with(|| Group {
            label,
            ids: BTreeSet::new(),
            byte_seconds: 0.0,
            sum: Rdd::default(),
        });
        group.ids.extend(rdd.id);
        group.byte_seconds += rdd.id.and_then(|id| areas.get(&id)).unwrap_or(&0.0);
        group.sum.rows.extend(rdd.rows);
        group.sum.pages.extend(rdd.pages);
    }
    groups.into_values().collect()
}

/// Replication of each partition according to the storage level.
fn copies(row: &RddRow) -> u64 {
    let level = row.storage_level.as_deref().unwrap_or_default();
    let copies = level.split(' ').find_map(|word| word.strip_suffix('x'));
    copies.and_then(|copies| copies.parse().ok()).unwrap_or(1)
}

/// The storage level by its name in Spark, or else by its description.
fn level(row: &RddRow) -> Option<&str> {
    let name = row.storage_level_name.as_deref();
    name.or(row.storage_level.as_deref())
}

/// Ids of a group in words: the first ones, and how many more.
fn ids(ids: &BTreeSet<u32>) -> String {
    const SHOWN: usize = 4;
    let first: Vec<String> = ids.iter().take(SHOWN).map(u32::to_string).collect();
    let more = match ids.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("RDD {}{more}", first.join(", "))
}

/// Distinct texts of rows, the first ones.
fn distinct<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    const SHOWN: usize = 3;
    let texts: BTreeSet<&str> = texts.filter(|text| !text.is_empty()).gather();
    let first: Vec<&str> = texts.iter().take(SHOWN).copied().collect();
    shortened(&first.join(", "), 160)
}

/// Figures of RDDs in these tables.
impl Group<'_> {
    fn name_cell(&self, has_level: bool) -> Cell {
        let mut more = Vec::new();
        if !self.ids.is_empty() {
            more.push(ids(&self.ids));
        }
        let rows = || self.rows.iter();
        let sites: BTreeSet<String> = rows()
            .filter_map(|row| made_at(row.call_site.as_deref(), row.node.as_deref()))
            .filter(|site| *site != self.label)
            .gather();
        more.push(distinct(sites.iter().map(String::as_str)));
        if has_level {
            more.push(distinct(rows().filter_map(|row| level(row))));
        }
        more.retain(|part| !part.is_empty());
        Cell::Name(shortened(&self.label, 160), more.join("; "))
    }

    /// Partitions of all RDDs of the group, and blocks of them where each has several.
    fn partitions(&self) -> Option<(u64, u64)> {
        let mut known: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for row in &self.rows {
            if let (Some(id), Some(partitions)) = (row.rdd_id, row.partitions) {
                let (most, times) = known.entry(id).or_default();
                *most = (*most).max(partitions);
                *times = (*times).max(copies(row));
            }
        }
        let cached = known.values().copied();
        let most = cached.clone().map(|(_, times)| times).max()?;
        let all = cached.map(|(partitions, _)| partitions);
        Some((all.fold(0, u64::saturating_add), most))
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
    sort_by(&mut names, Ord::cmp);
    names.dedup();
    // A table has room for those of a CPU.
    names.retain(|name| name.len() <= 100);
    names.truncate(FIGURES);
    names
}

/// Writes the tables of RDDs: memory, placement and cost.
pub fn rdds(body: &mut Markup, facts: &Facts, timeline: &Timeline<'_>) {
    let figures = walk_columns(facts);
    let mut holding = groups(facts, timeline);
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
        // Bytes times seconds of a page are far below the largest integer.
        let area = rdd.byte_seconds as u64;
        std::cmp::Reverse((area, rdd.sum(now), rdd.sum(most)))
    });
    let by = in_common(facts.by);
    let heading = format!("What they hold, and where, by {by}");
    body.line("h3", &[], &heading);
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
    let mut costly = groups(facts, timeline);
    costly.retain(|rdd| rdd.cost(&figures) != (0, 0));
    sort_by_key(&mut costly, |rdd| std::cmp::Reverse(rdd.cost(&figures)));
    body.line("h3", &[], &format!("What they cost, by {by}"));
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

fn cut(rdds: &mut Vec<Group<'_>>) -> usize {
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
            " {left} more rows are left out; smtt-ctl rdds has them."
        ));
    }
    if !words.is_empty() {
        body.line("p", &[("class", "soft")], words.trim_start());
    }
}

/// Bytes; zero as a plain 0.
pub fn bytes_or_none(bytes: u64) -> Cell {
    marked_bytes(bytes, "")
}

/// Bytes with a mark before them.
fn marked_bytes(bytes: u64, mark: &str) -> Cell {
    let shown = match bytes {
        0 => "0".to_owned(),
        bytes => format!("{mark}{}", units::bytes(bytes)),
    };
    Cell::Number(bytes as f64, shown)
}

fn holding_columns(rdds: &[Group<'_>]) -> Vec<Column> {
    vec![
        Column::new(
            "RDDs",
            "what they have in common, their ids, where they were made, storage level",
            rdds,
            |rdd| rdd.name_cell(true),
        ),
        Column::new(
            "Bytes × time",
            "memory held, times the seconds for which it was: the area in the charts",
            rdds,
            |rdd| {
                let area = (rdd.byte_seconds > 0.0).then_some(rdd.byte_seconds);
                Cell::real(area, |area| format!("{}·s", units::bytes(area as u64)))
            },
        ),
        Column::new(
            "Cached",
            "partitions in memory here, of all of the RDDs; blocks, where each partition has several",
            rdds,
            |rdd| {
                let blocks = rdd.sum(|row| row.partitions_cached);
                let cached = units::count(blocks);
                let shown = match rdd.partitions() {
                    None => cached,
                    Some((all, copies)) if copies > 1 => {
                        format!("{cached} of {copies} × {}", units::count(all))
                    }
                    Some((all, _)) => format!("{cached} of {}", units::count(all)),
                };
                Cell::Number(blocks as f64, shown)
            },
        ),
        Column::new(
            "Storage",
            "storage memory now, as Spark accounts for it",
            rdds,
            |rdd| {
                let is_estimated = rdd.rows.iter().any(|row| row.storage_memory_estimated);
                let mark = if is_estimated { "~" } else { "" };
                marked_bytes(rdd.sum(|row| row.storage_memory_bytes), mark)
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
            rdd.seen(|row| row.swapped_bytes)
                .map_or(Cell::Absent, bytes_or_none)
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
                let share =
                    share.map(|(local, remote)| remote as f64 / (local as f64 + remote as f64));
                Cell::real(share, units::share)
            },
        ),
    ]
}

fn cost_columns(rdds: &[Group<'_>], figures: &[String]) -> Vec<Column> {
    let mut columns = vec![Column::new(
        "RDDs",
        "what they have in common, their ids, where they were made",
        rdds,
        |rdd| rdd.name_cell(false),
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
                    Cell::real(rdd.walk_ratio(figure), |ratio| match kind.as_str() {
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
        ("Page faults", "in contexts that name the RDDs"),
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
            Cell::words(most.map(|(name, _)| shortened(&name, 60)))
        },
    ));
    columns
}
