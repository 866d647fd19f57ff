//! Writes what this worker knows of applications to a store of finished applications: tasks as they end, everything else
//! when something of an application has ended. docs/HISTORY.md has the tables.
//!
//! One thread reads the state, one executor at a time, and writes. The event loop never waits for it. A store that is
//! full, read-only or frozen delays the files: tasks wait in memory within [`WAITING_BYTES`], then they are lost, counted
//! by application.

mod documents;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use smtt_config::HistorySettings;
use smtt_machine::clock::{now_boot_ns, now_unix_ns};
use smtt_model::rows::{ApplicationKey, ExecutorState, FetchRow, Filter, FunctionRow, TaskRow};
use smtt_store::history::batch::{Batch, Cell};
use smtt_store::history::workers::{Bounds, FETCHES, FUNCTIONS, TASKS, Whose, Workers};

use crate::shared::Shared;
use crate::subordinate::ShareOwners;

/// Interval of the snapshots of the state.
const EVERY: Duration = Duration::from_secs(2);
/// Longest sleep before the thread checks whether the daemon is stopping.
const NAP: Duration = Duration::from_millis(250);
/// Age of an end: what the kernel and the marker report about a task or a death has arrived then.
const SETTLED_NS: u64 = 3_000_000_000;
/// Tasks of an executor that are read at a time.
const TASKS_AT_A_TIME: usize = 1_000;
/// Tasks that are written at once, however little time has passed.
const PART_ROWS: usize = 1_000;
/// Bytes of text with which a part is written at once.
const PART_BYTES: usize = 4 << 20;
/// Bytes of all tasks that wait for the store.
const WAITING_BYTES: usize = 24 << 20;
/// Bytes of a function or of a fetch that waits, without texts.
const FUNCTION_BYTES: usize = 104;
/// Applications of one user that are written in a round; others wait for the next one.
const WRITES: usize = 8;
/// Pause after a failed write.
const PAUSE: Duration = Duration::from_secs(5);
/// After a write the thread sleeps this many times as long as it took: writing takes a quarter of one CPU at most.
const REST: u32 = 3;

/// How the writing goes, for `smtt-ctl status` and the metrics.
#[derive(Debug, Default)]
pub struct Condition {
    failing: Mutex<String>,
    lost: AtomicU64,
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

