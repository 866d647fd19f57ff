//! `cargo xtask test`: all stages of tests with one command, and one summary line at the end.

mod ahead;
mod output;

use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::features;
use crate::paths::{Paths, SPARK_VERSIONS};
use crate::process::{cargo, check_interrupt};
use crate::setup::{browser, setup};
use crate::stages::ahead::Ahead;
use crate::stages::output::{Output, Tally};

/// One stage: cargo commands with a time limit, which ends a hanging stage. The limit allows for other work on the
/// machine, which makes a stage several times longer.
struct Stage {
    name: &'static str,
    about: &'static str,
    commands: &'static [&'static [&'static str]],
    limit: Duration,
    /// Environment of the commands, which makes tests of another stage longer.
    longer: &'static [(&'static str, &'static str)],
    /// It takes so long that it runs only by its name.
    by_name: bool,
}

/// The programs that tests against the kernel start.
const PROGRAMS: &[&str] = &[
    "build",
    "-p",
    "smtt-daemon",
    "-p",
    "smtt-ctl",
    "-p",
    "smtt-tests",
    "--bins",
];

/// The programs that tests against real Spark start.
const SPARK_PROGRAMS: &[&str] = &[
    "build",
    "-p",
    "smtt-daemon",
    "-p",
    "smtt-ctl",
    "-p",
    "smtt-history",
    "--bins",
];

/// Commands that run some of the tests against this machine's kernel, and show what they print.
macro_rules! kernel_tests {
    ($filter:literal) => {
        &[
            PROGRAMS,
            &[
                "test",
                "-p",
                "smtt-tests",
                "--test",
                "kernel",
                $filter,
                "--",
                "--nocapture",
            ],
        ]
    };
}

const STAGES: [Stage; 14] = [
    Stage {
        name: "format",
        about: "rustfmt has nothing to change",
        commands: &[
            &["fmt", "--all", "--check"],
            &["fmt", "--check", "--manifest-path", "smtt-ebpf/Cargo.toml"],
        ],
        limit: Duration::from_secs(600),
        longer: &[],
        by_name: false,
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
        limit: Duration::from_secs(2400),
        longer: &[],
        by_name: false,
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
            &["xtask", "marker", "--test"],
        ],
        limit: Duration::from_secs(3600),
        longer: &[],
        by_name: false,
    },
    Stage {
        name: "browser",
        about: "the history's pages in a real browser",
        commands: &[&[
            "test",
            "-p",
            "smtt-tests",
            "--test",
            "history_pages",
            "--",
            "--nocapture",
        ]],
        limit: Duration::from_secs(1200),
        longer: &[],
        by_name: false,
    },
    Stage {
        name: "objects",
        about: "the history's stores in buckets, against a server of S3's protocol",
        commands: &[&["test", "-p", "smtt-history", "--test", "objects"]],
        limit: Duration::from_secs(1200),
        longer: &[],
        by_name: false,
    },
    Stage {
        name: "kernel",
        about: "tests against this machine's kernel",
        commands: &[
            PROGRAMS,
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
        limit: Duration::from_secs(2400),
        longer: &[],
        by_name: false,
    },
    Stage {
        name: "spark",
        about: "tests against real Spark",
        commands: &[
            SPARK_PROGRAMS,
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
                "history",
                "--test",
                "prometheus",
                "--test",
                "ssh",
                "--test",
                "trace_crash",
                "--",
                "--test-threads=1",
            ],
        ],
        limit: Duration::from_secs(10800),
        longer: &[],
        by_name: false,
    },
    Stage {
        name: "packages",
        about: "the contents of the packages and the files beside them",
        commands: &[&[
            "test",
            "-p",
            "xtask",
            "--test",
            "packages",
            "--",
            "--skip",
            "life::",
            "--test-threads=1",
        ]],
        limit: Duration::from_secs(7200),
        longer: &[],
        by_name: false,
    },
    Stage {
        name: "vm",
        about: "other kernels, another processor, two nodes, in emulated machines",
        commands: &[&["xtask", "vm"]],
        limit: Duration::from_secs(7200),
        longer: &[],
        by_name: false,
    },
    Stage {
        name: "systemd",
        about: "a worker's life with the package, in an emulated machine whose init is systemd",
        commands: &[&[
            "test",
            "-p",
            "xtask",
            "--test",
            "packages",
            "life::",
            "--",
            "--nocapture",
        ]],
        limit: Duration::from_secs(3600),
        longer: &[],
        by_name: true,
    },
    Stage {
        name: "starts",
        about: "500 executors that begin while the daemon finds them",
        commands: kernel_tests!("executor_starts::"),
        limit: Duration::from_secs(7200),
        longer: &[("SMTT_STARTS", "500")],
        by_name: true,
    },
    Stage {
        name: "kills",
        about: "50 drivers that are killed while they write their history",
        commands: &[
            SPARK_PROGRAMS,
            &[
                "test",
                "-p",
                "smtt-tests",
                "--test",
                "history",
                "crash::a_driver",
                "--",
                "--nocapture",
            ],
        ],
        limit: Duration::from_secs(7200),
        longer: &[("SMTT_DRIVER_KILLS", "50")],
        by_name: true,
    },
    Stage {
        name: "deaths",
        about: "ten deaths of each kind of real executors, each with its verdict",
        commands: &[
            PROGRAMS,
            &[
                "test",
                "-p",
                "smtt-tests",
                "--test",
                "spark",
                "deaths::",
                "--",
                "--nocapture",
            ],
        ],
        limit: Duration::from_secs(7200),
        longer: &[("SMTT_DEATHS", "10")],
        by_name: true,
    },
    Stage {
        name: "soak",
        about: "ten minutes of executors that come and go",
        commands: kernel_tests!("soak::"),
        limit: Duration::from_secs(2400),
        longer: &[("SMTT_SOAK", "600")],
        by_name: true,
    },
];

