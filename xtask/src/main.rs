//! `cargo xtask`: reads the arguments and calls the part that does it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use xtask::places::{DEMO_SPARK, Places, SPARK_VERSIONS};
use xtask::{bench, demo, marker, process, setup, stages, tidy};

/// Set-up, demo, tests, benchmarks and generated files of SMTT.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Prepare this machine: Debian packages, eBPF toolchain, Spark, the marker. Each step is done once.
    Setup {
        /// Only these Spark versions (default: all that the tests use).
        #[arg(long = "spark", value_name = "VERSION")]
        spark: Vec<String>,
    },
    /// Trace a real Spark application on this machine and show what it did to the memory.
    Demo {
        /// Spark version to run.
        #[arg(long, value_name = "VERSION", default_value = DEMO_SPARK)]
        spark: String,
        /// Run PageRank in PySpark instead of Java.
        #[arg(long)]
        python: bool,
    },
    /// Run all tests, or only some stages of them.
    Test {
        /// Stages to run.
        #[arg(value_parser = clap::builder::PossibleValuesParser::new(stages::names()))]
        stages: Vec<String>,
    },
    /// Measure what tracing costs, against its targets.
    Bench {
        /// Benchmarks to run.
        #[arg(value_parser = clap::builder::PossibleValuesParser::new(bench::names()))]
        names: Vec<String>,
    },
    /// Build the marker's jar and native library, and check them.
    Marker {
        /// Folder with the jars of the Spark to compile against (default: the oldest that is set up).
        jars: Option<PathBuf>,
        /// Folder for the results (default: target/marker).
        out: Option<PathBuf>,
    },
    /// Format, lint, regenerate generated files and check the repository's rules.
    Tidy,
}

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
    let places = Places::find()?;
    process::catch_interrupt()?;
    match &arguments.command {
        Task::Setup { spark } => {
            let chosen: Vec<&str> = spark.iter().map(String::as_str).collect();
            setup::setup(
                &places,
                if chosen.is_empty() {
                    &SPARK_VERSIONS
                } else {
                    &chosen
                },
            )
        }
        Task::Demo { spark, python } => demo::demo(&places, spark, *python),
        Task::Test { stages } => stages::test(&places, stages),
        Task::Bench { names } => bench::bench(&places, names),
        Task::Marker { jars, out } => {
            let jars = jars
                .clone()
                .map_or_else(|| setup::compile_jars(&places), Ok)?;
            marker::build(
                &places.root,
                &jars,
                out.as_ref().unwrap_or(&places.marker()),
            )
        }
        Task::Tidy => tidy::tidy(&places),
    }
}
