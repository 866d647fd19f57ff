//! Sums of sampled page walks and cycles: since the start, over the last minute, and as a distribution over tasks.

use std::collections::{BTreeMap, VecDeque};

use hdrhistogram::Histogram;
use smtt_common::context::Activity;
use smtt_common::counter::ContextKey;
use smtt_common::page_walk::WalkCounters;

use super::bytes::{Caps, tree_bytes};
use super::task::Task;
use super::{Executor, State};
use crate::attribute::Attribution;
use crate::cpu::{FigureName, Ratio};
use crate::readings::{Calibration, Channel, ChannelFigure, ClockReadings, PageWalkReadings};

/// Length of one piece of the last minute, in nanoseconds.
const PIECE_NS: u64 = 5_000_000_000;
/// Pieces in a minute.
const PIECES: u64 = 12;
/// Minimum number of cycle samples for a task to be in the distribution: with fewer its ratio has no meaning.
pub const TASK_SAMPLES_MIN: u64 = 30;
/// Maximum delay between the report of a task's end and the reading of its last samples, in nanoseconds.
pub(super) const LATE_NS: u64 = 2_000_000_000;
/// Ratios are stored in parts per million.
const PARTS: f64 = 1e6;
/// Largest ratio that a distribution distinguishes: it bounds the size of a histogram.
const PARTS_MAX: u64 = 1 << 30;
/// Bytes of the largest histogram.
const HISTOGRAM_BYTES: usize = 16 << 10;

/// Meaning of this machine's page-walk samples at the last reading.
#[derive(Clone, Debug, Default)]
pub struct Meaning {
    /// Event and totals of each channel.
    pub channels: Vec<Channel>,
    /// Figures without a faulty channel.
    pub figures: Vec<ChannelFigure>,
    /// Microarchitecture of the core that is measured.
    pub uarch: String,
    /// Caveats of the figures, one per line.
    pub notes: Vec<String>,
    /// Measured cost of a page walk, where known.
    pub calibration: Option<Calibration>,
}

impl Meaning {
    /// Updates the meaning from a reading.
    pub(super) fn update(&mut self, readings: &PageWalkReadings) {
        self.figures = readings.sound_figures().copied().collect();
        self.channels.clone_from(&readings.channels);
        self.uarch.clone_from(&readings.uarch);
        self.notes.clone_from(&readings.notes);
    }

    /// Cycles per walk of this figure, for an estimate.
    #[must_use]
    pub fn cycles_per_walk(&self, figure: FigureName) -> Option<f64> {
        let calibration = self.calibration.as_ref()?;
        let cost = match figure {
            FigureName::DtlbReadMisses => calibration.read?.cycles,
            FigureName::DtlbWriteMisses => calibration.write?.cycles,
            // The kind of access is unknown: use the cost of reads, which are the most frequent.
            FigureName::DtlbMisses => calibration.read?.cycles,
            _ => return None,
        };
        Some(cost)
    }

    /// The ratio of a figure to cycles; absent where it has no meaning or no denominator, or cannot be estimated.
    #[must_use]
    pub fn ratio(&self, figure: &ChannelFigure, value: f64, cycles: u64) -> Option<f64> {
        let weight = match figure.ratio? {
            Ratio::Fraction | Ratio::Occupancy => 1.0,
            Ratio::Estimated => self.cycles_per_walk(figure.name)?,
        };
        (cycles > 0).then(|| value * weight / cycles as f64)
    }

    /// Whether a channel's figures are published.
    #[must_use]
    pub fn sound(&self, channel: usize) -> bool {
        self.channels
            .get(channel)
            .is_some_and(|channel| channel.fault.is_empty())
    }

    /// The channel of the cycles that are shown and serve as denominator.
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

/// Samples of one row: since the start and over the last minute.
#[derive(Clone, Debug, Default)]
pub struct Walks {
    /// Samples since the start.
    pub life: WalkCounters,
    recent: VecDeque<(u64, WalkCounters)>,
}

impl Walks {
    /// Adds samples that arrived at `now_ns`.
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

    /// Bytes of the last minute.
    pub(super) fn heap_bytes(&self) -> usize {
        self.recent.capacity() * size_of::<(u64, WalkCounters)>()
    }

    /// Adds a row that is folded into this one.
    pub(super) fn fold(&mut self, other: &Self) {
        self.life.add(&other.life);
    }

