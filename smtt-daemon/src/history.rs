//! Writes what this worker knows of applications to a store of finished applications: tasks as they end, everything else
//! when something of an application has ended. docs/HISTORY.md has the tables.
//!
//! One thread reads the state, one executor at a time, and writes. The event loop never waits for it. A store that is
//! full, read-only or frozen delays the files: tasks wait in memory within [`WAITING_BYTES`], then they are lost, counted
//! by application.

mod documents;
mod earlier;
mod known;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use smtt_config::HistorySettings;
use smtt_machine::clock::{now_boot_ns, now_unix_ns};
use smtt_model::protocol::HistoryStatus;
use smtt_model::rows::{ApplicationKey, ExecutorState, Filter, TaskRow};
use smtt_model::sort::small::sort_by;
use smtt_store::history::workers::{Bounds, REST, TASKS, Whose, Workers};

use crate::shared::Shared;
use crate::subordinate::ShareOwners;

use known::{Known, Waiting, leave_out};

pub use earlier::{Earlier, Rows as EarlierRows};

/// Interval of the snapshots of the state.
const EVERY: Duration = Duration::from_secs(2);
/// Longest sleep before the thread checks whether the daemon is stopping.
const NAP: Duration = Duration::from_millis(250);
/// Age of an end: what the kernel and the marker report about a task or a death has arrived then.
const SETTLED_NS: u64 = 3_000_000_000;
/// Tasks of an executor that are taken in a round.
const TASKS_OF_A_ROUND: usize = 1_000;
/// Tasks that are read at a time, while the state waits.
const TASKS_AT_A_TIME: usize = 64;
/// Tasks that are written at once, however little time has passed.
const PART_ROWS: usize = 1_000;
/// Bytes of text with which a part is written at once.
const PART_BYTES: usize = 4 << 20;
/// Bytes of all tasks that wait for the store, above which only users with less than their even part of them may have more:
/// at most twice as many together.
const WAITING_BYTES: usize = 12 << 20;
/// Shortest time between two writes of an application of which nothing has ended.
const REFRESH: Duration = Duration::from_secs(10);
/// And at least so many times what a write took: half a percent of one CPU at most.
const REFRESH_SHARE: u32 = 200;
/// A write may have waited for others.
const REFRESH_LONGEST: Duration = Duration::from_secs(60);
/// Time after a write in which the last documents of dead executors wait for those of others.
const SETTLED_PAUSE: Duration = Duration::from_secs(5);
/// How long executors are to stay after their end: the last documents are written when three rounds have found them dead,
/// [`SETTLED_PAUSE`] after the last write, and after those of other applications, whatever the interval is.
const RETENTION_LEAST: Duration = Duration::from_secs(30);
/// Applications that are remembered once they have left this worker: their next executor continues the counts.
const GONE: usize = 256;
/// Applications of one user that are written in a round; others wait for the next one.
const WRITES: usize = 8;
/// Pause after a failed write.
const PAUSE: Duration = Duration::from_secs(5);
/// After a write the thread sleeps this many times as long as it took: writing takes a quarter of one CPU at most.
const BREAK: u32 = 3;

/// How the writing goes, for `smtt-ctl status` and the metrics.
#[derive(Debug, Default)]
pub struct Condition {
    failing: Mutex<String>,
    lost: AtomicU64,
    refused: AtomicU64,
    executors_lost: AtomicU64,
}

