//! `smtt-ctl pmu`: what of page walks a CPU can give, from the table of events. Asks no daemon.

use std::path::Path;

use super::{Exit, Failure, Output, say};
use crate::calibrate;
use crate::calibrate::Calibration;
use crate::config;
use crate::pmu::{Identity, Overrides, describe};

/// Describes this machine's CPU, or the one that is named, with the events of a configuration where one is given.
pub fn run(
    output: Output,
    cpu: Option<&Identity>,
    configuration: Option<&Path>,
) -> Result<Exit, Failure> {
    let overrides = match overrides(configuration) {
        Ok(overrides) => overrides,
        Err(error) => {
            say(&error);
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

/// The events of a configuration.
fn overrides(configuration: Option<&Path>) -> Result<Overrides, String> {
    configuration.map_or_else(
        || Ok(Overrides::default()),
        |path| {
            config::load(Some(path))
                .map(|config| config.probes.page_walks.overrides)
                .map_err(|error| error.to_string())
        },
    )
}

/// Measures the cost of a page walk and prints it.
pub fn calibrate(output: Output, configuration: Option<&Path>) -> Result<Exit, Failure> {
    let found = overrides(configuration).and_then(|overrides| {
        describe(&Identity::of_this_machine(Path::new("/")), &overrides)
            .map_err(|error| error.to_string())
    });
    let found = found.and_then(|measured| calibrate::calibrate(&measured));
    match found {
        Ok(found) if output.json => output.json(&found)?,
        Ok(found) => output.text(&text(&found))?,
        Err(reason) => {
            say(&format!(
                "the cost of a page walk cannot be measured: {reason}"
            ));
            return Ok(Exit::Degraded);
        }
    }
    Ok(Exit::Fine)
}

fn text(found: &Calibration) -> String {
    let mut text = String::new();
    for (what, cost) in [("read", found.read), ("write", found.write)] {
        text.push_str(&match cost {
            Some(cost) => format!(
                "a page walk for a {what} costs {:.1} cycles ({:.1} to {:.1} in {} repetitions, by {})\n",
                cost.cycles, cost.low, cost.high, found.repetitions, found.method
            ),
            None => format!("a page walk for a {what}: not measured\n"),
        });
    }
    for line in &found.refused {
        text.push_str(&format!("  {line}\n"));
    }
    text
}
