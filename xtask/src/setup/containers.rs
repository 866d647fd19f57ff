//! Debian's runc, unpacked into the cache, and the root of a small Debian for the containers of the tests.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use super::debian;
use crate::paths::Paths;
use crate::process::output;
use crate::step::Steps;
use crate::vm::packages;

/// Release of the root: its C library is that of the machine's own programs, or older.
const SUITE: &str = "bookworm";
/// What the containers' scripts and JVMs need beside a minimal system.
const PACKAGES: &[&str] = &["procps", "zlib1g"];

/// Where a container may have files and folders of the host: its users cannot make them in a root that is not theirs.
const PLACES: [&str; 7] = [
    "etc/java-17-openjdk",
    "opt/jdk",
    "opt/spark",
    "opt/fixture",
    "opt/marker",
    "opt/programs",
    "scratch",
];

/// The program that runs containers.
#[must_use]
pub fn runc(paths: &Paths) -> PathBuf {
    paths.cache.join("runc/usr/sbin/runc")
}

/// The root of a container. All containers share it, and none writes to it.
#[must_use]
pub fn root(paths: &Paths) -> PathBuf {
    paths.cache.join("container")
}

/// Step: both.
pub(super) fn step(paths: &Paths, steps: &mut Steps) -> Result<()> {
    let (runc, root) = (runc(paths), root(paths));
    let runs = || output(Command::new(&runc).arg("--version")).is_ok();
    steps.step(
        "containers for the tests: Debian's runc and a small Debian, in the cache",
        paths.logs().join("containers.log"),
        "check that apt-get reaches its mirror (`apt-get update`), then run it again",
        || runs() && root.join("usr/bin/ps").exists(),
        |step| {
            if !runs() {
                debian::unpack(step, &paths.cache, "runc", &["runc"])?;
            }
            if !debian::answers("mmdebstrap", &["--version"]) {
                debian::install(step, &["mmdebstrap"])?;
            }
            let fresh = paths.cache.join("container.new");
            for old in [&root, &fresh] {
                if old.exists() {
                    fs::remove_dir_all(old)
                        .with_context(|| format!("cannot remove {}", old.display()))?;
                }
            }
            packages::install(step, SUITE, PACKAGES, &fresh)?;
            for place in PLACES {
                fs::create_dir_all(fresh.join(place))
                    .with_context(|| format!("cannot make {place} in the container's root"))?;
            }
            fs::rename(&fresh, &root).context("cannot rename the new root")
        },
    )
}
