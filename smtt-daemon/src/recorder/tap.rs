//! Event and state -> trace record. Fields that the fact lacks are taken from the state before the event is applied.

use std::collections::HashMap;
use std::sync::Arc;

use smtt_common::context::Activity;
use smtt_machine::clock::{now_boot_ns, now_unix_ns};
use smtt_model::decode::{
    BlockFact, Contents, Event, ExecutorDescribed, Fact, PageAllocated, PageFreed, Span,
};
use smtt_model::state::{Block, Executor, RangesId, SizesBy, SparkPage, SparkPageKey, State};
use smtt_store::folder::partition;
use smtt_store::record::{Kind, Origin, Physical, Record};

use super::Queue;
use super::follow::Followers;

/// Executors whose origin is kept; beyond that only those that the state knows.
const SOURCES: usize = 1024;
/// Most ranges of one record.
const RANGES_PER_RECORD: usize = 96;
/// Prefix of the names of broadcast blocks.
const BROADCAST: &str = "broadcast_";

/// Turns the event loop's events into trace records.
#[derive(Debug)]
pub struct Tap {
    queue: Option<Queue>,
    followers: Arc<Followers>,
    /// Origin of each executor, and whether it had described itself.
    sources: HashMap<u64, (Arc<Origin>, bool)>,
    batch: Vec<Record>,
    /// Wall clock minus boot clock, in nanoseconds.
    boot_unix_ns: u64,
}

impl Tap {
    /// A tap that sends its records to the writer, if there is one, and to live clients.
    #[must_use]
    pub fn new(queue: Option<Queue>, followers: Arc<Followers>) -> Self {
        Self {
            queue,
            followers,
            sources: HashMap::new(),
            batch: Vec::new(),
            boot_unix_ns: 0,
        }
    }

    /// Reads the difference of the clocks, which changes when the wall clock is set. Call it before each batch of
    /// events.
    pub fn read_clocks(&mut self) {
        self.boot_unix_ns = now_unix_ns().saturating_sub(now_boot_ns());
    }

    /// Adds a record to the batch if the event is an access. Call it before the event is applied to the state.
    pub fn record_access(&mut self, state: &State, event: &Event) {
        let executor = state.executors().get(&event.executor);
        if let Fact::ExecutorDescribed(described) = &event.fact {
            self.described(state, event, described);
            return;
        }
        if self.queue.is_none() && !self.followers.has_clients() {
            return;
        }
        let kind = match &event.fact {
            Fact::BlockStored(fact) if fact.reported_again => Kind::Alive,
            Fact::BlockStored(_) => Kind::Put,
            Fact::BlockMoved(_) => Kind::Move,
            Fact::BlockRead(_) => Kind::Get,
            Fact::BlockRemoved(_) => Kind::Drop,
            Fact::PageAllocated(fact) if fact.reported_again => Kind::Alive,
            Fact::PageAllocated(_) => Kind::Allocate,
            Fact::PageFreed(_) => Kind::Free,
            Fact::Span(span) => Kind::Span(Activity(span.activity)),
            _ => return,
        };
        let source = self.source(state, event);
        let time_ns = self.boot_unix_ns.saturating_add(event.time_ns);
        let mut record = Record::new(source, time_ns, kind);
        match &event.fact {
            Fact::BlockStored(fact) | Fact::BlockMoved(fact) => reported_block(&mut record, fact),
            Fact::BlockRead(fact) => {
                let ids = (fact.rdd_id, fact.partition);
                record.task_attempt_id = fact.task_attempt_id;
                record.activity = Activity::CACHE_READ.name();
                known_block(&mut record, &fact.block_id, ids, executor, event.time_ns);
            }
            Fact::BlockRemoved(fact) => {
                let ids = (fact.rdd_id, fact.partition);
                record.activity = fact.activity.and_then(Activity::name);
                record.task_attempt_id =
                    executor.and_then(|executor| executor.memory.blocks.get(&fact.block_id)?.task);
                known_block(&mut record, &fact.block_id, ids, executor, event.time_ns);
            }
            Fact::PageAllocated(fact) => reported_page(&mut record, fact),
            Fact::PageFreed(fact) => freed_page(&mut record, fact, executor, event.time_ns),
            Fact::Span(span) => reported_span(&mut record, span),
            _ => {}
        }
        if let Some(physical) = &mut record.physical {
            // Nanoseconds since boot, as everywhere in the state.
            physical.time_ns = physical.time_ns.saturating_add(self.boot_unix_ns);
        }
        of_task(&mut record, executor);
        let block = match &event.fact {
            Fact::BlockRead(fact) => Some(&fact.block_id),
            Fact::BlockRemoved(fact) => Some(&fact.block_id),
            _ => None,
        };
        let block = block.and_then(|id| executor?.memory.blocks.get(id));
        let at = self.batch.len();
        further_ranges(&record, block, &mut self.batch);
        self.batch.insert(at, record);
    }

