//! The table of one guest: its properties, and for each test whether it passed, was skipped and why, or failed.
//!
//! Rows come from the guest's output: lines `row NAME ok|unsupported|broken DETAIL` of the script, and libtest's own
//! lines. libtest counts a skipped test as passed; this table does not, and fails it where the guest must be able to
//! run it.

use std::fmt::{self, Display, Formatter};

use super::guest::Guest;
use crate::features::SKIPPED_LINE;
use crate::stages::output::Failures;

/// Numbers of rows by verdict, and what is broken.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Work and count right.
    pub ok: u32,
    /// Not supported by the kernel or the machine, and not required.
    pub unsupported: u32,
    /// Required to work, and do not: the guest and the row, and its detail.
    pub broken: Vec<(String, String)>,
}

impl Totals {
    /// Adds the totals of another guest.
    pub fn add(&mut self, other: Self) {
        self.ok += other.ok;
        self.unsupported += other.unsupported;
        self.broken.extend(other.broken);
    }
}

impl Display for Totals {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            ok,
            unsupported,
            broken,
        } = self;
        // As libtest shows a failed test, for whom looks for that form: a person and `cargo xtask test`.
        for (name, detail) in broken {
            writeln!(out, "---- {name} stdout ----\nError: {detail}")?;
        }
        let (word, failed) = (
            if broken.is_empty() { "ok" } else { "FAILED" },
            broken.len(),
        );
        write!(
            out,
            "test result: {word}. {ok} passed; {failed} failed; {unsupported} unsupported"
        )
    }
}

/// A line of the table.
struct Row {
    name: String,
    verdict: Verdict,
    detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Ok,
    Unsupported,
    Broken,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unsupported => "unsupported",
            Self::Broken => "broken",
        }
    }
}

/// The rows of one guest while they arrive.
pub struct Matrix<'a> {
    guest: &'a Guest,
    rows: Vec<Row>,
    /// The row of the running test.
    running: Option<usize>,
    /// The row of the test whose captured output libtest prints, after all have run.
    shown: Option<usize>,
    failures: Failures,
}

impl<'a> Matrix<'a> {
    /// A table without rows.
    pub fn new(guest: &'a Guest) -> Self {
        Self {
            guest,
            rows: Vec::new(),
            running: None,
            shown: None,
            failures: Failures::default(),
        }
    }

