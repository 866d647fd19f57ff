//! One JVM with a small Spark application that caches arrays and scans them: on this machine, and in emulated machines
//! (`cargo xtask vm`), whose processor differs and counts TLB misses, and whose page faults come from a kprobe.
//!
//! Needs root and a finished `cargo xtask setup`. [`smtt_tests::jvm`] says where the JVM is. `SMTT_FAULT_HOOK` names
//! the rung of the fault ladder; with `SMTT_PAGE_WALKS` unmeasured page walks are an error. Run with
//! `--test-threads=1`.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use smtt_config::{FaultHook, ProbeSettings};
use smtt_daemon::probes::Probes;
use smtt_machine::clock::now_boot_ns;
use smtt_model::verdict::VerdictState;
use smtt_tests::faults::ticked_ns;
use smtt_tests::json::number;
use smtt_tests::jvm::{
    CACHED_MIB, CACHED_PAGES, CACHED_RDD, CACHED_RDD_ID, CACHED_SCAN, Prepared, variable,
};
use smtt_tests::lab::programs;
use xtask::daemon::{Daemon, Options};
use xtask::paths::Paths;
use xtask::process::{hint, wait_for};

/// The daemon's figures arrive with its tick, and an unannounced executor with its scan.
const TOLD_LIMIT: Duration = Duration::from_secs(120);
/// Share of the page faults between two gates that must be attributed to an RDD, in hundredths. The rest is the JVM's
/// own: its compiler, class loading and the scheduler, which is in the same process here.
const ATTRIBUTED_PERCENT: u64 = 70;
/// Share of the samples in the scanning pass that must be attributed to the cached RDD, in hundredths.
const DOMINANT_PERCENT: u64 = 80;

/// A listing. Where every instruction is emulated the daemon may be slower than the time limit of `smtt-ctl`, so the
/// query is repeated.
fn rows(daemon: &Daemon, listing: &str) -> Result<Vec<Value>> {
    let mut last = None;
    let asked = wait_for("the daemon answers", TOLD_LIMIT, || {
        Ok(daemon
            .rows(&[listing])
            .map_err(|error| last = Some(error))
            .ok())
    });
    asked.with_context(|| format!("smtt-ctl {listing}: {last:?}"))
}

/// The executor's row, once the faults are the same before and after a tick of the daemon: no task runs.
fn executor(daemon: &Daemon, pid: u32) -> Result<Value> {
    let (mut last, mut read_ns) = (Value::Null, 0);
    wait_for("the executor's figures come to rest", TOLD_LIMIT, || {
        std::thread::sleep(Duration::from_millis(500));
        // A slow daemon is asked again.
        let ticked = ticked_ns(daemon, |row| row["pid"] == pid).unwrap_or(None);
        if ticked <= Some(read_ns) {
            return Ok(None);
        }
        let listed = rows(daemon, "executors")?;
        // Other executors may run on this machine.
        let Some(row) = listed.iter().find(|row| row["pid"] == pid) else {
            return Ok(None);
        };
        let same = last["page_faults_attributed"] == row["page_faults_attributed"];
        last = row.clone();
        read_ns = now_boot_ns();
        Ok((same && !last["page_faults_attributed"].is_null()).then(|| last.clone()))
    })
    .with_context(|| format!("the daemon says:{}", hint(daemon.log())))
}

/// The row of the cached RDD, once it has its name and both partitions.
fn cached(daemon: &Daemon) -> Result<Value> {
    let mut last = Vec::new();
    let found = wait_for("both partitions are cached", TOLD_LIMIT, || {
        last = rows(daemon, "rdds")?;
        let mut named = last.iter().filter(|row| row["name"] == CACHED_RDD);
        Ok(named.find(|row| row["partitions_cached"] == 2).cloned())
    });
    found.with_context(|| format!("RDD {CACHED_RDD:?} in {last:#?}"))
}

