//! Snapshot -> families of metrics.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Instant;

use smtt_common::counter::{ExecutorCounters, FaultCounters, Unattributed};
use smtt_common::page_walk::WalkCounters;
use smtt_model::attribute::{Agreement, Names, RddKey};
use smtt_model::state::{FaultFigures, Measured, MemoryHeld, State, total, unattributed};
use smtt_model::verdict::{PAGE_WALKS, VerdictState};

use super::other::Others;
use super::placement::Pages;
use super::table::{self, Metric};
use super::{Family, Sample, Value, page_walks};
use crate::shared::Shared;

/// Bytes per page fault in the ranking of RDDs: a fault brings in at least one page.
const PAGE_BYTES: u64 = 4096;
/// Longest label of an RDD's name in characters; Spark SQL names RDDs after whole plans.
const NAME_MAX: usize = 120;

/// One RDD of the snapshot.
pub(super) struct Rdd {
    pub(super) key: RddKey,
    pub(super) name: String,
    faults: FaultCounters,
    pub(super) walks: WalkCounters,
    pub(super) walks_last_minute: WalkCounters,
    held: MemoryHeld,
}

/// One executor of the snapshot.
pub(super) struct Executor {
    pub(super) key: u64,
    pub(super) names: Names,
    application_name: String,
    described: bool,
    alive: bool,
    counters: ExecutorCounters,
    slots_refused: Option<u64>,
    before_tracing: Option<u64>,
    context_faults: FaultCounters,
    agreement: Agreement,
    pub(super) rdds: Vec<Rdd>,
    /// Sampled page walks with a context.
    pub(super) walks_attributed: WalkCounters,
    /// All sampled events of the executor.
    pub(super) walks: WalkCounters,
    /// All sampled events of the executor in the last minute.
    pub(super) walks_last_minute: WalkCounters,
}

fn snapshot(state: &State) -> Vec<Executor> {
    let names = state.names();
    let executor = |(key, executor): (&u64, &smtt_model::state::Executor)| {
        let mut rows: BTreeMap<RddKey, Rdd> = BTreeMap::new();
        let blank = |key| Rdd {
            key,
            name: String::new(),
            faults: FaultCounters::default(),
            walks: WalkCounters::default(),
            walks_last_minute: WalkCounters::default(),
            held: MemoryHeld::default(),
        };
        for (key, rdd) in &executor.rdds {
            let row = rows.entry(*key).or_insert_with(|| blank(*key));
            row.faults = rdd.faults;
            row.walks = rdd.walks.life;
            row.walks_last_minute = rdd.walks.last_minute(state.now_ns());
            row.name = rdd.described.as_ref().map_or_else(String::new, |said| {
                said.name.chars().take(NAME_MAX).collect()
            });
        }
        for (rdd, held) in executor.memory.holders() {
            let key = executor.row_of(rdd);
            rows.entry(key).or_insert_with(|| blank(key)).held.add(held);
        }
        Some(Executor {
            key: *key,
            names: names.get(key)?.clone(),
            application_name: executor
                .described
                .as_ref()
                .map_or_else(String::new, |said| said.application_name.clone()),
            described: executor.described.is_some(),
            alive: executor.died_ns.is_none(),
            counters: executor.counters,
            slots_refused: executor.slots.map(|said| said.slots_refused),
            before_tracing: executor.before_tracing,
            context_faults: executor.context_faults,
            agreement: executor.agreement,
            rdds: rows.into_values().collect(),
            walks_attributed: executor.walks.life,
            walks: executor.all_walks.life,
            walks_last_minute: executor.all_walks.last_minute(state.now_ns()),
        })
    };
    state.executors().iter().filter_map(executor).collect()
}

/// RDDs that get their own series: those that touched and hold the most memory, over all executors.
fn chosen(executors: &[Executor], series_max: usize) -> BTreeMap<u64, HashSet<RddKey>> {
    let mut ranked: Vec<(u64, u64, RddKey)> = executors
        .iter()
        .flat_map(|executor| {
            executor
                .rdds
                .iter()
                .filter(|rdd| rdd.key.id().is_some())
                .map(|rdd| {
                    let touched = total(&rdd.faults).saturating_mul(PAGE_BYTES);
                    (
                        touched
                            .saturating_add(rdd.held.storage_bytes)
                            .saturating_add(rdd.held.execution_bytes),
                        executor.key,
                        rdd.key,
                    )
                })
        })
        .collect();
    // RDDs of equal rank in a fixed order, so that they do not swap from scrape to scrape.
    ranked.sort_unstable_by(|left, right| {
        right
            .0
            .cmp(&left.0)
            .then((left.1, left.2).cmp(&(right.1, right.2)))
    });
    let mut chosen: BTreeMap<u64, HashSet<RddKey>> = executors
        .iter()
        .map(|executor| (executor.key, HashSet::from([RddKey::None])))
        .collect();
    for (_, executor, rdd) in ranked.into_iter().take(series_max) {
        chosen.entry(executor).or_default().insert(rdd);
    }
    chosen
}

