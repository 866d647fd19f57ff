//! One workload on one cluster: sampled while it runs, compared with Spark at its end.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{CORES, splits};
use crate::daemon::Daemon;
use crate::json::number;
use crate::paths::Paths;
use crate::process::{check_interrupt, wait_for};
use crate::spark::{Application, Spark, Submitted};
use crate::witness;

/// Time limit of one workload.
const LIMIT: Duration = Duration::from_secs(900);
/// Time between two samples of the memory.
const SAMPLE: Duration = Duration::from_millis(500);
/// How long Spark's listing and ours may take to agree at the end.
const SETTLE: Duration = Duration::from_secs(120);
/// More than the time between two readings of the kernel's counters.
const TICK: Duration = Duration::from_millis(1500);
/// Page faults that idle threads of an executor may have in that time.
const IDLE_FAULTS: u64 = 100;
/// Number of RDDs with the most faults in the results.
const TOP: usize = 3;

/// A workload and its cluster.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// The workload.
    pub workload: &'static str,
    /// Size of its input.
    pub scale: u32,
    /// Workers of the cluster.
    pub workers: usize,
    /// Master URL of the cluster.
    pub master: &'a str,
    /// Folder of the run's files.
    pub folder: &'a Path,
    /// Whether executors have the quick compiler only, as in tests, which measure no speed.
    pub quick: bool,
}

/// Page faults and page walks of one RDD on all executors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RddFigures {
    /// The RDD's id.
    pub id: u64,
    /// The RDD's name; empty without one.
    pub name: String,
    /// Page faults in the RDD's contexts; absent where faults are not counted.
    pub faults: Option<u64>,
    /// Read faults within `faults`.
    pub read: Option<u64>,
    /// Write faults within `faults`.
    pub write: Option<u64>,
}

/// Results of one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The workload.
    pub workload: &'static str,
    /// Workers of the cluster.
    pub workers: usize,
    /// Seconds from the warm executors to the end.
    pub seconds: f64,
    /// The result line.
    pub result: String,
    /// Maximum Java heap, summed over executors, in bytes.
    pub heap_max_bytes: u64,
    /// Peak resident memory (the kernel's `VmHWM`), summed over executors, in bytes.
    pub resident_peak_bytes: u64,
    /// Number of samples of the memory.
    pub samples: u64,
    /// Peak storage memory of all RDDs over the samples, in bytes.
    pub storage_peak_bytes: u64,
    /// Peak storage and execution memory of all RDDs over the samples, in bytes.
    pub rdd_peak_bytes: u64,
    /// RDDs in memory at the end whose storage memory equals Spark's REST API exactly.
    pub agreed_rdds: usize,
    /// Storage memory of the RDDs in `agreed_rdds`, in bytes.
    pub agreed_bytes: u64,
    /// Page faults of the executors: all, reads, writes; absent where they are not counted or the access is unknown.
    pub faults: [Option<u64>; 3],
    /// Page faults in contexts of RDDs.
    pub faults_of_rdds: Option<u64>,
    /// Page-walk cycles of reads of all RDDs, as a share of the executors' cycles, 0 to 1.
    pub walk_read: Option<f64>,
    /// Page-walk cycles of writes of all RDDs, as a share of the executors' cycles, 0 to 1.
    pub walk_write: Option<f64>,
    /// Page-walk share of reads, estimated from the number of walks where the processor cannot count their cycles.
    pub walk_read_estimated: Option<f64>,
    /// The RDDs with the most faults.
    pub top: Vec<RddFigures>,
    /// Tasks: all that Spark counts, each with parts that add up to its totals.
    pub split_tasks: u64,
}

impl Outcome {
    /// Peak memory of RDDs, as a share of the largest Java heap, 0 to 1.
    #[must_use]
    pub fn rdd_share_of_heap(&self) -> f64 {
        self.rdd_peak_bytes as f64 / self.heap_max_bytes as f64
    }

    /// Peak memory of RDDs, as a share of the peak resident memory, 0 to 1.
    #[must_use]
    pub fn rdd_share_of_resident(&self) -> f64 {
        self.rdd_peak_bytes as f64 / self.resident_peak_bytes as f64
    }

    /// Peak storage memory, as a share of the largest Java heap, 0 to 1.
    #[must_use]
    pub fn storage_share_of_heap(&self) -> f64 {
        self.storage_peak_bytes as f64 / self.heap_max_bytes as f64
    }
}

