//! Consumers of a task's execution memory (writers, sorters, maps), by class.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::sort::small::Gather as _;
use crate::state::{Memory, Task};

/// Execution memory of all consumers of one class in one task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumerRow {
    /// Class of the consumers.
    pub consumer: String,
    /// Bytes that the consumers hold now.
    pub bytes: u64,
    /// Consumers of this class in the task; absent until the task has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instances: Option<u64>,
    /// Sum of the consumers' peaks, in bytes; absent until the task has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<u64>,
    /// Bytes of these consumers that Spark counts into the task's `peakExecutionMemory`; absent until the task has
    /// ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spark_peak_bytes: Option<u64>,
    /// Whether `spark_peak_bytes` is Spark's estimate of the size of objects instead of granted memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spark_peak_is_estimate: bool,
}

/// Bytes of live execution memory, by task attempt and consumer class.
pub(super) fn by_task(memory: &Memory) -> HashMap<u64, BTreeMap<&str, u64>> {
    let mut all: HashMap<u64, BTreeMap<&str, u64>> = HashMap::new();
    for page in memory.pages.values() {
        if let Some(task) = page.task {
            let task = all.entry(task).or_default();
            let sum = task.entry(&page.consumer).or_default();
            *sum = sum.saturating_add(page.size_bytes);
        }
    }
    all
}

/// Bytes of live execution memory, by consumer class.
pub(super) fn by_class(memory: &Memory) -> BTreeMap<String, u64> {
    let mut all: BTreeMap<&str, u64> = BTreeMap::new();
    for page in memory.pages.values() {
        let sum = all.entry(&page.consumer).or_default();
        *sum = sum.saturating_add(page.size_bytes);
    }
    all.into_iter()
        .map(|(consumer, bytes)| (consumer.to_owned(), bytes))
        .gather()
}

/// The consumers of a task: bytes that they hold now, and their figures at the end of the task.
pub(super) fn consumers(task: &Task, live: Option<&BTreeMap<&str, u64>>) -> Vec<ConsumerRow> {
    let mut rows: BTreeMap<&str, ConsumerRow> = BTreeMap::new();
    for (consumer, bytes) in live.into_iter().flatten() {
        rows.entry(consumer).or_default().bytes = *bytes;
    }
    for used in &task.consumers {
        let row = rows.entry(&used.consumer).or_default();
        row.instances = Some(used.instances);
        row.peak_bytes = Some(used.peak_bytes);
        row.spark_peak_bytes = used.counted_bytes;
        row.spark_peak_is_estimate = used.estimated;
    }
    rows.into_iter()
        .map(|(consumer, row)| ConsumerRow {
            consumer: consumer.to_owned(),
            ..row
        })
        .collect()
}
