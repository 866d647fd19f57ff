//! The estimated time of page faults is what the program measures around each access.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use smtt_config::{FaultHook, ProbeSettings};
use smtt_model::readings::Readings;
use smtt_model::rows::{Filter, RddRow, TaskRow};
use smtt_model::state::{FaultFigures, Limits, Measured, State, TIMED_AT_LEAST};
use smtt_model::verdict::VerdictState;

use crate::lab::{KernelLab, Workload, all, lab, with_hook};

/// As many windows as there can be.
fn timed(hook: FaultHook) -> ProbeSettings {
    ProbeSettings {
        fault_windows: Some(Duration::from_millis(100)),
        ..with_hook(hook)
    }
}

fn figures(lab: &KernelLab, executor: u64, rdd: u32) -> FaultFigures {
    let counters = lab.faults(executor, |key| key.rdd_plus_one == rdd + 1);
    FaultFigures::new(&counters, Measured::default())
}

/// Workloads whose median is compared. One fault in about thirty is measured, so a single one that another program held
/// up for long shifts the estimate of its round. Many short rounds have few such.
const ROUNDS: usize = 9;
/// Workloads at most. On a busy machine the switching of the events takes so much CPU time that the next window comes after
/// the end of a short workload, which then has no time.
const TRIES: usize = 4 * ROUNDS;
/// The largest error of the time that the program waits for, and the largest width of its interval, as shares of it.
const INJECTED: f64 = 0.1;
/// On a busy machine the waits scatter, so that the interval is wider. It may then be so many times as wide as what the
/// program says of its waits.
const SCATTER: f64 = 1.5;

