//! One stage attempt: its sums, the distribution of its tasks, and where the time of its tasks went.

use maud::{Markup, html};
use serde_json::Value;

use super::application::framed;
use super::shown::{Cell, duration, facts};
use super::{Asked, Document};
use crate::out::Kind;
use crate::serve::Refusal;
use crate::serve::routes::Parameters;
use crate::serve::stages::summary;
use crate::timeline::critical::Waited;
use crate::timeline::model::{Model, Task};
use crate::timeline::parts::{ALL, PARTS, largest};

/// A row of the distribution: path of the field, title and unit.
type Row = (&'static str, &'static str, fn(i64) -> Cell);

const ROWS: [Row; 12] = [
    ("/duration", "Duration", Cell::Duration),
    ("/executorRunTime", "Run time", Cell::Duration),
    ("/schedulerDelay", "Scheduler delay", Cell::Duration),
    (
        "/executorDeserializeTime",
        "Deserialisation",
        Cell::Duration,
    ),
    ("/jvmGcTime", "GC", Cell::Duration),
    ("/peakExecutionMemory", "Peak execution memory", Cell::Bytes),
    ("/memoryBytesSpilled", "Spilled, memory", Cell::Bytes),
    ("/diskBytesSpilled", "Spilled, disk", Cell::Bytes),
    ("/inputMetrics/bytesRead", "Input", Cell::Bytes),
    ("/shuffleReadMetrics/readBytes", "Shuffle read", Cell::Bytes),
    (
        "/shuffleReadMetrics/fetchWaitTime",
        "Fetch wait",
        Cell::Duration,
    ),
    (
        "/shuffleWriteMetrics/writeBytes",
        "Shuffle write",
        Cell::Bytes,
    ),
];

pub(super) fn page(asked: &Asked<'_>, id: &str, attempt: &str) -> Document {
    let unknown = || Refusal::not_found(format!("unknown stage: {id}, attempt {attempt}"));
    let text = asked.app.one(Kind::Stage, &format!("{id}.{attempt}"));
    let json: Value = serde_json::from_str(text.ok_or_else(unknown)?).map_err(Refusal::failed)?;
    let number = |name: &str, of: fn(i64) -> Cell| Cell::number(&json[name], of);
    let quantiles = Parameters(vec![(
        "quantiles".to_owned(),
        "0,0.25,0.5,0.75,0.95,1".to_owned(),
    )]);
    // A stage without finished tasks has none.
    let distribution = summary(asked.app, id, attempt, &quantiles).ok();
    let distribution: Option<Value> =
        distribution.and_then(|text| serde_json::from_str(&text).ok());
    let model = asked.server.timeline(asked.app)?;
    let distribution = distribution.map(|json| with_durations(json, &model, id, attempt));
    let name = json["name"].as_str().unwrap_or_default();
    let tasks = format!("{}?stage={id}.{attempt}", asked.place.part("tasks"));
    let body = html! {
        p { bdi { (name) } }
        (facts(&[
            ("Status", Cell::Status(json["status"].as_str().unwrap_or_default().to_owned())),
            ("Submitted", Cell::time(&json["submissionTime"])),
            ("Completed", Cell::time(&json["completionTime"])),
            ("Tasks", number("numTasks", Cell::Count)),
            ("Completed tasks", number("numCompleteTasks", Cell::Count)),
            ("Failed tasks", number("numFailedTasks", Cell::Count)),
            ("Killed tasks", number("numKilledTasks", Cell::Count)),
            ("Run time of all tasks", number("executorRunTime", Cell::Duration)),
            ("Input", number("inputBytes", Cell::Bytes)),
            ("Output", number("outputBytes", Cell::Bytes)),
            ("Shuffle read", number("shuffleReadBytes", Cell::Bytes)),
            ("Shuffle write", number("shuffleWriteBytes", Cell::Bytes)),
            ("Spilled, memory", number("memoryBytesSpilled", Cell::Bytes)),
            ("Spilled, disk", number("diskBytesSpilled", Cell::Bytes)),
        ]))
        @if let Some(reason) = json["failureReason"].as_str() { h2 { "Why it failed" } pre tabindex="0" { (reason) } }
        p {
            a href=(tasks) { "Tasks" } ", " a href=(format!("{tasks}&straggler=yes")) { "stragglers" } ", "
            a href=(format!("{tasks}&sort=-duration")) { "longest tasks" } ", "
            a href=(asked.place.part(&format!("timeline?stage={id}.{attempt}"))) { "time line" }
        }
        (ended(asked, &model, id, attempt))
        (time(&model, id, attempt))
        (super::chain::section(asked, id, attempt))
        @if let Some(distribution) = &distribution { (quantile_table(distribution)) }
        @if let Some(details) = json["details"].as_str().filter(|text| !text.is_empty()) {
            h2 { "Call site" } pre tabindex="0" { (details) }
        }
    };
    Ok(framed(
        asked,
        "stages",
        &format!("Stage {id}, attempt {attempt}"),
        &body,
    ))
}

