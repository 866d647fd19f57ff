//! One task, stages in quantiles, jobs and failed tasks.

use serde_json::Value;
use smtt_common::event::used::{ACCOUNTS, CPU_NS, HELPER_SHIFT, Helper, TaskUsed};
use smtt_model::decode::{Fact, StageDescribed};
use smtt_model::state::TaskReading;

use super::{Daemon, KEY};

const S: u64 = 1_000_000_000;

/// The small job; its second task runs and was read for twelve seconds, its first one has ended.
fn daemon() -> Daemon {
    let daemon = Daemon::with_job();
    let mut accounts = [0; ACCOUNTS];
    for second in 1..=12 {
        accounts[CPU_NS] = second.min(6) * S;
        let reading = TaskReading {
            task_attempt_id: 2,
            accounts,
            present: 1 << CPU_NS,
            duration_ns: second * S,
            resident_bytes: Some(second << 30),
            ..TaskReading::default()
        };
        daemon.shared.state().tasks_read(KEY, &[reading]);
    }
    let used = TaskUsed {
        task_attempt_id: 1,
        accounts,
        duration_ns: S / 10,
        present: 1 << CPU_NS,
        flags: 0,
    };
    // Another thread worked for the second task, and has ended.
    let helper = TaskUsed {
        task_attempt_id: 2,
        flags: u32::from(Helper::PYTHON_WRITER.0) << HELPER_SHIFT,
        ..used
    };
    let heap = Fact::HelperEnded {
        task_attempt_id: 2,
        helper: Helper::PYTHON_WRITER,
        allocated_bytes: Some(3 << 20),
    };
    let facts = [used, helper].map(|used| Fact::TaskUsed(Box::new(used)));
    for fact in facts.into_iter().chain([heap]) {
        daemon.apply(S, 1000, fact);
    }
    daemon
}

