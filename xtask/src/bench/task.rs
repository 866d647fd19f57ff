//! What the accounts of a task cost its executor, begin and end together: the marker's readings in the JVM, and the
//! probes on the facts of a task.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use smtt_common::event::marker::LIBRARY_NAME;

use super::workload::{self, figure};
use super::{RUN_LIMIT, median, report};
use crate::daemon::{Daemon, Options};
use crate::marker::JAR_NAME;
use crate::marker::unit::{NATIVE_ACCESS, UNSAFE_WARNS};
use crate::paths::{Jdk, Paths};
use crate::process::run;

/// Tasks of one run of the native workload.
const TASKS: u64 = 20_000;
/// Pairs of runs, with a daemon and without.
const ROUNDS: usize = 7;
/// Limit of the nanoseconds that a task costs more.
const TASK_NS: f64 = 10_000.0;
/// No fact exceeds the rate limit: a refused fact is cheaper.
const ALL_FACTS: &str =
    "[probe.marker]\nfacts_per_second = 10000000\nbytes_per_second = \"1GiB\"\n";

/// Prints the cost of a task's accounts.
///
/// # Errors
/// When the workload, the JVM or the daemon does not run.
pub(super) fn task(paths: &Paths, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let jvm_ns = in_the_jvm(paths, folder)?;
    let mut added = Vec::new();
    // The first round is a warm-up and is not counted.
    for round in 0..=ROUNDS {
        let alone = tasks(paths)?;
        let options = Options {
            toml: ALL_FACTS.to_owned(),
            ..Options::default()
        };
        let mut daemon = Daemon::start(paths, &paths.target.join("release"), folder, &options)?;
        let traced = tasks(paths)?;
        daemon.stop();
        if round > 0 {
            added.push(traced - alone);
        }
    }
    let probes_ns = median(&mut added);
    report(
        "accounts of a task",
        jvm_ns + probes_ns,
        "ns",
        TASK_NS,
        &format!(
            "begin and end: {jvm_ns:.0} ns in the JVM, {probes_ns:.0} ns by the probes on its facts, median of {ROUNDS} pairs"
        ),
    );
    Ok(())
}

/// CPU nanoseconds of the workload per task.
fn tasks(paths: &Paths) -> Result<f64> {
    let count = format!("tasks={TASKS}");
    let arguments = ["short_tasks", "threads=1", &count, "us=0", "spin_us=0"];
    let figures = workload::run(paths, &arguments)?;
    Ok(figure(&figures, "cpu_ns")? / TASKS as f64)
}

/// Nanoseconds that the marker's readings of a task take, without probes.
fn in_the_jvm(paths: &Paths, folder: &Path) -> Result<f64> {
    let jdk = Jdk::main()?;
    let log = folder.join("task.log");
    let mut java = Command::new(jdk.tool("java"));
    if jdk.release >= UNSAFE_WARNS {
        java.args([NATIVE_ACCESS, "--sun-misc-unsafe-memory-access=allow"]);
    }
    let jars = [paths.fixture_jar(), paths.marker().join(JAR_NAME)];
    let jars = jars.map(|jar| jar.display().to_string());
    java.arg(format!(
        "-Dsmtt.library={}",
        paths.marker().join(LIBRARY_NAME).display()
    ))
    .arg("-cp")
    .arg(jars.join(":"))
    .arg("io.smtt.fixture.TaskBench");
    run("the benchmark of a task", &mut java, &log, RUN_LIMIT)?;
    let line = crate::spark::result_line(&log)?;
    line.split_whitespace()
        .find_map(|word| word.parse().ok())
        .with_context(|| format!("no figure in {line:?}"))
}
