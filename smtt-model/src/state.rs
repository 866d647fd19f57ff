//! State per executor: reported facts and counts, kept under the executor's key.
//!
//! Pure: no I/O and no clock; events carry their time. The kernel side assigns the executor's key, so an executor that
//! reports false facts changes only its own rows. Every table has a limit; entries beyond it go to an overflow row,
//! with a counter.

mod accessed;
mod black_box;
mod block;
mod block_history;
mod block_ranges;
mod bytes;
mod deaths;
mod executor;
mod fact_counts;
mod facts;
pub(crate) mod faults;
pub mod fetches;
pub mod figures;
pub mod functions;
mod heap;
mod helpers;
pub mod history;
mod jobs;
mod memory;
mod memory_held;
pub(crate) mod memory_parts;
mod memory_peaks;
mod memory_usage;
pub mod object_sample;
mod over_cap;
mod page_walks;
pub mod pauses;
mod placement;
mod python;
mod rdd;
mod reads;
mod resync;
mod rowless;
mod running;
mod shares;
mod spark_page;
pub mod splits;
mod task;
mod tick;
mod unlisted_blocks;
mod used;

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use smtt_common::counter::{COUNTERS, ExecutorCounters, FaultCounters};
use smtt_common::page_walk::WalkCounters;
use smtt_common::settings::{Owner, executor_pid};

use crate::attribute::{Claim, Names, RddKey, names};
use crate::decode::{Event, Fact};
use crate::ledger::AggregateCounts;
use crate::readings::{Calibration, Readings};
use crate::sort::small::Gather as _;

use bytes::Caps;
use rowless::Rowless;
use shares::Shares;

pub use crate::ledger::Outcome;
pub use accessed::{Accessed, LastAccessed};
pub use black_box::{
    BlackBox, ChildEnd, LastBefore, LastMoment, MemorySample, Noted, RunningTask, SAMPLES,
    SignalNote,
};
pub use block::Block;
pub use block_history::BlockHistory;
pub use block_ranges::BlockRanges;
pub use bytes::{FlatTable, HeapBytes, RowMut, Table};
pub use executor::{Executor, SlotFileCounters, Spans};
pub use faults::{FaultFigures, Measured, TIMED_AT_LEAST, total, unattributed};
pub use heap::{Heap, Trust};
pub use helpers::{HelperSum, HelperUsed};
pub use jobs::Jobs;
pub use memory::Memory;
pub use memory_held::MemoryHeld;
pub use memory_parts::{PARTS, part_text};
pub use memory_peaks::{Peak as MetricPeak, Peaks, StageHeld};
pub use memory_usage::{
    CgroupMemory, Child, ChildKind, ChildMemory, KernelMemory, MemoryTargets, MemoryUsage,
    ProcessMemory,
};
pub use object_sample::SampleRow;
pub use page_walks::{Distribution, Meaning, Points, SampledCycles, TASK_SAMPLES_MIN, Walks};
pub use placement::{
    LastExamined, RangesId, ResolveCounts, Resolved, Seen, SizesBy, Target, Targets,
};
pub use python::Served;
pub use rdd::{Peak, Rdd};
pub use reads::{NodeReads, ReadRate};
pub use running::{Shown, TaskReading};
pub use spark_page::{SparkPage, SparkPageKey};
pub use task::{Stage, Task, TaskState, Tasks};
pub use tick::Tick;
pub use used::{Until, Used, UsedByTask};

/// One row in `FREE_SHARE` is kept free of dead executors.
const FREE_SHARE: usize = 4;
/// Maximum number of keys of expired executors that are kept, so that a late reading does not restore an expired
/// executor.
const EXPIRED_MAX: usize = 1024;

