//! Memory that tasks touched first: compared with the bytes that they allocate, and with the growth of the executor's
//! resident memory meanwhile, which the task reads in `/proc`.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_tests::json::{number, text};
use smtt_tests::lab::{LIMIT, SparkLab};
use xtask::process::wait_for;
use xtask::spark::Application;

/// MiB that a task allocates on the heap, and MiB of the direct buffer of another.
const HEAP_MIB: u64 = 256;
const DIRECT_MIB: u64 = 128;
/// What a task's runner touches besides, and what other threads of the executor do meanwhile.
const AROUND: u64 = 16 << 20;
/// Stages in their order: two warm up, one fills the heap that was touched before.
const HEAP: usize = 3;
const DIRECT: usize = 4;
const AGAIN: usize = 5;
/// A heap without collections, which would give memory back that was touched before.
const WITHOUT_COLLECTIONS: &str =
    "-Xms1536m -Xmn512m -XX:+UseG1GC -XX:InitiatingHeapOccupancyPercent=95";

/// Whether a value is at least the truth, and little more.
fn near(value: u64, truth: u64) -> bool {
    value >= truth && value <= truth + truth / 50 + AROUND / 2
}

#[test]
fn a_task_has_the_memory_that_it_touches_first() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let daemon = lab.daemon()?;
    let application = Application::java(
        &lab.paths,
        "local-cluster[1,1,1536]",
        "Touching",
        &[&HEAP_MIB.to_string(), &DIRECT_MIB.to_string()],
    )?
    .conf("spark.executor.memory", "1536m")
    .conf("spark.executor.extraJavaOptions", WITHOUT_COLLECTIONS)
    .with_marker(&lab.paths);
    let mut run = lab.run(application)?;
    run.open("begin")?;
    run.reach("end")?;
    let rows = wait_for("all tasks have their accounts", LIMIT, || {
        let rows = run.rows(&daemon, &["tasks"])?;
        let done = rows.iter().filter(|row| row["used_until"] == "task_end");
        Ok((done.count() == 6).then_some(rows))
    })?;
    let stages = run.rows(&daemon, &["stages"])?;
    let jobs = run.rows(&daemon, &["jobs"])?;
    let summary = run.rows(&daemon, &["stages", "--summary"])?;
    let result = run.finish(&["end"])?;
    let grown = result
        .strip_prefix("RESULT touching ")
        .context("a result")?;
    let grown: Vec<u64> = grown
        .split(' ')
        .map(|number| number.parse().context("a number"))
        .collect::<Result<_>>()?;
    let of = |stage: usize| -> Result<(u64, u64, &Value)> {
        let row = rows
            .iter()
            .find(|row| row["stage_id"].as_u64() == Some(stage as u64));
        let row = row.with_context(|| format!("no task of stage {stage}"))?;
        let (heap, native) = (
            number(row, "touched_heap_bytes")?,
            number(row, "touched_native_bytes")?,
        );
        ensure!(number(row, "touched_bytes")? == heap + native, "{row}");
        // Each page is a fault, unless it is a large one.
        let faults = number(row, "thread_minor_faults")? + number(row, "thread_major_faults")?;
        println!(
            "stage {stage}: {heap} bytes of the heap, {native} others, {faults} faults; resident memory grew by {grown:?}"
        );
        Ok((heap, native, row))
    };
    let (heap, native, row) = of(HEAP)?;
    ensure!(
        near(heap, HEAP_MIB << 20) && native < AROUND / 2,
        "{} MiB on the heap: {row}",
        HEAP_MIB
    );
    let (in_direct, outside, row) = of(DIRECT)?;
    ensure!(
        near(outside, DIRECT_MIB << 20) && in_direct < AROUND / 2,
        "{} MiB of a direct buffer: {row}",
        DIRECT_MIB
    );
    // Other threads of the executor touch memory as well.
    for (touched, grown) in [heap + native, in_direct + outside].iter().zip(&grown) {
        ensure!(
            touched.abs_diff(*grown) <= touched / 20 + AROUND,
            "the task touched {touched} bytes first, and resident memory grew by {grown}"
        );
    }
    let (heap, native, row) = of(AGAIN)?;
    ensure!(
        heap < AROUND && native < AROUND / 2,
        "it was there before: {row}"
    );
    // Stages and jobs have the sums of their tasks, and a stage of one task has it as every quantile.
    for figure in [
        "touched_bytes",
        "touched_heap_bytes",
        "touched_native_bytes",
    ] {
        let all: u64 = rows.iter().filter_map(|row| row[figure].as_u64()).sum();
        for sums in [&stages, &jobs] {
            let sum: u64 = sums.iter().filter_map(|row| row[figure].as_u64()).sum();
            ensure!(sum == all, "{figure}: {sum}, the tasks have {all}");
        }
        ensure!(
            summary.iter().any(|row| row.to_string().contains(figure)),
            "no quantiles of {figure}"
        );
    }
    ensure!(stages.iter().all(|row| text(row, "executor_id").is_ok()));
    drop(daemon);
    lab.passed()
}
