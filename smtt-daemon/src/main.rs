//! `smtt-daemon` as a program of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    smtt_daemon::program::main(std::env::args_os())
}
