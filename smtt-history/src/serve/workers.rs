//! What the workers know of an application, joined to what Spark reported: tasks by stage, attempt and task id;
//! executors, stages and RDDs by their ids. Where one half is missing it is absent.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::routes::{Answer, Parameters, Raw, finish};
use super::{Refusal, Server, tasks};
use crate::advise::advise;
use crate::advise::workers::Figures;
use crate::json::present;
use crate::open::App;
use crate::out::Kind;
use crate::workers::{Document, Files, Trouble};

impl From<Trouble> for Refusal {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::TooLarge => Self::bad(trouble.to_string()),
            Trouble::Ambiguous(_) => Self(StatusCode::CONFLICT, trouble.to_string()),
            Trouble::Uncopied => Self(StatusCode::SERVICE_UNAVAILABLE, trouble.to_string()),
            Trouble::Unreadable(_) | Trouble::Folder(_) => Self::failed(trouble),
        }
    }
}

/// Paths below `/smtt/v1/applications/ID`.
pub(super) async fn part(
    State(server): State<Arc<Server>>,
    Path((id, rest)): Path<(String, String)>,
    Query(parameters): Raw,
) -> Response {
    let parameters = Parameters(parameters);
    let opened = server.app(&id, parameters.one("attempt")).await;
    let opened = match opened {
        Ok((app, turn)) => Ok((Ok(app), turn)),
        Err(refusal) if refusal.0 == StatusCode::NOT_FOUND => {
            server.turn().await.map(|turn| (Err(refusal), turn))
        }
        Err(refusal) => Err(refusal),
    };
    let store = server.settings.store.clone();
    let made = opened.map(|(app, turn)| {
        tokio::task::spawn_blocking(move || {
            let make = || {
                let user = parameters.one("user").map(str::parse).transpose();
                let user = user.map_err(|_| Refusal::bad("user is no number"))?;
                let opened = app.as_ref().ok().and_then(|app| app.attempt());
                let attempt = opened.or(parameters.one("attempt"));
                let files = Files::of(&store, (&id, attempt), user, parameters.one("host"))?;
                match (app, files.is_empty()) {
                    (Err(refusal), true) => Err(refusal),
                    (app, _) => answer(app.ok().as_deref(), &files, &rest, &parameters),
                }
            };
            (make(), turn)
        })
    });
    finish(&server, made).await
}

fn answer(app: Option<&App>, files: &Files, rest: &str, parameters: &Parameters) -> Answer {
    let path: Vec<&str> = rest.split('/').collect();
    if path == ["advice"] {
        return advice(app, files);
    }
    let kind = match path[..] {
        ["workers"] => "worker",
        ["executors"] => "executor",
        ["memory"] => "memory",
        ["stages"] => "stage",
        ["rdds"] => "rdd",
        ["places"] => "places",
        ["history"] => "history",
        ["deaths"] => "death",
        ["findings"] => "findings",
        ["stages", id, attempt, "tasks"] => {
            return of_stage(app, files, id, attempt, parameters);
        }
        ["tasks", id, "functions"] => return of_task(files, id, parameters),
        _ => return Err(Refusal::not_found("no such path")),
    };
    let rows: Vec<Value> = files
        .documents(kind)?
        .into_iter()
        .map(|document| {
            let spark = app.and_then(|app| said(app, kind, &document.json));
            row(document, spark)
        })
        .collect();
    Ok(json!({ "rows": rows }).to_string())
}

/// Findings from Spark's tasks, with those of the workers in `workers`. Without Spark's half there are only the workers'.
fn advice(app: Option<&App>, files: &Files) -> Answer {
    let figures = Figures::read(files);
    let found = match app {
        Some(app) => serde_json::to_string(&advise(app, figures).map_err(Refusal::failed)?),
        None => {
            let Figures {
                findings, left_out, ..
            } = figures;
            serde_json::to_string(&json!({ "workers": findings, "left_out": left_out }))
        }
    };
    found.map_err(Refusal::failed)
}

/// What Spark reported about the same thing.
fn said(app: &App, kind: &str, document: &Value) -> Option<Value> {
    let id = |name: &str| document[name].as_u64().map(|id| id.to_string());
    let text = match kind {
        "executor" => app.one(Kind::Executor, document["executor_id"].as_str()?)?,
        "rdd" => app.one(Kind::Rdd, &id("rdd_id")?)?,
        "stage" => {
            let stage = format!("{}.{}", id("stage_id")?, id("stage_attempt")?);
            app.one(Kind::Stage, &stage)?
        }
        _ => return None,
    };
    serde_json::from_str(text).ok()
}

fn row(document: Document, spark: Option<Value>) -> Value {
    present(json!({
        "worker": document.host,
        "uid": document.uid,
        "daemon_start_unix_ms": document.run,
        "smtt": document.json,
        "spark": spark,
    }))
}

/// Tasks of a stage as `taskList` shows them, each with the worker's row in `smtt`. Without Spark's half the worker's
/// rows alone, by task id.
fn of_stage(
    app: Option<&App>,
    files: &Files,
    id: &str,
    attempt: &str,
    parameters: &Parameters,
) -> Answer {
    let Some(stage) = tasks::key(id, attempt) else {
        return Err(Refusal::not_found(format!("unknown stage: {id}")));
    };
    let mut seen: HashMap<String, Vec<Document>> = HashMap::new();
    for document in files.tasks(stage)? {
        seen.entry(document.id.clone()).or_default().push(document);
    }
    let Some(app) = app else {
        let mut all: Vec<Document> = seen.into_values().flatten().collect();
        all.sort_by_key(|document| (document.id.parse::<u64>().ok(), document.run));
        let size = |number: i64| usize::try_from(number).unwrap_or(0);
        let offset = size(parameters.number("offset", 0)?);
        let length = size(parameters.number("length", 20)?);
        let page = all.into_iter().skip(offset).take(length);
        let rows: Vec<Value> = page.map(|document| row(document, None)).collect();
        return Ok(json!({ "rows": rows }).to_string());
    };
    let list = tasks::list(app, id, attempt, parameters)?;
    let list: Vec<Map<String, Value>> = serde_json::from_str(&list).map_err(Refusal::failed)?;
    let rows: Vec<Value> = list
        .into_iter()
        .map(|mut task| {
            let of_task = seen.remove(&task["taskId"].to_string()).unwrap_or_default();
            // Attempts of an application have the same ids. The executor decides, then the newest daemon.
            let same = |it: &Document| it.json["executor_id"] == task["executorId"];
            let found = of_task.into_iter().filter(same).max_by_key(|it| it.run);
            if let Some(document) = found {
                task.insert("smtt".to_owned(), row(document, None));
            }
            task.into()
        })
        .collect();
    Ok(json!({ "rows": rows }).to_string())
}

/// A task attempt with its functions; `executor` selects where several attempts of the application have such a task.
fn of_task(files: &Files, id: &str, parameters: &Parameters) -> Answer {
    let of_id = id.parse().ok();
    let found = of_id.map(|id| files.task(id, parameters.one("executor")));
    match found.transpose()?.flatten() {
        Some(found) => Ok(row(found.into_row(), None).to_string()),
        None => Err(Refusal::not_found(format!("no worker knows the task {id}"))),
    }
}

#[cfg(test)]
mod tests;
