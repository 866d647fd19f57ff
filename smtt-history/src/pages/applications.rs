//! The list of applications.

use maud::html;
use serde_json::{Value, json};

use super::place::{Place, quoted};
use super::shown::Cell;
use super::table::{Choice, Column, Request, documents, form};
use super::{Document, document};
use crate::serve::applications::{Listing, TEXTS, listed};
use crate::serve::routes::Parameters;

/// Fields of an attempt that the table has.
const FIELDS: [&str; 6] = [
    "completed",
    "sparkUser",
    "appSparkVersion",
    "startTimeEpoch",
    "endTimeEpoch",
    "duration",
];

/// What the table has of an application.
fn shown(application: Value) -> Value {
    let plain = |value: &Value| match value {
        Value::Array(_) | Value::Object(_) => Value::Null,
        value => value.clone(),
    };
    let newest = &application["attempts"][0];
    let attempt = FIELDS.map(|name| (name, plain(&newest[name])));
    let attempt: Value = attempt.into_iter().collect();
    json!({
        "id": plain(&application["id"]),
        "name": plain(&application["name"]),
        "attempts": [attempt],
    })
}

/// The list of applications, sorted and filtered as the address says.
pub(super) fn page(listing: &Listing, place: &Place, parameters: &Parameters) -> Document {
    let request = Request::new(parameters)?;
    let all = listed(listing, &Parameters(Vec::new()), TEXTS, shown)?;
    let id = |json: &Value| json["id"].as_str().unwrap_or_default().to_owned();
    let status = |json: &Value| match json["attempts"][0]["completed"].as_bool() {
        Some(true) => "COMPLETED",
        _ => "RUNNING",
    };
    let of_attempt = |name: &'static str, of: fn(i64) -> Cell| {
        move |json: &Value| {
            // Spark says -1 for the end of what still runs.
            let value = json["attempts"][0][name].as_i64();
            value.filter(|value| *value >= 0).map_or(Cell::Absent, of)
        }
    };
    let columns: [Column<'_>; 8] = [
        (
            ("name", "Name"),
            Box::new(|json| {
                let name = json["name"].as_str().filter(|name| !name.trim().is_empty());
                let id = id(json);
                let to = place.to(&format!("applications/{}", quoted(&id)));
                Cell::Link(name.map_or(id, str::to_owned), to)
            }),
        ),
        (("id", "Application"), Box::new(|json| Cell::Text(id(json)))),
        (
            ("user", "User"),
            Box::new(|json| Cell::text(&json["attempts"][0]["sparkUser"])),
        ),
        (
            ("version", "Spark"),
            Box::new(|json| Cell::text(&json["attempts"][0]["appSparkVersion"])),
        ),
        (
            ("status", "Status"),
            Box::new(|json| Cell::Status(status(json).to_owned())),
        ),
        (
            ("start", "Started"),
            Box::new(of_attempt("startTimeEpoch", Cell::Time)),
        ),
        (
            ("end", "Ended"),
            Box::new(of_attempt("endTimeEpoch", Cell::Time)),
        ),
        (
            ("duration", "Duration"),
            Box::new(of_attempt("duration", Cell::Duration)),
        ),
    ];
    let wanted = request.value("status");
    let keep = |json: &Value| wanted.is_empty() || status(json) == wanted;
    let table = documents(
        &request,
        "applications",
        "Applications",
        &columns,
        &all,
        keep,
    )?;
    let choices = [Choice {
        name: "status",
        title: "Status",
        values: &["COMPLETED", "RUNNING"],
    }];
    let body = html! {
        header { h1 { "Spark applications" } }
        main {
            (form(&request, "Search", &choices))
            (table)
            @if listing.left_out() > 0 {
                p.finding {
                    "At least " (Cell::Count(listing.left_out().try_into().unwrap_or(i64::MAX)).shown())
                    " older applications are in no list and in no search, because the store has too many. Each opens by its id: applications/ID."
                }
            }
            p.soft {
                "Also as Spark's REST API: " a href=(place.to("api/v1/applications")) { "api/v1/applications" } "."
            }
        }
    };
    Ok(document(place, "Applications", (&html! {}, &body)))
}
