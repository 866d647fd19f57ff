//! Jobs and SQL executions as rows: sums over the stages of an application, on all executors of this worker.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use smtt_common::counter::FaultCounters;
use smtt_common::event::memory::PeakMetric;

use super::{ApplicationKey, Filter, HelperSumRow, Listing, OVERFLOW, UsedRow};
use crate::attribute::StageKey;
use crate::decode::{JobDescribed, StageDescribed};
use crate::state::{FaultFigures, HelperSum, Measured, Stage, State, TaskState, Used, faults};

/// Most ids of jobs or stages in a row.
const IDS: usize = 1000;

/// What a row sums up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkBy {
    /// A job.
    Job,
    /// An SQL execution, which may submit several jobs.
    Query,
}

/// How a job or an SQL execution goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CourseRow {
    /// `running`, `succeeded` or `failed`, as the driver says; an SQL execution has failed where its last job has. Absent
    /// until the driver has described a job of the row, and where all executors have gone before it told them an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<WorkState>,
    /// When it began, by the driver's clock, in milliseconds since 1970: an SQL execution with its first job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_unix_ms: Option<u64>,
    /// When it ended: an SQL execution with its last job. Absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_unix_ms: Option<u64>,
    /// From the begin to the end, in nanoseconds; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ns: Option<u64>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// One job or one SQL execution of an application, as far as executors of this worker worked for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobRow {
    /// Application id as its executors claim it.
    pub application_id: Option<String>,
    /// Attempt of the application, where its cluster manager makes several (YARN in cluster mode).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application_attempt_id: Option<String>,
    /// User of the executors, as the kernel reports it.
    #[serde(default)]
    pub uid: Option<u32>,
    /// Id of the job; absent in rows of SQL executions, and for stages whose job is unknown.
    pub job_id: Option<u32>,
    /// Id of the SQL execution; absent for work outside of SQL executions.
    pub sql_execution_id: Option<u64>,
    /// Description of the job or query: as the application set it, else of the SQL execution, else the name of the last
    /// stage.
    pub name: Option<String>,
    /// How it goes.
    #[serde(flatten)]
    pub course: CourseRow,
    /// Jobs with stages in this row.
    pub jobs: u64,
    /// Stages that ran on this worker.
    pub stages: u64,
    /// Ids of these jobs in ascending order; absent where there are more than 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_ids: Option<Vec<u32>>,
    /// Ids of these stages in ascending order; absent where there are more than 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage_ids: Option<Vec<u32>>,
    /// Executors of this worker that ran tasks.
    pub executors: u64,
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
    /// Total duration of ended tasks, in nanoseconds.
    pub task_time_ns: u64,
    /// Page faults of the tasks.
    #[serde(flatten)]
    pub faults: FaultFigures,
    /// Largest peak of execution memory of a single task, in bytes.
    pub execution_memory_peak_bytes: u64,
    /// The most that the JVM of one executor had resident while a stage of the row ran, in bytes: the largest
    /// `ProcessTreeJVMRSSMemory` of its stages, no sum. Absent where no reading of the process fell into a stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jvm_resident_max_bytes: Option<u64>,
    /// The largest virtual memory of the JVM of one executor while a stage of the row ran, in bytes: the largest
    /// `ProcessTreeJVMVMemory` of its stages, no sum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jvm_virtual_max_bytes: Option<u64>,
    /// The most that the Python workers of one task had resident together, in bytes; absent where none was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python_worker_peak_bytes: Option<u64>,
    /// Sums of what the ended tasks used.
    #[serde(flatten)]
    pub used: UsedRow,
    /// Task attempts in these sums.
    pub used_tasks: u64,
    /// Task attempts that are not in these sums, or not from their begin.
    pub used_partial_tasks: u64,
    /// Sums of what threads used that helped the tasks; in none of the figures above. Absent without such a thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub helpers: Option<HelperSumRow>,
}

/// Sums over one executor after another.
#[derive(Debug)]
pub struct WorkSums {
    by: WorkBy,
    rows: BTreeMap<(ApplicationKey, Group), Sum>,
}

/// Which row of its application a stage belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    /// Id of a job or of an SQL execution.
    Id(u64),
    /// Stages whose job is unknown, or that no SQL execution submitted.
    Without,
    /// Stages beyond the limit of an executor's table.
    Overflow,
}

/// How a job, an SQL execution or a stage goes, as the driver says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkState {
    /// It has not ended.
    Running,
    /// It ended well.
    Succeeded,
    /// It failed, or was cancelled.
    Failed,
}

impl WorkState {
    /// That of a stage; `None` where the driver's marker does not say, or will not tell an executor that has gone.
    pub(super) const fn of_stage(said: &StageDescribed, is_alive: bool) -> Option<Self> {
        match (said.submitted_unix_ms, said.completed_unix_ms) {
            _ if !said.failure.is_empty() => Some(Self::Failed),
            (_, Some(_)) => Some(Self::Succeeded),
            (Some(_), None) if is_alive => Some(Self::Running),
            (_, None) => None,
        }
    }
}

