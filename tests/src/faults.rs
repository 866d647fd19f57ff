//! Page faults of executors as the kernel and the daemon count them, read while no task runs.
//!
//! Alignment of the interval: no task runs at a gate. The kernel's counters (`minflt` + `majflt` in `/proc/PID/stat`)
//! are read again and again together with the daemon's. A reading is valid only when the kernel's values and the daemon's
//! values are (nearly) those of a reading before, and a whole tick of the daemon was between the two: then no fault
//! happened between the sides and the daemon has read every counter. The differences between two gates are compared.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use smtt_machine::clock::now_boot_ns;
use xtask::daemon::Daemon;

use crate::json::{number, text};
use crate::lab::{LIMIT, Run};
use crate::witness;

/// Pause between two readings.
const SAMPLE_EVERY: Duration = Duration::from_millis(400);
/// Faults that idle threads of a JVM may have between two readings.
const IDLE_FAULTS: u64 = 100;

/// Faults of one executor as both sides count them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pair {
    /// `minflt` + `majflt` of the JVM and of its children, with `cminflt` + `cmajflt`.
    pub kernel: u64,
    /// Attributed + unattributed faults, as the daemon counts them.
    pub smtt: u64,
    /// The attributed faults within `smtt`.
    pub attributed: u64,
    /// Faults of idle threads that one side may have counted and the other not.
    pub idle: u64,
    /// `minflt` + `majflt` of the JVM alone, since its start.
    pub process: u64,
    /// Attributed + unattributed faults of the JVM alone, as the daemon counts them.
    pub counted: u64,
    /// Faults of the JVM from before they were counted, as the daemon knows them.
    pub before: u64,
}

/// Faults of the executor's JVM and of its descendants, also of those that have ended and were waited for.
fn kernel_faults(pid: u32) -> Result<u64> {
    let of = |pid| -> Result<u64> {
        Ok(witness::faults(pid)?.total() + witness::faults_of_ended_children(pid)?.total())
    };
    let mut total = of(pid)?;
    for child in witness::descendants(pid)? {
        // The counters of a child that ends meanwhile are its parent's.
        total += of(child).unwrap_or(0);
    }
    Ok(total)
}

/// The begin of a tick of the daemon whose readings it has of all these executors, in nanoseconds since boot: the time of
/// the last point in their history, which has one every two seconds. `None` before the first.
///
/// # Errors
/// When the daemon does not answer.
pub fn ticked_ns(daemon: &Daemon, fits: impl Fn(&Value) -> bool) -> Result<Option<u64>> {
    let mut stream = UnixStream::connect(daemon.socket())?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(b"GET /v1/history HTTP/1.0\r\nHost: smtt\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    let history: Value = serde_json::from_str(body).with_context(|| body.to_owned())?;
    let rows = history["rows"].as_array().into_iter().flatten();
    let last = |row: &Value| row["points"].as_array()?.last()?["time_ns"].as_u64();
    Ok(rows.filter(|row| fits(row)).map(last).min().flatten())
}

/// Reads both sides, by executor. The daemon is read first, so the kernel's counts are at least the daemon's.
fn sample(daemon: &Daemon, run: &Run) -> Result<BTreeMap<String, Pair>> {
    run.rows(daemon, &["executors"])?
        .iter()
        .map(|row| {
            let attributed = number(row, "page_faults_attributed")?;
            let smtt = attributed + number(row, "page_faults_unattributed")?;
            // The kernel has a count of its own for each child.
            let children = row["unattributed"]["child_process"].as_u64().unwrap_or(0);
            let pid = number(row, "pid")? as u32;
            let pair = Pair {
                kernel: kernel_faults(pid)?,
                smtt,
                attributed,
                idle: 0,
                process: witness::faults(pid)?.total(),
                counted: smtt - children,
                before: row["page_faults_before_tracing"].as_u64().unwrap_or(0),
            };
            Ok((text(row, "executor_id")?, pair))
        })
        .collect()
}

/// Reads both sides while no task runs.
///
/// # Errors
/// When the executors do not come to rest.
pub fn at_rest(daemon: &Daemon, run: &Run) -> Result<BTreeMap<String, Pair>> {
    let start = Instant::now();
    let application = run.submitted.application_id()?;
    let mut before = sample(daemon, run)?;
    // The time of a reading is its end, after the kernel's counts were read.
    let mut end_ns = now_boot_ns();
    while start.elapsed() < LIMIT {
        thread::sleep(SAMPLE_EVERY);
        let ticked = ticked_ns(daemon, |row| row["application_id"] == application)?;
        if ticked <= Some(end_ns) {
            continue;
        }
        let mut now = sample(daemon, run)?;
        let read_ns = now_boot_ns();
        let counted = now.clone();
        let mut quiet = !now.is_empty() && now.len() == before.len();
        for (executor, pair) in &mut now {
            let then = before.get(executor).copied().unwrap_or_default();
            // A child between its end and its parent's wait is missing in one of the two readings.
            let grown = pair.kernel.abs_diff(then.kernel);
            quiet &= grown <= IDLE_FAULTS && pair.smtt - then.smtt <= IDLE_FAULTS;
            pair.idle = grown;
        }
        if quiet {
            return Ok(now);
        }
        (before, end_ns) = (counted, read_ns);
    }
    bail!("the executors do not come to rest at the gate: {before:?}")
}

/// The growth between two readings.
#[must_use]
pub fn between(
    begin: &BTreeMap<String, Pair>,
    end: &BTreeMap<String, Pair>,
) -> BTreeMap<String, Pair> {
    end.iter()
        .map(|(executor, end)| {
            let begin = begin.get(executor).copied().unwrap_or_default();
            let difference = Pair {
                kernel: end.kernel - begin.kernel,
                smtt: end.smtt - begin.smtt,
                attributed: end.attributed - begin.attributed,
                idle: begin.idle + end.idle,
                process: end.process - begin.process,
                counted: end.counted - begin.counted,
                before: end.before - begin.before,
            };
            (executor.clone(), difference)
        })
        .collect()
}
