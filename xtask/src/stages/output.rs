//! Parses the output of cargo and the test programs as it arrives: results, skipped tests, times.

use std::time::{Duration, Instant};

use crate::features::SKIPPED_LINE;

/// Numbers of tests by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Ran and passed.
    pub passed: u64,
    /// Failed.
    pub failed: u64,
    /// Named a missing feature, and did not run.
    pub skipped: u64,
}

impl Tally {
    /// Adds another tally.
    pub fn add(&mut self, more: Self) {
        self.passed += more.passed;
        self.failed += more.failed;
        self.skipped += more.skipped;
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(out, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

/// Standard output of cargo and of the programs that it starts.
#[derive(Debug, Default)]
pub struct Output {
    /// Results so far.
    pub tally: Tally,
    /// The time of each program, in order, as the program reports it.
    pub programs: Vec<Duration>,
    /// The time of each test that ran alone: a program that runs several at once does not report when each began.
    pub tests: Vec<(Duration, String)>,
    /// Failed tests.
    pub failures: Failures,
    /// What did not run for want of time.
    pub left_out: Vec<String>,
    line: Vec<u8>,
    began: Option<Instant>,
}

/// Failed tests, as libtest shows them after all tests: below `---- NAME stdout ----`, with the lines of the error.
#[derive(Debug, Default)]
pub struct Failures {
    /// Names, each with its error: the lines up to an empty one, in one line, cut at [`ERROR_CHARS`].
    pub found: Vec<(String, String)>,
    at: Place,
}

/// Place in the output of tests that libtest repeats.
#[derive(Debug, Default)]
enum Place {
    /// In no test's output.
    #[default]
    Outside,
    /// Before the error of the named test.
    Before(String),
    /// Before the message of the named test's panic.
    Panicked(String),
    /// In the error of the last test found.
    Error,
}

impl Failures {
    /// Parses a line of libtest's output.
    pub fn line(&mut self, line: &str) {
        let name = line
            .strip_prefix("---- ")
            .and_then(|rest| rest.strip_suffix(" stdout ----"));
        if let Some(name) = name {
            self.at = Place::Before(name.to_owned());
            return;
        }
        self.at = match std::mem::take(&mut self.at) {
            Place::Outside => Place::Outside,
            Place::Before(_) | Place::Error if line == "failures:" => Place::Outside,
            Place::Before(name)
                if line.starts_with("thread '") && line.contains(" panicked at ") =>
            {
                Place::Panicked(name)
            }
            Place::Before(name) if !line.starts_with("Error: ") => Place::Before(name),
            Place::Before(name) | Place::Panicked(name) => {
                self.found.push((name, String::new()));
                self.more(line);
                Place::Error
            }
            Place::Error if line.is_empty() || line.starts_with("note: run with ") => {
                Place::Outside
            }
            Place::Error => {
                self.more(line);
                Place::Error
            }
        };
    }

    fn more(&mut self, line: &str) {
        let Some((_, error)) = self.found.last_mut() else {
            return;
        };
        if !error.is_empty() {
            error.push(' ');
        }
        error.push_str(line.trim());
        if let Some((cut, _)) = error.char_indices().nth(ERROR_CHARS) {
            error.truncate(cut);
        }
    }
}

/// Prefix of a line about what does not run because the time of [`crate::vm::END`] is near.
pub const NOT_RUN_LINE: &str = "not run: ";

/// Characters of an error that are kept.
const ERROR_CHARS: usize = 400;

impl Output {
    /// Parses the bytes that arrived at `now`. A program that runs one test after another prints a test's name when it
    /// begins, and ends the line when it ends.
    pub fn take(&mut self, bytes: &[u8], now: Instant) {
        for byte in bytes {
            if *byte != b'\n' {
                self.line.push(*byte);
                continue;
            }
            let line = std::mem::take(&mut self.line);
            self.end_of_line(&String::from_utf8_lossy(&line), now);
        }
        if self.began.is_none() && self.line.starts_with(b"test ") && self.line.ends_with(b" ... ")
        {
            self.began = Some(now);
        }
    }

    fn end_of_line(&mut self, line: &str, now: Instant) {
        let test = line
            .strip_prefix("test ")
            .and_then(|rest| rest.split_once(" ... "));
        if let (Some(began), Some((name, _))) = (self.began.take(), test) {
            self.tests.push((now - began, name.to_owned()));
        }
        self.failures.line(line);
        if let Some(what) = line.strip_prefix(NOT_RUN_LINE) {
            self.left_out.push(what.to_owned());
        }
        let said = test.map_or(line, |(_, said)| said);
        self.tally.skipped += u64::from(said.starts_with(SKIPPED_LINE));
        if let Some((tally, time)) = result(line) {
            self.tally.add(tally);
            self.programs.push(time);
        }
    }

    /// The results. libtest counts a skipped test as passed; this tally does not.
    pub fn results(&self) -> Tally {
        Tally {
            passed: self.tally.passed.saturating_sub(self.tally.skipped),
            ..self.tally
        }
    }
}

/// Passed and failed tests of one `test result:` line, and the program's time.
fn result(line: &str) -> Option<(Tally, Duration)> {
    let rest = line.strip_prefix("test result: ")?;
    let number = |word: &str| {
        let before = rest.split(word).next()?;
        before
            .rsplit([' ', '.'])
            .find(|part| !part.is_empty())?
            .parse()
            .ok()
    };
    let tally = Tally {
        passed: number(" passed")?,
        failed: number(" failed")?,
        skipped: 0,
    };
    let time = rest
        .split_once("finished in ")
        .and_then(|(_, time)| time.trim().strip_suffix('s')?.parse().ok())
        .map_or(Duration::ZERO, Duration::from_secs_f64);
    Some((tally, time))
}

/// The program that a line of cargo's standard error names: `Running tests/jvm.rs (target/debug/deps/jvm-0a1b)`.
pub fn program(line: &str) -> Option<String> {
    if let Some((_, package)) = line.split_once("Doc-tests") {
        return Some(format!("{} (documentation)", plain(package)));
    }
    let (before, path) = line.rsplit_once('(')?;
    if !before.contains("Running ") && !before.contains("Running\u{1b}") {
        return None;
    }
    let name = path.split(')').next()?.rsplit('/').next()?;
    let (name, _) = name.rsplit_once('-')?;
    let kind = if before.contains("unittests") {
        " (unit)"
    } else {
        ""
    };
    Some(format!("{name}{kind}"))
}

/// A word without its colour codes.
fn plain(word: &str) -> &str {
    word.rsplit("[0m").next().unwrap_or(word).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(passed: u64, failed: u64, skipped: u64) -> Tally {
        Tally {
            passed,
            failed,
            skipped,
        }
    }

    #[test]
    fn result_lines() {
        let line = "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 4 filtered out; finished in 61.25s";
        assert_eq!(
            result(line),
            Some((tally(12, 3, 0), Duration::from_millis(61_250)))
        );
        assert_eq!(result("test a ... ok"), None);
    }

    #[test]
    fn what_there_was_no_time_for_is_kept() {
        let mut output = Output::default();
        output.take(
            b"not run: riscv64: 7 s are left\nis not run: a\n",
            Instant::now(),
        );
        assert_eq!(output.left_out, ["riscv64: 7 s are left"]);
    }

    #[test]
    fn a_test_that_did_not_run_has_not_passed() {
        let mut output = Output::default();
        let text = b"running 3 tests\ntest a ... skipped: swap: /proc/swaps is empty\nok\ntest b ... ok\n\
            skipped: damon: why\ntest c ... ok\n\
            test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s\n";
        output.take(text, Instant::now());
        assert_eq!(output.results(), tally(1, 0, 2));
        assert_eq!(
            output.results().to_string(),
            "1 passed, 0 failed, 2 skipped"
        );
        assert_eq!(tally(5, 1, 0).to_string(), "5 passed, 1 failed");
    }

    #[test]
    fn a_failed_test_has_its_error() {
        let mut output = Output::default();
        let text = b"test a ... FAILED\n\nfailures:\n\n---- a stdout ----\n12 tasks\nError: 3 tasks, expected [\n    4,\n]\n\n\
            ---- b::c stdout ----\n\nthread 'b::c' (77) panicked at tests/b.rs:4:5:\nnot equal\n  left: 1\n\n\
            failures:\n    a\n    b::c\nError: of cargo\n";
        output.take(text, Instant::now());
        let own = |name: &str, line: &str| (name.to_owned(), line.to_owned());
        assert_eq!(
            output.failures.found,
            [
                own("a", "Error: 3 tasks, expected [ 4, ]"),
                own("b::c", "not equal left: 1")
            ]
        );
    }

    #[test]
    fn a_test_takes_from_its_name_to_the_end_of_its_line() {
        let mut output = Output::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        output.take(b"running 2 tests\ntest a::b ... ", after(1));
        output.take(b"ok\ntest c ... ", after(3));
        output.take(b"skipped: swap: none", after(4));
        output.take(b"\nok\n", after(7));
        // The beginning of a test is unknown when its line arrives at once.
        output.take(b"test d ... ok\n", after(8));
        assert_eq!(
            output.tests,
            [
                (Duration::from_secs(2), "a::b".to_owned()),
                (Duration::from_secs(4), "c".to_owned())
            ]
        );
    }

    #[test]
    fn programs_are_named_by_cargo() {
        for (line, name) in [
            (
                "     Running tests/kernel/main.rs (target/debug/deps/kernel-5b440daca4dcc423)",
                "kernel",
            ),
            (
                "\u{1b}[1m\u{1b}[92m     Running\u{1b}[0m tests/jvm.rs (/t/debug/deps/jvm-5b44)",
                "jvm",
            ),
            (
                "     Running unittests src/lib.rs (target/debug/deps/smtt_tests-182e)",
                "smtt_tests (unit)",
            ),
            ("   Doc-tests xtask", "xtask (documentation)"),
        ] {
            assert_eq!(program(line).as_deref(), Some(name), "{line}");
        }
        assert_eq!(program("   Compiling xtask v0.1.0 (/t/xtask)"), None);
        assert_eq!(program("    Finished `test` profile"), None);
    }
}
