//! One executor: facts and counts under its key.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use smtt_common::counter::{ContextKey, ExecutorCounters, FaultCounters, UNATTRIBUTED_CLASSES};
use smtt_common::page_walk::WalkCounters;

use super::block_history::LeftPartitions;
use super::fact_counts::FactCounts;
use super::heap::{Heap, Trust};
use super::history::History;
use super::memory::Memory;
use super::page_walks::{LATE_NS, Meaning, Walks};
use super::placement::{RangesId, Seen};
use super::rdd::{Peak, Rdd};
use super::resync::Resync;
use super::task::{OverCap, TaskState, Tasks};
use super::{Limits, faults};
use crate::attribute::{Agreement, Attribution, Owner, RddKey};
use crate::decode::ExecutorDescribed;

/// Time after a task's end, in nanoseconds, after which its remaining Spark pages are dropped: the facts that freed
/// them were lost.
const PAGES_OUTLIVE_TASK_NS: u64 = 5_000_000_000;

/// Length of an executor's first minute, in nanoseconds.
const FIRST_MINUTE_NS: u64 = 60_000_000_000;

/// Spans of one activity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    /// Number of spans.
    pub count: u64,
    /// Total duration of the spans, in nanoseconds.
    pub duration_ns: u64,
}

/// The marker's counters in its slot file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotFileCounters {
    /// Facts emitted since the marker's probes were attached.
    pub facts_emitted: u64,
    /// Threads without a context because the slot file had no free slot.
    pub slots_refused: u64,
}

/// One executor.
#[derive(Debug, Default)]
pub struct Executor {
    /// Process id in the initial pid namespace.
    pub pid: u32,
    /// The executor's description of itself.
    pub described: Option<ExecutorDescribed>,
    /// Time of the executor's first record, in nanoseconds since boot.
    pub first_seen_ns: u64,
    /// Time of the executor's end, in nanoseconds since boot.
    pub died_ns: Option<u64>,
    /// The kernel side's totals.
    pub counters: ExecutorCounters,
    /// Faults of the process from before they were counted; absent where the kernel's count was not read.
    pub before_tracing: Option<u64>,
    /// Facts received, by kind.
    pub came: FactCounts,
    /// Page faults counted in a context row.
    pub context_faults: FaultCounters,
    /// Sampled page walks and cycles with a context.
    pub walks: Walks,
    /// Sampled page walks and cycles with a context or without.
    pub all_walks: Walks,
    /// Sampled page walks and cycles without a context, by reason.
    pub walks_without: [WalkCounters; UNATTRIBUTED_CLASSES],
    /// RDDs.
    pub rdds: HashMap<RddKey, Rdd>,
    /// RDDs folded into the overflow row or refused.
    pub rdds_over_cap: u64,
    /// Tasks and stages.
    pub tasks: Tasks,
    /// Blocks and pages.
    pub memory: Memory,
    /// State of the addresses on the Java heap.
    pub heap: Heap,
    /// Threads with a slot, by thread id in the JVM's pid namespace.
    pub threads: BTreeSet<u32>,
    /// Python workers that serve a task, by process id in the JVM's pid namespace, and their tasks.
    pub python_workers: BTreeMap<u32, u64>,
    /// Live child processes, by process id in the initial pid namespace.
    pub children: BTreeSet<u32>,
    /// Rare activities, by code.
    pub spans: BTreeMap<u8, Spans>,
    /// Agreement of sampled fault addresses with contexts.
    pub agreement: Agreement,
    /// Agreement of sampled page-walk addresses with contexts.
    pub walk_agreement: Agreement,
    /// Peak of the memory that all RDDs hold together.
    pub peak: Peak,
    /// Page faults in the first minute after the first record; `None` until that minute is over.
    pub faults_first_minute: Option<u64>,
    /// Memory over time.
    pub history: History,
    /// Partitions of cached RDDs that left its memory.
    pub(super) left: LeftPartitions,
    /// The marker's counters in the slot file; `None` where the file is not open.
    pub slots: Option<SlotFileCounters>,
    /// Ended tasks whose last samples may still arrive, the oldest first.
    pub(super) finishing: VecDeque<(u64, u64)>,
    pub(super) resync: Resync,
}

impl Executor {
    /// A new row.
    pub(super) fn new(pid: u32, now_ns: u64) -> Self {
        Self {
            pid,
            first_seen_ns: now_ns,
            ..Self::default()
        }
    }

