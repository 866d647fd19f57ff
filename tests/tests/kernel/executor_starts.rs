//! Executors that begin while a daemon finds them, with a library file that has no probes yet: whatever the daemon does
//! at that moment, each thread's page faults are attributed.
//!
//! The witnesses are the pages that each thread touches, and the kernel's count of the process's page faults.
//! `SMTT_STARTS` is the number of starts; `cargo xtask test starts` makes 500.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_common::event::marker::LIBRARY_NAME;
use smtt_tests::json::number;
use smtt_tests::lab::programs;
use smtt_tests::witness;
use xtask::daemon::{Daemon, Options};
use xtask::paths::Paths;
use xtask::random::random;

use crate::lab::{Workload, alone, library};

/// Starts by default.
const STARTS: usize = 20;
/// Executors that start at about the same time.
const BATCH: usize = 10;
/// Threads of an executor, and pages that each touches.
const THREADS: u64 = 64;
const PAGES: u64 = 20;
/// Executors begin within this time before or after the daemon's scans and its start.
const SPREAD_MS: u64 = 1500;
/// How long finding an executor and a snapshot may take.
const FIND_LIMIT: Duration = Duration::from_secs(60);
/// How long the daemon may take to read the last counters.
const READ_LIMIT: Duration = Duration::from_secs(180);
/// The first of the users that the executors run as: a user may not bring a new library file in each second.
const FIRST_USER: usize = 20_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    Daemon,
    Executor,
}

/// An executor with a copy of the library at a path of its own, as the marker unpacks it.
fn begin(folder: &Path, number: usize, delay: Duration) -> Result<Workload> {
    let own = folder.join(number.to_string());
    fs::create_dir_all(&own)?;
    let copy = own.join(LIBRARY_NAME);
    fs::copy(library()?, &copy)?;
    thread::sleep(delay);
    let options = [
        format!("threads={THREADS}"),
        format!("pages={PAGES}"),
        format!("seed={}", random() >> 32),
        format!("uid={}", FIRST_USER + number % (4 * BATCH)),
        "name=java".to_owned(),
    ];
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let mut executor = Workload::start_with(&copy, "starting", &options)?;
    executor.go()?;
    Ok(executor)
}

/// The daemon's row of a process; `Null` where it has none.
fn row(daemon: &Daemon, pid: u32) -> Result<Value> {
    let rows = daemon.rows(&["executors"])?;
    Ok(rows
        .into_iter()
        .find(|row| row["pid"] == pid)
        .unwrap_or(Value::Null))
}

/// Lets the executor's threads work once the daemon has its snapshot. Returns the kernel's count of its page faults.
fn work(daemon: &Daemon, executor: &mut Workload) -> Result<()> {
    let pid = executor.pid();
    executor.expect("REGISTERED")?;
    let start = Instant::now();
    loop {
        let row = row(daemon, pid)?;
        if row["facts_by_kind"]["resyncDone"].as_u64() >= Some(1) {
            break;
        }
        ensure!(
            start.elapsed() < FIND_LIMIT,
            "no snapshot of the executor in {FIND_LIMIT:?}: {row}"
        );
        thread::sleep(Duration::from_millis(100));
    }
    executor.run()?;
    Ok(())
}

/// Compares the daemon's counts with the executor's and the kernel's.
fn compare(daemon: &Daemon, pid: u32) -> Result<()> {
    let start = Instant::now();
    loop {
        let rdds = daemon.rows(&["rdds", "--executor", &pid.to_string()])?;
        let seen: BTreeMap<u64, u64> = rdds
            .iter()
            .filter_map(|rdd| Some((rdd["rdd_id"].as_u64()?, rdd["page_faults"].as_u64()?)))
            .collect();
        let of = |thread: u64| seen.get(&(100 + thread)).copied().unwrap_or(0);
        let missing: Vec<(u64, u64)> = (0..THREADS)
            .map(|thread| (thread, of(thread)))
            .filter(|(_, faults)| *faults < PAGES)
            .collect();
        // Its threads wait, and may fault once more.
        let kernel = witness::faults(pid)?.total();
        let row = row(daemon, pid)?;
        let counted = number(&row, "page_faults").unwrap_or(0)
            + number(&row, "page_faults_before_tracing").unwrap_or(0);
        if missing.is_empty() && counted == kernel {
            return Ok(());
        }
        ensure!(
            start.elapsed() < READ_LIMIT,
            "threads with fewer than {PAGES} page faults: {missing:?}; the kernel counted {kernel} page faults, the \
             daemon {counted}: {row}"
        );
        thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn executors_that_begin_while_they_are_found_have_all_their_threads() -> Result<()> {
    let Some(_turn) = alone()? else {
        return Ok(());
    };
    let starts = match std::env::var("SMTT_STARTS") {
        Ok(text) => text.parse().context("SMTT_STARTS is no number")?,
        Err(_) => STARTS,
    };
    let folder = tempfile::tempdir()?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    let options = Options {
        without_library: true,
        ..Options::default()
    };
    let paths = Paths::find()?;
    let (mut good, mut bad) = (0, Vec::new());
    for first in [First::Daemon, First::Executor] {
        let mut daemon: Option<Daemon> = None;
        let start = |done: usize| {
            let files = folder.path().join(format!("daemon-{first:?}-{done}"));
            Daemon::start(&paths, &programs()?, &files, &options)
        };
        let mut done = 0;
        while done < starts / 2 {
            let batch = BATCH.min(starts / 2 - done);
            // Executors that begin before a daemon have a new one in each batch.
            daemon = match first {
                First::Daemon => Some(daemon.take().map_or_else(|| start(done), Ok)?),
                First::Executor => None,
            };
            let delays: Vec<Duration> = (0..batch)
                .map(|_| Duration::from_millis(random() % SPREAD_MS))
                .collect();
            let numbers = good + bad.len();
            let folder = folder.path();
            let mut begun = thread::scope(|scope| {
                let begun: Vec<_> = delays
                    .iter()
                    .enumerate()
                    .map(|(at, delay)| scope.spawn(move || begin(folder, numbers + at, *delay)))
                    .collect();
                if first == First::Executor {
                    thread::sleep(Duration::from_millis(random() % SPREAD_MS));
                    daemon = Some(start(done)?);
                }
                begun
                    .into_iter()
                    .map(|begun| {
                        begun
                            .join()
                            .map_err(|_| anyhow::anyhow!("a thread panicked"))?
                    })
                    .collect::<Result<Vec<_>>>()
            })?;
            let daemon = daemon.as_ref().context("no daemon")?;
            let worked: Vec<Result<()>> = begun.iter_mut().map(|one| work(daemon, one)).collect();
            for ((executor, worked), delay) in begun.into_iter().zip(worked).zip(delays) {
                match worked.and_then(|()| compare(daemon, executor.pid())) {
                    Ok(()) => good += 1,
                    // The verdict: an executor that was not found whole does not end the test.
                    Err(verdict) => {
                        let line =
                            format!("{first:?} first, the executor after {delay:?}: {verdict:#}");
                        println!("not whole: {line}");
                        bad.push(line);
                    }
                }
                executor.end()?;
            }
            done += batch;
            for number in numbers..numbers + batch {
                fs::remove_dir_all(folder.join(number.to_string()))?;
            }
        }
    }
    println!(
        "{good} of {} starts are whole, with {THREADS} threads each",
        good + bad.len()
    );
    ensure!(
        bad.is_empty(),
        "{} starts are not whole:\n{}",
        bad.len(),
        bad.join("\n")
    );
    Ok(())
}
