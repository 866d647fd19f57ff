//! PySpark: the faults of Python workers count for their executor, and for the task that they serve.

use std::collections::BTreeMap;

use anyhow::Result;
use smtt_tests::application::LOCAL_CLUSTER;
use smtt_tests::faults::{at_rest, between};
use smtt_tests::json::{number, sum};
use smtt_tests::lab::{Run, SparkLab};
use smtt_tests::truth::{same_faults, same_stages, same_storage, same_tasks};
use smtt_tests::witness;
use xtask::daemon::Daemon;
use xtask::spark::Application;

/// Share of the page faults of Python processes that must be tagged with a task, in hundredths. A worker that has gone back to
/// Spark's pool serves no task; what it touches then has none. With the short tasks of this application 5 to 19 faults in 100
/// have none. Spark's `daemon.py` collects garbage in that time, which may be the cause; it was not measured apart.
const TAGGED_PERCENT: u64 = 75;

/// Page faults of Python processes as the kernel counts them. Spark reuses workers for later tasks, so they are alive
/// at both gates and the kernel still has their counts.
fn workers(daemon: &Daemon, run: &Run) -> Result<BTreeMap<u32, u64>> {
    let mut found = BTreeMap::new();
    for row in run.rows(daemon, &["executors"])? {
        for child in witness::descendants(number(&row, "pid")? as u32)? {
            if witness::command_line(child).contains("pyspark.daemon") {
                found.insert(child, witness::faults(child)?.total());
            }
        }
    }
    Ok(found)
}

/// Page faults with the tag of a Python worker that serves a task.
fn tagged(daemon: &Daemon, run: &Run) -> Result<u64> {
    let rdds = run.rows(daemon, &["rdds"])?;
    let contexts = rdds
        .iter()
        .filter_map(|row| row["contexts"].as_array())
        .flatten();
    Ok(sum(
        contexts.filter(|context| context["activity"] == "python_worker"),
        "page_faults",
    ))
}

fn page_rank(version: &str) -> Result<()> {
    let lab = SparkLab::new(version)?;
    let daemon = lab.daemon()?;
    let application = Application::python(
        &lab.paths,
        LOCAL_CLUSTER,
        "pagerank.py",
        &["20000", "10", "2", "4"],
    )?;
    let mut run = lab.run(application.with_marker(&lab.paths))?;
    run.reach("begin")?;
    // Before and after the rest: Spark ends workers that have had nothing to do for a minute.
    let mut workers_begin = workers(&daemon, &run)?;
    let begin = at_rest(&daemon, &run)?;
    workers_begin.extend(workers(&daemon, &run)?);
    let tagged_begin = tagged(&daemon, &run)?;
    run.open("begin")?;
    run.open("cached")?;
    run.reach("end")?;
    let mut workers_end = workers(&daemon, &run)?;
    let end = at_rest(&daemon, &run)?;
    workers_end.extend(workers(&daemon, &run)?);
    let tagged = tagged(&daemon, &run)?;

    assert!(
        workers_end.len() >= 4,
        "expected a Python daemon and a worker per executor, seen {workers_end:?}"
    );
    for (executor, pair) in &between(&begin, &end) {
        assert!(pair.kernel > 5_000, "too few faults to compare: {pair:?}");
        same_faults(
            &format!("executor {executor} with its Python workers"),
            pair,
        )?;
    }

    // Workers touch memory for a task, except before the first task and between two tasks.
    let touched: u64 = workers_end
        .iter()
        .map(|(pid, faults)| faults - workers_begin.get(pid).copied().unwrap_or(0))
        .sum();
    let tagged = tagged - tagged_begin;
    println!("{tagged} of {touched} page faults of Python's processes are tagged with a task");
    assert!(
        touched > 5_000
            && tagged * 100 >= touched * TAGGED_PERCENT
            && tagged * 100 <= touched * 101,
        "{tagged} of {touched} page faults of Python's processes are tagged with a task"
    );
    same_storage(&daemon, &run.submitted)?;
    same_tasks(&daemon, &run.submitted)?;
    same_stages(&daemon, &run.submitted)?;
    let result = run.finish(&["end"])?;
    assert!(
        result.starts_with("RESULT pagerank 20000 pages"),
        "{result}"
    );
    drop(daemon);
    lab.passed()
}

#[test]
fn python_workers_in_spark_3_5() -> Result<()> {
    page_rank("3.5.9")
}

#[test]
fn python_workers_in_spark_4_0() -> Result<()> {
    page_rank("4.0.5")
}

#[test]
fn python_workers_in_spark_4_3() -> Result<()> {
    page_rank("4.3.0")
}
