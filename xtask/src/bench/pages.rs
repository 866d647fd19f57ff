//! The cost of resolving pages: the daemon's CPU time, and the delay of a thread in the inspected process.

use std::path::Path;

use anyhow::Result;

use super::workload::{self, figure};
use super::{median, report};
use crate::daemon::{Daemon, Options};
use crate::paths::Paths;

/// Size in GiB of the block that the process reports.
const LARGE_GIB: u64 = 12;
/// Seconds for which the thread maps and faults in one run.
const SECONDS: u64 = 10;
/// Pairs of runs, with and without the resolver.
const ROUNDS: usize = 5;
/// Limit of what the resolver adds to the slowest step of a thousand, in milliseconds.
const P999_MS: f64 = 1.0;
/// Limit of the resolver's CPU time, in milliseconds per second.
const CPU_MS: f64 = 2.1;

/// Runs the settings in turns, and prints the median differences.
pub fn pages(paths: &Paths, folder: &Path) -> Result<()> {
    let mut added = Vec::new();
    let mut cpu = Vec::new();
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        let mut p999 = |resolve: &str, name: &str| -> Result<f64> {
            let mut daemon = Daemon::start(
                paths,
                &paths.target.join("release"),
                &folder.join(format!("{name}-{round}")),
                &Options {
                    toml: format!("[placement]\n{resolve}\n"),
                    ..Options::default()
                },
            )?;
            let p999 = run(paths)?;
            if let Some(ms) = cpu_ms_per_second(&daemon.metrics()?) {
                cpu.push(ms);
            }
            daemon.stop();
            Ok(p999)
        };
        // The resolver runs continuously, so that every step may collide with it.
        let looking = p999("interval = \"1s\"", "looking")?;
        let alone = p999("pages_per_second = 0", "alone")?;
        println!(
            "    pair {round}: p99.9 {looking:.3} ms while pages are examined, {alone:.3} ms without"
        );
        added.push(looking - alone);
        with.push(looking);
        without.push(alone);
    }
    let detail = format!(
        "{:.3} ms with, {:.3} ms without, medians of {ROUNDS} pairs; a {LARGE_GIB} GiB block, steps of 16 faults, preempted ones left out",
        median(&mut with),
        median(&mut without)
    );
    report(
        "p99.9 of a faulting thread, added",
        median(&mut added),
        "ms",
        P999_MS,
        &detail,
    );
    report(
        "looking where pages are",
        median(&mut cpu),
        "ms/s",
        CPU_MS,
        "CPU time of the resolver while it looks all the time",
    );
    Ok(())
}

/// The resolver's CPU time as a share of the run, from the daemon's metrics; `None` where it is off.
fn cpu_ms_per_second(metrics: &str) -> Option<f64> {
    let value = metrics.lines().find_map(|line| {
        line.strip_prefix("smtt_resolver_cpu_seconds_total ")?
            .parse::<f64>()
            .ok()
    })?;
    // The resolver starts when the block is reported: the run, and two seconds before it.
    Some(value * 1000.0 / (SECONDS + 2) as f64)
}

/// Runs the workload; returns the milliseconds of the slowest step of a thousand.
fn run(paths: &Paths) -> Result<f64> {
    let arguments = [
        "latency",
        &format!("large={LARGE_GIB}"),
        &format!("seconds={SECONDS}"),
    ];
    let figures = workload::run(paths, &arguments)?;
    Ok(figure(&figures, "p999_ns")? / 1e6)
}
