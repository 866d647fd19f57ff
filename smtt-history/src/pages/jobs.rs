//! The table of jobs: what Spark reports of them, and what their tasks, their stages, SQL and the workers add.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use maud::html;
use serde::Deserialize;
use serde_json::Value;

use super::application::framed;
use super::sections::{between, field, named, number, status, table};
use super::shown::Cell;
use super::table::Column;
use super::{Asked, Document};
use crate::out::Kind;
use crate::serve::Refusal;
use crate::timeline::memory::peak::Peaks;
use crate::timeline::model::Model;
use crate::timeline::parts::{ALL, PARTS};
use crate::timeline::waits::{Waited, Waits};

/// Parts of the tasks' time in which they do no work for their job: key of the part, and title of the column.
const LOST: [(&str, &str); 4] = [
    ("gc", "Lost to GC"),
    ("fetch", "Lost to fetch wait"),
    ("delay", "Lost to scheduler delay"),
    ("deserialize", "Lost to deserialisation"),
];
/// Stages of a critical path in a cell: the last ones.
const PATH: usize = 12;

/// What is known of a job beside its own document.
#[derive(Debug, Default)]
struct Figures {
    input: Option<i64>,
    spilled: Option<i64>,
    /// Most execution memory of one of its tasks.
    peak: Option<i64>,
    /// Most that executors held at one moment while it ran.
    held: Option<i64>,
    /// Milliseconds of all its tasks, as [`LOST`].
    lost: Option<[i64; LOST.len()]>,
    path: Option<String>,
    waited: Waited,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OfStage {
    stage_id: i64,
    input_bytes: Option<i64>,
    disk_bytes_spilled: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Query {
    id: i64,
    #[serde(default)]
    description: String,
    #[serde(default)]
    success_job_ids: Vec<i64>,
    #[serde(default)]
    failed_job_ids: Vec<i64>,
    #[serde(default)]
    running_job_ids: Vec<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stages {
    job_id: i64,
    #[serde(default)]
    stage_ids: Vec<i64>,
}

fn documents<'a, T: Deserialize<'a>>(asked: &'a Asked<'_>, kind: Kind) -> impl Iterator<Item = T> {
    let all = asked.app.all(kind).iter();
    all.filter_map(|(_, text)| serde_json::from_str(text).ok())
}

/// The SQL query of each job that has one: its id and its description.
fn queries(asked: &Asked<'_>) -> HashMap<i64, (i64, String)> {
    let mut all = HashMap::new();
    for query in documents::<Query>(asked, Kind::Sql) {
        let text = match query.description.trim() {
            "" => format!("query {}", query.id),
            text => super::shown::cut(text),
        };
        let jobs = [
            query.success_job_ids,
            query.failed_job_ids,
            query.running_job_ids,
        ];
        for job in jobs.into_iter().flatten() {
            all.insert(job, (query.id, text.clone()));
        }
    }
    all
}

fn add(sum: &mut Option<i64>, more: Option<i64>) {
    if let Some(more) = more {
        *sum = Some(sum.unwrap_or(0).saturating_add(more));
    }
}

/// Milliseconds of each part over the tasks of each stage attempt; absent where Spark has no metrics of any.
fn parts(model: &Model) -> Vec<Option<[i64; PARTS]>> {
    let mut all = vec![None; model.stages.len()];
    for task in &model.tasks {
        if task.parts.iter().any(|part| *part > 0) {
            let sums = all[task.stage as usize].get_or_insert([0_i64; PARTS]);
            for (sum, part) in sums.iter_mut().zip(&task.parts) {
                *sum = sum.saturating_add(i64::from(*part));
            }
        }
    }
    all
}

/// Waits of stages as the workers wrote them, and what is missing of them, in words.
fn waits(asked: &Asked<'_>, model: &Model) -> (Option<Arc<Waits>>, Option<String>) {
    let (waits, missing) = match asked.server.waits(asked.app, model, asked.parameters) {
        Ok(waits) => {
            let missing = (waits.spans_left_out > 0).then(|| {
                format!(
                    "{} spans were not looked at: the time in spills and merges lacks theirs.",
                    waits.spans_left_out
                )
            });
            (Some(waits), missing)
        }
        // What names paths of the machine is in the log.
        Err(Refusal(_, text)) => (None, Some(text)),
    };
    if let Some(missing) = &missing {
        asked.missing.add(format!("jobs: {missing}"));
    }
    (waits, missing)
}

fn path(model: &Model, path: &[u32]) -> Option<String> {
    let skip = path.len().saturating_sub(PATH);
    let name = |at: &u32| match model.stages[*at as usize].key {
        (id, 0) => id.to_string(),
        (id, attempt) => format!("{id}.{attempt}"),
    };
    let mut names: Vec<String> = path[skip..].iter().map(name).collect();
    if skip > 0 {
        names.insert(0, "…".to_owned());
    }
    (!names.is_empty()).then(|| names.join(" → "))
}

/// Figures of all jobs, and what is missing of them. A stage that several jobs name counts for each of them, as in Spark's
/// numbers of tasks.
fn figures(asked: &Asked<'_>) -> (HashMap<i64, Figures>, Option<String>) {
    let mut stages: BTreeMap<i64, (Option<i64>, Option<i64>)> = BTreeMap::new();
    for stage in documents::<OfStage>(asked, Kind::Stage) {
        let sums = stages.entry(stage.stage_id).or_default();
        add(&mut sums.0, stage.input_bytes);
        add(&mut sums.1, stage.disk_bytes_spilled);
    }
    let mut all: HashMap<i64, Figures> = HashMap::new();
    for job in documents::<Stages>(asked, Kind::Job) {
        let figures = all.entry(job.job_id).or_default();
        for (input, spilled) in job.stage_ids.iter().filter_map(|id| stages.get(id)) {
            add(&mut figures.input, *input);
            add(&mut figures.spilled, *spilled);
        }
    }
    // Without the table of tasks the columns below are absent.
    let Ok(model) = asked.server.timeline(asked.app) else {
        return (all, None);
    };
    let (waits, missing) = waits(asked, &model);
    let memory = asked.server.memory(asked.app, &model, asked.parameters);
    let held = memory.map(|memory| Peaks::of(&memory)).unwrap_or_default();
    let parts = parts(&model);
    let lost = LOST.map(|(key, _)| ALL.iter().position(|part| part.key == key));
    let mut attempts: HashMap<i32, Vec<usize>> = HashMap::new();
    for (at, stage) in model.stages.iter().enumerate() {
        attempts.entry(stage.key.0).or_default().push(at);
    }
    for job in &model.jobs {
        let figures = all.entry(job.id).or_default();
        let held = held.within(job.start, job.end);
        figures.held = held.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        figures.path = match &job.path {
            Some(of) => path(&model, of),
            None => Some("not known: too long".to_owned()),
        };
        let own = job.stages.iter().filter_map(|id| attempts.get(id));
        for at in own.flatten() {
            figures.peak = figures.peak.max(model.stages[*at].peak);
            if let Some(waits) = &waits {
                figures.waited.add(waits.stages[*at]);
            }
            if let Some(parts) = &parts[*at] {
                let sums = figures.lost.get_or_insert_default();
                for (sum, part) in sums.iter_mut().zip(lost) {
                    *sum = sum.saturating_add(part.map_or(0, |part| parts[part]));
                }
            }
        }
    }
    (all, missing)
}

pub(super) fn page(asked: &Asked<'_>) -> Document {
    let place = asked.place;
    let ((figures, missing), queries) = (figures(asked), queries(asked));
    let of = |json: &Value| json["jobId"].as_i64().and_then(|job| figures.get(&job));
    let figure = |of_job: fn(&Figures) -> Option<i64>, unit: fn(i64) -> Cell| {
        move |json: &Value| of(json).and_then(of_job).map_or(Cell::Absent, unit)
    };
    let mut columns: Vec<Column<'_>> = vec![
        number("jobId", "Job", |id| Cell::Id(id, None)),
        (
            ("description", "Description"),
            Box::new(|json| {
                let job = json["jobId"].as_i64().unwrap_or_default();
                let to = format!("{}?job={job}", place.part("stages"));
                Cell::Link(named(json), to)
            }),
        ),
        (
            ("sql", "SQL query"),
            Box::new(|json| {
                let query = json["jobId"].as_i64().and_then(|job| queries.get(&job));
                query.map_or(Cell::Absent, |(id, text)| {
                    Cell::Link(text.clone(), place.part(&format!("sql/{id}")))
                })
            }),
        ),
        status(),
        field("submissionTime", "Submitted", Cell::time),
        (
            ("duration", "Duration"),
            Box::new(|json| between(json, "submissionTime", "completionTime")),
        ),
        (
            ("stages", "Stages"),
            Box::new(|json| {
                let stages = json["stageIds"].as_array();
                stages.map_or(Cell::Absent, |all| Cell::Count(all.len() as i64))
            }),
        ),
        (
            ("path", "Critical path"),
            Box::new(|json| {
                let path = of(json).and_then(|it| it.path.clone());
                path.map_or(Cell::Absent, Cell::Text)
            }),
        ),
        number("numTasks", "Tasks", Cell::Count),
        number("numCompletedTasks", "Completed", Cell::Count),
        number("numFailedTasks", "Failed", Cell::Count),
        number("numKilledTasks", "Killed", Cell::Count),
        number("numSkippedTasks", "Skipped", Cell::Count),
        (
            ("input", "Input"),
            Box::new(figure(|it| it.input, Cell::Bytes)),
        ),
        (
            ("held", "Executors held at most"),
            Box::new(figure(|it| it.held, Cell::Bytes)),
        ),
        (
            ("peak", "Peak execution memory of a task"),
            Box::new(figure(|it| it.peak, Cell::Bytes)),
        ),
    ];
    for (at, (key, title)) in LOST.into_iter().enumerate() {
        let lost = move |json: &Value| {
            let lost = of(json).and_then(|it| it.lost);
            lost.map_or(Cell::Absent, |lost| Cell::Duration(lost[at]))
        };
        columns.push(((key, title), Box::new(lost)));
    }
    type Seen = (
        &'static str,
        &'static str,
        fn(&Figures) -> Option<i64>,
        fn(i64) -> Cell,
    );
    let seen: [Seen; 4] = [
        (
            "cpu_wait",
            "Lost to waiting for a CPU",
            |it| it.waited.cpu,
            Cell::Nanoseconds,
        ),
        (
            "faults",
            "Lost to page faults",
            |it| it.waited.faults,
            Cell::Nanoseconds,
        ),
        (
            "spills",
            "Lost to spills and merges",
            |it| it.waited.spills,
            Cell::Nanoseconds,
        ),
        (
            "seen",
            "Tasks seen by workers",
            |it| it.waited.seen,
            Cell::Count,
        ),
    ];
    for (key, title, of_job, unit) in seen {
        columns.push(((key, title), Box::new(figure(of_job, unit))));
    }
    columns.push((
        ("spilled", "Spilled to disk"),
        Box::new(figure(|it| it.spilled, Cell::Bytes)),
    ));
    columns.push((
        ("jobGroup", "Group"),
        Box::new(|json| Cell::text(&json["jobGroup"])),
    ));
    let statuses = ["RUNNING", "SUCCEEDED", "FAILED", "UNKNOWN"];
    let keep = |_: &Value| true;
    let table = table(
        asked,
        ("jobs", "Jobs"),
        (Kind::Job, &statuses),
        &columns,
        keep,
    )?;
    let body = html! {
        (table)
        @if let Some(missing) = &missing { p.soft { "Of what workers wrote about tasks: " (super::shown::cut(missing)) } }
        details { summary { "What the columns mean" }
            p { "Input, spills, times and peaks are those of the tasks of the job's stages; a stage that several jobs name counts "
                "for each. Lost times are sums over tasks, as on a stage's page. Spark measures how much was spilled; "
                "how long it took, workers do." }
            p { "Executors held at most: storage and execution memory that all executors held together at one moment while "
                "the job ran, as the workers' daemons saw it; also memory of other jobs. Peak execution memory of a task: "
                "Spark's metric, the largest of one task." }
            p { "Lost to waiting for a CPU, and to page faults: of the tasks' own threads, as the kernels of the workers counted "
                "them, added up over the tasks seen by workers; those of other tasks are not known. Page faults have a time where "
                "20 or more of a task were measured; it is part of its time on a CPU, of its waits, or of both. "
                "Spills and merges are spans of 1 ms or more, of the longest of each task." }
            p { "Critical path: of the stages that the job needed, the one that ended last, before it the parent that ended last, "
                "and so on to the first. The paths of all jobs together have a million stages at most; those of further jobs are not "
                "known." }
        }
    };
    Ok(framed(asked, "jobs", "Jobs", &body))
}

#[cfg(test)]
mod tests;
