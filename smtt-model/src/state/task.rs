//! Tasks and stages of one executor.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};
use smtt_common::counter::FaultCounters;
use smtt_common::page_walk::WalkCounters;

use super::faults;
use super::page_walks::{Distribution, Walks};
use crate::attribute::{RddKey, StageKey};
use crate::decode::{ConsumerUsed, Outcome as TaskOutcome, StageDescribed, TaskEnded, TaskStarted};

/// Most RDDs that are remembered per task; more fall together.
const RDDS_PER_TASK: usize = 32;
/// Most RDDs that are remembered per stage; more fall together.
const RDDS_PER_STAGE: usize = 256;

/// Most classes of consumers that are remembered per task. The marker tells of 32 and one for the others.
const CONSUMERS_PER_TASK: usize = 33;

/// Where a task is in its life.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// Faults were counted for it, but neither its start nor its end was told.
    #[default]
    Unknown,
    /// It runs.
    Running,
    /// It returned its result.
    Succeeded,
    /// It threw.
    Failed,
    /// It was killed or interrupted.
    Killed,
    /// Its executor died, or it is gone without its end having been seen.
    Lost,
}

impl TaskState {
    /// Whether it is over.
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
    /// Where it is in its life.
    pub state: TaskState,
    /// Its stage, where known.
    pub stage: Option<StageKey>,
    /// What its start told.
    pub started: Option<TaskStarted>,
    /// When its start was told, nanoseconds since boot.
    pub start_ns: Option<u64>,
    /// Its start was told late (again), so it is older than `start_ns` says.
    pub start_is_late: bool,
    /// When its end was told, nanoseconds since boot.
    pub end_ns: Option<u64>,
    /// Why it failed or was killed.
    pub reason: String,
    /// Most execution memory at a time in bytes, from its end.
    pub peak_bytes: Option<u64>,
    /// Live execution memory in bytes, as it was told.
    pub live_bytes: u64,
    /// Most that `live_bytes` ever was.
    pub seen_peak_bytes: u64,
    /// Who used its execution memory, from its end.
    pub consumers: Vec<ConsumerUsed>,
    /// Its page faults.
    pub faults: FaultCounters,
    /// RDDs that its faults were counted for.
    pub rdds: Vec<RddKey>,
    /// Its sampled page walks and cycles.
    pub walks: WalkCounters,
    /// The same by RDD, until they are in the distributions.
    pub(super) walks_by_rdd: Vec<(RddKey, WalkCounters)>,
    last_active_ns: u64,
}

impl Task {
    /// Counts faults for it.
    pub(super) fn add(&mut self, more: &FaultCounters, rdd: RddKey, now_ns: u64) {
        faults::add(&mut self.faults, more);
        self.last_active_ns = now_ns;
        if !self.rdds.contains(&rdd) {
            self.rdds.push(if self.rdds.len() < RDDS_PER_TASK {
                rdd
            } else {
                RddKey::Overflow
            });
            self.rdds.dedup();
        }
    }

    /// Counts sampled page walks for it.
    pub(super) fn add_walks(&mut self, more: &WalkCounters, rdd: RddKey, now_ns: u64) {
        self.walks.add(more);
        self.last_active_ns = now_ns;
        let known = self
            .walks_by_rdd
            .iter_mut()
            .find(|(known, _)| *known == rdd);
        if let Some((_, sum)) = known {
            sum.add(more);
        } else if self.walks_by_rdd.len() < RDDS_PER_TASK {
            // Beyond that it stays in the task's own sum only.
            self.walks_by_rdd.push((rdd, *more));
        }
    }

    /// Its duration in nanoseconds up to `now_ns`; `None` where its start is not known.
    #[must_use]
    pub fn duration_ns(&self, now_ns: u64) -> Option<u64> {
        let end = self.end_ns.unwrap_or(now_ns);
        self.start_ns.map(|start| end.saturating_sub(start))
    }

    /// The most execution memory that it held at a time, in bytes: Spark's own figure at its end, before it what
    /// was seen.
    #[must_use]
    pub fn execution_peak_bytes(&self) -> u64 {
        self.peak_bytes.unwrap_or(0).max(self.seen_peak_bytes)
    }

    /// What a class of consumers used of its execution memory.
    pub(super) fn used(&mut self, used: ConsumerUsed) {
        let known = self
            .consumers
            .iter_mut()
            .find(|known| known.consumer == used.consumer);
        if let Some(known) = known {
            *known = used;
        } else if self.consumers.len() < CONSUMERS_PER_TASK {
            self.consumers.push(used);
        }
    }

