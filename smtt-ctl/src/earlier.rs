//! Rows that earlier runs of the daemon measured, beside those of the present one.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use smtt_model::protocol::ListQuery;
use smtt_model::rows::{EarlierRun, Listing, Summary};
use smtt_model::{time, units};

use super::args::Query;
use super::cluster::Merge;
use super::listing::Rows;
use super::say;
use crate::client::{Client, ClientError};

/// Field of a row that an earlier run measured.
pub(super) const EARLIER: &str = "earlier";

/// Requests a listing, with the rows of earlier runs behind it unless the query leaves them out. A cluster's listings have
/// none: its daemons may be older ones.
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
    let mut all = both(client, path, question, query).await?;
    all.rows.truncate(question.limit.unwrap_or(usize::MAX));
    Ok(all)
}

/// As [`ask`], in the order of the question.
///
/// # Errors
/// See [`ClientError`].
pub(super) async fn ask_sorted(
    client: &Client,
    path: &str,
    question: &ListQuery,
    query: &Query,
) -> Result<Rows, ClientError> {
    let all: Rows = both(client, path, question, Some(query)).await?;
    if !has(&all.rows) {
        return Ok(all);
    }
    let summary = all.summary.clone();
    let sorted = Rows::merge(vec![all], path, question)?;
    Ok(Rows { summary, ..sorted })
}

async fn both<Row: DeserializeOwned>(
    client: &Client,
    path: &str,
    question: &ListQuery,
    query: Option<&Query>,
) -> Result<Listing<Row>, ClientError>
where
    Listing<Row>: Merge,
{
    let mut now: Listing<Row> = client.ask(path, question).await?;
    let is_left_out = query.is_some_and(|query| query.this_run || query.since.is_some());
    if is_left_out || client.cluster().is_some() || now.summary.earlier_runs.is_empty() {
        return Ok(now);
    }
    let before: Listing<Row> = match client.ask_one(&of(path), question).await {
        Ok(before) => before,
        // What is measured now has come already.
        Err(error) => {
            say(&format!(
                "the rows from before the daemon's restart cannot be read: {error}"
            ));
            return Ok(now);
        }
    };
    now.summary.earlier_left_out = before.summary.earlier_left_out;
    now.rows.extend(before.rows);
    now.rows_total += before.rows_total;
    Ok(now)
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

/// Whether rows are of earlier runs.
pub(super) fn has(rows: &[Map<String, Value>]) -> bool {
    rows.iter().any(|row| row.get(EARLIER).is_some())
}

/// The lines about earlier runs below a table.
pub(super) fn note(summary: &Summary, rows: &[Map<String, Value>]) -> String {
    let of_earlier = rows.iter().filter(|row| row.get(EARLIER).is_some());
    let of_earlier = of_earlier.count() as u64;
    if of_earlier == 0 {
        return String::new();
    }
    let mut text = format!(
        "before the daemon's restart: {} row{}, in no figure above (--this-run leaves them out)\n",
        units::count(of_earlier),
        if of_earlier == 1 { "" } else { "s" },
    );
    let begins = summary.earlier_runs.iter().skip(1);
    let begins = begins.map(|run| Some(run.since_unix_ms));
    let begins = begins.chain([summary.measured_since_unix_ms]);
    for (run, next) in summary.earlier_runs.iter().zip(begins) {
        let Some(next) = next else { continue };
        text.push_str(&format!(
            "not measured: {} to {} UTC\n",
            time::clock(run.until_unix_ms),
            time::clock(next),
        ));
    }
    if summary.earlier_left_out > 0 {
        text.push_str(&format!(
            "not listed: {} older files (smtt-history shows what they have)\n",
            units::count(summary.earlier_left_out)
        ));
    }
    text
}
