//! The listings: executors, stages, tasks, RDDs, blocks.

pub mod choice;
pub mod no_match;
pub mod since;

use serde::Serialize;
use serde_json::{Map, Value, json};
use smtt_model::protocol::ListQuery;
use smtt_model::rows::{Listing, Summary};
use smtt_model::units;

use self::since::Recent;
use super::advise::wrapped;
use super::args::Query;
use super::columns::{APPLICATION_ATTEMPT, EXECUTORS, ListingKind, MEASURED, USER};
use super::output::{Form, rows};
use super::{Exit, Failure, Output, earlier, say, table};
use crate::client::Client;

/// Rows of a listing as JSON objects.
pub type Rows = Listing<Map<String, Value>>;

/// Requests a listing and prints it. Without `all` the table leaves out rows without work and memory.
pub(super) async fn run(
    client: &Client,
    output: Output,
    kind: &ListingKind,
    query: &Query,
    all: bool,
) -> Result<Exit, Failure> {
    let kind = &client.kind(kind);
    let sort = query.sort.as_deref().map(|asked| kind.sort(asked));
    let limit = query.rows(output.rows);
    // A requested RDD is shown even if it is idle.
    let busy_only = !all && query.filter.rdd.is_none() && output.form == Form::Text;
    let question = query.filter.ordered(sort, limit);
    let recent = match query.since {
        Some(age) => Some(Recent::ask(client, kind, &query.filter, age).await?),
        None => None,
    };
    let asked = ListQuery {
        // Idle and old rows must not take the place of others.
        limit: limit.filter(|_| !busy_only && recent.is_none()),
        ..question.clone()
    };
    let query = &of_one_run(query, output);
    let mut listing: Rows = earlier::ask(client, kind.path, &asked, Some(query)).await?;
    if let Some(recent) = &recent {
        let all = listing.rows.len();
        listing.rows.retain(|row| recent.has(kind, row));
        listing.rows_total = listing.rows.len() as u64;
        if listing.rows.is_empty() && all > 0 {
            if output.is_data() {
                data(client, kind, query, &listing, output)?;
            }
            return Err(recent.nothing(kind.what, all));
        }
        if output.is_data() {
            listing.rows.truncate(limit.unwrap_or(usize::MAX));
        }
    }
    let selected = listing.rows.len();
    if output.is_data() {
        data(client, kind, query, &listing, output)?;
    } else if selected > 0 || question == unfiltered(&question) {
        if busy_only {
            listing.rows.retain(|row| !is_idle(row));
            listing.rows_total = listing.rows.len() as u64;
        }
        let idle = selected - listing.rows.len();
        listing.rows.truncate(limit.unwrap_or(usize::MAX));
        let mut text = text(kind, &listing, query, output)?;
        if output.form == Form::Text && !query.this_run {
            text.push_str(&earlier::note(client, &listing));
        }
        if idle > 0 {
            text.push_str(&format!(
                "not listed: {idle} idle {} (--all lists them)\n",
                kind.what
            ));
        }
        output.text(&text)?;
    }
    if selected == 0 && question != unfiltered(&question) {
        return Err(no_match::no_match(client, kind.path, kind.what, &question).await);
    }
    Ok(outcome(kind, &listing.summary))
}

/// The query without rows of earlier runs where their lines would look as those of the present one: a program would take
/// them for other executors.
fn of_one_run(query: &Query, output: Output) -> Query {
    let are_alike = matches!(output.form, Form::Csv | Form::Plain)
        && !query.columns.iter().any(|name| name == earlier::EARLIER);
    Query {
        this_run: query.this_run || are_alike,
        ..query.clone()
    }
}

/// How complete a listing is; says what it lacks.
pub(super) fn outcome(kind: &ListingKind, summary: &Summary) -> Exit {
    if kind.shows_faults && !summary.measured.page_faults && summary.page_faults.is_none() {
        say("page faults are not measured on this machine: smtt-ctl status says why");
        return Exit::Degraded;
    }
    Exit::Fine
}

/// The query without its conditions.
pub(super) fn unfiltered(question: &ListQuery) -> ListQuery {
    ListQuery {
        sort: question.sort.clone(),
        limit: question.limit,
        ..ListQuery::default()
    }
}

