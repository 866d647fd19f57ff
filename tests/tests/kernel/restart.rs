//! What a daemon that is killed has measured: the next one lists it beside what it measures itself.
//!
//! The witnesses are what the first daemon listed, the executor's own count of its facts, and the kernel's count of its
//! page faults.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_tests::attackers::{Counted, PER_SECOND, phase};
use smtt_tests::json::number;
use smtt_tests::lab::programs;
use smtt_tests::witness;
use xtask::daemon::{Daemon, Options};
use xtask::paths::Paths;
use xtask::process::wait_for;

use crate::lab::{Workload, alone};
use crate::victim::same;

const LIMIT: Duration = Duration::from_secs(60);

/// Rows of a listing that are of the process and, or are not, of an earlier run.
fn rows(daemon: &Daemon, arguments: &[&str], pid: u32, earlier: bool) -> Result<Vec<Value>> {
    let mut rows = daemon.rows(arguments)?;
    rows.retain(|row| row["pid"] == pid && row["earlier"].is_null() != earlier);
    Ok(rows)
}

#[test]
fn what_a_killed_daemon_knew_is_listed_by_the_next_one() -> Result<()> {
    let Some(_turn) = alone()? else {
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let store = folder.path().join("store");
    std::fs::create_dir(&store)?;
    let options = Options {
        toml: format!("[history]\nstore = {store:?}\ninterval = \"1s\"\n"),
        ..Options::default()
    };
    let mut daemon = Daemon::start(&Paths::find()?, &programs()?, folder.path(), &options)?;
    let options = [
        "phases=2",
        "ms=2000",
        &format!("per_second={PER_SECOND}"),
        "name=java",
    ];
    let mut executor = Workload::start("victim", &options)?;
    let pid = executor.pid();
    let before = wait_for("the executor is found", LIMIT, || {
        Ok(Counted::read(&daemon, pid).ok())
    })?;
    executor.go()?;
    let said = phase(&mut executor)?;
    let first = same(&daemon, &executor, &said, before.0)?;
    let known = rows(&daemon, &["executors"], pid, false)?;
    let known = known.first().context("it is not listed")?.clone();
    ensure!(rows(&daemon, &["executors"], pid, true)?.is_empty());

    // The files have all of it at the next refresh.
    let rested = Instant::now();
    while rested.elapsed() < Duration::from_secs(15) {
        std::thread::sleep(Duration::from_millis(200));
    }
    daemon.kill();
    executor.go()?;
    let unseen = phase(&mut executor)?;
    daemon.start_again()?;
    wait_for("the executor is found again", LIMIT, || {
        Ok(rows(&daemon, &["executors"], pid, false)?.pop())
    })?;

    let earlier = rows(&daemon, &["executors"], pid, true)?;
    ensure!(earlier.len() == 1, "{} rows of before", earlier.len());
    let earlier = &earlier[0];
    for field in [
        "page_faults",
        "page_faults_attributed",
        "page_faults_before_tracing",
    ] {
        ensure!(
            earlier[field] == known[field],
            "{field} was {}, the next daemon lists {}",
            known[field],
            earlier[field]
        );
    }
    ensure!(earlier["facts_by_kind"] == known["facts_by_kind"]);

    // Nothing was measured between the two: the kernel counted it.
    let now = wait_for("its page faults before tracing are read", LIMIT, || {
        let now = rows(&daemon, &["executors"], pid, false)?.pop();
        Ok(now.filter(|row| row["page_faults_before_tracing"].is_u64()))
    })?;
    let all = number(&now, "page_faults")? + number(&now, "page_faults_before_tracing")?;
    let kernel = witness::faults(pid)?.total();
    let gap = number(&now, "page_faults_before_tracing")?.saturating_sub(first.faults);
    println!(
        "{} page faults before, {gap} unseen, {kernel} in all",
        first.faults
    );
    ensure!(all.abs_diff(kernel) * 100 <= kernel, "{all} of {kernel}");
    ensure!(gap >= number(&unseen, "pages")?, "{gap} of {unseen}");

    let listed = |arguments: &[&str]| daemon.ask(arguments);
    let text = listed(&["executors"])?;
    println!("{text}");
    for part in [
        "MEASURED",
        "until ",
        "now",
        "before the daemon's restart: ",
        "not measured: ",
    ] {
        ensure!(text.contains(part), "no {part:?} in\n{text}");
    }
    let text = listed(&["executors", "--this-run"])?;
    ensure!(!text.contains("MEASURED"), "{text}");
    for listing in ["rdds", "stages", "memory", "tasks", "advise"] {
        listed(&[listing])?;
    }
    executor.go()?;
    executor.done()?;
    executor.end()
}
