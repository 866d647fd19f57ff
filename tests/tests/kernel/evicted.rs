//! An executor that lives and loses its rows, because the daemon needs the room for those of another user.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_tests::attackers::AS_UNPRIVILEGED;
use smtt_tests::lab::LIMIT;
use xtask::daemon::Options;
use xtask::process::wait_for;

use crate::lab::{Workload, daemon_alone};

/// Pages that the executor writes after it was found again.
const PAGES: u64 = 5000;

#[test]
fn a_living_executor_that_lost_its_rows_is_found_again() -> Result<()> {
    let options = Options {
        toml: "[limits]\nstate = \"2MiB\"\nstate_per_executor = \"2MiB\"\n".to_owned(),
        ..Options::default()
    };
    let Some(daemon) = daemon_alone(&options)? else {
        return Ok(());
    };
    let rows = |pid: u32| -> Result<Option<Value>> {
        let rows = daemon.rows(&["executors"])?;
        Ok(rows.into_iter().find(|row| row["pid"] == pid))
    };
    let evicted = || -> Result<u64> {
        let text = daemon.metrics()?;
        let mut lines = text.lines();
        let count = lines.find_map(|line| line.strip_prefix("smtt_executors_evicted_total "));
        Ok(count.context("no count of evicted executors")?.parse()?)
    };
    let pages = format!("pages={PAGES}");
    let mut rich = Workload::start(
        "evicted",
        &[&pages, AS_UNPRIVILEGED, "rows=1000", "ms=2000", "name=java"],
    )?;
    rich.go()?;
    rich.expect("FILLED")?;
    let pid = rich.pid();
    ensure!(
        rows(pid)?.is_some() && evicted()? == 0,
        "it fills the tables: {:?}",
        rows(pid)?
    );

    let mut other = Workload::start("fill", &["rows=400", "ms=2000", "name=java"])?;
    other.run()?;
    wait_for("it loses its rows", LIMIT, || {
        Ok((evicted()? > 0).then_some(()))
    })?;
    ensure!(rows(other.pid())?.is_some(), "the other has no row");
    let log = fs::read_to_string(daemon.log())?;
    let line = format!("process {pid} is not traced for a while");
    ensure!(log.contains(&line), "no line says it:\n{log}");
    let found = wait_for("it is found again", LIMIT, || rows(pid))?;
    ensure!(found["page_faults_attributed"] == 0, "{found}");

    rich.go()?;
    let worked = rich.done()?;
    let faults = worked["faults"].as_u64().context("no count of faults")?;
    let row = wait_for("its faults are attributed", LIMIT, || {
        let row = rows(pid)?;
        Ok(row.filter(|row| row["page_faults_attributed"].as_u64() >= Some(faults)))
    })?;
    ensure!(
        faults >= PAGES && row["page_faults_attributed"] == faults,
        "{faults} by the kernel's count of the thread: {row}"
    );
    ensure!(
        row["application_id"] == found["application_id"] || found["application_id"].is_null(),
        "{row}"
    );
    println!("{} evictions, {faults} faults afterwards", evicted()?);
    other.end()?;
    rich.end()
}
