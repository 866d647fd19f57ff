//! Facts about task attempts and their activities, and their decoders.

use serde::{Deserialize, Serialize};
use smtt_common::event::Kind;
use smtt_common::event::marker::outcome;

use super::DecodeError;
use super::fields::Fields;

/// See [`Kind::TASK_STARTED`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskStarted {
    /// Id of the task attempt, unique in the application.
    pub task_attempt_id: u64,
    /// Id of the task's stage.
    pub stage_id: u32,
    /// Attempt of the task's stage.
    pub stage_attempt: u32,
    /// Partition that the task computes.
    pub partition: u32,
    /// Number of this attempt among the attempts for the partition.
    pub attempt_number: u32,
    /// Id of the task's job.
    pub job_id: Option<u32>,
}

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The task returned its result.
    Succeeded,
    /// The task failed with an exception.
    Failed,
    /// The task was killed or interrupted.
    Killed,
}

/// See [`Kind::TASK_ENDED`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskEnded {
    /// Id of the task attempt.
    pub task_attempt_id: u64,
    /// Id of the task's stage.
    pub stage_id: u32,
    /// Attempt of the task's stage.
    pub stage_attempt: u32,
    /// How the task ended.
    pub outcome: Outcome,
    /// Peak of the task's execution memory, in bytes.
    pub execution_memory_peak_bytes: u64,
    /// Why the task failed or was killed; empty where it succeeded.
    pub reason: String,
}

/// See [`Kind::TASK_HEAP`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskHeap {
    /// Id of the task attempt.
    pub task_attempt_id: u64,
    /// Bytes that the task's own thread allocated; `None` where the JVM does not report it.
    pub allocated_bytes: Option<u64>,
    /// Time of the JVM's collections while the task ran, in milliseconds; `None` where the JVM does not report it.
    pub collection_ms: Option<u64>,
}

/// See [`Kind::SPAN`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Task attempt that performed the activity.
    pub task_attempt_id: Option<u64>,
    /// Code of [`smtt_common::context::Activity`]; 255 where the code does not fit.
    pub activity: u8,
    /// Start in nanoseconds of the monotonic clock.
    pub start_monotonic_ns: u64,
    /// Duration in nanoseconds.
    pub duration_ns: u64,
    /// RDD that was current.
    pub rdd_id: Option<u32>,
    /// Details of the activity.
    pub name: String,
}

/// See [`Kind::PYTHON_WORKER`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PythonWorker {
    /// Process id of the worker in the JVM's own pid namespace.
    pub pid: u32,
    /// Task that the worker serves; `None` when it returns to the pool.
    pub task_attempt_id: Option<u64>,
    /// Context word for the worker's page faults.
    pub hot: u64,
    /// Stage of the worker's task.
    pub stage_id: Option<u32>,
    /// Attempt of the stage.
    pub stage_attempt: u32,
}

pub(super) fn started(fields: &Fields<'_>) -> Result<TaskStarted, DecodeError> {
    Ok(TaskStarted {
        task_attempt_id: fields.long_id("task_attempt_id")?,
        stage_id: fields.id("stage_id")?,
        stage_attempt: fields.id("stage_attempt")?,
        partition: fields.id("partition")?,
        attempt_number: fields.id("attempt_number")?,
        job_id: fields.optional_id("job_id")?,
    })
}

pub(super) fn ended(fields: &Fields<'_>) -> Result<TaskEnded, DecodeError> {
    Ok(TaskEnded {
        task_attempt_id: fields.long_id("task_attempt_id")?,
        stage_id: fields.id("stage_id")?,
        stage_attempt: fields.id("stage_attempt")?,
        outcome: match fields.word("outcome") {
            outcome::SUCCESS => Outcome::Succeeded,
            outcome::FAILED => Outcome::Failed,
            outcome::KILLED => Outcome::Killed,
            _ => {
                return Err(DecodeError::Invalid {
                    kind: Kind::TASK_ENDED,
                    field: "outcome",
                });
            }
        },
        execution_memory_peak_bytes: fields.word("execution_memory_peak_bytes"),
        reason: fields.text("reason"),
    })
}

pub(super) fn heap(fields: &Fields<'_>) -> Result<TaskHeap, DecodeError> {
    Ok(TaskHeap {
        task_attempt_id: fields.long_id("task_attempt_id")?,
        allocated_bytes: fields.optional("allocated_bytes"),
        collection_ms: fields.optional("collection_ms"),
    })
}

pub(super) fn span(fields: &Fields<'_>) -> Result<Span, DecodeError> {
    Ok(Span {
        task_attempt_id: fields.optional("task_attempt_id"),
        activity: u8::try_from(fields.word("activity")).unwrap_or(u8::MAX),
        start_monotonic_ns: fields.word("start_monotonic_ns"),
        duration_ns: fields.word("duration_ns"),
        rdd_id: fields.optional_id("rdd_id")?,
        name: fields.text("name"),
    })
}

pub(super) fn python_worker(fields: &Fields<'_>) -> Result<PythonWorker, DecodeError> {
    Ok(PythonWorker {
        pid: fields.id("pid")?,
        task_attempt_id: fields.optional("task_attempt_id"),
        hot: fields.word("hot"),
        stage_id: fields.optional_id("stage_id")?,
        // -1 where there is no stage.
        stage_attempt: fields.optional_id("stage_attempt")?.unwrap_or(0),
    })
}
