//! Findings about the tasks of a stage: a frequent key is a skew, with the partition and the figures of Spark; tasks that
//! wait for the blocks of an executor that stands still have a wait for fetches, of Spark's length; and the same
//! applications without these faults have neither.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use smtt_tests::application::LOCAL_CLUSTER;
use smtt_tests::json::number;
use smtt_tests::lab::{LIMIT, Run, SparkLab};
use xtask::daemon::Daemon;
use xtask::process::wait_for;
use xtask::spark::Application;

const MS: u64 = 1_000_000;
/// Milliseconds for which an executor stands still.
const STOPPED_MS: u64 = 4_000;
/// Partitions of the shuffle that is read again.
const PARTITIONS: usize = 16;

/// The finding of a rule, and the rule's outcome.
fn of_rule(advice: &Value, rule: &str) -> (Option<Value>, Value) {
    let application = &advice["applications"][0];
    let of = |list: &str| {
        let list = application[list].as_array();
        let mut of_rule = list.into_iter().flatten().filter(|row| row["id"] == rule);
        of_rule.next().cloned()
    };
    (
        of("findings"),
        of("checks").unwrap_or_default()["went"].clone(),
    )
}

fn figure(finding: &Value, what: &str) -> Result<u64> {
    let mut numbers = finding["numbers"].as_array().into_iter().flatten();
    numbers
        .find(|number| number["what"] == what)
        .and_then(|number| number["value"].as_u64())
        .with_context(|| format!("no {what} in {finding:#}"))
}

/// The advice after the ends of all tasks have come.
fn advised(run: &Run, daemon: &Daemon, tasks: usize) -> Result<Value> {
    wait_for("all tasks have their accounts", LIMIT, || {
        let rows = run.rows(daemon, &["tasks"])?;
        let ended = rows.iter().filter(|row| row["used_until"] == "task_end");
        Ok((ended.count() == tasks).then_some(()))
    })?;
    let id = run.submitted.application_id()?;
    println!("{}", daemon.ask(&["advise", "--app", &id])?);
    daemon.json(&["advise", "--app", &id])
}

/// Spark's tasks of the stage that a finding is about.
fn tasks_of(run: &Run, finding: &Value) -> Result<Vec<Value>> {
    let subject = &finding["subject"];
    let (stage, attempt) = (
        number(subject, "stage_id")?,
        number(subject, "stage_attempt")?,
    );
    let path = format!("stages/{stage}/{attempt}/taskList?length=1000");
    let tasks = run.submitted.rest(&path)?;
    Ok(tasks.as_array().context("no tasks")?.clone())
}

/// Keys of the application that are not frequent, as in `Sick.java`; and its map tasks.
const KEYS: usize = 31;
const MAKERS: usize = 128;

fn keyed(lab: &SparkLab, daemon: &Daemon, parts: usize) -> Result<(Run, Value)> {
    let application = Application::java(
        &lab.paths,
        LOCAL_CLUSTER,
        "Sick",
        &["skew", &parts.to_string()],
    )?
    .with_marker(&lab.paths);
    let mut run = lab.run(application)?;
    run.reach("end")?;
    let advice = advised(&run, daemon, MAKERS + KEYS + parts)?;
    Ok((run, advice))
}

#[test]
fn a_frequent_key_is_found_with_its_partition_and_a_salted_one_is_not() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let daemon = lab.daemon()?;
    let (mut run, advice) = keyed(&lab, &daemon, 1)?;
    let (finding, _) = of_rule(&advice, "skew");
    let finding = finding.with_context(|| format!("no finding: {advice:#}"))?;
    let tasks = tasks_of(&run, &finding)?;
    ensure!(tasks.len() == KEYS + 1, "{} tasks", tasks.len());
    let longest = tasks
        .iter()
        .max_by_key(|task| task["duration"].as_u64())
        .context("no task")?;
    let partition = figure(&finding, "partition of the longest of these tasks")?;
    ensure!(
        number(longest, "index")? == partition,
        "{longest:#} {finding:#}"
    );
    let read = &longest["taskMetrics"]["shuffleReadMetrics"];
    let bytes = number(read, "localBytesRead")? + number(read, "remoteBytesRead")?;
    // Bytes or records, whichever explains more.
    let said = figure(&finding, "bytes that it read").ok();
    let records = figure(&finding, "records that it read").ok();
    ensure!(
        said == Some(bytes) || records == Some(number(read, "recordsRead")?),
        "{read:#} {finding:#}"
    );
    let took = number(longest, "duration")? * MS;
    let said = figure(&finding, "its duration")?;
    ensure!(
        (took / 10 * 8..took / 10 * 12).contains(&said),
        "{said} ns, by Spark {took}: {finding:#}"
    );
    let text = finding.to_string();
    ensure!(
        text.contains("spark.sql.adaptive.skewJoin.enabled"),
        "{text}"
    );
    wait_for("the finding is a metric", LIMIT, || {
        let metrics = daemon.metrics()?;
        let mut series = metrics.lines().filter(|it| it.starts_with("smtt_finding{"));
        Ok(series
            .any(|it| it.contains("rule=\"skew\"") && it.ends_with(" 1"))
            .then_some(()))
    })?;
    run.finish(&["end"])?;

    let (mut run, advice) = keyed(&lab, &daemon, KEYS)?;
    let (finding, went) = of_rule(&advice, "skew");
    ensure!(finding.is_none() && went == "nothing", "{went} {advice:#}");
    run.finish(&["end"])?;
    drop(daemon);
    lab.passed()
}

