//! Checks whether an event counts what it should. The figures of a faulty event are not published: neither as zero nor
//! in a ratio.

/// Cycles within which a working machine has at least one page walk, however idle it is.
const CYCLES_WITH_WALKS: u64 = 1_000_000_000;
/// As [`CYCLES_WITH_WALKS`], where cycles are not counted: nanoseconds with a counter, over all CPUs.
const NANOSECONDS_WITH_WALKS: u64 = 10_000_000_000;
/// Longest wait of an event for a counter, in nanoseconds over all CPUs. A longer wait is a fault.
const WAIT_NS: u64 = 2_000_000_000;
/// Periods by which the samples of an event may lag behind its counter on each CPU. One is normal; a change of the
/// period or of the CPUs adds a few.
const LAG_PERIODS: u64 = 20;

/// Totals of an event over all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Events.
    pub counted: u64,
    /// Nanoseconds for which it was switched on.
    pub enabled_ns: u64,
    /// Nanoseconds for which it had a counter.
    pub running_ns: u64,
    /// Cycles counted in the same pass; `None` where they are not counted, or the event is the cycles.
    pub cycles: Option<u64>,
    /// CPUs on which it is open.
    pub cpus: usize,
    /// Counted events that are in no sample yet.
    pub unsampled: u64,
    /// Events per sample now.
    pub period: u64,
    /// Whether the event never pauses for long on a running machine, as the processor's own events.
    pub steady: bool,
}

/// The state of an event between readings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Health {
    /// When it last counted something.
    moved: Totals,
    /// When it last had a counter.
    ran: Totals,
}

/// The condition of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// It counts.
    Sound,
    /// Not known yet.
    NotYet,
    /// The event does not count, for this reason.
    Faulty(String),
}

impl Condition {
    /// Why its numbers are not published; empty where they are.
    pub fn reason(&self) -> &str {
        match self {
            Self::Sound => "",
            Self::NotYet => "it has not counted anything yet",
            Self::Faulty(reason) => reason,
        }
    }
}

impl Health {
    /// Judges the event by its totals.
    pub fn judge(&mut self, now: Totals) -> Condition {
        if now.counted != self.moved.counted {
            self.moved = now;
        }
        if now.running_ns != self.ran.running_ns {
            self.ran = now;
        }
        if now.cpus == 0 {
            return Condition::Faulty("it is open on no CPU any more".into());
        }
        let waited = now.enabled_ns - self.ran.enabled_ns.min(now.enabled_ns);
        if waited > WAIT_NS {
            return Condition::Faulty(format!(
                "it has had no counter for {} s of CPU time: others hold them all (a profiler, another tracer, or the kernel's watchdog: kernel.nmi_watchdog=0)",
                waited / 1_000_000_000
            ));
        }
        if now.counted == 0 {
            return if long_enough(&now, &Totals::default()) {
                Condition::Faulty("it counts nothing on this machine, though it has a counter: the processor or the virtual machine's host does not implement it".into())
            } else {
                Condition::NotYet
            };
        }
        if now.steady && long_enough(&now, &self.moved) {
            return Condition::Faulty("it stopped counting, though it has a counter".into());
        }
        let lag = LAG_PERIODS
            .saturating_mul(now.period)
            .saturating_mul(now.cpus as u64);
        if now.steady && now.unsampled > lag && now.unsampled > now.counted / 4 {
            return Condition::Faulty(format!(
                "it counts, but its samples do not come: {:.0} % of what it counted is in none; the overflow interrupt is lost, by an emulator or by the virtual machine's host",
                100.0 * now.unsampled as f64 / now.counted as f64
            ));
        }
        Condition::Sound
    }
}

