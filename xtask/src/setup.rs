//! Set-up of a fresh Debian machine with Rust and root, step by step.
//!
//! Only Debian packages are installed into the system; the rest is in the cache (see [`Paths`]), so a second checkout
//! reuses it.

mod chromium;
pub mod containers;
mod debian;
pub mod hdfs;
pub mod images;
pub mod java;
pub mod objects;
pub mod openssh;
pub mod perfetto;
pub mod prometheus;
mod python;
mod spark;
mod toolchain;
pub mod validators;

use std::fs::{self, File};

use anyhow::{Context, Result};

use crate::fixture;
use crate::marker;
use crate::paths::{COMPILE_SPARK, DEMO_SPARK, Paths};
use crate::step::{Stamp, Steps, fingerprint};

/// Prepares the machine for building the daemon, and for running Spark `versions` with the marker.
///
/// # Errors
/// When a step fails; the message says what to do.
pub fn setup(paths: &Paths, versions: &[&str]) -> Result<()> {
    fs::create_dir_all(paths.logs()).with_context(|| {
        format!(
            "cannot make the cache {}: set SMTT_CACHE to a folder that you may write to",
            paths.cache.display()
        )
    })?;
    // Two set-ups at once would write the same files; the second one waits, and then finds all steps done.
    let lock = File::create(paths.cache.join(".lock"))?;
    if lock.try_lock().is_err() {
        println!(
            "another set-up is running in {}; waiting for it",
            paths.cache.display()
        );
        lock.lock()?;
    }
    println!(
        "set-up in {} (set SMTT_CACHE for another place)",
        paths.cache.display()
    );
    // The demo has one version; Prometheus, OpenSSH and containers are for the tests.
    let tests = versions.len() > 1;
    let extra = usize::from(versions.contains(&DEMO_SPARK)) + 3 * usize::from(tests);
    let mut steps = Steps::new(5 + versions.len() + extra);
    debian::packages(paths, &mut steps)?;
    toolchain::kernel_side(paths, &mut steps)?;
    toolchain::bpf_linker(paths, &mut steps)?;
    for version in versions {
        spark::environment(paths, &mut steps, version)?;
    }
    if versions.contains(&DEMO_SPARK) {
        spark::readers(paths, &mut steps, DEMO_SPARK)?;
    }
    if tests {
        prometheus::step(paths, &mut steps)?;
        openssh::step(paths, &mut steps)?;
        containers::step(paths, &mut steps)?;
    }
    marker_step(paths, &mut steps)?;
    fixture_step(paths, &mut steps)
}

/// Installs the tools that make emulated machines. [`crate::vm`] fetches the contents of the machines itself, once: 700
/// MB that the demo and the other tests do not need.
///
/// # Errors
/// When a tool is missing and cannot be installed.
pub fn for_machines(paths: &Paths) -> Result<()> {
    debian::for_machines(paths, &mut Steps::new(1))
}

/// Installs the tools that pack programs.
///
/// # Errors
/// When a tool is missing and cannot be installed.
pub fn for_packages(paths: &Paths) -> Result<()> {
    debian::for_packages(paths, &mut Steps::new(1))
}

/// Unpacks the browser in which pages are tested; the demo does not need it.
///
/// # Errors
/// When it cannot be downloaded.
pub fn browser(paths: &Paths) -> Result<()> {
    chromium::browser(paths, &mut Steps::new(1))
}

/// The jars against which Java code is compiled: those of the oldest Spark that is set up, because the demo alone needs
/// only one version.
///
/// # Errors
/// When no Spark is set up.
pub fn compile_jars(paths: &Paths) -> Result<std::path::PathBuf> {
    let home = paths
        .spark_home(COMPILE_SPARK)
        .or_else(|_| paths.spark_home(DEMO_SPARK))?;
    Ok(home.join("jars"))
}

/// Step: the marker's jar and native library for this machine.
///
/// # Errors
/// When Spark is not set up, or the compiler finds an error.
pub fn marker_step(paths: &Paths, steps: &mut Steps) -> Result<()> {
    let out = paths.marker();
    let inputs = fingerprint(&[
        &paths.root.join("smtt-marker"),
        &paths.root.join("smtt-common/src"),
        &paths.root.join("xtask/src/marker.rs"),
    ])?;
    let stamp = Stamp::new(out.join("stamp"), inputs);
    let done = || {
        stamp.valid()
            && out.join("smtt-marker.jar").is_file()
            && out.join("libsmtt_marker.so").is_file()
    };
    steps.step(
        "marker: jar and native library",
        paths.logs().join("marker.log"),
        "mend what the compiler says below",
        done,
        |_| {
            stamp.remove()?;
            marker::build(&paths.root, &compile_jars(paths)?, &out)?;
            stamp.write()
        },
    )
}

/// Step: the Spark applications of demo and tests.
///
/// # Errors
/// When Spark is not set up, or the compiler finds an error.
pub fn fixture_step(paths: &Paths, steps: &mut Steps) -> Result<()> {
    let sources = paths.root.join("tests/fixture/java");
    let stamp = Stamp::new(
        paths.target.join("fixture/stamp"),
        fingerprint(&[&sources])?,
    );
    let done = || stamp.valid() && paths.fixture_jar().is_file();
    steps.step(
        "Spark applications of demo and tests",
        paths.logs().join("fixture.log"),
        "mend what the compiler says below",
        done,
        |step| {
            stamp.remove()?;
            fixture::build(paths, &compile_jars(paths)?, step)?;
            stamp.write()
        },
    )
}
