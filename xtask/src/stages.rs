//! `cargo xtask test`: every ring of tests, one command, one closing line.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::places::{Places, SPARK_VERSIONS};
use crate::process::check_interrupt;
use crate::setup::setup;

/// One stage: a cargo command with a time limit.
struct Stage {
    name: &'static str,
    about: &'static str,
    commands: &'static [&'static [&'static str]],
    limit: Duration,
}

const STAGES: [Stage; 6] = [
    Stage {
        name: "format",
        about: "rustfmt has nothing to change",
        commands: &[
            &["fmt", "--all", "--check"],
            &["fmt", "--check", "--manifest-path", "smtt-ebpf/Cargo.toml"],
        ],
        limit: Duration::from_secs(120),
    },
    Stage {
        name: "lint",
        about: "clippy has nothing to say",
        commands: &[&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]],
        limit: Duration::from_secs(900),
    },
    Stage {
        name: "unit",
        about: "tests that need neither root nor Spark",
        commands: &[
            &[
                "test",
                "--no-fail-fast",
                "--workspace",
                "--exclude",
                "smtt-tests",
            ],
            &["test", "-p", "smtt-tests", "--lib", "--bins"],
        ],
        limit: Duration::from_secs(900),
    },
    Stage {
        name: "kernel",
        about: "tests against this machine's kernel",
        commands: &[
            &["build", "-p", "smtt-daemon", "-p", "smtt-tests", "--bins"],
            &[
                "test",
                "--no-fail-fast",
                "-p",
                "smtt-tests",
                "--test",
                "kernel",
                "--test",
                "fault_ladder",
                "--",
                "--test-threads=1",
            ],
        ],
        limit: Duration::from_secs(600),
    },
    Stage {
        name: "spark",
        about: "tests against real Spark",
        commands: &[
            &["build", "-p", "smtt-daemon", "--bins"],
            &[
                "test",
                "--no-fail-fast",
                "-p",
                "smtt-tests",
                "--test",
                "spark",
                "--test",
                "jvm",
                "--test",
                "trace_crash",
                "--",
                "--test-threads=1",
            ],
        ],
        limit: Duration::from_secs(2700),
    },
    Stage {
        name: "vm",
        about: "other kernels, another processor, two nodes, in emulated machines",
        commands: &[&["xtask", "vm"]],
        limit: Duration::from_secs(1500),
    },
];

/// Names of the stages, in their order.
#[must_use]
pub fn names() -> Vec<&'static str> {
    STAGES.iter().map(|stage| stage.name).collect()
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: u64,
    failed: u64,
}

/// Runs the stages (all, or those named), sums up, and says so in the last line.
///
/// # Errors
/// When anything failed.
pub fn test(places: &Places, only: &[String]) -> Result<()> {
    let wanted = |stage: &&Stage| only.is_empty() || only.iter().any(|name| name == stage.name);
    let chosen: Vec<&Stage> = STAGES.iter().filter(wanted).collect();
    if chosen
        .iter()
        .any(|stage| matches!(stage.name, "kernel" | "spark"))
    {
        // SAFETY: geteuid(2) has no arguments and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            bail!(
                "the stages kernel and spark need root; without it there are {}",
                names()[..3].join(", ")
            );
        }
    }
    setup(places, &SPARK_VERSIONS)?;
    let mut total = Tally::default();
    let mut summary = Vec::new();
    for stage in chosen {
        println!("\n== {}: {}", stage.name, stage.about);
        let start = Instant::now();
        let mut tally = Tally::default();
        let mut error = None;
        for arguments in stage.commands {
            let left = stage.limit.saturating_sub(start.elapsed());
            if let Err(problem) = run(places, arguments, left, &mut tally) {
                check_interrupt()?;
                error = Some(problem);
                break;
            }
        }
        if let Some(problem) = &error {
            println!("{problem:#}");
            if tally.failed == 0 {
                // Not a test, but something that must work: formatting, lints, the build, the time limit.
                tally.failed = 1;
            }
        }
        let outcome = if error.is_none() { "ok" } else { "FAILED" };
        let seconds = start.elapsed().as_secs();
        summary.push(format!(
            "{:8} {outcome:6} {seconds:5} s  {} passed, {} failed",
            stage.name, tally.passed, tally.failed
        ));
        total.passed += tally.passed;
        total.failed += tally.failed;
    }
    println!(
        "\n{}\n\n{} passed, {} failed",
        summary.join("\n"),
        total.passed,
        total.failed
    );
    if total.failed > 0 {
        bail!("not everything passed");
    }
    Ok(())
}

/// Runs cargo, shows its output as it comes and counts the results in it.
fn run(places: &Places, arguments: &[&str], limit: Duration, tally: &mut Tally) -> Result<()> {
    let mut child = Command::new("cargo")
        .args(arguments)
        .current_dir(&places.root)
        // An error that a test returns says what it has to say; a backtrace would bury it.
        .env("RUST_LIB_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .context("cannot start cargo")?;
    let stdout = child
        .stdout
        .take()
        .context("cargo has no standard output")?;
    let reader = thread::spawn(move || {
        let mut tally = Tally::default();
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            println!("{line}");
            if let Some(found) = results(&line) {
                tally.passed += found.passed;
                tally.failed += found.failed;
            }
        }
        tally
    });
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Ok(status);
        }
        let late = start.elapsed() > limit;
        if late || check_interrupt().is_err() {
            // SAFETY: kill(2) takes two integers; the group is led by our child, which has not been waited for.
            unsafe { libc::kill(-child.id().cast_signed(), libc::SIGTERM) };
            thread::sleep(Duration::from_secs(2));
            // SAFETY: as above.
            unsafe { libc::kill(-child.id().cast_signed(), libc::SIGKILL) };
            child.wait()?;
            break Err(format!(
                "stopped after {} s: {}",
                start.elapsed().as_secs(),
                if late { "time limit" } else { "interrupted" }
            ));
        }
        thread::sleep(Duration::from_millis(50));
    };
    if let Ok(found) = reader.join() {
        tally.passed += found.passed;
        tally.failed += found.failed;
    }
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => bail!("cargo {} failed ({status})", arguments.join(" ")),
        Err(reason) => bail!("cargo {} was {reason}", arguments.join(" ")),
    }
}

/// Passed and failed tests of one `test result:` line.
fn results(line: &str) -> Option<Tally> {
    let rest = line.strip_prefix("test result: ")?;
    let number = |word: &str| {
        let before = rest.split(word).next()?;
        before
            .rsplit([' ', '.'])
            .find(|part| !part.is_empty())?
            .parse()
            .ok()
    };
    Some(Tally {
        passed: number(" passed")?,
        failed: number(" failed")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines() {
        let line = "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 4 filtered out; finished in 0.00s";
        assert_eq!(
            results(line),
            Some(Tally {
                passed: 12,
                failed: 3
            })
        );
        assert_eq!(results("test a ... ok"), None);
    }
}
