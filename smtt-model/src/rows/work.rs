//! Stages and tasks as rows.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::consumers::{ConsumerRow, by_task, consumers};
use super::jobs::{CourseRow, WorkState, duration_ns};
use super::splits::reads_its_input;
use super::{
    ApplicationKey, ExecutorId, Filter, FunctionsRow, HelperRow, HelperSumRow, Listing, NO_RDD,
    OVERFLOW, PageWalkRow, PeakRow, SplitsRow, UsedRow, peaks,
};
use crate::attribute::{RddKey, StageKey};
use crate::decode::StageDescribed;
use crate::sort::small::Gather as _;
use crate::state::functions::Functions;
use crate::state::{Executor, FaultFigures, Stage, State, Task, TaskState};

/// One attempt of a stage on one executor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageRow {
    /// Executor that ran the tasks.
    #[serde(flatten)]
    pub who: ExecutorId,
    /// Id of the stage; absent in the overflow row.
    pub stage_id: Option<u32>,
    /// Attempt of the stage.
    pub stage_attempt: Option<u32>,
    /// Name of the stage; absent until it is known.
    pub name: Option<String>,
    /// Id of the job that the stage belongs to.
    pub job_id: Option<u32>,
    /// Id of the last RDD that the stage computes.
    pub rdd_id: Option<u32>,
    /// `running`, `succeeded` or `failed`, as the driver says; absent until it has described the stage, and where the
    /// executor has gone before it told it an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<WorkState>,
    /// When the driver submitted the stage, by its clock, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitted_unix_ms: Option<u64>,
    /// When the stage ended; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_unix_ms: Option<u64>,
    /// From the submission to the end, in nanoseconds; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ns: Option<u64>,
    /// Why the stage failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Tasks of the whole stage on all executors.
    pub tasks: Option<u64>,
    /// Running tasks of the stage on this executor.
    pub tasks_running: u64,
    /// Tasks that returned their result.
    pub tasks_succeeded: u64,
    /// Tasks that failed with an exception.
    pub tasks_failed: u64,
    /// Tasks that were killed.
    pub tasks_killed: u64,
    /// Tasks whose end was not recorded.
    pub tasks_lost: u64,
    /// Total duration of the stage's ended tasks on this executor, in nanoseconds.
    pub task_time_ns: u64,
    /// Page faults of the stage's tasks on this executor.
    #[serde(flatten)]
    pub faults: FaultFigures,
    /// Bytes of execution memory that the stage's running tasks hold.
    pub execution_memory_bytes: u64,
    /// Largest peak of execution memory of a single task of the stage, in bytes.
    pub execution_memory_peak_bytes: u64,
    /// The most execution memory that the stage's own tasks held together on this executor, in bytes.
    #[serde(default)]
    pub tasks_execution_memory_peak_bytes: u64,
    /// Whether that peak may be too high or too low, because a grant or a release was not reported.
    #[serde(default)]
    pub tasks_execution_memory_peak_partial: bool,
    /// Peaks of the executor while tasks of the stage ran, by Spark's names of the metrics.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub executor_peaks: BTreeMap<String, PeakRow>,
    /// The most that the Python workers of one of the stage's tasks had resident together; absent where none was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python_worker_peak_bytes: Option<u64>,
    /// Sums of what the stage's ended tasks used on this executor.
    #[serde(flatten)]
    pub used: UsedRow,
    /// Task attempts in these sums.
    pub used_tasks: u64,
    /// Task attempts that are not in these sums, or not from their begin.
    pub used_partial_tasks: u64,
    /// Sums of what threads used that helped the tasks; in none of the figures above. Absent without such a thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub helpers: Option<HelperSumRow>,
    /// Page faults of the stage by RDD.
    pub rdds: Vec<StageRddRow>,
    /// Page walks of the stage's tasks on this executor.
    #[serde(flatten)]
    pub walks: PageWalkRow,
}

