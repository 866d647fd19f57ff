//! Page faults added up, and what of them was measured at all.

use serde::{Deserialize, Serialize};
use smtt_common::counter::{ExecutorCounters, FaultCounters};

/// Adds `more` to `sum`; saturates, because an executor's numbers must not stop the daemon.
pub(crate) fn add(sum: &mut FaultCounters, more: &FaultCounters) {
    sum.read = sum.read.saturating_add(more.read);
    sum.write = sum.write.saturating_add(more.write);
    sum.unknown = sum.unknown.saturating_add(more.unknown);
    sum.major = sum.major.saturating_add(more.major);
}

/// All faults in a sum; `major` is a part of them.
#[must_use]
pub const fn total(faults: &FaultCounters) -> u64 {
    faults
        .read
        .saturating_add(faults.write)
        .saturating_add(faults.unknown)
}

/// Adds one executor's counters to a sum over executors.
pub(super) fn add_executor(sum: &mut ExecutorCounters, more: &ExecutorCounters) {
    add(&mut sum.attributed, &more.attributed);
    for (sum, more) in sum.unattributed.iter_mut().zip(&more.unattributed) {
        add(sum, more);
    }
    for (sum, more) in [
        (&mut sum.facts_seen, more.facts_seen),
        (&mut sum.facts_rate_limited, more.facts_rate_limited),
        (&mut sum.facts_too_long, more.facts_too_long),
        (&mut sum.facts_unreadable, more.facts_unreadable),
        (&mut sum.facts_ring_full, more.facts_ring_full),
        (&mut sum.threads_refused, more.threads_refused),
        (&mut sum.samples_seen, more.samples_seen),
        (&mut sum.samples_ring_full, more.samples_ring_full),
        (&mut sum.samples_rate_limited, more.samples_rate_limited),
    ] {
        *sum = sum.saturating_add(more);
    }
}

/// All faults of an executor that have no context.
#[must_use]
pub fn unattributed(counters: &ExecutorCounters) -> FaultCounters {
    let mut sum = FaultCounters::default();
    for class in &counters.unattributed {
        add(&mut sum, class);
    }
    sum
}

/// What the kernel side can tell on this machine. What it cannot is absent in every output, never zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// Page faults are counted.
    pub page_faults: bool,
    /// Reads and writes are told apart.
    pub access: bool,
    /// Major faults are counted.
    pub major: bool,
}

/// Page faults as they are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultFigures {
    /// All page faults; absent where none are counted on this machine.
    pub page_faults: Option<u64>,
    /// Faults of loads and instruction fetches; absent where reads and writes are not told apart.
    pub page_faults_read: Option<u64>,
    /// Faults of stores; absent like the reads.
    pub page_faults_write: Option<u64>,
    /// Faults that needed I/O (a part of all); absent where they are not counted.
    pub page_faults_major: Option<u64>,
    /// Faults whose hook could not tell a read from a write; absent when there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_faults_unknown_access: Option<u64>,
}

impl FaultFigures {
    /// A sum as it is shown under `measured`.
    #[must_use]
    pub fn new(faults: &FaultCounters, measured: Measured) -> Self {
        // Numbers that were counted before a hook went away stay shown.
        let access = measured.access || faults.read > 0 || faults.write > 0;
        let counted = measured.page_faults || total(faults) > 0;
        Self {
            page_faults: counted.then(|| total(faults)),
            page_faults_read: (counted && access).then_some(faults.read),
            page_faults_write: (counted && access).then_some(faults.write),
            page_faults_major: (measured.major || faults.major > 0).then_some(faults.major),
            page_faults_unknown_access: (faults.unknown > 0).then_some(faults.unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_absent() {
        let nothing = FaultFigures::new(&FaultCounters::default(), Measured::default());
        assert_eq!(nothing, FaultFigures::default());
        let software = FaultFigures::new(
            &FaultCounters {
                unknown: 5,
                ..FaultCounters::default()
            },
            Measured {
                page_faults: true,
                access: false,
                major: false,
            },
        );
        assert_eq!(
            (
                software.page_faults,
                software.page_faults_read,
                software.page_faults_major
            ),
            (Some(5), None, None)
        );
        assert_eq!(software.page_faults_unknown_access, Some(5));
    }

    #[test]
    fn what_was_measured_as_nothing_is_zero() {
        let figures = FaultFigures::new(
            &FaultCounters::default(),
            Measured {
                page_faults: true,
                access: true,
                major: true,
            },
        );
        assert_eq!(
            (
                figures.page_faults,
                figures.page_faults_read,
                figures.page_faults_major
            ),
            (Some(0), Some(0), Some(0))
        );
        assert_eq!(figures.page_faults_unknown_access, None);
    }
}
