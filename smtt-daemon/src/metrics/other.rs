//! The row `rdd_id="other"`: RDDs without series of their own, as counters that never decrease.
//!
//! Which RDDs have their own series changes from scrape to scrape. If "other" were the sum of the rest, it would
//! fall whenever an RDD leaves it, and Prometheus would take that for a restart and count everything again. So
//! "other" accumulates growth: the growth of all of an executor's faults since the last scrape, minus the growth in
//! the series of their own.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use smtt_common::counter::FaultCounters;
use smtt_model::attribute::RddKey;

/// The values of one executor at the last scrape.
#[derive(Debug, Default)]
struct Shown {
    total: FaultCounters,
    rdds: HashMap<RddKey, FaultCounters>,
    dropped: HashSet<RddKey>,
    other: FaultCounters,
    /// First names of RDDs that have had series of their own.
    names: HashMap<RddKey, String>,
}

/// The values of all executors at the last scrape, and the RDDs that have ever been in "other".
#[derive(Debug, Default)]
pub(super) struct Others {
    executors: BTreeMap<u64, Shown>,
    /// RDDs that have shared the row since the start.
    pub(super) dropped: u64,
}

/// `now - before`, of each part.
fn growth(now: &FaultCounters, before: &FaultCounters) -> FaultCounters {
    FaultCounters {
        read: now.read.saturating_sub(before.read),
        write: now.write.saturating_sub(before.write),
        unknown: now.unknown.saturating_sub(before.unknown),
        major: now.major.saturating_sub(before.major),
    }
}

fn at_least(now: &FaultCounters, before: &FaultCounters) -> bool {
    now.read >= before.read
        && now.write >= before.write
        && now.unknown >= before.unknown
        && now.major >= before.major
}

impl Others {
    /// Forgets executors that are not there any more.
    pub(super) fn keep(&mut self, executors: &BTreeSet<u64>) {
        self.executors.retain(|key, _| executors.contains(key));
    }

    /// Replaces the name of an RDD by its first one: a name that changes would begin new series at each scrape.
    pub(super) fn name(&mut self, executor: u64, rdd: RddKey, name: &mut String) {
        let names = &mut self.executors.entry(executor).or_default().names;
        match names.get(&rdd) {
            Some(first) => name.clone_from(first),
            None => drop(names.insert(rdd, name.clone())),
        }
    }

    /// Updates one executor from all its faults, the faults of each RDD, and the RDDs that have their own series.
    /// Returns the counters of its "other" row.
    pub(super) fn update(
        &mut self,
        executor: u64,
        total: FaultCounters,
        rdds: &[(RddKey, FaultCounters)],
        named: &HashSet<RddKey>,
    ) -> FaultCounters {
        let shown = self.executors.entry(executor).or_default();
        let mut rest = growth(&total, &shown.total);
        for (rdd, faults) in rdds {
            if named.contains(rdd) {
                // A row that has shrunk was folded and created again.
                let before = shown
                    .rdds
                    .get(rdd)
                    .filter(|before| at_least(faults, before))
                    .copied()
                    .unwrap_or_default();
                rest = growth(&rest, &growth(faults, &before));
            } else if shown.dropped.insert(*rdd) {
                self.dropped += 1;
            }
        }
        shown.total = total;
        shown.rdds = rdds.iter().copied().collect();
        let known = &shown.rdds;
        shown.dropped.retain(|rdd| known.contains_key(rdd));
        shown.names.retain(|rdd, _| known.contains_key(rdd));
        for (sum, more) in [
            (&mut shown.other.read, rest.read),
            (&mut shown.other.write, rest.write),
            (&mut shown.other.unknown, rest.unknown),
            (&mut shown.other.major, rest.major),
        ] {
            *sum = sum.saturating_add(more);
        }
        shown.other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(read: u64) -> FaultCounters {
        FaultCounters {
            read,
            ..FaultCounters::default()
        }
    }

    const A: RddKey = RddKey::Id(1);
    const B: RddKey = RddKey::Id(2);

    #[test]
    fn other_never_goes_back_and_growth_counts_once() {
        let mut others = Others::default();
        let named = |rdd| HashSet::from([rdd]);
        assert_eq!(
            others
                .update(1, reads(15), &[(A, reads(10)), (B, reads(5))], &named(A))
                .read,
            5
        );
        // B overtakes A: A's series ends at 10, what it does next is in "other".
        assert_eq!(
            others
                .update(1, reads(40), &[(A, reads(12)), (B, reads(28))], &named(B))
                .read,
            7
        );
        // Back again.
        assert_eq!(
            others
                .update(1, reads(50), &[(A, reads(20)), (B, reads(30))], &named(A))
                .read,
            9
        );
        assert_eq!(others.dropped, 2);
    }

    #[test]
    fn folding_a_row_moves_nothing_that_was_shown() {
        let mut others = Others::default();
        let named = HashSet::from([A]);
        assert_eq!(
            others.update(1, reads(10), &[(A, reads(10))], &named).read,
            0
        );
        // A was folded into the overflow row after 3 more, and started again with 2.
        let rows = [(A, reads(2)), (RddKey::Overflow, reads(13))];
        assert_eq!(others.update(1, reads(15), &rows, &named).read, 3);
    }
}
