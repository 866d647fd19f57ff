//! Disk space of trace files, and the speed of writing them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::{RUN_LIMIT, report};
use crate::paths::Paths;
use crate::process::run;
use crate::spark::result_line;

/// Records per run.
const RECORDS: u64 = 1_000_000;
/// Limit of the bytes of one record.
pub(super) const RECORD_BYTES: f64 = 20.0;
/// Limit of the microseconds of one record: at the rate limit of an executor, 20,000 facts per second, records then
/// take a tenth of a CPU.
const RECORD_US: f64 = 5.0;

/// Writes records that resemble a job's, without Spark, and compares size and time with their targets.
///
/// # Errors
/// When the records cannot be written.
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
