//! Measures the cost of a page walk: the basis of estimated ratios on cores that count walks but not their cycles.
//!
//! Two passes make identical accesses, to the same number of cache lines in the same random order: one with many page
//! walks, one with few. The difference in cycles divided by the difference in walks is the cost of a walk. Huge pages
//! give few walks; where they do not help (an emulator's TLB, or a kernel without them) the lines are packed into few
//! pages.

mod memory;

use smtt_model::cpu::{Encoding, Measured, MeasuredCore, Role};
use smtt_model::readings::{Calibration, CostPerWalk};
use smtt_model::sort::small;

use self::memory::{Layout, Lines};
use crate::perf::{Count, Event, Of, Opening, refusal};

/// Times that the measurement is repeated.
const REPETITIONS: u32 = 9;
/// Least factor between many and few walks: below it the walks do not explain the difference in cycles.
const FACTOR: u64 = 4;
/// Most repetitions of a pass during which the counters were shared.
const TRIES: u32 = 5;

/// Which accesses are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads, each of which depends on the one before it.
    Read,
    /// Stores.
    Write,
}

/// Counts of one pass over the lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pass {
    cycles: u64,
    walks: u64,
}

/// Does a pass over the lines of a layout and counts.
trait Meter {
    fn pass(&mut self, access: Access, layout: Layout) -> Result<Pass, String>;
}

/// Measures the cost of a walk on this machine, whose events are `measured`. Takes some tens of milliseconds and 96 MiB
/// on a thread of its own, which stays on one CPU.
///
/// # Errors
/// One line that states why nothing can be measured here.
pub fn calibrate(measured: &Measured) -> Result<Calibration, String> {
    let core = measured
        .cores
        .iter()
        .find(|core| core.pmu_present != Some(false))
        .ok_or_else(|| {
            "there is no PMU on this machine to calibrate with: a virtual machine has one only if its host exposes counters"
                .to_owned()
        })?;
    std::thread::scope(|scope| {
        let work = || {
            memory::stay_on_this_cpu();
            let mut meter = Counters::of(core)?;
            Ok(with(&mut meter))
        };
        scope
            .spawn(work)
            .join()
            .unwrap_or_else(|_| Err("the calibration crashed".to_owned()))
    })
}

/// Both kinds of access, by the first layout that works for reads.
fn with(meter: &mut impl Meter) -> Calibration {
    let mut refused = Vec::new();
    for (few, method) in [
        (Layout::Huge, "huge pages"),
        (Layout::Packed, "packed lines"),
    ] {
        let mut cost = |access, what: &str| {
            cost(meter, access, few)
                .map_err(|reason| refused.push(format!("{what} by {method}: {reason}")))
                .ok()
        };
        let (read, write) = (cost(Access::Read, "reads"), cost(Access::Write, "writes"));
        if read.is_some() || write.is_some() {
            return Calibration {
                read,
                write,
                method: method.to_owned(),
                repetitions: REPETITIONS,
                refused,
            };
        }
    }
    Calibration {
        refused,
        ..Calibration::default()
    }
}

fn cost(meter: &mut impl Meter, access: Access, few: Layout) -> Result<CostPerWalk, String> {
    let mut costs = Vec::new();
    for _ in 0..REPETITIONS {
        let many = meter.pass(access, Layout::Small)?;
        let fewer = meter.pass(access, few)?;
        if many.walks < FACTOR * fewer.walks.max(1) {
            return Err(format!(
                "{} walks against {}: too little of a difference",
                many.walks, fewer.walks
            ));
        }
        let walks = (many.walks - fewer.walks) as f64;
        costs.push((many.cycles as f64 - fewer.cycles as f64) / walks);
    }
    small::sort_by(&mut costs, f64::total_cmp);
    let median = costs[costs.len() / 2];
    if median <= 0.0 {
        return Err("more walks took no more cycles: the counters are unreliable".into());
    }
    Ok(CostPerWalk {
        cycles: median,
        low: costs[0],
        high: costs[costs.len() - 1],
    })
}

fn open(event: &Encoding, leader: Option<&Event>) -> Result<Event, String> {
    Event::open(Opening {
        event,
        of: Of::ThisThread,
        period: 0,
        addresses: false,
        leader,
    })
    .map_err(|error| refusal(&error))
}

/// The counters of the calling thread.
struct Counters<'a> {
    cycles: &'a Encoding,
    reads: Vec<&'a Encoding>,
    writes: Vec<&'a Encoding>,
    lines: Lines,
}

