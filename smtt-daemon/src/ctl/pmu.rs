//! `smtt-ctl pmu`: what of page walks a CPU can give, from the table of events. Asks no daemon.

use std::path::Path;

use super::{Exit, Failure, Output, say};
use crate::config;
use crate::pmu::{Identity, Overrides, describe};

/// Describes this machine's CPU, or the one that is named, with the events of a configuration where one is given.
pub fn run(
    output: Output,
    cpu: Option<&Identity>,
    configuration: Option<&Path>,
) -> Result<Exit, Failure> {
    let overrides = match configuration.map(|path| config::load(Some(path))) {
        None => Overrides::default(),
        Some(Ok(config)) => config.probes.page_walks.overrides,
        Some(Err(error)) => {
            say(&error.to_string());
            return Ok(Exit::Usage);
        }
    };
    let here = Identity::of_this_machine(Path::new("/"));
    match describe(cpu.unwrap_or(&here), &overrides) {
        Ok(measured) if output.json => output.json(&measured)?,
        Ok(measured) => output.text(&format!("{measured}\n"))?,
        Err(error) => {
            say(&error.to_string());
            return Ok(Exit::Usage);
        }
    }
    Ok(Exit::Fine)
}