impl Condition {
    /// Why files cannot be written; empty where they can.
    #[must_use]
    pub fn failing(&self) -> String {
        self.failing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Tasks that the history does not have, although their application can have files.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Tasks of applications whose id can be no folder: nothing is written about them.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Executors that went before their last documents were written.
    #[must_use]
    pub fn executors_lost(&self) -> u64 {
        self.executors_lost.load(Ordering::Relaxed)
    }

    /// The writing as `smtt-ctl status` shows it.
    #[must_use]
    pub fn status(&self) -> HistoryStatus {
        HistoryStatus {
            failing: self.failing(),
            tasks_lost: self.lost(),
            tasks_refused: self.refused(),
            executors_lost: self.executors_lost(),
        }
    }

    fn add_refused(&self, tasks: usize) {
        self.refused.fetch_add(tasks as u64, Ordering::Relaxed);
    }

    fn add_lost(&self, tasks: u64) {
        self.lost.fetch_add(tasks, Ordering::Relaxed);
    }

    fn set(&self, text: String) {
        let mut known = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != text && !text.is_empty() {
            tracing::error!("{text}");
        }
        *known = text;
    }
}

/// One line where executors go so soon after their end that some have no last documents.
fn too_short(retention: Duration) -> Option<String> {
    let (seconds, least) = (retention.as_secs_f64(), RETENTION_LEAST.as_secs());
    (retention < RETENTION_LEAST).then(|| {
        format!(
            "with [retention] executors = \"{seconds}s\" executors that end may be missing in the history: set it to \"{least}s\" or more"
        )
    })
}

/// Starts the thread; it writes once more and ends after `stopped` is true.
///
/// # Errors
/// When no thread can be made.
pub fn spawn(
    settings: HistorySettings,
    shared: Arc<Shared>,
    owners: Arc<ShareOwners>,
    stopped: impl Fn() -> bool + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let retention = Duration::from_nanos(shared.state().limits().retention_ns);
    if let Some(text) = too_short(retention) {
        tracing::warn!("{text}");
    }
    let condition = Arc::new(Condition::default());
    shared.set_history(Arc::clone(&condition));
    let builder = std::thread::Builder::new().name("smtt-history".into());
    builder.spawn(move || {
        let mut writer = Writer::new(settings, shared, owners, condition);
        // An error is shown once there is something to write.
        let _ = writer.take_workers();
        while !stopped() {
            let begin = Instant::now();
            writer.round(false);
            let pause = writer.pause.take().unwrap_or(EVERY);
            while begin.elapsed() < pause && !stopped() {
                sleep(NAP.min(pause.saturating_sub(begin.elapsed())));
            }
        }
        writer.round(true);
    })
}

struct Writer {
    settings: HistorySettings,
    shared: Arc<Shared>,
    owners: Arc<ShareOwners>,
    condition: Arc<Condition>,
    host: String,
    run_ms: u64,
    workers: Option<Workers>,
    applications: BTreeMap<ApplicationKey, Known>,
    pause: Option<Duration>,
}

impl Writer {
    fn new(
        settings: HistorySettings,
        shared: Arc<Shared>,
        owners: Arc<ShareOwners>,
        condition: Arc<Condition>,
    ) -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self {
            settings,
            shared,
            owners,
            condition,
            host: host.trim().to_owned(),
            run_ms: now_unix_ns() / 1_000_000,
            workers: None,
            applications: BTreeMap::new(),
            pause: None,
        }
    }

    /// Opens the store's folder, and finds what earlier runs wrote there.
    fn take_workers(&mut self) -> io::Result<()> {
        if self.workers.is_some() {
            return Ok(());
        }
        let workers = Workers::take(
            &self.settings.store,
            &self.host,
            self.run_ms,
            self.settings.gid,
            Bounds {
                bytes: self.settings.max_bytes,
                files: self.settings.max_files,
            },
        )?;
        if self.shared.earlier().is_none() {
            let share_of = |uid| self.owners.share_of(uid);
            let earlier = Earlier::find(&workers, self.run_ms, &share_of);
            self.shared.set_earlier(earlier);
        }
        self.workers = Some(workers);
        Ok(())
    }

    /// Takes in what has ended, and writes what is due: all of it where it is the last round.
    fn round(&mut self, is_last: bool) {
        let executors = self.take_in(is_last);
        if let Err(error) = self.write_due(&executors, is_last) {
            let store = self.settings.store.display();
            self.condition
                .set(format!("the history in {store} cannot be written: {error}"));
            self.pause = Some(PAUSE);
        }
    }

