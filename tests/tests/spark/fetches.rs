//! Requests for shuffle blocks, from the job through the daemon's files in a store to the answers of smtt-history,
//! compared with Spark's own metrics of the same tasks.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_tests::application::LOCAL_CLUSTER;
use smtt_tests::history::serve;
use smtt_tests::json::number;
use smtt_tests::lab::{LIMIT, SparkLab};
use xtask::daemon::Options;
use xtask::http::get;
use xtask::process::wait_for;
use xtask::spark::Application;

const MAPS: usize = 8;
const PARTITIONS: usize = 4;
/// A clock of Spark's event log has milliseconds.
const MS: u64 = 1_000_000;

#[test]
fn requests_of_spark_3_5_are_what_spark_counts() -> Result<()> {
    requests_are_what_spark_counts("3.5.9")
}

#[test]
fn requests_of_spark_4_0_are_what_spark_counts() -> Result<()> {
    requests_are_what_spark_counts("4.0.5")
}

#[test]
fn requests_of_spark_4_3_are_what_spark_counts() -> Result<()> {
    requests_are_what_spark_counts("4.3.0")
}

fn requests_are_what_spark_counts(version: &str) -> Result<()> {
    let lab = SparkLab::new(version)?;
    let (store, logs) = (lab.folder().join("store"), lab.folder().join("logs"));
    fs::create_dir_all(&store)?;
    fs::create_dir_all(&logs)?;
    let options = Options {
        toml: format!("[history]\nstore = \"{}\"\n", store.display()),
        ..Options::default()
    };
    let mut daemon = lab.daemon_with(&options)?;
    let (maps, partitions) = (MAPS.to_string(), PARTITIONS.to_string());
    let arguments = [&maps, "200", "2000", &partitions].map(AsRef::as_ref);
    let mut application = Application::java(&lab.paths, LOCAL_CLUSTER, "Fetching", &arguments)?
        .with_marker(&lab.paths);
    for (key, value) in [
        // Both executors are on this machine: without this each reads the files of the other one.
        ("spark.shuffle.readHostLocalDisk", "false"),
        // No executor runs all of the first tasks because the other one is late.
        ("spark.scheduler.minRegisteredResourcesRatio", "1.0"),
        // A request has a fifth of it.
        ("spark.reducer.maxSizeInFlight", "1m"),
        ("spark.eventLog.enabled", "true"),
        ("spark.eventLog.dir", &format!("file://{}", logs.display())),
        ("spark.eventLog.rolling.enabled", "false"),
    ] {
        application = application.conf(key, value);
    }
    let mut run = lab.run(application)?;
    run.open("begin")?;
    run.reach("end")?;
    let id = run.submitted.application_id()?;
    let listed = wait_for("all tasks have their accounts", LIMIT, || {
        let rows = run.rows(&daemon, &["tasks"])?;
        let done = rows.iter().all(|row| row["used_until"] == "task_end");
        Ok((done && rows.len() == MAPS + PARTITIONS).then_some(rows))
    })?;
    run.finish(&["end"])?;
    // A daemon that stops writes what it knows.
    daemon.stop();
    drop(daemon);
    let port = serve(&store, Some(logs))?;
    let base = format!("/smtt/v1/applications/{id}/tasks");
    let (mut requests, mut remote_bytes) = (0, 0);
    for row in &listed {
        let task = number(row, "task_attempt_id")?;
        let answer: Value = serde_json::from_str(&get(port, &format!("{base}/{task}/functions"))?)?;
        let functions = &answer["smtt"]["functions"];
        let spark: Value = serde_json::from_str(&get(port, &format!("{base}/{task}"))?)?;
        let read = &spark["task"]["taskMetrics"]["shuffleReadMetrics"];
        let (blocks, bytes) = (
            number(read, "remoteBlocksFetched")?,
            number(read, "remoteBytesRead")?,
        );
        let fetched = &functions["fetched"];
        if blocks == 0 {
            ensure!(
                fetched.is_null() && functions["fetches"].is_null(),
                "{functions}"
            );
            continue;
        }
        println!("task {task}: {blocks} blocks and {bytes} bytes by Spark, {fetched}");
        ensure!(number(fetched, "blocks")? == blocks, "{fetched} {read}");
        ensure!(
            number(fetched, "arrived_blocks")? == blocks,
            "{fetched} {read}"
        );
        ensure!(number(fetched, "bytes")? == bytes, "{fetched} {read}");
        let all = functions["fetches"].as_array().context("no requests")?;
        ensure!(
            number(fetched, "requests")? == all.len() as u64,
            "{functions}"
        );
        let sum = |name: &str| all.iter().filter_map(|it| it[name].as_u64()).sum::<u64>();
        ensure!(
            (sum("blocks"), sum("bytes")) == (blocks, bytes),
            "{functions}"
        );
        for fetch in all {
            ensure!(fetch["outcome"] == "complete", "{fetch}");
            let from = fetch["executor_id"].as_str().context("no executor")?;
            ensure!(
                ["0", "1"].contains(&from) && row["executor_id"] != from,
                "{fetch} {row}"
            );
            let address = fetch["address"].as_str().context("no address")?;
            let (host, of) = address.rsplit_once(':').context("no port")?;
            ensure!(!host.is_empty() && of.parse::<u16>().is_ok(), "{address}");
            let end = number(fetch, "begin_ns")? + number(fetch, "duration_ns")?;
            ensure!(
                end <= number(functions, "duration_ns")? + MS,
                "{fetch} {functions}"
            );
        }
        let page = get(
            port,
            &format!("/applications/{id}/tasks/{task}?sort=-bytes"),
        )?;
        for part in ["id=\"fetches-lane\"", "id=\"fetches\""] {
            ensure!(page.contains(part), "{part} is missing: {page}");
        }
        requests += all.len();
        remote_bytes += bytes;
    }
    println!("{requests} requests, {remote_bytes} bytes");
    // Each task needs 800 KB, part of it from the other executor, in requests of 200 KB.
    ensure!(
        remote_bytes > 200_000 && requests > 1,
        "{requests} {remote_bytes}"
    );
    lab.passed()
}
