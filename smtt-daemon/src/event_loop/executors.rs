//! The executors that are alive, seen from outside: their slot files, requests to tell everything again, and those
//! that ended without a word.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use smtt_common::context::{HeapAddresses, SlotHead};
use smtt_common::settings::executor_pid;
use smtt_machine::proc::host_pid;
use smtt_model::decode::PythonWorker;
use smtt_model::readings::Readings;
use smtt_model::state::SlotFileCounters;

use crate::discover::{Found, SlotFile};
use crate::probes::Probes;

/// Pause between two requests to tell everything again, in nanoseconds: losses come in bursts, and asking in the
/// middle of one adds to it.
const REQUEST_PAUSE_NS: u64 = 5_000_000_000;
/// The longest such pause. It doubles while every request ends in further losses: an executor that has more to tell than
/// the way to the daemon carries must not be kept busy with telling.
const REQUEST_PAUSE_MAX_NS: u64 = 160_000_000_000;

/// An executor with an open slot file.
#[derive(Debug)]
struct Open {
    slots: Arc<SlotFile>,
    same_namespace: bool,
    /// Facts that the marker had told before its probes were in place; they were never attempted for us.
    told_before: u64,
    asking: Asking,
}

/// When an executor is asked to tell everything again.
#[derive(Debug)]
struct Asking {
    /// Facts that were lost on the way when it was last asked.
    lost_then: u64,
    asked_ns: u64,
    /// Before it is asked again.
    pause_ns: u64,
}

impl Asking {
    /// It was asked when it was found.
    const fn new(now_ns: u64) -> Self {
        Self {
            lost_then: 0,
            asked_ns: now_ns,
            pause_ns: REQUEST_PAUSE_NS,
        }
    }

    /// Whether it is to be asked now, with so many facts lost up to now; `wanted` says that some of them were seen to be
    /// missing when it told everything again.
    const fn is_due(&self, lost: u64, wanted: bool, now_ns: u64) -> bool {
        (wanted || lost > self.lost_then) && now_ns.saturating_sub(self.asked_ns) >= self.pause_ns
    }

    /// It was asked, with so many facts lost up to now. Losses that come as soon as it may be asked again are those of
    /// the telling itself.
    fn asked(&mut self, lost: u64, now_ns: u64) {
        let since_ns = now_ns.saturating_sub(self.asked_ns);
        self.pause_ns = if since_ns < self.pause_ns.saturating_mul(2) {
            self.pause_ns.saturating_mul(2).min(REQUEST_PAUSE_MAX_NS)
        } else {
            REQUEST_PAUSE_NS
        };
        self.lost_then = lost;
        self.asked_ns = now_ns;
    }
}

/// All open executors by key.
#[derive(Debug, Default)]
pub struct Executors {
    open: BTreeMap<u64, Open>,
    requests: u64,
}

