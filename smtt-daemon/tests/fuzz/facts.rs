//! Streams of changed records of the ring into a state, which all its readers read.

use std::sync::Arc;

use smtt_common::event::RecordHeader;
use smtt_daemon::recorder::Tap;
use smtt_daemon::ring::{Record, parse};
use smtt_model::decode::decode;

use super::seeds::bytes_of;
use super::{changed, corpus, limits, read_all, rounds, shared, tried};

/// Records of one round.
const RECORDS: usize = 200;
/// Memory of a record, and of all readers with full small tables.
const RECORD_MEMORY: usize = 1 << 20;
const READ_MEMORY: usize = 16 << 20;

/// The records of a stream.
fn records(stream: &[u8]) -> Vec<Record> {
    let (mut records, mut rest) = (Vec::new(), stream);
    while let Some(record) = parse(rest) {
        let length = size_of::<RecordHeader>() + record.payload.len();
        rest = rest.get(length..).unwrap_or_default();
        records.push(record);
    }
    records
}

#[test]
fn the_corpus_is_streams_of_whole_records_that_decode() {
    for stream in corpus("facts") {
        let records = records(&stream);
        let length = |record: &Record| size_of::<RecordHeader>() + record.payload.len();
        assert_eq!(records.iter().map(length).sum::<usize>(), stream.len());
        let good = |record: &&Record| decode(&record.header, &record.payload).is_ok();
        // A failure that was put here may not decode at all.
        assert!(records.iter().filter(good).count() * 2 > records.len());
    }
}

#[test]
fn streams_of_changed_facts_leave_a_state_that_all_readers_can_read() {
    let streams: Vec<Vec<Record>> = corpus("facts").iter().map(|it| records(it)).collect();
    let payloads: Vec<Vec<u8>> = streams
        .iter()
        .flatten()
        .map(|record| record.payload.clone())
        .collect();
    rounds(|random| {
        let shared = shared(limits());
        let mut tap = Tap::new(None, Arc::clone(shared.followers()));
        let (mut stream, mut at) = (random.of(&streams), 0);
        for step in 0..RECORDS {
            // In their order for the most part: what comes first decides what later facts mean.
            match random.below(10) {
                0 => (stream, at) = (random.of(&streams), 0),
                1 => at = random.below(stream.len()),
                _ => at = (at + 1) % stream.len(),
            }
            let Record { header, payload } = &stream[at];
            let payload = match random.below(4) {
                0 | 1 => payload.clone(),
                2 => changed(random, std::slice::from_ref(payload)),
                _ => changed(random, &payloads),
            };
            let mut header = RecordHeader {
                payload_bytes: payload.len() as u32,
                time_ns: match random.below(20) {
                    0 => random.next(),
                    _ => step as u64 * 1_000_000,
                },
                ..*header
            };
            match random.below(20) {
                0 => header.kind = random.next() as u16,
                1 => header.executor = random.below(5) as u64,
                2 => header.pid = random.below(5) as u32,
                3 => header.tid = random.next() as u32,
                4 => header.uid = random.below(3) as u32,
                5 => header.payload_bytes = random.next() as u32,
                6 => header.node_plus_one = random.next() as u16,
                _ => {}
            }
            let bytes = bytes_of(&header, &payload);
            tried(&bytes, RECORD_MEMORY, || {
                let record = parse(&bytes).expect("it has a header");
                let Ok(event) = decode(&record.header, &record.payload) else {
                    return;
                };
                let mut state = shared.state();
                tap.record_access(&state, &event);
                state.apply(event);
            });
        }
        tried(b"all that is listed", READ_MEMORY, || read_all(&shared));
    });
}