/// Prints rows as JSON or comma-separated values.
pub(super) fn data(
    client: &Client,
    kind: &ListingKind,
    query: &Query,
    listing: &Rows,
    output: Output,
) -> Result<(), Failure> {
    let all = &listing.rows;
    let chosen = choice::chosen(kind.columns, &query.columns, all)?;
    let fields = |columns: &[table::Column]| columns.iter().map(|column| column.field).collect();
    if output.form == Form::Csv {
        let fields: Vec<&str> = fields(&chosen.unwrap_or_else(|| kind.columns.to_vec()));
        return output.text(&rows(&fields, all));
    }
    let print = |rows: &[Map<String, Value>]| match client.cluster() {
        None => output.data(&rows),
        Some(cluster) => output.data(&json!({
            "rows": rows,
            "rows_total": listing.rows_total,
            "summary": listing.summary,
            "complete": cluster.is_complete(),
            "workers": cluster.workers(),
        })),
    };
    let Some(chosen) = chosen else {
        return print(all);
    };
    let fields: Vec<&str> = fields(&chosen);
    let of = |row: &Map<String, Value>| -> Map<String, Value> {
        let value = |field: &&str| Some(((*field).to_owned(), row.get(*field)?.clone()));
        fields.iter().filter_map(value).collect()
    };
    print(&all.iter().map(of).collect::<Vec<_>>())
}

/// Prints rows of a listing without a table as JSON or comma-separated values; without a choice they have all fields.
pub(super) fn objects<Row: Serialize>(
    client: &Client,
    query: &Query,
    listing: &Listing<Row>,
    output: Output,
) -> Result<(), Failure> {
    if query.columns.is_empty() && (client.cluster().is_none() || output.form == Form::Csv) {
        return output.data(&listing.rows);
    }
    let of = |row| match serde_json::to_value(row) {
        Ok(Value::Object(row)) => Some(row),
        _ => None,
    };
    let kind = ListingKind {
        columns: &[],
        ..EXECUTORS
    };
    let listing = Rows {
        rows: listing.rows.iter().filter_map(of).collect(),
        rows_total: listing.rows_total,
        summary: listing.summary.clone(),
    };
    data(client, &kind, query, &listing, output)
}

/// A title's part about the worker.
pub(super) fn on(worker: Option<&str>) -> String {
    worker.map_or_else(String::new, |worker| format!(" on {worker}"))
}

/// Lines about rows and columns that a table has no room for.
pub(super) fn hidden(shown: usize, total: u64, columns: usize) -> String {
    let mut text = String::new();
    if total > shown as u64 {
        text.push_str(&format!(
            "hidden: {} of {} rows (--limit all shows them)\n",
            units::count(total - shown as u64),
            units::count(total)
        ));
    }
    text.push_str(&hidden_columns(columns, "--columns all"));
    text
}

