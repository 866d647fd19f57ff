//! Counts per RDD and access are exact, and their sum is the kernel's own count.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use smtt_common::context::{Access, Region};
use smtt_common::counter::{ContextKey, FaultCounters};
use smtt_config::FaultHook;
use smtt_tests::witness;

use crate::lab::{KernelLab, Workload, all, grace_period, lab, major, seen, with_hook};

/// Rounds of the workload; each must be exact.
const ROUNDS: u64 = 10;
const READS: u64 = 1000;
const WRITES: u64 = 500;

/// Runs the workload under one rung and checks every round.
fn exact(hook: FaultHook, expected: impl Fn(u64, u64) -> FaultCounters) -> Result<()> {
    let Some(mut lab) = lab(&with_hook(hook))? else {
        return Ok(());
    };
    let mut workload = Workload::start(
        "faults",
        &[
            &format!("rounds={ROUNDS}"),
            &format!("reads={READS}"),
            &format!("writes={WRITES}"),
        ],
    )?;
    let executor = lab.executor(workload.pid())?;
    let before = (witness::faults(workload.pid())?, lab.totals(executor)?);
    workload.run()?;
    lab.read()?;
    let after = (witness::faults(workload.pid())?, lab.totals(executor)?);

    for round in 0..ROUNDS {
        let of = |rdd: u32| {
            let counters = lab.faults(executor, |key| {
                key.task_attempt_id / 100 == round && key.rdd_plus_one == rdd + 1
            });
            FaultCounters {
                major: 0,
                ..counters
            }
        };
        ensure!(
            of(7) == expected(READS, 0),
            "round {round}: RDD 7 should have {:?}, has {:?}",
            expected(READS, 0),
            of(7)
        );
        ensure!(
            of(8) == expected(0, WRITES),
            "round {round}: RDD 8 should have {:?}, has {:?}",
            expected(0, WRITES),
            of(8)
        );
    }
    let forms = |key: &ContextKey| (key.rdd_plus_one, key.access_region, key.stage_id);
    for form in lab
        .contexts
        .keys()
        .filter(|key| key.executor == executor)
        .map(forms)
    {
        let region = Region::STORAGE.0 << 4;
        ensure!(
            [
                (0, 0, 3),
                (8, Access::READ.0 | region, 3),
                (9, Access::WRITE.0 | region, 3)
            ]
            .contains(&form),
            "a context that the workload never set: {form:?}"
        );
    }

    // The same interval on both sides: at both ends the workload waits for a line and its faults stand still.
    let (kernel, ours) = (
        after.0.total() - before.0.total(),
        seen(&after.1) - seen(&before.1),
    );
    println!(
        "{hook:?}: kernel {kernel} (major {}), counted {ours} (major {})",
        after.0.major - before.0.major,
        major(&after.1) - major(&before.1)
    );
    ensure!(
        kernel.abs_diff(ours) * 100 <= kernel,
        "the kernel counted {kernel} faults, we counted {ours}"
    );
    let (kernel, ours) = (
        after.0.major - before.0.major,
        major(&after.1) - major(&before.1),
    );
    ensure!(
        kernel.abs_diff(ours) * 100 <= kernel,
        "the kernel counted {kernel} major faults, we counted {ours}"
    );
    let contexts = lab.faults(executor, |_| true);
    ensure!(
        contexts == after.1.attributed,
        "contexts sum up to {contexts:?}, the executor has {:?}",
        after.1.attributed
    );
    workload.end()
}

#[test]
fn readings_move_faults_while_contexts_change_and_each_keeps_its_own() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Auto))? else {
        return Ok(());
    };
    const PAGES: u64 = 30_000;
    let pages = [format!("reads={PAGES}"), format!("writes={PAGES}")];
    let mut workload = Workload::start("faults", &["threads=1", &pages[0], &pages[1]])?;
    let executor = lab.executor(workload.pid())?;
    let readings = thread::scope(|scope| -> Result<u64> {
        let done = scope.spawn(|| workload.run());
        let mut readings = 0;
        while !done.is_finished() {
            lab.read()?;
            readings += 1;
        }
        done.join()
            .map_err(|_| anyhow::anyhow!("the workload's thread panicked"))??;
        Ok(readings)
    })?;
    lab.read()?;
    let of = |rdd: u32| all(&lab.faults(executor, |key| key.rdd_plus_one == rdd + 1));
    println!(
        "{readings} readings while the context changed {} times",
        2 * PAGES
    );
    ensure!(
        readings > 20,
        "{readings} readings are too few to meet a change"
    );
    ensure!(
        (of(7), of(8)) == (PAGES, PAGES),
        "RDD 7 has {} faults and RDD 8 {} of {PAGES} each",
        of(7),
        of(8)
    );
    workload.end()
}

