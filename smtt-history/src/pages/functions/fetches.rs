//! The requests for shuffle blocks of a task: a lane on the scale of its functions, the numbers of one, and a table.

use maud::{Markup, html};
use serde_json::{Value, json};
use smtt_model::rows::{FetchRow, FunctionsRow};
use smtt_model::units;

use super::axis::grid;
use super::window::Window;
use super::{GAP, choice, chosen, number, rectangle};
use crate::pages::Asked;
use crate::pages::shown::{Cell, cut, facts};
use crate::pages::table::{Column, Request, documents};
use crate::serve::Refusal;

/// Height of a request in the picture, and rows of requests beside one another.
const FETCH_ROW: usize = 7;
pub(super) const FETCH_ROWS: usize = 24;

/// Who was asked.
fn source(fetch: &FetchRow) -> String {
    let address = fetch.address.as_deref().unwrap_or("unknown");
    match &fetch.executor_id {
        Some(executor) => format!("{address} (executor {executor})"),
        None => address.to_owned(),
    }
}

/// Requests in rows, so that none lies over another one; the last row has those that find no place.
pub(super) fn in_rows(fetches: &[FetchRow]) -> Vec<(usize, &FetchRow)> {
    let mut ends: Vec<u64> = Vec::new();
    let place = |fetch: &'_ FetchRow| {
        let free = ends.iter().position(|end| *end <= fetch.begin_ns);
        let row = free.unwrap_or_else(|| ends.len().min(FETCH_ROWS - 1));
        let end = fetch.begin_ns.saturating_add(fetch.duration_ns.max(1));
        match ends.get_mut(row) {
            Some(last) => *last = end.max(*last),
            None => ends.push(end),
        }
        row
    };
    let rows: Vec<usize> = fetches.iter().map(place).collect();
    rows.into_iter().zip(fetches).collect()
}

/// The requests for shuffle blocks of other executors as a picture, on the scale of the functions' lanes.
pub(super) fn fetch_lanes(asked: &Asked<'_>, functions: &FunctionsRow, window: &Window) -> Markup {
    let Some(sum) = functions.fetched else {
        return html! {};
    };
    let all = in_rows(&functions.fetches);
    let height = all.iter().map(|(row, _)| row + 1).max().unwrap_or(0) * FETCH_ROW + GAP;
    // The page shows the numbers of one thing.
    let chosen = chosen(asked, "fetch").filter(|_| super::chosen(asked, "span").is_none());
    let to = choice(asked, "fetch");
    html! {
        p.soft.lane { "fetches: " (Cell::Count(number(sum.requests)).shown()) " requests to other executors, "
            (Cell::Count(number(sum.arrived_blocks)).shown()) " blocks, " (Cell::Bytes(number(sum.bytes)).shown()) }
        @if !all.is_empty() {
            svg.lanes id="fetches-lane" viewBox=(format!("0 0 100 {height}")) height=(height) preserveAspectRatio="none"
                role="group" aria-label="Requests for shuffle blocks of other executors" {
                (grid(window, height))
                @for (number, (row, fetch)) in all.iter().enumerate() {
                    @let colour = if fetch.outcome == "complete" { "s4" } else { "p2" };
                    @let class = format!("{colour}{}", if chosen == Some(number) { " chosen" } else { "" });
                    @let times = (fetch.begin_ns, fetch.duration_ns);
                    a href=(to(number)) class=[(!window.has(times.0, times.1)).then_some("out")] {
                        title { (cut(&source(fetch))) ", " (units::bytes(fetch.bytes)) ", " (units::duration(fetch.duration_ns))
                            " from " (units::duration(fetch.begin_ns)) ", " (cut(&fetch.outcome)) }
                        (rectangle(window, &class, times, (row * FETCH_ROW, FETCH_ROW - 1)))
                    }
                }
            }
        }
        @if sum.left_out > 0 {
            p.soft { (Cell::Count(number(sum.left_out)).shown()) " further requests are in the sums only." }
        }
        @if let Some(fetch) = chosen.and_then(|at| functions.fetches.get(at)) {
            div id="span" {
                h3 { "Request for shuffle blocks" }
                (facts(&[
                    ("From", Cell::Text(source(fetch))),
                    ("Begin", Cell::Nanoseconds(number(fetch.begin_ns))),
                    ("End", Cell::Nanoseconds(number(fetch.begin_ns.saturating_add(fetch.duration_ns)))),
                    ("Duration", Cell::Nanoseconds(number(fetch.duration_ns))),
                    ("Blocks", Cell::Count(number(fetch.blocks))),
                    ("Bytes", Cell::Bytes(number(fetch.bytes))),
                    ("Outcome", Cell::Text(fetch.outcome.clone())),
                ]))
            }
        }
    }
}

/// Keys of the columns of requests, which no column of spans has.
const FETCH_KEYS: [&str; 7] = [
    "from", "executor", "sent", "took", "blocks", "bytes", "outcome",
];

pub(super) fn is_of_fetches(key: &str) -> bool {
    FETCH_KEYS.contains(&key)
}

/// The requests for shuffle blocks as a table; nothing where there are none.
pub(super) fn fetches(asked: &Asked<'_>, functions: &FunctionsRow) -> Result<Markup, Refusal> {
    if functions.fetches.is_empty() {
        return Ok(html! {});
    }
    let mut request = Request::new(asked.parameters)?;
    request.sort = request.sort.filter(|(key, _)| is_of_fetches(key));
    let rows: Vec<Value> = functions.fetches.iter().map(|it| json!(it)).collect();
    type Of = fn(i64) -> Cell;
    let figure =
        |key: &'static str, name: &'static str, title: &'static str, of: Of| -> Column<'_> {
            let of = move |row: &Value| Cell::number(&row[name], of);
            ((key, title), Box::new(of))
        };
    let text = |key: &'static str, name: &'static str, title: &'static str| -> Column<'_> {
        let of = move |row: &Value| Cell::text(&row[name]);
        ((key, title), Box::new(of))
    };
    let columns = [
        text(FETCH_KEYS[0], "address", "From"),
        text(FETCH_KEYS[1], "executor_id", "Executor"),
        figure(FETCH_KEYS[2], "begin_ns", "Begin", Cell::Nanoseconds),
        figure(FETCH_KEYS[3], "duration_ns", "Duration", Cell::Nanoseconds),
        figure(FETCH_KEYS[4], "blocks", "Blocks", Cell::Count),
        figure(FETCH_KEYS[5], "bytes", "Bytes", Cell::Bytes),
        text(FETCH_KEYS[6], "outcome", "Outcome"),
    ];
    let title = "Requests for shuffle blocks of other executors";
    let table = documents(&request, "fetches", title, &columns, &rows, |_| true)?;
    Ok(html! { h2 { "Fetches" } (table) })
}
