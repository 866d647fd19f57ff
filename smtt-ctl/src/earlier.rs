//! Rows that earlier runs of the daemon measured, beside those of the present one.

use std::time::Instant;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use smtt_model::protocol::ListQuery;
use smtt_model::rows::{EarlierRun, Listing, Summary};
use smtt_model::{time, units};

use super::args::Query;
use super::cluster::{Merge, of_each};
use super::listing::Rows;
use super::say;
use crate::client::{Client, ClientError};

/// Field of a row that an earlier run measured.
pub(super) const EARLIER: &str = "earlier";

/// Times without measurement that are named, and workers of a cluster with such.
const NAMED: usize = 5;

/// Listings of which earlier runs have rows.
const LISTINGS: [&str; 5] = [
    "/v1/executors",
    "/v1/memory",
    "/v1/stages",
    "/v1/rdds",
    "/v1/tasks",
];

/// Requests a listing, with the rows of earlier runs among it unless the query leaves them out. Of a cluster's daemons those
/// are asked that say in their first answer that they have some.
///
/// # Errors
/// See [`ClientError`].
pub(super) async fn ask<Row: DeserializeOwned>(
    client: &Client,
    path: &str,
    question: &ListQuery,
    query: Option<&Query>,
) -> Result<Listing<Row>, ClientError>
where
    Listing<Row>: Merge,
{
    let begin = Instant::now();
    let mut now: Listing<Row> = client.ask(path, question).await?;
    let is_left_out = query.is_some_and(|query| query.this_run || query.since.is_some());
    if is_left_out || now.summary.earlier_runs.is_empty() || !LISTINGS.contains(&path) {
        return Ok(now);
    }
    let before = match client.cluster() {
        Some(cluster) => {
            let asked = cluster.earlier(path, question, begin.elapsed());
            Box::pin(asked).await.map(typed)
        }
        None => client.ask_one(&of(path), question).await.map(Some),
    };
    let before: Listing<Row> = match before {
        Ok(Some(before)) => before,
        Ok(None) => return Ok(now),
        // What is measured now has come already.
        Err(error) => {
            say(&format!(
                "the rows from before the daemon's restart cannot be read: {error}"
            ));
            return Ok(now);
        }
    };
    now.summary.earlier_left_out = before.summary.earlier_left_out;
    now.rows_total = now.rows_total.saturating_add(before.rows_total);
    if before.rows.is_empty() {
        return Ok(now);
    }
    now.rows.extend(before.rows);
    let summary = now.summary.clone();
    let (question, _) = of_each(path, question);
    let sorted = Listing::merge(vec![now], path, &question)?;
    Ok(Listing { summary, ..sorted })
}

/// Rows of a cluster by their types, by way of text, for which each type has a reader. One worker's wrong rows leave those of
/// others.
fn typed<Row: DeserializeOwned>(all: Option<Rows>) -> Option<Listing<Row>> {
    let all = all?;
    let read = |row: &Map<String, Value>| {
        let text = serde_json::to_vec(row).ok()?;
        serde_json::from_slice(&text).ok()
    };
    let rows: Vec<Row> = all.rows.iter().filter_map(read).collect();
    let wrong = all.rows.len() - rows.len();
    if wrong > 0 {
        say(&format!(
            "{wrong} rows from before restarts of workers' daemons cannot be read"
        ));
    }
    Some(Listing {
        rows,
        rows_total: all.rows_total.saturating_sub(wrong as u64),
        summary: all.summary,
    })
}

/// The path of a listing's rows of earlier runs.
pub(super) fn of(path: &str) -> String {
    path.replacen("/v1/", "/v1/earlier/", 1)
}

/// The run of a row, as a word.
pub(super) fn word(value: &Value) -> String {
    match serde_json::from_value::<EarlierRun>(value.clone()) {
        Ok(run) => until(&run),
        Err(_) => "now".to_owned(),
    }
}

/// When an earlier run ended.
pub(super) fn until(run: &EarlierRun) -> String {
    format!("until {}", time::clock(run.until_unix_ms))
}

/// A title's part about a row of an earlier run.
pub(super) fn mark(run: Option<&EarlierRun>) -> String {
    run.map_or_else(String::new, |run| {
        format!(", {}, before the daemon's restart", until(run))
    })
}

/// Whether a row is of one of these runs.
pub(super) fn is_of(row: &Map<String, Value>, runs: &[EarlierRun]) -> bool {
    let since = row
        .get(EARLIER)
        .and_then(|run| run.get("since_unix_ms")?.as_u64());
    runs.iter().any(|run| Some(run.since_unix_ms) == since)
}

/// Whether rows are of earlier runs.
pub(super) fn has(rows: &[Map<String, Value>]) -> bool {
    rows.iter().any(|row| row.get(EARLIER).is_some())
}

