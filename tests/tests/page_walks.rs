//! Page walks on a machine that counts them: samples per RDD against plain counts of the same threads, and the verdicts
//! when counters are missing, shared or offline with their processor.
//!
//! Needs root and a processor whose kernel counts dTLB misses of reads and of writes; emulated machines have one
//! (`cargo xtask vm riscv64`). The test process is its own executor. The emulated processor counts each event in a
//! single counter only: plain counts are closed before sampling begins. Run with `--test-threads=1`.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use perf_event_open_sys::bindings::{
    PERF_COUNT_HW_CACHE_ITLB, PERF_COUNT_HW_CACHE_RESULT_MISS, PERF_TYPE_HW_CACHE, perf_event_attr,
};
use perf_event_open_sys::perf_event_open;
use smtt_common::context::{Access, Activity, ContextWord, Range, Region};
use smtt_common::counter::ContextKey;
use smtt_common::page_walk::WalkCounters;
use smtt_config::{FaultHook, ProbeSettings};
use smtt_daemon::probes::Probes;
use smtt_machine::calibrate::calibrate;
use smtt_model::cpu::{self, Encoding, Overrides, Role};
use smtt_model::readings::{Channel, PageWalkReadings};
use smtt_model::verdict::VerdictState;
use smtt_tests::memory::{pin, thread_id};
use smtt_tests::page_walk::{
    self, FEW_RDD, READ_RDD, WRITTEN_RDD, Witness, Work, a_processor_of_each_node,
    read_and_write_walks,
};
use smtt_tests::skip::{must_have, skip};
use smtt_tests::slot::OwnSlot;

const THREADS: usize = 2;
const PAGES: usize = 20_000;
const TURNS: usize = 5;
const ROUNDS: usize = 10;
/// Misses per sample. Low enough for many samples, high enough that the samples' own misses do not matter.
const PERIOD: u64 = 211;
/// Programmable counters of the emulated processor.
const COUNTERS: usize = 13;
/// Time limit of each wait, where every instruction is emulated.
const LIMIT: Duration = Duration::from_secs(120);

/// The machine's events; `None` (and a line that says why) where it has none.
fn events() -> Result<Option<[Encoding; 2]>> {
    let events = read_and_write_walks()?;
    if events.is_none() {
        skip("dtlb_counters", "this machine does not count dTLB misses")?;
    }
    Ok(events)
}

fn settings() -> ProbeSettings {
    let mut settings = ProbeSettings {
        fault_hook: FaultHook::Off,
        ..ProbeSettings::default()
    };
    settings.page_walks.sample_periods = [
        (Role::Cycles, 10_000_019),
        (Role::LoadWalksCompleted, PERIOD),
        (Role::StoreWalksCompleted, PERIOD),
    ]
    .into();
    settings
}

/// Counts by thread and RDD: reads and writes.
type Counts = BTreeMap<(usize, u32), [u64; 2]>;

/// Plain counts of the threads, and the samples of the same work afterwards.
struct Measured {
    plain: Counts,
    sampled: Counts,
    samples: Counts,
    last: PageWalkReadings,
}

/// What a thread reports once it has counted plainly.
struct Ready {
    thread: usize,
    tid: u32,
    slot: u64,
    plain: Result<BTreeMap<u32, Vec<u64>>>,
}

/// Page touches: every page is touched once in each round.
const TOUCHED: u64 = (THREADS * ROUNDS * PAGES) as u64;

/// Measures, and repeats where other work on the machine disturbed the plain counts: then the counts do not match the
/// known work, and nothing can be compared with them. Such work can disturb the sampled run alone, so a `comparison` that
/// fails is repeated too; one that fails each time is an error.
fn measure<Kept>(
    events: &[Encoding; 2],
    mut load: impl FnMut() -> Result<(Probes, Kept)>,
    comparison: impl Fn(&Measured) -> Result<()>,
) -> Result<Measured> {
    for _ in 0..4 {
        let measured = measure_once(events, &mut load)?;
        let plain = [
            of(&measured.plain, READ_RDD)[0],
            of(&measured.plain, WRITTEN_RDD)[1],
        ];
        if plain
            .iter()
            .all(|plain| plain.abs_diff(TOUCHED) * 100 <= TOUCHED)
        {
            match comparison(&measured) {
                Ok(()) => return Ok(measured),
                Err(error) => println!("{error:#}"),
            }
        }
        println!("plain counts {plain:?} of {TOUCHED} pages: disturbed, once more");
    }
    bail!(
        "something else on this machine disturbs the counters all the time, or samples are wrong"
    );
}

