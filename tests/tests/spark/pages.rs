//! Placement of cached RDDs: the states of an RDD's pages add up to its blocks, at every storage level.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use smtt_tests::application::storage;
use smtt_tests::json::{number, text};
use smtt_tests::lab::{Run, SparkLab, quick_placement};
use smtt_tests::truth::{same_storage, unless_collected};
use xtask::daemon::Daemon;

const PAGE: u64 = 4096;
/// The first round after everything was cached comes within two intervals.
const LIMIT: Duration = Duration::from_secs(120);

/// Id of the RDD with the given name.
fn id(daemon: &Daemon, run: &Run, name: &str) -> Result<String> {
    let rdds = run.rows(daemon, &["rdds"])?;
    let rdd = rdds
        .iter()
        .find(|row| row["name"].as_str() == Some(name))
        .with_context(|| format!("no RDD {name} in {rdds:?}"))?;
    Ok(number(rdd, "rdd_id")?.to_string())
}

fn states(row: &Value) -> Result<u64> {
    [
        "present_bytes",
        "swapped_bytes",
        "untouched_bytes",
        "unmapped_bytes",
    ]
    .iter()
    .map(|state| number(row, state))
    .sum()
}

/// Whether the resolver has examined every page of every row. A round on a busy machine may examine a sample.
fn examined(rows: &[Value]) -> bool {
    let whole = |row: &Value| row["resolved_bytes"].is_u64() && row["estimated"] == false;
    !rows.is_empty() && rows.iter().all(whole)
}

fn pages_of_an_rdd(daemon: &Daemon, run: &Run, name: &str, addresses: &str) -> Result<()> {
    let rdd = id(daemon, run, name)?;
    let start = Instant::now();
    let (rows, in_blocks) = loop {
        let rows = run.rows(daemon, &["pages", "--rdd", &rdd])?;
        let in_blocks = run.rows(daemon, &["pages", "--rdd", &rdd, "--blocks"])?;
        if examined(&rows) && examined(&in_blocks) {
            break (rows, in_blocks);
        }
        ensure!(
            start.elapsed() < LIMIT,
            "{name} was not examined to its last page: {rows:?}, {in_blocks:?}"
        );
        std::thread::sleep(Duration::from_millis(200));
    };
    let blocks = run.rows(daemon, &["blocks", "--rdd", &rdd])?;
    let key = |row: &Value| -> Result<(String, String)> {
        Ok((text(row, "executor_id")?, text(row, "block_id")?))
    };
    let sizes: BTreeMap<(String, String), &Value> = blocks
        .iter()
        .map(|row| Ok((key(row)?, row)))
        .collect::<Result<_>>()?;
    ensure!(
        sizes.len() == in_blocks.len(),
        "{name}: {} blocks, {} of them with pages",
        sizes.len(),
        in_blocks.len()
    );
    for row in &in_blocks {
        let block = sizes
            .get(&key(row)?)
            .with_context(|| format!("{name}: no such block: {row}"))?;
        let size = number(block, "size_bytes")?;
        // Every range touches the pages at its two ends.
        let mut pages = 0;
        for range in block["ranges"].as_array().context("no ranges")? {
            let (address, length) = (number(range, "address")?, number(range, "length")?);
            pages += (address + length).div_ceil(PAGE) - address / PAGE;
        }
        ensure!(
            states(row)? == size && number(row, "pages")? == pages,
            "{name}: a block of {size} bytes on {pages} pages: {row}"
        );
    }
    let bytes: u64 = blocks
        .iter()
        .map(|row| number(row, "size_bytes"))
        .sum::<Result<_>>()?;
    let seen: u64 = rows.iter().map(states).sum::<Result<_>>()?;
    let present: u64 = rows
        .iter()
        .map(|row| number(row, "present_bytes"))
        .sum::<Result<_>>()?;
    println!(
        "{name}: {bytes} bytes in {} blocks, {present} of them in memory: {rows:?}",
        blocks.len()
    );
    ensure!(
        seen == bytes,
        "{name}: blocks of {bytes} bytes, states of {seen}"
    );
    // The pages were just written, and this machine does not swap by itself.
    ensure!(
        present == bytes
            || present > bytes / 2
                && rows
                    .iter()
                    .any(|row| row["swapped_bytes"].as_u64() > Some(0)),
        "{name}: {present} of {bytes} bytes are in memory"
    );
    for row in &rows {
        ensure!(
            row["addresses"].as_str() == Some(addresses),
            "{name}: addresses are {addresses}: {row}"
        );
        let nodes = row["nodes"].as_array().context("no nodes")?;
        let on_nodes: u64 = nodes
            .iter()
            .map(|node| number(node, "bytes"))
            .sum::<Result<_>>()?;
        ensure!(
            on_nodes + number(row, "node_unknown_bytes")? == number(row, "present_bytes")?,
            "{name}: what is in memory is on a node: {row}"
        );
    }
    Ok(())
}

#[test]
fn states_of_pages_add_up_to_the_blocks() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let daemon = lab.daemon_with(&quick_placement())?;
    let mut run = lab.run(storage(&lab)?)?;
    run.reach("cached")?;
    same_storage(&daemon, &run.submitted)?;
    pages_of_an_rdd(&daemon, &run, "off-heap", "fixed")?;
    unless_collected(|| pages_of_an_rdd(&daemon, &run, "serialised", "current"))?;

    // Objects are not contiguous: unknown figures are absent.
    let objects = id(&daemon, &run, "objects")?;
    let rows = run.rows(&daemon, &["pages", "--rdd", &objects])?;
    ensure!(
        !rows.is_empty() && rows.iter().all(|row| row["present_bytes"].is_null()),
        "objects: {rows:?}"
    );
    let metrics = daemon.metrics()?;
    let label = "rdd=\"off-heap\"";
    for metric in [
        "smtt_rdd_memory_node_bytes",
        "smtt_rdd_memory_huge_page_bytes",
        "smtt_rdd_memory_swapped_bytes",
    ] {
        ensure!(
            metrics
                .lines()
                .any(|line| line.starts_with(metric) && line.contains(label)),
            "no series {metric} of the off-heap RDD"
        );
    }
    // The RDD is unpersisted: it has no bytes.
    run.open("cached")?;
    run.reach("unpersisted")?;
    same_storage(&daemon, &run.submitted)?;
    let rows = run.rows(&daemon, &["pages", "--rdd", &objects])?;
    ensure!(rows.is_empty(), "unpersisted: {rows:?}");
    run.finish(&["unpersisted", "evicted", "end"])?;
    drop(daemon);
    lab.passed()
}
