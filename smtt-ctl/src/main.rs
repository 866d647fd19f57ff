//! `smtt-ctl` as a program of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    smtt_ctl::main(std::env::args_os())
}
