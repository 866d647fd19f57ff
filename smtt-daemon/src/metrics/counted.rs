//! Counters as scrapers see them: a new one is 0 for a while, so that rates see all of its counts.
//!
//! Prometheus takes the first value of a series for its past: a series that begins with its final value has no
//! increase. So a counter shows 0 from its first count on for the longest time between two scrapes; each scraper sees
//! that 0, however many there are and whichever of them share an answer. Then it shows its value.

use std::collections::HashMap;

use smtt_common::counter::FaultCounters;
use smtt_common::page_walk::{WALK_CHANNELS, WalkCounters};
use smtt_model::state::{NodeReads, Rdd};

/// What is counted of an RDD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Count {
    /// Page faults of loads.
    Reads,
    /// Page faults of stores.
    Writes,
    /// Page faults of an unknown access.
    Unknown,
    /// Page faults that needed I/O.
    Major,
    /// Blocks stored.
    Stored,
    /// Blocks stored again.
    StoredAgain,
    /// Blocks evicted.
    Evicted,
    /// Reads of blocks.
    BlockReads,
    /// Bytes read on the node of the CPU.
    Local,
    /// Bytes read on another node.
    Remote,
    /// Page faults whose time was measured.
    Timed,
    /// Their time in nanoseconds.
    TimedNs,
}

/// Number of [`Count`]s.
pub(super) const COUNTS: usize = 12;

/// Counts of an RDD, or of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    values: [u64; COUNTS],
    /// Sampled page walks. Absent without samples: most machines have none.
    pub(super) walks: Option<Box<WalkCounters>>,
}

impl Counts {
    /// The counts of a row.
    pub(super) fn of(rdd: &Rdd) -> Self {
        let FaultCounters {
            read,
            write,
            unknown,
            major,
            timed,
            timed_ns,
            ..
        } = rdd.faults;
        let uses = &rdd.block_history;
        let walks = &rdd.walks.life;
        Self {
            values: [
                read,
                write,
                unknown,
                major,
                uses.stored,
                uses.stored_again,
                uses.evicted,
                uses.reads,
                0,
                0,
                timed,
                timed_ns,
            ],
            walks: (!walks.is_empty()).then(|| Box::new(*walks)),
        }
    }

    /// One of them.
    pub(super) const fn get(&self, count: Count) -> u64 {
        self.values[count as usize]
    }

    /// All of them, in the order of [`Count`].
    pub(super) const fn all(&self) -> [u64; COUNTS] {
        self.values
    }

    /// Page faults: loads, stores and unknown accesses.
    pub(super) fn faults(&self) -> u64 {
        [Count::Reads, Count::Writes, Count::Unknown]
            .into_iter()
            .fold(0, |sum, count| u64::saturating_add(sum, self.get(count)))
    }

    /// Adds bytes read, by node.
    pub(super) fn add_reads(&mut self, reads: &NodeReads) {
        for (count, more) in [
            (Count::Local, reads.local_bytes),
            (Count::Remote, reads.remote_bytes),
        ] {
            let sum = &mut self.values[count as usize];
            *sum = sum.saturating_add(more);
        }
    }

    pub(super) fn add(&mut self, more: &Self) {
        for (sum, more) in self.values.iter_mut().zip(more.values) {
            *sum = sum.saturating_add(more);
        }
        if let Some(more) = &more.walks {
            self.walks.get_or_insert_default().add(more);
        }
    }

    /// `self - before`, of each count; never less than 0.
    pub(super) fn less(&self, before: &Self) -> Self {
        let mut values = self.values;
        for (value, before) in values.iter_mut().zip(before.values) {
            *value = value.saturating_sub(before);
        }
        let walks = self.walks.as_ref().map(|now| {
            let mut left = now.clone();
            if let Some(before) = &before.walks {
                for channel in 0..WALK_CHANNELS {
                    left.events[channel] =
                        left.events[channel].saturating_sub(before.events[channel]);
                    left.samples[channel] =
                        left.samples[channel].saturating_sub(before.samples[channel]);
                }
            }
            left
        });
        Self {
            values,
            walks: walks.filter(|walks| !walks.is_empty()),
        }
    }

    /// Growth of a row since `before`. A row with less than before was folded and made anew: all of it is growth.
    pub(super) fn growth(&self, before: Option<&Self>) -> Self {
        match before {
            Some(before) if self.at_least(before) => self.less(before),
            _ => self.clone(),
        }
    }

    fn at_least(&self, before: &Self) -> bool {
        self.values
            .iter()
            .zip(before.values)
            .all(|(now, before)| *now >= before)
    }

    pub(super) fn is_nothing(&self) -> bool {
        self.values.iter().all(|value| *value == 0) && self.walks.is_none()
    }
}

/// A counter, and the time of its first count in nanoseconds since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counter {
    value: u64,
    born_ns: u64,
}

