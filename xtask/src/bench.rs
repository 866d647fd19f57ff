//! `cargo xtask bench`: the cost of tracing, each figure against its target.
//!
//! Compared settings run in turns in one process, because the machine's speed drifts; the output has ratios or
//! differences of neighbouring runs, and their median.

mod access;
mod account;
mod cluster;
mod empty;
mod fault;
mod history;
mod job;
mod pages;
mod pairs;
mod sample;
mod scrape;
mod task;
mod timeline;
mod trace;
mod workload;

pub use self::pairs::geometric_mean;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use smtt_common::event::marker::LIBRARY_NAME;

use crate::daemon::{Daemon, Options};
use crate::marker::JAR_NAME;
use crate::marker::unit::{NATIVE_ACCESS, UNSAFE_WARNS};
use crate::paths::{DEMO_SPARK, Jdk, Paths};
use crate::process::{cargo, is_root, run, wait_for};
use crate::setup::{self, setup};
use crate::spark::Spark;
use crate::step::Steps;
use crate::{demo, experiment, witness};

const BUILD_LIMIT: Duration = Duration::from_secs(3600);
const RUN_LIMIT: Duration = Duration::from_secs(300);
const VICTIM_LIMIT: Duration = Duration::from_secs(2400);
/// How long the idle daemon is measured.
const IDLE: Duration = Duration::from_secs(30);

/// Limit of the nanoseconds of one change of context and back.
const SWITCH_NS: f64 = 2.0;
/// Limit of the nanoseconds of one change of context where it is published for other profilers.
const PUBLISHED_NS: f64 = 5.0;
/// Limit of the daemon's CPU time while executors idle, in per cent of one CPU.
const IDLE_PERCENT: f64 = 0.5;
/// Limit of the CPU time of the daemon's readings of executors' memory, in per cent of one CPU.
const MEMORY_PERCENT: f64 = 0.1;
/// The daemon's thread that reads it.
const MEMORY_THREAD: &str = "smtt-usage";
/// Limit of the daemon's resident memory, in MiB.
const RESIDENT_MIB: f64 = 64.0;

/// Runs the benchmarks (all, or the named ones) and prints one line each.
///
/// # Errors
/// When a benchmark cannot be run. A missed target is printed and is no error.
pub fn bench(paths: &Paths, only: &[String]) -> Result<()> {
    if only == ["timeline"] {
        return timeline::timeline(paths, &paths.target.join("bench/timeline"));
    }
    if only == ["history"] {
        return history::history(paths, &paths.target.join("bench/history"));
    }
    if only == ["cluster"] {
        return cluster::cluster(paths, &paths.target.join("bench/cluster"));
    }
    if !is_root() {
        bail!("loading eBPF programs needs root: run it as root");
    }
    setup(paths, &[DEMO_SPARK])?;
    let mut steps = Steps::new(2);
    experiment::fixture_step(paths, &mut steps)?;
    steps.always("release build", paths.logs().join("build.log"), |step| {
        let mut cargo = cargo();
        cargo.args([
            "build",
            "--release",
            "--package",
            "smtt-daemon",
            "--package",
            "smtt-ctl",
            "--package",
            "smtt-tests",
            "--bins",
        ]);
        step.run(cargo.current_dir(&paths.root), BUILD_LIMIT)
    })?;
    let folder = paths.target.join("bench");
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder)?;
    let wanted = |name: &str| only.is_empty() || only.iter().any(|chosen| chosen == name);
    println!();
    if wanted("switch") {
        switch(paths, &folder)?;
    }
    if wanted("fault") {
        fault::fault(paths, &folder.join("fault"))?;
    }
    if wanted("pages") {
        pages::pages(paths, &folder.join("pages"))?;
    }
    if wanted("idle") {
        idle(paths, &folder.join("idle"))?;
    }
    if wanted("trace") {
        trace::trace(paths, &folder.join("trace"))?;
    }
    if wanted("access") {
        access::access(paths, &folder.join("access"))?;
    }
    if wanted("task") {
        task::task(paths, &folder.join("task"))?;
    }
    if wanted("job") {
        job::traced(paths, &folder.join("job"))?;
    }
    if wanted("empty") {
        empty::empty(paths, &folder.join("empty"))?;
    }
    if wanted("driver") {
        empty::driver(paths, &folder.join("driver"))?;
    }
    if wanted("account") {
        account::account(paths, &folder.join("account"))?;
    }
    if wanted("everything") {
        job::everything(paths, &folder.join("everything"))?;
    }
    if wanted("sample") {
        sample::sample(paths, &folder.join("sample"))?;
    }
    if wanted("walks") {
        job::sampled(paths, &folder.join("walks"))?;
    }
    if wanted("workloads") {
        job::workloads(paths, &folder.join("workloads"))?;
    }
    if wanted("timeline") {
        timeline::timeline(paths, &folder.join("timeline"))?;
    }
    if wanted("history") {
        history::history(paths, &folder.join("history"))?;
    }
    if wanted("cluster") {
        cluster::cluster(paths, &folder.join("cluster"))?;
    }
    if wanted("victim") {
        victim(paths, &folder)?;
    }
    Ok(())
}

