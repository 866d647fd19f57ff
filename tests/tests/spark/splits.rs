//! The parts of tasks' lives, and stages in quantiles, compared with a known course and with Spark's REST API.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_model::rows::Quantiles;
use smtt_tests::application::LOCAL_CLUSTER;
use smtt_tests::json::number;
use smtt_tests::lab::{LIMIT, SparkLab};
use smtt_tests::truth::spark_tasks;
use xtask::process::wait_for;
use xtask::spark::Application;

/// CPU seconds of a task's first half, and MiB that it holds in the second, which is as long.
const HALF_S: u64 = 6;
const MIB: u64 = 128;
/// The stage of these tasks; that of the short ones is the first.
const LONG_STAGE: u64 = 1;
/// The figures that both halves of a comparison have.
const FIGURES: [&str; 4] = [
    "cpu_ns",
    "context_switches",
    "heap_allocated_bytes",
    "duration_ns",
];

fn parts(task: &Value, name: &str) -> Result<Vec<u64>> {
    parts_of(task, "splits", name)
}

fn parts_of(task: &Value, splits: &str, name: &str) -> Result<Vec<u64>> {
    let parts = task[splits]["series"][name]["parts"].as_array();
    let parts = parts.with_context(|| format!("no {name} in {task}"))?;
    Ok(parts.iter().filter_map(Value::as_u64).collect())
}

/// The quantiles of Spark's definition, over values that a listing has.
fn recomputed(rows: &[&Value], figure: &str) -> Option<Value> {
    // A duration that is only a lower bound is in no quantile: the executor's first task may begin before its probes.
    let whole = |row: &&&Value| figure != "duration_ns" || row["duration_is_lower_bound"] != true;
    let values = rows.iter().filter(whole);
    let mut values: Vec<u64> = values.filter_map(|row| row[figure].as_u64()).collect();
    values.sort_unstable();
    let at = |q: f64| values[((q * values.len() as f64) as usize).min(values.len() - 1)];
    (!values.is_empty()).then(|| {
        serde_json::json!({
            "min": at(0.0), "p25": at(0.25), "median": at(0.5), "p75": at(0.75), "max": at(1.0),
            "values": values.len(),
        })
    })
}