    /// Spark's own `peakExecutionMemory` of an ended task, in bytes: no peak of a sum, but what each consumer held
    /// when Spark looked, added up. `None` before the end, and where part of the task's life was not seen.
    #[must_use]
    pub fn spark_peak_bytes(&self) -> Option<u64> {
        // Somebody held what it held: who, was lost on the way.
        let lost = self.consumers.is_empty() && self.peak_bytes? > 0;
        if lost || !self.state.ended() {
            return None;
        }
        self.consumers.iter().try_fold(0_u64, |sum, used| {
            Some(sum.saturating_add(used.counted_bytes?))
        })
    }
}

/// One attempt of a stage, as one executor saw it.
#[derive(Clone, Debug, Default)]
pub struct Stage {
    /// Name and size, once told.
    pub described: Option<StageDescribed>,
    /// Tasks of this executor by state.
    pub tasks: BTreeMap<TaskState, u64>,
    /// Page faults counted for it.
    pub faults: FaultCounters,
    /// The same by RDD.
    pub rdds: BTreeMap<RddKey, FaultCounters>,
    /// Its sampled page walks and cycles.
    pub walks: Walks,
    /// The same by RDD.
    pub rdd_walks: BTreeMap<RddKey, WalkCounters>,
    /// How its ratios are distributed over tasks.
    pub distribution: Distribution,
    /// Largest execution memory peak of a task, in bytes.
    pub peak_bytes: u64,
    /// Sum of the durations of ended tasks, in nanoseconds.
    pub task_time_ns: u64,
    /// When something was last told of it, nanoseconds since boot.
    pub last_active_ns: u64,
}

impl Stage {
    /// Counts faults for it.
    pub(super) fn add(&mut self, more: &FaultCounters, rdd: RddKey, now_ns: u64) {
        faults::add(&mut self.faults, more);
        self.last_active_ns = now_ns;
        let known = self.rdds.contains_key(&rdd) || self.rdds.len() < RDDS_PER_STAGE;
        faults::add(
            self.rdds
                .entry(if known { rdd } else { RddKey::Overflow })
                .or_default(),
            more,
        );
    }

    /// Counts sampled page walks for it.
    pub(super) fn add_walks(&mut self, more: &WalkCounters, rdd: RddKey, now_ns: u64) {
        self.walks.add(more, now_ns);
        self.last_active_ns = now_ns;
        let known = self.rdd_walks.contains_key(&rdd) || self.rdd_walks.len() < RDDS_PER_STAGE;
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

/// Tasks and stages, with what had no room.
#[derive(Debug, Default)]
pub struct Tasks {
    /// By task attempt id.
    pub tasks: HashMap<u64, Task>,
    /// By stage and attempt.
    pub stages: HashMap<StageKey, Stage>,
    /// Faults of tasks that have no row of their own (any more).
    pub tasks_over_cap: OverCap,
    /// Faults of stages that have no row of their own (any more).
    pub stages_over_cap: OverCap,
}

/// The overflow row of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverCap {
    /// Rows that were folded into it or never made, since the start.
    pub rows: u64,
    /// Their page faults.
    pub faults: FaultCounters,
    /// Their sampled page walks and cycles.
    pub walks: WalkCounters,
}

/// Removes the oldest eighth of `table` among rows that `may_go` allows, and folds their faults into `over`.
/// An eighth at a time, so that a flood of new rows does not search the table for each one.
fn fold<K: Copy + Eq + std::hash::Hash, V>(
    table: &mut HashMap<K, V>,
    over: &mut OverCap,
    may_go: impl Fn(&V) -> bool,
    last_active_ns: impl Fn(&V) -> u64,
    counted: impl Fn(&V) -> (FaultCounters, WalkCounters),
) {
    let mut old: Vec<(u64, K)> = table
        .iter()
        .filter(|(_, row)| may_go(row))
        .map(|(key, row)| (last_active_ns(row), *key))
        .collect();
    old.sort_unstable_by_key(|(touched, _)| *touched);
    old.truncate((table.len() / 8).max(1));
    for (_, key) in old {
        if let Some(row) = table.remove(&key) {
            over.rows += 1;
            let (faults, walks) = counted(&row);
            faults::add(&mut over.faults, &faults);
            over.walks.add(&walks);
        }
    }
}

impl Tasks {
    /// The row of a task, made when there is room; `None` when it is over the cap.
    pub(super) fn task(&mut self, id: u64, cap: usize) -> Option<&mut Task> {
        if !self.tasks.contains_key(&id) && self.tasks.len() >= cap {
            fold(
                &mut self.tasks,
                &mut self.tasks_over_cap,
                |task| task.state != TaskState::Running,
                |task| task.last_active_ns,
                |task| (task.faults, task.walks),
            );
            if self.tasks.len() >= cap {
                self.tasks_over_cap.rows += 1;
                return None;
            }
        }
        Some(self.tasks.entry(id).or_default())
    }