    /// The row of an RDD; the overflow row where the table is full. RDDs without blocks, Spark pages and running tasks
    /// are folded first.
    pub(super) fn rdd(&mut self, key: RddKey, now_ns: u64, limits: &Limits) -> (&mut Rdd, bool) {
        let mut key = key;
        if key.id().is_some()
            && !self.rdds.contains_key(&key)
            && self.rdds.len() >= limits.rdds_per_executor
        {
            self.fold_rdds();
            if self.rdds.len() >= limits.rdds_per_executor {
                self.rdds_over_cap += 1;
                key = RddKey::Overflow;
            }
        }
        let row = self.rdds.entry(key).or_default();
        row.last_active_ns = row.last_active_ns.max(now_ns);
        (row, key == RddKey::Overflow)
    }

    fn fold_rdds(&mut self) {
        let held: BTreeSet<RddKey> = self.memory.holders().map(|(rdd, _)| rdd).collect();
        let mut old: Vec<(u64, RddKey)> = self
            .rdds
            .iter()
            .filter(|(key, _)| key.id().is_some() && !held.contains(key))
            .map(|(key, rdd)| (rdd.last_active_ns, *key))
            .collect();
        old.sort_unstable();
        old.truncate((self.rdds.len() / 8).max(1));
        for (_, key) in old {
            let Some(rdd) = self.rdds.remove(&key) else {
                continue;
            };
            self.rdds_over_cap += 1;
            let over = self.rdds.entry(RddKey::Overflow).or_default();
            faults::add(&mut over.faults, &rdd.faults);
            over.samples_by_address += rdd.samples_by_address;
            over.uses.fold(&rdd.uses);
            over.walk_samples_by_address += rdd.walk_samples_by_address;
            over.walks.fold(&rdd.walks);
            over.distribution.fold(&rdd.distribution);
            for (doing, more) in &rdd.doing_walks {
                over.doing_walks.entry(*doing).or_default().add(more);
            }
            for (doing, more) in &rdd.doing {
                faults::add(over.doing.entry(*doing).or_default(), more);
            }
        }
    }

    /// Counts the growth of one context.
    pub(super) fn add(
        &mut self,
        context: &ContextKey,
        growth: &FaultCounters,
        now_ns: u64,
        limits: &Limits,
    ) {
        let who = Attribution::from(context);
        faults::add(&mut self.context_faults, growth);
        let (rdd, _) = self.rdd(who.rdd, now_ns, limits);
        faults::add(&mut rdd.faults, growth);
        faults::add(rdd.doing.entry(who.doing).or_default(), growth);
        if let Some(id) = who.task {
            match self.tasks.task(id, limits.tasks_per_executor) {
                Some(task) => {
                    task.add(growth, who.rdd, now_ns);
                    if task.stage.is_none() {
                        task.stage = who.stage;
                    }
                }
                None => faults::add(&mut self.tasks.tasks_over_cap.faults, growth),
            }
        }
        if let Some(key) = who.stage {
            match self.tasks.stage(key, limits.stages_per_executor) {
                Some(stage) => stage.add(growth, who.rdd, now_ns),
                None => faults::add(&mut self.tasks.stages_over_cap.faults, growth),
            }
        }
    }

    /// Counts the growth of one context's sampled page walks.
    pub(super) fn add_walks(
        &mut self,
        context: &ContextKey,
        growth: &WalkCounters,
        now_ns: u64,
        limits: &Limits,
    ) {
        if let Some(class) = context.class() {
            let class = usize::from(class.0).min(UNATTRIBUTED_CLASSES - 1);
            self.walks_without[class].add(growth);
            self.all_walks.add(growth, now_ns);
            return;
        }
        let who = Attribution::from(context);
        self.walks.add(growth, now_ns);
        self.all_walks.add(growth, now_ns);
        let (rdd, _) = self.rdd(who.rdd, now_ns, limits);
        rdd.walks.add(growth, now_ns);
        rdd.doing_walks.entry(who.doing).or_default().add(growth);
        if let Some(id) = who.task {
            match self.tasks.task(id, limits.tasks_per_executor) {
                Some(task) => {
                    task.add_walks(growth, who.rdd, now_ns);
                    if task.stage.is_none() {
                        task.stage = who.stage;
                    }
                }
                None => self.tasks.tasks_over_cap.walks.add(growth),
            }
        }
        if let Some(key) = who.stage {
            match self.tasks.stage(key, limits.stages_per_executor) {
                Some(stage) => stage.add_walks(growth, who.rdd, now_ns),
                None => self.tasks.stages_over_cap.walks.add(growth),
            }
        }
    }

