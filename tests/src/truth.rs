//! Comparisons of SMTT's answers with Spark's own REST API while the application runs.
//!
//! Both sides lag behind: Spark's listing follows the executors' heartbeats, ours the daemon's tick. At a gate nothing
//! changes any more, so both sides are queried until they agree or the time is over; then the first differences are the
//! error.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::Value;
use xtask::daemon::Daemon;
use xtask::spark::Submitted;

use crate::faults::Pair;
use crate::json::{number, text};

/// How long the two sides may take to agree at a gate.
const SETTLE: Duration = Duration::from_secs(120);
/// How long collections, and readings of the daemon that come late, may interfere between an answer and the test's own
/// reading of the same memory.
const UNDISTURBED: Duration = Duration::from_secs(300);
/// Relative difference of two counts of page faults that is allowed.
const FAULT_TOLERANCE: f64 = 0.01;

/// Queries both sides until they agree.
///
/// # Errors
/// With the differences, when the sides do not agree within two minutes.
pub fn agree<T: Ord + std::fmt::Debug>(
    what: &str,
    mut ask: impl FnMut() -> Result<(BTreeSet<T>, BTreeSet<T>)>,
) -> Result<usize> {
    let start = Instant::now();
    loop {
        let (expected, seen) = ask()?;
        if expected == seen {
            return Ok(expected.len());
        }
        if start.elapsed() > SETTLE {
            let missing: Vec<_> = expected.difference(&seen).take(5).collect();
            let extra: Vec<_> = seen.difference(&expected).take(5).collect();
            bail!(
                "{what}: Spark has {}, SMTT has {}\n  only in Spark: {missing:#?}\n  only in SMTT: {extra:#?}",
                expected.len(),
                seen.len()
            );
        }
        thread::sleep(Duration::from_millis(300));
    }
}

/// Retries where the collector may have moved blocks between an answer and the test's own reading.
///
/// # Errors
/// With the last error, when every attempt fails for five minutes.
pub fn unless_collected<T>(mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        match ask() {
            Err(error) if start.elapsed() < UNDISTURBED => {
                println!("again, the collector may have run: {error:#}");
                thread::sleep(Duration::from_millis(300));
            }
            answer => return answer,
        }
    }
}

/// One attempt of a task, with the fields that both sides have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Task {
    stage: u64,
    stage_attempt: u64,
    task: u64,
    partition: u64,
    executor: String,
    state: String,
}

/// One stage with the outcomes of its tasks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stage {
    stage: u64,
    attempt: u64,
    name: String,
    succeeded: u64,
    failed: u64,
    killed: u64,
}

/// The rows of a list.
///
/// # Errors
/// When the value is no list.
pub fn array(value: Value, what: &str) -> Result<Vec<Value>> {
    match value {
        Value::Array(rows) => Ok(rows),
        other => bail!("{what} is not a list: {other}"),
    }
}

/// Every stage attempt that Spark submitted.
///
/// # Errors
/// When Spark does not answer.
pub fn spark_stages(submitted: &Submitted) -> Result<Vec<Value>> {
    let stages = array(submitted.rest("stages")?, "Spark's list of stages")?;
    // A skipped stage was never submitted and has no tasks.
    Ok(stages
        .into_iter()
        .filter(|stage| !matches!(stage["status"].as_str(), Some("SKIPPED" | "PENDING")))
        .collect())
}

/// Every task attempt, as Spark lists them.
///
/// # Errors
/// When Spark does not answer.
pub fn spark_tasks(submitted: &Submitted) -> Result<Vec<Value>> {
    let mut tasks = Vec::new();
    for stage in spark_stages(submitted)? {
        let (id, attempt) = (number(&stage, "stageId")?, number(&stage, "attemptId")?);
        tasks.extend(array(
            submitted.rest(&format!("stages/{id}/{attempt}/taskList?length=100000"))?,
            "Spark's list of tasks",
        )?);
    }
    Ok(tasks)
}

