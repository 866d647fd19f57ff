//! The living executors, observed from outside: their slot files, requests for a snapshot (a resync), and executors
//! whose end no record reported.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use smtt_common::context::{HeapAddresses, SlotHead};
use smtt_common::settings::executor_pid;
use smtt_machine::clock::now_boot_ns;
use smtt_machine::proc::{self, descendants_by_inner_id};
use smtt_model::decode::{ExecutorDescribed, PythonWorker};
use smtt_model::readings::Readings;
use smtt_model::state::SlotFileCounters;

use tokio::sync::mpsc;

use super::adoption::{Adopted, Adoptions};
use super::resync::{RequestWriter, ResyncRequests};
use super::searches::Searches;
use crate::complaints::{Complaints, Named};
use crate::discover::{Adoption, Found, SlotFile, ThreadSlot};
use crate::helpers::JobLimits;
use crate::probes::Probes;
use crate::timed_reads::{TimedReads, Wanted};

/// Executors whose names are kept for the log.
const NAMES: usize = 4096;
/// An executor with an open slot file.
#[derive(Debug)]
struct Open {
    slots: Arc<SlotFile>,
    user: u32,
    adoption: Adoption,
    /// Number of its pid namespace, where that is not the daemon's; 0 where it cannot be read.
    namespace: Option<u32>,
    /// Facts that the marker reported before its probes were attached. They count neither as attempted nor as lost.
    reported_before: u64,
    resync: ResyncRequests,
    workers: Workers,
}

/// Processes of an executor in another pid namespace.
#[derive(Debug, Default)]
struct Workers {
    /// Process ids, by the id in the process's own namespace.
    by_inner_id: HashMap<u32, u32>,
    /// When they may be searched again, in nanoseconds since boot.
    search_ns: u64,
}

/// Shortest time between two searches for the processes of one executor, in nanoseconds.
const SEARCH_PAUSE_NS: u64 = 50_000_000;

/// Readings of slot files at a time.
const READS: JobLimits = JobLimits {
    per_user: 8,
    all: 24,
};
/// How long a batch of records waits for readings.
const BATCH_WAIT: Duration = Duration::from_millis(20);
/// How long a tick waits for readings, for each executor besides, and at most.
const TICK_WAIT: Duration = Duration::from_millis(50);
const TICK_WAIT_EACH: Duration = Duration::from_micros(500);
const TICK_WAIT_MAX: Duration = Duration::from_secs(1);

/// What is read of a slot file; `None` where the executor has truncated it.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    counters: Option<SlotFileCounters>,
    collections: Option<(HeapAddresses, u64)>,
}

/// How a marker tracks addresses on the Java heap, and how many collections have begun, by executor.
pub type Collections = Vec<(u64, HeapAddresses, u64)>;

/// Readings of the slot files for one tick.
#[derive(Debug, Default)]
pub struct SlotReadings {
    /// Facts that the marker reported since its probes were attached, and threads without a slot.
    pub counters: Vec<(u64, SlotFileCounters)>,
    /// Collections.
    pub collections: Collections,
    /// Executors whose file was not read in time.
    pub unread: Vec<u64>,
}

/// All open executors by key.
#[derive(Debug)]
pub struct Executors {
    open: BTreeMap<u64, Open>,
    adoptions: Adoptions,
    requests: u64,
    writer: RequestWriter,
    reads: TimedReads<Reading>,
    searches: Searches,
    warnings: Complaints,
    notices: Complaints,
    /// What open executors call themselves.
    names: BTreeMap<u64, Named>,
}

impl Executors {
    /// No executors. Those whose adoption has begun are sent to `adopted`.
    pub fn new(adopted: mpsc::Sender<Adopted>) -> Self {
        Self {
            open: BTreeMap::new(),
            adoptions: Adoptions::new(adopted),
            requests: 0,
            writer: RequestWriter::default(),
            reads: TimedReads::new("smtt-slots", READS),
            searches: Searches::default(),
            warnings: Complaints::default(),
            notices: Complaints::default(),
            names: BTreeMap::new(),
        }
    }

