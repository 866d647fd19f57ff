//! Pauses of the collector in the rows of tasks, compared with the JVM's own log of its collections.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_tests::json::number;

const MS: i64 = 1_000_000;
/// Begin and end of a pause by the log may lie this far from those of the tool interface, and of the report: the thread
/// that reports may lose its CPU in between.
const LATE_NS: i64 = 250 * MS;
/// As [`LATE_NS`], for the median of all.
const MEDIAN_NS: i64 = MS;

/// Options of executors that log their collections below `folder`, with the time of `System.nanoTime`, and mark beside the
/// application whenever they can.
pub fn options(folder: &Path) -> String {
    let path = folder.join("gc-%p.log");
    format!(
        "-XX:+UseG1GC -Xmn64m -XX:InitiatingHeapOccupancyPercent=0 -XX:-G1UseAdaptiveIHOP -Xlog:gc,gc+start:file={}:timenanos,tags",
        path.display()
    )
}

/// A pause by the log: begin and end, in nanoseconds of the monotonic clock.
type Pause = (i64, i64);

/// Pauses of a log, and lines about work beside the application.
fn logged(log: &Path) -> Result<(Vec<Pause>, usize)> {
    let text = fs::read_to_string(log).with_context(|| log.display().to_string())?;
    let (mut pauses, mut concurrent) = (Vec::new(), 0);
    let mut begun: Option<(i64, &str)> = None;
    for line in text.lines() {
        let (time, rest) = line
            .strip_prefix('[')
            .and_then(|line| line.split_once("ns]["))
            .with_context(|| format!("no time: {line}"))?;
        let time: i64 = time.parse()?;
        let (tags, what) = rest.split_once("] GC(").unwrap_or((rest, ""));
        let (id, what) = what.split_once(") ").unwrap_or(("", what));
        concurrent += usize::from(what.starts_with("Concurrent"));
        if !what.starts_with("Pause") {
            continue;
        }
        match begun.take() {
            None if tags.starts_with("gc,start") => begun = Some((time, id)),
            Some((begin, of)) if of == id && !tags.starts_with("gc,start") => {
                pauses.push((begin, time));
            }
            other => anyhow::bail!("{other:?}, then {line}"),
        }
    }
    Ok((pauses, concurrent))
}

/// What the boot clock is ahead of the monotonic one.
fn suspended_ns() -> i64 {
    let now = |clock| {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the clock's answer goes to a variable of its own.
        unsafe { libc::clock_gettime(clock, &raw mut time) };
        time.tv_sec * 1_000_000_000 + time.tv_nsec
    };
    now(libc::CLOCK_BOOTTIME) - now(libc::CLOCK_MONOTONIC)
}

/// Pauses of a task's lane by the monotonic clock.
fn lane(functions: &Value, begin: i64) -> Result<Vec<Pause>> {
    let spans = functions["spans"].as_array().into_iter().flatten();
    let own = spans.filter(|span| span["thread"] == "collections");
    own.map(|span| {
        ensure!(span["activity"] == "collection_pause", "{span}");
        let from = begin + number(span, "begin_ns")? as i64;
        Ok((from, from + number(span, "duration_ns")? as i64))
    })
    .collect()
}

/// Compares the lanes of ended tasks with the logs of their executors.
pub fn are_those_of_the_logs(tasks: &[Value], folder: &Path) -> Result<()> {
    let offset = suspended_ns();
    let (mut apart, mut all, mut beside) = (Vec::new(), 0, 0);
    for row in tasks {
        let log: PathBuf = folder.join(format!("gc-{}.log", number(row, "pid")?));
        let (pauses, concurrent) = logged(&log)?;
        beside += concurrent;
        let functions = &row["functions"];
        let begin = number(functions, "begin_ns")? as i64 - offset;
        let end = begin + number(functions, "duration_ns")? as i64;
        let lane = lane(functions, begin)?;
        let paused = &functions["paused"];
        let sum: i64 = lane.iter().map(|(from, to)| to - from).sum();
        ensure!(
            number(paused, "pauses")? == lane.len() as u64
                && number(paused, "paused_ns")? as i64 == sum
                && paused["left_out"].is_null(),
            "{lane:?} {paused}"
        );
        let (mut inside, mut lasted, mut next) = (0, 0, 0);
        for (from, to) in pauses.iter().copied() {
            // At the edges of the task one of both may lie outside.
            if from <= begin + LATE_NS || to >= end - LATE_NS {
                continue;
            }
            // Both are in order, and each pause of the lane is one of the log.
            let apart_from =
                |(_, pause): &(usize, &Pause)| (pause.0 - from).abs().max((pause.1 - to).abs());
            let left = lane.iter().enumerate().skip(next);
            let found = left.min_by_key(apart_from);
            let found = found.filter(|found| apart_from(found) <= LATE_NS);
            let (at, found) =
                found.with_context(|| format!("{from} to {to} is not in {lane:?}"))?;
            next = at + 1;
            apart.push([(found.0 - from).abs(), (found.1 - to).abs()]);
            inside += 1;
            lasted += to - from;
        }
        println!(
            "{} pauses of {:.1} ms in the lane; {} in the log, {concurrent} lines of concurrent work; {:.1} ms by the log inside of the task; collection_ns {}",
            lane.len(),
            sum as f64 / 1e6,
            pauses.len(),
            lasted as f64 / 1e6,
            row["collection_ns"]
        );
        // What the log has inside of the task is in the lane, and no more than its pauses.
        let within = pauses
            .iter()
            .filter(|(from, to)| from.max(&begin) < to.min(&end));
        ensure!(
            inside <= lane.len() && lane.len() <= within.count() + 2,
            "{lane:?} {pauses:?}"
        );
        all += lane.len();
    }
    for (of, name) in ["begin", "end"].iter().enumerate() {
        let mut each: Vec<i64> = apart.iter().map(|both| both[of]).collect();
        each.sort_unstable();
        let median = each.get(each.len() / 2).context("no pause in any task")?;
        println!(
            "the {name}s are {:.3} ms apart in the median, {:.3} ms at most, of {}",
            *median as f64 / 1e6,
            each[each.len() - 1] as f64 / 1e6,
            each.len()
        );
        ensure!(*median <= MEDIAN_NS, "{each:?}");
    }
    ensure!(
        all >= 10 && apart.len() >= 10,
        "{all} pauses, {} inside",
        apart.len()
    );
    // Which is in no lane: lanes have no more than the log's pauses.
    ensure!(beside > 0, "no collector worked beside the application");
    Ok(())
}
