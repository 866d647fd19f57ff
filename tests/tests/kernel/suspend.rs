//! A machine that is suspended while an executor lives. All CPUs but one go offline and come back, and every process is
//! frozen meanwhile. The witnesses are `/proc/uptime`, which counts the time asleep, and the kernel's own count of the
//! workload's page faults.
//!
//! Only an emulated machine is suspended.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use smtt_config::FaultHook;
use smtt_tests::attackers::{Counted, phase, row};
use smtt_tests::json::number;
use smtt_tests::lab::programs;
use smtt_tests::skip::{must_have, skip};
use xtask::daemon::{Daemon, Options};
use xtask::paths::Paths;

use crate::clocks::{times_are_uptimes, uptime_ns};
use crate::lab::{Workload, lab, with_hook};
use crate::victim::same;

const STATE: &str = "/sys/power/state";
const ALARM: &str = "/sys/class/rtc/rtc0/wakealarm";
/// Seconds until the alarm of the machine's clock wakes it. Its CPUs need some of them to go to sleep.
const ALARM_SECONDS: u32 = 15;
/// The least time asleep.
const ASLEEP: Duration = Duration::from_secs(3);
/// Length of a phase of the workload.
const PHASE: Duration = Duration::from_secs(8);
const SECOND_NS: u64 = 1_000_000_000;

/// Why this machine cannot be suspended.
fn obstacle() -> Option<String> {
    let states = fs::read_to_string(STATE).unwrap_or_default();
    if !states.split_whitespace().any(|state| state == "mem") {
        return Some(format!("{STATE} has {:?} and no mem", states.trim()));
    }
    if !Path::new(ALARM).exists() {
        return Some(format!("no clock wakes this machine: there is no {ALARM}"));
    }
    (!must_have("suspend"))
        .then(|| "only the emulated machine that is known to wake again is suspended".into())
}

/// Suspends the machine until the alarm. An emulated machine sleeps once: it is left with a wake-up that ends every later
/// sleep at once.
fn suspend() -> Result<()> {
    let (uptime, running) = (uptime_ns()?, Instant::now());
    fs::write(ALARM, "0").context(ALARM)?;
    fs::write(ALARM, format!("+{ALARM_SECONDS}")).context(ALARM)?;
    fs::write(STATE, "mem").context(STATE)?;
    let all = Duration::from_nanos(uptime_ns()? - uptime);
    let asleep = all.saturating_sub(running.elapsed());
    println!("the machine was asleep for {asleep:?} of {all:?}");
    ensure!(asleep >= ASLEEP, "it was asleep for {asleep:?} only");
    Ok(())
}

/// Names and states of the daemon's verdicts.
fn verdicts(daemon: &Daemon) -> Result<Vec<String>> {
    let status = daemon.json(&["status"])?;
    let verdicts = status["probes"].as_array().context("no verdicts")?;
    Ok(verdicts
        .iter()
        .map(|verdict| {
            format!(
                "{} {} {}",
                verdict["name"], verdict["hook"], verdict["verdict"]
            )
        })
        .collect())
}

#[test]
fn guest_an_executor_at_work_through_a_suspend_loses_nothing() -> Result<()> {
    // Probes beside the daemon's: the times of their records and their rows are read directly.
    let Some(mut lab) = lab(&with_hook(FaultHook::Off))? else {
        return Ok(());
    };
    if let Some(why) = obstacle() {
        return skip("suspend", why);
    }
    let folder = tempfile::tempdir()?;
    let daemon = Daemon::start(
        &Paths::find()?,
        &programs()?,
        folder.path(),
        &Options::default(),
    )?;
    let length = format!("ms={}", PHASE.as_millis());
    let mut victim = Workload::start("victim", &[&length, "phases=3", "name=java"])?;
    let pid = victim.pid();
    let executor = lab.executor(pid)?;
    let began = Instant::now();
    while Counted::read(&daemon, pid).is_err() {
        ensure!(began.elapsed() < PHASE * 10, "the workload is not found");
        thread::sleep(Duration::from_millis(200));
    }
    let mut counted = Counted::read(&daemon, pid)?.0;
    victim.go()?;
    let said = phase(&mut victim)?;
    counted = same(&daemon, &victim, &said, counted)?;
    let before = verdicts(&daemon)?;
    let (watched, uptime) = (number(&row(&daemon, pid)?, "watched_ns")?, uptime_ns()?);

    victim.go()?;
    thread::sleep(PHASE / 4);
    suspend()?;
    let said = phase(&mut victim)?;
    counted = same(&daemon, &victim, &said, counted)?;

    let now = row(&daemon, pid)?;
    ensure!(now["state"] == "alive", "the executor: {now}");
    let (age, passed) = (number(&now, "watched_ns")? - watched, uptime_ns()? - uptime);
    ensure!(
        age.abs_diff(passed) < 3 * SECOND_NS,
        "the executor is {age} ns older, {passed} ns have passed"
    );
    let after = verdicts(&daemon)?;
    ensure!(before == after, "verdicts: {before:?}, then {after:?}");
    let log = fs::read_to_string(daemon.log())?;
    ensure!(
        !log.contains("the event loop has been"),
        "a step of the event loop took long: {log}"
    );
    lab.read()?;
    ensure!(
        lab.probes.rows(executor)?.processes == 1,
        "the executor's rows are gone"
    );

    // The probes of the library are there, and records have the time of the uptime.
    let (uptime, last) = (uptime_ns()?, said);
    victim.go()?;
    let said = phase(&mut victim)?;
    same(&daemon, &victim, &said, counted)?;
    times_are_uptimes(&mut lab, executor, uptime)?;
    println!("{last}, then {said}");
    victim.go()?;
    victim.done()?;
    victim.end()
}