    /// Tasks that the history does not have.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
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
    let condition = Arc::new(Condition::default());
    shared.set_history(Arc::clone(&condition));
    let builder = std::thread::Builder::new().name("smtt-history".into());
    builder.spawn(move || {
        let mut writer = Writer::new(settings, shared, owners, condition);
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

/// What is known of one application.
struct Known {
    /// Tasks of each executor that are written or wait, as far as the state has them.
    tasks: BTreeMap<u64, BTreeSet<u64>>,
    waiting: Batch,
    /// Functions of those that wait.
    functions: Batch,
    /// Requests for shuffle blocks of those that wait.
    fetches: Batch,
    /// Parts of tasks so far.
    parts: u32,
    rows: u64,
    lost: u64,
    /// Executors with their states, and deaths, at the last write.
    written: Option<(BTreeMap<u64, ExecutorState>, usize)>,
    last: Option<Instant>,
    is_here: bool,
}

impl Known {
    fn new() -> Self {
        Self {
            tasks: BTreeMap::new(),
            waiting: Batch::new(&TASKS),
            functions: Batch::new(&FUNCTIONS),
            fetches: Batch::new(&FETCHES),
            parts: 0,
            rows: 0,
            lost: 0,
            written: None,
            last: None,
            is_here: true,
        }
    }

    /// Bytes of what waits, nearly.
    fn waiting_bytes(&self) -> usize {
        let parts = [&self.functions, &self.fetches];
        let parts = parts.map(|it| it.text_bytes() + it.len() * FUNCTION_BYTES);
        self.waiting.text_bytes() + parts.iter().sum::<usize>()
    }

    /// Adds an ended task with its functions and fetches.
    fn push(&mut self, mut row: TaskRow, boot_unix_ns: u64) {
        let (spans, fetches) = match &mut row.functions {
            Some(functions) => (
                std::mem::take(&mut functions.spans),
                std::mem::take(&mut functions.fetches),
            ),
            None => (Vec::new(), Vec::new()),
        };
        let begin = row.functions.as_ref().map_or(0, |it| it.begin_ns);
        let begin_ns = boot_unix_ns.saturating_add(begin);
        for span in &spans {
            push_function(&mut self.functions, &row, span, begin_ns);
        }
        for fetch in &fetches {
            push_fetch(&mut self.fetches, &row, fetch, begin_ns);
        }
        push(&mut self.waiting, &row);
    }

    /// Nothing waits any more.
    fn clear(&mut self) {
        self.waiting = Batch::new(&TASKS);
        self.functions = Batch::new(&FUNCTIONS);
        self.fetches = Batch::new(&FETCHES);
    }
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
        let mut waiting: usize = self.applications.values().map(Known::waiting_bytes).sum();
        // Suspends and steps of the clock since a task began shift its spans by their length.
        let boot_unix_ns = now_unix_ns().saturating_sub(now_boot_ns());
        for key in self.shared.executor_keys() {
            let filter = Filter {
                key: Some(key),
                ..Filter::default()
            };
            let row = self.shared.state().list_executors(&filter).rows.pop();
            // A process that has not described itself, or whose user is not known yet, waits.
            let Some(row) = row.filter(|row| row.who.application_id.is_some()) else {
                continue;
            };
            if row.who.uid.is_none() {
                continue;
            }
            let application = row.who.application();
            executors
                .entry(application.clone())
                .or_default()
                .insert(key, row.state);
            let known = self
                .applications
                .entry(application)
                .or_insert_with(Known::new);
            let ids = known.tasks.entry(key).or_default();
            let rows = self
                .shared
                .state()
                .newly_ended_tasks(key, until_ns, TASKS_AT_A_TIME, ids);
            for mut row in rows {
                if waiting > WAITING_BYTES {
                    known.lost += 1;
                    self.condition.add_lost(1);
                    continue;
                }
                if waiting > WAITING_BYTES / 2
                    && let Some(functions) = &mut row.functions
                {
                    // The rest is for tasks: a task with its requests has the bytes of some ten without.
                    let left_out = std::mem::take(&mut functions.fetches).len() as u64;
                    if let Some(fetched) = &mut functions.fetched {
                        fetched.left_out += left_out;
                    }
                }
                waiting -= known.waiting_bytes();
                known.push(row, boot_unix_ns);
                waiting += known.waiting_bytes();
            }
        }
        for (application, known) in &mut self.applications {
            known.is_here = executors.contains_key(application);
            if let Some(executors) = executors.get(application) {
                known.tasks.retain(|key, _| executors.contains_key(key));
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
                let has_ended = states
                    .is_none_or(|states| states.values().all(|it| *it != ExecutorState::Alive));
                let is_old = known
                    .last
                    .is_none_or(|last| last.elapsed() >= self.settings.interval);
                let is_due = is_full
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
            if !is_last {
                sleep((begin.elapsed() * REST).min(EVERY));
            }
        }
        self.applications
            .retain(|_, known| known.is_here || !known.waiting.is_empty());
        Ok(())
    }

    /// Writes an application's waiting tasks as a part, and its documents anew.
    fn write(
        &mut self,
        application: &ApplicationKey,
        states: BTreeMap<u64, ExecutorState>,
        deaths: usize,
    ) -> io::Result<()> {
        let workers = match &mut self.workers {
            Some(workers) => workers,
            none => none.insert(Workers::take(
                &self.settings.store,
                &self.host,
                self.run_ms,
                self.settings.gid,
                Bounds {
                    bytes: self.settings.max_bytes,
                    files: self.settings.max_files,
                },
            )?),
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
            for beside in [&known.functions, &known.fetches] {
                if result.is_ok() && !beside.is_empty() {
                    result = workers.add(whose, known.parts, beside, &share_of);
                }
            }
            if result.is_ok() {
                result = workers.add(whose, known.parts, &known.waiting, &share_of);
            }
            if result.is_ok() {
                known.rows += known.waiting.len() as u64;
                known.parts += 1;
                known.clear();
            }
        }
        // Where the executors are gone, their last documents stay.
        if result.is_ok() && known.is_here {
            let about = documents::About {
                application,
                host: &self.host,
                run_ms: self.run_ms,
                tasks: known.rows,
                tasks_lost: known.lost,
                files_removed: workers.removed(),
            };
            let batch = documents::of(&self.shared, &about);
            result = workers.add(whose, 0, &batch, &share_of);
        }
        match result {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                tracing::debug!("an application's id can be no folder: it has no history");
                let lost = known.waiting.len() as u64;
                known.lost += lost;
                self.condition.add_lost(lost);
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

fn number(value: Option<u64>) -> Cell<'static> {
    Cell::optional(value.map(|value| i64::try_from(value).unwrap_or(i64::MAX)))
}

fn optional(text: Option<&str>) -> Cell<'_> {
    text.map_or(Cell::None, Cell::Text)
}

/// Adds a span of a task that began at `begin_ns` since 1970 as a row of [`FUNCTIONS`].
fn push_function(batch: &mut Batch, row: &TaskRow, span: &FunctionRow, begin_ns: u64) {
    batch.push(&[
        number(row.stage_id.map(u64::from)),
        number(row.stage_attempt.map(u64::from)),
        number(row.task_attempt_id),
        optional(row.who.executor_id.as_deref()),
        Cell::Text(&span.thread),
        number(Some(span.tid.into())),
        Cell::Text(&span.activity),
        optional(span.function.as_deref()),
        number(Some(begin_ns.saturating_add(span.begin_ns) / 1000)),
        number(Some(span.begin_ns)),
        number(Some(span.duration_ns)),
        number(Some(span.own_ns)),
        number(span.rdd_id.map(u64::from)),
    ]);
}

/// Adds a request of a task that began at `begin_ns` since 1970 as a row of [`FETCHES`].
fn push_fetch(batch: &mut Batch, row: &TaskRow, fetch: &FetchRow, begin_ns: u64) {
    batch.push(&[
        number(row.stage_id.map(u64::from)),
        number(row.stage_attempt.map(u64::from)),
        number(row.task_attempt_id),
        optional(row.who.executor_id.as_deref()),
        optional(fetch.address.as_deref()),
        optional(fetch.executor_id.as_deref()),
        number(Some(begin_ns.saturating_add(fetch.begin_ns) / 1000)),
        number(Some(fetch.begin_ns)),
        number(Some(fetch.duration_ns)),
        number(Some(fetch.blocks)),
        number(Some(fetch.bytes)),
        Cell::Text(&fetch.outcome),
    ]);
}

/// Adds a task as a row of [`TASKS`].
fn push(batch: &mut Batch, row: &TaskRow) {
    let Ok(json) = serde_json::to_string(row) else {
        return;
    };
    let state = serde_json::to_value(row.state).unwrap_or_default();
    batch.push(&[
        number(row.stage_id.map(u64::from)),
        number(row.stage_attempt.map(u64::from)),
        number(row.task_attempt_id),
        optional(row.who.executor_id.as_deref()),
        Cell::Text(state.as_str().unwrap_or_default()),
        number(row.duration_ns),
        number(row.faults.page_faults),
        number(Some(row.execution_memory_peak_bytes)),
        number(row.used.cpu_ns),
        number(row.used.heap_allocated_bytes),
        Cell::Text(&json),
    ]);
}

#[cfg(test)]
mod tests;
