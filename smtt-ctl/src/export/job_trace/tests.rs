//! A reader that knows rumen's fields only, and what a trace says of rows with known figures.

use serde::Deserialize;
use smtt_model::rows::{ExecutorId, ExecutorRow, JobRow, PeakRow, SplitsRow};

use super::*;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[allow(dead_code)]
struct ReadJob {
    #[serde(rename = "jobID")]
    job_id: String,
    job_name: Option<String>,
    user: Option<String>,
    outcome: Option<String>,
    submit_time: Option<i64>,
    launch_time: Option<i64>,
    finish_time: Option<i64>,
    heap_megabytes: Option<i32>,
    total_maps: usize,
    total_reduces: usize,
    map_tasks: Vec<ReadTask>,
    reduce_tasks: Vec<ReadTask>,
    other_tasks: Vec<ReadTask>,
    job_properties: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ReadTask {
    #[serde(rename = "taskID")]
    task_id: String,
    task_type: String,
    task_status: String,
    start_time: Option<i64>,
    finish_time: Option<i64>,
    input_bytes: Option<i64>,
    input_records: Option<i64>,
    output_bytes: Option<i64>,
    output_records: Option<i64>,
    attempts: Vec<ReadAttempt>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ReadAttempt {
    #[serde(rename = "attemptID")]
    attempt_id: String,
    result: String,
    start_time: Option<i64>,
    finish_time: Option<i64>,
    host_name: Option<String>,
    location: Option<ReadLocation>,
    map_input_bytes: Option<i64>,
    map_input_records: Option<i64>,
    map_output_bytes: Option<i64>,
    map_output_records: Option<i64>,
    reduce_shuffle_bytes: Option<i64>,
    reduce_input_records: Option<i64>,
    reduce_output_records: Option<i64>,
    resource_usage_metrics: ReadMetrics,
    clock_splits: Vec<i32>,
    cpu_usages: Vec<i32>,
    vmem_kbytes: Vec<i32>,
    phys_mem_kbytes: Vec<i32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadLocation {
    layers: Vec<String>,
}

#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ReadMetrics {
    cumulative_cpu_usage: Option<i64>,
    virtual_memory_usage: Option<i64>,
    physical_memory_usage: Option<i64>,
    heap_usage: Option<i64>,
}

const MS: u64 = 1_000_000;
/// The daemon's clock: 1,000 s since boot.
const NOW: (u64, u64) = (1_000_000 * MS, 1_790_000_000_000);

fn who(executor: &str) -> ExecutorId {
    ExecutorId {
        application_id: Some("app-20261121040835-0007".to_owned()),
        executor_id: Some(executor.to_owned()),
        pid: 7,
        uid: Some(0),
        ..ExecutorId::default()
    }
}

fn sum(total: u64) -> Series {
    let mut parts = vec![total / 12; 12];
    parts[11] += total % 12;
    Series {
        parts,
        total: Some(total),
        measured_points: 2,
    }
}

fn state_of(bytes: u64) -> Series {
    Series {
        parts: (1..=12).map(|part| part * bytes).collect(),
        total: None,
        measured_points: 12,
    }
}

/// An attempt of 2.5 s that began 100 s before now.
fn attempt_row(id: u64, stage: u32, partition: u32, state: TaskState) -> TaskRow {
    let cpu_ns = 1_999 * MS + 999_999;
    TaskRow {
        who: who("1"),
        stage_id: Some(stage),
        stage_attempt: Some(0),
        task_attempt_id: Some(id),
        partition: Some(partition),
        attempt_number: Some(0),
        job_id: Some(3),
        state,
        // The report comes when the task is deserialised, and the accounts begin before.
        start_ns: Some(900_700 * MS),
        used_until: Some("task_end".to_owned()),
        used_duration_ns: Some(2_500 * MS),
        end_ns: Some(902_500 * MS),
        used: UsedRow {
            cpu_ns: Some(cpu_ns),
            input_bytes: Some(1_000),
            input_records: Some(100),
            output_bytes: Some(7),
            output_records: Some(1),
            shuffle_read_bytes: Some(20_000),
            shuffle_read_records: Some(200),
            shuffle_write_bytes: Some(300),
            shuffle_write_records: Some(3),
            ..UsedRow::default()
        },
        splits: Some(SplitsRow {
            progress_by: "time".to_owned(),
            series: BTreeMap::from([
                ("wall_ns".to_owned(), sum(2_500 * MS)),
                ("cpu_ns".to_owned(), sum(cpu_ns)),
                ("resident_bytes".to_owned(), state_of(1 << 30)),
                ("virtual_bytes".to_owned(), state_of(4 << 30)),
            ]),
            ..SplitsRow::default()
        }),
        ..TaskRow::default()
    }
}

fn stage_row(id: u32, tasks: u64, succeeded: u64, failed: u64) -> StageRow {
    let peak = PeakRow {
        value: 77 << 20,
        ..PeakRow::default()
    };
    StageRow {
        who: who("1"),
        stage_id: Some(id),
        stage_attempt: Some(0),
        job_id: Some(3),
        tasks: Some(tasks),
        tasks_succeeded: succeeded,
        tasks_failed: failed,
        executor_peaks: BTreeMap::from([("JVMHeapMemory".to_owned(), peak)]),
        ..StageRow::default()
    }
}

/// A job with two map tasks, one of which failed once, and one task of the last stage.
fn known() -> Known {
    Known {
        executors: vec![ExecutorRow {
            who: who("1"),
            application_name: Some("Pi \"2\"".to_owned()),
            host: Some("worker7".to_owned()),
            heap_max_bytes: Some(1 << 30),
            ..ExecutorRow::default()
        }],
        jobs: vec![JobRow {
            job_id: Some(3),
            name: Some("count at Pi.scala:7".to_owned()),
            ..JobRow::default()
        }],
        stages: vec![stage_row(5, 2, 2, 1), stage_row(6, 1, 1, 0)],
        tasks: vec![
            attempt_row(12, 5, 1, TaskState::Succeeded),
            attempt_row(10, 5, 1, TaskState::Failed),
            attempt_row(11, 5, 0, TaskState::Succeeded),
            attempt_row(13, 6, 0, TaskState::Succeeded),
        ],
        now: NOW,
    }
}

fn read(known: &Known) -> (Vec<ReadJob>, LeftOut) {
    let (jobs, left_out) = of(known);
    let read = |job: &Job| {
        let text = serde_json::to_string(job).expect("written");
        serde_json::from_str(&text).expect("only fields that rumen has")
    };
    (jobs.iter().map(read).collect(), left_out)
}

#[test]
fn a_job_has_its_tasks_and_attempts_in_rumens_words() {
    let (jobs, left_out) = read(&known());
    assert_eq!(left_out, LeftOut::default());
    let [job] = jobs.as_slice() else {
        panic!("{jobs:?}");
    };
    assert_eq!(job.job_id, "job_202611210408350007_0003");
    assert_eq!(job.job_name.as_deref(), Some("count at Pi.scala:7"));
    assert_eq!(job.user.as_deref(), Some("root"));
    assert_eq!(job.outcome.as_deref(), Some("SUCCESS"));
    assert_eq!(job.heap_megabytes, Some(1024));
    assert_eq!((job.total_maps, job.total_reduces), (2, 1));
    assert_eq!(job.other_tasks.len(), 0);
    let start = NOW.1 as i64 - 100_000;
    assert_eq!(
        (job.submit_time, job.launch_time),
        (Some(start), Some(start))
    );
    assert_eq!(job.finish_time, Some(start + 2_500));
    assert_eq!(job.job_properties["spark.app.name"], "Pi \"2\"");
    assert_eq!(job.job_properties["spark.stage.ids"], "5,6");
    let ids: Vec<&str> = job
        .map_tasks
        .iter()
        .chain(&job.reduce_tasks)
        .map(|task| task.task_id.as_str())
        .collect();
    let prefix = "task_202611210408350007_0003";
    assert_eq!(
        ids,
        ["m_000000", "m_000001", "r_000000"].map(|id| format!("{prefix}_{id}"))
    );
    let retried = &job.map_tasks[1];
    assert_eq!(
        (retried.task_type.as_str(), retried.task_status.as_str()),
        ("MAP", "SUCCESS")
    );
    assert_eq!(job.reduce_tasks[0].task_type, "REDUCE");
    assert_eq!(
        (retried.start_time, retried.finish_time),
        (Some(start), Some(start + 2_500))
    );
    let results: Vec<(&str, &str)> = retried
        .attempts
        .iter()
        .map(|it| (it.attempt_id.as_str(), it.result.as_str()))
        .collect();
    assert_eq!(
        results,
        [
            ("attempt_202611210408350007_0003_m_000001_0", "FAILED"),
            ("attempt_202611210408350007_0003_m_000001_1", "SUCCESS"),
        ]
    );
}

#[test]
fn an_attempt_has_its_parts_in_milliseconds_and_kibibytes() {
    let (jobs, _) = read(&known());
    let attempt = &jobs[0].map_tasks[0].attempts[0];
    assert_eq!(attempt.clock_splits.len(), 12);
    assert_eq!(attempt.clock_splits.iter().sum::<i32>(), 2_500);
    // Rounded down once, not in each of the parts.
    assert_eq!(attempt.cpu_usages.iter().sum::<i32>(), 1_999);
    assert_eq!(attempt.phys_mem_kbytes[..2], [1 << 20, 2 << 20]);
    assert_eq!(attempt.vmem_kbytes[11], 48 << 20);
    let metrics = ReadMetrics {
        cumulative_cpu_usage: Some(1_999),
        virtual_memory_usage: Some(48 << 30),
        physical_memory_usage: Some(12 << 30),
        heap_usage: Some(77 << 20),
    };
    assert_eq!(attempt.resource_usage_metrics, metrics);
    let moved = [
        attempt.map_input_bytes,
        attempt.map_input_records,
        attempt.map_output_bytes,
        attempt.map_output_records,
        attempt.reduce_shuffle_bytes,
        attempt.reduce_input_records,
        attempt.reduce_output_records,
    ];
    assert_eq!(moved, [1_000, 100, 300, 3, 20_000, 200, 1].map(Some));
    let task = &jobs[0].map_tasks[0];
    assert_eq!(
        (task.input_bytes, task.input_records),
        (Some(21_000), Some(300))
    );
    assert_eq!(
        (task.output_bytes, task.output_records),
        (Some(307), Some(4))
    );
    assert_eq!(attempt.host_name.as_deref(), Some("/default-rack/worker7"));
    let layers = &attempt.location.as_ref().expect("a location").layers;
    assert_eq!(*layers, ["default-rack", "worker7"]);
    let start = NOW.1 as i64 - 100_000;
    assert_eq!(
        (attempt.start_time, attempt.finish_time),
        (Some(start), Some(start + 2_500))
    );
}

#[test]
fn what_is_not_known_is_left_out() {
    let mut known = known();
    known.executors[0].host = None;
    known.executors[0].heap_max_bytes = None;
    known.stages[0].executor_peaks.clear();
    known.stages[1].tasks = Some(2);
    for row in &mut known.tasks {
        row.used = UsedRow::default();
        row.splits = None;
        row.used_until = None;
        row.used_duration_ns = None;
        row.duration_is_lower_bound = row.stage_id == Some(5);
    }
    known.tasks[3].state = TaskState::Lost;
    let (jobs, left_out) = read(&known);
    assert_eq!(left_out, LeftOut::default());
    let job = &jobs[0];
    // A partition of the last stage ran elsewhere, or not yet.
    assert_eq!(job.outcome, None);
    assert_eq!((job.submit_time, job.heap_megabytes), (None, None));
    assert_eq!(job.reduce_tasks[0].task_status, "FAILED");
    let reported = Some(NOW.1 as i64 - 99_300);
    assert_eq!(job.reduce_tasks[0].attempts[0].start_time, reported);
    let attempt = &job.map_tasks[0].attempts[0];
    assert_eq!((attempt.start_time, &attempt.host_name), (None, &None));
    assert!(attempt.finish_time.is_some() && attempt.location.is_none());
    assert_eq!(
        (attempt.map_input_bytes, job.map_tasks[0].input_bytes),
        (None, None)
    );
    assert!(attempt.clock_splits.is_empty() && attempt.vmem_kbytes.is_empty());
    let nothing = ReadMetrics {
        cumulative_cpu_usage: None,
        virtual_memory_usage: None,
        physical_memory_usage: None,
        heap_usage: None,
    };
    assert_eq!(attempt.resource_usage_metrics, nothing);
}

#[test]
fn attempts_that_are_not_in_the_trace_are_counted() {
    let mut known = known();
    known.stages[1].tasks_running = 4;
    known.stages[1].tasks_killed = 2;
    known.tasks[0].partition = None;
    known.tasks[2].state = TaskState::Killed;
    let (jobs, left_out) = read(&known);
    assert_eq!(
        left_out,
        LeftOut {
            running: 4,
            unknown: 3
        }
    );
    assert_eq!(left_out.words().len(), 2);
    assert_eq!(jobs[0].map_tasks[0].task_status, "KILLED");
    assert_eq!(jobs[0].map_tasks[1].task_status, "FAILED");
    assert_eq!(jobs[0].outcome, None);
}

#[test]
fn an_application_has_an_id_of_digits() {
    assert_eq!(tracker("local-1795253445000"), "1795253445000");
    assert_eq!(
        tracker("application_1795253445000_0012"),
        "17952534450000012"
    );
    assert_eq!(tracker("app-20261121040835-0007"), "202611210408350007");
    for foreign in [
        "spark-0123456789abcdef",
        "app-",
        "",
        "app-..",
        "application_1_2_x",
    ] {
        let id = tracker(foreign);
        assert!(
            id.len() > 10 && id.bytes().all(|byte| byte.is_ascii_digit()),
            "{id}"
        );
    }
    // The published check value of this hash.
    assert_eq!(tracker("a"), 0xaf63_dc4c_8601_ec8c_u64.to_string());
}