    /// Keeps the page faults of the first minute once it is over.
    pub(super) fn see_first_minute(&mut self, now_ns: u64) {
        if self.faults_first_minute.is_none()
            && now_ns.saturating_sub(self.first_seen_ns) >= FIRST_MINUTE_NS
        {
            let with = faults::total(&self.counters.attributed);
            let without = faults::total(&faults::unattributed(&self.counters));
            self.faults_first_minute = Some(with.saturating_add(without));
        }
    }

    /// Adds tasks whose last samples have arrived to the distributions.
    pub(super) fn finish_tasks(&mut self, meaning: &Meaning, now_ns: u64) {
        while let Some((id, end_ns)) = self.finishing.front().copied() {
            if now_ns.saturating_sub(end_ns) < LATE_NS {
                return;
            }
            self.finishing.pop_front();
            let Some(task) = self.tasks.tasks.get_mut(&id) else {
                continue;
            };
            let (stage, all) = (task.stage, task.walks);
            for (rdd, walks) in std::mem::take(&mut task.walks_by_rdd) {
                if let Some(row) = self.rdds.get_mut(&rdd) {
                    row.distribution.add(meaning, &walks);
                }
            }
            if let Some(stage) = stage.and_then(|stage| self.tasks.stages.get_mut(&stage)) {
                stage.distribution.add(meaning, &all);
            }
        }
    }

    /// The owner of an address, where it can be determined.
    pub(super) fn owner(&self, address: u64) -> Option<Owner> {
        let owner = self.memory.addresses.owner(address)?;
        (!owner.on_heap || self.heap.trust().attributes()).then_some(owner)
    }

    /// The resolver's last result for a block or Spark page, if its addresses have not changed since.
    #[must_use]
    pub fn looked(&self, mark: Option<RangesId>, on_heap: bool) -> Option<&Seen> {
        self.memory.looked.of(self.known(mark, on_heap)?)
    }

    /// Identity of a block or Spark page at its current addresses, where these are known.
    pub(super) fn known(&self, mark: Option<RangesId>, on_heap: bool) -> Option<RangesId> {
        mark.filter(|_| !on_heap || self.heap.trust() != Trust::Stale)
    }

    /// The JVM is gone: its memory is free and its running tasks are lost.
    pub(super) fn die(&mut self, now_ns: u64, limits: &Limits) {
        if self.died_ns.is_some() {
            return;
        }
        self.died_ns = Some(now_ns);
        self.let_go(now_ns, limits);
    }

    pub(super) fn let_go(&mut self, now_ns: u64, limits: &Limits) {
        self.tasks
            .lose(now_ns, limits.stages_per_executor, |_| true);
        self.memory.clear();
        self.threads.clear();
        self.python_workers.clear();
        self.children.clear();
        self.resync = Resync::default();
    }

    /// Drops Spark pages of tasks that ended a while ago: the facts that freed them were lost.
    pub(super) fn drop_stale_pages(&mut self, now_ns: u64) -> u64 {
        let tasks = &self.tasks.tasks;
        self.memory.drop_pages(|page| {
            let task = page.task.and_then(|id| tasks.get(&id));
            let ended = task
                .filter(|task| task.state.ended())
                .and_then(|task| task.end_ns);
            ended.is_some_and(|end| now_ns.saturating_sub(end) > PAGES_OUTLIVE_TASK_NS)
        })
    }

    /// The row in which an RDD's memory is listed.
    #[must_use]
    pub fn row_of(&self, rdd: RddKey) -> RddKey {
        if rdd == RddKey::None || self.rdds.contains_key(&rdd) {
            rdd
        } else {
            RddKey::Overflow
        }
    }

    /// Tasks in one state.
    #[must_use]
    pub fn task_count(&self, state: TaskState) -> u64 {
        self.tasks
            .stages
            .values()
            .map(|stage| stage.count(state))
            .sum()
    }

    /// Rows folded or refused, by table.
    #[must_use]
    pub fn over_cap(&self) -> BTreeMap<&'static str, u64> {
        let OverCap { rows: tasks, .. } = self.tasks.tasks_over_cap;
        [
            ("rdds", self.rdds_over_cap),
            ("tasks", tasks),
            ("stages", self.tasks.stages_over_cap.rows),
            ("blocks", self.memory.blocks_over_cap),
            ("pages", self.memory.pages_over_cap),
            ("ranges", self.memory.ranges_refused),
        ]
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .collect()
    }
}
