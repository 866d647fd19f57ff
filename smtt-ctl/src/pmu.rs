//! `smtt-ctl pmu`: page-walk figures that a CPU can measure, from the table of events. Works without the daemon.

use std::path::Path;

use smtt_machine::calibrate;
use smtt_model::cpu::{CpuId, Overrides, describe};
use smtt_model::readings::Calibration;

use super::{Exit, Failure, Output, say};

/// Describes this machine's CPU or the given one, with the events of the configuration if one is given.
pub fn run(
    output: Output,
    cpu: Option<&CpuId>,
    configuration: Option<&Path>,
) -> Result<Exit, Failure> {
    let overrides = match overrides(configuration) {
        Ok(overrides) => overrides,
        Err(error) => {
            say(&error);
            return Ok(Exit::Usage);
        }
    };
    let here = smtt_machine::cpu::of_this_machine(Path::new("/"));
    match describe(cpu.unwrap_or(&here), &overrides) {
        Ok(measured) if output.is_data() => output.data(&measured)?,
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
            smtt_config::load(Some(path))
                .map(|config| config.probes.page_walks.overrides)
                .map_err(|error| error.to_string())
        },
    )
}

/// Measures the cost of a page walk and prints it.
pub fn calibrate(output: Output, configuration: Option<&Path>) -> Result<Exit, Failure> {
    let found = overrides(configuration).and_then(|overrides| {
        describe(
            &smtt_machine::cpu::of_this_machine(Path::new("/")),
            &overrides,
        )
        .map_err(|error| error.to_string())
    });
    let found = found.and_then(|measured| calibrate::calibrate(&measured));
    match found {
        Ok(found) if output.is_data() => output.data(&found)?,
        Ok(found) => output.text(&text(&found))?,
        Err(reason) => {
            say(&format!(
                "the cost of a page walk cannot be measured: {reason}"
            ));
            return Ok(Exit::Failed);
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
