//! The CPU time that tracing adds to a job, by source: counts of the job times the measured cost of each.
//!
//! Pairs of whole jobs scatter by more than the overhead. Counts do not scatter, and the cost of one fault is a
//! difference within one run.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::access::TOLD_NS;
use super::{RUN_LIMIT, fault, gates, reach, report};
use crate::daemon::{Daemon, Options};
use crate::paths::{DEMO_SPARK, Jdk, Paths};
use crate::spark::Spark;
use crate::{demo, witness};

/// Limit of the added CPU time, in per cent of the job's.
const ADDED_PERCENT: f64 = 1.0;
/// Rounds in which the cost of a fault is measured.
const ROUNDS: usize = 3;
/// Prefix of the names of the marker's threads.
const MARKER_THREADS: &str = "smtt-";

/// Counts at one moment.
struct Counts {
    /// CPU seconds of the job's processes.
    job: f64,
    /// CPU seconds of the marker's threads in them.
    marker: f64,
    /// CPU seconds of the daemon.
    daemon: f64,
    /// Page faults of executors in which the kernel side read a context.
    attributed: f64,
    /// Page faults of all processes.
    faults: f64,
    facts: f64,
}

/// Runs the demo's job once, traced, and prints what each source of added CPU time comes to.
///
/// # Errors
/// When the job or the daemon does not run.
pub(super) fn account(paths: &Paths, folder: &Path) -> Result<()> {
    let cost = fault::measure(paths, &folder.join("fault"), ROUNDS)?;
    let daemon = Daemon::start(
        paths,
        &paths.target.join("release"),
        &folder.join("daemon"),
        &Options::default(),
    )?;
    let spark = Spark::new(paths, DEMO_SPARK, &Jdk::main()?, &folder.join("spark"))?;
    let gates = gates(folder, "gates", &["cached"])?;
    let mut submitted = demo::application(paths, false)?
        .with_marker(paths)
        .conf("spark.smtt.fixture.barrier", &gates.display().to_string())
        .submit(&spark, "spark")?;
    reach(&mut submitted.running, &gates.join("begin.reached"))?;
    let driver = submitted.running.pid();
    let before = Counts::now(driver, &daemon)?;
    fs::write(gates.join("begin.go"), "")?;
    reach(&mut submitted.running, &gates.join("end.reached"))?;
    let after = Counts::now(driver, &daemon)?;
    fs::write(gates.join("end.go"), "")?;
    submitted.result(RUN_LIMIT)?;

    let grown = |of: fn(&Counts) -> f64| of(&after) - of(&before);
    let (attributed, facts) = (
        grown(|counts| counts.attributed),
        grown(|counts| counts.facts),
    );
    let others = (grown(|counts| counts.faults) - attributed).max(0.0);
    let job = grown(|counts| counts.job);
    let sources = [
        ("attributed page faults", attributed, cost.attributed_ns),
        ("page faults of others", others, cost.stranger_ns),
        ("facts, at their limit", facts, TOLD_NS),
        ("marker's threads", 1.0, 1e9 * grown(|counts| counts.marker)),
        ("daemon", 1.0, 1e9 * grown(|counts| counts.daemon)),
    ];
    let mut added = 0.0;
    for (what, count, ns) in sources {
        let seconds = count * ns.max(0.0) / 1e9;
        added += seconds;
        println!(
            "    {what}: {count:.0} of {ns:.0} ns, {:.1} ms",
            1e3 * seconds
        );
    }
    report(
        "PageRank, added CPU time",
        100.0 * added / job,
        "%",
        ADDED_PERCENT,
        &format!(
            "{:.0} ms of {job:.1} s; changes of context are not counted",
            1e3 * added
        ),
    );
    Ok(())
}

impl Counts {
    fn now(driver: u32, daemon: &Daemon) -> Result<Self> {
        let mut pids = witness::descendants(driver)?;
        pids.push(driver);
        // A script's helper process that ends meanwhile is left out; the JVMs stay.
        let cpu = |pids: &[u32]| {
            pids.iter()
                .filter_map(|pid| witness::cpu_seconds(*pid).ok())
                .sum()
        };
        let executors = daemon.rows(&["executors"])?;
        let sum = |field: &str| -> f64 {
            let values = executors
                .iter()
                .filter_map(|row| row.get(field).and_then(Value::as_f64));
            values.sum()
        };
        Ok(Self {
            job: cpu(&pids),
            marker: pids.iter().filter_map(|pid| marker_seconds(*pid)).sum(),
            daemon: witness::cpu_seconds(daemon.pid())?,
            attributed: sum("page_faults_attributed"),
            faults: faults_of_the_machine()?,
            facts: sum("facts"),
        })
    }
}

/// CPU seconds of the marker's threads in a process.
pub(super) fn marker_seconds(pid: u32) -> Option<f64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut seconds = 0.0;
    for thread in threads.flatten() {
        let name = fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        if !name.starts_with(MARKER_THREADS) {
            continue;
        }
        // The first figure is the time on a CPU in nanoseconds, see proc_pid_schedstat(5).
        let times = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        seconds += times.split(' ').next()?.parse::<f64>().ok()? / 1e9;
    }
    Some(seconds)
}

/// `pgfault` of `/proc/vmstat`: page faults of all processes since the start of the machine.
fn faults_of_the_machine() -> Result<f64> {
    let text = fs::read_to_string("/proc/vmstat").context("cannot read /proc/vmstat")?;
    let figures: BTreeMap<&str, &str> = text
        .lines()
        .filter_map(|line| line.split_once(' '))
        .collect();
    let faults = figures
        .get("pgfault")
        .context("/proc/vmstat has no pgfault")?;
    Ok(faults.parse()?)
}