    /// The row of a stage, made when there is room; `None` when it is over the cap.
    pub(super) fn stage(&mut self, key: StageKey, cap: usize) -> Option<&mut Stage> {
        if !self.stages.contains_key(&key) && self.stages.len() >= cap {
            let idle = |stage: &Stage| stage.count(TaskState::Running) == 0;
            fold(
                &mut self.stages,
                &mut self.stages_over_cap,
                idle,
                |stage| stage.last_active_ns,
                |stage| (stage.faults, stage.walks.life),
            );
            if self.stages.len() >= cap {
                self.stages_over_cap.rows += 1;
                return None;
            }
        }
        Some(self.stages.entry(key).or_default())
    }

    /// A task's state changed: the stage's counts follow.
    fn moved(
        &mut self,
        stage: StageKey,
        cap: usize,
        from: Option<TaskState>,
        to: TaskState,
        now_ns: u64,
    ) {
        if let Some(row) = self.stage(stage, cap) {
            row.last_active_ns = now_ns;
            if let Some(count) = from.and_then(|from| row.tasks.get_mut(&from)) {
                *count = count.saturating_sub(1);
            }
            *row.tasks.entry(to).or_default() += 1;
        }
    }

    /// A task started, or is told again. `late` says that a resync is under way.
    pub(super) fn started(
        &mut self,
        fact: &TaskStarted,
        late: bool,
        now_ns: u64,
        caps: (usize, usize),
    ) -> bool {
        let stage = StageKey::new(fact.stage_id, fact.stage_attempt);
        let Some(task) = self.task(fact.task_attempt_id, caps.0) else {
            return false;
        };
        task.last_active_ns = now_ns;
        let first = task.started.is_none();
        if first {
            task.started = Some(*fact);
        }
        if task.state != TaskState::Unknown {
            // Told again, or overtaken by its own end: what is known stays.
            return true;
        }
        task.state = TaskState::Running;
        task.start_ns = Some(now_ns);
        task.start_is_late = late;
        task.stage = Some(stage);
        self.moved(stage, caps.1, None, TaskState::Running, now_ns);
        true
    }

    /// A task ended.
    pub(super) fn ended(&mut self, fact: &TaskEnded, now_ns: u64, caps: (usize, usize)) -> bool {
        let Some(task) = self.task(fact.task_attempt_id, caps.0) else {
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
        task.reason.clone_from(&fact.reason);
        let stage = *task
            .stage
            .get_or_insert(StageKey::new(fact.stage_id, fact.stage_attempt));
        let (duration, peak) = (
            task.duration_ns(now_ns).unwrap_or(0),
            task.execution_peak_bytes(),
        );
        self.moved(
            stage,
            caps.1,
            (before != TaskState::Unknown).then_some(before),
            state,
            now_ns,
        );
        if let Some(stage) = self.stages.get_mut(&stage) {
            stage.task_time_ns = stage.task_time_ns.saturating_add(duration);
            stage.peak_bytes = stage.peak_bytes.max(peak);
        }
        true
    }

    /// Running tasks that `gone` chooses are lost: nobody will tell their end.
    pub(super) fn lose(&mut self, now_ns: u64, stages_cap: usize, gone: impl Fn(&Task) -> bool) {
        let lost: Vec<u64> = self
            .tasks
            .iter()
            .filter(|(_, task)| task.state == TaskState::Running && gone(task))
            .map(|(id, _)| *id)
            .collect();
        for id in lost {
            let Some(task) = self.tasks.get_mut(&id) else {
                continue;
            };
            task.state = TaskState::Lost;
            task.end_ns = Some(now_ns);
            task.live_bytes = 0;
            if let Some(stage) = task.stage {
                self.moved(
                    stage,
                    stages_cap,
                    Some(TaskState::Running),
                    TaskState::Lost,
                    now_ns,
                );
            }
        }
    }

    /// Running tasks that were last told of before `since_ns`, after everything alive was told again, are lost.
    pub(super) fn sweep(&mut self, since_ns: u64, now_ns: u64, stages_cap: usize) {
        self.lose(now_ns, stages_cap, |task| task.last_active_ns < since_ns);
    }

    /// Execution memory of a task grew or shrank.
    pub(super) fn memory_changed(&mut self, id: Option<u64>, change_bytes: i64) {
        if let Some(task) = id.and_then(|id| self.tasks.get_mut(&id)) {
            task.live_bytes = task.live_bytes.saturating_add_signed(change_bytes);
            task.seen_peak_bytes = task.seen_peak_bytes.max(task.live_bytes);
        }
    }
}