    /// Sends the records of a batch of events.
    pub fn send_batch(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        self.followers.offer(&batch);
        if let Some(queue) = &self.queue {
            queue.send(batch);
        }
    }

    /// An executor describes itself. The first description counts: an executor has one partition, whatever it says
    /// later.
    fn described(&mut self, state: &State, event: &Event, said: &ExecutorDescribed) {
        let key = event.executor;
        if !self.sources.get(&key).is_some_and(|(_, named)| *named) {
            let known = state.executors().get(&key);
            let first = known.and_then(|executor| executor.described.as_ref());
            self.keep(state, event, Some(first.unwrap_or(said)));
        }
    }

    /// The origin of an executor's records.
    fn source(&mut self, state: &State, event: &Event) -> Arc<Origin> {
        let key = event.executor;
        let said = || {
            let executor = state.executors().get(&key)?;
            executor.described.as_ref()
        };
        match self.sources.get(&key) {
            Some((source, true)) => Arc::clone(source),
            Some((source, false)) if said().is_none() => Arc::clone(source),
            _ => self.keep(state, event, said()),
        }
    }

    fn keep(
        &mut self,
        state: &State,
        event: &Event,
        said: Option<&ExecutorDescribed>,
    ) -> Arc<Origin> {
        let known = state.executors().get(&event.executor);
        // The first user stays, as in the state, which does not know the executor before its first event.
        let uid = known.and_then(|known| known.uid).or(Some(event.uid));
        let share = known.and_then(|known| known.share);
        let text = |of: fn(&ExecutorDescribed) -> &String| said.map_or("", |said| of(said));
        let (application_id, host) = (text(|said| &said.application_id), text(|said| &said.host));
        let source = Arc::new(Origin {
            uid,
            share: share.or_else(|| state.share_of(uid)),
            partition: partition(uid, application_id, host),
            application_id: application_id.to_owned(),
            host: host.to_owned(),
            executor_id: text(|said| &said.executor_id).to_owned(),
        });
        if self.sources.len() >= SOURCES {
            let known = state.executors();
            self.sources.retain(|key, _| known.contains_key(key));
        }
        let kept = (Arc::clone(&source), said.is_some());
        self.sources.insert(event.executor, kept);
        source
    }
}

/// Ranges whose address is known.
fn addressed(ranges: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    ranges
        .filter(|(address, length)| *address != 0 && *length != 0)
        .collect()
}

