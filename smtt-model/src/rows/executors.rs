//! Executors as rows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use smtt_common::context::{Activity, HeapAddresses};
use smtt_common::counter::{FaultCounters, Unattributed};
use smtt_common::page_walk::WalkCounters;

use super::consumers::by_class;
use super::{ExecutorId, Filter, Listing, PageWalkRow, stages_of};
use crate::attribute::Agreement;
use crate::sort::small::Gather as _;
use crate::state::{Executor, FaultFigures, State, TaskState, Trust, faults};

/// Whether an executor's process is alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutorState {
    /// The process is alive.
    #[default]
    Alive,
    /// The process has ended; its rows stay for the retention time.
    Dead,
}

impl ExecutorState {
    /// The word for this state in JSON and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Dead => "dead",
        }
    }
}

/// Role of an executor's process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutorKind {
    /// The process runs tasks. In local mode that is the driver.
    #[default]
    Executor,
    /// The driver of an application whose tasks run elsewhere: in no sum over executors.
    Driver,
}

/// One executor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExecutorRow {
    /// Identity of the executor.
    #[serde(flatten)]
    pub who: ExecutorId,
    /// Name of the application as the executor claims it.
    pub application_name: Option<String>,
    /// Whether the process runs tasks or only drives them.
    #[serde(default)]
    pub kind: ExecutorKind,
    /// Whether the executor's process is alive.
    pub state: ExecutorState,
    /// Whether another executor of the same user claimed the same ids before this one.
    pub claimed_twice: bool,
    /// Host as Spark names it.
    pub host: Option<String>,
    /// YARN queue of the application, as the executor claims it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Kubernetes namespace of the executor, as it claims it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_namespace: Option<String>,
    /// Kubernetes pod of the executor, as it claims it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_pod: Option<String>,
    /// Container of the executor's process, from the kernel's name of its memory cgroup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// Version of Spark in the executor.
    pub spark_version: Option<String>,
    /// Version of Java in the executor.
    pub java_version: Option<String>,
    /// Marker hooks whose target the executor's Spark does not have.
    pub missing_hooks: Vec<String>,
    /// Maximum size of the Java heap, in bytes.
    pub heap_max_bytes: Option<u64>,
    /// State of the addresses on the Java heap: `current`, `stale` (a collection has begun and its new addresses are
    /// not reported yet), `polled`, `unverified` (it is unknown whether a collection has moved them), or `refused` (the
    /// collector moves objects while the application runs).
    pub heap_addresses: Trust,
    /// How the marker finds addresses on the Java heap: `followed`, `followed slowly`, `polled` or `refused`; absent
    /// where the marker does not report it.
    pub heap_addresses_by: Option<String>,
    /// Garbage collections that have begun since the marker started to count them; absent where it does not count them.
    pub collections: Option<u64>,
    /// Start of the JVM as the executor claims it, in milliseconds since 1970.
    pub start_unix_ms: Option<u64>,
    /// Time from the first record of the executor until now or until its end, in nanoseconds.
    pub watched_ns: u64,
    /// Page faults of the executor, with a context or without.
    #[serde(flatten)]
    pub faults: FaultFigures,
    /// Page faults in the first minute after the executor's first record; absent until that minute is over.
    pub page_faults_first_minute: Option<u64>,
    /// Page faults of the executor's process from before they were counted, by the kernel's own count. `page_faults`
    /// does not include them.
    pub page_faults_before_tracing: Option<u64>,
    /// Page faults with a context.
    pub page_faults_attributed: Option<u64>,
    /// Page faults without a context.
    pub page_faults_unattributed: Option<u64>,
    /// Page faults without a context as a share of all page faults, 0 to 1.
    pub unattributed_share: Option<f64>,
    /// Page faults without a context, by class; classes without page faults are left out.
    pub unattributed: BTreeMap<String, u64>,
    /// Bytes of cached blocks in memory.
    pub storage_memory_bytes: u64,
    /// Peak of `storage_memory_bytes`.
    pub storage_memory_peak_bytes: u64,
    /// Bytes of live execution memory.
    pub execution_memory_bytes: u64,
    /// Peak of `execution_memory_bytes`.
    pub execution_memory_peak_bytes: u64,
    /// Bytes of live execution memory, by the class that allocated it.
    pub execution_memory_by_consumer: BTreeMap<String, u64>,
    /// Cached blocks in memory.
    pub blocks: u64,
    /// RDDs that have a row.
    pub rdds: u64,
    /// Running tasks.
    pub tasks_running: u64,
    /// Tasks that returned their result.
    pub tasks_succeeded: u64,
    /// Tasks that failed with an exception.
    pub tasks_failed: u64,
    /// Tasks that were killed.
    pub tasks_killed: u64,
    /// Tasks whose end was not recorded.
    pub tasks_lost: u64,
    /// Threads with a slot.
    pub threads: u64,
    /// Python workers that serve a task.
    pub python_workers: u64,
    /// Live child processes.
    pub child_processes: u64,
    /// Marker facts of this executor that reached the kernel side.
    pub facts: u64,
    /// Marker facts of this executor that the kernel side dropped.
    pub facts_dropped: u64,
    /// Facts of a newer marker that this daemon does not know: counted, not read, and no part of `facts_dropped`.
    #[serde(default)]
    pub facts_unknown: u64,
    /// Marker facts that the kernel side dropped, by cause; causes without drops are left out.
    #[serde(default)]
    pub facts_dropped_by_cause: BTreeMap<String, u64>,
    /// Marker facts that reached the daemon, by the marker's entry point. With
    /// `facts_dropped` and `facts_unknown` they add up to `facts`.
    #[serde(default)]
    pub facts_by_kind: BTreeMap<String, u64>,
    /// Records that the kernel side itself had to send about this executor: births and ends of processes, accounts of
    /// tasks.
    #[serde(default)]
    pub records: u64,
    /// Those of `records` that were lost, because the ring was full or the executor exceeded its rate.
    #[serde(default)]
    pub records_dropped: u64,
    /// Threads refused because the kernel side's table of threads was full.
    pub threads_refused: u64,
    /// Threads without a context because the executor's slot file had no free slot; absent where the slot file is not
    /// open.
    #[serde(default)]
    pub slots_refused: Option<u64>,
    /// Agreement of sampled page-fault addresses with the contexts that the faults were counted for.
    pub address_samples: Agreement,
    /// Share of comparable page-fault samples whose address and context name the same RDD, 0 to 1.
    pub address_agreement: Option<f64>,
    /// Number and total duration of rare activities, by activity.
    pub spans: BTreeMap<String, SpanRow>,
    /// Entries refused or folded into an overflow row because a table was full, by table.
    pub over_cap: BTreeMap<String, u64>,
    /// Sampled cycles without a context, by class; absent where cycles are not sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles_unattributed: Option<BTreeMap<String, u64>>,
    /// Sampled cycles without a context as a share of the executor's sampled cycles, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles_unattributed_share: Option<f64>,
    /// Agreement of sampled page-walk addresses with their contexts; absent where samples have no address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_walk_address_samples: Option<Agreement>,
    /// Share of comparable page-walk samples whose address and context name the same RDD, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_walk_address_agreement: Option<f64>,
    /// Page walks of the executor, with a context or without.
    #[serde(flatten)]
    pub walks: PageWalkRow,
}

