//! Stages of a run with the figures of their tasks, and which stage of one run is which of another.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::path::Path;

use serde::Serialize;
use serde_json::Value;
use smtt_store::history::read::Reader;
use smtt_store::read::ParquetError;

use crate::json::milliseconds;
use crate::open::App;
use crate::out::Kind;
use crate::workers::{Files, Trouble};

/// Tasks of a run at most.
pub const MOST: usize = 1_000_000;

/// Unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Time in milliseconds.
    Ms,
    /// Size in bytes.
    Bytes,
    /// A number of things, such as page faults.
    Count,
}

/// A figure of a task.
#[derive(Debug)]
pub struct Metric {
    /// Name in JSON, such as `run_time`.
    pub key: &'static str,
    /// Name for people.
    pub title: &'static str,
    /// Unit of its values and of [`Self::least`].
    pub unit: Unit,
    /// Change of the total below which it is of no interest.
    pub least: f64,
    /// Columns of the table of tasks that are added up, and what their sum is divided by. The workers' part has no column.
    columns: (&'static [&'static str], f64),
}

const fn metric(
    key: &'static str,
    title: &'static str,
    unit: Unit,
    columns: (&'static [&'static str], f64),
) -> Metric {
    let least = match unit {
        Unit::Ms => 100.0,
        Unit::Bytes => 1_048_576.0,
        Unit::Count => 1000.0,
    };
    Metric {
        key,
        title,
        unit,
        least,
        columns,
    }
}

/// The figures that are compared for each pair of stages, in the order of the answer.
pub const METRICS: [Metric; 14] = [
    metric("task_time", "task time", Unit::Ms, (&["duration_ms"], 1.0)),
    metric(
        "run_time",
        "run time",
        Unit::Ms,
        (&["executor_run_time_ms"], 1.0),
    ),
    metric(
        "cpu_time",
        "CPU time",
        Unit::Ms,
        (&["executor_cpu_time_ns"], 1e6),
    ),
    metric("gc_time", "GC", Unit::Ms, (&["jvm_gc_time_ms"], 1.0)),
    metric(
        "fetch_wait",
        "shuffle fetch wait",
        Unit::Ms,
        (&["shuffle_fetch_wait_time_ms"], 1.0),
    ),
    metric(
        "shuffle_write_time",
        "shuffle write time",
        Unit::Ms,
        (&["shuffle_write_time_ns"], 1e6),
    ),
    metric(
        "memory_spilled",
        "spilled from memory",
        Unit::Bytes,
        (&["memory_spilled_bytes"], 1.0),
    ),
    metric(
        "disk_spilled",
        "spilled to disk",
        Unit::Bytes,
        (&["disk_spilled_bytes"], 1.0),
    ),
    metric(
        "peak_execution_memory",
        "peaks of execution memory",
        Unit::Bytes,
        (&["peak_execution_memory_bytes"], 1.0),
    ),
    metric("input", "input", Unit::Bytes, (&["input_bytes"], 1.0)),
    metric("output", "output", Unit::Bytes, (&["output_bytes"], 1.0)),
    metric(
        "shuffle_read",
        "shuffle read",
        Unit::Bytes,
        (&["shuffle_remote_bytes", "shuffle_local_bytes"], 1.0),
    ),
    metric(
        "shuffle_write",
        "shuffle write",
        Unit::Bytes,
        (&["shuffle_write_bytes"], 1.0),
    ),
    metric("page_faults", "page faults", Unit::Count, (&[], 1.0)),
];
/// The figure that only the workers have.
pub(super) const FAULTS: usize = METRICS.len() - 1;

/// A stage with all its attempts.
#[derive(Debug, Default)]
pub struct Stage {
    /// Spark's id of the stage, which all its attempts have.
    pub id: i32,
    /// Name of the stage, as the log has it.
    pub name: String,
    /// Call site, by which the stages of two runs are matched.
    site: String,
    /// Indices of its successful tasks, ascending.
    pub indices: Vec<i64>,
    /// Figures of its successful tasks, in the order of their indices, by metric.
    pub values: Vec<Vec<f64>>,
    /// Task attempts that did not succeed.
    pub unsuccessful: usize,
    /// Milliseconds from submission to completion, of all attempts.
    pub wall_ms: Option<i64>,
    /// Whether the workers counted the page faults of all its successful tasks.
    pub has_faults: bool,
}

/// The stages of an application.
#[derive(Debug, Default)]
pub struct Run {
    /// Stages that have tasks, by their ids.
    pub stages: Vec<Stage>,
    /// Tasks beyond [`MOST`].
    pub left_out: u64,
}

/// A task while it is read: index, id and figures.
type Task = (i64, i64, [f64; METRICS.len()]);

impl Run {
    /// Reads an application.
    ///
    /// # Errors
    /// When a table cannot be read.
    pub fn read(store: &Path, app: &App) -> anyhow::Result<Self> {
        let mut run = Self::default();
        let mut stages: BTreeMap<i32, (Stage, Vec<Task>)> = BTreeMap::new();
        let table = app.tasks()?;
        let (mut start, mut room) = (0, MOST as u64);
        for &count in table.groups() {
            let rows = start..start + count.min(room);
            if rows.start < rows.end {
                group(&table, &rows, &mut stages)?;
            }
            run.left_out += count - count.min(room);
            room -= count.min(room);
            start += count;
        }
        describe(app, &mut stages);
        faults(store, app, &mut stages)?;
        for (stage, mut tasks) in stages.into_values() {
            tasks.sort_by_key(|task| (task.0, task.1));
            let column = |metric: usize| tasks.iter().map(|task| task.2[metric]).collect();
            run.stages.push(Stage {
                indices: tasks.iter().map(|task| task.0).collect(),
                values: (0..METRICS.len()).map(column).collect(),
                ..stage
            });
        }
        Ok(run)
    }
}

