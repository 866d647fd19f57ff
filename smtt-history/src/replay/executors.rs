//! Executors, the driver among them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::stages::peaks;
use super::{ENTRY, LIVE, Replay};
use crate::event::{
    BlockManagerAdded, Exclusion, ExecutorAdded, ExecutorMetricsUpdate, ExecutorRemoved, Peaks,
    StageExecutorMetrics,
};
use crate::json::{date, date_or_none, present};
use crate::out::Kind;

/// Longest id of an executor, in bytes.
pub(super) const LONGEST_ID: usize = 256;
/// The driver's id.
const DRIVER: &str = "driver";
/// Bytes of a stage in which an executor is excluded, about.
const EXCLUDED: usize = 32;

#[derive(Clone, Debug, Default)]
pub(super) struct Executor {
    pub host_port: Option<String>,
    host: Option<String>,
    pub is_live: bool,
    cores: i32,
    add_time: i64,
    removed: Option<(i64, String)>,
    pub rdd_blocks: i64,
    pub memory_used: i64,
    pub disk_used: i64,
    max_tasks: i32,
    pub max_memory: i64,
    pub total: i64,
    pub active: i64,
    pub completed: i64,
    pub failed: i64,
    pub duration: i64,
    pub gc: i64,
    pub input: i64,
    pub shuffle_read: i64,
    pub shuffle_write: i64,
    is_excluded: bool,
    pub excluded_in: BTreeSet<i32>,
    pub logs: BTreeMap<String, String>,
    pub attributes: BTreeMap<String, String>,
    resources: BTreeMap<String, Value>,
    profile: i32,
    pub memory: Option<Memory>,
    pub peaks: Peaks,
    /// RDDs of which it had blocks.
    pub rdds: BTreeSet<i32>,
    /// What its description takes of the replay's memory.
    bytes: usize,
}

/// Storage memory on and off the heap.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Memory {
    pub on_heap_used: i64,
    pub off_heap_used: i64,
    pub on_heap: i64,
    pub off_heap: i64,
}

impl Executor {
    pub(super) fn json(&self, id: &str) -> Value {
        present(json!({
            "id": id,
            "hostPort": self.host_port.as_ref().or(self.host.as_ref()),
            "isActive": self.is_live,
            "rddBlocks": self.rdd_blocks,
            "memoryUsed": self.memory_used,
            "diskUsed": self.disk_used,
            "totalCores": self.cores,
            "maxTasks": self.max_tasks,
            "activeTasks": self.active,
            "failedTasks": self.failed,
            "completedTasks": self.completed,
            "totalTasks": self.total,
            "totalDuration": self.duration,
            "totalGCTime": self.gc,
            "totalInputBytes": self.input,
            "totalShuffleRead": self.shuffle_read,
            "totalShuffleWrite": self.shuffle_write,
            "isBlacklisted": self.is_excluded,
            "maxMemory": self.max_memory,
            "addTime": date(self.add_time),
            "removeTime": date_or_none(self.removed.as_ref().map(|(time, _)| *time)),
            "removeReason": self.removed.as_ref().map(|(_, reason)| reason),
            "executorLogs": self.logs,
            "memoryMetrics": self.memory.map(|memory| json!({
                "usedOnHeapStorageMemory": memory.on_heap_used,
                "usedOffHeapStorageMemory": memory.off_heap_used,
                "totalOnHeapStorageMemory": memory.on_heap,
                "totalOffHeapStorageMemory": memory.off_heap,
            })),
            "blacklistedInStages": self.excluded_in,
            "peakMemoryMetrics": peaks(&self.peaks),
            "attributes": self.attributes,
            "resources": self.resources,
            "resourceProfileId": self.profile,
            "isExcluded": self.is_excluded,
            "excludedInStages": self.excluded_in,
        }))
    }

    /// Bytes that it takes of the replay's memory.
    fn held(&self, id: &str) -> usize {
        ENTRY + id.len() + self.bytes + EXCLUDED * self.excluded_in.len()
    }

