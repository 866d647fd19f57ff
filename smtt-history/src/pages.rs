//! HTML documents for people: applications, their jobs, stages, tasks, executors, RDDs, SQL and the time line.
//!
//! In this crate a page is such a document; the kernel's pages are always named with their size, faults or walks. The server
//! writes whole documents; only the time line, a task's lanes and pages of applications that run have scripts. A page loads nothing from elsewhere, and its policy
//! ([`POLICY`]) forbids scripts and styles that are not files of this server. All addresses are relative, so that a proxy
//! may put the pages below a path. What logs report is text: maud escapes it.

mod advice;
mod application;
mod applications;
mod chain;
#[cfg(test)]
mod colours;
mod functions;
mod jobs;
mod live;
mod memory;
mod place;
mod report;
mod sections;
mod shown;
mod stage;
mod table;
mod task;
mod tasks;
#[cfg(test)]
pub(crate) mod tests;
mod timeline;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderName, StatusCode, Uri, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use maud::{DOCTYPE, Markup, html};

use self::place::Place;
pub use self::report::{Report, report};
use crate::open::App;
use crate::serve::routes::{CountedText, Parameters, Pending, Raw, finished};
use crate::serve::{Refusal, Server};

/// What a page may load and run: only files of this server.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// Files of the pages: name, type and text.
const FILES: [(&str, &str, &str); 7] = [
    (
        "page.css",
        "text/css; charset=utf-8",
        include_str!("pages/page.css"),
    ),
    (
        "timeline.js",
        "text/javascript; charset=utf-8",
        include_str!("pages/timeline.js"),
    ),
    (
        "draw.js",
        "text/javascript; charset=utf-8",
        include_str!("pages/draw.js"),
    ),
    (
        "memory.js",
        "text/javascript; charset=utf-8",
        include_str!("pages/memory.js"),
    ),
    (
        "lanes.js",
        "text/javascript; charset=utf-8",
        include_str!("pages/lanes.js"),
    ),
    (
        "live.js",
        "text/javascript; charset=utf-8",
        include_str!("pages/live.js"),
    ),
    ("icon.svg", "image/svg+xml", include_str!("pages/icon.svg")),
];

/// The markup of a page, or why there is none.
type Document = Result<Markup, Refusal>;

/// Routes of the pages and of the files that they load.
pub(crate) fn routes() -> Router<Arc<Server>> {
    Router::new()
        .route("/", get(list))
        .route("/files/{name}", get(file))
        .route("/applications/{id}", get(newest))
        .route("/applications/{id}/", get(without_slash))
        .route("/applications/{id}/{*rest}", get(part))
}

