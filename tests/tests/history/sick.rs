//! Stores that the importer and the server cannot write to: both say what the store lacks, no half-written table is visible,
//! what was there before is served, and the import succeeds once the store has room.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use smtt_tests::history::{list, serve};
use smtt_tests::lab::programs;
use xtask::http::request;

use crate::live::names;
use crate::mount::Mount;

const START: u64 = 1_790_000_000_000;
const TASKS: u64 = 2_000;

/// An event log of one application with one stage.
fn log(folder: &Path, id: &str) -> Result<()> {
    let stage = json!({
        "Stage ID": 0, "Stage Attempt ID": 0, "Stage Name": "count", "Number of Tasks": TASKS, "RDD Info": [],
        "Parent IDs": [], "Details": "", "Submission Time": START, "Accumulables": [],
    });
    let mut events = vec![
        json!({"Event": "SparkListenerLogStart", "Spark Version": "4.0.5"}),
        json!({"Event": "SparkListenerApplicationStart", "App Name": "sick", "App ID": id, "Timestamp": START, "User": "u"}),
        json!({"Event": "SparkListenerStageSubmitted", "Stage Info": stage, "Properties": {}}),
    ];
    for task in 0..TASKS {
        let info = json!({
            "Task ID": task, "Index": task, "Attempt": 0, "Launch Time": START + task, "Executor ID": "0", "Host": "h",
            "Locality": "PROCESS_LOCAL", "Speculative": false, "Getting Result Time": 0, "Failed": false, "Killed": false,
            "Finish Time": START + 7 * task + 3, "Accumulables": [],
        });
        events.push(json!({
            "Event": "SparkListenerTaskEnd", "Stage ID": 0, "Stage Attempt ID": 0, "Task Type": "ResultTask",
            "Task End Reason": {"Reason": "Success"}, "Task Info": info,
        }));
    }
    events.push(json!({"Event": "SparkListenerStageCompleted", "Stage Info": stage}));
    events.push(json!({"Event": "SparkListenerApplicationEnd", "Timestamp": START + 100_000}));
    let mut text = String::new();
    for event in events {
        writeln!(text, "{event}")?;
    }
    Ok(fs::write(folder.join(id), text)?)
}

/// Imports a log by the program: its exit code, and what it says to standard error.
fn import(store: &Path, log: &Path) -> Result<(Option<i32>, String)> {
    let mut program = Command::new(programs()?.join("smtt-history"));
    let program = program.args(["import", "--store"]).args([store, log]);
    let done = program.output().context("smtt-history")?;
    Ok((done.status.code(), String::from_utf8(done.stderr)?))
}

/// The tasks that the server counts, or its refusal.
fn tasks(port: u16, id: &str) -> Result<std::result::Result<u64, (u16, String)>> {
    let (status, body) = request(port, &format!("/api/v1/applications/{id}/stages"), "")?;
    if status != 200 {
        return Ok(Err((status, body)));
    }
    let stages: Vec<Value> = serde_json::from_str(&body)?;
    let complete = stages
        .iter()
        .filter_map(|stage| stage["numCompleteTasks"].as_u64());
    Ok(Ok(complete.sum()))
}

/// Refuses writes to a store in one of two ways, and takes that back.
#[derive(Clone, Copy)]
enum Sickness {
    Full,
    ReadOnly,
}

#[test]
fn a_store_that_cannot_be_written_is_named_and_keeps_what_it_has() -> Result<()> {
    for sickness in [Sickness::Full, Sickness::ReadOnly] {
        let folder = tempfile::tempdir()?;
        let logs = folder.path().join("logs");
        fs::create_dir(&logs)?;
        for id in ["app-1", "app-2", "app-3"] {
            log(&logs, id)?;
        }
        let mount = Mount::in_memory(folder.path().join("store"))?;
        let store = &mount.path;
        let (code, said) = import(store, &logs.join("app-1"))?;
        ensure!(code == Some(0), "{said}");
        let before = names(&store.join("app-1"));
        let lacks = match sickness {
            Sickness::Full => {
                mount.fill()?;
                "is full: make room there"
            }
            Sickness::ReadOnly => {
                mount.read_only()?;
                "is read-only: mount it for writing"
            }
        };

        let (code, said) = import(store, &logs.join("app-2"))?;
        println!("{said}");
        ensure!(code == Some(1), "{code:?}: {said}");
        let expected = format!("smtt-history: the store {} {lacks}\n", store.display());
        ensure!(said == expected, "{said:?} is not {expected:?}");
        ensure!(!store.join("app-2").exists(), "{:?}", names(store));

        let port = serve(store, Some(logs.clone()))?;
        ensure!(tasks(port, "app-1")? == Ok(TASKS));
        let refused = tasks(port, "app-3")?;
        let Err((status, text)) = &refused else {
            anyhow::bail!("{refused:?}");
        };
        ensure!(*status == 507 && text.contains(lacks), "{refused:?}");
        let path = store.display().to_string();
        ensure!(!text.contains(&path), "a path of the machine: {text}");
        ensure!(!store.join("app-3").exists(), "{:?}", names(store));
        ensure!(names(&store.join("app-1")) == before);

        match sickness {
            Sickness::Full => mount.free()?,
            Sickness::ReadOnly => mount.writable()?,
        }
        let (code, said) = import(store, &logs.join("app-2"))?;
        ensure!(code == Some(0), "{said}");
        ensure!(tasks(port, "app-2")? == Ok(TASKS));
        let listed = list(port, "/api/v1/applications")?;
        ensure!(listed.len() == 2, "{listed:?}");
        let left = names(store);
        let parts = left.iter().filter(|name| name.contains("inprogress"));
        ensure!(parts.count() == 0, "{left:?}");
    }
    Ok(())
}
