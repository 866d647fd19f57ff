//! `smtt-ctl export --job-trace`, read with the names of rumen's classes only and compared with Spark's REST API and
//! with `smtt-ctl tasks`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use xtask::daemon::Daemon;
use xtask::spark::Submitted;

use crate::json::{list, number, text};
use crate::truth::spark_tasks;

/// Properties of rumen's `LoggedJob`, `LoggedTask`, `LoggedTaskAttempt` and `ResourceUsageMetrics`.
const JOB: &[&str] = &[
    "jobID",
    "user",
    "submitTime",
    "launchTime",
    "finishTime",
    "heapMegabytes",
    "totalMaps",
    "totalReduces",
    "outcome",
    "mapTasks",
    "reduceTasks",
    "otherTasks",
    "jobName",
    "jobProperties",
];
const TASK: &[&str] = &[
    "inputBytes",
    "inputRecords",
    "outputBytes",
    "outputRecords",
    "taskID",
    "startTime",
    "finishTime",
    "taskType",
    "taskStatus",
    "attempts",
];
const ATTEMPT: &[&str] = &[
    "attemptID",
    "result",
    "startTime",
    "finishTime",
    "hostName",
    "location",
    "hdfsBytesRead",
    "hdfsBytesWritten",
    "mapInputRecords",
    "mapInputBytes",
    "mapOutputBytes",
    "mapOutputRecords",
    "reduceInputRecords",
    "reduceShuffleBytes",
    "reduceOutputRecords",
    "resourceUsageMetrics",
    "clockSplits",
    "cpuUsages",
    "vmemKbytes",
    "physMemKbytes",
];
const METRICS: &[&str] = &[
    "cumulativeCpuUsage",
    "virtualMemoryUsage",
    "physicalMemoryUsage",
    "heapUsage",
];
/// By which the two sides' milliseconds since 1970 may differ for the same moment.
const CLOCKS_MS: u64 = 50;

fn only(object: &Value, names: &[&str]) -> Result<()> {
    let object = object.as_object().context("no object")?;
    let foreign: Vec<&String> = object
        .keys()
        .filter(|key| !names.contains(&key.as_str()))
        .collect();
    ensure!(foreign.is_empty(), "rumen has no {foreign:?}");
    Ok(())
}

fn splits(attempt: &Value, name: &str) -> Result<Vec<u64>> {
    let parts: Vec<u64> = list(attempt, name)?
        .iter()
        .filter_map(Value::as_u64)
        .collect();
    ensure!(parts.len() == 12, "{name}: {attempt}");
    Ok(parts)
}

/// Rows of SMTT and of Spark by stage, partition and id of the attempt.
type Attempts<'a> = BTreeMap<(u64, u64, u64), (&'a Value, Value)>;

/// The trace has every attempt that Spark has, with its host, times and result, and the sums of `rows`, which
/// `smtt-ctl tasks` gave. Returns the number of jobs and of attempts.
///
/// # Errors
/// With the difference.
pub fn same_trace(
    daemon: &Daemon,
    submitted: &Submitted,
    rows: &[Value],
) -> Result<(usize, usize)> {
    let application = submitted.application_id()?;
    let trace = daemon.ask(&["export", "--job-trace", &application])?;
    let jobs: Vec<Value> = serde_json::Deserializer::from_str(&trace)
        .into_iter()
        .collect::<Result<_, _>>()
        .context("no sequence of JSON objects")?;
    // In both lists: by stage, partition and id of the attempt, each job by itself.
    let mut expected: BTreeMap<u64, Attempts> = BTreeMap::new();
    for task in spark_tasks(submitted)? {
        let id = number(&task, "taskId")?;
        let row = rows.iter().find(|row| row["task_attempt_id"] == id);
        let row = row.with_context(|| format!("no row of {task}"))?;
        let key = (number(row, "stage_id")?, number(&task, "partitionId")?, id);
        let job = number(row, "job_id")?;
        expected.entry(job).or_default().insert(key, (row, task));
    }
    ensure!(jobs.len() == expected.len(), "{} jobs: {trace}", jobs.len());
    let mut attempts = 0;
    for (job, (id, mut expected)) in jobs.iter().zip(expected) {
        only(job, JOB)?;
        let name = text(job, "jobID")?;
        ensure!(name.ends_with(&format!("_{id:04}")), "{name} is not {id}");
        let (maps, reduces) = (list(job, "mapTasks")?, list(job, "reduceTasks")?);
        ensure!(number(job, "totalMaps")? == maps.len() as u64, "{job}");
        ensure!(
            number(job, "totalReduces")? == reduces.len() as u64,
            "{job}"
        );
        let (mut starts, mut ids) = (Vec::new(), BTreeSet::new());
        for (index, task) in maps.iter().chain(reduces).enumerate() {
            only(task, TASK)?;
            let is_map = index < maps.len();
            let kind = if is_map { "MAP" } else { "REDUCE" };
            ensure!(text(task, "taskType")? == kind, "{task}");
            ensure!(ids.insert(text(task, "taskID")?), "{task}");
            for attempt in list(task, "attempts")? {
                let (key, (row, spark)) = expected
                    .pop_first()
                    .with_context(|| format!("Spark has no {attempt}"))?;
                same_attempt(attempt, row, &spark)
                    .with_context(|| format!("{key:?}: {attempt}"))?;
                ensure!(ids.insert(text(attempt, "attemptID")?), "{attempt}");
                starts.push(number(attempt, "startTime")?);
                attempts += 1;
            }
        }
        ensure!(expected.is_empty(), "missing in {name}: {expected:?}");
        ensure!(starts.iter().min() == Some(&number(job, "launchTime")?));
    }
    Ok((jobs.len(), attempts))
}

