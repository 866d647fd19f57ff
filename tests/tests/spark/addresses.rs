//! SMTT reports the address of what an application wrote, before and after collections, for every storage level and
//! every way of sorting, under every collector and with every method of tracking addresses. The witness is
//! `/proc/PID/mem`. Both compilers of the JVM run under G1, its default; which of them made the application's code does
//! not change where a collector puts memory.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use smtt_tests::heap::{LIMIT, MARK_BYTES, Ranges, SAMPLED, Subject, Told, start};
use smtt_tests::json::{number, text};
use smtt_tests::lab::SparkLab;
use smtt_tests::skip::skip;
use xtask::paths::{DEMO_SPARK, Jdk};
use xtask::process::wait_for;
use xtask::spark::QUICK_COMPILER;

/// ZGC's pauses take less than a tenth of it, where the machine has a CPU for them.
const ZGC_PAUSE_NS: u64 = 5_000_000;

/// All memory is at its reported address; a collection moves a part of it, and the new addresses are reported.
fn followed(version: &str, jdk: &Jdk, java_options: &[&str]) -> Result<()> {
    let lab = SparkLab::on(version, jdk)?;
    let mut subject = start(&lab, java_options)?;
    let mut before = subject.between_collections(|| subject.check_blocks(Told::All))?;
    let (mut moved, mut of, mut objects) = (0, 0, 0);
    for (open, reach) in [("cached", "young"), ("young", "full")] {
        subject.run.open(open)?;
        subject.run.reach(reach)?;
        let after = subject.between_collections(|| subject.check_blocks(Told::All))?;
        for (id, ranges) in &after {
            let was = before.get(id).map_or(&[][..], Vec::as_slice);
            let elsewhere = |(now, was): &(&(u64, usize), &(u64, usize))| now != was;
            if ranges.len() == SAMPLED {
                objects += ranges.iter().zip(was).filter(elsewhere).count();
            }
            of += 1;
            moved += usize::from(before.get(id).is_some_and(|told| told != ranges));
        }
        before = after;
    }
    let executor = subject.executor()?;
    let moves = subject.moves()?;
    println!(
        "{java_options:?}: {moved} of {of} times a block was elsewhere after a collection, {objects} times a sampled object; {} collections, {moves} moves, addresses are {}",
        executor["collections"], executor["heap_addresses_by"]
    );
    ensure!(
        executor["heap_addresses_by"] == "followed",
        "handles give addresses on this JVM: {executor:#}"
    );
    samples_are_looked_at(&subject)?;
    subject.run.open("full")?;
    subject.run.reach("read")?;
    reads_have_addresses(&subject, &before)?;
    subject.run.open("read")?;
    subject.sorts_in_pages("unsafe")?;
    subject.sorts_in_objects("sort")?;
    subject.bypasses_then_sorts("bypass", "table")?;
    subject.finish()?;
    lab.passed()
}

/// A record of a read has an address of its block; a record with a current address has the block's present one.
fn reads_have_addresses(subject: &Subject, told: &BTreeMap<String, Ranges>) -> Result<()> {
    let start = Instant::now();
    loop {
        let gets: Vec<Value> = subject
            .records()?
            .into_iter()
            .filter(|record| record["kind"] == "get" && record["serialized"] == true)
            .collect();
        if gets.len() < 2 {
            ensure!(start.elapsed() < LIMIT, "reads are not recorded: {gets:?}");
            std::thread::sleep(Duration::from_millis(300));
            continue;
        }
        for record in &gets {
            let id = text(record, "block_id")?;
            let first = told.get(&id).and_then(|ranges| ranges.first());
            let age = number(record, "address_age_ms")?;
            let same = record["virtual_address"].as_u64() == first.map(|(address, _)| *address);
            // A collection between the check and the read moves the block; then the listing has its new address too.
            let now = subject.between_collections(|| subject.check_blocks(Told::All))?;
            let moved = now.get(&id) != told.get(&id);
            ensure!(same || moved || age > 0, "{record:#} but {first:x?}");
        }
        return Ok(());
    }
}

#[test]
fn addresses_are_followed_under_g1() -> Result<()> {
    // Regions large enough that the collector can move every object of this test.
    followed(
        DEMO_SPARK,
        &Jdk::main()?,
        &["-XX:+UseG1GC", "-XX:G1HeapRegionSize=8m"],
    )
}

