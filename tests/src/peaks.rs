//! Peaks of executors and stages against those of Spark's REST API.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use xtask::daemon::Daemon;

use crate::json::{number, text};
use crate::lab::Run;
use crate::truth::spark_stages;

/// Peaks of one executor by Spark's REST API.
///
/// # Errors
/// When Spark does not answer, or has no such executor.
pub fn executor_peaks(run: &Run, executor: &str) -> Result<Value> {
    let all = run.submitted.rest("executors")?;
    let mut of = all.as_array().into_iter().flatten();
    let found = of.find(|one| one["id"] == executor);
    let found = found.with_context(|| format!("Spark lists no executor {executor}"))?;
    Ok(found["peakMemoryMetrics"].clone())
}

/// No peak is below Spark's: of no living executor and of no stage, for every metric that Spark has.
///
/// # Errors
/// With the peak that is below Spark's.
pub fn at_least_sparks(daemon: &Daemon, run: &Run) -> Result<()> {
    // Spark first: its peaks only grow.
    let spark = run.submitted.rest("executors")?;
    let stages = spark_stages(&run.submitted)?;
    // The marker reports once a second.
    sleep(Duration::from_secs(3));
    let rows = run.rows(daemon, &["memory"])?;
    let mut executors = 0;
    for one in spark.as_array().into_iter().flatten() {
        let id = text(one, "id")?;
        if id == "driver" {
            continue;
        }
        let row = rows.iter().find(|row| row["executor_id"] == id.as_str());
        let row = row.with_context(|| format!("no memory of executor {id}"))?;
        let Some(metrics) = one["peakMemoryMetrics"].as_object() else {
            // Spark has none before an executor's first heartbeat with them.
            println!("Spark has no peaks of executor {id}");
            continue;
        };
        ensure!(metrics.len() > 15, "Spark has few peaks: {metrics:?}");
        for (metric, value) in metrics {
            let ours = row["peaks"][metric]["value"].as_u64();
            println!("executor {id}, {metric}: {ours:?}, Spark {value}");
            ensure!(
                ours >= value.as_u64() && ours.is_some(),
                "executor {id}, {metric}: {ours:?} is below Spark's {value}"
            );
        }
        executors += 1;
    }
    ensure!(executors > 0, "Spark has peaks of no executor");
    // Spark's peak of a stage is the largest over its executors.
    let mut ours: BTreeMap<(u64, u64, String), u64> = BTreeMap::new();
    for row in run.rows(daemon, &["stages"])? {
        let (Some(id), Some(attempt)) = (row["stage_id"].as_u64(), row["stage_attempt"].as_u64())
        else {
            continue;
        };
        for (metric, peak) in row["executor_peaks"].as_object().into_iter().flatten() {
            let most = ours.entry((id, attempt, metric.clone())).or_default();
            *most = (*most).max(number(peak, "value")?);
        }
    }
    let mut compared = 0;
    for stage in &stages {
        let (id, attempt) = (number(stage, "stageId")?, number(stage, "attemptId")?);
        let metrics = stage["peakExecutorMetrics"].as_object();
        for (metric, value) in metrics.into_iter().flatten() {
            let value = value.as_u64().unwrap_or(0);
            let key = (id, attempt, metric.clone());
            let most = ours.get(&key).copied();
            ensure!(
                most.unwrap_or(0) >= value,
                "stage {id}.{attempt}, {metric}: {most:?} is below Spark's {value}"
            );
            compared += u64::from(value > 0);
        }
    }
    println!("{executors} executors, {compared} peaks of stages are not below Spark's");
    ensure!(compared > 0, "Spark has no peaks of stages");
    Ok(())
}
