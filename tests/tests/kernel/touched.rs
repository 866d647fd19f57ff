//! Memory that tasks touched first, compared with what the workload touches, with the pages that came into memory meanwhile
//! (`mincore`), and with the kernel's count of the thread's faults.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_common::event::used::{
    FAULTS_MAJOR, FAULTS_MINOR, TOUCHED_EITHER_BYTES, TOUCHED_HEAP_BYTES, TOUCHED_NATIVE_BYTES,
    TaskUsed, helper,
};
use smtt_config::FaultHook;
use smtt_model::verdict::{FIRST_TOUCH, VerdictState};
use smtt_tests::json::number;
use smtt_tests::skip::skip;

use crate::accounts::accounts_of;
use crate::lab::{KernelLab, Workload, lab, with_hook};

const PAGE: u64 = 4096;
/// Accounts of memory that was touched first.
const TOUCHED: [usize; 3] = [
    TOUCHED_HEAP_BYTES,
    TOUCHED_NATIVE_BYTES,
    TOUCHED_EITHER_BYTES,
];

/// Pages of the heap, other pages, and pages of either; `None` where they are not known.
fn pages(used: &TaskUsed) -> [Option<u64>; 3] {
    TOUCHED.map(|account| {
        let known = used.present & 1 << account != 0;
        known.then(|| used.accounts[account] / PAGE)
    })
}

fn faults(used: &TaskUsed) -> u64 {
    used.accounts[FAULTS_MINOR] + used.accounts[FAULTS_MAJOR]
}

/// Why the figures are not exact: the kernel has no programs for the return of its functions.
fn inexact(lab: &KernelLab) -> Option<String> {
    let verdicts = lab.probes.verdicts();
    let mut verdicts = verdicts.into_iter();
    let missing = verdicts
        .find(|verdict| verdict.name == FIRST_TOUCH && verdict.verdict != VerdictState::Ok)?;
    Some(missing.reason)
}

/// Runs the workload's tasks. Returns its results and the accounts of its tasks, and of helpers.
fn run(lab: &mut KernelLab) -> Result<(Value, BTreeMap<u64, TaskUsed>, Vec<TaskUsed>)> {
    let mut workload = Workload::start("touched", &[])?;
    let executor = lab.executor(workload.pid())?;
    let done = workload.run()?;
    lab.read()?;
    workload.end()?;
    let (helpers, own): (Vec<TaskUsed>, Vec<TaskUsed>) = accounts_of(lab, executor)?
        .into_iter()
        .partition(|used| helper(used.flags).0 != 0);
    let own = own.into_iter().map(|used| (used.task_attempt_id, used));
    Ok((done, own.collect(), helpers))
}

#[test]
fn the_memory_that_a_task_touches_first_is_that_which_comes_into_memory() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::RawTracepoint))? else {
        return Ok(());
    };
    let inexact = inexact(&lab);
    let (done, used, helpers) = run(&mut lab)?;
    // The first line is a heading.
    let swap = fs::read_to_string("/proc/swaps")?.lines().count() > 1;
    let tasks = done["tasks"].as_array().context("no tasks")?;
    let mut wrong = Vec::new();
    for task in tasks {
        let (id, name) = (
            number(task, "task")?,
            task["name"].as_str().context("name")?,
        );
        let used = used
            .get(&id)
            .with_context(|| format!("task {id} ({name}) has no accounts"))?;
        let (heap, native) = (number(task, "heap")?, number(task, "native")?);
        let (faults, resident) = (faults(used), task["resident"].as_u64());
        println!(
            "{name}: {:?} pages of heap, others, either; expected {heap} and {native}; {faults} faults; {resident:?} pages came into memory",
            pages(used)
        );
        let corrected = name.starts_with("large_") || name == "paged_out";
        if name == "warm" || corrected && inexact.is_some() {
            continue;
        }
        let counts = match name {
            // A page that was there is written, or pages come without an exception.
            "copies" => faults >= 200,
            "populated" => true,
            "again" | "nothing" => faults == 0,
            // Of 300 pages, 100 were not written since the fork: 100 faults without swap, 300 with it. One of a page that the
            // kernel hid for a moment may be among them.
            "paged_out" => swap == (faults > 200),
            name if name.starts_with("large_") => faults >= 1,
            _ => faults == heap + native,
        };
        // The large page of zeros is in memory, but takes none.
        let witness = resident.is_none_or(|pages| pages == heap + native);
        if pages(used) != [Some(heap), Some(native), None] || !counts || !witness {
            wrong.push(format!("{task}: {used:?}"));
        }
    }
    ensure!(tasks.len() == 17, "{} tasks ran", tasks.len());
    ensure!(wrong.is_empty(), "{wrong:#?}");
    let whole = &used[&number(&done, "without_a_heap")?];
    ensure!(pages(whole) == [None, None, Some(50)], "{whole:?}");
    let helped = number(&done, "helped")?;
    let [_, with_pages] = &helpers[..] else {
        anyhow::bail!("{helpers:?} are not two helpers");
    };
    ensure!(
        with_pages.task_attempt_id == helped && pages(with_pages) == [Some(30), Some(20), None],
        "{with_pages:?}"
    );
    match inexact {
        Some(reason) => skip("fexit", &reason),
        None => Ok(()),
    }
}