/// Lets threads count their work plainly, loads the probes (and another value), and repeats the work under sampling.
fn measure_once<Kept>(
    events: &[Encoding; 2],
    load: impl FnOnce() -> Result<(Probes, Kept)>,
) -> Result<Measured> {
    let (tell, told) = channel();
    let (mut starts, mut threads) = (Vec::new(), Vec::new());
    for thread in 0..THREADS {
        let (start, started) = channel::<()>();
        let (tell, events): (Sender<Ready>, _) = (tell.clone(), events.clone());
        starts.push(start);
        threads.push(thread::spawn(move || -> Result<()> {
            let nodes = a_processor_of_each_node();
            let processor = nodes[thread % nodes.len()];
            pin(processor)?;
            let work = Work::new(PAGES)?;
            work.make_resident();
            let slot = OwnSlot::of_task(thread as u64);
            let plain = || -> Result<_> {
                let mut witness = Witness::open(&events)?;
                for _ in 0..ROUNDS {
                    work.round(TURNS, |rdd| witness.enter(rdd))?;
                }
                Ok(witness.counts().clone())
            };
            tell.send(Ready {
                thread,
                tid: thread_id(),
                slot: slot.address(),
                plain: plain(),
            })?;
            if started.recv().is_err() {
                return Ok(());
            }
            // The kernel has moved the thread if its processor went offline meanwhile.
            pin(processor)?;
            for _ in 0..ROUNDS {
                work.round(TURNS, |rdd| {
                    slot.publish(rdd.map_or(ContextWord(0), hot));
                    Ok(())
                })?;
            }
            Ok(())
        }));
    }
    let (mut plain, mut slots) = (Counts::new(), Vec::new());
    for _ in 0..THREADS {
        let ready = told.recv_timeout(LIMIT * 5)?;
        for (rdd, counts) in ready.plain? {
            plain.insert((ready.thread, rdd), [counts[0], counts[1]]);
        }
        slots.push((ready.tid, ready.slot));
    }
    let (mut probes, _kept) = load()?;
    let executor = probes.adopt_executor(std::process::id())?;
    for (tid, slot) in slots {
        probes.adopt_thread(executor, tid, slot, Range::default())?;
    }
    let mut sum = BTreeMap::new();
    read(&mut probes, &mut sum)?;
    for start in starts {
        start.send(())?;
    }
    for thread in threads {
        thread
            .join()
            .map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    }
    let last = read(&mut probes, &mut sum)?;
    probes.forget_executor(executor)?;
    let of = |role: Role| position(&last, role).map(|(index, _)| index);
    let (reads, writes) = (
        of(Role::LoadWalksCompleted)?,
        of(Role::StoreWalksCompleted)?,
    );
    let (mut sampled, mut samples) = (Counts::new(), Counts::new());
    for (key, counters) in &sum {
        let row: &WalkCounters = counters;
        if let (None, Some(rdd)) = (key.class(), key.rdd_plus_one.checked_sub(1)) {
            let row_of = (key.task_attempt_id as usize, rdd);
            sampled.insert(row_of, [row.events[reads], row.events[writes]]);
            samples.insert(row_of, [row.samples[reads], row.samples[writes]]);
        }
    }
    Ok(Measured {
        plain,
        sampled,
        samples,
        last,
    })
}

fn hot(rdd: u32) -> ContextWord {
    let access = if rdd == READ_RDD {
        Access::READ
    } else {
        Access::WRITE
    };
    ContextWord::new(Activity::COMPUTE, access, Region::STORAGE, rdd + 1, 0)
}

/// Takes a reading and adds it to the sums.
fn read(
    probes: &mut Probes,
    sum: &mut BTreeMap<ContextKey, WalkCounters>,
) -> Result<PageWalkReadings> {
    let walks = probes
        .readings()?
        .page_walks
        .with_context(|| format!("page walks are not measured: {:?}", verdict(probes)))?;
    for (key, growth) in &walks.contexts {
        sum.entry(*key).or_default().add(growth);
    }
    Ok(walks)
}

