//! The living executors, observed from outside: their slot files, requests for a snapshot (a resync), and executors
//! whose end no record reported.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use anyhow::{Context as _, ensure};
use smtt_common::context::{HeapAddresses, SlotHead};
use smtt_common::settings::executor_pid;
use smtt_machine::clock::now_boot_ns;
use smtt_machine::proc::descendants_by_inner_id;
use smtt_model::decode::PythonWorker;
use smtt_model::readings::Readings;
use smtt_model::state::SlotFileCounters;

use crate::discover::{Found, SlotFile};
use crate::probes::Probes;

/// Pause between two resync requests, in nanoseconds: losses come in bursts, and a request during a burst adds to it.
const REQUEST_PAUSE_NS: u64 = 5_000_000_000;
/// The longest such pause. The pause doubles while each resync loses facts again: an executor whose snapshot exceeds
/// the rate limit must not spend its time on reporting.
const REQUEST_PAUSE_MAX_NS: u64 = 160_000_000_000;

/// An executor with an open slot file.
#[derive(Debug)]
struct Open {
    slots: Arc<SlotFile>,
    same_namespace: bool,
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
/// A search reads all of `/proc` on the event loop. All executors together may search for one part of the time in this
/// many.
const SEARCH_SHARE: u64 = 20;

/// Decides when an executor is asked for a snapshot.
#[derive(Debug)]
struct ResyncRequests {
    /// Facts lost in transit up to the last request.
    lost_at_request: u64,
    requested_ns: u64,
    /// Shortest time from the last request to the next.
    pause_ns: u64,
}

impl ResyncRequests {
    /// Discovery has sent the first request.
    const fn new(now_ns: u64) -> Self {
        Self {
            lost_at_request: 0,
            requested_ns: now_ns,
            pause_ns: REQUEST_PAUSE_NS,
        }
    }

    /// Whether a request is due now that `lost` facts have been lost in total. `wanted`: the last snapshot was
    /// incomplete.
    const fn is_due(&self, lost: u64, wanted: bool, now_ns: u64) -> bool {
        (wanted || lost > self.lost_at_request)
            && now_ns.saturating_sub(self.requested_ns) >= self.pause_ns
    }

    /// Records that a request was sent when `lost` facts had been lost in total. If the pause has only just passed, the
    /// resync itself caused the losses.
    fn record_request(&mut self, lost: u64, now_ns: u64) {
        let since_ns = now_ns.saturating_sub(self.requested_ns);
        self.pause_ns = if since_ns < self.pause_ns.saturating_mul(2) {
            self.pause_ns.saturating_mul(2).min(REQUEST_PAUSE_MAX_NS)
        } else {
            REQUEST_PAUSE_NS
        };
        self.lost_at_request = lost;
        self.requested_ns = now_ns;
    }
}

/// Requests that wait to be written.
const REQUESTS_MAX: usize = 1024;

/// Writes requests into slot files, on a thread of its own: an executor can keep its file locked for seconds, by having
/// the kernel allocate or free a large part of it.
#[derive(Debug)]
struct RequestWriter(SyncSender<(Arc<SlotFile>, u64)>);

impl Default for RequestWriter {
    fn default() -> Self {
        let (requests, waiting) = sync_channel::<(Arc<SlotFile>, u64)>(REQUESTS_MAX);
        let write = move || {
            for (slots, request) in waiting {
                // An executor that has ended needs no request.
                let _ = slots.request_resync(request);
            }
        };
        if let Err(error) = std::thread::Builder::new()
            .name("smtt-resync".into())
            .spawn(write)
        {
            tracing::error!("executors are not asked for snapshots: no thread for it: {error}");
        }
        Self(requests)
    }
}

impl RequestWriter {
    /// Whether the request will be written.
    fn write(&self, slots: &Arc<SlotFile>, request: u64) -> bool {
        self.0.try_send((Arc::clone(slots), request)).is_ok()
    }
}

/// All open executors by key.
#[derive(Debug, Default)]
pub struct Executors {
    open: BTreeMap<u64, Open>,
    requests: u64,
    writer: RequestWriter,
    /// When any executor's processes may be searched again, in nanoseconds since boot.
    search_ns: u64,
}

impl Executors {
    /// Adds the rows of a discovered executor to the kernel side's tables and requests a snapshot. Returns the
    /// executor's key and the request.
    pub fn adopt(
        &mut self,
        probes: &mut Probes,
        found: Found,
        now_ns: u64,
    ) -> anyhow::Result<(u64, u64)> {
        let reported_before = reported_before(probes, &found);
        let executor = probes.adopt_found(found.pid, found.handle())?;
        // Not before: a thread that registers between this list and the probes would stay without a row.
        let threads = found.threads();
        // The executor's claims may exceed its share. Then some of its threads have no context.
        for thread in &threads {
            if let Err(error) = probes.adopt_thread(executor, thread.tid, thread.address) {
                tracing::warn!(
                    pid = found.pid,
                    "some threads of the executor are not traced: {error:#}"
                );
                break;
            }
            // If the thread ended before its row was added, the next thread with this id would inherit the row.
            if !Path::new(&format!("/proc/{}/task/{}", found.pid, thread.tid)).exists() {
                probes.forget_thread(thread.tid)?;
            }
        }
        for child in &found.children {
            if let Err(error) = probes.adopt_child(executor, *child) {
                tracing::warn!(
                    pid = found.pid,
                    "some child processes of the executor are not traced: {error:#}"
                );
                break;
            }
        }
        let request = self.next_request(now_ns);
        let slots = Arc::new(found.slots);
        ensure!(
            self.writer.write(&slots, request),
            "process {} is not asked for a snapshot: too many requests wait",
            found.pid
        );
        self.open.insert(
            executor,
            Open {
                slots,
                same_namespace: found.same_namespace,
                reported_before,
                resync: ResyncRequests::new(now_ns),
                workers: Workers::default(),
            },
        );
        tracing::info!(
            pid = found.pid,
            threads = threads.len(),
            children = found.children.len(),
            "executor found"
        );
        Ok((executor, request))
    }