    fn host(&self) -> &str {
        let address = self.host_port.as_deref().unwrap_or_default();
        self.host
            .as_deref()
            .unwrap_or_else(|| address.split(':').next().unwrap_or_default())
    }

    /// Adds to what its blocks take; sums never fall below zero, as in Spark.
    pub(super) fn store(&mut self, memory: i64, disk: i64, is_off_heap: bool) {
        if let Some(metrics) = &mut self.memory {
            let used = if is_off_heap {
                &mut metrics.off_heap_used
            } else {
                &mut metrics.on_heap_used
            };
            *used = added(*used, memory);
        }
        self.memory_used = added(self.memory_used, memory);
        self.disk_used = added(self.disk_used, disk);
    }
}

/// A sum that does not fall below zero.
pub(super) fn added(old: i64, delta: i64) -> i64 {
    old.saturating_add(delta).max(0)
}

impl Replay {
    /// An executor that was not removed.
    pub(super) fn live_executor(&mut self, id: &str) -> Option<&mut Executor> {
        self.executors
            .get_mut(id)
            .filter(|executor| executor.is_live)
    }

    /// A live executor, made where it is new.
    fn executor(&mut self, id: &str, time: i64) -> Option<&mut Executor> {
        let is_known = self
            .executors
            .get(id)
            .is_some_and(|executor| executor.is_live);
        if !is_known {
            if self.executors.len() >= LIVE
                || id.len() > LONGEST_ID
                || !self.held.take(ENTRY + id.len())
            {
                self.drop_one("executors");
                return None;
            }
            let executor = Executor {
                is_live: true,
                add_time: time,
                ..Executor::default()
            };
            // An executor that was removed under this id makes room for the new one.
            if let Some(old) = self.executors.insert(id.to_owned(), executor) {
                self.held.give(old.held(id));
            }
        }
        self.executors.get_mut(id)
    }

    /// `bytes` are those of the line.
    pub(super) fn on_executor_added(&mut self, event: ExecutorAdded<'_>, bytes: usize) {
        // Values of JSON take more than their text.
        let bytes = 8 * bytes;
        if !self.held.take(bytes) {
            self.drop_one("executors");
            return;
        }
        let info = event.info;
        let max_tasks = self.application.max_tasks(info.profile, info.cores);
        let mut unused = bytes;
        if let Some(executor) = self.executor(&event.id, event.time) {
            unused = std::mem::replace(&mut executor.bytes, bytes);
            executor.host = Some(info.host.to_string());
            executor.cores = info.cores;
            executor.max_tasks = max_tasks;
            executor.logs = info.logs;
            executor.resources = info.resources;
            executor.attributes = info.attributes;
            executor.profile = info.profile;
        }
        self.held.give(unused);
    }

    pub(super) fn on_block_manager_added(&mut self, event: &BlockManagerAdded<'_>) {
        if let Some(executor) = self.executor(&event.id.executor, event.time) {
            executor.host_port = Some(format!("{}:{}", &*event.id.host, event.id.port));
            if let Some(on_heap) = event.on_heap {
                executor.memory = Some(Memory {
                    on_heap,
                    off_heap: event.off_heap.unwrap_or_default(),
                    ..Memory::default()
                });
            }
            executor.max_memory = event.memory;
        }
    }

    pub(super) fn on_executor_removed(&mut self, event: &ExecutorRemoved<'_>) {
        let Some(executor) = self.live_executor(&event.id) else {
            return;
        };
        executor.is_live = false;
        executor.removed = Some((event.time, event.reason.kept()));
        let json = executor.json(&event.id);
        let rdds = std::mem::take(&mut executor.rdds);
        self.out.meta(Kind::Executor, &event.id, &json);
        self.forget_blocks(&event.id, &rdds);
        self.removed.insert((event.time, event.id.to_string()));
        self.release_executors();
    }