/// Names of the benchmarks.
#[must_use]
pub fn names() -> [&'static str; 19] {
    [
        "switch",
        "fault",
        "pages",
        "idle",
        "trace",
        "access",
        "task",
        "job",
        "empty",
        "driver",
        "account",
        "everything",
        "sample",
        "walks",
        "workloads",
        "timeline",
        "history",
        "cluster",
        "victim",
    ]
}

/// Measures what attackers cost a victim through the daemon; it takes some minutes.
fn victim(paths: &Paths, folder: &Path) -> Result<()> {
    let log = folder.join("victim.log");
    let mut price = Command::new(paths.target.join("release/victim_price"));
    run(
        "the benchmark of attackers and their victim",
        &mut price,
        &log,
        VICTIM_LIMIT,
    )?;
    print!("{}", fs::read_to_string(&log)?);
    Ok(())
}

/// Settings that make the daemon write trace records below a folder.
fn tracing(folder: &Path) -> String {
    format!(
        "[trace]\nenabled = true\nfolder = {:?}\n",
        folder.join("trace").display().to_string()
    )
}

/// Prints one line: the name, the figure, the target, and the excess over the target.
fn report(what: &str, value: f64, unit: &str, target: f64, detail: &str) {
    let verdict = if value <= target {
        "ok".to_owned()
    } else {
        format!("MISSED by {:.1} %", 100.0 * (value / target - 1.0))
    };
    println!("{what:32} {value:9.3} {unit:6} at most {target} {unit}: {verdict}  ({detail})");
}

/// Measures a change of context on the main JDK and on the newest, where the marker accesses memory in another form.
fn switch(paths: &Paths, folder: &Path) -> Result<()> {
    let main = Jdk::main()?;
    let newest = Jdk::all().pop().filter(|jdk| jdk.release >= UNSAFE_WARNS);
    for jdk in [Some(&main), newest.as_ref()].into_iter().flatten() {
        let figures = switches(paths, jdk, folder, &[""])?;
        report(
            &format!("context switch, JDK {}", jdk.release),
            figures[0],
            "ns",
            SWITCH_NS,
            &format!(
                "enter and exit, ThreadLocal included; lower quartile {:.2} ns",
                figures[1]
            ),
        );
        let published = switches(paths, jdk, folder, &["=otel"])?;
        report(
            &format!("published switch, JDK {}", jdk.release),
            published[0] / 2.0,
            "ns",
            PUBLISHED_NS,
            &format!(
                "one of two changes, option otel=true; both take {:.2} ns, {:.2} times the ones without",
                published[0],
                published[0] / figures[0]
            ),
        );
    }
    let Some(jdk) = newest else {
        println!("context switch: no JDK of release {UNSAFE_WARNS} or later for the other form");
        return Ok(());
    };
    let figures = switches(paths, &jdk, folder, &["=foreign", "=unsafe"])?;
    println!(
        "context switch, JDK {}: foreign memory {:.2} ns, Unsafe {:.2} ns, in turns in one JVM: {:.2} times",
        jdk.release,
        figures[0],
        figures[2],
        figures[0] / figures[2]
    );
    Ok(())
}

