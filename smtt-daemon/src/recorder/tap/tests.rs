//! What each kind of fact becomes as a record.

use std::sync::{Arc, mpsc};

use super::*;
use smtt_model::decode::{BlockRead, BlockRemoved, ExecutorDescribed, TaskStarted};
use smtt_model::protocol::FollowQuery;
use smtt_model::state::{Limits, Resolved, Seen};

use crate::recorder::counts::Ledger;

const EXECUTOR: u64 = (7 << 32) | 1;
const MS: u64 = 1_000_000;

/// A state and a tap that get the same events, as in the event loop.
struct Feed {
    state: State,
    tap: Tap,
    records: mpsc::Receiver<Vec<Record>>,
}

impl Feed {
    fn new() -> Self {
        let (sender, records) = mpsc::channel();
        let queue = Queue {
            records: sender,
            ledger: Arc::new(Ledger::new("test")),
        };
        let mut feed = Self {
            state: State::new(Limits::default()),
            tap: Tap::new(Some(queue), Arc::default()),
            records,
        };
        feed.apply(
            1,
            Fact::ExecutorDescribed(Box::new(ExecutorDescribed {
                application_id: "app-1".to_owned(),
                executor_id: "3".to_owned(),
                host: "host-1".to_owned(),
                ..ExecutorDescribed::default()
            })),
        );
        feed.apply(
            2,
            Fact::TaskStarted(TaskStarted {
                task_attempt_id: 40,
                stage_id: 5,
                stage_attempt: 1,
                partition: 9,
                ..TaskStarted::default()
            }),
        );
        feed
    }

    fn apply(&mut self, time_ns: u64, fact: Fact) -> Option<Record> {
        let event = Event {
            time_ns,
            executor: EXECUTOR,
            pid: 1,
            tid: 1,
            uid: 1000,
            fact,
        };
        self.tap.record_access(&self.state, &event);
        self.state.apply(event);
        self.tap.send_batch();
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
        self.apply(time_ns, Fact::BlockStored(Box::new(fact)))
            .expect("a record")
    }
}

#[test]
fn without_writer_and_clients_no_record_is_made() {
    let followers = Arc::new(Followers::default());
    let mut feed = Feed::new();
    feed.tap = Tap::new(None, Arc::clone(&followers));
    let read = || Event {
        time_ns: 10,
        executor: EXECUTOR,
        pid: 1,
        tid: 1,
        uid: 1000,
        fact: Fact::BlockRead(BlockRead::default()),
    };
    feed.tap.record_access(&feed.state, &read());
    assert!(feed.tap.batch.is_empty());
    let answer = followers.follow(FollowQuery::default()).expect("followed");
    feed.tap.record_access(&feed.state, &read());
    assert_eq!(feed.tap.batch.len(), 1);
    drop(answer);
}

#[test]
fn what_is_no_access_makes_no_record() {
    let mut feed = Feed::new();
    assert_eq!(feed.apply(3, Fact::ResyncDone { request: 1 }), None);
}

#[test]
fn a_stored_block_has_its_task_and_every_range_with_an_address() {
    let record = Feed::new().put(10);
    assert_eq!(record.kind, Kind::Put);
    assert_eq!(record.source.application_id, "app-1");
    assert_eq!(record.source.executor_id, "3");
    assert_eq!((record.stage_id, record.stage_attempt), (Some(5), Some(1)));
    assert_eq!((record.rdd_id, record.partition), (Some(7), Some(2)));
    assert_eq!(record.ranges, [(0x10_0000, 8000), (0x20_0000, 3000)]);
    assert_eq!(record.address_age_ns, Some(0));
    assert_eq!(record.activity, Some("cache_write"));
    assert_eq!(record.physical, None, "not examined yet");
}

#[test]
fn a_read_has_what_is_known_of_the_block_and_of_its_pages() {
    let mut feed = Feed::new();
    feed.put(10 * MS);
    let read = || {
        Fact::BlockRead(BlockRead {
            block_id: "rdd_7_2".to_owned(),
            rdd_id: Some(7),
            partition: Some(2),
            task_attempt_id: Some(40),
            node: None,
        })
    };
    let record = feed.apply(15 * MS, read()).expect("a record");
    assert_eq!(record.kind.access(), Some("read"));
    assert_eq!(record.size_bytes, Some(12_000));
    assert_eq!(record.ranges, [(0x10_0000, 8000), (0x20_0000, 3000)]);
    assert_eq!(record.address_age_ns, Some(5 * MS));
    assert_eq!(record.range_total, Some(3));

    let mark = feed.state.targets(EXECUTOR).owners[0];
    let seen = Seen {
        examined_bytes: 11_000,
        present_bytes: 11_000,
        by_page_size: vec![(4096, 3000), (2 << 20, 8000)],
        by_node: vec![(0, 8000), (1, 3000)],
        ..Seen::default()
    };
    feed.state.resolved(
        EXECUTOR,
        Resolved {
            time_ns: 16 * MS,
            page_bytes: 4096,
            sizes_by: SizesBy::PageTables,
            owners: vec![(mark, seen)],
        },
    );
    let record = feed.apply(20 * MS, read()).expect("a record");
    let physical = record.physical.expect("it was examined");
    assert_eq!(physical.time_ns, 16 * MS);
    assert_eq!(physical.present_bytes, 11_000);
    assert_eq!(physical.huge_page_bytes, Some([8000, 0]));
    assert_eq!(physical.nodes, Some(vec![0, 1]));
}

