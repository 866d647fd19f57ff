//! What the workers' daemons measured of RDDs, added up over executors: within a stage attempt, where the rows have that, and in
//! the whole application.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};
use serde::Deserialize;

use super::super::shown::{Cell, bytes, count};
use super::Asked;
use crate::out::Kind;
use crate::serve::Refusal;
use crate::timeline::memory::Memory;
use crate::timeline::model::Model;
use crate::workers::{Files, leading};

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

/// What the daemon reports of a stage attempt on one executor.
#[derive(Debug, Deserialize)]
struct StageDocument {
    #[serde(default)]
    executor_id: Option<String>,
    stage_id: Option<i64>,
    stage_attempt: Option<i64>,
    #[serde(default)]
    rdds: Vec<StageRdd>,
}

/// What it reports of an RDD within the stage attempt.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StageRdd {
    rdd_id: Option<i64>,
    page_faults: Option<u64>,
    page_faults_read: Option<u64>,
    page_faults_write: Option<u64>,
    page_walk_samples: Option<u64>,
}

/// Figures of an RDD within a stage attempt; absent where no executor measures them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct InStage {
    /// Most storage and execution memory of it that executors held while tasks of the stage ran, added up.
    held: Option<u64>,
    execution: Option<u64>,
    faults: Option<u64>,
    read: Option<u64>,
    write: Option<u64>,
    walks: Option<u64>,
}

