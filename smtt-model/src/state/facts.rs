//! What each fact of an executor changes: one match over all facts.

use smtt_common::context::Activity;
use smtt_common::counter::ContextKey;

use super::bytes::{Caps, HeapBytes as _, tree_entry_bytes};
use super::python::Served;
use super::resync::End;
use super::{Executor, Outcome};
use crate::attribute::{Attribution, RddKey, StageKey};
use crate::decode::{Event, Fact};

/// Maximum number of threads, and of Python workers, that are kept by id per executor.
const IDS_MAX: usize = 8192;

impl Executor {
    /// Applies one fact.
    pub(super) fn apply(&mut self, event: Event, caps: &Caps) -> Outcome {
        let now_ns = event.time_ns;
        // The kernel side's own facts add nothing that the executor holds. Its children may cause any number of them.
        let adds = !matches!(
            event.fact,
            Fact::ProcessForked { .. }
                | Fact::ProcessGone { .. }
                | Fact::TaskUsed(_)
                | Fact::WorkerUsed(_)
                | Fact::SignalSent(_)
                | Fact::OomKilled(_)
                | Fact::FaultSample { .. }
                | Fact::WalkSample { .. }
        );
        self.fact_counts.count(&event.fact);
        self.resync.see(&event);
        self.note(&event, caps);
        let outcome = self.apply_living(event, caps);
        if self.died_ns.is_some() {
            // Sent before the executor's end and received after it: the executor holds and runs nothing any more.
            if adds {
                self.let_go(now_ns, caps);
            } else {
                self.children.clear();
            }
        }
        outcome
    }

