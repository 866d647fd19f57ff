//! One JVM with a small Spark application that caches arrays and scans them: on this machine, and as it is in emulated
//! machines (`cargo xtask vm`), whose processor is another and counts misses of its address cache, and whose page faults
//! come from a kprobe.
//!
//! Needs root and what `cargo xtask setup` makes. Where the JVM is says [`smtt_tests::jvm`]. `SMTT_FAULT_HOOK` names the
//! rung of the fault ladder; with `SMTT_PAGE_WALKS` it is an error when page walks are not measured. Run with
//! `--test-threads=1`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use smtt_common::counter::ContextKey;
use smtt_common::walk::WalkCounters;
use smtt_daemon::pmu::{Overrides, Role};
use smtt_daemon::probes::{FaultHook, ProbeSettings, Probes, VerdictState};
use smtt_tests::jvm::{CACHED_MIB, CACHED_PAGES, CACHED_RDD, CACHED_RDD_ID, Prepared, variable};
use xtask::daemon::{Daemon, Options};
use xtask::places::Places;
use xtask::process::{hint, wait_for};

/// The daemon's figures come with its tick, and an executor that nobody announced with its scan.
const TOLD_LIMIT: Duration = Duration::from_secs(60);
/// Share of the page faults between two gates that must be known by RDD, in hundredths. The rest is the JVM's own: its
/// compiler, the loading of classes and the scheduler, which is in the same process here.
const ATTRIBUTED_PERCENT: u64 = 70;
/// Share of the executor's reads that missed the address cache in the pass that scans the cache that must be the cached
/// RDD's, in hundredths.
const DOMINANT_PERCENT: u64 = 60;
/// Samples from which a share is known within a tenth of itself.
const MIN_SAMPLES: u64 = 100;

/// The only executor's row, when two ticks in a row say the same of its faults: no task runs.
fn executor(daemon: &Daemon) -> Result<Value> {
    let mut last = Value::Null;
    wait_for("the executor's figures come to rest", TOLD_LIMIT, || {
        std::thread::sleep(Duration::from_millis(2200));
        let rows = daemon.rows(&["executors"])?;
        let [row] = rows.as_slice() else {
            return Ok(None);
        };
        let same = last["page_faults_attributed"] == row["page_faults_attributed"];
        last = row.clone();
        Ok((same && !last["page_faults_attributed"].is_null()).then(|| last.clone()))
    })
    .with_context(|| format!("the daemon says:{}", hint(daemon.log())))
}

/// The row of the cached RDD.
fn cached(daemon: &Daemon) -> Result<Value> {
    let rows = daemon.rows(&["rdds"])?;
    rows.iter()
        .find(|row| row["name"] == CACHED_RDD)
        .cloned()
        .with_context(|| format!("no RDD {CACHED_RDD:?} is listed: {rows:#?}"))
}

