//! The probes of one test and their readings so far.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_common::counter::{ContextKey, ExecutorCounters, FaultCounters};
use smtt_common::event::Kind;
use smtt_common::page_walk::WalkCounters;
use smtt_config::{FaultHook, ProbeSettings};
use smtt_daemon::probes::Probes;
use smtt_daemon::ring::{Record, SourceCounters, next_batch};
use smtt_model::cpu::Role;
use smtt_model::readings::{Channel, PageWalkReadings, Readings};
use smtt_model::verdict::{Verdict, VerdictState};
use smtt_tests::lab::programs;
use smtt_tests::skip::skip;
pub use smtt_tests::workload::{Workload, library};
use tempfile::TempDir;
use xtask::daemon::{Daemon, Options};
use xtask::paths::Paths;
use xtask::process::{is_root, wait_for};

/// How long a death may take to be in the list, on a machine that emulates each instruction.
const DEATH_LIMIT: Duration = Duration::from_secs(180);
/// Counts are compared with the previous reading, so tests must not disturb each other's timing.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Takes all records from a ring.
type Drain = Box<dyn FnMut() -> Vec<Record>>;

/// Loaded probes and their readings.
pub struct KernelLab {
    pub probes: Probes,
    drain: Drain,
    /// Every record so far.
    pub records: Vec<Record>,
    /// Sum of all growth, by context.
    pub contexts: BTreeMap<ContextKey, FaultCounters>,
    /// The last totals, by executor.
    pub executors: BTreeMap<u64, ExecutorCounters>,
    /// The last totals of the kernel side.
    pub counters: Vec<u64>,
    /// Sum of all growth of sampled events, by context.
    pub walks: BTreeMap<ContextKey, WalkCounters>,
    /// What the last reading said of page walks.
    pub page_walks: Option<PageWalkReadings>,
    /// Samples of the clock by context, where it stands in for cycles.
    pub clock: Option<BTreeMap<ContextKey, u64>>,
    /// The turn of this test; absent in a second lab of the same test.
    _turn: Option<MutexGuard<'static, ()>>,
}

/// The turn of a test that starts whole daemons; `None` (and a line that says why) without root.
pub fn alone() -> Result<Option<MutexGuard<'static, ()>>> {
    let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if !is_root() {
        skip("root", "the daemon needs CAP_BPF and CAP_PERFMON")?;
        return Ok(None);
    }
    Ok(Some(turn))
}

/// A daemon during the turn of a test. The fields are dropped in this order: the daemon writes into the folder.
pub struct DaemonAlone {
    daemon: Daemon,
    _folder: TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Deref for DaemonAlone {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}

/// Starts a daemon when it is this test's turn; `None` (and a line that says why) without root.
pub fn daemon_alone(options: &Options) -> Result<Option<DaemonAlone>> {
    let Some(turn) = alone()? else {
        return Ok(None);
    };
    let folder = tempfile::tempdir()?;
    let daemon = Daemon::start(&Paths::find()?, &programs()?, folder.path(), options)?;
    Ok(Some(DaemonAlone {
        daemon,
        _folder: folder,
        _turn: turn,
    }))
}

/// Loads the probes; `None` (and a line that says why) where this machine cannot run the test.
pub fn lab(settings: &ProbeSettings) -> Result<Option<KernelLab>> {
    let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    load(settings, Some(turn))
}

fn load(
    settings: &ProbeSettings,
    turn: Option<MutexGuard<'static, ()>>,
) -> Result<Option<KernelLab>> {
    if !is_root() {
        skip("root", "the probes need CAP_BPF and CAP_PERFMON")?;
        return Ok(None);
    }
    let mut probes = Probes::load(settings)?;
    // A forced rung that this kernel lacks: the feature, the beginning of its hooks' names, and what is missing.
    let forced = match settings.fault_hook {
        FaultHook::RawTracepoint => Some((
            "raw_tracepoint",
            "this kernel has no exceptions:page_fault_user",
        )),
        FaultHook::Fexit => Some((
            "fexit",
            "this kernel has no programs for the return of its fault handler",
        )),
        _ => None,
    };
    if let Some((feature, why)) = forced
        && probes.verdicts().iter().any(|verdict| {
            verdict.name == "fault"
                && verdict.verdict == VerdictState::Unsupported
                && verdict.hook.starts_with(feature)
        })
    {
        skip(feature, why)?;
        return Ok(None);
    }
    probes.attach_library(&library()?)?;
    let mut ring = probes.take_ring()?;
    let counters = SourceCounters::default();
    let drain = Box::new(move || {
        let mut records = Vec::new();
        loop {
            let batch = next_batch(&mut ring, &counters);
            if batch.is_empty() {
                return records;
            }
            records.extend(batch);
        }
    });
    Ok(Some(KernelLab {
        probes,
        drain,
        records: Vec::new(),
        contexts: BTreeMap::new(),
        executors: BTreeMap::new(),
        counters: Vec::new(),
        walks: BTreeMap::new(),
        page_walks: None,
        clock: None,
        _turn: turn,
    }))
}

/// Settings with a rung of the fault ladder.
pub fn with_hook(fault_hook: FaultHook) -> ProbeSettings {
    let mut settings = ProbeSettings {
        fault_hook,
        ..ProbeSettings::default()
    };
    // The storm of a test is not the flood of a broken marker, so the limit is high.
    settings.settings.facts_per_second = 10_000_000;
    settings.settings.bytes_per_second = 1 << 30;
    settings
}

impl KernelLab {
    /// A second lab at the same time.
    pub fn another(&self, settings: &ProbeSettings) -> Result<Self> {
        load(settings, None)?.context("one could be loaded, another cannot")
    }