    fn apply_living(&mut self, event: Event, caps: &Caps) -> Outcome {
        let (now_ns, tid) = (event.time_ns, event.tid);
        match event.fact {
            Fact::ExecutorDescribed(described) => {
                self.heap.described(described.flags);
                if !caps.admit(described.heap_bytes()) {
                    return Outcome::OverCap("bytes");
                }
                let before = self.described.as_ref();
                if before.is_some_and(|before| before.application_id != described.application_id) {
                    self.tasks.jobs.clear();
                }
                self.described = Some(*described);
            }
            Fact::ThreadRegistered(thread) => {
                if !self.threads.contains(&thread.tid) {
                    if self.threads.len() >= IDS_MAX {
                        return Outcome::OverCap("threads");
                    }
                    if !caps.admit(tree_entry_bytes(size_of::<u32>())) {
                        return Outcome::OverCap("bytes");
                    }
                }
                self.threads.insert(thread.tid);
            }
            Fact::ThreadGone(thread) => {
                self.threads.remove(&thread.tid);
            }
            Fact::RddDescribed(described) => {
                let full = if self.rdds.len() < caps.rdds_per_executor {
                    "bytes"
                } else {
                    "rdds"
                };
                let (mut rdd, over) = self.rdd(RddKey::Id(described.rdd_id), now_ns, caps);
                if over {
                    return Outcome::OverCap(full);
                }
                if !caps.admit(described.heap_bytes()) {
                    return Outcome::OverCap("bytes");
                }
                rdd.described = Some(*described);
            }
            Fact::StageDescribed(described) => {
                let key = StageKey::new(described.stage_id, described.stage_attempt);
                let full = self.tasks.stages_full(caps);
                let Some(mut stage) = self.tasks.stage(key, caps) else {
                    return Outcome::OverCap(full);
                };
                stage.last_active_ns = now_ns;
                if !caps.admit(described.heap_bytes()) {
                    return Outcome::OverCap("bytes");
                }
                stage.described = Some(described);
            }
            Fact::JobDescribed(job) => {
                if !self.tasks.jobs.describe(job, caps) {
                    return Outcome::OverCap("bytes");
                }
            }
            Fact::TaskStarted(fact) => {
                let late = self.resync.is_under_way();
                if !self.tasks.started(&fact, late, now_ns, caps) {
                    return Outcome::OverCap(self.tasks.tasks_full(caps));
                }
                // In a resync another thread sends it, unless this one has begun it.
                if !late || self.black_box.task_of(tid) == Some(fact.task_attempt_id) {
                    self.tasks.runs_on(fact.task_attempt_id, tid);
                }
            }
            Fact::TaskEnded(fact) => {
                self.finish_later(fact.task_attempt_id, now_ns, caps);
                let task = self.tasks.tasks.get_mut(&fact.task_attempt_id);
                if let Some((rdd, at_ns)) = task.and_then(|mut task| task.stored_again.take())
                    && let Some(mut rdd) = self.rdds.get_mut(&rdd)
                {
                    rdd.block_history.task_ended(now_ns.saturating_sub(at_ns));
                }
                if !self.tasks.ended(&fact, now_ns, caps) {
                    return Outcome::OverCap(self.tasks.tasks_full(caps));
                }
                self.tasks.runs_on(fact.task_attempt_id, tid);
            }
            // The kernel side reads the thread's accounts; the state learns of the task with its start.
            Fact::TaskBegun { .. } | Fact::HelperBegun { .. } => {}
            Fact::HelperEnded {
                task_attempt_id,
                helper,
                allocated_bytes,
            } => {
                return self
                    .tasks
                    .helper_heap(task_attempt_id, helper, allocated_bytes, caps);
            }
            // Noted above.
            Fact::SignalSent(_) | Fact::OomKilled(_) | Fact::Exhausted(_) => {}
            Fact::TaskHeap(heap) => return self.tasks.used_heap(&heap, caps),
            Fact::TaskMetrics(metrics) => return self.tasks.used_metrics(&metrics, caps),
            Fact::TaskHeapSoFar {
                task_attempt_id,
                allocated_bytes,
            } => {
                return self
                    .tasks
                    .heap_so_far(task_attempt_id, allocated_bytes, caps);
            }
            Fact::TaskUsed(used) => return self.tasks.used(&used, caps),
            Fact::WorkerUsed(worker) => return self.tasks.worker_used(&worker, now_ns, caps),
            Fact::MemoryReported(figures) => self.usage.reported(&figures, now_ns),
            Fact::PeaksReported(peaks) => return self.peaks_reported(&peaks, now_ns, caps),
            Fact::BlockStored(fact) => {
                let key = RddKey::of_fact(fact.rdd_id);
                let known = self.memory.blocks.contains_key(&fact.block_id);
                let left = self.left_partitions.take(&fact, known);
                let task = fact
                    .task_attempt_id
                    .and_then(|id| self.tasks.tasks.get_mut(&id));
                let stage = task.as_ref().and_then(|task| task.stage);
                let took_ns = task.filter(|_| left).and_then(|mut task| {
                    // A task that stores many blocks again took the time of each once.
                    let begun = task.start_ns.filter(|_| !task.start_is_late)?;
                    let before = task.stored_again.replace((key, now_ns));
                    let begun = begun.max(before.map_or(0, |(_, at_ns)| at_ns));
                    Some(now_ns.saturating_sub(begun))
                });
                let (mut rdd, _) = self.rdd(key, now_ns, caps);
                rdd.block_history
                    .stored(&fact, known, left, now_ns, took_ns);
                drop(rdd);
                let outcome = self.memory.block_stored(&fact, stage, now_ns, caps);
                self.see_peak(key);
                return outcome;
            }
            Fact::BlockMoved(fact) => {
                self.heap.moved();
                return self.memory.block_moved(&fact, now_ns, caps);
            }
            Fact::BlockRead(fact) => {
                // Counts also where the block is not in memory or has no row: the read shows that the RDD is used.
                let rdd = self.rdds.get_mut(&RddKey::of_fact(fact.rdd_id));
                let counted = rdd.map(|mut rdd| rdd.block_history.reads += 1).is_some();
                let heap = self.heap.trust();
                return match self.memory.block_read(&fact, heap, now_ns, caps) {
                    // Read from disk, as Spark does with evicted blocks: the event is not lost.
                    Outcome::Ignored(_) if counted => Outcome::Applied,
                    outcome => outcome,
                };
            }
            Fact::BlockRemoved(fact) => {
                let outcome = self.memory.block_removed(&fact);
                if outcome == Outcome::Applied {
                    self.left_partitions.add(fact.rdd_id, fact.partition, caps);
                    if let Some(mut rdd) = self.rdds.get_mut(&RddKey::of_fact(fact.rdd_id)) {
                        let evicted = fact.activity == Some(Activity::EVICT);
                        rdd.block_history.removed(evicted, now_ns);
                    }
                }
                return outcome;
            }
            Fact::PageAllocated(fact) => {
                if fact.reported_again {
                    self.heap.moved();
                }
                drop(self.rdd(RddKey::of_fact(fact.rdd_id), now_ns, caps));
                let resync = self.resync.id();
                let (outcome, change) = self.memory.page_allocated(&fact, resync, now_ns, caps);
                self.tasks
                    .memory_changed(fact.task_attempt_id, change, now_ns);
                self.see_peak(RddKey::of_fact(fact.rdd_id));
                return outcome;
            }
            Fact::PageFreed(fact) => {
                let (outcome, change) = self.memory.page_freed(&fact);
                self.tasks
                    .memory_changed(fact.task_attempt_id, change, now_ns);
                return outcome;
            }
            Fact::ConsumerUsed(used) => {
                let Some(task) = used.task_attempt_id else {
                    return Outcome::Ignored("consumer_without_task");
                };
                let full = self.tasks.tasks_full(caps);
                let Some(mut task) = self.tasks.task(task, caps) else {
                    return Outcome::OverCap(full);
                };
                if !task.used(used, caps) {
                    return Outcome::OverCap("bytes");
                }
            }
            Fact::Span(mut span) => {
                if Activity(span.activity).name().is_none() {
                    span.activity = u8::MAX;
                }
                let spans = self.spans.entry(span.activity).or_default();
                spans.count = spans.count.saturating_add(1);
                spans.duration_ns = spans.duration_ns.saturating_add(span.duration_ns);
                return self.tasks.span(&span, tid, now_ns, caps);
            }
            Fact::Paused(paused) => return self.tasks.paused(&paused, now_ns, caps),
            Fact::Fetched(fetched) => return self.tasks.fetched(&fetched, now_ns, caps),
            Fact::PythonWorker(worker) => match worker.task_attempt_id {
                Some(_) if self.python_workers.len() >= IDS_MAX => {
                    return Outcome::OverCap("python_workers");
                }
                Some(_) if !caps.admit(tree_entry_bytes(size_of::<(u32, Served)>())) => {
                    return Outcome::OverCap("bytes");
                }
                Some(task_attempt_id) => {
                    let served = Served {
                        task_attempt_id,
                        since_ns: now_ns,
                    };
                    self.python_workers.insert(worker.pid, served);
                }
                None => {
                    self.python_workers.remove(&worker.pid);
                }
            },
            Fact::AddressesReported {
                collection,
                moved_facts,
            } => self
                .heap
                .addresses_reported(collection, moved_facts, now_ns),
            // Counted above.
            Fact::ResyncReported { .. } => {}
            Fact::ResyncDone { request } => return self.resync_done(request, now_ns, caps),
            Fact::ProcessForked { child_pid } => {
                if self.children.len() >= IDS_MAX {
                    return Outcome::OverCap("child_processes");
                }
                if !caps.admit(tree_entry_bytes(size_of::<(u32, u64)>())) {
                    return Outcome::OverCap("bytes");
                }
                self.children.insert(child_pid, now_ns);
            }
            Fact::ProcessGone {
                is_executor: false,
                exec,
                ..
            } => {
                // A child that replaced its image is still a child.
                if !exec {
                    self.children.remove(&event.pid);
                }
            }
            Fact::ProcessGone {
                is_executor: true, ..
            } => self.die(now_ns, caps),
            Fact::FaultSample {
                address, context, ..
            } => self.sample(address, context.as_ref(), now_ns, caps),
            Fact::WalkSample {
                address, context, ..
            } => self.walk_sample(address, context.as_ref(), now_ns, caps),
        }
        Outcome::Applied
    }

