//! Jobs: the figures of their stages, added up over the executors of this worker.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use smtt_common::counter::FaultCounters;

use super::{ApplicationKey, ExecutorId, Filter, UsedRow};
use crate::attribute::StageKey;
use crate::state::{Executor, FaultFigures, State, TaskState, Used, faults};

/// One job of an application on this worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobRow {
    /// Application id as its executors claim it.
    pub application_id: Option<String>,
    /// User of the executors.
    pub uid: Option<u32>,
    /// Id of the job; absent for stages whose job is not known.
    pub job_id: Option<u32>,
    /// Stage attempts of the job that ran tasks on this worker.
    pub stages: u64,
    /// Executors of this worker that ran tasks of the job.
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
    /// Total duration of the ended tasks, in nanoseconds.
    pub task_time_ns: u64,
    /// Page faults of the tasks.
    #[serde(flatten)]
    pub faults: FaultFigures,
    /// Largest peak of execution memory of a single task, in bytes.
    pub execution_memory_peak_bytes: u64,
    /// Sums of what the ended tasks used.
    #[serde(flatten)]
    pub used: UsedRow,
    /// Task attempts in these sums.
    pub used_tasks: u64,
    /// Task attempts that are not in these sums, or not from their begin.
    pub used_partial_tasks: u64,
}

/// A job while its stages are added up.
#[derive(Debug, Default)]
struct Job {
    row: JobRow,
    stages: BTreeSet<StageKey>,
    faults: FaultCounters,
    used: Used,
}

/// Collects jobs executor by executor.
#[derive(Debug, Default)]
pub struct Jobs(BTreeMap<(ApplicationKey, Option<u32>), Job>);

impl Jobs {
    fn add_executor(&mut self, executor: &Executor, filter: &Filter) {
        let application = ExecutorId::new(executor).application();
        // The driver tells which job a stage belongs to, and its tasks know it too.
        let mut by_task: BTreeMap<StageKey, u32> = BTreeMap::new();
        for task in executor.tasks.tasks.values() {
            let job = task.started.and_then(|started| started.job_id);
            if let Some((stage, job)) = task.stage.zip(job) {
                by_task.insert(stage, job);
            }
        }
        let mut here = BTreeSet::new();
        for (key, stage) in executor.tasks.stages.iter() {
            if !filter.stage(Some(*key)) || stage.tasks.is_empty() {
                continue;
            }
            let said = stage.described.as_ref().and_then(|said| said.job_id);
            let id = by_task.get(key).copied().or(said);
            let job = self.0.entry((application.clone(), id)).or_default();
            job.stages.insert(*key);
            job.used.add(&stage.used);
            faults::add(&mut job.faults, &stage.faults);
            let row = &mut job.row;
            row.application_id.clone_from(&application.id);
            (row.uid, row.job_id) = (application.uid, id);
            row.executors += u64::from(here.insert(id));
            row.tasks_running += stage.count(TaskState::Running);
            row.tasks_succeeded += stage.count(TaskState::Succeeded);
            row.tasks_failed += stage.count(TaskState::Failed);
            row.tasks_killed += stage.count(TaskState::Killed);
            row.tasks_lost += stage.count(TaskState::Lost);
            row.task_time_ns = row.task_time_ns.saturating_add(stage.task_time_ns);
            row.execution_memory_peak_bytes = row.execution_memory_peak_bytes.max(stage.peak_bytes);
            row.used_tasks += stage.used_tasks;
            row.used_partial_tasks += stage.used_partial_tasks;
        }
    }

    /// The rows, in the order of application and job.
    #[must_use]
    pub fn rows(self, state: &State) -> Vec<JobRow> {
        let each = self.0.into_values();
        each.map(|job| JobRow {
            stages: job.stages.len() as u64,
            faults: state.figures(&job.faults),
            used: UsedRow::new(&job.used),
            ..job.row
        })
        .collect()
    }
}

impl State {
    /// Adds the jobs of the executors that the filter selects.
    pub fn add_to_jobs(&self, filter: &Filter, jobs: &mut Jobs) {
        self.listing::<()>(filter, |_, executor, _| jobs.add_executor(executor, filter));
    }
}
