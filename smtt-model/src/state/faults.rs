//! Sums of page faults, and which of them this machine measures.

use serde::{Deserialize, Serialize};
use smtt_common::counter::{ExecutorCounters, FaultCounters, TIMED_SQUARE_UNIT_NS};

/// Adds `more` to `sum`. Saturates, because an overflow by an executor's numbers must not stop the daemon.
pub(crate) fn add(sum: &mut FaultCounters, more: &FaultCounters) {
    sum.read = sum.read.saturating_add(more.read);
    sum.write = sum.write.saturating_add(more.write);
    sum.unknown = sum.unknown.saturating_add(more.unknown);
    sum.major = sum.major.saturating_add(more.major);
    sum.timed = sum.timed.saturating_add(more.timed);
    sum.timed_ns = sum.timed_ns.saturating_add(more.timed_ns);
    sum.timed_squares = sum.timed_squares.saturating_add(more.timed_squares);
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
        (&mut sum.facts_unknown, more.facts_unknown),
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
    /// Page faults whose time was measured: those of random windows of 10 ms; absent where there were none.
    #[serde(default)]
    pub page_faults_timed: Option<u64>,
    /// Time that the kernel took for all page faults with a context, in nanoseconds, waiting included: their number
    /// times the mean of the measured ones. Absent where fewer than 20 were measured.
    #[serde(default)]
    pub page_fault_time_ns: Option<u64>,
    /// Half of the interval of `page_fault_time_ns`: 1.96 standard errors of it, as if the measured faults were
    /// independent of each other. Those of one window resemble each other, so the interval is too narrow by an unknown
    /// factor: where one fault in 30 was measured, single estimates were 93 to 115 % of the truth.
    #[serde(default)]
    pub page_fault_time_error_ns: Option<u64>,
}

/// Measured faults below which their mean says too little: there is no time then.
pub const TIMED_AT_LEAST: u64 = 20;
/// Standard errors in half of an interval.
const ERRORS: f64 = 1.96;

/// The time of a number of faults, of which some were measured.
#[derive(Clone, Copy, Debug)]
struct Times {
    faults: f64,
    timed: f64,
    /// Nanoseconds.
    mean: f64,
    /// Nanoseconds squared.
    variance: f64,
}

impl Times {
    fn of(counters: &FaultCounters) -> Option<Self> {
        let timed = counters.timed as f64;
        let mean = counters.timed_ns as f64 / timed;
        let unit = TIMED_SQUARE_UNIT_NS as f64;
        let squares = counters.timed_squares as f64 * unit * unit / timed;
        // The squares are of times in whole units: their mean may be below the square of the mean.
        let variance = (squares - mean * mean).max(0.0) * timed / (timed - 1.0);
        (counters.timed >= TIMED_AT_LEAST && total(counters) > 0).then_some(Self {
            faults: total(counters) as f64,
            timed,
            mean,
            variance,
        })
    }

    /// What a row shows, backwards.
    fn shown(figures: &FaultFigures) -> Option<Self> {
        let (faults, timed) = (
            figures.page_faults? as f64,
            figures.page_faults_timed? as f64,
        );
        let error = figures.page_fault_time_error_ns? as f64 / faults / ERRORS;
        (faults > 0.0).then_some(Self {
            faults,
            timed,
            mean: figures.page_fault_time_ns? as f64 / faults,
            variance: error * error * timed,
        })
    }