fn said(daemon: &Daemon, arguments: &[&str]) -> String {
    let output = daemon.ctl(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_task_is_shown_in_parts() {
    let daemon = daemon();
    let running = said(&daemon, &["task", "2"]);
    for part in [
        "task 2 of app-20260101120000-0001, executor 0",
        "stage 3.0, partition 1, attempt 0: running",
        "12 parts of equal time",
        "until now",
        "CPU                ██████             6.0 s        0 ns       1.0 s",
        "python writer      CPU 6.0 s, wait -, heap allocated 3.0 MiB, page faults -",
    ] {
        assert!(running.contains(part), "{part}: {running}");
    }
    let ended = said(&daemon, &["task", "1"]);
    assert!(
        ended.contains("succeeded") && ended.contains("until task_end"),
        "{ended}"
    );
    assert!(!ended.contains("helpers"), "{ended}");
    assert!(
        ended.contains("............"),
        "nothing was read within: {ended}"
    );
    let json = said(&daemon, &["task", "2", "--json"]);
    let rows: Value = serde_json::from_str(&json).expect("JSON");
    let splits = &rows[0]["splits"];
    assert_eq!(splits["series"]["cpu_ns"]["total"], 6 * S, "{splits}");
    assert_eq!(splits["progress_by"], "time");
    let helper = &rows[0]["helpers"][0];
    assert_eq!(
        (&helper["name"], &helper["threads"], &helper["cpu_ns"]),
        (&"python writer".into(), &1.into(), &(6 * S).into())
    );
    let list = said(&daemon, &["tasks", "--json"]);
    assert!(
        !list.contains("splits") && list.contains("\"now\""),
        "{list}"
    );
    let none = daemon.ctl(&["task", "77"]);
    assert_eq!(none.status.code(), Some(1), "{none:?}");
    let message = String::from_utf8_lossy(&none.stderr);
    assert!(
        message.contains("no task attempt 77 on this worker"),
        "{message}"
    );
}

#[test]
fn stages_jobs_and_failed_tasks_are_listed() {
    let daemon = daemon();
    let stages = said(&daemon, &["stages", "--summary"]);
    for part in [
        "stage 3.0 of app-20260101120000-0001: map",
        "tasks: 1 succeeded, 0 failed, 0 killed, 0 lost, on 1 executors",
        "OVER 1 TASKS",
        "cpu                         6.0 s",
    ] {
        assert!(stages.contains(part), "{part}: {stages}");
    }
    let none = daemon.ctl(&["stages", "--summary", "--stage", "9"]);
    assert_eq!((none.status.code(), &*none.stdout), (Some(1), &b""[..]));
    let message = String::from_utf8_lossy(&none.stderr);
    assert_eq!(
        message,
        "smtt-ctl: no stages match --stage 9; there are 3\n"
    );
    let jobs: Value = serde_json::from_str(&said(&daemon, &["jobs", "--json"])).expect("JSON");
    assert_eq!(jobs.as_array().map(Vec::len), Some(1), "{jobs}");
    assert_eq!(
        (&jobs[0]["cpu_ns"], &jobs[0]["tasks_running"]),
        (&(6 * S).into(), &1.into())
    );
    assert!(said(&daemon, &["jobs"]).contains("TASK TIME"));
    let failed = said(&daemon, &["tasks", "--failed"]);
    assert!(failed.starts_with("no failed tasks\n"), "{failed}");
}

#[test]
fn an_application_is_exported_as_a_job_trace() {
    let daemon = daemon();
    let trace = ["export", "--job-trace", "PageRank"];
    let message = |output: &std::process::Output| {
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    // The second task runs; the job of the first one is not known.
    let unknown = daemon.ctl(&trace);
    assert!(unknown.stdout.is_empty(), "{unknown:?}");
    let words = message(&unknown);
    assert!(words.contains("1 task attempts that run"), "{words}");
    assert!(words.contains("1 task attempts whose rows"), "{words}");
    let stage = StageDescribed {
        stage_id: 3,
        tasks: 2,
        job_id: Some(5),
        name: "map".to_owned(),
        ..StageDescribed::default()
    };
    daemon.apply(S, 1000, Fact::StageDescribed(stage));
    let output = daemon.ctl(&trace);
    assert!(!message(&output).contains("whose rows"), "{output:?}");
    let job: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(job["jobID"], "job_202601011200000001_0005");
    assert_eq!(
        (&job["jobName"], &job["totalMaps"]),
        (&"map".into(), &1.into())
    );
    assert!(job["outcome"].is_null(), "a task runs: {job}");
    let attempt = &job["mapTasks"][0]["attempts"][0];
    assert_eq!(attempt["resourceUsageMetrics"]["cumulativeCpuUsage"], 6000);
    let parts = attempt["cpuUsages"].as_array().expect("parts");
    assert_eq!(parts.iter().filter_map(Value::as_u64).sum::<u64>(), 6000);
    // The task ended 8 ms after boot, which was longer ago than the test's begin.
    let finished = attempt["finishTime"].as_u64().expect("a time");
    let uptime = std::fs::read_to_string("/proc/uptime").expect("the time since boot");
    let uptime: f64 = uptime
        .split(' ')
        .next()
        .and_then(|it| it.parse().ok())
        .expect("seconds");
    let now = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .expect("now")
        .as_millis() as f64;
    let boot = now - uptime * 1000.0;
    assert!(
        (finished as f64 - 8.0 - boot).abs() < 100.0,
        "{finished}, {boot}"
    );

    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.json");
    let path = file.to_str().expect("a path");
    message(&daemon.ctl(&[&trace[..], &[path]].concat()));
    let mut written: Value =
        serde_json::from_slice(&std::fs::read(&file).expect("written")).expect("one object");
    // The daemon's clock has milliseconds, so times may differ by one.
    let times = ["submitTime", "launchTime", "finishTime"];
    for time in times {
        let apart = |job: &Value| job[time].as_u64().expect("a time");
        assert!(apart(&written).abs_diff(apart(&job)) <= 1, "{written}");
        written[time] = job[time].clone();
    }
    written["mapTasks"] = job["mapTasks"].clone();
    assert_eq!(written, job);
    for (arguments, code) in [
        (vec!["export", "--job-trace", "nope"], 1),
        (vec!["export", "--job-trace", "PageRank", "--user", "77"], 1),
        (vec!["export"], 2),
        (
            vec!["export", "--job-trace", "PageRank", "/proc/none/trace"],
            1,
        ),
    ] {
        let output = daemon.ctl(&arguments);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {output:?}"
        );
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
}
