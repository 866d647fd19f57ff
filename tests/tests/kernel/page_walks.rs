//! Page walks, sampled: the samples of each context match its work.
//!
//! A machine without counters of page walks uses the kernel's software events. They take the same path from the
//! overflow to the row of a context, and have better witnesses: the workload, the fault probe and the kernel count page
//! faults with period 1 one by one; the threads' own CPU clocks check the clock.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_common::counter::{ContextKey, Counter};
use smtt_config::{FaultHook, ProbeSettings};
use smtt_daemon::discover::Discoverer;
use smtt_daemon::probes::library::Probing;
use smtt_model::cpu::{Overrides, Role};
use smtt_model::readings::Channel;
use smtt_tests::page_walk::{FEW_PAGES, FEW_RDD, READ_RDD, WRITTEN_RDD};
use smtt_tests::witness;

use crate::foreign_files::find;
use crate::lab::{KernelLab, Workload, all, lab, with_hook};

/// Nanoseconds of the clock per sample.
const CLOCK_PERIOD: u64 = 250_007;
/// Most nanoseconds by which the clock's samples may lag behind it: the host of a virtual machine may delay a
/// processor.
const CLOCK_LAG_NS: u64 = 100_000_000;

/// Settings with these events instead of the table's, each with a fixed period.
pub fn with_events(events: &[(Role, &str, u64)]) -> ProbeSettings {
    let mut settings = with_hook(FaultHook::Auto);
    settings.page_walks.overrides = Overrides(
        events
            .iter()
            .map(|(role, event, _)| (*role, (*event).to_owned()))
            .collect(),
    );
    settings.page_walks.sample_periods = events
        .iter()
        .map(|(role, _, period)| (*role, *period))
        .collect();
    settings
}

/// The CPU clock as cycles, and every page fault as a page walk of a read.
pub fn clock_and_faults() -> ProbeSettings {
    with_events(&[
        (Role::Cycles, "cpu-clock", CLOCK_PERIOD),
        (Role::LoadWalksCompleted, "page-faults", 1),
    ])
}

/// Sampled page faults in an executor's rows that match.
fn faults(lab: &KernelLab, executor: u64, fits: impl Fn(&ContextKey) -> bool) -> Result<u64> {
    let (slot, _) = lab.channel(Role::LoadWalksCompleted)?;
    let sum = lab.sampled(executor, fits);
    ensure!(
        sum.events[slot] == sum.samples[slot],
        "each page fault is a sample: {sum:?}"
    );
    Ok(sum.events[slot])
}

/// Page faults of an executor by both sides, at the beginning of an interval. Its process became an executor in the
/// middle of its life, so the kernel's count has earlier faults.
struct Before {
    sampled: u64,
    kernel: u64,
}

impl Before {
    /// Reads both sides while the workload waits.
    fn now(lab: &mut KernelLab, executor: u64, workload: &Workload) -> Result<Self> {
        lab.read()?;
        Ok(Self {
            sampled: faults(lab, executor, |_| true)?,
            kernel: witness::faults(workload.pid())?.total(),
        })
    }

    /// Growth since then: sampled, attributed and unattributed faults, and the kernel's own count of the process.
    fn grown(&self, lab: &mut KernelLab, executor: u64, workload: &Workload) -> Result<(u64, u64)> {
        let now = Self::now(lab, executor, workload)?;
        Ok((now.sampled - self.sampled, now.kernel - self.kernel))
    }
}

/// Lets the workload count its plain round, and returns the counts by thread and RDD.
fn plain_counts(workload: &mut Workload) -> Result<Value> {
    workload.go()?;
    let plain = serde_json::from_str(&workload.expect("PLAIN ")?)?;
    workload.quiet()?;
    Ok(plain)
}

const THREADS: u64 = 3;
const ROUNDS: u64 = 3;
const PAGES: u64 = 2000;
/// Most page faults of a context that are outside its memory or that two hooks may count differently: a fault that
/// enters the handler twice counts once or twice.
const STRAY: u64 = 3;