    /// Adds ended tasks to those that wait. Returns the states of each application's executors.
    fn take_in(&mut self, is_last: bool) -> BTreeMap<ApplicationKey, BTreeMap<u64, ExecutorState>> {
        let settled = if is_last { 0 } else { SETTLED_NS };
        let until_ns = now_boot_ns().saturating_sub(settled);
        let mut executors: BTreeMap<ApplicationKey, BTreeMap<u64, ExecutorState>> = BTreeMap::new();
        let mut waiting = Waiting::default();
        for (application, known) in &self.applications {
            let share = self.owners.share_of(application.uid.unwrap_or_default());
            waiting.add(share, known.waiting_bytes());
        }
        // Suspends and steps of the clock since a task began shift its spans by their length.
        let boot_unix_ns = now_unix_ns().saturating_sub(now_boot_ns());
        let keys: BTreeSet<u64> = self.shared.executor_keys().into_iter().collect();
        for &key in &keys {
            let filter = Filter {
                key: Some(key),
                ..Filter::default()
            };
            let row = self.shared.state().list_executors(&filter).rows.pop();
            // A process that has not described itself, or whose user is not known yet, waits.
            let Some(row) = row.filter(|row| row.who.application_id.is_some()) else {
                continue;
            };
            let Some(uid) = row.who.uid else {
                continue;
            };
            let share = self.owners.share_of(uid);
            let application = row.who.application();
            executors
                .entry(application.clone())
                .or_default()
                .insert(key, row.state);
            let known = self
                .applications
                .entry(application)
                .or_insert_with_key(Known::of);
            for _ in 0..TASKS_OF_A_ROUND.div_ceil(TASKS_AT_A_TIME) {
                let ids = known.tasks.entry(key).or_default();
                let rows =
                    self.shared
                        .state()
                        .newly_ended_tasks(key, until_ns, TASKS_AT_A_TIME, ids);
                let is_last = rows.len() < TASKS_AT_A_TIME;
                if known.has_history {
                    for row in rows {
                        let before = known.waiting_bytes();
                        if push(known, row, boot_unix_ns, &waiting, share) {
                            let more = known.waiting_bytes().saturating_sub(before);
                            waiting.add(share, more);
                        } else {
                            known.lost += 1;
                            self.condition.add_lost(1);
                        }
                    }
                } else {
                    self.condition.add_refused(rows.len());
                }
                if is_last {
                    break;
                }
            }
        }
        for (application, known) in &mut self.applications {
            known.is_here = executors.contains_key(application);
            let none = BTreeMap::new();
            let states = executors.get(application).unwrap_or(&none);
            let lost = known.see(states, |key| keys.contains(&key));
            if lost > 0 {
                let all = &self.condition.executors_lost;
                all.fetch_add(lost, Ordering::Relaxed);
            }
        }
        executors
    }

    fn write_due(
        &mut self,
        executors: &BTreeMap<ApplicationKey, BTreeMap<u64, ExecutorState>>,
        is_last: bool,
    ) -> io::Result<()> {
        let deaths = self
            .shared
            .keeper()
            .map(|keeper| keeper.list(&smtt_model::protocol::ListQuery::default()));
        let mut of_user: BTreeMap<u32, usize> = BTreeMap::new();
        let waiting = self.applications.values().map(Known::waiting_bytes);
        let is_crowded = waiting.sum::<usize>() > WAITING_BYTES / 2;
        let due: Vec<(ApplicationKey, usize)> = self
            .applications
            .iter()
            .filter_map(|(application, known)| {
                let deaths = deaths.iter().flat_map(|deaths| &deaths.rows);
                let deaths = deaths
                    .filter(|row| row.who.application() == *application)
                    .count();
                let has_more = !known.waiting.is_empty();
                let is_full =
                    known.waiting.len() >= PART_ROWS || known.waiting_bytes() >= PART_BYTES;
                let states = executors.get(application);
                let has_changed = known.written.as_ref().is_none_or(|(before, known_deaths)| {
                    Some(before) != states || *known_deaths != deaths
                });
                let has_settled = !known.settled().is_empty()
                    && known.last.is_none_or(|last| {
                        last.elapsed() >= SETTLED_PAUSE.min(self.settings.interval)
                    });
                let has_ended = states
                    .is_none_or(|states| states.values().all(|it| *it != ExecutorState::Alive));
                let is_old = known
                    .last
                    .is_none_or(|last| last.elapsed() >= self.settings.interval);
                let pause = REFRESH.max(self.settings.interval);
                let pause = pause.max((known.took * REFRESH_SHARE).min(REFRESH_LONGEST));
                let is_stale = known.last.is_none_or(|last| last.elapsed() >= pause);
                let is_due = is_full
                    || is_crowded && has_more
                    || is_stale && !has_ended
                    || has_settled
                    || (has_more || has_changed) && (is_old || is_last)
                    || has_more && has_ended
                    || has_changed && has_ended;
                if !is_due || !known.is_here && !has_more {
                    return None;
                }
                let share = self.owners.share_of(application.uid.unwrap_or_default());
                let writes = of_user.entry(share).or_default();
                *writes += 1;
                (is_last || *writes <= WRITES).then(|| (application.clone(), deaths))
            })
            .collect();
        for (application, deaths) in due {
            let begin = Instant::now();
            let states = executors.get(&application).cloned().unwrap_or_default();
            self.write(&application, states, deaths)?;
            if let Some(known) = self.applications.get_mut(&application) {
                known.took = begin.elapsed();
            }
            if !is_last {
                sleep((begin.elapsed() * BREAK).min(EVERY));
            }
        }
        self.forget();
        Ok(())
    }