/// Number and total duration of the spans of one activity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanRow {
    /// Number of spans.
    pub count: u64,
    /// Total duration of the spans, in nanoseconds.
    pub duration_ns: u64,
}

/// What an executor claims; `None` where it says nothing.
fn claimed(said: Option<&String>) -> Option<String> {
    said.filter(|said| !said.is_empty()).cloned()
}

impl State {
    /// Executors that the filter selects.
    #[must_use]
    pub fn list_executors(&self, filter: &Filter) -> Listing<ExecutorRow> {
        let names = self.names();
        self.listing(filter, |key, executor, rows| {
            let rdd =
                filter.rdd.is_none() || executor.rdds.keys().any(|rdd| filter.rdd(executor, *rdd));
            let stage = filter.stage.is_none()
                || executor
                    .tasks
                    .stages
                    .keys()
                    .any(|stage| filter.stage(Some(*stage)));
            // RDD and stage must match in the same work, not each in some work of the executor.
            let both = filter.rdd.is_none()
                || filter.stage.is_none()
                || executor
                    .rdds
                    .keys()
                    .filter(|rdd| filter.rdd(executor, **rdd))
                    .any(|rdd| stages_of(executor, *rdd).any(|stage| filter.stage(Some(stage))));
            if rdd && stage && both {
                rows.push(self.executor_row(
                    executor,
                    names.get(&key).is_some_and(|names| names.claimed_twice),
                ));
            }
        })
    }

