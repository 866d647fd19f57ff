//! An RDD with more partitions than the daemon has rows: sums equal Spark's, memory is bounded, each block without a
//! row is counted.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use smtt_tests::application::LOCAL_CLUSTER;
use smtt_tests::lab::{Run, SparkLab};
use smtt_tests::records::tracing;
use smtt_tests::truth::same_storage;
use smtt_tests::witness;
use xtask::daemon::Daemon;
use xtask::paths::DEMO_SPARK;
use xtask::spark::Application;

const PARTITIONS: u64 = 20_000;
/// Rows of blocks that one executor may have, as in the default configuration.
const BLOCKS: u64 = 8192;
/// Limit of the daemon's peak memory, with the records of 20,000 moved blocks per collection in flight to the trace
/// files.
const RESIDENT_MAX_KIB: u64 = 128 << 10;
/// How long the resync of facts that were lost in a burst may take.
const HEAL: Duration = Duration::from_secs(120);

/// Waits until the storage memory of both sides is equal, also after facts were lost in a burst.
fn healed(daemon: &Daemon, run: &Run) -> Result<u64> {
    let start = Instant::now();
    loop {
        match same_storage(daemon, &run.submitted) {
            Ok(storage) => return Ok(storage.get("many").copied().unwrap_or(0)),
            Err(different) if start.elapsed() > HEAL => return Err(different),
            Err(_) => {}
        }
    }
}

fn the_rdd(daemon: &Daemon, run: &Run) -> Result<Value> {
    let rows = run.rows(daemon, &["rdds"])?;
    let row = rows.into_iter().filter(|row| row["name"] == "many");
    // Each executor has a row.
    let mut sum: Option<Value> = None;
    for row in row {
        match &mut sum {
            None => sum = Some(row),
            Some(sum) => {
                for field in ["partitions_cached", "storage_memory_bytes", "block_reads"] {
                    let both = sum[field].as_u64().unwrap_or(0) + row[field].as_u64().unwrap_or(0);
                    sum[field] = both.into();
                }
            }
        }
    }
    sum.context("no RDD many")
}

#[test]
fn an_rdd_of_very_many_partitions_has_sparks_size_in_bounded_memory() -> Result<()> {
    let lab = SparkLab::new(DEMO_SPARK)?;
    let folder = lab.folder().join("trace");
    let mut daemon = lab.daemon_with(&tracing(&folder, ""))?;
    let job = [PARTITIONS.to_string()];
    let job: Vec<&str> = job.iter().map(String::as_str).collect();
    let application = Application::java(&lab.paths, LOCAL_CLUSTER, "ManyPartitions", &job)?
        .with_marker(&lab.paths);
    let mut run = lab.run(application)?;
    run.reach("cached")?;
    let bytes = healed(&daemon, &run)?;
    let row = the_rdd(&daemon, &run)?;
    let peak = witness::resident_peak_bytes(daemon.pid())? >> 10;
    println!("{bytes} bytes, {row}, at most {peak} KiB");
    assert_eq!(row["partitions_cached"].as_u64(), Some(PARTITIONS));
    for executor in run.rows(&daemon, &["executors"])? {
        let blocks = executor["blocks"].as_u64().context("no blocks")?;
        println!("{} blocks, {}", blocks, executor["over_cap"]);
        if blocks > BLOCKS {
            // A lost block that the resync reports again may have had a row before.
            let without = executor["over_cap"]["blocks"].as_u64();
            assert!(without >= Some(blocks - BLOCKS), "{executor}");
        }
    }
    println!(
        "{}",
        serde_json::to_string(&daemon.json(&["status"])?["ledger"])?
    );

    // A daemon that starts late receives all blocks in one resync.
    let start = Instant::now();
    daemon.stop();
    daemon.start_again()?;
    assert_eq!(healed(&daemon, &run)?, bytes, "told again");
    println!(
        "{:?} after its start the daemon knows as much",
        start.elapsed()
    );

    run.open("cached")?;
    run.reach("read")?;
    assert_eq!(healed(&daemon, &run)?, bytes);
    run.open("read")?;
    run.reach("end")?;
    assert_eq!(healed(&daemon, &run)?, 0, "all are gone");
    let peak = witness::resident_peak_bytes(daemon.pid())? >> 10;
    println!("at most {peak} KiB");
    println!(
        "{}",
        serde_json::to_string(&daemon.json(&["status"])?["ledger"])?
    );
    ensure!(
        peak <= RESIDENT_MAX_KIB,
        "the daemon had {peak} KiB in memory"
    );
    let result = run.finish(&["end"])?;
    if result != format!("RESULT many {}", 2 * PARTITIONS) {
        bail!("{result}");
    }
    drop(daemon);
    lab.passed()
}
