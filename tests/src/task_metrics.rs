//! What tasks read, wrote, exchanged and spilled, compared with the stages of Spark's REST API.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use xtask::daemon::Daemon;
use xtask::spark::Submitted;

use crate::json::{list, number};
use crate::truth::agree;

/// Spark's name of each figure in a stage, and ours.
pub const METRICS: [(&str, &str); 10] = [
    ("inputBytes", "input_bytes"),
    ("inputRecords", "input_records"),
    ("outputBytes", "output_bytes"),
    ("outputRecords", "output_records"),
    ("shuffleReadBytes", "shuffle_read_bytes"),
    ("shuffleReadRecords", "shuffle_read_records"),
    ("shuffleWriteBytes", "shuffle_write_bytes"),
    ("shuffleWriteRecords", "shuffle_write_records"),
    ("memoryBytesSpilled", "memory_spilled_bytes"),
    ("diskBytesSpilled", "disk_spilled_bytes"),
];

/// Sums in the order of [`METRICS`].
pub type Sums = [u64; METRICS.len()];

fn add(sums: &mut Sums, row: &Value, name: impl Fn(usize) -> &'static str) {
    for (at, sum) in sums.iter_mut().enumerate() {
        *sum += row[name(at)].as_u64().unwrap_or(0);
    }
}

/// Stages that ran, by id and attempt, as Spark has them.
fn spark(submitted: &Submitted) -> Result<BTreeMap<(u64, u64), Sums>> {
    let stages = submitted.rest("stages")?;
    let mut sums = BTreeMap::new();
    for stage in stages.as_array().context("no list of stages")? {
        if matches!(stage["status"].as_str(), Some("SKIPPED" | "PENDING")) {
            continue;
        }
        let key = (number(stage, "stageId")?, number(stage, "attemptId")?);
        for (name, _) in METRICS {
            number(stage, name)?;
        }
        add(sums.entry(key).or_default(), stage, |at| METRICS[at].0);
    }
    Ok(sums)
}

/// The figures of each stage attempt are exactly Spark's, summed over executors. Returns the sums of all.
///
/// # Errors
/// With the differences.
pub fn same_metrics(daemon: &Daemon, submitted: &Submitted) -> Result<Sums> {
    same_metrics_from(daemon, submitted, 0)
}

/// As [`same_metrics`], of stages from this one on: earlier ones ran before the daemon knew the executors.
///
/// # Errors
/// With the differences.
pub fn same_metrics_from(daemon: &Daemon, submitted: &Submitted, first_stage: u64) -> Result<Sums> {
    let expected = || -> Result<BTreeMap<(u64, u64), Sums>> {
        let mut stages = spark(submitted)?;
        stages.retain(|(id, _), _| *id >= first_stage);
        Ok(stages)
    };
    let application = submitted.application_id()?;
    agree("metrics of stages", || {
        let mut seen: BTreeMap<(u64, u64), Sums> = BTreeMap::new();
        for row in daemon.rows(&["stages", "--app", &application])? {
            let key = (number(&row, "stage_id")?, number(&row, "stage_attempt")?);
            if key.0 >= first_stage {
                add(seen.entry(key).or_default(), &row, |at| METRICS[at].1);
            }
        }
        Ok((
            expected()?.into_iter().collect(),
            seen.into_iter().collect(),
        ))
    })?;
    let mut all = Sums::default();
    for sums in expected()?.into_values() {
        for (sum, more) in all.iter_mut().zip(sums) {
            *sum += more;
        }
    }
    Ok(all)
}

/// The figures of each job are exactly those of its stages in Spark's REST API, and those of an SQL execution of its
/// jobs. Call it after [`same_metrics`].
///
/// # Errors
/// With the differences.
pub fn same_metrics_of_jobs(daemon: &Daemon, submitted: &Submitted) -> Result<()> {
    let application = submitted.application_id()?;
    let stages = spark(submitted)?;
    // A stage that several jobs share belongs to the first.
    let mut job_of = BTreeMap::new();
    let jobs = submitted.rest("jobs")?;
    for job in jobs.as_array().context("no list of jobs")? {
        let id = number(job, "jobId")?;
        for stage in list(job, "stageIds")?.iter().filter_map(Value::as_u64) {
            let first = job_of.entry(stage).or_insert(id);
            *first = id.min(*first);
        }
    }
    let mut expected: BTreeMap<u64, Sums> = BTreeMap::new();
    for ((stage, _), sums) in stages {
        let job = job_of.get(&stage).context("a stage without a job")?;
        let own = expected.entry(*job).or_default();
        for (sum, more) in own.iter_mut().zip(sums) {
            *sum += more;
        }
    }
    let rows = daemon.rows(&["jobs", "--app", &application])?;
    let mut of_query: BTreeMap<Option<u64>, Sums> = BTreeMap::new();
    for row in &rows {
        let mut seen = Sums::default();
        add(&mut seen, row, |at| METRICS[at].1);
        let id = number(row, "job_id")?;
        ensure!(expected.remove(&id) == Some(seen), "job {id}: {row}");
        let query = of_query
            .entry(row["sql_execution_id"].as_u64())
            .or_default();
        add(query, row, |at| METRICS[at].1);
    }
    ensure!(expected.is_empty(), "not listed: {expected:?}");
    for row in daemon.rows(&["queries", "--app", &application])? {
        let mut seen = Sums::default();
        add(&mut seen, &row, |at| METRICS[at].1);
        let query = of_query.remove(&row["sql_execution_id"].as_u64());
        ensure!(query == Some(seen), "{query:?}: {row}");
    }
    ensure!(of_query.is_empty(), "not listed: {of_query:?}");
    Ok(())
}
