//! The command line: parses, asks, prints, and ends with a code that says how it went.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    smtt_ctl::run(&smtt_ctl::args::Args::parse()).into()
}