    /// Drains the ring, then reads the tables.
    pub fn read(&mut self) -> Result<Readings> {
        self.records.extend((self.drain)());
        let readings = self.probes.readings()?;
        for (key, growth) in &readings.contexts {
            add(self.contexts.entry(*key).or_default(), growth);
        }
        self.executors.extend(readings.executors.iter().copied());
        self.counters = readings.counters.to_vec();
        if let Some(walks) = &readings.page_walks {
            for (key, growth) in &walks.contexts {
                self.walks.entry(*key).or_default().add(growth);
            }
        }
        self.page_walks.clone_from(&readings.page_walks);
        if let Some(clock) = &readings.clock {
            let all = self.clock.get_or_insert_default();
            for (key, samples) in &clock.contexts {
                *all.entry(*key).or_default() += samples;
            }
        }
        self.records.extend((self.drain)());
        Ok(readings)
    }

    /// The key under which a process described itself as an executor.
    pub fn executor(&mut self, pid: u32) -> Result<u64> {
        self.read()?;
        self.records
            .iter()
            .rev()
            .find(|record| {
                record.header.kind == Kind::EXECUTOR_DESCRIBED.0 && record.header.pid == pid
            })
            .map(|record| record.header.executor)
            .with_context(|| {
                format!(
                    "process {pid} has not described itself; there are {} records",
                    self.records.len()
                )
            })
    }

    /// Records of a kind from an executor.
    pub fn of_kind(&self, executor: u64, kind: Kind) -> Vec<&Record> {
        self.records
            .iter()
            .filter(|record| record.header.executor == executor && record.header.kind == kind.0)
            .collect()
    }

    /// Sum of the faults of an executor's contexts that match.
    pub fn faults(&self, executor: u64, fits: impl Fn(&ContextKey) -> bool) -> FaultCounters {
        let mut sum = FaultCounters::default();
        for (_, counters) in self
            .contexts
            .iter()
            .filter(|(key, _)| key.executor == executor && fits(key))
        {
            add(&mut sum, counters);
        }
        sum
    }

    /// Sum of the sampled events of an executor's rows that match.
    pub fn sampled(&self, executor: u64, fits: impl Fn(&ContextKey) -> bool) -> WalkCounters {
        let mut sum = WalkCounters::default();
        self.walks
            .iter()
            .filter(|(key, _)| key.executor == executor && fits(key))
            .for_each(|(_, counters)| sum.add(counters));
        sum
    }

    /// The slot of a role, and its state in the last reading.
    pub fn channel(&self, role: Role) -> Result<(usize, &Channel)> {
        self.page_walks
            .iter()
            .flat_map(|walks| walks.channels.iter().enumerate())
            .find(|(_, slot)| slot.role == role)
            .with_context(|| format!("{role} is not measured: {:?}", self.walk_verdict()))
    }

    /// The verdict on page walks.
    pub fn walk_verdict(&self) -> Option<Verdict> {
        self.verdict("page_walks")
    }

    /// The first verdict on a probe.
    pub fn verdict(&self, name: &str) -> Option<Verdict> {
        let mut all = self.probes.verdicts().into_iter();
        all.find(|verdict| verdict.name == name)
    }

    /// Totals of an executor.
    pub fn totals(&self, executor: u64) -> Result<ExecutorCounters> {
        self.executors
            .get(&executor)
            .copied()
            .with_context(|| format!("executor {executor:#x} has no totals"))
    }
}

/// All faults of an executor: attributed and unattributed. Major faults are included.
pub fn seen(totals: &ExecutorCounters) -> u64 {
    all(&totals.attributed) + totals.unattributed.iter().map(all).sum::<u64>()
}

/// All major faults of an executor.
pub fn major(totals: &ExecutorCounters) -> u64 {
    totals.attributed.major
        + totals
            .unattributed
            .iter()
            .map(|class| class.major)
            .sum::<u64>()
}

/// Sum of reads, writes and faults of unknown access.
pub fn all(counters: &FaultCounters) -> u64 {
    counters.read + counters.write + counters.unknown
}

fn add(sum: &mut FaultCounters, more: &FaultCounters) {
    sum.read += more.read;
    sum.write += more.write;
    sum.unknown += more.unknown;
    sum.major += more.major;
    sum.timed += more.timed;
    sum.timed_ns += more.timed_ns;
    sum.timed_squares += more.timed_squares;
}

/// The report of a process's death, once there is one.
pub fn death(daemon: &Daemon, pid: u32) -> Result<Value> {
    let mut last = None;
    let report = wait_for("the death is listed", DEATH_LIMIT, || {
        // A machine that has just been without memory is slow: the daemon gives up on clients that do not go on.
        let listed = daemon.json(&["postmortem"]).and_then(|list| {
            let rows = list["rows"].as_array().context("no rows")?;
            let row = rows.iter().find(|row| row["pid"] == pid);
            let id = row.and_then(|row| row["id"].as_str());
            id.map(|id| daemon.json(&["postmortem", id])).transpose()
        });
        Ok(listed.unwrap_or_else(|error| {
            last = Some(error);
            None
        }))
    });
    report.with_context(|| format!("the last error: {last:?}"))
}

/// How long the kernel waits for all CPUs (a grace period of RCU), now.
pub fn grace_period() -> Result<Duration> {
    const MEMBARRIER_CMD_GLOBAL: i32 = 1;
    let start = Instant::now();
    // SAFETY: the call takes numbers only.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    ensure!(
        result == 0,
        "membarrier: {}",
        std::io::Error::last_os_error()
    );
    Ok(start.elapsed())
}