fn group(
    table: &Reader,
    rows: &std::ops::Range<u64>,
    stages: &mut BTreeMap<i32, (Stage, Vec<Task>)>,
) -> Result<(), ParquetError> {
    let range = std::slice::from_ref(rows);
    let (ids, indices) = (
        table.numbers("stage_id", range)?,
        table.numbers("task_index", range)?,
    );
    let (tasks, statuses) = (
        table.numbers("task_id", range)?,
        table.texts("status", range)?,
    );
    let measured = table.numbers("has_metrics", range)?;
    let mut values = vec![[0.0; METRICS.len()]; ids.len()];
    for (at, metric) in METRICS.iter().enumerate() {
        for column in metric.columns.0 {
            for (row, value) in values.iter_mut().zip(table.numbers(column, range)?) {
                // Damaged logs have negative figures.
                row[at] += value.unwrap_or_default().max(0) as f64 / metric.columns.1;
            }
        }
    }
    for (row, values) in values.into_iter().enumerate() {
        let id = i32::try_from(ids[row].unwrap_or_default()).unwrap_or(-1);
        let (stage, all) = stages.entry(id).or_default();
        stage.id = id;
        if statuses[row].as_deref() == Some("SUCCESS") && measured[row] == Some(1) {
            all.push((
                indices[row].unwrap_or_default(),
                tasks[row].unwrap_or_default(),
                values,
            ));
        } else {
            stage.unsuccessful += 1;
        }
    }
    Ok(())
}

/// Names, call sites and times of stages.
fn describe(app: &App, stages: &mut BTreeMap<i32, (Stage, Vec<Task>)>) {
    for (_, text) in app.all(Kind::Stage) {
        let Ok(json) = serde_json::from_str::<Value>(text) else {
            continue;
        };
        let id = json["stageId"]
            .as_i64()
            .and_then(|id| i32::try_from(id).ok());
        let Some((stage, _)) = id.and_then(|id| stages.get_mut(&id)) else {
            continue;
        };
        let text = |name: &str| json[name].as_str().unwrap_or_default();
        text("name").clone_into(&mut stage.name);
        text("details").clone_into(&mut stage.site);
        let (begin, end) = (
            milliseconds(text("submissionTime")),
            milliseconds(text("completionTime")),
        );
        if let (Some(begin), Some(end)) = (begin, end) {
            let wall = end.saturating_sub(begin).max(0);
            stage.wall_ms = Some(stage.wall_ms.unwrap_or_default().saturating_add(wall));
        }
    }
}

/// Adds what the workers counted, to stages all of whose tasks they have.
fn faults(
    store: &Path,
    app: &App,
    stages: &mut BTreeMap<i32, (Stage, Vec<Task>)>,
) -> anyhow::Result<()> {
    let files = match Files::of(store, app.identity(), None, None) {
        // Their page faults cannot be attributed.
        Err(Trouble::Ambiguous(_)) => return Ok(()),
        Err(trouble @ Trouble::Uncopied) => {
            tracing::warn!("{}: page faults are left out: {trouble}", app.id());
            return Ok(());
        }
        files => files?,
    };
    let of = files.page_faults()?;
    if of.is_empty() {
        return Ok(());
    }
    for (stage, tasks) in stages.values_mut() {
        stage.has_faults = tasks.iter().all(|task| of.contains_key(&task.1));
        if stage.has_faults {
            for task in tasks {
                task.2[FAULTS] = of[&task.1] as f64;
            }
        }
    }
    Ok(())
}

/// What two stages have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Matched {
    /// Name and call site.
    CallSite,
    /// Name and call site but for the numbers of lines: the program was edited.
    CallSiteWithoutLines,
    /// Name but for the number of its line.
    NameWithoutLine,
}

/// A text without the numbers after colons.
fn without_lines(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        kept.push(character);
        if character == ':' {
            while characters.peek().is_some_and(char::is_ascii_digit) {
                characters.next();
            }
        }
    }
    kept
}

/// Positions of a stage in both runs, and by what they match.
pub type Pair = (usize, usize, Matched);

/// Stages that are the same, and positions of those that have no like. Of several stages of one call site the first of
/// one run is the first of the other, and so on.
#[must_use]
pub fn pairs(first: &Run, second: &Run) -> (Vec<Pair>, (Vec<usize>, Vec<usize>)) {
    type Key = fn(&Stage) -> (String, String);
    const STEPS: [(Matched, Key); 3] = [
        (Matched::CallSite, |stage| {
            (stage.name.clone(), stage.site.clone())
        }),
        (Matched::CallSiteWithoutLines, |stage| {
            (without_lines(&stage.name), without_lines(&stage.site))
        }),
        (Matched::NameWithoutLine, |stage| {
            (without_lines(&stage.name), String::new())
        }),
    ];
    let mut left: Vec<usize> = (0..first.stages.len()).collect();
    let mut right: Vec<usize> = (0..second.stages.len()).collect();
    let mut found = Vec::new();
    for (matched, key) in STEPS {
        let mut waiting: HashMap<(String, String), VecDeque<usize>> = HashMap::new();
        for &at in &right {
            waiting
                .entry(key(&second.stages[at]))
                .or_default()
                .push_back(at);
        }
        left.retain(|&at| {
            let like = waiting.get_mut(&key(&first.stages[at]));
            let Some(like) = like.and_then(VecDeque::pop_front) else {
                return true;
            };
            found.push((at, like, matched));
            false
        });
        let taken: HashSet<usize> = found.iter().map(|pair| pair.1).collect();
        right.retain(|at| !taken.contains(at));
    }
    found.sort_unstable_by_key(|pair| (pair.0, pair.1));
    (found, (left, right))
}