    /// Begins to adopt a discovered executor. Where that fails, it is found again later.
    pub fn begin_adoption(&mut self, probes: &mut Probes, found: Found) {
        let (pid, adoption) = (found.pid, found.adoption());
        if let Err(error) = self.adoptions.begin(probes, found) {
            adoption.failed();
            let text = format!("process {pid} is not traced yet, and tried again: {error:#}");
            self.warnings
                .warn_about(u64::from(pid), Instant::now(), &text);
        }
    }

    /// Adds the rows of an executor's threads and children to the kernel side's tables and requests a snapshot. Returns
    /// the request where it is being written; `None` where the executor is not adopted.
    pub fn adopt(
        &mut self,
        probes: &mut Probes,
        adopted: Adopted,
        now_ns: u64,
    ) -> Option<Option<u64>> {
        let Adopted {
            executor,
            found,
            threads,
            reported_before,
        } = adopted;
        if !found.is_alive() {
            return None;
        }
        let adoption = found.adoption();
        if !probes.is_traced(executor) {
            self.not_traced(executor, &adoption);
            return None;
        }
        let rows = add_rows(probes, executor, &found, &threads);
        if let Err(error) = rows {
            let text = format!(
                "some threads or child processes of process {} are not traced: {error:#}",
                found.pid
            );
            self.warnings
                .warn_about(u64::from(found.pid), Instant::now(), &text);
        }
        let text = format!(
            "executor found: process {} with {} threads and {} child processes",
            found.pid,
            threads.len(),
            found.children.len()
        );
        self.notices.note(Instant::now(), &text);
        let open = Open {
            slots: Arc::new(found.slots),
            user: found.user,
            adoption,
            namespace: found.namespace,
            reported_before,
            resync: ResyncRequests::new(now_ns),
            workers: Workers::default(),
        };
        self.open.insert(executor, open);
        Some(self.request(executor, 0, now_ns))
    }

    /// Requests a snapshot; `None` where the request cannot be written now.
    fn request(&mut self, executor: u64, lost: u64, now_ns: u64) -> Option<u64> {
        let request = self.next_request(now_ns);
        let open = self.open.get_mut(&executor)?;
        let slots = Arc::clone(&open.slots);
        let write = move || slots.request_resync(request);
        if !self.writer.write(executor, open.user, write) {
            return None;
        }
        open.resync.record_request(lost, now_ns);
        Some(request)
    }

    /// A request that differs from all others, from those of an earlier daemon, and from zero.
    fn next_request(&mut self, now_ns: u64) -> u64 {
        self.requests = (self.requests + 1).max(now_ns);
        self.requests
    }

    /// Reads the slot files for a tick. Call it after the kernel side's counters are read, so that the markers' counts
    /// are never behind them. A read of half a megabyte per executor takes some 50 microseconds.
    pub fn read_slots(&mut self) -> SlotReadings {
        self.adoptions.give_back();
        let wanted = self.open.iter().map(|(key, open)| {
            let (slots, reported_before) = (Arc::clone(&open.slots), open.reported_before);
            let read = move || Reading {
                counters: counters(&slots, reported_before).ok(),
                collections: slots.collections().ok(),
            };
            (*key, open.user, Box::new(read) as _)
        });
        let mut wanted: Vec<Wanted<Reading>> = wanted.collect();
        // Where time does not suffice for all, the next tick begins with others.
        let all = wanted.len();
        wanted.rotate_left((self.reads.rounds() as usize).checked_rem(all).unwrap_or(0));
        let each = TICK_WAIT_EACH * u32::try_from(all).unwrap_or(u32::MAX);
        let wait = (TICK_WAIT + each).min(TICK_WAIT_MAX);
        let read = self.reads.read(wanted, wait);
        let mut readings = SlotReadings {
            unread: self.reads.unread().iter().copied().collect(),
            ..SlotReadings::default()
        };
        for (key, reading) in read {
            readings
                .counters
                .extend(reading.counters.map(|counters| (key, counters)));
            match reading.collections {
                Some((tracking, begun)) => readings.collections.push((key, tracking, begun)),
                None => readings.unread.push(key),
            }
        }
        readings
    }

