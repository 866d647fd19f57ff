//! Event and state -> trace record: what the fact does not carry itself is looked up before the state takes it in.

use std::collections::HashMap;
use std::sync::Arc;

use smtt_common::context::Activity;

use super::Queue;
use super::folder::partition;
use super::record::{Kind, Physical, Record, Source};
use crate::aggregate::{Block, Executor, Mark, Page, PageKey, SizesBy, State};
use crate::clock::{now_boot_ns, now_unix_ns};
use crate::decode::{BlockFact, Event, Fact, PageAllocated, PageFreed, Span};

/// Executors whose names are remembered; more are looked up anew.
const SOURCES: usize = 1024;
/// Most ranges of one record.
const RANGES_PER_RECORD: usize = 96;
/// What names of broadcast blocks start with.
const BROADCAST: &str = "broadcast_";

/// Where the middle task gives its events a look.
#[derive(Debug)]
pub struct Tap {
    queue: Queue,
    sources: HashMap<u64, Arc<Source>>,
    batch: Vec<Record>,
    /// Wall clock less boot clock, in nanoseconds.
    boot_unix_ns: u64,
}

impl Tap {
    /// A tap that hands its records to a writer.
    #[must_use]
    pub fn new(queue: Queue) -> Self {
        Self {
            queue,
            sources: HashMap::new(),
            batch: Vec::new(),
            boot_unix_ns: 0,
        }
    }

    /// Before a batch of events: sees how the clocks stand to each other, which changes when the wall clock is set.
    pub fn begin(&mut self) {
        self.boot_unix_ns = now_unix_ns().saturating_sub(now_boot_ns());
    }

    /// Makes a record of an event if it is an access. Call it before the state takes the event in.
    pub fn see(&mut self, state: &State, event: &Event) {
        let executor = state.executors().get(&event.executor);
        if matches!(
            event.fact,
            Fact::ExecutorDescribed(_)
                | Fact::ProcessGone {
                    is_executor: true,
                    ..
                }
        ) {
            self.sources.remove(&event.executor);
        }
        let kind = match &event.fact {
            Fact::BlockStored(fact) if fact.told_again => Kind::Alive,
            Fact::BlockStored(_) => Kind::Put,
            Fact::BlockMoved(_) => Kind::Move,
            Fact::BlockRead(_) => Kind::Get,
            Fact::BlockRemoved(_) => Kind::Drop,
            Fact::PageAllocated(fact) if fact.told_again => Kind::Alive,
            Fact::PageAllocated(_) => Kind::Allocate,
            Fact::PageFreed(_) => Kind::Free,
            Fact::Span(span) => Kind::Span(Activity(span.activity)),
            _ => return,
        };
        let source = self.source(event.executor, executor);
        let time_ns = self.boot_unix_ns.saturating_add(event.time_ns);
        let mut record = Record::new(source, time_ns, kind);
        match &event.fact {
            Fact::BlockStored(fact) | Fact::BlockMoved(fact) => told_block(&mut record, fact),
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
            Fact::PageAllocated(fact) => told_page(&mut record, fact),
            Fact::PageFreed(fact) => freed_page(&mut record, fact, executor, event.time_ns),
            Fact::Span(span) => told_span(&mut record, span),
            _ => {}
        }
        if let Some(physical) = &mut record.physical {
            // Since boot, like all that the state holds.
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

    /// After a batch of events: hands its records over.
    pub fn end(&mut self) {
        self.queue.send(std::mem::take(&mut self.batch));
    }

    fn source(&mut self, key: u64, executor: Option<&Executor>) -> Arc<Source> {
        if let Some(source) = self.sources.get(&key) {
            return Arc::clone(source);
        }
        let described = executor.and_then(|executor| executor.described.as_ref());
        let text = |of: fn(&crate::decode::ExecutorDescribed) -> &String| {
            described.map_or_else(String::new, |said| of(said).clone())
        };
        let (application_id, host) = (text(|said| &said.application_id), text(|said| &said.host));
        let source = Arc::new(Source {
            partition: partition(&application_id, &host),
            application_id,
            host,
            executor_id: text(|said| &said.executor_id),
        });
        // What has not described itself yet may do so with its next fact.
        if described.is_some() {
            if self.sources.len() >= SOURCES {
                self.sources.clear();
            }
            self.sources.insert(key, Arc::clone(&source));
        }
        source
    }
}

/// Ranges whose address is known.
fn addressed(ranges: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    ranges
        .filter(|(address, length)| *address != 0 && *length != 0)
        .collect()
}

fn told_block(record: &mut Record, fact: &BlockFact) {
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
    record.ranges = addressed(fact.ranges.iter().copied());
    if !record.ranges.is_empty() {
        record.address_age_ns = Some(0);
    }
    record.range_first = Some(fact.range_first);
    record.range_total = Some(fact.range_total);
}

/// What the state knows of a block that a fact names, its first ranges among it.
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
        range_total,
        ranges,
        ..
    } = block;
    record.size_bytes = Some(*size_bytes);
    record.on_heap = Some(*on_heap);
    record.serialized = Some(*serialized);
    record.range_total = Some(*range_total);
    record.ranges = addressed(ranges.iter().copied().take(RANGES_PER_RECORD));
    if !record.ranges.is_empty() {
        record.range_first = Some(0);
        record.address_age_ns = age(executor, *on_heap, block.told_ns(), now_ns);
    }
    record.physical = looked(executor, block.mark(), *on_heap);
    record.hotness = Some(block.heat.per_minute(now_ns));
}

