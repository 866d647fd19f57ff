//! One line per kernel and probe: ok, unsupported with the reason, or broken.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};

use super::guest::Guest;
use crate::features::SKIPPED_LINE;

/// How many rows there were of each kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Work and count right.
    pub ok: u32,
    /// The kernel or the machine does not have them, and need not.
    pub unsupported: u32,
    /// Do not do what they must.
    pub broken: u32,
}

impl Totals {
    /// Adds those of another guest.
    pub fn add(&mut self, other: &Self) {
        self.ok += other.ok;
        self.unsupported += other.unsupported;
        self.broken += other.broken;
    }
}

impl Display for Totals {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let word = if self.broken == 0 { "ok" } else { "FAILED" };
        let Self {
            ok,
            unsupported,
            broken,
        } = self;
        write!(
            out,
            "test result: {word}. {ok} passed; {broken} failed; {unsupported} unsupported"
        )
    }
}

/// The rows of one guest while they come in.
pub struct Matrix<'a> {
    guest: &'a Guest,
    totals: Totals,
    seen: BTreeSet<String>,
}

impl<'a> Matrix<'a> {
    /// No rows yet.
    pub fn new(guest: &'a Guest) -> Self {
        Self {
            guest,
            totals: Totals::default(),
            seen: BTreeSet::new(),
        }
    }

    /// Takes a line of the guest's output and prints its row; a line that is no row is printed as it is.
    pub fn line(&mut self, line: &str) {
        // libtest's own lines.
        if let Some((name, outcome)) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.split_once(" ... "))
        {
            match outcome {
                "ok" => return self.row(name, "ok", ""),
                "FAILED" => return self.row(name, "broken", "its output is below"),
                _ => {
                    if let Some(why) = outcome.strip_prefix(SKIPPED_LINE) {
                        return self.unsupported(name, why);
                    }
                }
            }
        }
        let mut words = line.splitn(4, ' ');
        let (Some("probe"), Some(name), Some(word)) = (words.next(), words.next(), words.next())
        else {
            println!("{:<10} | {line}", self.guest.name);
            return;
        };
        let detail = words.next().unwrap_or_default();
        match word {
            "ok" => self.row(name, "ok", detail),
            "unsupported" => self.unsupported(name, detail),
            _ => self.row(name, "broken", detail),
        }
    }

    fn unsupported(&mut self, name: &str, why: &str) {
        if self.guest.needs(name) {
            self.row(name, "broken", &format!("this kernel must have it: {why}"));
        } else {
            self.row(name, "unsupported", why);
        }
    }

    /// Adds the rows that did not come and the script's exit status, and gives the sums.
    pub fn finish(mut self, status: i32) -> Totals {
        for name in self.guest.needed() {
            if !self.seen.contains(name) {
                self.row(name, "broken", "was not tried");
            }
        }
        if status != 0 && self.totals.broken == 0 {
            self.row("script", "broken", &format!("ended with status {status}"));
        }
        self.totals
    }

    fn row(&mut self, name: &str, word: &str, detail: &str) {
        println!("{:<10} {name:<18} {word:<12} {detail}", self.guest.name);
        match word {
            "ok" => self.totals.ok += 1,
            "unsupported" => self.totals.unsupported += 1,
            _ => self.totals.broken += 1,
        }
        self.seen.insert(name.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::{Matrix, Totals};
    use crate::vm::guest::ALL;

    fn verdict(lines: &[&str], status: i32) -> bool {
        let mut guest = Matrix::new(&ALL[0]);
        let all = ALL[0]
            .needed()
            .filter(|name| !lines.iter().any(|line| line.contains(name)));
        all.for_each(|name| guest.line(&format!("probe {name} ok fine")));
        lines.iter().for_each(|line| guest.line(line));
        guest.finish(status).broken == 0
    }

    #[test]
    fn broken_fails_and_unsupported_fails_only_where_it_must_be() {
        assert!(verdict(&[], 0));
        assert!(verdict(
            &[
                "probe dtlb_sampling unsupported no such counter",
                "a stray line"
            ],
            0
        ));
        assert!(!verdict(&["probe fentry unsupported no such hook"], 0));
        assert!(!verdict(&["probe dtlb_sampling broken 7 of 100"], 1));
        assert!(!verdict(&["probe uprobe strange"], 0));
        assert!(verdict(
            &["test pages::bound ... skipped: swap: none", "ok"],
            0
        ));
        assert!(!verdict(&["test counts::exact ... FAILED"], 0));
        assert!(verdict(
            &["test counts::exact ... ok", "test result: ok. 1 passed"],
            0
        ));
    }

    #[test]
    fn sums_read_like_those_of_cargo() {
        let totals = Totals {
            ok: 9,
            unsupported: 5,
            broken: 0,
        };
        assert_eq!(
            totals.to_string(),
            "test result: ok. 9 passed; 0 failed; 5 unsupported"
        );
    }

    #[test]
    fn a_row_that_does_not_come_and_a_bad_exit_fail() {
        assert!(Matrix::new(&ALL[0]).finish(0).broken > 0);
        assert!(!verdict(&[], 139));
    }
}
