//! Stages: lists, attempts with their tasks, and summaries.

use std::cell::Cell;

use serde_json::{Map, Value};

use super::Refusal;
use super::quantiles::{executor_distributions, task_distributions};
use super::routes::{Answer, Parameters, filtered, known};
use super::tasks::{STATUSES as TASK_STATUSES, Selection, key, positions, read};
use crate::open::App;
use crate::out::Kind;

/// Tasks that an answer with details may have, in all its stages. `taskList` pages through more.
const MOST: usize = 100_000;

/// Quantiles that Spark takes where none are asked for.
const DEFAULT: &str = "0.0,0.25,0.5,0.75,1.0";

/// Values of a stage's status.
const STATUSES: [&str; 5] = ["ACTIVE", "COMPLETE", "FAILED", "PENDING", "SKIPPED"];

/// What an answer has beside the stage itself.
struct With {
    tasks: bool,
    summaries: bool,
    statuses: Vec<&'static str>,
    quantiles: Vec<f64>,
    /// Tasks for which the answer still has room.
    left: Cell<usize>,
}

impl With {
    fn new(parameters: &Parameters, details: bool) -> Result<Self, Refusal> {
        Ok(Self {
            tasks: parameters.flag("details", details),
            summaries: parameters.flag("withSummaries", false),
            statuses: known(parameters, "taskStatus", &TASK_STATUSES)?,
            quantiles: quantiles(parameters.one("quantiles").unwrap_or(DEFAULT))?,
            left: Cell::new(MOST),
        })
    }
}

pub(super) fn list(app: &App, parameters: &Parameters) -> Answer {
    let texts = app
        .all(Kind::Stage)
        .iter()
        .rev()
        .map(|(_, text)| text.as_str());
    let text = filtered(texts, "status", &STATUSES, parameters)?;
    let with = With::new(parameters, false)?;
    if !with.tasks && !with.summaries {
        return Ok(text);
    }
    let mut all = all_detailed(app, &text, &with)?;
    if with.tasks && !with.statuses.is_empty() {
        all.retain(|stage| with.statuses.iter().any(|status| counts(stage, status) > 0));
    }
    Ok(Value::from(all).to_string())
}

/// How often tasks of a stage ended in a status, by the stage's counts. As in Spark, these have a task whose output or result
/// was lost among the failed ones, though its own status is another.
fn counts(stage: &Value, status: &str) -> i64 {
    let number = |name: &str| stage[name].as_i64().unwrap_or_default();
    let [failed, killed, active, complete] = [
        "numFailedTasks",
        "numKilledTasks",
        "numActiveTasks",
        "numCompleteTasks",
    ]
    .map(number);
    match status {
        "FAILED" => failed,
        "KILLED" => killed,
        "RUNNING" => active,
        "SUCCESS" => complete,
        _ => [failed, killed, active, complete]
            .into_iter()
            .fold(number("numTasks"), i64::wrapping_sub),
    }
}

fn all_detailed(app: &App, text: &str, with: &With) -> Result<Vec<Value>, Refusal> {
    let all: Vec<Map<String, Value>> = serde_json::from_str(text).map_err(Refusal::failed)?;
    all.into_iter()
        .map(|stage| detailed(app, stage, with))
        .collect()
}

pub(super) fn attempts(app: &App, id: &str, parameters: &Parameters) -> Answer {
    let with = With::new(parameters, true)?;
    let prefix = format!("{id}.");
    let all = app.all(Kind::Stage).iter();
    let of_stage = all.filter(|(known, _)| known.starts_with(&prefix));
    let found: Result<Vec<Value>, Refusal> = of_stage
        .map(|(_, text)| {
            detailed(
                app,
                serde_json::from_str(text).map_err(Refusal::failed)?,
                &with,
            )
        })
        .collect();
    let found = found?;
    if found.is_empty() {
        return Err(Refusal::not_found(format!("unknown stage: {id}")));
    }
    Ok(Value::from(found).to_string())
}

pub(super) fn one(app: &App, id: &str, attempt: &str, parameters: &Parameters) -> Answer {
    let with = With::new(parameters, true)?;
    let Some(text) = app.one(Kind::Stage, &format!("{id}.{attempt}")) else {
        let prefix = format!("{id}.");
        let all = app.all(Kind::Stage).iter();
        let known: Vec<&str> = all.filter_map(|(id, _)| id.strip_prefix(&prefix)).collect();
        return Err(Refusal::not_found(if known.is_empty() {
            format!("unknown stage: {id}")
        } else {
            format!(
                "unknown attempt for stage {id}.  Found attempts: [{}]",
                known.join(",")
            )
        }));
    };
    let stage = serde_json::from_str(text).map_err(Refusal::failed)?;
    Ok(detailed(app, stage, &with)?.to_string())
}

pub(crate) fn summary(app: &App, id: &str, attempt: &str, parameters: &Parameters) -> Answer {
    let text = parameters
        .one("quantiles")
        .unwrap_or("0.05,0.25,0.5,0.75,0.95");
    let quantiles = quantiles(text)?;
    let none = || {
        Refusal::not_found(format!(
            "No tasks reported metrics for {id} / {attempt} yet."
        ))
    };
    let stage = key(id, attempt).ok_or_else(none)?;
    let summary = task_distributions(app, stage, &quantiles).map_err(Refusal::failed)?;
    summary.map(|summary| summary.to_string()).ok_or_else(none)
}

