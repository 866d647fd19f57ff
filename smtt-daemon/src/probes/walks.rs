//! Page walks: the events of `crate::pmu`'s plan for this machine, opened on every CPU and sampled by the kernel side;
//! what they gave since the last reading, what each of them counts, and how far it can be trusted.
//!
//! | module | what |
//! |---|---|
//! | [`wanted`] | from the plan to the events to open: pure |
//! | [`open`] | the open events of one CPU |
//! | [`period`] | how many events make a sample: pure |
//! | [`health`] | whether an event counts what it should: pure |
//! | [`sampler`] | all of it together, reading by reading |

mod health;
mod open;
mod period;
mod sampler;
mod wanted;

pub(super) use self::sampler::{Sampler, not_measured};
pub(super) use self::wanted::{NotMeasured, Wanted};

use serde::Serialize;
use smtt_common::counter::ContextKey;
use smtt_common::walk::{WALK_SLOTS, WalkCounters};

use crate::pmu::{FigureName, Quantity, Ratio, Role};

/// Name of this probe in status and metrics.
pub const PROBE: &str = "page_walks";

/// What was sampled, and what the samples mean. Absent from the readings of a machine that measures no page walks.
#[derive(Clone, Debug, Default)]
pub struct PageWalkReadings {
    /// Growth per context since the last reading. A key without a context says why
    /// ([`ContextKey::class`](smtt_common::counter::ContextKey::class)).
    pub contexts: Vec<(ContextKey, WalkCounters)>,
    /// What each slot counts, and its totals since the start. At most [`WALK_SLOTS`].
    pub slots: Vec<Slot>,
    /// The figures that can be made from the slots.
    pub figures: Vec<SlotFigure>,
    /// Name of the core that is measured.
    pub uarch: String,
    /// What the reader has to know about the figures, in lines.
    pub notes: Vec<String>,
}

/// One event, or several whose sum a role is, on all CPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Slot {
    /// What it is for.
    pub role: Role,
    /// The event's name.
    pub event: String,
    /// What it adds up.
    pub quantity: Quantity,
    /// Events that take turns have different passes; only slots of one pass belong together.
    pub pass: usize,
    /// Events per sample now.
    pub period: u64,
    /// What the counters say of the whole machine, since the start.
    pub counted: u64,
    /// What the samples say of the whole machine, executors or not, since the start. It lags behind `counted` by what
    /// each open event has counted since its last sample.
    pub sampled: u64,
    /// Samples, since the start.
    pub samples: u64,
    /// Nanoseconds for which the event was meant to count, added up over CPUs.
    pub enabled_ns: u64,
    /// Nanoseconds for which it had a counter, added up over CPUs. Less than `enabled_ns`: others want the counters
    /// too. Nothing is scaled up for it.
    pub running_ns: u64,
    /// Why its numbers are not published; empty where they are.
    pub fault: String,
}

impl Slot {
    /// Share of the time in which it was meant to count that it had a counter, 0 to 1; `None` before it was switched on.
    #[must_use]
    pub fn counted_share(&self) -> Option<f64> {
        (self.enabled_ns > 0).then(|| self.running_ns as f64 / self.enabled_ns as f64)
    }
}

/// A figure of the plan, computed from slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SlotFigure {
    /// Which figure.
    pub name: FigureName,
    /// What it adds up.
    pub quantity: Quantity,
    /// Slot of the reading.
    pub of: usize,
    /// Slot of what is taken off it (never below zero).
    pub less: Option<usize>,
    /// Slot of the cycles of the same stretch of time: the denominator of `ratio`.
    pub cycles: Option<usize>,
    /// What the figure divided by cycles is; absent where that means nothing.
    pub ratio: Option<Ratio>,
}

impl SlotFigure {
    /// The figure from a row's counters.
    #[must_use]
    pub fn value(&self, counters: &WalkCounters) -> u64 {
        let reading = |slot: usize| counters.events[slot & (WALK_SLOTS - 1)];
        reading(self.of).saturating_sub(self.less.map_or(0, reading))
    }
}

impl PageWalkReadings {
    /// Figures all of whose slots are sound. The others are absent from every output.
    pub fn sound_figures(&self) -> impl Iterator<Item = &SlotFigure> {
        self.figures.iter().filter(|figure| {
            [Some(figure.of), figure.less]
                .into_iter()
                .flatten()
                .all(|slot| {
                    self.slots
                        .get(slot)
                        .is_some_and(|slot| slot.fault.is_empty())
                })
        })
    }
}