/// Names of the stages, in their order.
#[must_use]
pub fn names() -> Vec<&'static str> {
    STAGES.iter().map(|stage| stage.name).collect()
}

/// Number of the slowest tests in the list at the end.
const SLOWEST: usize = 10;

/// Output of a stage's commands.
#[derive(Default)]
struct Said {
    tally: Tally,
    /// Test programs and their times.
    programs: Vec<(String, Duration)>,
    /// Tests and their times.
    tests: Vec<(Duration, String)>,
    /// Failed tests and their errors.
    failures: Vec<(String, String)>,
}

/// Runs the stages (all, or the named ones) and prints the totals in the last line.
///
/// # Errors
/// When a test or a command failed.
pub fn test(paths: &Paths, only: &[String]) -> Result<()> {
    let wanted = |stage: &&Stage| {
        (only.is_empty() && !stage.by_name) || only.iter().any(|name| name == stage.name)
    };
    let chosen: Vec<&Stage> = STAGES.iter().filter(wanted).collect();
    if chosen.iter().any(|stage| {
        matches!(
            stage.name,
            "kernel" | "spark" | "packages" | "systemd" | "starts" | "kills" | "deaths" | "soak"
        )
    }) {
        // SAFETY: geteuid(2) has no arguments and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            bail!(
                "the stages kernel, spark, packages, systemd, starts, kills, deaths and soak need root; without it there are {}",
                names()[..5].join(", ")
            );
        }
    }
    setup(paths, &SPARK_VERSIONS)?;
    if chosen.iter().any(|stage| stage.name == "browser") {
        browser(paths)?;
    }
    let must_have = features::of_this_machine().join(",");
    println!("{}={must_have}", features::MUST_HAVE);
    let mut total = Tally::default();
    let (mut summary, mut tests, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    let chosen_names: Vec<&str> = chosen.iter().map(|stage| stage.name).collect();
    let mut ahead = None;
    for stage in chosen {
        println!("\n== {}: {}", stage.name, stage.about);
        let start = Instant::now();
        if ahead.is_none() {
            ahead = Ahead::start(paths, stage.name, &chosen_names)?;
        }
        // The rest of a build ahead counts as time of the stage that needs it.
        let built = ahead.as_mut().map(|ahead| ahead.finish(stage.name));
        let built = built.transpose()?.flatten();
        let mut said = Said::default();
        let mut error = None;
        for arguments in stage.commands {
            let left = stage.limit.saturating_sub(start.elapsed());
            if let Err(problem) = run(paths, stage, arguments, &must_have, left, &mut said) {
                check_interrupt()?;
                error = Some(problem);
                break;
            }
        }
        if let Some(problem) = &error {
            println!("{problem:#}");
            if said.tally.failed == 0 {
                // A command failed outside the tests: formatting, lints, the build, the time limit.
                said.tally.failed = 1;
                said.failures
                    .push((stage.name.to_owned(), format!("{problem:#}")));
            }
        }
        let outcome = if error.is_none() { "ok" } else { "FAILED" };
        let seconds = start.elapsed().as_secs();
        summary.push(format!(
            "{:8} {outcome:6} {seconds:5} s  {}",
            stage.name, said.tally
        ));
        let timed = said
            .programs
            .iter()
            .filter(|(_, time)| *time >= Duration::from_secs(1));
        summary.extend(built.map(|built| format!("{:22}{built}", "")));
        summary
            .extend(timed.map(|(name, time)| format!("{:17}{:3} s  {name}", "", time.as_secs())));
        total.add(said.tally);
        tests.append(&mut said.tests);
        failures.append(&mut said.failures);
    }
    println!("\n{}\n{}", summary.join("\n"), slowest(tests));
    for (name, error) in failures {
        println!("failed: {name}\n        {error}");
    }
    println!("{total}");
    if total.failed > 0 {
        bail!("not everything passed");
    }
    Ok(())
}

