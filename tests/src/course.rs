//! How jobs, SQL executions and stages went: states and times, compared with Spark's REST API.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use xtask::daemon::Daemon;
use xtask::spark::Submitted;

use crate::job_trace::date_ms;
use crate::json::{number, text};
use crate::truth::{agree, array, spark_stages};

/// Id and attempt (zero for jobs), state, begin and end.
type Course = (u64, u64, Option<String>, Option<u64>, Option<u64>);

fn time(of: &Value, field: &str) -> Result<Option<u64>> {
    of[field].as_str().map(date_ms).transpose()
}

/// The words of Spark's REST API in ours.
fn state(of: &Value) -> Option<String> {
    let state = match of["status"].as_str()? {
        "RUNNING" | "ACTIVE" => "running",
        "SUCCEEDED" | "COMPLETE" => "succeeded",
        "FAILED" => "failed",
        other => other,
    };
    Some(state.to_owned())
}

fn seen(row: &Value, id: &str, begin: &str, end: &str) -> Result<Course> {
    let attempt = row["stage_attempt"].as_u64().unwrap_or(0);
    let state = row["state"].as_str().map(str::to_owned);
    let (begin, end) = (row[begin].as_u64(), row[end].as_u64());
    let duration = end.zip(begin).map(|(end, begin)| (end - begin) * 1_000_000);
    ensure!(row["duration_ns"].as_u64() == duration, "{row}");
    Ok((number(row, id)?, attempt, state, begin, end))
}

/// Every job and every stage attempt that ran has Spark's state and its times, to the millisecond; what failed has a
/// reason. An SQL execution goes from the begin of its first job to the end of its last. Returns how many of them there
/// are in each state.
///
/// # Errors
/// With the differences.
pub fn same_course(daemon: &Daemon, submitted: &Submitted) -> Result<BTreeMap<String, usize>> {
    let application = submitted.application_id()?;
    let rows = |listing: &str| daemon.rows(&[listing, "--app", &application]);
    let mut states = BTreeMap::<String, usize>::new();
    agree("courses of jobs and stages", || {
        let (mut expected, mut found) = (BTreeSet::new(), BTreeSet::new());
        states.clear();
        for job in array(submitted.rest("jobs")?, "Spark's list of jobs")? {
            let (begin, end) = (time(&job, "submissionTime")?, time(&job, "completionTime")?);
            expected.insert((number(&job, "jobId")?, 0, state(&job), begin, end));
        }
        for row in rows("jobs")? {
            let course = seen(&row, "job_id", "started_unix_ms", "ended_unix_ms")?;
            ensure!(
                (course.2.as_deref() == Some("failed")) == row["failure"].is_string(),
                "{row}"
            );
            *states.entry(format!("jobs {:?}", course.2)).or_default() += 1;
            found.insert(course);
        }
        for stage in spark_stages(submitted)? {
            let id = 1_000_000 + number(&stage, "stageId")?;
            let (begin, end) = (
                time(&stage, "submissionTime")?,
                time(&stage, "completionTime")?,
            );
            expected.insert((id, number(&stage, "attemptId")?, state(&stage), begin, end));
        }
        for row in rows("stages")? {
            let mut course = seen(&row, "stage_id", "submitted_unix_ms", "completed_unix_ms")?;
            ensure!(
                (course.2.as_deref() == Some("failed")) == row["failure"].is_string(),
                "{row}"
            );
            *states.entry(format!("stages {:?}", course.2)).or_default() += 1;
            course.0 += 1_000_000;
            found.insert(course);
        }
        Ok((expected, found))
    })?;
    let jobs = rows("jobs")?;
    for query in rows("queries")? {
        let own = || {
            let id = query["sql_execution_id"].as_u64();
            jobs.iter()
                .filter(move |job| job["sql_execution_id"].as_u64() == id)
        };
        if query["sql_execution_id"].is_null() {
            continue;
        }
        let first = own()
            .filter_map(|job| job["started_unix_ms"].as_u64())
            .min();
        let last = own().filter_map(|job| job["ended_unix_ms"].as_u64()).max();
        ensure!(
            query["started_unix_ms"].as_u64() == first
                && query["ended_unix_ms"].as_u64() == last
                && last.is_some(),
            "{query}"
        );
        text(&query, "state").context("a query without a state")?;
    }
    Ok(states)
}
