//! The estimated time of page faults is what the program measures around each access.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use smtt_config::{FaultHook, ProbeSettings};
use smtt_model::state::{FaultFigures, Measured};
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
    let mut workload = Workload::start("fault_time", &["ms=6000", "pause_us=2000"])?;
    let executor = lab.executor(workload.pid())?;
    let done = workload.run()?;
    lab.read()?;
    for (kind, least, most) in [("fresh", 0.5, 1.25), ("waiting", 0.9, 1.1)] {
        let number = |name: &str| done[kind][name].as_u64().context("a number");
        let (rdd, faults) = (number("rdd")? as u32, number("faults")?);
        let truth = number("ns")? as f64;
        let shown = figures(&lab, executor, rdd);
        let time = shown
            .page_fault_time_ns
            .with_context(|| format!("{kind}: {shown:?}"))? as f64;
        let error = shown.page_fault_time_error_ns.context("no interval")? as f64;
        println!(
            "{hook:?} {kind}: {faults} faults, {:?} measured, {:.3} s with an interval of {:.3} s, {:.3} s by the program",
            shown.page_faults_timed,
            time / 1e9,
            error / 1e9,
            truth / 1e9
        );
        let counted = all(&lab.faults(executor, |key| key.rdd_plus_one == rdd + 1));
        ensure!(counted >= faults, "{counted} of {faults} faults");
        ensure!(error < 0.5 * time, "{kind}: {time} +- {error} ns");
        ensure!(
            time + error >= truth * least && time - error <= truth * most,
            "{kind}: {time} +- {error} ns, the program measured {truth} ns"
        );
    }
    workload.end()
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