impl Executors {
    /// Gives a found executor its rows in the kernel side and asks it to tell everything again. Returns its key and
    /// the request.
    pub fn adopt(
        &mut self,
        probes: &mut Probes,
        found: Found,
        now_ns: u64,
    ) -> anyhow::Result<(u64, u64)> {
        let told_before = told_before(probes, &found);
        let executor = probes.adopt_executor(found.pid)?;
        // Not before: a thread that registers between this list and the probes would stay without a row.
        let threads = found.threads();
        // What an executor claims may not fit; then it has fewer contexts, not none.
        for thread in &threads {
            if let Err(error) = probes.adopt_thread(executor, thread.tid, thread.address) {
                tracing::warn!(
                    pid = found.pid,
                    "the executor's threads are not all traced: {error:#}"
                );
                break;
            }
            // One that ended before it got its row would leave it to whoever has the id next.
            if !Path::new(&format!("/proc/{}/task/{}", found.pid, thread.tid)).exists() {
                probes.forget_thread(thread.tid)?;
            }
        }
        for child in &found.children {
            if let Err(error) = probes.adopt_child(executor, *child) {
                tracing::warn!(
                    pid = found.pid,
                    "the executor's child processes are not all traced: {error:#}"
                );
                break;
            }
        }
        let request = self.next_request(now_ns);
        found
            .slots
            .request_resync(request)
            .context("the executor ended while it was looked at")?;
        self.open.insert(
            executor,
            Open {
                slots: Arc::new(found.slots),
                same_namespace: found.same_namespace,
                told_before,
                asking: Asking::new(now_ns),
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

    /// Requests differ from one another, from those of an earlier daemon, and from zero.
    fn next_request(&mut self, now_ns: u64) -> u64 {
        self.requests = (self.requests + 1).max(now_ns);
        self.requests
    }

    /// What each marker says in its slot file: facts that it has told since its probes were in place, and threads
    /// without a slot. Read after the kernel side's counters, so that it is never behind them; half a megabyte per
    /// executor, which takes some 50 microseconds.
    pub fn slot_counters(&self) -> Vec<(u64, SlotFileCounters)> {
        let say = |slots: &SlotFile, told_before: u64| -> std::io::Result<SlotFileCounters> {
            Ok(SlotFileCounters {
                facts_emitted: slots.facts_emitted()?.saturating_sub(told_before),
                slots_refused: slots.slots_refused()?,
            })
        };
        self.open
            .iter()
            .filter_map(|(key, open)| Some((*key, say(&open.slots, open.told_before).ok()?)))
            .collect()
    }

    /// The slot file of an executor.
    pub fn slots(&self, executor: u64) -> Option<&Arc<SlotFile>> {
        self.open.get(&executor).map(|open| &open.slots)
    }

    /// How each executor's addresses on the Java heap are known, and how many collections have begun. A read of a few
    /// words per executor.
    pub fn collections(&self) -> impl Iterator<Item = (u64, HeapAddresses, u64)> {
        self.open.iter().filter_map(|(key, open)| {
            let (way, begun) = open.slots.collections().ok()?;
            Some((*key, way, begun))
        })
    }

    /// Asks executors that lost facts on the way to tell everything again: by the kernel side's counts, and those that
    /// are `wanted` because what they told again did not come whole.
    pub fn heal(
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
            if !open.is_some_and(|open| open.asking.is_due(lost, wanted.contains(key), now_ns)) {
                continue;
            }
            let request = self.next_request(now_ns);
            if let Some(open) = self.open.get_mut(key)
                && open.slots.request_resync(request).is_ok()
            {
                tracing::info!(
                    pid = executor_pid(*key),
                    lost = lost.saturating_sub(open.asking.lost_then),
                    "facts were lost: the executor is asked to tell everything again"
                );
                open.asking.asked(lost, now_ns);
                asked.push((*key, request));
            }
        }
        asked
    }

    /// Executors whose process is gone though no record said so.
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

    /// A process of an executor is gone.
    pub fn process_gone(&mut self, executor: u64, pid: u32) {
        if executor_pid(executor) == pid {
            self.open.remove(&executor);
        }
    }

    /// Forgets an executor.
    pub fn forget(&mut self, executor: u64) {
        self.open.remove(&executor);
    }

    /// Gives a Python worker its task where the kernel side cannot: the marker knows the worker by its id in another
    /// pid namespace.
    pub fn python_worker(
        &self,
        probes: &mut Probes,
        executor: u64,
        worker: &PythonWorker,
    ) -> anyhow::Result<()> {
        if self
            .open
            .get(&executor)
            .is_none_or(|open| open.same_namespace)
        {
            return Ok(());
        }
        let inner = worker.pid;
        let pid = host_pid(executor_pid(executor), inner)
            .with_context(|| format!("no child of the executor has the id {inner}"))?;
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

/// Facts that an executor told before its probes were in place: what its marker counts less what the kernel side has
/// seen, both read while neither moves, or as nearly so as a few tries get.
fn told_before(probes: &Probes, found: &Found) -> u64 {
    const TRIES: usize = 20;
    let mut seen = probes.facts_seen(found.pid);
    for _ in 0..TRIES {
        let told = found.slots.facts_emitted().unwrap_or(0);
        let now = probes.facts_seen(found.pid);
        if now == seen {
            return told.saturating_sub(seen);
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
    fn who_loses_whenever_it_tells_everything_again_is_asked_ever_less_often() {
        let mut asking = Asking::new(0);
        let (mut lost, mut pauses, mut before) = (0, Vec::new(), 0);
        for second in 1..=600 {
            lost += 1;
            if asking.is_due(lost, false, second * S) {
                asking.asked(lost, second * S);
                pauses.push(second - before);
                before = second;
            }
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 160]);
        // Without further losses nobody asks; after a long time without any the next loss is a new burst.
        assert!(!asking.is_due(asking.lost_then, false, 2000 * S));
        assert!(asking.is_due(lost + 1, false, 2000 * S));
        asking.asked(lost + 1, 2000 * S);
        assert!(asking.is_due(lost + 2, false, 2005 * S));
        // What did not come whole is asked for without a further loss, and no sooner.
        assert!(!asking.is_due(lost + 1, true, 2004 * S));
        assert!(asking.is_due(lost + 1, true, 2005 * S));
    }
}