    /// Samples over the last minute.
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

/// Sampled cycles of a task in one activity, on all threads that work for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledCycles {
    /// Activity; a code without a name stands for all unknown ones.
    pub activity: Activity,
    /// Cycles: the event's counts from one sample to the next. Of the clock that stands in for them, its samples.
    pub events: u64,
    /// Number of samples.
    pub samples: u64,
}

impl Task {
    /// Counts sampled cycles for an activity of the task. There are few activities, so the list is short.
    pub(super) fn add_cycles(
        &mut self,
        activity: Activity,
        events: u64,
        samples: u64,
        caps: &Caps,
    ) {
        if samples == 0 {
            return;
        }
        if let Some(sum) = self.cycles.iter_mut().find(|it| it.activity == activity) {
            sum.events = sum.events.saturating_add(events);
            sum.samples = sum.samples.saturating_add(samples);
            return;
        }
        // A full list doubles, and has four places at first.
        let (len, capacity) = (self.cycles.len(), self.cycles.capacity());
        let places = if len == capacity { len.max(4) } else { 0 };
        if caps.admit(places * size_of::<SampledCycles>()) {
            self.cycles.push(SampledCycles {
                activity,
                events,
                samples,
            });
        }
    }
}

impl Executor {
    /// Counts samples of the clock that stands in for cycles, for the activity of their task.
    pub(super) fn add_clock(
        &mut self,
        context: &ContextKey,
        samples: u64,
        now_ns: u64,
        caps: &Caps,
    ) {
        let who = Attribution::from(context);
        let Some(id) = who.task else {
            return;
        };
        let Some(mut task) = self.tasks.task(id, caps) else {
            return;
        };
        task.add_cycles(who.doing.activity, samples, samples, caps);
        let used = task.join(who.stage);
        drop(task);
        self.tasks.joined(who.stage, used, now_ns, caps);
    }
}

/// Distribution of a ratio over ended tasks.
#[derive(Clone, Debug, Default)]
pub struct Distribution(BTreeMap<&'static str, Histogram<u32>>);

/// Percentiles of a distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Points {
    /// Tasks in the distribution.
    pub tasks: u64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl Distribution {
    /// Adds one task, if it has enough samples.
    pub(super) fn add(&mut self, meaning: &Meaning, task: &WalkCounters, caps: &Caps) {
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
            // Two significant digits; resizes itself.
            let key = figure.name.key();
            if !self.0.contains_key(key) && !caps.admit(HISTOGRAM_BYTES) {
                continue;
            }
            let Ok(fresh) = Histogram::new(2) else {
                continue;
            };
            let histogram = self.0.entry(key).or_insert(fresh);
            // Fails only for values beyond all memory.
            let _ = histogram.record(((ratio * PARTS) as u64).min(PARTS_MAX));
        }
    }

    /// Bytes of the histograms.
    pub(super) fn heap_bytes(&self) -> usize {
        let counts = self.0.values().map(Histogram::distinct_values);
        tree_bytes(self.0.len(), size_of::<(&str, Histogram<u32>)>())
            + counts.sum::<usize>() * size_of::<u32>()
    }

    /// Adds the distribution of a row that is folded into this one.
    pub(super) fn fold(&mut self, other: &Self) {
        for (figure, more) in &other.0 {
            match self.0.get_mut(figure) {
                // Both resize themselves, so neither is too small.
                Some(sum) => drop(sum.add(more)),
                None => {
                    self.0.insert(figure, more.clone());
                }
            }
        }
    }

    /// Percentiles of a figure; `None` without tasks.
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

impl State {
    /// Applies page-walk samples and their current meaning.
    pub(super) fn add_walks(&mut self, readings: Option<&PageWalkReadings>, now_ns: u64) {
        let Some(readings) = readings else {
            self.page_walks = None;
            return;
        };
        let mut meaning = self.page_walks.take().unwrap_or_default();
        meaning.update(readings);
        meaning.calibration.clone_from(&self.calibration);
        // A task's shares are of one event: nanoseconds and cycles have no sum.
        let cycles = meaning.cycles().filter(|_| self.clock.is_none());
        for (context, growth) in &readings.contexts {
            if self.expired_set.contains(&context.executor) {
                self.other_walks.add(growth);
                continue;
            }
            let known = self.change(context.executor, None, now_ns, |executor, caps| {
                executor.add_walks(context, growth, cycles, now_ns, caps);
            });
            if known.is_none() {
                self.other_walks.add(growth);
            }
        }
        for key in self.keys() {
            self.change_known(key, |executor, caps| {
                executor.finish_tasks(&meaning, now_ns, caps);
            });
        }
        self.page_walks = Some(meaning);
    }

    /// Applies samples of the clock that stands in for cycles. They count for the shares of a task's activities only.
    pub(super) fn add_clock(&mut self, readings: Option<&ClockReadings>, now_ns: u64) {
        self.clock = readings.map(|readings| readings.event.clone());
        for (context, samples) in readings.iter().flat_map(|it| &it.contexts) {
            if context.class().is_some() || self.expired_set.contains(&context.executor) {
                continue;
            }
            self.change(context.executor, None, now_ns, |executor, caps| {
                executor.add_clock(context, *samples, now_ns, caps);
            });
        }
    }

    /// Name of the event whose samples divide a task's CPU time by activity; `None` where none is sampled.
    pub(crate) fn event_of_cycles(&self) -> Option<&str> {
        let meaning = self.page_walks.as_ref();
        let cycles = || Some(meaning?.channels[meaning?.cycles()?].event.as_str());
        self.clock.as_deref().or_else(cycles)
    }

    /// Meaning of this machine's page-walk samples; `None` where page walks are not measured.
    #[must_use]
    pub const fn page_walks(&self) -> Option<&Meaning> {
        self.page_walks.as_ref()
    }

    /// Sets the cost of a page walk, for estimates; `None` where it is unknown.
    pub fn set_calibration(&mut self, calibration: Option<Calibration>) {
        if let Some(meaning) = &mut self.page_walks {
            meaning.calibration.clone_from(&calibration);
        }
        self.calibration = calibration;
    }

    /// Page-walk samples: of executors with a context, of executors without a context, and of executors without a row.
    #[must_use]
    pub fn walk_totals(&self) -> (WalkCounters, WalkCounters, WalkCounters) {
        let (mut with, mut without) = (WalkCounters::default(), WalkCounters::default());
        for executor in self.executors.values() {
            with.add(&executor.walks.life);
            executor
                .walks_without
                .iter()
                .for_each(|more| without.add(more));
        }
        (with, without, self.other_walks)
    }
}
