//! Seconds that the remedy of a finding would save, and what they rest on.

use serde::{Deserialize, Serialize};

use super::{Rdd, View};
use crate::sort::small;
use crate::state::FaultFigures;
use crate::units;

/// Nanoseconds of a page fault where none was measured: fewest, usual, most. By processor and kernel; they include
/// clearing the page.
const ASSUMED_FAULT_NS: [f64; 3] = [500.0, 1_000.0, 2_500.0];
/// Page faults of which one may be a major one. With more the mean has waits for disks, which no remedy of other faults
/// saves.
const MAJOR_ONE_OF: u64 = 1_000;
/// Nanoseconds in which a kernel clears 4 KiB of memory, which huge pages do not save: 40 and 20 GB/s.
const CLEARED_NS: [f64; 2] = [102.0, 205.0];
/// Share of the page faults that remain with huge pages: one for 512.
const REMAINING: f64 = 1.0 / 512.0;

/// Seconds that a remedy is expected to save, with their interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Saving {
    /// Lower end of the interval.
    pub low: f64,
    /// The expected saving.
    pub expected: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Saving {
    /// From three figures in any order; a remedy that would cost time saves nothing.
    #[must_use]
    pub fn new(low: f64, expected: f64, high: f64) -> Self {
        let mut all = [low, expected, high].map(|seconds| seconds.max(0.0));
        small::sort_by(&mut all, f64::total_cmp);
        let [low, expected, high] = all;
        Self {
            low,
            expected,
            high,
        }
    }

    /// Bounds the saving by the time that there is, in seconds.
    pub const fn bound(&mut self, most: f64) {
        self.low = self.low.min(most);
        self.expected = self.expected.min(most);
        self.high = self.high.min(most);
    }

    /// Adds the saving of other tasks.
    pub fn add(&mut self, other: &Self) {
        self.low += other.low;
        self.expected += other.expected;
        self.high += other.high;
    }

    /// The saving in words.
    #[must_use]
    pub fn words(&self) -> String {
        if self.high < 1.0 {
            let [expected, low, high] =
                [self.expected, self.low, self.high].map(|it| units::duration((it * 1e9) as u64));
            return format!("{expected} (between {low} and {high})");
        }
        format!(
            "{:.1} s (between {:.1} s and {:.1} s)",
            self.expected, self.low, self.high
        )
    }

    /// Between nothing and all of a time in nanoseconds.
    pub(super) fn up_to(ns: u64) -> Self {
        let all = ns as f64 / 1e9;
        Self::new(0.0, all / 2.0, all)
    }

    /// The saving that many times.
    pub(super) fn times(self, factor: f64) -> Self {
        Self::new(
            self.low * factor,
            self.expected * factor,
            self.high * factor,
        )
    }
}

/// Time of one page fault in nanoseconds: lower end, mean and upper end of its interval, which takes measured faults for independent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FaultTime {
    ns: [f64; 3],
    /// Whether it was measured for these executors; otherwise it is what faults take on usual machines.
    pub is_measured: bool,
}