/// A column of the stage's own figures.
type ShownInStage = (&'static str, fn(&InStage) -> Cell);

fn held(value: Option<u64>) -> Cell {
    value.map_or(Cell::Absent, |value| Cell::Bytes(number(value)))
}

/// What the table shows of the stage alone.
pub(super) const IN_STAGE: [ShownInStage; 6] = [
    ("Held at most meanwhile", |it| held(it.held)),
    ("Execution memory at most meanwhile", |it| {
        held(it.execution)
    }),
    ("Page faults", |it| counted(it.faults)),
    ("Page faults of loads", |it| counted(it.read)),
    ("Page faults of stores", |it| counted(it.write)),
    ("Sampled page walks", |it| counted(it.walks)),
];

impl InStage {
    /// The short line of a box.
    pub(super) fn line(&self) -> Option<String> {
        let held = self.held.map(|it| bytes(number(it)));
        let faults = self
            .faults
            .map(|it| format!("{} faults", count(number(it))));
        let all: Vec<String> = held.into_iter().chain(faults).collect();
        (!all.is_empty()).then(|| all.join(", "))
    }
}

/// What the columns mean.
pub(super) fn notes() -> Markup {
    html! {
        p.soft id="measured" {
            "Measured columns are those of the workers' daemons, added up over executors; peaks of executors need not be of one "
            "moment. Of this stage are page faults and page walks of its tasks' threads while they worked on the RDD, and the memory "
            "that the RDD held while tasks of the stage ran, by the memory over time (docs/HISTORY.md). Blocks read (those that were "
            "in memory already), written and evicted are known of the whole application only: rows of workers name no stage there."
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

/// Figures of RDDs by their ids.
type ById<Of> = BTreeMap<i64, Of>;

/// What the workers know of the RDDs of a stage.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Figures of the whole application.
    pub whole: ById<Measured>,
    /// Those within the stage attempt.
    pub in_stage: ById<InStage>,
    /// What is missing, and why.
    pub missing: BTreeSet<String>,
}

/// Executors of an attempt of an application. Attempts whose marker names none have one folder of the workers' files, and in
/// each of them stages and RDDs are counted from 0.
struct Executors<'a>(BTreeSet<&'a str>);

impl<'a> Executors<'a> {
    fn of(asked: &Asked<'a>, model: &'a Model) -> Self {
        let known = asked.app.all(Kind::Executor).iter();
        let known = known.map(|(id, _)| id.as_str());
        Self(
            known
                .chain(model.executors.iter().map(|it| it.id.as_str()))
                .collect(),
        )
    }

    /// Whether a row is of one of them. A row that names no executor may be.
    fn have(&self, executor: Option<&str>) -> bool {
        executor.is_none_or(|id| self.0.contains(id))
    }
}

/// Figures of RDDs, in the whole application and within a stage attempt. Trouble with one source leaves the others.
pub(super) fn measured(asked: &Asked<'_>, stage: (i64, i64), rdds: &BTreeSet<i64>) -> Found {
    let mut found = Found::default();
    let mut miss = |what: &str, refusal: Refusal| {
        let what = format!(
            "What the workers measured of these RDDs {what} is missing: {}",
            refusal.1
        );
        found.missing.insert(what);
    };
    let user = asked.parameters.one("user").and_then(|it| it.parse().ok());
    let store = &asked.server.settings.store;
    let host = asked.parameters.one("host");
    let of_app = Files::of(store, asked.app.identity(), user, host).map_err(Refusal::from);
    let (files, model) = match of_app.and_then(|it| Ok((it, asked.server.timeline(asked.app)?))) {
        Ok(both) => both,
        Err(refusal) => {
            miss("in the stage and in the application", refusal);
            return found;
        }
    };
    if files.is_empty() {
        return found;
    }
    let executors = Executors::of(asked, &model);
    let mut in_stage = match in_stage(&files, stage, &executors) {
        Ok(sums) => sums,
        Err(refusal) => {
            miss("in this stage, page faults and page walks,", refusal);
            ById::new()
        }
    };
    if let Err(refusal) = hold(asked, &model, stage, &executors, &mut in_stage) {
        miss("in this stage, memory,", refusal);
    }
    let whole = match whole(&files, rdds, &executors) {
        Ok(sums) => sums,
        Err(refusal) => {
            miss("in the whole application", refusal);
            ById::new()
        }
    };
    (found.whole, found.in_stage) = (whole, in_stage);
    found
}

/// Adds up the rows of a stage attempt.
fn in_stage(
    files: &Files,
    stage: (i64, i64),
    executors: &Executors<'_>,
) -> Result<ById<InStage>, Refusal> {
    let mut all: ById<InStage> = BTreeMap::new();
    let has = |id: &str| leading(id).is_none_or(|[id, attempt]| (id, attempt) == stage);
    files.documents_with("stage", &has, &mut |it| {
        let Ok(document) = serde_json::from_value::<StageDocument>(it.json) else {
            return;
        };
        let is_own = document.stage_id.zip(document.stage_attempt) == Some(stage);
        if is_own && executors.have(document.executor_id.as_deref()) {
            add_in_stage(document, &mut all);
        }
    })?;
    Ok(all)
}

fn add_in_stage(document: StageDocument, all: &mut ById<InStage>) {
    for row in document.rdds {
        let Some(id) = row.rdd_id else {
            continue;
        };
        let of = all.entry(id).or_default();
        add(&mut of.faults, row.page_faults);
        add(&mut of.read, row.page_faults_read);
        add(&mut of.write, row.page_faults_write);
        add(&mut of.walks, row.page_walk_samples);
    }
}

/// Adds what executors held of each RDD while tasks of the stage attempt ran.
fn hold(
    asked: &Asked<'_>,
    model: &Model,
    stage: (i64, i64),
    executors: &Executors<'_>,
    all: &mut ById<InStage>,
) -> Result<(), Refusal> {
    let key = |(id, attempt): (i32, i32)| (i64::from(id), i64::from(attempt));
    let at = model.stages.iter().position(|it| key(it.key) == stage);
    let Some(at) = at else {
        return Ok(());
    };
    let own = || model.tasks.iter().filter(|task| task.stage as usize == at);
    let from = own().map(|task| task.launch).min();
    let to = own().map(crate::timeline::model::Task::end).max();
    let Some((from, to)) = from.zip(to) else {
        return Ok(());
    };
    let memory = asked.server.memory(asked.app, model, asked.parameters)?;
    held_between(&memory, (from, to), executors, all);
    Ok(())
}

/// An executor by its worker and process, and an RDD.
type OnExecutor<'a> = (&'a str, u32, i64);

/// Peaks of executors within a time, added up; those of two runs of a daemon are of one executor.
fn held_between(
    memory: &Memory,
    (from, to): (i64, i64),
    executors: &Executors<'_>,
    all: &mut ById<InStage>,
) {
    let mut peaks: BTreeMap<OnExecutor<'_>, (u64, u64)> = BTreeMap::new();
    let histories = memory.histories.iter();
    let own = histories.filter(|it| it.executor.is_empty() || executors.have(Some(&it.executor)));
    for history in own {
        let within = |it: &&crate::timeline::memory::Moment| it.at <= to && it.until > from;
        for point in history
            .moments
            .iter()
            .filter(within)
            .flat_map(|it| &it.rdds)
        {
            let Some(id) = point.rdd_id else {
                continue;
            };
            let key = (history.worker.as_str(), history.pid, i64::from(id));
            let peak = peaks.entry(key).or_default();
            let sum = |heap: u64, off_heap: u64| heap.saturating_add(off_heap);
            let storage = sum(point.storage_heap_bytes, point.storage_off_heap_bytes);
            let execution = sum(point.execution_heap_bytes, point.execution_off_heap_bytes);
            *peak = (peak.0.max(storage), peak.1.max(execution));
        }
    }
    for ((_, _, id), (storage, execution)) in peaks {
        let of = all.entry(id).or_default();
        add(&mut of.held, Some(storage));
        add(&mut of.execution, Some(execution));
    }
}

/// An executor's process: host of the worker, process id, and Spark's id of the executor.
type Process = (String, u32, Option<String>);

/// Adds up the rows of some RDDs: counts over the runs of a daemon, and peaks over executors, of which the runs have the same
/// memory.
fn whole(
    files: &Files,
    rdds: &BTreeSet<i64>,
    executors: &Executors<'_>,
) -> Result<ById<Measured>, Refusal> {
    let mut all: ById<Measured> = BTreeMap::new();
    let mut peaks: BTreeMap<(i64, Process), (u64, u64)> = BTreeMap::new();
    let has = |id: &str| leading(id).is_none_or(|[rdd]| rdds.contains(&rdd));
    files.documents_with("rdd", &has, &mut |document| {
        let Ok(row) = serde_json::from_value::<Row>(document.json) else {
            return;
        };
        let id = row.rdd_id.filter(|id| rdds.contains(id));
        let Some(id) = id.filter(|_| executors.have(row.executor_id.as_deref())) else {
            return;
        };
        let of = all.entry(id).or_default();
        of.written = of.written.saturating_add(row.blocks_stored);
        of.evicted = of.evicted.saturating_add(row.blocks_evicted);
        add(&mut of.read, row.block_reads);
        add(&mut of.faults, row.page_faults);
        add(&mut of.walks, row.page_walk_samples);
        let peak = peaks.entry((id, (document.host, row.pid, row.executor_id)));
        let peak = peak.or_default();
        peak.0 = peak.0.max(row.storage_memory_peak_bytes);
        peak.1 = peak.1.max(row.execution_memory_peak_bytes);
    })?;
    for ((id, ..), (held, execution)) in peaks {
        let of = all.entry(id).or_default();
        of.held = of.held.saturating_add(held);
        of.execution = of.execution.saturating_add(execution);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use smtt_model::state::history::RddPoint;

    use super::*;
    use crate::timeline::memory::{History, Moment};

    #[test]
    fn a_stage_holds_what_executors_held_while_it_ran() {
        let moment = |at: i64, rdds: &[(u32, u64, u64)]| Moment {
            at,
            until: at + 10,
            rdds: rdds
                .iter()
                .map(|(id, storage, execution)| RddPoint {
                    rdd_id: Some(*id),
                    storage_heap_bytes: *storage,
                    storage_off_heap_bytes: 1,
                    execution_off_heap_bytes: *execution,
                    ..RddPoint::default()
                })
                .collect(),
            ..Moment::default()
        };
        let history = |pid: u32, run: u64, moments: Vec<Moment>| History {
            worker: "node-1".to_owned(),
            executor: pid.to_string(),
            pid,
            run,
            moments,
            ..History::default()
        };
        let memory = Memory {
            histories: vec![
                // Two runs of one executor, and another one.
                history(
                    1,
                    1,
                    vec![
                        moment(0, &[(6, 900, 0)]),
                        moment(10, &[(6, 50, 7), (7, 3, 0)]),
                    ],
                ),
                history(
                    1,
                    2,
                    vec![moment(20, &[(6, 40, 9)]), moment(30, &[(6, 800, 0)])],
                ),
                history(2, 1, vec![moment(20, &[(6, 5, 0)])]),
                // An executor of another attempt.
                History {
                    executor: "9".to_owned(),
                    ..history(3, 1, vec![moment(20, &[(6, 1 << 30, 0)])])
                },
            ],
            ..Memory::default()
        };
        let mut all = ById::new();
        let executors = Executors(["1", "2"].into());
        held_between(&memory, (10, 25), &executors, &mut all);
        let of = |id: i64| all.get(&id).map(|it| (it.held, it.execution));
        assert_eq!(of(6), Some((Some(51 + 6), Some(9))));
        assert_eq!(of(7), Some((Some(4), Some(0))));
        let mut none = ById::new();
        held_between(&memory, (41, 50), &executors, &mut none);
        assert!(none.is_empty());
    }
}
