//! The files of a traced JVM in a guest, in addition to the guest's disk: the daemon, the marker and the application.

use anyhow::Result;
use smtt_common::event::marker::LIBRARY_NAME;

use super::machine::{DISK, GuestFile};
use crate::cross;
use crate::dist::Unpacked;
use crate::marker::JAR_NAME;
use crate::paths::Paths;
use crate::processor::Processor;
use crate::setup;
use crate::step::Steps;

/// The programs under test.
pub const PROGRAMS: [&str; 2] = ["smtt-daemon", "smtt-ctl"];

/// Builds the files (except [`PROGRAMS`]), and returns them with the same paths as on this machine, which the test uses.
/// `packaged` has the guest's own marker, where that of a package is tested.
///
/// The application's classes come from the JVM's default archive. An archive of all its classes would save 17 of 91
/// seconds, and take 100 seconds to make in the guest.
///
/// # Errors
/// When a part does not build, or Spark is not set up.
pub fn files(
    paths: &Paths,
    processor: Processor,
    packaged: Option<&Unpacked>,
) -> Result<Vec<GuestFile>> {
    let mut steps = Steps::new(2);
    let (jar, library) = match packaged {
        Some(packaged) => (packaged.jar(), packaged.library()),
        None if processor.foreign() => {
            let own = cross::bundled(paths, Processor::X86)?;
            let foreign = cross::bundled(paths, processor)?;
            let library = foreign.marker.clone();
            let folder = paths.target.join("vm/marker");
            let jar = cross::marker_jar(paths, &[own, foreign], &folder)?;
            (jar, library)
        }
        // The jar has this machine's library.
        None => {
            setup::marker_step(paths, &mut steps)?;
            let library = cross::marker_library(paths, processor)?;
            (paths.marker().join(JAR_NAME), library)
        }
    };
    setup::fixture_step(paths, &mut steps)?;
    let there = |name: &str| paths.marker().join(name).display().to_string();
    Ok(vec![
        GuestFile {
            here: jar,
            there: there(JAR_NAME),
        },
        GuestFile {
            here: library,
            there: there(LIBRARY_NAME),
        },
        GuestFile {
            here: paths.fixture_jar(),
            there: paths.fixture_jar().display().to_string(),
        },
    ])
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