#[test]
fn tasks_show_the_course_of_their_use_and_stages_their_quantiles() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let daemon = lab.daemon()?;
    let arguments = ["2".to_owned(), HALF_S.to_string(), MIB.to_string()];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let application =
        Application::java(&lab.paths, LOCAL_CLUSTER, "Halves", &arguments)?.with_marker(&lab.paths);
    let mut run = lab.run(application)?;
    run.open("begin")?;
    run.reach("end")?;
    let (spark, rows) = wait_for("Spark and SMTT list the same tasks", LIMIT, || {
        let spark = spark_tasks(&run.submitted)?;
        let rows = run.rows(&daemon, &["tasks"])?;
        let done = rows.iter().all(|row| row["used_until"] == "task_end");
        Ok((done && rows.len() == spark.len()).then_some((spark, rows)))
    })?;
    ensure!(rows.len() == 16, "{} tasks", rows.len());
    let application = run.submitted.application_id()?;
    // The parts of every task add up to its totals.
    let mut long = 0;
    for row in &rows {
        let id = number(row, "task_attempt_id")?.to_string();
        let task = daemon.rows(&["task", &id, "--app", &application])?;
        ensure!(task.len() == 1, "{task:?}");
        let task = &task[0];
        let all = task["splits"]["series"].as_object();
        let all = all.with_context(|| format!("no splits of {task}"))?;
        for name in ["cpu_ns", "heap_allocated_bytes", "call_read_bytes"] {
            ensure!(all[name]["total"] == row[name], "{name} of {task}");
        }
        let faults = number(row, "thread_minor_faults")? + number(row, "thread_major_faults")?;
        ensure!(all["thread_page_faults"]["total"] == faults, "{task}");
        ensure!(all["wall_ns"]["total"] == row["used_duration_ns"], "{task}");
        for (name, series) in all {
            let parts = parts(task, name)?;
            ensure!(parts.len() == 12, "{name} of {task}");
            if let Some(total) = series["total"].as_u64() {
                ensure!(parts.iter().sum::<u64>() == total, "{name} of {task}");
            }
        }
        if number(row, "stage_id")? != LONG_STAGE {
            continue;
        }
        long += 1;
        println!("{}", daemon.ask(&["task", &id, "--app", &application])?);
        for name in ["cpu_ns", "heap_allocated_bytes"] {
            let parts = parts(task, name)?;
            let (first, last) = (
                parts[..6].iter().sum::<u64>(),
                parts[7..].iter().sum::<u64>(),
            );
            ensure!(first > 9 * last, "{name} by part: {parts:?}");
            ensure!(number(&all[name], "measured_points")? >= 6, "{task}");
        }
        // The buffer is filled at the begin of the seventh part.
        let held = parts(task, "resident_bytes")?;
        ensure!(
            held[8..]
                .iter()
                .all(|part| *part > held[4] + (MIB << 20) * 9 / 10),
            "resident memory by part: {held:?}"
        );
    }
    ensure!(long == 2, "{long} long tasks");
    // Quantiles: of the listed tasks, and by Spark's definition.
    let summaries = daemon.rows(&["stages", "--summary", "--app", &application])?;
    ensure!(summaries.len() == 2, "{summaries:?}");
    println!(
        "{}",
        daemon.ask(&["stages", "--summary", "--app", &application])?
    );
    let mut executors = run.rows(&daemon, &["stages"])?;
    executors.retain(|row| row["tasks_succeeded"] != 0);
    for summary in &summaries {
        let stage = number(summary, "stage_id")?;
        let of = |rows: &'_ [Value]| -> Vec<Value> {
            let own = rows.iter().filter(|row| row["stage_id"] == stage);
            own.cloned().collect()
        };
        let (tasks, own) = (of(&rows), of(&executors));
        ensure!(number(summary, "tasks_in_quantiles")? == tasks.len() as u64);
        ensure!(number(summary, "tasks_succeeded")? == tasks.len() as u64);
        ensure!(number(summary, "executors")? == own.len() as u64);
        for figure in FIGURES {
            let tasks: Vec<&Value> = tasks.iter().collect();
            let expected = recomputed(&tasks, figure);
            // Tasks that start while the executor tells what it has have lower bounds only.
            ensure!(expected.is_some() || figure == "duration_ns", "{figure}");
            let expected = expected.unwrap_or_default();
            ensure!(
                summary["over_tasks"][figure] == expected,
                "{figure}: {summary}"
            );
            let own: Vec<&Value> = own.iter().collect();
            // That of a stage is the driver's, no sum over its tasks.
            let sums = (figure != "duration_ns").then(|| recomputed(&own, figure));
            let expected = sums.flatten().unwrap_or_default();
            ensure!(
                summary["over_executors"][figure] == expected,
                "{figure}: {summary}"
            );
        }
        let path = format!("stages/{stage}/0/taskSummary?quantiles=0,0.25,0.5,0.75,1.0");
        let theirs = run.submitted.rest(&path)?;
        let mut compared = BTreeMap::new();
        for figure in [
            "executorRunTime",
            "executorCpuTime",
            "executorDeserializeTime",
        ] {
            let own = |task: &&Value| {
                tasks
                    .iter()
                    .any(|row| row["task_attempt_id"] == task["taskId"])
            };
            let values = spark.iter().filter(own);
            let mut values: Vec<u64> = values
                .filter_map(|task| task["taskMetrics"][figure].as_u64())
                .collect();
            let ours = Quantiles::of(&mut values).context("Spark has no values")?;
            let ours =
                [ours.min, ours.p25, ours.median, ours.p75, ours.max].map(|value| value as f64);
            let theirs: Vec<f64> = theirs[figure]
                .as_array()
                .with_context(|| format!("no {figure} in {theirs}"))?
                .iter()
                .filter_map(Value::as_f64)
                .collect();
            ensure!(
                ours[..] == theirs[..],
                "{figure}: {ours:?}, Spark {theirs:?}"
            );
            compared.insert(figure, ours);
        }
        println!("stage {stage}, ours and Spark's: {compared:?}");
    }
    // A job is the sum of its stages on all executors; here each job has one stage.
    let jobs = daemon.rows(&["jobs", "--app", &application])?;
    ensure!(jobs.len() == 2, "{jobs:?}");
    for job in &jobs {
        let own = executors
            .iter()
            .filter(|row| row["job_id"] == job["job_id"]);
        for figure in [
            "cpu_ns",
            "heap_allocated_bytes",
            "page_faults",
            "used_tasks",
        ] {
            let sum: u64 = own.clone().filter_map(|row| row[figure].as_u64()).sum();
            ensure!(sum > 0 && job[figure] == sum, "{figure}: {sum}, {job}");
        }
    }
    let failed = daemon.rows(&["tasks", "--failed", "--app", &application])?;
    ensure!(failed.is_empty(), "{failed:?}");
    assert_eq!(run.finish(&["end"])?, "RESULT halves 2");
    drop(daemon);
    lab.passed()
}