impl<'a> Counters<'a> {
    fn of(core: &'a MeasuredCore) -> Result<Self, String> {
        let events = |roles: &[Role]| -> Vec<&'a Encoding> {
            roles
                .iter()
                .find_map(|role| core.roles.get(role))
                .map(|event| event.openings().collect())
                .unwrap_or_default()
        };
        let cycles = events(&[Role::Cycles])
            .first()
            .copied()
            .ok_or("no event counts the cycles of this core")?;
        Ok(Self {
            cycles,
            reads: events(&[Role::LoadWalksCompleted, Role::DsideWalksCombined]),
            writes: events(&[Role::StoreWalksCompleted, Role::DsideWalksCombined]),
            lines: Lines::map()?,
        })
    }
}

impl Meter for Counters<'_> {
    fn pass(&mut self, access: Access, layout: Layout) -> Result<Pass, String> {
        let walks = match access {
            Access::Read => &self.reads,
            Access::Write => &self.writes,
        };
        if walks.is_empty() {
            return Err("no event of this core counts the walks".into());
        }
        for _ in 0..TRIES {
            let leader = open(self.cycles, None)?;
            let members = walks
                .iter()
                .map(|event| open(event, Some(&leader)))
                .collect::<Result<Vec<_>, _>>()?;
            // The first pass brings the lines into the caches.
            self.lines.visit(layout, access);
            self.lines.forget_translations();
            let read = |event: &Event| event.read().map_err(|error| refusal(&error));
            leader.enable().map_err(|error| refusal(&error))?;
            self.lines.visit(layout, access);
            leader.disable().map_err(|error| refusal(&error))?;
            let counts = members
                .iter()
                .map(read)
                .collect::<Result<Vec<Count>, _>>()?;
            let cycles = read(&leader)?;
            if cycles.running_ns > 0 && cycles.running_ns == cycles.enabled_ns {
                return Ok(Pass {
                    cycles: cycles.value,
                    walks: counts.iter().map(|count| count.value).sum(),
                });
            }
        }
        Err("another program shares the counters (a profiler or another tracer)".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with this cost of a walk in cycles, whose huge pages save this share of the walks.
    struct Machine {
        cost: i64,
        saved: f64,
        refuses: Option<Access>,
    }

    impl Meter for Machine {
        fn pass(&mut self, access: Access, layout: Layout) -> Result<Pass, String> {
            if self.refuses == Some(access) {
                return Err("no event".into());
            }
            let walks = match layout {
                Layout::Small => 20_000,
                Layout::Huge => (20_000.0 * (1.0 - self.saved)) as u64,
                Layout::Packed => 300,
            };
            Ok(Pass {
                cycles: (1_000_000 + self.cost * walks as i64) as u64,
                walks,
            })
        }
    }

    #[test]
    fn the_cost_is_the_difference_of_cycles_by_the_difference_of_walks() {
        let mut machine = Machine {
            cost: 31,
            saved: 0.99,
            refuses: None,
        };
        let found = with(&mut machine);
        assert_eq!(found.method, "huge pages");
        assert_eq!(found.read.map(|cost| cost.cycles), Some(31.0));
        assert_eq!(
            found.write.map(|cost| (cost.low, cost.high)),
            Some((31.0, 31.0))
        );
        assert_eq!(found.refused, Vec::<String>::new());
    }

    #[test]
    fn where_huge_pages_save_no_walks_lines_are_packed() {
        let mut machine = Machine {
            cost: 31,
            saved: 0.1,
            refuses: Some(Access::Write),
        };
        let found = with(&mut machine);
        assert_eq!(found.method, "packed lines");
        assert_eq!(found.read.map(|cost| cost.cycles), Some(31.0));
        assert_eq!(found.write, None, "what was not measured is absent");
        assert!(
            found
                .refused
                .iter()
                .any(|line| line.contains("too little of a difference"))
        );
    }

    #[test]
    fn a_cost_below_nothing_is_refused() {
        let mut machine = Machine {
            cost: -3,
            saved: 0.99,
            refuses: None,
        };
        let found = with(&mut machine);
        assert_eq!((found.read, found.write), (None, None));
        assert!(
            found.refused.iter().all(|line| line.contains("unreliable")),
            "{found:?}"
        );
    }

    #[test]
    fn without_a_pmu_it_says_so() {
        let identity: smtt_model::cpu::CpuId = "GenuineIntel-6-8F".parse().expect("a CPU");
        let mut measured =
            smtt_model::cpu::describe(&identity, &smtt_model::cpu::Overrides::default())
                .expect("its events");
        for core in &mut measured.cores {
            core.pmu_present = Some(false);
        }
        let reason = calibrate(&measured).expect_err("no PMU");
        assert!(reason.contains("no PMU on this machine"), "{reason}");
    }
}