/// Page faults of one RDD within a stage. Figures of page walks are absent where none was sampled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageRddRow {
    /// Id of the RDD; absent for work of no RDD and for the overflow row.
    pub rdd_id: Option<u32>,
    /// Name of the RDD, `(no RDD)` or `(overflow)`; absent until it is known.
    pub name: Option<String>,
    /// Page faults of the RDD within the stage.
    #[serde(flatten)]
    pub faults: FaultFigures,
    /// Page walks of the RDD within the stage.
    #[serde(flatten)]
    pub walks: PageWalkRow,
}

/// One task attempt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskRow {
    /// Executor that runs or ran the task.
    #[serde(flatten)]
    pub who: ExecutorId,
    /// Id of the task's stage.
    pub stage_id: Option<u32>,
    /// Attempt of the task's stage.
    pub stage_attempt: Option<u32>,
    /// Id of the task attempt, unique in the application; absent in the overflow row.
    pub task_attempt_id: Option<u64>,
    /// Partition that the task computes.
    pub partition: Option<u32>,
    /// Number of this attempt among the attempts for the partition.
    pub attempt_number: Option<u32>,
    /// Id of the task's job.
    pub job_id: Option<u32>,
    /// `running`, `succeeded`, `failed`, `killed`, `lost`, or `unknown` where only page faults of the task were
    /// recorded.
    pub state: TaskState,
    /// Why the task failed or was killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Time since the start of a running task, or from start to end of an ended one, in nanoseconds.
    pub duration_ns: Option<u64>,
    /// Time of the report of the start, in nanoseconds since boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ns: Option<u64>,
    /// Time of the report of the end, in nanoseconds since boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_ns: Option<u64>,
    /// Whether `duration_ns` is a lower bound because the start of the task was not recorded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duration_is_lower_bound: bool,
    /// Page faults of the task.
    #[serde(flatten)]
    pub faults: FaultFigures,
    /// Bytes of execution memory that the task holds.
    pub execution_memory_bytes: u64,
    /// Peak of `execution_memory_bytes`.
    pub execution_memory_peak_bytes: u64,
    /// Spark's `peakExecutionMemory` of an ended task: the sum over its consumers at the time when Spark read them.
    /// Absent where a part of the task was not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_memory_spark_peak_bytes: Option<u64>,
    /// The most that was resident in the task's Python workers; absent where none was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python_worker_peak_bytes: Option<u64>,
    /// What the task's own thread used; of a running task until the last reading.
    #[serde(flatten)]
    pub used: UsedRow,
    /// What threads used that helped the task, by what they do; in none of the figures above.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub helpers: Vec<HelperRow>,
    /// Where the figures end: `task_end`, `thread_exit` where the executor was killed, or `next_task` where the end was
    /// not reported. `now` while the task runs, and `last_reading` where it has ended without accounts: such figures
    /// are in no sum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_until: Option<String>,
    /// Time that the figures cover, in nanoseconds: from the begin of the executor's task runner to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_duration_ns: Option<u64>,
    /// The task's life in parts; only where one task or ended tasks were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub splits: Option<SplitsRow>,
    /// The same in parts of equal input; only of an ended task whose thread read its input itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub splits_by_input: Option<SplitsRow>,
    /// Where the task's time went, by function; only where one task or ended tasks were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub functions: Option<FunctionsRow>,
    /// Whether the task began before its accounts were read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub used_is_partial: bool,
    /// Consumers that hold or held the task's execution memory.
    pub consumers: Vec<ConsumerRow>,
    /// RDDs that page faults of the task are attributed to.
    pub rdd_ids: Vec<u32>,
    /// Page walks of the task.
    #[serde(flatten)]
    pub walks: PageWalkRow,
}

impl Filter {
    /// Whether the stage worked on the selected RDD or computes it.
    pub(super) fn rdd_of(&self, executor: &Executor, stage: &Stage) -> bool {
        let said = stage.described.as_ref();
        let last = said.and_then(|said| said.rdd_id).map(RddKey::Id);
        let mut rdds = stage.rdds.keys().copied().chain(last);
        self.rdd.is_none() || rdds.any(|rdd| self.rdd(executor, rdd))
    }
}

