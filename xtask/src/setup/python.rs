//! Python environments in the cache: made by `venv`, filled by pip.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::paths::Paths;
use crate::process::output;
use crate::step::{Step, Steps};

const VENV_LIMIT: Duration = Duration::from_secs(300);
const PIP_LIMIT: Duration = Duration::from_secs(1800);
/// What a person does when a package cannot be installed.
pub(super) const REMEDY: &str = "check that pip reaches its index, then run it again";

/// An environment with packages in fixed versions, for tests only.
pub(super) struct Environment {
    /// Its folder in the cache, and the name of its log.
    pub name: &'static str,
    /// What it is for, with its size.
    pub title: &'static str,
    /// Packages as pip takes them.
    pub packages: &'static [&'static str],
    /// A program that fails where a package is missing or has another version.
    pub check: &'static str,
}

impl Environment {
    /// Folder of its programs.
    pub fn programs(&self, paths: &Paths) -> PathBuf {
        paths.cache.join(self.name).join("bin")
    }

    /// Step: makes it anew where its check fails.
    ///
    /// # Errors
    /// When pip does not reach its index.
    pub fn step(&self, paths: &Paths) -> Result<()> {
        let python = self.programs(paths).join("python");
        Steps::new(1).step(
            self.title,
            paths.logs().join(format!("{}.log", self.name)),
            REMEDY,
            || passes(&python, &[self.check]),
            |step| {
                make(step, &paths.cache.join(self.name))?;
                install(step, &python, self.packages)
            },
        )
    }
}

/// Whether a program, the first argument, ends well with the rest as its arguments.
pub(super) fn passes(python: &Path, program: &[&str]) -> bool {
    output(Command::new(python).arg("-c").args(program)).is_ok()
}

/// Makes an empty environment in place of whatever the folder has.
pub(super) fn make(step: &mut Step, folder: &Path) -> Result<()> {
    let mut venv = Command::new("python3");
    step.run(venv.args(["-m", "venv", "--clear"]).arg(folder), VENV_LIMIT)
}

/// Installs packages into the environment of that Python.
pub(super) fn install(
    step: &mut Step,
    python: &Path,
    packages: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> Result<()> {
    let mut pip = Command::new(python);
    pip.args([
        "-m",
        "pip",
        "install",
        "--no-input",
        "--disable-pip-version-check",
        "--no-cache-dir",
        "--progress-bar=off",
    ]);
    step.run(pip.args(packages), PIP_LIMIT)
}
