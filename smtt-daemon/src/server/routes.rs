//! Routes and their handlers.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, State as Held};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use serde_json::json;
use smtt_machine::clock::{now_boot_ns, now_unix_ns};
use smtt_model::protocol::{FollowQuery, Histories, ListQuery};
use smtt_model::rows::{Filter, Listing, PagesBy};
use smtt_model::sort::{Sort, SortError, sort};

use super::advice::advice;
use super::lines::Lines;
use super::report::report;
use super::rows::Rows;
use crate::shared::Shared;

/// All routes: the interface of `smtt-ctl` and the routes of the metrics port.
pub fn control_router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route(
            "/v1/status",
            get(|Held(shared): Held<Arc<Shared>>| {
                off_loop(move || Json(shared.status()).into_response())
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

/// The routes of the metrics port.
pub fn web_router(shared: Arc<Shared>) -> Router {
    let path = shared.info().telemetry_path.clone();
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

/// Makes an answer on another thread than the event loop's: thousands of rows take a while.
async fn off_loop(answer: impl FnOnce() -> Response + Send + 'static) -> Response {
    match tokio::task::spawn_blocking(answer).await {
        Ok(answer) => answer,
        Err(error) => failed(&format!("the answer was not made: {error}")),
    }
}

/// A listing: filtered under the lock, sorted outside of it. `order` is the default sort order, the most important
/// field first.
async fn list<R: Serialize + Send + Unpin + 'static>(
    Held(shared): Held<Arc<Shared>>,
    query: Result<Query<ListQuery>, axum::extract::rejection::QueryRejection>,
    order: &'static [&'static str],
    listing: impl Fn(&Shared, &Filter) -> Listing<R> + Send + 'static,
) -> Response {
    match query {
        Ok(Query(query)) => off_loop(move || listed(&shared, &query, order, listing)).await,
        Err(error) => refused(&error.body_text()),
    }
}

fn listed<R: Serialize + Send + Unpin + 'static>(
    shared: &Shared,
    query: &ListQuery,
    order: &[&str],
    listing: impl Fn(&Shared, &Filter) -> Listing<R>,
) -> Response {
    let Listing { rows, summary } = listing(shared, &query.filter());
    let by: Result<Vec<Sort>, SortError> = query
        .sort
        .as_deref()
        .into_iter()
        .chain(order.iter().copied())
        .map(str::parse)
        .collect();
    match by.and_then(|by| sort(rows, &by)) {
        Ok(mut rows) => {
            rows.truncate(query.limit.unwrap_or(usize::MAX));
            let body = Body::new(Rows::new(rows, summary));
            ([(header::CONTENT_TYPE, "application/json")], body).into_response()
        }
        Err(error) => refused(&error.to_string()),
    }
}

/// Placement of bytes, largest first.
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
    let checks = shared.info().doctor;
    // The checks read files and try system calls.
    off_loop(move || Json(checks()).into_response()).await
}

async fn report_route(
    Held(shared): Held<Arc<Shared>>,
    query: Result<Query<ListQuery>, axum::extract::rejection::QueryRejection>,
) -> Response {
    match query {
        Ok(Query(query)) => {
            off_loop(move || Json(report(&shared, &query.filter())).into_response()).await
        }
        Err(error) => refused(&error.body_text()),
    }
}

async fn advise_route(
    Held(shared): Held<Arc<Shared>>,
    query: Result<Query<ListQuery>, axum::extract::rejection::QueryRejection>,
) -> Response {
    match query {
        Ok(Query(query)) => {
            off_loop(move || Json(advice(&shared, &query.filter())).into_response()).await
        }
        Err(error) => refused(&error.body_text()),
    }
}

/// Live records, one JSON object per line, until the client hangs up.
async fn follow_route(
    Held(shared): Held<Arc<Shared>>,
    query: Result<Query<FollowQuery>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let wanted = match query {
        Ok(Query(wanted)) => wanted,
        Err(error) => return refused(&error.body_text()),
    };
    match shared.followers().follow(wanted) {
        Ok(answer) => (
            [(header::CONTENT_TYPE, "application/x-ndjson")],
            Body::new(Lines(answer)),
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
    match query {
        Ok(Query(query)) => {
            off_loop(move || {
                let rows = shared.state().list_history(&query.filter()).rows;
                Json(Histories {
                    now_ns: now_boot_ns(),
                    now_unix_ms: now_unix_ns() / 1_000_000,
                    rows,
                })
                .into_response()
            })
            .await
        }
        Err(error) => refused(&error.body_text()),
    }
}

async fn landing(Held(shared): Held<Arc<Shared>>) -> Html<String> {
    let info = shared.info();
    Html(format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>SMTT</title></head>\
         <body><h1>SMTT {version}</h1><p>Which Spark RDD, task and stage makes the memory hardware work.</p>\
         <ul><li><a href=\"{path}\">Metrics</a></li><li><a href=\"/-/healthy\">Healthy</a></li>\
         <li><a href=\"/-/ready\">Ready</a></li></ul></body></html>\n",
        version = info.version,
        path = info.telemetry_path,
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
    off_loop(move || match shared.exporter().scrape(&shared, &accept) {
        Ok((content_type, text)) => ([(header::CONTENT_TYPE, content_type)], text).into_response(),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("cannot write the metrics: {error}\n"),
        )
            .into_response(),
    })
    .await
}