/// Live memory and the largest peak of its tasks, by stage.
pub(super) fn memory_of_tasks(executor: &Executor) -> HashMap<StageKey, (u64, u64)> {
    let mut memory: HashMap<StageKey, (u64, u64)> = HashMap::new();
    for task in executor.tasks.tasks.values() {
        if let Some(stage) = task.stage {
            let (live, peak) = memory.entry(stage).or_default();
            *live = live.saturating_add(task.live_bytes);
            *peak = (*peak).max(task.seen_peak_bytes);
        }
    }
    memory
}

/// How a stage goes, as the driver says.
fn course(said: &StageDescribed, is_alive: bool) -> CourseRow {
    CourseRow {
        state: WorkState::of_stage(said, is_alive),
        started_unix_ms: said.submitted_unix_ms,
        ended_unix_ms: said.completed_unix_ms,
        duration_ns: duration_ns(said.submitted_unix_ms, said.completed_unix_ms),
        failure: Some(said.failure.clone()).filter(|text| !text.is_empty()),
    }
}

impl State {
    /// How stage attempts of an application go, as the driver has told any executor here; absent where it has told none.
    #[must_use]
    pub fn courses_of_stages(
        &self,
        application: &ApplicationKey,
        wanted: &BTreeSet<StageKey>,
    ) -> BTreeMap<StageKey, CourseRow> {
        let mut known: BTreeMap<StageKey, CourseRow> = BTreeMap::new();
        let executors = self.executors().values();
        for executor in executors.filter(|executor| application.has(executor)) {
            for key in wanted {
                let stage = executor.tasks.stages.get(key);
                let Some(said) = stage.and_then(|stage| stage.described.as_ref()) else {
                    continue;
                };
                let said = course(said, executor.died_ns.is_none());
                match said.state {
                    None => {}
                    // An attempt that has ended does not go on, whatever others have not heard yet.
                    Some(WorkState::Running) => {
                        known.entry(*key).or_insert(said);
                    }
                    Some(WorkState::Succeeded | WorkState::Failed) => {
                        known.insert(*key, said);
                    }
                }
            }
        }
        known
    }

