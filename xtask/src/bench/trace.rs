//! What trace files take on the disk, and how fast they are written.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::{RUN_LIMIT, report};
use crate::paths::Paths;
use crate::process::run;
use crate::spark::result_line;

/// Records that are written.
const RECORDS: u64 = 1_000_000;
/// Most bytes of one record.
pub(super) const RECORD_BYTES: f64 = 20.0;
/// Most microseconds that one record takes: 20,000 facts per second, the most that one executor may send, then take
/// a tenth of a CPU.
const RECORD_US: f64 = 5.0;

/// Writes records that look like those of a job, without Spark, and compares size and time with their targets.
///
/// # Errors
/// When they cannot be written.
pub(super) fn trace(paths: &Paths, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let log = folder.join("writer.log");
    let mut writer = Command::new(paths.target.join("release/trace_writer"));
    writer.arg(folder.join("files")).arg(RECORDS.to_string());
    run("the writer of trace files", &mut writer, &log, RUN_LIMIT)?;
    let line = result_line(&log)?;
    let figures: Vec<f64> = line
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let [records, seconds, bytes] = figures[..] else {
        return Err(anyhow::anyhow!("no three figures")).with_context(|| line.clone());
    };
    report(
        "trace record, on the disk",
        bytes / records,
        "bytes",
        RECORD_BYTES,
        "storage and execution memory of ten RDDs, addresses without a pattern",
    );
    report(
        "trace record, written",
        1e6 * seconds / records,
        "us",
        RECORD_US,
        &format!("{:.0} records per second on one thread", records / seconds),
    );
    Ok(())
}
