//! `cargo xtask experiment`: traces the eight workloads of the paper on real Spark, and prints the paper's tables
//! beside ours.

mod chart;
pub mod emulated;
mod fixture;
mod paper;
mod rank;
mod report;
pub mod run;
mod splits;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::daemon::{Daemon, Options};
use crate::paths::{DEMO_SPARK, Jdk, Paths};
use crate::process::{cargo, check_interrupt, is_root};
use crate::setup::setup;
use crate::spark::Spark;
use crate::step::Steps;

pub use fixture::step as fixture_step;
pub use paper::{PAPER, Paper};
use report::{Machine, Results};
use run::{Job, Outcome};

const BUILD_LIMIT: Duration = Duration::from_secs(3600);
/// Cores of all workers together: one executor or two share the same cores.
pub const CORES: usize = 2;
/// MiB that a worker may give to its executor: the heap of 1 GiB and Spark's overhead.
pub const WORKER_MIB: usize = 1536;

/// The selected runs.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Size of the inputs, a multiple of the smallest.
    pub scale: u32,
    /// Restricts the plan to this workload.
    pub workload: Option<String>,
    /// Restricts the plan to this number of workers.
    pub workers: Option<usize>,
}

/// Reads `--scale`: `tiny`, `small` or a number.
///
/// # Errors
/// When the text is neither a known name nor a number; the message lists the names.
pub fn scale(text: &str) -> Result<u32, String> {
    match text {
        "tiny" => Ok(1),
        "small" => Ok(10),
        number => number
            .parse()
            .ok()
            .filter(|scale| (1..=1000).contains(scale))
            .ok_or_else(|| {
                "give tiny (1), small (10), or a number of times tiny from 1 to 1000".to_owned()
            }),
    }
}

/// Names of the workloads.
#[must_use]
pub fn names() -> [&'static str; 8] {
    PAPER.map(|paper| paper.workload)
}

/// Runs the plan, prints the tables, and writes them with the figures: to `docs` when all workloads ran on one and
/// on two workers, else to `target/experiment` only.
///
/// # Errors
/// When a part cannot be set up, or, at the end, when a workload failed.
pub fn experiment(paths: &Paths, plan: &Plan) -> Result<()> {
    if !is_root() {
        bail!("loading eBPF programs needs root: run it as root");
    }
    setup(paths, &[DEMO_SPARK])?;
    let mut steps = Steps::new(2);
    fixture_step(paths, &mut steps)?;
    steps.always(
        "release build of smtt-daemon and smtt-ctl",
        paths.logs().join("build.log"),
        |step| {
            let mut cargo = cargo();
            cargo.args([
                "build",
                "--release",
                "--package",
                "smtt-daemon",
                "--package",
                "smtt-ctl",
            ]);
            step.run(cargo.current_dir(&paths.root), BUILD_LIMIT)
        },
    )?;
    let folder = paths.target.join("experiment");
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder)?;
    let jdk = Jdk::main()?;
    let daemon = Daemon::start(
        paths,
        &paths.target.join("release"),
        &folder,
        &Options::default(),
    )?;
    let start = Instant::now();
    let mut results = Results {
        machine: Machine::this(DEMO_SPARK, jdk.release)?,
        scale: plan.scale,
        outcomes: Vec::new(),
        failures: Vec::new(),
        seconds: 0.0,
    };
    for workers in [1, 2] {
        if plan.workers.is_none_or(|only| only == workers) {
            on(paths, plan, workers, &jdk, &daemon, &folder, &mut results)?;
        }
    }
    results.seconds = start.elapsed().as_secs_f64();
    let complete = plan.workload.is_none() && plan.workers.is_none();
    let out = if complete {
        paths.root.join("docs")
    } else {
        folder
    };
    println!("\n{}", results.write(&out)?);
    let shown = out.strip_prefix(&paths.root).unwrap_or(&out);
    println!("written: {}/EXPERIMENT.md", shown.display());
    if !results.failures.is_empty() {
        bail!(
            "{} of the runs failed:\n  {}",
            results.failures.len(),
            results.failures.join("\n  ")
        );
    }
    Ok(())
}

/// All workloads of the plan on one cluster.
fn on(
    paths: &Paths,
    plan: &Plan,
    workers: usize,
    jdk: &Jdk,
    daemon: &Daemon,
    folder: &Path,
    results: &mut Results,
) -> Result<()> {
    let folder = folder.join(format!("workers-{workers}"));
    let spark = Spark::new(paths, DEMO_SPARK, jdk, &folder.join("spark"))?;
    let cluster = spark.standalone(workers, CORES / workers, WORKER_MIB)?;
    println!("\n{workers} worker(s), scale {}", plan.scale);
    for workload in names() {
        if plan.workload.as_ref().is_some_and(|only| only != workload) {
            continue;
        }
        let job = Job {
            workload,
            scale: plan.scale,
            workers,
            master: &cluster.url,
            folder: &folder,
            quick: false,
        };
        match run::run(paths, &spark, daemon, &job) {
            Ok(outcome) => {
                println!("{}", line(&outcome));
                results.outcomes.push(outcome);
            }
            Err(error) => {
                check_interrupt()?;
                println!("  {workload:20} FAILED: {error:#}");
                results
                    .failures
                    .push(format!("{workload} on {workers} worker(s): {error:#}"));
            }
        }
    }
    Ok(())
}

fn line(outcome: &Outcome) -> String {
    format!(
        "  {:20} {:6.1} s  RDDs hold {:5.2} % of the heap; the parts of {} tasks add up; {}",
        outcome.workload,
        outcome.seconds,
        100.0 * outcome.rdd_share_of_heap(),
        outcome.split_tasks,
        outcome.result
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales() {
        assert_eq!(scale("tiny"), Ok(1));
        assert_eq!(scale("small"), Ok(10));
        assert_eq!(scale("40"), Ok(40));
        assert!(scale("0").is_err() && scale("huge").is_err());
    }
}
