//! The packages of `cargo xtask dist` and the files beside them, as other programs read them, and a worker's life with the
//! package on an emulated Debian machine whose init is systemd. Needs root and a finished `cargo xtask setup`.

mod arm64;
mod contents;
mod forms;
mod life;

use std::sync::OnceLock;

use anyhow::{Result, anyhow};
use xtask::dist::product::{HISTORY, WORKER};
use xtask::dist::{Made, Packed, Plan, dist};
use xtask::paths::Paths;
use xtask::processor::Processor;

/// The packages of the programs that the other tests use, once for all tests.
fn made() -> Result<&'static Made> {
    static MADE: OnceLock<Result<Made, String>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let paths = Paths::find().map_err(|error| format!("{error:#}"))?;
        dist(&paths, &Plan::trial(&paths, Processor::X86)).map_err(|error| format!("{error:#}"))
    });
    made.as_ref().map_err(|error| anyhow!("{error}"))
}

/// Their package of workers.
fn worker() -> Result<&'static Packed> {
    made()?.of(&WORKER, Processor::X86)
}

/// Their package of the history server.
fn history() -> Result<&'static Packed> {
    made()?.of(&HISTORY, Processor::X86)
}
