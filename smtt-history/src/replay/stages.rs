//! Stages, and what each executor did for them.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde_json::value::RawValue;
use serde_json::{Value, json};
use smtt_store::history::columns::METRICS;

use super::tasks::{LONGEST_VALUE, user_accumulators};
use super::{ENTRY, LIVE, LiveBytes, Replay};
use crate::event::metrics::at;
use crate::event::{LONGEST_TEXT, Peaks, StageCompleted, StageInfo, StageSubmitted};
use crate::json::{date, date_or_none, object, present};
use crate::out::{Kind, Out};

/// State of a stage, by Spark's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Status {
    #[default]
    Pending,
    Active,
    Complete,
    Failed,
    Skipped,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Stage {
    name: String,
    details: String,
    pub tasks: i32,
    pub submission: Option<i64>,
    completion: Option<i64>,
    failure: Option<String>,
    rdds: Vec<i32>,
    accumulators: Vec<Value>,
    profile: i32,
    push: bool,
    mergers: i32,
    pub status: Status,
    pub jobs: BTreeSet<i32>,
    description: Option<String>,
    pool: Option<String>,
    pub active: i64,
    pub completed: i64,
    pub failed: i64,
    pub killed: i64,
    pub indices: HashSet<i32>,
    pub reasons: BTreeMap<String, u64>,
    pub first_launch: Option<i64>,
    pub metrics: Sums,
    pub executors: BTreeMap<String, OnExecutor>,
    pub peaks: Peaks,
    pub speculative: Speculative,
    /// What its description takes of the replay's memory, and what was added since.
    described: usize,
    pub grown: usize,
}

/// Sums of the tasks' metrics.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sums(pub [i64; METRICS]);

impl Default for Sums {
    fn default() -> Self {
        Self([0; METRICS])
    }
}

impl Sums {
    pub(super) fn add(&mut self, values: &[i64; METRICS]) {
        for (sum, value) in self.0.iter_mut().zip(values) {
            *sum = sum.wrapping_add(*value);
        }
    }
}

/// Counts of speculative task attempts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Speculative {
    pub tasks: i64,
    pub active: i64,
    pub completed: i64,
    pub failed: i64,
    pub killed: i64,
}

/// What one executor did for a stage.
#[derive(Clone, Debug, Default)]
pub(super) struct OnExecutor {
    pub time: i64,
    pub succeeded: i64,
    pub failed: i64,
    pub killed: i64,
    pub is_excluded: bool,
    pub metrics: Sums,
    pub peaks: Peaks,
}

impl OnExecutor {
    fn json(&self) -> Value {
        let sum = |at: usize| self.metrics.0[at];
        present(json!({
            "taskTime": self.time,
            "failedTasks": self.failed,
            "succeededTasks": self.succeeded,
            "killedTasks": self.killed,
            "inputBytes": sum(at::INPUT_BYTES),
            "inputRecords": sum(at::INPUT_BYTES + 1),
            "outputBytes": sum(at::INPUT_BYTES + 2),
            "outputRecords": sum(at::INPUT_BYTES + 3),
            "shuffleRead": sum(at::REMOTE_BYTES).wrapping_add(sum(at::LOCAL_BYTES)),
            "shuffleReadRecords": sum(at::READ_RECORDS),
            "shuffleWrite": sum(at::WRITE_BYTES),
            "shuffleWriteRecords": sum(at::WRITE_RECORDS),
            "memoryBytesSpilled": sum(at::MEMORY_SPILLED),
            "diskBytesSpilled": sum(at::DISK_SPILLED),
            "isBlacklistedForStage": self.is_excluded,
            "peakMemoryMetrics": peaks(&self.peaks),
            "isExcludedForStage": self.is_excluded,
        }))
    }
}

