//! The packages of `cargo xtask dist` and the files beside them, as other programs read them, and a worker's life with the
//! package on an emulated Debian machine whose init is systemd. Needs root and a finished `cargo xtask setup`.

mod contents;
mod forms;
mod life;

use std::path::PathBuf;
use std::sync::OnceLock;

use anyhow::{Result, anyhow};
use xtask::dist::{Made, Plan, REVISION, dist};
use xtask::paths::Paths;

/// The packages of the programs that the other tests use, once for all tests.
fn made() -> Result<&'static Made> {
    static MADE: OnceLock<Result<Made, String>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let paths = Paths::find().map_err(|error| format!("{error:#}"))?;
        dist(&paths, &plan(&paths, REVISION)).map_err(|error| format!("{error:#}"))
    });
    made.as_ref().map_err(|error| anyhow!("{error}"))
}

fn plan(paths: &Paths, revision: u32) -> Plan {
    Plan {
        profile: "dev".to_owned(),
        revision,
        out: folder(paths),
    }
}

fn folder(paths: &Paths) -> PathBuf {
    paths.target.join("dist-test")
}
