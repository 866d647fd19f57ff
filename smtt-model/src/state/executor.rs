//! One executor: facts and counts under its key.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use smtt_common::counter::{ContextKey, ExecutorCounters, FaultCounters, UNATTRIBUTED_CLASSES};
use smtt_common::page_walk::WalkCounters;

use super::accessed::LastAccessed;
use super::black_box::BlackBox;
use super::block_history::LeftPartitions;
use super::bytes::{Caps, HeapBytes, RowMut, Search, Table, tree_bytes, tree_entry_bytes};
use super::fact_counts::FactCounts;
use super::faults;
use super::heap::{Heap, Trust};
use super::history::History;
use super::memory::Memory;
use super::memory_peaks::Peaks;
use super::memory_usage::{Child, MemoryUsage, container_id};
use super::over_cap::OverCap;
use super::page_walks::{LATE_NS, Meaning, Walks};
use super::placement::{LastExamined, RangesId, Seen};
use super::python::Served;
use super::rdd::{Peak, Rdd};
use super::resync::Resync;
use super::shares::Settled;
use super::task::{TaskState, Tasks};
use crate::attribute::{Agreement, Attribution, Doing, Owner, RddKey, StageKey};
use crate::decode::ExecutorDescribed;
use crate::sort::small::{self, Gather as _};

/// Time after a task's end, in nanoseconds, after which its remaining Spark pages are dropped: the facts that freed
/// them were lost.
const PAGES_OUTLIVE_TASK_NS: u64 = 5_000_000_000;

/// Spark's executor id of a driver.
const DRIVER: &str = "driver";

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

impl HeapBytes for ExecutorDescribed {
    fn heap_bytes(&self) -> usize {
        [
            &self.application_id,
            &self.application_name,
            &self.executor_id,
            &self.host,
            &self.spark_version,
            &self.java_version,
            &self.missing_hook_names,
            &self.application_attempt_id,
            &self.queue,
            &self.kubernetes_namespace,
            &self.kubernetes_pod,
        ]
        .into_iter()
        .map(String::capacity)
        .sum()
    }
}

/// One executor.
#[derive(Debug, Default)]
pub struct Executor {
    /// Process id in the initial pid namespace.
    pub pid: u32,
    /// User of the process, as the kernel reports it; `None` before the first record or reading with it.
    pub uid: Option<u32>,
    /// User whose share it uses: the owner of the range of subordinate ids that has `uid`, else `uid` itself.
    pub share: Option<u32>,
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
    pub fact_counts: FactCounts,
    /// Page faults counted in a context row.
    pub context_faults: FaultCounters,
    /// Sampled page walks and cycles with a context.
    pub walks: Walks,
    /// Sampled page walks and cycles with a context or without.
    pub all_walks: Walks,
    /// Sampled page walks and cycles without a context, by reason.
    pub walks_without: [WalkCounters; UNATTRIBUTED_CLASSES],
    /// RDDs.
    pub rdds: Table<RddKey, Rdd>,
    /// RDDs folded into the overflow row or refused.
    pub rdds_over_cap: u64,
    /// Tasks and stages.
    pub tasks: Tasks,
    /// Blocks and pages.
    pub memory: Memory,
    /// Where the memory of its processes is.
    pub usage: MemoryUsage,
    /// Peaks under the names of Spark's metrics.
    pub peaks: Peaks,
    /// State of the addresses on the Java heap.
    pub heap: Heap,
    /// Threads with a slot, by thread id in the JVM's pid namespace.
    pub threads: BTreeSet<u32>,
    /// Python workers that serve a task, by process id in the JVM's pid namespace, and their tasks.
    pub python_workers: BTreeMap<u32, Served>,
    /// Live child processes, by process id in the initial pid namespace, with the time of the report of their birth in
    /// nanoseconds since boot.
    pub children: BTreeMap<u32, u64>,
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
    /// What a page about the executor's death needs.
    pub black_box: BlackBox,
    /// Memory over time.
    pub history: History,
    /// Partitions of cached RDDs that left its memory.
    pub(super) left_partitions: LeftPartitions,
    /// The marker's counters in the slot file; `None` where the file is not open.
    pub slots: Option<SlotFileCounters>,
    /// Ended tasks whose last samples may still arrive, the oldest first.
    pub(super) finishing: VecDeque<(u64, u64)>,
    pub(super) resync: Resync,
    /// Inserts that were refused because the bytes did not fit.
    pub bytes_refused: u64,
    pub(super) rdds_search: Search,
    /// As it is in the sums of the state.
    pub(super) settled: Option<Settled>,
    /// Time of the last reading of the slot file, in nanoseconds since boot.
    slots_read_ns: u64,
    /// Facts emitted by the slot file's own count at the last reading.
    slots_said: u64,
    /// What to add to that count, because it has fallen.
    slots_before: u64,
    /// Bytes of the history.
    pub(super) history_bytes: usize,
}