/// Nanoseconds from a begin to an end in milliseconds; clocks may be set back meanwhile.
pub(super) fn duration_ns(begin_ms: Option<u64>, end_ms: Option<u64>) -> Option<u64> {
    Some(end_ms?.saturating_sub(begin_ms?).saturating_mul(1_000_000))
}

#[derive(Debug, Default)]
struct Sum {
    /// What the driver said of jobs of the row, also of those without tasks on this worker.
    told: BTreeMap<u32, JobDescribed>,
    /// The stage with the highest id names the row.
    last: Option<(u32, StageDescribed)>,
    jobs: BTreeSet<u32>,
    stages: BTreeSet<u32>,
    executors: BTreeSet<u64>,
    tasks: BTreeMap<TaskState, u64>,
    task_time_ns: u64,
    faults: FaultCounters,
    peak_bytes: u64,
    resident_max_bytes: Option<u64>,
    virtual_max_bytes: Option<u64>,
    python_peak_bytes: Option<u64>,
    used: Used,
    used_tasks: u64,
    used_partial_tasks: u64,
    helpers: HelperSum,
}

impl Sum {
    fn add(&mut self, executor: u64, key: StageKey, stage: &Stage, peak_bytes: u64) {
        if let Some(said) = &stage.described
            && self.last.as_ref().is_none_or(|(id, _)| *id < key.id)
        {
            self.last = Some((key.id, said.clone()));
        }
        self.stages.insert(key.id);
        self.executors.insert(executor);
        for (state, count) in &stage.tasks {
            let sum = self.tasks.entry(*state).or_default();
            *sum = sum.saturating_add(*count);
        }
        self.task_time_ns = self.task_time_ns.saturating_add(stage.task_time_ns);
        faults::add(&mut self.faults, &stage.faults);
        self.peak_bytes = self.peak_bytes.max(stage.peak_bytes).max(peak_bytes);
        let of = |metric| {
            let peaks = stage.peaks.as_ref()?;
            // Spark reports zero where it does not measure processes.
            peaks
                .of(metric)
                .map(|peak| peak.value)
                .filter(|value| *value > 0)
        };
        self.resident_max_bytes = self.resident_max_bytes.max(of(PeakMetric::JVM_RESIDENT));
        self.virtual_max_bytes = self.virtual_max_bytes.max(of(PeakMetric::JVM_VIRTUAL));
        self.python_peak_bytes = self.python_peak_bytes.max(stage.python_peak_bytes);
        self.used.add(&stage.used);
        self.used_tasks = self.used_tasks.saturating_add(stage.used_tasks);
        self.used_partial_tasks = self
            .used_partial_tasks
            .saturating_add(stage.used_partial_tasks);
        if let Some(helpers) = &stage.helpers {
            self.helpers.add(helpers);
        }
    }

    fn name(&self, by: WorkBy) -> Option<String> {
        let (_, said) = self.last.as_ref()?;
        let texts = match by {
            WorkBy::Job => [&said.job_description, &said.sql_description, &said.name],
            WorkBy::Query => [&said.sql_description, &said.job_description, &said.name],
        };
        let known = texts.into_iter().find(|text| !text.is_empty());
        known.cloned()
    }

    fn course(&self) -> CourseRow {
        let jobs = || self.told.values();
        let started_unix_ms = jobs().map(|job| job.started_unix_ms).min();
        let ended: Option<Vec<u64>> = jobs().map(|job| job.ended_unix_ms).collect();
        let ended_unix_ms = ended.and_then(|ends| ends.into_iter().max());
        let failure = self
            .told
            .values()
            .next_back()
            .map(|job| job.failure.clone());
        let failure = failure.filter(|text| ended_unix_ms.is_some() && !text.is_empty());
        let state = started_unix_ms.map(|_| match (ended_unix_ms, &failure) {
            (None, _) => WorkState::Running,
            (Some(_), Some(_)) => WorkState::Failed,
            (Some(_), None) => WorkState::Succeeded,
        });
        CourseRow {
            state,
            started_unix_ms,
            ended_unix_ms,
            duration_ns: duration_ns(started_unix_ms, ended_unix_ms),
            failure,
        }
    }

