//! The cost of a traced access to its executor: Spark's own functions, with the marker and without.

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::{RUN_LIMIT, least, median, most, report};
use crate::daemon::{Daemon, Options};
use crate::paths::{DEMO_SPARK, Jdk, Paths};
use crate::spark::{Application, Spark};

/// Runs of each setting; the settings alternate.
const ROUNDS: usize = 3;
/// Limit of the nanoseconds that one fact adds while a daemon reads it.
pub(super) const TOLD_NS: f64 = 2000.0;
/// Limit of the nanoseconds that one fact adds without a daemon.
const UNHEARD_NS: f64 = 500.0;
/// Limits of the nanoseconds that one sampled object adds, its share of the two facts of its block included.
const OBJECT_NS: [f64; 2] = [200.0, 250.0];
/// A measured step of the benchmark.
struct Step {
    what: &'static str,
    /// The unit of the cost, and the number of units in one step.
    per: &'static str,
    count: f64,
    /// Limits in nanoseconds per unit: without a daemon, with one.
    targets: [f64; 2],
}

impl Step {
    const fn facts(what: &'static str, count: f64) -> Self {
        Self {
            what,
            per: "fact",
            count,
            targets: [UNHEARD_NS, TOLD_NS],
        }
    }
}

const STEPS: [Step; 4] = [
    Step::facts("page allocated and freed", 2.0),
    Step::facts("block put and removed", 2.0),
    Step {
        what: "block of 32 objects put and removed",
        per: "object",
        count: 32.0,
        targets: OBJECT_NS,
    },
    Step::facts("cached block read", 1.0),
];
/// No fact exceeds the rate limit: a refused fact is cheaper.
const ALL_FACTS: &str =
    "[probe.marker]\nfacts_per_second = 10000000\nbytes_per_second = \"1GiB\"\n";

type Figures = [f64; STEPS.len()];

/// Runs the benchmark without the marker, with it, and with a daemon, and prints what a fact adds.
///
/// # Errors
/// When Spark or the daemon does not run.
pub(super) fn access(paths: &Paths, folder: &Path) -> Result<()> {
    alone()?;
    let spark = Spark::new(paths, DEMO_SPARK, &Jdk::main()?, &folder.join("spark"))?;
    let mut number = 0;
    let mut run = |marker: bool| -> Result<Figures> {
        number += 1;
        let mut application = Application::java(paths, "local[1]", "AccessBench", &[])?;
        if marker {
            application = application.with_marker(paths);
        }
        let mut submitted = application.submit(&spark, &format!("spark-{number}"))?;
        figures(&submitted.result(RUN_LIMIT)?)
    };
    let (mut unheard, mut told) = (
        [const { Vec::new() }; STEPS.len()],
        [const { Vec::new() }; STEPS.len()],
    );
    let mut plain = [const { Vec::new() }; STEPS.len()];
    for round in 1..=ROUNDS {
        let without = run(false)?;
        let alone = run(true)?;
        let daemon = Daemon::start(
            paths,
            &paths.target.join("release"),
            &folder.join(format!("daemon-{round}")),
            &Options {
                toml: ALL_FACTS.to_owned(),
                ..Options::default()
            },
        )?;
        let with = run(true)?;
        drop(daemon);
        for (index, step) in STEPS.iter().enumerate() {
            let (what, count) = (step.what, step.count);
            println!(
                "    round {round}: {what}: {:.0} ns, with the marker {:.0} ns ({:.2} times), with the daemon {:.0} ns ({:.2} times)",
                without[index],
                alone[index],
                alone[index] / without[index],
                with[index],
                with[index] / without[index],
            );
            plain[index].push(without[index]);
            unheard[index].push((alone[index] - without[index]) / count);
            told[index].push((with[index] - without[index]) / count);
        }
    }
    for (index, step) in STEPS.iter().enumerate() {
        let (what, per, count) = (step.what, step.per, step.count);
        for (who, all, target) in [
            ("no daemon", &mut unheard[index], step.targets[0]),
            ("traced", &mut told[index], step.targets[1]),
        ] {
            let detail = format!(
                "median of {ROUNDS} from {:.0} to {:.0} per {per}, {count} of them on {:.0} ns",
                least(all),
                most(all),
                median(&mut plain[index])
            );
            report(
                &format!("{what}, {who}"),
                median(all),
                "ns",
                target,
                &detail,
            );
        }
    }
    Ok(())
}

/// Refuses to run beside another daemon: it would read the facts of every executor on the machine, also in the runs
/// that must have no daemon.
fn alone() -> Result<()> {
    for entry in std::fs::read_dir("/proc").context("cannot list /proc")? {
        let path = entry?.path();
        // An entry that is no process, or a process that has ended, has no name.
        let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        if name.trim() == "smtt-daemon" {
            bail!(
                "{} is a daemon that would take the facts too: stop it first",
                path.display()
            );
        }
    }
    Ok(())
}

/// Parses the nanoseconds of the steps.
fn figures(line: &str) -> Result<Figures> {
    let numbers: Vec<f64> = line
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    numbers
        .try_into()
        .ok()
        .with_context(|| format!("not a figure of each step in {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read() {
        let line = "RESULT access 1.5 ns page, 20.0 ns block, 50.5 ns objects, 300.0 ns read";
        assert_eq!(figures(line).expect("four"), [1.5, 20.0, 50.5, 300.0]);
        assert!(figures("RESULT access").is_err());
    }
}