/// A block's further ranges, as records of their own: a record has no more of them than one fact can tell, so that
/// what waits for the writer is bounded.
fn further_ranges(record: &Record, block: Option<&Block>, into: &mut Vec<Record>) {
    let ranges = block.map_or(&[][..], |block| &block.ranges);
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

/// How long before `now_ns` an address was last known to be right. What is off the heap does not move.
fn age(executor: Option<&Executor>, on_heap: bool, told_ns: u64, now_ns: u64) -> Option<u64> {
    if !on_heap {
        return Some(0);
    }
    Some(executor?.heap.age_ns(told_ns, now_ns))
}

/// What the resolver saw of it when it last looked, at the addresses that it has now.
fn looked(executor: Option<&Executor>, mark: Option<Mark>, on_heap: bool) -> Option<Box<Physical>> {
    let executor = executor?;
    let last = &executor.memory.looked;
    let seen = executor
        .looked(mark, on_heap)
        .filter(|seen| seen.looked_bytes > 0)?;
    let of_size = |size: u64| {
        let same = seen.by_page_size.iter().filter(|(bytes, _)| *bytes == size);
        same.map(|(_, bytes)| *bytes).sum()
    };
    // Bytes in memory whose page size could not be told would look like none.
    let sized = last.sizes_by != SizesBy::Nothing;
    let on_nodes = !seen.by_node.is_empty() || seen.present_bytes == 0;
    Some(Box::new(Physical {
        time_ns: last.time_ns,
        looked_bytes: seen.looked_bytes,
        present_bytes: seen.present_bytes,
        swapped_bytes: seen.swapped_bytes,
        huge_page_bytes: sized.then(|| [2 << 20, 1 << 30].map(of_size)),
        frames: (!seen.frames.is_empty()).then(|| seen.frames.clone()),
        nodes: on_nodes.then(|| seen.by_node.iter().map(|(node, _)| *node).collect()),
    }))
}

fn told_page(record: &mut Record, fact: &PageAllocated) {
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
        Some(number) => PageKey::Page(fact.task_attempt_id, number),
        None => PageKey::Grant(fact.task_attempt_id, fact.consumer.clone()),
    };
    let page = executor.and_then(|executor| executor.memory.pages.get(&key));
    record.rdd_id = page.and_then(|page| page.rdd.id());
    record.physical = looked(executor, page.and_then(Page::mark), fact.on_heap);
    place(record, fact.page_number, fact.address, fact.on_heap);
    if let Some(page) = page.filter(|_| !record.ranges.is_empty()) {
        record.address_age_ns = age(executor, fact.on_heap, page.told_ns(), now_ns);
    }
}

/// Where a page is. A grant without a page is somewhere on the heap, nobody knows where.
fn place(record: &mut Record, page_number: Option<u64>, address: u64, on_heap: bool) {
    if page_number.is_some() {
        record.on_heap = Some(on_heap);
        let length = record.size_bytes.unwrap_or(0);
        record.ranges = addressed(std::iter::once((address, length)));
    }
}