    fn executor_row(&self, executor: &Executor, claimed_twice: bool) -> ExecutorRow {
        let said = executor.described.as_ref();
        let counters = &executor.counters;
        let unattributed = faults::unattributed(counters);
        let mut all: FaultCounters = counters.attributed;
        faults::add(&mut all, &unattributed);
        // Threads without a slot are not measured.
        let figures = self.figures(&all).with_times(&counters.attributed);
        let counted = |faults: &FaultCounters| figures.page_faults.map(|_| faults::total(faults));
        let held = executor.memory.total();
        let cycles = self.page_walks().and_then(|meaning| meaning.cycles());
        let class = |(code, faults): (usize, &FaultCounters)| {
            let name = u8::try_from(code)
                .ok()
                .and_then(|code| Unattributed(code).name())
                .unwrap_or("unknown");
            (name.to_owned(), faults::total(faults))
        };
        let dropped: BTreeMap<String, u64> = [
            ("rate_limited", counters.facts_rate_limited),
            ("too_long", counters.facts_too_long),
            ("unreadable", counters.facts_unreadable),
            ("ring_full", counters.facts_ring_full),
        ]
        .into_iter()
        .filter(|(_, facts)| *facts > 0)
        .map(|(cause, facts)| (cause.to_owned(), facts))
        .gather();
        ExecutorRow {
            who: ExecutorId::new(executor),
            application_name: said.map(|said| said.application_name.clone()),
            kind: if executor.is_driver() {
                ExecutorKind::Driver
            } else {
                ExecutorKind::Executor
            },
            state: if executor.died_ns.is_some() {
                ExecutorState::Dead
            } else {
                ExecutorState::Alive
            },
            claimed_twice,
            host: said.map(|said| said.host.clone()),
            queue: claimed(said.map(|said| &said.queue)),
            kubernetes_namespace: claimed(said.map(|said| &said.kubernetes_namespace)),
            kubernetes_pod: claimed(said.map(|said| &said.kubernetes_pod)),
            container_id: executor.container_id().map(str::to_owned),
            spark_version: said.map(|said| said.spark_version.clone()),
            java_version: said.map(|said| said.java_version.clone()),
            missing_hooks: said.map_or_else(Vec::new, |said| {
                said.missing_hook_names
                    .split(',')
                    .map(str::trim)
                    .filter(|name| !name.is_empty())
                    .map(str::to_owned)
                    .collect()
            }),
            heap_max_bytes: said.map(|said| said.heap_max_bytes),
            heap_addresses: executor.heap.trust(),
            heap_addresses_by: Some(executor.heap.way())
                .filter(|way| *way != HeapAddresses::UNVERIFIED)
                .and_then(HeapAddresses::name)
                .map(str::to_owned),
            collections: executor.heap.collections(),
            start_unix_ms: said.map(|said| said.start_unix_ms),
            watched_ns: executor
                .died_ns
                .unwrap_or_else(|| self.now_ns())
                .saturating_sub(executor.first_seen_ns),
            faults: figures,
            page_faults_first_minute: executor
                .faults_first_minute
                .filter(|_| figures.page_faults.is_some()),
            page_faults_before_tracing: executor
                .before_tracing
                .filter(|_| figures.page_faults.is_some()),
            page_faults_attributed: counted(&counters.attributed),
            page_faults_unattributed: counted(&unattributed),
            unattributed_share: (faults::total(&all) > 0)
                .then(|| faults::total(&unattributed) as f64 / faults::total(&all) as f64),
            unattributed: counters
                .unattributed
                .iter()
                .enumerate()
                .map(class)
                .filter(|(_, count)| *count > 0)
                .gather(),
            storage_memory_bytes: held.storage_bytes,
            storage_memory_peak_bytes: executor.peak.storage_bytes,
            execution_memory_bytes: held.execution_bytes,
            execution_memory_peak_bytes: executor.peak.execution_bytes,
            execution_memory_by_consumer: by_class(&executor.memory),
            blocks: held.blocks,
            rdds: executor
                .rdds
                .keys()
                .filter(|rdd| rdd.id().is_some())
                .count() as u64,
            tasks_running: executor.task_count(TaskState::Running),
            tasks_succeeded: executor.task_count(TaskState::Succeeded),
            tasks_failed: executor.task_count(TaskState::Failed),
            tasks_killed: executor.task_count(TaskState::Killed),
            tasks_lost: executor.task_count(TaskState::Lost),
            threads: executor.threads.len() as u64,
            python_workers: executor.python_workers.len() as u64,
            child_processes: executor.children.len() as u64,
            facts: counters.facts_seen,
            facts_dropped: dropped
                .values()
                .fold(0, |sum, more| sum.saturating_add(*more)),
            facts_unknown: counters.facts_unknown,
            facts_dropped_by_cause: dropped,
            facts_by_kind: executor.fact_counts.by_kind(),
            records: counters.records_seen,
            records_dropped: (counters.records_ring_full)
                .saturating_add(counters.records_rate_limited),
            threads_refused: counters.threads_refused,
            slots_refused: executor.slots.map(|said| said.slots_refused),
            address_samples: executor.agreement,
            address_agreement: executor.agreement.share(),
            spans: executor
                .spans
                .iter()
                .map(|(code, spans)| {
                    let name = Activity(*code).name().unwrap_or("unknown").to_owned();
                    (
                        name,
                        SpanRow {
                            count: spans.count,
                            duration_ns: spans.duration_ns,
                        },
                    )
                })
                .gather(),
            over_cap: executor
                .over_cap()
                .into_iter()
                .map(|(table, count)| (table.to_owned(), count))
                .gather(),
            cycles_unattributed: cycles.map(|slot| {
                let class = |(code, walks): (usize, &WalkCounters)| {
                    let name = u8::try_from(code)
                        .ok()
                        .and_then(|code| Unattributed(code).name());
                    (name.unwrap_or("unknown").to_owned(), walks.events[slot])
                };
                let all = executor.walks_without.iter().enumerate();
                all.map(class).filter(|(_, cycles)| *cycles > 0).gather()
            }),
            cycles_unattributed_share: cycles.and_then(|slot| {
                let all = executor.all_walks.life.events[slot];
                (all > 0).then(|| 1.0 - executor.walks.life.events[slot] as f64 / all as f64)
            }),
            page_walk_address_samples: executor
                .walk_agreement
                .share()
                .map(|_| executor.walk_agreement),
            page_walk_address_agreement: executor.walk_agreement.share(),
            walks: self.walks_of(executor, &executor.all_walks, None),
        }
    }
}
