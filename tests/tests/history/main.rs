//! The history of real Spark. For each version one application runs: its driver writes the history and Spark its event
//! log. The parts become the tables that an import of the log makes; every answer equals that of Spark's own history
//! server. Exports, queries, and stores and drivers that fail have tests of their own.

mod answers;
mod application;
mod crash;
mod export;
mod follow;
mod handed_on;
mod hdfs;
mod lists;
mod live;
mod logs;
mod losses;
mod mount;
mod neutral;
mod older;
mod outcomes;
mod queries;
mod sick;
mod stores;

use anyhow::{Result, bail};
use smtt_tests::lab::SparkLab;
use smtt_tests::skip::skip;
use xtask::paths::{DEMO_SPARK, Paths};
use xtask::setup::setup;

/// One run of the application, and all that is compared with it; an error of one comparison does not hide the others.
fn compare(version: &str) -> Result<()> {
    let lab = SparkLab::new(version)?;
    let run = application::run(&lab, version == DEMO_SPARK)?;
    let mut errors = Vec::new();
    // The first one has the parts, which the second replaces.
    let compactions = if version == DEMO_SPARK {
        crash::compaction(&run)
    } else {
        Ok(())
    };
    for (what, result) in [
        ("kills of compactions", compactions),
        ("live = import", live::equals_import(&run)),
        ("followed = import", follow::equals_imports(&run)),
        ("answers = Spark's", answers::equal_sparks(&run)),
    ] {
        if let Err(error) = result {
            errors.push(format!("{what}: {error:#}"));
        }
    }
    if !errors.is_empty() {
        bail!("Spark {version}: {}", errors.join("\n"));
    }
    lab.passed()
}

#[test]
fn the_history_of_spark_4_0_is_that_of_its_log_and_of_its_server() -> Result<()> {
    compare("4.0.5")
}

#[test]
fn the_history_of_spark_3_5_is_that_of_its_log_and_of_its_server() -> Result<()> {
    compare("3.5.9")
}

#[test]
fn the_history_of_spark_4_3_is_that_of_its_log_and_of_its_server() -> Result<()> {
    compare("4.3.0")
}

/// Further versions, with `cargo xtask test versions`.
#[test]
fn the_histories_of_other_versions_are_those_of_their_logs_and_servers() -> Result<()> {
    let Ok(versions) = std::env::var("SMTT_SPARK_VERSIONS") else {
        return skip("other_versions", "`cargo xtask test versions` runs them");
    };
    for version in versions.split(',') {
        setup(&Paths::find()?, &[version])?;
        compare(version)?;
    }
    Ok(())
}
