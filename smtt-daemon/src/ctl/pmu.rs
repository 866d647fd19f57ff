//! `smtt-ctl pmu`: what of page walks a CPU can give, from the table of events. Asks no daemon.

use std::path::Path;

use super::{Exit, Failure, Output, say};
use crate::pmu::{Identity, Overrides, describe};

/// Describes this machine's CPU, or the one that is named.
pub fn run(output: Output, cpu: Option<&Identity>) -> Result<Exit, Failure> {
    let here = Identity::of_this_machine(Path::new("/"));
    match describe(cpu.unwrap_or(&here), &Overrides::default()) {
        Ok(measured) if output.json => output.json(&measured)?,
        Ok(measured) => output.text(&format!("{measured}\n"))?,
        Err(error) => {
            say(&error.to_string());
            return Ok(Exit::Usage);
        }
    }
    Ok(Exit::Fine)
}
