//! `cargo xtask`: parses the arguments and calls the part that implements them.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser as _;
use xtask::args::{Arguments, Task};
use xtask::paths::{Paths, SPARK_VERSIONS};
use xtask::processor::{PACKAGED, Processor};
use xtask::{bench, demo, dist, experiment, marker, process, setup, stages, tidy, vm};

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let paths = Paths::find()?;
    process::catch_interrupt()?;
    match &arguments.command {
        Task::Setup { spark } => {
            let chosen: Vec<&str> = spark.iter().map(String::as_str).collect();
            setup::setup(
                &paths,
                if chosen.is_empty() {
                    &SPARK_VERSIONS
                } else {
                    &chosen
                },
            )
        }
        Task::Demo { spark, python } => demo::demo(&paths, spark, *python),
        Task::Test { stages } => stages::test(&paths, stages),
        Task::Vm { machine } => vm::test(&paths, machine.as_deref()),
        Task::Bench { names } => bench::bench(&paths, names),
        Task::Experiment {
            scale,
            workload,
            workers,
            machine,
        } => {
            let plan = experiment::Plan {
                scale: *scale,
                workload: workload.clone(),
                workers: workers.map(usize::from),
            };
            match machine {
                Some(machine) => experiment::emulated::experiment(&paths, &plan, machine),
                None => experiment::experiment(&paths, &plan),
            }
        }
        Task::Marker { jars, out, test } => {
            let jars = jars
                .clone()
                .map_or_else(|| setup::compile_jars(&paths), Ok)?;
            let out = out.clone().unwrap_or_else(|| paths.marker());
            let build = if *test {
                marker::unit::test
            } else {
                marker::build
            };
            build(&paths.root, &jars, &out)
        }
        Task::Dist {
            processors,
            profile,
            revision,
            out,
        } => {
            let is_wanted = |processor: &Processor| {
                processors.is_empty() || processors.iter().any(|name| name == processor.debian())
            };
            let plan = dist::Plan {
                profile: profile.clone(),
                revision: *revision,
                out: out.clone().unwrap_or_else(|| paths.target.join("packages")),
                processors: PACKAGED.into_iter().filter(is_wanted).collect(),
            };
            dist::dist(&paths, &plan).map(drop)
        }
        Task::Tidy => tidy::tidy(&paths),
    }
}