/// The distribution with the durations of the successful tasks. Spark's ranks are those of all tasks, counted as if there
/// were only the successful ones: with a failed task its longest duration is not the longest.
fn with_durations(mut json: Value, model: &Model, id: &str, attempt: &str) -> Value {
    let key = id.parse().ok().zip(attempt.parse().ok());
    let stage = model.stages.iter().position(|stage| Some(stage.key) == key);
    let tasks = model.tasks.iter();
    let own = tasks.filter(|task| task.outcome == 0 && Some(task.stage as usize) == stage);
    let mut all: Vec<u32> = own.map(|task| task.duration).collect();
    all.sort_unstable();
    let shares = json["quantiles"].as_array().cloned().unwrap_or_default();
    let at = |share: f64| all[((share * all.len() as f64) as usize).min(all.len() - 1)];
    if !all.is_empty() {
        let picked = shares.iter().filter_map(Value::as_f64).map(at);
        json["duration"] = picked.collect();
    }
    json
}

/// What bounds the end of the stage, and whether the stage bounds that of a job.
fn ended(asked: &Asked<'_>, model: &Model, id: &str, attempt: &str) -> Markup {
    let key = id.parse().ok().zip(attempt.parse().ok());
    let stage = model.stages.iter().find(|stage| Some(stage.key) == key);
    let Some(last) = stage.and_then(|stage| stage.last) else {
        return html! {};
    };
    let of = |at: u32| &model.tasks[at as usize];
    let task = of(last.task);
    let link = |task: &Task| {
        let to = asked.place.part(&format!("tasks/{}", task.id));
        html! { a href=(to) { "task " (task.id) } }
    };
    let jobs = model.jobs.iter().filter(|job| {
        let mut path = job.path.iter().flatten();
        path.any(|at| Some(model.stages[*at as usize].key) == key)
    });
    let jobs: Vec<i64> = jobs.take(20).map(|job| job.id).collect();
    html! {
        h2 id="ended" { "What bounds its end" }
        p id="last" {
            "The last to end was " (link(task)) ", launched " (duration(task.launch - last.begin)) " after the stage's first task"
            @match last.waited {
                Waited::Nothing => "." ,
                Waited::Core(before) => {
                    ": it waited for a core, on which " (link(of(before))) " ran"
                    @if of(before).stage != task.stage { " (of stage " (model.stages[of(before).stage as usize].key.0) ")" } "."
                }
                Waited::Driver => ", though its executor had no more tasks than cores: the driver waited, such as for locality or a new executor.",
            }
            " It took " (duration(i64::from(task.duration)))
            @if let Some(part) = largest(&task.parts) {
                ", most of it " (ALL[part].title) " (" (duration(i64::from(task.parts[part]))) ")"
            } "."
        }
        @if !jobs.is_empty() {
            p id="critical" { "On the critical path of "
                @for (at, job) in jobs.iter().enumerate() { @if at > 0 { ", " }
                    a href=(format!("{}?job={job}", asked.place.part("stages"))) { "job " (job) } }
                "."
            }
        }
    }
}

/// Parts of the time of the stage's tasks.
fn time(model: &Model, id: &str, attempt: &str) -> Markup {
    let key = id.parse().ok().zip(attempt.parse().ok());
    let stage = model.stages.iter().position(|stage| Some(stage.key) == key);
    let (mut sums, mut unmeasured, mut total) = ([0_u64; PARTS], 0_u64, 0_u64);
    let of_stage = |stage: usize| {
        let tasks = model.tasks.iter();
        tasks.filter(move |task| task.stage as usize == stage)
    };
    for task in stage.into_iter().flat_map(of_stage) {
        total += u64::from(task.duration);
        if task.parts.iter().all(|part| *part == 0) {
            unmeasured += u64::from(task.duration);
        }
        for (sum, part) in sums.iter_mut().zip(&task.parts) {
            *sum += u64::from(*part);
        }
    }
    let share = |ms: u64| format!("{:.1} %", ms as f64 * 100.0 / total.max(1) as f64);
    html! {
        @if total > 0 {
            h2 { "Where the time of its tasks went" }
            div.wide tabindex="0" role="region" aria-label="Parts" { table.data id="parts" {
                thead { tr { th.words { "Part" } th { "Time" } th { "Share" } } }
                tbody {
                    @for (at, (part, sum)) in ALL.iter().zip(sums).enumerate() {
                        tr {
                            th.words scope="row" {
                                svg.key viewBox="0 0 1 1" aria-hidden="true" { rect class=(format!("p{at}")) width="1" height="1" {} }
                                (part.title)
                            }
                            td { (duration(sum as i64)) } td { (share(sum)) }
                        }
                    }
                    @if unmeasured > 0 {
                        tr { th.words scope="row" { "not measured" } td { (duration(unmeasured as i64)) } td { (share(unmeasured)) } }
                    }
                }
            } }
        }
    }
}

fn quantile_table(distribution: &Value) -> Markup {
    html! {
        h2 { "Distribution over successful tasks" }
        div.wide tabindex="0" role="region" aria-label="Distribution" { table.data id="distribution" {
            thead { tr { th.words { "Metric" }
                @for title in ["least", "25 %", "median", "75 %", "95 %", "most"] { th { (title) } }
            } }
            tbody {
                @for (path, title, of) in ROWS {
                    @if let Some(values) = distribution.pointer(path).and_then(Value::as_array) {
                        tr {
                            th.words scope="row" { (title) }
                            @for value in values { td { (of(value.as_f64().unwrap_or_default() as i64).shown()) } }
                        }
                    }
                }
            }
        } }
    }
}
