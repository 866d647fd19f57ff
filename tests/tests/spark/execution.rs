//! Execution memory equals Spark's own figures, and is attributed to the task that Spark gave it to.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use smtt_tests::application::LOCAL_CLUSTER;
use smtt_tests::json::number;
use smtt_tests::lab::{Run, SparkLab};
use smtt_tests::records::tracing;
use smtt_tests::task_metrics::same_metrics;
use xtask::daemon::Daemon;
use xtask::process::wait_for;
use xtask::spark::Application;

/// Least number of pages and grants of the whole application.
const PAGES_AND_GRANTS: u64 = 50;
/// How long the two sides may take to agree.
const SETTLE: Duration = Duration::from_secs(60);

/// A stage as in Spark's REST API: its job, and its own RDD.
struct Stage {
    job: String,
    rdd: u64,
}

/// A task as in Spark's REST API.
struct SparkTask {
    stage: u64,
    peak_bytes: u64,
    spilled_bytes: u64,
}

fn application(lab: &SparkLab, records: &str) -> Result<Application> {
    Ok(
        Application::java(&lab.paths, LOCAL_CLUSTER, "Execution", &[records])?
            // Settings that cause several pages, and grants, with few records.
            .conf("spark.buffer.pageSize", "256k")
            .conf("spark.shuffle.spill.initialMemoryThreshold", "65536")
            .conf("spark.shuffle.spill.batchSize", "1000")
            .with_marker(&lab.paths),
    )
}

fn stages(run: &Run) -> Result<BTreeMap<u64, Stage>> {
    let stages = run.submitted.rest("stages")?;
    stages
        .as_array()
        .context("no stages")?
        .iter()
        .filter(|stage| stage["status"] == "COMPLETE")
        .map(|stage| {
            // RDD ids follow the order of creation: the last RDD of a stage is its own.
            let rdds = stage["rddIds"].as_array().context("no rddIds")?;
            let rdd = rdds.iter().filter_map(Value::as_u64).max();
            Ok((
                number(stage, "stageId")?,
                Stage {
                    job: stage["description"].as_str().unwrap_or("").to_owned(),
                    rdd: rdd.context("a stage without RDD")?,
                },
            ))
        })
        .collect()
}

fn spark_tasks(run: &Run, stages: &BTreeMap<u64, Stage>) -> Result<BTreeMap<u64, SparkTask>> {
    let mut all = BTreeMap::new();
    for stage in stages.keys() {
        let tasks = run
            .submitted
            .rest(&format!("stages/{stage}/0/taskList?length=10000"))?;
        for task in tasks.as_array().context("no tasks")? {
            let metrics = &task["taskMetrics"];
            let task_metrics = SparkTask {
                stage: *stage,
                peak_bytes: number(metrics, "peakExecutionMemory")?,
                spilled_bytes: number(metrics, "memoryBytesSpilled")?,
            };
            all.insert(number(task, "taskId")?, task_metrics);
        }
    }
    Ok(all)
}

/// Memory of a job's tasks by class of consumer: bytes that Spark counts, and the peak that was held.
type Used = BTreeMap<String, (u64, u64)>;