    /// Reads how the markers of these executors track addresses on the Java heap, and how many collections have begun: a
    /// few words per executor. The second list has the executors for which that is unknown.
    pub fn collections(&mut self, of: &BTreeSet<u64>) -> (Collections, Vec<u64>) {
        let wanted = of.iter().filter_map(|key| {
            let open = self.open.get(key)?;
            let slots = Arc::clone(&open.slots);
            let read = move || Reading {
                counters: None,
                collections: slots.collections().ok(),
            };
            Some((*key, open.user, Box::new(read) as _))
        });
        let wanted: Vec<Wanted<Reading>> = wanted.collect();
        if wanted.is_empty() {
            return Default::default();
        }
        let read = self.reads.read(wanted, BATCH_WAIT);
        let mut unread: Vec<u64> = self.reads.unread().iter().copied().collect();
        let mut collections = Vec::with_capacity(read.len());
        for (key, reading) in read {
            match reading.collections {
                Some((tracking, begun)) => collections.push((key, tracking, begun)),
                None => unread.push(key),
            }
        }
        (collections, unread)
    }

    /// Logs a warning about an executor, within the limits of the log.
    pub fn warn_about(&mut self, executor: u64, now: Instant, text: &str) {
        let pid = u64::from(executor_pid(executor));
        self.warnings.warn_about(pid, now, text);
    }

    /// Readings of slot files that were not made in time since the start.
    pub const fn missed_readings(&self) -> u64 {
        self.reads.missed()
    }

    /// Number of adoptions that hang.
    pub fn hanging_adoptions(&self) -> usize {
        self.adoptions.hanging()
    }

    /// Logs an executor that describes itself, once.
    pub fn described(&mut self, executor: u64, said: &ExecutorDescribed) {
        let name = Named::new(said);
        let known = self.names.get(&executor);
        if known == Some(&name) || (known.is_none() && self.names.len() >= NAMES) {
            return;
        }
        let pid = executor_pid(executor);
        let text = format!("executor described itself: process {pid}");
        self.notices.note_of(Instant::now(), &name, &text);
        self.names.insert(executor, name);
    }

    /// The slot file of an executor.
    pub fn slots(&self, executor: u64) -> Option<&Arc<SlotFile>> {
        self.open.get(&executor).map(|open| &open.slots)
    }

    /// Requests a snapshot from executors that lost facts by the kernel side's counts, and from the `wanted` ones,
    /// whose last snapshot was incomplete.
    pub fn request_lost_facts(
        &mut self,
        readings: &Readings,
        wanted: &BTreeSet<u64>,
        now_ns: u64,
    ) -> Vec<(u64, u64)> {
        let mut asked = Vec::new();
        for (key, counters) in &readings.executors {
            let lost =
                counters.facts_ring_full + counters.facts_rate_limited + counters.facts_unreadable;
            let open = self.open.get(key);
            if !open.is_some_and(|open| open.resync.is_due(lost, wanted.contains(key), now_ns)) {
                continue;
            }
            let before = open.map_or(0, |open| open.resync.lost_at_request);
            let Some(request) = self.request(*key, lost, now_ns) else {
                continue;
            };
            asked.push((*key, request));
            let text = format!(
                "{} facts of process {} were lost: it is asked for a snapshot",
                lost.saturating_sub(before),
                executor_pid(*key)
            );
            match self.names.get(key) {
                Some(name) => self.notices.note_of(Instant::now(), name, &text),
                None => self.notices.note(Instant::now(), &text),
            }
        }
        asked
    }

    /// Executors whose process is gone although no record reported its exit.
    pub fn dead(&mut self) -> Vec<u64> {
        let dead: Vec<u64> = self
            .open
            .keys()
            .copied()
            .filter(|key| !proc::exists(executor_pid(*key)))
            .collect();
        for key in &dead {
            self.forget(*key);
        }
        dead
    }