    /// Stages that the filter selects.
    #[must_use]
    pub fn list_stages(&self, filter: &Filter) -> Listing<StageRow> {
        self.listing(filter, |_, executor, rows| {
            let who = ExecutorId::new(executor);
            let name_of = |rdd: RddKey| match rdd {
                RddKey::None => Some(NO_RDD.to_owned()),
                RddKey::Overflow => Some(OVERFLOW.to_owned()),
                RddKey::Id(_) => executor
                    .rdds
                    .get(&rdd)
                    .and_then(|rdd| rdd.described.as_ref())
                    .map(|said| said.name.clone())
                    .filter(|name| !name.is_empty()),
            };
            let memory = memory_of_tasks(executor);
            let row = |key: StageKey, stage: &Stage| {
                let said = stage.described.as_ref();
                let course = said.map(|said| course(said, executor.died_ns.is_none()));
                let course = course.unwrap_or_default();
                let (live, peak) = memory.get(&key).copied().unwrap_or_default();
                StageRow {
                    who: who.clone(),
                    stage_id: Some(key.id),
                    stage_attempt: Some(u32::from(key.attempt)),
                    name: said.map(|said| said.name.clone()),
                    job_id: said.and_then(|said| said.job_id),
                    rdd_id: said.and_then(|said| said.rdd_id),
                    state: course.state,
                    submitted_unix_ms: course.started_unix_ms,
                    completed_unix_ms: course.ended_unix_ms,
                    duration_ns: course.duration_ns,
                    failure: course.failure,
                    tasks: said.map(|said| said.tasks),
                    tasks_running: stage.count(TaskState::Running),
                    tasks_succeeded: stage.count(TaskState::Succeeded),
                    tasks_failed: stage.count(TaskState::Failed),
                    tasks_killed: stage.count(TaskState::Killed),
                    tasks_lost: stage.count(TaskState::Lost),
                    task_time_ns: stage.task_time_ns,
                    faults: self.figures(&stage.faults),
                    execution_memory_bytes: live,
                    execution_memory_peak_bytes: stage.peak_bytes.max(peak),
                    tasks_execution_memory_peak_bytes: stage.held.peak_bytes,
                    tasks_execution_memory_peak_partial: stage.held.partial,
                    executor_peaks: stage
                        .peaks
                        .as_ref()
                        .map_or_else(BTreeMap::new, |of| peaks(of, self.now_ns())),
                    python_worker_peak_bytes: stage.python_peak_bytes,
                    used: UsedRow::new(&stage.used),
                    used_tasks: stage.used_tasks,
                    used_partial_tasks: stage.used_partial_tasks,
                    helpers: stage.helpers.as_deref().and_then(HelperSumRow::new),
                    rdds: stage
                        .rdds
                        .keys()
                        .chain(stage.rdd_walks.keys())
                        .gather::<BTreeSet<&RddKey>>()
                        .into_iter()
                        .map(|rdd| StageRddRow {
                            rdd_id: rdd.id(),
                            name: name_of(*rdd),
                            faults: self.figures(&stage.rdds.get(rdd).copied().unwrap_or_default()),
                            walks: self.walks_part(executor, stage.rdd_walks.get(rdd)),
                        })
                        .collect(),
                    walks: self.walks_of(executor, &stage.walks, Some(&stage.distribution)),
                }
            };
            rows.extend(
                executor
                    .tasks
                    .stages
                    .iter()
                    .filter(|(key, _)| filter.in_part(*key) && filter.stage(Some(**key)))
                    .filter(|(_, stage)| filter.rdd_of(executor, stage))
                    .map(|(key, stage)| row(*key, stage)),
            );
            let over = executor.tasks.stages_over_cap;
            let all = filter.stage.is_none() && filter.rdd.is_none() && filter.in_first_part();
            if over.is_shown() && all {
                rows.push(StageRow {
                    who: who.clone(),
                    name: Some(OVERFLOW.to_owned()),
                    faults: self.figures(&over.faults),
                    walks: self.walks_sum(executor, &over.walks),
                    used: UsedRow::new(&over.used),
                    helpers: HelperSumRow::new(&over.helpers),
                    ..StageRow::default()
                });
            }
        })
    }

    fn task_row(
        &self,
        executor: &Executor,
        who: &ExecutorId,
        id: u64,
        task: &Task,
        consumers: Vec<ConsumerRow>,
        is_whole: bool,
    ) -> TaskRow {
        let splits = is_whole.then(|| self.splits(task)).flatten();
        let functions = is_whole.then(|| self.functions(&executor.tasks, task));
        let shown = task.shown();
        let used = UsedRow::new(&shown.figures);
        let by_input = splits
            .as_ref()
            .filter(|_| !shown.partial && reads_its_input(&used));
        let splits_by_input = by_input.and_then(SplitsRow::by_input);
        TaskRow {
            who: who.clone(),
            stage_id: task.stage.map(|stage| stage.id),
            stage_attempt: task.stage.map(|stage| u32::from(stage.attempt)),
            task_attempt_id: Some(id),
            partition: task.started.map(|started| started.partition),
            attempt_number: task.started.map(|started| started.attempt_number),
            job_id: task.started.and_then(|started| started.job_id),
            state: task.state,
            reason: Some(task.reason.clone()).filter(|reason| !reason.is_empty()),
            duration_ns: task.duration_ns(self.now_ns()),
            start_ns: task.start_ns,
            end_ns: task.end_ns,
            duration_is_lower_bound: task.start_is_late,
            faults: self.figures(&task.faults),
            execution_memory_bytes: task.live_bytes,
            execution_memory_peak_bytes: task.execution_peak_bytes(),
            execution_memory_spark_peak_bytes: task.spark_peak_bytes(),
            python_worker_peak_bytes: task.python_peak_bytes,
            used,
            helpers: {
                let services = task.functions().map_or(&[][..], Functions::services);
                let row = |of| HelperRow::new(of, services);
                task.helpers.iter().map(row).collect()
            },
            used_until: shown.until.map(str::to_owned),
            used_duration_ns: Some(shown.duration_ns).filter(|time| *time > 0),
            used_is_partial: shown.partial,
            splits,
            splits_by_input,
            functions: functions.flatten(),
            consumers,
            rdd_ids: task.rdds.iter().filter_map(|rdd| rdd.id()).collect(),
            walks: self.walks_sum(executor, &task.walks),
        }
    }

