//! Spark's metrics of a task.

use super::fields::Fields;
use super::{DecodeError, Fact};

/// See [`Kind::TASK_METRICS`](smtt_common::event::Kind::TASK_METRICS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskMetrics {
    /// Id of the task attempt.
    pub task_attempt_id: u64,
    /// The metrics in the order of [`SPARK_METRICS`].
    pub values: [u64; SPARK_METRICS.len()],
    /// Spark's times in the order of [`SPARK_TIMES`]; `None` where Spark had not read them yet.
    pub times: Option<[u64; SPARK_TIMES.len()]>,
}

/// Names of Spark's metrics of a task, as in [`Kind::TASK_METRICS`](smtt_common::event::Kind::TASK_METRICS).
pub const SPARK_METRICS: [&str; 10] = [
    "input_bytes",
    "input_records",
    "output_bytes",
    "output_records",
    "shuffle_read_bytes",
    "shuffle_read_records",
    "shuffle_write_bytes",
    "shuffle_write_records",
    "memory_spilled_bytes",
    "disk_spilled_bytes",
];

/// Names of Spark's times of a task, as in [`Kind::TASK_METRICS`](smtt_common::event::Kind::TASK_METRICS).
pub const SPARK_TIMES: [&str; 4] = ["cpu_ns", "deserialize_cpu_ns", "run_ms", "collection_ms"];

pub(super) fn task_metrics(fields: &mut Fields<'_>) -> Result<Fact, DecodeError> {
    let times = SPARK_TIMES.map(|name| fields.word(name));
    Ok(Fact::TaskMetrics(Box::new(TaskMetrics {
        task_attempt_id: fields.long_id("task_attempt_id")?,
        values: SPARK_METRICS.map(|name| fields.word(name)),
        times: (!times.contains(&u64::MAX)).then_some(times),
    })))
}