fn told_span(record: &mut Record, span: &Span) {
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

/// What the state knows of the task.
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
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;
    use crate::aggregate::{Limits, Resolved, Seen};
    use crate::decode::{BlockRead, BlockRemoved, ExecutorDescribed, TaskStarted};
    use crate::trace::counts::Ledger;

    const EXECUTOR: u64 = (7 << 32) | 1;
    const MS: u64 = 1_000_000;

    /// A state and a tap, given events in turn, as the middle does.
    struct Middle {
        state: State,
        tap: Tap,
        records: mpsc::Receiver<Vec<Record>>,
    }

    impl Middle {
        fn new() -> Self {
            let (sender, records) = mpsc::channel();
            let queue = Queue {
                records: sender,
                ledger: Arc::new(Ledger::new("test")),
            };
            let mut middle = Self {
                state: State::new(Limits::default()),
                tap: Tap::new(queue),
                records,
            };
            middle.tell(
                1,
                Fact::ExecutorDescribed(Box::new(ExecutorDescribed {
                    application_id: "app-1".to_owned(),
                    executor_id: "3".to_owned(),
                    host: "host-1".to_owned(),
                    ..ExecutorDescribed::default()
                })),
            );
            middle.tell(
                2,
                Fact::TaskStarted(TaskStarted {
                    task_attempt_id: 40,
                    stage_id: 5,
                    stage_attempt: 1,
                    partition: 9,
                    ..TaskStarted::default()
                }),
            );
            middle
        }

        fn tell(&mut self, time_ns: u64, fact: Fact) -> Option<Record> {
            let event = Event {
                time_ns,
                executor: EXECUTOR,
                pid: 1,
                tid: 1,
                fact,
            };
            self.tap.see(&self.state, &event);
            self.state.apply(event);
            self.tap.end();
            let batch = self.records.try_recv().ok()?;
            assert_eq!(batch.len(), 1);
            batch.into_iter().next()
        }

        fn put(&mut self, time_ns: u64) -> Record {
            let fact = BlockFact {
                block_id: "rdd_7_2".to_owned(),
                rdd_id: Some(7),
                partition: Some(2),
                size_bytes: 12_000,
                on_heap: true,
                serialized: true,
                task_attempt_id: Some(40),
                range_total: 3,
                ranges: vec![(0x10_0000, 8000), (0, 1000), (0x20_0000, 3000)],
                ..BlockFact::default()
            };
            self.tell(time_ns, Fact::BlockStored(Box::new(fact)))
                .expect("a record")
        }
    }

    #[test]
    fn what_is_no_access_makes_no_record() {
        let mut middle = Middle::new();
        assert_eq!(middle.tell(3, Fact::ResyncDone { request: 1 }), None);
    }

    #[test]
    fn a_stored_block_has_its_task_and_every_range_with_an_address() {
        let record = Middle::new().put(10);
        assert_eq!(record.kind, Kind::Put);
        assert_eq!(record.source.application_id, "app-1");
        assert_eq!(record.source.executor_id, "3");
        assert_eq!((record.stage_id, record.stage_attempt), (Some(5), Some(1)));
        assert_eq!((record.rdd_id, record.partition), (Some(7), Some(2)));
        assert_eq!(record.ranges, [(0x10_0000, 8000), (0x20_0000, 3000)]);
        assert_eq!(record.address_age_ns, Some(0));
        assert_eq!(record.activity, Some("cache_write"));
        assert_eq!(record.physical, None, "nobody has looked");
    }

    #[test]
    fn a_read_has_what_is_known_of_the_block_and_of_its_pages() {
        let mut middle = Middle::new();
        middle.put(10 * MS);
        let read = || {
            Fact::BlockRead(BlockRead {
                block_id: "rdd_7_2".to_owned(),
                rdd_id: Some(7),
                partition: Some(2),
                task_attempt_id: Some(40),
                node: None,
            })
        };
        let record = middle.tell(15 * MS, read()).expect("a record");
        assert_eq!(record.kind.access(), Some("read"));
        assert_eq!(record.size_bytes, Some(12_000));
        assert_eq!(record.ranges, [(0x10_0000, 8000), (0x20_0000, 3000)]);
        assert_eq!(record.address_age_ns, Some(5 * MS));
        assert_eq!(record.range_total, Some(3));

        let mark = middle.state.targets(EXECUTOR).owners[0];
        let seen = Seen {
            looked_bytes: 11_000,
            present_bytes: 11_000,
            by_page_size: vec![(4096, 3000), (2 << 20, 8000)],
            by_node: vec![(0, 8000), (1, 3000)],
            ..Seen::default()
        };
        middle.state.resolved(
            EXECUTOR,
            Resolved {
                time_ns: 16 * MS,
                page_bytes: 4096,
                sizes_by: SizesBy::PageTables,
                owners: vec![(mark, seen)],
            },
        );
        let record = middle.tell(20 * MS, read()).expect("a record");
        let physical = record.physical.expect("it was looked at");
        assert_eq!(physical.time_ns, 16 * MS);
        assert_eq!(physical.present_bytes, 11_000);
        assert_eq!(physical.huge_page_bytes, Some([8000, 0]));
        assert_eq!(physical.nodes, Some(vec![0, 1]));
    }

    #[test]
    fn a_read_of_a_block_of_many_ranges_tells_them_all() {
        let mut middle = Middle::new();
        let all: Vec<(u64, u64)> = (1..=200).map(|n| (n * 0x1_0000, 4096)).collect();
        for (ranges, range_first) in [(&all[..96], 0), (&all[96..192], 96), (&all[192..], 192)] {
            let fact = BlockFact {
                block_id: "rdd_7_2".to_owned(),
                rdd_id: Some(7),
                partition: Some(2),
                size_bytes: 200 * 4096,
                serialized: true,
                range_total: 200,
                range_first,
                ranges: ranges.to_vec(),
                ..BlockFact::default()
            };
            middle.tell(10, Fact::BlockStored(Box::new(fact)));
        }
        let event = Event {
            time_ns: 20,
            executor: EXECUTOR,
            pid: 1,
            tid: 1,
            fact: Fact::BlockRead(BlockRead {
                block_id: "rdd_7_2".to_owned(),
                rdd_id: Some(7),
                partition: Some(2),
                ..BlockRead::default()
            }),
        };
        middle.tap.see(&middle.state, &event);
        middle.tap.end();
        let records = middle.records.try_recv().expect("a batch");
        let firsts: Vec<_> = records.iter().map(|record| record.range_first).collect();
        assert_eq!(firsts, [Some(0), Some(96), Some(192)]);
        let told: Vec<_> = records
            .iter()
            .flat_map(|record| record.ranges.clone())
            .collect();
        assert_eq!(told, all);
    }

    #[test]
    fn a_removed_block_is_looked_up_before_it_is_gone() {
        let mut middle = Middle::new();
        middle.put(10);
        let removed = || {
            Fact::BlockRemoved(BlockRemoved {
                block_id: "rdd_7_2".to_owned(),
                rdd_id: Some(7),
                partition: Some(2),
                activity: Some(Activity::EVICT),
            })
        };
        let record = middle.tell(20, removed()).expect("a record");
        assert_eq!(record.size_bytes, Some(12_000));
        assert_eq!(record.task_attempt_id, Some(40));
        assert_eq!(record.activity, Some("evict"));
        let again = middle.tell(30, removed()).expect("a record");
        assert_eq!(
            (again.size_bytes, again.ranges.len()),
            (None, 0),
            "what is not known is absent"
        );
    }

    #[test]
    fn a_page_has_its_address_and_a_grant_has_none() {
        let mut middle = Middle::new();
        let page = |page_number, address, told_again| {
            Fact::PageAllocated(PageAllocated {
                task_attempt_id: Some(40),
                page_number,
                address,
                size_bytes: 65_536,
                on_heap: true,
                told_again,
                rdd_id: Some(7),
                stage_id: Some(5),
                consumer: "Sorter".to_owned(),
                activity: (!told_again).then_some(Activity::INSERT),
            })
        };
        let record = middle
            .tell(10, page(Some(1), 0x5000, false))
            .expect("a record");
        assert_eq!(
            (record.kind, record.activity),
            (Kind::Allocate, Some("insert"))
        );
        assert_eq!(record.ranges, [(0x5000, 65_536)]);
        assert_eq!(record.partition, Some(9), "that of the task");
        let grant = middle.tell(11, page(None, 0, false)).expect("a record");
        assert_eq!((grant.ranges.len(), grant.on_heap), (0, None));
        let moved = middle
            .tell(12, page(Some(1), 0x9000, true))
            .expect("a record");
        assert_eq!((moved.kind, moved.kind.access()), (Kind::Alive, None));
        let freed = middle
            .tell(
                13,
                Fact::PageFreed(PageFreed {
                    task_attempt_id: Some(40),
                    page_number: Some(1),
                    address: 0x9000,
                    size_bytes: 65_536,
                    on_heap: true,
                    consumer: "Sorter".to_owned(),
                    activity: None,
                }),
            )
            .expect("a record");
        assert_eq!(
            (freed.kind, freed.rdd_id, freed.stage_id),
            (Kind::Free, Some(7), Some(5))
        );
    }

    #[test]
    fn a_span_of_a_task_that_is_not_known_is_still_told() {
        let span = Span {
            task_attempt_id: Some(99),
            activity: Activity::SPILL.0,
            duration_ns: 3 * MS,
            name: "UnsafeExternalSorter.spill".to_owned(),
            ..Span::default()
        };
        let record = Middle::new().tell(10, Fact::Span(span)).expect("a record");
        assert_eq!(
            (record.kind.name(), record.region),
            ("spill", Some("execution"))
        );
        assert_eq!((record.stage_id, record.duration_ns), (None, Some(3 * MS)));
        let unknown = Span {
            activity: 200,
            ..Span::default()
        };
        let record = Middle::new()
            .tell(10, Fact::Span(unknown))
            .expect("a record");
        assert_eq!((record.kind.name(), record.activity), ("span", None));
    }
}