/// Limits of the tables.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Executors, alive and dead.
    pub executors: usize,
    /// RDDs of one executor.
    pub rdds_per_executor: usize,
    /// Task attempts of one executor.
    pub tasks_per_executor: usize,
    /// Stage attempts of one executor.
    pub stages_per_executor: usize,
    /// Blocks of one executor.
    pub blocks_per_executor: usize,
    /// Spark pages and grants of execution memory of one executor.
    pub spark_pages_per_executor: usize,
    /// Address ranges of one executor.
    pub ranges_per_executor: usize,
    /// Bytes of all executors' tables.
    pub state_bytes: usize,
    /// Bytes of one executor's tables.
    pub state_per_executor_bytes: usize,
    /// Share of the bytes and of the executors, 0 to 1, beyond which a user takes nothing from others.
    pub user_share: f64,
    /// Facts per second that the kernel side passes on for one executor.
    pub facts_per_second: u64,
    /// Time for which a dead executor's rows are kept, in nanoseconds.
    pub retention_ns: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            executors: 64,
            rdds_per_executor: 1024,
            tasks_per_executor: 8192,
            stages_per_executor: 1024,
            blocks_per_executor: 8192,
            spark_pages_per_executor: 16_384,
            ranges_per_executor: 32_768,
            state_bytes: 96 << 20,
            state_per_executor_bytes: 24 << 20,
            user_share: 0.75,
            facts_per_second: 20_000,
            retention_ns: 15 * 60 * 1_000_000_000,
        }
    }
}

/// The state of all executors.
#[derive(Debug)]
pub struct State {
    limits: Limits,
    executors: BTreeMap<u64, Executor>,
    /// What this machine can measure.
    measured: Measured,
    /// Meaning of this machine's page-walk samples; `None` where page walks are not measured.
    page_walks: Option<Meaning>,
    /// Name of the clock that is sampled in place of cycles; `None` where none is.
    clock: Option<String>,
    /// Page-walk samples of executors that are expired or have no row.
    other_walks: WalkCounters,
    calibration: Option<Calibration>,
    /// Facts emitted and seen of expired executors; `None` before the first one with a slot file.
    forgotten_marker: Option<(u64, u64)>,
    /// Rows and bytes by user.
    shares: Shares,
    /// Totals of executors without a row.
    rowless: Rowless,
    /// Faults in contexts of executors without a row.
    stranger_faults: FaultCounters,
    /// Executors that found no room.
    executors_refused: u64,
    executors_evicted: u64,
    deaths_lost: u64,
    /// The kernel side's own counters.
    kernel: [u64; COUNTERS],
    /// What became of events.
    counts: AggregateCounts,
    expired: VecDeque<u64>,
    expired_set: HashSet<u64>,
    /// Dead executors evicted for room since the last call of [`State::expire`].
    evicted: Vec<u64>,
    /// Counts of the resolver; `None` while it is switched off.
    resolve_counts: Option<ResolveCounts>,
    now_ns: u64,
}

