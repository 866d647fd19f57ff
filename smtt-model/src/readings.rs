//! What the kernel side has counted and sampled, as plain data: one reading per tick of the daemon.

use serde::{Deserialize, Serialize};
use smtt_common::counter::{COUNTERS, ContextCounters, ContextKey, ExecutorCounters};
use smtt_common::page_walk::{WALK_CHANNELS, WalkCounters};

use crate::cpu::{FigureName, Quantity, Ratio, Role};

/// What the kernel side has added up since the last reading.
#[derive(Clone, Debug, Default)]
pub struct Readings {
    /// Growth per context since the last reading.
    pub contexts: Vec<(ContextKey, ContextCounters)>,
    /// Totals per executor key since it was registered, summed over CPUs.
    pub executors: Vec<(u64, ExecutorCounters)>,
    /// Totals of the kernel side's own counters, summed over CPUs, indexed by `smtt_common::counter::Counter`.
    pub counters: [u64; COUNTERS],
    /// Whether reads and writes are told apart (false on the software-event rung).
    pub access_known: bool,
    /// Whether major faults are counted.
    pub major_known: bool,
    /// Page walks; absent where none are measured.
    pub page_walks: Option<PageWalkReadings>,
}

/// What was sampled, and what the samples mean. Absent from the readings of a machine that measures no page walks.
#[derive(Clone, Debug, Default)]
pub struct PageWalkReadings {
    /// Growth per context since the last reading. A key without a context says why
    /// ([`ContextKey::class`](smtt_common::counter::ContextKey::class)).
    pub contexts: Vec<(ContextKey, WalkCounters)>,
    /// What each channel counts, and its totals since the start. At most [`WALK_CHANNELS`].
    pub channels: Vec<Channel>,
    /// The figures that can be made from the channels.
    pub figures: Vec<ChannelFigure>,
    /// Name of the core that is measured.
    pub uarch: String,
    /// What the reader has to know about the figures, in lines.
    pub notes: Vec<String>,
}

/// One event, or several whose sum a role is, on all CPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Channel {
    /// What it is for.
    pub role: Role,
    /// The event's name.
    pub event: String,
    /// What it adds up.
    pub quantity: Quantity,
    /// Events that take turns have different passes; only channels of one pass belong together.
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

impl Channel {
    /// Share of the time in which it was meant to count that it had a counter, 0 to 1; `None` before it was switched on.
    #[must_use]
    pub fn counted_share(&self) -> Option<f64> {
        (self.enabled_ns > 0).then(|| self.running_ns as f64 / self.enabled_ns as f64)
    }
}

/// A figure of the plan, computed from channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ChannelFigure {
    /// Which figure.
    pub name: FigureName,
    /// What it adds up.
    pub quantity: Quantity,
    /// Channel of the reading.
    pub of: usize,
    /// Channel of what is taken off it (never below zero).
    pub less: Option<usize>,
    /// Channel of the cycles of the same stretch of time: the denominator of `ratio`.
    pub cycles: Option<usize>,
    /// What the figure divided by cycles is; absent where that means nothing.
    pub ratio: Option<Ratio>,
}

impl ChannelFigure {
    /// The figure from a row's counters.
    #[must_use]
    pub fn value(&self, counters: &WalkCounters) -> u64 {
        let reading = |channel: usize| counters.events[channel & (WALK_CHANNELS - 1)];
        reading(self.of).saturating_sub(self.less.map_or(0, reading))
    }
}

impl PageWalkReadings {
    /// Figures all of whose channels are sound. The others are absent from every output.
    pub fn sound_figures(&self) -> impl Iterator<Item = &ChannelFigure> {
        self.figures.iter().filter(|figure| {
            [Some(figure.of), figure.less]
                .into_iter()
                .flatten()
                .all(|channel| {
                    self.channels
                        .get(channel)
                        .is_some_and(|channel| channel.fault.is_empty())
                })
        })
    }
}

/// Cycles that one page walk costs, with its spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CostPerWalk {
    /// Median over the repetitions.
    pub cycles: f64,
    /// Smallest of the repetitions.
    pub low: f64,
    /// Largest of the repetitions.
    pub high: f64,
}

/// The result of a calibration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Walks for reads; absent where they could not be measured.
    pub read: Option<CostPerWalk>,
    /// Walks for writes; absent where they could not be measured.
    pub write: Option<CostPerWalk>,
    /// How few walks were come by: `huge pages` or `packed lines`.
    pub method: String,
    /// Times that the measurement was repeated.
    pub repetitions: u32,
    /// Why something could not be measured, in lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
}
