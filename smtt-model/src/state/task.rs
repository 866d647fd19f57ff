//! Tasks and stages of one executor.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use smtt_common::counter::FaultCounters;
use smtt_common::page_walk::WalkCounters;

use super::bytes::{
    Caps, HeapBytes, RowMut, Search, Table, tree_bytes, tree_entry_bytes, vec_bytes,
};
use super::faults;
use super::fetches::AllFetches;
use super::functions::{Functions, Spans};
use super::helpers::{HelperSum, HelperUsed};
use super::jobs::Jobs;
use super::memory_peaks::{Peaks, StageHeld};
use super::over_cap::{OverCap, fold};
use super::page_walks::{Distribution, SampledCycles, Walks};
use super::pauses::Pauses;
use super::splits::Splits;
use super::used::{Used, UsedByTask};
use crate::attribute::{RddKey, StageKey};
use crate::decode::{ConsumerUsed, Outcome as TaskOutcome, StageDescribed, TaskEnded, TaskStarted};

/// Maximum number of RDDs per task; further ones share a row.
const RDDS_PER_TASK: usize = 32;
/// Maximum number of RDDs per stage; further ones share a row.
const RDDS_PER_STAGE: usize = 256;

/// Maximum number of consumer classes per task. The marker reports 32 and one for the others.
const CONSUMERS_PER_TASK: usize = 33;

/// State of a task.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// Page faults were counted for the task, but neither its start nor its end was reported.
    #[default]
    Unknown,
    /// The task runs.
    Running,
    /// The task returned its result.
    Succeeded,
    /// The task failed with an exception.
    Failed,
    /// The task was killed or interrupted.
    Killed,
    /// The executor died, or the task is gone and its end was not recorded.
    Lost,
}

impl TaskState {
    /// Whether the task has ended.
    #[must_use]
    pub const fn ended(self) -> bool {
        matches!(
            self,
            Self::Succeeded | Self::Failed | Self::Killed | Self::Lost
        )
    }
}

/// One task attempt.
#[derive(Clone, Debug, Default)]
pub struct Task {
    /// State of the task.
    pub state: TaskState,
    /// Stage of the task, where known.
    pub stage: Option<StageKey>,
    /// Report of the task's start.
    pub started: Option<TaskStarted>,
    /// Time of the report of the task's start, in nanoseconds since boot.
    pub start_ns: Option<u64>,
    /// Whether the start was reported late (by a resync), so that the task is older than `start_ns` says.
    pub start_is_late: bool,
    /// Time of the report of the task's end, in nanoseconds since boot.
    pub end_ns: Option<u64>,
    /// Why the task failed or was killed.
    pub reason: String,
    /// Peak of the task's execution memory in bytes, from the report of its end.
    pub peak_bytes: Option<u64>,
    /// Live execution memory in bytes, as reported.
    pub live_bytes: u64,
    /// Peak of `live_bytes`.
    pub seen_peak_bytes: u64,
    /// Consumers of the task's execution memory, from the report of its end.
    pub consumers: Vec<ConsumerUsed>,
    /// Page faults of the task.
    pub faults: FaultCounters,
    /// RDDs that page faults of the task are attributed to.
    pub rdds: Vec<RddKey>,
    /// Sampled page walks and cycles of the task.
    pub walks: WalkCounters,
    /// The most that was resident in the task's Python workers, as far as it was seen.
    pub python_peak_bytes: Option<u64>,
    /// What the task used.
    pub used: UsedByTask,
    /// What threads that helped the task used.
    pub helpers: Vec<HelperUsed>,
    /// How the use went over the task's life.
    pub(super) splits: Splits,
    /// The functions that its threads reported.
    pub(super) functions: Option<Box<Functions>>,
    /// The thread that runs it, in the initial pid namespace; 0 where it is not known.
    pub(super) tid: u32,
    /// Sampled page walks and cycles by RDD, until they are in the distributions.
    pub(super) walks_by_rdd: Vec<(RddKey, WalkCounters)>,
    /// Sampled cycles by activity.
    pub cycles: Vec<SampledCycles>,
    /// The last block that it stored again after it had left memory: of which RDD, and when, in nanoseconds since boot.
    pub(super) stored_again: Option<(RddKey, u64)>,
    last_active_ns: u64,
}

