//! The parts of every task of a workload add up to the task's own totals.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::daemon::Daemon;
use crate::http;
use crate::json::number;
use crate::spark::Submitted;

/// Parts of a task's life.
const PARTS: usize = 12;
/// How long the daemon may take to have the accounts of the last tasks.
const SETTLE: Duration = Duration::from_secs(120);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(500);
/// The series whose totals a task's row has under the same name.
const SAME_NAME: [&str; 3] = ["cpu_ns", "heap_allocated_bytes", "call_read_bytes"];

/// Checks every ended task of the application; returns their number, which is the one that Spark has.
///
/// # Errors
/// When the parts of a task do not add up, or a task that Spark counts has none.
pub fn check(daemon: &Daemon, submitted: &Submitted, id: &str) -> Result<u64> {
    let start = Instant::now();
    loop {
        let theirs = spark_tasks(submitted)?;
        let answer = http::get_local(daemon.socket(), &format!("/v1/tasks/ended?app={id}"))?;
        let answer: Value = serde_json::from_str(&answer)?;
        let rows = answer["rows"].as_array().context("no rows")?;
        let ours = rows.iter().filter(|row| row["splits"].is_object()).count() as u64;
        if ours == theirs && rows.len() as u64 == theirs {
            rows.iter().try_for_each(adds_up)?;
            return Ok(ours);
        }
        ensure!(
            start.elapsed() < SETTLE,
            "Spark has {theirs} ended tasks, SMTT {}, of which {ours} have parts",
            rows.len()
        );
        thread::sleep(LOOK);
    }
}

/// Tasks that have ended, by Spark's own count.
fn spark_tasks(submitted: &Submitted) -> Result<u64> {
    let executors = submitted.rest("allexecutors")?;
    let executors = executors.as_array().context("Spark lists no executors")?;
    executors.iter().try_fold(0, |sum, executor| {
        Ok(sum + number(executor, "completedTasks")? + number(executor, "failedTasks")?)
    })
}

/// Checks the series of one task against the totals in its row.
fn adds_up(row: &Value) -> Result<()> {
    for splits in ["splits", "splits_by_input"] {
        let Some(all) = row[splits]["series"].as_object() else {
            continue;
        };
        for (name, series) in all {
            let parts = series["parts"].as_array().context("no parts")?;
            ensure!(parts.len() == PARTS, "{name}, {splits} of {row}");
            let Some(total) = series["total"].as_u64() else {
                continue;
            };
            let sum: u64 = parts.iter().filter_map(Value::as_u64).sum();
            ensure!(sum == total, "{name}: {sum} of {total}, {splits} of {row}");
        }
        for name in SAME_NAME {
            ensure!(
                all.get(name)
                    .is_none_or(|series| series["total"] == row[name]),
                "{name}, {splits} of {row}"
            );
        }
        let faults = number(row, "thread_minor_faults")? + number(row, "thread_major_faults")?;
        ensure!(
            all.get("thread_page_faults")
                .is_some_and(|series| series["total"] == faults),
            "page faults, {splits} of {row}"
        );
        ensure!(
            all.get("wall_ns")
                .is_some_and(|series| series["total"] == row["used_duration_ns"]),
            "duration, {splits} of {row}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(cpu: [u64; PARTS], total: u64) -> Value {
        let series = |total: u64| {
            let mut parts = [0; PARTS];
            parts[0] = total;
            json!({"parts": parts, "total": total})
        };
        json!({
            "cpu_ns": 12, "used_duration_ns": 20, "thread_minor_faults": 3, "thread_major_faults": 1,
            "splits": {"series": {
                "cpu_ns": {"parts": cpu, "total": total},
                "resident_bytes": {"parts": vec![5; PARTS]},
                "thread_page_faults": series(4),
                "wall_ns": series(20),
            }},
        })
    }

    #[test]
    fn parts_that_do_not_add_up_are_refused() {
        adds_up(&row([1; PARTS], 12)).expect("good");
        let mut more = [1; PARTS];
        more[3] = 2;
        assert!(adds_up(&row(more, 12)).is_err(), "more than the total");
        assert!(
            adds_up(&row(more, 13)).is_err(),
            "another total than the row's"
        );
        let mut other = row([1; PARTS], 12);
        other["thread_major_faults"] = 2.into();
        assert!(adds_up(&other).is_err(), "other page faults");
    }
}
