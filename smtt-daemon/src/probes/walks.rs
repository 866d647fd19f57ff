//! Page walks: what the sampled events gave since the last reading, what each of them counts, and how far it can be
//! trusted. The events are those of `crate::pmu`'s plan for this machine.

use serde::Serialize;
use smtt_common::counter::ContextKey;
use smtt_common::walk::{WALK_SLOTS, WalkCounters};

use crate::pmu::{FigureName, Quantity, Ratio, Role};

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
    /// What the samples say of the whole machine, executors or not, since the start. It differs from `counted` by less
    /// than one period for each event that is open, and by what was throttled.
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
