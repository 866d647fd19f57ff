//! Debian's OpenSSH server, unpacked into the cache: tests run it on loopback. Installed, it would start a service.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::debian;
use crate::paths::Paths;
use crate::process::output;
use crate::step::Steps;

/// The server with the folder of its libraries, which it finds by `LD_LIBRARY_PATH`. It loses that variable when it
/// starts itself again for a connection: `-r` keeps it from that.
#[must_use]
pub fn server(paths: &Paths) -> Command {
    let root = paths.cache.join("openssh");
    let mut server = Command::new(root.join("usr/sbin/sshd"));
    server.env("LD_LIBRARY_PATH", libraries(&root)).arg("-r");
    server
}

fn libraries(root: &Path) -> PathBuf {
    root.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH))
}

/// Step: the server.
pub(super) fn step(paths: &Paths, steps: &mut Steps) -> Result<()> {
    steps.step(
        "OpenSSH's server for the tests: Debian's, unpacked into the cache",
        paths.logs().join("openssh.log"),
        "check that apt-get reaches its mirror (`apt-get update`), then run it again",
        || output(server(paths).arg("-V")).is_ok(),
        |step| {
            debian::unpack(
                step,
                &paths.cache,
                "openssh",
                &["openssh-server", "libwrap0"],
            )
        },
    )
}