/// Peaks by Spark's names, or nothing where none is known. Older versions of Spark know fewer.
pub(super) fn peaks(peaks: &Peaks) -> Value {
    if !peaks.is_set() {
        return Value::Null;
    }
    let names = smtt_store::history::columns::PEAKS.iter();
    object(
        names
            .zip(peaks.0)
            .filter_map(|((_, name), value)| Some((*name, Value::from(value?)))),
    )
}

/// Bytes of a stage's description in memory, about.
fn size(info: &StageInfo<'_>) -> usize {
    let failure = info.failure.as_ref().map_or(0, |text| text.len());
    let texts = [info.name.len(), info.details.len(), failure];
    let texts: usize = texts.into_iter().map(|len| len.min(LONGEST_TEXT)).sum();
    // Updates and values are shortened; each accumulator becomes an object of JSON.
    let accumulators = info.accumulables.iter().map(|it| {
        let raw = |raw: Option<&RawValue>| raw.map_or(0, |raw| raw.get().len().min(LONGEST_VALUE));
        let name = it.name.as_ref().map_or(0, |name| name.len());
        ENTRY / 2 + name + raw(it.update) + raw(it.value)
    });
    ENTRY + texts + 4 * info.rdds.len() + accumulators.sum::<usize>()
}

impl Stage {
    fn describe(&mut self, info: &StageInfo<'_>, bytes: usize) {
        self.described = bytes;
        self.name = info.name.kept();
        self.details = info.details.kept();
        self.tasks = info.tasks;
        self.submission = info.submission;
        self.completion = info.completion;
        self.failure = info.failure.as_ref().map(crate::event::Text::kept);
        self.rdds = info.rdds.iter().map(|rdd| rdd.id).collect();
        self.accumulators = user_accumulators(&info.accumulables);
        self.profile = info.profile;
        self.push = info.push;
        self.mergers = info.mergers;
    }

    /// What an executor did for the stage; `None` where there is no room for another executor.
    pub(super) fn on_executor(
        &mut self,
        id: &str,
        held: &mut LiveBytes,
    ) -> Option<&mut OnExecutor> {
        if !self.executors.contains_key(id) {
            let bytes = ENTRY + id.len();
            if !held.take(bytes) {
                return None;
            }
            self.grown += bytes;
            self.executors.insert(id.to_owned(), OnExecutor::default());
        }
        self.executors.get_mut(id)
    }

