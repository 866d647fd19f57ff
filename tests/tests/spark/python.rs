//! PySpark: the faults of Python workers count for their executor, and for the task that they serve.

use anyhow::Result;
use smtt_tests::application::LOCAL_CLUSTER;
use smtt_tests::faults::{at_rest, between};
use smtt_tests::lab::SparkLab;
use smtt_tests::truth::{same_faults, same_stages, same_storage, same_tasks};
use smtt_tests::witness;
use xtask::spark::Application;

fn page_rank(version: &str) -> Result<()> {
    let lab = SparkLab::new(version)?;
    let daemon = lab.daemon()?;
    let application = Application::python(
        &lab.places,
        LOCAL_CLUSTER,
        "pagerank.py",
        &["20000", "10", "2", "4"],
    )?;
    let mut run = lab.run(application.with_marker(&lab.places))?;
    run.reach("begin")?;
    let begin = at_rest(&daemon, &run)?;
    run.open("begin")?;
    run.open("cached")?;
    run.reach("end")?;
    let end = at_rest(&daemon, &run)?;

    // Workers are kept for later tasks, so they are alive at both gates and the kernel still knows their faults.
    let mut workers = 0;
    for row in run.rows(&daemon, &["executors"])? {
        let pid = row["pid"].as_u64().unwrap_or(0) as u32;
        workers += witness::descendants(pid)?
            .iter()
            .filter(|child| witness::command_line(**child).contains("pyspark.daemon"))
            .count();
    }
    assert!(
        workers >= 4,
        "expected a Python daemon and a worker per executor, seen {workers} processes"
    );
    for (executor, pair) in &between(&begin, &end) {
        assert!(pair.kernel > 5_000, "too few faults to compare: {pair:?}");
        same_faults(
            &format!("executor {executor} with its Python workers"),
            pair,
        )?;
    }

    // A worker's memory is most of what Python touches: if it were not tagged, hardly anything would be.
    let rdds = run.rows(&daemon, &["rdds"])?;
    let contexts = rdds
        .iter()
        .filter_map(|row| row["contexts"].as_array())
        .flatten();
    let tagged: u64 = contexts
        .filter(|context| context["activity"].as_str() == Some("python_worker"))
        .filter_map(|context| context["page_faults"].as_u64())
        .sum();
    assert!(
        tagged > 1_000,
        "only {tagged} faults of Python workers are tagged with a task: {rdds:#?}"
    );
    same_storage(&daemon, &run.submitted)?;
    same_tasks(&daemon, &run.submitted)?;
    same_stages(&daemon, &run.submitted)?;
    let result = run.finish(&["end"])?;
    assert!(
        result.starts_with("RESULT pagerank 20000 pages"),
        "{result}"
    );
    drop(daemon);
    lab.passed()
}

#[test]
fn python_workers_in_spark_3_5() -> Result<()> {
    page_rank("3.5.9")
}

#[test]
fn python_workers_in_spark_4_0() -> Result<()> {
    page_rank("4.0.5")
}

#[test]
fn python_workers_in_spark_4_3() -> Result<()> {
    page_rank("4.3.0")
}
