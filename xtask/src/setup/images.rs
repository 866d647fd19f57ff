//! Debian's buildah, unpacked into the cache: tests make an image of a Containerfile with it, without a registry.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::{containers, debian};
use crate::paths::Paths;
use crate::process::output;
use crate::step::Steps;

/// The program and its libraries. What it recommends (a network for its containers, a file system in user space) is for
/// other uses.
const PACKAGES: [&str; 4] = ["buildah", "libgpgme11", "libassuan0", "libdevmapper1.02.1"];

/// Folders of `/usr/share` whose contents the base of an image has not.
const READ: [&str; 4] = ["doc", "info", "locale", "man"];

fn root(paths: &Paths) -> PathBuf {
    paths.cache.join("buildah")
}

/// The program, with the folder of its libraries.
fn bare(paths: &Paths) -> Command {
    let root = root(paths);
    let mut command = Command::new(root.join("usr/bin/buildah"));
    let libraries = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    command.env("LD_LIBRARY_PATH", root.join(libraries));
    command
}

/// Step: the program.
///
/// # Errors
/// When it cannot be downloaded.
pub fn step(paths: &Paths) -> Result<()> {
    Steps::new(1).step(
        "buildah for the tests: Debian's, unpacked into the cache",
        paths.logs().join("buildah.log"),
        "check that apt-get reaches its mirror (`apt-get update`), then run it again",
        || output(bare(paths).arg("--version")).is_ok(),
        |step| debian::unpack(step, &paths.cache, "buildah", &PACKAGES),
    )
}

/// A store of images in a folder of its own, which no registry fills.
#[derive(Debug)]
pub struct Images<'a> {
    paths: &'a Paths,
    folder: &'a Path,
}

impl<'a> Images<'a> {
    /// An empty store in `folder`.
    ///
    /// # Errors
    /// When the folder cannot be written, or holds no store.
    pub fn new(paths: &'a Paths, folder: &'a Path) -> Result<Self> {
        let images = Self { paths, folder };
        // A name that is not in the store is an error.
        let registries = "unqualified-search-registries = []\n";
        images.write("registries.conf", registries)?;
        let policy = r#"{"default": [{"type": "insecureAcceptAnything"}]}"#;
        images.write("policy.json", policy)?;
        // Copies of whole images where layers cannot lie over each other: in a container, whose root does already.
        for driver in ["overlay", "vfs"] {
            let at = |name: &str| folder.join(name).display().to_string();
            let (store, run) = (at(driver), at("run"));
            let storage = format!(
                "[storage]\ndriver = {driver:?}\ngraphroot = {store:?}\nrunroot = {run:?}\n"
            );
            images.write("storage.conf", &storage)?;
            if output(&mut images.command("info")).is_ok() {
                return Ok(images);
            }
        }
        bail!("buildah has no store in {}", folder.display())
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let file = self.folder.join(name);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
    }

    /// A command of the program. Containers of it are run by Debian's runc, of the cache too, and have no network.
    #[must_use]
    pub fn command(&self, name: &str) -> Command {
        let mut command = bare(self.paths);
        command
            .env("CONTAINERS_STORAGE_CONF", self.folder.join("storage.conf"))
            .env(
                "CONTAINERS_REGISTRIES_CONF",
                self.folder.join("registries.conf"),
            )
            .env("BUILDAH_ISOLATION", "oci")
            .env("BUILDAH_RUNTIME", containers::runc(self.paths))
            .env("TMPDIR", self.folder)
            .arg(name);
        if ["build", "commit", "from"].contains(&name) {
            let policy = self.folder.join("policy.json");
            command.arg("--signature-policy").arg(policy);
        }
        if ["build", "from"].contains(&name) {
            command.arg("--pull-never");
        }
        if ["build", "run"].contains(&name) {
            command.args(["--network", "none"]);
        }
        command
    }

    /// Puts the small Debian of the tests' containers into the store, under this name. As in Debian's slim images, what a
    /// reader would read is left out.
    ///
    /// # Errors
    /// When set-up has not made it.
    pub fn bring_debian(&self, name: &str) -> Result<()> {
        let archive = self.folder.join("debian.tar");
        output(
            Command::new("tar")
                .args(READ.map(|folder| format!("--exclude=./usr/share/{folder}/*")))
                .args(["--one-file-system", "-cf"])
                .arg(&archive)
                .arg("-C")
                .arg(containers::root(self.paths))
                .arg("."),
        )?;
        let container = output(self.command("from").arg("scratch"))?;
        let container = container.trim();
        output(self.command("add").arg(container).arg(&archive).arg("/"))?;
        output(
            self.command("commit")
                .args(["--quiet", "--rm", container, name]),
        )?;
        fs::remove_file(archive)?;
        Ok(())
    }
}