#[test]
fn the_cached_rdd_of_a_jvm_has_its_faults_and_dominates_the_scan() -> Result<()> {
    let prepared = Prepared::new()?;
    let hook = variable("SMTT_FAULT_HOOK").unwrap_or_else(|| "auto".to_owned());
    let options = Options {
        toml: format!(
            "[probe.fault]\nhook = {hook:?}\nsample_every = 0\n{}",
            page_walks()?
        ),
        // The daemon finds the executor while it runs, and the marker reports its state again.
        without_library: true,
        ..Options::default()
    };
    let (paths, folder) = (Paths::find()?, prepared.at("daemon"));
    let daemon = Daemon::start(&paths, &programs()?, &folder, &options)?;
    let mut application = prepared.start(&CACHED_SCAN, None)?;
    application.reach("begin")?;
    let begin = executor(&daemon, application.pid())?;
    println!("executor at the first gate: {begin}");
    let missing = begin["missing_hooks"].as_array().map(Vec::len);
    ensure!(missing == Some(0), "hooks are missing: {begin:#}");

    application.open("begin")?;
    application.reach("cached")?;
    let filled = executor(&daemon, application.pid())?;
    let row = cached(&daemon)?;
    println!("{CACHED_RDD}: {row}");
    ensure!(
        row["rdd_id"] == CACHED_RDD_ID,
        "{CACHED_RDD} is not RDD {CACHED_RDD_ID}: {row:#}"
    );
    let held = number(&row, "storage_memory_bytes")?;
    ensure!(
        (CACHED_MIB..CACHED_MIB + 8).contains(&(held >> 20)),
        "the arrays of {CACHED_MIB} MiB take {held} bytes of storage memory"
    );
    let grown = |key: &str| Ok::<u64, anyhow::Error>(number(&filled, key)? - number(&begin, key)?);
    let (attributed, unattributed) = (
        grown("page_faults_attributed")?,
        grown("page_faults_unattributed")?,
    );
    // The task that allocates a fresh array touches each page of it first.
    let own = number(&row, "page_faults_write")?;
    println!(
        "faults while it was filled: {own} writes of {CACHED_PAGES} pages; {attributed} attributed, {unattributed} not"
    );
    ensure!(
        !application.has_collected()?,
        "the JVM has collected garbage: give it a larger heap, or the arrays are made in pages that it has already"
    );
    ensure!(
        (CACHED_PAGES..CACHED_PAGES * 12 / 10).contains(&own),
        "{own} write faults are the cached RDD's, which has {CACHED_PAGES} pages: {row:#}"
    );
    ensure!(
        attributed * 100 >= (attributed + unattributed) * ATTRIBUTED_PERCENT,
        "only {attributed} of {} faults are attributed",
        attributed + unattributed
    );

    let before = read_misses(&daemon)?;
    application.open("cached")?;
    application.reach("scanned")?;
    // Once the faults stand still, the daemon has read all samples.
    executor(&daemon, application.pid())?;
    dominates(&before, &read_misses(&daemon)?)?;
    ledger_is_clean(&daemon)?;
    application.finish()
}

/// No fact was lost on any hop, and every hop adds up. Two cases are no loss. The end of a resync may be missing where
/// the executor was unknown at the request: it has no stale rows to remove. A fact may be missing between the probing
/// of the library and the registration of the executor: the resync that follows reports all live objects again. (A span
/// of that time is lost, and counted under that name.)
///
/// The daemon reads the marker's counts after its own, so what is emitted between is missing until the next tick. A loss
/// stays.
fn ledger_is_clean(daemon: &Daemon) -> Result<()> {
    let mut last = None;
    let clean = wait_for("the ledger is clean", TOLD_LIMIT, || {
        std::thread::sleep(Duration::from_millis(200));
        let checked = check_ledger(daemon);
        last = checked.as_ref().err().map(|error| format!("{error:#}"));
        Ok(checked.ok())
    });
    clean.with_context(|| last.unwrap_or_default())
}

