//! The listings: executors, stages, tasks, RDDs, blocks.

use serde_json::{Map, Value};
use smtt_model::rows::{Listing, Summary};
use smtt_model::units;

use super::advise::wrapped;
use super::args::Query;
use super::columns::{EXECUTORS, ListingKind, USER};
use super::{Exit, Failure, Output, say, table};
use crate::client::Client;

/// Maximum number of rows in a table.
pub type Rows = Listing<Map<String, Value>>;

/// Requests a listing and prints it. Without `all` the table leaves out rows without work and memory.
pub(super) async fn run(
    client: &Client,
    output: Output,
    kind: &ListingKind,
    query: &Query,
    all: bool,
) -> Result<Exit, Failure> {
    let sort = query.sort.as_deref().map(|asked| kind.sort(asked));
    let question = query.filter.ordered(sort, query.limit);
    let mut listing: Rows = client.ask(kind.path, &question).await?;
    if output.json {
        output.json(&listing.rows)?;
    } else {
        let before = listing.rows.len();
        // A requested RDD is shown even if it is idle.
        if !all && query.filter.rdd.is_none() {
            listing.rows.retain(|row| !is_idle(row));
        }
        let idle = before - listing.rows.len();
        let mut text = text(kind, &listing, &query.filter.words(), output);
        if idle > 0 {
            text.push_str(&format!(
                "not listed: {idle} idle {} (--all lists them)\n",
                kind.what
            ));
        }
        output.text(&text)?;
    }
    if kind.shows_faults
        && !listing.summary.measured.page_faults
        && listing.summary.page_faults.is_none()
    {
        say("page faults are not measured on this machine: smtt-ctl status says why");
        return Ok(Exit::Degraded);
    }
    Ok(Exit::Fine)
}

/// One line for each state of heap addresses in the rows that limits their use.
pub(super) fn heap_notes(rows: &[Map<String, Value>], field: &str, output: Output) -> String {
    const NOTES: [(&str, &str); 4] = [
        (
            "stale",
            "stale: a collection has begun and its new addresses are not reported yet",
        ),
        (
            "polled",
            "polled: the JVM does not report its collections, so addresses on its heap may be stale",
        ),
        (
            "as told",
            "as told: addresses on the Java heap as last reported; a collection may have moved the objects since",
        ),
        (
            "refused",
            "refused: the collector moves things while the application runs (ZGC, Shenandoah), or the agent \
             has addresses=off, so heap addresses are not reported; figures by context and off-heap addresses are not affected",
        ),
    ];
    let said = |word: &str| {
        rows.iter()
            .any(|row| row.get(field).and_then(Value::as_str) == Some(word))
    };
    NOTES
        .iter()
        .filter(|(word, _)| said(word))
        .flat_map(|(_, note)| wrapped(note, output.width.unwrap_or(usize::MAX), 0))
        .map(|line| format!("{line}\n"))
        .collect()
}

/// Whether a row is idle: Spark creates many RDDs that no task works on directly.
fn is_idle(row: &Map<String, Value>) -> bool {
    [
        "page_faults",
        "cycles",
        "storage_memory_peak_bytes",
        "execution_memory_peak_bytes",
    ]
    .iter()
    .all(|field| row.get(*field).and_then(Value::as_u64).unwrap_or(0) == 0)
}

/// Message in place of an empty table. `wanted` is the selection, which may be mistyped.
fn nothing(kind: &ListingKind, summary: &Summary, wanted: &str) -> String {
    let what = kind.what;
    match (wanted, summary.executors) {
        ("", _) => format!("no {what}\n"),
        (_, 0) => {
            format!("no executor on this worker matches {wanted}: smtt-ctl executors lists them\n")
        }
        _ => format!("no {what} match {wanted}\n"),
    }
}

/// Whether no two rows are of different users: a column of users would say nothing.
pub(super) fn is_of_one_user(rows: &[Map<String, Value>]) -> bool {
    let mut users = rows.iter().map(|row| row.get(USER.field));
    let first = users.next();
    users.all(|user| Some(user) == first)
}

/// A listing as text; `wanted` is the selection of rows.
pub(super) fn text(kind: &ListingKind, listing: &Rows, wanted: &str, output: Output) -> String {
    if listing.rows.is_empty() {
        let nothing = nothing(kind, &listing.summary, wanted);
        return format!("{nothing}{}", footer(kind, &listing.summary));
    }
    // An application common to all rows is printed once, above the table.
    let mut applications: Vec<&Value> = listing
        .rows
        .iter()
        .filter_map(|row| row.get("application_id"))
        .collect();
    applications.dedup();
    let mut text = String::new();
    let mut columns: Vec<_> = match applications.as_slice() {
        [Value::String(application)] => {
            text.push_str(&format!("application {application}\n"));
            kind.columns
                .iter()
                .filter(|column| column.field != "application_id")
                .copied()
                .collect()
        }
        _ => kind.columns.to_vec(),
    };
    if kind.path != EXECUTORS.path && is_of_one_user(&listing.rows) {
        columns.retain(|column| column.field != USER.field);
    }
    text.push_str(&table::render(
        &columns,
        &listing.rows,
        output.width,
        output.styled,
    ));
    text.push_str(&heap_notes(&listing.rows, "heap_addresses", output));
    text.push_str(&footer(kind, &listing.summary));
    text
}

/// The line below a table: the share of page faults without a row.
pub(super) fn footer(kind: &ListingKind, summary: &Summary) -> String {
    let mut text = String::new();
    if kind.shows_faults {
        match (
            summary.page_faults,
            summary.page_faults_unattributed,
            summary.unattributed_share,
        ) {
            (Some(all), Some(without), Some(share)) => text.push_str(&format!(
                "unattributed: {} of {} page faults ({})\n",
                units::count(without),
                units::count(all),
                units::share(share)
            )),
            (Some(_), ..) => text.push_str("no page faults yet\n"),
            (None, ..) => text.push_str("page faults: not measured\n"),
        }
    }
    if kind.shows_faults && summary.drivers > 0 {
        text.push_str(&format!(
            "not in this sum: {} driver{} without tasks of their own\n",
            units::count(summary.drivers),
            if summary.drivers == 1 { "" } else { "s" },
        ));
    }
    if summary.executors_over_cap > 0 {
        text.push_str(&format!(
            "not listed: {} executors beyond [limits] executors\n",
            units::count(summary.executors_over_cap)
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::RDDS;

    #[test]
    fn an_empty_listing_says_what_was_asked_for() {
        let of = |executors| Summary {
            executors,
            ..Summary::default()
        };
        assert_eq!(nothing(&RDDS, &of(0), ""), "no RDDs\n");
        assert_eq!(nothing(&RDDS, &of(2), ""), "no RDDs\n");
        assert_eq!(
            nothing(&RDDS, &of(2), "--rdd nope"),
            "no RDDs match --rdd nope\n"
        );
        assert_eq!(
            nothing(&RDDS, &of(0), "--app nope"),
            "no executor on this worker matches --app nope: smtt-ctl executors lists them\n"
        );
    }
}
