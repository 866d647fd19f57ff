//! Writes trace records at full speed. `trace_writer FOLDER` runs until it is killed; a reader can check that each
//! record is whole: see `tests/tests/trace_crash.rs`. `trace_writer FOLDER RECORDS` writes that number of records,
//! which resemble those of a job, and prints the time and the bytes.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use smtt_config::TraceSettings;
use smtt_daemon::recorder::Trace;
use smtt_store::folder::partition;
use smtt_store::record::{Kind, Origin, Record};

/// Records per batch.
const BATCH: u64 = 512;

fn record(source: &Arc<Origin>, number: u64) -> Record {
    let mut record = Record::new(Arc::clone(source), number, Kind::Put);
    record.rdd_id = Some((number % 1000) as u32);
    record.partition = Some((number / 7 % 1000) as u32);
    record.block_id = Some(format!("rdd_{}_{}", number % 1000, number / 7 % 1000));
    record.task_attempt_id = Some(number);
    record.size_bytes = Some(number * 3);
    record.ranges = vec![(number * 4096 + 8, number + 1), (number, 1)];
    record
}

/// Incompressible numbers, the same in every run.
fn scattered(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A record that resembles a job's: four tasks at a time put and read 2,000 blocks, and allocate pages of a few sizes.
fn of_a_job(source: &Arc<Origin>, number: u64) -> Record {
    let any = scattered(number);
    let kind = [Kind::Put, Kind::Get, Kind::Allocate, Kind::Free][(any % 4) as usize];
    let time_ns = 1_790_000_000_000_000_000 + number * 31_337 + any % 30_000;
    let mut record = Record::new(Arc::clone(source), time_ns, kind);
    let (rdd, partition) = ((any >> 8) % 10, (any >> 16) % 200);
    record.stage_id = Some((number / 20_000) as u32);
    record.stage_attempt = Some(0);
    record.task_attempt_id = Some(number / 500 + (any >> 24) % 4);
    record.rdd_id = Some(rdd as u32);
    record.partition = Some(partition as u32);
    record.on_heap = Some(true);
    let address = if matches!(kind, Kind::Put | Kind::Get) {
        let block = scattered(rdd * 1000 + partition);
        record.block_id = Some(format!("rdd_{rdd}_{partition}"));
        record.region = Some("storage");
        record.serialized = Some(true);
        record.range_first = Some(0);
        record.range_total = Some(1);
        record.size_bytes = Some(1 << 20 | block & 0xffff);
        record.address_age_ns = Some(if kind == Kind::Put { 0 } else { any >> 30 });
        block
    } else {
        record.region = Some("execution");
        record.consumer = Some("org.apache.spark.shuffle.sort.ShuffleExternalSorter".to_owned());
        record.size_bytes = Some(1 << (16 + (any >> 32) % 8));
        scattered(number / 64 * 64 + any % 16)
    };
    let length = record.size_bytes.unwrap_or(0);
    record.ranges = vec![(0x7_0000_0000 + ((address >> 16) & 0xffff_fff8), length)];
    record
}

fn measure(folder: &Path, records: u64) -> Result<()> {
    let settings = TraceSettings {
        folder: folder.to_owned(),
        segment_bytes: 64 << 20,
        segment_time: Duration::from_secs(60),
        max_bytes: 1 << 32,
        max_files: 1 << 20,
        gid: None,
    };
    let (trace, queue) = Trace::start(settings, std::sync::Arc::default())?;
    let source = source("app-1");
    let batches: Vec<Vec<Record>> = (0..records)
        .step_by(BATCH as usize)
        .map(|from| (from..from + BATCH).map(|n| of_a_job(&source, n)).collect())
        .collect();
    let written: u64 = batches.iter().map(|batch| batch.len() as u64).sum();
    let start = Instant::now();
    for batch in batches {
        while trace.ledger.status().counts.queued > 16 * BATCH {
            std::thread::sleep(Duration::from_micros(100));
        }
        queue.send(batch);
    }
    drop(queue);
    let ledger = Arc::clone(&trace.ledger);
    if !trace.finish(Duration::from_secs(120)) {
        bail!("the writer did not finish");
    }
    let seconds = start.elapsed().as_secs_f64();
    let counts = ledger.status().counts;
    if counts.written != written {
        bail!("of {written} records not all are written: {counts:?}");
    }
    println!(
        "RESULT {written} records, {seconds} s, {} bytes",
        counts.disk_bytes
    );
    Ok(())
}

fn source(id: &str) -> Arc<Origin> {
    Arc::new(Origin {
        uid: Some(0),
        share: Some(0),
        application_id: id.to_owned(),
        host: "host".to_owned(),
        executor_id: "0".to_owned(),
        partition: partition(Some(0), id, "host"),
    })
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().context("no folder")?;
    let folder = Path::new(&folder);
    if let Some(records) = arguments.next() {
        return measure(folder, records.parse()?);
    }
    let settings = TraceSettings {
        folder: folder.to_owned(),
        segment_bytes: 200_000,
        segment_time: Duration::from_millis(20),
        max_bytes: 1 << 32,
        max_files: 1 << 20,
        gid: None,
    };
    let (trace, queue) = Trace::start(settings, std::sync::Arc::default())?;
    // Two applications, so that a kill finds several segments at different points.
    let sources = ["app-1", "app-2"].map(source);
    println!("writing");
    let mut number = 1;
    loop {
        let source = &sources[(number / BATCH % 2) as usize];
        queue.send(
            (number..number + BATCH)
                .map(|n| record(source, n))
                .collect(),
        );
        number += BATCH;
        // The queue is bounded; a refused record would be a loss.
        while trace.ledger.status().counts.queued > 4 * BATCH {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}
