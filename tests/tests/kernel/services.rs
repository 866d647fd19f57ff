//! What Python workers used for the tasks that they served, by the kernel's accounts of all threads of the worker, compared
//! with what the worker reads of its own process.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use smtt_common::event::Kind;
use smtt_common::event::used::{
    CALL_READ_BYTES, CALL_WRITTEN_BYTES, CPU_NS, CPU_WAIT_NS, DISK_READ_BYTES, DISK_WRITTEN_BYTES,
    FAULTS_MAJOR, FAULTS_MINOR, Helper, REST, SWITCHES_INVOLUNTARY, SWITCHES_VOLUNTARY, UNTIL_END,
    UNTIL_EXIT, UNTIL_MASK, UNTIL_NEXT, WorkerUsed, helper,
};
use smtt_config::FaultHook;
use smtt_model::decode::{Fact, decode};
use smtt_tests::witness;

use crate::accounts::{accounts_of, numbers};
use crate::lab::{KernelLab, Workload, lab, with_hook};

/// The accounts in the order in which the worker reads them.
const READ: [(&str, usize); 7] = [
    ("CPU time", CPU_NS),
    ("voluntary switches", SWITCHES_VOLUNTARY),
    ("involuntary switches", SWITCHES_INVOLUNTARY),
    ("minor faults", FAULTS_MINOR),
    ("major faults", FAULTS_MAJOR),
    ("bytes read by calls", CALL_READ_BYTES),
    ("bytes written by calls", CALL_WRITTEN_BYTES),
];

/// CPU time of a service: three threads of 20 ms each.
const BURNT_NS: u64 = 60_000_000;
/// At an exit the kernel may lack the time since the last tick, 10 ms where it has 100 a second.
const TICK_NS: u64 = 10_000_000;

fn services_of(lab: &KernelLab, executor: u64) -> Result<Vec<WorkerUsed>> {
    lab.of_kind(executor, Kind::WORKER_USED)
        .into_iter()
        .map(
            |record| match decode(&record.header, &record.payload)?.fact {
                Fact::WorkerUsed(used) => Ok(*used),
                other => anyhow::bail!("{other:?} is no account of a worker"),
            },
        )
        .collect()
}

#[test]
fn a_worker_s_services_have_its_accounts_and_no_other_process_has_any() -> Result<()> {
    served(0)
}

/// The executor reports the worker by an id that is another process's on the host, or none's.
#[test]
fn a_worker_in_another_pid_namespace_has_its_accounts() -> Result<()> {
    served(2)
}

/// The services of a worker of an executor that many pid namespaces below the first one.
fn served(namespaces: usize) -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Auto))? else {
        return Ok(());
    };
    let foreign = Workload::start("accounts", &[])?;
    let (foreign_pid, levels) = (
        format!("foreign={}", foreign.pid()),
        format!("namespaces={namespaces}"),
    );
    let mut workload = Workload::start("services", &[&foreign_pid, &levels])?;
    // Each namespace has a process that waits for the one in it.
    let above = witness::descendants(workload.pid())?;
    let pid = match namespaces {
        0 => workload.pid(),
        _ => *above.last().context("no process in a namespace")?,
    };
    let executor = lab.executor(pid)?;
    let done = workload.run()?;
    lab.read()?;
    let all = services_of(&lab, executor)?;
    let said = done["worker"].as_u64().context("no worker")? as u32;
    let worker = match namespaces {
        0 => said,
        _ => all.first().context("no service")?.pid,
    };
    ensure!(
        (worker == said) == (namespaces == 0),
        "the worker is {said}"
    );
    ensure!(
        all.iter().all(|it| it.pid == worker
            && helper(it.used.flags) == Helper::PYTHON_WORKER
            && (1..=6).contains(&it.used.task_attempt_id)),
        "{all:#?}"
    );
    let (rests, services): (Vec<WorkerUsed>, Vec<WorkerUsed>) =
        all.iter().partition(|it| it.used.flags & REST != 0);
    let until = |task: u64| match task {
        3 => UNTIL_NEXT,
        6 => UNTIL_EXIT,
        _ => UNTIL_END,
    };
    let ends: Vec<(u64, u32)> = services
        .iter()
        .map(|it| (it.used.task_attempt_id, it.used.flags & 0xff))
        .collect();
    ensure!(
        ends == (1..=6).map(|task| (task, until(task))).collect::<Vec<_>>(),
        "each service once, and whole: {ends:?}"
    );
    // Between two services the worker only waits.
    let after: Vec<u64> = rests.iter().map(|it| it.used.task_attempt_id).collect();
    ensure!(
        after == [1, 2, 4, 5]
            && rests
                .iter()
                .all(|it| it.used.flags & UNTIL_MASK == UNTIL_NEXT
                    && it.used.present & 1 << CPU_WAIT_NS == 0
                    && it.used.accounts[CPU_NS] < 5_000_000),
        "{rests:#?}"
    );
    let told = done["services"].as_array().context("no services")?;
    let readings: Vec<(Vec<u64>, Vec<u64>)> = told
        .iter()
        .map(|it| Ok((numbers(&it["begin"])?, numbers(&it["end"])?)))
        .collect::<Result<_>>()?;
    let by_task: BTreeMap<u64, &WorkerUsed> = services
        .iter()
        .map(|it| (it.used.task_attempt_id, it))
        .collect();
    for (at, (begin, end)) in readings.iter().enumerate() {
        let task = at as u64 + 1;
        let used = &by_task[&task].used;
        for (number, (name, account)) in READ.into_iter().enumerate() {
            ensure!(used.present & 1 << account != 0, "no {name}: {used:?}");
            let value = used.accounts[account];
            let inside = end[number] - begin[number];
            // From the end of the service before to the begin of the next one.
            let after = readings.get(at + 1).map(|(next, _)| next[number]);
            let before = at.checked_sub(1).map_or(0, |at| readings[at].1[number]);
            let outside = after.map_or(u64::MAX, |after| after - before);
            ensure!(
                inside <= value && value <= outside,
                "task {task}, {name}: {value} by the kernel side, {inside} inside and {outside} outside of the service"
            );
            println!("task {task}, {name}: {value} of {inside} to {outside}");
        }
        for account in [DISK_READ_BYTES, DISK_WRITTEN_BYTES] {
            ensure!(used.present & 1 << account != 0, "{used:?}");
        }
        let cpu = used.accounts[CPU_NS];
        ensure!(
            (BURNT_NS..BURNT_NS + BURNT_NS / 5).contains(&cpu),
            "task {task}: {cpu} ns"
        );
        // A thread ended within the service: the kernel has no sum of its waits.
        ensure!(used.present & 1 << CPU_WAIT_NS == 0, "{used:?}");
    }
    let last = by_task[&6].used;
    ensure!(
        last.accounts[CPU_NS] + TICK_NS >= BURNT_NS && last.accounts[CPU_NS] < 2 * BURNT_NS,
        "{last:?}"
    );
    ensure!(
        accounts_of(&lab, executor)?.is_empty(),
        "a helper that is a worker"
    );
    ensure!(lab.probes.worker_rows()? == 0, "a row is left over");
    workload.end()?;
    foreign.end()
}