    /// Parses a line of the guest's output, and prints it: the table follows when the guest is done.
    pub fn line(&mut self, line: &str) {
        println!("{:<10} | {line}", self.guest.name);
        self.failures.line(line);
        if let Some(row) = line.strip_prefix("row ") {
            let mut words = row.splitn(3, ' ');
            let mut word = || words.next().unwrap_or_default();
            let (name, verdict, detail) = (word(), word(), word());
            let verdict = match verdict {
                "ok" => Verdict::Ok,
                "unsupported" => Verdict::Unsupported,
                _ => Verdict::Broken,
            };
            self.add(name, verdict, detail);
        } else if let Some((name, said)) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.split_once(" ... "))
        {
            self.add(name, Verdict::Broken, "did not end");
            self.running = Some(self.rows.len() - 1);
            self.said(said);
        } else if let Some(rest) = line.strip_prefix("---- ") {
            let name = rest.strip_suffix(" stdout ----");
            // The last row of that name: some tests run again when the guest has swap.
            self.shown = self.rows.iter().rposition(|row| Some(&*row.name) == name);
        } else if line.starts_with("test result: ") {
            (self.running, self.shown) = (None, None);
        } else {
            self.said(line);
        }
    }

    /// A test's direct output arrives between its name and its outcome; captured output arrives when all have run.
    fn said(&mut self, line: &str) {
        let Some(row) = self.running.or(self.shown).map(|at| &mut self.rows[at]) else {
            return;
        };
        if let Some(why) = line.strip_prefix(SKIPPED_LINE) {
            if row.verdict == Verdict::Ok || self.running.is_some() {
                (row.verdict, row.detail) = (Verdict::Unsupported, why.to_owned());
            }
        } else if self.running.is_some() && matches!(line, "ok" | "FAILED") {
            if line == "FAILED" {
                (row.verdict, row.detail) = (Verdict::Broken, "its output is above".to_owned());
            } else if row.verdict == Verdict::Broken {
                (row.verdict, row.detail) = (Verdict::Ok, String::new());
            }
            self.running = None;
        }
    }

    /// Prints the table with the missing rows and the script's exit status, and returns the totals.
    pub fn finish(mut self, status: i32) -> Totals {
        for (name, error) in std::mem::take(&mut self.failures.found) {
            let row = self.rows.iter_mut().rfind(|row| row.name == name);
            if let Some(row) = row.filter(|row| row.verdict == Verdict::Broken) {
                row.detail = error.trim_start_matches("Error: ").to_owned();
            }
        }
        for row in &mut self.rows {
            if row.verdict == Verdict::Unsupported && self.guest.needs(&row.name) {
                row.verdict = Verdict::Broken;
                row.detail = format!("this guest must have it: {}", row.detail);
            }
        }
        for name in self.guest.needed() {
            if !self.rows.iter().any(|row| row.name == name) {
                self.add(name, Verdict::Broken, "was not tried");
            }
        }
        if status != 0 && self.count(Verdict::Broken) == 0 {
            let detail = format!("ended with status {status}");
            self.add("script", Verdict::Broken, &detail);
        }
        let longest = self.rows.iter().map(|row| row.name.len()).max();
        let width = longest.unwrap_or_default();
        for Row {
            name,
            verdict,
            detail,
        } in &self.rows
        {
            let line = format!(
                "{:<10} {name:<width$} {:<12} {detail}",
                self.guest.name,
                verdict.word()
            );
            println!("{}", line.trim_end());
        }
        let broken = self
            .rows
            .iter()
            .filter(|row| row.verdict == Verdict::Broken);
        Totals {
            ok: self.count(Verdict::Ok),
            unsupported: self.count(Verdict::Unsupported),
            broken: broken
                .map(|row| {
                    (
                        format!("{} {}", self.guest.name, row.name),
                        row.detail.clone(),
                    )
                })
                .collect(),
        }
    }

    fn add(&mut self, name: &str, verdict: Verdict, detail: &str) {
        self.rows.push(Row {
            name: name.to_owned(),
            verdict,
            detail: detail.to_owned(),
        });
    }

    fn count(&self, verdict: Verdict) -> u32 {
        self.rows
            .iter()
            .filter(|row| row.verdict == verdict)
            .count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::{Matrix, Totals};
    use crate::vm::guest::ALL;

    /// The totals of these lines for a guest that has all other required rows.
    fn totals(lines: &[&str], status: i32) -> Totals {
        let mut guest = Matrix::new(&ALL[0]);
        let others = ALL[0]
            .needed()
            .filter(|name| !lines.iter().any(|line| line.contains(name)));
        others.for_each(|name| guest.line(&format!("row {name} ok fine")));
        lines.iter().for_each(|line| guest.line(line));
        guest.finish(status)
    }

    fn fine(lines: &[&str], status: i32) -> bool {
        totals(lines, status).broken.is_empty()
    }

    #[test]
    fn broken_fails_and_unsupported_fails_only_where_it_must_be() {
        assert!(fine(&[], 0));
        assert!(fine(&["row jvm unsupported no disk", "a stray line"], 0));
        assert!(!fine(&["row nodes unsupported 1"], 0));
        assert!(!fine(&["row jvm broken no answer"], 0));
        assert!(!fine(&["row release strange"], 0));
        assert!(!fine(&["test counts::exact ... FAILED"], 0));
        assert!(fine(
            &["test counts::exact ... ok", "test result: ok. 1 passed"],
            0
        ));
    }

    /// Both places of a skip's line: in the output that libtest captures, and in direct output.
    #[test]
    fn a_test_that_skips_itself_has_not_passed() {
        let kept = |name: &str| {
            vec![
                format!("test {name} ... ok"),
                "test counts::exact ... ok".to_owned(),
                format!("---- {name} stdout ----"),
                "skipped: this machine has none".to_owned(),
                "---- counts::exact stdout ----".to_owned(),
                "one rung: skipped, it is missing".to_owned(),
                "test result: ok. 2 passed".to_owned(),
                "skipped: a line of no test".to_owned(),
            ]
        };
        let past = |name: &str| {
            vec![
                format!("test {name} ... skipped: this machine has none"),
                "ok".to_owned(),
                "test counts::exact ... ok".to_owned(),
                "skipped: a line of no test".to_owned(),
            ]
        };
        let of = |lines: Vec<String>| {
            let lines: Vec<_> = lines.iter().map(String::as_str).collect();
            totals(&lines, 0)
        };
        for lines in [&kept as &dyn Fn(&str) -> Vec<String>, &past] {
            let (free, must) = (
                of(lines("walks::few")),
                of(lines("every_rung_counts_the_same")),
            );
            assert_eq!((free.unsupported, free.broken.len()), (1, 0));
            assert_eq!((must.unsupported, must.broken.len()), (0, 1));
            assert_eq!(must.ok + 1, free.ok);
        }
    }

    #[test]
    fn a_test_ends_on_a_later_line_or_not_at_all() {
        assert!(fine(&["test walks::few ... a stray line", "ok"], 0));
        assert!(!fine(&["test walks::few ... a stray line", "FAILED"], 0));
        assert!(!fine(&["test walks::few ... skipped: none", "FAILED"], 0));
        assert!(!fine(&["test walks::few ... the program is killed"], 0));
    }

    /// A person and `cargo xtask test` find the test and its error after the table.
    #[test]
    fn a_failed_test_is_shown_again_with_its_error() {
        let lines = [
            "test counts::exact ... FAILED",
            "failures:",
            "---- counts::exact stdout ----",
            "12 tasks",
            "Error: 3 tasks, expected 4",
            "",
            "test result: FAILED. 0 passed",
        ];
        let shown = totals(&lines, 101).to_string();
        let expected = "---- x86-6.1 counts::exact stdout ----\nError: 3 tasks, expected 4\ntest result: FAILED. ";
        assert!(shown.starts_with(expected), "{shown}");
    }

    #[test]
    fn sums_read_like_those_of_cargo() {
        let totals = Totals {
            ok: 9,
            unsupported: 5,
            broken: Vec::new(),
        };
        assert_eq!(
            totals.to_string(),
            "test result: ok. 9 passed; 0 failed; 5 unsupported"
        );
    }

    #[test]
    fn a_row_that_does_not_come_and_a_bad_exit_fail() {
        assert!(!Matrix::new(&ALL[0]).finish(0).broken.is_empty());
        assert!(!fine(&[], 139));
    }
}
