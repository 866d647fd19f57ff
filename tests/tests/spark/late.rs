//! A daemon that comes late: executors that were there before it are found, with all that they hold.

use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use smtt_tests::lab::{Lab, Run};
use smtt_tests::truth::{same_storage, same_tasks};
use smtt_tests::witness;
use xtask::daemon::{Daemon, Options};
use xtask::process::wait_for;
use xtask::spark::Application;

use crate::{LOCAL_CLUSTER, PAGE_RANK, PAGE_RANK_RESULT};

/// The first scans for executors come a second after one another, then less often.
const FOUND_WITHIN: Duration = Duration::from_secs(60);

fn executors(daemon: &Daemon, run: &Run) -> Result<()> {
    wait_for("both executors are found", FOUND_WITHIN, || {
        Ok((run.rows(daemon, &["executors"])?.len() == 2).then_some(()))
    })
}

/// What was told again came whole: else nothing of it would show what is gone.
fn told_whole(daemon: &Daemon, run: &Run) -> Result<()> {
    wait_for("everything has been told again", FOUND_WITHIN, || {
        let ended = run.rows(daemon, &["executors"])?.into_iter().all(|row| {
            let kinds = &row["facts_by_kind"];
            kinds["resyncDone"].as_u64() >= Some(1) && kinds["resyncTold"].as_u64() >= Some(2)
        });
        Ok(ended.then_some(()))
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
    let lab = Lab::new("4.0.5")?;
    let application = Application::java(&lab.paths, LOCAL_CLUSTER, "PageRank", &PAGE_RANK)?
        .with_marker(&lab.paths);
    let mut run = lab.run(application)?;
    run.open("begin")?;
    run.reach("cached")?;
    let daemon = lab.daemon_with(options)?;
    executors(&daemon, &run)?;
    let cached = same_storage(&daemon, &run.submitted)?;
    assert!(cached.contains_key("links"), "{cached:?}");

    // What happens from now on is seen in full: the tasks of later stages, and their faults.
    run.open("cached")?;
    run.reach("end")?;
    same_storage(&daemon, &run.submitted)?;
    let tasks = run.rows(&daemon, &["tasks"])?;
    let late: Vec<_> = tasks
        .iter()
        .filter(|task| task["state"].as_str() == Some("succeeded"))
        .collect();
    assert!(
        late.len() >= 16,
        "{} tasks after the daemon's start: {tasks:#?}",
        late.len()
    );
    let faults: u64 = late
        .iter()
        .filter_map(|task| task["page_faults"].as_u64())
        .sum();
    assert!(faults > 0, "the late tasks have no page faults: {late:#?}");
    assert_eq!(run.finish(&["end"])?, PAGE_RANK_RESULT);
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
    let lab = Lab::new("4.3.0")?;
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
    lab.passed()
}

#[test]
fn an_agent_that_is_attached_to_running_executors_tells_what_they_hold() -> Result<()> {
    let lab = Lab::new("4.0.5")?;
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
    run.open("cached")?;
    run.reach("end")?;
    // Without the plugin there are no names, but blocks and tasks are those of Spark from now on.
    let spark = run.submitted.rest("storage/rdd")?;
    let used = |value: &Value, key: &str| value[key].as_u64().unwrap_or(0);
    let expected: u64 = spark
        .as_array()
        .into_iter()
        .flatten()
        .map(|rdd| used(rdd, "memoryUsed"))
        .sum();
    let seen = wait_for("storage memory is Spark's", FOUND_WITHIN, || {
        let seen: u64 = run
            .rows(&daemon, &["rdds"])?
            .iter()
            .map(|rdd| used(rdd, "storage_memory_bytes"))
            .sum();
        Ok((seen == expected).then_some(seen))
    })?;
    assert!(seen > 1_000_000, "{seen} bytes");
    assert!(run.rows(&daemon, &["tasks"])?.len() >= 16);
    assert_eq!(run.finish(&["end"])?, PAGE_RANK_RESULT);
    lab.passed()
}
