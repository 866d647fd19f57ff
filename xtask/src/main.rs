//! `cargo xtask`: set-up, demo, tests, benchmarks and generated files.

mod cross;
mod vm;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Runs the probe matrix in emulated machines: x86-6.1, x86-6.12, riscv64, or all of them.
    Vm {
        /// Only this machine.
        machine: Option<String>,
    },
}

fn main() -> Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask lies in no workspace")?;
    let Task::Vm { machine } = Arguments::parse().command;
    let whole = vm::test(root, &vm::Guest::named(machine.as_deref())?)?;
    Ok(if whole {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