    fn json(&self, (id, attempt): (i32, i32)) -> Value {
        let sum = |at: usize| self.metrics.0[at];
        let read = |at: usize| sum(at::REMOTE_BLOCKS + at);
        let head = json!({
            "status": match self.status {
                Status::Pending => "PENDING",
                Status::Active => "ACTIVE",
                Status::Complete => "COMPLETE",
                Status::Failed => "FAILED",
                Status::Skipped => "SKIPPED",
            },
            "stageId": id,
            "attemptId": attempt,
            "numTasks": self.tasks,
            "numActiveTasks": self.active,
            "numCompleteTasks": self.completed,
            "numFailedTasks": self.failed,
            "numKilledTasks": self.killed,
            "numCompletedIndices": self.indices.len(),
            "submissionTime": date_or_none(self.submission),
            "firstTaskLaunchedTime": self.first_launch.map_or(Value::Null, date),
            "completionTime": date_or_none(self.completion),
            "failureReason": self.failure,
            "executorDeserializeTime": sum(0),
            "executorDeserializeCpuTime": sum(1),
            "executorRunTime": sum(2),
            "executorCpuTime": sum(3),
            "resultSize": sum(4),
            "jvmGcTime": sum(5),
            "resultSerializationTime": sum(6),
            "memoryBytesSpilled": sum(7),
            "diskBytesSpilled": sum(8),
            "peakExecutionMemory": sum(9),
            "inputBytes": sum(10),
            "inputRecords": sum(11),
            "outputBytes": sum(12),
            "outputRecords": sum(13),
        });
        let middle = json!({
            "shuffleRemoteBlocksFetched": read(0),
            "shuffleLocalBlocksFetched": read(1),
            "shuffleFetchWaitTime": read(2),
            "shuffleRemoteBytesRead": read(3),
            "shuffleRemoteBytesReadToDisk": read(4),
            "shuffleLocalBytesRead": read(5),
            "shuffleReadBytes": read(5).wrapping_add(read(3)),
            "shuffleReadRecords": read(6),
            "shuffleCorruptMergedBlockChunks": read(8),
            "shuffleMergedFetchFallbackCount": read(9),
            "shuffleMergedRemoteBlocksFetched": read(10),
            "shuffleMergedLocalBlocksFetched": read(11),
            "shuffleMergedRemoteChunksFetched": read(12),
            "shuffleMergedLocalChunksFetched": read(13),
            "shuffleMergedRemoteBytesRead": read(14),
            "shuffleMergedLocalBytesRead": read(15),
            "shuffleRemoteReqsDuration": read(7),
            "shuffleMergedRemoteReqsDuration": read(16),
            "shuffleWriteBytes": sum(31),
            "shuffleWriteTime": sum(32),
            "shuffleWriteRecords": sum(33),
        });
        let tail = json!({
            "name": self.name,
            "description": self.description,
            "details": self.details,
            "schedulingPool": self.pool.as_deref().unwrap_or("default"),
            "rddIds": self.rdds,
            "accumulatorUpdates": self.accumulators,
            "killedTasksSummary": self.reasons,
            "resourceProfileId": self.profile,
            "peakExecutorMetrics": peaks(&self.peaks),
            "isShufflePushEnabled": self.push,
            "shuffleMergersCount": self.mergers,
        });
        let parts = [head, middle, tail]
            .into_iter()
            .flat_map(|part| match part {
                Value::Object(fields) => fields,
                _ => serde_json::Map::new(),
            });
        present(object(parts))
    }

    fn speculation(&self) -> Value {
        let counts = &self.speculative;
        if counts.tasks == 0 {
            return Value::Null;
        }
        json!({
            "numTasks": counts.tasks,
            "numActiveTasks": counts.active,
            "numCompletedTasks": counts.completed,
            "numFailedTasks": counts.failed,
            "numKilledTasks": counts.killed,
        })
    }
}

/// Hands a stage and what its executors did to the tables.
pub(super) fn put(out: &mut Out, key: (i32, i32), stage: &Stage) {
    let id = format!("{}.{}", key.0, key.1);
    out.meta(Kind::Stage, &id, &stage.json(key));
    let executors = stage.executors.iter();
    let details = present(json!({
        "executorSummary": object(executors.map(|(id, executor)| (id.clone(), executor.json()))),
        "speculationSummary": stage.speculation(),
    }));
    // A job may name a stage that has run and skip it. As in Spark, what executors did for it stays.
    if stage.executors.is_empty() && out.has(Kind::StageDetails, &id) {
        return;
    }
    out.meta(Kind::StageDetails, &id, &details);
}

impl Replay {
    /// The live stage of an info, made where it is new; `None` where there is no place.
    pub(super) fn stage(&mut self, info: &StageInfo<'_>) -> Option<&mut Stage> {
        let key = (info.id, info.attempt);
        if self.stages.len() >= LIVE && !self.stages.contains_key(&key) {
            self.drop_one("stages");
            return None;
        }
        let known = self.stages.get(&key).map_or(0, |stage| stage.described);
        let bytes = size(info);
        if !self.held.take(bytes) {
            self.drop_one("stages");
            return None;
        }
        self.held.give(known);
        let stage = self.stages.entry(key).or_default();
        stage.describe(info, bytes);
        Some(stage)
    }