    /// Forgets applications that have left this worker, beyond [`GONE`] of them.
    fn forget(&mut self) {
        let gone = self.applications.iter();
        let gone = gone.filter(|(_, known)| !known.is_here && known.waiting.is_empty());
        let mut gone: Vec<(Option<Instant>, ApplicationKey)> = gone
            .map(|(application, known)| (known.last, application.clone()))
            .collect();
        sort_by(&mut gone, Ord::cmp);
        for (_, application) in gone.iter().take(gone.len().saturating_sub(GONE)) {
            self.applications.remove(application);
        }
    }

    /// Writes an application's waiting tasks as a part, the last documents of its ended executors as another, and its
    /// other documents anew.
    fn write(
        &mut self,
        application: &ApplicationKey,
        states: BTreeMap<u64, ExecutorState>,
        deaths: usize,
    ) -> io::Result<()> {
        self.take_workers()?;
        let Some(workers) = &mut self.workers else {
            return Ok(());
        };
        let Some(known) = self.applications.get_mut(application) else {
            return Ok(());
        };
        let (Some(id), Some(uid)) = (&application.id, application.uid) else {
            return Ok(());
        };
        let whose = Whose {
            application: id,
            attempt: application.attempt.as_deref(),
            uid,
        };
        let owners = &self.owners;
        let share_of = |uid| owners.share_of(uid);
        let mut result = Ok(());
        if !known.waiting.is_empty() {
            // A part of tasks has its functions and fetches beside it once it is there.
            let next = workers.next_part(whose, &TASKS);
            let part = *known.part.get_or_insert(next);
            for beside in [&known.functions, &known.fetches] {
                if result.is_ok() && !beside.is_empty() {
                    result = workers.add(whose, part, beside, &share_of);
                }
            }
            if result.is_ok() {
                result = workers.add(whose, part, &known.waiting, &share_of);
            }
            if result.is_ok() {
                known.rows += known.waiting.len() as u64;
                known.part = None;
                known.clear();
            }
        }
        let settled = known.settled();
        if result.is_ok() && !settled.is_empty() {
            // Rows of dead executors expire, and the other documents are replaced.
            let (batch, left_out) = documents::of_ended(&self.shared, application, &settled);
            let next = workers.next_part(whose, &REST).max(1);
            let part = *known.ended_part.get_or_insert(next);
            result = workers.add(whose, part, &batch, &share_of);
            if result.is_ok() {
                known.ended.extend(settled);
                known.ended_part = None;
                known.left_out += left_out;
            }
        }
        // Where the executors are gone, their last documents stay.
        if result.is_ok() && known.is_here {
            let about = documents::About {
                application,
                ended: &known.ended,
                left_out: known.left_out,
                host: &self.host,
                run_ms: self.run_ms,
                tasks: known.rows,
                tasks_lost: known.lost,
                executors_lost: known.executors_lost,
                files_removed: workers.removed(),
            };
            let batch = documents::of(&self.shared, &about);
            result = workers.add(whose, 0, &batch, &share_of);
        }
        match result {
            // Another `InvalidInput` is the file system's.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput && !known.has_history => {
                tracing::debug!("an application's id can be no folder: it has no history");
                known.clear();
            }
            Err(error) => {
                // The folder may have been replaced: it is opened anew.
                self.workers = None;
                return Err(error);
            }
            Ok(()) => self.condition.set(String::new()),
        }
        known.written = Some((states, deaths));
        known.last = Some(Instant::now());
        Ok(())
    }
}

/// Takes a task in where the share has room among what waits; says whether it had.
fn push(
    known: &mut Known,
    mut row: TaskRow,
    boot_unix_ns: u64,
    waiting: &Waiting,
    share: u32,
) -> bool {
    if !waiting.has_room(share, WAITING_BYTES) {
        return false;
    }
    if !waiting.has_room(share, WAITING_BYTES / 2)
        && let Some(functions) = &mut row.functions
    {
        // The rest is for tasks: a task with these has the bytes of some ten without.
        leave_out(functions);
    }
    known.push(row, boot_unix_ns);
    true
}

#[cfg(test)]
mod tests;
