//! The binary: parses the command line, runs the command and exits with its code.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    smtt_ctl::run(&smtt_ctl::args::Args::parse()).into()
}
