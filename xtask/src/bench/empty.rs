//! What tracing, and a history that the driver writes, add to a job of tasks that do nothing, where all that a task costs
//! is Spark's and the marker's.
//!
//! Applications with and without it live side by side and run rounds in turns, so that each round has a neighbour
//! of the other kind within seconds, and no JVM is cold. Two of each kind, because two JVMs of one kind differ: the same
//! code is compiled differently.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result};

use super::pairs::geometric_mean;
use super::{RUN_LIMIT, gates, median, reach, report};
use crate::daemon::{Daemon, Options};
use crate::paths::{DEMO_SPARK, Jdk, Paths};
use crate::process::output;
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
/// Limit of the CPU time that the history takes in the driver, as a percentage of the job's.
const DRIVER_PERCENT: f64 = 1.0;
/// Limit of the CPU time of the history's listener per task, in microseconds.
const LISTENER_US: f64 = 20.0;
/// Threads of a driver that writes its history: Spark's own for the queue of the listener, and the one that writes parts.
const LISTENER: &str = "spark-listener-group-smtt-history";
const WRITER: &str = "smtt-history";

/// Processes whose CPU time is reported separately.
const PARTS: [&str; 3] = ["driver", "executor", "daemon"];

/// What an application has.
#[derive(Clone, Copy)]
enum Kind {
    Plain,
    /// The marker in driver and executors.
    Traced,
    /// The marker in the driver, which writes the history of the application and nothing else.
    Recorded,
}

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
    fn start(paths: &Paths, spark: &Spark, folder: &Path, name: &str, kind: Kind) -> Result<Self> {
        let gates = gates(folder, &format!("gates-{name}"), &[])?;
        let arguments = [TASKS.to_string(), (WARM_UP + ROUNDS).to_string()];
        let arguments = [&*arguments[0], &*arguments[1]];
        let mut application = Application::java(paths, MASTER, "EmptyTasks", &arguments)?
            .conf("spark.smtt.fixture.barrier", &gates.display().to_string());
        application = match kind {
            Kind::Plain => application,
            Kind::Traced => application.with_marker(paths),
            Kind::Recorded => {
                let store = folder.join(format!("store-{name}"));
                application
                    .with_marker_by_spark(paths)
                    .conf("spark.smtt.attach", "false")
                    .conf(
                        "spark.smtt.history.dir",
                        &format!("file://{}", store.display()),
                    )
            }
        };
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

/// Rounds of applications with something, against those of applications without.
struct Compared {
    plain: Vec<Rounds>,
    other: Vec<Rounds>,
    time: Vec<f64>,
    cpu: Vec<f64>,
    /// CPU seconds of a round without.
    plain_cpu: Vec<f64>,
    /// Microseconds of CPU time that each of [`PARTS`] takes more for a task.
    added: [Vec<f64>; PARTS.len()],
}

/// Runs the rounds; `warm` is called before those that count.
fn compare(
    paths: &Paths,
    folder: &Path,
    kind: Kind,
    daemon: Option<&Daemon>,
    mut warm: impl FnMut(&[Rounds]) -> Result<()>,
) -> Result<Compared> {
    let spark = Spark::new(paths, DEMO_SPARK, &Jdk::main()?, &folder.join("spark"))?;
    let start = |name: &str, kind: Kind| -> Result<Vec<Rounds>> {
        let names = (0..OF_EACH).map(|number| format!("{name}-{number}"));
        names
            .map(|name| Rounds::start(paths, &spark, folder, &name, kind))
            .collect()
    };
    let (mut plain, mut other) = (start("plain", Kind::Plain)?, start("other", kind)?);
    let (mut time, mut cpu, mut plain_cpu) = (Vec::new(), Vec::new(), Vec::new());
    let (mut added, mut among_plain) = ([const { Vec::new() }; PARTS.len()], Vec::new());
    for round in 0..WARM_UP + ROUNDS {
        if round == WARM_UP {
            warm(&other)?;
        }
        let mut plain_seconds = Vec::new();
        for (plain, other) in plain.iter_mut().zip(&mut other) {
            // The order alternates: the second of two rounds may profit from the first.
            let (without, with) = if round % 2 == 0 {
                let without = plain.run(None)?;
                (without, other.run(daemon)?)
            } else {
                let with = other.run(daemon)?;
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
                plain_cpu.push(without.cpu());
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
        "    two applications without it differ {noise:.3} times, 95 % interval {low:.3} to {high:.3}"
    );
    Ok(Compared {
        plain,
        other,
        time,
        cpu,
        plain_cpu,
        added,
    })
}

impl Compared {
    fn report_added(&mut self) {
        for (part, all) in PARTS.iter().zip(&mut self.added) {
            println!(
                "    added to a task by the {part}: {:.1} us of CPU time",
                median(all)
            );
        }
    }

    fn end(self) -> Result<()> {
        let mut all = self.plain.into_iter().chain(self.other);
        all.try_for_each(Rounds::end)
    }
}

/// Compares rounds of empty tasks with marker and daemon with rounds without the marker.
///
/// # Errors
/// When an application or the daemon does not run.
pub(super) fn empty(paths: &Paths, folder: &Path) -> Result<()> {
    let release = paths.target.join("release");
    let daemon = Daemon::start(paths, &release, folder, &Options::default())?;
    let mut compared = compare(paths, folder, Kind::Traced, Some(&daemon), |_| Ok(()))?;
    for (ratios, figure) in [(&compared.time, "time"), (&compared.cpu, "CPU time")] {
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
    compared.report_added();
    let executors = daemon.rows(&["executors"])?;
    let facts: f64 = executors
        .iter()
        .filter_map(|row| row["facts"].as_f64())
        .sum();
    println!("    {facts:.0} facts of {} executors", executors.len());
    compared.end()
}

/// CPU milliseconds of a thread of a JVM, as the JVM itself says.
fn thread_ms(pid: u32, name: &str) -> Result<f64> {
    let mut jcmd = Command::new("jcmd");
    let said = output(jcmd.args([&pid.to_string(), "Thread.print"]))?;
    let start = format!("\"{name}\" ");
    let line = said.lines().find(|line| line.starts_with(&start));
    let line = line.with_context(|| format!("process {pid} has no thread {name}"))?;
    let cpu = line
        .split_once(" cpu=")
        .and_then(|(_, rest)| rest.split_once("ms"));
    let (cpu, _) = cpu.with_context(|| format!("no CPU time in {line:?}"))?;
    Ok(cpu.parse()?)
}

/// CPU milliseconds of the history's two threads in all these drivers.
fn threads_ms(drivers: &[Rounds]) -> Result<[f64; 2]> {
    let mut sums = [0.0; 2];
    for driver in drivers {
        for (sum, name) in sums.iter_mut().zip([LISTENER, WRITER]) {
            *sum += thread_ms(driver.submitted.running.pid(), name)?;
        }
    }
    Ok(sums)
}

/// Compares drivers that write a history with drivers that do not.
///
/// # Errors
/// When an application does not run.
pub(super) fn driver(paths: &Paths, folder: &Path) -> Result<()> {
    let mut before = [0.0; 2];
    let mut compared = compare(paths, folder, Kind::Recorded, None, |drivers| {
        before = threads_ms(drivers)?;
        Ok(())
    })?;
    let after = threads_ms(&compared.other)?;
    let tasks = (TASKS * ROUNDS * OF_EACH) as f64;
    let [listener, writer] = [0, 1].map(|at| (after[at] - before[at]) * 1000.0 / tasks);
    let of_job = mean(&compared.plain_cpu) * 1e6 / TASKS as f64;
    for (what, us) in [("listener", listener), ("thread that writes parts", writer)] {
        println!(
            "    {what}: {us:.1} us of CPU time per task, {:.2} % of the job's",
            us * 100.0 / of_job
        );
    }
    report(
        "history, listener per task",
        listener,
        "us",
        LISTENER_US,
        "CPU time of its thread by the JVM's account",
    );
    // The two threads have neither the collections that their memory costs nor the bus.
    let driver = median(&mut compared.added[0]);
    report(
        "history, driver's added CPU time",
        driver * 100.0 / of_job,
        "%",
        DRIVER_PERCENT,
        &format!(
            "of the {of_job:.0} us that a task of {TASKS} empty ones costs; median of pairs of rounds"
        ),
    );
    let (mean, low, high) = geometric_mean(&compared.cpu);
    println!("    CPU time of the whole job {mean:.3} times, 95 % interval {low:.3} to {high:.3}");
    compared.report_added();
    compared.end()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
