//! The job trace of Hadoop's rumen: an object per job, with its tasks and their attempts. docs/TASKS.md lists what
//! stands for what.
//!
//! rumen knows tasks that map and tasks that reduce. Tasks of the last stage of a job with several stages are its
//! reducers, all others its mappers.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use smtt_model::rows::{Series, StageRow, TaskRow, UsedRow};
use smtt_model::sort::small::{Gather as _, sort_by_key};
use smtt_model::state::TaskState;

use super::Known;
use crate::users;

/// Name of the rack, as Hadoop gives it where none is configured.
const RACK: &str = "/default-rack";

/// How a task or a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum Outcome {
    Success,
    Failed,
    Killed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum TaskType {
    Map,
    Reduce,
}

/// A job. What is not known is left out: rumen then has its own word for unknown.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Job {
    #[serde(rename = "jobID")]
    job_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    job_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Outcome>,
    #[serde(skip_serializing_if = "Option::is_none")]
    submit_time: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    launch_time: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finish_time: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    heap_megabytes: Option<i32>,
    total_maps: usize,
    total_reduces: usize,
    map_tasks: Vec<Task>,
    reduce_tasks: Vec<Task>,
    other_tasks: Vec<Task>,
    job_properties: BTreeMap<&'static str, String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Task {
    #[serde(rename = "taskID")]
    task_id: String,
    task_type: TaskType,
    task_status: Outcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finish_time: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_records: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_records: Option<u64>,
    attempts: Vec<Attempt>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Attempt {
    #[serde(rename = "attemptID")]
    attempt_id: String,
    result: Outcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finish_time: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    location: Option<Location>,
    #[serde(skip_serializing_if = "Option::is_none")]
    map_input_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    map_input_records: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    map_output_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    map_output_records: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reduce_shuffle_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reduce_input_records: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reduce_output_records: Option<u64>,
    resource_usage_metrics: Metrics,
    clock_splits: Vec<i32>,
    cpu_usages: Vec<i32>,
    vmem_kbytes: Vec<i32>,
    phys_mem_kbytes: Vec<i32>,
}

#[derive(Debug, Serialize)]
struct Location {
    /// Rack and host.
    layers: [String; 2],
}

/// What an attempt used: milliseconds and bytes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Metrics {
    #[serde(skip_serializing_if = "Option::is_none")]
    cumulative_cpu_usage: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    virtual_memory_usage: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    physical_memory_usage: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    heap_usage: Option<u64>,
}

/// Task attempts that a trace has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeftOut {
    running: u64,
    /// Ended, but their rows have gone or say neither partition nor job.
    unknown: u64,
}

impl LeftOut {
    pub(super) fn words(self) -> Vec<String> {
        let say = |count: u64, why: &str| {
            (count > 0).then(|| format!("not in the trace: {count} task attempts {why}"))
        };
        let words = [
            say(self.running, "that run: export again when they have ended"),
            say(
                self.unknown,
                "whose rows have gone or lack job or partition: [limits] tasks_per_executor keeps more",
            ),
        ];
        words.into_iter().flatten().collect()
    }
}

/// A task: its stage and partition.
type TaskKey = (u32, u32);

/// The jobs of an application in the order of their ids.
pub(super) fn of(known: &Known) -> (Vec<Job>, LeftOut) {
    let mut jobs: BTreeMap<u32, BTreeMap<TaskKey, Vec<&TaskRow>>> = BTreeMap::new();
    let mut listed = 0;
    for row in &known.tasks {
        let stage = |stage: &&StageRow| stage.stage_id == row.stage_id;
        let of_stage = || known.stages.iter().find(stage).and_then(|it| it.job_id);
        let job = row.job_id.or_else(of_stage);
        let ids = row.stage_id.zip(row.partition).zip(row.task_attempt_id);
        if let (Some(job), Some((key, _)), true) = (job, ids, row.state.ended()) {
            jobs.entry(job)
                .or_default()
                .entry(key)
                .or_default()
                .push(row);
            listed += 1;
        }
    }
    let ended =
        |row: &StageRow| row.tasks_succeeded + row.tasks_failed + row.tasks_killed + row.tasks_lost;
    let left_out = LeftOut {
        running: known.stages.iter().map(|row| row.tasks_running).sum(),
        unknown: known
            .stages
            .iter()
            .map(ended)
            .sum::<u64>()
            .saturating_sub(listed),
    };
    let jobs = jobs.into_iter();
    (
        jobs.map(|(id, tasks)| job(known, id, tasks)).collect(),
        left_out,
    )
}

