//! The sampling period: events per sample.
//!
//! An event starts with the period that keeps even a burst near its share of the limit; then the period follows the
//! busiest CPU. It never falls below its start value, so that a machine that becomes busy after an idle phase does not
//! cause a storm of samples.

use smtt_model::cpu::{Encoding, PERF_TYPE_SOFTWARE, Quantity};

/// Upper bound of a CPU's cycles per second.
const CYCLES_PER_SECOND: u64 = 5_000_000_000;
/// Page walks per second that hardly any CPU reaches.
const WALKS_PER_SECOND: u64 = 200_000_000;
/// A clock that counts nanoseconds.
const NANOSECONDS_PER_SECOND: u64 = 1_000_000_000;
/// Rate of page faults and similar software events.
const FAULTS_PER_SECOND: u64 = 1_000_000;
/// Assumed ratio of a CPU's peak rate to its usual rate. A burst exceeds the limit by this factor at most, until the
/// period has adapted.
const BURST: u64 = 8;

/// The period of one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// Events per sample now.
    pub events: u64,
    least: u64,
    samples_per_second: u64,
    fixed: bool,
}

impl Period {
    /// The start period of an event that may take `samples_per_second` on a CPU.
    #[must_use]
    pub fn new(
        event: &Encoding,
        quantity: Quantity,
        denominator: bool,
        samples_per_second: u64,
    ) -> Self {
        let samples_per_second = samples_per_second.max(1);
        let rate = match (event.perf_type, event.perf_config) {
            (Some(PERF_TYPE_SOFTWARE), 0 | 1) => NANOSECONDS_PER_SECOND,
            (Some(PERF_TYPE_SOFTWARE), _) => FAULTS_PER_SECOND,
            _ => match quantity {
                Quantity::Cycles | Quantity::Occupancy => CYCLES_PER_SECOND,
                Quantity::Count | Quantity::Samples => WALKS_PER_SECOND,
            },
        };
        // A clock always runs at its full rate.
        let burst = if denominator { 1 } else { BURST };
        let least = odd(rate / (burst * samples_per_second));
        Self {
            events: least,
            least,
            samples_per_second,
            fixed: false,
        }
    }

    /// A fixed period.
    #[must_use]
    pub fn fixed(events: u64) -> Self {
        Self {
            events: events.max(1),
            least: events.max(1),
            samples_per_second: u64::MAX,
            fixed: true,
        }
    }

    /// Adapts the period to the busiest CPU's rate; returns whether the period changed.
    pub fn follow(&mut self, events_per_second: u64) -> bool {
        if self.fixed {
            return false;
        }
        let samples = events_per_second / self.events.max(1);
        let next = if samples > self.samples_per_second + self.samples_per_second / 4 {
            odd(events_per_second / self.samples_per_second)
        } else if samples < self.samples_per_second / 4 {
            // Shrinks by half, because a rate that fell may rise again at once.
            odd(self.events / 2).max(self.least)
        } else {
            self.events
        };
        std::mem::replace(&mut self.events, next) != next
    }
}

/// Makes a period odd, so that it does not resonate with loops, whose counts are mostly even.
fn odd(period: u64) -> u64 {
    period.max(1) | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(perf_type: u32, perf_config: u64) -> Encoding {
        Encoding {
            pmu: "cpu".into(),
            perf_type: Some(perf_type),
            perf_config,
            config1: 0,
            config2: 0,
            precise_ip: 0,
            exclude_kernel: false,
            exclude_user: false,
        }
    }

    #[test]
    fn a_burst_stays_near_the_limit_and_the_period_follows() {
        let mut period = Period::new(&event(4, 0x1008), Quantity::Cycles, false, 50);
        let start = period.events;
        assert!(CYCLES_PER_SECOND / start <= 50 * BURST);
        assert!(!period.follow(0), "idle: it is where it starts");
        assert!(period.follow(3_000_000_000));
        assert!(3_000_000_000 / period.events <= 50);
        for _ in 0..20 {
            period.follow(1000);
        }
        assert_eq!(period.events, start, "and comes back, but not below");
        assert_eq!(period.events % 2, 1);
    }

    #[test]
    fn it_settles() {
        let mut period = Period::new(&event(4, 0x3c), Quantity::Cycles, true, 60);
        let changes = (0..100).filter(|_| period.follow(2_900_000_000)).count();
        assert!(changes <= 2, "{changes}");
    }

    #[test]
    fn a_fixed_period_stays() {
        let mut period = Period::fixed(1);
        assert!(!period.follow(u64::MAX / 2));
        assert_eq!(period.events, 1);
        let clock = Period::new(&event(PERF_TYPE_SOFTWARE, 0), Quantity::Cycles, true, 100);
        assert_eq!(clock.events, 10_000_001);
    }
}
