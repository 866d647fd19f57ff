//! Routes and their handlers.

use crate::advise::surroundings::Surroundings;
use crate::advise::{Advice, advise, views};
use crate::aggregate::view::Filter;
use crate::aggregate::view::Listing;
use crate::aggregate::view::PagesBy;
use crate::aggregate::view::RddRow;
use crate::clock::{now_boot_ns, now_unix_ns};
use crate::control::Shared;
use crate::control::protocol::ApplicationReport;
use crate::control::protocol::Histories;
use crate::control::protocol::ListQuery;
use crate::control::protocol::REPORT_ROWS;
use crate::control::protocol::Report;
use crate::control::sort::Row;
use crate::control::sort::Sort;
use crate::control::sort::sort;
use crate::trace::follow::Wanted;
use axum::body::Body;
use axum::extract::{Query, State as Held};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Everything: the interface of `smtt-ctl`, and what the metrics port has.
pub fn control_router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route(
            "/v1/status",
            get(|Held(shared): Held<Arc<Shared>>| {
                aside(move || Json(shared.status()).into_response())
            }),
        )
        .route("/v1/doctor", get(doctor))
        .route("/v1/report", get(report_route))
        .route("/v1/advise", get(advise_route))
        .route("/v1/history", get(history))
        .route("/v1/trace/follow", get(follow_route))
        .route(
            "/v1/executors",
            get(|held, query| {
                list(
                    held,
                    query,
                    &["application_id:asc", "executor_id:asc"],
                    |s, f| s.state().list_executors(f),
                )
            }),
        )
        .route(
            "/v1/stages",
            get(|held, query| {
                list(
                    held,
                    query,
                    &["application_id:asc", "stage_id:asc", "executor_id:asc"],
                    |s, f| s.state().list_stages(f),
                )
            }),
        )
        .route(
            "/v1/tasks",
            get(|held, query| {
                list(
                    held,
                    query,
                    &["application_id:asc", "task_attempt_id:asc"],
                    |s, f| s.state().list_tasks(f),
                )
            }),
        )
        .route(
            "/v1/rdds",
            get(|held, query| {
                list(
                    held,
                    query,
                    &["page_faults:desc", "storage_memory_bytes:desc"],
                    |s, f| s.state().list_rdds(f),
                )
            }),
        )
        .route(
            "/v1/blocks",
            get(|held, query| {
                list(
                    held,
                    query,
                    &[
                        "application_id:asc",
                        "rdd_id:asc",
                        "partition:asc",
                        "block_id:asc",
                    ],
                    |s, f| s.state().list_blocks(f),
                )
            }),
        )
        .route(
            "/v1/pages",
            get(|held, query| pages(held, query, PagesBy::Rdd)),
        )
        .route(
            "/v1/pages/blocks",
            get(|held, query| pages(held, query, PagesBy::Block)),
        )
        .route(
            "/v1/pages/tasks",
            get(|held, query| pages(held, query, PagesBy::Task)),
        )
        .route(
            "/v1/pages/executors",
            get(|held, query| pages(held, query, PagesBy::Executor)),
        )
        .with_state(Arc::clone(&shared))
        .merge(web_router(shared))
}

/// What the metrics port has.
pub fn web_router(shared: Arc<Shared>) -> Router {
    let path = shared.identity().telemetry_path.clone();
    Router::new()
        .route("/", get(landing))
        .route(&path, get(metrics))
        .route("/-/healthy", get(|| async { "smtt-daemon is healthy\n" }))
        .route("/-/ready", get(ready))
        .with_state(shared)
}

fn refused(message: &str) -> Response {
    (StatusCode::BAD_REQUEST, Json(json!({ "error": message }))).into_response()
}

fn failed(message: &str) -> Response {
    let error = Json(json!({ "error": message }));
    (StatusCode::INTERNAL_SERVER_ERROR, error).into_response()
}

/// Makes an answer on another thread than the one that takes events: thousands of rows take a while to be written.
async fn aside(answer: impl FnOnce() -> Response + Send + 'static) -> Response {
    match tokio::task::spawn_blocking(answer).await {
        Ok(answer) => answer,
        Err(error) => failed(&format!("the answer was not made: {error}")),
    }
}