#[test]
fn addresses_are_followed_under_the_parallel_collector() -> Result<()> {
    followed(
        DEMO_SPARK,
        &Jdk::main()?,
        &["-XX:+UseParallelGC", QUICK_COMPILER],
    )
}

#[test]
fn addresses_are_followed_under_the_serial_collector() -> Result<()> {
    followed(
        DEMO_SPARK,
        &Jdk::main()?,
        &["-XX:+UseSerialGC", QUICK_COMPILER],
    )
}

#[test]
fn addresses_are_followed_where_headers_are_compact() -> Result<()> {
    let Some(jdk) = Jdk::all().into_iter().find(|jdk| jdk.release >= 25) else {
        return skip("jdk_25", "there is none under /usr/lib/jvm");
    };
    followed(
        "4.3.0",
        &jdk,
        &[
            "-XX:+UseG1GC",
            "-XX:G1HeapRegionSize=8m",
            "-XX:+UseCompactObjectHeaders",
            QUICK_COMPILER,
        ],
    )
}

/// Checks the sampled objects in the pages listing: shares that add up, and no bytes of the block.
fn samples_are_looked_at(subject: &Subject) -> Result<()> {
    let start = Instant::now();
    let (row, said) = loop {
        let question = ["pages", "--rdd", "mark"];
        let rows = subject.run.rows(&subject.daemon, &question)?;
        // In a moment in which the addresses are stale, neither has figures.
        let said = subject.daemon.ask(&question)?;
        let shown = said.contains("OF SAMPLED OBJECTS") && said.contains("64: node 0");
        match rows.as_slice() {
            // A round between two collections may have resolved the sample of one block only.
            [row] if row["sampled_objects"] == 2 * SAMPLED && shown => break (row.clone(), said),
            _ => ensure!(
                start.elapsed() < LIMIT,
                "objects are not examined: {rows:#?}\n{said}"
            ),
        }
        std::thread::sleep(Duration::from_millis(300));
    };
    let sample = &row["sample"];
    let share = |value: &Value| value.as_f64().with_context(|| format!("{row:#}"));
    let sum = |list: &Value| -> Result<f64> {
        let list = list.as_array().with_context(|| format!("{row:#}"))?;
        list.iter().map(|part| share(&part["share"])).sum()
    };
    ensure!(
        row["resolved_bytes"].is_null() && row["nodes"].is_null(),
        "a few objects are not the block: {row:#}"
    );
    ensure!(
        sample["estimated"] == true && sample["held_bytes"] == row["held_bytes"],
        "{row:#}"
    );
    let bytes = number(sample, "object_bytes")? as usize;
    ensure!(bytes <= 2 * SAMPLED * MARK_BYTES, "{row:#}");
    // Live memory is resident or swapped out.
    let there = share(&sample["present_share"])? + share(&sample["swapped_share"])?;
    ensure!(
        (there - 1.0).abs() < 1e-9 && (sum(&sample["nodes"])? - 1.0).abs() < 1e-9,
        "{row:#}"
    );
    println!("{said}");
    Ok(())
}

#[test]
fn addresses_are_asked_for_where_handles_are_not_read() -> Result<()> {
    // A setting of the agent; the agent chooses the same by itself where handles do not agree with the JVM.
    let lab = SparkLab::new(DEMO_SPARK)?;
    let mut subject = start(
        &lab,
        &[
            "-XX:+UseParallelGC",
            "-Dsmtt.addresses=slow",
            QUICK_COMPILER,
        ],
    )?;
    for (open, reach) in [("", ""), ("cached", "young"), ("young", "full")] {
        if !open.is_empty() {
            subject.run.open(open)?;
            subject.run.reach(reach)?;
        }
        subject.between_collections(|| subject.check_blocks(Told::Arrays))?;
    }
    let executor = subject.executor()?;
    ensure!(
        executor["heap_addresses_by"] == "followed slowly",
        "{executor:#}"
    );
    println!("{} moves", subject.moves()?);
    subject.run.open("full")?;
    subject.run.open("read")?;
    subject.sorts_in_pages("unsafe")?;
    subject.sorts_in_objects("sort")?;
    subject.bypasses_then_sorts("bypass", "table")?;
    subject.finish()?;
    lab.passed()
}