fn position(walks: &PageWalkReadings, role: Role) -> Result<(usize, &Channel)> {
    walks
        .channels
        .iter()
        .enumerate()
        .find(|(_, channel)| channel.role == role)
        .with_context(|| format!("{role} has no channel: {:?}", walks.channels))
}

fn verdict(probes: &Probes) -> (VerdictState, String) {
    probes
        .verdicts()
        .into_iter()
        .find(|verdict| verdict.name == "page_walks")
        .map_or((VerdictState::Broken, "there is none".into()), |verdict| {
            (verdict.verdict, verdict.reason)
        })
}

/// Sum of the counts of an RDD over threads.
fn of(counts: &Counts, rdd: u32) -> [u64; 2] {
    counts
        .iter()
        .filter(|((_, of), _)| *of == rdd)
        .fold([0, 0], |sum, (_, counts)| {
            [sum[0] + counts[0], sum[1] + counts[1]]
        })
}

/// How far the samples of a channel may be from its counter, in events. The daemon reads the counters first, so samples
/// of the time between are ahead: on a busy machine that time was 66 ms of a run of 9 s. Events since the last sample are
/// in none, and a processor that went offline lost its own.
fn lag(slot: &Channel) -> Result<u64> {
    let processors = thread::available_parallelism()?.get() as u64;
    Ok(2 * slot.period * processors + slot.counted / 50)
}

/// An emulator may lose the interrupts of its cycle counter; the slot reports that, and the test skips the comparison.
fn lost_by_the_emulator(slot: &Channel) -> bool {
    slot.role == Role::Cycles && slot.fault.contains("samples do not come")
}

/// Compares every RDD's samples with the plain counts of the same threads.
fn every_rdd_has_its_own(measured: &Measured) -> Result<()> {
    for rdd in [READ_RDD, WRITTEN_RDD, FEW_RDD] {
        println!(
            "RDD {rdd}: read and write misses {:?} by plain counts, {:?} sampled from {:?} samples",
            of(&measured.plain, rdd),
            of(&measured.sampled, rdd),
            of(&measured.samples, rdd)
        );
    }
    println!("{:?}", measured.last.channels);
    for (rdd, kind) in [(READ_RDD, 0), (WRITTEN_RDD, 1)] {
        let (plain, sampled) = (
            of(&measured.plain, rdd)[kind],
            of(&measured.sampled, rdd)[kind],
        );
        ensure!(
            sampled.abs_diff(plain) * 50 <= plain,
            "RDD {rdd}: {sampled} sampled, {plain} by plain counts: more than 2 % apart"
        );
        let samples = of(&measured.samples, rdd)[kind] as f64;
        let interval = 1.96 * samples.sqrt() * PERIOD as f64;
        ensure!(
            sampled.abs_diff(plain) as f64 <= interval,
            "RDD {rdd}: {sampled} sampled, {plain} by plain counts, the interval is {interval}"
        );
    }
    for counts in [&measured.plain, &measured.sampled] {
        let (few, many) = (of(counts, FEW_RDD), of(counts, READ_RDD)[0]);
        ensure!(
            (few[0] + few[1]) * 100 < many,
            "RDD {FEW_RDD} has {few:?}, RDD {READ_RDD} {many}"
        );
    }
    for slot in &measured.last.channels {
        if lost_by_the_emulator(slot) {
            ensure!(
                measured
                    .last
                    .figures
                    .iter()
                    .all(|figure| figure.ratio.is_none()),
                "ratios to cycles that cannot be trusted: {:?}",
                measured.last.figures
            );
            continue;
        }
        ensure!(
            slot.fault.is_empty() && slot.counted.abs_diff(slot.sampled) <= lag(slot)?,
            "{slot:?}"
        );
    }
    Ok(())
}

#[test]
fn guest_page_walks_of_every_rdd_are_those_that_its_threads_count_plainly() -> Result<()> {
    let Some(events) = events()? else {
        return Ok(());
    };
    let load = || Ok((Probes::load(&settings())?, ()));
    let measured = measure(&events, load, every_rdd_has_its_own)?;
    for slot in &measured.last.channels {
        ensure!(
            slot.running_ns == slot.enabled_ns,
            "no other program uses the counters: {slot:?}"
        );
    }
    Ok(())
}

