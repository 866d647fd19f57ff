//! Requests for shuffle blocks, from the job through the daemon's files in a store to the answers of smtt-history,
//! compared with Spark's own metrics of the same tasks.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_model::units;
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
    waits_of_jobs(port, &id, &listed)?;
    faults_in_stages(port, &id)?;
    lab.passed()
}

/// Texts of the cells of a table's rows, by the titles of their columns.
fn table(page: &str, id: &str) -> Result<Vec<BTreeMap<String, String>>> {
    let text = |cell: &str| {
        let parts = cell
            .split('<')
            .map(|it| it.rsplit_once('>').map_or(it, |(_, text)| text));
        parts.collect::<String>().trim().to_owned()
    };
    let cells = |row: &str| -> Vec<String> {
        let row = row.split("</tr>").next().unwrap_or_default();
        let row = row.replace("</th>", "</td>").replace("<th", "<td");
        let all = row.split("<td").skip(1);
        all.filter_map(|it| Some(text(&format!("<td{}", it.split("</td>").next()?))))
            .collect()
    };
    let (_, rest) = page
        .split_once(&format!("id=\"{id}\""))
        .with_context(|| format!("no table {id}: {page}"))?;
    let (head, body) = rest.split_once("<tbody>").context("no rows")?;
    let body = body.split("</tbody>").next().unwrap_or_default();
    let heads = cells(head.rsplit("<tr>").next().unwrap_or_default());
    let rows = body.split("<tr>").skip(1);
    Ok(rows
        .map(|row| heads.iter().cloned().zip(cells(row)).collect())
        .collect())
}

/// The table of jobs adds up what the kernel's accounts of the tasks have.
fn waits_of_jobs(port: u16, id: &str, listed: &[Value]) -> Result<()> {
    let page = get(port, &format!("/applications/{id}/jobs"))?;
    let jobs = table(&page, "jobs")?;
    let waited = listed.iter().filter_map(|row| row["cpu_wait_ns"].as_u64());
    let waited: u64 = waited.sum();
    println!(
        "{} jobs, the tasks waited {waited} ns for a CPU",
        jobs.len()
    );
    ensure!(jobs.len() == 1, "{jobs:?}");
    ensure!(
        jobs[0]["Tasks seen by workers"] == listed.len().to_string(),
        "{jobs:?}"
    );
    ensure!(
        waited > 0 && jobs[0]["Lost to waiting for a CPU"] == units::duration(waited),
        "{waited}: {jobs:?}"
    );
    Ok(())
}

/// The chain of a stage has the page faults of that stage: over all stages they are no more than those of the application,
/// and those of the documents of the daemon.
fn faults_in_stages(port: u16, id: &str) -> Result<()> {
    let stages: Value =
        serde_json::from_str(&get(port, &format!("/api/v1/applications/{id}/stages"))?)?;
    let rows: Value =
        serde_json::from_str(&get(port, &format!("/smtt/v1/applications/{id}/stages"))?)?;
    let rows = rows["rows"].as_array().context("no rows")?;
    let mut sums: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for stage in stages.as_array().into_iter().flatten() {
        let (stage, attempt) = (number(stage, "stageId")?, number(stage, "attemptId")?);
        let page = get(
            port,
            &format!("/applications/{id}/stages/{stage}/{attempt}"),
        )?;
        for part in [
            "Measured in this stage",
            "Measured in the whole application",
        ] {
            ensure!(page.contains(part), "{part} is missing: {page}");
        }
        // Both groups have this title; of the same key the later column stays, so the stage's is told by its parts.
        for row in table(&page, "rdds-of-stage")? {
            let count = |title: &str| {
                row[title]
                    .replace(',', "")
                    .parse::<u64>()
                    .unwrap_or_default()
            };
            let own = count("Page faults of loads") + count("Page faults of stores");
            let written = rows
                .iter()
                .map(|it| &it["smtt"])
                .filter(|it| it["stage_id"] == stage && it["stage_attempt"] == attempt);
            let written = written.flat_map(|it| it["rdds"].as_array().into_iter().flatten());
            let written = written.filter(|it| {
                it["rdd_id"].as_u64().map(|id| id.to_string()).as_ref() == Some(&row["RDD"])
            });
            let written: u64 = written.filter_map(|it| it["page_faults"].as_u64()).sum();
            ensure!(
                own == written,
                "stage {stage}: {own} of {row:?}, the daemon wrote {written}"
            );
            let sum = sums.entry(row["RDD"].clone()).or_default();
            *sum = (sum.0 + own, count("Page faults"));
        }
    }
    println!("page faults of RDDs in their stages and in all: {sums:?}");
    ensure!(sums.values().any(|(own, _)| *own > 0), "{sums:?}");
    ensure!(sums.values().all(|(own, all)| own <= all), "{sums:?}");
    Ok(())
}
