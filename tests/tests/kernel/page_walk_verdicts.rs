//! An event that cannot be measured has a verdict that says why, and publishes neither a zero nor a ratio.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use smtt_config::FaultHook;
use smtt_model::cpu::{FigureName, Role};
use smtt_model::verdict::{ON_CPU, VerdictState};
use smtt_tests::skip::skip;

use crate::lab::{KernelLab, Workload, lab, with_hook};
use crate::page_walks::{clock_and_faults, with_events};

/// How long an event may need until it has counted for long enough.
const LIMIT: Duration = Duration::from_secs(60);

/// Names of the figures that may be published.
fn sound(lab: &KernelLab) -> Result<Vec<FigureName>> {
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
        return skip(
            "no_counters",
            format!("there is {devices}/{pmu}; the test is about a machine without"),
        );
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
        smtt_model::protocol::degraded(true, &lab.probes.verdicts(), &[]).is_empty(),
        "a machine without counters is no fault of the daemon's"
    );
    let clock = lab.verdict(ON_CPU).context("no verdict on the clock")?;
    ensure!(
        clock.verdict == VerdictState::Ok && clock.hook == "perf:cpu-clock",
        "{clock:?}"
    );
    the_clock_is_sampled(&mut lab)?;
    ensure!(lab.page_walks.is_none(), "the clock is no page walk");
    Ok(())
}

/// Compares the clock's samples of two RDDs' contexts with the CPU time of the threads there.
fn the_clock_is_sampled(lab: &mut KernelLab) -> Result<()> {
    let mut workload = Workload::start("duty", &[])?;
    let executor = lab.executor(workload.pid())?;
    let done = workload.run()?;
    lab.read()?;
    let number = |name: &str| done[name].as_u64().context("no number");
    let (a_ns, b_ns) = (number("a_ns")? as f64, number("b_ns")? as f64);
    let of = |rdd: &str| -> Result<f64> {
        let rdd = number(rdd)? as u32 + 1;
        let all = lab.clock.iter().flatten();
        let own = all.filter(|(key, _)| key.executor == executor && key.rdd_plus_one == rdd);
        Ok(own.map(|(_, samples)| *samples as f64).sum())
    };
    let (a, b) = (of("a")?, of("b")?);
    let (exact, sampled) = (a_ns / (a_ns + b_ns), a / (a + b));
    // The 99.9 % interval of a share of randomly taken samples; regular samples scatter less.
    let interval = 3.291 * (exact * (1.0 - exact) / (a + b)).sqrt();
    println!(
        "{a} and {b} samples in {a_ns} and {b_ns} ns: {sampled:.4}, {exact:.4} +- {interval:.4}"
    );
    // 200 samples a second of CPU time.
    let wanted = (a_ns + b_ns) / 5e6;
    ensure!(
        (a + b) > 0.8 * wanted && (a + b) < 1.2 * wanted,
        "{a} and {b} samples in place of {wanted}"
    );
    ensure!(
        (sampled - exact).abs() <= interval,
        "RDD A had {exact} of the time and has {sampled} of the samples, beyond {interval}"
    );
    workload.end()
}

#[test]
fn cycles_that_count_nothing_give_way_to_the_clock() -> Result<()> {
    // No program of this processor ever causes such a fault.
    let settings = with_events(&[
        (Role::Cycles, "alignment-faults", 1),
        (Role::LoadWalksCompleted, "page-faults", 1),
    ]);
    let Some(mut lab) = lab(&settings)? else {
        return Ok(());
    };
    let verdict = |lab: &KernelLab| lab.verdict(ON_CPU).context("no verdict on the clock");
    let first = verdict(&lab)?;
    ensure!(
        first.verdict == VerdictState::NotApplicable && first.reason.contains("cycles"),
        "{first:?}"
    );
    let start = Instant::now();
    while verdict(&lab)?.verdict != VerdictState::Ok {
        ensure!(start.elapsed() < LIMIT, "{:?}", verdict(&lab)?);
        std::thread::sleep(Duration::from_millis(100));
        lab.read()?;
    }
    let walks = lab.walk_verdict().context("no verdict on page walks")?;
    ensure!(walks.verdict == VerdictState::Broken, "{walks:?}");
    the_clock_is_sampled(&mut lab)?;
    // Page faults are counted as before, in a channel of their own.
    let (slot, counted) = lab.channel(Role::LoadWalksCompleted)?;
    let sums = lab.walks.values();
    let (events, samples) = sums.fold((0, 0), |sum, it| {
        (sum.0 + it.events[slot], sum.1 + it.samples[slot])
    });
    ensure!(
        events == samples && events > 0 && events <= counted.counted,
        "{events} events in {samples} samples: {counted:?}"
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
        verdict.verdict == VerdictState::NotApplicable && verdict.reason.contains("[page_walks]"),
        "{verdict:?}"
    );
    Ok(())
}