/// A line about columns that a table has no room for, and about what shows them.
pub(super) fn hidden_columns(columns: usize, shown_by: &str) -> String {
    match columns {
        0 => String::new(),
        1 => format!("hidden: 1 column ({shown_by} shows it)\n"),
        more => format!("hidden: {more} columns ({shown_by} shows them)\n"),
    }
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
            "unverified",
            "unverified: addresses on the Java heap as last reported; a collection may have moved the objects since",
        ),
        (
            "refused",
            "refused: the collector moves things while the application runs (ZGC, Shenandoah), or the agent \
             has addresses=off, so heap addresses are not reported; figures by context and off-heap addresses are not affected",
        ),
    ];
    // An earlier daemon has another word for it.
    let said = |word: &str| {
        let words = rows.iter().filter_map(|row| row.get(field)?.as_str());
        words
            .map(|told| {
                if told == "as told" {
                    "unverified"
                } else {
                    told
                }
            })
            .any(|told| told == word)
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

/// Whether no two rows are of different users: a column of users would say nothing.
pub(super) fn is_of_one_user(rows: &[Map<String, Value>]) -> bool {
    let mut users = rows.iter().map(|row| row.get(USER.field));
    let first = users.next();
    users.all(|user| Some(user) == first)
}

/// A listing as text.
pub(super) fn text(
    kind: &ListingKind,
    listing: &Rows,
    query: &Query,
    output: Output,
) -> Result<String, Failure> {
    if output.form == Form::Plain {
        let chosen = choice::chosen(kind.columns, &query.columns, &listing.rows)?;
        let columns = chosen.unwrap_or_else(|| kind.columns.to_vec());
        return Ok(table::render(&columns, &listing.rows, output));
    }
    if listing.rows.is_empty() {
        let footer = footer(kind, &listing.summary);
        return Ok(format!("no {}\n{footer}", kind.what));
    }
    let (chosen, mut text) = match choice::chosen(kind.columns, &query.columns, &listing.rows)? {
        Some(chosen) => (Some(chosen), String::new()),
        None => (None, title(&listing.rows)),
    };
    let keep = chosen.is_some();
    let columns = chosen.unwrap_or_else(|| by_default(kind, &listing.rows));
    let table = table::fit(&columns, &listing.rows, output, keep);
    text.push_str(&table.text);
    text.push_str(&hidden(
        listing.rows.len(),
        listing.rows_total,
        table.hidden,
    ));
    text.push_str(&heap_notes(&listing.rows, "heap_addresses", output));
    text.push_str(&footer(kind, &listing.summary));
    Ok(text)
}

/// An application common to all rows, which is printed once, above the table.
fn common_application(rows: &[Map<String, Value>]) -> Option<&str> {
    let mut applications: Vec<&Value> = rows
        .iter()
        .filter_map(|row| row.get("application_id"))
        .collect();
    applications.dedup();
    match applications.as_slice() {
        [Value::String(application)] => Some(application),
        _ => None,
    }
}

fn title(rows: &[Map<String, Value>]) -> String {
    let Some(id) = common_application(rows) else {
        return String::new();
    };
    match attempts(rows).as_slice() {
        [Some(Value::String(attempt))] => format!("application {id}, attempt {attempt}\n"),
        _ => format!("application {id}\n"),
    }
}

/// The attempts of applications that rows are of, in turns.
fn attempts(rows: &[Map<String, Value>]) -> Vec<Option<&Value>> {
    let mut attempts: Vec<Option<&Value>> = rows
        .iter()
        .map(|row| row.get(APPLICATION_ATTEMPT.field))
        .collect();
    attempts.dedup();
    attempts
}

/// The columns of a listing, without those that state the same in each row.
fn by_default(kind: &ListingKind, rows: &[Map<String, Value>]) -> Vec<table::Column> {
    let mut columns = kind.columns.to_vec();
    if attempts(rows).len() > 1 {
        let after = columns.iter().position(|it| it.field == "application_id");
        columns.insert(after.map_or(0, |at| at + 1), APPLICATION_ATTEMPT);
    }
    if earlier::has(rows) {
        columns.insert(0, MEASURED);
    }
    if common_application(rows).is_some() {
        columns.retain(|column| column.field != "application_id");
    }
    if kind.path != EXECUTORS.path && is_of_one_user(rows) {
        columns.retain(|column| column.field != USER.field);
    }
    columns
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
        match summary.page_faults_before_tracing {
            Some(before) => text.push_str(&format!(
                "before tracing: {} page faults, in no figure above\n",
                units::count(before)
            )),
            None if summary.page_faults.is_some() && summary.executors > 0 => {
                text.push_str("before tracing: not known of every executor\n");
            }
            None => {}
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
    if summary.executors_evicted > 0 {
        text.push_str(&format!(
            "not whole: {} living executors lost their rows to others: raise [limits] executors or state\n",
            units::count(summary.executors_evicted)
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::RDDS;

    #[test]
    fn an_empty_listing_says_so() {
        let text = text(
            &RDDS,
            &Rows::default(),
            &Query::default(),
            Output::default(),
        );
        assert!(text.expect("a text").starts_with("no RDDs\n"));
    }

    #[test]
    fn hidden_rows_and_columns_are_counted() {
        assert_eq!(hidden(3, 3, 0), "");
        // A daemon of an older version does not count the rows.
        assert_eq!(hidden(3, 0, 0), "");
        assert_eq!(
            hidden(50, 1050, 1),
            "hidden: 1,000 of 1,050 rows (--limit all shows them)\n\
             hidden: 1 column (--columns all shows it)\n"
        );
    }
}
