//! The files of a traced JVM in a guest, in addition to the guest's disk: the daemon, the marker and the application.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::guest::Processor;
use super::machine::{DISK, GuestFile};
use crate::cross;
use crate::marker::{self, Bundled, JAR_NAME};
use crate::paths::Paths;
use crate::setup;
use crate::step::Steps;

/// The programs under test.
pub const PROGRAMS: [&str; 2] = ["smtt-daemon", "smtt-ctl"];

/// Builds the files (except [`PROGRAMS`] and the marker's library for the guest, which is an argument), and returns them
/// with the same paths as on this machine, which the test uses.
///
/// The application's classes come from the JVM's default archive. An archive of all its classes would save 17 of 91
/// seconds, and take 100 seconds to make in the guest.
///
/// # Errors
/// When a part does not build, or Spark is not set up.
pub fn files(paths: &Paths, processor: Processor, library: &Path) -> Result<Vec<GuestFile>> {
    let mut files = Vec::new();
    let mut steps = Steps::new(2);
    let jar = match processor {
        // The jar has this machine's library.
        Processor::X86 => {
            setup::marker_step(paths, &mut steps)?;
            paths.marker().join(JAR_NAME)
        }
        Processor::Riscv | Processor::Arm => jar_for(paths, processor, library, &mut steps)?,
    };
    setup::fixture_step(paths, &mut steps)?;
    files.push(GuestFile {
        here: jar,
        there: paths.marker().join(JAR_NAME).display().to_string(),
    });
    files.push(GuestFile {
        here: paths.fixture_jar(),
        there: paths.fixture_jar().display().to_string(),
    });
    Ok(files)
}

/// The marker's jar with the libraries of one more processor.
fn jar_for(
    paths: &Paths,
    processor: Processor,
    library: &Path,
    steps: &mut Steps,
) -> Result<PathBuf> {
    let log = paths.target.join("log/build-marker-jar.log");
    let mut jar = None;
    steps.always("the marker's jar for several processors", log, |_| {
        let folder = paths.target.join("vm/marker");
        let libraries = [
            marker::build_own(&paths.root, &paths.marker())?,
            Bundled {
                processor: processor.rust(),
                marker: library.to_owned(),
                thread_context: Some(marker::build_thread_context(
                    &paths.root,
                    &mut cross::compiler(paths, processor)?,
                    &folder.join(processor.rust()),
                )?),
            },
        ];
        let jars = setup::compile_jars(paths)?;
        jar = Some(marker::build_jar_for(
            &paths.root,
            &jars,
            &folder,
            &libraries,
        )?);
        Ok(())
    })?;
    jar.context("no jar was made")
}

/// The environment variables of the test: where the JVM is, whether page walks must be measured, and how page faults
/// are counted.
#[must_use]
pub fn variables(processor: Processor) -> String {
    let more = match processor {
        Processor::X86 | Processor::Arm => "",
        Processor::Riscv => " SMTT_FAULT_HOOK=kprobe SMTT_PAGE_WALKS=1",
    };
    format!("export SMTT_JAVA_ROOT={DISK}{more}\n")
}
