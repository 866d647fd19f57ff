//! An application: its frame and its overview.

use std::collections::BTreeSet;

use maud::{Markup, html};
use serde_json::Value;

use super::live::Live;
use super::place::{SECTIONS, quoted};
use super::shown::{Cell, facts};
use super::{Asked, Document, document};
use crate::open::App;
use crate::out::Kind;
use crate::serve::Refusal;
use crate::serve::routes::application;
use crate::workers::Files;

/// Workers that the overview names at most.
const WORKERS: usize = 8;

/// The name that the application gave itself, else its id.
pub(super) fn name(app: &App, id: &str) -> String {
    let own = application(app).ok();
    let name = own.as_ref().and_then(|json| json["name"].as_str());
    let name = name.filter(|name| !name.trim().is_empty());
    name.unwrap_or(id).to_owned()
}

/// A page of an application, with the sections' addresses above it.
pub(super) fn framed(asked: &Asked<'_>, current: &str, title: &str, body: &Markup) -> Markup {
    let (place, id) = (asked.place, asked.place.id());
    let name = name(asked.app, id);
    let live = Live::of(asked);
    let page = html! {
        header {
            p.path {
                a href=(place.to("")) { "Applications" } " / "
                a href=(place.part("")) { bdi { (super::shown::cut(&name)) } }
                span.soft { " " (id) @if let Some(attempt) = place.attempt() { ", attempt " (attempt) } }
            }
            nav.sections aria-label="Sections" {
                @for (path, title) in SECTIONS {
                    a href=(place.part(path)) aria-current=[(path == current).then_some("page")] { (title) }
                }
            }
            @if let Some(live) = live { (live.line(asked)) }
        }
        main {
            h1 { (super::shown::cut(title)) }
            (body)
        }
        @if live.is_some() { (Live::script(asked)) }
    };
    let head = live.map(Live::head).unwrap_or_default();
    document(place, &format!("{title} · {name}"), (&head, &page))
}

/// The overview of an application.
pub(super) fn page(asked: &Asked<'_>) -> Document {
    let json = application(asked.app)?;
    let attempt = &json["attempts"][0];
    let positive = |name: &str, of: fn(i64) -> Cell| {
        let value = attempt[name].as_i64().filter(|value| *value >= 0);
        value.map_or(Cell::Absent, of)
    };
    let is_complete = attempt["completed"] == true;
    let status = if is_complete { "COMPLETED" } else { "RUNNING" };
    let end = if is_complete {
        "Ended"
    } else {
        "Log last changed"
    };
    let count = |kind: Kind| Cell::Count(asked.app.all(kind).len() as i64);
    let tasks = asked.app.tasks().map(|table| table.rows()).ok();
    let pairs = [
        ("Status", Cell::Status(status.to_owned())),
        ("User", Cell::text(&attempt["sparkUser"])),
        ("Spark", Cell::text(&attempt["appSparkVersion"])),
        ("Started", positive("startTimeEpoch", Cell::Time)),
        (
            end,
            if is_complete {
                positive("endTimeEpoch", Cell::Time)
            } else {
                positive("lastUpdatedEpoch", Cell::Time)
            },
        ),
        ("Duration", positive("duration", Cell::Duration)),
        ("Jobs", count(Kind::Job)),
        ("Stage attempts", count(Kind::Stage)),
        (
            "Task attempts",
            tasks.map_or(Cell::Absent, |rows| Cell::Count(rows as i64)),
        ),
        ("Executors with the driver", count(Kind::Executor)),
        ("SQL queries", count(Kind::Sql)),
    ];
    let import = asked.app.one(Kind::Import, "");
    let import = import.and_then(|text| serde_json::from_str::<Value>(text).ok());
    let title = name(asked.app, asked.place.id());
    let body = html! {
        (facts(&pairs))
        (workers(asked))
        @if let Some(Value::Object(import)) = &import {
            h2 { "The event log" }
            (log(import))
        }
    };
    Ok(framed(asked, "", &title, &body))
}

/// Which workers' daemons wrote about the application, by the names of their files, and where that is.
fn workers(asked: &Asked<'_>) -> Markup {
    let store = &asked.server.settings.store;
    let user = asked.parameters.one("user");
    let number = user.and_then(|it| it.parse().ok());
    let files = match Files::of(store, asked.app.identity(), number, None).map_err(Refusal::from) {
        Ok(files) => files,
        Err(refusal) => {
            asked
                .missing
                .add(format!("what the workers wrote: {}", refusal.1));
            return html! { p.soft { (super::shown::cut(&refusal.1)) } };
        }
    };
    let hosts: BTreeSet<&str> = files.all().iter().map(|it| it.name.host.as_str()).collect();
    let of_user = user.map_or_else(String::new, |user| format!("?user={}", quoted(user)));
    let to = |part: &str| format!("{}{of_user}", asked.place.part(part));
    html! {
        @if hosts.is_empty() {
            p.soft {
                "Functions of tasks, memory and page faults need what the workers' daemons measure; this store has only what "
                "Spark's event log says."
            }
        } @else {
            h2 { "Workers" }
            p id="workers" {
                "The daemons of " (hosts.len()) @if hosts.len() == 1 { " worker" } @else { " workers" } " wrote about this application: "
                @for (at, host) in hosts.iter().take(WORKERS).enumerate() { @if at > 0 { ", " } bdi { (super::shown::cut(host)) } }
                @if hosts.len() > WORKERS { " and " (hosts.len() - WORKERS) " more" }
                ". What they measured is " a href=(to("timeline/memory")) { "memory over time" } ", "
                a href=(to("findings")) { "findings" } " and, on the page of each of their " a href=(to("tasks")) { "tasks" } ", functions."
            }
        }
    }
}

/// What the import of the log counted.
fn log(import: &serde_json::Map<String, Value>) -> Markup {
    html! {
        div.wide tabindex="0" role="region" aria-label="Import" { table.data id="import" {
            caption { "What the import of the log counted" }
            tbody {
                @for (name, value) in import {
                    @if value.is_number() || value.is_string() || value.is_boolean() {
                        tr {
                            th.words scope="row" { (name) }
                            td {
                                @match value {
                                    Value::String(text) => bdi { (super::shown::cut(text)) },
                                    other => (other.to_string()),
                                }
                            }
                        }
                    }
                }
            }
        } }
    }
}
