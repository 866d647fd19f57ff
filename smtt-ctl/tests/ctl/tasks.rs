//! One task, stages in quantiles, jobs and failed tasks.

use serde_json::Value;
use smtt_common::event::used::{ACCOUNTS, CPU_NS, TaskUsed};
use smtt_model::decode::{Event, Fact};
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
    daemon.shared.state().apply(Event {
        time_ns: S,
        executor: KEY,
        pid: 4711,
        tid: 4711,
        uid: 1000,
        fact: Fact::TaskUsed(Box::new(used)),
    });
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
    ] {
        assert!(running.contains(part), "{part}: {running}");
    }
    let ended = said(&daemon, &["task", "1"]);
    assert!(
        ended.contains("succeeded") && ended.contains("until task_end"),
        "{ended}"
    );
    assert!(
        ended.contains("............"),
        "nothing was read within: {ended}"
    );
    let json = said(&daemon, &["task", "2", "--json"]);
    let rows: Value = serde_json::from_str(&json).expect("JSON");
    let splits = &rows[0]["splits"];
    assert_eq!(splits["series"]["cpu_ns"]["total"], 6 * S, "{splits}");
    assert_eq!(splits["progress_by"], "time");
    let list = said(&daemon, &["tasks", "--json"]);
    assert!(
        !list.contains("splits") && list.contains("\"now\""),
        "{list}"
    );
    let none = daemon.ctl(&["task", "77"]);
    assert_eq!(none.status.code(), Some(2), "{none:?}");
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
    let none = said(&daemon, &["stages", "--summary", "--stage", "9"]);
    assert_eq!(none, "no stages\n");
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
