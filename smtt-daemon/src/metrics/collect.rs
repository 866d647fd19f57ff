//! Snapshot -> families of metrics.

use std::collections::{BTreeMap, HashSet};
use std::time::Instant;

use smtt_common::context::Activity;
use smtt_common::counter::{ExecutorCounters, Unattributed};
use smtt_common::page_walk::WalkCounters;
use smtt_model::attribute::{Agreement, Names};
use smtt_model::ledger::{Hop, MARKER, NOT_SEEN};
use smtt_model::postmortem::Verdict;
use smtt_model::rows::memory_limits;
use smtt_model::state::{Meaning, Measured, State, total, unattributed};
use smtt_model::verdict::VerdictState;

use super::counted::{Births, Counter, Hold, Settled};
use super::labels::{Labels, Names as Shown};
use super::memory::MemoryFigures;
use super::placement::Pages;
use super::table::{self, Metric};
use super::{Accounts, Family, Sample, Value, findings, page_walks, rdds};
use crate::shared::Shared;

/// Approximate bytes of the series of RDDs in one answer.
const RDD_BYTES: usize = 12 << 20;
/// Bytes of a sample besides its name and labels, at most: the value, and a share of the metric's help.
const VALUE_BYTES: usize = 32;

/// One executor of the snapshot.
pub(super) struct Executor {
    pub(super) key: u64,
    pub(super) names: Names,
    /// Number of the user; empty until it is known.
    pub(super) user: String,
    application_name: String,
    /// Queue, Kubernetes namespace and pod, container; empty where it has none.
    place: [String; 4],
    described: bool,
    alive: bool,
    counters: ExecutorCounters,
    slots_refused: Option<u64>,
    /// Facts that the marker has sent, by its own count, and those of them that arrived.
    facts: Option<(u64, u64)>,
    before_tracing: Option<u64>,
    memory: MemoryFigures,
    limits: Vec<(String, u64)>,
    agreement: Agreement,
    /// Number and nanoseconds of its spills.
    spills: Option<(u64, u64)>,
    over_cap: BTreeMap<&'static str, u64>,
    /// Sampled cycles with a context, and all.
    cycles: Option<(u64, u64)>,
}

pub(super) fn snapshot(state: &State) -> Vec<Executor> {
    let names = state.names();
    let cycles = state.page_walks().and_then(Meaning::cycles);
    let executor = |(key, executor): (&u64, &smtt_model::state::Executor)| {
        let described = executor.described.as_ref();
        let of = |walks: &WalkCounters, channel: usize| walks.events[channel];
        Some(Executor {
            key: *key,
            names: names.get(key)?.clone(),
            user: executor.uid.map_or_else(String::new, |uid| uid.to_string()),
            application_name: described
                .map_or_else(String::new, |said| said.application_name.clone()),
            place: place(executor),
            described: described.is_some(),
            alive: executor.died_ns.is_none(),
            counters: executor.counters,
            slots_refused: executor.slots.map(|said| said.slots_refused),
            facts: executor
                .slots
                .map(|said| (said.facts_emitted, executor.fact_counts.sum())),
            before_tracing: executor.before_tracing,
            memory: MemoryFigures::of(executor),
            limits: memory_limits(&executor.usage),
            agreement: executor.agreement,
            spills: executor
                .spans
                .get(&Activity::SPILL.0)
                .map(|spans| (spans.count, spans.duration_ns)),
            over_cap: executor.over_cap(),
            cycles: cycles.map(|channel| {
                (
                    of(&executor.walks.life, channel),
                    of(&executor.all_walks.life, channel),
                )
            }),
        })
    };
    state.executors().iter().filter_map(executor).collect()
}

/// Where an executor runs: queue, Kubernetes namespace and pod, container.
fn place(executor: &smtt_model::state::Executor) -> [String; 4] {
    let said = executor.described.as_ref();
    let container = executor.container_id().unwrap_or_default().to_owned();
    said.map_or_else(Default::default, |said| {
        [
            said.queue.clone(),
            said.kubernetes_namespace.clone(),
            said.kubernetes_pod.clone(),
            container,
        ]
    })
}