fn start_walks(more: &[&str]) -> Result<Workload> {
    let options = [
        format!("threads={THREADS}"),
        format!("rounds={ROUNDS}"),
        format!("pages={PAGES}"),
        "fresh=yes".to_owned(),
    ];
    let options: Vec<&str> = options
        .iter()
        .map(String::as_str)
        .chain(more.iter().copied())
        .collect();
    Workload::start("walks", &options)
}

/// Most NUMA hinting faults of a context: the kernel causes at most one per page in each round.
fn hints() -> u64 {
    let on = std::fs::read_to_string("/proc/sys/kernel/numa_balancing")
        .is_ok_and(|text| text.trim() != "0");
    if on { PAGES } else { 0 }
}

/// Compares each thread's samples of each RDD with its work, its own plain count and the fault probe.
fn every_context_is_exact(lab: &KernelLab, executor: u64, plain: &Value) -> Result<()> {
    for thread in 0..THREADS {
        for (rdd, pages) in [
            (READ_RDD, PAGES),
            (WRITTEN_RDD, PAGES),
            (FEW_RDD, FEW_PAGES as u64),
        ] {
            let this = |key: &ContextKey| {
                key.class().is_none()
                    && key.task_attempt_id == thread
                    && key.rdd_plus_one == rdd + 1
            };
            let sampled = faults(lab, executor, this)?;
            let plain = plain[thread as usize][rdd.to_string()][0].as_u64();
            let probed = all(&lab.faults(executor, this));
            // A page of the workload's own code may have been evicted and mapped again.
            let expected = ROUNDS * pages;
            ensure!(
                plain.is_some_and(|plain| (pages..=pages + STRAY + hints()).contains(&plain))
                    && (expected..=expected + STRAY + hints()).contains(&sampled)
                    && probed.abs_diff(sampled) <= STRAY,
                "thread {thread}, RDD {rdd}: {pages} pages in each of {ROUNDS} rounds, {plain:?} by the thread's plain count, {sampled} sampled, {probed} by the fault probe"
            );
        }
    }
    Ok(())
}

#[test]
fn every_context_has_what_it_did_and_all_of_them_what_the_kernel_counted() -> Result<()> {
    let Some(mut lab) = lab(&clock_and_faults())? else {
        return Ok(());
    };
    let mut workload = start_walks(&[])?;
    let executor = lab.executor(workload.pid())?;
    let plain = plain_counts(&mut workload)?;
    let before = Before::now(&mut lab, executor, &workload)?;
    workload.run()?;
    let (sampled, kernel) = before.grown(&mut lab, executor, &workload)?;
    every_context_is_exact(&lab, executor, &plain)?;
    println!("{sampled} sampled, {kernel} by the kernel");
    ensure!(
        sampled == kernel && sampled >= THREADS * ROUNDS * 2 * PAGES,
        "attributed and unattributed: {sampled} sampled, {kernel} by the kernel's own count"
    );
    let refused = lab.counters[Counter::WALK_SAMPLES_REFUSED.0 as usize];
    ensure!(refused == 0, "{refused} samples found no row");
    workload.end()
}

