//! What changed between two runs of an application: stage by stage, matched by call site, each figure with the interval
//! of its change.
//!
//! [`stages`] reads the tasks of an application and pairs the stages of two; [`interval`] separates change from noise;
//! [`text`] writes the result for people. docs/HISTORY.md states the test.

pub mod interval;
pub mod stages;
#[cfg(test)]
mod tests;
pub mod text;

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use self::interval::{Interval, difference};
use self::stages::{FAULTS, METRICS, Matched, Run, Stage, Unit, pairs};
use crate::open::App;
use crate::out::Kind;

/// Probability that a comparison without any change reports one, at most.
pub const FALSE_ALARM: f64 = 0.01;
/// Change of a total below which it is not reported, as a share of the larger total.
pub const LEAST_SHARE: f64 = 0.05;
/// Tasks that a stage needs in both runs.
pub const LEAST_TASKS: usize = 5;
/// Properties that differ between any two runs.
const OF_A_RUN: [&str; 8] = [
    "spark.app.id",
    "spark.app.startTime",
    "spark.app.submitTime",
    "spark.driver.host",
    "spark.driver.port",
    "spark.executor.id",
    "spark.repl.class.outputDir",
    "spark.repl.class.uri",
];

/// What the interval says of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The second run has more.
    More,
    /// The second run has less.
    Less,
    /// The spread over tasks explains the difference, or it is too small to be of interest.
    Same,
    /// Fewer tasks than [`LEAST_TASKS`].
    TooFewTasks,
}

/// A figure of a pair of stages: sums over successful tasks.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// Name in JSON, such as `run_time`.
    pub key: &'static str,
    /// Name for people.
    pub title: &'static str,
    /// Unit of all numbers.
    pub unit: Unit,
    /// Total in the first run.
    pub first: f64,
    /// Total in the second run.
    pub second: f64,
    /// Interval of the difference; absent where there are too few tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
    /// Whether it changed.
    pub verdict: Verdict,
}

/// A stage of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    /// Spark's id of the stage, which all its attempts have.
    pub stage: i32,
    /// Number of its successful tasks.
    pub tasks: usize,
    /// Task attempts that did not succeed.
    pub unsuccessful: usize,
    /// Milliseconds from submission to completion, of all attempts; absent where the log has not both. One observation:
    /// it has no interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_ms: Option<i64>,
}

impl Side {
    fn of(stage: &Stage) -> Self {
        Self {
            stage: stage.id,
            tasks: stage.indices.len(),
            unsuccessful: stage.unsuccessful,
            wall_ms: stage.wall_ms,
        }
    }
}

/// Two stages of one call site.
#[derive(Clone, Debug, Serialize)]
pub struct Pair {
    /// Name of the stage in the first run.
    pub name: String,
    /// What the two have in common.
    pub matched_by: Matched,
    /// Whether tasks are compared one by one, by their index.
    pub paired: bool,
    /// In the first run.
    pub first: Side,
    /// In the second run.
    pub second: Side,
    /// Figures that are not zero in both.
    pub figures: Vec<Figure>,
}

/// A stage without its like.
#[derive(Clone, Debug, Serialize)]
pub struct Alone {
    /// Name of the stage, as the log has it.
    pub name: String,
    /// Id and tasks of the stage.
    #[serde(flatten)]
    pub side: Side,
}

/// One of the two applications that are compared.
#[derive(Clone, Debug, Serialize)]
pub struct About {
    /// Id that Spark gave the application.
    pub id: String,
    /// Name that the application gave itself.
    pub name: String,
    /// Milliseconds; absent where it has not ended. One observation: it has no interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<i64>,
    /// Tasks beyond those that were read.
    pub left_out_tasks: u64,
}

/// A property whose value is not the same.
#[derive(Clone, Debug, Serialize)]
pub struct Property {
    /// Name of the property, such as `spark.executor.cores`.
    pub name: String,
    /// Value in the first run.
    pub first: Option<String>,
    /// Value in the second run.
    pub second: Option<String>,
}

/// What differs between two applications.
#[derive(Clone, Debug, Serialize)]
pub struct Diff {
    /// The first run.
    pub first: About,
    /// The second run.
    pub second: About,
    /// Confidence of each interval: with so many comparisons together they hold with 99 %.
    pub confidence: f64,
    /// Number of comparisons that [`Self::confidence`] allows for.
    pub comparisons: usize,
    /// Spark's properties that differ.
    pub properties: Vec<Property>,
    /// Stages of both runs.
    pub stages: Vec<Pair>,
    /// Stages of the first run only.
    pub only_first: Vec<Alone>,
    /// Stages of the second run only.
    pub only_second: Vec<Alone>,
}