#[test]
fn a_read_of_a_block_of_many_ranges_tells_them_all() {
    let mut feed = Feed::new();
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
        feed.apply(10, Fact::BlockStored(Box::new(fact)));
    }
    let event = Event {
        time_ns: 20,
        executor: EXECUTOR,
        pid: 1,
        tid: 1,
        uid: 1000,
        fact: Fact::BlockRead(BlockRead {
            block_id: "rdd_7_2".to_owned(),
            rdd_id: Some(7),
            partition: Some(2),
            ..BlockRead::default()
        }),
    };
    feed.tap.record_access(&feed.state, &event);
    feed.tap.send_batch();
    let records = feed.records.try_recv().expect("a batch");
    let firsts: Vec<_> = records.iter().map(|record| record.range_first).collect();
    assert_eq!(firsts, [Some(0), Some(96), Some(192)]);
    let reported: Vec<_> = records
        .iter()
        .flat_map(|record| record.ranges.clone())
        .collect();
    assert_eq!(reported, all);
}

#[test]
fn a_removed_block_is_looked_up_before_it_is_gone() {
    let mut feed = Feed::new();
    feed.put(10);
    let removed = || {
        Fact::BlockRemoved(BlockRemoved {
            block_id: "rdd_7_2".to_owned(),
            rdd_id: Some(7),
            partition: Some(2),
            activity: Some(Activity::EVICT),
        })
    };
    let record = feed.apply(20, removed()).expect("a record");
    assert_eq!(record.size_bytes, Some(12_000));
    assert_eq!(record.task_attempt_id, Some(40));
    assert_eq!(record.activity, Some("evict"));
    let again = feed.apply(30, removed()).expect("a record");
    assert_eq!(
        (again.size_bytes, again.ranges.len()),
        (None, 0),
        "what is not known is absent"
    );
}

#[test]
fn a_page_has_its_address_and_a_grant_has_none() {
    let mut feed = Feed::new();
    let page = |page_number, address, reported_again| {
        Fact::PageAllocated(PageAllocated {
            task_attempt_id: Some(40),
            page_number,
            address,
            size_bytes: 65_536,
            on_heap: true,
            reported_again,
            rdd_id: Some(7),
            stage_id: Some(5),
            consumer: "Sorter".to_owned(),
            activity: (!reported_again).then_some(Activity::INSERT),
        })
    };
    let record = feed
        .apply(10, page(Some(1), 0x5000, false))
        .expect("a record");
    assert_eq!(
        (record.kind, record.activity),
        (Kind::Allocate, Some("insert"))
    );
    assert_eq!(record.ranges, [(0x5000, 65_536)]);
    assert_eq!(record.partition, Some(9), "that of the task");
    let grant = feed.apply(11, page(None, 0, false)).expect("a record");
    assert_eq!((grant.ranges.len(), grant.on_heap), (0, None));
    let moved = feed
        .apply(12, page(Some(1), 0x9000, true))
        .expect("a record");
    assert_eq!((moved.kind, moved.kind.access()), (Kind::Alive, None));
    let freed = feed
        .apply(
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
    let record = Feed::new().apply(10, Fact::Span(span)).expect("a record");
    assert_eq!(
        (record.kind.name(), record.region),
        ("spill", Some("execution"))
    );
    assert_eq!((record.stage_id, record.duration_ns), (None, Some(3 * MS)));
    let unknown = Span {
        activity: 200,
        ..Span::default()
    };
    let record = Feed::new()
        .apply(10, Fact::Span(unknown))
        .expect("a record");
    assert_eq!((record.kind.name(), record.activity), ("span", None));
}

#[test]
fn an_executor_that_takes_new_names_keeps_its_partition() {
    let mut feed = Feed::new();
    let mut partitions = std::collections::BTreeSet::new();
    for number in 0..500_u64 {
        let described = ExecutorDescribed {
            application_id: format!("app-{number}"),
            host: format!("host-{number}"),
            ..ExecutorDescribed::default()
        };
        feed.apply(10 + number, Fact::ExecutorDescribed(Box::new(described)));
        let block = BlockFact {
            block_id: format!("rdd_1_{number}"),
            size_bytes: 1,
            ..BlockFact::default()
        };
        let record = feed.apply(10 + number, Fact::BlockStored(Box::new(block)));
        partitions.insert(record.expect("a record").source.partition.clone());
        if number == 250 {
            feed.apply(
                10 + number,
                Fact::ProcessGone {
                    exec: false,
                    is_executor: true,
                    end: None,
                },
            );
        }
    }
    assert_eq!(partitions.len(), 1, "{partitions:?}");
}
