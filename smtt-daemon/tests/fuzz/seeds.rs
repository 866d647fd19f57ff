//! Seeds that are bytes and not text: records of the ring, and slot files. `SMTT_BLESS=1` writes them to tests/corpus.

use std::mem::offset_of;

use smtt_common::context::{
    Access, Activity, ContextWord, HEADER_SIZE, Header, HeapAddresses, MAGIC, Region, SLOT_IN_USE,
    SLOT_SIZE, Slot, VERSION,
};
use smtt_common::event::{MARKER_FACTS, RecordHeader};
use smtt_common::settings::executor_key;
use smtt_model::decode::encode::{self, encode};
use smtt_model::decode::{
    BlockFact, BlockRead, BlockRemoved, Event, ExecutorDescribed, Fact, JobDescribed, Outcome,
    PageAllocated, PageFreed, PythonWorker, RddDescribed, StageDescribed, TaskEnded, TaskStarted,
};

use super::corpus_folder;

/// Slots of a seed: enough for each field to matter, few enough to be changed often.
const SLOTS: usize = 4;

/// The bytes of a record as they are in the ring.
pub fn bytes_of(header: &RecordHeader, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(header.kind.to_le_bytes());
    bytes.extend(header.node_plus_one.to_le_bytes());
    bytes.extend(header.payload_bytes.to_le_bytes());
    bytes.extend(header.time_ns.to_le_bytes());
    bytes.extend(header.executor.to_le_bytes());
    for word in [header.pid, header.tid, header.uid, header.reserved] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(payload);
    bytes
}

/// A stream of the facts, from one executor, a millisecond apart.
fn stream(pid: u32, facts: impl IntoIterator<Item = Fact>) -> Vec<u8> {
    let events = (1..).zip(facts).map(|(number, fact)| Event {
        time_ns: number * 1_000_000,
        executor: executor_key(pid, 1),
        pid,
        tid: pid + number as u32 % 3,
        uid: 1000,
        fact,
    });
    let records = events.map(|event| encode(&event));
    records
        .flat_map(|(header, payload)| bytes_of(&header, &payload))
        .collect()
}

fn described(id: &str) -> Fact {
    Fact::ExecutorDescribed(Box::new(ExecutorDescribed {
        slots_address: 1 << 40,
        slot_count: 4,
        application_id: "app-20260101120000-0001".to_owned(),
        application_name: "PageRank".to_owned(),
        executor_id: id.to_owned(),
        host: "worker-1".to_owned(),
        ..ExecutorDescribed::default()
    }))
}

fn block(partition: u32, ranges: &[(u64, u64)]) -> Box<BlockFact> {
    Box::new(BlockFact {
        block_id: format!("rdd_7_{partition}"),
        rdd_id: Some(7),
        partition: Some(partition),
        size_bytes: 1 << 20,
        serialized: true,
        range_total: ranges.len() as u64,
        ranges: ranges.to_vec(),
        ..BlockFact::default()
    })
}

/// What an executor that caches an RDD and aggregates says from its begin to its end.
fn life() -> Vec<Fact> {
    let started = TaskStarted {
        task_attempt_id: 1,
        stage_id: 3,
        ..TaskStarted::default()
    };
    let ended = TaskEnded {
        task_attempt_id: 1,
        stage_id: 3,
        stage_attempt: 0,
        outcome: Outcome::Succeeded,
        execution_memory_peak_bytes: 1 << 20,
        reason: String::new(),
    };
    let page = PageAllocated {
        task_attempt_id: Some(1),
        page_number: Some(0),
        address: 1 << 32,
        size_bytes: 1 << 20,
        consumer: "org.apache.spark.unsafe.map.BytesToBytesMap".to_owned(),
        ..PageAllocated::default()
    };
    vec![
        described("0"),
        Fact::RddDescribed(Box::new(RddDescribed {
            rdd_id: 7,
            partitions: 2,
            name: "ranks".to_owned(),
            storage_level_text: "Memory Serialized 1x Replicated".to_owned(),
            parents: vec![5, 6],
            ..RddDescribed::default()
        })),
        Fact::StageDescribed(StageDescribed {
            stage_id: 3,
            tasks: 2,
            rdd_id: Some(7),
            name: "map at PageRank.py:20".to_owned(),
            ..StageDescribed::default()
        }),
        Fact::JobDescribed(JobDescribed {
            job_id: 2,
            started_unix_ms: 1_795_253_445_123,
            ended_unix_ms: Some(1_795_253_446_000),
            sql_execution_id: Some(4),
            failure: "Job 2 cancelled".to_owned(),
        }),
        Fact::TaskStarted(started),
        Fact::BlockStored(block(
            0,
            &[(1 << 33, 1 << 19), ((1 << 33) + (1 << 20), 1 << 19)],
        )),
        Fact::BlockRead(BlockRead {
            block_id: "rdd_7_0".to_owned(),
            ..BlockRead::default()
        }),
        Fact::PageAllocated(page),
        Fact::PythonWorker(PythonWorker {
            task_attempt_id: Some(1),
            ..PythonWorker::default()
        }),
        Fact::ProcessForked { child_pid: 77 },
        Fact::PageFreed(PageFreed {
            task_attempt_id: Some(1),
            page_number: Some(0),
            ..PageFreed::default()
        }),
        Fact::TaskEnded(ended),
        Fact::BlockMoved(block(0, &[(1 << 34, 1 << 20)])),
        Fact::AddressesReported {
            collection: 1,
            moved_facts: 1,
        },
        Fact::ResyncReported {
            request: 5,
            facts: 0,
        },
        Fact::ResyncDone { request: 5 },
        Fact::BlockRemoved(BlockRemoved {
            block_id: "rdd_7_0".to_owned(),
            ..BlockRemoved::default()
        }),
        Fact::ProcessGone {
            exec: false,
            is_executor: true,
            end: None,
        },
    ]
}