#[test]
fn what_is_sampled_is_what_is_counted_and_strangers_are_a_part_of_it_only() -> Result<()> {
    let Some(mut lab) = lab(&clock_and_faults())? else {
        return Ok(());
    };
    let mut workload = start_walks(&[])?;
    let mut stranger = Workload::start("faults", &["describe=no", "reads=2000", "writes=5000"])?;
    let executor = lab.executor(workload.pid())?;
    plain_counts(&mut workload)?;
    let mut readings = Vec::new();
    let mut take = |lab: &mut KernelLab| -> Result<()> {
        lab.read()?;
        readings.push((
            lab.page_walks.clone().context("page walks are measured")?,
            faults(lab, executor, |_| true)?,
        ));
        Ok(())
    };
    take(&mut lab)?;
    let kernel = witness::faults(stranger.pid())?.total();
    stranger.run()?;
    let kernel = witness::faults(stranger.pid())?.total() - kernel;
    take(&mut lab)?;
    workload.run()?;
    take(&mut lab)?;
    let processors = std::thread::available_parallelism()?.get() as u64;
    for pair in readings.windows(2) {
        let [(before, own_before), (after, own_after)] = pair else {
            continue;
        };
        for (before, after) in before.channels.iter().zip(&after.channels) {
            // The counters are read first, the samples a moment later. So the samples of a reading include its
            // counters, except what each processor has counted since its last sample; and the counters of the next
            // reading include these samples.
            let lag = match before.role {
                Role::Cycles => CLOCK_LAG_NS * processors,
                // The kernel runs no program at a fault of a thread that reads the BPF tables at that moment.
                _ => processors + before.counted / 100,
            };
            ensure!(
                before.sampled + lag >= before.counted && before.sampled <= after.counted,
                "{before:?}, then {after:?}"
            );
        }
        println!(
            "of the executor {}: {:?}",
            own_after - own_before,
            after.channels
        );
    }
    let grown = |at: usize| -> Result<(u64, u64)> {
        let slot = |at: usize| {
            readings[at]
                .0
                .channels
                .iter()
                .find(|slot| slot.role == Role::LoadWalksCompleted)
                .context("page faults are sampled")
        };
        Ok((
            slot(at)?.sampled - slot(at - 1)?.sampled,
            readings[at].1 - readings[at - 1].1,
        ))
    };
    let (all, own) = grown(1)?;
    ensure!(
        all >= kernel && kernel >= 7000 && own == 0,
        "the stranger had {kernel} faults: {all} were sampled, {own} of them for the executor"
    );
    let (all, own) = grown(2)?;
    ensure!(
        own <= all && own >= THREADS * ROUNDS * 2 * PAGES,
        "{own} of {all}"
    );
    let strangers: Vec<u64> = lab
        .walks
        .keys()
        .map(|key| key.executor)
        .filter(|key| *key != executor)
        .collect();
    println!(
        "rows of other executors on this machine: {}",
        strangers.len()
    );
    stranger.end()?;
    workload.end()
}

#[test]
fn a_known_duty_cycle_comes_out_whatever_the_scheduler_does() -> Result<()> {
    let Some(mut lab) = lab(&clock_and_faults())? else {
        return Ok(());
    };
    let mut workload = Workload::start("duty", &[])?;
    let executor = lab.executor(workload.pid())?;
    let done = workload.run()?;
    lab.read()?;
    let (slot, clock) = lab.channel(Role::Cycles)?;
    println!("{done}; {clock:?}");
    let number = |name: &str| {
        done[name]
            .as_u64()
            .with_context(|| format!("no {name} in {done}"))
    };
    let of = |rdd: &str| -> Result<(u64, u64)> {
        let rdd = number(rdd)? as u32;
        let sum = lab.sampled(executor, |key| {
            key.class().is_none() && key.rdd_plus_one == rdd + 1
        });
        Ok((sum.samples[slot], sum.events[slot]))
    };
    let ((a, a_sampled_ns), (b, b_sampled_ns)) = (of("a")?, of("b")?);
    let (a_ns, b_ns) = (number("a_ns")?, number("b_ns")?);
    let samples = (a + b) as f64;
    let exact = a_ns as f64 / (a_ns + b_ns) as f64;
    let sampled = a as f64 / samples;
    // The 99 % interval of a share of randomly taken samples; regular samples scatter less.
    let interval = 2.576 * (exact * (1.0 - exact) / samples).sqrt();
    println!(
        "RDD A had {:.3} % of the CPU time and has {:.3} % of {samples} samples; the interval is {:.3} %; {} ms of {} ms were sampled",
        exact * 100.0,
        sampled * 100.0,
        interval * 100.0,
        (a_sampled_ns + b_sampled_ns) / 1_000_000,
        (a_ns + b_ns) / 1_000_000
    );
    let per_second = number("changes")? as f64 * 1e9 / (a_ns + b_ns) as f64;
    ensure!(
        samples >= 10_000.0
            && per_second >= 950.0
            && number("hops")? > 500
            && number("sleeps")? > 300,
        "no storm: {samples} samples, {per_second} changes per second, {done}"
    );
    ensure!(
        (0.68..0.72).contains(&exact),
        "the workload missed its duty cycle: {done}"
    );
    // In a virtual machine a timer that is due on an idle processor may fire late, in the thread that has woken up
    // meanwhile: that sample includes idle time. The clock runs on while idle, unlike a counter of cycles. So the
    // sampled time is at least the threads' time, and the number of samples is at most what it allows.
    let (all_sampled, all_spent) = (a_sampled_ns + b_sampled_ns, a_ns + b_ns);
    let by_number = (a + b) * CLOCK_PERIOD;
    ensure!(
        all_sampled * 10 >= all_spent * 9 && by_number * 10 <= all_spent * 11,
        "{all_sampled} ns sampled in {} samples, {by_number} ns by their number, of {all_spent} ns",
        a + b
    );
    ensure!(
        (sampled - exact).abs() <= interval,
        "cycles moved from one RDD to the other: {sampled} instead of {exact}, beyond {interval}"
    );
    workload.end()
}

