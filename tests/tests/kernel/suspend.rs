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
use smtt_tests::attackers::{Counted, READ_LIMIT, phase, row};
use smtt_tests::json::number;
use smtt_tests::lab::programs;
use smtt_tests::skip::{must_have, skip};
use xtask::daemon::{Daemon, Options};
use xtask::paths::Paths;
use xtask::process::wait_for;

use crate::clocks::{times_are_uptimes, uptime_ns};
use crate::lab::{Workload, lab, with_hook};
use crate::victim::same;

const STATE: &str = "/sys/power/state";
/// Kinds of the state `mem`.
const KINDS: &str = "/sys/power/mem_sleep";
const ALARM: &str = "/sys/class/rtc/rtc0/wakealarm";
/// Seconds until the alarm of the machine's clock wakes it. Its CPUs need some of them to go to sleep, many where they
/// are emulated beside other work.
const ALARM_SECONDS: u32 = 60;
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
    if must_have("suspend") {
        return None;
    }
    let kinds = fs::read_to_string(KINDS).unwrap_or_default();
    Some(if kinds.contains("deep") {
        "only the emulated machine that is known to wake again is suspended".into()
    } else {
        format!(
            "{KINDS} has {:?} and no deep: its CPUs would not go offline",
            kinds.trim()
        )
    })
}

/// Suspends the machine until the alarm. An emulated machine sleeps once: it is left with a wake-up that ends every later
/// sleep at once. Returns the time asleep.
fn suspend() -> Result<Duration> {
    let (uptime, running) = (uptime_ns()?, Instant::now());
    fs::write(ALARM, "0").context(ALARM)?;
    fs::write(ALARM, format!("+{ALARM_SECONDS}")).context(ALARM)?;
    fs::write(STATE, "mem").context(STATE)?;
    let all = Duration::from_nanos(uptime_ns()? - uptime);
    let asleep = all.saturating_sub(running.elapsed());
    println!("the machine was asleep for {asleep:?} of {all:?}");
    ensure!(asleep >= ASLEEP, "it was asleep for {asleep:?} only");
    Ok(asleep)
}

/// Names and states of the daemon's verdicts, without those that a busy machine adds: an inspection or a reading of a
/// slot file was late.
fn verdicts(daemon: &Daemon) -> Result<Vec<String>> {
    let status = daemon.json(&["status"])?;
    let verdicts = status["probes"].as_array().context("no verdicts")?;
    Ok(verdicts
        .iter()
        .filter(|verdict| verdict["hook"] != "discovery" && verdict["hook"] != "slot files")
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
        ensure!(began.elapsed() < READ_LIMIT, "the workload is not found");
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
    let asleep = suspend()?;
    let said = phase(&mut victim)?;
    counted = same(&daemon, &victim, &said, counted)?;

    // The daemon's last tick was at most seconds before.
    let tick = 3 * SECOND_NS;
    wait_for("the executor is as old as it is", READ_LIMIT, || {
        let earliest = uptime_ns()? - uptime;
        let now = row(&daemon, pid)?;
        let latest = uptime_ns()? - uptime;
        ensure!(now["state"] == "alive", "the executor: {now}");
        let age = number(&now, "watched_ns")? - watched;
        println!("the executor is {age} ns older, {earliest} to {latest} ns have passed");
        Ok((earliest.saturating_sub(tick)..=latest + tick)
            .contains(&age)
            .then_some(()))
    })?;
    let after = verdicts(&daemon)?;
    ensure!(before == after, "verdicts: {before:?}, then {after:?}");
    // A busy machine makes steps long; the time asleep is in none.
    let log = fs::read_to_string(daemon.log())?;
    let longest = log
        .lines()
        .filter_map(|line| {
            line.split_once("the event loop has been ")?
                .1
                .split_once(" for ")
        })
        .filter_map(|(_, time)| time.strip_suffix(" s")?.parse().ok())
        .fold(0.0, f64::max);
    ensure!(
        longest < asleep.as_secs_f64() / 2.0,
        "a step of the event loop took the time asleep: {log}"
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
