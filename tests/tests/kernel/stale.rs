//! Rows whose process or thread is gone: which races leave none, and what becomes of those that are left.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use smtt_common::counter::{ExecutorCounters, Unattributed};
use smtt_common::event::Kind;
use smtt_common::settings::{Process, ROLE_CHILD, Thread, executor_pid};
use smtt_config::FaultHook;
use smtt_machine::clock::now_boot_ns;
use smtt_machine::proc::{Handle, Started};
use smtt_model::ledger::{DecodeCounts, Hop, LedgerInputs, ledger};
use smtt_model::state::{Limits, State, Tick};
use smtt_tests::memory::Mapping;

use crate::lab::{KernelLab, Workload, all, lab, with_hook};
use crate::raw::Table;
use crate::reuse::{birth, can_choose_ids};

/// Rows of the kernel side's filter of process ids: ids that differ by this have one row.
const FILTER_ROWS: u32 = 4096;
/// Children of the scenario `twins`.
const TWINS: &str = "children=300";

/// After a run of `twins`.
struct Twins {
    lab: KernelLab,
    workload: Workload,
    executor: u64,
    children: Vec<u32>,
}

/// Runs `twins` and reads the counters.
fn twins() -> Result<Option<Twins>> {
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
    Ok(Some(Twins {
        children: children.map(|pid| pid as u32).collect(),
        lab,
        workload,
        executor,
    }))
}

#[test]
fn two_threads_that_describe_their_process_at_once_make_one_executor() -> Result<()> {
    let Some(twins) = twins()? else {
        return Ok(());
    };
    let (lab, children) = (&twins.lab, &twins.children);
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
    let budget = lab.probes.budget(twins.executor)?.context("no budget")?;
    ensure!(
        budget.rows.processes == 0,
        "children that became executors still count: {budget:?}"
    );
    twins.workload.end()
}

#[test]
fn two_threads_that_exit_at_once_leave_no_row() -> Result<()> {
    let Some(twins) = twins()? else {
        return Ok(());
    };
    let (lab, children) = (&twins.lab, &twins.children);
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
    twins.workload.end()
}

#[test]
fn a_new_process_with_the_id_of_a_stale_row_is_no_child() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Auto))? else {
        return Ok(());
    };
    if !can_choose_ids()? {
        return Ok(());
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
        if !birth(&memory, pid)? {
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

/// A child of this process that ends after a while; its start.
fn child(lives: Duration) -> Result<(i32, Started)> {
    // SAFETY: the child only waits and ends.
    let pid = unsafe { libc::fork() };
    ensure!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        let start = Instant::now();
        while start.elapsed() < lives {
            std::hint::spin_loop();
        }
        // SAFETY: ends the child without its parent's clean-up.
        unsafe { libc::_exit(0) };
    }
    let handle = Handle::open(pid as u32)?;
    let start_ticks = handle.start_ticks().context("a child without a start")?;
    let pid_and_start = Started {
        pid: pid as u32,
        start_ticks,
    };
    Ok((pid, pid_and_start))
}

/// Waits for the end of a child and reaps it.
fn reap(child: i32) {
    // SAFETY: the child is this process's own.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
}

#[test]
fn a_found_child_that_has_ended_leaves_no_row() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Off))? else {
        return Ok(());
    };
    let workload = Workload::start("steady", &["ms=1"])?;
    let executor = lab.executor(workload.pid())?;
    // One that lives gets its row, and the hook of its exit removes it.
    let (pid, living) = child(Duration::from_secs(3))?;
    let other = Started {
        start_ticks: living.start_ticks - 1,
        ..living
    };
    ensure!(
        !lab.probes.adopt_child(executor, other)?,
        "a later process with the id of the child is adopted"
    );
    ensure!(lab.probes.rows(executor)?.processes == 1);
    ensure!(lab.probes.adopt_child(executor, living)?);
    ensure!(lab.probes.rows(executor)?.processes == 2);
    reap(pid);
    ensure!(lab.probes.rows(executor)?.processes == 1);
    // A zombie: the hook of its exit has run.
    let (pid, zombie) = child(Duration::ZERO)?;
    while Handle::open(zombie.pid)?.is_running() {
        std::thread::yield_now();
    }
    ensure!(!lab.probes.adopt_child(executor, zombie)?);
    ensure!(lab.probes.rows(executor)?.processes == 1);
    reap(pid);
    // One that ends at this moment.
    let (mut adopted, mut refused) = (0, 0);
    for round in 0..400 {
        let (pid, ending) = child(Duration::from_micros(200 + round * 2))?;
        if lab.probes.adopt_child(executor, ending)? {
            adopted += 1;
        } else {
            refused += 1;
        }
        reap(pid);
        let rows = lab.probes.rows(executor)?.processes;
        ensure!(
            rows == 1,
            "{} rows of children that ended, in round {round}",
            rows - 1
        );
    }
    println!("{adopted} children adopted, {refused} had ended");
    let budget = lab.probes.budget(executor)?.context("no budget")?;
    ensure!(budget.rows.processes == 0, "{budget:?}");
    workload.end()
}

/// The daemon's part of a test: the state, and what it learned of the kernel side.
struct Model {
    state: State,
    decoded: DecodeCounts,
    records: usize,
    /// Last totals of executors whose rows are gone from the kernel.
    last: BTreeMap<u64, ExecutorCounters>,
}

impl Model {
    fn new(limits: Limits) -> Self {
        Self {
            state: State::new(limits),
            decoded: DecodeCounts::default(),
            records: 0,
            last: BTreeMap::new(),
        }
    }

