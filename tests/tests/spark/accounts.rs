//! What tasks used: compared with Spark's own figures, with a known allocation and a known CPU time, however a task ends.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_tests::application::LOCAL_CLUSTER;
use smtt_tests::job_trace::same_trace;
use smtt_tests::json::{list, number, text};
use smtt_tests::lab::{LIMIT, SparkLab};
use smtt_tests::peaks::at_least_sparks;
use smtt_tests::task_metrics::same_metrics;
use smtt_tests::truth::spark_tasks;
use xtask::daemon::Options;
use xtask::process::wait_for;
use xtask::spark::Application;

/// MiB that a task allocates.
const MIB: u64 = 256;
/// CPU time that a task burns: so long that what the task's runner does outside of what Spark measures (it fetches the
/// task, collects its metrics, makes and sends its result) is less than 1 % of it.
const BURN_NS: u64 = 4_000_000_000;

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
    let (mut most, mut burned) = (0, 0);
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
            ensure!(
                within_a_percent(cpu, counted),
                "task {id}: {cpu} ns are not Spark's {counted} and at most 1 % more"
            );
            burned += 1;
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
    ensure!(burned >= 4, "only {burned} tasks burned their time");
    // The jobs come one after the other: 0 and 1 warm, 2 allocates, 3 burns, 4 fails, 5 hangs, 6 halts.
    let stage = |stage: u64| {
        rows.iter()
            .filter(move |row| row["stage_id"].as_u64() == Some(stage))
    };
    // Attempts that were killed have their heap, too.
    let killed = stage(5).filter(|row| row["state"] == "killed");
    ensure!(killed.clone().count() >= 2, "few attempts were killed");
    for row in stage(2).chain(stage(4)).chain(killed) {
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
    failed_attempts(&rows, &run.rows(&daemon, &["tasks", "--failed"])?)?;
    at_least_sparks(&daemon, &run)?;
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

/// `tasks --failed` has every attempt that did not succeed, with the reason and what it used.
fn failed_attempts(all: &[Value], failed: &[Value]) -> Result<()> {
    let ids = |rows: &mut dyn Iterator<Item = &Value>| -> Result<BTreeSet<u64>> {
        rows.map(|row| number(row, "task_attempt_id")).collect()
    };
    let ended = |row: &&Value| row["state"] != "succeeded";
    let truth = ids(&mut all.iter().filter(ended))?;
    let listed = ids(&mut failed.iter())?;
    ensure!(truth == listed, "{truth:?} failed, {listed:?} are listed");
    let mut thrown = failed.iter().filter(|row| row["state"] == "failed");
    let row = thrown.next().context("no task failed with an exception")?;
    let reason = text(row, "reason")?;
    ensure!(reason.contains("fails on purpose"), "{reason}");
    number(row, "cpu_ns")?;
    let allocated = number(row, "heap_allocated_bytes")?;
    ensure!(within_a_percent(allocated, MIB << 20), "{row}");
    Ok(())
}

/// An executor runs more tasks than the table of tasks holds by default: with a larger table each has a row with its
/// figures, and each record came or is named as lost.
#[test]
fn ten_thousand_tasks_of_one_executor_have_rows() -> Result<()> {
    const TASKS: u64 = 10_000;
    let lab = SparkLab::new("4.0.5")?;
    let daemon = lab.daemon_with(&Options {
        toml: "[limits]\ntasks_per_executor = 16384\n".to_owned(),
        ..Options::default()
    })?;
    let arguments = [TASKS.to_string(), "1".to_owned()];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let application = Application::java(
        &lab.paths,
        "local-cluster[1,2,1024]",
        "EmptyTasks",
        &arguments,
    )?
    .conf("spark.ui.retainedTasks", "20000")
    .with_marker(&lab.paths);
    let mut run = lab.run(application)?;
    run.open("round-0")?;
    run.reach("end")?;
    let rows = wait_for("every task has its accounts", LIMIT, || {
        let rows = run.rows(&daemon, &["tasks"])?;
        let whole = rows
            .iter()
            .filter(|row| row["used_until"] == "task_end" && row["used_is_partial"].is_null());
        Ok((whole.count() as u64 == TASKS).then_some(rows))
    })?;
    ensure!(rows.len() as u64 == TASKS, "{} rows", rows.len());
    let mut partitions = BTreeSet::new();
    for row in &rows {
        ensure!(row["state"] == "succeeded", "{row}");
        for figure in ["cpu_ns", "context_switches", "heap_allocated_bytes"] {
            number(row, figure)?;
        }
        partitions.insert(number(row, "partition")?);
    }
    ensure!(partitions.len() as u64 == TASKS, "partitions are missing");
    let stages = run.rows(&daemon, &["stages"])?;
    let used: u64 = stages
        .iter()
        .filter_map(|row| row["used_tasks"].as_u64())
        .sum();
    ensure!(used == TASKS, "{used} tasks are in the sums");
    println!("each of {} tasks has its figures", rows.len());
    let hops = wait_for("the ledger is at rest", LIMIT, || {
        let status = daemon.json(&["status"])?;
        let hops = list(&status, "ledger")?.to_vec();
        let at_rest = hops.iter().all(|hop| hop["in_flight"] == 0);
        Ok(at_rest.then_some(hops))
    })?;
    for hop in &hops {
        let lost = hop["lost"].as_object().context("no losses")?;
        let lost: u64 = lost.values().filter_map(Value::as_u64).sum();
        let (attempted, delivered) = (number(hop, "attempted")?, number(hop, "delivered")?);
        ensure!(attempted == delivered + lost, "{hop}");
    }
    // A task is two facts at least, and two accounts.
    let aggregated = hops.iter().find(|hop| hop["name"] == "aggregate");
    let aggregated = number(aggregated.context("no hop")?, "delivered")?;
    ensure!(aggregated >= 4 * TASKS, "{aggregated} records");
    run.finish(&["end"])?;
    drop(daemon);
    lab.passed()
}

/// A partition that Spark computes twice: both attempts have their figures, the killed one as well.
#[test]
fn speculative_attempts_say_what_they_used() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let daemon = lab.daemon()?;
    let burn_ms = "300";
    // Spark makes no second attempt on the host of the first.
    let hosts = ["127.0.0.1", "127.0.0.2"];
    let cluster = lab.spark.standalone_on(&hosts, 1, 1024)?;
    let application = Application::java(&lab.paths, &cluster.url, "Speculating", &["6", burn_ms])?
        .conf("spark.cores.max", "2")
        .conf("spark.scheduler.minRegisteredResourcesRatio", "1")
        .conf("spark.scheduler.maxRegisteredResourcesWaitingTime", "300s")
        .conf("spark.speculation", "true")
        .conf("spark.speculation.interval", "100ms")
        .conf("spark.speculation.quantile", "0.5")
        .conf("spark.speculation.multiplier", "1.5")
        .with_marker(&lab.paths);
    let mut run = lab.run(application)?;
    run.open("begin")?;
    run.reach("end")?;
    let speculative = |task: &&Value| task["speculative"] == true;
    let (spark, rows) = wait_for("Spark and SMTT list the same tasks", LIMIT, || {
        let spark = spark_tasks(&run.submitted)?;
        let rows = run.rows(&daemon, &["tasks"])?;
        let done = rows.iter().all(|row| row["used_until"] == "task_end");
        let same = rows.len() == spark.len() && spark.iter().any(|task| speculative(&task));
        Ok((done && same).then_some((spark, rows)))
    })?;
    let of = |id: u64| {
        let row = rows.iter().find(|row| row["task_attempt_id"] == id);
        row.with_context(|| format!("no task {id}"))
    };
    let mut pairs = 0;
    for twice in spark.iter().filter(speculative) {
        let same = |task: &&Value| {
            task["index"] == twice["index"]
                && task["stageId"] == twice["stageId"]
                && !speculative(task)
        };
        let first = spark.iter().find(same).context("no first attempt")?;
        for (task, attempt) in [(first, 0), (twice, 1)] {
            let row = of(number(task, "taskId")?)?;
            println!("{}", text(row, "state")?);
            ensure!(number(row, "attempt_number")? == attempt, "{row}");
            ensure!(number(row, "cpu_ns")? >= 290_000_000, "{row}");
            ensure!(number(row, "heap_allocated_bytes")? >= 8 << 20, "{row}");
            ensure!(row["used_is_partial"].is_null(), "{row}");
        }
        pairs += 1;
    }
    ensure!(pairs > 0, "Spark made no speculative attempt");
    run.finish(&["end"])?;
    drop(cluster);
    drop(daemon);
    lab.passed()
}