/// Shares of what the program measured.
#[derive(Clone, Copy, Debug)]
struct Shares {
    estimate: f64,
    /// Half of the interval.
    error: f64,
    /// Half of the interval that as many faults have whose times scatter as the program measured.
    scatter: f64,
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// The rows of tasks and of RDDs that an executor's contexts make.
fn rows(lab: &KernelLab, executor: u64) -> Result<(Vec<TaskRow>, Vec<RddRow>)> {
    let of = lab.contexts.iter();
    let of = of.filter(|(key, _)| key.executor == executor);
    let readings = Readings {
        contexts: of.map(|(key, counters)| (*key, *counters)).collect(),
        executors: vec![(executor, lab.totals(executor)?)],
        access_known: true,
        ..Readings::default()
    };
    let mut state = State::new(Limits::default());
    state.add(&readings, 1);
    let all = Filter::default();
    Ok((state.list_tasks(&all).rows, state.list_rdds(&all).rows))
}

/// Runs the workload once: what was estimated for its fresh pages and for those that it waits for. Nothing when too few
/// windows fell into one of the two.
fn round(lab: &mut KernelLab, hook: FaultHook) -> Result<Option<[Shares; 2]>> {
    let mut workload = Workload::start("fault_time", &["ms=2000", "pause_us=500"])?;
    let executor = lab.executor(workload.pid())?;
    let done = workload.run()?;
    lab.read()?;
    let (tasks, rdds) = rows(lab, executor)?;
    let share = |kind: &str| -> Result<Option<Shares>> {
        let number = |name: &str| done[kind][name].as_u64().context("a number");
        let (rdd, faults) = (number("rdd")? as u32, number("faults")?);
        // Each task works on one RDD, so both have the same faults, time and error.
        let id = number("task")?;
        let task = tasks.iter().find(|row| row.task_attempt_id == Some(id));
        let of_rdd = rdds.iter().find(|row| row.rdd_id == Some(rdd));
        let (task, of_rdd) = task.zip(of_rdd).context("no rows")?;
        ensure!(
            task.faults == of_rdd.faults,
            "task {id}: {:?}, RDD {rdd}: {:?}",
            task.faults,
            of_rdd.faults
        );
        let truth = number("ns")? as f64;
        let counted = all(&lab.faults(executor, |key| key.rdd_plus_one == rdd + 1));
        ensure!(counted >= faults, "{counted} of {faults} faults");
        let shown = figures(lab, executor, rdd);
        ensure!(
            (task.faults.page_faults, task.faults.page_fault_time_ns)
                == (shown.page_faults, shown.page_fault_time_ns),
            "{:?}, {shown:?}",
            task.faults
        );
        let Some(time) = shown.page_fault_time_ns else {
            let timed = shown.page_faults_timed.unwrap_or(0);
            ensure!(timed < TIMED_AT_LEAST, "{kind}: {shown:?}");
            println!("{hook:?} {kind}: {faults} faults, {timed} measured");
            return Ok(None);
        };
        let time = time as f64;
        let error = shown.page_fault_time_error_ns.context("no interval")? as f64;
        println!(
            "{hook:?} {kind}: {faults} faults, {:?} measured, {:.3} s with an interval of {:.3} s, {:.3} s by the program",
            shown.page_faults_timed,
            time / 1e9,
            error / 1e9,
            truth / 1e9
        );
        let deviation = done[kind]["deviation_of_mean"].as_f64().unwrap_or(0.0);
        let timed = shown.page_faults_timed.unwrap_or(0) as f64;
        Ok(Some(Shares {
            estimate: time / truth,
            error: error / truth,
            scatter: 1.96 * deviation / timed.sqrt(),
        }))
    };
    let (fresh, waiting) = (share("fresh")?, share("waiting")?);
    workload.end()?;
    Ok(fresh.zip(waiting).map(|(fresh, waiting)| [fresh, waiting]))
}

fn times(hook: FaultHook) -> Result<()> {
    let Some(mut lab) = lab(&timed(hook))? else {
        return Ok(());
    };
    let verdicts = lab.probes.verdicts();
    let verdict = verdicts.iter().find(|verdict| verdict.name == "fault_time");
    ensure!(
        verdict.is_some_and(|verdict| verdict.verdict == VerdictState::Ok),
        "{verdict:?}"
    );
    let mut rounds = Vec::new();
    for _ in 0..TRIES {
        rounds.extend(round(&mut lab, hook)?);
        if rounds.len() == ROUNDS {
            break;
        }
    }
    ensure!(
        rounds.len() == ROUNDS,
        "{} of {TRIES} rounds have a time",
        rounds.len()
    );
    let of = |kind: usize| {
        let shares = rounds.iter().map(move |round| round[kind]);
        Shares {
            estimate: median(shares.clone().map(|share| share.estimate).collect()),
            error: median(shares.clone().map(|share| share.error).collect()),
            scatter: median(shares.map(|share| share.scatter).collect()),
        }
    };
    // The program's CPU time of a fresh page has the entry and exit of the exception, too.
    let (fresh, injected) = (of(0), of(1));
    println!("{hook:?}, medians: fresh {fresh:.3?}, injected {injected:.3?}");
    ensure!(
        fresh.error < 0.5 * fresh.estimate
            && fresh.estimate + fresh.error >= 0.5
            && fresh.estimate - fresh.error <= 1.25,
        "{fresh:?}"
    );
    ensure!(
        (injected.estimate - 1.0).abs() <= INJECTED,
        "the waits are {:.1} % of what they were: {rounds:?}",
        injected.estimate * 100.0
    );
    ensure!(
        2.0 * injected.error < INJECTED || injected.error < SCATTER * injected.scatter,
        "the interval is {:.1} % wide: {rounds:?}",
        2.0 * injected.error * 100.0
    );
    Ok(())
}

#[test]
fn the_time_of_faults_is_what_the_program_measures() -> Result<()> {
    times(FaultHook::RawTracepoint)
}

#[test]
fn the_time_of_faults_does_not_depend_on_the_hook_that_counts_them() -> Result<()> {
    times(FaultHook::Software)
}

#[test]
fn nothing_is_timed_where_it_is_switched_off() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Auto))? else {
        return Ok(());
    };
    let mut workload = Workload::start("fault_time", &["ms=500"])?;
    let executor = lab.executor(workload.pid())?;
    let done = workload.run()?;
    lab.read()?;
    let rdd = done["fresh"]["rdd"].as_u64().context("an RDD")? as u32;
    let shown = figures(&lab, executor, rdd);
    ensure!(shown.page_faults > Some(100), "{shown:?}");
    ensure!(shown.page_faults_timed.is_none() && shown.page_fault_time_ns.is_none());
    workload.end()
}