fn check_ledger(daemon: &Daemon) -> Result<()> {
    let status = daemon.json(&["status"])?;
    let hops = status["ledger"]
        .as_array()
        .with_context(|| format!("no ledger in {status}"))?;
    ensure!(!hops.is_empty(), "the ledger has no hops");
    for hop in hops {
        let lost: u64 = hop["lost"]
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(cause, _)| {
                !matches!(cause.as_str(), "resync_not_requested" | "unknown_process")
            })
            .filter_map(|(_, count)| count.as_u64())
            .sum();
        ensure!(
            lost == 0 && hop["consistent"] == true,
            "the ledger is not clean: {hop}"
        );
    }
    println!("ledger: {}", status["ledger"]);
    Ok(())
}

/// The configuration that makes the daemon sample reads that miss the TLB. Where the processor does not count them, the
/// daemon samples the CPU time of a context instead, along the same path.
fn page_walks() -> Result<&'static str> {
    let settings = ProbeSettings {
        fault_hook: FaultHook::Off,
        ..ProbeSettings::default()
    };
    let verdicts = Probes::load(&settings)?.verdicts();
    let verdict = verdicts
        .iter()
        .find(|row| row.name == "page_walks")
        .context("nothing is said of page walks")?;
    if verdict.verdict == VerdictState::Ok {
        return Ok("[page_walks]\nsample_periods = { load_walks_completed = 10007 }\n");
    }
    ensure!(
        variable("SMTT_PAGE_WALKS").is_none(),
        "page walks must be measured here: {}",
        verdict.reason
    );
    println!(
        "the clock takes the place of reads that miss the address cache: {}",
        verdict.reason
    );
    Ok(
        "[page_walks]\nevents = { load_walks_completed = \"cpu-clock\" }\nsample_periods = { load_walks_completed = 2000003 }\n",
    )
}

/// Sampled reads that missed the TLB: the estimated number, and the samples.
#[derive(Clone, Copy, Debug, Default)]
struct Misses {
    events: u64,
    samples: u64,
}

/// Reads that missed the TLB, by RDD of this application.
fn read_misses(daemon: &Daemon) -> Result<BTreeMap<String, Misses>> {
    let mut misses: BTreeMap<String, Misses> = BTreeMap::new();
    let listed = rows(daemon, "rdds")?;
    // Other applications may run on this machine.
    let application = listed.iter().find(|row| row["name"] == CACHED_RDD);
    let application = application.map(|row| row["application_id"].clone());
    for row in listed {
        if Some(&row["application_id"]) == application.as_ref() && row["dtlb_read_misses"].is_u64()
        {
            let name = format!("{} {}", row["rdd_id"], row["name"]);
            let sum = misses.entry(name).or_default();
            sum.events += number(&row, "dtlb_read_misses")?;
            sum.samples += number(&row["page_walks"]["dtlb_read_misses"], "samples")?;
        }
    }
    Ok(misses)
}

/// The growth in the scanning pass belongs to the cached RDD. The share is one of samples, not of the estimate: where
/// the clock replaces a counter, a timer that is due on an idle processor may fire late, in the thread that has woken
/// up meanwhile, and that one sample stands for all of the idle time.
fn dominates(before: &BTreeMap<String, Misses>, after: &BTreeMap<String, Misses>) -> Result<()> {
    let (mut all, mut own) = (Misses::default(), Misses::default());
    for (name, now) in after {
        let then = before.get(name).copied().unwrap_or_default();
        let add = |sum: &mut Misses| {
            sum.events += now.events - then.events;
            sum.samples += now.samples - then.samples;
        };
        add(&mut all);
        if name.contains(CACHED_RDD) {
            add(&mut own);
        }
    }
    println!(
        "reads that missed the address cache in the scans: {own:?} of {all:?} are the cached RDD's"
    );
    ensure!(
        own.samples * 100 >= all.samples * DOMINANT_PERCENT && own.events > 10 * CACHED_PAGES,
        "{own:?} of {all:?} are the cached RDD's: {before:?}, then {after:?}"
    );
    Ok(())
}