/// Compares every task with Spark's own figure, to the byte, and sums by job and consumer.
fn same_peaks(
    rows: &[Value],
    spark: &BTreeMap<u64, SparkTask>,
    stages: &BTreeMap<u64, Stage>,
) -> Result<BTreeMap<String, Used>> {
    let mut jobs: BTreeMap<String, Used> = BTreeMap::new();
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for row in rows {
        let id = number(row, "task_attempt_id")?;
        let task = spark
            .get(&id)
            .with_context(|| format!("Spark has no task {id}"))?;
        seen.insert(id);
        let job = &stages[&task.stage].job;
        let consumers = row["consumers"].as_array().context("no consumers")?;
        if row["execution_memory_spark_peak_bytes"].as_u64() != Some(task.peak_bytes) {
            wrong.push(format!(
                "task {id} of stage {} ({job}): Spark says {}, seen {}, of {}",
                task.stage,
                task.peak_bytes,
                row["execution_memory_spark_peak_bytes"],
                row["consumers"]
            ));
        }
        for consumer in consumers {
            let name = consumer["consumer"].as_str().context("no consumer")?;
            let counted = number(consumer, "spark_peak_bytes")?;
            let peak = number(consumer, "peak_bytes")?;
            let estimated = consumer["spark_peak_is_estimate"] == true;
            // Spark counts granted memory, and at times less: it omits memory that is held only while an array grows.
            ensure!(
                estimated || counted <= peak,
                "{name} of task {id} ({job}) never held what Spark counts: {consumer}"
            );
            ensure!(
                number(consumer, "bytes")? == 0,
                "task {id} ({job}) has ended and holds memory: {consumer}"
            );
            let sum = jobs
                .entry(job.clone())
                .or_default()
                .entry(name.to_owned())
                .or_default();
            sum.0 += counted;
            sum.1 += peak;
        }
    }
    ensure!(
        seen.len() == spark.len(),
        "{} tasks seen, Spark has {}",
        seen.len(),
        spark.len()
    );
    if !wrong.is_empty() {
        bail!(
            "{} of {} tasks differ:\n{}",
            wrong.len(),
            spark.len(),
            wrong.join("\n")
        );
    }
    Ok(jobs)
}

type Settled = (
    BTreeMap<u64, Stage>,
    BTreeMap<u64, SparkTask>,
    BTreeMap<String, Used>,
);

/// Queries both sides until they agree: on a busy machine either side may learn late of the last tasks' ends.
fn settled(run: &Run, daemon: &Daemon) -> Result<Settled> {
    let mut last = None;
    let found = wait_for("Spark and SMTT agree on every task", SETTLE, || {
        let stages = stages(run)?;
        let spark = spark_tasks(run, &stages)?;
        let jobs = same_peaks(&run.rows(daemon, &["tasks"])?, &spark, &stages);
        Ok(match jobs {
            Ok(jobs) => Some((stages, spark, jobs)),
            Err(problem) => {
                last = Some(problem);
                std::thread::sleep(Duration::from_secs(1));
                None
            }
        })
    });
    found.map_err(|late| last.map_or(late, |last| last.context("for a minute")))
}

/// Checks that every page and grant is attributed to the RDD that its task's stage computes.
fn pages_have_their_rdd(
    daemon: &Daemon,
    folder: &str,
    application: &str,
    stages: &BTreeMap<u64, Stage>,
) -> Result<u64> {
    let mut seen = 0;
    let text = daemon.ask(&[
        "trace",
        "--folder",
        folder,
        "--app",
        application,
        "--kind",
        "allocate",
        "--json",
    ])?;
    for line in text.lines() {
        let record: Value = serde_json::from_str(line)?;
        if record["task_attempt_id"].is_null() {
            // A broadcast's hash table has a separate memory manager, without a task.
            ensure!(record["activity"] == "broadcast", "whose is {line}");
            continue;
        }
        let stage = number(&record, "stage_id")?;
        let expected = stages
            .get(&stage)
            .with_context(|| format!("Spark has no stage {stage}"))?
            .rdd;
        ensure!(
            number(&record, "rdd_id")? == expected,
            "stage {stage} ({}) computes RDD {expected}: {line}",
            stages[&stage].job
        );
        ensure!(!record["activity"].is_null(), "no activity in {line}");
        ensure!(!record["consumer"].is_null(), "no consumer in {line}");
        seen += 1;
    }
    Ok(seen)
}

