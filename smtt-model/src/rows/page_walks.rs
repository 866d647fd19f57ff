//! Rows of page walks: figures with a confidence interval, ratios to two denominators, the last minute, and the
//! distribution over tasks. Figures that the machine cannot measure are absent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use smtt_common::page_walk::WalkCounters;

use crate::cpu::Ratio;
use crate::readings::{Channel, ChannelFigure};
use crate::state::{Distribution, Executor, Meaning, Points, State, Walks};

/// Standard deviations on either side of a 95 % interval.
pub(super) const DEVIATIONS: f64 = 1.96;

/// A number in a row: an integer for counts, a float for ratios.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Number {
    /// Number of events or samples.
    Whole(u64),
    /// A ratio.
    Real(f64),
}

/// An estimate from samples, with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The estimate.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval; absent where there are too few samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
}

/// One page-walk figure of a row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FigureRow {
    /// Estimated number of events.
    pub events: Spread,
    /// Samples that the figure is estimated from.
    pub samples: u64,
    /// Meaning of the ratios: `fraction` of the cycles, `occupancy` per cycle, or `estimated` fraction; absent without
    /// ratios.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_is: Option<String>,
    /// Ratio of the figure to the row's own cycles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<Spread>,
    /// Ratio of the figure to all cycles of the executor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_of_executor: Option<Spread>,
    /// Ratio of the figure to the row's own cycles, over the last minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_last_minute: Option<Spread>,
    /// Ratio of the figure to all cycles of the executor, over the last minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_of_executor_last_minute: Option<Spread>,
    /// Tasks in the distribution of the figure's ratio to a task's own cycles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<u64>,
    /// Median over the tasks of the figure's ratio to the task's own cycles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_p50: Option<f64>,
    /// 95th percentile over the tasks of the figure's ratio to the task's own cycles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_p95: Option<f64>,
    /// 99th percentile over the tasks of the figure's ratio to the task's own cycles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_p99: Option<f64>,
}

/// Page walks of one row: the figures in detail below `page_walks`, and flat under their own names for columns and
/// sorting.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PageWalkRow {
    /// Details of each figure, by name of the figure.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub page_walks: BTreeMap<String, FigureRow>,
    /// `cycles`, `page_walk_samples`, and every figure and ratio that is measured.
    #[serde(flatten)]
    pub flat: BTreeMap<String, Number>,
}

/// What is measured of page walks on this machine, for `smtt-ctl status`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PageWalksShown {
    /// Microarchitecture of the core that is measured.
    pub uarch: String,
    /// Sampled events.
    pub events: Vec<EventShown>,
    /// Caveats of the figures, one per line.
    pub notes: Vec<String>,
    /// Measured cost of a page walk, for estimates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<crate::readings::Calibration>,
}

/// One event of [`PageWalksShown`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EventShown {
    /// What the event is used for.
    pub role: String,
    /// Name of the event.
    pub event: String,
    /// Number of the pass; events of different passes take turns on the counters.
    pub pass: u64,
    /// Current sampling period, in events per sample.
    pub period: u64,
    /// Events on the whole machine, according to the counters.
    pub counted: u64,
    /// Events on the whole machine, according to the samples.
    pub sampled: u64,
    /// Samples taken of the event.
    pub samples: u64,
    /// Sampled events of executors with a context.
    pub attributed: u64,
    /// Sampled events of executors without a context.
    pub unattributed: u64,
    /// Sampled events of executors without a row.
    pub forgotten: u64,
    /// Share of its enabled time in which the event had a counter, 0 to 1.
    pub counted_share: Option<f64>,
    /// Enabled time of the event, summed over CPUs, in seconds.
    pub enabled_seconds: f64,
    /// Time in which the event had a counter, summed over CPUs, in seconds.
    pub running_seconds: f64,
    /// Why the event's figures are not published; empty where they are.
    pub fault: String,
}

/// Counters of a row and of its denominators.
pub(super) struct Compared<'a> {
    pub own: &'a WalkCounters,
    pub executor: &'a WalkCounters,
    pub own_last_minute: Option<WalkCounters>,
    pub executor_last_minute: Option<WalkCounters>,
    pub distribution: Option<&'a Distribution>,
}