/// A listing: filtered under the lock, sorted outside of it. `order` are the fields that decide unless another is
/// asked for, the most important first.
async fn list<R: Serialize + 'static>(
    Held(shared): Held<Arc<Shared>>,
    query: Result<Query<ListQuery>, axum::extract::rejection::QueryRejection>,
    order: &'static [&'static str],
    listing: impl Fn(&Shared, &Filter) -> Listing<R> + Send + 'static,
) -> Response {
    match query {
        Ok(Query(query)) => aside(move || listed(&shared, &query, order, listing)).await,
        Err(error) => refused(&error.body_text()),
    }
}

fn listed<R: Serialize>(
    shared: &Shared,
    query: &ListQuery,
    order: &[&str],
    listing: impl Fn(&Shared, &Filter) -> Listing<R>,
) -> Response {
    let Listing { rows, summary } = listing(shared, &query.filter());
    let mut rows: Vec<Row> = rows
        .into_iter()
        .filter_map(|row| match serde_json::to_value(row) {
            Ok(Value::Object(row)) => Some(row),
            _ => None,
        })
        .collect();
    for by in order.iter().rev().copied().chain(query.sort.as_deref()) {
        if let Err(error) = by.parse::<Sort>().and_then(|by| sort(&mut rows, &by)) {
            return refused(&error.to_string());
        }
    }
    rows.truncate(query.limit.unwrap_or(usize::MAX));
    // Written as it is: a copy of thousands of rows would be a good part of the daemon's memory.
    Json(Listed { rows, summary }).into_response()
}

/// The answer of a listing.
#[derive(Serialize)]
struct Listed<S> {
    rows: Vec<Row>,
    summary: S,
}

/// Where bytes are, largest first.
async fn pages(
    held: Held<Arc<Shared>>,
    query: Result<Query<ListQuery>, axum::extract::rejection::QueryRejection>,
    by: PagesBy,
) -> Response {
    list(
        held,
        query,
        &["held_bytes:desc", "block_id:asc"],
        move |s, f| s.state().list_pages(f, by),
    )
    .await
}

async fn doctor(Held(shared): Held<Arc<Shared>>) -> Response {
    let checks = shared.identity().doctor;
    // The checks read files and try system calls.
    aside(move || Json(checks()).into_response()).await
}

async fn report_route(
    Held(shared): Held<Arc<Shared>>,
    query: Result<Query<ListQuery>, axum::extract::rejection::QueryRejection>,
) -> Response {
    match query {
        Ok(Query(query)) => {
            aside(move || Json(report(&shared, &query.filter())).into_response()).await
        }
        Err(error) => refused(&error.body_text()),
    }
}

async fn advise_route(
    Held(shared): Held<Arc<Shared>>,
    query: Result<Query<ListQuery>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let filter = match query {
        Ok(Query(query)) => query.filter(),
        Err(error) => return refused(&error.body_text()),
    };
    // What surrounds the executors is read from files.
    let advice = tokio::task::spawn_blocking(move || {
        let (views, pids) = views(&shared, &filter);
        let surroundings = Surroundings::read(Path::new("/"), &pids);
        Advice {
            applications: views
                .iter()
                .map(|view| advise(view, &surroundings))
                .collect(),
            surroundings,
        }
    });
    match advice.await {
        Ok(advice) => Json(advice).into_response(),
        Err(error) => failed(&format!("no advice: {error}")),
    }
}

/// Records as they happen, one JSON object per line, until the client hangs up.
async fn follow_route(
    Held(shared): Held<Arc<Shared>>,
    query: Result<Query<Wanted>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let wanted = match query {
        Ok(Query(wanted)) => wanted,
        Err(error) => return refused(&error.body_text()),
    };
    match shared.followers().follow(wanted) {
        Ok(answer) => (
            [(header::CONTENT_TYPE, "application/x-ndjson")],
            Body::new(answer),
        )
            .into_response(),
        Err(error) => {
            let error = Json(json!({ "error": error.to_string() }));
            (StatusCode::SERVICE_UNAVAILABLE, error).into_response()
        }
    }
}