    /// A request that differs from all others, from those of an earlier daemon, and from zero.
    fn next_request(&mut self, now_ns: u64) -> u64 {
        self.requests = (self.requests + 1).max(now_ns);
        self.requests
    }

    /// The counters in each slot file: facts that the marker reported since its probes were attached, and threads
    /// without a slot. They must be read after the kernel side's counters, so that they are never behind them. A read
    /// of half a megabyte per executor takes some 50 microseconds.
    pub fn slot_counters(&self) -> Vec<(u64, SlotFileCounters)> {
        let say = |slots: &SlotFile, reported_before: u64| -> std::io::Result<SlotFileCounters> {
            Ok(SlotFileCounters {
                facts_emitted: slots.facts_emitted()?.saturating_sub(reported_before),
                slots_refused: slots.slots_refused()?,
            })
        };
        self.open
            .iter()
            .filter_map(|(key, open)| Some((*key, say(&open.slots, open.reported_before).ok()?)))
            .collect()
    }

    /// The slot file of an executor.
    pub fn slots(&self, executor: u64) -> Option<&Arc<SlotFile>> {
        self.open.get(&executor).map(|open| &open.slots)
    }

    /// How each marker tracks addresses on the Java heap, and how many collections have begun. Reads a few words per
    /// executor.
    pub fn collections(&self) -> impl Iterator<Item = (u64, HeapAddresses, u64)> {
        self.open.iter().filter_map(|(key, open)| {
            let (tracking, begun) = open.slots.collections().ok()?;
            Some((*key, tracking, begun))
        })
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
            let request = self.next_request(now_ns);
            if let Some(open) = self.open.get_mut(key)
                && self.writer.write(&open.slots, request)
            {
                tracing::info!(
                    pid = executor_pid(*key),
                    lost = lost.saturating_sub(open.resync.lost_at_request),
                    "facts were lost: the executor is asked for a snapshot"
                );
                open.resync.record_request(lost, now_ns);
                asked.push((*key, request));
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
            .filter(|key| !Path::new(&format!("/proc/{}", executor_pid(*key))).exists())
            .collect();
        for key in &dead {
            self.open.remove(key);
        }
        dead
    }

    /// Closes the executor's slot file if the process that ended is its JVM.
    pub fn process_gone(&mut self, executor: u64, pid: u32) {
        if executor_pid(executor) == pid {
            self.open.remove(&executor);
        } else if let Some(open) = self.open.get_mut(&executor) {
            open.workers.by_inner_id.retain(|_, known| *known != pid);
        }
    }

    /// Forgets an executor.
    pub fn forget(&mut self, executor: u64) {
        self.open.remove(&executor);
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
        if open.same_namespace {
            return Ok(());
        }
        let inner = worker.pid;
        let workers = &mut open.workers;
        let begin = now_boot_ns();
        if !workers.by_inner_id.contains_key(&inner)
            && begin >= workers.search_ns.max(self.search_ns)
        {
            workers.by_inner_id = descendants_by_inner_id(executor_pid(executor));
            let end = now_boot_ns();
            workers.search_ns = end + SEARCH_PAUSE_NS;
            self.search_ns = end + SEARCH_SHARE * (end - begin);
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

/// Facts that an executor reported before its probes were attached: the marker's count minus the kernel side's count.
/// The difference is valid only if the kernel side's count did not change between the two reads, so the reads are
/// retried.
fn reported_before(probes: &Probes, found: &Found) -> u64 {
    const TRIES: usize = 20;
    let mut seen = probes.facts_seen(found.pid);
    for _ in 0..TRIES {
        let reported = found.slots.facts_emitted().unwrap_or(0);
        let now = probes.facts_seen(found.pid);
        if now == seen {
            return reported.saturating_sub(seen);
        }
        seen = now;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn the_pause_doubles_while_every_resync_loses_facts() {
        let mut resync = ResyncRequests::new(0);
        let (mut lost, mut pauses, mut before) = (0, Vec::new(), 0);
        for second in 1..=600 {
            lost += 1;
            if resync.is_due(lost, false, second * S) {
                resync.record_request(lost, second * S);
                pauses.push(second - before);
                before = second;
            }
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 160]);
        // Without further losses no request is due. After a long time without losses the next loss is a new burst.
        assert!(!resync.is_due(resync.lost_at_request, false, 2000 * S));
        assert!(resync.is_due(lost + 1, false, 2000 * S));
        resync.record_request(lost + 1, 2000 * S);
        assert!(resync.is_due(lost + 2, false, 2005 * S));
        // An incomplete snapshot is requested again without a further loss, but after the same pause.
        assert!(!resync.is_due(lost + 1, true, 2004 * S));
        assert!(resync.is_due(lost + 1, true, 2005 * S));
    }
}