/// Every counter of an executor: metric, value of its last label (empty where it has none) and count.
pub(super) fn counters(
    executor: &Executor,
    measured: Measured,
    mut each: impl FnMut(&'static Metric, &str, u64),
) {
    let without = unattributed(&executor.counters);
    let with = total(&executor.counters.attributed);
    if measured.page_faults || with.saturating_add(total(&without)) > 0 {
        each(table::EXECUTOR_PAGE_FAULTS, "attributed", with);
        each(table::EXECUTOR_PAGE_FAULTS, "unattributed", total(&without));
        if let Some(before) = executor.before_tracing {
            each(table::EXECUTOR_PAGE_FAULTS, "before_tracing", before);
        }
    }
    for (code, class) in executor.counters.unattributed.iter().enumerate() {
        let name = u8::try_from(code).ok();
        let name = name.and_then(|code| Unattributed(code).name());
        if total(class) > 0 {
            each(
                table::EXECUTOR_UNATTRIBUTED,
                name.unwrap_or("unknown"),
                total(class),
            );
        }
    }
    if let Some(refused) = executor.slots_refused {
        each(table::EXECUTOR_SLOTS_REFUSED, "", refused);
    }
    if let Some((sent, arrived)) = executor.facts {
        each(table::EXECUTOR_FACTS, "sent", sent);
        each(table::EXECUTOR_FACTS, "arrived", arrived);
    }
    for (table, rows) in &executor.over_cap {
        each(table::EXECUTOR_ROWS_REFUSED, table, *rows);
    }
    if executor.agreement.share().is_some() {
        each(
            table::EXECUTOR_SAMPLES,
            "same_rdd",
            executor.agreement.agree,
        );
        each(
            table::EXECUTOR_SAMPLES,
            "other_rdd",
            executor.agreement.disagree,
        );
    }
    if let Some((count, duration_ns)) = executor.spills {
        each(table::EXECUTOR_SPILLS, "", count);
        each(table::EXECUTOR_SPILL_SECONDS, "", duration_ns);
    }
    if let Some((with, all)) = executor.cycles {
        each(table::EXECUTOR_CYCLES, "attributed", with);
        let without = all.saturating_sub(with);
        each(table::EXECUTOR_CYCLES, "unattributed", without);
    }
}

/// Collects samples by metric.
pub(super) struct Families<'a> {
    samples: BTreeMap<&'static str, Vec<Sample>>,
    labels: &'a Labels,
    names: Shown,
    /// How long new counters show 0.
    pub(super) hold: Hold,
    /// Bytes that further series of RDDs may take.
    room: usize,
    /// Series that found no room.
    left_out: u64,
}

