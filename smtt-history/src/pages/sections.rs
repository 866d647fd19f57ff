//! Sections that are tables of an application's documents.

use std::collections::BTreeMap;

use maud::html;
use serde_json::Value;

use super::application::framed;
use super::place::quoted;
use super::shown::{Cell, cut, facts};
use super::table::{Choice, Column, Head, Request, documents, form, rows};
use super::{Asked, Document};
use crate::out::Kind;
use crate::serve::Refusal;

/// Bytes of a plan on a page; the REST API has the rest.
const PLAN: usize = 1 << 20;
/// Bytes of the names of jobs in a cell.
const JOBS: usize = 200;

/// A column that shows a field.
pub(super) fn field<'a>(
    key: &'static str,
    title: &'static str,
    of: fn(&Value) -> Cell,
) -> Column<'a> {
    ((key, title), Box::new(move |json| of(&json[key])))
}

/// A column that shows a number.
pub(super) fn number<'a>(
    key: &'static str,
    title: &'static str,
    of: fn(i64) -> Cell,
) -> Column<'a> {
    (
        (key, title),
        Box::new(move |json| Cell::number(&json[key], of)),
    )
}

pub(super) fn status<'a>() -> Column<'a> {
    field("status", "Status", |value| {
        let text = value.as_str().filter(|text| !text.is_empty());
        text.map_or(Cell::Absent, |text| Cell::Status(text.to_owned()))
    })
}

/// Time between two fields.
pub(super) fn between(json: &Value, from: &str, to: &str) -> Cell {
    match (Cell::time(&json[from]), Cell::time(&json[to])) {
        (Cell::Time(from), Cell::Time(to)) => Cell::Duration(to.saturating_sub(from).max(0)),
        _ => Cell::Absent,
    }
}

/// Description where there is one, else name.
pub(super) fn named(json: &Value) -> String {
    let description = json["description"].as_str().filter(|text| !text.is_empty());
    let name = description.or_else(|| json["name"].as_str());
    name.unwrap_or_default().to_owned()
}