#[test]
fn guest_processors_that_go_and_come_are_sampled_again() -> Result<()> {
    let Some(events) = events()? else {
        return Ok(());
    };
    if !must_have("processor_switch") {
        return skip("processor_switch", "only emulated machines lend one");
    }
    let last = a_processor_of_each_node().pop().unwrap_or(0);
    let switch = format!("/sys/devices/system/cpu/cpu{last}/online");
    let load = || {
        let mut probes = Probes::load(&settings())?;
        let mut counted = 0;
        for state in ["0", "1"] {
            std::fs::write(&switch, state).with_context(|| switch.clone())?;
            let walks = read(&mut probes, &mut BTreeMap::new())?;
            let (_, cycles) = position(&walks, Role::Cycles)?;
            ensure!(
                cycles.counted > counted
                    && (cycles.fault.is_empty() || lost_by_the_emulator(cycles)),
                "what was counted before is gone, or the others count no more: {cycles:?}"
            );
            counted = cycles.counted;
        }
        Ok((probes, ()))
    };
    measure(&events, load, every_rdd_has_its_own)?;
    Ok(())
}

/// Opens idle events on every processor, so that they occupy counters.
fn take_counters(pinned: bool) -> Result<Vec<OwnedFd>> {
    /// Misses of the instruction TLB, which SMTT does not measure.
    const INSTRUCTION_MISSES: u32 =
        PERF_COUNT_HW_CACHE_ITLB | PERF_COUNT_HW_CACHE_RESULT_MISS << 16;
    let mut open = Vec::new();
    for cpu in 0..thread::available_parallelism()?.get() as i32 {
        for _ in 0..COUNTERS {
            let mut attributes = perf_event_attr {
                type_: PERF_TYPE_HW_CACHE,
                size: size_of::<perf_event_attr>() as u32,
                config: INSTRUCTION_MISSES.into(),
                ..perf_event_attr::default()
            };
            attributes.set_pinned(pinned.into());
            // SAFETY: the attributes outlive the call and carry their size.
            let event = unsafe { perf_event_open(&raw mut attributes, -1, cpu, -1, 0) };
            ensure!(
                event >= 0,
                "processor {cpu}: {}",
                std::io::Error::last_os_error()
            );
            // SAFETY: the kernel has just given this descriptor to us alone.
            open.push(unsafe { OwnedFd::from_raw_fd(event) });
        }
    }
    Ok(open)
}

/// Reads every half second, while misses continue, until the condition holds.
fn until(
    probes: &mut Probes,
    work: &Work,
    what: &str,
    mut fits: impl FnMut(&PageWalkReadings) -> Result<bool>,
) -> Result<PageWalkReadings> {
    let start = Instant::now();
    loop {
        let round = Instant::now();
        while round.elapsed() < Duration::from_millis(500) {
            work.round(1, |_| Ok(()))?;
        }
        let walks = read(probes, &mut BTreeMap::new())?;
        if fits(&walks)? {
            return Ok(walks);
        }
        if start.elapsed() > LIMIT {
            bail!("after {LIMIT:?} not {what}: {:?}", walks.channels);
        }
    }
}

#[test]
fn guest_events_without_a_counter_give_a_verdict_and_no_figure() -> Result<()> {
    if events()?.is_none() {
        return Ok(());
    }
    let work = Work::new(PAGES)?;
    work.make_resident();
    let taken = take_counters(true)?;
    let mut probes = Probes::load(&settings())?;
    let walks = until(&mut probes, &work, "all without a counter", |walks| {
        ensure!(
            walks.sound_figures().next().is_none()
                && walks
                    .channels
                    .iter()
                    .all(|slot| slot.running_ns == 0 && slot.samples == 0),
            "figures without a counter: {:?}",
            walks.channels
        );
        Ok(walks
            .channels
            .iter()
            .all(|slot| slot.fault.contains("no counter")))
    })?;
    let (state, reason) = verdict(&probes);
    println!("{reason}");
    ensure!(
        state == VerdictState::Broken
            && walks
                .channels
                .iter()
                .all(|slot| reason.contains(&slot.event)),
        "{state:?}: {reason}"
    );
    // The other events are closed: the fault is over.
    drop(taken);
    let walks = until(&mut probes, &work, "sound", |walks| {
        Ok(walks
            .channels
            .iter()
            .all(|slot| slot.fault.is_empty() || lost_by_the_emulator(slot)))
    })?;
    let (_, reason) = verdict(&probes);
    ensure!(
        walks.sound_figures().count() == walks.figures.len() && !reason.contains("no counter"),
        "{reason}"
    );
    Ok(())
}

