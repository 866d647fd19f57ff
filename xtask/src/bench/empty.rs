//! What tracing adds to a job of tasks that do nothing, where all that a task costs is Spark's and the marker's.
//!
//! Applications with and without the marker live side by side and run rounds in turns, so that each round has a neighbour
//! of the other kind within seconds, and no JVM is cold. Two of each kind, because two JVMs of one kind differ: the same
//! code is compiled differently.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;

use super::pairs::geometric_mean;
use super::{RUN_LIMIT, gates, median, reach, report};
use crate::daemon::{Daemon, Options};
use crate::paths::{DEMO_SPARK, Jdk, Paths};
use crate::spark::{Application, Spark, Submitted};
use crate::witness;

/// Tasks of a round.
const TASKS: usize = 10_000;
/// Rounds of each application that are counted.
const ROUNDS: usize = 12;
/// Rounds before them, for the compilers.
const WARM_UP: usize = 3;
/// Applications of each kind.
const OF_EACH: usize = 2;
/// One executor with all cores.
const MASTER: &str = "local-cluster[1,2,1024]";
/// Limit of a traced job's time, as a multiple of the untraced job's.
const RATIO: f64 = 1.02;

/// Processes whose CPU time is reported separately.
const PARTS: [&str; 3] = ["driver", "executor", "daemon"];

/// Seconds of a round.
struct Round {
    seconds: f64,
    /// CPU seconds of each of [`PARTS`].
    cpu: [f64; PARTS.len()],
}

impl Round {
    fn cpu(&self) -> f64 {
        self.cpu.iter().sum()
    }
}

/// An application that waits between its rounds.
struct Rounds {
    submitted: Submitted,
    gates: PathBuf,
    next: usize,
}

impl Rounds {
    fn start(
        paths: &Paths,
        spark: &Spark,
        folder: &Path,
        name: &str,
        traced: bool,
    ) -> Result<Self> {
        let gates = gates(folder, &format!("gates-{name}"), &[])?;
        let arguments = [TASKS.to_string(), (WARM_UP + ROUNDS).to_string()];
        let arguments = [&*arguments[0], &*arguments[1]];
        let mut application = Application::java(paths, MASTER, "EmptyTasks", &arguments)?
            .conf("spark.smtt.fixture.barrier", &gates.display().to_string());
        if traced {
            application = application.with_marker(paths);
        }
        let mut rounds = Self {
            submitted: application.submit(spark, name)?,
            gates,
            next: 0,
        };
        rounds.reach()?;
        Ok(rounds)
    }

    /// Waits until the last round has ended.
    fn reach(&mut self) -> Result<()> {
        let gate = if self.next == WARM_UP + ROUNDS {
            "end".to_owned()
        } else {
            format!("round-{}", self.next)
        };
        reach(
            &mut self.submitted.running,
            &self.gates.join(format!("{gate}.reached")),
        )
    }

    /// CPU seconds of the driver, of the executor, and of a daemon.
    fn cpu(&self, daemon: Option<&Daemon>) -> Result<[f64; PARTS.len()]> {
        let driver = self.submitted.running.pid();
        let executors = witness::descendants(driver)?.into_iter();
        Ok([
            witness::cpu_seconds(driver)?,
            executors
                .filter_map(|pid| witness::cpu_seconds(pid).ok())
                .sum(),
            daemon.map_or(Ok(0.0), |daemon| witness::cpu_seconds(daemon.pid()))?,
        ])
    }

    /// Runs a round.
    fn run(&mut self, daemon: Option<&Daemon>) -> Result<Round> {
        let (begin, before) = (Instant::now(), self.cpu(daemon)?);
        fs::write(self.gates.join(format!("round-{}.go", self.next)), "")?;
        self.next += 1;
        self.reach()?;
        let seconds = begin.elapsed().as_secs_f64();
        let mut cpu = self.cpu(daemon)?;
        for (after, before) in cpu.iter_mut().zip(before) {
            *after -= before;
        }
        Ok(Round { seconds, cpu })
    }

    fn end(mut self) -> Result<()> {
        fs::write(self.gates.join("end.go"), "")?;
        self.submitted.result(RUN_LIMIT)?;
        Ok(())
    }
}

/// Compares rounds of empty tasks with marker and daemon with rounds without the marker.
///
/// # Errors
/// When an application or the daemon does not run.
pub(super) fn empty(paths: &Paths, folder: &Path) -> Result<()> {
    let release = paths.target.join("release");
    let daemon = Daemon::start(paths, &release, folder, &Options::default())?;
    let spark = Spark::new(paths, DEMO_SPARK, &Jdk::main()?, &folder.join("spark"))?;
    let start = |kind: &str, traced: bool| -> Result<Vec<Rounds>> {
        let names = (0..OF_EACH).map(|number| format!("{kind}-{number}"));
        names
            .map(|name| Rounds::start(paths, &spark, folder, &name, traced))
            .collect()
    };
    let (mut plain, mut traced) = (start("plain", false)?, start("traced", true)?);
    let (mut time, mut cpu, mut among_plain) = (Vec::new(), Vec::new(), Vec::new());
    let mut added = [const { Vec::new() }; PARTS.len()];
    for round in 0..WARM_UP + ROUNDS {
        let mut plain_seconds = Vec::new();
        for (plain, traced) in plain.iter_mut().zip(&mut traced) {
            // The order alternates: the second of two rounds may profit from the first.
            let (without, with) = if round % 2 == 0 {
                let without = plain.run(None)?;
                (without, traced.run(Some(&daemon))?)
            } else {
                let with = traced.run(Some(&daemon))?;
                (plain.run(None)?, with)
            };
            if round >= WARM_UP {
                println!(
                    "    round {}: {:.2} s with, {:.2} s without; {:.2} s and {:.2} s of CPU time",
                    round - WARM_UP + 1,
                    with.seconds,
                    without.seconds,
                    with.cpu(),
                    without.cpu()
                );
                time.push(with.seconds / without.seconds);
                cpu.push(with.cpu() / without.cpu());
                for ((all, with), without) in added.iter_mut().zip(with.cpu).zip(without.cpu) {
                    all.push((with - without) * 1e6 / TASKS as f64);
                }
                plain_seconds.push(without.seconds);
            }
        }
        if let [first, second] = *plain_seconds {
            among_plain.push(second / first);
        }
    }
    let (noise, low, high) = geometric_mean(&among_plain);
    println!(
        "    two applications without the marker differ {noise:.3} times, 95 % interval {low:.3} to {high:.3}"
    );
    for (ratios, figure) in [(&time, "time"), (&cpu, "CPU time")] {
        let (mean, low, high) = geometric_mean(ratios);
        report(
            &format!("{TASKS} empty tasks, {figure}"),
            mean,
            "x",
            RATIO,
            &format!(
                "traced against untraced, geometric mean of {} pairs of rounds, 95 % interval {low:.3} to {high:.3}",
                ratios.len()
            ),
        );
    }
    for (part, all) in PARTS.iter().zip(&mut added) {
        println!(
            "    added to a task by the {part}: {:.1} us of CPU time",
            median(all)
        );
    }
    let executors = daemon.rows(&["executors"])?;
    let facts: f64 = executors
        .iter()
        .filter_map(|row| row["facts"].as_f64())
        .sum();
    println!("    {facts:.0} facts of {} executors", executors.len());
    for rounds in plain.into_iter().chain(traced) {
        rounds.end()?;
    }
    Ok(())
}