impl State {
    /// Creates an empty state.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            executors: BTreeMap::new(),
            measured: Measured::default(),
            page_walks: None,
            clock: None,
            other_walks: WalkCounters::default(),
            calibration: None,
            forgotten_marker: None,
            shares: Shares::default(),
            rowless: Rowless::default(),
            stranger_faults: FaultCounters::default(),
            executors_refused: 0,
            executors_evicted: 0,
            deaths_lost: 0,
            kernel: [0; COUNTERS],
            counts: AggregateCounts::default(),
            expired: VecDeque::new(),
            expired_set: HashSet::new(),
            evicted: Vec::new(),
            resolve_counts: None,
            now_ns: 0,
        }
    }

    /// Applies one event. Events may arrive in any order and more than once.
    pub fn apply(&mut self, event: Event) -> Outcome {
        self.now_ns = self.now_ns.max(event.time_ns);
        let outcome = self.apply_uncounted(event);
        self.counts.count(outcome);
        outcome
    }

    fn apply_uncounted(&mut self, event: Event) -> Outcome {
        if event.executor == 0 {
            return Outcome::Ignored("executor_not_known");
        }
        if self.expired_set.contains(&event.executor) {
            return Outcome::Ignored("executor_forgotten");
        }
        // The end of an unknown executor creates no row.
        if let Fact::ProcessGone { is_executor, .. } = event.fact
            && !self.executors.contains_key(&event.executor)
        {
            if is_executor {
                // It found no room here, but the kernel side has a row for it.
                self.evicted.push(event.executor);
            }
            return Outcome::Ignored("executor_not_known");
        }
        let (key, user, now_ns) = (event.executor, Some(event.uid), event.time_ns);
        self.change(key, user, now_ns, |executor, caps| {
            executor.apply(event, caps)
        })
        .unwrap_or(Outcome::OverCap("executors"))
    }

    /// Changes the row of an executor within its limits and counts its bytes; `None` where it has no row.
    fn change<R>(
        &mut self,
        key: u64,
        user: Option<u32>,
        now_ns: u64,
        change: impl FnOnce(&mut Executor, &Caps) -> R,
    ) -> Option<R> {
        self.executor(key, user, now_ns)?;
        self.change_known(key, change)
    }

    /// As [`State::change`], for an executor that may have no row.
    fn change_known<R>(
        &mut self,
        key: u64,
        change: impl FnOnce(&mut Executor, &Caps) -> R,
    ) -> Option<R> {
        let share = self.executors.get(&key)?.share;
        self.reclaim_for(share);
        self.reclaim_within(key, share);
        let caps = self.caps(key);
        let executor = self.executors.get_mut(&key)?;
        let result = change(executor, &caps);
        executor.bytes_refused = executor.bytes_refused.saturating_add(caps.refused());
        self.settle(key);
        Some(result)
    }

    /// The row of an executor, created where there is room. A full table evicts a row of the user with the most.
    fn executor(&mut self, key: u64, user: Option<u32>, now_ns: u64) -> Option<&mut Executor> {
        let share = self.share_of(user);
        if !self.executors.contains_key(&key) {
            if self.executors.len() >= self.limits.executors && !self.free_row(key, share) {
                if !self.rowless.contains(key) {
                    self.executors_refused += 1;
                    self.rowless.set(key, ExecutorCounters::default());
                }
                return None;
            }
            self.supersede(executor_pid(key), now_ns);
            let mut row = Executor::new(executor_pid(key), user, now_ns);
            if self.rowless.contains(key) {
                // Facts came before there was room.
                row.resync.want();
            }
            // Counts from before it had a row are in its totals, which are read again; sums must not fall until then.
            row.counters = self.rowless.take(key);
            row.share = share;
            self.executors.insert(key, row);
            self.settle(key);
        }
        let executor = self.executors.get_mut(&key)?;
        executor.uid = executor.uid.or(user);
        executor.share = executor.share.or(share);
        Some(executor)
    }

    /// A reused process id means that the executor with the same id before is dead.
    fn supersede(&mut self, pid: u32, now_ns: u64) {
        let same = self.executors.iter();
        let same = same.filter(|(_, executor)| executor.pid == pid && executor.died_ns.is_none());
        let same: Vec<u64> = same.map(|(key, _)| *key).collect();
        for key in same {
            self.change_known(key, |executor, caps| executor.die(now_ns, caps));
        }
    }

    fn forget(&mut self, key: u64) {
        let Some(executor) = self.executors.remove(&key) else {
            return;
        };
        self.unsettle(&executor);
        self.deaths_lost += u64::from(executor.is_death_unjudged() && executor.described.is_some());
        self.rowless.set(key, executor.counters);
        self.forgotten_marker = sum_of(self.forgotten_marker, executor.marker_counts());
        self.other_walks.add(&executor.all_walks.life);
        self.expired.push_back(key);
        self.expired_set.insert(key);
        if self.expired.len() > EXPIRED_MAX
            && let Some(old) = self.expired.pop_front()
        {
            self.expired_set.remove(&old);
        }
    }

    /// Applies the kernel side's counts since the last reading.
    pub fn add(&mut self, readings: &Readings, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        self.measured.access = readings.access_known;
        self.measured.major = readings.major_known;
        self.kernel = readings.counters;
        let owners: BTreeMap<u64, Owner> = readings.owners.iter().copied().gather();
        self.set_cgroups(&owners);
        for (key, totals) in &readings.executors {
            if self.expired_set.contains(key) {
                self.rowless.update(*key, totals);
                continue;
            }
            let user = owners.get(key).map(|owner| owner.uid);
            let known = self.change(*key, user, now_ns, |executor, _| {
                executor.counters = *totals;
                executor.see_first_minute(now_ns);
            });
            if known.is_none() {
                self.rowless.set(*key, *totals);
            }
        }
        for (key, totals) in &readings.forgotten {
            match self.executors.get_mut(key) {
                Some(executor) => executor.counters = *totals,
                None => self.rowless.close(*key, totals),
            }
        }
        for (key, faults) in &readings.before {
            if let Some(executor) = self.executors.get_mut(key) {
                executor.before_tracing = Some(*faults);
            }
        }
        for (context, growth) in &readings.contexts {
            if growth == &FaultCounters::default() || self.expired_set.contains(&context.executor) {
                continue;
            }
            let user = owners.get(&context.executor).map(|owner| owner.uid);
            let known = self.change(context.executor, user, now_ns, |executor, caps| {
                executor.add(context, growth, now_ns, caps);
            });
            if known.is_none() {
                faults::add(&mut self.stranger_faults, growth);
            }
        }
        self.add_clock(readings.clock.as_ref(), now_ns);
        self.add_walks(readings.page_walks.as_ref(), now_ns);
    }

    /// Sets whether page faults are counted; `false` makes them absent from every output.
    pub fn set_page_faults_measured(&mut self, measured: bool) {
        self.measured.page_faults = measured;
    }

    /// Sets the marker's counters from an executor's slot file. Read them after the kernel side's counters, so that
    /// they are never behind those.
    pub fn set_slots(&mut self, executor: u64, said: SlotFileCounters) {
        let (limit, now_ns) = (self.limits.facts_per_second, self.now_ns);
        if let Some(executor) = self.executors.get_mut(&executor) {
            executor.set_slots(said, limit, now_ns);
        }
    }

    /// The daemon requested a resync of an executor. When the marker reports the end of a complete snapshot, everything
    /// that the snapshot does not contain is removed.
    pub fn resync_requested(&mut self, executor: u64, request: u64, now_ns: u64) {
        if let Some(executor) = self.executors.get_mut(&executor) {
            executor.resync.asked(request, now_ns);
        }
    }

    /// Executors whose last resync lost facts: request another one.
    #[must_use]
    pub fn resyncs_wanted(&self) -> BTreeSet<u64> {
        let wanted =
            |executor: &Executor| executor.died_ns.is_none() && executor.resync.is_wanted_again();
        let all = self.executors.iter();
        all.filter(|(_, executor)| wanted(executor))
            .map(|(key, _)| *key)
            .gather()
    }

    /// The executor's process is gone, detected without a record of its exit.
    pub fn executor_gone(&mut self, executor: u64, now_ns: u64) {
        if self
            .change_known(executor, |executor, caps| executor.die(now_ns, caps))
            .is_none()
        {
            // It found no room here, but the kernel side has a row for it.
            self.evicted.push(executor);
        }
    }

    /// Removes executors that died before the retention time, the longest dead ones where rows are scarce, and Spark
    /// pages whose freeing was lost. Returns the keys of executors removed since the last call: their rows in the
    /// kernel side can be removed too. [`Readings::forgotten`] must then have their last totals.
    pub fn expire(&mut self, now_ns: u64) -> Vec<u64> {
        self.now_ns = self.now_ns.max(now_ns);
        for key in self.keys() {
            self.change_known(key, |executor, _| executor.drop_stale_pages(now_ns));
        }
        let old: Vec<u64> = self
            .executors
            .iter()
            .filter(|(_, executor)| {
                executor
                    .died_ns
                    .is_some_and(|died| now_ns.saturating_sub(died) >= self.limits.retention_ns)
            })
            .map(|(key, _)| *key)
            .collect();
        for key in &old {
            self.forget(*key);
        }
        self.evicted.extend(old);
        self.make_room();
        std::mem::take(&mut self.evicted)
    }

    /// Keeps rows free for executors that start before the next call. The rows of dead executors count in the kernel
    /// side too: an executor that finds no row there is not traced and cannot evict a dead one here.
    fn make_room(&mut self) {
        let most = self.limits.executors - self.limits.executors / FREE_SHARE;
        while self.executors.len() > most && self.evict_dead() {}
    }

    fn keys(&self) -> Vec<u64> {
        self.executors.keys().copied().collect()
    }

    /// All executors by key.
    #[must_use]
    pub const fn executors(&self) -> &BTreeMap<u64, Executor> {
        &self.executors
    }

    /// Unique names of all executors.
    #[must_use]
    pub fn names(&self) -> BTreeMap<u64, Names> {
        names(
            self.executors
                .iter()
                .map(|(key, executor)| Claim {
                    key: *key,
                    uid: executor.uid,
                    pid: executor.pid,
                    first_seen_ns: executor.first_seen_ns,
                    application_id: executor
                        .described
                        .as_ref()
                        .map_or_else(String::new, |said| said.application_id.clone()),
                    executor_id: executor
                        .described
                        .as_ref()
                        .map_or_else(String::new, |said| said.executor_id.clone()),
                })
                .collect(),
        )
    }

    /// Peaks of RDDs since the last call, by executor; begins new ones. There is one caller: the metrics.
    pub fn take_recent_peaks(&mut self) -> BTreeMap<u64, Vec<(RddKey, Peak)>> {
        let taken = self.executors.iter_mut().map(|(key, executor)| {
            let held =
                |(rdd, row): (&RddKey, &Rdd)| (row.recent != Peak::default()).then_some(*rdd);
            let some: Vec<RddKey> = executor.rdds.iter().filter_map(held).collect();
            let peaks = some.into_iter().filter_map(|rdd| {
                let now = executor.memory.held(rdd);
                let mut row = executor.rdds.get_mut(&rdd)?;
                let peak = std::mem::take(&mut row.recent);
                row.recent.see(&now);
                Some((rdd, peak))
            });
            (*key, peaks.collect())
        });
        taken.gather()
    }

    /// Limits of the tables.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What this machine can measure.
    #[must_use]
    pub const fn measured(&self) -> Measured {
        self.measured
    }

    /// Latest time of any event or reading, in nanoseconds since boot.
    #[must_use]
    pub const fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Totals over all executors since the start.
    #[must_use]
    pub fn executor_totals(&self) -> ExecutorCounters {
        let mut sum = self.rowless.sum();
        for executor in self.executors.values() {
            faults::add_executor(&mut sum, &executor.counters);
        }
        sum
    }

    /// Facts emitted by markers and facts seen by the kernel side, for executors whose slot file was read, expired ones
    /// included; `None` without such executors.
    #[must_use]
    pub fn marker_counts(&self) -> Option<(u64, u64)> {
        let all = self.executors.values().map(Executor::marker_counts);
        all.fold(self.forgotten_marker, sum_of)
    }

    /// The kernel side's global counters at the last reading.
    #[must_use]
    pub const fn kernel_counters(&self) -> &[u64; COUNTERS] {
        &self.kernel
    }

    /// What became of events.
    #[must_use]
    pub const fn counts(&self) -> &AggregateCounts {
        &self.counts
    }

    /// Executors refused because the table was full, and the faults in their contexts.
    #[must_use]
    pub const fn executors_over_cap(&self) -> (u64, FaultCounters) {
        (self.executors_refused, self.stranger_faults)
    }

    /// Living executors that lost their rows to others.
    #[must_use]
    pub const fn executors_evicted(&self) -> u64 {
        self.executors_evicted
    }
}

/// Sum of two pairs of counts.
fn sum_of(sum: Option<(u64, u64)>, more: Option<(u64, u64)>) -> Option<(u64, u64)> {
    match (sum, more) {
        (Some(a), Some(b)) => Some((a.0.saturating_add(b.0), a.1.saturating_add(b.1))),
        (sum, more) => sum.or(more),
    }
}

#[cfg(test)]
mod tests;
