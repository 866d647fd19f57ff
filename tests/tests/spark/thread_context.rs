//! Threads' contexts for OpenTelemetry's profilers: read from outside the executor by a reader of our own, and compared
//! with Spark's REST API and with the threads that the tasks say they run on.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_tests::json::number;
use smtt_tests::lab::{LIMIT, Run, SparkLab};
use smtt_tests::thread_context::Reader;
use smtt_tests::truth::array;
use xtask::process::wait_for;
use xtask::spark::Application;

const CORES: usize = 2;

/// The application with options of its executor.
fn application(lab: &SparkLab, options: &str) -> Result<Application> {
    let application = Application::java(
        &lab.paths,
        &format!("local-cluster[1,{CORES},1024]"),
        "Contexts",
        &[],
    )?
    .conf("spark.app.name", "Contexts")
    .with_marker(&lab.paths);
    Ok(if options.is_empty() {
        application
    } else {
        application.conf("spark.executor.extraJavaOptions", options)
    })
}

/// The threads of the tasks at a gate, as the tasks say: thread to task attempt.
fn threads(run: &Run, gate: &str) -> Result<BTreeMap<u32, u64>> {
    wait_for("the tasks are in their function", LIMIT, || {
        let mut found = BTreeMap::new();
        for entry in std::fs::read_dir(run.gates())? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let tid = name.and_then(|name| name.strip_prefix(&format!("{gate}.")));
            if let Some(tid) = tid.and_then(|tid| tid.parse().ok()) {
                found.insert(tid, std::fs::read_to_string(&path)?.parse()?);
            }
        }
        Ok((found.len() == CORES).then_some(found))
    })
}

/// The process of a thread.
fn process_of(tid: u32) -> Result<u32> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    Ok(line.context("no process")?.trim().parse()?)
}

/// What was read of a thread, or nothing where it has ended meanwhile.
fn unless_ended<T>(tid: u32, read: Result<Option<T>>) -> Result<Option<T>> {
    match read {
        Err(_) if !Path::new(&format!("/proc/{tid}/status")).exists() => Ok(None),
        other => other,
    }
}

/// The tasks of a stage that runs, as Spark lists them, by attempt, and the ids of the stage's RDDs.
fn running(run: &Run) -> Result<(BTreeMap<u64, Value>, Vec<u64>)> {
    wait_for("Spark lists the running tasks", LIMIT, || {
        let stages = array(run.submitted.rest("stages?status=active")?, "stages")?;
        let [stage] = &stages[..] else {
            return Ok(None);
        };
        let (id, attempt) = (number(stage, "stageId")?, number(stage, "attemptId")?);
        let list = run
            .submitted
            .rest(&format!("stages/{id}/{attempt}/taskList"))?;
        let mut tasks = BTreeMap::new();
        for mut task in array(list, "tasks")? {
            task["stage"] = id.into();
            task["stageAttempt"] = attempt.into();
            tasks.insert(number(&task, "taskId")?, task);
        }
        let rdds = array(stage["rddIds"].clone(), "ids of RDDs")?;
        let rdds = rdds.iter().filter_map(Value::as_u64).collect();
        Ok((tasks.len() == CORES).then_some((tasks, rdds)))
    })
}

#[test]
fn a_profiler_reads_what_each_thread_does() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let mut run = lab.run(application(&lab, "-Dsmtt.otel=true")?)?;
    for gate in ["reading", "computing"] {
        let threads = threads(&run, gate)?;
        let (tasks, rdds) = running(&run)?;
        let kept = array(run.submitted.rest("storage/rdd")?, "cached RDDs")?;
        let kept = number(&kept[0], "id")?;
        for (tid, attempt) in &threads {
            let reader = Reader::new(process_of(*tid)?)?.context("nothing is published")?;
            let process = &reader.process;
            ensure!(process.schema == "tlsdesc_v1_dev", "{process:?}");
            let application = run.submitted.application_id()?;
            ensure!(
                process.resource["spark.application.id"] == application
                    && process.resource["service.name"] == "Contexts"
                    && process.resource["spark.executor.id"] == "0",
                "{process:?}"
            );
            let found = reader.thread(*tid)?.context("the thread has no context")?;
            println!("{gate}: thread {tid}: {found:?}");
            let task = tasks.get(attempt).context("Spark does not list it")?;
            for (key, field) in [
                ("spark.stage.id", "stage"),
                ("spark.stage.attempt", "stageAttempt"),
                ("spark.task.attempt_id", "taskId"),
                ("spark.task.partition", "index"),
                ("spark.rdd.partition", "index"),
            ] {
                ensure!(
                    found.get(key) == Some(&number(task, field)?.to_string()),
                    "{key} of {found:?}, Spark says {task}"
                );
            }
            ensure!(found["spark.application.id"] == application, "{found:?}");
            let rdd: u64 = found["spark.rdd.id"].parse()?;
            let activity = found["spark.activity"].as_str();
            if gate == "reading" {
                ensure!(
                    rdd == kept && activity == "cache_read",
                    "RDD {kept}: {found:?}"
                );
            } else {
                let last = rdds.iter().max();
                ensure!(
                    Some(&rdd) == last && activity == "compute",
                    "{rdds:?}: {found:?}"
                );
            }
        }
        // No other thread of the executor says that it works for a task.
        let (tid, _) = threads.first_key_value().context("two threads")?;
        let pid = process_of(*tid)?;
        let reader = Reader::new(pid)?.context("nothing is published")?;
        let mut others = 0;
        for entry in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let other: u32 = entry?.file_name().to_string_lossy().parse()?;
            if threads.contains_key(&other) {
                continue;
            }
            // A thread that is not at the end of an earlier task still has its context.
            wait_for(&format!("thread {other} has no context"), LIMIT, || {
                let found = unless_ended(other, reader.thread(other))?;
                Ok(found.is_none().then_some(()))
            })?;
            others += 1;
        }
        ensure!(others > 10, "only {others} other threads");
        run.open(gate)?;
        if gate == "computing" {
            run.reach("idle")?;
            let begin = Instant::now();
            for tid in threads.keys() {
                wait_for("the thread has no context", LIMIT, || {
                    let found = unless_ended(*tid, reader.thread(*tid))?;
                    Ok(found.is_none().then_some(()))
                })?;
            }
            println!("no context {:?} after the end", begin.elapsed());
        }
    }
    run.finish(&["idle"])?;
    lab.passed()
}

#[test]
fn nothing_is_published_unless_it_is_asked_for() -> Result<()> {
    let lab = SparkLab::new("3.5.9")?;
    let mut run = lab.run(application(&lab, "")?)?;
    let threads = threads(&run, "reading")?;
    for tid in threads.keys() {
        ensure!(Reader::new(process_of(*tid)?)?.is_none());
        let maps = std::fs::read_to_string(format!("/proc/{tid}/maps"))?;
        ensure!(maps.contains("libsmtt_marker.so") && !maps.contains("libsmtt_thread_context.so"));
    }
    run.finish(&["reading", "computing", "idle"])?;
    lab.passed()
}