/// Whether a working event would have counted something since then.
fn long_enough(now: &Totals, then: &Totals) -> bool {
    match (now.cycles, then.cycles) {
        (Some(now), then) => now.saturating_sub(then.unwrap_or(0)) > CYCLES_WITH_WALKS,
        (None, _) => now.running_ns.saturating_sub(then.running_ns) > NANOSECONDS_WITH_WALKS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(counted: u64, seconds: u64, running_share: f64, cycles: u64) -> Totals {
        let enabled_ns = seconds * 1_000_000_000;
        Totals {
            counted,
            enabled_ns,
            running_ns: (enabled_ns as f64 * running_share) as u64,
            cycles: Some(cycles),
            cpus: 4,
            unsampled: 0,
            period: 1000,
            steady: true,
        }
    }

    #[test]
    fn an_event_that_counts_is_sound_also_when_it_shares_its_counter() {
        let mut health = Health::default();
        assert_eq!(health.judge(totals(5, 1, 1.0, 1 << 30)), Condition::Sound);
        assert_eq!(health.judge(totals(9, 2, 0.4, 1 << 31)), Condition::Sound);
    }

    #[test]
    fn nothing_counted_is_never_a_zero() {
        let mut health = Health::default();
        assert!(health.judge(totals(0, 1, 1.0, 1000)) == Condition::NotYet);
        assert!(
            health
                .judge(totals(0, 5, 1.0, 2_000_000_000))
                .reason()
                .contains("counts nothing on this machine")
        );
        assert_eq!(
            health.judge(totals(1, 6, 1.0, 3_000_000_000)),
            Condition::Sound,
            "it was only slow"
        );
    }

    #[test]
    fn no_counter_is_said_and_forgotten_when_it_gets_one() {
        let mut health = Health::default();
        assert!(
            health
                .judge(totals(0, 5, 0.0, 0))
                .reason()
                .contains("no counter for 5 s")
        );
        assert_eq!(health.judge(totals(7, 6, 0.1, 1000)), Condition::Sound);
        let lost = Totals {
            enabled_ns: 20_000_000_000,
            ..totals(7, 6, 0.1, 1000)
        };
        assert!(health.judge(lost).reason().contains("no counter for 14 s"));
    }

    #[test]
    fn an_event_that_dies_midway_is_seen() {
        let mut health = Health::default();
        assert_eq!(
            health.judge(totals(100, 10, 1.0, 5_000_000_000)),
            Condition::Sound
        );
        assert_eq!(
            health.judge(totals(100, 11, 1.0, 5_500_000_000)),
            Condition::Sound
        );
        assert!(
            health
                .judge(totals(100, 12, 1.0, 6_100_000_000))
                .reason()
                .contains("stopped counting")
        );
        let gone = Totals {
            cpus: 0,
            ..totals(100, 12, 1.0, 6_100_000_000)
        };
        assert!(health.judge(gone).reason().contains("no CPU"));
    }

    #[test]
    fn an_event_whose_samples_do_not_come_is_no_figure() {
        let mut health = Health::default();
        let mut judge = |counted, unsampled| {
            health.judge(Totals {
                unsampled,
                ..totals(counted, 1, 1.0, 1 << 30)
            })
        };
        assert_eq!(judge(10_000_000, 80_000), Condition::Sound, "it lags");
        assert_eq!(judge(100_000, 80_000), Condition::Sound, "it begins");
        assert_eq!(
            judge(1_000_000_000, 90_000_000),
            Condition::Sound,
            "a burst"
        );
        let lost = judge(10_000_000, 9_000_000);
        assert!(lost.reason().contains("90 %"), "{lost:?}");
    }

    #[test]
    fn cycles_that_stand_still_are_judged_by_the_time() {
        let mut health = Health::default();
        let cycles = |counted, seconds: u64| Totals {
            cycles: None,
            ..totals(counted, seconds, 1.0, 0)
        };
        assert_eq!(health.judge(cycles(100, 1)), Condition::Sound);
        assert!(health.judge(cycles(100, 12)).reason().contains("stopped"));
        let kernels = Totals {
            steady: false,
            ..cycles(100, 13)
        };
        assert_eq!(
            health.judge(kernels),
            Condition::Sound,
            "no page fault for a while"
        );
    }
}
