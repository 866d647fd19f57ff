//! A browser without a screen, and its WebDriver: Debian's packages with the libraries that this machine misses,
//! unpacked into the cache. Nothing is installed.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::debian;
use crate::paths::Paths;
use crate::process::output;
use crate::step::{Step, Steps};

const BROWSER: &str = "chromium-headless-shell";
/// Depends on the whole browser, which it does not need.
const DRIVER: &str = "chromium-driver";

const DOWNLOAD_LIMIT: Duration = Duration::from_secs(900);
const UNPACK_LIMIT: Duration = Duration::from_secs(300);

/// Step: the browser (110 MB to download).
pub(super) fn browser(paths: &Paths, steps: &mut Steps) -> Result<()> {
    let title = "browser for tests of pages: Debian's Chromium, unpacked into the cache";
    let remedy = "see that `apt-get download chromium-headless-shell` works, then run it again";
    let works = || {
        let chromium = paths.chromium();
        let answers = |program: &mut Command| output(program.arg("--version")).is_ok();
        answers(&mut chromium.driver()) && answers(&mut chromium.browser())
    };
    let log = paths.logs().join("chromium.log");
    steps.step(title, log, remedy, works, |step| unpack(paths, step))
}

fn unpack(paths: &Paths, step: &mut Step) -> Result<()> {
    let folder = paths.chromium().folder;
    let unpacked = paths.cache.join("chromium.new");
    let packages = paths.cache.join("chromium.deb");
    for path in [&folder, &unpacked, &packages] {
        if path.exists() {
            fs::remove_dir_all(path)
                .with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    fs::create_dir_all(&unpacked)?;
    fs::create_dir_all(&packages)?;
    if !debian::known(BROWSER) || !debian::known(DRIVER) {
        debian::update(step)?;
    }
    let mut download = debian::apt_get();
    download
        .arg("download")
        .args(missing()?)
        .arg(DRIVER)
        .current_dir(&packages);
    if step.run(&mut download, DOWNLOAD_LIMIT).is_err() {
        // Outdated package lists name files that the mirror has removed.
        debian::update(step)?;
        step.run(&mut download, DOWNLOAD_LIMIT)?;
    }
    for package in packages.read_dir()? {
        let mut unpack = Command::new("dpkg");
        unpack.arg("-x").arg(package?.path()).arg(&unpacked);
        step.run(&mut unpack, UNPACK_LIMIT)?;
    }
    // The rename comes last, so a folder with the final name is complete.
    fs::rename(&unpacked, &folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::remove_dir_all(&packages)?;
    Ok(())
}

/// Packages that an installation of the browser would bring to this machine.
fn missing() -> Result<Vec<String>> {
    let mut simulate = debian::apt_get();
    simulate.args(["install", "--simulate", "--no-install-recommends", BROWSER]);
    let text = output(&mut simulate)?;
    let installed = text.lines().filter_map(|line| line.strip_prefix("Inst "));
    let names = installed.filter_map(|line| line.split(' ').next());
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    if !names.iter().any(|name| name == BROWSER) {
        // It is installed already; its program is taken from a copy like on any other machine.
        names.push(BROWSER.to_owned());
    }
    Ok(names)
}
