//! The state, the verdicts and the ledger, each behind a lock of its own. The event loop writes them
//! ([`Shared::tick`], the state's `apply` and `take_in`); the server, the metrics and the placement of pages read them.

use smtt_model::ledger::{DecodeCounts, Hop, LedgerInputs, MarkerCounts, SourceCounts, ledger};
use smtt_model::sort::small::Gather as _;
use smtt_model::state::{Limits, State};
use smtt_model::verdict::{Verdict, VerdictState};

use crate::answered::Answered;
use crate::discover::SlotFile;
use crate::helpers::JobLimits;
use crate::history::{Condition, Earlier};
use crate::recorder::counts::Ledger as TraceLedger;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use smtt_machine::{proc, surroundings};
use smtt_model::advise::surroundings::Surroundings;
use smtt_model::ledger::trace::TraceStatus;
use smtt_model::protocol::{self, MachineCheck, SelfFigures, Status};
use smtt_model::rows::{ApplicationKey, GroupBy, PageWalksShown, Summary};

use crate::postmortem::keeper::Keeper;
use crate::progress::{LONG, Progress};
use crate::recorder::follow::Followers;
use crate::timed_reads::TimedReads;

/// How long `status` waits for the state.
const STATE_WAIT: Duration = Duration::from_secs(1);

/// Command lines that are read at a time, and how long an answer waits for all of them.
const COMMAND_LINES: JobLimits = JobLimits {
    per_user: 2,
    all: 8,
};
const COMMAND_LINES_WAIT: Duration = Duration::from_secs(1);

/// Checks of the machine that need no running daemon.
pub type Doctor = fn() -> Vec<MachineCheck>;

/// Limits of the keys under which the metrics count RDDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLimits {
    /// Keys of all applications together, shared max-min fairly among users, then among applications.
    pub all: usize,
    /// Keys of one application.
    pub per_application: usize,
}

/// Settings of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricsSettings {
    /// Limits of the keys of RDDs.
    pub keys: KeyLimits,
    /// What RDDs of one key have in common; [`GroupBy::Rdd`] is as [`GroupBy::Name`].
    pub by: GroupBy,
    /// Longest time between two scrapes of one scraper: new counters show 0 for this long.
    pub scrape_interval: Duration,
}

impl MetricsSettings {
    /// So many keys, for one application too, whose counters show their values at once.
    #[must_use]
    pub const fn at_once(keys: usize) -> Self {
        let keys = KeyLimits {
            all: keys,
            per_application: keys,
        };
        Self {
            keys,
            by: GroupBy::Name,
            scrape_interval: Duration::ZERO,
        }
    }
}

/// What is fixed when the daemon starts.
#[derive(Clone, Debug)]
pub struct DaemonInfo {
    /// Version of the daemon.
    pub version: String,
    /// How the kernel side was built.
    pub kernel_side: String,
    /// Where metrics are served on the web port.
    pub telemetry_path: String,
    /// Settings of the metrics.
    pub metrics: MetricsSettings,
    /// Checks of the machine.
    pub doctor: Doctor,
}

/// What the event loop and the handlers share.
#[derive(Debug)]
pub struct Shared {
    info: DaemonInfo,
    started: Instant,
    state: Mutex<State>,
    verdicts: Mutex<Vec<Verdict>>,
    /// Verdict of DAMON, where it is configured.
    hotness: Mutex<Option<Verdict>>,
    ledger: Mutex<(LedgerInputs, LedgerInputs)>,
    bpf_memory_bytes: OnceLock<AtomicU64>,
    trace: OnceLock<Arc<TraceLedger>>,
    keeper: OnceLock<Arc<Keeper>>,
    history: OnceLock<Arc<Condition>>,
    earlier: OnceLock<Earlier>,
    unknown_libraries: AtomicU64,
    followers: Arc<Followers>,
    answered: Answered,
    /// Slot files of living executors, for the threads that inspect their memory.
    slots: Mutex<HashMap<u64, Weak<SlotFile>>>,
    ready: AtomicBool,
    progress: Arc<Progress>,
    /// Held while the rows of a large answer are collected, by whichever listener.
    making: Arc<tokio::sync::Mutex<()>>,
    /// Readings of the command lines of executors.
    command_lines: Mutex<TimedReads<io::Result<Vec<String>>>>,
    /// What `status` took from the state last, for the time in which the state is locked.
    seen: Mutex<(Summary, Option<PageWalksShown>)>,
}

