//! The paper's experiment at its smallest scale: one workload of each library of Spark, on a cluster of two workers.
//! Each run compares the storage memory of every RDD with Spark's REST API itself, and fails where they differ.

use anyhow::{Context as _, Result, ensure};
use smtt_tests::lab::SparkLab;
use xtask::experiment::run::{self, Job};
use xtask::experiment::{CORES, WORKER_MIB, fixture_step, names};
use xtask::paths::DEMO_SPARK;
use xtask::step::Steps;

/// Workers of the cluster.
const WORKERS: usize = 2;
/// Workloads of MLlib, GraphX, SQL and Streaming; the least number of RDDs with blocks at the end; the part of the
/// result that is the same on every machine.
const WORKLOADS: [(&str, usize, &str); 4] = [
    ("LogisticRegression", 1, "accuracy 0.9"),
    ("PageRank", 2, "2000 vertices"),
    ("RDDRelation", 1, "50000 rows"),
    ("PageViewStream", 1, "50000 views"),
];

#[test]
fn a_workload_of_each_library_runs_and_its_memory_is_what_spark_says() -> Result<()> {
    let lab = SparkLab::new(DEMO_SPARK)?;
    fixture_step(&lab.paths, &mut Steps::new(1))?;
    let daemon = lab.daemon()?;
    let cluster = lab.spark.standalone(WORKERS, CORES / WORKERS, WORKER_MIB)?;
    for (workload, rdds, says) in WORKLOADS {
        ensure!(names().contains(&workload), "no workload {workload}");
        let job = Job {
            workload,
            scale: 1,
            workers: WORKERS,
            master: &cluster.url,
            folder: lab.folder(),
            quick: true,
        };
        let outcome = run::run(&lab.paths, &lab.spark, &daemon, &job)
            .with_context(|| format!("{workload} on {WORKERS} workers"))?;
        println!("{outcome:?}");
        ensure!(
            outcome.result.contains(says),
            "{workload}: {} is not {says}",
            outcome.result
        );
        ensure!(
            outcome.agreed_rdds >= rdds && outcome.agreed_bytes > 0,
            "{workload}: {} RDDs with {} bytes at the end",
            outcome.agreed_rdds,
            outcome.agreed_bytes
        );
        ensure!(
            outcome.split_tasks > 0,
            "{workload}: no task has parts that add up"
        );
        let faults = outcome.faults[0].context("page faults are counted here")?;
        let of_rdds = outcome
            .faults_of_rdds
            .context("page faults are counted here")?;
        ensure!(
            of_rdds > 0 && of_rdds <= faults,
            "{workload}: {of_rdds} of {faults} page faults are of RDDs"
        );
        ensure!(
            outcome.rdd_peak_bytes >= outcome.agreed_bytes
                && outcome.rdd_peak_bytes <= outcome.heap_max_bytes,
            "{workload}: {outcome:?}"
        );
    }
    drop(cluster);
    drop(daemon);
    lab.passed()
}
