//! The command line: parses, asks, prints, and ends with a code that says how it went.

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    smtt_daemon::ctl::run(&smtt_daemon::ctl::args::Args::parse()).into()
}