    /// Hands removed executors to the tables that nothing changes any more. As in Spark, a stage that began before the
    /// removal may still raise their peaks.
    pub(super) fn release_executors(&mut self) {
        if self.removed.is_empty() || !self.visit(self.stages.len()) {
            return;
        }
        let begun = self.stages.values().map(|it| it.submission.unwrap_or(0));
        let first = begun.min().unwrap_or(i64::MAX);
        while let Some((time, _)) = self.removed.first()
            && *time <= first
        {
            let Some((time, id)) = self.removed.pop_first() else {
                return;
            };
            // An executor with the same id may have come since.
            let is_same =
                |it: &Executor| !it.is_live && it.removed.as_ref().is_some_and(|it| it.0 == time);
            if self.executors.get(&id).is_some_and(is_same)
                && let Some(executor) = self.executors.remove(&id)
            {
                self.held.give(executor.held(&id));
                self.out.meta(Kind::Executor, &id, &executor.json(&id));
            }
        }
    }

    /// A stage in which an executor was excluded is over. As in Spark, one that was removed before keeps the stage.
    pub(super) fn end_exclusion(&mut self, id: &str, stage: i32) {
        if let Some(executor) = self.live_executor(id)
            && executor.excluded_in.remove(&stage)
        {
            self.held.give(EXCLUDED);
        }
    }

    pub(super) fn on_exclusion(&mut self, event: &Exclusion, is_excluded: bool) {
        if !self.visit(self.executors.len()) {
            return;
        }
        for (id, executor) in &mut self.executors {
            let is_meant = match (&event.executor, &event.host) {
                (Some(executor), _) => executor == id,
                // Spark leaves the driver out.
                (None, Some(host)) => executor.host() == host && id != DRIVER,
                (None, None) => false,
            };
            if is_meant && executor.is_live {
                executor.is_excluded = is_excluded;
            }
        }
    }

    pub(super) fn on_stage_exclusion(&mut self, event: &Exclusion) {
        let Some(stage_id) = event.stage else { return };
        if !self.visit(self.executors.len()) {
            return;
        }
        let key = (stage_id, event.attempt.unwrap_or_default());
        let meant: Vec<String> = match (&event.executor, &event.host) {
            (Some(executor), _) => vec![executor.clone()],
            (None, Some(host)) => self
                .executors
                .iter()
                .filter(|(id, executor)| {
                    executor.is_live && executor.host() == host && id.as_str() != DRIVER
                })
                .map(|(id, _)| id.clone())
                .collect(),
            (None, None) => Vec::new(),
        };
        for id in meant {
            if let Some(stage) = self.stages.get_mut(&key) {
                match stage.on_executor(&id, &mut self.held) {
                    Some(executor) => executor.is_excluded = true,
                    None => self.drop_one("parts of stages and jobs"),
                }
            }
            let executor = self.executors.get_mut(&id);
            if let Some(executor) = executor.filter(|it| it.is_live)
                && !executor.excluded_in.contains(&stage_id)
            {
                if self.held.take(EXCLUDED) {
                    executor.excluded_in.insert(stage_id);
                } else {
                    self.drop_one("parts of stages and jobs");
                }
            }
        }
    }

    pub(super) fn on_stage_executor_metrics(&mut self, event: &StageExecutorMetrics<'_>) {
        if let Some(executor) = self.executors.get_mut(&*event.executor) {
            executor.peaks.raise(&event.peaks);
        }
        self.raise_stage((event.stage, event.attempt), &event.executor, &event.peaks);
    }

    pub(super) fn on_executor_metrics(&mut self, event: &ExecutorMetricsUpdate<'_>) {
        for update in &event.updates {
            if let Some(executor) = self.live_executor(&event.executor) {
                executor.peaks.raise(&update.peaks);
            }
            self.raise_stage(
                (update.stage, update.attempt),
                &event.executor,
                &update.peaks,
            );
        }
    }

    fn raise_stage(&mut self, key: (i32, i32), executor: &str, peaks: &Peaks) {
        if let Some(stage) = self.stages.get_mut(&key) {
            stage.peaks.raise(peaks);
            match stage.on_executor(executor, &mut self.held) {
                Some(executor) => {
                    executor.peaks.raise(peaks);
                }
                None => self.drop_one("parts of stages and jobs"),
            }
        }
    }
}
