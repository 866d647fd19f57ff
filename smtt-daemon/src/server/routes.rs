//! Routes and their handlers.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, Path, Query, State as Extract};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use serde_json::json;
use smtt_machine::clock::{now_boot_ns, now_unix_ns};
use smtt_model::protocol::{FollowQuery, Histories, ListQuery, order};
use smtt_model::rows::{Filter, Listing, PagesBy, WorkBy};
use smtt_model::sort::{Keys, Sort, SortError};
use smtt_model::state::State;
use smtt_web::coding::Accepted;
use smtt_web::connections::Endless;
use smtt_web::guard::{add_headers, admit};

use super::answered::remember;
use super::deaths::{death, deaths};
use super::heavy::Turns;
use super::lines::Lines;
use super::report::report;
use super::rows::Rows;
use super::runs::Runs;
use super::scrape::{Scrapes, Wanted};
use super::summaries::{ended_tasks, summaries, work};
use super::{Sources, Web};
use crate::advice::advice;
use crate::history::EarlierRows;
use crate::metrics::{Exporter, Format, Names, Reader};
use crate::parts::{self, SMALL, Size};
use crate::progress::UNHEALTHY;
use crate::shared::Shared;

/// What the handlers of one listener share.
#[derive(Clone)]
pub struct Service {
    shared: Arc<Shared>,
    exporter: Arc<Exporter>,
    turns: Turns,
    scrapes: Scrapes,
    /// Who may read its metrics, and whether they show names.
    web: Web,
}

impl Service {
    fn new(sources: Sources, web: impl Into<Web>) -> Self {
        let Sources { shared, exporter } = sources;
        Self {
            turns: Turns::new(shared.making()),
            shared,
            exporter,
            scrapes: Scrapes::default(),
            web: web.into(),
        }
    }
}

type ServiceState = Extract<Service>;

/// All routes: the interface of `smtt-ctl` and the routes of the metrics port.
pub fn control_router(sources: Sources) -> Router {
    listings(&sources.shared)
        .route("/v1/doctor", get(doctor))
        .route("/v1/trace/follow", get(follow_route))
        .with_state(Service::new(sources.clone(), Names::Shown))
        .merge(web_router(
            sources,
            Web {
                reader: Reader::Person,
                ..Web::from(Names::Shown)
            },
        ))
}

/// The routes whose answers end, and for which the daemon does nothing beyond reading its state.
fn listings(shared: &Arc<Shared>) -> Router<Service> {
    Router::new()
        .route(
            "/v1/answered",
            get(async |Extract(service): ServiceState| Json(service.shared.answered().list())),
        )
        .route(
            "/v1/status",
            get(|Extract(service): ServiceState| {
                off_loop(move || Json(service.shared.status()).into_response())
            }),
        )
        .route("/v1/report", get(report_route))
        .route("/v1/advise", get(advise_route))
        .route("/v1/history", get(history))
        .route("/v1/earlier/{listing}", get(earlier))
        .route("/v1/postmortem", get(deaths_route))
        .route("/v1/postmortem/report", get(death_route))
        .route(
            "/v1/executors",
            get(|service, query| {
                let order = order("/v1/executors");
                list(service, query, order, SMALL, |s, f| s.list_executors(f))
            }),
        )
        .route(
            "/v1/stages",
            get(|service, query| {
                let order = order("/v1/stages");
                list(service, query, order, State::rows_of_stages, |s, f| {
                    s.list_stages(f)
                })
            }),
        )
        .route(
            "/v1/stages/summary",
            get(|service, query| {
                over_executors(service, query, order("/v1/stages/summary"), summaries)
            }),
        )
        .route(
            "/v1/jobs",
            get(|service, query| {
                over_executors(service, query, order("/v1/jobs"), |s, f, runs| {
                    work(s, f, runs, WorkBy::Job)
                })
            }),
        )
        .route(
            "/v1/queries",
            get(|service, query| {
                over_executors(service, query, order("/v1/queries"), |s, f, runs| {
                    work(s, f, runs, WorkBy::Query)
                })
            }),
        )
        .route(
            "/v1/tasks/failed",
            get(|service, query| {
                let order = order("/v1/tasks/failed");
                list(service, query, order, State::rows_of_tasks, |s, f| {
                    s.list_failed_tasks(f)
                })
            }),
        )
        .route("/v1/tasks/ended", get(ended))
        .route(
            "/v1/tasks",
            get(|service, query| {
                let order = order("/v1/tasks");
                list(service, query, order, State::rows_of_tasks, |s, f| {
                    s.list_tasks(f)
                })
            }),
        )
        .route(
            "/v1/rdds",
            get(|service, query| {
                let order = order("/v1/rdds");
                list(service, query, order, State::rows_of_rdds, |s, f| {
                    s.list_rdds(f)
                })
            }),
        )
        .route(
            "/v1/blocks",
            get(|service, query| {
                let order = order("/v1/blocks");
                list(service, query, order, SMALL, |s, f| s.list_blocks(f))
            }),
        )
        .route(
            "/v1/memory",
            get(|service, query| {
                let order = order("/v1/memory");
                list(service, query, order, SMALL, |s, f| s.list_memory(f))
            }),
        )
        .route(
            "/v1/pages",
            get(|service, query| pages(service, query, PagesBy::Rdd)),
        )
        .route(
            "/v1/pages/blocks",
            get(|service, query| pages(service, query, PagesBy::Block)),
        )
        .route(
            "/v1/pages/tasks",
            get(|service, query| pages(service, query, PagesBy::Task)),
        )
        .route(
            "/v1/pages/executors",
            get(|service, query| pages(service, query, PagesBy::Executor)),
        )
        .route_layer(from_fn_with_state(Arc::clone(shared), remember))
}

