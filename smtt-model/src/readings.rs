//! Counts and samples of the kernel side as plain data: one reading per tick of the daemon.

use serde::{Deserialize, Serialize};
use smtt_common::counter::{COUNTERS, ContextCounters, ContextKey, ExecutorCounters};
use smtt_common::page_walk::{WALK_CHANNELS, WalkCounters};
use smtt_common::settings::Owner;

use crate::cpu::{FigureName, Quantity, Ratio, Role};

/// Counts of the kernel side since the last reading.
#[derive(Clone, Debug, Default)]
pub struct Readings {
    /// Growth per context since the last reading.
    pub contexts: Vec<(ContextKey, ContextCounters)>,
    /// Totals per executor key since it was registered, summed over CPUs.
    pub executors: Vec<(u64, ExecutorCounters)>,
    /// Last totals of executors whose rows were removed from the kernel side's tables since the last reading.
    pub forgotten: Vec<(u64, ExecutorCounters)>,
    /// Executors that still have totals although their process was gone at this reading and at the one before.
    pub gone: Vec<u64>,
    /// User and cgroup of each executor key, as the kernel reports it.
    pub owners: Vec<(u64, Owner)>,
    /// Faults of each executor key's process from before they were counted, by the kernel's own count.
    pub before: Vec<(u64, u64)>,
    /// Totals of the kernel side's global counters, summed over CPUs, indexed by `smtt_common::counter::Counter`.
    pub counters: [u64; COUNTERS],
    /// Whether reads and writes are distinguished (false on the software-event rung).
    pub access_known: bool,
    /// Whether major faults are counted.
    pub major_known: bool,
    /// Sampled page walks; absent where page walks are not measured.
    pub page_walks: Option<PageWalkReadings>,
    /// Samples of the kernel's clock, which stands in for cycles that are not sampled; absent where they are, and where
    /// it is switched off.
    pub clock: Option<ClockReadings>,
}

/// Samples of the kernel's clock. They are no figure of page walks and no cycles: only the shares of activities in a
/// task's CPU time come from them.
#[derive(Clone, Debug, Default)]
pub struct ClockReadings {
    /// Name of the event.
    pub event: String,
    /// Samples per context since the last reading. The time between them is left out: on a virtual machine the timer of
    /// an idle processor may fire late, in the thread that has woken up meanwhile.
    pub contexts: Vec<(ContextKey, u64)>,
}

/// Samples of page walks and what they mean.
#[derive(Clone, Debug, Default)]
pub struct PageWalkReadings {
    /// Growth per context since the last reading. A key without a context contains the reason
    /// ([`ContextKey::class`](smtt_common::counter::ContextKey::class)).
    pub contexts: Vec<(ContextKey, WalkCounters)>,
    /// Event and totals of each channel since the start. At most [`WALK_CHANNELS`].
    pub channels: Vec<Channel>,
    /// Figures computed from the channels.
    pub figures: Vec<ChannelFigure>,
    /// Microarchitecture of the core that is measured.
    pub uarch: String,
    /// Caveats of the figures, one per line.
    pub notes: Vec<String>,
}

/// One event on all CPUs, or several events whose sum fills one role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Channel {
    /// What the channel is used for.
    pub role: Role,
    /// Name of the event.
    pub event: String,
    /// Quantity that the channel adds up.
    pub quantity: Quantity,
    /// Pass in which the event is counted. Passes take turns on the counters; only channels of one pass are comparable.
    pub pass: usize,
    /// Current sampling period, in events per sample.
    pub period: u64,
    /// Events on the whole machine since the start, according to the counters.
    pub counted: u64,
    /// Events on the whole machine since the start, according to the samples, with executors or without. It lags behind
    /// `counted` by the events since the last sample.
    pub sampled: u64,
    /// Samples since the start.
    pub samples: u64,
    /// Enabled time of the event, summed over CPUs, in nanoseconds.
    pub enabled_ns: u64,
    /// Time in which the event had a counter, summed over CPUs, in nanoseconds. Less than `enabled_ns` where events
    /// compete for counters; figures are not scaled up for the difference.
    pub running_ns: u64,
    /// Why the channel's figures are not published; empty where they are.
    pub fault: String,
}

impl Channel {
    /// Share of the enabled time in which the event had a counter, 0 to 1; `None` before the event was enabled.
    #[must_use]
    pub fn counted_share(&self) -> Option<f64> {
        (self.enabled_ns > 0).then(|| self.running_ns as f64 / self.enabled_ns as f64)
    }
}

/// A figure of the plan and the channels that it is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ChannelFigure {
    /// Name of the figure.
    pub name: FigureName,
    /// Quantity that the figure adds up.
    pub quantity: Quantity,
    /// Channel that gives the figure.
    pub of: usize,
    /// Channel to subtract from `of` (the result never falls below zero).
    pub less: Option<usize>,
    /// Channel of the cycles in the same pass: the denominator of `ratio`.
    pub cycles: Option<usize>,
    /// Meaning of the figure divided by cycles; absent where the ratio has no meaning.
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
    /// Figures without a faulty channel. The others are absent from every output.
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

/// Cycles per page walk, with their spread.
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
    /// Cost of a walk for a read; absent where it could not be measured.
    pub read: Option<CostPerWalk>,
    /// Cost of a walk for a write; absent where it could not be measured.
    pub write: Option<CostPerWalk>,
    /// Method that avoids page walks in the comparison run: `huge pages` or `packed lines`.
    pub method: String,
    /// Repetitions of the measurement.
    pub repetitions: u32,
    /// Reasons why something could not be measured, one per line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
}