fn detailed(app: &App, mut stage: Map<String, Value>, with: &With) -> Result<Value, Refusal> {
    let number = |name: &str| {
        stage[name]
            .as_i64()
            .and_then(|number| i32::try_from(number).ok())
    };
    let key = number("stageId")
        .zip(number("attemptId"))
        .unwrap_or_default();
    let details = app.one(Kind::StageDetails, &format!("{}.{}", key.0, key.1));
    let details: Map<String, Value> = details
        .map_or(Ok(Map::new()), serde_json::from_str)
        .map_err(Refusal::failed)?;
    if with.tasks {
        let tasks = app.tasks().map_err(Refusal::failed)?;
        let selection = Selection {
            statuses: &with.statuses,
            order: None,
            offset: 0,
            length: usize::MAX,
        };
        let rows = positions(app, &tasks, key, &selection).map_err(Refusal::failed)?;
        let Some(left) = with.left.get().checked_sub(rows.len()) else {
            return Err(Refusal::bad(format!(
                "with the {} tasks of stage {} the answer has more than {MOST}: ask for pages of taskList, or for details=false",
                rows.len(),
                key.0,
            )));
        };
        with.left.set(left);
        let tasks = read(app, &tasks, &rows).map_err(Refusal::failed)?;
        let tasks: Map<String, Value> = tasks
            .into_iter()
            .map(|task| (task["taskId"].to_string(), task))
            .collect();
        stage.insert("tasks".to_owned(), tasks.into());
        stage.extend(details.clone());
    }
    if with.summaries {
        let of_tasks = task_distributions(app, key, &with.quantiles).map_err(Refusal::failed)?;
        if let Some(of_tasks) = of_tasks {
            stage.insert("taskMetricsDistributions".to_owned(), of_tasks);
        }
        let executors = details.get("executorSummary").and_then(Value::as_object);
        if let Some(executors) = executors.filter(|executors| !executors.is_empty()) {
            let of_executors = executor_distributions(executors, &with.quantiles);
            stage.insert("executorMetricsDistributions".to_owned(), of_executors);
        }
    }
    Ok(stage.into())
}

pub(super) fn quantiles(text: &str) -> Result<Vec<f64>, Refusal> {
    let mut all = Vec::new();
    for one in text.split(',') {
        let bad = || {
            Refusal::bad(format!(
                "Bad value for parameter \"quantiles\".  Expected a double, got \"{one}\""
            ))
        };
        let quantile: f64 = one.trim().parse().map_err(|_| bad())?;
        if !(0.0..=1.0).contains(&quantile) || all.len() > 1000 {
            return Err(bad());
        }
        all.push(quantile);
    }
    all.sort_by(f64::total_cmp);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::import::{Admission, import};
    use crate::log::Bounds;

    #[test]
    fn tasks_are_counted_over_all_stages_of_an_answer() {
        let folder = tempfile::tempdir().expect("makes a folder");
        let mut log = r#"{"Event":"SparkListenerApplicationStart","App Name":"n","App ID":"app-1","Timestamp":1,"User":"u"}"#.to_owned();
        for stage in 0..3 {
            log += &format!(
                "\n{{\"Event\":\"SparkListenerStageSubmitted\",\"Stage Info\":{{\"Stage ID\":{stage},\"Stage Name\":\"s\"}}}}"
            );
            for task in 0..2 {
                log += &format!(
                    "\n{{\"Event\":\"SparkListenerTaskStart\",\"Stage ID\":{stage},\"Stage Attempt ID\":0,\"Task Info\":{{\"Task ID\":{},\"Index\":{task},\"Attempt\":0,\"Launch Time\":1,\"Executor ID\":\"1\",\"Host\":\"h\",\"Locality\":\"ANY\",\"Speculative\":false,\"Finish Time\":0,\"Failed\":false}}}}",
                    2 * stage + task
                );
            }
        }
        let path = folder.path().join("log");
        fs::write(&path, log).expect("writes");
        let (store, any) = (folder.path().join("store"), Admission::default());
        let done = import(&store, &path, Bounds::default(), &any).expect("imports");
        assert_eq!((done.damaged, done.sizes.tasks.rows), (0, 6));
        let app = App::open(&done.folder).expect("opens");
        let parameters = Parameters(vec![("details".to_owned(), "true".to_owned())]);
        let with = With::new(&parameters, false).expect("parses");
        let texts = app.all(Kind::Stage).iter().map(|(_, text)| text.as_str());
        let text = super::super::routes::joined(texts);
        with.left.set(6);
        let all = all_detailed(&app, &text, &with).expect("has room");
        assert_eq!((all.len(), with.left.get()), (3, 0));
        with.left.set(5);
        let refusal = all_detailed(&app, &text, &with).expect_err("has no room");
        assert!(refusal.1.contains("taskList"), "{}", refusal.1);
    }
}
