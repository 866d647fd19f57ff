//! The workloads: Scala sources in `tests/fixture/scala`, compiled with the compiler among Spark's own jars.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::paths::{DEMO_SPARK, Jdk, Paths};
use crate::step::{Stamp, Steps, fingerprint};

const LIMIT: Duration = Duration::from_secs(300);

/// Step: compiles the workloads for the Spark of the demo; Scala's classes fit no other of the supported versions.
///
/// # Errors
/// When that Spark or the Java fixture is not set up, or the compiler finds an error.
pub fn step(paths: &Paths, steps: &mut Steps) -> Result<()> {
    let sources = paths.root.join("tests/fixture/scala");
    let stamp = Stamp::new(
        paths.target.join("fixture/scala-stamp"),
        fingerprint(&[&sources])?,
    );
    let jar = paths.scala_jar();
    let done = || stamp.valid() && jar.is_file();
    steps.step(
        "workloads of the experiment, in Scala",
        paths.logs().join("fixture-scala.log"),
        "mend what the compiler says below",
        done,
        |step| {
            stamp.remove()?;
            let jars = paths.spark_home(DEMO_SPARK)?.join("jars").join("*");
            let mut files = Vec::new();
            for entry in fs::read_dir(&sources)
                .with_context(|| format!("cannot list {}", sources.display()))?
            {
                files.push(entry?.path());
            }
            files.sort();
            let mut scalac = Command::new(Jdk::main()?.tool("java"));
            scalac
                .arg("-cp")
                .arg(&jars)
                .args(["scala.tools.nsc.Main", "-classpath"])
                .arg(format!(
                    "{}:{}",
                    jars.display(),
                    paths.fixture_jar().display()
                ))
                .arg("-d")
                .arg(&jar)
                .args(&files);
            step.run(&mut scalac, LIMIT)?;
            stamp.write()
        },
    )
}