/// Runs a workload, traced.
///
/// # Errors
/// When the run fails, takes too long, its storage memory differs from Spark's, or the parts of a task do not add up.
pub fn run(paths: &Paths, spark: &Spark, daemon: &Daemon, job: &Job) -> Result<Outcome> {
    let gates = job.folder.join(format!("gates-{}", job.workload));
    fs::create_dir_all(&gates)?;
    let application = Application::scala(
        paths,
        job.master,
        "Experiment",
        &[job.workload, &job.scale.to_string(), "4"],
    )?
    .conf("spark.smtt.fixture.barrier", &gates.display().to_string())
    .conf("spark.sql.shuffle.partitions", "4")
    .conf("spark.cores.max", &CORES.to_string())
    .conf("spark.executor.cores", &(CORES / job.workers).to_string())
    // No job begins before all executors are there.
    .conf("spark.scheduler.minRegisteredResourcesRatio", "1")
    .conf("spark.scheduler.maxRegisteredResourcesWaitingTime", "300s")
    .with_marker(paths);
    let application = if job.quick {
        application.quick_executors()
    } else {
        application
    };
    let mut submitted = application.submit(spark, job.workload)?;
    let begin = Instant::now();
    wait(&mut submitted, &gates.join("begin.reached"), begin, || {
        Ok(())
    })?;
    let id = submitted.application_id()?;
    fs::write(gates.join("begin.go"), "")?;
    let start = Instant::now();
    let mut outcome = Outcome {
        workload: job.workload,
        workers: job.workers,
        ..Outcome::default()
    };
    wait(&mut submitted, &gates.join("end.reached"), begin, || {
        sample(daemon, &id, &mut outcome)
    })?;
    outcome.seconds = start.elapsed().as_secs_f64();
    let storage = agree(daemon, &submitted, &id)?;
    outcome.agreed_rdds = storage.len();
    outcome.agreed_bytes = storage.values().sum();
    sample(daemon, &id, &mut outcome)?;
    finish(daemon, &id, job.workers, &mut outcome)?;
    outcome.split_tasks = splits::check(daemon, &submitted, &id)?;
    fs::write(gates.join("end.go"), "")?;
    let result = submitted.result(LIMIT)?;
    outcome.result = result
        .trim_start_matches("RESULT ")
        .trim_start_matches(job.workload)
        .trim()
        .to_owned();
    Ok(outcome)
}

fn wait(
    submitted: &mut Submitted,
    file: &Path,
    start: Instant,
    mut meanwhile: impl FnMut() -> Result<()>,
) -> Result<()> {
    while !file.exists() {
        check_interrupt()?;
        if let Some(status) = submitted.running.poll()? {
            bail!("it ended early ({status}){}", submitted.running.hint());
        }
        if start.elapsed() > LIMIT {
            bail!(
                "it did not end within {} s{}",
                LIMIT.as_secs(),
                submitted.running.hint()
            );
        }
        meanwhile()?;
        thread::sleep(SAMPLE);
    }
    Ok(())
}

/// The rows of RDDs, without the row of no RDD and the row of the rest.
fn rdds(daemon: &Daemon, id: &str) -> Result<Vec<Value>> {
    let mut rows = daemon.rows(&["rdds", "--app", id])?;
    rows.retain(|row| row["rdd_id"].is_u64());
    Ok(rows)
}

/// Takes one sample of the RDDs' memory.
fn sample(daemon: &Daemon, id: &str, outcome: &mut Outcome) -> Result<()> {
    let (mut storage, mut execution) = (0, 0);
    for row in rdds(daemon, id)? {
        storage += number(&row, "storage_memory_bytes")?;
        execution += number(&row, "execution_memory_bytes")?;
    }
    outcome.samples += 1;
    outcome.storage_peak_bytes = outcome.storage_peak_bytes.max(storage);
    outcome.rdd_peak_bytes = outcome.rdd_peak_bytes.max(storage + execution);
    Ok(())
}

/// Queries Spark and the daemon for the storage memory of each RDD until they agree.
fn agree(daemon: &Daemon, submitted: &Submitted, id: &str) -> Result<BTreeMap<u64, u64>> {
    let start = Instant::now();
    loop {
        let mut ours = BTreeMap::new();
        for row in rdds(daemon, id)? {
            *ours.entry(number(&row, "rdd_id")?).or_insert(0) +=
                number(&row, "storage_memory_bytes")?;
        }
        let mut theirs = BTreeMap::new();
        let listed = submitted.rest("storage/rdd")?;
        for rdd in listed
            .as_array()
            .context("Spark's REST API lists no RDDs")?
        {
            let field = |key: &str| {
                rdd[key]
                    .as_u64()
                    .with_context(|| format!("Spark's REST API gives no {key}"))
            };
            theirs.insert(field("id")?, field("memoryUsed")?);
        }
        ours.retain(|_, bytes| *bytes > 0);
        theirs.retain(|_, bytes| *bytes > 0);
        if ours == theirs {
            return Ok(ours);
        }
        if start.elapsed() > SETTLE {
            bail!("storage memory by RDD: Spark says {theirs:?}, SMTT says {ours:?}");
        }
        thread::sleep(SAMPLE);
    }
}