#[test]
fn guest_shared_counters_are_shown_and_nothing_is_scaled_up() -> Result<()> {
    let Some(events) = events()? else {
        return Ok(());
    };
    let load = || {
        let taken = take_counters(false)?;
        Ok((Probes::load(&settings())?, taken))
    };
    // Samples of shared counters are fewer than what was counted plainly.
    let measured = measure(&events, load, |_| Ok(()))?;
    println!("{:?}", measured.last.channels);
    let shares: BTreeSet<u64> = measured
        .last
        .channels
        .iter()
        .map(|slot| 100 * slot.running_ns / slot.enabled_ns.max(1))
        .collect();
    ensure!(
        shares.iter().all(|share| (1..97).contains(share)),
        "shares of the time in per cent: {shares:?}"
    );
    let plain = of(&measured.plain, READ_RDD)[0] + of(&measured.plain, WRITTEN_RDD)[1];
    let sampled = of(&measured.sampled, READ_RDD)[0] + of(&measured.sampled, WRITTEN_RDD)[1];
    println!("{sampled} sampled of {plain}");
    ensure!(
        sampled > 0 && sampled * 100 < plain * 97,
        "{sampled} of {plain}: as if the counters were not shared"
    );
    for slot in &measured.last.channels {
        ensure!(slot.sampled <= slot.counted + lag(slot)?, "{slot:?}");
    }
    Ok(())
}

/// Cycles and misses of one visit of the pages, counted plainly; with or without flushed translations.
fn visit(work: &Work, group: &[Encoding; 2], cold: bool) -> Result<[u64; 2]> {
    let mut witness = Witness::open(group)?;
    if cold {
        work.forget_translations()?;
    }
    witness.enter(Some(READ_RDD))?;
    work.read_all();
    witness.enter(None)?;
    let counts = &witness.counts()[&READ_RDD];
    Ok([counts[0], counts[1]])
}

#[test]
fn guest_the_cost_of_a_walk_is_what_forgotten_translations_cost() -> Result<()> {
    let Some(group) = page_walk::events([Role::Cycles, Role::LoadWalksCompleted])? else {
        return skip(
            "dtlb_counters",
            "this machine does not count cycles and dTLB misses",
        );
    };
    let identity = smtt_machine::cpu::of_this_machine(std::path::Path::new("/"));
    let found = calibrate(&cpu::describe(&identity, &Overrides::default())?)
        .map_err(|reason| anyhow::anyhow!(reason))?;
    println!("{found:?}");
    let (Some(read), Some(written)) = (&found.read, &found.write) else {
        bail!("a walk has no cost: {found:?}");
    };
    for cost in [read, written] {
        ensure!(
            0.0 < cost.cycles && cost.low <= cost.cycles && cost.cycles <= cost.high,
            "{cost:?}"
        );
    }
    // The witness: the same pages in the same order, with and without flushed translations. An emulator's TLB grows
    // until the translations fit.
    let work = Work::new(PAGES)?;
    work.make_resident();
    let mut costs = Vec::new();
    for _ in 0..40 {
        let [cold_cycles, cold] = visit(&work, &group, true)?;
        let [warm_cycles, warm] = visit(&work, &group, false)?;
        if warm * 4 < cold && warm_cycles < cold_cycles {
            costs.push((cold_cycles - warm_cycles) as f64 / (cold - warm) as f64);
        }
    }
    ensure!(costs.len() >= 5, "the table of translations does not grow");
    costs.sort_by(f64::total_cmp);
    let plain = costs[costs.len() / 2];
    println!(
        "{:.1} cycles per walk as calibrated (from {:.1} to {:.1}), {plain:.1} by forgetting {} times",
        read.cycles,
        read.low,
        read.high,
        costs.len()
    );
    // An emulated processor's cycles are the time of a host thread, which the host delays now and then.
    ensure!(
        read.cycles < plain * 8.0 && plain < read.cycles * 8.0,
        "{:.1} cycles per walk as calibrated, {plain:.1} by forgetting translations",
        read.cycles
    );
    Ok(())
}