#[test]
fn other_hooks_do_not_say_what_a_task_touched_first() -> Result<()> {
    for hook in [FaultHook::Fexit, FaultHook::Software, FaultHook::Off] {
        let Some(mut lab) = lab(&with_hook(hook))? else {
            return Ok(());
        };
        let (done, used, _) = run(&mut lab)?;
        let tasks = done["tasks"].as_array().context("no tasks")?;
        ensure!(used.len() > tasks.len(), "{used:?}");
        for used in used.values() {
            ensure!(pages(used) == [None; 3], "{hook:?}: {used:?}");
            ensure!(used.present & 1 << FAULTS_MINOR != 0, "{used:?}");
        }
    }
    Ok(())
}

#[test]
fn a_task_that_begins_before_the_hooks_has_no_first_touches() -> Result<()> {
    for idle in [Duration::ZERO, Duration::from_secs(60)] {
        let mut settings = with_hook(FaultHook::RawTracepoint);
        settings.fault_idle = idle;
        let Some(mut lab) = lab(&settings)? else {
            return Ok(());
        };
        // No executor lives: after the idle time the hooks are detached.
        lab.read()?;
        let mut workload = Workload::start("halves", &["half_ms=10"])?;
        workload.go()?;
        workload.expect("HELD")?;
        workload.quiet()?;
        // The task runs, and the hooks are attached.
        let executor = lab.executor(workload.pid())?;
        workload.go_on_to_the_end()?;
        lab.read()?;
        workload.end()?;
        let used = accounts_of(&lab, executor)?;
        let [used] = &used[..] else {
            anyhow::bail!("{used:?} is not one task");
        };
        println!("idle {idle:?}: {used:?}");
        // It touches 128 MiB, by 32,768 faults.
        ensure!(faults(used) >= 32_768, "{used:?}");
        match pages(used) {
            [None, None, None] => ensure!(idle.is_zero(), "{used:?}"),
            [None, None, Some(pages)] => ensure!(
                !idle.is_zero() && (32_768..=faults(used)).contains(&pages),
                "{used:?}"
            ),
            other => anyhow::bail!("{other:?}"),
        }
    }
    Ok(())
}

/// Setting of the kernel that makes it hide pages now and then, to see which node reads them.
const NUMA_BALANCING: &str = "/proc/sys/kernel/numa_balancing";

#[test]
fn pages_that_the_kernel_hides_for_a_moment_are_not_touched_first() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::RawTracepoint))? else {
        return Ok(());
    };
    if let Some(reason) = inexact(&lab) {
        return skip("fexit", &reason);
    }
    let Ok(before) = fs::read_to_string(NUMA_BALANCING) else {
        return skip("two_nodes", "the kernel does not balance NUMA nodes");
    };
    if fs::write(NUMA_BALANCING, "1").is_err() {
        return skip(
            "two_nodes",
            "the kernel's NUMA balancing cannot be switched on",
        );
    }
    let mut run = || -> Result<(u64, TaskUsed)> {
        let mut workload = Workload::start("hidden", &[])?;
        let executor = lab.executor(workload.pid())?;
        let done = workload.run()?;
        lab.read()?;
        workload.end()?;
        let used = accounts_of(&lab, executor)?;
        let last = used.last().context("no task")?;
        Ok((number(&done, "faults")?, *last))
    };
    let outcome = run();
    fs::write(NUMA_BALANCING, before.trim())?;
    let (hinted, used) = outcome?;
    println!("{hinted} faults of pages that were there: {used:?}");
    if hinted == 0 {
        return skip("two_nodes", "the kernel has hidden no page");
    }
    ensure!(faults(&used) >= hinted, "{used:?}");
    ensure!(pages(&used) == [Some(0), Some(0), None], "{used:?}");
    Ok(())
}