    pub(super) fn on_stage_submitted(&mut self, event: &StageSubmitted<'_>) {
        self.sql.on_stage_submitted(&event.info);
        self.follow_rdds(&event.info);
        self.put_chain(&event.info);
        let id = event.info.id;
        let named: BTreeSet<i32> = self
            .stages
            .get(&(id, event.info.attempt))
            .map(|stage| stage.jobs.clone())
            .unwrap_or_default();
        // A later attempt was not named when its jobs began, nor was a stage that another job has skipped since.
        let jobs: BTreeSet<i32> = if named.is_empty() || self.awaited.contains(&id) {
            self.live_jobs_with(id)
        } else {
            named
                .iter()
                .copied()
                .filter(|job| self.jobs.get(job).is_some_and(super::Job::is_live))
                .collect()
        };
        for job in named.difference(&jobs) {
            if let Some(job) = self.jobs.get_mut(job) {
                job.live_stages = job.live_stages.saturating_sub(1);
            }
        }
        let properties = event.properties.as_ref();
        let text = |text: Option<&crate::event::Text<'_>>| text.map(crate::event::Text::kept);
        let Some(stage) = self.stage(&event.info) else {
            return;
        };
        stage.status = Status::Active;
        stage.pool = text(properties.and_then(|it| it.pool.as_ref()));
        stage.description = text(properties.and_then(|it| it.description.as_ref()));
        stage.jobs.clone_from(&jobs);
        self.jobs_of(&jobs, |job| {
            job.completed_stages.remove(&id);
            job.active_stages += 1;
        });
        self.jobs_of(&jobs.difference(&named).copied().collect(), |job| {
            job.live_stages += 1;
        });
        for job in named.difference(&jobs) {
            self.settle_job(*job);
        }
    }

    /// Live jobs that have a stage; none where too much was searched already.
    fn live_jobs_with(&mut self, stage: i32) -> BTreeSet<i32> {
        if !self.visit(self.jobs.len()) {
            return BTreeSet::new();
        }
        let stages = self.jobs.values().map(|job| job.stage_ids.len()).sum();
        if !self.visit(stages) {
            return BTreeSet::new();
        }
        let live = self.jobs.iter().filter(|(_, job)| job.is_live());
        live.filter(|(_, job)| job.stage_ids.contains(&stage))
            .map(|(job, _)| *job)
            .collect()
    }

    pub(super) fn on_stage_completed(&mut self, event: &StageCompleted<'_>) {
        let info = &event.info;
        let key = (info.id, info.attempt);
        let Some(stage) = self.stages.get_mut(&key) else {
            return;
        };
        let bytes = size(info);
        if self.held.take(bytes) {
            self.held.give(stage.described);
            stage.describe(info, bytes);
        } else {
            *self.dropped.entry("ends of stages").or_default() += 1;
        }
        stage.status = match (&info.failure, info.submission) {
            (Some(_), _) => Status::Failed,
            (None, Some(_)) => Status::Complete,
            (None, None) => Status::Skipped,
        };
        let (status, jobs) = (stage.status, stage.jobs.clone());
        let is_over = stage.active == 0;
        let excluded: Vec<String> = stage
            .executors
            .iter()
            .filter(|(_, executor)| executor.is_excluded)
            .map(|(id, _)| id.clone())
            .collect();
        self.jobs_of(&jobs, |job| match status {
            Status::Complete => {
                job.completed_stages.insert(info.id);
                job.active_stages -= 1;
            }
            Status::Skipped => {
                job.skip(info.id, info.tasks);
                job.active_stages -= 1;
            }
            _ => {
                job.failed_stages += 1;
                job.active_stages -= 1;
            }
        });
        for id in excluded {
            self.end_exclusion(&id, info.id);
        }
        if is_over {
            self.remove_stage(key);
        }
    }

    /// Hands a stage to the tables that nothing changes any more.
    pub(super) fn remove_stage(&mut self, key: (i32, i32)) {
        let Some(stage) = self.stages.remove(&key) else {
            return;
        };
        self.held.give(stage.described + stage.grown);
        put(&mut self.out, key, &stage);
        self.jobs_of(&stage.jobs, |job| {
            job.live_stages = job.live_stages.saturating_sub(1)
        });
        for job in stage.jobs {
            self.settle_job(job);
        }
        self.release_executors();
    }
}