/// The routes of the metrics port, whose metrics show names or hide them.
pub fn web_router(sources: Sources, web: impl Into<Web>) -> Router {
    let path = sources.shared.info().telemetry_path.clone();
    let service = Service::new(sources, web);
    let mut router = Router::new()
        .route("/", get(landing))
        .route(&path, get(metrics));
    if service.web.api && !service.web.guard.is_open() {
        router = router.merge(listings(&service.shared));
    }
    // A request for a path that does not exist is answered by the router, and tells nothing.
    let guard = service.web.guard.clone();
    router
        .route_layer(from_fn_with_state(guard.clone(), admit))
        .route("/-/healthy", get(healthy))
        .route("/-/ready", get(ready))
        .layer(from_fn_with_state(guard, add_headers))
        .with_state(service)
}

pub(super) fn refused(message: &str) -> Response {
    (StatusCode::BAD_REQUEST, Json(json!({ "error": message }))).into_response()
}

pub(super) fn unknown(message: &str) -> Response {
    (StatusCode::NOT_FOUND, Json(json!({ "error": message }))).into_response()
}

pub(super) fn failed(message: &str) -> Response {
    let error = Json(json!({ "error": message }));
    (StatusCode::INTERNAL_SERVER_ERROR, error).into_response()
}

/// Makes an answer on another thread than the event loop's: thousands of rows take a while.
pub(super) async fn off_loop(answer: impl FnOnce() -> Response + Send + 'static) -> Response {
    match tokio::task::spawn_blocking(answer).await {
        Ok(answer) => answer,
        Err(error) => failed(&format!("the answer was not made: {error}")),
    }
}

/// A listing: filtered under the lock, sorted outside of it. `order` is the default sort order, the most important
/// field first.
async fn list<R: Serialize + Send + 'static>(
    Extract(service): ServiceState,
    query: Result<Query<ListQuery>, axum::extract::rejection::QueryRejection>,
    order: &'static [&'static str],
    size: Size,
    listing: impl Fn(&State, &Filter) -> Listing<R> + Send + 'static,
) -> Response {
    match query {
        Ok(Query(query)) => {
            let make = move || listed(&service.shared, &query, order, size, listing);
            service.turns.clone().answer(make).await
        }
        Err(error) => refused(&error.body_text()),
    }
}

/// The state is locked for a part of one executor's rows at a time.
fn listed<R: Serialize>(
    shared: &Shared,
    query: &ListQuery,
    order: &[&str],
    size: Size,
    listing: impl Fn(&State, &Filter) -> Listing<R>,
) -> Response {
    sorted(shared, query, order, |runs| {
        parts::each(shared, &query.filter(), size, |filter| {
            // A statement of its own, because a guard lives until the end of its statement.
            let rows = listing(&shared.state(), filter).rows;
            runs.add(rows)
        })
        .map(|()| 0)
    })
}

