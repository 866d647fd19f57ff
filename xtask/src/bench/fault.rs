//! The cost that tracing adds to a page fault: a native workload writes fresh pages, and reports its CPU time.

use std::path::Path;

use anyhow::Result;

use super::workload::{self, figure};
use super::{median, report};
use crate::daemon::{Daemon, Options};
use crate::paths::Paths;

/// Fresh pages that one run writes.
const FAULTS: u64 = 150_000;
/// Triples of runs: untraced, another process beside the daemon, attributed.
const ROUNDS: usize = 9;
/// Limit of the time of an attributed fault, as a multiple of an untraced one.
const ATTRIBUTED_RATIO: f64 = 1.10;
/// Limit of the time of a fault of a process that is no executor.
const STRANGER_RATIO: f64 = 1.02;

/// Runs the settings in turns, and prints the median ratios.
pub fn fault(paths: &Paths, folder: &Path) -> Result<()> {
    let (mut untraced, mut stranger, mut attributed) = (Vec::new(), Vec::new(), Vec::new());
    // The first round is a warm-up and is not counted.
    for round in 0..=ROUNDS {
        let alone = run(paths, "yes")?;
        let mut daemon = Daemon::start(
            paths,
            &paths.target.join("release"),
            folder,
            &Options::default(),
        )?;
        let beside = run(paths, "no")?;
        let traced = run(paths, "yes")?;
        daemon.stop();
        if round > 0 {
            untraced.push(alone);
            stranger.push(beside / alone);
            attributed.push(traced / alone);
        }
    }
    let untraced = median(&mut untraced);
    let of = |ratio: f64| {
        format!(
            "{:+.0} ns on {untraced:.0} ns, median of {ROUNDS} pairs",
            (ratio - 1.0) * untraced
        )
    };
    let (attributed, stranger) = (median(&mut attributed), median(&mut stranger));
    report(
        "attributed page fault",
        attributed,
        "times",
        ATTRIBUTED_RATIO,
        &of(attributed),
    );
    report(
        "page fault of other processes",
        stranger,
        "times",
        STRANGER_RATIO,
        &of(stranger),
    );
    Ok(())
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
