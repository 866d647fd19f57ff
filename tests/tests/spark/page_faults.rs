//! All page faults of an executor are counted: between two moments attributed + unattributed grow as the kernel's own
//! count does, and with the faults before tracing they are that count from the start of the process.

use std::collections::BTreeMap;

use anyhow::Result;
use smtt_tests::application::LOCAL_CLUSTER;
use smtt_tests::faults::{Pair, at_rest, between};
use smtt_tests::json::sum;
use smtt_tests::lab::{Run, SparkLab};
use smtt_tests::truth::same_faults;
use xtask::daemon::Daemon;
use xtask::spark::Application;

/// Share of the attributed faults that must have a task, in hundredths. The rest is in contexts without a task.
const TASKS_PERCENT: u64 = 95;

/// Faults of a whole life by which both sides may differ: exceptions that end in a signal (at most one for each thread),
/// and pages that the kernel makes for itself.
const LIFE_TOLERANCE: u64 = 100;

/// Figures by executor.
type Figures = BTreeMap<String, Pair>;

/// A PageRank that waits after its last job, and the faults of its executors before the first one and now.
fn page_rank(
    lab: &SparkLab,
    daemon: &Daemon,
    pages: &str,
    links_per_page: &str,
) -> Result<(Run, Figures, Figures)> {
    let application = Application::java(
        &lab.paths,
        LOCAL_CLUSTER,
        "PageRank",
        &[pages, links_per_page, "4", "4", "MEMORY_ONLY_SER"],
    )?;
    let mut run = lab.run(application.with_marker(&lab.paths))?;
    run.reach("begin")?;
    let begin = at_rest(daemon, &run)?;
    assert_eq!(begin.len(), 2, "{begin:?}");
    run.open("begin")?;
    run.open("cached")?;
    run.reach("end")?;
    let end = at_rest(daemon, &run)?;
    Ok((run, begin, end))
}

#[test]
fn every_fault_of_an_executor_is_accounted_for() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let daemon = lab.daemon()?;
    let (mut run, begin, end) = page_rank(&lab, &daemon, "150000", "10")?;
    let faults = between(&begin, &end);
    for (executor, pair) in &faults {
        assert!(
            pair.kernel > 10_000,
            "too few faults to compare: {faults:?}"
        );
        same_faults(&format!("executor {executor}"), pair)?;
        println!(
            "executor {executor}: {} of {} faults are attributed",
            pair.attributed, pair.smtt
        );
        assert!(pair.attributed > 0, "no fault is attributed: {faults:?}");
    }
    // The same faults summed from the rows of tasks and of RDDs.
    let tasks = sum(&run.rows(&daemon, &["tasks"])?, "page_faults");
    let rdds = sum(&run.rows(&daemon, &["rdds"])?, "page_faults");
    let attributed: u64 = end.values().map(|pair| pair.attributed).sum();
    println!("attributed to executors {attributed}, to tasks {tasks}, to RDDs {rdds}");
    assert!(
        rdds.abs_diff(attributed) <= attributed / 100,
        "faults by RDD do not add up to the attributed ones"
    );
    assert!(
        tasks <= attributed && tasks * 100 >= attributed * TASKS_PERCENT,
        "faults by task do not fit the attributed ones"
    );
    run.finish(&["end"])?;
    drop(daemon);
    lab.passed()
}

#[test]
fn with_those_before_tracing_they_are_all_faults_of_a_short_life() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let daemon = lab.daemon()?;
    let (mut run, begin, end) = page_rank(&lab, &daemon, "40000", "3")?;
    for (executor, end) in &end {
        // What the daemon knew of the time before tracing when no task had run: the job is no part of that comparison.
        let before = begin[executor].before;
        let ours = end.counted + before;
        println!(
            "executor {executor}: the kernel counted {} faults since the start of the process, SMTT {ours}: {} counted and {before} before tracing ({} of them known at the end)",
            end.process, end.counted, end.before
        );
        assert!(before > 10_000, "a JVM starts with more faults: {end:?}");
        assert!(
            end.counted > 10_000,
            "too few faults in the job to compare: {end:?}"
        );
        assert!(
            end.process.abs_diff(ours) <= LIFE_TOLERANCE + end.idle,
            "executor {executor}: {ours} and not {}: {end:?}",
            end.process
        );
    }
    run.finish(&["end"])?;
    drop(daemon);
    lab.passed()
}
