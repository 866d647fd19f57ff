//! Executors, tasks, blocks, RDDs and library files that come and go: what the daemon holds does not grow with them.
//!
//! The witness is the kernel: resident memory, open descriptors and threads of the daemon in `/proc`, and the bytes of
//! its eBPF tables and programs in `fdinfo`. `SMTT_SOAK` is the length in seconds; `cargo xtask test soak` takes 600.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use smtt_common::event::marker::LIBRARY_NAME;
use smtt_tests::witness;
use xtask::daemon::{Daemon, Options};

use crate::lab::{Workload, daemon_alone, library};

/// Length by default, in seconds.
const SECONDS: u64 = 30;
/// Executors per second.
const PER_SECOND: u64 = 10;
/// Pause between two executors with a library file of their own.
const LIBRARY_EVERY: Duration = Duration::from_secs(3);
/// Polling interval of the daemon.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// What each figure may grow from the second quarter to the last. Resident memory has room for an allocator that keeps
/// pages; descriptors and threads for library files whose probes are attached or closed at the moment, series for
/// executors that are.
const GROWTH: [(&str, u64); 5] = [
    ("resident KiB", 3072),
    ("KiB of eBPF tables and programs", 64),
    ("open descriptors", 42),
    ("threads", 18),
    ("series", 200),
];

/// What of each figure may stay when everything has gone, beyond what an idle daemon had before: pages that the allocator
/// keeps, threads that wait for more work, and series that exist from the first executor on.
const STAYS: [u64; 5] = [24 << 10, 64, 2, 8, 150];
/// How long everything may take to go. Probes at page faults stay for 30 seconds.
const GONE_LIMIT: Duration = Duration::from_secs(60);

/// The figures of [`GROWTH`] at one moment.
type Figures = [u64; 5];

/// Bytes that the kernel accounts for the eBPF tables and programs that a process holds. A table that is open twice counts
/// twice; that does not change.
fn bpf_bytes(pid: u32) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        // A descriptor may be closed meanwhile.
        let text = fs::read_to_string(entry?.path()).unwrap_or_default();
        let own = text.lines().find_map(|line| line.strip_prefix("memlock:"));
        bytes += own.map_or(Ok(0), |own| own.trim().parse::<u64>())?;
    }
    Ok(bytes)
}

fn sample(daemon: &Daemon) -> Result<Figures> {
    let pid = daemon.pid();
    let entries = |name: &str| -> Result<u64> {
        Ok(fs::read_dir(format!("/proc/{pid}/{name}"))?.count() as u64)
    };
    let series = daemon
        .metrics()?
        .lines()
        .filter(|line| !line.starts_with('#'))
        .count();
    Ok([
        witness::resident_bytes(pid)? >> 10,
        bpf_bytes(pid)? >> 10,
        entries("fd")?,
        entries("task")?,
        series as u64,
    ])
}

/// The medians of some samples.
fn medians(samples: &[Figures]) -> Figures {
    std::array::from_fn(|figure| {
        let mut values: Vec<u64> = samples.iter().map(|sample| sample[figure]).collect();
        values.sort_unstable();
        values[values.len() / 2]
    })
}

/// An executor with its own library file, which is found, works and ends.
fn own_library(folder: &Path, number: usize) -> Result<()> {
    let own = folder.join(number.to_string());
    fs::create_dir_all(&own)?;
    let copy = own.join(LIBRARY_NAME);
    fs::copy(library()?, &copy)?;
    let mut executor =
        Workload::start_with(&copy, "starting", &["threads=4", "ms=1500", "name=java"])?;
    executor.go()?;
    executor.expect("REGISTERED")?;
    executor.run()?;
    executor.end()?;
    Ok(fs::remove_dir_all(own)?)
}

/// Waits until the daemon holds what it held while it was idle.
fn gone(daemon: &Daemon, idle: Figures) -> Result<()> {
    let start = Instant::now();
    let now = loop {
        let now = sample(daemon)?;
        let stays = |figure: &usize| now[*figure] > idle[*figure] + STAYS[*figure];
        let Some(figure) = (0..STAYS.len()).find(stays) else {
            break now;
        };
        ensure!(
            start.elapsed() < GONE_LIMIT,
            "{}: {} stay, {} were there before",
            GROWTH[figure].0,
            now[figure],
            idle[figure]
        );
        thread::sleep(LOOK_EVERY);
    };
    println!("idle before {idle:?}, after {:?} {now:?}", start.elapsed());
    Ok(())
}

#[test]
fn what_the_daemon_holds_does_not_grow_with_what_came_and_went() -> Result<()> {
    let seconds = match std::env::var("SMTT_SOAK") {
        Ok(text) => text.parse().context("SMTT_SOAK is no number")?,
        Err(_) => SECONDS,
    };
    let options = Options {
        // So short that ended executors leave within the first quarter.
        toml: "[retention]\nexecutors = \"3s\"\n".to_owned(),
        ..Options::default()
    };
    let Some(daemon) = daemon_alone(&options)? else {
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let (length, rate) = (
        format!("ms={}", seconds * 1000),
        format!("per_second={PER_SECOND}"),
    );
    let idle = sample(&daemon)?;
    let mut churn = Workload::start("churn", &[&length, &rate, "describe=no"])?;
    churn.go()?;
    let start = Instant::now();
    let end = start + Duration::from_secs(seconds);
    let (samples, files) = thread::scope(|scope| {
        let libraries = scope.spawn(|| {
            let mut files = 0;
            while Instant::now() < end {
                let next = Instant::now() + LIBRARY_EVERY;
                own_library(folder.path(), files)?;
                files += 1;
                thread::sleep(next.saturating_duration_since(Instant::now()));
            }
            Ok::<_, anyhow::Error>(files)
        });
        let mut samples = Vec::new();
        while Instant::now() < end {
            samples.push(sample(&daemon)?);
            thread::sleep(LOOK_EVERY);
        }
        let files = libraries
            .join()
            .map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        Ok::<_, anyhow::Error>((samples, files))
    })?;
    let said = churn.done()?;
    let quarter = samples.len() / 4;
    let (second, last) = (
        medians(&samples[quarter..2 * quarter]),
        medians(&samples[3 * quarter..]),
    );
    println!("{said} and {files} library files in {seconds} s");
    for (figure, (name, may)) in GROWTH.iter().enumerate() {
        println!(
            "{name}: {} in the second quarter, {} in the last",
            second[figure], last[figure]
        );
        ensure!(
            last[figure] <= second[figure] + may,
            "{name} grew from {} to {}, {may} are allowed",
            second[figure],
            last[figure]
        );
    }
    let executors = said["executors"].as_u64().context("no count")?;
    ensure!(
        executors >= seconds * PER_SECOND / 2,
        "only {executors} executors came and went"
    );
    let ledger = daemon.json(&["status"])?["ledger"].clone();
    let hops = ledger.as_array().context("no ledger")?;
    ensure!(
        hops.iter().all(|hop| hop["consistent"] == true),
        "{ledger:#}"
    );
    churn.end()?;
    gone(&daemon, idle)
}
