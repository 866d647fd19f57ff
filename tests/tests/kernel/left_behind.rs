//! Executors that end while no daemon runs, or with the machine: the next daemon reports them from what the one before
//! wrote in advance. The test ends the processes itself, and stands for another run of the machine by another `boot_id`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_tests::lab::programs;
use xtask::daemon::{Daemon, Options};
use xtask::paths::Paths;
use xtask::process::wait_for;

use crate::lab::{Workload, alone};

const LIMIT: Duration = Duration::from_secs(60);

/// The reports in advance, once one is about this process.
fn in_advance(file: &Path, pid: u32) -> Result<Value> {
    wait_for("the executor has a report in advance", LIMIT, || {
        let Ok(text) = fs::read_to_string(file) else {
            return Ok(None);
        };
        let first = text.lines().next().unwrap_or_default();
        let all: Value = serde_json::from_str(first)?;
        let reports = all["reports"].as_array().context("no reports")?;
        let is_there = reports.iter().any(|report| report["pid"] == pid);
        Ok(is_there.then_some(all))
    })
}

/// The row of a process in the list of deaths.
fn row(daemon: &Daemon, pid: u32) -> Result<Option<Value>> {
    let deaths = daemon.json(&["postmortem"])?;
    let rows = deaths["rows"].as_array().context("no rows")?;
    Ok(rows.iter().find(|row| row["pid"] == pid).cloned())
}

#[test]
fn the_next_daemon_reports_who_was_lost() -> Result<()> {
    let Some(_turn) = alone()? else {
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("postmortem/living.json");
    let options = Options::default();
    let mut daemon = Daemon::start(&Paths::find()?, &programs()?, folder.path(), &options)?;

    // One ends while no daemon runs, one lives on.
    let lost = Workload::start("steady", &["ms=100"])?;
    let living = Workload::start("steady", &["ms=100"])?;
    in_advance(&file, lost.pid())?;
    wait_for("both have a report in advance", LIMIT, || {
        let all = in_advance(&file, lost.pid())?;
        Ok(all
            .to_string()
            .contains(&format!("\"pid\":{},", living.pid()))
            .then_some(()))
    })?;
    daemon.kill();
    let pid = lost.pid();
    lost.end()?;
    daemon.start_again()?;
    let report = wait_for("the lost executor is reported", LIMIT, || row(&daemon, pid))?;
    ensure!(
        report["verdict"] == "lost"
            && report["sentence"]
                .as_str()
                .is_some_and(|text| text.contains("no daemon ran")),
        "{report}"
    );
    ensure!(row(&daemon, living.pid())?.is_none(), "it lives");
    let id = report["id"].as_str().context("no id")?;
    let page = daemon.json(&["postmortem", id])?;
    let samples = page["samples"].as_array().context("no samples")?;
    ensure!(!samples.is_empty(), "its memory is not known: {page}");

    // Another run of the machine: no process of the one before is there, whatever has its number now.
    let mut all = in_advance(&file, living.pid())?;
    daemon.kill();
    all["boot_id"] = Value::from("00000000-0000-0000-0000-000000000000");
    fs::write(&file, all.to_string())?;
    daemon.start_again()?;
    let report = wait_for("the machine's end is reported", LIMIT, || {
        row(&daemon, living.pid())
    })?;
    ensure!(report["verdict"] == "lost_with_machine", "{report}");

    // A file that is damaged is named, and nothing is made of it.
    daemon.kill();
    fs::write(&file, "{\"boot_id\":")?;
    daemon.start_again()?;
    ensure!(
        fs::read_to_string(daemon.log())?
            .contains("the executors that the daemon before watched are not known"),
        "the damaged file is not named"
    );
    living.end()
}

fn signal(pid: u32, name: &str) -> Result<()> {
    let mut kill = std::process::Command::new("kill");
    let sent = kill.args([name, &pid.to_string()]).status()?;
    ensure!(sent.success(), "kill {name} {pid}");
    Ok(())
}

#[test]
fn an_executor_that_says_nothing_after_a_restart_is_not_forgotten() -> Result<()> {
    let Some(_turn) = alone()? else {
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("postmortem/living.json");
    let options = Options::default();
    let mut daemon = Daemon::start(&Paths::find()?, &programs()?, folder.path(), &options)?;
    let stopped = Workload::start("steady", &["ms=100"])?;
    let other = Workload::start("steady", &["ms=100"])?;
    let pid = stopped.pid();
    in_advance(&file, pid)?;
    in_advance(&file, other.pid())?;
    signal(pid, "-STOP")?;
    daemon.kill();
    let written = fs::metadata(&file)?.modified()?;
    daemon.start_again()?;
    // Two lists after the restart, so that one is made when the other executor has described itself.
    let mut last = written;
    for _ in 0..2 {
        last = wait_for("a new list is written", LIMIT, || {
            let time = fs::metadata(&file)?.modified()?;
            Ok((time > last).then_some(time))
        })?;
        in_advance(&file, pid)?;
    }
    in_advance(&file, other.pid())?;
    ensure!(row(&daemon, pid)?.is_none(), "it lives");

    // It stays in the kernel's list until it is waited for.
    signal(pid, "-KILL")?;
    let report = wait_for("its end is reported", LIMIT, || row(&daemon, pid))?;
    std::thread::sleep(Duration::from_secs(10));
    let deaths = daemon.json(&["postmortem"])?;
    let rows = deaths["rows"].as_array().context("no rows")?;
    let of_pid = rows.iter().filter(|row| row["pid"] == pid).count();
    ensure!(of_pid == 1, "{of_pid} reports: {deaths}");
    ensure!(report["verdict"] == "lost", "{report}");
    drop(stopped);
    other.end()
}