fn same_attempt(attempt: &Value, row: &Value, spark: &Value) -> Result<()> {
    only(attempt, ATTEMPT)?;
    let result = text(attempt, "result")?;
    ensure!(result == text(spark, "status")?, "Spark: {spark}");
    let host = format!("/default-rack/{}", text(spark, "host")?);
    ensure!(text(attempt, "hostName")? == host, "Spark: {spark}");
    let launched = date_ms(&text(spark, "launchTime")?)?;
    let started = number(attempt, "startTime")?;
    ensure!(launched <= started + CLOCKS_MS, "Spark: {launched}");
    let ended = launched + number(spark, "duration")?;
    let finished = number(attempt, "finishTime")?;
    // The thread is not at its end when the driver has the result: it may have to wait for a CPU, or for a collection.
    let waits = ["cpu_wait_ns", "collection_ns"].map(|name| row[name].as_u64().unwrap_or(0));
    let waited = waits.iter().sum::<u64>() / 1_000_000;
    ensure!(
        started <= finished && finished <= ended + waited + CLOCKS_MS,
        "Spark: {ended}"
    );
    // A lost attempt has not reported how long it ran.
    let ran = spark["taskMetrics"]["executorRunTime"].as_u64();
    ensure!(
        finished - started + CLOCKS_MS >= ran.unwrap_or(0),
        "Spark: {ran:?} ms"
    );
    let metrics = &attempt["resourceUsageMetrics"];
    only(metrics, METRICS)?;
    let cpu_ms = number(row, "cpu_ns")? / 1_000_000;
    ensure!(number(metrics, "cumulativeCpuUsage")? == cpu_ms, "{row}");
    let cpu: u64 = splits(attempt, "cpuUsages")?.iter().sum();
    ensure!(cpu == cpu_ms, "{cpu} ms of CPU in parts: {row}");
    let clock: u64 = splits(attempt, "clockSplits")?.iter().sum();
    ensure!(
        clock == number(row, "used_duration_ns")? / 1_000_000,
        "{row}"
    );
    // States are read while a task runs: a short one has none.
    let virtual_ = list(attempt, "vmemKbytes")?;
    let resident = list(attempt, "physMemKbytes")?;
    ensure!(virtual_.len() == resident.len());
    if let (Some(last), false) = (resident.last().and_then(Value::as_u64), virtual_.is_empty()) {
        splits(attempt, "vmemKbytes")?;
        let bytes = number(metrics, "physicalMemoryUsage")?;
        ensure!(bytes >> 10 == last && bytes < number(metrics, "virtualMemoryUsage")?);
    }
    ensure!(number(metrics, "heapUsage")? > 1 << 20);
    Ok(())
}

/// Milliseconds since 1970 of a time as Spark's REST API writes it: `2026-11-21T09:30:45.123GMT`.
///
/// # Errors
/// When it is no such time.
pub fn date_ms(text: &str) -> Result<u64> {
    let digits: Vec<u64> = text
        .trim_end_matches("GMT")
        .split(|letter: char| !letter.is_ascii_digit())
        .map(str::parse)
        .collect::<Result<_, _>>()
        .with_context(|| format!("no time: {text}"))?;
    let [year, month, day, hour, minute, second, ms] = digits[..] else {
        anyhow::bail!("no time: {text}");
    };
    // Days from the civil calendar, with years that begin in March.
    let (y, m) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    Ok((((days * 24 + hour) * 60 + minute) * 60 + second) * 1000 + ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparks_dates_are_milliseconds_since_1970() {
        for (text, ms) in [
            ("1970-01-01T00:00:00.000GMT", 0),
            ("2000-02-29T12:00:00.007GMT", 951_825_600_007),
            ("2026-11-21T09:30:45.123GMT", 1_795_253_445_123),
        ] {
            assert_eq!(date_ms(text).expect("a time"), ms);
        }
        assert!(date_ms("yesterday").is_err());
    }
}