/// The slowest tests, one per line; empty where none took a second.
fn slowest(mut tests: Vec<(Duration, String)>) -> String {
    tests.retain(|(time, _)| *time >= Duration::from_secs(1));
    tests.sort_by(|a, b| b.cmp(a));
    tests.truncate(SLOWEST);
    let lines: Vec<String> = tests
        .iter()
        .map(|(time, name)| format!("{:17}{:3} s  {name}\n", "", time.as_secs()))
        .collect();
    if lines.is_empty() {
        return String::new();
    }
    format!("\nslowest tests\n{}", lines.concat())
}

/// Time for processes that a test started to end after cargo.
const LEFT_BEHIND: Duration = Duration::from_secs(20);

/// Runs cargo, prints its output as it arrives and parses it.
fn run(
    paths: &Paths,
    stage: &Stage,
    arguments: &[&str],
    must_have: &str,
    limit: Duration,
    said: &mut Said,
) -> Result<()> {
    let mut command = cargo();
    command
        .args(arguments)
        .current_dir(&paths.root)
        // The error of a test has its own context; a backtrace would hide it.
        .env("RUST_LIB_BACKTRACE", "0")
        .env(features::MUST_HAVE, must_have)
        .envs(stage.longer.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    if std::io::stderr().is_terminal() && std::env::var_os("CARGO_TERM_COLOR").is_none() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    let mut child = command.spawn().context("cannot start cargo")?;
    let mut stdout = child
        .stdout
        .take()
        .context("cargo has no standard output")?;
    let stderr = child.stderr.take().context("cargo has no standard error")?;
    let reader = thread::spawn(move || {
        let mut output = Output::default();
        let mut bytes = [0; 4096];
        loop {
            match stdout.read(&mut bytes) {
                Ok(0) => return output,
                Ok(count) => {
                    output.take(&bytes[..count], Instant::now());
                    let mut out = std::io::stdout().lock();
                    // A closed standard output does not end the tests.
                    out.write_all(&bytes[..count])
                        .and_then(|()| out.flush())
                        .ok();
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return output,
            }
        }
    });
    let names = thread::spawn(move || {
        let mut names = Vec::new();
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            eprintln!("{line}");
            names.extend(output::program(&line));
        }
        names
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
    // A process that a test has left behind may hold the output, long after cargo has ended.
    let read = |within: Duration| {
        let start = Instant::now();
        while !(names.is_finished() && reader.is_finished()) {
            if start.elapsed() > within {
                return false;
            }
            thread::sleep(Duration::from_millis(50));
        }
        true
    };
    if !read(LEFT_BEHIND) {
        eprintln!("a process that a test left behind holds the output: ending its group");
        // SAFETY: kill(2) takes two integers. The group has a member that holds our pipe, so its id is in use.
        unsafe { libc::kill(-child.id().cast_signed(), libc::SIGKILL) };
        if !read(LEFT_BEHIND) {
            bail!("a process that a test left behind, in a group of its own, holds the output");
        }
    }
    let names = names.join().unwrap_or_default();
    if let Ok(output) = reader.join() {
        said.tally.add(output.results());
        said.tests.extend(output.tests);
        said.failures.extend(output.failures);
        // A crashed program has no result, so the others cannot be matched to their programs.
        if names.len() == output.programs.len() {
            said.programs.extend(names.into_iter().zip(output.programs));
        }
    }
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => bail!("cargo {} failed ({status})", arguments.join(" ")),
        Err(reason) => bail!("cargo {} was {reason}", arguments.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_stages_need_their_name() {
        let by_name = STAGES.iter().filter(|stage| stage.by_name);
        let by_name: Vec<&str> = by_name.map(|stage| stage.name).collect();
        assert_eq!(by_name, ["systemd", "starts", "kills", "deaths", "soak"]);
        let longer = |stage: &Stage| !stage.longer.is_empty();
        assert!(STAGES.iter().all(|stage| stage.by_name || !longer(stage)));
    }

    #[test]
    fn the_slowest_come_first() {
        let seconds = |seconds: u64| (Duration::from_secs(seconds), format!("t{seconds}"));
        let said = slowest((0..12).map(seconds).collect());
        let names: Vec<&str> = said
            .lines()
            .filter_map(|line| line.split_whitespace().nth(2))
            .collect();
        assert_eq!(names.len(), SLOWEST, "{said}");
        assert_eq!((names[0], names[9]), ("t11", "t2"), "{said}");
        assert_eq!(slowest(vec![seconds(0)]), "");
    }
}
