//! All page faults of an executor are accounted for: attributed + unattributed = the kernel's own count.
//!
//! How the interval is aligned: at the gates `begin` and `end` no task runs. There the kernel's counters
//! (`minflt` + `majflt` in `/proc/PID/stat`) are read before and after the daemon's, two ticks apart; the
//! reading is taken only when the kernel's two are (nearly) the same, so that nothing happened between the
//! sides. Compared are the differences between the two gates.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use smtt_tests::lab::{Lab, Run};
use smtt_tests::truth::same_faults;
use smtt_tests::witness;
use xtask::daemon::Daemon;
use xtask::spark::Application;

use crate::LOCAL_CLUSTER;

/// The daemon reads the kernel's tables once per second.
const TWO_TICKS: Duration = Duration::from_millis(2200);
/// Faults that idle threads of a JVM may have between two readings.
const IDLE_FAULTS: u64 = 100;

/// Faults of one executor as both sides count them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pair {
    /// `minflt` + `majflt` of the JVM and of its children.
    pub kernel: u64,
    /// Attributed + unattributed.
    pub smtt: u64,
    /// The attributed part of it.
    pub attributed: u64,
}

/// Faults of the executor's JVM and, where they are alive, of its descendants.
fn kernel_faults(pid: u32) -> Result<u64> {
    let mut total = witness::faults(pid)?.total();
    for child in witness::descendants(pid)? {
        total += witness::faults(child)?.total();
    }
    Ok(total)
}

/// Reads both sides while nothing happens.
pub fn at_rest(daemon: &Daemon, run: &Run) -> Result<BTreeMap<String, Pair>> {
    for _ in 0..20 {
        let rows = run.rows(daemon, &["executors"])?;
        let mut before = BTreeMap::new();
        for row in &rows {
            let pid = row["pid"]
                .as_u64()
                .with_context(|| format!("no pid in {row}"))? as u32;
            before.insert(pid, kernel_faults(pid)?);
        }
        thread::sleep(TWO_TICKS);
        let rows = run.rows(daemon, &["executors"])?;
        let mut pairs = BTreeMap::new();
        let mut quiet = true;
        for row in &rows {
            let pid = row["pid"]
                .as_u64()
                .with_context(|| format!("no pid in {row}"))? as u32;
            let now = kernel_faults(pid)?;
            quiet &= before
                .get(&pid)
                .is_some_and(|then| now - then <= IDLE_FAULTS);
            let name = row["executor_id"]
                .as_str()
                .with_context(|| format!("no executor_id in {row}"))?;
            let count = |key: &str| {
                row[key]
                    .as_u64()
                    .with_context(|| format!("no number {key} in {row}"))
            };
            let attributed = count("page_faults_attributed")?;
            let smtt = attributed + count("page_faults_unattributed")?;
            pairs.insert(
                name.to_owned(),
                Pair {
                    kernel: now,
                    smtt,
                    attributed,
                },
            );
        }
        if quiet && !pairs.is_empty() {
            return Ok(pairs);
        }
    }
    bail!("the executors do not come to rest at the gate")
}

/// What was added between two readings.
pub fn between(
    begin: &BTreeMap<String, Pair>,
    end: &BTreeMap<String, Pair>,
) -> BTreeMap<String, Pair> {
    end.iter()
        .map(|(executor, end)| {
            let begin = begin.get(executor).copied().unwrap_or_default();
            let difference = Pair {
                kernel: end.kernel - begin.kernel,
                smtt: end.smtt - begin.smtt,
                attributed: end.attributed - begin.attributed,
            };
            (executor.clone(), difference)
        })
        .collect()
}

#[test]
fn every_fault_of_an_executor_is_accounted_for() -> Result<()> {
    let lab = Lab::new("4.0.5")?;
    let daemon = lab.daemon()?;
    let application = Application::java(
        &lab.paths,
        LOCAL_CLUSTER,
        "PageRank",
        &["150000", "10", "4", "4", "MEMORY_ONLY_SER"],
    )?;
    let mut run = lab.run(application.with_marker(&lab.paths))?;
    run.reach("begin")?;
    let begin = at_rest(&daemon, &run)?;
    assert_eq!(begin.len(), 2, "{begin:?}");
    run.open("begin")?;
    run.open("cached")?;
    run.reach("end")?;
    let end = at_rest(&daemon, &run)?;
    let faults = between(&begin, &end);
    for (executor, pair) in &faults {
        assert!(
            pair.kernel > 10_000,
            "too few faults to compare: {faults:?}"
        );
        same_faults(&format!("executor {executor}"), pair.kernel, pair.smtt)?;
        println!(
            "executor {executor}: {} of {} faults are attributed",
            pair.attributed, pair.smtt
        );
        assert!(pair.attributed > 0, "no fault is attributed: {faults:?}");
    }
    // The same faults once more, from the other end: what tasks and RDDs are said to have caused.
    let tasks: u64 = sum(&daemon, &run, "tasks")?;
    let rdds: u64 = sum(&daemon, &run, "rdds")?;
    let attributed: u64 = end.values().map(|pair| pair.attributed).sum();
    println!("attributed to executors {attributed}, to tasks {tasks}, to RDDs {rdds}");
    assert!(
        rdds.abs_diff(attributed) <= attributed / 100,
        "faults by RDD do not add up to the attributed ones"
    );
    assert!(
        tasks <= attributed && tasks > attributed / 2,
        "faults by task do not fit the attributed ones"
    );
    run.finish(&["end"])?;
    lab.passed()
}

/// Faults of all rows of a listing.
fn sum(daemon: &Daemon, run: &Run, listing: &str) -> Result<u64> {
    Ok(run
        .rows(daemon, &[listing])?
        .iter()
        .filter_map(|row| row["page_faults"].as_u64())
        .sum())
}