/// Runs markers in turns in one JVM: median and lower quartile of each, in nanoseconds.
fn switches(paths: &Paths, jdk: &Jdk, folder: &Path, forms: &[&str]) -> Result<Vec<f64>> {
    let log = folder.join(format!("switch-{}{}.log", jdk.release, forms.concat()));
    let mut java = Command::new(jdk.tool("java"));
    if jdk.release >= UNSAFE_WARNS {
        java.args([NATIVE_ACCESS, "--sun-misc-unsafe-memory-access=allow"]);
    }
    let spark = setup::compile_jars(paths)?;
    java.arg("-cp")
        .arg(format!(
            "{}:{}/*",
            paths.fixture_jar().display(),
            spark.display()
        ))
        .arg("io.smtt.fixture.SwitchBench")
        .arg(paths.marker().join(LIBRARY_NAME));
    let jar = paths.marker().join(JAR_NAME);
    for form in forms {
        java.arg(format!("{}{form}", jar.display()));
    }
    run(
        "the benchmark of the context switch",
        &mut java,
        &log,
        RUN_LIMIT,
    )?;
    let line = crate::spark::result_line(&log)?;
    let figures: Vec<f64> = line
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    ensure!(
        figures.len() == 2 * forms.len(),
        "no two figures of each marker in {line:?}"
    );
    Ok(figures)
}

/// Measures the daemon's CPU time and memory while two executors hold blocks and wait, then its scrapes.
fn idle(paths: &Paths, folder: &Path) -> Result<()> {
    let options = Options {
        toml: tracing(folder),
        ..Options::default()
    };
    let daemon = Daemon::start(paths, &paths.target.join("release"), folder, &options)?;
    let spark = Spark::new(paths, DEMO_SPARK, &Jdk::main()?, &folder.join("spark"))?;
    let gates = gates(folder, "gates", &["begin", "cached"])?;
    let mut submitted = demo::application(paths, false)?
        .with_marker(paths)
        .conf("spark.smtt.fixture.barrier", &gates.display().to_string())
        .submit(&spark, "spark")?;
    reach(&mut submitted.running, &gates.join("end.reached"))?;
    thread::sleep(Duration::from_secs(3));
    let before = witness::cpu_seconds(daemon.pid())?;
    let memory = || witness::thread_cpu_ns(daemon.pid(), MEMORY_THREAD);
    let rows = daemon.rows(&["executors"])?;
    let pids: Vec<u32> = rows
        .iter()
        .filter_map(|row| row["pid"].as_u64()?.try_into().ok())
        .collect();
    let markers = || -> f64 {
        pids.iter()
            .copied()
            .filter_map(account::marker_seconds)
            .sum()
    };
    let (memory_before, markers_before) = (memory()?, markers());
    let start = Instant::now();
    thread::sleep(IDLE);
    let used = witness::cpu_seconds(daemon.pid())? - before;
    let memory_used = (memory()? - memory_before) as f64 / 1e9;
    let markers_used = markers() - markers_before;
    let seconds = start.elapsed().as_secs_f64();
    let percent = 100.0 * used / seconds;
    report(
        "daemon, executors idle",
        percent,
        "% CPU",
        IDLE_PERCENT,
        &format!("{used:.2} s in {} s", IDLE.as_secs()),
    );
    report(
        "memory tables, executors idle",
        100.0 * memory_used / seconds,
        "% CPU",
        MEMORY_PERCENT,
        &format!(
            "{:.1} ms of the thread {MEMORY_THREAD} in {} s, two executors and their children",
            1e3 * memory_used,
            IDLE.as_secs()
        ),
    );
    // They have other work, too: where blocks are, pauses of the collector, what the daemon asks anew.
    report(
        "memory tables, all threads of the marker included",
        100.0 * (memory_used + markers_used) / seconds,
        "% CPU",
        MEMORY_PERCENT,
        &format!("{:.1} ms in {} processes", 1e3 * markers_used, pids.len()),
    );
    let resident = witness::resident_bytes(daemon.pid())? as f64 / f64::from(1 << 20);
    report(
        "daemon, resident memory",
        resident,
        "MiB",
        RESIDENT_MIB,
        "after a PageRank on two executors, with trace records",
    );
    scrape::scrapes(&daemon)?;
    fs::write(gates.join("end.go"), "")?;
    submitted.result(RUN_LIMIT)?;
    Ok(())
}

fn gates(folder: &Path, name: &str, open: &[&str]) -> Result<PathBuf> {
    let gates = folder.join(name);
    fs::create_dir_all(&gates)?;
    for gate in open {
        fs::write(gates.join(format!("{gate}.go")), "")?;
    }
    Ok(gates)
}

fn reach(running: &mut crate::process::Running, gate: &Path) -> Result<()> {
    wait_for("the application reaches its gate", RUN_LIMIT, || {
        if let Some(status) = running.poll()? {
            bail!("the application ended early ({status}){}", running.hint());
        }
        Ok(gate.exists().then_some(()))
    })
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert!((median(&mut [3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!(median(&mut []).is_nan());
    }
}
