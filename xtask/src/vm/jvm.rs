//! What a JVM that is traced in a guest needs besides the guest's disk: the daemon, the marker and the application.

use std::path::Path;

use anyhow::Result;

use super::guest::Processor;
use super::machine::{DISK, GuestFile};
use crate::cross;
use crate::marker::{self, JAR_NAME};
use crate::places::Places;
use crate::setup;
use crate::step::Steps;

/// The programs under test.
const PROGRAMS: [&str; 2] = ["smtt-daemon", "smtt-ctl"];

/// Builds them (but the marker's library for the guest, which is given), and gives them at the paths that they have here: the test looks there.
///
/// The classes that the application loads come from the JVM's own archive. One of all its classes would save 17 of
/// 91 seconds, and take 100 seconds to make in the guest.
///
/// # Errors
/// When something does not build, or Spark is not set up.
pub fn files(places: &Places, processor: Processor, library: &Path) -> Result<Vec<GuestFile>> {
    let mut files = Vec::new();
    for program in PROGRAMS {
        let built = cross::build(places, processor, "smtt-daemon", program)?;
        files.push(GuestFile {
            there: built.display().to_string(),
            here: built,
        });
    }
    let log = places.target.join("log/build-marker-jar.log");
    let mut jar = None;
    let mut steps = Steps::new(2);
    steps.always("the marker's jar for several processors", log, |_| {
        let libraries = [
            (
                std::env::consts::ARCH,
                marker::build_library(&places.root, &places.marker())?,
            ),
            (processor.rust(), library.to_owned()),
        ];
        let folder = places.target.join("vm/marker");
        let jars = setup::compile_jars(places)?;
        jar = Some(marker::build_jar_for(
            &places.root,
            &jars,
            &folder,
            &libraries,
        )?);
        Ok(())
    })?;
    setup::fixture_step(places, &mut steps)?;
    files.extend(jar.map(|here| GuestFile {
        here,
        there: places.marker().join(JAR_NAME).display().to_string(),
    }));
    files.push(GuestFile {
        here: places.fixture_jar(),
        there: places.fixture_jar().display().to_string(),
    });
    Ok(files)
}

/// The variables that tell the test where the JVM is, and how page faults are to be counted.
#[must_use]
pub fn variables() -> String {
    format!("export SMTT_JAVA_ROOT={DISK} SMTT_FAULT_HOOK=kprobe SMTT_PAGE_WALKS=1\n")
}