/// The lines about earlier runs below a table.
pub(super) fn note(client: &Client, listing: &Rows) -> String {
    let Rows {
        rows,
        rows_total,
        summary,
    } = listing;
    let of_earlier = rows.iter().filter(|row| row.get(EARLIER).is_some());
    let of_earlier = of_earlier.count() as u64;
    let mut text = match of_earlier {
        // They may be among the rows that the limit hides.
        0 if *rows_total > rows.len() as u64 => String::new(),
        0 => return String::new(),
        count => format!(
            "before the daemon's restart: {} row{}, in no figure above (--this-run leaves them out)\n",
            units::count(count),
            if count == 1 { "" } else { "s" },
        ),
    };
    let Some(cluster) = client.cluster() else {
        not_measured(&mut text, "", summary);
        return text + &left_out(summary);
    };
    let runs = cluster.runs();
    for (worker, summary) in runs.iter().take(NAMED) {
        not_measured(&mut text, &format!(" on {worker}"), summary);
    }
    if let Some(more) = runs.len().checked_sub(NAMED + 1) {
        text.push_str(&format!(
            "not measured on {} more workers: --json has their runs\n",
            more + 1
        ));
    }
    text + &left_out(summary)
}

/// Since when figures are measured that have no rows of earlier runs beside them; `None` where there are no such runs.
pub(super) fn since(summary: &Summary) -> Option<String> {
    let last = summary.earlier_runs.last()?;
    Some(match summary.measured_since_unix_ms {
        Some(since) => format!(
            "{} UTC, after a restart of the daemon; it ran before, {}: smtt-ctl executors lists what it measured then",
            time::clock(since),
            until(last)
        ),
        None => "restarts of workers' daemons: smtt-ctl --cluster executors lists them, and what they measured before"
            .to_owned(),
    })
}

/// As a line below a table.
pub(super) fn line(summary: &Summary) -> String {
    let since = since(summary).map(|since| format!("measured since: {since}\n"));
    since.unwrap_or_default()
}

/// The last times between a daemon's runs.
fn not_measured(text: &mut String, on: &str, summary: &Summary) {
    let runs = &summary.earlier_runs;
    let begins = runs.iter().skip(1).map(|run| Some(run.since_unix_ms));
    let begins = begins.chain([summary.measured_since_unix_ms]);
    let more = runs.len().saturating_sub(NAMED);
    for (run, next) in runs.iter().zip(begins).skip(more) {
        let Some(next) = next.filter(|next| *next >= run.until_unix_ms) else {
            continue;
        };
        let [from, to] = [run.until_unix_ms, next].map(time::clock);
        if !from.is_empty() && !to.is_empty() {
            text.push_str(&format!("not measured{on}: {from} to {to} UTC\n"));
        }
    }
    if more > 0 {
        let more = units::count(more as u64);
        text.push_str(&format!("not measured{on}: {more} more times before\n"));
    }
}

/// A line about files of earlier runs that an answer had no room for; empty where it had room for all.
pub(super) fn left_out(summary: &Summary) -> String {
    match summary.earlier_left_out {
        0 => String::new(),
        files => format!(
            "not listed: {} older files (smtt-history shows what they have)\n",
            units::count(files)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(runs: usize, since: Option<u64>) -> Summary {
        let run = |number: usize| EarlierRun {
            since_unix_ms: 1_000_000 * number as u64,
            until_unix_ms: 1_000_000 * number as u64 + 700_000,
        };
        Summary {
            earlier_runs: (0..runs).map(run).collect(),
            measured_since_unix_ms: since,
            ..Summary::default()
        }
    }

    #[test]
    fn the_last_times_without_measurement_are_named() {
        let text = |runs| {
            let mut text = String::new();
            let since = Some(1_000_000 * runs as u64);
            not_measured(&mut text, " on w", &summary(runs, since));
            text
        };
        assert_eq!(
            text(2),
            "not measured on w: 00:11:40 to 00:16:40 UTC\nnot measured on w: 00:28:20 to 00:33:20 UTC\n"
        );
        let many = text(40);
        assert_eq!(many.lines().count(), NAMED + 1);
        assert!(
            many.ends_with("not measured on w: 35 more times before\n"),
            "{many}"
        );
    }

    #[test]
    fn a_report_says_since_when_its_figures_are_measured() {
        assert_eq!(line(&summary(0, None)), "");
        assert_eq!(
            line(&summary(2, Some(2_000_000))),
            "measured since: 00:33:20 UTC, after a restart of the daemon; it ran before, until 00:28:20: smtt-ctl executors lists what it measured then\n"
        );
        assert!(line(&summary(2, None)).contains("workers"));
    }
}
