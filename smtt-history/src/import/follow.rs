//! Logs of applications that run. What was read of one is kept, so that only its new lines are read when it has grown.
//!
//! The rows of whole row groups are in a file, the other rows and what is live in memory. Each import copies them and
//! finishes the copy's tables, so that these are the tables of an import of the whole log.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::reading::Reading;
use crate::log::{Bounds, Lines, Log, Mark, Seen};
use crate::out::Out;

/// Logs that are followed at most: each has some open files.
const LOGS: usize = 32;
/// How long a log is followed that nobody asks for.
const TIME: Duration = Duration::from_secs(3600);

/// A log that was read up to a place.
pub struct Followed {
    pub(super) reading: Reading,
    /// After the last line that has an end.
    pub(super) mark: Mark,
    seen: Vec<Seen>,
}

impl Followed {
    /// Nothing was read yet.
    pub(super) fn begin(store: &Path, bounds: Bounds) -> Result<Self> {
        let out = Out::create(store)
            .with_context(|| format!("cannot write to the store {}", store.display()))?;
        Ok(Self {
            reading: Reading::new(out.with_times(bounds.times)),
            mark: Mark::default(),
            seen: Vec::new(),
        })
    }

    /// Whether a log begins with what was read.
    pub(super) fn is_of(&self, log: &Log) -> bool {
        Seen::are_in(&self.seen, log)
    }

    /// Takes what was read of the parts.
    pub(super) fn have_read(&mut self, lines: &Lines, path: &Path) -> Result<()> {
        let first = self.seen.get(self.mark.part);
        let is_same = first.zip(lines.seen.first());
        ensure!(
            is_same.is_none_or(|(before, now)| before.is_of(now)),
            "{} was replaced while it was read",
            path.display()
        );
        self.seen.truncate(self.mark.part);
        self.seen.extend_from_slice(&lines.seen);
        self.mark = lines.mark;
        Ok(())
    }

    /// Whole lines that were read.
    #[cfg(test)]
    pub(crate) const fn lines(&self) -> u64 {
        self.mark.number
    }

    /// Bytes in memory, about.
    pub(crate) fn bytes(&self) -> usize {
        let seen: usize = self.seen.iter().map(Seen::bytes).sum();
        self.reading.replay.bytes() + seen
    }
}

/// The logs that a server follows.
pub(crate) struct Logs {
    /// By the application's name, the one that was read last at the end.
    all: Mutex<Vec<(String, Instant, Followed)>>,
    most: usize,
}

impl Logs {
    /// None yet. All together have so many bytes at most, and one a quarter of that: it is copied.
    pub(crate) const fn new(most: usize) -> Self {
        Self {
            all: Mutex::new(Vec::new()),
            most,
        }
    }

    /// Bytes of one log at most.
    pub(crate) const fn most(&self) -> usize {
        self.most / 4
    }

    /// What was read of an application's log. The caller gives back what it has read then.
    pub(crate) fn take(&self, name: &str) -> Option<Followed> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all.iter().position(|(known, ..)| known == name)?;
        Some(all.remove(at).2)
    }

    /// The applications whose logs are followed.
    #[cfg(test)]
    pub(crate) fn names(&self) -> Vec<String> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(name, ..)| name.clone()).collect()
    }

    /// Keeps what was read of an application's log. Those that were not read for longest go.
    pub(crate) fn put(&self, name: &str, followed: Followed) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(known, read, _)| known != name && read.elapsed() < TIME);
        all.push((name.to_owned(), Instant::now(), followed));
        let bytes = |all: &[(String, Instant, Followed)]| -> usize {
            all.iter().map(|(.., followed)| followed.bytes()).sum()
        };
        while all.len() > LOGS || bytes(&all) > self.most {
            all.remove(0);
        }
    }
}

#[cfg(test)]
mod tests;
