//! What tasks used: compared with Spark's own figures, with a known allocation and a known CPU time, however a task ends.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_tests::application::LOCAL_CLUSTER;
use smtt_tests::job_trace::same_trace;
use smtt_tests::json::{number, text};
use smtt_tests::lab::{LIMIT, SparkLab};
use smtt_tests::task_metrics::same_metrics;
use smtt_tests::truth::spark_tasks;
use xtask::process::wait_for;
use xtask::spark::Application;

/// MiB that a task allocates.
const MIB: u64 = 256;
/// CPU time that a task burns.
const BURN_NS: u64 = 1_000_000_000;
/// CPU time of a task's runner outside of what Spark measures, in a JVM that has run such tasks before: it fetches the
/// task, collects its metrics, and makes and sends its result.
const AROUND_NS: u64 = 30_000_000;

/// Whether a value is at least the truth, and at most 1 % more.
fn within_a_percent(value: u64, truth: u64) -> bool {
    value >= truth && value - truth <= truth / 100
}

#[test]
fn each_attempt_says_what_it_used() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let daemon = lab.daemon()?;
    let burn_ms = (BURN_NS / 1_000_000).to_string();
    let application = Application::java(
        &lab.paths,
        LOCAL_CLUSTER,
        "Spending",
        &["4", &MIB.to_string(), &burn_ms],
    )?
    .with_marker(&lab.paths);
    let mut run = lab.run(application)?;
    run.open("begin")?;
    run.reach("hanging")?;
    wait_for("the tasks hang", LIMIT, || {
        let tasks = run.rows(&daemon, &["tasks"])?;
        let hanging = tasks.iter().filter(|task| {
            task["state"].as_str() == Some("running")
                && task["duration_ns"].as_u64() > Some(4 * BURN_NS)
        });
        Ok((hanging.count() == 2).then_some(()))
    })?;
    run.open("hanging")?;
    run.reach("end")?;
    // The last heartbeats, and the daemon's last tick.
    let (spark, rows) = wait_for("Spark and SMTT list the same tasks", LIMIT, || {
        let spark = spark_tasks(&run.submitted)?;
        let rows = run.rows(&daemon, &["tasks"])?;
        let ends = ["task_end", "thread_exit", "next_task"];
        let done = rows.iter().all(|row| {
            row["used_until"]
                .as_str()
                .is_some_and(|until| ends.contains(&until))
        });
        Ok((done && rows.len() == spark.len()).then_some((spark, rows)))
    })?;
    let of: BTreeMap<u64, &Value> = rows
        .iter()
        .map(|row| Ok((number(row, "task_attempt_id")?, row)))
        .collect::<Result<_>>()?;
    let mut endings: BTreeMap<String, u64> = BTreeMap::new();
    let mut most = 0;
    for task in &spark {
        let id = number(task, "taskId")?;
        let row = of.get(&id).with_context(|| format!("no task {id}"))?;
        let ending = format!("{} {}", text(row, "state")?, text(row, "used_until")?);
        *endings.entry(ending).or_default() += 1;
        ensure!(row["used_is_partial"].is_null(), "{row}");
        let cpu = number(row, "cpu_ns")?;
        for figure in [
            "cpu_wait_ns",
            "context_switches",
            "disk_read_bytes",
            "thread_minor_faults",
        ] {
            number(row, figure)?;
        }
        ensure!(cpu <= number(row, "used_duration_ns")?, "{row}");
        let metrics = &task["taskMetrics"];
        let (Some(run), Some(deserialize), Some(collected)) = (
            metrics["executorCpuTime"].as_u64(),
            metrics["executorDeserializeCpuTime"].as_u64(),
            metrics["jvmGcTime"].as_u64(),
        ) else {
            println!("Spark has no metrics of task {id}: {row}");
            continue;
        };
        // Spark's own times stand beside, as Spark's REST API has them. An ended JVM has not reported them.
        if text(row, "used_until")? == "task_end" {
            let run_ms = number(metrics, "executorRunTime")?;
            let own = [
                ("spark_cpu_ns", run),
                ("spark_deserialize_cpu_ns", deserialize),
                ("spark_run_ns", run_ms * 1_000_000),
                ("spark_collection_ns", collected * 1_000_000),
            ];
            for (figure, truth) in own {
                ensure!(
                    number(row, figure)? == truth,
                    "{figure} of task {id}: Spark has {truth}; {row}"
                );
            }
        }
        let counted = run + deserialize;
        println!(
            "stage {} task {id}, {}: {cpu} ns of CPU, Spark has {run} and {deserialize}, {} more; {} ns of collections, Spark {collected} ms; {} bytes",
            number(row, "stage_id")?,
            text(row, "state")?,
            cpu.saturating_sub(counted),
            row["collection_ns"],
            row["heap_allocated_bytes"],
        );
        ensure!(
            cpu >= counted,
            "Spark counts more for task {id}: {counted} ns; {row}"
        );
        // An ended JVM has not said what the task used of its heap.
        if row["heap_allocated_bytes"].is_null() {
            ensure!(text(row, "state")? == "lost", "{row}");
        } else {
            ensure!(
                number(row, "collection_ns")? / 1_000_000 >= collected,
                "{row}"
            );
        }
        // A short task is mostly what is around it; a task that Spark itself counted to the end has a small rest.
        if text(row, "state")? == "succeeded" && run >= BURN_NS {
            most = most.max((cpu - counted) * 1000 / cpu);
            ensure!(cpu - counted <= AROUND_NS, "task {id}: {}", cpu - counted);
        }
    }
    println!(
        "endings: {endings:?}; at most {most} thousandths of CPU time outside of what Spark measures"
    );
    for ending in [
        "succeeded task_end",
        "failed task_end",
        "killed task_end",
        "lost thread_exit",
    ] {
        ensure!(
            endings.contains_key(ending),
            "no task has {ending}: {endings:?}"
        );
    }
    // The jobs come one after the other: 0 and 1 warm, 2 allocates, 3 burns, 4 fails, 5 hangs, 6 halts.
    let stage = |stage: u64| {
        rows.iter()
            .filter(move |row| row["stage_id"].as_u64() == Some(stage))
    };
    for row in stage(2).chain(stage(4)) {
        let allocated = number(row, "heap_allocated_bytes")?;
        ensure!(
            within_a_percent(allocated, MIB << 20),
            "{allocated} bytes are not {MIB} MiB: {row}"
        );
    }
    for row in stage(3).chain(stage(5)).chain(stage(6)) {
        let cpu = number(row, "cpu_ns")?;
        ensure!(cpu >= BURN_NS - 10_000_000, "{cpu} ns in {row}");
    }
    ensure!(stage(4).count() == 5 && stage(5).count() >= 2 && stage(6).count() >= 5);
    // The sums of the stages are those of their tasks.
    for row in run.rows(&daemon, &["stages"])? {
        let (id, executor) = (number(&row, "stage_id")?, text(&row, "executor_id")?);
        let own: Vec<&Value> = stage(id)
            .filter(|task| task["executor_id"].as_str() == Some(&executor))
            .collect();
        for figure in ["cpu_ns", "heap_allocated_bytes", "context_switches"] {
            let sum: u64 = own.iter().filter_map(|task| task[figure].as_u64()).sum();
            ensure!(
                row[figure].as_u64().unwrap_or(0) == sum,
                "{figure} of {row}: {sum}"
            );
        }
        ensure!(number(&row, "used_tasks")? == own.len() as u64, "{row}");
        ensure!(number(&row, "used_partial_tasks")? == 0, "{row}");
    }
    same_metrics(&daemon, &run.submitted)?;
    for row in rows.iter().filter(|row| row["state"] != "lost") {
        number(row, "shuffle_write_bytes")?;
    }
    let (jobs, attempts) = same_trace(&daemon, &run.submitted, &rows)?;
    ensure!(
        jobs >= 6 && attempts == rows.len(),
        "{jobs} jobs, {attempts}"
    );
    println!("job trace: {jobs} jobs with {attempts} attempts");
    assert_eq!(run.finish(&["end"])?, "RESULT spending 4");
    drop(daemon);
    lab.passed()
}
