//! Requests for shuffle blocks.

use super::fields::Fields;
use super::{DecodeError, Fact};

/// See [`Kind::SHUFFLE_FETCHED`](smtt_common::event::Kind::SHUFFLE_FETCHED).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Id of the task attempt.
    pub task_attempt_id: u64,
    /// Begin by the JVM's monotonic clock; zero for a sum.
    pub start_monotonic_ns: u64,
    /// Time until the last block; zero for a sum.
    pub duration_ns: u64,
    /// Requests: 1, or how many the fact sums up.
    pub requests: u64,
    /// Requested blocks.
    pub blocks: u64,
    /// Blocks that arrived.
    pub arrived_blocks: u64,
    /// Blocks that failed.
    pub failed_blocks: u64,
    /// Bytes of the blocks that arrived.
    pub arrived_bytes: u64,
    /// Host and port of the destination; empty for a sum.
    pub address: String,
    /// Spark's id of the destination; empty for a sum.
    pub executor_id: String,
}

pub(super) fn fetched(fields: &mut Fields<'_>) -> Result<Fact, DecodeError> {
    Ok(Fact::Fetched(Box::new(Fetched {
        task_attempt_id: fields.long_id("task_attempt_id")?,
        start_monotonic_ns: fields.word("start_monotonic_ns"),
        duration_ns: fields.word("duration_ns"),
        requests: fields.word("requests"),
        blocks: fields.word("blocks"),
        arrived_blocks: fields.word("arrived_blocks"),
        failed_blocks: fields.word("failed_blocks"),
        arrived_bytes: fields.word("arrived_bytes"),
        address: fields.text("address"),
        executor_id: fields.text("executor_id"),
    })))
}