    /// Nanoseconds of all faults, and half of their interval.
    fn sum(&self) -> (u64, u64) {
        let error = ERRORS * self.faults * (self.variance / self.timed).sqrt();
        ((self.faults * self.mean) as u64, error as u64)
    }
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
            ..Self::default()
        }
        .with_times(faults)
    }

    /// These figures with the time of the faults in `attributed`, which are all or a part of them.
    #[must_use]
    pub fn with_times(mut self, attributed: &FaultCounters) -> Self {
        let sum = Times::of(attributed).map(|times| times.sum());
        self.page_faults_timed = (attributed.timed > 0).then_some(attributed.timed);
        self.page_fault_time_ns = sum.map(|(time, _)| time);
        self.page_fault_time_error_ns = sum.map(|(_, error)| error);
        self
    }

    /// Adds the figures of another row. A row without a time adds its faults: they take the mean of the others.
    pub fn add(&mut self, more: &Self) {
        let times: Vec<Times> = [&*self, more]
            .into_iter()
            .filter_map(Times::shown)
            .collect();
        for (sum, more) in [
            (&mut self.page_faults, more.page_faults),
            (&mut self.page_faults_read, more.page_faults_read),
            (&mut self.page_faults_write, more.page_faults_write),
            (&mut self.page_faults_major, more.page_faults_major),
            (
                &mut self.page_faults_unknown_access,
                more.page_faults_unknown_access,
            ),
            (&mut self.page_faults_timed, more.page_faults_timed),
        ] {
            if let Some(more) = more {
                *sum = Some(sum.unwrap_or(0).saturating_add(more));
            }
        }
        let faults: f64 = times.iter().map(|times| times.faults).sum();
        if faults == 0.0 {
            return;
        }
        // Parts of a whole: the squares of their errors add up.
        let (time, square) = times.iter().fold((0.0, 0.0), |(time, square), part| {
            let error = part.faults * part.faults * part.variance / part.timed;
            (time + part.faults * part.mean, square + error)
        });
        let whole = self.page_faults.unwrap_or(0) as f64 / faults;
        self.page_fault_time_ns = Some((time * whole) as u64);
        self.page_fault_time_error_ns = Some((ERRORS * square.sqrt() * whole) as u64);
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

    /// Counters of faults that took so many nanoseconds each, all of them measured.
    fn timed(times: &[u64]) -> FaultCounters {
        let squares = times.iter().map(|ns| (ns / TIMED_SQUARE_UNIT_NS).pow(2));
        FaultCounters {
            write: times.len() as u64,
            timed: times.len() as u64,
            timed_ns: times.iter().sum(),
            timed_squares: squares.sum(),
            ..FaultCounters::default()
        }
    }

    #[test]
    fn the_time_of_all_faults_is_that_of_the_measured_ones_with_its_interval() {
        let all = Measured {
            page_faults: true,
            access: true,
            major: true,
        };
        // 100 measured of 10,000: a mean of 3,200 ns, a standard deviation of 1,600.
        let times: Vec<u64> = (0..100)
            .map(|n| if n % 2 == 0 { 1600 } else { 4800 })
            .collect();
        let mut counters = timed(&times);
        counters.write = 10_000;
        let figures = FaultFigures::new(&counters, all);
        assert_eq!(figures.page_faults_timed, Some(100));
        assert_eq!(figures.page_fault_time_ns, Some(32_000_000));
        let error = figures.page_fault_time_error_ns.unwrap_or(0) as f64;
        let expected = 1.96 * 10_000.0 * (1600.0 * 1600.0 / 99.0_f64).sqrt();
        assert!((error / expected - 1.0).abs() < 0.001, "{error} {expected}");
        let few = FaultFigures::new(&timed(&times[..19]), all);
        assert_eq!(
            (few.page_faults_timed, few.page_fault_time_ns),
            (Some(19), None)
        );
        let mut uncounted = timed(&times);
        uncounted.write = 0;
        let uncounted = FaultFigures::new(&uncounted, Measured::default());
        assert_eq!(
            (uncounted.page_faults, uncounted.page_fault_time_ns),
            (None, None)
        );
        let none = FaultFigures::new(&timed(&[]), all);
        assert_eq!(
            (none.page_faults_timed, none.page_fault_time_ns),
            (None, None)
        );
    }

    #[test]
    fn rows_that_are_added_up_have_the_sum_of_their_times() {
        let all = Measured {
            page_faults: true,
            access: true,
            major: true,
        };
        let row = |ns, faults| {
            let mut counters = timed(&[ns; 50]);
            counters.write = faults;
            FaultFigures::new(&counters, all)
        };
        let mut sum = FaultFigures::default();
        sum.add(&row(1600, 1000));
        sum.add(&row(3200, 500));
        assert_eq!(sum.page_fault_time_ns, Some(3_200_000));
        assert_eq!(sum.page_faults_timed, Some(100));
        // Faults of a row with too few measured ones take the others' mean.
        let few = FaultFigures::new(&timed(&[1_000_000; 3]), all);
        sum.add(&few);
        assert_eq!(sum.page_faults, Some(1503));
        assert_eq!(sum.page_fault_time_ns, Some(3_206_400));
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
