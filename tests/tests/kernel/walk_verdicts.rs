//! What cannot be measured is said, and neither a zero nor a ratio is published for it.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use smtt_daemon::pmu::{FigureName, Role};
use smtt_daemon::probes::{FaultHook, VerdictState};

use crate::lab::{Lab, lab, with_hook};
use crate::walks::{clock_and_faults, with_events};

/// Names of the figures that may be published.
fn sound(lab: &Lab) -> Result<Vec<FigureName>> {
    Ok(lab
        .page_walks
        .as_ref()
        .context("page walks are measured")?
        .sound_figures()
        .map(|figure| figure.name)
        .collect())
}

#[test]
fn a_machine_without_counters_gives_no_page_walks_and_says_what_to_change() -> Result<()> {
    let devices = "/sys/bus/event_source/devices";
    let counters = ["cpu", "cpu_core", "armv8_pmuv3_0"]
        .iter()
        .find(|pmu| std::path::Path::new(devices).join(pmu).exists());
    if let Some(pmu) = counters {
        println!(
            "skipped: this machine has counters ({devices}/{pmu}); the test is about one without"
        );
        return Ok(());
    }
    let Some(mut lab) = lab(&with_hook(FaultHook::Auto))? else {
        return Ok(());
    };
    let readings = lab.read()?;
    ensure!(
        readings.page_walks.is_none(),
        "nothing can be measured, but there is {:?}",
        readings.page_walks
    );
    let verdict = lab.walk_verdict().context("no verdict on page walks")?;
    ensure!(
        verdict.verdict == VerdictState::Unsupported
            && (verdict.reason.contains("virtual machine") || verdict.reason.contains("PMU")),
        "{verdict:?}"
    );
    ensure!(
        !lab.probes.degraded(),
        "a machine without counters is no fault of the daemon's"
    );
    Ok(())
}

#[test]
fn page_walks_that_are_switched_off_are_not_measured() -> Result<()> {
    let mut settings = clock_and_faults();
    settings.page_walks.enabled = false;
    let Some(mut lab) = lab(&settings)? else {
        return Ok(());
    };
    ensure!(lab.read()?.page_walks.is_none(), "they are measured");
    let verdict = lab.walk_verdict().context("no verdict on page walks")?;
    ensure!(
        verdict.verdict == VerdictState::NotApplicable && verdict.reason.contains("[pmu]"),
        "{verdict:?}"
    );
    Ok(())
}

#[test]
fn an_event_that_counts_nothing_gives_a_verdict_and_no_figure() -> Result<()> {
    // No program of this processor ever has such a fault.
    let settings = with_events(&[
        (Role::Cycles, "cpu-clock", 1_000_003),
        (Role::LoadWalksCompleted, "page-faults", 1),
        (Role::StoreWalksCompleted, "alignment-faults", 1),
    ]);
    let Some(mut lab) = lab(&settings)? else {
        return Ok(());
    };
    lab.read()?;
    let (_, slot) = lab.slot(Role::StoreWalksCompleted)?;
    ensure!(
        slot.fault.contains("not counted anything yet") && slot.counted == 0,
        "{slot:?}"
    );
    let figures = sound(&lab)?;
    ensure!(
        !figures.contains(&FigureName::DtlbWriteMisses),
        "{figures:?}"
    );
    // Time in which a counter that works would have counted something.
    for _ in 0..6 {
        std::thread::sleep(Duration::from_millis(300));
        lab.read()?;
    }
    let (_, slot) = lab.slot(Role::StoreWalksCompleted)?;
    ensure!(
        slot.fault.contains("counts nothing on this machine"),
        "{slot:?}"
    );
    let verdict = lab.walk_verdict().context("no verdict on page walks")?;
    ensure!(
        verdict.verdict == VerdictState::Broken
            && verdict.reason.starts_with("alignment-faults: ")
            && !verdict.reason.contains("page-faults"),
        "{verdict:?}"
    );
    let figures = sound(&lab)?;
    ensure!(
        figures.contains(&FigureName::DtlbReadMisses)
            && !figures.contains(&FigureName::DtlbWriteMisses),
        "{figures:?}"
    );
    Ok(())
}