/// Rows that `add` adds, in the order of the query; `add` returns the number of files that it left out.
fn sorted(
    shared: &Shared,
    query: &ListQuery,
    order: &[&str],
    add: impl FnOnce(&mut Runs) -> io::Result<u64>,
) -> Response {
    let by: Result<Vec<Sort>, SortError> = query
        .sort
        .as_deref()
        .into_iter()
        .chain(order.iter().copied())
        .map(str::parse)
        .collect();
    let by = match by {
        Ok(by) => by,
        Err(error) => return refused(&error.to_string()),
    };
    let sorted: io::Result<_> = (|| {
        let mut runs = Runs::new(Keys::new(by), query.limit.unwrap_or(usize::MAX))?;
        let left_out = add(&mut runs)?;
        Ok((left_out, runs.merge()?))
    })();
    match sorted {
        Ok((earlier_left_out, Ok(rows))) => {
            let state = shared.state();
            let mut summary = state.list_executors(&query.filter()).summary;
            if let Some(earlier) = shared.earlier() {
                earlier.add_to(&mut summary, &state, &query.filter());
            }
            drop(state);
            summary.earlier_left_out = earlier_left_out;
            let body = Body::new(Rows::new(rows, summary));
            ([(header::CONTENT_TYPE, "application/json")], body).into_response()
        }
        Ok((_, Err(error))) => refused(&error.to_string()),
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => refused(
            "these rows take more memory than an answer may: select fewer, by application, executor or limit",
        ),
        Err(error) => failed(&format!("the rows cannot be written: {error}")),
    }
}

/// A listing whose rows are over several executors.
async fn over_executors(
    Extract(service): ServiceState,
    query: Result<Query<ListQuery>, axum::extract::rejection::QueryRejection>,
    order: &'static [&'static str],
    rows: fn(&Shared, &Filter, &mut Runs) -> io::Result<()>,
) -> Response {
    match query {
        Ok(Query(query)) => {
            let make = move || {
                let shared = &service.shared;
                sorted(shared, &query, order, |runs| {
                    rows(shared, &query.filter(), runs).map(|()| 0)
                })
            };
            service.turns.clone().answer(make).await
        }
        Err(error) => refused(&error.body_text()),
    }
}

/// Task attempts that have ended, with their lives in parts.
async fn ended(
    service: ServiceState,
    query: Result<Query<ListQuery>, axum::extract::rejection::QueryRejection>,
) -> Response {
    if let Ok(Query(query)) = &query
        && (query.stage.is_some() || query.rdd.is_some() || query.task.is_some())
    {
        return refused("ended tasks are selected by app, user and executor");
    }
    over_executors(service, query, order("/v1/tasks/ended"), ended_tasks).await
}

/// Rows of earlier runs of this daemon.
async fn earlier(
    Extract(service): ServiceState,
    listing: Result<Path<String>, axum::extract::rejection::PathRejection>,
    query: Result<Query<ListQuery>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let listing = listing.map_or_else(|_| String::new(), |Path(listing)| listing);
    let Some(rows) = EarlierRows::of(&listing) else {
        return unknown(
            "earlier runs have executors, memory, stages, rdds, tasks, history, advise",
        );
    };
    let order = rows.order();
    match query {
        Ok(Query(query)) => {
            let make = move || {
                let shared = &service.shared;
                sorted(shared, &query, order, |runs| match shared.earlier() {
                    Some(earlier) => {
                        earlier.each(shared, rows, &query.filter(), |rows| runs.add(rows))
                    }
                    None => Ok(0),
                })
            };
            service.turns.clone().answer(make).await
        }
        Err(error) => refused(&error.body_text()),
    }
}

/// Placement of bytes, largest first.
async fn pages(
    service: ServiceState,
    query: Result<Query<ListQuery>, axum::extract::rejection::QueryRejection>,
    by: PagesBy,
) -> Response {
    let order = order("/v1/pages");
    list(service, query, order, SMALL, move |s, f| {
        s.list_pages(f, by)
    })
    .await
}

async fn doctor(Extract(service): ServiceState) -> Response {
    let checks = service.shared.info().doctor;
    // The checks read files and try system calls.
    off_loop(move || Json(checks()).into_response()).await
}

async fn report_route(
    Extract(service): ServiceState,
    query: Result<Query<ListQuery>, axum::extract::rejection::QueryRejection>,
) -> Response {
    match query {
        Ok(Query(query)) => {
            let make = move || Json(report(&service.shared, &query.filter())).into_response();
            service.turns.clone().answer(make).await
        }
        Err(error) => refused(&error.body_text()),
    }
}

async fn advise_route(
    Extract(service): ServiceState,
    query: Result<Query<ListQuery>, axum::extract::rejection::QueryRejection>,
) -> Response {
    match query {
        Ok(Query(query)) => {
            let make = move || {
                let advice = advice(&service.shared, &query.filter(), query.by);
                Json(advice).into_response()
            };
            service.turns.clone().answer(make).await
        }
        Err(error) => refused(&error.body_text()),
    }
}

