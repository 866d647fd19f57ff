//! Every kind of page fault counts as the kernel counts it (`getrusage`), and the exceptions to that are exact.

use anyhow::{Context as _, Result, ensure};
use smtt_config::FaultHook;

use crate::lab::{Workload, all, lab, seen, with_hook};

const ROUNDS: u64 = 500;
/// Faults that a fault's mark may leave for the thread's next one.
const MARK: u64 = 1;

/// What may be counted for a kind, given the kernel's count of it.
fn expected(hook: FaultHook, kind: &str, kernel: u64) -> Result<std::ops::RangeInclusive<u64>> {
    let raw = hook == FaultHook::RawTracepoint;
    Ok(match kind {
        "plain" | "file" | "by_the_kernel" | "served_by_the_program" => kernel..=kernel,
        "without_the_right" | "without_a_mapping" | "behind_the_end" => {
            kernel.saturating_sub(MARK)..=kernel + MARK
        }
        // The exception happens again behind the handler of the signal.
        "interrupted" if raw => kernel..=kernel + ROUNDS,
        "interrupted" => kernel..=kernel,
        // Made without an exception.
        "populated" => 0..=MARK,
        // Exceptions that the kernel answers with an error to itself.
        "refused_to_the_kernel" if raw => ROUNDS - MARK..=2 * ROUNDS,
        "refused_to_the_kernel" => 0..=MARK,
        other => anyhow::bail!("a kind that this test does not know: {other}"),
    })
}

fn kinds(hook: FaultHook) -> Result<()> {
    let Some(mut lab) = lab(&with_hook(hook))? else {
        return Ok(());
    };
    let rounds = format!("rounds={ROUNDS}");
    let mut workload = Workload::start("fault_kinds", &[&rounds])?;
    let executor = lab.executor(workload.pid())?;
    let done = workload.run()?;
    lab.read()?;
    let kinds = done["kinds"].as_object().context("no kinds")?;
    ensure!(kinds.len() == 10, "{kinds:?}");
    let mut wrong = Vec::new();
    for (kind, counts) in kinds {
        let number = |name: &str| counts[name].as_u64().context("a count");
        let (rdd, kernel) = (number("rdd")? as u32, number("kernel")?);
        let ours = all(&lab.faults(executor, |key| key.rdd_plus_one == rdd + 1));
        println!("{hook:?} {kind}: counted {ours}, {counts}");
        if !expected(hook, kind, kernel)?.contains(&ours) {
            wrong.push(format!("{kind}: counted {ours}, the kernel {kernel}"));
        }
        let (signals, refused) = (number("signals")?, kind == "refused_to_the_kernel");
        let signalled = ["without_the_right", "without_a_mapping", "behind_the_end"];
        ensure!(
            signals
                == if signalled.contains(&kind.as_str()) {
                    ROUNDS
                } else {
                    0
                }
                && (refused || kernel >= ROUNDS || kind == "without_the_right"),
            "{kind} is not what it should be: {counts}"
        );
    }
    ensure!(wrong.is_empty(), "{wrong:#?}");
    workload.end()
}

#[test]
fn exceptions_that_the_kernel_does_not_serve_are_no_faults() -> Result<()> {
    kinds(FaultHook::RawTracepoint)
}

#[test]
fn the_software_events_count_as_the_kernel_does() -> Result<()> {
    kinds(FaultHook::Software)
}

#[test]
fn threads_without_a_slot_are_counted_as_the_kernel_counts_them() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::RawTracepoint))? else {
        return Ok(());
    };
    let rounds = format!("rounds={ROUNDS}");
    let mut workload = Workload::start("fault_kinds", &[&rounds, "slot=no"])?;
    let executor = lab.executor(workload.pid())?;
    let before = (
        smtt_tests::witness::faults(workload.pid())?.total(),
        seen(&lab.totals(executor)?),
    );
    let done = workload.run()?;
    lab.read()?;
    let kernel = smtt_tests::witness::faults(workload.pid())?.total() - before.0;
    let ours = seen(&lab.totals(executor)?) - before.1;
    let of = |kind: &str| done["kinds"][kind]["kernel"].as_u64().context("a count");
    // Known exceptions: those below are counted twice or not at all.
    let (populated, most) = (of("populated")?, 3 * ROUNDS);
    println!("kernel {kernel}, counted {ours}");
    ensure!(
        (kernel - populated..=kernel - populated + most + MARK).contains(&ours),
        "the kernel counted {kernel}, {populated} of them without an exception; we counted {ours}"
    );
    workload.end()
}