#[test]
fn the_cached_rdd_of_a_jvm_is_known_and_its_faults_are_its_own() -> Result<()> {
    let prepared = Prepared::new()?;
    let hook = variable("SMTT_FAULT_HOOK").unwrap_or_else(|| "auto".to_owned());
    let options = Options {
        toml: format!("[probe.fault]\nhook = {hook:?}\nsample_every = 0\n"),
        // It is found in the running executor, and what was told before is told again.
        without_library: true,
        ..Options::default()
    };
    let (places, folder) = (Places::find()?, prepared.at("daemon"));
    let daemon = Daemon::start(&places, &programs()?, &folder, &options)?;
    let mut application = prepared.start()?;
    application.reach("begin")?;
    let begin = executor(&daemon)?;
    println!("executor at the first gate: {begin}");
    let missing = begin["missing_hooks"].as_array().map(Vec::len);
    ensure!(missing == Some(0), "hooks are missing: {begin:#}");

    application.open("begin")?;
    application.reach("cached")?;
    let filled = executor(&daemon)?;
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
    ensure!(
        number(&row, "partitions_cached")? == 2,
        "both partitions are cached: {row:#}"
    );
    let grown = |key: &str| Ok::<u64, anyhow::Error>(number(&filled, key)? - number(&begin, key)?);
    let (attributed, unattributed) = (
        grown("page_faults_attributed")?,
        grown("page_faults_unattributed")?,
    );
    // Each page of a fresh array is touched once before anything else is, by the task that makes it.
    let own = number(&row, "page_faults_write")?;
    println!(
        "faults while it was filled: {own} writes of {CACHED_PAGES} pages; {attributed} attributed, {unattributed} not"
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

    application.open("cached")?;
    application.reach("scanned")?;
    executor(&daemon)?;
    ledger_is_clean(&daemon)?;
    application.finish()
}

/// No fact was lost on any hop, and every hop adds up. The end of telling again is no loss where the executor was not
/// known when it was asked: there is nothing that it could sweep away.
fn ledger_is_clean(daemon: &Daemon) -> Result<()> {
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
            .filter(|(cause, _)| *cause != "resync_not_requested")
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

#[test]
fn reads_of_the_cached_rdd_dominate_the_pass_that_scans_it() -> Result<()> {
    let prepared = Prepared::new()?;
    let mut settings = ProbeSettings {
        fault_hook: FaultHook::Off,
        ..ProbeSettings::default()
    };
    if variable("SMTT_PAGE_WALKS").is_none() && no_counters(&settings)? {
        // Where the processor counts nothing, the time that a context takes goes the same way.
        println!("no page walks are counted here: the kernel's clock takes their place");
        settings.page_walks.overrides =
            Overrides([(Role::LoadWalksCompleted, "cpu-clock".to_owned())].into());
    }
    let mut probes = Probes::load(&settings)?;
    let verdicts = probes.verdicts();
    let verdict = verdicts.iter().find(|row| row.probe == "page_walks");
    ensure!(
        verdict.is_some_and(|row| row.verdict == VerdictState::Ok),
        "page walks must be measured here: {verdict:?}"
    );
    // The probes are there first, so the kernel side hears of every thread from the JVM itself.
    probes.attach_library(&prepared.with_library()?)?;
    let mut application = prepared.start()?;
    application.reach("begin")?;
    application.open("begin")?;
    application.reach("cached")?;
    let before = Sampled::read(&mut probes)?;
    println!("until it was filled: {before:?}");
    application.open("cached")?;
    application.reach("scanned")?;
    let scans = Sampled::read(&mut probes)?;
    println!("in the scans: {scans:?}");
    ensure!(
        scans.samples >= MIN_SAMPLES,
        "too few samples to say: {scans:?}"
    );
    ensure!(
        scans.own * 100 >= scans.executor * DOMINANT_PERCENT,
        "the reads of the cached RDD do not dominate: {scans:?}"
    );
    application.finish()
}

/// Whether this machine's processor counts no page walks.
fn no_counters(settings: &ProbeSettings) -> Result<bool> {
    let verdicts = Probes::load(settings)?.verdicts();
    let verdict = verdicts
        .iter()
        .find(|row| row.probe == "page_walks")
        .context("nothing is said of page walks")?;
    Ok(verdict.verdict != VerdictState::Ok)
}

/// Reads that missed the address cache since the last reading, as sampled.
#[derive(Debug, Default)]
struct Sampled {
    /// While the cached RDD was made or read.
    own: u64,
    /// In the executor's process, whatever it did.
    executor: u64,
    /// Samples of the cached RDD.
    samples: u64,
}

impl Sampled {
    fn read(probes: &mut Probes) -> Result<Self> {
        let walks = probes
            .readings()?
            .page_walks
            .context("page walks are sampled, but not read")?;
        let slot = walks
            .slots
            .iter()
            .position(|slot| slot.role == Role::LoadWalksCompleted)
            .with_context(|| format!("no slot counts reads: {:?}", walks.slots))?;
        let fault = &walks.slots[slot].fault;
        ensure!(fault.is_empty(), "the event of reads is not sound: {fault}");
        let of = |fits: &dyn Fn(&ContextKey) -> bool| {
            let mut sum = WalkCounters::default();
            for (key, counters) in &walks.contexts {
                if fits(key) {
                    sum.add(counters);
                }
            }
            sum
        };
        let own = of(&|key| key.class().is_none() && key.rdd_plus_one == CACHED_RDD_ID + 1);
        Ok(Self {
            own: own.events[slot],
            executor: of(&|_| true).events[slot],
            samples: own.samples[slot],
        })
    }
}

fn number(row: &Value, key: &str) -> Result<u64> {
    row[key]
        .as_u64()
        .with_context(|| format!("no number {key} in {row}"))
}

/// Folder of the programs under test: beside the test itself.
fn programs() -> Result<PathBuf> {
    let test = std::env::current_exe().context("cannot tell where the test lies")?;
    let folder = test
        .parent()
        .and_then(Path::parent)
        .context("the test is not in target/PROFILE/deps")?;
    Ok(folder.to_path_buf())
}