/// Reads the final figures while the executors still run.
fn finish(daemon: &Daemon, id: &str, workers: usize, outcome: &mut Outcome) -> Result<()> {
    // Readings of the kernel's counters that include the last task.
    let (mut before, mut count) = (None::<u64>, 0);
    let executors = wait_for("the executors' counters come to rest", SETTLE, || {
        thread::sleep(TICK);
        let rows = daemon.rows(&["executors", "--app", id])?;
        count = rows.len();
        // Idle threads have a few faults.
        let now = sum(&rows, "page_faults").unwrap_or(0);
        let rest =
            before.is_some_and(|before| now.abs_diff(before) <= IDLE_FAULTS * workers as u64);
        before = Some(now);
        Ok((rest && count == workers).then_some(rows))
    })
    .with_context(|| format!("{count} executors on {workers} workers"))?;
    for executor in &executors {
        outcome.heap_max_bytes += number(executor, "heap_max_bytes")?;
        outcome.resident_peak_bytes +=
            witness::resident_peak_bytes(u32::try_from(number(executor, "pid")?)?)?;
    }
    outcome.faults =
        ["page_faults", "page_faults_read", "page_faults_write"].map(|key| sum(&executors, key));
    let rows = rdds(daemon, id)?;
    outcome.faults_of_rdds = sum(&rows, "page_faults");
    let walks = |key: &str| {
        let ratios: Vec<f64> = rows.iter().filter_map(|row| row[key].as_f64()).collect();
        // A ratio refers to the cycles of the row's own executor; every executor has the same weight.
        (!ratios.is_empty()).then(|| ratios.iter().sum::<f64>() / executors.len() as f64)
    };
    outcome.walk_read = walks("page_walk_read_ratio_of_executor");
    outcome.walk_write = walks("page_walk_write_ratio_of_executor");
    outcome.walk_read_estimated = walks("page_walk_read_estimated_ratio_of_executor");
    outcome.top = top(&rows)?;
    Ok(())
}

/// The sum of a column; absent where no row has it.
fn sum(rows: &[Value], key: &str) -> Option<u64> {
    rows.iter()
        .filter_map(|row| row[key].as_u64())
        .reduce(|a, b| a + b)
}

/// The RDDs with the most faults, over all executors.
fn top(rows: &[Value]) -> Result<Vec<RddFigures>> {
    let mut by_id: BTreeMap<u64, Vec<Value>> = BTreeMap::new();
    for row in rows {
        by_id
            .entry(number(row, "rdd_id")?)
            .or_default()
            .push(row.clone());
    }
    let mut figures: Vec<RddFigures> = by_id
        .into_iter()
        .map(|(id, rows)| RddFigures {
            id,
            name: rows
                .iter()
                .find_map(|row| row["name"].as_str())
                .unwrap_or_default()
                .to_owned(),
            faults: sum(&rows, "page_faults"),
            read: sum(&rows, "page_faults_read"),
            write: sum(&rows, "page_faults_write"),
        })
        .filter(|rdd| rdd.faults.is_some())
        .collect();
    figures.sort_by_key(|rdd| std::cmp::Reverse(rdd.faults));
    figures.truncate(TOP);
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_no_row_has_is_absent() {
        let rows = [json!({"rdd_id": 1}), json!({"rdd_id": 2, "a": 3})];
        assert_eq!(sum(&rows, "a"), Some(3));
        assert_eq!(sum(&rows, "b"), None);
    }

    #[test]
    fn top_adds_up_executors() {
        let rows = [
            json!({"rdd_id": 1, "name": "x", "page_faults": 5}),
            json!({"rdd_id": 2, "page_faults": 7}),
            json!({"rdd_id": 1, "name": "x", "page_faults": 4}),
        ];
        let top = top(&rows).expect("rows have ids");
        assert_eq!((top[0].id, top[0].faults), (1, Some(9)));
        assert_eq!((top[1].id, top[1].name.as_str()), (2, ""));
    }
}
