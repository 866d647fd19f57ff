//! Fork, exec, exit, short-lived threads, reused ids.

use anyhow::{Context as _, Result, ensure};
use smtt_common::context::Activity;
use smtt_common::counter::Unattributed;
use smtt_common::event::Kind;
use smtt_common::event::exit::{REASON_EXEC, REASON_EXIT};
use smtt_config::FaultHook;
use smtt_tests::skip::leave_out;

use crate::lab::{KernelLab, Workload, all, lab, with_hook};

/// Process, reason and whether it was the executor itself, of every reported end.
fn ends(lab: &KernelLab, executor: u64) -> Vec<(u32, u32, u32)> {
    let word = |payload: &[u8], at: usize| {
        payload.get(at..at + 4).map_or(u32::MAX, |bytes| {
            u32::from_le_bytes(bytes.try_into().unwrap_or_default())
        })
    };
    lab.of_kind(executor, Kind::PROCESS_GONE)
        .iter()
        .map(|record| {
            (
                record.header.pid,
                word(&record.payload, 0),
                word(&record.payload, 4),
            )
        })
        .collect()
}

#[test]
fn threads_that_end_without_a_word_leave_no_row() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Auto))? else {
        return Ok(());
    };
    let mut workload = Workload::start("threads", &[])?;
    let executor = lab.executor(workload.pid())?;
    let said = workload.run()?;
    lab.read()?;
    let rows = lab.probes.rows(executor)?;
    ensure!(rows.threads == 0, "{rows:?}");
    ensure!(
        lab.probes
            .budget(executor)?
            .map(|budget| budget.rows.threads)
            == Some(0),
        "the budget keeps threads that are gone"
    );
    let faults = all(&lab.faults(executor, |key| key.rdd_plus_one == 10));
    if said["reused"] == true {
        let pages = said["pages"]
            .as_u64()
            .context("the workload says how many")?;
        let other = all(&lab.totals(executor)?.unattributed[Unattributed::OTHER.0 as usize]);
        ensure!(
            faults < pages && other >= pages,
            "the new thread with the old id: {faults} faults in the old one's context, {other} unattributed"
        );
    } else {
        leave_out(
            "last_pid",
            "no thread got the id of another: /proc/sys/kernel/ns_last_pid (CONFIG_CHECKPOINT_RESTORE) is missing, or other processes take the id first",
        )?;
    }
    workload.end()
}

#[test]
fn children_belong_to_their_executor_and_workers_to_their_task() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Auto))? else {
        return Ok(());
    };
    let mut workload = Workload::start("fork", &[])?;
    let executor = lab.executor(workload.pid())?;
    let said = workload.run()?;
    lab.read()?;
    let number = |name: &str| {
        said[name]
            .as_u64()
            .with_context(|| format!("the workload does not say {name}"))
    };
    let (pages, child, exec_child) = (
        number("pages")?,
        number("child")? as u32,
        number("exec_child")? as u32,
    );
    let served = all(&lab.faults(executor, |key| {
        key.task_attempt_id == 77
            && key.activity == Activity::PYTHON_WORKER.0
            && key.rdd_plus_one == 12
    }));
    // The pages of the child's second mapping, and a few faults of the allocator.
    ensure!(
        (pages..pages + 60).contains(&served),
        "{served} faults of the worker while it served, {pages} pages were touched"
    );
    let idle = all(&lab.totals(executor)?.unattributed[Unattributed::CHILD.0 as usize]);
    ensure!(
        idle >= 2 * pages,
        "{idle} faults of children without a task, {} pages were touched",
        2 * pages
    );
    let forked: Vec<u32> = lab
        .of_kind(executor, Kind::PROCESS_FORKED)
        .iter()
        .filter_map(|record| {
            Some(u32::from_le_bytes(
                record.payload.get(..4)?.try_into().ok()?,
            ))
        })
        .collect();
    ensure!(
        forked == [child, exec_child],
        "forked {forked:?}, not {child} and {exec_child}"
    );
    ensure!(
        ends(&lab, executor) == [(child, REASON_EXIT, 0), (exec_child, REASON_EXIT, 0)],
        "{:?}",
        ends(&lab, executor)
    );
    let budget = lab
        .probes
        .budget(executor)?
        .context("the executor has a budget")?;
    ensure!(
        (lab.probes.rows(executor)?.processes, budget.rows.processes) == (1, 0),
        "{:?} {budget:?}",
        lab.probes.rows(executor)?
    );
    let pid = workload.pid();
    workload.end()?;
    lab.read()?;
    ensure!(
        ends(&lab, executor).last() == Some(&(pid, REASON_EXIT, 1)),
        "{:?}",
        ends(&lab, executor)
    );
    ensure!(
        lab.probes.rows(executor)?.processes == 0,
        "an executor that ended keeps its row"
    );
    Ok(())
}

#[test]
fn a_process_lives_on_when_its_first_thread_ends() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Auto))? else {
        return Ok(());
    };
    let mut workload = Workload::start("leader", &[])?;
    let (pid, executor) = (workload.pid(), lab.executor(workload.pid())?);
    workload.go()?;
    let said: serde_json::Value = serde_json::from_str(&workload.expect("DONE ")?)?;
    lab.read()?;
    let faults = all(&lab.faults(executor, |key| key.rdd_plus_one == 9));
    ensure!(
        Some(faults) == said["faults"].as_u64(),
        "{faults} faults, the kernel counted {} of {} pages",
        said["faults"],
        said["pages"]
    );
    ensure!(
        ends(&lab, executor).is_empty() && lab.probes.rows(executor)?.processes == 1,
        "it counts as gone: {:?}",
        ends(&lab, executor)
    );
    workload.end()?;
    lab.read()?;
    ensure!(
        ends(&lab, executor) == [(pid, REASON_EXIT, 1)],
        "{:?}",
        ends(&lab, executor)
    );
    Ok(())
}

#[test]
fn an_executor_that_replaces_its_image_is_none_any_more() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Auto))? else {
        return Ok(());
    };
    let mut workload = Workload::start("exec", &[])?;
    let (pid, executor) = (workload.pid(), lab.executor(workload.pid())?);
    workload.go()?;
    workload.expect("READY")?;
    lab.read()?;
    ensure!(
        ends(&lab, executor) == [(pid, REASON_EXEC, 1)],
        "{:?}",
        ends(&lab, executor)
    );
    let rows = lab.probes.rows(executor)?;
    ensure!((rows.processes, rows.threads) == (0, 0), "{rows:?}");
    let before = lab.totals(executor)?;
    workload.run()?;
    lab.read()?;
    ensure!(
        lab.totals(executor)? == before,
        "the new image's faults are counted"
    );
    workload.end()
}