impl State {
    /// Page walks of a row; empty where page walks are not measured.
    pub(super) fn walks_row(&self, compared: &Compared<'_>) -> PageWalkRow {
        self.page_walks()
            .map_or_else(PageWalkRow::default, |meaning| row(meaning, compared))
    }

    /// Page walks of a row that keeps the last minute.
    pub(super) fn walks_of(
        &self,
        executor: &Executor,
        walks: &Walks,
        distribution: Option<&Distribution>,
    ) -> PageWalkRow {
        if self.page_walks().is_none() {
            return PageWalkRow::default();
        }
        let now_ns = self.now_ns();
        self.walks_row(&Compared {
            own: &walks.life,
            executor: &executor.all_walks.life,
            own_last_minute: Some(walks.last_minute(now_ns)),
            executor_last_minute: Some(executor.all_walks.last_minute(now_ns)),
            distribution,
        })
    }

    /// Page walks of a row that keeps totals only.
    pub(super) fn walks_sum(&self, executor: &Executor, own: &WalkCounters) -> PageWalkRow {
        if self.page_walks().is_none() {
            return PageWalkRow::default();
        }
        self.walks_row(&Compared {
            own,
            executor: &executor.all_walks.life,
            own_last_minute: None,
            executor_last_minute: None,
            distribution: None,
        })
    }

    /// Page walks of a part of a row; empty without a sample of the part, because a row has hundreds of parts.
    pub(super) fn walks_part(
        &self,
        executor: &Executor,
        own: Option<&WalkCounters>,
    ) -> PageWalkRow {
        own.filter(|own| is_sampled(own))
            .map_or_else(PageWalkRow::default, |own| self.walks_sum(executor, own))
    }

    /// What is measured of page walks; `None` where page walks are not measured.
    #[must_use]
    pub fn page_walks_shown(&self) -> Option<PageWalksShown> {
        let meaning = self.page_walks()?;
        let (with, without, other) = self.walk_totals();
        let event = |(index, channel): (usize, &Channel)| EventShown {
            role: channel.role.to_string(),
            event: channel.event.clone(),
            pass: channel.pass as u64,
            period: channel.period,
            counted: channel.counted,
            sampled: channel.sampled,
            samples: channel.samples,
            attributed: with.events[index],
            unattributed: without.events[index],
            forgotten: other.events[index],
            counted_share: channel.counted_share(),
            enabled_seconds: channel.enabled_ns as f64 / 1e9,
            running_seconds: channel.running_ns as f64 / 1e9,
            fault: channel.fault.clone(),
        };
        Some(PageWalksShown {
            uarch: meaning.uarch.clone(),
            events: meaning.channels.iter().enumerate().map(event).collect(),
            notes: meaning.notes.clone(),
            calibration: meaning.calibration.clone(),
        })
    }
}

/// Whether there is any sample in the counters.
pub(super) fn is_sampled(counters: &WalkCounters) -> bool {
    counters.samples.iter().any(|samples| *samples > 0)
}

fn row(meaning: &Meaning, compared: &Compared<'_>) -> PageWalkRow {
    let mut row = PageWalkRow::default();
    let mut put = |key: String, number| {
        row.flat.insert(key, number);
    };
    if let Some(cycles) = meaning.cycles() {
        put("cycles".into(), Number::Whole(compared.own.events[cycles]));
        put(
            "cycles_samples".into(),
            Number::Whole(compared.own.samples[cycles]),
        );
    }
    let mut samples = 0;
    for figure in &meaning.figures {
        samples += compared.own.samples[figure.of];
        put(
            figure.name.key().into(),
            Number::Whole(figure.value(compared.own)),
        );
        let detail = figure_row(meaning, figure, compared);
        for (suffix, ratio) in [
            ("", &detail.ratio),
            ("_of_executor", &detail.ratio_of_executor),
            ("_last_minute", &detail.ratio_last_minute),
        ] {
            if let Some(ratio) = ratio {
                put(
                    format!("{}{suffix}", figure.name.ratio_key()),
                    Number::Real(ratio.value),
                );
            }
        }
        row.page_walks.insert(figure.name.key().into(), detail);
    }
    if !meaning.figures.is_empty() {
        put("page_walk_samples".into(), Number::Whole(samples));
    }
    row
}

