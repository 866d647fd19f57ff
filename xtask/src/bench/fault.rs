//! What tracing adds to a page fault: a native workload writes fresh pages, its own CPU time tells.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{median, report};
use crate::daemon::{Daemon, Options};
use crate::paths::Paths;

/// Fresh pages that one run writes.
const FAULTS: u64 = 150_000;
/// Triples of runs: untraced, beside the daemon, attributed.
const ROUNDS: usize = 9;
/// Most time of an attributed fault, as a multiple of an untraced one.
const ATTRIBUTED_RATIO: f64 = 1.10;
/// Most time of a fault of a process that is no executor.
const STRANGER_RATIO: f64 = 1.02;

/// Measures in turns, and prints the median ratios.
pub fn fault(paths: &Paths, folder: &Path) -> Result<()> {
    let (mut untraced, mut stranger, mut attributed) = (Vec::new(), Vec::new(), Vec::new());
    // The first round warms up and counts for nothing.
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
    let figures = workload(
        paths,
        &[
            "faults",
            "threads=1",
            "reads=1",
            &format!("writes={FAULTS}"),
            &format!("describe={describe}"),
        ],
    )?;
    let nanoseconds = figures["cpu_ns"]
        .as_f64()
        .context("the workload does not tell its CPU time")?;
    Ok(nanoseconds / FAULTS as f64)
}

/// Runs a scenario of the native workload, and gives what it says of itself.
pub fn workload(paths: &Paths, arguments: &[&str]) -> Result<Value> {
    let mut child = Command::new(paths.target.join("release/workload"))
        .arg(paths.marker().join("libsmtt_marker.so"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("the workload does not start")?;
    let mut commands = child.stdin.take().context("no standard input")?;
    let mut answers = BufReader::new(child.stdout.take().context("no standard output")?).lines();
    let mut answer =
        || -> Result<String> { Ok(answers.next().context("the workload ended early")??) };
    let ready = answer()?;
    if ready != "READY" {
        bail!("the workload said {ready:?}, not READY");
    }
    commands.write_all(b"go\n")?;
    let done = answer()?;
    let figures = serde_json::from_str(done.trim_start_matches("DONE").trim())?;
    commands.write_all(b"end\n")?;
    drop(commands);
    child.wait()?;
    Ok(figures)
}