fn signal(pid: u64, signal: i32) -> Result<()> {
    let pid = i32::try_from(pid)?;
    // SAFETY: kill takes two numbers.
    let result = unsafe { libc::kill(pid, signal) };
    ensure!(result == 0, "{}", std::io::Error::last_os_error());
    Ok(())
}

/// Reads a shuffle twice, the second time while an executor stands still for so long.
fn fetched(lab: &SparkLab, daemon: &Daemon, stopped_ms: u64) -> Result<(Run, Value)> {
    const MAPS: usize = 8;
    let (maps, partitions) = (MAPS.to_string(), PARTITIONS.to_string());
    let arguments = [&maps, "160", "20000", &partitions, "again"].map(AsRef::as_ref);
    let mut application = Application::java(&lab.paths, LOCAL_CLUSTER, "Fetching", &arguments)?
        .with_marker(&lab.paths);
    for (key, value) in [
        // Both executors are on this machine: without this each reads the files of the other one.
        ("spark.shuffle.readHostLocalDisk", "false"),
        // Both executors make blocks.
        ("spark.scheduler.minRegisteredResourcesRatio", "1.0"),
    ] {
        application = application.conf(key, value);
    }
    let mut run = lab.run(application)?;
    run.open("begin")?;
    run.reach("again")?;
    let executors = run.rows(daemon, &["executors"])?;
    let executor = executors
        .iter()
        .find(|row| row["executor_id"] == "1")
        .context("no executor 1")?;
    let pid = number(executor, "pid")?;
    if stopped_ms > 0 {
        signal(pid, libc::SIGSTOP)?;
    }
    run.open("again")?;
    sleep(Duration::from_millis(stopped_ms));
    if stopped_ms > 0 {
        signal(pid, libc::SIGCONT)?;
    }
    run.reach("end")?;
    let advice = advised(&run, daemon, MAPS + 2 * PARTITIONS)?;
    Ok((run, advice))
}

#[test]
fn waits_for_blocks_of_an_executor_that_stands_still_are_found_and_are_those_of_spark() -> Result<()>
{
    let lab = SparkLab::new("4.0.5")?;
    let daemon = lab.daemon()?;
    let (mut run, advice) = fetched(&lab, &daemon, STOPPED_MS)?;
    let (finding, _) = of_rule(&advice, "fetch_wait");
    let finding = finding.with_context(|| format!("no finding: {advice:#}"))?;
    let tasks = tasks_of(&run, &finding)?;
    ensure!(tasks.len() == PARTITIONS, "{} tasks", tasks.len());
    let mut waited = 0;
    for task in &tasks {
        let read = &task["taskMetrics"]["shuffleReadMetrics"];
        waited += number(read, "fetchWaitTime")? * MS;
    }
    let said = figure(&finding, "waiting for fetches")?;
    println!("waits by Spark {waited} ns, by the finding {said} ns");
    ensure!(waited > STOPPED_MS * MS / 2, "Spark waited {waited} ns");
    // Spark counts waits below 1 ms, too, and cuts each task's sum to milliseconds.
    ensure!(
        (waited / 10 * 9..waited / 10 * 11).contains(&said),
        "{said} ns, by Spark {waited}: {finding:#}"
    );
    let host = tasks[0]["host"].as_str().context("no host")?;
    let of_host = figure(&finding, &format!("of the wait, for blocks of {host}"))?;
    ensure!(of_host > said / 2, "{finding:#}");
    run.finish(&["end"])?;

    // On a busy machine the tasks may wait for their blocks although no executor stands still.
    for round in 1.. {
        let (mut run, advice) = fetched(&lab, &daemon, 0)?;
        let (finding, went) = of_rule(&advice, "fetch_wait");
        let Some(finding) = finding else {
            ensure!(went == "nothing", "{went} {advice:#}");
            run.finish(&["end"])?;
            break;
        };
        let (mut waited, mut ran) = (0, 0);
        for task in tasks_of(&run, &finding)? {
            waited += number(&task["taskMetrics"]["shuffleReadMetrics"], "fetchWaitTime")?;
            ran += number(&task["taskMetrics"], "executorRunTime")?;
        }
        println!("round {round}: the tasks waited {waited} of {ran} ms");
        ensure!(waited * 20 > ran && round < 4, "{advice:#}");
        run.finish(&["end"])?;
    }
    drop(daemon);
    lab.passed()
}
