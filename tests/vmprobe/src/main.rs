//! Tries the kernel hooks and counters that SMTT stands on and checks what they count against a known workload.
//!
//! One line per probe on standard output: `probe NAME ok|unsupported|broken DETAIL`. Runs as root in an
//! otherwise quiet machine: the hooks of the kernel's fault path see every process, and a small excess over
//! the known count is allowed for.

mod bpf;
mod btf;
mod checks;
mod perf;
mod work;

use std::process::ExitCode;

/// What trying one probe gave.
enum Outcome {
    /// Works and counts right.
    Ok(String),
    /// The kernel or the machine does not have it.
    Unsupported(String),
    /// It is there and does not do what it must.
    Broken(String),
}

fn main() -> ExitCode {
    let mut broken = false;
    for (name, check) in checks::ALL {
        let (word, detail) = match check() {
            Ok(Outcome::Ok(detail)) => ("ok", detail),
            Ok(Outcome::Unsupported(detail)) => ("unsupported", detail),
            Ok(Outcome::Broken(detail)) => ("broken", detail),
            Err(error) => ("broken", error.to_string()),
        };
        broken |= word == "broken";
        println!("probe {name} {word} {detail}");
    }
    if broken {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
