//! Runs a scenario of the native workload: starts the program, lets it work, and reads its figures.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use smtt_common::event::marker::LIBRARY_NAME;

use crate::paths::Paths;

/// Runs the workload; returns the figures that it prints after its work.
pub(super) fn run(paths: &Paths, arguments: &[&str]) -> Result<Value> {
    let mut child = Command::new(paths.target.join("release/workload"))
        .arg(paths.marker().join(LIBRARY_NAME))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("the workload does not start")?;
    let mut commands = child.stdin.take().context("no standard input")?;
    let mut answers = BufReader::new(child.stdout.take().context("no standard output")?).lines();
    let mut answer =
        || -> Result<String> { Ok(answers.next().context("the workload ended early")??) };
    let ready = answer()?;
    if ready != "READY" {
        bail!("the workload said {ready:?}, not READY");
    }
    commands.write_all(b"go\n")?;
    let done = answer()?;
    let figures = serde_json::from_str(done.trim_start_matches("DONE").trim())?;
    commands.write_all(b"end\n")?;
    drop(commands);
    child.wait()?;
    Ok(figures)
}

/// The value of a figure, by name.
pub(super) fn figure(figures: &Value, name: &str) -> Result<f64> {
    figures[name]
        .as_f64()
        .with_context(|| format!("the workload does not say {name}"))
}
