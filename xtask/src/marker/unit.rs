//! Unit tests of the marker's classes: compiled beside the jar, run in one JVM without Spark.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::{JAR_NAME, run, sources, tool};

/// Builds the marker and runs the tests in `smtt-marker/tests/java`. Prints a result line in cargo's form.
///
/// # Errors
/// When a part does not build, or a test fails.
pub fn test(root: &Path, jars: &Path, out_dir: &Path) -> Result<()> {
    super::build(root, jars, out_dir)?;
    let sources = sources(&root.join("smtt-marker/tests/java"))?;
    let tests: Vec<&str> = sources
        .iter()
        .filter_map(|path| path.file_stem()?.to_str())
        .filter(|name| name.ends_with("Test") && *name != "Test")
        .collect();
    ensure!(!tests.is_empty(), "smtt-marker/tests/java has no tests");
    let work = out_dir.join("marker-classes");
    let classes = work.join("tests");
    fs::create_dir_all(&classes)?;
    let jar = out_dir.join(JAR_NAME);
    let mut javac = Command::new(tool("javac")?);
    javac
        .args([
            "--release",
            "8",
            "-g",
            "-Xlint:all,-options,-serial,-processing,-classfile,-path,-auxiliaryclass",
            "-Werror",
            "-proc:none",
            "-cp",
        ])
        .arg(format!(
            "{}:{}:{}/*",
            work.join("stubs").display(),
            jar.display(),
            jars.display()
        ))
        .arg("-d")
        .arg(&classes)
        .args(&sources);
    run(&mut javac, "javac compiles the marker's tests")?;
    let status = Command::new(tool("java")?)
        // The same collector on every machine; heap handles are readable under it.
        .args(["-XX:+UseSerialGC", "-Xmx128m", "-cp"])
        // The tests precede Spark's jars: they have a stand-in for a class of Spark.
        .arg(format!(
            "{}:{}:{}/*",
            classes.display(),
            jar.display(),
            jars.display()
        ))
        .arg("io.smtt.marker.Runner")
        .args(&tests)
        .status()
        .context("cannot run java")?;
    if !status.success() {
        bail!("tests of the marker failed ({status})");
    }
    Ok(())
}
