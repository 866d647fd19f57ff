//! A server of S3's protocol that is not ours, for tests of stores in buckets: moto, a Python package that keeps objects in
//! memory.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::paths::Paths;
use crate::process::output;
use crate::step::Steps;

/// The packages, in fixed versions: flask serves what moto answers.
const PACKAGES: [&str; 3] = ["moto[s3]==5.2.5", "flask==3.1.3", "flask-cors==6.0.5"];
const CHECK: &str = "
import importlib.metadata as m
import moto.server
assert m.version('moto') == '5.2.5'
";
const LIMIT: Duration = Duration::from_secs(600);

/// The environment's Python.
#[must_use]
pub fn python(paths: &Paths) -> PathBuf {
    paths.cache.join("objects/bin/python")
}

/// Step: the environment.
///
/// # Errors
/// When pip does not reach its index.
pub fn server(paths: &Paths) -> Result<()> {
    let python = python(paths);
    let done = || output(Command::new(&python).args(["-c", CHECK])).is_ok();
    Steps::new(1).step(
        "server of S3's protocol for the tests (Python packages, 140 MB)",
        paths.logs().join("objects.log"),
        "check that pip reaches its index, then run it again",
        done,
        |step| {
            let folder = paths.cache.join("objects");
            let mut venv = Command::new("python3");
            step.run(venv.args(["-m", "venv", "--clear"]).arg(folder), LIMIT)?;
            let mut pip = Command::new(&python);
            pip.args([
                "-m",
                "pip",
                "install",
                "--no-input",
                "--disable-pip-version-check",
            ]);
            step.run(pip.args(PACKAGES), LIMIT)
        },
    )
}
