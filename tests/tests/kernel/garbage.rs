//! A process that fakes the marker corrupts its own rows only.

use anyhow::{Context as _, Result, ensure};
use smtt_common::counter::Unattributed;
use smtt_common::event::PAYLOAD_MAX;
use smtt_config::FaultHook;
use smtt_model::decode::decode;

use crate::lab::{Workload, all, lab, with_hook};

/// Contexts that one executor may have here.
const CONTEXTS: u32 = 500;

#[test]
fn garbage_spoils_its_own_rows_only_and_caps_hold() -> Result<()> {
    let mut settings = with_hook(FaultHook::RawTracepoint);
    settings.settings.contexts_per_executor = CONTEXTS;
    settings.settings.threads_per_executor = 8;
    settings.settings.facts_per_second = 20_000;
    let Some(mut lab) = lab(&settings)? else {
        return Ok(());
    };
    let mut honest = Workload::start("faults", &["rounds=1"])?;
    let mut liar = Workload::start("garbage", &[&format!("victim={}", honest.pid())])?;
    let (own, other) = (lab.executor(honest.pid())?, lab.executor(liar.pid())?);
    liar.go()?;
    honest.run()?;
    // The million registrations continue while the honest workload's faults are counted.
    let said = liar.done()?;
    lab.read()?;

    let counters = |rdd: u32| lab.faults(own, |key| key.rdd_plus_one == rdd + 1);
    ensure!(
        (counters(7).read, counters(8).write) == (1000, 500),
        "the honest executor: {:?} {:?}",
        counters(7),
        counters(8)
    );
    let totals = lab.totals(other)?;
    let told_lost = totals.facts_rate_limited
        + totals.facts_too_long
        + totals.facts_unreadable
        + totals.facts_ring_full;
    let delivered = lab
        .records
        .iter()
        .filter(|record| record.header.executor == other && record.header.kind < 32)
        .count() as u64;
    ensure!(
        totals.facts_seen == delivered + told_lost,
        "delivered {delivered} of {totals:?}"
    );
    ensure!(
        totals.facts_too_long >= 16 * 6 && totals.facts_unreadable >= 16,
        "absurd lengths and addresses: {totals:?}"
    );
    ensure!(
        totals.facts_seen > 1_000_000,
        "a million registrations came: {totals:?}"
    );
    let rows = lab.probes.rows(other)?;
    ensure!(
        rows.contexts <= CONTEXTS as usize && rows.threads == 1 && rows.processes == 1,
        "{rows:?}"
    );
    let claimed = all(&lab.faults(other, |_| true))
        + all(&totals.unattributed[Unattributed::TABLE_FULL.0 as usize]);
    let faults = said["faults"]
        .as_u64()
        .context("the workload says how many")?;
    ensure!(
        claimed >= faults,
        "{claimed} faults in contexts and over their cap, {faults} were made"
    );
    ensure!(
        all(&totals.unattributed[Unattributed::TABLE_FULL.0 as usize]) > 0,
        "the cap was reached: {totals:?}"
    );
    let unreadable = all(&totals.unattributed[Unattributed::SLOT_UNREADABLE.0 as usize]);
    ensure!(
        unreadable >= 10,
        "{unreadable} faults of a thread whose slot is no memory"
    );
    // The garbage arrives in well-formed records. The decoder accepts or refuses each, and must not panic.
    let (mut taken, mut refused) = (0, 0);
    for record in lab
        .records
        .iter()
        .filter(|record| record.header.executor == other)
    {
        ensure!(
            record.header.pid == liar.pid() && record.payload.len() <= PAYLOAD_MAX,
            "{:?}",
            record.header
        );
        match decode(&record.header, &record.payload) {
            Ok(_) => taken += 1,
            Err(_) => refused += 1,
        }
    }
    println!("the decoder took {taken} of its records and refused {refused}");
    ensure!(taken > 1000, "the decoder took only {taken} of its records");
    // The victim is still a separate executor, with its own threads.
    ensure!(
        lab.probes.rows(own)?.processes == 1,
        "the victim lost its row"
    );
    liar.end()?;
    honest.end()
}

#[test]
fn more_executors_than_rows_are_counted_not_traced() -> Result<()> {
    let mut settings = with_hook(FaultHook::Auto);
    settings.executors = 2;
    let Some(mut lab) = lab(&settings)? else {
        return Ok(());
    };
    // One user and one cgroup have room for the configured executors, and for few more: the rest is for others.
    let mut workloads = Vec::new();
    loop {
        let workload = Workload::start("faults", &[])?;
        let is_traced = lab.executor(workload.pid()).is_ok();
        workloads.push(workload);
        if !is_traced {
            break;
        }
        ensure!(workloads.len() < 4, "four executors in a table of two");
    }
    ensure!(
        workloads.len() > 2,
        "the executor {} of two is refused",
        workloads.len()
    );
    let first = lab.executor(workloads[0].pid())?;
    ensure!(
        lab.counters[smtt_common::counter::Counter::EXECUTORS_REFUSED.0 as usize] == 1,
        "{:?}",
        lab.counters
    );
    // Another executor can use a row that was released.
    workloads.swap_remove(0).end()?;
    lab.read()?;
    lab.probes.forget_executor(first)?;
    let rows = lab.probes.rows(first)?;
    ensure!(
        rows == smtt_daemon::probes::Rows::default() && lab.probes.budget(first)?.is_none(),
        "{rows:?} after it was forgotten"
    );
    let fourth = Workload::start("faults", &[])?;
    lab.executor(fourth.pid())?;
    Ok(())
}
