//! What the workers' daemons measured of RDDs, added up over executors.

use std::collections::BTreeMap;

use maud::{Markup, html};
use serde::Deserialize;

use super::super::shown::{Cell, bytes, count};
use super::Asked;
use crate::workers::{Files, Trouble};

/// What the daemon reports of an RDD on one executor.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Row {
    rdd_id: Option<i64>,
    executor_id: Option<String>,
    pid: u32,
    storage_memory_peak_bytes: u64,
    execution_memory_peak_bytes: u64,
    blocks_stored: u64,
    blocks_evicted: u64,
    block_reads: Option<u64>,
    page_faults: Option<u64>,
    page_walk_samples: Option<u64>,
}

/// Figures of an RDD; absent where no executor measures them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Measured {
    /// Peaks of storage memory, and of execution memory, of its executors, added up.
    held: u64,
    execution: u64,
    written: u64,
    evicted: u64,
    read: Option<u64>,
    faults: Option<u64>,
    walks: Option<u64>,
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn counted(value: Option<u64>) -> Cell {
    value.map_or(Cell::Absent, |value| Cell::Count(number(value)))
}

/// A column of the table: its title and its value.
type Shown = (&'static str, fn(&Measured) -> Cell);

/// What the table shows.
pub(super) const COLUMNS: [Shown; 7] = [
    ("Held at most", |it| Cell::Bytes(number(it.held))),
    ("Execution memory at most", |it| {
        Cell::Bytes(number(it.execution))
    }),
    ("Blocks read", |it| counted(it.read)),
    ("Blocks written", |it| Cell::Count(number(it.written))),
    ("Blocks evicted", |it| Cell::Count(number(it.evicted))),
    ("Page faults", |it| counted(it.faults)),
    ("Sampled page walks", |it| counted(it.walks)),
];

/// What the columns mean.
pub(super) fn notes() -> Markup {
    html! {
        p.soft {
            "From Held at most on: what the workers' daemons measured, added up over executors; peaks of executors need not be "
            "of one moment. Blocks read are those that were in memory already. Page faults and page walks are those of "
            "threads while they worked on the RDD."
        }
    }
}

fn add(sum: &mut Option<u64>, more: Option<u64>) {
    if let Some(more) = more {
        *sum = Some(sum.unwrap_or(0).saturating_add(more));
    }
}

impl Measured {
    /// The short line of a box.
    pub(super) fn line(&self) -> String {
        let faults = self.faults;
        let faults =
            faults.map_or_else(String::new, |it| format!(", {} faults", count(number(it))));
        format!("{}{faults}", bytes(number(self.held)))
    }

    /// All figures that are known, in words.
    pub(super) fn words(&self) -> String {
        let optional = |value: Option<u64>, what: &str| {
            value.map_or_else(String::new, |value| {
                format!(", {} {what}", count(number(value)))
            })
        };
        format!(
            "held {} at most, {} execution memory{}, {} blocks written, {} evicted{}{}",
            bytes(number(self.held)),
            bytes(number(self.execution)),
            optional(self.read, "blocks read"),
            count(number(self.written)),
            count(number(self.evicted)),
            optional(self.faults, "page faults"),
            optional(self.walks, "sampled page walks")
        )
    }
}

/// Figures of all RDDs that the workers know.
pub(super) fn measured(asked: &Asked<'_>) -> Result<BTreeMap<i64, Measured>, Trouble> {
    let user = asked.parameters.one("user").and_then(|it| it.parse().ok());
    let store = &asked.server.settings.store;
    let host = asked.parameters.one("host");
    let files = Files::of(store, asked.app.identity(), user, host)?;
    let rows = files.documents("rdd")?.into_iter().filter_map(|document| {
        let row: Row = serde_json::from_value(document.json).ok()?;
        Some((document.host, row))
    });
    Ok(sums(rows))
}

/// An executor's process: host of the worker, process id, and Spark's id of the executor.
type Process = (String, u32, Option<String>);

/// Adds up rows: counts over the runs of a daemon, and peaks over executors, of which the runs have the same memory.
fn sums(rows: impl Iterator<Item = (String, Row)>) -> BTreeMap<i64, Measured> {
    let mut all: BTreeMap<i64, Measured> = BTreeMap::new();
    let mut peaks: BTreeMap<(i64, Process), (u64, u64)> = BTreeMap::new();
    for (host, row) in rows {
        let Some(id) = row.rdd_id else {
            continue;
        };
        let of = all.entry(id).or_default();
        of.written = of.written.saturating_add(row.blocks_stored);
        of.evicted = of.evicted.saturating_add(row.blocks_evicted);
        add(&mut of.read, row.block_reads);
        add(&mut of.faults, row.page_faults);
        add(&mut of.walks, row.page_walk_samples);
        let peak = peaks.entry((id, (host, row.pid, row.executor_id)));
        let peak = peak.or_default();
        peak.0 = peak.0.max(row.storage_memory_peak_bytes);
        peak.1 = peak.1.max(row.execution_memory_peak_bytes);
    }
    for ((id, ..), (held, execution)) in peaks {
        let of = all.entry(id).or_default();
        of.held = of.held.saturating_add(held);
        of.execution = of.execution.saturating_add(execution);
    }
    all
}