async fn history(
    Held(shared): Held<Arc<Shared>>,
    query: Result<Query<ListQuery>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let filter = match query {
        Ok(Query(query)) => query.filter(),
        Err(error) => return refused(&error.body_text()),
    };
    let rows = shared.state().list_history(&filter).rows;
    Json(Histories {
        now_ns: now_boot_ns(),
        now_unix_ms: now_unix_ns() / 1_000_000,
        rows,
    })
    .into_response()
}

/// The report of everything that the filter lets through.
#[must_use]
pub fn report(shared: &Shared, filter: &Filter) -> Report {
    let status = shared.status();
    // Each listing has the lock for itself: a report of a large state would hold everybody up.
    let executors = shared.state().list_executors(filter).rows;
    let ids: BTreeSet<Option<String>> = executors
        .iter()
        .map(|row| row.who.application_id.clone())
        .collect();
    let applications = ids
        .into_iter()
        .map(|id| {
            let filter = Filter {
                app: Some(id.clone().unwrap_or_default()),
                ..filter.clone()
            };
            let executors: Vec<_> = executors
                .iter()
                .filter(|row| row.who.application_id == id)
                .cloned()
                .collect();
            let mut by_faults = shared.state().list_rdds(&filter).rows;
            let mut by_memory = by_faults.clone();
            by_faults.retain(|row| row.faults.page_faults > Some(0));
            by_faults.sort_by_key(|row| std::cmp::Reverse(row.faults.page_faults));
            by_faults.truncate(REPORT_ROWS);
            let most = |row: &RddRow| {
                let storage = row.storage_memory_peak_bytes;
                storage.saturating_add(row.execution_memory_peak_bytes)
            };
            by_memory.retain(|row| most(row) > 0);
            by_memory.sort_by_key(|row| std::cmp::Reverse(most(row)));
            by_memory.truncate(REPORT_ROWS);
            let mut stages = shared.state().list_stages(&filter);
            stages
                .rows
                .sort_by_key(|row| std::cmp::Reverse(row.faults.page_faults));
            stages.rows.truncate(REPORT_ROWS);
            let mut tasks = shared.state().list_tasks(&filter).rows;
            tasks.sort_by_key(|row| std::cmp::Reverse(row.faults.page_faults));
            tasks.truncate(REPORT_ROWS);
            ApplicationReport {
                application_name: executors
                    .iter()
                    .find_map(|row| row.application_name.clone()),
                application_id: id,
                summary: stages.summary,
                executors,
                rdds_by_faults: by_faults,
                rdds_by_memory: by_memory,
                stages: stages.rows,
                tasks,
            }
        })
        .collect();
    Report {
        applications,
        ledger: status.ledger,
        degraded: status.degraded,
    }
}

async fn landing(Held(shared): Held<Arc<Shared>>) -> Html<String> {
    let identity = shared.identity();
    Html(format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>SMTT</title></head>\
         <body><h1>SMTT {version}</h1><p>Which Spark RDD, task and stage makes the memory hardware work.</p>\
         <ul><li><a href=\"{path}\">Metrics</a></li><li><a href=\"/-/healthy\">Healthy</a></li>\
         <li><a href=\"/-/ready\">Ready</a></li></ul></body></html>\n",
        version = identity.version,
        path = identity.telemetry_path,
    ))
}

async fn ready(Held(shared): Held<Arc<Shared>>) -> (StatusCode, &'static str) {
    if shared.is_ready() {
        (StatusCode::OK, "smtt-daemon is ready\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "smtt-daemon is starting\n")
    }
}

async fn metrics(Held(shared): Held<Arc<Shared>>, headers: HeaderMap) -> Response {
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("")
        .to_owned();
    aside(move || match shared.exporter().scrape(&shared, &accept) {
        Ok((content_type, text)) => ([(header::CONTENT_TYPE, content_type)], text).into_response(),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("cannot write the metrics: {error}\n"),
        )
            .into_response(),
    })
    .await
}
