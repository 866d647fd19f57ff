//! Runs one stage: its commands one after another, their output printed as it arrives, and parsed.

use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::output::{self, Output, Tally};
use super::screen::Place;
use super::table::{Lane, Stage};
use crate::features;
use crate::paths::Paths;
use crate::process::{cargo, check_interrupt, nice_cargo};

/// Added to the nice value of the stages in [`Lane::Beside`]: tests of the other lane have time limits on their waits.
const NICER: u8 = 5;

/// Results of a stage.
#[derive(Debug, Default)]
pub struct Results {
    /// Tests by outcome; a command that failed outside the tests counts as one.
    pub tally: Tally,
    /// Lines of the summary: the stage, then its slow test programs.
    pub summary: Vec<String>,
    /// Tests and their times.
    pub tests: Vec<(Duration, String)>,
    /// Failed tests and their errors.
    pub failures: Vec<(String, String)>,
    /// What did not run for want of time.
    pub left_out: Vec<String>,
}

/// Output of a stage's commands.
#[derive(Default)]
struct Said {
    tally: Tally,
    /// Test programs and their times.
    programs: Vec<(String, Duration)>,
    tests: Vec<(Duration, String)>,
    failures: Vec<(String, String)>,
    left_out: Vec<String>,
}

/// Runs a stage's commands until one fails.
///
/// # Errors
/// When the user pressed Ctrl-C. A failed stage is a result.
pub fn stage(paths: &Paths, stage: &Stage, must_have: &str, place: &Arc<Place>) -> Result<Results> {
    place.line(&format!("\n== {}: {}", stage.name, stage.about));
    let start = Instant::now();
    let mut said = Said::default();
    let mut error = None;
    for arguments in stage.commands {
        let left = stage.limit.saturating_sub(start.elapsed());
        let ran = run(paths, stage, arguments, must_have, left, place, &mut said);
        // A command that was ended may have printed half a line.
        place.end_line();
        if let Err(problem) = ran {
            check_interrupt()?;
            error = Some(problem);
            break;
        }
    }
    if let Some(problem) = &error {
        place.line(&format!("{problem:#}"));
        if said.tally.failed == 0 {
            // A command failed outside the tests: formatting, lints, the build, the time limit.
            said.tally.failed = 1;
            said.failures
                .push((stage.name.to_owned(), format!("{problem:#}")));
        }
    }
    let outcome = if error.is_none() { "ok" } else { "FAILED" };
    let seconds = start.elapsed().as_secs();
    let mut summary = vec![format!(
        "{:8} {outcome:6} {seconds:5} s  {}",
        stage.name, said.tally
    )];
    let timed = said
        .programs
        .iter()
        .filter(|(_, time)| *time >= Duration::from_secs(1));
    summary.extend(timed.map(|(name, time)| format!("{:17}{:3} s  {name}", "", time.as_secs())));
    Ok(Results {
        tally: said.tally,
        summary,
        tests: said.tests,
        failures: said.failures,
        left_out: said.left_out,
    })
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
    place: &Arc<Place>,
    said: &mut Said,
) -> Result<()> {
    let mut command = match stage.lane {
        Lane::Beside => nice_cargo(NICER),
        _ => cargo(),
    };
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
    if std::io::stdout().is_terminal() && std::env::var_os("CARGO_TERM_COLOR").is_none() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    let mut child = command.spawn().context("cannot start cargo")?;
    let mut stdout = child
        .stdout
        .take()
        .context("cargo has no standard output")?;
    let stderr = child.stderr.take().context("cargo has no standard error")?;
    let there = Arc::clone(place);
    let reader = thread::spawn(move || {
        let mut output = Output::default();
        let mut bytes = [0; 4096];
        loop {
            match stdout.read(&mut bytes) {
                Ok(0) => return output,
                Ok(count) => {
                    output.take(&bytes[..count], Instant::now());
                    there.bytes(&bytes[..count]);
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return output,
            }
        }
    });
    let there = Arc::clone(place);
    let names = thread::spawn(move || {
        let mut names = Vec::new();
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            there.line(&line);
            names.extend(output::program(&line));
        }
        names
    });
    let start = Instant::now();
    let status = loop {
        if has_ended(&child)? {
            break Ok(());
        }
        let late = start.elapsed() > limit;
        if late || check_interrupt().is_err() {
            // SAFETY: kill(2) takes two integers; the group is led by our child, which has not been waited for.
            unsafe { libc::kill(-child.id().cast_signed(), libc::SIGTERM) };
            thread::sleep(Duration::from_secs(2));
            // SAFETY: as above.
            unsafe { libc::kill(-child.id().cast_signed(), libc::SIGKILL) };
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
        place.line("a process that a test left behind holds the output: ending its group");
        // SAFETY: as above.
        unsafe { libc::kill(-child.id().cast_signed(), libc::SIGKILL) };
        if !read(LEFT_BEHIND) {
            bail!("a process that a test left behind, in a group of its own, holds the output");
        }
    }
    let exit = child.wait()?;
    let names = names.join().unwrap_or_default();
    if let Ok(output) = reader.join() {
        said.tally.add(output.results());
        said.tests.extend(output.tests);
        said.failures.extend(output.failures.found);
        said.left_out.extend(output.left_out);
        // A crashed program has no result, so the others cannot be matched to their programs.
        if names.len() == output.programs.len() {
            said.programs.extend(names.into_iter().zip(output.programs));
        }
    }
    match status {
        Ok(()) if exit.success() => Ok(()),
        Ok(()) => bail!("cargo {} failed ({exit})", arguments.join(" ")),
        Err(reason) => bail!("cargo {} was {reason}", arguments.join(" ")),
    }
}

/// Whether the child has ended. It stays a zombie until the caller waits for it, so that its id, which is also that of its
/// group, goes to no other process.
fn has_ended(child: &Child) -> Result<bool> {
    // SAFETY: siginfo_t is plain data, which waitid(2) fills.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: waitid(2) writes to `info`, which outlives the call.
    if unsafe { libc::waitid(libc::P_PID, child.id(), &raw mut info, flags) } != 0 {
        return Err(std::io::Error::last_os_error()).context("cannot wait for cargo");
    }
    // SAFETY: the call above has filled it, or left it zero where the child still runs.
    Ok(unsafe { info.si_pid() } != 0)
}