    /// One tick: records, counters, and the rows that the state gave up.
    fn tick(&mut self, lab: &mut KernelLab) -> Result<Vec<u64>> {
        let readings = lab.read()?;
        for record in &lab.records[self.records..] {
            if let Ok(event) = self.decoded.decode(&record.header, &record.payload) {
                self.state.apply(event);
            }
        }
        self.records = lab.records.len();
        self.last.extend(readings.forgotten.iter().copied());
        // What is sent between the reading and the removal of rows must not be lost.
        std::thread::sleep(Duration::from_millis(300));
        let tick = Tick {
            readings,
            ..Tick::default()
        };
        let forgotten = self.state.take_in(&tick, now_boot_ns());
        for executor in &forgotten {
            lab.probes.leave_executor(*executor)?;
        }
        Ok(forgotten)
    }

    /// The hop `kernel` of the ledger, where no counter moves.
    fn kernel_hop(&self) -> Result<Hop> {
        let inputs = LedgerInputs {
            executors: self.state.executor_totals(),
            kernel: *self.state.kernel_counters(),
            ..LedgerInputs::default()
        };
        let hops = ledger(&inputs, &inputs);
        let hop = hops.into_iter().find(|hop| hop.name == "kernel");
        hop.context("no hop of the kernel side")
    }
}

#[test]
fn an_executor_whose_end_found_the_ring_full_dies() -> Result<()> {
    let mut settings = with_hook(FaultHook::Off);
    settings.ring_bytes = 16 << 10;
    let Some(mut lab) = lab(&settings)? else {
        return Ok(());
    };
    let retention = Duration::from_secs(1);
    let mut model = Model::new(Limits {
        retention_ns: retention.as_nanos() as u64,
        ..Limits::default()
    });
    let mut workload = Workload::start("storm", &["threads=1", "facts=5000"])?;
    let executor = lab.executor(workload.pid())?;
    model.tick(&mut lab)?;
    workload.run()?;
    workload.end()?;
    let dead = |model: &Model| model.state.executors()[&executor].died_ns.is_some();
    model.tick(&mut lab)?;
    ensure!(
        lab.of_kind(executor, Kind::PROCESS_GONE).is_empty() && !dead(&model),
        "the record of its end arrived"
    );
    ensure!(lab.probes.rows(executor)?.processes == 0);
    model.tick(&mut lab)?;
    ensure!(dead(&model), "it lives on");
    // Its rows go with those of the state.
    std::thread::sleep(retention);
    ensure!(model.tick(&mut lab)? == [executor]);
    model.tick(&mut lab)?;
    ensure!(
        lab.probes.budget(executor)?.is_none(),
        "its rows stay in the kernel"
    );
    Ok(())
}

#[test]
fn a_living_executor_that_is_evicted_stays_in_the_ledger() -> Result<()> {
    let mut settings = with_hook(FaultHook::Off);
    settings.ring_bytes = 1 << 16;
    let Some(mut lab) = lab(&settings)? else {
        return Ok(());
    };
    let mut model = Model::new(Limits {
        executors: 2,
        ..Limits::default()
    });
    let mut floods = Vec::new();
    for _ in 0..2 {
        let flood = Workload::start("flood", &["ms=16000", "uid=65534"])?;
        let executor = lab.executor(flood.pid())?;
        model.tick(&mut lab)?;
        floods.push((flood, executor));
    }
    for (flood, _) in &mut floods {
        flood.go()?;
    }
    model.tick(&mut lab)?;
    let victim = Workload::start("steady", &["ms=1"])?;
    let evicted = model.tick(&mut lab)?;
    ensure!(
        evicted == [floods[1].1],
        "{evicted:x?} evicted, not {:x}",
        floods[1].1
    );
    let before = lab.totals(evicted[0])?;
    for (flood, _) in &mut floods {
        flood.done()?;
    }
    for _ in 0..3 {
        model.tick(&mut lab)?;
    }
    let last = model.last.get(&evicted[0]).context("no last totals")?;
    ensure!(
        last.facts_seen > before.facts_seen && lab.probes.budget(evicted[0])?.is_none(),
        "it sent nothing between the reading and the removal of its rows: {before:?} {last:?}"
    );
    let hop = model.kernel_hop()?;
    println!("{hop:?}");
    ensure!(
        hop.consistent && hop.attempted > 1000,
        "{} records are missing: {hop:?}",
        hop.attempted as i64 - hop.delivered as i64 - hop.lost_total() as i64
    );
    for (flood, _) in floods {
        flood.end()?;
    }
    victim.end()
}

#[test]
fn rows_of_threads_without_a_process_are_removed() -> Result<()> {
    const ROWS: u32 = 600;
    let Some(mut lab) = lab(&with_hook(FaultHook::Off))? else {
        return Ok(());
    };
    let workload = Workload::start("steady", &["ms=1"])?;
    let living = lab.executor(workload.pid())?;
    let ended = Workload::start("steady", &["ms=1"])?;
    let executor = lab.executor(ended.pid())?;
    ended.end()?;
    lab.read()?;
    let threads = Table::newest("THREADS")?;
    let beyond = 1 << 22;
    let row = |executor| Thread {
        executor,
        pid: executor_pid(executor),
        ..Thread::default()
    };
    for tid in beyond..beyond + ROWS {
        threads.set(tid, row(executor))?;
    }
    threads.set(beyond + ROWS, row(living))?;
    let mut left = Vec::new();
    for _ in 0..5 {
        lab.read()?;
        left.push(lab.probes.rows(executor)?.threads);
    }
    ensure!(
        left == [600, 344, 88, 0, 0],
        "rows at each reading: {left:?}"
    );
    ensure!(
        lab.probes.rows(living)?.threads == 1,
        "the living executor has lost a row"
    );
    workload.end()
}