#[test]
fn addresses_are_found_again_where_collections_are_polled() -> Result<()> {
    let lab = SparkLab::new(DEMO_SPARK)?;
    let mut subject = start(
        &lab,
        &[
            "-XX:+UseSerialGC",
            "-Dsmtt.addresses=polled",
            QUICK_COMPILER,
        ],
    )?;
    for (open, reach) in [("", ""), ("cached", "young"), ("young", "full")] {
        if !open.is_empty() {
            subject.run.open(open)?;
            subject.run.reach(reach)?;
        }
        // The report of new addresses has no fixed time, so a single failing check means nothing.
        let start = Instant::now();
        while let Err(error) = subject.check_blocks(Told::Arrays) {
            ensure!(
                start.elapsed() < LIMIT,
                "at {reach:?} not found again: {error:#}"
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    let executor = subject.executor()?;
    ensure!(
        executor["heap_addresses"] == "polled"
            && executor["heap_addresses_by"] == "polled"
            && executor["collections"].is_null(),
        "{executor:#}"
    );
    println!("{} moves", subject.moves()?);
    for gate in ["full", "read"] {
        subject.run.open(gate)?;
    }
    for name in ["unsafe", "sort", "bypass", "table"] {
        for gate in [name.to_owned(), format!("{name}-collected")] {
            subject.run.reach(&gate)?;
            subject.run.open(&gate)?;
        }
    }
    subject.finish()?;
    lab.passed()
}

#[test]
fn no_address_on_the_heap_is_told_under_zgc() -> Result<()> {
    refused("-XX:+UseZGC")
}

#[test]
fn no_address_on_the_heap_is_told_under_shenandoah() -> Result<()> {
    refused("-XX:+UseShenandoahGC")
}

#[test]
fn no_address_on_the_heap_is_told_where_none_is_wanted() -> Result<()> {
    refused("-Dsmtt.addresses=off")
}

/// No memory on the heap has an address, and everything else works.
fn refused(java_option: &str) -> Result<()> {
    let lab = SparkLab::new(DEMO_SPARK)?;
    let mut subject = start(&lab, &[java_option, QUICK_COMPILER])?;
    let executor = subject.executor()?;
    ensure!(
        executor["heap_addresses"] == "refused" && executor["heap_addresses_by"] == "refused",
        "{java_option}: {executor:#}"
    );
    let said = subject.daemon.ask(&["executors"])?;
    ensure!(said.contains("refused: "), "the listing says why: {said}");
    let mut last = None;
    wait_for("every block is listed, without an address", LIMIT, || {
        let checked = subject.check_blocks(Told::Nothing);
        Ok(checked.map_err(|error| last = Some(error)).ok())
    })
    .with_context(|| format!("{last:?}"))?;
    wait_for("contexts still tell", LIMIT, || {
        let executor = subject.executor()?;
        Ok((number(&executor, "page_faults_attributed")? > 0).then_some(()))
    })?;
    for gate in ["cached", "young", "full", "read"] {
        subject.run.open(gate)?;
    }
    for name in ["unsafe", "sort", "bypass", "table"] {
        subject.sorts_without_addresses(name)?;
    }
    let median = median_pause(&subject)?;
    println!("{java_option}: a pause of {:.3} ms", median as f64 / 1e6);
    if java_option == "-XX:+UseZGC" {
        ensure!(median < ZGC_PAUSE_NS, "ZGC works beside the application");
    }
    subject.finish()?;
    lab.passed()
}

/// Median of the collector's pauses in the rows of tasks: a task that sorts asks for a collection meanwhile.
fn median_pause(subject: &Subject) -> Result<u64> {
    wait_for("tasks have pauses", LIMIT, || {
        let mut pauses = Vec::new();
        for row in subject.run.rows(&subject.daemon, &["tasks"])? {
            let id = number(&row, "task_attempt_id")?.to_string();
            for row in subject.run.rows(&subject.daemon, &["task", &id])? {
                let functions = &row["functions"];
                let spans = functions["spans"].as_array().into_iter().flatten();
                let own = spans.filter(|span| span["thread"] == "collections");
                pauses.extend(own.filter_map(|span| span["duration_ns"].as_u64()));
            }
        }
        pauses.sort_unstable();
        Ok(pauses.get(pauses.len() / 2).copied())
    })
}
