//! The clock of records is the one that counts the time of a suspended machine, as the daemon's own is. The witness is
//! `/proc/uptime`, which counts that time.

use anyhow::{Context as _, Result, ensure};
use smtt_common::event::Kind;
use smtt_config::FaultHook;
use smtt_machine::clock::now_boot_ns;

use crate::lab::{KernelLab, Workload, lab, with_hook};

/// Resolution of `/proc/uptime`.
const RESOLUTION_NS: u64 = 10_000_000;

pub fn uptime_ns() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/uptime")?;
    let seconds = text.split(' ').next().context("/proc/uptime is empty")?;
    let (whole, hundredths) = seconds.split_once('.').context("no fraction")?;
    Ok(whole.parse::<u64>()? * 1_000_000_000 + hundredths.parse::<u64>()? * RESOLUTION_NS)
}

/// The facts of an executor that arrived since `before` have times from there to now.
pub fn times_are_uptimes(lab: &mut KernelLab, executor: u64, before: u64) -> Result<()> {
    lab.records.clear();
    lab.read()?;
    let after = uptime_ns()? + RESOLUTION_NS;
    let facts = lab.of_kind(executor, Kind::BLOCK_READ);
    ensure!(!facts.is_empty(), "no fact arrived");
    for fact in facts {
        ensure!(
            (before..=after).contains(&fact.header.time_ns),
            "a record of {}, the uptime was {before} before and {after} after it",
            fact.header.time_ns
        );
    }
    Ok(())
}

#[test]
fn records_and_the_daemon_use_the_clock_of_the_uptime() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Off))? else {
        return Ok(());
    };
    let mut workload = Workload::start("steady", &["ms=100"])?;
    let executor = lab.executor(workload.pid())?;
    let before = uptime_ns()?;
    let own = now_boot_ns();
    ensure!(
        (before..=uptime_ns()? + RESOLUTION_NS).contains(&own),
        "the daemon's clock is {own}, the uptime {before}"
    );
    workload.run()?;
    times_are_uptimes(&mut lab, executor, before)?;
    workload.end()
}
