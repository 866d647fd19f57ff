//! The packages of `cargo xtask dist` and the files beside them, as other programs read them, and a worker's life with the
//! package on an emulated Debian machine whose init is systemd. Needs root and a finished `cargo xtask setup`.

mod alert;
mod arm64;
mod contents;
mod documented;
mod forms;
mod image;
mod life;

use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::{Result, anyhow};
use xtask::dist::product::{HISTORY, WORKER};
use xtask::dist::{Made, Packed, Plan, dist};
use xtask::paths::Paths;
use xtask::processor::Processor;

/// Makes the packages of a plan, one plan at a time: they share the folder in which packages are put together.
fn make(paths: &Paths, plan: &Plan) -> Result<Made> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    dist(paths, plan)
}

/// The packages of the programs that the other tests use, once for all tests.
fn made() -> Result<&'static Made> {
    static MADE: OnceLock<Result<Made, String>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let paths = Paths::find().map_err(|error| format!("{error:#}"))?;
        make(&paths, &Plan::trial(&paths, Processor::X86)).map_err(|error| format!("{error:#}"))
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
