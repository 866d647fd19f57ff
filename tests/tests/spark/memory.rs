//! Where the memory of an executor is, and its peaks: compared with the kernel's own counts of each mapping, with known
//! amounts, with what the JVM says of itself (`jcmd`), and with Spark's REST API.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_machine::clock::now_boot_ns;
use smtt_tests::faults::ticked_ns;
use smtt_tests::json::{list, number, text};
use smtt_tests::lab::{LIMIT, LabDaemon, Run, SparkLab};
use smtt_tests::peaks::{at_least_sparks, executor_peaks};
use xtask::process::wait_for;
use xtask::spark::Application;

/// One executor with two cores, so that two stages run at once.
const CLUSTER: &str = "local-cluster[1,2,2048]";
const MIB: u64 = 1 << 20;
/// `-Xmx` of the executor.
const HEAP: u64 = 2048 * MIB;
/// The JVM places a heap of less than 4 GiB below this address.
const HEAP_END: u64 = 4 << 30;
/// MiB and numbers that the application holds, in the order of its arguments.
const HELD: [u64; 10] = [600, 512, 256, 300, 2000, 256, 200, 96, 64, 128];

/// A mapping of the executor by the kernel's count of its pages.
struct Mapping {
    start: u64,
    end: u64,
    writable: bool,
    anonymous: bool,
    resident: u64,
}

/// All mappings: the witness walks the page tables, which the daemon must not do.
fn mappings(pid: u64) -> Result<Vec<Mapping>> {
    let mut all: Vec<Mapping> = Vec::new();
    for line in fs::read_to_string(format!("/proc/{pid}/smaps"))?.lines() {
        if let Some(rest) = line.strip_prefix("Rss:") {
            let kib: u64 = rest.trim().trim_end_matches(" kB").trim().parse()?;
            all.last_mut().context("a mapping")?.resident = kib * 1024;
            continue;
        }
        let mut words = line.split_whitespace();
        let Some((start, end)) = words.next().and_then(|range| range.split_once('-')) else {
            continue;
        };
        let (Ok(start), Ok(end)) = (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16))
        else {
            continue;
        };
        let writable = words.next().is_some_and(|flags| flags.starts_with("rw"));
        all.push(Mapping {
            start,
            end,
            writable,
            anonymous: words.nth(3).is_none(),
            resident: 0,
        });
    }
    Ok(all)
}

/// Number and resident bytes of the mappings that look like stacks: the default is 1 MiB with the JVM's guard pages.
fn stacks(pid: u64) -> Result<(u64, u64)> {
    let mapped = mappings(pid)?;
    let is_stack = |one: &&Mapping| {
        let size = one.end - one.start;
        one.writable && one.anonymous && (900 * 1024..=1024 * 1024).contains(&size)
    };
    let stacks = mapped.iter().filter(is_stack);
    Ok((
        stacks.clone().count() as u64,
        stacks.map(|one| one.resident).sum(),
    ))
}

/// A line of the executor's `status`, in bytes.
fn status(pid: u64, name: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib: Option<u64> = line.and_then(|line| {
        let number = line.trim_start_matches(':').split_whitespace().next()?;
        number.parse().ok()
    });
    Ok(kib.with_context(|| format!("status has no {name}"))? * 1024)
}

/// What the kernel counts of the executor: resident bytes, and those of them in files and in the heap.
fn counted(pid: u64) -> Result<[u64; 3]> {
    let in_heap = |one: &&Mapping| one.start >= HEAP_END - HEAP && one.end <= HEAP_END;
    let mapped = mappings(pid)?;
    let heap: u64 = mapped.iter().filter(in_heap).map(|one| one.resident).sum();
    Ok([status(pid, "VmRSS")?, status(pid, "RssFile")?, heap])
}