fn reported_block(record: &mut Record, fact: &BlockFact) {
    record.region = Some("storage");
    record.task_attempt_id = fact.task_attempt_id;
    record.rdd_id = fact.rdd_id;
    record.partition = fact.partition;
    if record.kind == Kind::Put {
        record.activity = if fact.block_id.starts_with(BROADCAST) {
            Activity::BROADCAST.name()
        } else {
            Activity::CACHE_WRITE.name()
        };
    }
    record.block_id = Some(fact.block_id.clone());
    record.size_bytes = Some(fact.size_bytes);
    record.on_heap = Some(fact.on_heap);
    record.serialized = Some(fact.serialized);
    record.contents = Some(fact.contents().name());
    record.ranges = addressed(fact.ranges.iter().copied());
    if !record.ranges.is_empty() {
        record.address_age_ns = Some(0);
    }
    record.range_first = Some(fact.range_first);
    record.range_total = Some(fact.range_total);
}

/// Fills in what the state knows of a block: among it its first ranges.
fn known_block(
    record: &mut Record,
    block_id: &str,
    (rdd_id, partition): (Option<u32>, Option<u32>),
    executor: Option<&Executor>,
    now_ns: u64,
) {
    record.region = Some("storage");
    record.rdd_id = rdd_id;
    record.partition = partition;
    record.block_id = Some(block_id.to_owned());
    let Some(block) = executor.and_then(|executor| executor.memory.blocks.get(block_id)) else {
        return;
    };
    let Block {
        size_bytes,
        on_heap,
        serialized,
        contents,
        range_total,
        ranges,
        ..
    } = block;
    record.size_bytes = Some(*size_bytes);
    record.on_heap = Some(*on_heap);
    record.serialized = Some(*serialized);
    record.contents = Some(contents.name());
    record.range_total = Some(*range_total);
    // The address of each sampled object was reported with the put or the move; here one range stands for all.
    let most = match contents {
        Contents::Objects => 1,
        _ => RANGES_PER_RECORD,
    };
    record.ranges = addressed(ranges.iter().take(most));
    if !record.ranges.is_empty() {
        record.range_first = Some(0);
        record.address_age_ns = age(executor, *on_heap, block.told_ns(), now_ns);
    }
    record.physical = physical(executor, block.ranges_id(), *on_heap);
    record.hotness = Some(block.heat.per_minute(now_ns));
}

/// A block's further ranges, as separate records: a record holds no more ranges than one fact, so that the memory of
/// waiting records is bounded.
fn further_ranges(record: &Record, block: Option<&Block>, into: &mut Vec<Record>) {
    let ranges: Vec<_> = block.map_or_else(Vec::new, |block| block.ranges.iter().collect());
    for (chunk, first) in ranges
        .chunks(RANGES_PER_RECORD)
        .zip((0_u64..).step_by(RANGES_PER_RECORD))
        .skip(1)
    {
        let ranges = addressed(chunk.iter().copied());
        if !ranges.is_empty() {
            into.push(Record {
                ranges,
                range_first: Some(first),
                ..record.clone()
            });
        }
    }
}

/// Age of an address at `now_ns`: nanoseconds since it was last known to be right. Memory off the heap does not move,
/// so its age is zero.
fn age(executor: Option<&Executor>, on_heap: bool, reported_ns: u64, now_ns: u64) -> Option<u64> {
    if !on_heap {
        return Some(0);
    }
    Some(executor?.heap.age_ns(reported_ns, now_ns))
}

/// What the resolver last found at the current addresses.
fn physical(
    executor: Option<&Executor>,
    ranges_id: Option<RangesId>,
    on_heap: bool,
) -> Option<Box<Physical>> {
    let executor = executor?;
    let last = &executor.memory.last_examined;
    let seen = executor
        .examined(ranges_id, on_heap)
        .filter(|seen| seen.examined_bytes > 0)?;
    let of_size = |size: u64| {
        let same = seen.by_page_size.iter().filter(|(bytes, _)| *bytes == size);
        same.map(|(_, bytes)| *bytes).sum()
    };
    // Bytes whose page size is unknown must not look like zero bytes on large pages.
    let sized = last.sizes_by != SizesBy::Nothing;
    let on_nodes = !seen.by_node.is_empty() || seen.present_bytes == 0;
    Some(Box::new(Physical {
        time_ns: last.time_ns,
        examined_bytes: seen.examined_bytes,
        present_bytes: seen.present_bytes,
        swapped_bytes: seen.swapped_bytes,
        huge_page_bytes: sized.then(|| [2 << 20, 1 << 30].map(of_size)),
        frames: (!seen.frames.is_empty()).then(|| seen.frames.clone()),
        nodes: on_nodes.then(|| seen.by_node.iter().map(|(node, _)| *node).collect()),
    }))
}

