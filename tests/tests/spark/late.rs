//! A daemon that starts late finds the running executors and everything that they hold.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;
use smtt_tests::application::{LOCAL_CLUSTER, PAGE_RANK, PAGE_RANK_RESULT};
use smtt_tests::json::sum;
use smtt_tests::lab::{Run, SparkLab};
use smtt_tests::truth::{same_storage, same_tasks};
use smtt_tests::witness;
use xtask::daemon::{Daemon, Options};
use xtask::process::wait_for;
use xtask::spark::Application;

/// The first scans for executors are a second apart, later ones more.
const FOUND_WITHIN: Duration = Duration::from_secs(120);
/// Least number of tasks that run after the gate `cached`.
const LATE_TASKS: usize = 16;

fn executors(daemon: &Daemon, run: &Run) -> Result<()> {
    wait_for("both executors are found", FOUND_WITHIN, || {
        Ok((run.rows(daemon, &["executors"])?.len() == 2).then_some(()))
    })
}

/// Checks that the resync is complete: otherwise the daemon does not know which rows are stale.
fn told_whole(daemon: &Daemon, run: &Run) -> Result<()> {
    wait_for("everything has been told again", FOUND_WITHIN, || {
        let rows = run.rows(daemon, &["executors"])?;
        let ended = rows.iter().all(|row| {
            let kinds = &row["facts_by_kind"];
            kinds["resyncDone"].as_u64() >= Some(1) && kinds["resyncTold"].as_u64() >= Some(2)
        });
        Ok((ended && rows.len() == 2).then_some(()))
    })?;
    let status = daemon.json(&["status"])?;
    let mut hops = status["ledger"].as_array().into_iter().flatten();
    assert!(
        hops.all(|hop| hop["lost"]["resync_incomplete"].is_null()),
        "{status:#}"
    );
    Ok(())
}

fn found(options: &Options) -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let application = Application::java(&lab.paths, LOCAL_CLUSTER, "PageRank", &PAGE_RANK)?
        .with_marker(&lab.paths);
    let mut run = lab.run(application)?;
    run.open("begin")?;
    run.reach("cached")?;
    let daemon = lab.daemon_with(options)?;
    executors(&daemon, &run)?;
    let cached = same_storage(&daemon, &run.submitted)?;
    assert!(cached.contains_key("links"), "{cached:?}");

    // From here on the daemon records everything: the tasks of later stages, and their faults.
    run.open("cached")?;
    run.reach("end")?;
    same_storage(&daemon, &run.submitted)?;
    let mut seen = (0, 0);
    let found = wait_for("late tasks and their page faults", FOUND_WITHIN, || {
        let mut tasks = run.rows(&daemon, &["tasks"])?;
        tasks.retain(|task| task["state"] == "succeeded");
        seen = (tasks.len(), sum(&tasks, "page_faults"));
        Ok((seen.0 >= LATE_TASKS && seen.1 > 0).then_some(()))
    });
    found.with_context(|| format!("{} tasks with {} page faults", seen.0, seen.1))?;
    assert_eq!(run.finish(&["end"])?, PAGE_RANK_RESULT);
    drop(daemon);
    lab.passed()
}

#[test]
fn executors_from_before_the_daemon_are_found() -> Result<()> {
    found(&Options::default())
}

#[test]
fn a_library_that_no_path_names_is_found_in_the_executors() -> Result<()> {
    found(&Options {
        without_library: true,
        ..Options::default()
    })
}

#[test]
fn a_daemon_that_is_started_again_knows_what_executors_hold() -> Result<()> {
    let lab = SparkLab::new("4.3.0")?;
    let mut daemon = lab.daemon()?;
    let application = Application::java(&lab.paths, LOCAL_CLUSTER, "PageRank", &PAGE_RANK)?
        .with_marker(&lab.paths);
    let mut run = lab.run(application)?;
    run.open("begin")?;
    run.reach("cached")?;
    let before = same_storage(&daemon, &run.submitted)?;
    same_tasks(&daemon, &run.submitted)?;
    daemon.stop();
    daemon.start_again()?;
    executors(&daemon, &run)?;
    assert_eq!(same_storage(&daemon, &run.submitted)?, before);
    told_whole(&daemon, &run)?;
    assert_eq!(run.finish(&["cached", "end"])?, PAGE_RANK_RESULT);
    drop(daemon);
    lab.passed()
}

#[test]
fn an_agent_that_is_attached_to_running_executors_tells_what_they_hold() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let daemon = lab.daemon()?;
    let mut run = lab.run(Application::java(
        &lab.paths,
        LOCAL_CLUSTER,
        "PageRank",
        &PAGE_RANK,
    )?)?;
    run.open("begin")?;
    run.reach("cached")?;
    let jar = lab
        .paths
        .marker()
        .join("smtt-marker.jar")
        .display()
        .to_string();
    let driver = run.submitted.running.pid();
    let executors: Vec<u32> = witness::descendants(driver)?
        .into_iter()
        .filter(|pid| witness::command_line(*pid).contains("CoarseGrainedExecutorBackend"))
        .collect();
    assert_eq!(executors.len(), 2, "{executors:?}");
    for pid in executors {
        lab.spark
            .helper(&lab.paths, "Attach", &[&pid.to_string(), &jar])?;
    }
    // The application waits, so no task runs. Blocks are reported after tasks: with the first block all tasks have
    // arrived.
    wait_for("blocks of the attached executors", FOUND_WITHIN, || {
        Ok((!run.rows(&daemon, &["rdds"])?.is_empty()).then_some(()))
    })?;
    let running: Vec<Value> = run
        .rows(&daemon, &["tasks"])?
        .into_iter()
        .filter(|task| task["state"].as_str() == Some("running"))
        .collect();
    assert!(
        running.is_empty(),
        "idle threads run these tasks: {running:#?}"
    );
    run.open("cached")?;
    run.reach("end")?;
    // Without the plugin RDDs have no names, but from now on blocks and tasks equal Spark's.
    let mut sides = (0, 0);
    let agreed = wait_for("storage memory is Spark's", FOUND_WITHIN, || {
        let spark = run.submitted.rest("storage/rdd")?;
        let mut rdds = run.rows(&daemon, &["rdds"])?;
        // Broadcasts are storage memory without an RDD; Spark's listing leaves them out.
        rdds.retain(|row| row["rdd_id"].is_u64());
        sides = (
            sum(spark.as_array().into_iter().flatten(), "memoryUsed"),
            sum(&rdds, "storage_memory_bytes"),
        );
        Ok((sides.0 == sides.1 && sides.0 > 1_000_000).then_some(()))
    });
    agreed.with_context(|| format!("Spark has {} bytes, SMTT {}", sides.0, sides.1))?;
    wait_for("late tasks are listed", FOUND_WITHIN, || {
        Ok((run.rows(&daemon, &["tasks"])?.len() >= LATE_TASKS).then_some(()))
    })?;
    assert_eq!(run.finish(&["end"])?, PAGE_RANK_RESULT);
    drop(daemon);
    lab.passed()
}