/// Lines of the file, the first quarter of them slow, and characters of each with its end: less than a split of 32 MiB.
const LINES: usize = 16_000;
const LINE: usize = 2_000;
/// Microseconds of CPU time of a slow line.
const SLOW_US: usize = 1_500;

#[test]
fn a_slow_quarter_of_the_input_is_a_quarter_of_its_parts() -> Result<()> {
    let lab = SparkLab::new("4.3.0")?;
    let daemon = lab.daemon()?;
    let path = lab.folder().join("lines.txt");
    let mut file = std::io::BufWriter::new(fs::File::create(&path)?);
    let rest = "x".repeat(LINE - 5);
    for line in 0..LINES {
        let kind = if line < LINES / 4 { "slow" } else { "fast" };
        writeln!(file, "{kind}{rest}")?;
    }
    file.into_inner()?.sync_all()?;
    let (path, slow_us) = (path.to_string_lossy(), SLOW_US.to_string());
    let application = Application::java(
        &lab.paths,
        "local-cluster[1,1,1024]",
        "SlowQuarter",
        &[&path, &slow_us],
    )?;
    let mut run = lab.run(application.with_marker(&lab.paths))?;
    run.reach("end")?;
    let application = run.submitted.application_id()?;
    let tasks = wait_for("both tasks have their accounts", LIMIT, || {
        let rows = run.rows(&daemon, &["tasks"])?;
        let done = rows.iter().all(|row| row["used_until"] == "task_end");
        Ok((done && rows.len() == 2).then_some(rows))
    })?;
    let slow = tasks.iter().max_by_key(|row| row["duration_ns"].as_u64());
    let attempt = number(slow.context("no task")?, "task_attempt_id")?;
    let id = attempt.to_string();
    println!("{}", daemon.ask(&["task", &id, "--app", &application])?);
    let task = daemon.rows(&["task", &id, "--app", &application])?;
    let task = &task[0];
    // Spark's own count of the input, and what the thread read by the kernel's.
    let spark = spark_tasks(&run.submitted)?;
    let spark = spark.iter().find(|it| it["taskId"] == attempt);
    let metrics = &spark.context("Spark lacks the task")?["taskMetrics"]["inputMetrics"];
    let input = number(metrics, "bytesRead")?;
    ensure!(
        input >= (LINES * LINE) as u64 && number(task, "input_bytes")? == input,
        "{input}: {task}"
    );
    ensure!(task["splits_by_input"]["progress_by"] == "input", "{task}");
    let share = |splits: &str, name: &str| -> Result<f64> {
        let parts = parts_of(task, splits, name)?;
        let all: u64 = parts.iter().sum();
        ensure!(
            parts.len() == 12 && task["splits"]["series"][name]["total"] == all,
            "{task}"
        );
        Ok(parts[..3].iter().sum::<u64>() as f64 / all as f64)
    };
    let cpu = [
        share("splits", "cpu_ns")?,
        share("splits_by_input", "cpu_ns")?,
    ];
    let read = share("splits_by_input", "call_read_bytes")?;
    println!("CPU time of the first quarter of time and of input: {cpu:.3?}");
    // Between two readings, a second apart, growth is even: the last slow lines share theirs with fast ones.
    ensure!(
        cpu[0] < 0.6 && cpu[1] > 0.75 && cpu[1] > cpu[0] + 0.2,
        "{cpu:?}: {task}"
    );
    ensure!((read - 0.25).abs() < 0.001, "{read}");
    assert_eq!(
        run.finish(&["end"])?,
        format!("RESULT slow {} of {LINES}", LINES / 4)
    );
    drop(daemon);
    lab.passed()
}