fn figure_row(meaning: &Meaning, figure: &ChannelFigure, compared: &Compared<'_>) -> FigureRow {
    let ratio = |own: Option<&WalkCounters>, of: Option<&WalkCounters>| {
        let cycles = figure.cycles.filter(|channel| meaning.sound(*channel))?;
        let (own, of) = (own?, of?);
        let weight = meaning.ratio(figure, 1.0, of.events[cycles])?;
        let events = spread(meaning, figure, own);
        // The denominator is sampled as well.
        let error = DEVIATIONS / (of.samples[cycles] as f64).sqrt();
        Some(Spread {
            value: events.value * weight,
            low: events.low * weight / (1.0 + error),
            high: events
                .high
                .filter(|_| error < 1.0)
                .map(|high| high * weight / (1.0 - error)),
        })
    };
    let points: Option<Points> = compared
        .distribution
        .and_then(|distribution| distribution.points(figure.name));
    FigureRow {
        events: spread(meaning, figure, compared.own),
        samples: compared.own.samples[figure.of],
        ratio_is: figure.ratio.map(|ratio| {
            match ratio {
                Ratio::Fraction => "fraction",
                Ratio::Occupancy => "occupancy",
                Ratio::Estimated => "estimated",
            }
            .to_owned()
        }),
        ratio: ratio(Some(compared.own), Some(compared.own)),
        ratio_of_executor: ratio(Some(compared.own), Some(compared.executor)),
        ratio_last_minute: ratio(
            compared.own_last_minute.as_ref(),
            compared.own_last_minute.as_ref(),
        ),
        ratio_of_executor_last_minute: ratio(
            compared.own_last_minute.as_ref(),
            compared.executor_last_minute.as_ref(),
        ),
        tasks: points.map(|points| points.tasks),
        ratio_p50: points.map(|points| points.p50),
        ratio_p95: points.map(|points| points.p95),
        ratio_p99: points.map(|points| points.p99),
    }
}

/// A figure with its 95 % interval. The number of samples is Poisson distributed: its standard deviation is its square
/// root.
fn spread(meaning: &Meaning, figure: &ChannelFigure, counters: &WalkCounters) -> Spread {
    let value = figure.value(counters) as f64;
    let of = figure.of;
    let samples = counters.samples[of] as f64;
    let Some(less) = figure.less else {
        // Events that one sample stands for; without samples, the current period.
        let weight = if counters.samples[of] > 0 {
            counters.events[of] as f64 / samples
        } else {
            meaning
                .channels
                .get(of)
                .map_or(1.0, |channel| channel.period as f64)
        };
        let (low, high) = poisson(samples);
        return Spread {
            value,
            low: low * weight,
            high: Some(high * weight),
        };
    };
    let variance = |channel: usize| {
        let samples = counters.samples[channel].max(1) as f64;
        (counters.events[channel] as f64).powi(2) / samples
    };
    let error = DEVIATIONS * (variance(of) + variance(less)).sqrt();
    Spread {
        value,
        low: (value - error).max(0.0),
        high: Some(value + error),
    }
}

/// The 95 % interval of a Poisson mean after `samples` events (Wilson and Hilferty's approximation of the exact
/// interval).
fn poisson(samples: f64) -> (f64, f64) {
    let end = |of: f64, deviations: f64| {
        let root = 1.0 - 1.0 / (9.0 * of) + deviations / (3.0 * of.sqrt());
        of * root.powi(3)
    };
    let low = if samples > 0.0 {
        end(samples, -DEVIATIONS).max(0.0)
    } else {
        0.0
    };
    (low, end(samples + 1.0, DEVIATIONS))
}

#[cfg(test)]
mod tests {
    use super::poisson;

    #[test]
    fn intervals_are_those_of_the_tables() {
        for (samples, low, high) in [
            (0.0, 0.0, 3.689),
            (1.0, 0.025, 5.572),
            (10.0, 4.795, 18.39),
            (100.0, 81.36, 121.63),
        ] {
            let (seen_low, seen_high) = poisson(samples);
            assert!(
                (seen_low - low).abs() < 0.02 * high,
                "{samples}: {seen_low}"
            );
            assert!(
                (seen_high - high).abs() < 0.02 * high,
                "{samples}: {seen_high}"
            );
        }
    }
}