impl HeapBytes for RddKey {
    fn heap_bytes(&self) -> usize {
        0
    }
}

impl Executor {
    /// Whether it is dead and [`super::State::case`] has not been asked for its death yet.
    #[must_use]
    pub fn is_death_unjudged(&self) -> bool {
        let notes = &self.black_box;
        self.died_ns.is_some() && !notes.judged && !notes.replaced
    }

    /// A new row.
    pub(super) fn new(pid: u32, uid: Option<u32>, now_ns: u64) -> Self {
        Self {
            pid,
            uid,
            first_seen_ns: now_ns,
            ..Self::default()
        }
    }

    /// Whether the process is a driver whose tasks run elsewhere. In local mode the driver runs the tasks itself.
    #[must_use]
    pub fn is_driver(&self) -> bool {
        let said = self.described.as_ref();
        said.is_some_and(|said| said.executor_id == DRIVER)
            && self.tasks.tasks.is_empty()
            && self.tasks.tasks_over_cap.rows == 0
    }

    /// Bytes of the executor's tables, counted as they change.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let said = self.described.as_ref();
        let fixed = size_of::<Self>() + said.map_or(0, HeapBytes::heap_bytes);
        fixed
            + self.fact_counts.heap_bytes()
            + self.walks.heap_bytes()
            + self.all_walks.heap_bytes()
            + self.rdds.bytes()
            + self.tasks.bytes()
            + self.memory.bytes()
            + self.usage.heap_bytes()
            + tree_bytes(self.threads.len(), size_of::<u32>())
            + tree_bytes(self.python_workers.len(), size_of::<(u32, Served)>())
            + tree_bytes(self.children.len(), size_of::<(u32, u64)>())
            + tree_bytes(self.spans.len(), size_of::<(u8, Spans)>())
            + self.history_bytes
            + self.black_box.bytes()
            + self.left_partitions.bytes()
            + self.finishing.capacity() * size_of::<(u64, u64)>()
    }

    /// The row of an RDD; the overflow row where the table is full. RDDs without blocks, Spark pages and running tasks
    /// are folded first.
    pub(super) fn rdd(&mut self, key: RddKey, now_ns: u64, caps: &Caps) -> (RowMut<'_, Rdd>, bool) {
        let mut key = key;
        if key.id().is_some() && !self.rdds.contains_key(&key) {
            let rows = |rdds: &Table<RddKey, Rdd>| rdds.len() < caps.rdds_per_executor;
            let mut room = rows(&self.rdds) && caps.fits(self.rdds.row_bytes(0));
            if !room && self.rdds_search.may() {
                let (len, bytes) = (self.rdds.len(), self.rdds.bytes());
                let freed = self.fold_rdds((len / 8).max(1));
                self.rdds_search.done(len, freed);
                caps.give_back(bytes.saturating_sub(self.rdds.bytes()));
                room = rows(&self.rdds) && caps.admit(self.rdds.row_bytes(0));
            }
            if !room {
                self.rdds_over_cap += 1;
                key = RddKey::Overflow;
            }
        }
        let mut row = self.rdds.row(key);
        row.last_active_ns = row.last_active_ns.max(now_ns);
        (row, key == RddKey::Overflow)
    }

    /// Folds up to `most` of the RDDs that hold no memory, the oldest first; returns their number.
    pub(super) fn fold_rdds(&mut self, most: usize) -> usize {
        let mut old: Vec<(u64, RddKey)> = self
            .rdds
            .iter()
            .filter(|(key, _)| key.id().is_some() && !self.memory.holds(**key))
            .map(|(key, rdd)| (rdd.last_active_ns, *key))
            .collect();
        small::sort_by(&mut old, Ord::cmp);
        old.truncate(most);
        let freed = old.len();
        for (_, key) in old {
            let Some(rdd) = self.rdds.remove(&key) else {
                continue;
            };
            self.rdds_over_cap += 1;
            let mut over = self.rdds.row(RddKey::Overflow);
            faults::add(&mut over.faults, &rdd.faults);
            over.samples_by_address += rdd.samples_by_address;
            over.block_history.fold(&rdd.block_history);
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
        freed
    }

    /// Counts the growth of one context.
    pub(super) fn add(
        &mut self,
        context: &ContextKey,
        growth: &FaultCounters,
        now_ns: u64,
        caps: &Caps,
    ) {
        let who = Attribution::from(context);
        faults::add(&mut self.context_faults, growth);
        let (mut rdd, _) = self.rdd(who.rdd, now_ns, caps);
        faults::add(&mut rdd.faults, growth);
        let doing = who.doing_within(rdd.doing.contains_key(&who.doing), || {
            caps.admit(tree_entry_bytes(size_of::<(Doing, FaultCounters)>()))
        });
        faults::add(rdd.doing.entry(doing).or_default(), growth);
        drop(rdd);
        let mut used = None;
        if let Some(id) = who.task {
            if let Some(mut task) = self.tasks.task(id, caps) {
                task.add(growth, who.rdd, now_ns, caps);
                used = task.join(who.stage);
            } else {
                faults::add(&mut self.tasks.tasks_over_cap.faults, growth);
            }
        }
        if let Some(key) = who.stage {
            if let Some(mut stage) = self.tasks.stage(key, caps) {
                stage.add(growth, who.rdd, now_ns, caps);
            } else {
                faults::add(&mut self.tasks.stages_over_cap.faults, growth);
            }
        }
        self.tasks.joined(who.stage, used, now_ns, caps);
    }

    /// Container of the executor's process, from the kernel's name of its memory cgroup.
    #[must_use]
    pub fn container_id(&self) -> Option<&str> {
        let cgroup = self.usage.kernel.as_ref()?.cgroup.as_ref()?;
        container_id(&cgroup.path)
    }

    /// Counts the growth of one context's sampled page walks. `cycles` is the channel of cycles, where there is one.
    pub(super) fn add_walks(
        &mut self,
        context: &ContextKey,
        growth: &WalkCounters,
        cycles: Option<usize>,
        now_ns: u64,
        caps: &Caps,
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
        let (mut rdd, _) = self.rdd(who.rdd, now_ns, caps);
        rdd.walks.add(growth, now_ns);
        let doing = who.doing_within(rdd.doing_walks.contains_key(&who.doing), || {
            caps.admit(tree_entry_bytes(size_of::<(Doing, WalkCounters)>()))
        });
        rdd.doing_walks.entry(doing).or_default().add(growth);
        drop(rdd);
        let mut used = None;
        if let Some(id) = who.task {
            if let Some(mut task) = self.tasks.task(id, caps) {
                task.add_walks(growth, who.rdd, now_ns, caps);
                if let Some(of) = cycles {
                    let (events, samples) = (growth.events[of], growth.samples[of]);
                    task.add_cycles(who.doing.activity, events, samples, caps);
                }
                used = task.join(who.stage);
            } else {
                self.tasks.tasks_over_cap.walks.add(growth);
            }
        }
        if let Some(key) = who.stage {
            if let Some(mut stage) = self.tasks.stage(key, caps) {
                stage.add_walks(growth, who.rdd, now_ns, caps);
            } else {
                self.tasks.stages_over_cap.walks.add(growth);
            }
        }
        self.tasks.joined(who.stage, used, now_ns, caps);
    }

    /// Applies the counters of the slot file, which the executor writes. What it claims to have emitted beyond what the
    /// kernel side has seen grows by at most `facts_per_second`.
    ///
    /// The result never falls. The file's own count may: the executor is adopted again when its library gets its probes,
    /// with another first fact or with another file, and it may write anything. The count then goes on from where it was.
    pub(super) fn set_slots(&mut self, said: SlotFileCounters, facts_per_second: u64, now_ns: u64) {
        let seen = self.counters.facts_seen;
        let since = match self.slots {
            Some(_) => self.slots_read_ns,
            None => self.first_seen_ns,
        };
        // At least a second, so that a burst between two readings is not refused.
        let elapsed_ns = now_ns.saturating_sub(since).max(1_000_000_000);
        let growth = u128::from(facts_per_second) * u128::from(elapsed_ns) / 1_000_000_000;
        let growth = u64::try_from(growth).unwrap_or(u64::MAX);
        let known = self.slots.unwrap_or_default();
        if said.facts_emitted < self.slots_said {
            self.slots_before = known.facts_emitted.saturating_sub(said.facts_emitted);
        }
        self.slots_said = said.facts_emitted;
        let before = known.facts_emitted.max(seen);
        let facts_emitted = self
            .slots_before
            .saturating_add(said.facts_emitted)
            .clamp(before, before.saturating_add(growth));
        self.slots = Some(SlotFileCounters {
            facts_emitted,
            slots_refused: known.slots_refused.max(said.slots_refused),
        });
        self.slots_read_ns = now_ns;
    }

    /// Facts that the marker has emitted and facts that the kernel side has seen; `None` without a slot file.
    pub(super) fn marker_counts(&self) -> Option<(u64, u64)> {
        let (emitted, seen) = (self.slots?.facts_emitted, self.counters.facts_seen);
        // The kernel side counts facts after the last reading of the slot file: that of a dying executor, or of one that
        // has cut its file off.
        Some((emitted.max(seen), seen))
    }

    /// Drops what is only history: ended tasks, idle stages and RDDs, and the results of scans.
    pub(super) fn shed(&mut self) {
        self.tasks.fold_tasks(usize::MAX);
        self.tasks.fold_stages(usize::MAX);
        self.fold_rdds(usize::MAX);
        self.history = History::default();
        self.history_bytes = 0;
        self.left_partitions = LeftPartitions::default();
        self.finishing = VecDeque::new();
        self.memory.last_examined = LastExamined::default();
        self.memory.accessed = LastAccessed::default();
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

    /// Remembers an ended task until its last samples have arrived. Without room the oldest one gives way.
    pub(super) fn finish_later(&mut self, task: u64, now_ns: u64, caps: &Caps) {
        let (len, capacity) = (self.finishing.len(), self.finishing.capacity());
        let more = capacity.max(4) * 2 * size_of::<(u64, u64)>();
        if len >= caps.tasks_per_executor || (len == capacity && !caps.fits(more)) {
            self.finishing.pop_front();
        }
        self.finishing.push_back((task, now_ns));
    }

    /// Adds tasks whose last samples have arrived to the distributions.
    pub(super) fn finish_tasks(&mut self, meaning: &Meaning, now_ns: u64, caps: &Caps) {
        while let Some((id, end_ns)) = self.finishing.front().copied() {
            if now_ns.saturating_sub(end_ns) < LATE_NS {
                return;
            }
            self.finishing.pop_front();
            let Some(mut task) = self.tasks.tasks.get_mut(&id) else {
                continue;
            };
            let (stage, all) = (task.stage, task.walks);
            let by_rdd = std::mem::take(&mut task.walks_by_rdd);
            drop(task);
            for (rdd, walks) in by_rdd {
                if let Some(mut row) = self.rdds.get_mut(&rdd) {
                    row.distribution.add(meaning, &walks, caps);
                }
            }
            if let Some(mut stage) = stage.and_then(|stage| self.tasks.stages.get_mut(&stage)) {
                stage.distribution.add(meaning, &all, caps);
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
    pub fn examined(&self, ranges_id: Option<RangesId>, on_heap: bool) -> Option<&Seen> {
        self.memory
            .last_examined
            .of(self.current_ranges(ranges_id, on_heap)?)
    }

    /// Identity of a block or Spark page at its current addresses, where these are known.
    pub(super) fn current_ranges(
        &self,
        ranges_id: Option<RangesId>,
        on_heap: bool,
    ) -> Option<RangesId> {
        ranges_id.filter(|_| !on_heap || self.heap.trust() != Trust::Stale)
    }

    /// The JVM is gone: its memory is free and its running tasks are lost.
    pub(super) fn die(&mut self, now_ns: u64, caps: &Caps) {
        if self.died_ns.is_some() {
            return;
        }
        self.died_ns = Some(now_ns);
        self.see_last_moment(now_ns);
        self.let_go(now_ns, caps);
    }

    pub(super) fn let_go(&mut self, now_ns: u64, caps: &Caps) {
        self.tasks.lose(now_ns, caps, |_| true);
        self.memory.clear();
        self.threads.clear();
        self.python_workers.clear();
        self.children.clear();
        self.resync = Resync::default();
    }

    /// The descendants, at most so many.
    #[must_use]
    pub fn children(&self, most: usize) -> Vec<Child> {
        let children = self.children.iter().take(most);
        children
            .map(|(pid, told_ns)| Child {
                pid: *pid,
                told_ns: *told_ns,
            })
            .collect()
    }

    /// Drops Spark pages of tasks that ended a while ago: the facts that freed them were lost.
    pub(super) fn drop_stale_pages(&mut self, now_ns: u64) -> u64 {
        let tasks = &self.tasks.tasks;
        let mut stages: BTreeSet<StageKey> = BTreeSet::new();
        let dropped = self.memory.drop_pages(|page| {
            let task = page.task.and_then(|id| tasks.get(&id));
            let Some(task) = task.filter(|task| task.state.ended()) else {
                return false;
            };
            let ended = task.end_ns;
            let stale = ended.is_some_and(|end| now_ns.saturating_sub(end) > PAGES_OUTLIVE_TASK_NS);
            if stale {
                stages.extend(task.stage);
            }
            stale
        });
        for stage in stages {
            if let Some(mut stage) = self.tasks.stages.get_mut(&stage) {
                stage.held.partial = true;
            }
        }
        dropped
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
            ("bytes", self.bytes_refused),
        ]
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .gather()
    }
}