impl HeapBytes for Task {
    fn heap_bytes(&self) -> usize {
        let names = self.consumers.iter().map(|used| used.consumer.capacity());
        self.reason.capacity()
            + vec_bytes(&self.consumers)
            + names.sum::<usize>()
            + vec_bytes(&self.rdds)
            + vec_bytes(&self.walks_by_rdd)
            + vec_bytes(&self.cycles)
            + vec_bytes(&self.helpers)
            + self.splits.bytes()
            + self.functions.as_ref().map_or(0, |it| it.bytes())
    }
}

impl Task {
    /// Counts page faults for the task.
    pub(super) fn add(&mut self, more: &FaultCounters, rdd: RddKey, now_ns: u64, caps: &Caps) {
        faults::add(&mut self.faults, more);
        self.last_active_ns = now_ns;
        if !self.rdds.contains(&rdd) && caps.admit(2 * size_of::<RddKey>()) {
            self.rdds.push(if self.rdds.len() < RDDS_PER_TASK {
                rdd
            } else {
                RddKey::Overflow
            });
            self.rdds.dedup();
        }
    }

    /// Counts sampled page walks for the task.
    pub(super) fn add_walks(&mut self, more: &WalkCounters, rdd: RddKey, now_ns: u64, caps: &Caps) {
        self.walks.add(more);
        self.last_active_ns = now_ns;
        let known = self
            .walks_by_rdd
            .iter_mut()
            .find(|(known, _)| *known == rdd);
        if let Some((_, sum)) = known {
            sum.add(more);
        } else if self.walks_by_rdd.len() < RDDS_PER_TASK
            && caps.admit(2 * size_of::<(RddKey, WalkCounters)>())
        {
            // Beyond the limit samples stay in the task's own sum only.
            self.walks_by_rdd.push((rdd, *more));
        }
    }

    /// Duration in nanoseconds until `now_ns` or the end; `None` where the start is unknown.
    #[must_use]
    pub fn duration_ns(&self, now_ns: u64) -> Option<u64> {
        let end = self.end_ns.unwrap_or(now_ns);
        self.start_ns.map(|start| end.saturating_sub(start))
    }

    /// Peak of the execution memory in bytes: Spark's own figure for an ended task, else the observed peak.
    #[must_use]
    pub fn execution_peak_bytes(&self) -> u64 {
        self.peak_bytes.unwrap_or(0).max(self.seen_peak_bytes)
    }

    /// Records the execution memory of a class of consumers; `false` where the bytes do not fit.
    pub(super) fn used(&mut self, used: ConsumerUsed, caps: &Caps) -> bool {
        let known = self
            .consumers
            .iter_mut()
            .find(|known| known.consumer == used.consumer);
        if let Some(known) = known {
            *known = used;
        } else if self.consumers.len() < CONSUMERS_PER_TASK {
            // A full list doubles, and has four places at first.
            let (len, capacity) = (self.consumers.len(), self.consumers.capacity());
            let places = if len == capacity { len.max(4) } else { 0 };
            if !caps.admit(places * size_of::<ConsumerUsed>() + used.consumer.capacity()) {
                return false;
            }
            self.consumers.push(used);
        }
        true
    }

    /// Spark's own `peakExecutionMemory` of an ended task, in bytes: not the peak of a sum, but the sum over the
    /// consumers at the time when Spark read them. `None` before the end, and where a part of the task was not
    /// recorded.
    #[must_use]
    pub fn spark_peak_bytes(&self) -> Option<u64> {
        // The task held memory, so the facts about its consumers were lost.
        let lost = self.consumers.is_empty() && self.peak_bytes? > 0;
        if lost || !self.state.ended() {
            return None;
        }
        self.consumers.iter().try_fold(0_u64, |sum, used| {
            Some(sum.saturating_add(used.counted_bytes?))
        })
    }
}

