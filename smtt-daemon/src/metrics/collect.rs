//! Snapshot -> families of metrics.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Instant;

use smtt_common::counter::{ExecutorCounters, FaultCounters, Unattributed};
use smtt_common::page_walk::WalkCounters;
use smtt_model::attribute::{Agreement, Names, RddKey};
use smtt_model::postmortem::Verdict;
use smtt_model::state::{FaultFigures, Measured, MemoryHeld, State, total, unattributed};
use smtt_model::verdict::{PAGE_WALKS, VerdictState};

use super::labels::{Labels, Names as Shown, cut};
use super::memory::MemoryFigures;
use super::other::Others;
use super::placement::Pages;
use super::table::{self, Metric};
use super::{Family, Sample, Value, page_walks};
use crate::shared::Shared;

/// Approximate bytes of the series of RDDs in one answer.
const RDD_BYTES: usize = 12 << 20;
/// Bytes of a sample besides its name and labels, at most: the value, and a share of the metric's help.
const VALUE_BYTES: usize = 32;

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
    /// User whose share of the series it uses.
    share: Option<u32>,
    /// Number of the user; empty until it is known.
    pub(super) user: String,
    application_name: String,
    described: bool,
    alive: bool,
    counters: ExecutorCounters,
    slots_refused: Option<u64>,
    before_tracing: Option<u64>,
    memory: MemoryFigures,
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
            row.name = rdd
                .described
                .as_ref()
                .map_or_else(String::new, |said| cut(&said.name));
        }
        for (rdd, held) in executor.memory.holders() {
            let key = executor.row_of(rdd);
            rows.entry(key).or_insert_with(|| blank(key)).held.add(held);
        }
        Some(Executor {
            key: *key,
            names: names.get(key)?.clone(),
            share: executor.share,
            user: executor.uid.map_or_else(String::new, |uid| uid.to_string()),
            application_name: executor
                .described
                .as_ref()
                .map_or_else(String::new, |said| said.application_name.clone()),
            described: executor.described.is_some(),
            alive: executor.died_ns.is_none(),
            counters: executor.counters,
            slots_refused: executor.slots.map(|said| said.slots_refused),
            before_tracing: executor.before_tracing,
            memory: MemoryFigures::of(executor),
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

/// Shares `all` among claimants max-min fairly: a claimant gets what it wants or an even share of what the others leave.
fn max_min<Key: Copy + Ord>(wants: &BTreeMap<Key, usize>, all: usize) -> BTreeMap<Key, usize> {
    let mut by_want: Vec<(usize, Key)> = wants.iter().map(|(key, want)| (*want, *key)).collect();
    by_want.sort_unstable();
    let mut left = all;
    let mut claimants = by_want.len();
    let mut shares = BTreeMap::new();
    for (want, key) in by_want {
        let share = want.min(left / claimants);
        left -= share;
        claimants -= 1;
        shares.insert(key, share);
    }
    shares
}

/// RDDs that get their own series. Series are shared by user, then by executor, so that no executor's claims cost
/// another its series. In an executor, page faults (the kernel's count) rank before memory (a claim).
fn chosen(executors: &[Executor], series_max: usize) -> BTreeMap<u64, HashSet<RddKey>> {
    let wants = |executor: &Executor| {
        let named = executor.rdds.iter();
        named.filter(|rdd| rdd.key.id().is_some()).count()
    };
    let mut users: BTreeMap<Option<u32>, BTreeMap<u64, usize>> = BTreeMap::new();
    for executor in executors {
        let of_user = users.entry(executor.share).or_default();
        of_user.insert(executor.key, wants(executor));
    }
    let by_user = users
        .iter()
        .map(|(user, wants)| (*user, wants.values().sum()))
        .collect();
    let shares: BTreeMap<u64, usize> = max_min(&by_user, series_max)
        .into_iter()
        .filter_map(|(user, share)| Some(max_min(users.get(&user)?, share)))
        .flatten()
        .collect();
    let chosen = executors.iter().map(|executor| {
        let mut ranked: Vec<_> = executor
            .rdds
            .iter()
            .filter(|rdd| rdd.key.id().is_some())
            .map(|rdd| {
                let held = rdd.held.storage_bytes;
                let held = held.saturating_add(rdd.held.execution_bytes);
                // RDDs of equal rank in a fixed order, so that they do not swap from scrape to scrape.
                std::cmp::Reverse((total(&rdd.faults), held, std::cmp::Reverse(rdd.key)))
            })
            .collect();
        ranked.sort_unstable();
        let share = shares.get(&executor.key).copied().unwrap_or(0);
        let named = ranked.into_iter().take(share);
        let named = named.map(|std::cmp::Reverse((_, _, std::cmp::Reverse(rdd)))| rdd);
        (executor.key, named.chain([RddKey::None]).collect())
    });
    chosen.collect()
}

/// Collects samples by metric.
pub(super) struct Families<'a> {
    samples: BTreeMap<&'static str, Vec<Sample>>,
    labels: &'a Labels,
    names: Shown,
    /// Bytes that further series of RDDs may take.
    room: usize,
    /// Series that found no room.
    left_out: u64,
}

impl<'a> Families<'a> {
    pub(super) fn new(labels: &'a Labels, names: Shown) -> Self {
        Self {
            samples: BTreeMap::new(),
            labels,
            names,
            room: RDD_BYTES,
            left_out: 0,
        }
    }

    pub(super) fn add(&mut self, metric: &'static Metric, labels: &[&str], value: Value) {
        debug_assert_eq!(labels.len(), metric.labels.len(), "{}", metric.name);
        let of_user = metric.labels.iter().position(|label| *label == "user");
        let user = of_user.and_then(|at| labels.get(at)).copied();
        let labelled = metric.labels.iter().zip(labels);
        let values: Vec<String> = labelled
            .map(|(label, value)| {
                self.labels
                    .value(label, value, user.unwrap_or_default(), self.names)
            })
            .collect();
        if metric.labels.contains(&"rdd_id") {
            let own = |(name, value): (&&str, &String)| name.len() + value.len() + 4;
            let labels: usize = metric.labels.iter().zip(&values).map(own).sum();
            let bytes = metric.name.len() + labels + VALUE_BYTES;
            if bytes > self.room {
                self.left_out += 1;
                return;
            }
            self.room -= bytes;
        }
        self.samples
            .entry(metric.name)
            .or_default()
            .push((values, value));
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
pub(super) fn families(
    shared: &Shared,
    mut families: Families<'_>,
    others: &mut Others,
    series_max: usize,
) -> Vec<Family> {
    let started = Instant::now();
    let (mut executors, measured, (over_cap, _), pages, meaning, state_bytes) = {
        let state = shared.state();
        (
            snapshot(&state),
            state.measured(),
            state.executors_over_cap(),
            Pages::of(&state),
            state.page_walks().cloned(),
            state.bytes(),
        )
    };
    daemon(&mut families, shared);
    families.count(table::EXECUTORS_OVER_CAP, &[], over_cap);
    let deaths = shared.keeper().map(|keeper| keeper.counts());
    let deaths = deaths.unwrap_or_default();
    for verdict in Verdict::ALL {
        let count = deaths.get(verdict).copied().unwrap_or(0);
        families.count(table::EXECUTOR_DEATHS, &[verdict.name()], count);
    }
    families.count(table::STRINGS_CUT, &[], shared.strings_cut());
    families.count(table::STATE_BYTES, &[], state_bytes as u64);
    others.keep(
        &executors
            .iter()
            .map(|executor| executor.key)
            .collect::<BTreeSet<_>>(),
    );
    let chosen = chosen(&executors, series_max);
    for executor in &mut executors {
        for rdd in &mut executor.rdds {
            let shown = chosen
                .get(&executor.key)
                .is_some_and(|named| named.contains(&rdd.key));
            if shown && !rdd.name.is_empty() {
                others.name(executor.key, rdd.key, &mut rdd.name);
            }
        }
    }
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
    let left_out = families.left_out;
    families.count(table::SERIES_LEFT_OUT, &[], left_out);
    families.real(
        table::SCRAPE_DURATION,
        Some(started.elapsed().as_secs_f64()),
    );
    table::METRICS
        .iter()
        .map(|metric| Family {
            metric,
            samples: families.samples.remove(metric.name).unwrap_or_default(),
        })
        .collect()
}

fn daemon(families: &mut Families<'_>, shared: &Shared) {
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

fn executor_series(families: &mut Families<'_>, executor: &Executor, measured: Measured) {
    let (application, user, id) = (
        executor.names.application_id.as_str(),
        executor.user.as_str(),
        executor.names.executor_id.as_str(),
    );
    if executor.described {
        families.count(
            table::EXECUTOR_INFO,
            &[application, user, &executor.application_name, id],
            1,
        );
    }
    families.count(
        table::EXECUTOR_UP,
        &[application, user, id],
        u64::from(executor.alive),
    );
    let without = unattributed(&executor.counters);
    if measured.page_faults
        || total(&executor.counters.attributed).saturating_add(total(&without)) > 0
    {
        families.count(
            table::EXECUTOR_PAGE_FAULTS,
            &[application, user, id, "attributed"],
            total(&executor.counters.attributed),
        );
        families.count(
            table::EXECUTOR_PAGE_FAULTS,
            &[application, user, id, "unattributed"],
            total(&without),
        );
        families.maybe(
            table::EXECUTOR_PAGE_FAULTS,
            &[application, user, id, "before_tracing"],
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
            &[application, user, id, name],
            total(class),
        );
    }
    executor.memory.series(families, [application, user, id]);
    families.maybe(
        table::EXECUTOR_SLOTS_REFUSED,
        &[application, user, id],
        executor.slots_refused,
    );
    if executor.agreement.share().is_some() {
        families.count(
            table::EXECUTOR_SAMPLES,
            &[application, user, id, "same_rdd"],
            executor.agreement.agree,
        );
        families.count(
            table::EXECUTOR_SAMPLES,
            &[application, user, id, "other_rdd"],
            executor.agreement.disagree,
        );
    }
}

fn rdd_series(
    families: &mut Families<'_>,
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
    families: &mut Families<'_>,
    executor: &Executor,
    measured: Measured,
    (id, name): (&str, &str),
    faults: &FaultCounters,
    held: &MemoryHeld,
) {
    let labels = [
        executor.names.application_id.as_str(),
        executor.user.as_str(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_wants_are_met_and_the_rest_is_even() {
        let of = |wants: &[(u32, usize)], all| {
            let wants = wants.iter().copied().collect();
            max_min(&wants, all).into_values().collect::<Vec<_>>()
        };
        assert_eq!(of(&[(1, 1000), (2, 6)], 100), [94, 6]);
        assert_eq!(of(&[(1, 1000), (2, 60)], 100), [50, 50]);
        assert_eq!(of(&[(1, 10), (2, 1000), (3, 30)], 70), [10, 30, 30]);
        assert_eq!(of(&[(1, 5)], 0), [0]);
        assert!(of(&[], 5).is_empty());
    }
}
