//! Everything that a fresh Debian machine with Rust and root needs, step by step.
//!
//! Nothing but Debian packages goes into the system; the rest lies in the cache (see [`Places`]), so that a
//! second checkout finds it done.

mod debian;
mod spark;
mod toolchain;

use std::fs::{self, File};

use anyhow::{Context, Result};

use crate::fixture;
use crate::marker;
use crate::places::{COMPILE_SPARK, DEMO_SPARK, Places};
use crate::step::{Stamp, Steps, fingerprint};

/// Prepares what running Spark `versions` with the marker and building the daemon need.
///
/// # Errors
/// When a step fails; the message says what to do.
pub fn setup(places: &Places, versions: &[&str]) -> Result<()> {
    fs::create_dir_all(places.logs()).with_context(|| {
        format!(
            "cannot make the cache {}: set SMTT_CACHE to a folder that you may write to",
            places.cache.display()
        )
    })?;
    // Two set-ups at once would write the same files; the second one waits, and then finds everything done.
    let lock = File::create(places.cache.join(".lock"))?;
    if lock.try_lock().is_err() {
        println!(
            "another set-up is running in {}; waiting for it",
            places.cache.display()
        );
        lock.lock()?;
    }
    println!(
        "set-up in {} (set SMTT_CACHE for another place)",
        places.cache.display()
    );
    let mut steps = Steps::new(5 + versions.len() + usize::from(versions.contains(&DEMO_SPARK)));
    debian::packages(places, &mut steps)?;
    toolchain::kernel_side(places, &mut steps)?;
    toolchain::bpf_linker(places, &mut steps)?;
    for version in versions {
        spark::environment(places, &mut steps, version)?;
    }
    if versions.contains(&DEMO_SPARK) {
        spark::reader(places, &mut steps, DEMO_SPARK)?;
    }
    marker_step(places, &mut steps)?;
    fixture_step(places, &mut steps)
}

/// Installs what emulated machines are made with. What they are made of, [`crate::vm`] fetches itself, once: 700 MB
/// that the demo and the other tests do not need.
///
/// # Errors
/// When something is missing and cannot be installed.
pub fn for_machines(places: &Places) -> Result<()> {
    debian::for_machines(places, &mut Steps::new(1))
}

/// The jars that Java code is compiled against: the oldest supported Spark where it is set up, because the
/// demo alone needs only one version.
///
/// # Errors
/// When no Spark is set up.
pub fn compile_jars(places: &Places) -> Result<std::path::PathBuf> {
    let home = places
        .spark_home(COMPILE_SPARK)
        .or_else(|_| places.spark_home(DEMO_SPARK))?;
    Ok(home.join("jars"))
}

/// Step: the marker's jar and native library for this machine.
///
/// # Errors
/// When Spark is not set up, or the compiler finds an error.
pub fn marker_step(places: &Places, steps: &mut Steps) -> Result<()> {
    let out = places.marker();
    let inputs = fingerprint(&[
        &places.root.join("smtt-marker"),
        &places.root.join("smtt-common/src"),
        &places.root.join("xtask/src/marker.rs"),
    ])?;
    let stamp = Stamp::new(out.join("stamp"), inputs);
    let done = || {
        stamp.valid()
            && out.join("smtt-marker.jar").is_file()
            && out.join("libsmtt_marker.so").is_file()
    };
    steps.step(
        "marker: jar and native library",
        places.logs().join("marker.log"),
        "mend what the compiler says below",
        done,
        |_| {
            stamp.remove()?;
            marker::build(&places.root, &compile_jars(places)?, &out)?;
            stamp.write()
        },
    )
}

/// Step: the Spark applications of demo and tests.
///
/// # Errors
/// When Spark is not set up, or the compiler finds an error.
pub fn fixture_step(places: &Places, steps: &mut Steps) -> Result<()> {
    let sources = places.root.join("tests/fixture/java");
    let stamp = Stamp::new(
        places.target.join("fixture/stamp"),
        fingerprint(&[&sources])?,
    );
    let done = || stamp.valid() && places.fixture_jar().is_file();
    steps.step(
        "Spark applications of demo and tests",
        places.logs().join("fixture.log"),
        "mend what the compiler says below",
        done,
        |step| {
            stamp.remove()?;
            fixture::build(places, &compile_jars(places)?, step)?;
            stamp.write()
        },
    )
}
