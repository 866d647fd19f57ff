//! A damaged segment: with one bit changed or the end missing, at every byte, it gives records or an error and never a
//! panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use smtt_store::read::Reader;
use smtt_store::record::{Kind, Origin, Record};
use smtt_store::segment::{Form, Segment};

/// Records of the only row group: every byte of the file is changed, so it is small.
const RECORDS: u64 = 8;

/// The bytes of a small segment.
fn segment(folder: &Path) -> Vec<u8> {
    let origin = Arc::new(Origin {
        uid: Some(1000),
        share: Some(1000),
        application_id: "app-1".to_owned(),
        host: "worker-1".to_owned(),
        executor_id: "0".to_owned(),
        partition: PathBuf::from("app-1"),
    });
    let record = |number: u64| {
        let mut record = Record::new(Arc::clone(&origin), number, Kind::Put);
        record.rdd_id = Some(7);
        record.partition = Some(number as u32);
        record.block_id = Some(format!("rdd_7_{number}"));
        record.size_bytes = Some(number << 20);
        record.on_heap = Some(true);
        record.ranges = vec![(number * 4096 + 8, number + 1), (number, 1)];
        record
    };
    let form = Form::new().expect("the schema is valid");
    let mut segment =
        Segment::create(&form, &origin, folder, "whole.parquet", None).expect("a file");
    let records: Vec<Record> = (0..RECORDS).map(record).collect();
    segment.write(&records).expect("a row group");
    let finished = segment.finish().expect("it can be finished");
    std::fs::read(finished.expect("it has records").path).expect("the file")
}

/// Number of records that are read from these bytes until an error, and whether there was none; `None` after a panic.
fn read(path: &Path, bytes: &[u8]) -> Option<(u64, bool)> {
    std::fs::write(path, bytes).expect("the file can be written");
    catch_unwind(AssertUnwindSafe(|| {
        let Ok(reader) = Reader::open(path) else {
            return (0, false);
        };
        let Ok(records) = reader.records() else {
            return (0, false);
        };
        let mut count = 0;
        // A changed number of rows may promise any number of records.
        for record in records.take(100 * RECORDS as usize) {
            if record.is_err() {
                return (count, false);
            }
            count += 1;
        }
        (count, true)
    }))
    .ok()
}

#[test]
fn every_damaged_byte_of_a_segment_gives_an_error_or_records_and_no_panic() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("damaged.parquet");
    let whole = segment(folder.path());
    assert_eq!(read(&path, &whole), Some((RECORDS, true)));

    let (mut panics, mut short) = (Vec::new(), Vec::new());
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        if read(&path, &flipped).is_none() {
            panics.push(("flip", at));
        }
        match read(&path, &whole[..at]) {
            None => panics.push(("cut", at)),
            Some((_, true)) => short.push(at),
            Some((_, false)) => {}
        }
    }
    assert!(
        panics.is_empty(),
        "{} of {} damaged files panic: {:?}",
        panics.len(),
        2 * whole.len(),
        &panics[..panics.len().min(20)]
    );
    assert!(short.is_empty(), "files cut at {short:?} pass for whole");
}