impl Counter {
    /// Raises the counter; a smaller value is ignored.
    pub(super) fn raise(&mut self, value: u64, now_ns: u64) {
        if self.value == 0 && value > 0 {
            self.born_ns = now_ns;
        }
        self.value = self.value.max(value);
    }

    /// Adds to the counter.
    pub(super) fn add(&mut self, more: u64, now_ns: u64) {
        self.raise(self.value.saturating_add(more), now_ns);
    }

    /// The value for scrapers; `None` before the first count.
    pub(super) fn shown(&self, hold: Hold) -> Option<u64> {
        (self.value > 0).then(|| hold.of(self.value, self.born_ns))
    }

    /// The value itself.
    pub(super) const fn value(&self) -> u64 {
        self.value
    }
}

/// How long new counters show 0, at the time of an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    /// Now, in nanoseconds since boot.
    pub(super) now_ns: u64,
    /// How long, in nanoseconds; 0 for readers that do not compute rates.
    pub(super) for_ns: u64,
}

impl Hold {
    fn of(self, value: u64, born_ns: u64) -> u64 {
        let over = self.now_ns.saturating_sub(born_ns) >= self.for_ns;
        if over { value } else { 0 }
    }
}

/// How long a difference must last to be a loss, in nanoseconds.
const SETTLE_NS: u64 = 60_000_000_000;

/// A loss that is known as a difference, which also has what is on its way: the smallest difference of a time, and never less
/// than before.
#[derive(Debug, Default)]
pub(super) struct Settled {
    lost: u64,
    least: u64,
    since_ns: Option<u64>,
}

impl Settled {
    /// Sees the difference at a time.
    pub(super) fn see(&mut self, difference: u64, now_ns: u64) {
        if let Some(since_ns) = self.since_ns {
            self.least = self.least.min(difference);
            if now_ns.saturating_sub(since_ns) < SETTLE_NS {
                return;
            }
            self.lost = self.lost.max(self.least);
        }
        (self.least, self.since_ns) = (difference, Some(now_ns));
    }

    /// What is lost.
    pub(super) const fn lost(&self) -> u64 {
        self.lost
    }
}

/// Times of the first counts of counters that others keep: by executor (0 for the daemon), metric and further labels.
#[derive(Debug, Default)]
pub(super) struct Births(HashMap<(u64, &'static str, String), u64>);

impl Births {
    /// Notes the time of a counter's first count, if this value is its first above 0.
    pub(super) fn note_first_count(
        &mut self,
        executor: u64,
        metric: &'static str,
        code: &str,
        value: u64,
        now_ns: u64,
    ) {
        if value > 0 {
            self.0
                .entry((executor, metric, code.to_owned()))
                .or_insert(now_ns);
        }
    }

    /// The value for scrapers.
    pub(super) fn shown(
        &self,
        (executor, metric, code): (u64, &'static str, &str),
        value: u64,
        hold: Hold,
    ) -> u64 {
        let born = self.0.get(&(executor, metric, code.to_owned()));
        hold.of(value, *born.unwrap_or(&hold.now_ns))
    }

    /// Forgets executors that have ended.
    pub(super) fn retain(&mut self, there: impl Fn(u64) -> bool) {
        self.0
            .retain(|(executor, ..), _| *executor == 0 || there(*executor));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_absent_then_zero_then_itself() {
        let mut counter = Counter::default();
        let shown = |counter: &Counter, now_ns| counter.shown(Hold { now_ns, for_ns: 10 });
        counter.add(0, 5);
        assert_eq!(shown(&counter, 5), None);
        counter.add(7, 6);
        assert_eq!(shown(&counter, 6), Some(0));
        counter.add(1, 15);
        assert_eq!(shown(&counter, 15), Some(0), "from the first count on");
        assert_eq!(shown(&counter, 16), Some(8));
        counter.raise(3, 17);
        assert_eq!(shown(&counter, 17), Some(8), "never back");
    }

    #[test]
    fn what_is_on_its_way_is_no_loss_and_a_loss_does_not_go_back() {
        const SECOND: u64 = 1_000_000_000;
        let mut settled = Settled::default();
        let mut see = |seconds: u64, difference| {
            settled.see(difference, seconds * SECOND);
            settled.lost()
        };
        for second in 0..200 {
            assert_eq!(see(second, [3, 0, 7][second as usize % 3]), 0);
        }
        for second in 200..300 {
            see(second, 5 + second % 2);
        }
        assert_eq!(see(300, 5), 5);
        assert_eq!(see(400, 0), 5);
        assert_eq!(see(500, 0), 5, "never back");
    }

    #[test]
    fn growth_of_a_row_that_was_made_anew_is_all_of_it() {
        let counts = |reads| Counts {
            values: [reads, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            walks: None,
        };
        assert_eq!(counts(9).growth(Some(&counts(4))), counts(5));
        assert_eq!(counts(2).growth(Some(&counts(4))), counts(2));
        assert_eq!(counts(2).growth(None), counts(2));
        assert!(counts(4).growth(Some(&counts(4))).is_nothing());
    }
}