/// What the JVM answers to a diagnostic command.
fn jcmd(pid: u64, command: &str) -> Result<String> {
    let output = Command::new("jcmd")
        .args([&pid.to_string(), command])
        .output()
        .context("jcmd cannot be started: it is part of the JDK")?;
    ensure!(output.status.success(), "jcmd {command}: {output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

/// Committed metaspace by the JVM's own report, class space included.
fn metaspace(pid: u64) -> Result<u64> {
    let report = jcmd(pid, "VM.metaspace")?;
    // "Both: 1.06 GB reserved, 8.94 MB ( <1%) committed." below "Virtual space:".
    let space = report.split_once("Virtual space:").map(|(_, rest)| rest);
    let line = space.and_then(|space| space.lines().find(|line| line.contains("Both:")));
    let words: Vec<&str> = line
        .and_then(|line| line.split_once("reserved,"))
        .with_context(|| format!("no committed space in {report}"))?
        .1
        .split_whitespace()
        .collect();
    let unit = match words[1] {
        "KB" => 1024.0,
        "MB" => 1024.0 * 1024.0,
        "GB" => 1024.0 * 1024.0 * 1024.0,
        unit => anyhow::bail!("an unknown unit {unit} in {report}"),
    };
    Ok((words[0].parse::<f64>()? * unit) as u64)
}

/// Resident bytes of the code cache: the bounds are the JVM's, the pages are the kernel's count.
fn code_cache(pid: u64) -> Result<u64> {
    let report = jcmd(pid, "Compiler.codecache")?;
    let mut heaps = Vec::new();
    for line in report.lines() {
        // " bounds [start, end of what is committed, end]"
        let Some(bounds) = line.trim().strip_prefix("bounds [") else {
            continue;
        };
        let mut numbers = bounds.trim_end_matches(']').split(", ").map(|number| {
            u64::from_str_radix(number.trim_start_matches("0x"), 16).context("a number")
        });
        let mut next = || numbers.next().context("a bound")?;
        let (start, _, end) = (next()?, next()?, next()?);
        heaps.push(start..end);
    }
    ensure!(!heaps.is_empty(), "no bounds in {report}");
    let in_heap = |one: &&Mapping| heaps.iter().any(|heap| heap.contains(&one.start));
    let mapped = mappings(pid)?;
    Ok(mapped.iter().filter(in_heap).map(|one| one.resident).sum())
}

fn close(what: &str, value: u64, truth: u64, tolerance: f64) -> Result<()> {
    println!("{what}: {value}, by the kernel or as known {truth}");
    ensure!(
        value.abs_diff(truth) as f64 <= truth as f64 * tolerance,
        "{what}: {value} is not within {tolerance} of {truth}"
    );
    Ok(())
}

/// The parts of a row by name.
fn parts(row: &Value) -> Result<BTreeMap<String, i64>> {
    let part = |part: &Value| {
        let bytes = part["bytes"].as_i64().context("bytes")?;
        Ok((text(part, "name")?, bytes))
    };
    list(row, "parts")?.iter().map(part).collect()
}

/// The executor's row of `smtt-ctl memory`, examined after now, and with nothing changed since.
fn memory(daemon: &LabDaemon<'_>, run: &Run) -> Result<Value> {
    let begin = now_boot_ns();
    let application = run.submitted.application_id()?;
    wait_for("the executor's memory is examined", LIMIT, || {
        // Ages are as of the daemon's last tick or fact: of this tick, or later.
        let fits = |row: &Value| row["application_id"] == application && row["executor_id"] == "0";
        let since = ticked_ns(daemon, fits)?.unwrap_or(0).saturating_sub(begin);
        let rows = run.rows(daemon, &["memory"])?;
        let row = rows.iter().find(|row| row["executor_id"] == "0");
        Ok(row
            .filter(|row| {
                let (age, kernel) = (row["examined_age_ns"].as_u64(), row["age_ns"].as_u64());
                let resident = row["resident_bytes"].as_i64().unwrap_or(0);
                let changed = parts(row).map_or(i64::MAX, |parts| parts["since_examined"].abs());
                age.is_some_and(|age| age < since)
                    && kernel.is_some_and(|age| age < since)
                    && changed < resident / 300
            })
            .cloned())
    })
}

/// The row at a gate: its parts add up to what the kernel counts, and each part is what the kernel counts of its mappings.
fn at(gate: &str, daemon: &LabDaemon<'_>, run: &mut Run) -> Result<(u64, BTreeMap<String, i64>)> {
    run.reach(gate)?;
    let executors = run.rows(daemon, &["executors"])?;
    let executor = executors.iter().find(|row| row["executor_id"] == "0");
    let pid = number(executor.context("no executor 0")?, "pid")?;
    let (row, [resident, in_files, in_heap]) =
        wait_for("memory rests while it is read", LIMIT, || {
            let before = counted(pid)?;
            let row = memory(daemon, run)?;
            let after = counted(pid)?;
            let mut both = before.iter().zip(&after);
            let rests = both.all(|(before, after)| before.abs_diff(*after) <= before / 100);
            Ok(rests.then_some((row, after)))
        })?;
    let parts = parts(&row)?;
    println!("at {gate}: {row}");
    let sum: i64 = parts.values().sum();
    ensure!(
        sum == row["resident_bytes"].as_i64().context("resident")?,
        "{row}"
    );
    close("sum of the parts", sum.unsigned_abs(), resident, 0.01)?;
    let heap = |name: &str| name.starts_with("heap_");
    let heap: i64 = parts
        .iter()
        .filter(|(name, _)| heap(name))
        .map(|(_, bytes)| bytes)
        .sum();
    close("resident heap", heap.unsigned_abs(), in_heap, 0.01)?;
    close(
        "mapped files",
        parts["mapped_files"].unsigned_abs(),
        in_files,
        0.01,
    )?;
    Ok((pid, parts))
}

fn more(parts: &BTreeMap<String, i64>, before: &BTreeMap<String, i64>, name: &str) -> u64 {
    (parts[name] - before[name]).max(0).unsigned_abs()
}

#[test]
fn the_parts_of_an_executors_memory_add_up_and_no_peak_is_missed() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let daemon = lab.daemon()?;
    let arguments = HELD.map(|number| number.to_string());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let application = Application::java(&lab.paths, CLUSTER, "Holding", &arguments)?
        .conf("spark.executor.memory", "2g")
        .conf("spark.memory.offHeap.enabled", "true")
        .conf("spark.memory.offHeap.size", "512m")
        .conf("spark.executor.processTreeMetrics.enabled", "true")
        // Spark reads peaks with its heartbeats: what is held briefly is between two of them.
        .conf("spark.executor.heartbeatInterval", "20s")
        .conf("spark.network.timeout", "600s")
        // The test waits for an examination at each gate.
        .with_marker_at(&lab.paths.marker().join("smtt-marker.jar"), "examine=50");
    let mut run = lab.run(application)?;

    let (_, base) = at("base", &daemon, &mut run)?;
    run.open("base")?;
    let (_, heap) = at("heap", &daemon, &mut run)?;
    let used = |parts: &BTreeMap<String, i64>| {
        let of = ["heap_storage", "heap_execution", "heap_other_objects"];
        of.iter().filter_map(|name| parts.get(*name)).sum::<i64>()
    };
    ensure!(used(&heap).unsigned_abs() >= HELD[0] * MIB, "{heap:?}");
    run.open("heap")?;
    let (_, direct) = at("direct", &daemon, &mut run)?;
    close(
        "direct buffers",
        more(&direct, &heap, "direct_buffers"),
        HELD[1] * MIB,
        0.01,
    )?;
    run.open("direct")?;
    let (_, mapped) = at("mapped", &daemon, &mut run)?;
    close(
        "mapped file",
        more(&mapped, &direct, "mapped_files"),
        HELD[2] * MIB,
        0.01,
    )?;
    run.open("mapped")?;
    let (pid, native) = at("native", &daemon, &mut run)?;
    close(
        "native",
        more(&native, &mapped, "native_not_explained"),
        HELD[3] * MIB,
        0.05,
    )?;
    let stacks_before = stacks(pid)?;
    run.open("native")?;
    let (_, threads) = at("threads", &daemon, &mut run)?;
    let (stacks, truth) = stacks(pid)?;
    // The JVM starts and ends threads of its own meanwhile.
    let made = stacks.saturating_sub(stacks_before.0);
    ensure!(
        made.abs_diff(HELD[4]) < HELD[4] / 50,
        "{made} stacks are new"
    );
    close(
        "thread stacks",
        more(&threads, &native, "thread_stacks"),
        truth - stacks_before.1,
        0.05,
    )?;
    // Both grow for a moment after the examination: the compilers work on.
    close(
        "metaspace",
        threads["metaspace"].unsigned_abs(),
        metaspace(pid)?,
        0.02,
    )?;
    close(
        "code cache",
        threads["code_cache"].unsigned_abs(),
        code_cache(pid)?,
        0.05,
    )?;
    run.open("threads")?;
    let (_, storage) = at("storage", &daemon, &mut run)?;
    close(
        "off-heap storage",
        more(&storage, &threads, "off_heap_storage"),
        HELD[9] * MIB,
        0.02,
    )?;
    run.open("storage")?;
    run.reach("execution")?;
    // From this heartbeat to the next the gate is checked, and memory is held for 50 ms.
    wait_for("Spark has seen what the task holds", LIMIT, || {
        let held = executor_peaks(&run, "0")?["OffHeapExecutionMemory"].as_u64();
        Ok((held == Some(HELD[5] * MIB)).then_some(()))
    })?;
    let (_, execution) = at("execution", &daemon, &mut run)?;
    close(
        "off-heap execution",
        more(&execution, &base, "off_heap_execution"),
        HELD[5] * MIB,
        0.01,
    )?;
    run.open("execution")?;

    run.reach("brief")?;
    let peak = |row: &Value, metric: &str| row["peaks"][metric]["value"].as_u64();
    let brief = HELD[6] * MIB;
    let row = wait_for("the peak of 50 ms is reported", LIMIT, || {
        let row = memory(&daemon, &run)?;
        Ok((peak(&row, "OnHeapExecutionMemory") >= Some(brief)).then_some(row))
    })?;
    ensure!(
        peak(&row, "OnHeapExecutionMemory") == Some(brief),
        "{}",
        row["peaks"]
    );
    ensure!(
        peak(&row, "OffHeapExecutionMemory") == Some(HELD[5] * MIB),
        "{}",
        row["peaks"]
    );
    let spark = executor_peaks(&run, "0")?;
    println!("Spark: {spark}");
    ensure!(
        spark["OnHeapExecutionMemory"].as_u64() < Some(brief),
        "Spark has seen what was held for 50 ms, so this shows nothing: {spark}"
    );
    run.open("brief")?;
    run.reach("stages")?;
    both_stages(&daemon, &run)?;
    at_least_sparks(&daemon, &run)?;
    run.finish(&["stages"])?;
    drop(daemon);
    lab.passed()
}

/// Two stages held known amounts at the same time.
fn both_stages(daemon: &LabDaemon<'_>, run: &Run) -> Result<()> {
    let both = (HELD[7] + HELD[8]) * MIB;
    wait_for("the peaks of both stages are reported", LIMIT, || {
        let stages = run.rows(daemon, &["stages"])?;
        let mut own: Vec<u64> = Vec::new();
        for stage in &stages {
            if stage["executor_peaks"]["OnHeapExecutionMemory"]["value"].as_u64() == Some(both) {
                own.push(number(stage, "tasks_execution_memory_peak_bytes")?);
                ensure!(
                    stage["tasks_execution_memory_peak_partial"] == false,
                    "nothing was lost, but the peak is partial: {stage}"
                );
            }
        }
        own.sort_unstable();
        Ok((own == [HELD[8] * MIB, HELD[7] * MIB]).then_some(()))
    })
}
