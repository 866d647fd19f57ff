//! The descriptions of a stage and of a job, and their decoders.

use super::DecodeError;
use super::fields::Fields;

/// See [`Kind::STAGE_DESCRIBED`](smtt_common::event::Kind::STAGE_DESCRIBED).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageDescribed {
    /// Id of the stage.
    pub stage_id: u32,
    /// Attempt of the stage.
    pub stage_attempt: u32,
    /// Tasks of the whole stage on all executors.
    pub tasks: u64,
    /// Id of the job that the stage belongs to.
    pub job_id: Option<u32>,
    /// Id of the last RDD that the stage computes.
    pub rdd_id: Option<u32>,
    /// Name of the stage.
    pub name: String,
    /// Id of the SQL execution that submitted the stage.
    pub sql_execution_id: Option<u64>,
    /// Description of the SQL execution; empty where there is none.
    pub sql_description: String,
    /// Description of the job as the application set it; empty where it set none.
    pub job_description: String,
    /// When the driver submitted the stage, by its clock; `None` where it did not say.
    pub submitted_unix_ms: Option<u64>,
    /// When the stage had ended; `None` while it runs.
    pub completed_unix_ms: Option<u64>,
    /// Why it failed; empty unless it did.
    pub failure: String,
}

impl StageDescribed {
    /// Heap bytes of the texts.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.name.capacity()
            + self.sql_description.capacity()
            + self.job_description.capacity()
            + self.failure.capacity()
    }
}

/// See [`Kind::JOB_DESCRIBED`](smtt_common::event::Kind::JOB_DESCRIBED).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobDescribed {
    /// Id of the job.
    pub job_id: u32,
    /// When it began, by the driver's clock.
    pub started_unix_ms: u64,
    /// When it ended; `None` while it runs.
    pub ended_unix_ms: Option<u64>,
    /// Id of the SQL execution that submitted it.
    pub sql_execution_id: Option<u64>,
    /// Why it failed; empty unless it did.
    pub failure: String,
}

pub(super) fn stage(fields: &Fields<'_>) -> Result<StageDescribed, DecodeError> {
    Ok(StageDescribed {
        stage_id: fields.id("stage_id")?,
        stage_attempt: fields.id("stage_attempt")?,
        tasks: fields.word("tasks"),
        job_id: fields.optional_id("job_id")?,
        rdd_id: fields.optional_id("rdd_id")?,
        name: fields.text("name"),
        sql_execution_id: fields.text("sql_execution_id").parse().ok(),
        sql_description: fields.text("sql_description"),
        job_description: fields.text("job_description"),
        submitted_unix_ms: fields.text("submitted_unix_ms").parse().ok(),
        completed_unix_ms: fields.text("completed_unix_ms").parse().ok(),
        failure: fields.text("failure"),
    })
}

pub(super) fn job(fields: &Fields<'_>) -> Result<JobDescribed, DecodeError> {
    Ok(JobDescribed {
        job_id: fields.id("job_id")?,
        started_unix_ms: fields.long_id("started_unix_ms")?,
        ended_unix_ms: fields.optional("ended_unix_ms"),
        sql_execution_id: fields.optional("sql_execution_id"),
        failure: fields.text("failure"),
    })
}