/// One attempt of a stage in one executor.
#[derive(Clone, Debug, Default)]
pub struct Stage {
    /// Name and size, once reported.
    pub described: Option<StageDescribed>,
    /// Tasks of this executor by state.
    pub tasks: BTreeMap<TaskState, u64>,
    /// Page faults of the stage's tasks.
    pub faults: FaultCounters,
    /// Page faults of the stage's tasks, by RDD.
    pub rdds: BTreeMap<RddKey, FaultCounters>,
    /// Sampled page walks and cycles of the stage's tasks.
    pub walks: Walks,
    /// Sampled page walks and cycles of the stage's tasks, by RDD.
    pub rdd_walks: BTreeMap<RddKey, WalkCounters>,
    /// Distribution of the stage's ratios over tasks.
    pub distribution: Distribution,
    /// Largest peak of execution memory of a single task, in bytes.
    pub peak_bytes: u64,
    /// Execution memory of all tasks of the stage together.
    pub held: StageHeld,
    /// Peaks of the executor while tasks of the stage ran.
    pub peaks: Option<Box<Peaks>>,
    /// The most that the Python workers of one of its tasks had resident together; `None` where none was seen.
    pub python_peak_bytes: Option<u64>,
    /// Time of the last reading of the executor's processes at which a task of it ran, in nanoseconds since boot.
    pub(super) read_ns: u64,
    /// Total duration of ended tasks, in nanoseconds.
    pub task_time_ns: u64,
    /// Sum of what the stage's tasks used.
    pub used: Used,
    /// Task attempts whose accounts by the kernel are in `used`.
    pub used_tasks: u64,
    /// Task attempts of which the kernel side has no account, or not from their begin.
    pub used_partial_tasks: u64,
    /// Sum of what threads used that helped the stage's tasks; `None` without such a thread.
    pub helpers: Option<Box<HelperSum>>,
    /// Time of the last report about the stage, in nanoseconds since boot.
    pub last_active_ns: u64,
}

/// Bytes of an RDD's entry in a stage's faults.
const FAULTS_ENTRY: usize = size_of::<(RddKey, FaultCounters)>();
/// Bytes of an RDD's entry in a stage's walks.
const WALKS_ENTRY: usize = size_of::<(RddKey, WalkCounters)>();

impl HeapBytes for Stage {
    fn heap_bytes(&self) -> usize {
        self.described
            .as_ref()
            .map_or(0, StageDescribed::heap_bytes)
            + tree_bytes(self.tasks.len(), size_of::<(TaskState, u64)>())
            + tree_bytes(self.rdds.len(), FAULTS_ENTRY)
            + tree_bytes(self.rdd_walks.len(), WALKS_ENTRY)
            + self.walks.heap_bytes()
            + self.distribution.heap_bytes()
            + self.peaks.as_ref().map_or(0, |_| size_of::<Peaks>())
            + self.helpers.as_ref().map_or(0, |_| size_of::<HelperSum>())
    }
}

impl Stage {
    /// Counts page faults for the stage.
    pub(super) fn add(&mut self, more: &FaultCounters, rdd: RddKey, now_ns: u64, caps: &Caps) {
        faults::add(&mut self.faults, more);
        self.last_active_ns = now_ns;
        let known = self.rdds.contains_key(&rdd)
            || (self.rdds.len() < RDDS_PER_STAGE && caps.admit(tree_entry_bytes(FAULTS_ENTRY)));
        faults::add(
            self.rdds
                .entry(if known { rdd } else { RddKey::Overflow })
                .or_default(),
            more,
        );
    }

    /// Counts sampled page walks for the stage.
    pub(super) fn add_walks(&mut self, more: &WalkCounters, rdd: RddKey, now_ns: u64, caps: &Caps) {
        self.walks.add(more, now_ns);
        self.last_active_ns = now_ns;
        let known = self.rdd_walks.contains_key(&rdd)
            || (self.rdd_walks.len() < RDDS_PER_STAGE && caps.admit(tree_entry_bytes(WALKS_ENTRY)));
        self.rdd_walks
            .entry(if known { rdd } else { RddKey::Overflow })
            .or_default()
            .add(more);
    }

    /// Tasks in one state.
    #[must_use]
    pub fn count(&self, state: TaskState) -> u64 {
        self.tasks.get(&state).copied().unwrap_or(0)
    }
}

/// Tasks and stages with their overflow rows.
#[derive(Debug, Default)]
pub struct Tasks {
    /// Tasks by task attempt id.
    pub tasks: Table<u64, Task>,
    /// Stages by id and attempt.
    pub stages: Table<StageKey, Stage>,
    /// The application's jobs, as the driver describes them.
    pub jobs: Jobs,
    /// Overflow row of tasks.
    pub tasks_over_cap: OverCap,
    /// Overflow row of stages.
    pub stages_over_cap: OverCap,
    /// Searches for tasks to fold.
    pub(super) tasks_search: Search,
    /// Searches for stages to fold.
    pub(super) stages_search: Search,
    /// The functions of the tasks.
    pub(super) functions: Spans,
    /// Their requests for shuffle blocks.
    pub(super) fetches: AllFetches,
    /// Pauses of the executor's collector.
    pub(super) pauses: Pauses,
}

impl HeapBytes for StageKey {
    fn heap_bytes(&self) -> usize {
        0
    }
}