fn job(known: &Known, id: u32, tasks: BTreeMap<TaskKey, Vec<&TaskRow>>) -> Job {
    let row = known.jobs.iter().find(|row| row.job_id == Some(id));
    let who = known.executors.first().map(|row| &row.who);
    let application = who.and_then(|who| who.application_id.as_deref());
    let prefix = format!("{}_{id:04}", tracker(application.unwrap_or_default()));
    let stages: BTreeSet<u32> = tasks.keys().map(|(stage, _)| *stage).gather();
    let last = stages.last().copied().filter(|_| stages.len() > 1);
    let outcome = job_outcome(known, &tasks, &stages);
    let (mut maps, mut reduces) = (Vec::new(), Vec::new());
    for ((stage, _), mut attempts) in tasks {
        let (letter, task_type, list) = match last == Some(stage) {
            true => ('r', TaskType::Reduce, &mut reduces),
            false => ('m', TaskType::Map, &mut maps),
        };
        let name = format!("{prefix}_{letter}_{:06}", list.len());
        sort_by_key(&mut attempts, |row| row.task_attempt_id);
        list.push(task(known, &name, task_type, &attempts));
    }
    let all = || maps.iter().chain(&reduces);
    let attempts = || all().flat_map(|task: &Task| &task.attempts);
    // A job began with its first attempt: unknown where the begin of one is.
    let starts: Option<Vec<u64>> = attempts().map(|it| it.start_time).collect();
    let start = starts.and_then(|all| all.into_iter().min());
    let finish = attempts().filter_map(|it| it.finish_time).max();
    let heap = known.executors.iter().filter_map(|row| row.heap_max_bytes);
    let first = known.executors.first();
    let stages: Vec<String> = stages.iter().map(u32::to_string).collect();
    let properties = [
        ("spark.app.id", application.map(str::to_owned)),
        (
            "spark.app.name",
            first.and_then(|row| row.application_name.clone()),
        ),
        ("spark.stage.ids", Some(stages.join(","))),
    ];
    Job {
        job_id: format!("job_{prefix}"),
        job_name: row.and_then(|row| row.name.clone()),
        user: who.and_then(|who| who.uid).map(users::name),
        outcome,
        submit_time: start,
        launch_time: start,
        finish_time: finish,
        heap_megabytes: heap
            .max()
            .filter(|bytes| *bytes > 0)
            .map(|bytes| int(bytes >> 20)),
        total_maps: maps.len(),
        total_reduces: reduces.len(),
        map_tasks: maps,
        reduce_tasks: reduces,
        other_tasks: Vec::new(),
        job_properties: properties
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .gather(),
    }
}

/// Digits that stand for an application: rumen's ids take nothing else. The digits of ids that the masters of Spark and
/// YARN give, else a hash.
fn tracker(application: &str) -> String {
    let rest = ["application_", "app-", "local-"]
        .iter()
        .find_map(|prefix| application.strip_prefix(prefix));
    let known = rest.filter(|rest| {
        rest.len() <= 64
            && rest.starts_with(|first: char| first.is_ascii_digit())
            && rest
                .chars()
                .all(|letter| letter.is_ascii_digit() || letter == '-' || letter == '_')
    });
    match known {
        Some(rest) => rest.chars().filter(char::is_ascii_digit).collect(),
        None => {
            // FNV-1a.
            let hash = application
                .bytes()
                .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                    (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
                });
            hash.to_string()
        }
    }
}

/// A job succeeded where each partition of its stages did. Else it is not known here how the job ended: an attempt on
/// another worker may have succeeded.
fn job_outcome(
    known: &Known,
    tasks: &BTreeMap<TaskKey, Vec<&TaskRow>>,
    stages: &BTreeSet<u32>,
) -> Option<Outcome> {
    let all_here = |id: &u32| {
        let rows = known.stages.iter().filter(|row| row.stage_id == Some(*id));
        // A further attempt of a stage has only the tasks that were missing.
        let tasks_of_stage = rows.filter_map(|row| row.tasks).max();
        let here = tasks.keys().filter(|(stage, _)| stage == id).count() as u64;
        tasks_of_stage == Some(here)
    };
    let succeeded = |attempts: &Vec<&TaskRow>| status(attempts) == Outcome::Success;
    let is_success = stages.iter().all(all_here) && tasks.values().all(succeeded);
    is_success.then_some(Outcome::Success)
}

/// How a task ended: as its successful attempt, else as its last one.
fn status(attempts: &[&TaskRow]) -> Outcome {
    let results = || attempts.iter().map(|row| result(row.state));
    let success = results().find(|result| *result == Outcome::Success);
    success
        .or_else(|| results().next_back())
        .unwrap_or(Outcome::Failed)
}

/// A lost attempt failed, as Spark has it: its executor died, or its end was not reported.
const fn result(state: TaskState) -> Outcome {
    match state {
        TaskState::Succeeded => Outcome::Success,
        TaskState::Killed => Outcome::Killed,
        _ => Outcome::Failed,
    }
}

