//! Executors as rows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use smtt_common::context::{Activity, HeapAddresses};
use smtt_common::counter::{FaultCounters, Unattributed};
use smtt_common::page_walk::WalkCounters;

use super::consumers::by_class;
use super::{ExecutorId, Filter, Listing, PageWalkRow, stages_of};
use crate::attribute::Agreement;
use crate::state::{Executor, FaultFigures, State, TaskState, faults};

/// Whether an executor's process lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutorState {
    /// It does.
    #[default]
    Alive,
    /// It has ended; its rows stay for the retention.
    Dead,
}

impl ExecutorState {
    /// Its word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Dead => "dead",
        }
    }
}

/// One executor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExecutorRow {
    /// Who it is.
    #[serde(flatten)]
    pub who: ExecutorId,
    /// Name of the application.
    pub application_name: Option<String>,
    /// Whether its process lives.
    pub state: ExecutorState,
    /// Whether another executor claimed the same ids before it.
    pub claimed_twice: bool,
    /// Host as Spark names it.
    pub host: Option<String>,
    /// Version of Spark.
    pub spark_version: Option<String>,
    /// Version of Java.
    pub java_version: Option<String>,
    /// Hooks of the marker that found no target.
    pub missing_hooks: Vec<String>,
    /// Largest Java heap in bytes.
    pub heap_max_bytes: Option<u64>,
    /// What can be said of addresses on its Java heap: `current`, `stale` (between a collection and the telling of new
    /// addresses), `polled`, `as told`, or `refused` (its collector moves things while the application runs).
    pub heap_addresses: String,
    /// How the marker gets to know them: `followed`, `followed slowly`, `polled`, `refused`; absent where it does not
    /// say.
    pub heap_addresses_by: Option<String>,
    /// Collections that have begun since the marker follows them; absent where it does not.
    pub collections: Option<u64>,
    /// Start of the JVM as it claims it, milliseconds since 1970.
    pub start_unix_ms: Option<u64>,
    /// Time since it was first heard of, up to its death, in nanoseconds.
    pub watched_ns: u64,
    /// All its page faults.
    #[serde(flatten)]
    pub faults: FaultFigures,
    /// Page faults up to a minute after it was first heard of; absent before that.
    pub page_faults_first_minute: Option<u64>,
    /// Faults that were counted for a context.
    pub page_faults_attributed: Option<u64>,
    /// Faults that were not.
    pub page_faults_unattributed: Option<u64>,
    /// The latter as a share of all, 0 to 1.
    pub unattributed_share: Option<f64>,
    /// Faults that were not, by class; classes without faults are left out.
    pub unattributed: BTreeMap<String, u64>,
    /// Bytes of cached blocks in memory.
    pub storage_memory_bytes: u64,
    /// Most that these ever were.
    pub storage_memory_peak_bytes: u64,
    /// Bytes of execution memory that are live.
    pub execution_memory_bytes: u64,
    /// Most that these ever were.
    pub execution_memory_peak_bytes: u64,
    /// Those that are live, by the class that asked for them.
    pub execution_memory_by_consumer: BTreeMap<String, u64>,
    /// Blocks in memory.
    pub blocks: u64,
    /// RDDs that have a row.
    pub rdds: u64,
    /// Tasks that run.
    pub tasks_running: u64,
    /// Tasks that returned their result.
    pub tasks_succeeded: u64,
    /// Tasks that threw.
    pub tasks_failed: u64,
    /// Tasks that were killed.
    pub tasks_killed: u64,
    /// Tasks whose end was not seen.
    pub tasks_lost: u64,
    /// Threads with a slot.
    pub threads: u64,
    /// Python workers that serve a task.
    pub python_workers: u64,
    /// Child processes that live.
    pub child_processes: u64,
    /// Facts of its marker that reached the kernel side.
    pub facts: u64,
    /// Of them, facts that the kernel side had to drop.
    pub facts_dropped: u64,
    /// The latter by cause; causes without any are left out.
    #[serde(default)]
    pub facts_dropped_by_cause: BTreeMap<String, u64>,
    /// Facts that came to the daemon, by the marker's entry point: with those dropped, all that reached the kernel side.
    #[serde(default)]
    pub facts_by_kind: BTreeMap<String, u64>,
    /// Threads that were refused a place in the kernel side's table.
    pub threads_refused: u64,
    /// Threads that found no free slot in its slot file, so that what they do has no context; absent where that file
    /// is not open.
    #[serde(default)]
    pub slots_refused: Option<u64>,
    /// Sampled addresses against contexts.
    pub address_samples: Agreement,
    /// Share of comparable samples whose address and context name the same RDD, 0 to 1.
    pub address_agreement: Option<f64>,
    /// Rare activities: how many, and nanoseconds in all.
    pub spans: BTreeMap<String, SpanRow>,
    /// Rows that had no room, by table.
    pub over_cap: BTreeMap<String, u64>,
    /// Sampled cycles outside of every context, by class; absent where cycles are not sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles_unattributed: Option<BTreeMap<String, u64>>,
    /// Share of its sampled cycles outside of every context, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles_unattributed_share: Option<f64>,
    /// Sampled addresses of page walks against contexts; absent where samples have no address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_walk_address_samples: Option<Agreement>,
    /// Share of comparable ones whose address and context name the same RDD, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_walk_address_agreement: Option<f64>,
    /// All its page walks, with a context or without.
    #[serde(flatten)]
    pub walks: PageWalkRow,
}

/// Spans of one activity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanRow {
    /// How many.
    pub count: u64,
    /// Sum of their durations in nanoseconds.
    pub duration_ns: u64,
}

impl State {
    /// Executors that the filter lets through.
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
            // Both conditions are about the same work.
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
        let figures = self.figures(&all);
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
        .collect();
        ExecutorRow {
            who: ExecutorId::new(executor),
            application_name: said.map(|said| said.application_name.clone()),
            state: if executor.died_ns.is_some() {
                ExecutorState::Dead
            } else {
                ExecutorState::Alive
            },
            claimed_twice,
            host: said.map(|said| said.host.clone()),
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
            heap_addresses: executor.heap.trust().name().to_owned(),
            heap_addresses_by: Some(executor.heap.way())
                .filter(|way| *way != HeapAddresses::AS_TOLD)
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
                .collect(),
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
            facts_dropped: dropped.values().sum(),
            facts_dropped_by_cause: dropped,
            facts_by_kind: executor.came.by_kind(),
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
                .collect(),
            over_cap: executor
                .over_cap()
                .into_iter()
                .map(|(table, count)| (table.to_owned(), count))
                .collect(),
            cycles_unattributed: cycles.map(|slot| {
                let class = |(code, walks): (usize, &WalkCounters)| {
                    let name = u8::try_from(code)
                        .ok()
                        .and_then(|code| Unattributed(code).name());
                    (name.unwrap_or("unknown").to_owned(), walks.events[slot])
                };
                let all = executor.walks_without.iter().enumerate();
                all.map(class).filter(|(_, cycles)| *cycles > 0).collect()
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