    fn row(self, application: ApplicationKey, group: Group, by: WorkBy, on: Measured) -> JobRow {
        let course = self.course();
        let count = |state| self.tasks.get(&state).copied().unwrap_or(0);
        let id = match group {
            Group::Id(id) => Some(id),
            Group::Without | Group::Overflow => None,
        };
        JobRow {
            application_id: application.id,
            application_attempt_id: application.attempt,
            uid: application.uid,
            job_id: id
                .filter(|_| by == WorkBy::Job)
                .and_then(|id| u32::try_from(id).ok()),
            sql_execution_id: match by {
                WorkBy::Query => id,
                WorkBy::Job => self
                    .last
                    .as_ref()
                    .and_then(|(_, said)| said.sql_execution_id),
            },
            name: match group {
                Group::Id(_) => self.name(by),
                Group::Without => Some(match by {
                    WorkBy::Job => "(job unknown)".to_owned(),
                    WorkBy::Query => "(no SQL)".to_owned(),
                }),
                Group::Overflow => Some(OVERFLOW.to_owned()),
            },
            course,
            jobs: self.jobs.len() as u64,
            stages: self.stages.len() as u64,
            job_ids: ids(&self.jobs),
            stage_ids: ids(&self.stages),
            executors: self.executors.len() as u64,
            tasks_running: count(TaskState::Running),
            tasks_succeeded: count(TaskState::Succeeded),
            tasks_failed: count(TaskState::Failed),
            tasks_killed: count(TaskState::Killed),
            tasks_lost: count(TaskState::Lost),
            task_time_ns: self.task_time_ns,
            faults: FaultFigures::new(&self.faults, on),
            execution_memory_peak_bytes: self.peak_bytes,
            jvm_resident_max_bytes: self.resident_max_bytes,
            jvm_virtual_max_bytes: self.virtual_max_bytes,
            python_worker_peak_bytes: self.python_peak_bytes,
            used: UsedRow::new(&self.used),
            used_tasks: self.used_tasks,
            used_partial_tasks: self.used_partial_tasks,
            helpers: HelperSumRow::new(&self.helpers),
        }
    }
}

/// The ids of a set that is not too large.
pub(super) fn ids(of: &BTreeSet<u32>) -> Option<Vec<u32>> {
    (of.len() <= IDS).then(|| of.iter().copied().collect())
}

impl WorkSums {
    /// Sums without any executor.
    #[must_use]
    pub const fn new(by: WorkBy) -> Self {
        Self {
            by,
            rows: BTreeMap::new(),
        }
    }

    /// Adds the stages that the filter selects, whose jobs or SQL executions have ids in a part of all.
    pub fn add(&mut self, state: &State, filter: &Filter, in_part: &dyn Fn(u64) -> bool) {
        let listing: Listing<()> = state.listing(filter, |key, executor, _| {
            let application = super::ExecutorId::new(executor).application();
            // The largest peak of a stage's tasks, and the job as a task knows it: without the driver's plugin no stage
            // is described.
            let mut by_task: BTreeMap<StageKey, (u64, Option<u32>)> = BTreeMap::new();
            for task in executor.tasks.tasks.values() {
                if let Some(stage) = task.stage {
                    let (peak, job) = by_task.entry(stage).or_default();
                    *peak = (*peak).max(task.seen_peak_bytes);
                    *job = job.or(task.started.and_then(|started| started.job_id));
                }
            }
            // The driver describes every stage to executors without a task of it, too.
            let worked = |stage: &Stage| {
                !stage.tasks.is_empty() || stage.used_tasks > 0 || faults::total(&stage.faults) > 0
            };
            let selected = |key: StageKey, stage: &Stage| {
                worked(stage) && filter.stage(Some(key)) && filter.rdd_of(executor, stage)
            };
            let stages = executor.tasks.stages.iter();
            for (stage_key, stage) in stages.filter(|(key, stage)| selected(**key, stage)) {
                let said = stage.described.as_ref();
                let (peak, job) = by_task.get(stage_key).copied().unwrap_or_default();
                let job = job.or(said.and_then(|said| said.job_id));
                let id = match self.by {
                    WorkBy::Job => job.map(u64::from),
                    WorkBy::Query => said.and_then(|said| said.sql_execution_id),
                };
                if !in_part(id.unwrap_or(u64::MAX)) {
                    continue;
                }
                let group = id.map_or(Group::Without, Group::Id);
                let sum = self.rows.entry((application.clone(), group)).or_default();
                sum.jobs.extend(job);
                sum.add(key, *stage_key, stage, peak);
            }
            // Of a dead executor nobody will hear how its jobs went on.
            let is_alive = executor.died_ns.is_none();
            let told = executor.tasks.jobs.values();
            for job in told.filter(|job| is_alive || job.ended_unix_ms.is_some()) {
                let id = match self.by {
                    WorkBy::Job => Some(u64::from(job.job_id)),
                    WorkBy::Query => job.sql_execution_id,
                };
                let Some(id) = id.filter(|id| in_part(*id)) else {
                    continue;
                };
                let row = self.rows.get_mut(&(application.clone(), Group::Id(id)));
                if let Some(sum) = row
                    && sum
                        .told
                        .get(&job.job_id)
                        .is_none_or(|told| told.ended_unix_ms.is_none())
                {
                    sum.told.insert(job.job_id, job.clone());
                }
            }
            let over = &executor.tasks.stages_over_cap;
            let all = filter.stage.is_none() && filter.rdd.is_none();
            if over.is_shown() && all && in_part(u64::MAX) {
                let sum = self.rows.entry((application, Group::Overflow)).or_default();
                faults::add(&mut sum.faults, &over.faults);
                sum.used.add(&over.used);
                sum.helpers.add(&over.helpers);
                sum.executors.insert(key);
            }
        });
        drop(listing);
    }

    /// The rows, by application and id.
    #[must_use]
    pub fn rows(self, measured: Measured) -> Vec<JobRow> {
        let by = self.by;
        let rows = self.rows.into_iter();
        rows.map(|((application, group), sum)| sum.row(application, group, by, measured))
            .collect()
    }
}