    /// Tasks of one executor that had ended at `until_ns` (boot time) and are not among `known`, with their lives in
    /// parts; at most `most`. `known` then has the ids of all returned ones and of those that the state still holds.
    #[must_use]
    pub fn newly_ended_tasks(
        &self,
        key: u64,
        until_ns: u64,
        most: usize,
        known: &mut BTreeSet<u64>,
    ) -> Vec<TaskRow> {
        let Some(executor) = self.executors().get(&key) else {
            return Vec::new();
        };
        let all = &executor.tasks.tasks;
        known.retain(|id| all.get(id).is_some());
        let has_ended =
            |task: &Task| task.state.ended() && task.end_ns.is_none_or(|end_ns| end_ns <= until_ns);
        let ended = all
            .iter()
            .filter(|(id, task)| has_ended(task) && !known.contains(id));
        let ended: Vec<(u64, &Task)> = ended.take(most).map(|(id, task)| (*id, task)).collect();
        known.extend(ended.iter().map(|(id, _)| *id));
        let (who, live) = (ExecutorId::new(executor), by_task(&executor.memory));
        let row = |(id, task): (u64, &Task)| {
            let consumers = consumers(task, live.get(&id));
            self.task_row(executor, &who, id, task, consumers, true)
        };
        ended.into_iter().map(row).collect()
    }

    /// Tasks that the filter selects. A row without `task_attempt_id` is the overflow row.
    #[must_use]
    pub fn list_tasks(&self, filter: &Filter) -> Listing<TaskRow> {
        self.listing(filter, |_, executor, rows| {
            let who = ExecutorId::new(executor);
            let live = by_task(&executor.memory);
            let row = |id: u64, task: &Task| {
                let consumers = consumers(task, live.get(&id));
                self.task_row(executor, &who, id, task, consumers, filter.task.is_some())
            };
            rows.extend(
                executor
                    .tasks
                    .tasks
                    .iter()
                    .filter(|(id, _)| filter.in_part(*id))
                    .filter(|(id, _)| filter.task.is_none_or(|wanted| **id == wanted))
                    .filter(|(_, task)| filter.stage(task.stage))
                    .filter(|(_, task)| {
                        filter.rdd.is_none()
                            || task.rdds.iter().any(|rdd| filter.rdd(executor, *rdd))
                    })
                    .map(|(id, task)| row(*id, task)),
            );
            let over = executor.tasks.tasks_over_cap;
            let all = filter.stage.is_none() && filter.rdd.is_none() && filter.task.is_none();
            if over.rows > 0 && all && filter.in_first_part() {
                let faults = self.figures(&over.faults);
                rows.push(TaskRow {
                    who: who.clone(),
                    reason: Some(OVERFLOW.to_owned()),
                    faults,
                    walks: self.walks_sum(executor, &over.walks),
                    used: UsedRow::new(&over.used),
                    ..TaskRow::default()
                });
            }
        })
    }

    /// Tasks that the filter selects and that failed, were killed or were lost. The overflow row is listed too: some of
    /// its tasks may have failed.
    #[must_use]
    pub fn list_failed_tasks(&self, filter: &Filter) -> Listing<TaskRow> {
        use TaskState::{Failed, Killed, Lost};
        let mut listing = self.list_tasks(filter);
        listing.rows.retain(|row| {
            row.task_attempt_id.is_none() || matches!(row.state, Failed | Killed | Lost)
        });
        listing.rows_total = listing.rows.len() as u64;
        listing
    }
}