/// Every task attempt is listed with its stage, partition, executor and state; there are no others.
///
/// # Errors
/// With the differences.
pub fn same_tasks(daemon: &Daemon, submitted: &Submitted) -> Result<usize> {
    same_tasks_from(daemon, submitted, 0)
}

/// As [`same_tasks`], of stages from this one on: earlier ones ran before the daemon knew the executors.
///
/// # Errors
/// With the differences.
pub fn same_tasks_from(daemon: &Daemon, submitted: &Submitted, first_stage: u64) -> Result<usize> {
    let application = submitted.application_id()?;
    agree("tasks", || {
        let mut expected = BTreeSet::new();
        for stage in spark_stages(submitted)? {
            let (id, attempt) = (number(&stage, "stageId")?, number(&stage, "attemptId")?);
            if id < first_stage {
                continue;
            }
            for task in array(
                submitted.rest(&format!("stages/{id}/{attempt}/taskList?length=100000"))?,
                "Spark's list of tasks",
            )? {
                let state = match task["status"].as_str().unwrap_or_default() {
                    "SUCCESS" => "succeeded".to_owned(),
                    other => other.to_lowercase(),
                };
                expected.insert(Task {
                    stage: id,
                    stage_attempt: attempt,
                    task: number(&task, "taskId")?,
                    // Spark 3.3 and older have no partitionId; the index equals it except in a stage's second attempt.
                    partition: task["partitionId"]
                        .as_u64()
                        .map_or_else(|| number(&task, "index"), Ok)?,
                    executor: text(&task, "executorId")?,
                    state,
                });
            }
        }
        let mut seen = BTreeSet::new();
        for task in daemon.rows(&["tasks", "--app", &application])? {
            if number(&task, "stage_id")? < first_stage {
                continue;
            }
            let unique = seen.insert(Task {
                stage: number(&task, "stage_id")?,
                stage_attempt: number(&task, "stage_attempt")?,
                task: number(&task, "task_attempt_id")?,
                partition: number(&task, "partition")?,
                executor: text(&task, "executor_id")?,
                state: text(&task, "state")?,
            });
            if !unique {
                bail!("a task is listed twice: {task}");
            }
        }
        Ok((expected, seen))
    })
}

/// Every stage attempt is listed with its name and the outcomes of its tasks, summed over executors; there are no
/// others.
///
/// # Errors
/// With the differences.
pub fn same_stages(daemon: &Daemon, submitted: &Submitted) -> Result<usize> {
    let application = submitted.application_id()?;
    agree("stages", || {
        let mut expected = BTreeSet::new();
        for stage in spark_stages(submitted)? {
            expected.insert(Stage {
                stage: number(&stage, "stageId")?,
                attempt: number(&stage, "attemptId")?,
                name: text(&stage, "name")?,
                succeeded: number(&stage, "numCompleteTasks")?,
                failed: number(&stage, "numFailedTasks")?,
                killed: number(&stage, "numKilledTasks")?,
            });
        }
        let mut seen: BTreeMap<(u64, u64), Stage> = BTreeMap::new();
        for row in daemon.rows(&["stages", "--app", &application])? {
            let (stage, attempt) = (number(&row, "stage_id")?, number(&row, "stage_attempt")?);
            let of = seen.entry((stage, attempt)).or_insert_with(|| Stage {
                stage,
                attempt,
                name: row["name"].as_str().unwrap_or_default().to_owned(),
                succeeded: 0,
                failed: 0,
                killed: 0,
            });
            of.succeeded += number(&row, "tasks_succeeded")?;
            of.failed += number(&row, "tasks_failed")?;
            of.killed += number(&row, "tasks_killed")?;
        }
        Ok((expected, seen.into_values().collect()))
    })
}

/// Storage memory of one RDD, summed over executors.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cached {
    rdd: u64,
    name: String,
    bytes: u64,
    blocks: u64,
}