#[test]
fn an_executor_that_was_there_first_has_its_page_walks() -> Result<()> {
    // Discovery examines processes whose command name is java.
    let mut workload = Workload::start("late", &["name=java"])?;
    workload.go()?;
    workload.expect("REGISTERED")?;
    let Some(mut lab) = lab(&clock_and_faults())? else {
        return Ok(());
    };
    let found = find(&mut Discoverer::new(lab.probes.libraries()), workload.pid())?;
    ensure!(
        found.library == Some(Probing::Probed),
        "{:?}",
        found.library
    );
    let executor = lab.probes.adopt_executor(found.pid)?;
    for thread in found.threads() {
        lab.probes
            .adopt_thread(executor, thread.tid, thread.address, thread.heap)?;
    }
    found.slots.request_resync(43)?;
    let said = workload.run()?;
    lab.read()?;
    let sampled = faults(&lab, executor, |key| {
        key.class().is_none() && key.rdd_plus_one == 9 && key.task_attempt_id == 1
    })?;
    // The executor writes its pages. It only reads the rest of its memory, such as its code.
    let probed = lab.faults(executor, |key| {
        key.rdd_plus_one == 9 && key.task_attempt_id == 1
    });
    ensure!(
        Some(probed.write) == said["pages"].as_u64() && sampled == all(&probed),
        "{sampled} sampled, {probed:?} by the fault probe, of {} pages",
        said["pages"]
    );
    workload.end()
}

#[test]
fn threads_that_end_in_the_middle_leave_their_samples_and_no_row() -> Result<()> {
    let Some(mut lab) = lab(&clock_and_faults())? else {
        return Ok(());
    };
    let mut workload = start_walks(&["leave=yes"])?;
    let executor = lab.executor(workload.pid())?;
    plain_counts(&mut workload)?;
    let before = Before::now(&mut lab, executor, &workload)?;
    workload.run()?;
    let (sampled, kernel) = before.grown(&mut lab, executor, &workload)?;
    ensure!(
        sampled == kernel,
        "{sampled} sampled, {kernel} by the kernel's own count"
    );
    for (rdd, pages) in [(READ_RDD, PAGES), (WRITTEN_RDD, PAGES)] {
        let sampled = faults(&lab, executor, |key| {
            key.class().is_none() && key.rdd_plus_one == rdd + 1
        })?;
        let expected = THREADS * ROUNDS * pages;
        ensure!(
            (expected..=expected + STRAY + hints()).contains(&sampled),
            "RDD {rdd}: {sampled} sampled"
        );
    }
    let rows = lab.probes.rows(executor)?;
    ensure!(rows.threads == 0, "{rows:?}");
    workload.end()
}