/// Consumers of each job for which Spark must count bytes.
const EXPECTED: [(&str, &[&str]); 11] = [
    ("unsafe writer", &["ShuffleExternalSorter"]),
    ("bypass writer", &[]),
    ("sort writer", &["ExternalSorter", "ExternalAppendOnlyMap"]),
    (
        "grouped",
        &["ShuffleExternalSorter", "ExternalAppendOnlyMap"],
    ),
    (
        "sql aggregate",
        &["BytesToBytesMap", "ShuffleExternalSorter"],
    ),
    (
        "sql text aggregate",
        &["BytesToBytesMap", "ShuffleExternalSorter"],
    ),
    ("sql sort", &["UnsafeExternalSorter"]),
    (
        "sql merge join",
        &["UnsafeExternalSorter", "ShuffleExternalSorter"],
    ),
    ("sql broadcast join", &[]),
    ("sql object aggregate", &["ShuffleExternalSorter"]),
    (
        "sql window",
        &["UnsafeExternalSorter", "ShuffleExternalSorter"],
    ),
];

fn execution_memory(version: &str, settings: &[(&str, &str)], spills: bool) -> Result<()> {
    let lab = SparkLab::new(version)?;
    let folder = lab.folder().join("trace");
    let daemon = lab.daemon_with(&tracing(&folder, ""))?;
    let mut application = application(&lab, if spills { "12000" } else { "40000" })?;
    for (key, value) in settings {
        application = application.conf(key, value);
    }
    let mut run = lab.run(application)?;
    run.open("shuffled")?;
    run.reach("shuffled")?;
    run.reach("end")?;
    let (stages, spark, jobs) = settled(&run, &daemon)?;
    println!("{} tasks", spark.len());
    let sums = same_metrics(&daemon, &run.submitted)?;
    ensure!((sums[8] > 0 && sums[9] > 0) == spills, "{sums:?}");
    for (job, used) in &jobs {
        let spilled: u64 = spark
            .values()
            .filter(|task| stages[&task.stage].job == *job)
            .map(|task| task.spilled_bytes)
            .sum();
        println!("{job}: spilled {spilled}, {used:?}");
    }
    let spilled: u64 = spark.values().map(|task| task.spilled_bytes).sum();
    ensure!((spilled > 0) == spills, "{spilled} bytes were spilled");
    for (job, consumers) in EXPECTED {
        for consumer in consumers {
            let counted = jobs
                .get(job)
                .and_then(|used| used.get(*consumer))
                .map_or(0, |(counted, _)| *counted);
            ensure!(
                counted > 0,
                "{job}: Spark counts nothing for {consumer}: {jobs:?}"
            );
        }
    }
    ensure!(
        !jobs.contains_key("bypass writer"),
        "the bypass writer has no execution memory: {:?}",
        jobs["bypass writer"]
    );
    let id = run.submitted.application_id()?;
    let folder = folder.display().to_string();
    // Records arrive with their segments.
    let seen = wait_for("pages and grants are recorded", SETTLE, || {
        let seen = pages_have_their_rdd(&daemon, &folder, &id, &stages)?;
        Ok((seen >= PAGES_AND_GRANTS).then_some(seen))
    })?;
    println!("{} in {seen} pages and grants", run.finish(&["end"])?);
    drop(daemon);
    lab.passed()
}

const OFF_HEAP: [(&str, &str); 2] = [
    ("spark.memory.offHeap.enabled", "true"),
    ("spark.memory.offHeap.size", "512m"),
];

/// Records before a forced spill: few enough that every sorter and map spills.
const SPILL: (&str, &str) = ("spark.shuffle.spill.numElementsForceSpillThreshold", "3000");

#[test]
fn execution_memory_in_spark_3_5() -> Result<()> {
    execution_memory("3.5.9", &[], false)
}

#[test]
fn execution_memory_in_spark_4_0_off_heap() -> Result<()> {
    execution_memory("4.0.5", &OFF_HEAP, false)
}

#[test]
fn execution_memory_in_spark_4_0_with_spills() -> Result<()> {
    execution_memory("4.0.5", &[SPILL], true)
}

#[test]
fn execution_memory_in_spark_4_3_off_heap_with_spills() -> Result<()> {
    execution_memory("4.3.0", &[OFF_HEAP[0], OFF_HEAP[1], SPILL], true)
}