/// Makes the kernel refuse the calling thread's perf events of all processes on one processor, permanently.
fn refuse_events_on(processor: u32) -> Result<()> {
    /// Offsets in the kernel's `struct seccomp_data`: the number of the call, and the low half of its third argument.
    const NUMBER: u32 = 0;
    const PROCESSOR: u32 = 16 + 2 * 8;
    const LOAD: u16 = 0x20;
    const IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const REFUSE: u32 = 0x0005_0000 | libc::EACCES as u32;
    const ALLOW: u32 = 0x7fff_0000;
    let line = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        line(LOAD, 0, 0, NUMBER),
        line(IF_EQUAL, 0, 3, libc::SYS_perf_event_open as u32),
        line(LOAD, 0, 0, PROCESSOR),
        line(IF_EQUAL, 0, 1, processor),
        line(RETURN, 0, 0, REFUSE),
        line(RETURN, 0, 0, ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the filter outlives the calls, which copy it; both are about the calling thread only.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            ) == 0
    };
    ensure!(
        done,
        "no filter of system calls: {}",
        std::io::Error::last_os_error()
    );
    Ok(())
}

#[test]
fn an_event_that_is_refused_on_one_processor_is_measured_on_none_and_the_verdict_says_why()
-> Result<()> {
    let test = || -> Result<()> {
        let last = std::thread::available_parallelism()?.get() as u32 - 1;
        refuse_events_on(last)?;
        let Some(mut lab) = lab(&clock_and_faults())? else {
            return Ok(());
        };
        ensure!(
            lab.read()?.page_walks.is_none(),
            "an event is refused, but there is {:?}",
            lab.page_walks
        );
        let verdict = lab.walk_verdict().context("no verdict on page walks")?;
        println!("{verdict:?}");
        ensure!(
            verdict.verdict == VerdictState::Unsupported
                && verdict.reason.starts_with("cpu-clock (cycles) ")
                && verdict.reason.contains(&format!("on CPU {last}: "))
                && verdict.reason.contains("CAP_PERFMON"),
            "{verdict:?}"
        );
        let clock = lab.verdict(ON_CPU).context("no verdict on the clock")?;
        ensure!(
            clock.verdict == VerdictState::Unsupported
                && clock.reason.contains(&format!("on CPU {last}: "))
                && clock.reason.contains("shares of activities"),
            "{clock:?}"
        );
        Ok(())
    };
    // A seccomp filter is permanent for a thread, so this test uses a separate thread.
    std::thread::scope(|scope| {
        scope
            .spawn(test)
            .join()
            .map_err(|_| anyhow::anyhow!("the test panicked"))?
    })
}

#[test]
fn an_event_that_counts_nothing_gives_a_verdict_and_no_figure() -> Result<()> {
    // No program of this processor ever causes such a fault.
    let settings = with_events(&[
        (Role::Cycles, "cpu-clock", 1_000_003),
        (Role::LoadWalksCompleted, "page-faults", 1),
        (Role::StoreWalksCompleted, "alignment-faults", 1),
    ]);
    let Some(mut lab) = lab(&settings)? else {
        return Ok(());
    };
    // At first no verdict is possible; how long depends on the load of the machine. Other processes cause faults: on a
    // quiet machine the other event had nothing to count either.
    let mut workload = Workload::start(
        "storm",
        &["threads=1", "facts=150000", "pages=256", "describe=no"],
    )?;
    workload.go()?;
    let start = Instant::now();
    loop {
        lab.read()?;
        let figures = sound(&lab)?;
        let (_, slot) = lab.channel(Role::StoreWalksCompleted)?;
        ensure!(
            slot.counted == 0 && !figures.contains(&FigureName::DtlbWriteMisses),
            "{slot:?}, {figures:?}"
        );
        if slot.fault.contains("counts nothing on this machine")
            && figures.contains(&FigureName::DtlbReadMisses)
        {
            break;
        }
        ensure!(
            slot.fault.contains("not counted anything yet")
                || slot.fault.contains("counts nothing on this machine"),
            "{slot:?}"
        );
        ensure!(start.elapsed() < LIMIT, "{slot:?}, {figures:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    workload.done()?;
    workload.end()?;
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
