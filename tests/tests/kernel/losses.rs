//! attempted = delivered + losses, with a ring and tables that are too small.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use smtt_common::counter::{Counter, ExecutorCounters};
use smtt_common::event::Kind;
use smtt_config::{FaultHook, ProbeSettings};

use crate::lab::{KernelLab, Workload, lab, with_hook};

/// Bytes of the smallest ring that holds a few of the largest records.
const SMALL_RING: u32 = 16 << 10;

fn facts_of(lab: &KernelLab, executor: u64) -> u64 {
    lab.records
        .iter()
        .filter(|record| {
            record.header.executor == executor && record.header.kind < Kind::PROCESS_FORKED.0
        })
        .count() as u64
}

fn lost(totals: &ExecutorCounters) -> u64 {
    totals.facts_rate_limited
        + totals.facts_too_long
        + totals.facts_unreadable
        + totals.facts_ring_full
}

#[test]
fn attempted_is_delivered_and_lost_when_the_ring_is_too_small() -> Result<()> {
    let mut settings = with_hook(FaultHook::Auto);
    settings.ring_bytes = SMALL_RING;
    settings.settings.fault_sample_every = 8;
    settings.settings.fault_samples_per_second = 50_000;
    let Some(mut lab) = lab(&settings)? else {
        return Ok(());
    };
    let mut workload = Workload::start("storm", &[])?;
    let executor = lab.executor(workload.pid())?;
    // No reader drains the ring during the storm.
    let told = workload.run()?["told"]
        .as_u64()
        .context("the workload says how many facts it told")?
        + 1;
    lab.read()?;
    let totals = lab.totals(executor)?;
    let delivered = facts_of(&lab, executor);
    println!(
        "attempted {told}, delivered {delivered}, lost {} (ring full {})",
        lost(&totals),
        totals.facts_ring_full
    );
    ensure!(
        totals.facts_ring_full > 0,
        "the ring was not too small: {totals:?}"
    );
    ensure!(
        totals.facts_seen == told,
        "the workload told {told} facts, the kernel side saw {}",
        totals.facts_seen
    );
    ensure!(
        told == delivered + lost(&totals),
        "attempted {told}, delivered {delivered}, lost {totals:?}"
    );
    let samples = lab.of_kind(executor, Kind::FAULT_SAMPLE).len() as u64;
    ensure!(
        totals.samples_seen == samples + totals.samples_ring_full + totals.samples_rate_limited,
        "{samples} samples of {totals:?}"
    );
    let submitted = lab.counters[Counter::RECORDS_SUBMITTED.0 as usize];
    ensure!(
        submitted == lab.records.len() as u64,
        "{submitted} records submitted, {} read",
        lab.records.len()
    );
    workload.end()
}

#[test]
fn a_rate_limit_is_kept_and_counted() -> Result<()> {
    let mut settings = with_hook(FaultHook::Off);
    settings.settings.facts_per_second = 1000;
    let Some(mut lab) = lab(&settings)? else {
        return Ok(());
    };
    let mut workload = Workload::start("storm", &["threads=2", "facts=20000"])?;
    let executor = lab.executor(workload.pid())?;
    let start = std::time::Instant::now();
    let told = workload.run()?["told"]
        .as_u64()
        .context("the workload says how many facts it told")?
        + 1;
    // The storm began within one second and ended within another.
    let seconds = start.elapsed().as_secs() + 2;
    lab.read()?;
    let totals = lab.totals(executor)?;
    let delivered = facts_of(&lab, executor);
    ensure!(
        told == delivered + lost(&totals),
        "attempted {told}, delivered {delivered}, lost {totals:?}"
    );
    ensure!(
        totals.facts_rate_limited > 0 && delivered <= seconds * 1000 + 4,
        "{delivered} facts in {seconds} seconds at 1000 a second"
    );
    workload.end()
}

#[test]
fn no_sample_of_four_tasks_is_refused() -> Result<()> {
    let settings = ProbeSettings {
        fault_hook: FaultHook::Auto,
        ..ProbeSettings::default()
    };
    let Some(mut lab) = lab(&settings)? else {
        return Ok(());
    };
    let mut workload = Workload::start(
        "faults",
        &["rounds=4", "threads=4", "reads=4", "writes=150000"],
    )?;
    let executor = lab.executor(workload.pid())?;
    let start = Instant::now();
    workload.run()?;
    let seconds = start.elapsed().as_secs_f64();
    lab.read()?;
    let totals = lab.totals(executor)?;
    let samples = lab.of_kind(executor, Kind::FAULT_SAMPLE).len() as u64;
    println!("{samples} samples of 600,000 faults in {seconds:.1} s");
    ensure!(
        samples == totals.samples_seen
            && samples.abs_diff(600_000 / u64::from(settings.settings.fault_sample_every)) < 60,
        "{samples} samples of {totals:?}"
    );
    workload.end()
}

#[test]
fn samples_say_where_and_how_often_they_were_cut() -> Result<()> {
    let mut settings = with_hook(FaultHook::Auto);
    settings.settings.fault_sample_every = 1;
    settings.settings.fault_samples_per_second = 1_000_000;
    settings.ring_bytes = 1 << 22;
    let Some(mut lab) = lab(&settings)? else {
        return Ok(());
    };
    let mut workload = Workload::start("faults", &["rounds=1", "threads=1"])?;
    let executor = lab.executor(workload.pid())?;
    workload.run()?;
    lab.read()?;
    let totals = lab.totals(executor)?;
    let samples = lab.of_kind(executor, Kind::FAULT_SAMPLE);
    ensure!(
        samples.len() as u64 == totals.samples_seen
            && totals.samples_ring_full + totals.samples_rate_limited == 0,
        "{} samples of {totals:?}",
        samples.len()
    );
    // RDD 8's pages are contiguous: its samples are 500 different pages of one range.
    let word = |payload: &[u8], at: usize| {
        payload.get(at..at + 8).map_or(0, |bytes| {
            u64::from_le_bytes(bytes.try_into().unwrap_or_default())
        })
    };
    let rdd = |payload: &[u8]| {
        payload.get(16 + 20..16 + 24).map_or(0, |bytes| {
            u32::from_le_bytes(bytes.try_into().unwrap_or_default())
        })
    };
    let mut pages: Vec<u64> = samples
        .iter()
        .filter(|sample| rdd(&sample.payload) == 9)
        .map(|sample| word(&sample.payload, 0) / 4096)
        .collect();
    pages.sort_unstable();
    pages.dedup();
    ensure!(
        pages.len() == 500 && pages[499] - pages[0] == 499,
        "RDD 8 has samples of {} pages",
        pages.len()
    );
    workload.end()
}