/// A hundred contexts in tables without room for them.
fn no_room(change: impl Fn(&mut ProbeSettings)) -> Result<()> {
    let mut settings = with_events(&[(Role::LoadWalksCompleted, "page-faults", 1)]);
    change(&mut settings);
    let Some(mut lab) = lab(&settings)? else {
        return Ok(());
    };
    let mut workload = Workload::start("contexts", &["pages=100"])?;
    let executor = lab.executor(workload.pid())?;
    let before = Before::now(&mut lab, executor, &workload)?;
    workload.run()?;
    let (sampled, kernel) = before.grown(&mut lab, executor, &workload)?;
    let with_context = lab
        .walks
        .keys()
        .filter(|key| key.executor == executor && key.class().is_none())
        .count();
    let refused = lab.counters[Counter::WALK_SAMPLES_REFUSED.0 as usize];
    println!(
        "{with_context} contexts have rows; {sampled} sampled, {refused} refused, {kernel} by the kernel"
    );
    ensure!(
        refused > 0 && with_context < 100,
        "there was room for everything"
    );
    ensure!(
        sampled + refused == kernel,
        "{sampled} sampled and {refused} refused are not {kernel}, the kernel's own count"
    );
    workload.end()
}

#[test]
fn samples_without_room_are_a_named_loss_when_the_executor_has_its_share() -> Result<()> {
    no_room(|settings| settings.settings.contexts_per_executor = 10)
}

#[test]
fn samples_without_room_are_a_named_loss_when_the_table_is_full() -> Result<()> {
    no_room(|settings| settings.contexts = 16)
}

#[test]
fn two_daemons_at_once_are_both_right() -> Result<()> {
    let settings = clock_and_faults();
    let Some(mut one) = lab(&settings)? else {
        return Ok(());
    };
    let mut two = one.another(&settings)?;
    let mut workload = start_walks(&[])?;
    let keys = (one.executor(workload.pid())?, two.executor(workload.pid())?);
    let plain = plain_counts(&mut workload)?;
    for lab in [&mut one, &mut two] {
        lab.read()?;
    }
    workload.run()?;
    for (lab, executor) in [(&mut one, keys.0), (&mut two, keys.1)] {
        lab.read()?;
        every_context_is_exact(lab, executor, &plain)?;
        let (_, clock) = lab.channel(Role::Cycles)?;
        ensure!(
            clock.fault.is_empty() && clock.enabled_ns == clock.running_ns,
            "{clock:?}"
        );
    }
    workload.end()
}

#[test]
fn a_limit_on_samples_is_kept_while_the_periods_follow() -> Result<()> {
    let mut settings = clock_and_faults();
    settings.page_walks.sample_periods.clear();
    settings.page_walks.max_samples_per_second = 100;
    let Some(mut lab) = lab(&settings)? else {
        return Ok(());
    };
    let mut workload = Workload::start(
        "storm",
        &["threads=2", "facts=150000", "pages=256", "describe=yes"],
    )?;
    workload.go()?;
    let start = Instant::now();
    let mut steps = Vec::new();
    while start.elapsed() < Duration::from_secs(4) {
        std::thread::sleep(Duration::from_millis(500));
        lab.read()?;
        let (_, faults) = lab.channel(Role::LoadWalksCompleted)?;
        steps.push((faults.samples, faults.period, faults.counted));
    }
    println!("samples, period and page faults by half seconds: {steps:?}");
    let processors = std::thread::available_parallelism()?.get() as u64;
    let seconds = start.elapsed().as_secs() + 1;
    let samples = steps.last().map_or(0, |step| step.0);
    // Half of the limit is for the clock; a burst may exceed the other half eightfold until the period adapts.
    ensure!(
        samples > 0 && samples <= processors * 50 * (seconds + 8),
        "{samples} samples in {seconds} s on {processors} processors"
    );
    workload.done()?;
    workload.end()
}

