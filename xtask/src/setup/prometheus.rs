//! Debian's Prometheus, unpacked into the cache: the tests scrape with it. Installed, it would start a service.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::debian;
use crate::paths::Paths;
use crate::process::output;
use crate::step::Steps;

/// Folder of `prometheus` and `promtool`.
#[must_use]
pub fn programs(paths: &Paths) -> PathBuf {
    paths.cache.join("prometheus/usr/bin")
}

/// Step: Prometheus.
pub(super) fn step(paths: &Paths, steps: &mut Steps) -> Result<()> {
    let works = || {
        let answers = |name: &str| {
            let program = programs(paths).join(name);
            output(Command::new(program).arg("--version")).is_ok()
        };
        answers("prometheus") && answers("promtool")
    };
    steps.step(
        "Prometheus for the tests: Debian's, unpacked into the cache",
        paths.logs().join("prometheus.log"),
        "check that apt-get reaches its mirror (`apt-get update`), then run it again",
        works,
        |step| debian::unpack(step, &paths.cache, "prometheus", &["prometheus"]),
    )
}