async fn deaths_route(
    Extract(service): ServiceState,
    query: Result<Query<ListQuery>, axum::extract::rejection::QueryRejection>,
) -> Response {
    match query {
        Ok(Query(query)) => {
            let make = move || deaths(&service.shared, &query);
            service.turns.clone().answer(make).await
        }
        Err(error) => refused(&error.body_text()),
    }
}

async fn death_route(
    Extract(service): ServiceState,
    query: Result<Query<ListQuery>, axum::extract::rejection::QueryRejection>,
) -> Response {
    match query {
        Ok(Query(query)) => {
            let make = move || death(&service.shared, &query);
            service.turns.clone().answer(make).await
        }
        Err(error) => refused(&error.body_text()),
    }
}

/// Live records, one JSON object per line, until the client hangs up.
async fn follow_route(
    Extract(service): ServiceState,
    Extension(endless): Extension<Endless>,
    query: Result<Query<FollowQuery>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let wanted = match query {
        Ok(Query(wanted)) => wanted,
        Err(error) => return refused(&error.body_text()),
    };
    match service.shared.followers().follow(wanted) {
        Ok(answer) => {
            // A client that does not read loses records of its own bounded queue.
            endless.set();
            let answer = Body::new(Lines(answer));
            ([(header::CONTENT_TYPE, "application/x-ndjson")], answer).into_response()
        }
        Err(error) => {
            let error = Json(json!({ "error": error.to_string() }));
            (StatusCode::SERVICE_UNAVAILABLE, error).into_response()
        }
    }
}

async fn history(
    Extract(service): ServiceState,
    query: Result<Query<ListQuery>, axum::extract::rejection::QueryRejection>,
) -> Response {
    match query {
        Ok(Query(query)) => {
            let make = move || {
                let rows = service.shared.state().list_history(&query.filter()).rows;
                Json(Histories {
                    now_ns: now_boot_ns(),
                    now_unix_ms: now_unix_ns() / 1_000_000,
                    rows,
                })
                .into_response()
            };
            service.turns.clone().answer(make).await
        }
        Err(error) => refused(&error.body_text()),
    }
}

async fn landing(Extract(service): ServiceState) -> Response {
    let info = service.shared.info();
    Html(format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>SMTT</title></head>\
         <body><h1>SMTT {version}</h1><p>Which Spark RDD, task and stage makes the memory hardware work.</p>\
         <ul><li><a href=\"{path}\">Metrics</a></li><li><a href=\"/-/healthy\">Healthy</a></li>\
         <li><a href=\"/-/ready\">Ready</a></li></ul></body></html>\n",
        version = info.version,
        path = info.telemetry_path,
    ))
    .into_response()
}

/// Waits for no lock and for no other thread.
async fn healthy(Extract(service): ServiceState) -> (StatusCode, String) {
    match service.shared.progress().longer_than(UNHEALTHY) {
        None => (StatusCode::OK, "smtt-daemon is healthy\n".to_owned()),
        Some((step, time)) => {
            let (step, time) = (step.name(), time.as_secs());
            let text = format!("smtt-daemon has been {step} for {time} s\n");
            (StatusCode::SERVICE_UNAVAILABLE, text)
        }
    }
}

async fn ready(Extract(service): ServiceState) -> (StatusCode, &'static str) {
    if service.shared.is_ready() {
        (StatusCode::OK, "smtt-daemon is ready\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "smtt-daemon is starting\n")
    }
}

async fn metrics(Extract(service): ServiceState, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT);
    let format = Format::accepted(accept.and_then(|value| value.to_str().ok()).unwrap_or(""));
    let Service {
        shared,
        exporter,
        scrapes,
        web,
        ..
    } = service;
    let wanted = Wanted {
        format,
        names: web.names,
        reader: web.reader,
    };
    let is_gzip = Accepted::of(&headers).prefers("gzip");
    let scrape = move || exporter.scrape(&shared, format, wanted.names, wanted.reader);
    match scrapes.answer(wanted, is_gzip, scrape).await {
        Ok(pieces) => {
            let of_all = [
                (header::CONTENT_TYPE, format.content_type()),
                (header::VARY, "accept, accept-encoding"),
            ];
            let coding = is_gzip.then_some([(header::CONTENT_ENCODING, "gzip")]);
            (of_all, coding, Body::new(pieces)).into_response()
        }
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("cannot write the metrics: {error}\n"),
        )
            .into_response(),
    }
}
