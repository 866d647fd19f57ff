//! The marker's library is replaced below running executors, as an upgrade of its package does it: another file, with other
//! bytes, at the same path. Executors that began before have the old file, those that begin after it the new one.
//!
//! The witnesses are the executors' own counts of their facts, and the kernel's of their page faults.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use smtt_common::event::marker::LIBRARY_NAME;
use smtt_tests::attackers::{Counted, PER_SECOND, READ_LIMIT, phase};
use xtask::daemon::{Daemon, Options};

use crate::lab::{Workload, daemon_alone, library};
use crate::victim::same;

/// Length of a phase of an executor's work.
const PHASE_MS: u64 = 3000;
/// Longer than a file without an executor keeps its probes.
const IDLE: Duration = Duration::from_secs(12);

/// Another version at the path, as dpkg puts it there: written beside the old one, then renamed.
fn upgrade(path: &Path) -> Result<()> {
    let mut bytes = fs::read(path)?;
    bytes.push(0);
    let new = path.with_extension("so.dpkg-new");
    fs::write(&new, &bytes)?;
    Ok(fs::rename(new, path)?)
}

/// An executor with the file that is at the path now, known to the daemon, and its counts.
fn executor(daemon: &Daemon, path: &Path, phases: u64) -> Result<(Workload, Counted)> {
    let options = [
        format!("phases={phases}"),
        format!("ms={PHASE_MS}"),
        format!("per_second={PER_SECOND}"),
        "name=java".to_owned(),
    ];
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let executor = Workload::start_with(path, "victim", &options)?;
    let start = Instant::now();
    loop {
        if let Ok((counted, _)) = Counted::read(daemon, executor.pid()) {
            return Ok((executor, counted));
        }
        ensure!(start.elapsed() < READ_LIMIT, "the executor is not found");
        thread::sleep(Duration::from_millis(100));
    }
}

/// Whether a process has the file that was at the path.
fn has_old_file(executor: &Workload, path: &Path) -> Result<bool> {
    let maps = fs::read_to_string(format!("/proc/{}/maps", executor.pid()))?;
    let path = path.display().to_string();
    let line = maps.lines().find(|line| line.contains(&path));
    Ok(line.context("it has no library")?.ends_with("(deleted)"))
}

#[test]
fn an_upgrade_below_running_executors_costs_neither_them_nor_new_ones_a_fact() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join(LIBRARY_NAME);
    fs::copy(library()?, &path)?;
    let options = Options {
        library: Some(path.clone()),
        // The priority of the unit.
        launcher: ["nice", "-n", "-5"].map(str::to_owned).into(),
        ..Options::default()
    };
    let Some(daemon) = daemon_alone(&options)? else {
        return Ok(());
    };

    // While it works.
    let (mut old, before) = executor(&daemon, &path, 2)?;
    old.go()?;
    thread::sleep(Duration::from_millis(PHASE_MS / 2));
    upgrade(&path)?;
    let said = phase(&mut old)?;
    let old_before = same(&daemon, &old, &said, before)?;

    // The next one begins at once; the daemon does not know its file before it looks.
    let (mut new, new_before) = executor(&daemon, &path, 1)?;
    ensure!(
        has_old_file(&old, &path)? && !has_old_file(&new, &path)?,
        "the file was not replaced"
    );
    thread::sleep(IDLE);
    old.go()?;
    new.go()?;
    let (old_said, new_said) = (phase(&mut old)?, phase(&mut new)?);
    same(&daemon, &old, &old_said, old_before)?;
    same(&daemon, &new, &new_said, new_before)?;
    let status = daemon.json(&["status"])?;
    ensure!(
        !status["degraded"].to_string().contains("librar"),
        "the daemon says {}",
        status["degraded"]
    );
    for mut executor in [old, new] {
        executor.go()?;
        executor.done()?;
        executor.end()?;
    }
    Ok(())
}