    /// Closes the executor's slot file if the process that ended is its JVM.
    pub fn process_gone(&mut self, executor: u64, pid: u32) {
        if executor_pid(executor) == pid {
            self.forget(executor);
        } else if let Some(open) = self.open.get_mut(&executor) {
            open.workers.by_inner_id.retain(|_, known| *known != pid);
        }
    }

    /// Forgets an executor without rows in the state. One that lives is found again later.
    pub fn evicted(&mut self, executor: u64) {
        let open = self.open.get(&executor);
        let adoption = open.map(|open| open.adoption.clone());
        self.forget(executor);
        if let Some(adoption) = adoption.filter(|_| proc::exists(executor_pid(executor))) {
            self.not_traced(executor, &adoption);
        }
    }

    /// A living executor has lost its rows.
    fn not_traced(&mut self, executor: u64, adoption: &Adoption) {
        adoption.evicted();
        let text = format!(
            "process {} is not traced for a while, because the daemon needs its rows for executors of others: raise [limits] executors or state",
            executor_pid(executor)
        );
        self.warn_about(executor, Instant::now(), &text);
    }

    /// Forgets an executor.
    pub fn forget(&mut self, executor: u64) {
        self.open.remove(&executor);
        self.names.remove(&executor);
        self.reads.forget(executor);
    }

    /// Sets the task of a Python worker where the kernel side cannot: in another pid namespace the marker reports an id
    /// that is not the worker's id on the host. The ids are searched when an unknown one comes, within limits: the
    /// executor chooses how often it reports a worker, and which.
    pub fn python_worker(
        &mut self,
        probes: &mut Probes,
        executor: u64,
        worker: &PythonWorker,
    ) -> anyhow::Result<()> {
        let Some(open) = self.open.get_mut(&executor) else {
            return Ok(());
        };
        let Some(namespace) = open.namespace else {
            return Ok(());
        };
        let inner = worker.pid;
        if probes.knows_inner_id(executor, inner, namespace)? {
            return Ok(());
        }
        let workers = &mut open.workers;
        let begin = now_boot_ns();
        if !workers.by_inner_id.contains_key(&inner)
            && begin >= workers.search_ns
            && self.searches.may_begin(open.user, begin)
        {
            workers.by_inner_id = descendants_by_inner_id(executor_pid(executor));
            let end = now_boot_ns();
            workers.search_ns = end + SEARCH_PAUSE_NS;
            self.searches.record(open.user, begin, end);
        }
        let pid = *workers.by_inner_id.get(&inner).with_context(|| {
            format!("no child of the executor has the id {inner}, or too many are reported")
        })?;
        let context = worker
            .task_attempt_id
            .map_or_else(SlotHead::default, |task_attempt_id| SlotHead {
                hot: worker.hot,
                task_attempt_id,
                stage_id: worker.stage_id.unwrap_or(u32::MAX),
                stage_attempt: worker.stage_attempt,
            });
        probes.set_worker_context(executor, pid, context)
    }
}

/// Adds rows of threads and children to the kernel side's tables.
///
/// # Errors
/// When some have no row: the executor's claims may exceed its share.
fn add_rows(
    probes: &mut Probes,
    executor: u64,
    found: &Found,
    threads: &[ThreadSlot],
) -> anyhow::Result<()> {
    let with_threads = threads.iter().try_for_each(|thread| {
        probes.adopt_thread(executor, thread.tid, thread.address, thread.heap)?;
        // If the thread ended before its row was added, the next thread with this id would inherit the row.
        if proc::thread_exists(found.pid, thread.tid) {
            return Ok(());
        }
        probes.forget_thread(thread.tid, executor)
    });
    let mut children = found.children.iter();
    // A child that has ended meanwhile gets no row.
    let with_children =
        children.try_for_each(|child| probes.adopt_child(executor, *child).map(|_| ()));
    with_threads.and(with_children)
}

fn counters(slots: &SlotFile, reported_before: u64) -> std::io::Result<SlotFileCounters> {
    Ok(SlotFileCounters {
        facts_emitted: slots.facts_emitted()?.saturating_sub(reported_before),
        slots_refused: slots.slots_refused()?,
    })
}