impl Diff {
    /// Figures that changed, with their stages.
    pub fn changed(&self) -> impl Iterator<Item = (&Pair, &Figure)> {
        let of = |pair| {
            let figures = <Pair as AsRef<[Figure]>>::as_ref(pair).iter();
            figures.map(move |figure| (pair, figure))
        };
        let all = self.stages.iter().flat_map(of);
        all.filter(|(_, figure)| matches!(figure.verdict, Verdict::More | Verdict::Less))
    }
}

impl AsRef<[Figure]> for Pair {
    fn as_ref(&self) -> &[Figure] {
        &self.figures
    }
}

fn about(app: &App, run: &Run) -> About {
    let own = app.all(Kind::Application).first();
    let own: Value = own
        .and_then(|(_, text)| serde_json::from_str(text).ok())
        .unwrap_or_default();
    let attempt = &own["attempts"][0];
    let has_ended = attempt["completed"] == true;
    About {
        id: own["id"].as_str().unwrap_or_default().to_owned(),
        name: own["name"].as_str().unwrap_or_default().to_owned(),
        duration_ms: attempt["duration"].as_i64().filter(|_| has_ended),
        left_out_tasks: run.left_out,
    }
}

/// Spark's properties, without those that differ between any two runs.
fn properties(app: &App) -> BTreeMap<String, String> {
    let mut all = app.spark_properties();
    all.retain(|name, _| !OF_A_RUN.contains(&name.as_str()));
    all
}

fn changed_properties(first: &App, second: &App) -> Vec<Property> {
    let (first, second) = (properties(first), properties(second));
    let mut names: Vec<&String> = first.keys().chain(second.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let differ = names
        .into_iter()
        .filter(|name| first.get(*name) != second.get(*name));
    differ
        .map(|name| Property {
            name: name.clone(),
            first: first.get(name).cloned(),
            second: second.get(name).cloned(),
        })
        .collect()
}

/// Compares two applications. `store` has the workers' part, where there is one.
///
/// # Errors
/// When a table cannot be read.
pub fn diff(store: &Path, first: &App, second: &App) -> anyhow::Result<Diff> {
    let runs = [Run::read(store, first)?, Run::read(store, second)?];
    let (matched, alone) = pairs(&runs[0], &runs[1]);
    let is_used = |metric: usize, (first, second, _): &(usize, usize, Matched)| {
        let both = [&runs[0].stages[*first], &runs[1].stages[*second]];
        // What one run did not count is not zero.
        let is_known = metric != FAULTS || both.iter().all(|stage| stage.has_faults);
        let has = |stage: &&Stage| stage.values[metric].iter().any(|value| *value != 0.0);
        is_known && both.iter().any(has)
    };
    let counts = matched.iter();
    let counts = counts.map(|pair| (0..METRICS.len()).filter(|at| is_used(*at, pair)).count());
    let comparisons = counts.sum::<usize>();
    let confidence = 1.0 - FALSE_ALARM / comparisons.max(1) as f64;
    let stages = matched.iter().map(|pair| {
        let (left, right) = (&runs[0].stages[pair.0], &runs[1].stages[pair.1]);
        let paired = left.indices == right.indices;
        let used = (0..METRICS.len()).filter(|metric| is_used(*metric, pair));
        Pair {
            name: left.name.clone(),
            matched_by: pair.2,
            paired,
            first: Side::of(left),
            second: Side::of(right),
            figures: used
                .map(|metric| figure(metric, left, right, paired, confidence))
                .collect(),
        }
    });
    let side = |run: &Run, alone: &[usize]| -> Vec<Alone> {
        let stages = alone.iter().map(|at| &run.stages[*at]);
        let one = |stage: &Stage| Alone {
            name: stage.name.clone(),
            side: Side::of(stage),
        };
        stages.map(one).collect()
    };
    Ok(Diff {
        stages: stages.collect(),
        first: about(first, &runs[0]),
        second: about(second, &runs[1]),
        confidence,
        comparisons,
        properties: changed_properties(first, second),
        only_first: side(&runs[0], &alone.0),
        only_second: side(&runs[1], &alone.1),
    })
}

fn figure(metric: usize, first: &Stage, second: &Stage, paired: bool, confidence: f64) -> Figure {
    let (left, right) = (&first.values[metric], &second.values[metric]);
    let metric = &METRICS[metric];
    let (before, after) = (left.iter().sum::<f64>(), right.iter().sum::<f64>());
    let has_enough = left.len().min(right.len()) >= LEAST_TASKS;
    let interval = has_enough.then(|| difference(left, right, paired, confidence));
    let change = after - before;
    let is_worth = change.abs() >= metric.least && change.abs() >= LEAST_SHARE * before.max(after);
    let verdict = match interval {
        None => Verdict::TooFewTasks,
        Some(interval) if is_worth && interval.low > 0.0 => Verdict::More,
        Some(interval) if is_worth && interval.high < 0.0 => Verdict::Less,
        Some(_) => Verdict::Same,
    };
    Figure {
        key: metric.key,
        title: metric.title,
        unit: metric.unit,
        first: before,
        second: after,
        interval,
        verdict,
    }
}
