//! The cost that tracing adds to a page fault: a native workload writes fresh pages, and reports its CPU time.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::workload::{self, figure};
use super::{median, report};
use crate::daemon::{Daemon, Options};
use crate::paths::Paths;
use crate::process::wait_for;

/// Fresh pages that one run writes.
const FAULTS: u64 = 150_000;
/// Triples of runs: untraced, another process beside the daemon, attributed.
const ROUNDS: usize = 9;
/// How long the daemon may take to attach the hooks.
const ATTACH_LIMIT: Duration = Duration::from_secs(10);
/// Limit of the time of an attributed fault, as a multiple of an untraced one.
const ATTRIBUTED_RATIO: f64 = 1.08;
/// Limit of the time of a fault of a process that is no executor.
const STRANGER_RATIO: f64 = 1.02;

/// Nanoseconds of a page fault and what tracing adds to it; medians of the rounds.
pub(super) struct FaultCost {
    /// CPU time of an untraced fault, the write of the page included.
    pub untraced_ns: f64,
    /// What an attributed fault costs more.
    pub attributed_ns: f64,
    /// What a fault of a process that is no executor costs more.
    pub stranger_ns: f64,
}

/// Prints the cost of a fault.
pub fn fault(paths: &Paths, folder: &Path) -> Result<()> {
    let cost = measure(paths, folder, ROUNDS)?;
    for (what, added, target) in [
        (
            "attributed page fault",
            cost.attributed_ns,
            ATTRIBUTED_RATIO,
        ),
        (
            "page fault of other processes",
            cost.stranger_ns,
            STRANGER_RATIO,
        ),
    ] {
        let untraced = cost.untraced_ns;
        let detail = format!("{added:+.0} ns on {untraced:.0} ns, median of {ROUNDS} pairs");
        report(what, 1.0 + added / untraced, "times", target, &detail);
    }
    Ok(())
}

/// Runs the settings in turns.
pub(super) fn measure(paths: &Paths, folder: &Path, rounds: usize) -> Result<FaultCost> {
    let (mut untraced, mut stranger, mut attributed) = (Vec::new(), Vec::new(), Vec::new());
    // The first round is a warm-up and is not counted.
    for round in 0..=rounds {
        let alone = run(paths, "yes")?;
        let mut daemon = Daemon::start(
            paths,
            &paths.target.join("release"),
            folder,
            &Options::default(),
        )?;
        // The hooks are attached with the first executor and stay for a while after the last.
        workload::run(paths, &["faults", "threads=1", "reads=1", "writes=1"])?;
        wait_for("the daemon lists the executor", ATTACH_LIMIT, || {
            Ok((!daemon.rows(&["executors"])?.is_empty()).then_some(()))
        })?;
        let beside = run(paths, "no")?;
        let traced = run(paths, "yes")?;
        daemon.stop();
        if round > 0 {
            untraced.push(alone);
            stranger.push(beside / alone);
            attributed.push(traced / alone);
        }
    }
    let untraced_ns = median(&mut untraced);
    let added = |ratios: &mut [f64]| (median(ratios) - 1.0) * untraced_ns;
    Ok(FaultCost {
        untraced_ns,
        attributed_ns: added(&mut attributed),
        stranger_ns: added(&mut stranger),
    })
}

/// CPU nanoseconds per fault of one run.
fn run(paths: &Paths, describe: &str) -> Result<f64> {
    let arguments = [
        "faults",
        "threads=1",
        "reads=1",
        &format!("writes={FAULTS}"),
        &format!("describe={describe}"),
    ];
    let figures = workload::run(paths, &arguments)?;
    Ok(figure(&figures, "cpu_ns")? / FAULTS as f64)
}
