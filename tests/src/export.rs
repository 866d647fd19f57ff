//! What `smtt-history export` writes, against the REST API and the event log, by Python's own readers.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use smtt_history::export::{csv, sqlite};
use smtt_history::fetches::OfWorkers;
use smtt_history::perfetto::open;
use xtask::paths::{DEMO_SPARK, Paths};

/// Exports an application below `folder` and compares. `url` is that of the application below `/api/v1`. Returns how many
/// values of each table were compared.
///
/// # Errors
/// When a value differs; the error has the first one.
pub fn check(
    paths: &Paths,
    folder: &Path,
    store: &Path,
    id: &str,
    url: &str,
    log: &Path,
) -> Result<Value> {
    let app = open(store, id, None)?;
    let (tables, database) = (folder.join("csv"), folder.join("export.sqlite"));
    csv::export(&app, &OfWorkers::default(), &tables)?;
    sqlite::export(&app, &OfWorkers::default(), &database)?;
    let mut python = Command::new(paths.spark_env(DEMO_SPARK).join("bin/python"));
    python.arg(paths.root.join("tests/fixture/python/export.py"));
    let output = python
        .arg(tables)
        .arg(database)
        .arg(url)
        .arg(log)
        .output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the export of {id}: {errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    let result = text.strip_prefix("RESULT ").context("no result")?;
    Ok(serde_json::from_str(result)?)
}