/// Facts that took the daemon's memory or time once: a range far behind the first, overlapping pages without end, new
/// tasks, RDDs and executor ids.
fn greedy() -> Vec<Fact> {
    let mut facts = vec![described("0"), described("1")];
    facts.extend((0..16).map(|number| {
        let far = BlockFact {
            range_first: 4095,
            ..*block(number, &[(1 << 40, 1)])
        };
        Fact::BlockStored(Box::new(far))
    }));
    facts.extend((0..16).map(|number| {
        Fact::PageAllocated(PageAllocated {
            task_attempt_id: Some(number),
            page_number: Some(number),
            address: 1 << 20,
            size_bytes: 1 << 62,
            consumer: "c".repeat(200),
            ..PageAllocated::default()
        })
    }));
    facts.extend((0..16).map(|number| {
        Fact::TaskStarted(TaskStarted {
            task_attempt_id: number << 32,
            stage_id: number as u32,
            ..TaskStarted::default()
        })
    }));
    facts
}

/// A record of each kind of the marker's facts, with small numbers, so that facts speak of the same things.
fn every_kind() -> Vec<u8> {
    let fact = |seed: u64| {
        MARKER_FACTS.iter().flat_map(move |schema| {
            let mut words = vec![seed % 3; schema.words.len()];
            let ranges = [(seed << 20, 4096), ((seed + 1) << 20, 1)];
            if let (true, Some(count)) = (schema.ranges, words.last_mut()) {
                *count = ranges.len() as u64;
            }
            let text = format!("rdd_{}_{}", seed % 4, seed % 2);
            let strings = vec![text.as_str(); schema.strings.len()];
            let ranges = if schema.ranges { &ranges[..] } else { &[] };
            let payload = encode::payload(&words, ranges, &strings);
            let header = RecordHeader {
                kind: schema.kind.0,
                payload_bytes: payload.len() as u32,
                time_ns: seed * 1_000_000,
                executor: seed % 3,
                pid: seed as u32 % 3,
                tid: seed as u32 % 5,
                uid: 1000 + seed as u32 % 2,
                ..RecordHeader::default()
            };
            bytes_of(&header, &payload)
        })
    };
    (0..6).flat_map(fact).collect()
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// A slot file as a marker writes it: two threads at work, one idle, one slot free.
fn slot_file() -> Vec<u8> {
    let mut bytes = vec![0; HEADER_SIZE + SLOTS * SLOT_SIZE];
    put(&mut bytes, offset_of!(Header, magic), &MAGIC.to_le_bytes());
    for (at, word) in [
        (offset_of!(Header, version), VERSION),
        (offset_of!(Header, slot_size), SLOT_SIZE as u32),
        (offset_of!(Header, slot_count), SLOTS as u32),
        (offset_of!(Header, pid), 42),
    ] {
        put(&mut bytes, at, &word.to_le_bytes());
    }
    for (at, word) in [
        (offset_of!(Header, resync_request), 5_u64),
        (offset_of!(Header, resync_done), 5),
        (offset_of!(Header, facts_without_slot), 3),
        (
            offset_of!(Header, heap_addresses),
            u64::from(HeapAddresses::FOLLOWED.0),
        ),
        (offset_of!(Header, collections_begun), 9),
        (offset_of!(Header, collections_ended), 9),
    ] {
        put(&mut bytes, at, &word.to_le_bytes());
    }
    let at_work = ContextWord::new(Activity::CACHE_READ, Access::READ, Region::STORAGE, 8, 1);
    for (index, hot) in [at_work.0, at_work.0 + 1, 0].into_iter().enumerate() {
        let slot = HEADER_SIZE + index * SLOT_SIZE;
        for (at, word) in [
            (offset_of!(Slot, hot), hot),
            (offset_of!(Slot, task_attempt_id), index as u64),
            (offset_of!(Slot, facts_emitted), 1000),
            (offset_of!(Slot, heap.start), 1 << 35),
            (offset_of!(Slot, heap.bytes), 1 << 30),
        ] {
            put(&mut bytes, slot + at, &word.to_le_bytes());
        }
        for (at, word) in [
            (offset_of!(Slot, stage_id), 3),
            (offset_of!(Slot, tid), 42 + index as u32),
            (offset_of!(Slot, state), SLOT_IN_USE),
        ] {
            put(&mut bytes, slot + at, &word.to_le_bytes());
        }
    }
    bytes
}

#[test]
fn the_seeds_are_those_of_this_release() {
    for (folder, name, bytes) in [
        ("facts", "every_kind.records", every_kind()),
        ("facts", "life.records", stream(42, life())),
        ("facts", "greedy.records", stream(43, greedy())),
        ("slots", "three_threads.slots", slot_file()),
    ] {
        let path = corpus_folder(folder).join(name);
        if std::env::var_os("SMTT_BLESS").is_some() {
            std::fs::create_dir_all(corpus_folder(folder)).expect("a folder");
            std::fs::write(&path, &bytes).expect("written");
        }
        assert!(
            std::fs::read(&path).is_ok_and(|kept| kept == bytes),
            "{} is out of date: SMTT_BLESS=1 cargo test -p smtt-daemon --test fuzz seeds",
            path.display()
        );
    }
}
