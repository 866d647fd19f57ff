//! What a traced access costs the executor that makes it: Spark's own functions, with the marker and without.

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::{RUN_LIMIT, least, median, most, report};
use crate::daemon::{Daemon, Options};
use crate::places::{DEMO_SPARK, Jdk, Places};
use crate::spark::{Application, Spark};

/// Runs of each setting, in turns.
const ROUNDS: usize = 3;
/// Most nanoseconds that one fact may add while a daemon takes it.
const TOLD_NS: f64 = 2000.0;
/// Most nanoseconds that one fact may add while nobody listens.
const UNHEARD_NS: f64 = 500.0;
/// What is measured, and how many facts one step of it tells.
const STEPS: [(&str, f64); 3] = [
    ("page allocated and freed", 2.0),
    ("block put and removed", 2.0),
    ("cached block read", 1.0),
];
/// No fact is refused for coming too fast: a refused one is cheaper.
const ALL_FACTS: &str = "[probe.marker]\nfacts_per_second = 10000000\n";

type Figures = [f64; STEPS.len()];

/// Runs the benchmark without the marker, with it, and with a daemon that listens, and prints what a fact adds.
///
/// # Errors
/// When Spark or the daemon does not run.
pub(super) fn access(places: &Places, folder: &Path) -> Result<()> {
    alone()?;
    let spark = Spark::new(places, DEMO_SPARK, &Jdk::main()?, &folder.join("spark"))?;
    let mut number = 0;
    let mut run = |marker: bool| -> Result<Figures> {
        number += 1;
        let mut application = Application::java(places, "local[1]", "AccessBench", &[])?;
        if marker {
            application = application.with_marker(places);
        }
        let mut submitted = application.submit(&spark, &format!("spark-{number}"))?;
        figures(&submitted.result(RUN_LIMIT)?)
    };
    let (mut unheard, mut told) = ([const { Vec::new() }; 3], [const { Vec::new() }; 3]);
    let mut plain = [const { Vec::new() }; 3];
    for round in 1..=ROUNDS {
        let without = run(false)?;
        let alone = run(true)?;
        let daemon = Daemon::start(
            places,
            &places.target.join("release"),
            &folder.join(format!("daemon-{round}")),
            &Options {
                toml: ALL_FACTS.to_owned(),
                ..Options::default()
            },
        )?;
        let with = run(true)?;
        drop(daemon);
        for (index, (what, facts)) in STEPS.iter().enumerate() {
            println!(
                "    round {round}: {what}: {:.0} ns, with the marker {:.0} ns ({:.2} times), with the daemon {:.0} ns ({:.2} times)",
                without[index],
                alone[index],
                alone[index] / without[index],
                with[index],
                with[index] / without[index],
            );
            plain[index].push(without[index]);
            unheard[index].push((alone[index] - without[index]) / facts);
            told[index].push((with[index] - without[index]) / facts);
        }
    }
    for (index, (what, facts)) in STEPS.iter().enumerate() {
        for (who, all, target) in [
            ("no daemon", &mut unheard[index], UNHEARD_NS),
            ("traced", &mut told[index], TOLD_NS),
        ] {
            let detail = format!(
                "median of {ROUNDS} from {:.0} to {:.0} per fact, {facts} facts on {:.0} ns",
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

/// A daemon takes the facts of every executor on the machine, also of those that are to run without one.
fn alone() -> Result<()> {
    for entry in std::fs::read_dir("/proc").context("cannot list /proc")? {
        let path = entry?.path();
        // What is no process, or is gone, has no name.
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

/// The nanoseconds of the three steps.
fn figures(line: &str) -> Result<Figures> {
    let numbers: Vec<f64> = line
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    numbers
        .try_into()
        .ok()
        .with_context(|| format!("no three figures in {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read() {
        let line = "RESULT access 1.5 ns page, 20.0 ns block, 300.0 ns read";
        assert_eq!(figures(line).expect("three"), [1.5, 20.0, 300.0]);
        assert!(figures("RESULT access").is_err());
    }
}