/// Bytes that each task of `Uncounted` allocates, in MiB, and its CPU time.
const UNCOUNTED_MIB: u64 = 64;
const UNCOUNTED_MS: u64 = 500;

#[test]
fn a_jvm_that_does_not_count_allocations_has_all_other_accounts() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let daemon = lab.daemon()?;
    let arguments = [UNCOUNTED_MIB.to_string(), UNCOUNTED_MS.to_string()];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let one = "local-cluster[1,2,1024]";
    let application =
        Application::java(&lab.paths, one, "Uncounted", &arguments)?.with_marker(&lab.paths);
    let mut run = lab.run(application)?;
    run.open("begin")?;
    run.reach("end")?;
    let rows = wait_for("all tasks have their accounts", LIMIT, || {
        let rows = run.rows(&daemon, &["tasks"])?;
        let done = rows.iter().all(|row| row["used_until"] == "task_end");
        Ok((done && rows.len() == 6).then_some(rows))
    })?;
    let spark = spark_tasks(&run.submitted)?;
    let application = run.submitted.application_id()?;
    for row in &rows {
        let id = number(row, "task_attempt_id")?;
        let counted = number(row, "stage_id")? == 0;
        let heap = row["heap_allocated_bytes"].as_u64();
        ensure!(
            if counted {
                heap >= Some(UNCOUNTED_MIB << 20)
            } else {
                heap.is_none()
            },
            "{row}"
        );
        // Spark's own count of the CPU time.
        let theirs = spark.iter().find(|task| task["taskId"] == id);
        let theirs = &theirs.context("Spark lacks the task")?["taskMetrics"];
        let cpu = number(theirs, "executorCpuTime")?;
        ensure!(
            cpu >= UNCOUNTED_MS * 1_000_000 && number(row, "cpu_ns")? >= cpu,
            "{cpu} ns by Spark: {row}"
        );
        ensure!(row["used_is_partial"].is_null(), "{row}");
        for figure in [
            "cpu_wait_ns",
            "context_switches",
            "collection_ns",
            "thread_minor_faults",
            "call_read_bytes",
            "used_duration_ns",
        ] {
            number(row, figure)?;
        }
        let task = daemon.rows(&["task", &id.to_string(), "--app", &application])?;
        let series = &task[0]["splits"]["series"];
        ensure!(
            series["heap_allocated_bytes"].is_null() != counted && series["cpu_ns"].is_object(),
            "{task:?}"
        );
    }
    for stage in run.rows(&daemon, &["stages"])? {
        let counted = number(&stage, "stage_id")? == 0;
        ensure!(
            stage["heap_allocated_bytes"].is_null() != counted && number(&stage, "cpu_ns")? > 0,
            "{stage}"
        );
    }
    // For people, the column is empty and the others are not.
    let shown = daemon.ask(&["tasks", "--app", &application])?;
    println!("{shown}");
    assert_eq!(run.finish(&["end"])?, "RESULT uncounted 0");
    drop(daemon);
    lab.passed()
}