    /// Updates the peak of an RDD that may have grown.
    fn see_peak(&mut self, rdd: RddKey) {
        if let Some(mut row) = self.rdds.get_mut(&rdd) {
            let held = self.memory.held(rdd);
            row.peak.see(&held);
            row.recent.see(&held);
        }
        self.peak.see(&self.memory.total());
    }

    fn sample(&mut self, address: u64, context: Option<&ContextKey>, now_ns: u64, caps: &Caps) {
        let owner = self.owner(address);
        self.agreement
            .add(owner, context.map(|context| Attribution::from(context).rdd));
        if let Some(owner) = owner.filter(|owner| owner.rdd.id().is_some()) {
            self.rdd(owner.rdd, now_ns, caps).0.samples_by_address += 1;
        }
    }

    fn walk_sample(
        &mut self,
        address: u64,
        context: Option<&ContextKey>,
        now_ns: u64,
        caps: &Caps,
    ) {
        let owner = self.owner(address);
        self.walk_agreement
            .add(owner, context.map(|context| Attribution::from(context).rdd));
        if let Some(owner) = owner.filter(|owner| owner.rdd.id().is_some()) {
            self.rdd(owner.rdd, now_ns, caps).0.walk_samples_by_address += 1;
        }
    }

    fn resync_done(&mut self, request: u64, now_ns: u64, caps: &Caps) -> Outcome {
        let end = self.resync.ended(request);
        if end == End::NotAsked {
            return Outcome::Ignored("resync_not_requested");
        }
        self.heap.reported_again(end != End::Incomplete);
        let End::Complete(since_ns) = end else {
            return Outcome::Ignored("resync_incomplete");
        };
        self.memory.sweep(since_ns);
        self.tasks.sweep(since_ns, now_ns, caps);
        self.tasks.hold_exactly(&self.memory.held_by_task(), now_ns);
        Outcome::Applied
    }
}
