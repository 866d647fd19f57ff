//! Pauses of an executor's collector: when the JVM stood still. Its tasks share them.

use std::cmp::Reverse;
use std::collections::VecDeque;

use super::Outcome;
use super::bytes::Caps;
use super::task::Tasks;
use crate::decode::Paused;
use crate::sort::small::sort_by_key;

/// Pauses that an executor keeps, the last ones.
pub const PAUSES_PER_EXECUTOR: usize = 4_096;
/// Pauses that a task lists, the longest ones.
pub const PAUSES_PER_TASK: usize = 64;

/// A pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Begin, in nanoseconds since boot.
    pub begin_ns: u64,
    /// End, in nanoseconds since boot.
    pub end_ns: u64,
}

/// Pauses of an executor, in the order of their numbers and of time.
#[derive(Debug, Default)]
pub struct Pauses {
    kept: VecDeque<Pause>,
    /// Number of the next one.
    next: u64,
    /// From then on every pause is kept; `None` where the executor reports none.
    since_ns: Option<u64>,
    /// Up to then every pause has been reported.
    until_ns: u64,
}

/// Pauses within a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Within {
    /// The longest [`PAUSES_PER_TASK`] as begin and end within the time, in order.
    pub longest: Vec<(u64, u64)>,
    /// All of them.
    pub pauses: u64,
    /// Time of all of them, in nanoseconds.
    pub paused_ns: u64,
}

impl Pauses {
    /// Takes a report that was made at `now_ns`.
    fn report(&mut self, paused: &Paused, now_ns: u64, caps: &Caps) -> Outcome {
        let end_ns = now_ns.saturating_sub(paused.age_ns);
        let Some(duration_ns) = paused.duration_ns else {
            self.mark(paused.number, end_ns);
            return Outcome::Applied;
        };
        if self.since_ns.is_some() && paused.number < self.next {
            // Reported again.
            return Outcome::Applied;
        }
        let begin_ns = end_ns.saturating_sub(duration_ns);
        if self.since_ns.is_none() || paused.number > self.next {
            // Reports before it are lost.
            self.since_ns = Some(begin_ns);
        }
        self.next = paused.number.saturating_add(1);
        let (len, capacity) = (self.kept.len(), self.kept.capacity());
        if len >= PAUSES_PER_EXECUTOR {
            self.forget_oldest();
        } else if len == capacity && !caps.admit(len.max(4) * size_of::<Pause>()) {
            self.forget_oldest();
            if capacity == 0 {
                self.since_ns = Some(end_ns);
                return Outcome::OverCap("bytes");
            }
        }
        // An executor's clock may say anything; pauses do not overlap.
        let last = self.kept.back().map_or(0, |last| last.end_ns);
        let begin_ns = begin_ns.max(last);
        let end_ns = end_ns.max(begin_ns);
        self.kept.push_back(Pause { begin_ns, end_ns });
        self.until_ns = self.until_ns.max(end_ns);
        Outcome::Applied
    }

    /// The pauses before a number have been reported up to that time, and each one from there on will be.
    fn mark(&mut self, number: u64, at_ns: u64) {
        match self.since_ns {
            Some(since_ns) if number == self.next => {
                self.since_ns = Some(since_ns.min(at_ns));
                self.until_ns = self.until_ns.max(at_ns);
            }
            // What the executor keeps is reported again, and reaches no further back than what is known.
            Some(since_ns) if number < self.next && at_ns >= since_ns => {}
            since_ns => {
                // Some are missing before it; or those from there on are reported again.
                if since_ns.is_none() || number < self.next {
                    self.kept.clear();
                }
                self.next = number;
                self.since_ns = Some(at_ns);
                self.until_ns = at_ns;
            }
        }
    }

    fn forget_oldest(&mut self) {
        if let Some(oldest) = self.kept.pop_front() {
            self.since_ns = self.since_ns.max(Some(oldest.end_ns));
        }
    }

    /// Pauses within a time, of a task that runs up to the last report; `None` where not all of them are known.
    #[must_use]
    pub fn within(&self, from_ns: u64, to_ns: u64, runs: bool) -> Option<Within> {
        let to_ns = to_ns.max(from_ns);
        let known_ns = if runs { from_ns } else { to_ns };
        if self.since_ns? > from_ns || self.until_ns < known_ns {
            return None;
        }
        let to_ns = to_ns.min(self.until_ns);
        let first = self.kept.partition_point(|pause| pause.end_ns <= from_ns);
        let end = self.kept.partition_point(|pause| pause.begin_ns < to_ns);
        let pauses = self.kept.range(first..end.max(first));
        let clipped = pauses.map(|pause| (pause.begin_ns.max(from_ns), pause.end_ns.min(to_ns)));
        let mut longest: Vec<(u64, u64)> = clipped.collect();
        let length = |(begin, end): &(u64, u64)| end.saturating_sub(*begin);
        let mut within = Within {
            pauses: longest.len() as u64,
            paused_ns: longest.iter().map(length).fold(0, u64::saturating_add),
            ..Within::default()
        };
        if longest.len() > PAUSES_PER_TASK {
            // The time of a selection does not depend on their order, which an executor chooses.
            longest.select_nth_unstable_by_key(PAUSES_PER_TASK, |pause| {
                Reverse((length(pause), pause.0))
            });
            longest.truncate(PAUSES_PER_TASK);
        }
        sort_by_key(&mut longest, |pause| *pause);
        within.longest = longest;
        Some(within)
    }

    pub(super) fn bytes(&self) -> usize {
        self.kept.capacity() * size_of::<Pause>()
    }
}

impl Tasks {
    /// Pauses of the executor's collector.
    #[must_use]
    pub const fn pauses(&self) -> &Pauses {
        &self.pauses
    }

    /// The executor reported a pause.
    pub(super) fn paused(&mut self, paused: &Paused, now_ns: u64, caps: &Caps) -> Outcome {
        self.pauses.report(paused, now_ns, caps)
    }
}