impl<'a> Families<'a> {
    pub(super) fn new(labels: &'a Labels, names: Shown, hold: Hold) -> Self {
        Self {
            samples: BTreeMap::new(),
            labels,
            names,
            hold,
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
        if metric.labels.contains(&"rdd") {
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

    /// A counter of which nothing is shown before its first count.
    pub(super) fn counter(&mut self, metric: &'static Metric, labels: &[&str], value: Counter) {
        self.maybe(metric, labels, value.shown(self.hold));
    }

    /// A size that has no series while it is 0.
    pub(super) fn size(&mut self, metric: &'static Metric, labels: &[&str], bytes: u64) {
        self.maybe(metric, labels, (bytes > 0).then_some(bytes));
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
    accounts: &mut Accounts,
) -> Vec<Family> {
    let started = Instant::now();
    let (executors, measured, (over_cap, _), evicted, pages, meaning, state_bytes, now_ns) = {
        let mut state = shared.state();
        accounts.keys.update(&mut state);
        (
            snapshot(&state),
            state.measured(),
            state.executors_over_cap(),
            state.executors_evicted(),
            Pages::of(&state, &accounts.keys),
            state.page_walks().cloned(),
            state.bytes(),
            state.now_ns(),
        )
    };
    families.hold.now_ns = now_ns;
    note_first_counts(shared, accounts, &executors, measured, now_ns);
    daemon(&mut families, shared, accounts);
    families.count(table::EXECUTORS_OVER_CAP, &[], over_cap);
    families.count(table::EXECUTORS_EVICTED, &[], evicted);
    let deaths = shared.keeper().map(|keeper| keeper.counts());
    let deaths = deaths.unwrap_or_default();
    for verdict in Verdict::ALL {
        let count = deaths.get(verdict).copied().unwrap_or(0);
        families.count(table::EXECUTOR_DEATHS, &[verdict.name()], count);
    }
    families.count(table::STRINGS_CUT, &[], shared.strings_cut());
    families.count(table::STATE_BYTES, &[], state_bytes as u64);
    for executor in &executors {
        executor_series(&mut families, executor, measured, &accounts.births);
    }
    rdds::series(&mut families, &accounts.keys);
    pages.series(&mut families);
    if let Some(meaning) = &meaning {
        page_walks::series(&mut families, meaning, &accounts.keys);
    }
    findings::series(&mut families, &accounts.findings);
    families.count(table::KEYS_REFUSED, &[], accounts.keys.refused.value());
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

/// Notes the times of first counts of the counters that the executors and the ledger keep.
pub(super) fn note_first_counts(
    shared: &Shared,
    accounts: &mut Accounts,
    executors: &[Executor],
    measured: Measured,
    now_ns: u64,
) {
    let there: HashSet<u64> = executors.iter().map(|executor| executor.key).collect();
    let Accounts {
        births, not_seen, ..
    } = accounts;
    births.retain(|executor| there.contains(&executor));
    for executor in executors {
        counters(executor, measured, |metric, code, value| {
            births.note_first_count(executor.key, metric.name, code, value, now_ns);
        });
    }
    for hop in shared.ledger() {
        if hop.name == MARKER {
            not_seen.see(hop.lost_total(), now_ns);
        }
        for (cause, lost) in lost(&hop, not_seen) {
            let code = format!("{} {cause}", hop.name);
            births.note_first_count(0, table::EVENTS_LOST.name, &code, lost, now_ns);
        }
    }
}

/// What a hop has lost, by cause.
fn lost(hop: &Hop, not_seen: &Settled) -> BTreeMap<String, u64> {
    let mut lost = hop.lost.clone();
    if hop.name == MARKER {
        lost.clear();
        if not_seen.lost() > 0 {
            lost.insert(NOT_SEEN.to_owned(), not_seen.lost());
        }
    }
    lost
}

fn daemon(families: &mut Families<'_>, shared: &Shared, accounts: &Accounts) {
    let info = shared.info();
    families.count(table::BUILD_INFO, &[&info.version, &info.kernel_side], 1);
    let mut probes: BTreeMap<String, (bool, u64)> = BTreeMap::new();
    for probe in shared
        .probes()
        .into_iter()
        .filter(|probe| probe.verdict != VerdictState::NotApplicable && !probe.is_of_the_machine())
    {
        let (up, broken) = probes.entry(probe.name).or_default();
        *up |= probe.verdict == VerdictState::Ok;
        *broken += u64::from(probe.verdict == VerdictState::Broken);
    }
    for (probe, (up, broken)) in &probes {
        families.count(table::PROBE_UP, &[probe], u64::from(*up));
        families.count(table::PROBE_BROKEN, &[probe], *broken);
    }
    let unknown = shared.unknown_libraries();
    families.count(table::UNKNOWN_LIBRARIES, &[], unknown);
    for hop in shared.ledger() {
        families.count(table::EVENTS_ATTEMPTED, &[&hop.name], hop.attempted);
        families.count(
            table::LEDGER_CONSISTENT,
            &[&hop.name],
            u64::from(hop.consistent),
        );
        for (cause, lost) in lost(&hop, &accounts.not_seen) {
            let code = format!("{} {cause}", hop.name);
            let lost =
                accounts
                    .births
                    .shown((0, table::EVENTS_LOST.name, &code), lost, families.hold);
            families.count(table::EVENTS_LOST, &[&hop.name, &cause], lost);
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
    if let Some(history) = shared.history() {
        let is_up = history.failing().is_empty();
        families.count(table::HISTORY_UP, &[], u64::from(is_up));
        families.count(table::HISTORY_LOST, &[], history.lost());
        families.count(table::HISTORY_REFUSED, &[], history.refused());
        let executors = history.executors_lost();
        families.count(table::HISTORY_EXECUTORS_LOST, &[], executors);
    }
    if let Some((is_up, lost)) = shared.keeper().and_then(|keeper| keeper.writing()) {
        families.count(table::POSTMORTEM_UP, &[], u64::from(is_up));
        families.count(table::REPORTS_LOST, &[], lost);
    }
    let own = shared.self_figures();
    families.real(table::PROCESS_CPU, own.cpu_seconds);
    families.maybe(table::PROCESS_RSS, &[], own.rss_bytes);
    families.maybe(table::BPF_MEMORY, &[], own.bpf_memory_bytes);
}

fn executor_series(
    families: &mut Families<'_>,
    executor: &Executor,
    measured: Measured,
    births: &Births,
) {
    let (application, user, id) = (
        executor.names.application_id.as_str(),
        executor.user.as_str(),
        executor.names.executor_id.as_str(),
    );
    if executor.described {
        let [queue, namespace, pod, container] = &executor.place;
        families.count(
            table::EXECUTOR_INFO,
            &[
                application,
                user,
                &executor.application_name,
                id,
                queue,
                namespace,
                pod,
                container,
            ],
            1,
        );
    }
    families.count(
        table::EXECUTOR_UP,
        &[application, user, id],
        u64::from(executor.alive),
    );
    let hold = families.hold;
    counters(executor, measured, |metric, code, value| {
        let value = births.shown((executor.key, metric.name, code), value, hold);
        let labels = [application, user, id, code];
        let labels = &labels[..metric.labels.len()];
        if metric == table::EXECUTOR_SPILL_SECONDS {
            families.add(metric, labels, Value::Real(value as f64 / 1e9));
        } else {
            families.count(metric, labels, value);
        }
    });
    executor.memory.series(families, [application, user, id]);
    for (limit, bytes) in &executor.limits {
        let labels = [application, user, id, limit];
        families.count(table::EXECUTOR_LIMIT, &labels, *bytes);
    }
}