/// Collects samples by metric.
#[derive(Default)]
pub(super) struct Families(BTreeMap<&'static str, Vec<Sample>>);

impl Families {
    pub(super) fn add(&mut self, metric: &'static Metric, labels: &[&str], value: Value) {
        debug_assert_eq!(labels.len(), metric.labels.len(), "{}", metric.name);
        self.0.entry(metric.name).or_default().push((
            labels.iter().map(|label| (*label).to_owned()).collect(),
            value,
        ));
    }

    pub(super) fn count(&mut self, metric: &'static Metric, labels: &[&str], value: u64) {
        self.add(metric, labels, Value::Whole(value));
    }

    pub(super) fn maybe(&mut self, metric: &'static Metric, labels: &[&str], value: Option<u64>) {
        if let Some(value) = value {
            self.count(metric, labels, value);
        }
    }

    pub(super) fn real(&mut self, metric: &'static Metric, value: Option<f64>) {
        if let Some(value) = value {
            self.add(metric, &[], Value::Real(value));
        }
    }
}

/// All families of one scrape.
pub(super) fn families(shared: &Shared, others: &mut Others, series_max: usize) -> Vec<Family> {
    let started = Instant::now();
    let (executors, measured, (over_cap, _), pages, meaning) = {
        let state = shared.state();
        (
            snapshot(&state),
            state.measured(),
            state.executors_over_cap(),
            Pages::of(&state),
            state.page_walks().cloned(),
        )
    };
    let mut families = Families::default();
    daemon(&mut families, shared);
    families.count(table::EXECUTORS_OVER_CAP, &[], over_cap);
    others.keep(
        &executors
            .iter()
            .map(|executor| executor.key)
            .collect::<BTreeSet<_>>(),
    );
    let chosen = chosen(&executors, series_max);
    let nothing = HashSet::new();
    for executor in &executors {
        executor_series(&mut families, executor, measured);
        rdd_series(
            &mut families,
            executor,
            measured,
            chosen.get(&executor.key).unwrap_or(&nothing),
            others,
        );
    }
    pages.series(&mut families, &executors, &chosen);
    if let Some(meaning) = &meaning {
        page_walks::series(&mut families, meaning, &executors, &chosen);
    }
    families.count(table::SERIES_DROPPED, &[], others.dropped);
    families.real(
        table::SCRAPE_DURATION,
        Some(started.elapsed().as_secs_f64()),
    );
    table::METRICS
        .iter()
        .map(|metric| Family {
            metric,
            samples: families.0.remove(metric.name).unwrap_or_default(),
        })
        .collect()
}

fn daemon(families: &mut Families, shared: &Shared) {
    let info = shared.info();
    families.count(table::BUILD_INFO, &[&info.version, &info.kernel_side], 1);
    let mut probes: BTreeMap<String, bool> = BTreeMap::new();
    for probe in shared
        .probes()
        .into_iter()
        .filter(|probe| probe.verdict != VerdictState::NotApplicable)
        // On a machine without counters the probe cannot be up.
        .filter(|probe| probe.name != PAGE_WALKS || probe.verdict != VerdictState::Unsupported)
    {
        *probes.entry(probe.name).or_default() |= probe.verdict == VerdictState::Ok;
    }
    for (probe, up) in &probes {
        families.count(table::PROBE_UP, &[probe], u64::from(*up));
    }
    for hop in shared.ledger() {
        families.count(table::EVENTS_ATTEMPTED, &[&hop.name], hop.attempted);
        families.count(
            table::LEDGER_CONSISTENT,
            &[&hop.name],
            u64::from(hop.consistent),
        );
        for (cause, lost) in &hop.lost {
            families.count(table::EVENTS_LOST, &[&hop.name, cause], *lost);
        }
    }
    if let Some(trace) = shared.trace() {
        families.count(table::TRACE_UP, &[], u64::from(trace.failing.is_empty()));
        families.count(table::TRACE_BYTES, &[], trace.counts.disk_bytes);
        families.count(table::TRACE_SEGMENTS, &[], trace.counts.segments);
        families.count(
            table::TRACE_SEGMENTS_REMOVED,
            &[],
            trace.counts.segments_removed,
        );
    }
    let own = shared.self_figures();
    families.real(table::PROCESS_CPU, own.cpu_seconds);
    families.maybe(table::PROCESS_RSS, &[], own.rss_bytes);
    families.maybe(table::BPF_MEMORY, &[], own.bpf_memory_bytes);
}

fn executor_series(families: &mut Families, executor: &Executor, measured: Measured) {
    let (application, id) = (
        executor.names.application_id.as_str(),
        executor.names.executor_id.as_str(),
    );
    if executor.described {
        families.count(
            table::EXECUTOR_INFO,
            &[application, &executor.application_name, id],
            1,
        );
    }
    families.count(
        table::EXECUTOR_UP,
        &[application, id],
        u64::from(executor.alive),
    );
    let without = unattributed(&executor.counters);
    if measured.page_faults
        || total(&executor.counters.attributed).saturating_add(total(&without)) > 0
    {
        families.count(
            table::EXECUTOR_PAGE_FAULTS,
            &[application, id, "attributed"],
            total(&executor.counters.attributed),
        );
        families.count(
            table::EXECUTOR_PAGE_FAULTS,
            &[application, id, "unattributed"],
            total(&without),
        );
        families.maybe(
            table::EXECUTOR_PAGE_FAULTS,
            &[application, id, "before_tracing"],
            executor.before_tracing,
        );
    }
    for (code, class) in executor
        .counters
        .unattributed
        .iter()
        .enumerate()
        .filter(|(_, class)| total(class) > 0)
    {
        let name = u8::try_from(code)
            .ok()
            .and_then(|code| Unattributed(code).name())
            .unwrap_or("unknown");
        families.count(
            table::EXECUTOR_UNATTRIBUTED,
            &[application, id, name],
            total(class),
        );
    }
    families.maybe(
        table::EXECUTOR_SLOTS_REFUSED,
        &[application, id],
        executor.slots_refused,
    );
    if executor.agreement.share().is_some() {
        families.count(
            table::EXECUTOR_SAMPLES,
            &[application, id, "same_rdd"],
            executor.agreement.agree,
        );
        families.count(
            table::EXECUTOR_SAMPLES,
            &[application, id, "other_rdd"],
            executor.agreement.disagree,
        );
    }
}

fn rdd_series(
    families: &mut Families,
    executor: &Executor,
    measured: Measured,
    named: &HashSet<RddKey>,
    others: &mut Others,
) {
    let faults: Vec<(RddKey, FaultCounters)> = executor
        .rdds
        .iter()
        .map(|rdd| (rdd.key, rdd.faults))
        .collect();
    let other_faults = others.update(executor.key, executor.context_faults, &faults, named);
    let mut other_held = MemoryHeld::default();
    let mut unnamed = false;
    for rdd in &executor.rdds {
        if !named.contains(&rdd.key) {
            unnamed = true;
            other_held.add(&rdd.held);
            continue;
        }
        let id = rdd
            .key
            .id()
            .map_or_else(|| "none".to_owned(), |id| id.to_string());
        rdd_samples(
            families,
            executor,
            measured,
            (&id, &rdd.name),
            &rdd.faults,
            &rdd.held,
        );
    }
    // Once shown, the row stays: a counter that disappears for a while is hard to read.
    if unnamed || total(&other_faults) > 0 {
        rdd_samples(
            families,
            executor,
            measured,
            ("other", ""),
            &other_faults,
            &other_held,
        );
    }
}

fn rdd_samples(
    families: &mut Families,
    executor: &Executor,
    measured: Measured,
    (id, name): (&str, &str),
    faults: &FaultCounters,
    held: &MemoryHeld,
) {
    let labels = [
        executor.names.application_id.as_str(),
        executor.names.executor_id.as_str(),
        id,
        name,
    ];
    let figures = FaultFigures::new(faults, measured);
    families.maybe(table::RDD_READ, &labels, figures.page_faults_read);
    families.maybe(table::RDD_WRITE, &labels, figures.page_faults_write);
    families.maybe(
        table::RDD_UNKNOWN,
        &labels,
        figures.page_faults_unknown_access,
    );
    families.maybe(table::RDD_MAJOR, &labels, figures.page_faults_major);
    families.count(table::RDD_STORAGE, &labels, held.storage_bytes);
    families.count(table::RDD_EXECUTION, &labels, held.execution_bytes);
    if id != "none" {
        families.count(table::RDD_CACHED, &labels, held.blocks);
    }
}