/// How long each pass counts before the passes change.
const TURN: Duration = Duration::from_millis(600);
/// How long it may take on a busy machine to observe passes that change and passes that count alone.
const TURNS_LIMIT: Duration = Duration::from_secs(60);

#[test]
fn passes_take_turns_and_what_each_counted_is_its_own() -> Result<()> {
    // One more than the four counters of every core.
    let mut settings = with_events(&[
        (Role::Cycles, "cpu-clock", CLOCK_PERIOD),
        (Role::LoadWalksCompleted, "page-faults", 1),
        (Role::StoreWalksCompleted, "page-faults", 1),
        (Role::PreciseLoad, "page-faults", 1),
        (Role::PreciseStore, "minor-faults", 1),
    ]);
    settings.page_walks.turn = TURN;
    let Some(mut lab) = lab(&settings)? else {
        return Ok(());
    };
    let mut workload = Workload::start(
        "storm",
        &["threads=2", "facts=150000", "pages=256", "describe=yes"],
    )?;
    workload.go()?;
    let slots = |lab: &mut KernelLab| -> Result<Vec<Channel>> {
        lab.read()?;
        let readings = lab.page_walks.as_ref();
        Ok(readings
            .context("page walks are measured")?
            .channels
            .clone())
    };
    let start = Instant::now();
    let mut steps = vec![slots(&mut lab)?];
    // Two slots of one pass count at the same time; of two passes only one counts, except in the step in which they
    // change. On a busy machine steps are longer and more of them contain a change, so the test needs more steps.
    let (mut alone, mut changes) = (0, 0);
    while start.elapsed() < 6 * TURN || changes < 2 || alone <= changes {
        ensure!(
            start.elapsed() < TURNS_LIMIT,
            "{alone} steps of one pass and {changes} changes: {steps:?}"
        );
        std::thread::sleep(TURN / 3);
        steps.push(slots(&mut lab)?);
        let pair = &steps[steps.len() - 2..];
        let grown = |pass: usize| {
            let mut both = pair[0].iter().zip(&pair[1]);
            both.any(|(before, after)| after.pass == pass && after.enabled_ns > before.enabled_ns)
        };
        match (grown(0), grown(1)) {
            (true, true) => changes += 1,
            (true, false) | (false, true) => alone += 1,
            (false, false) => anyhow::bail!("no pass counts: {pair:?}"),
        }
    }
    let elapsed_ns = start.elapsed().as_nanos() as u64;
    let (first, last) = (&steps[0], &steps[steps.len() - 1]);
    let processors = std::thread::available_parallelism()?.get() as u64;
    let time = |pass: usize| {
        let of_pass = first.iter().zip(last).find(|(slot, _)| slot.pass == pass);
        of_pass.map_or(0, |(before, after)| after.enabled_ns - before.enabled_ns)
    };
    let together = time(0) + time(1);
    println!(
        "{} ns and {} ns of {elapsed_ns} ns on {processors} processors",
        time(0),
        time(1)
    );
    // A processor that the host delays is read late, and may have changed passes in between.
    ensure!(
        together * 10 <= elapsed_ns * processors * 11 && together * 2 >= elapsed_ns * processors,
        "passes count at the same time, or hardly ever: {together} ns"
    );
    for slot in last.iter().filter(|slot| slot.role != Role::Cycles) {
        ensure!(
            slot.counted > 1000
                && slot.fault.is_empty()
                && slot.counted.abs_diff(slot.sampled) <= slot.counted / 100 + processors,
            "what was sampled is not what was counted: {slot:?}"
        );
    }
    workload.done()?;
    workload.end()
}