/// Headers of everything that a browser shows.
fn headers() -> [(HeaderName, &'static str); 4] {
    [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ]
}

async fn file(Path(name): Path<String>) -> Response {
    match FILES.iter().find(|(known, _, _)| *known == name) {
        Some((_, kind, text)) => {
            (headers(), [(header::CONTENT_TYPE, *kind)], *text).into_response()
        }
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn list(State(server): State<Arc<Server>>, address: Uri, Query(parameters): Raw) -> Response {
    let place = Place::new(address.path());
    let made = {
        let place = place.clone();
        let ready = match server.listing().await {
            Ok(listing) => server.turn().await.map(|turn| (listing, turn)),
            Err(refusal) => Err(refusal),
        };
        ready.map(|(listing, turn)| {
            tokio::task::spawn_blocking(move || {
                let parameters = Parameters(parameters);
                let page = applications::page(&listing, &place, &parameters);
                (page, turn)
            })
        })
    };
    finish(&server, &place, made).await
}

async fn without_slash(Path(id): Path<String>) -> Redirect {
    Redirect::temporary(&format!("../{}", place::quoted(&id)))
}

/// An application's page; of an application that only has attempts, that of the newest.
async fn newest(
    State(server): State<Arc<Server>>,
    Path(id): Path<String>,
    address: Uri,
    parameters: Raw,
) -> Response {
    let without = server.app(&id, None).await.map(drop);
    if without.is_err()
        && let Ok(all) = crate::serve::routes::attempts(&server, &id).await
    {
        let merged = crate::serve::applications::merged(all);
        if let Some(attempt) = merged["attempts"][0]["attemptId"].as_str() {
            // Both come from the store, whose names have no characters that need quoting in an address.
            return Redirect::temporary(&format!("{id}/{attempt}")).into_response();
        }
    }
    show(server, id, String::new(), &address, parameters).await
}

async fn part(
    State(server): State<Arc<Server>>,
    Path((id, rest)): Path<(String, String)>,
    address: Uri,
    parameters: Raw,
) -> Response {
    show(server, id, rest, &address, parameters).await
}

async fn show(
    server: Arc<Server>,
    id: String,
    rest: String,
    address: &Uri,
    Query(parameters): Raw,
) -> Response {
    let (attempt, part) = place::split(&rest);
    let place = Place::of(address.path(), &id, attempt);
    let opened = server.app(&id, attempt).await;
    let made = opened.map(|(app, turn)| {
        let (server, place, part) = (Arc::clone(&server), place.clone(), part.to_owned());
        tokio::task::spawn_blocking(move || {
            let asked = Asked {
                server: &server,
                app: &app,
                place: &place,
                parameters: &Parameters(parameters),
                missing: &Missing::default(),
            };
            (route(&asked, &part), turn)
        })
    });
    finish(&server, &place, made).await
}

/// What a page of an application is made of.
struct Asked<'a> {
    server: &'a Server,
    app: &'a App,
    place: &'a Place,
    parameters: &'a Parameters,
    missing: &'a Missing,
}

/// What pages say that they could not read, for who writes them down.
#[derive(Default)]
struct Missing(RefCell<BTreeSet<String>>);

impl Missing {
    fn add(&self, what: impl Into<String>) {
        self.0.borrow_mut().insert(what.into());
    }
}

fn route(asked: &Asked<'_>, part: &str) -> Document {
    let path: Vec<&str> = part.split('/').collect();
    match path[..] {
        [""] => application::page(asked),
        ["jobs"] => jobs::page(asked),
        ["stages"] => sections::stages(asked),
        ["stages", id, attempt] => stage::page(asked, id, attempt),
        ["tasks"] => tasks::page(asked),
        ["tasks", id] => task::page(asked, id),
        ["executors"] => sections::executors(asked),
        ["rdds"] => sections::rdds(asked),
        ["environment"] => sections::environment(asked),
        ["sql"] => sections::queries(asked),
        ["sql", id] => sections::query(asked, id),
        ["timeline"] => timeline::page(asked),
        ["timeline", "memory"] => memory::page(asked),
        ["findings"] => advice::page(asked),
        _ => Err(Refusal::not_found("this server has no such page")),
    }
}

/// Waits for a page, and keeps its permit until it has room among the answers that wait for their readers.
async fn finish(
    server: &Server,
    place: &Place,
    made: Result<Pending<Markup>, Refusal>,
) -> Response {
    let (page, _turn) = finished(made).await;
    let (status, markup) = match page {
        Ok(markup) => (StatusCode::OK, markup),
        Err(refusal) => (refusal.0, refused(place, &refusal)),
    };
    let kind = [(header::CONTENT_TYPE, "text/html; charset=utf-8")];
    match CountedText::bytes(markup.into_string(), &server.bodies).await {
        Ok(text) => (status, headers(), kind, text).into_response(),
        Err(refusal) => (refusal.0, refusal.1).into_response(),
    }
}

fn refused(place: &Place, refusal: &Refusal) -> Markup {
    let title = refusal.0.canonical_reason().unwrap_or("No answer");
    document(
        place,
        title,
        (
            &html! {},
            &html! {
                h1 { (title) }
                p { (shown::cut(&refusal.1)) }
                p { a href=(place.to("")) { "All applications" } }
            },
        ),
    )
}

/// A whole document.
fn document(place: &Place, title: &str, (head, body): (&Markup, &Markup)) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (shown::cut(title)) " · SMTT history" }
                link rel="icon" href=(place.to("files/icon.svg"));
                link rel="stylesheet" href=(place.to("files/page.css"));
                (head)
            }
            body { (body) }
        }
    }
}