/// The storage memory of every RDD is the `memoryUsed` of Spark's storage listing, and the numbers of blocks are equal.
///
/// For deserialised levels that figure is Spark's own estimate; SMTT reports the same estimate. Returns the bytes by
/// name of RDD.
///
/// # Errors
/// With the differences.
pub fn same_storage(daemon: &Daemon, submitted: &Submitted) -> Result<BTreeMap<String, u64>> {
    let application = submitted.application_id()?;
    let mut bytes = BTreeMap::new();
    agree("storage memory", || {
        let mut expected = BTreeSet::new();
        for rdd in array(
            submitted.rest("storage/rdd")?,
            "Spark's list of cached RDDs",
        )? {
            let id = number(&rdd, "id")?;
            let detail = submitted.rest(&format!("storage/rdd/{id}"))?;
            let partitions = array(detail["partitions"].clone(), "Spark's list of partitions")?;
            let mut blocks = 0;
            for partition in &partitions {
                if number(partition, "memoryUsed")? > 0 {
                    // A replicated partition has one block in each executor that holds it.
                    blocks += partition["executors"].as_array().map_or(1, Vec::len) as u64;
                }
            }
            let used = number(&rdd, "memoryUsed")?;
            if used > 0 {
                expected.insert(Cached {
                    rdd: id,
                    name: text(&rdd, "name")?,
                    bytes: used,
                    blocks,
                });
            }
        }
        let mut seen: BTreeMap<u64, Cached> = BTreeMap::new();
        for row in daemon.rows(&["rdds", "--app", &application])? {
            let held = row["storage_memory_bytes"].as_u64().unwrap_or(0);
            // Broadcasts are storage memory without an RDD; Spark's listing leaves them out.
            if held == 0 || row["rdd_id"].is_null() {
                continue;
            }
            let rdd = number(&row, "rdd_id")?;
            let of = seen.entry(rdd).or_insert_with(|| Cached {
                rdd,
                name: row["name"].as_str().unwrap_or_default().to_owned(),
                bytes: 0,
                blocks: 0,
            });
            of.bytes += held;
            of.blocks += number(&row, "partitions_cached")?;
        }
        bytes = seen
            .values()
            .map(|cached| (cached.name.clone(), cached.bytes))
            .collect();
        Ok((expected, seen.into_values().collect()))
    })?;
    Ok(bytes)
}

/// Whether both sides count the same page faults: within 1 %, plus the faults of idle threads between the two readings.
///
/// # Errors
/// When the counts differ by more.
pub fn same_faults(what: &str, pair: &Pair) -> Result<()> {
    same_faults_within(what, pair, FAULT_TOLERANCE)
}

/// As [`same_faults`], with another tolerance as a share of the kernel's count.
///
/// # Errors
/// When the counts differ by more.
pub fn same_faults_within(what: &str, pair: &Pair, tolerance: f64) -> Result<()> {
    let (kernel, smtt) = (pair.kernel, pair.smtt);
    let difference = kernel.abs_diff(smtt).saturating_sub(pair.idle) as f64 / kernel.max(1) as f64;
    println!(
        "{what}: the kernel counted {kernel} faults, SMTT {smtt}: {:.3} % apart",
        100.0 * difference
    );
    if difference > tolerance {
        bail!("{what}: the kernel counted {kernel} faults, SMTT {smtt}: {pair:?}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_per_cent_is_the_limit() {
        let same = |kernel, smtt, idle| {
            let attributed = 0;
            let pair = Pair {
                kernel,
                smtt,
                attributed,
                idle,
                ..Pair::default()
            };
            same_faults("a case", &pair).is_ok()
        };
        assert!(same(10_000, 10_099, 0));
        assert!(!same(10_000, 10_101, 0));
        assert!(!same(10_000, 9_899, 0));
        assert!(!same(0, 1, 0));
        assert!(same(10_000, 9_899, 1) && !same(10_000, 9_898, 1));
    }

    #[test]
    fn agreement_is_of_sets() {
        let pairs = |a: &[u8], b: &[u8]| (a.iter().copied().collect(), b.iter().copied().collect());
        assert_eq!(
            agree("same", || Ok(pairs(&[1, 2], &[2, 1]))).expect("agrees"),
            2
        );
    }
}
