//! The Spark applications of tests and demo: Java sources in `tests/fixture/java`, compiled into one jar.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::paths::{Jdk, Paths};
use crate::step::Step;

const LIMIT: Duration = Duration::from_secs(300);

/// Compiles the applications for Java 8 against the jars of one Spark; the result runs on every version.
///
/// # Errors
/// When the compiler finds an error.
pub fn build(paths: &Paths, jars: &Path, step: &mut Step) -> Result<()> {
    let jdk = Jdk::main()?;
    let sources = paths.root.join("tests/fixture/java");
    let jar = paths.fixture_jar();
    let classes = jar.with_file_name("classes");
    if classes.exists() {
        fs::remove_dir_all(&classes)
            .with_context(|| format!("cannot remove {}", classes.display()))?;
    }
    fs::create_dir_all(&classes)?;
    let mut files = Vec::new();
    java_files(&sources, &mut files)?;
    let mut javac = Command::new(jdk.tool("javac"));
    // -options: the note that Java 8 is an old target; classfile: Spark's jars name annotations that they do not ship;
    // path: as do further jars.
    javac.args([
        "--release",
        "8",
        "-encoding",
        "UTF-8",
        "-Xlint:all,-options,-classfile,-path,-serial,-processing",
        "-proc:none",
    ]);
    javac
        .arg("-cp")
        .arg(format!("{}/*", jars.display()))
        .arg("-d")
        .arg(&classes)
        .args(&files);
    step.run(&mut javac, LIMIT)?;
    step.run(
        Command::new(jdk.tool("jar"))
            .arg("cf")
            .arg(&jar)
            .arg("-C")
            .arg(&classes)
            .arg("."),
        LIMIT,
    )
}

fn java_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in folder
        .read_dir()
        .with_context(|| format!("cannot list {}", folder.display()))?
    {
        let path = entry?.path();
        if path.is_dir() {
            java_files(&path, files)?;
        } else if path
            .extension()
            .is_some_and(|extension| extension == "java")
        {
            files.push(path);
        }
    }
    files.sort();
    Ok(())
}