/// A section that is one table.
fn section(
    asked: &Asked<'_>,
    of: (&'static str, &str),
    kind: (Kind, &[&str]),
    columns: &[Column<'_>],
    keep: impl Fn(&Value) -> bool,
) -> Document {
    let table = table(asked, of, kind, columns, keep)?;
    Ok(framed(asked, of.0, of.1, &table))
}

/// A table of documents with its filters.
pub(super) fn table(
    asked: &Asked<'_>,
    (path, title): (&'static str, &str),
    (kind, statuses): (Kind, &[&str]),
    columns: &[Column<'_>],
    keep: impl Fn(&Value) -> bool,
) -> Document {
    let request = Request::new(asked.parameters)?;
    let all = asked.app.all(kind).iter();
    let mut all: Vec<&str> = all.map(|(_, text)| text.as_str()).collect();
    // The newest is first, as in Spark's pages.
    if matches!(kind, Kind::Job | Kind::Stage | Kind::Sql) {
        all.reverse();
    }
    let wanted = request.value("status").to_owned();
    let has = |json: &Value| (wanted.is_empty() || json["status"] == *wanted) && keep(json);
    let table = documents(&request, path, title, columns, &all, has)?;
    let choice = Choice {
        name: "status",
        title: "Status",
        values: statuses,
    };
    let choices = if statuses.is_empty() {
        &[][..]
    } else {
        std::slice::from_ref(&choice)
    };
    Ok(html! { (form(&request, "Search", choices)) (table) })
}

/// Jobs on whose critical path a stage attempt is, in words.
fn critical(asked: &Asked<'_>) -> BTreeMap<(i64, i64), String> {
    let mut all: BTreeMap<(i64, i64), String> = BTreeMap::new();
    let Ok(model) = asked.server.timeline(asked.app) else {
        return all;
    };
    for job in &model.jobs {
        for at in job.path.iter().flatten() {
            let (id, attempt) = model.stages[*at as usize].key;
            let text = all.entry((id.into(), attempt.into())).or_default();
            if text.is_empty() {
                *text = format!("job {}", job.id);
            } else if text.len() < JOBS {
                text.push_str(&format!(", job {}", job.id));
            }
        }
    }
    all
}

pub(super) fn stages(asked: &Asked<'_>) -> Document {
    let place = asked.place;
    // Stages of the job that the address names.
    let job = asked.parameters.one("job").filter(|job| !job.is_empty());
    let of_job: Option<Vec<i64>> = match job {
        None => None,
        Some(id) => {
            let text = asked.app.one(Kind::Job, id);
            let text = text.ok_or_else(|| Refusal::not_found(format!("unknown job: {id}")))?;
            let json: Value = serde_json::from_str(text).map_err(Refusal::failed)?;
            let ids = json["stageIds"].as_array().into_iter().flatten();
            Some(ids.filter_map(Value::as_i64).collect())
        }
    };
    let critical = critical(asked);
    let columns: [Column<'_>; 17] = [
        number("stageId", "Stage", |id| Cell::Id(id, None)),
        number("attemptId", "Attempt", Cell::Count),
        (
            ("name", "Name"),
            Box::new(|json| {
                let of = |name: &str| json[name].as_i64().unwrap_or_default();
                let part = format!("stages/{}/{}", of("stageId"), of("attemptId"));
                let name = json["name"].as_str().unwrap_or_default().to_owned();
                Cell::Link(name, place.part(&part))
            }),
        ),
        status(),
        field("submissionTime", "Submitted", Cell::time),
        (
            ("duration", "Duration"),
            Box::new(|json| between(json, "submissionTime", "completionTime")),
        ),
        (
            ("critical", "Critical for"),
            Box::new(|json| {
                let key = (json["stageId"].as_i64(), json["attemptId"].as_i64());
                let jobs = key.0.zip(key.1).and_then(|key| critical.get(&key));
                jobs.map_or(Cell::Absent, |jobs| Cell::Text(jobs.clone()))
            }),
        ),
        number("numTasks", "Tasks", Cell::Count),
        number("numFailedTasks", "Failed", Cell::Count),
        number("executorRunTime", "Run time", Cell::Duration),
        number("jvmGcTime", "GC", Cell::Duration),
        number("inputBytes", "Input", Cell::Bytes),
        number("outputBytes", "Output", Cell::Bytes),
        number("shuffleReadBytes", "Shuffle read", Cell::Bytes),
        number("shuffleWriteBytes", "Shuffle write", Cell::Bytes),
        number("memoryBytesSpilled", "Spilled, memory", Cell::Bytes),
        number("diskBytesSpilled", "Spilled, disk", Cell::Bytes),
    ];
    let statuses = ["ACTIVE", "COMPLETE", "FAILED", "PENDING", "SKIPPED"];
    let keep = |json: &Value| {
        let stage = json["stageId"].as_i64();
        of_job
            .as_ref()
            .is_none_or(|ids| stage.is_some_and(|stage| ids.contains(&stage)))
    };
    let title = job.map_or_else(|| "Stages".to_owned(), |job| format!("Stages of job {job}"));
    section(
        asked,
        ("stages", &title),
        (Kind::Stage, &statuses),
        &columns,
        keep,
    )
}

pub(super) fn executors(asked: &Asked<'_>) -> Document {
    let place = asked.place;
    let columns: [Column<'_>; 17] = [
        (
            ("id", "Executor"),
            Box::new(|json| {
                let id = json["id"].as_str().unwrap_or_default().to_owned();
                let to = format!("{}?executor={}", place.part("tasks"), quoted(&id));
                // Numbers sort as numbers.
                match id.parse() {
                    Ok(number) => Cell::Id(number, Some(to)),
                    Err(_) => Cell::Link(id, to),
                }
            }),
        ),
        field("hostPort", "Address", Cell::text),
        (
            ("isActive", "Status"),
            Box::new(|json| {
                let is_active = json["isActive"] == true;
                Cell::Status(if is_active { "ACTIVE" } else { "DEAD" }.to_owned())
            }),
        ),
        number("totalCores", "Cores", Cell::Count),
        number("completedTasks", "Completed", Cell::Count),
        number("failedTasks", "Failed", Cell::Count),
        number("totalDuration", "Task time", Cell::Duration),
        number("totalGCTime", "GC", Cell::Duration),
        number("totalInputBytes", "Input", Cell::Bytes),
        number("totalShuffleRead", "Shuffle read", Cell::Bytes),
        number("totalShuffleWrite", "Shuffle write", Cell::Bytes),
        number("rddBlocks", "RDD blocks", Cell::Count),
        number("memoryUsed", "Storage memory", Cell::Bytes),
        number("maxMemory", "of", Cell::Bytes),
        field("addTime", "Added", Cell::time),
        field("removeTime", "Removed", Cell::time),
        field("removeReason", "Reason", Cell::text),
    ];
    let keep = |_: &Value| true;
    section(
        asked,
        ("executors", "Executors"),
        (Kind::Executor, &[]),
        &columns,
        keep,
    )
}

pub(super) fn rdds(asked: &Asked<'_>) -> Document {
    let columns: [Column<'_>; 7] = [
        number("id", "RDD", |id| Cell::Id(id, None)),
        field("name", "Name", Cell::text),
        field("storageLevel", "Storage level", Cell::text),
        number("numPartitions", "Partitions", Cell::Count),
        number("numCachedPartitions", "Cached", Cell::Count),
        number("memoryUsed", "Memory", Cell::Bytes),
        number("diskUsed", "Disk", Cell::Bytes),
    ];
    let keep = |_: &Value| true;
    section(
        asked,
        ("rdds", "Cached RDDs"),
        (Kind::Rdd, &[]),
        &columns,
        keep,
    )
}

pub(super) fn queries(asked: &Asked<'_>) -> Document {
    let place = asked.place;
    let columns: [Column<'_>; 8] = [
        number("id", "Query", |id| Cell::Id(id, None)),
        (
            ("description", "Description"),
            Box::new(|json| {
                let id = json["id"].as_i64().unwrap_or_default();
                let text = json["description"]
                    .as_str()
                    .filter(|text| !text.trim().is_empty());
                let text = text.map_or_else(|| format!("query {id}"), str::to_owned);
                Cell::Link(text, place.part(&format!("sql/{id}")))
            }),
        ),
        status(),
        field("submissionTime", "Submitted", Cell::time),
        number("duration", "Duration", Cell::Duration),
        count_of("successJobIds", "Jobs done"),
        count_of("failedJobIds", "Jobs failed"),
        count_of("runningJobIds", "Jobs running"),
    ];
    let statuses = ["RUNNING", "COMPLETED", "FAILED"];
    let keep = |_: &Value| true;
    section(
        asked,
        ("sql", "SQL queries"),
        (Kind::Sql, &statuses),
        &columns,
        keep,
    )
}

fn count_of<'a>(key: &'static str, title: &'static str) -> Column<'a> {
    let count = |value: &Value| {
        let list = value.as_array();
        list.map_or(Cell::Absent, |list| Cell::Count(list.len() as i64))
    };
    field(key, title, count)
}

/// One SQL query with its plan as text.
pub(super) fn query(asked: &Asked<'_>, id: &str) -> Document {
    let text = asked.app.one(Kind::Sql, id);
    let text = text.ok_or_else(|| Refusal::not_found(format!("unknown query: {id}")))?;
    let json: Value = serde_json::from_str(text).map_err(Refusal::failed)?;
    let plan = json["planDescription"].as_str().unwrap_or_default();
    let shown = &plan[..plan.floor_char_boundary(PLAN)];
    let jobs: Vec<&Value> = ["successJobIds", "failedJobIds", "runningJobIds"]
        .iter()
        .filter_map(|name| json[name].as_array())
        .flatten()
        .collect();
    let status = json["status"].as_str().unwrap_or_default();
    let body = html! {
        p { bdi { (cut(json["description"].as_str().unwrap_or_default())) } }
        (facts(&[
            ("Status", Cell::Status(status.to_owned())),
            ("Submitted", Cell::time(&json["submissionTime"])),
            ("Duration", Cell::number(&json["duration"], Cell::Duration)),
        ]))
        @if !jobs.is_empty() {
            p { "Jobs: "
                @for job in jobs.iter().take(200).filter_map(|job| job.as_i64()) {
                    a href=(format!("{}?job={job}", asked.place.part("stages"))) { (job) } " "
                }
            }
        }
        @if let Some(error) = json["errorMessage"].as_str().filter(|it| !it.is_empty()) { pre { (cut(error)) } }
        h2 { "Plan" }
        pre.plan tabindex="0" { (shown) }
        @if shown.len() < plan.len() { p.soft { "The plan is longer; the REST API has all of it." } }
    };
    Ok(framed(asked, "sql", &format!("Query {id}"), &body))
}

/// Properties by group.
pub(super) fn environment(asked: &Asked<'_>) -> Document {
    const GROUPS: [(&str, &str); 5] = [
        ("sparkProperties", "Spark"),
        ("hadoopProperties", "Hadoop"),
        ("systemProperties", "system"),
        ("metricsProperties", "metrics"),
        ("classpathEntries", "class path"),
    ];
    let text = asked.app.one(Kind::Environment, "");
    let text = text.ok_or_else(|| Refusal::not_found("the log has no environment"))?;
    let json: Value = serde_json::from_str(text).map_err(Refusal::failed)?;
    let request = Request::new(asked.parameters)?;
    let wanted = request.value("group");
    let runtime = &json["runtime"];
    let mut all: Vec<Vec<Cell>> = Vec::new();
    for (key, group) in GROUPS {
        if !wanted.is_empty() && wanted != group {
            continue;
        }
        for pair in json[key].as_array().into_iter().flatten() {
            let text = |at: usize| pair[at].as_str().unwrap_or_default();
            let found = [text(0), text(1)];
            if found
                .iter()
                .any(|text| text.to_lowercase().contains(&request.search))
            {
                all.push(vec![
                    Cell::Text(group.to_owned()),
                    Cell::Text(text(0).to_owned()),
                    Cell::Text(text(1).to_owned()),
                ]);
            }
        }
    }
    const HEADS: [Head; 3] = [("group", "Group"), ("name", "Name"), ("value", "Value")];
    if let Some((key, down)) = &request.sort {
        let column = HEADS.iter().position(|(known, _)| known == key);
        let column =
            column.ok_or_else(|| Refusal::bad(format!("the table has no column {key}")))?;
        all.sort_by(|left, right| super::table::order(&left[column], &right[column], *down));
    }
    let total = all.len();
    let page = &all[request.page(total)];
    let groups = GROUPS.map(|(_, group)| group);
    let choice = Choice {
        name: "group",
        title: "Group",
        values: &groups,
    };
    let body = html! {
        (facts(&[
            ("Java", Cell::text(&runtime["javaVersion"])),
            ("Java's folder", Cell::text(&runtime["javaHome"])),
            ("Scala", Cell::text(&runtime["scalaVersion"])),
        ]))
        (form(&request, "Search", &[choice]))
        (rows(&request, "environment", "Properties", &HEADS, total, page))
    };
    Ok(framed(asked, "environment", "Environment", &body))
}
