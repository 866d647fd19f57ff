//! `smtt-ctl rdds --by`: RDDs that have something in common, added up.

use serde_json::{Map, Value};
use smtt_model::protocol::ListQuery;
use smtt_model::rows::{Listing, RddGroupRow, RddRow, rdd_groups};
use smtt_model::sort::{Sort, sort};

use super::args::{By, Query};
use super::columns::{ListingKind, RDDS, USER};
use super::listing::no_match::no_match;
use super::listing::{Rows, data, outcome, text, unfiltered};
use super::output::{Form as OutputForm, Output};
use super::table::{self, Column, Form, Table, column};
use super::{Exit, Failure, earlier};
use crate::client::Client;

/// Columns of groups whose common value has this heading.
macro_rules! columns {
    ($heading:literal) => {{
        const COLUMNS: &[Column] = &[
            column("application_id", "APPLICATION", Form::Text, 1),
            USER,
            column("group", $heading, Form::Title, 0),
            column("sql_executions", "RUNS", Form::Count, 1),
            column("rdds", "RDDS", Form::Count, 1),
            column("executors", "EXECS", Form::Count, 4),
            column("partitions_cached", "CACHED", Form::Count, 5),
            column("page_faults", "FAULTS", Form::Count, 0),
            column("page_fault_time_ns", "FAULT TIME", Form::Duration, 2),
            column("page_faults_read", "READ", Form::Count, 3),
            column("page_faults_write", "WRITE", Form::Count, 3),
            column("page_faults_major", "MAJOR", Form::Count, 6),
            column("storage_memory_bytes", "STORAGE", Form::Bytes, 1),
            column("execution_memory_bytes", "EXECUTION", Form::Bytes, 2),
            column("block_reads", "READS", Form::Count, 7),
            column("blocks_evicted", "EVICTED", Form::Count, 7),
        ];
        COLUMNS
    }};
}

pub(super) const fn kind(by: By) -> ListingKind {
    let (what, columns): (_, &[Column]) = match by {
        By::Query => ("queries with RDDs", columns!("QUERY")),
        By::Node => ("plan nodes of RDDs", columns!("NODE")),
        By::Callsite => ("call sites of RDDs", columns!("CALL SITE")),
        By::Name => ("names of RDDs", columns!("NAME")),
        By::Rdd => ("RDDs", columns!("RDD")),
    };
    ListingKind {
        what,
        columns,
        ..RDDS
    }
}

/// Heading of the groups in a report.
pub(super) const fn title(by: By) -> &'static str {
    match by {
        By::Query => "RDDs by query",
        By::Node => "RDDs by plan node",
        By::Callsite => "RDDs by call site",
        By::Name => "RDDs by name",
        By::Rdd => "RDDs over all executors",
    }
}

/// Requests RDDs and adds them up, without groups that neither work nor hold memory.
pub(super) async fn of(
    client: &Client,
    question: ListQuery,
    by: By,
) -> Result<Vec<RddGroupRow>, Failure> {
    let all = ListQuery {
        sort: None,
        limit: None,
        ..question
    };
    let listing: Listing<RddRow> = client.ask(RDDS.path, &all).await?;
    let mut groups = rdd_groups(&listing.rows, by.into());
    groups.retain(|row| !is_idle(row));
    Ok(groups)
}

/// Groups as a table.
pub(super) fn table(groups: &[RddGroupRow], by: By, output: Output) -> Table {
    table::fit(kind(by).columns, &objects(groups), output, false)
}

/// The word of the argument.
pub(super) const fn name(by: By) -> &'static str {
    match by {
        By::Query => "query",
        By::Node => "node",
        By::Callsite => "callsite",
        By::Name => "name",
        By::Rdd => "rdd",
    }
}

fn objects(groups: &[RddGroupRow]) -> Vec<Map<String, Value>> {
    let object = |row| match serde_json::to_value(row) {
        Ok(Value::Object(row)) => Some(row),
        _ => None,
    };
    groups.iter().filter_map(object).collect()
}

fn is_idle(row: &RddGroupRow) -> bool {
    let held = [
        row.storage_memory_bytes,
        row.execution_memory_bytes,
        row.blocks_stored,
    ];
    row.faults.page_faults.unwrap_or(0) == 0 && held == [0; 3]
}

/// Requests RDDs, adds them up and prints the sums.
pub(super) async fn run(
    client: &Client,
    output: Output,
    query: &Query,
    by: By,
    all: bool,
) -> Result<Exit, Failure> {
    let kind = kind(by);
    let question = query.filter.question();
    // The summary of all executors is below the table, as in the listing of single RDDs.
    let listing: Listing<RddRow> = earlier::ask(client, kind.path, &question, Some(query)).await?;
    let mut groups = rdd_groups(&listing.rows, by.into());
    if groups.is_empty() && question != unfiltered(&question) {
        if output.is_data() {
            let none = Rows {
                summary: listing.summary.clone(),
                ..Rows::default()
            };
            data(client, &kind, query, &none, output)?;
        }
        return Err(no_match(client, kind.path, RDDS.what, &question).await);
    }
    let found = groups.len();
    if output.form == OutputForm::Text && !all {
        groups.retain(|row| !is_idle(row));
    }
    let idle = found - groups.len();
    if let Some(asked) = &query.sort {
        let refused = |error: smtt_model::sort::SortError| Failure::Question(error.to_string());
        let by: Sort = kind.sort(asked).parse().map_err(refused)?;
        groups = sort(groups, &[by]).map_err(refused)?;
    }
    let rows_total = groups.len() as u64;
    groups.truncate(query.rows(output.rows).unwrap_or(usize::MAX));
    let listing = Rows {
        rows: objects(&groups),
        rows_total,
        summary: listing.summary,
    };
    if output.is_data() {
        data(client, &kind, query, &listing, output)?;
        return Ok(outcome(&kind, &listing.summary));
    }
    let mut said = text(&kind, &listing, query, output)?;
    if idle > 0 {
        said.push_str(&format!(
            "not listed: {idle} without work (--all lists them)\n"
        ));
    }
    if let Some(cluster) = client.cluster().filter(|_| output.form == OutputForm::Text) {
        said.push_str(&cluster.incomplete());
    }
    output.text(&said)?;
    Ok(outcome(&kind, &listing.summary))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_is_a_field_of_its_row() {
        let row = &objects(&[RddGroupRow::default()])[0];
        for column in kind(By::Query).columns {
            assert!(row.contains_key(column.field), "{}", column.field);
        }
    }
}
