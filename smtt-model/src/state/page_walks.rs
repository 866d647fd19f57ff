//! Sampled page walks and cycles, added up: over a life, over the last minute, and as a distribution over tasks.

use std::collections::{BTreeMap, VecDeque};

use hdrhistogram::Histogram;
use smtt_common::page_walk::WalkCounters;

use crate::cpu::{FigureName, Ratio};
use crate::readings::{Calibration, Channel, ChannelFigure, PageWalkReadings};

/// The last minute is kept in pieces of this many nanoseconds.
const PIECE_NS: u64 = 5_000_000_000;
/// So many pieces are a minute.
const PIECES: u64 = 12;
/// A task is in the distribution if so many samples of cycles fell into it: with fewer its ratio says nothing.
pub const TASK_SAMPLES_MIN: u64 = 30;
/// Samples of a task are read so much later than its end is told, at most.
pub(super) const LATE_NS: u64 = 2_000_000_000;
/// Ratios are kept in parts per million.
const PARTS: f64 = 1e6;

/// What the machine measures of page walks, as it was at the last reading.
#[derive(Clone, Debug, Default)]
pub struct Meaning {
    /// What each channel counts, with its totals.
    pub channels: Vec<Channel>,
    /// Figures all of whose channels are sound.
    pub figures: Vec<ChannelFigure>,
    /// Name of the core.
    pub uarch: String,
    /// What the reader has to know, in lines.
    pub notes: Vec<String>,
    /// What a walk costs, where that is known.
    pub calibration: Option<Calibration>,
}

impl Meaning {
    /// Takes over what the readings say.
    pub(super) fn update(&mut self, readings: &PageWalkReadings) {
        self.figures = readings.sound_figures().copied().collect();
        self.channels.clone_from(&readings.channels);
        self.uarch.clone_from(&readings.uarch);
        self.notes.clone_from(&readings.notes);
    }

    /// Cycles that a walk of that figure costs, for an estimate.
    #[must_use]
    pub fn cycles_per_walk(&self, figure: FigureName) -> Option<f64> {
        let calibration = self.calibration.as_ref()?;
        let cost = match figure {
            FigureName::DtlbReadMisses => calibration.read?.cycles,
            FigureName::DtlbWriteMisses => calibration.write?.cycles,
            // Which accesses they were is not known: what reads cost, which are the most.
            FigureName::DtlbMisses => calibration.read?.cycles,
            _ => return None,
        };
        Some(cost)
    }

    /// The ratio of a figure to cycles; absent where it means nothing, has no denominator, or cannot be estimated.
    #[must_use]
    pub fn ratio(&self, figure: &ChannelFigure, value: f64, cycles: u64) -> Option<f64> {
        let weight = match figure.ratio? {
            Ratio::Fraction | Ratio::Occupancy => 1.0,
            Ratio::Estimated => self.cycles_per_walk(figure.name)?,
        };
        (cycles > 0).then(|| value * weight / cycles as f64)
    }

    /// Whether a channel's numbers are published.
    #[must_use]
    pub fn sound(&self, channel: usize) -> bool {
        self.channels
            .get(channel)
            .is_some_and(|channel| channel.fault.is_empty())
    }

    /// The channel of the cycles that are shown, and of which shares are made.
    #[must_use]
    pub fn cycles(&self) -> Option<usize> {
        self.figures
            .iter()
            .find_map(|figure| figure.cycles)
            .or_else(|| {
                self.channels
                    .iter()
                    .position(|channel| channel.role == crate::cpu::Role::Cycles)
            })
            .filter(|channel| self.sound(*channel))
    }
}

/// Samples of one row, since the start and of the last minute.
#[derive(Clone, Debug, Default)]
pub struct Walks {
    /// All of them.
    pub life: WalkCounters,
    recent: VecDeque<(u64, WalkCounters)>,
}

impl Walks {
    /// Adds what came in at that time.
    pub(super) fn add(&mut self, more: &WalkCounters, now_ns: u64) {
        self.life.add(more);
        let piece = now_ns / PIECE_NS;
        match self.recent.back_mut() {
            Some((last, sum)) if *last >= piece => sum.add(more),
            _ => self.recent.push_back((piece, *more)),
        }
        while self
            .recent
            .front()
            .is_some_and(|(first, _)| *first + PIECES <= piece)
        {
            self.recent.pop_front();
        }
    }

    /// Adds another row that is folded into this one.
    pub(super) fn fold(&mut self, other: &Self) {
        self.life.add(&other.life);
    }

    /// Samples of the last minute.
    #[must_use]
    pub fn last_minute(&self, now_ns: u64) -> WalkCounters {
        let piece = now_ns / PIECE_NS;
        let mut sum = WalkCounters::default();
        for (_, more) in self.recent.iter().filter(|(at, _)| at + PIECES > piece) {
            sum.add(more);
        }
        sum
    }
}

/// How a ratio is distributed over the tasks that ended.
#[derive(Clone, Debug, Default)]
pub struct Distribution(BTreeMap<&'static str, Histogram<u32>>);

/// Points of a distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Points {
    /// Tasks in it.
    pub tasks: u64,
    /// Half of them are at most this.
    pub p50: f64,
    /// 95 % of them are.
    pub p95: f64,
    /// 99 % of them are.
    pub p99: f64,
}

impl Distribution {
    /// Takes in what one task did, if it was sampled often enough.
    pub(super) fn add(&mut self, meaning: &Meaning, task: &WalkCounters) {
        for figure in &meaning.figures {
            let Some(cycles) = figure.cycles else {
                continue;
            };
            if task.samples[cycles] < TASK_SAMPLES_MIN {
                continue;
            }
            let value = figure.value(task) as f64;
            let Some(ratio) = meaning.ratio(figure, value, task.events[cycles]) else {
                continue;
            };
            // Two significant digits; grows as it has to.
            let Ok(fresh) = Histogram::new(2) else {
                continue;
            };
            let histogram = self.0.entry(figure.name.key()).or_insert(fresh);
            // Fails for numbers beyond all memory only.
            let _ = histogram.record((ratio * PARTS) as u64);
        }
    }

    /// Adds another row's that is folded into this one.
    pub(super) fn fold(&mut self, other: &Self) {
        for (figure, more) in &other.0 {
            match self.0.get_mut(figure) {
                // Both are made to grow, so neither is too small.
                Some(sum) => drop(sum.add(more)),
                None => {
                    self.0.insert(figure, more.clone());
                }
            }
        }
    }

    /// Its points for a figure; `None` without tasks.
    #[must_use]
    pub fn points(&self, figure: FigureName) -> Option<Points> {
        let histogram = self.0.get(figure.key())?;
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / PARTS;
        Some(Points {
            tasks: histogram.len(),
            p50: at(0.50),
            p95: at(0.95),
            p99: at(0.99),
        })
    }
}
