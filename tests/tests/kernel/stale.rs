//! Rows whose process or thread is gone: which races leave none, and what becomes of those that are left.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result, bail, ensure};
use smtt_common::counter::Unattributed;
use smtt_common::settings::{Process, ROLE_CHILD, executor_pid};
use smtt_config::FaultHook;
use smtt_tests::memory::Mapping;
use smtt_tests::skip::skip;

use crate::lab::{KernelLab, Workload, all, lab, with_hook};
use crate::raw::Table;
use crate::reuse::{LAST_PID, birth};

/// Rows of the kernel side's filter of process ids: ids that differ by this have one row.
const FILTER_ROWS: u32 = 4096;
/// Children of the scenario `twins`.
const TWINS: &str = "children=300";

/// Runs `twins`; the lab with its readings, the workload, its executor and the children.
fn twins() -> Result<Option<(KernelLab, Workload, u64, Vec<u32>)>> {
    let mut settings = with_hook(FaultHook::Off);
    settings.executors = 1000;
    let Some(mut lab) = lab(&settings)? else {
        return Ok(None);
    };
    // The parent calls no entry point before it forks: the kernel may replace the probe by a call into a page that a
    // child does not have.
    let mut workload = Workload::start("twins", &[TWINS, "describe=no"])?;
    let executor = lab.probes.adopt_executor(workload.pid())?;
    let said = workload.run()?;
    lab.read()?;
    let children = said["children"].as_array().context("no children")?;
    let children = children.iter().filter_map(serde_json::Value::as_u64);
    Ok(Some((
        lab,
        workload,
        executor,
        children.map(|pid| pid as u32).collect(),
    )))
}

#[test]
fn two_threads_that_describe_their_process_at_once_make_one_executor() -> Result<()> {
    let Some((lab, workload, executor, children)) = twins()? else {
        return Ok(());
    };
    let mut keys: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for key in lab.executors.keys() {
        keys.entry(executor_pid(*key)).or_default().push(*key);
    }
    let wrong: Vec<_> = children
        .iter()
        .map(|pid| keys.get(pid).map_or(0, Vec::len))
        .filter(|count| *count != 1)
        .collect();
    ensure!(
        wrong.is_empty(),
        "{} of {} processes have another number of executors than 1: {wrong:?}",
        wrong.len(),
        children.len()
    );
    let budget = lab.probes.budget(executor)?.context("no budget")?;
    ensure!(
        budget.rows.processes == 0,
        "children that became executors still count: {budget:?}"
    );
    workload.end()
}

#[test]
fn two_threads_that_exit_at_once_leave_no_row() -> Result<()> {
    let Some((lab, workload, _, children)) = twins()? else {
        return Ok(());
    };
    let mut left = 0;
    for key in lab.executors.keys() {
        if children.contains(&executor_pid(*key)) {
            let budget = lab.probes.budget(*key)?.context("no budget")?;
            left += lab
                .probes
                .rows(*key)?
                .threads
                .max(budget.rows.threads as usize);
        }
    }
    ensure!(
        left == 0,
        "{left} rows of threads of {} processes are left",
        children.len()
    );
    workload.end()
}

#[test]
fn a_new_process_with_the_id_of_a_stale_row_is_no_child() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Auto))? else {
        return Ok(());
    };
    if fs::write(LAST_PID, "1000").is_err() {
        return skip(
            "last_pid",
            "this kernel has no CONFIG_CHECKPOINT_RESTORE, which sets the next process id",
        );
    }
    let workload = Workload::start("steady", &["ms=1"])?;
    let executor = lab.executor(workload.pid())?;
    let memory = Mapping::anonymous(4)?;
    let processes = Table::newest("PROCESSES")?;
    for place in 1..100 {
        // An id that the filter lets through, because it shares its row with the executor's.
        let pid = workload.pid() % FILTER_ROWS + place % 7 * FILTER_ROWS;
        if pid < 1000 || fs::metadata(format!("/proc/{pid}")).is_ok() {
            continue;
        }
        let stale = Process {
            executor,
            role: ROLE_CHILD,
            ..Process::default()
        };
        processes.set(pid, stale)?;
        fs::write(LAST_PID, (pid - 1).to_string())?;
        if birth(&memory)? != pid as i32 {
            // Another process of the machine took the id.
            if processes.get::<u32, Process>(pid).is_some() {
                processes.remove(pid)?;
            }
            continue;
        }
        lab.read()?;
        let child = all(&lab.totals(executor)?.unattributed[Unattributed::CHILD.0 as usize]);
        ensure!(
            child == 0,
            "{child} faults of an unrelated process count for the executor"
        );
        ensure!(lab.probes.rows(executor)?.processes == 1);
        return workload.end();
    }
    bail!("no process got the id of the stale row")
}
