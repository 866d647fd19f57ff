//! The cost of one sample: a loop under a clock that samples at a high rate, against the same loop without.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::workload::{self, figure};
use super::{median, report};
use crate::daemon::{Daemon, Options};
use crate::paths::Paths;

/// The clock instead of the processor's cycles: every machine has it.
pub const CLOCK: &str = "events = { cycles = \"cpu-clock\" }";
/// Neither the processor's events nor, in their place, the clock.
pub const NO_SAMPLES: &str = "enabled = false\n\n[probe.on_cpu]\nsamples_per_second = 0";
/// Nanoseconds between two samples of a CPU: short enough for a measurable cost, long enough to avoid throttling.
const PERIOD_NS: u64 = 20_011;
/// Rounds of the loop: about a second of CPU time.
const ROUNDS_OF_LOOP: u64 = 1_000_000_000;
/// Pairs of runs.
const PAIRS: usize = 9;
/// Limit of the nanoseconds of a sample: at the default limit of 200 a second samples then take half a per cent of a
/// CPU.
const SAMPLE_NS: f64 = 25_000.0;
/// `BPF_PROG_TYPE_PERF_EVENT`, as the kernel shows it.
const PERF_EVENT: &str = "prog_type:\t7";
/// The kernel's switch for statistics about the run time of BPF programs.
const STATISTICS: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Runs the settings in turns, and prints the median of the differences.
pub fn sample(paths: &Paths, folder: &Path) -> Result<()> {
    let daemon = |pmu: &str| {
        Daemon::start(
            paths,
            &paths.target.join("release"),
            folder,
            &Options {
                toml: format!("[page_walks]\n{pmu}\n"),
                ..Options::default()
            },
        )
    };
    let often = format!("{CLOCK}\nsample_periods = {{ cycles = {PERIOD_NS} }}");
    let (mut costs, mut loops) = (Vec::new(), Vec::new());
    // The first pair is a warm-up and is not counted.
    for pair in 0..=PAIRS {
        let mut idle = daemon(NO_SAMPLES)?;
        let without = spin(paths)?;
        idle.stop();
        let mut sampling = daemon(&often)?;
        let with = spin(paths)?;
        sampling.stop();
        if pair > 0 {
            let samples = with / PERIOD_NS as f64;
            costs.push((with - without) / samples);
            loops.push(without / 1e9);
        }
    }
    let cost = median(&mut costs);
    report(
        "one sample, interrupt included",
        cost,
        "ns",
        SAMPLE_NS,
        &format!(
            "median of {PAIRS} pairs from {:.0} to {:.0}, one sample per {PERIOD_NS} ns in a loop of {:.2} s; 200 samples per second take {:.3} % of a CPU",
            super::least(&costs),
            super::most(&costs),
            median(&mut loops),
            cost * 200.0 / 1e7
        ),
    );
    let mut sampling = daemon(&often)?;
    let program = program_ns(paths, sampling.pid())?;
    sampling.stop();
    println!("    of it the kernel side's program: {program:.0} ns");
    Ok(())
}

/// CPU nanoseconds of the loop.
fn spin(paths: &Paths) -> Result<f64> {
    let arguments = ["spin", &format!("rounds={ROUNDS_OF_LOOP}")];
    figure(&workload::run(paths, &arguments)?, "cpu_ns")
}

/// Nanoseconds of one run of the sampling program, from the kernel's own statistics.
fn program_ns(paths: &Paths, daemon: u32) -> Result<f64> {
    let before =
        fs::read_to_string(STATISTICS).with_context(|| format!("cannot read {STATISTICS}"))?;
    fs::write(STATISTICS, "1").with_context(|| format!("cannot write {STATISTICS}"))?;
    let then = runs(daemon)?;
    let spun = spin(paths);
    let now = runs(daemon)?;
    fs::write(STATISTICS, before.trim()).with_context(|| format!("cannot write {STATISTICS}"))?;
    spun?;
    let count = now.1 - then.1;
    Ok((now.0 - then.0) as f64 / count.max(1) as f64)
}

/// Nanoseconds and runs of the daemon's perf event programs, from `/proc/PID/fdinfo`.
fn runs(daemon: u32) -> Result<(u64, u64)> {
    let folder = format!("/proc/{daemon}/fdinfo");
    let mut sum = (0, 0);
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {folder}"))? {
        // A file that was closed meanwhile counts as no program.
        let text = fs::read_to_string(entry?.path()).unwrap_or_default();
        if !text.lines().any(|line| line == PERF_EVENT) {
            continue;
        }
        let number = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
                .unwrap_or(0)
        };
        sum.0 += number("run_time_ns:");
        sum.1 += number("run_cnt:");
    }
    Ok(sum)
}
