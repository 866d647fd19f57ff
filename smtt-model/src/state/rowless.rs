//! Totals of executors that have no row in the state: those that found no room, and those that were forgotten.
//!
//! The kernel side counts an executor until its own rows are removed, which is later than the state forgets it. The sums
//! over all executors must have those last counts too: the records that they stand for arrive.

use std::collections::BTreeMap;

use smtt_common::counter::{ExecutorCounters, FaultCounters};

use super::faults;

/// Maximum number of executors whose totals are kept one by one.
const ROWLESS_MAX: usize = 1024;

/// The totals.
#[derive(Debug, Default)]
pub(super) struct Rowless {
    /// Last totals of executors that the kernel side still counts.
    counted: BTreeMap<u64, ExecutorCounters>,
    /// Sum of the others.
    closed: ExecutorCounters,
}

impl Rowless {
    pub(super) fn contains(&self, key: u64) -> bool {
        self.counted.contains_key(&key)
    }

    /// Sets an executor's totals.
    pub(super) fn set(&mut self, key: u64, totals: ExecutorCounters) {
        if self.counted.len() >= ROWLESS_MAX
            && !self.counted.contains_key(&key)
            && let Some((_, old)) = self.counted.pop_first()
        {
            faults::add_executor(&mut self.closed, &old);
        }
        self.counted.insert(key, totals);
    }

    /// Sets the totals of an executor that was forgotten; no effect once they are final.
    pub(super) fn update(&mut self, key: u64, totals: &ExecutorCounters) {
        if let Some(known) = self.counted.get_mut(&key) {
            *known = at_least(totals, known);
        }
    }

    /// The kernel side has removed its rows of an executor; these were the last totals.
    pub(super) fn close(&mut self, key: u64, last: &ExecutorCounters) {
        let known = self.counted.remove(&key).unwrap_or_default();
        faults::add_executor(&mut self.closed, &at_least(last, &known));
    }

    /// Takes the totals of an executor that gets a row.
    pub(super) fn take(&mut self, key: u64) -> ExecutorCounters {
        self.counted.remove(&key).unwrap_or_default()
    }

    /// Sum over all of them.
    pub(super) fn sum(&self) -> ExecutorCounters {
        let mut sum = self.closed;
        for totals in self.counted.values() {
            faults::add_executor(&mut sum, totals);
        }
        sum
    }
}

/// The totals, where none is below the `known` one: sums must not fall.
fn at_least(totals: &ExecutorCounters, known: &ExecutorCounters) -> ExecutorCounters {
    let faults = |one: &FaultCounters, other: &FaultCounters| FaultCounters {
        read: one.read.max(other.read),
        write: one.write.max(other.write),
        unknown: one.unknown.max(other.unknown),
        major: one.major.max(other.major),
        timed: one.timed.max(other.timed),
        timed_ns: one.timed_ns.max(other.timed_ns),
        timed_squares: one.timed_squares.max(other.timed_squares),
    };
    ExecutorCounters {
        attributed: faults(&totals.attributed, &known.attributed),
        unattributed: std::array::from_fn(|class| {
            faults(&totals.unattributed[class], &known.unattributed[class])
        }),
        facts_seen: totals.facts_seen.max(known.facts_seen),
        facts_unknown: totals.facts_unknown.max(known.facts_unknown),
        facts_rate_limited: totals.facts_rate_limited.max(known.facts_rate_limited),
        facts_too_long: totals.facts_too_long.max(known.facts_too_long),
        facts_unreadable: totals.facts_unreadable.max(known.facts_unreadable),
        facts_ring_full: totals.facts_ring_full.max(known.facts_ring_full),
        threads_refused: totals.threads_refused.max(known.threads_refused),
        samples_seen: totals.samples_seen.max(known.samples_seen),
        samples_ring_full: totals.samples_ring_full.max(known.samples_ring_full),
        samples_rate_limited: totals.samples_rate_limited.max(known.samples_rate_limited),
        records_seen: totals.records_seen.max(known.records_seen),
        records_ring_full: totals.records_ring_full.max(known.records_ring_full),
        records_rate_limited: totals.records_rate_limited.max(known.records_rate_limited),
    }
}
