//! Sums of page faults, and which of them this machine measures.

use serde::{Deserialize, Serialize};
use smtt_common::counter::{ExecutorCounters, FaultCounters};

/// Adds `more` to `sum`. Saturates, because an overflow by an executor's numbers must not stop the daemon.
pub(crate) fn add(sum: &mut FaultCounters, more: &FaultCounters) {
    sum.read = sum.read.saturating_add(more.read);
    sum.write = sum.write.saturating_add(more.write);
    sum.unknown = sum.unknown.saturating_add(more.unknown);
    sum.major = sum.major.saturating_add(more.major);
}

/// All faults in a sum. `major` is included in the others.
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
        (&mut sum.records_seen, more.records_seen),
        (&mut sum.records_ring_full, more.records_ring_full),
        (&mut sum.records_rate_limited, more.records_rate_limited),
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

/// What the kernel side measures on this machine. Figures that it does not measure are absent from every output, never
/// zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// Whether page faults are counted.
    pub page_faults: bool,
    /// Whether reads and writes are distinguished.
    pub access: bool,
    /// Whether major faults are counted.
    pub major: bool,
}

/// Page faults as shown in rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultFigures {
    /// All page faults; absent where page faults are not counted on this machine.
    pub page_faults: Option<u64>,
    /// Faults of loads and instruction fetches; absent where reads and writes are not distinguished.
    pub page_faults_read: Option<u64>,
    /// Faults of stores; absent where reads and writes are not distinguished.
    pub page_faults_write: Option<u64>,
    /// Faults that needed I/O, included in `page_faults`; absent where major faults are not counted.
    pub page_faults_major: Option<u64>,
    /// Faults whose hook does not distinguish reads from writes; absent where there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_faults_unknown_access: Option<u64>,
}

impl FaultFigures {
    /// The figures of a sum, given what is measured.
    #[must_use]
    pub fn new(faults: &FaultCounters, measured: Measured) -> Self {
        // Faults counted before a hook was lost stay visible.
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