/// Locks the mutex even if a holder panicked: a wrong row is better than no daemon.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// An empty state.
    #[must_use]
    pub fn new(info: DaemonInfo, limits: Limits) -> Self {
        Self {
            info,
            started: Instant::now(),
            state: Mutex::new(State::new(limits)),
            verdicts: Mutex::default(),
            hotness: Mutex::default(),
            ledger: Mutex::default(),
            bpf_memory_bytes: OnceLock::new(),
            trace: OnceLock::new(),
            keeper: OnceLock::new(),
            history: OnceLock::new(),
            earlier: OnceLock::new(),
            unknown_libraries: AtomicU64::new(0),
            followers: Arc::default(),
            answered: Answered::default(),
            slots: Mutex::default(),
            ready: AtomicBool::new(false),
            progress: Arc::default(),
            making: Arc::default(),
            command_lines: Mutex::new(TimedReads::new("smtt-cmdline", COMMAND_LINES)),
            seen: Mutex::default(),
        }
    }

    /// The lock of large answers: the rows of one are collected at a time.
    #[must_use]
    pub fn making(&self) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(&self.making)
    }

    /// The answers that this daemon has given.
    #[must_use]
    pub const fn answered(&self) -> &Answered {
        &self.answered
    }

    /// Values that are fixed when the daemon starts.
    #[must_use]
    pub const fn info(&self) -> &DaemonInfo {
        &self.info
    }

    /// Locks the state. Hold it only briefly: the event loop and all handlers wait for it.
    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Locks the state as soon as it is free; `None` where it stays locked for [`STATE_WAIT`].
    fn state_soon(&self) -> Option<MutexGuard<'_, State>> {
        let start = Instant::now();
        loop {
            match self.state.try_lock() {
                Ok(state) => return Some(state),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if start.elapsed() > STATE_WAIT => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Keys of all executors, for answers that lock the state for one executor at a time.
    #[must_use]
    pub fn executor_keys(&self) -> Vec<u64> {
        self.state().executors().keys().copied().collect()
    }

    /// Keys of the executors of one application.
    #[must_use]
    pub fn executor_keys_of(&self, application: &ApplicationKey) -> Vec<u64> {
        let state = self.state();
        let all = state.executors().iter();
        all.filter(|(_, executor)| application.has(executor))
            .map(|(key, _)| *key)
            .collect()
    }

    /// What the event loop does.
    #[must_use]
    pub const fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Sets the probes' verdicts. Without an attached `fault` probe page faults become "not measured".
    pub fn set_verdicts(&self, verdicts: Vec<Verdict>) {
        let faults = verdicts
            .iter()
            .any(|verdict| verdict.name == "fault" && verdict.verdict == VerdictState::Ok);
        self.state().set_page_faults_measured(faults);
        *lock(&self.verdicts) = verdicts;
    }

    /// Sets the verdict of DAMON and logs a change.
    pub fn set_hotness_verdict(&self, verdict: Verdict) {
        let mut known = lock(&self.hotness);
        let state = |verdict: &Verdict| verdict.verdict;
        if known.as_ref().map(state) != Some(verdict.verdict) {
            match verdict.verdict {
                VerdictState::Ok => tracing::info!("hotness by {}: ok", verdict.hook),
                _ => tracing::warn!("hotness by {}: {}", verdict.hook, verdict.reason),
            }
        }
        *known = Some(verdict);
    }

    /// Sets the memory of the daemon's own eBPF programs and maps, in bytes.
    pub fn set_bpf_memory_bytes(&self, bytes: u64) {
        self.bpf_memory_bytes
            .get_or_init(AtomicU64::default)
            .store(bytes, Ordering::Relaxed);
    }

    /// Sets the counts of trace records, once there is a writer.
    pub fn set_trace(&self, ledger: Arc<TraceLedger>) {
        // A second call has no effect: there is one writer.
        let _ = self.trace.set(ledger);
    }

    /// Status of the writer of trace records; `None` where none are written.
    #[must_use]
    pub fn trace(&self) -> Option<TraceStatus> {
        self.trace.get().map(|ledger| ledger.status())
    }

    /// Sets who keeps the reports of deaths.
    pub fn set_keeper(&self, keeper: Arc<Keeper>) {
        // As above.
        let _ = self.keeper.set(keeper);
    }

    /// The reports of deaths; `None` before the watcher starts.
    #[must_use]
    pub fn keeper(&self) -> Option<&Arc<Keeper>> {
        self.keeper.get()
    }

    /// Sets how the writing of the history goes, where one is written.
    pub fn set_history(&self, condition: Arc<Condition>) {
        // As above.
        let _ = self.history.set(condition);
    }

    /// How the writing of the history goes; `None` where none is written.
    #[must_use]
    pub fn history(&self) -> Option<&Arc<Condition>> {
        self.history.get()
    }

    /// Sets what earlier runs of the daemon wrote.
    pub fn set_earlier(&self, earlier: Earlier) {
        // As above.
        let _ = self.earlier.set(earlier);
    }

    /// What earlier runs of the daemon wrote; `None` where no history is written, or its store was not readable yet.
    #[must_use]
    pub fn earlier(&self) -> Option<&Earlier> {
        self.earlier.get()
    }

    /// Sets the number of processes whose marker library is not known.
    pub fn set_unknown_libraries(&self, processes: u64) {
        self.unknown_libraries.store(processes, Ordering::Relaxed);
    }

    /// Processes whose marker library is not known.
    #[must_use]
    pub fn unknown_libraries(&self) -> u64 {
        self.unknown_libraries.load(Ordering::Relaxed)
    }

    /// The live clients of trace records.
    #[must_use]
    pub const fn followers(&self) -> &Arc<Followers> {
        &self.followers
    }

    /// Shares the slot file of an executor for as long as its owner keeps it.
    pub fn lend_slots(&self, executor: u64, slots: &Arc<SlotFile>) {
        let mut lent = lock(&self.slots);
        lent.retain(|_, slots| slots.strong_count() > 0);
        lent.insert(executor, Arc::downgrade(slots));
    }

    /// The slot file of an executor; `None` where it is not open. Read it where nothing else waits.
    #[must_use]
    pub fn slots(&self, executor: u64) -> Option<Arc<SlotFile>> {
        lock(&self.slots).get(&executor)?.upgrade()
    }

    /// The surroundings of these processes of users. An option that is not read in time is absent, with the reason.
    #[must_use]
    pub fn surroundings(&self, processes: &BTreeMap<u32, u32>) -> Surroundings {
        self.surroundings_by(processes, COMMAND_LINES_WAIT, |pid| {
            surroundings::options(Path::new("/"), pid)
        })
    }

    /// As [`Self::surroundings`], where `options` reads the options of a process, and all of them have this `wait`.
    fn surroundings_by(
        &self,
        processes: &BTreeMap<u32, u32>,
        wait: Duration,
        options: impl Fn(u32) -> io::Result<Vec<String>> + Clone + Send + 'static,
    ) -> Surroundings {
        let pids: Vec<u32> = processes.keys().copied().collect();
        let mut surroundings = surroundings::read(Path::new("/"), &pids);
        let wanted = surroundings.processes.keys().map(|pid| {
            let (pid, user) = (*pid, processes.get(pid).copied().unwrap_or_default());
            let options = options.clone();
            (u64::from(pid), user, Box::new(move || options(pid)) as _)
        });
        let wanted = wanted.collect();
        let read = lock(&self.command_lines).read(wanted, wait);
        let mut options: BTreeMap<u64, _> = read.into_iter().gather();
        for (pid, process) in &mut surroundings.processes {
            match options.remove(&u64::from(*pid)) {
                Some(Ok(options)) => process.options = Some(options),
                Some(Err(error)) => process.options_unread = Some(error.to_string()),
                None => {
                    let late = "the process did not let its command line be read in time";
                    process.options_unread = Some(late.to_owned());
                }
            }
        }
        surroundings
    }

    /// Sets whether the probes are attached and the listeners open.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
    }

    /// Whether the probes are attached and the listeners open.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Ends a tick: computes the ledger from the current counts.
    pub fn tick(&self, source: SourceCounts, decode: &DecodeCounts) {
        let inputs = {
            let state = self.state();
            LedgerInputs {
                marker: state
                    .marker_counts()
                    .map(|(emitted, seen)| MarkerCounts { emitted, seen }),
                executors: state.executor_totals(),
                kernel: *state.kernel_counters(),
                source,
                decode: decode.clone(),
                aggregate: state.counts().clone(),
                trace: self.trace().map(|trace| trace.counts),
                follow: self.followers.counts(),
            }
        };
        let mut ledger = lock(&self.ledger);
        let previous = std::mem::replace(&mut ledger.0, inputs);
        ledger.1 = previous;
    }

    /// The loss ledger as of the last tick.
    #[must_use]
    pub fn ledger(&self) -> Vec<Hop> {
        let inputs = lock(&self.ledger);
        ledger(&inputs.0, &inputs.1)
    }

    /// Strings of facts that were cut, as of the last tick.
    #[must_use]
    pub fn strings_cut(&self) -> u64 {
        lock(&self.ledger).0.decode.strings_cut
    }

    /// The probes' verdicts.
    #[must_use]
    pub fn probes(&self) -> Vec<Verdict> {
        let mut rows = lock(&self.verdicts).clone();
        rows.extend(lock(&self.hotness).clone());
        rows
    }

    /// CPU time and memory of the daemon itself.
    #[must_use]
    pub fn self_figures(&self) -> SelfFigures {
        let own = proc::own();
        SelfFigures {
            cpu_seconds: own.map(|own| own.cpu_seconds),
            rss_bytes: own.map(|own| own.resident_bytes),
            bpf_memory_bytes: self
                .bpf_memory_bytes
                .get()
                .map(|bytes| bytes.load(Ordering::Relaxed)),
            uptime_seconds: self.started.elapsed().as_secs_f64(),
        }
    }

    /// Everything that `smtt-ctl status` shows.
    #[must_use]
    pub fn status(&self) -> Status {
        let (probes, ledger, ready) = (self.probes(), self.ledger(), self.is_ready());
        let fresh = self.state_soon().map(|state| {
            let all = smtt_model::rows::Filter::default();
            (state.list_executors(&all).summary, state.page_walks_shown())
        });
        let locked = fresh.is_none();
        let (summary, page_walks) = {
            let mut seen = lock(&self.seen);
            if let Some(fresh) = fresh {
                *seen = fresh;
            }
            seen.clone()
        };
        let trace = self.trace();
        let mut degraded = protocol::degraded(ready, &probes, &ledger);
        if let Some((step, time)) = self.progress.longer_than(LONG) {
            let (step, time) = (step.name(), time.as_secs());
            degraded.push(format!("the event loop has been {step} for {time} s"));
        }
        if locked {
            let wait = STATE_WAIT.as_secs();
            degraded.push(format!(
                "the state has been locked for more than {wait} s: the summary is older"
            ));
        }
        degraded.extend(
            trace
                .iter()
                .filter(|trace| !trace.failing.is_empty())
                .map(|trace| trace.failing.clone()),
        );
        let history = self.history.get().map(|history| history.status());
        let failing = history.iter().map(|history| &history.failing);
        degraded.extend(failing.filter(|failing| !failing.is_empty()).cloned());
        Status {
            version: self.info.version.clone(),
            kernel_side: self.info.kernel_side.clone(),
            ready,
            degraded,
            trace,
            history,
            probes,
            ledger,
            daemon: self.self_figures(),
            summary,
            page_walks,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn a_process_whose_command_line_hangs_delays_advice_once_and_no_other_process() {
        let info = DaemonInfo {
            version: String::new(),
            kernel_side: String::new(),
            telemetry_path: String::new(),
            metrics: MetricsSettings::at_once(0),
            doctor: Vec::new,
        };
        let shared = Shared::new(info, Limits::default());
        let own = std::process::id();
        let mut other = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("sleep starts");
        let processes = BTreeMap::from([(own, 1000), (other.id(), 1000)]);
        let (release, wait) = sync_channel::<()>(0);
        let wait = Arc::new(Mutex::new(wait));
        let options = move |pid| {
            if pid == own {
                let _ = lock(&wait).recv();
            }
            Ok(vec!["-Xmx1g".to_owned()])
        };
        // The first wait is waited out. A second wait for the process needs this time at least.
        let long = Duration::from_secs(120);
        for wait in [Duration::from_secs(2), long] {
            let begin = Instant::now();
            let read = shared.surroundings_by(&processes, wait, options.clone());
            assert!(begin.elapsed() < long, "{:?}", begin.elapsed());
            let hanging = &read.processes[&own];
            assert_eq!(hanging.options, None);
            let reason = hanging.options_unread.as_deref();
            assert!(
                reason.is_some_and(|why| why.contains("in time")),
                "{reason:?}"
            );
            assert!(hanging.cpus > Some(0), "the rest of it is there");
            let quick = &read.processes[&other.id()];
            assert_eq!(quick.options.as_deref(), Some(&["-Xmx1g".to_owned()][..]));
            assert_eq!(quick.options_unread, None);
        }
        drop(release);
        other.kill().expect("it ends");
        other.wait().expect("it is reaped");
    }
}