fn reported_page(record: &mut Record, fact: &PageAllocated) {
    record.region = Some("execution");
    record.task_attempt_id = fact.task_attempt_id;
    record.rdd_id = fact.rdd_id;
    record.stage_id = fact.stage_id;
    record.activity = fact.activity.and_then(Activity::name);
    record.consumer = Some(fact.consumer.clone());
    record.size_bytes = Some(fact.size_bytes);
    place(record, fact.page_number, fact.address, fact.on_heap);
    if !record.ranges.is_empty() {
        record.address_age_ns = Some(0);
    }
}

fn freed_page(record: &mut Record, fact: &PageFreed, executor: Option<&Executor>, now_ns: u64) {
    record.region = Some("execution");
    record.task_attempt_id = fact.task_attempt_id;
    record.activity = fact.activity.and_then(Activity::name);
    record.consumer = Some(fact.consumer.clone());
    record.size_bytes = Some(fact.size_bytes);
    let key = match fact.page_number {
        Some(number) => SparkPageKey::SparkPage(fact.task_attempt_id, number),
        None => SparkPageKey::Grant(fact.task_attempt_id, fact.consumer.clone()),
    };
    let page = executor.and_then(|executor| executor.memory.pages.get(&key));
    record.rdd_id = page.and_then(|page| page.rdd.id());
    record.physical = physical(executor, page.and_then(SparkPage::ranges_id), fact.on_heap);
    place(record, fact.page_number, fact.address, fact.on_heap);
    if let Some(page) = page.filter(|_| !record.ranges.is_empty()) {
        record.address_age_ns = age(executor, fact.on_heap, page.told_ns(), now_ns);
    }
}

/// Fills in the page and its address. A grant without a page lies somewhere on the heap; its address is unknown.
fn place(record: &mut Record, page_number: Option<u64>, address: u64, on_heap: bool) {
    if page_number.is_some() {
        record.on_heap = Some(on_heap);
        let length = record.size_bytes.unwrap_or(0);
        record.ranges = addressed(std::iter::once((address, length)));
    }
}

fn reported_span(record: &mut Record, span: &Span) {
    let activity = Activity(span.activity);
    record.task_attempt_id = span.task_attempt_id;
    record.rdd_id = span.rdd_id;
    record.activity = activity.name();
    record.consumer = Some(span.name.clone());
    record.duration_ns = Some(span.duration_ns);
    record.region = match activity {
        Activity::EVICT | Activity::BROADCAST | Activity::CACHE_READ | Activity::CACHE_WRITE => {
            Some("storage")
        }
        Activity::SPILL
        | Activity::MERGE
        | Activity::SORT
        | Activity::INSERT
        | Activity::HASH_GROW
        | Activity::SHUFFLE_WRITE => Some("execution"),
        _ => None,
    };
}

/// Fills in what the state knows of the task.
fn of_task(record: &mut Record, executor: Option<&Executor>) {
    let task = record
        .task_attempt_id
        .and_then(|id| executor?.tasks.tasks.get(&id));
    let Some(task) = task else {
        return;
    };
    if let Some(stage) = task.stage {
        record.stage_id = Some(stage.id);
        record.stage_attempt = Some(u32::from(stage.attempt));
    }
    if let Some(started) = task.started {
        record.stage_attempt = Some(started.stage_attempt);
        record.partition = record.partition.or(Some(started.partition));
    }
}

#[cfg(test)]
mod tests;