impl FaultTime {
    /// The mean over these figures, where it was measured and has no waits for disks.
    pub fn of<'a>(all: impl Iterator<Item = &'a FaultFigures>) -> Self {
        let mut sum = FaultFigures::default();
        for figures in all {
            sum.add(figures);
        }
        let measured = (|| {
            let faults = sum.page_faults.filter(|faults| *faults > 0)?;
            if sum.page_faults_major.unwrap_or(0) > faults / MAJOR_ONE_OF {
                return None;
            }
            let faults = faults as f64;
            let error = sum.page_fault_time_error_ns? as f64 / faults;
            let mean = sum.page_fault_time_ns? as f64 / faults;
            Some([(mean - error).max(0.0), mean, mean + error])
        })();
        Self {
            ns: measured.unwrap_or(ASSUMED_FAULT_NS),
            is_measured: measured.is_some(),
        }
    }

    /// Nanoseconds of so many faults, by the mean.
    pub fn all(&self, faults: u64) -> u64 {
        (self.ns[1] * faults as f64) as u64
    }

    /// What so many faults cost.
    pub fn seconds(&self, faults: u64) -> Saving {
        let [low, mean, high] = self.ns.map(|ns| ns * faults as f64 / 1e9);
        Saving::new(low, mean, high)
    }

    /// What huge pages save of so many faults on small pages: memory is cleared all the same. Nothing is the lower end:
    /// where the kernel has to make room for a huge page, or a virtual machine's host gives memory only as it is touched,
    /// a huge page costs as much as the small ones, or more.
    pub fn saved_by_huge_pages(&self, faults: u64) -> Saving {
        let [fewest, usual] = CLEARED_NS;
        let [_, mean, high] = self.ns;
        Saving::new(0.0, mean - usual, high - fewest).times((1.0 - REMAINING) * faults as f64 / 1e9)
    }

    /// The time in words.
    pub fn words(&self) -> String {
        let how = if self.is_measured {
            "measured"
        } else {
            "assumed"
        };
        format!("{:.0} ns each ({how})", self.ns[1])
    }
}

impl View {
    /// Time of one page fault of these executors.
    pub(super) fn fault_time(&self) -> FaultTime {
        FaultTime::of(self.faults.iter())
    }
}

/// Time of one page fault of an RDD; of all executors' where too few of its own were measured.
pub(super) fn fault_time_of(rdd: &Rdd<'_>, view: &View) -> FaultTime {
    let own = FaultTime::of(rdd.rows.iter().map(|row| &row.faults));
    if own.is_measured {
        own
    } else {
        view.fault_time()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(left: f64, right: f64) -> bool {
        (left - right).abs() < 1e-9
    }

    #[test]
    fn seconds_are_in_order_and_never_negative() {
        let mut saving = Saving::new(2.0, -1.0, 1.0);
        assert_eq!((saving.low, saving.expected, saving.high), (0.0, 1.0, 2.0));
        let up_to = Saving::up_to(3_000_000_000);
        assert_eq!((up_to.low, up_to.expected, up_to.high), (0.0, 1.5, 3.0));
        saving.add(&up_to);
        assert_eq!(saving.words(), "2.5 s (between 0.0 s and 5.0 s)");
        saving.bound(3.0);
        assert_eq!(saving.words(), "2.5 s (between 0.0 s and 3.0 s)");
    }

    #[test]
    fn a_measured_fault_replaces_the_assumed_one() {
        let assumed = FaultTime::of([].into_iter());
        assert!(!assumed.is_measured);
        assert!(close(assumed.seconds(1_000_000).expected, 1.0));
        let figures = FaultFigures {
            page_faults: Some(1_000),
            page_faults_timed: Some(100),
            page_fault_time_ns: Some(2_000_000),
            page_fault_time_error_ns: Some(100_000),
            page_faults_major: Some(1),
            ..FaultFigures::default()
        };
        let waits = FaultFigures {
            page_faults_major: Some(2),
            ..figures
        };
        assert!(!FaultTime::of([&waits].into_iter()).is_measured);
        let measured = FaultTime::of([&figures].into_iter());
        assert!(measured.is_measured);
        let seconds = measured.seconds(1_000_000);
        for (is, want) in [
            (seconds.low, 1.9),
            (seconds.expected, 2.0),
            (seconds.high, 2.1),
        ] {
            assert!((is - want).abs() < 0.001, "{seconds:?}");
        }
    }

    #[test]
    fn huge_pages_do_not_save_the_clearing() {
        let assumed = FaultTime::of([].into_iter());
        let saved = assumed.saved_by_huge_pages(512_000);
        let faults = 511_000.0 / 1e9;
        assert!(close(saved.low, 0.0), "{saved:?}");
        assert!(close(saved.expected, 795.0 * faults), "{saved:?}");
        assert!(close(saved.high, 2_398.0 * faults), "{saved:?}");
    }
}
