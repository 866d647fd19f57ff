//! The description of a stage, and its decoder.

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
}

impl StageDescribed {
    /// Heap bytes of the texts.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.name.capacity() + self.sql_description.capacity() + self.job_description.capacity()
    }
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
    })
}
