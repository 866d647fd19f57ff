//! A server of S3's protocol that is not ours, for tests of stores in buckets: moto, a Python package that keeps objects in
//! memory.

use std::path::PathBuf;

use anyhow::Result;

use super::python::Environment;
use crate::paths::Paths;

/// The packages, in fixed versions: flask serves what moto answers.
const ENVIRONMENT: Environment = Environment {
    name: "objects",
    title: "server of S3's protocol for the tests (Python packages, 140 MB)",
    packages: &["moto[s3]==5.2.5", "flask==3.1.3", "flask-cors==6.0.5"],
    check: "
import importlib.metadata as m
import moto.server
assert m.version('moto') == '5.2.5'
",
};

/// The environment's Python.
#[must_use]
pub fn python(paths: &Paths) -> PathBuf {
    ENVIRONMENT.programs(paths).join("python")
}

/// Step: the environment.
///
/// # Errors
/// When pip does not reach its index.
pub fn server(paths: &Paths) -> Result<()> {
    ENVIRONMENT.step(paths)
}
