//! A hundred thousand blocks of one RDD through the real ring: the sum equals the program's, the daemon's memory is
//! bounded, blocks without a row are counted.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_tests::lab::programs;
use smtt_tests::skip::skip;
use smtt_tests::witness;
use xtask::daemon::{Daemon, Options};
use xtask::paths::Paths;
use xtask::process::is_root;

use crate::lab::Workload;

const ROUNDS: u64 = 50;
/// Few enough for the default ring to hold a whole round while the daemon does not run.
const PER_ROUND: u64 = 2000;
/// Rows of blocks that one executor may have, as in the default configuration.
const ROWS: u64 = 8192;
/// Limit of the daemon's peak memory: the target of docs/PRINCIPLES.md.
const RESIDENT_MAX_KIB: u64 = 64 << 10;
/// The same limit while a client lists all rows of the largest table at once.
const LISTING_MAX_KIB: u64 = 128 << 10;
/// How long a round may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Bytes of the first `blocks` blocks, as the program makes them.
fn bytes(blocks: u64) -> u64 {
    (0..blocks).map(|block| 100 + block % 7).sum()
}

/// The value of a field that is absent where there is no block.
fn or_none(row: &Value, field: &str) -> u64 {
    row[field].as_u64().unwrap_or(0)
}

#[test]
fn a_hundred_thousand_blocks_have_their_true_size_in_bounded_memory() -> Result<()> {
    if !is_root() {
        return skip("root", "the daemon needs CAP_BPF and CAP_PERFMON");
    }
    let folder = tempfile::tempdir()?;
    let options = Options {
        // The rate limit for a broken marker is not under test.
        toml: "[probe.marker]\nfacts_per_second = 10000000\n".to_owned(),
        ..Options::default()
    };
    let daemon = Daemon::start(&Paths::find()?, &programs()?, folder.path(), &options)?;
    let rounds = [format!("rounds={ROUNDS}"), format!("per_round={PER_ROUND}")];
    let mut workload = Workload::start("blocks", &[&rounds[0], &rounds[1]])?;
    let pid = workload.pid().to_string();
    // Another workload may describe itself on this machine: its executor id is its pid.
    let row = |listing: &str| -> Result<Value> {
        let rows = daemon.rows(&[listing, "--executor", &pid])?;
        Ok(rows.into_iter().next().unwrap_or(Value::Null))
    };
    let holds = |blocks: u64, bytes: u64| -> Result<()> {
        let start = Instant::now();
        loop {
            let rdd = row("rdds")?;
            let says = (
                or_none(&rdd, "partitions_cached"),
                or_none(&rdd, "storage_memory_bytes"),
            );
            if says == (blocks, bytes) {
                return Ok(());
            }
            ensure!(
                start.elapsed() < LIMIT,
                "{blocks} blocks with {bytes} bytes are in memory, the daemon says {rdd}, {}",
                row("executors")?
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    workload.go()?;
    let all = ROUNDS * PER_ROUND;
    for round in 1..=ROUNDS {
        workload.expect("ROUND")?;
        holds(round * PER_ROUND, bytes(round * PER_ROUND))?;
        if round < ROUNDS {
            workload.go()?;
        }
    }
    let (rdd, executor) = (row("rdds")?, row("executors")?);
    let peak = witness::resident_peak_bytes(daemon.pid())? / 1024;
    println!("{rdd}, {}, at most {peak} KiB", executor["over_cap"]);
    ensure!(
        peak <= RESIDENT_MAX_KIB,
        "the daemon had {peak} KiB in memory"
    );
    ensure!(or_none(&rdd, "storage_memory_bytes") == bytes(all), "{rdd}");
    ensure!(
        or_none(&executor["over_cap"], "blocks") == all - ROWS,
        "{executor}"
    );
    ensure!(
        daemon.rows(&["blocks", "--executor", &pid])?.len() as u64 == ROWS,
        "not as many rows as there is room for"
    );
    for round in 1..=ROUNDS {
        workload.go()?;
        workload.expect("ROUND")?;
        let gone = round * PER_ROUND;
        holds(all - gone, bytes(all) - bytes(gone))?;
    }
    let peak = witness::resident_peak_bytes(daemon.pid())? / 1024;
    println!("at most {peak} KiB with a listing of all rows");
    ensure!(
        peak <= LISTING_MAX_KIB,
        "the daemon had {peak} KiB in memory"
    );
    let ledger = daemon.json(&["status"])?["ledger"].clone();
    let hops = ledger.as_array().context("no ledger")?;
    ensure!(
        hops.iter().all(|hop| hop["consistent"] == true),
        "{ledger:#}"
    );
    workload.go()?;
    workload.done()?;
    workload.end()
}
