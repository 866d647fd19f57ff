//! Arguments of `cargo xtask`.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::paths::DEMO_SPARK;
use crate::processor::{PACKAGED, Processor};
use crate::{bench, dist, experiment, stages, vm};

/// Set-up, demo, tests, benchmarks and generated files of SMTT.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Task,
}

/// What `cargo xtask` does.
#[derive(Debug, Subcommand)]
pub enum Task {
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
    /// Run the tests against other kernels in emulated machines; the stage `vm` of `test` does it for those that
    /// run without a name.
    Vm {
        /// Only this machine; arm64 runs by its name only.
        #[arg(value_parser = clap::builder::PossibleValuesParser::new(vm::names()))]
        machine: Option<String>,
    },
    /// Measure what tracing costs, against its targets.
    Bench {
        /// Benchmarks to run.
        #[arg(value_parser = clap::builder::PossibleValuesParser::new(bench::names()))]
        names: Vec<String>,
    },
    /// Run the workloads of the paper on a cluster of one and of two workers, and put its tables beside ours.
    Experiment {
        /// Size of the inputs: tiny, small (10 times), or a number of times tiny.
        #[arg(long, default_value = "small", value_parser = experiment::scale)]
        scale: u32,
        /// Only this workload.
        #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(experiment::names()))]
        workload: Option<String>,
        /// Only on so many workers: 1 or 2.
        #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..=2))]
        workers: Option<u8>,
        /// Run them in this emulated machine instead, whose dTLB counters work: page walks, with all limits of emulation.
        #[arg(long, value_name = "NAME", conflicts_with = "workers", value_parser = clap::builder::PossibleValuesParser::new(experiment::emulated::MACHINES))]
        machine: Option<String>,
    },
    /// Build the marker's jar and native library, and check them.
    Marker {
        /// Folder with the jars of the Spark to compile against (default: the oldest that is set up).
        jars: Option<PathBuf>,
        /// Folder for the results (default: target/marker).
        out: Option<PathBuf>,
        /// Run the unit tests of its classes too.
        #[arg(long)]
        test: bool,
    },
    /// Make the Debian packages of workers and of the history server, their debug symbols and tarballs, with check sums,
    /// bills of materials and licences. Fails where a program is larger than its limit.
    Dist {
        /// Only for this processor, by Debian's name (default: amd64 and arm64).
        #[arg(long = "processor", value_name = "NAME", value_parser = PACKAGED.map(Processor::debian))]
        processors: Vec<String>,
        /// Cargo's profile of the programs: dist, or dev to try the packages.
        #[arg(long, default_value = "dist", value_parser = ["dist", "dev"])]
        profile: String,
        /// Number of these packages of the version.
        #[arg(long, default_value_t = dist::REVISION, value_name = "NUMBER")]
        revision: u32,
        /// Folder for the results (default: target/packages).
        #[arg(long, value_name = "PATH")]
        out: Option<PathBuf>,
    },
    /// Format, lint, regenerate generated files and check the repository's rules.
    Tidy,
}