/// `name` is the part of the ids that task and attempts share.
fn task(known: &Known, name: &str, task_type: TaskType, rows: &[&TaskRow]) -> Task {
    let attempts: Vec<Attempt> = rows
        .iter()
        .enumerate()
        .map(|(number, row)| attempt(known, format!("attempt_{name}_{number}"), row))
        .collect();
    let starts: Option<Vec<u64>> = attempts.iter().map(|it| it.start_time).collect();
    let succeeded = attempts.iter().find(|it| it.result == Outcome::Success);
    let last = attempts.iter().filter_map(|it| it.finish_time).max();
    let done = rows
        .iter()
        .find(|row| result(row.state) == Outcome::Success);
    let both = |one: fn(&UsedRow) -> Option<u64>, other: fn(&UsedRow) -> Option<u64>| {
        let used = &done?.used;
        Some(one(used)?.saturating_add(other(used)?))
    };
    Task {
        task_id: format!("task_{name}"),
        task_type,
        task_status: status(rows),
        start_time: starts.and_then(|all| all.into_iter().min()),
        finish_time: succeeded.map_or(last, |it| it.finish_time),
        input_bytes: both(|it| it.input_bytes, |it| it.shuffle_read_bytes),
        input_records: both(|it| it.input_records, |it| it.shuffle_read_records),
        output_bytes: both(|it| it.output_bytes, |it| it.shuffle_write_bytes),
        output_records: both(|it| it.output_records, |it| it.shuffle_write_records),
        attempts,
    }
}

/// When the executor began an attempt, in nanoseconds since boot. The accounts begin with it; the report of the start
/// comes later, when the task is deserialised.
fn began(row: &TaskRow) -> Option<u64> {
    let until = row.used_until.as_deref();
    let is_whole = matches!(until, Some("task_end" | "thread_exit")) && !row.used_is_partial;
    let by_accounts = row.end_ns.zip(row.used_duration_ns).filter(|_| is_whole);
    let reported = row.start_ns.filter(|_| !row.duration_is_lower_bound);
    by_accounts
        .map(|(end_ns, duration_ns)| end_ns.saturating_sub(duration_ns))
        .or(reported)
}

fn attempt(known: &Known, attempt_id: String, row: &TaskRow) -> Attempt {
    let series = |name: &str| row.splits.as_ref().and_then(|it| it.series.get(name));
    let unix_ms = |time_ns: u64| {
        let (now_ns, now_ms) = known.now;
        let ago = i128::from(now_ns) - i128::from(time_ns);
        let unix_ns = i128::from(now_ms) * 1_000_000 - ago;
        u64::try_from(unix_ns.div_euclid(1_000_000)).unwrap_or(0)
    };
    let (resident, virtual_) = (series("resident_bytes"), series("virtual_bytes"));
    let at_end = |of: Option<&Series>| of.and_then(|of| of.parts.last().copied());
    let executor = known.executors.iter().find(|it| it.who == row.who);
    let host = executor.and_then(|it| it.host.clone());
    let stage = known.stages.iter().find(|stage| {
        stage.who == row.who
            && stage.stage_id == row.stage_id
            && stage.stage_attempt == row.stage_attempt
    });
    let heap = stage.and_then(|stage| stage.executor_peaks.get("JVMHeapMemory"));
    Attempt {
        attempt_id,
        result: result(row.state),
        start_time: began(row).map(unix_ms),
        finish_time: row.end_ns.map(unix_ms),
        host_name: host.as_ref().map(|host| format!("{RACK}/{host}")),
        location: host.map(|host| Location {
            layers: [RACK.trim_start_matches('/').to_owned(), host],
        }),
        map_input_bytes: row.used.input_bytes,
        map_input_records: row.used.input_records,
        map_output_bytes: row.used.shuffle_write_bytes,
        map_output_records: row.used.shuffle_write_records,
        reduce_shuffle_bytes: row.used.shuffle_read_bytes,
        reduce_input_records: row.used.shuffle_read_records,
        reduce_output_records: row.used.output_records,
        resource_usage_metrics: Metrics {
            cumulative_cpu_usage: row.used.cpu_ns.map(|ns| ns / 1_000_000),
            virtual_memory_usage: at_end(virtual_),
            physical_memory_usage: at_end(resident),
            heap_usage: heap.map(|peak| peak.value),
        },
        clock_splits: series("wall_ns").map_or_else(Vec::new, milliseconds),
        cpu_usages: series("cpu_ns").map_or_else(Vec::new, milliseconds),
        vmem_kbytes: virtual_.map_or_else(Vec::new, kibibytes),
        phys_mem_kbytes: resident.map_or_else(Vec::new, kibibytes),
    }
}

fn int(value: u64) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// Parts in milliseconds whose sum is the total in milliseconds, rounded down.
fn milliseconds(series: &Series) -> Vec<i32> {
    let mut until_ns = 0_u64;
    let part = |part: &u64| {
        let before = until_ns / 1_000_000;
        until_ns = until_ns.saturating_add(*part);
        int(until_ns / 1_000_000 - before)
    };
    series.parts.iter().map(part).collect()
}

fn kibibytes(series: &Series) -> Vec<i32> {
    series.parts.iter().map(|bytes| int(bytes >> 10)).collect()
}

#[cfg(test)]
mod tests;
