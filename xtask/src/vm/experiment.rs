//! The experiment's workloads in a guest whose dTLB counters work.

use std::time::Duration;

use anyhow::{Result, bail};

use super::guest::Guest;
use super::machine::{GuestFile, Init, Machine};
use super::{disk, jvm, prepare};
use crate::cross::{FOREIGN_PACKAGES, Programs};
use crate::paths::Paths;
use crate::setup;

/// The program that runs the workloads in the guest.
const PROGRAM: &str = "experiment";

/// Boots the guest and runs the program with `arguments`; each line of its output goes to `line`.
///
/// # Errors
/// When a part does not build, the guest has no dTLB counter, does not boot or takes longer than `limit`, or the
/// program fails.
pub fn experiment(
    paths: &Paths,
    name: &str,
    arguments: &[&str],
    limit: Duration,
    line: impl FnMut(&str),
) -> Result<()> {
    setup::for_machines(paths)?;
    let Some(guest) = Guest::named(Some(name))?.pop() else {
        bail!("no emulated machine {name}");
    };
    let prepared = prepare(paths, guest)?;
    let (files, program) = build(paths, guest)?;
    let machine = Machine {
        guest,
        prepared: &prepared,
        files,
        disk: Some(disk(paths, guest.processor)?),
        init: Init::Shell,
        time_out: limit,
        log: paths
            .target
            .join(format!("log/vm-experiment-{}.log", guest.name)),
    };
    let script = format!(
        "{}{} {}\n",
        jvm::variables(guest.processor),
        program,
        arguments.join(" ")
    );
    let ran = machine.run(&script, line)?;
    if ran.status != 0 {
        bail!(
            "the workloads ended with {}: {} has their messages",
            ran.status,
            machine.log.display()
        );
    }
    Ok(())
}

/// The guest's files, and the path of the program in it.
fn build(paths: &Paths, guest: &Guest) -> Result<(Vec<GuestFile>, String)> {
    let mut files = jvm::files(paths, guest.processor, None)?;
    files.push(GuestFile {
        there: paths.scala_jar().display().to_string(),
        here: paths.scala_jar(),
    });
    // The packages of the tests, and one test: another choice would build the shared dependencies again with other
    // features.
    let built = Programs {
        what: "the experiment's programs",
        log: "experiment",
        packages: FOREIGN_PACKAGES,
        tests: &["jvm"],
        binaries: &[jvm::PROGRAMS[0], jvm::PROGRAMS[1], PROGRAM],
        profile: None,
    }
    .build(paths, guest.processor)?;
    let there = built[PROGRAM].display().to_string();
    for (_, here) in built.into_iter().filter(|(name, _)| name != "jvm") {
        files.push(GuestFile {
            there: here.display().to_string(),
            here,
        });
    }
    Ok((files, there))
}