impl Tasks {
    /// Bytes of all rows.
    pub(super) fn bytes(&self) -> usize {
        self.tasks.bytes()
            + self.stages.bytes()
            + self.functions.bytes()
            + self.fetches.bytes()
            + self.pauses.bytes()
            + self.jobs.bytes()
    }

    /// Folds up to `most` ended tasks, the oldest first. Those that did not succeed stay longest while they are less than
    /// half of the table: they are few, and each is to be explained.
    pub(super) fn fold_tasks(&mut self, most: usize) -> usize {
        let ended_badly = |task: &Task| {
            use TaskState::{Failed, Killed, Lost};
            matches!(task.state, Failed | Killed | Lost)
        };
        let bad = self.tasks.iter().filter(|(_, task)| ended_badly(task));
        let are_few = bad.count() <= self.tasks.len() / 2;
        fold(
            &mut self.tasks,
            &mut self.tasks_over_cap,
            most,
            |task| task.state != TaskState::Running,
            |task| {
                // The time's highest bit is not used for centuries.
                let later = u64::from(are_few && ended_badly(task)) << 63;
                task.last_active_ns | later
            },
            |task| OverCap {
                rows: 1,
                faults: task.faults,
                walks: task.walks,
                used: task.used.figures,
                helpers: HelperSum::default(),
            },
        )
    }

    /// Folds up to `most` stages without running tasks.
    pub(super) fn fold_stages(&mut self, most: usize) -> usize {
        fold(
            &mut self.stages,
            &mut self.stages_over_cap,
            most,
            |stage| stage.count(TaskState::Running) == 0,
            |stage| stage.last_active_ns,
            |stage| OverCap {
                rows: 1,
                faults: stage.faults,
                walks: stage.walks.life,
                used: stage.used,
                helpers: stage.helpers.as_deref().copied().unwrap_or_default(),
            },
        )
    }

