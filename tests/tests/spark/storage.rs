//! Storage memory equals Spark's figures, and the address ranges of blocks hold the blocks.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use smtt_tests::application::storage;
use smtt_tests::json::{list, number, text};
use smtt_tests::lab::SparkLab;
use smtt_tests::truth::{same_storage, unless_collected};
use smtt_tests::witness;

/// Part of a range's bytes that must be the pattern; the rest is the serialiser's own and the last repetition.
const PATTERN_SHARE: f64 = 0.95;

/// Checks all storage levels, then unpersisted RDDs, then evicted blocks.
fn storage_memory(version: &str) -> Result<()> {
    let lab = SparkLab::new(version)?;
    let daemon = lab.daemon()?;
    let mut run = lab.run(storage(&lab)?)?;

    run.reach("cached")?;
    let cached = same_storage(&daemon, &run.submitted)?;
    for name in [
        "serialised",
        "objects",
        "off-heap",
        "replicated",
        "serialised pair",
    ] {
        assert!(
            cached.get(name).is_some_and(|bytes| *bytes > 6_000_000),
            "{name} holds no 6 MB: {cached:?}"
        );
    }
    // Spark's figures are also those of blocks, and of page placement, that are added up by name.
    for (listing, field) in [("blocks", "size_bytes"), ("pages", "held_bytes")] {
        let mut seen = BTreeMap::new();
        for row in daemon.rows(&[listing, "--by", "name"])? {
            if number(&row, "rdds")? > 0 {
                seen.insert(text(&row, "group")?, number(&row, field)?);
            }
        }
        assert_eq!(seen, cached, "{listing} --by name");
    }
    // The constants of Spark's class that the application names.
    for (name, level) in [
        ("serialised", "MEMORY_ONLY_SER"),
        ("objects", "MEMORY_ONLY"),
        ("off-heap", "OFF_HEAP"),
        ("replicated", "MEMORY_ONLY_2"),
        ("serialised pair", "MEMORY_ONLY_SER_2"),
    ] {
        let rows = daemon.rows(&["rdds", "--rdd", name])?;
        let levels = rows.iter().map(|row| text(row, "storage_level_name"));
        let levels: Vec<String> = levels.collect::<Result<_>>()?;
        assert!(
            !levels.is_empty() && levels.iter().all(|known| *known == level),
            "{name} has {levels:?} and not {level}"
        );
    }
    let double = cached["serialised pair"] as f64 / cached["serialised"] as f64;
    assert!(
        (1.99..2.01).contains(&double),
        "a replicated RDD holds twice the memory: {cached:?}"
    );

    run.open("cached")?;
    run.reach("unpersisted")?;
    let left = same_storage(&daemon, &run.submitted)?;
    assert!(
        !left.contains_key("objects") && !left.contains_key("serialised pair"),
        "{left:?}"
    );
    assert_eq!(left["off-heap"], cached["off-heap"]);

    run.open("unpersisted")?;
    run.reach("evicted")?;
    let evicted = same_storage(&daemon, &run.submitted)?;
    let before: u64 = left
        .iter()
        .filter(|(name, _)| *name != "off-heap")
        .map(|(_, bytes)| bytes)
        .sum();
    let after: u64 = evicted
        .iter()
        .filter(|(name, _)| !matches!(name.as_str(), "off-heap" | "large"))
        .map(|(_, bytes)| bytes)
        .sum();
    assert!(
        after < before,
        "nothing was evicted for the large RDD: {left:?}, then {evicted:?}"
    );

    run.open("evicted")?;
    run.reach("end")?;
    same_storage(&daemon, &run.submitted)?;
    assert_eq!(run.finish(&["end"])?, "RESULT storage 6816 records");
    drop(daemon);
    lab.passed()
}

#[test]
fn storage_memory_in_spark_3_5() -> Result<()> {
    storage_memory("3.5.9")
}

#[test]
fn storage_memory_in_spark_4_0() -> Result<()> {
    storage_memory("4.0.5")
}

#[test]
fn storage_memory_in_spark_4_3() -> Result<()> {
    storage_memory("4.3.0")
}

/// Reads every range of the named RDD's blocks and searches for the application's pattern.
pub fn ranges_hold_the_pattern(
    listed: &dyn Fn(&[&str]) -> Result<Vec<Value>>,
    name: &str,
    on_heap: bool,
) -> Result<usize> {
    let pids: BTreeMap<String, u32> = listed(&["executors"])?
        .iter()
        .map(|row| Ok((text(row, "executor_id")?, number(row, "pid")? as u32)))
        .collect::<Result<_>>()?;
    let rdds = listed(&["rdds"])?;
    let rdd = rdds
        .iter()
        .find(|row| row["name"].as_str() == Some(name))
        .with_context(|| format!("no RDD {name} in {rdds:?}"))?;
    let rdd = number(rdd, "rdd_id")?.to_string();
    let blocks = listed(&["blocks", "--rdd", &rdd])?;
    for block in &blocks {
        if block["on_heap"].as_bool() != Some(on_heap)
            || block["serialized"].as_bool() != Some(true)
        {
            bail!("{name}: expected a serialised block, on the heap: {on_heap}; seen {block}");
        }
        let executor = text(block, "executor_id")?;
        let pid = *pids
            .get(&executor)
            .with_context(|| format!("no executor {executor} in {pids:?}"))?;
        let pattern = format!("<{name}/{}>", number(block, "partition")?);
        let ranges = list(block, "ranges")?;
        let (mut bytes, mut covered) = (0, 0);
        for range in ranges {
            let (address, length) = (number(range, "address")?, number(range, "length")? as usize);
            let memory = witness::memory(pid, address, length)?;
            bytes += length;
            covered += occurrences(&memory, pattern.as_bytes()) * pattern.len();
        }
        let size = number(block, "size_bytes")? as usize;
        if bytes != size || (covered as f64) < PATTERN_SHARE * size as f64 {
            bail!(
                "{name}: a block of {size} bytes has ranges of {bytes} bytes, {covered} of them hold {pattern}: {block}"
            );
        }
    }
    Ok(blocks.len())
}

fn occurrences(memory: &[u8], pattern: &[u8]) -> usize {
    let mut count = 0;
    let mut at = 0;
    while at + pattern.len() <= memory.len() {
        if memory[at..].starts_with(pattern) {
            count += 1;
            at += pattern.len();
        } else {
            at += 1;
        }
    }
    count
}

#[test]
fn address_ranges_hold_the_blocks() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let daemon = lab.daemon()?;
    let mut run = lab.run(storage(&lab)?)?;
    run.reach("cached")?;
    same_storage(&daemon, &run.submitted)?;
    let listed = |arguments: &[&str]| run.rows(&daemon, arguments);
    assert_eq!(ranges_hold_the_pattern(&listed, "off-heap", false)?, 4);
    let on_heap = unless_collected(|| ranges_hold_the_pattern(&listed, "serialised", true))?;
    assert_eq!(on_heap, 4);
    run.finish(&["cached", "unpersisted", "evicted", "end"])?;
    drop(daemon);
    lab.passed()
}
