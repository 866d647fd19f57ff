//! Lines of the log about processes. Any user can start processes that deserve one, so their number is limited.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use smtt_model::decode::ExecutorDescribed;

/// Least time between two warnings about one process.
const PER_PROCESS: Duration = Duration::from_secs(3600);
/// Warnings in one [`WINDOW`], about all processes.
const LINES: u32 = 20;
const WINDOW: Duration = Duration::from_secs(60);
/// Characters of a name in a warning.
const NAME_MAX: usize = 200;

/// Counts the warnings of the current window.
#[derive(Debug, Default)]
pub struct Complaints {
    window: Option<Instant>,
    lines: u32,
    left_out: u64,
    /// When there was a line about a process or executor, by its key. Lines are few, so the keys are.
    last: HashMap<u64, Instant>,
}

/// What an executor calls itself, as a log may show it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    application_id: String,
    application_name: String,
    executor_id: String,
}

impl Named {
    /// The names that a report has of an executor.
    pub fn of(application_id: &str, application_name: &str, executor_id: &str) -> Self {
        Self {
            application_id: printable(application_id),
            application_name: printable(application_name),
            executor_id: printable(executor_id),
        }
    }

    /// The names of a description.
    pub fn new(said: &ExecutorDescribed) -> Self {
        Self {
            application_id: printable(&said.application_id),
            application_name: printable(&said.application_name),
            executor_id: printable(&said.executor_id),
        }
    }
}

impl Complaints {
    /// Logs a warning about a process, unless there was one within the hour (`last`) or there are too many.
    pub fn warn(&mut self, last: &mut Option<Instant>, now: Instant, text: &str) {
        if let Some(left_out) = self.begin_window(now) {
            tracing::warn!("{left_out} warnings about processes were left out");
        }
        if self.admits(last, now) {
            tracing::warn!("{text}");
        }
    }

    /// Logs a warning about the process or executor with this key, within the same limits.
    pub fn warn_about(&mut self, key: u64, now: Instant, text: &str) {
        let mut last = self.last.get(&key).copied();
        self.warn(&mut last, now, text);
        self.last.retain(|_, last| now < *last + PER_PROCESS);
        if let Some(last) = last {
            self.last.insert(key, last);
        }
    }

    /// Logs a line that is no warning, within the limit for all processes.
    pub fn note(&mut self, now: Instant, text: &str) {
        if let Some(left_out) = self.begin_window(now) {
            tracing::info!("{left_out} lines about processes were left out");
        }
        if self.admits(&mut None, now) {
            tracing::info!("{text}");
        }
    }

    /// Logs a line about an executor that is no warning, within the limit for all processes.
    pub fn note_of(&mut self, now: Instant, who: &Named, text: &str) {
        if let Some(left_out) = self.begin_window(now) {
            tracing::info!("{left_out} lines about processes were left out");
        }
        if self.admits(&mut None, now) {
            let Named {
                application_id,
                application_name,
                executor_id,
            } = who;
            tracing::info!(application_id, application_name, executor_id, "{text}");
        }
    }

    /// Begins a window where the last one is over; returns the number of warnings that it left out.
    fn begin_window(&mut self, now: Instant) -> Option<u64> {
        let over = self.window.is_none_or(|begin| now >= begin + WINDOW);
        if !over {
            return None;
        }
        self.window = Some(now);
        self.lines = 0;
        Some(std::mem::take(&mut self.left_out)).filter(|left_out| *left_out > 0)
    }

    fn admits(&mut self, last: &mut Option<Instant>, now: Instant) -> bool {
        if last.is_some_and(|last| now < last + PER_PROCESS) {
            return false;
        }
        if self.lines == LINES {
            self.left_out += 1;
            return false;
        }
        self.lines += 1;
        *last = Some(now);
        true
    }
}

/// A name that a process chose: without control characters, and cut.
pub fn printable(name: &str) -> String {
    let safe = |character: char| {
        if character.is_ascii_graphic() || character == ' ' {
            character
        } else {
            '?'
        }
    };
    name.chars().take(NAME_MAX).map(safe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_gets_one_warning_an_hour_and_all_together_few() {
        let mut complaints = Complaints::default();
        let now = Instant::now();
        let mut last = None;
        assert_eq!(complaints.begin_window(now), None);
        assert!(complaints.admits(&mut last, now));
        assert!(!complaints.admits(&mut last, now + WINDOW));
        assert!(complaints.admits(&mut last, now + PER_PROCESS));
        let admitted = (0..1000).filter(|_| complaints.admits(&mut None, now));
        assert_eq!(admitted.count(), LINES as usize - 2);
        assert_eq!(complaints.begin_window(now + WINDOW / 2), None);
        assert_eq!(
            complaints.begin_window(now + WINDOW),
            Some(1000 - u64::from(LINES) + 2)
        );
        assert!(complaints.admits(&mut None, now + WINDOW));
    }

    #[test]
    fn the_keys_of_complaints_are_bounded() {
        let mut complaints = Complaints::default();
        let begin = Instant::now();
        let hours = 3;
        for second in 0..hours * 3600 {
            let now = begin + Duration::from_secs(second);
            for process in 0..10 {
                complaints.warn_about(second * 10 + process, now, "a test");
            }
            assert!(complaints.last.len() <= 61 * LINES as usize);
        }
        assert!(complaints.last.len() > 59 * LINES as usize);
    }

    #[test]
    fn a_name_is_printed_without_what_a_terminal_obeys() {
        assert_eq!(printable("/a\x1b[2J\u{202e}b c"), "/a?[2J?b c");
        assert_eq!(printable(&"x".repeat(5000)).len(), NAME_MAX);
    }
}