    /// The limit that refuses another task.
    pub(super) fn tasks_full(&self, caps: &Caps) -> &'static str {
        if self.tasks.len() < caps.tasks_per_executor {
            "bytes"
        } else {
            "tasks"
        }
    }

    /// The limit that refuses another stage.
    pub(super) fn stages_full(&self, caps: &Caps) -> &'static str {
        if self.stages.len() < caps.stages_per_executor {
            "bytes"
        } else {
            "stages"
        }
    }

    /// The row of a task, created where there is room; `None` beyond the limits.
    pub(super) fn task(&mut self, id: u64, caps: &Caps) -> Option<RowMut<'_, Task>> {
        if !self.tasks.contains_key(&id) {
            let rows = |tasks: &Table<u64, Task>| tasks.len() < caps.tasks_per_executor;
            let mut room = rows(&self.tasks) && caps.fits(self.tasks.row_bytes(0));
            if !room && self.tasks_search.may() {
                let (len, bytes) = (self.tasks.len(), self.tasks.bytes());
                let freed = self.fold_tasks((len / 8).max(1));
                self.tasks_search.done(len, freed);
                caps.give_back(bytes.saturating_sub(self.tasks.bytes()));
                room = rows(&self.tasks) && caps.admit(self.tasks.row_bytes(0));
            }
            if !room {
                self.tasks_over_cap.rows += 1;
                return None;
            }
        }
        Some(self.tasks.row(id))
    }

    /// The row of a stage, created where there is room; `None` beyond the limits.
    pub(super) fn stage(&mut self, key: StageKey, caps: &Caps) -> Option<RowMut<'_, Stage>> {
        if !self.stages.contains_key(&key) {
            let rows = |stages: &Table<StageKey, Stage>| stages.len() < caps.stages_per_executor;
            let heap = tree_bytes(1, size_of::<(TaskState, u64)>());
            let mut room = rows(&self.stages) && caps.fits(self.stages.row_bytes(heap));
            if !room && self.stages_search.may() {
                let (len, bytes) = (self.stages.len(), self.stages.bytes());
                let freed = self.fold_stages((len / 8).max(1));
                self.stages_search.done(len, freed);
                caps.give_back(bytes.saturating_sub(self.stages.bytes()));
                room = rows(&self.stages) && caps.admit(self.stages.row_bytes(heap));
            }
            if !room {
                self.stages_over_cap.rows += 1;
                return None;
            }
        }
        Some(self.stages.row(key))
    }

    /// Updates the stage's counts after a change of a task's state.
    fn moved(
        &mut self,
        stage: StageKey,
        caps: &Caps,
        from: Option<TaskState>,
        to: TaskState,
        now_ns: u64,
    ) {
        if let Some(mut row) = self.stage(stage, caps) {
            row.last_active_ns = now_ns;
            if let Some(count) = from.and_then(|from| row.tasks.get_mut(&from)) {
                *count = count.saturating_sub(1);
            }
            *row.tasks.entry(to).or_default() += 1;
        }
    }

    /// A task started or is reported again. `late`: a resync is in progress.
    pub(super) fn started(
        &mut self,
        fact: &TaskStarted,
        late: bool,
        now_ns: u64,
        caps: &Caps,
    ) -> bool {
        let stage = StageKey::new(fact.stage_id, fact.stage_attempt);
        let Some(mut task) = self.task(fact.task_attempt_id, caps) else {
            return false;
        };
        task.last_active_ns = now_ns;
        let first = task.started.is_none();
        if first {
            task.started = Some(*fact);
        }
        if task.state != TaskState::Unknown {
            // Reported again, or received after the task's own end: keep what is known.
            return true;
        }
        task.state = TaskState::Running;
        task.start_ns = Some(now_ns);
        task.start_is_late = late;
        let used = task.join(Some(stage));
        task.stage = Some(stage);
        drop(task);
        self.moved(stage, caps, None, TaskState::Running, now_ns);
        self.joined(Some(stage), used, now_ns, caps);
        true
    }

    /// A task ended.
    pub(super) fn ended(&mut self, fact: &TaskEnded, now_ns: u64, caps: &Caps) -> bool {
        let Some(mut task) = self.task(fact.task_attempt_id, caps) else {
            return false;
        };
        let before = task.state;
        if before.ended() && before != TaskState::Lost {
            return true;
        }
        task.last_active_ns = now_ns;
        task.state = match fact.outcome {
            TaskOutcome::Succeeded => TaskState::Succeeded,
            TaskOutcome::Failed => TaskState::Failed,
            TaskOutcome::Killed => TaskState::Killed,
        };
        let state = task.state;
        task.end_ns = Some(now_ns);
        task.peak_bytes = Some(fact.execution_memory_peak_bytes);
        // Without room the task ends without a reason.
        if caps.admit(fact.reason.len()) {
            task.reason.clone_from(&fact.reason);
        }
        let told = StageKey::new(fact.stage_id, fact.stage_attempt);
        let used = task.join(Some(told));
        let stage = task.stage.unwrap_or(told);
        let (duration, peak) = (
            task.duration_ns(now_ns).unwrap_or(0),
            task.execution_peak_bytes(),
        );
        drop(task);
        self.moved(
            stage,
            caps,
            (before != TaskState::Unknown).then_some(before),
            state,
            now_ns,
        );
        if let Some(mut stage) = self.stages.get_mut(&stage) {
            stage.task_time_ns = stage.task_time_ns.saturating_add(duration);
            stage.peak_bytes = stage.peak_bytes.max(peak);
        }
        self.joined(Some(stage), used, now_ns, caps);
        self.gave_back(
            fact.task_attempt_id,
            fact.execution_memory_peak_bytes,
            now_ns,
        );
        true
    }

    /// Marks the running tasks that `gone` selects as lost: their end will not be reported.
    pub(super) fn lose(&mut self, now_ns: u64, caps: &Caps, gone: impl Fn(&Task) -> bool) {
        let lost: Vec<u64> = self
            .tasks
            .iter()
            .filter(|(_, task)| task.state == TaskState::Running && gone(task))
            .map(|(id, _)| *id)
            .collect();
        for id in lost {
            let Some(mut task) = self.tasks.get_mut(&id) else {
                continue;
            };
            task.state = TaskState::Lost;
            task.end_ns = Some(now_ns);
            let held = std::mem::take(&mut task.live_bytes);
            let stage = task.stage;
            drop(task);
            if let Some(stage) = stage {
                if let Some(mut row) = self.stages.get_mut(&stage) {
                    row.held.change(held, 0, now_ns);
                }
                self.moved(
                    stage,
                    caps,
                    Some(TaskState::Running),
                    TaskState::Lost,
                    now_ns,
                );
            }
        }
    }

    /// After a complete snapshot: marks running tasks last reported before `since_ns` as lost.
    pub(super) fn sweep(&mut self, since_ns: u64, now_ns: u64, caps: &Caps) {
        self.lose(now_ns, caps, |task| task.last_active_ns < since_ns);
    }
}