#[test]
fn reads_and_writes_are_exact_ten_runs_out_of_ten() -> Result<()> {
    exact(FaultHook::RawTracepoint, |read, write| FaultCounters {
        read,
        write,
        ..FaultCounters::default()
    })
}

#[test]
fn the_return_of_the_handler_gives_the_same_counts() -> Result<()> {
    exact(FaultHook::Fexit, |read, write| FaultCounters {
        read,
        write,
        ..FaultCounters::default()
    })
}

#[test]
fn the_software_event_gives_the_same_counts_without_the_access() -> Result<()> {
    exact(FaultHook::Software, |read, write| FaultCounters {
        unknown: read + write,
        ..FaultCounters::default()
    })
}

/// Whether attributed + unattributed + before tracing is the kernel's count, while the workload waits.
fn adds_up(lab: &mut KernelLab, executor: u64, pid: u32) -> Result<u64> {
    let before = lab
        .read()?
        .before
        .iter()
        .find(|(key, _)| *key == executor)
        .map(|(_, faults)| *faults)
        .context("what was before is not known")?;
    let (kernel, ours) = (
        witness::faults(pid)?.total(),
        seen(&lab.totals(executor)?) + before,
    );
    println!("kernel {kernel}, of these {before} before tracing");
    ensure!(
        kernel == ours && before > 0,
        "the kernel counted {kernel} faults, we have {ours} with {before} from before"
    );
    Ok(before)
}

#[test]
fn what_was_before_tracing_closes_the_gap_to_the_kernels_count() -> Result<()> {
    closes_the_gap(FaultHook::RawTracepoint)
}

#[test]
fn what_was_before_tracing_closes_the_gap_by_the_return_of_the_handler_too() -> Result<()> {
    closes_the_gap(FaultHook::Fexit)
}

fn closes_the_gap(hook: FaultHook) -> Result<()> {
    let mut settings = with_hook(hook);
    // The hooks are detached as soon as no executor lives, and attached again.
    settings.fault_idle = Duration::ZERO;
    let Some(mut lab) = lab(&settings)? else {
        return Ok(());
    };
    lab.read()?;
    // Done on the daemon's event loop, so it must be short. The kernel waits for all CPUs several times (RCU), as it does
    // for another call.
    let slowest = grace_period()?;
    let start = Instant::now();
    lab.probes.executor_described();
    let took = start.elapsed();
    let slowest = slowest.max(grace_period()?);
    println!("the hooks were attached in {took:?}, all CPUs were waited for in {slowest:?}");
    ensure!(
        took < Duration::from_secs(2) + 20 * slowest,
        "the hooks were attached in {took:?}"
    );
    for adopted in [false, true] {
        lab.read()?;
        let describe = if adopted {
            "describe=no"
        } else {
            "describe=yes"
        };
        let mut workload = Workload::start("faults", &["rounds=1", describe])?;
        let pid = workload.pid();
        let executor = if adopted {
            lab.probes.adopt_executor(pid)?
        } else {
            lab.executor(pid)?
        };
        let first = adds_up(&mut lab, executor, pid)?;
        workload.run()?;
        // The kernel also counts a few faults that it serves without an exception, for its own access to user memory.
        let second = adds_up(&mut lab, executor, pid)?;
        ensure!(
            (first..=first + 16).contains(&second),
            "{first} faults before tracing, and {second} after {} were counted",
            READS + WRITES
        );
        // An adopted executor has no threads with a row: its faults are counted all the same.
        ensure!(seen(&lab.totals(executor)?) >= READS + WRITES);
        workload.end()?;
    }
    Ok(())
}

#[test]
fn quiet_contexts_leave_the_table_and_nothing_is_lost() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Auto))? else {
        return Ok(());
    };
    let mut workload = Workload::start("faults", &["rounds=1"])?;
    let executor = lab.executor(workload.pid())?;
    workload.run()?;
    lab.read()?;
    let rows = lab.probes.rows(executor)?;
    ensure!(rows.contexts > 0, "the workload has contexts: {rows:?}");
    let budget = lab
        .probes
        .budget(executor)?
        .map(|budget| budget.rows.contexts);
    ensure!(
        budget == Some(rows.contexts as u64),
        "{rows:?}, but the budget says {budget:?}"
    );
    for _ in 0..40 {
        lab.read()?;
    }
    let rows = lab.probes.rows(executor)?;
    ensure!(rows.contexts == 0, "after 40 quiet readings: {rows:?}");
    ensure!(
        lab.probes
            .budget(executor)?
            .map(|budget| budget.rows.contexts)
            == Some(0),
        "the budget keeps contexts that are gone"
    );
    let sum = all(&lab.faults(executor, |key| key.rdd_plus_one != 0));
    ensure!(
        sum == READS + WRITES,
        "{sum} faults of RDDs, not {}",
        READS + WRITES
    );
    workload.end()
}
