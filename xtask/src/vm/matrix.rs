//! One line per kernel and probe: ok, unsupported with the reason, or broken.

use std::collections::BTreeMap;

use super::guest::Guest;

/// The rows of one guest while they come in.
pub struct Matrix<'a> {
    guest: &'a Guest,
    broken: u32,
    seen: BTreeMap<String, bool>,
}

impl<'a> Matrix<'a> {
    /// No rows yet.
    pub fn new(guest: &'a Guest) -> Self {
        Self {
            guest,
            broken: 0,
            seen: BTreeMap::new(),
        }
    }

    /// Takes a line of the guest's output and prints its row; a line that is no row is printed as it is.
    pub fn line(&mut self, line: &str) {
        let mut words = line.splitn(4, ' ');
        let (Some("probe"), Some(name), Some(word)) = (words.next(), words.next(), words.next())
        else {
            println!("{:<10} | {line}", self.guest.name);
            return;
        };
        let detail = words.next().unwrap_or_default();
        match word {
            "ok" => self.row(name, "ok", detail),
            "unsupported" if !self.guest.must.contains(&name) => {
                self.row(name, "unsupported", detail)
            }
            "unsupported" => self.row(
                name,
                "broken",
                &format!("this kernel must have it: {detail}"),
            ),
            _ => self.row(name, "broken", detail),
        }
    }

    /// Adds the rows that did not come. Says whether nothing is broken, the program's exit status included.
    pub fn finish(mut self, status: i32) -> bool {
        for name in self.guest.must {
            if !self.seen.contains_key(*name) {
                self.row(name, "broken", "was not tried");
            }
        }
        if status != 0 && self.broken == 0 {
            self.row("program", "broken", &format!("ended with status {status}"));
        }
        self.broken == 0
    }

    fn row(&mut self, name: &str, word: &str, detail: &str) {
        println!("{:<10} {name:<18} {word:<12} {detail}", self.guest.name);
        self.broken += u32::from(word == "broken");
        self.seen.insert(name.to_owned(), word == "ok");
    }
}

#[cfg(test)]
mod tests {
    use super::Matrix;
    use crate::vm::guest::ALL;

    fn verdict(lines: &[&str], status: i32) -> bool {
        let mut guest = Matrix::new(&ALL[0]);
        let all = ALL[0]
            .must
            .iter()
            .filter(|name| !lines.iter().any(|line| line.contains(**name)));
        all.for_each(|name| guest.line(&format!("probe {name} ok fine")));
        lines.iter().for_each(|line| guest.line(line));
        guest.finish(status)
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
    }

    #[test]
    fn a_row_that_does_not_come_and_a_bad_exit_fail() {
        assert!(!Matrix::new(&ALL[0]).finish(0));
        assert!(!verdict(&[], 139));
    }
}
