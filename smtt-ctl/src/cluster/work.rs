//! `smtt-ctl --cluster jobs` and `queries`: a row for each job or SQL execution, added up over the workers.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use smtt_model::rows::{JobRow, Listing, WorkOverWorkersRow, work_over_workers};
use smtt_model::sort::{Sort, SortError, sort};

use super::merge::sum;
use super::{Cluster, with_columns};
use crate::args::Query;
use crate::client::{Client, with_query};
use crate::columns::{ListingKind, QUERIES};
use crate::listing::no_match::no_match;
use crate::listing::since::Recent;
use crate::listing::{Rows, data, outcome, text, unfiltered};
use crate::output::Form as OutputForm;
use crate::table::{Column, Form, column};
use crate::{Exit, Failure, Output};

/// Column with the number of workers in a row.
const WORKERS: Column = column("workers", "HOSTS", Form::Count, 3);

/// Requests jobs or SQL executions of all workers, adds them up and prints the sums.
pub async fn run(
    client: &Client,
    cluster: &Cluster,
    output: Output,
    kind: &ListingKind,
    query: &Query,
) -> Result<Exit, Failure> {
    let kind = &with_workers(kind);
    let question = query.filter.question();
    // A limit would cut the rows of a worker before they are added up.
    let path = with_query(kind.path, &question)?;
    let parts: Vec<(String, Listing<JobRow>)> = cluster.each(&path).await?;
    let of_worker: Vec<(&str, &[JobRow])> = parts
        .iter()
        .map(|(worker, part)| (worker.as_str(), part.rows.as_slice()))
        .collect();
    let mut rows = work_over_workers(&of_worker, kind.path == QUERIES.path);
    if let Some(asked) = &query.sort {
        let refused = |error: SortError| Failure::Question(error.to_string());
        let by: Sort = kind.sort(asked).parse().map_err(refused)?;
        rows = sort(rows, &[by]).map_err(refused)?;
    }
    if let Some(age) = query.since {
        let recent = Recent::ask(client, kind, &query.filter, age).await?;
        let all = rows.len();
        rows.retain(|row| object(row).is_some_and(|row| recent.has(kind, &row)));
        if rows.is_empty() && all > 0 {
            return Err(recent.nothing(kind.what, all));
        }
    }
    let rows_total = rows.len() as u64;
    rows.truncate(query.rows(output.rows).unwrap_or(usize::MAX));
    let listing = Rows {
        rows: rows.iter().filter_map(object).collect(),
        rows_total,
        summary: sum(parts.into_iter().map(|(_, part)| part.summary)),
    };
    let has_conditions = question != unfiltered(&question);
    if output.is_data() {
        data(client, kind, query, &listing, output)?;
    } else if rows_total > 0 || !has_conditions {
        let mut said = text(kind, &listing, query, output)?;
        if output.form == OutputForm::Text {
            said.push_str(&bounds(&rows));
            said.push_str(&cluster.incomplete());
        }
        output.text(&said)?;
    }
    if rows_total == 0 && has_conditions {
        return Err(no_match(client, kind.path, kind.what, &question).await);
    }
    Ok(outcome(kind, &listing.summary))
}

/// The listing with the number of workers after the name.
fn with_workers(kind: &ListingKind) -> ListingKind {
    let columns = kind.columns.iter().flat_map(|column| {
        let after = (column.field == "name").then_some(WORKERS);
        std::iter::once(*column).chain(after)
    });
    with_columns(kind, WORKERS.field, columns)
}

fn object(row: &WorkOverWorkersRow) -> Option<Map<String, Value>> {
    match serde_json::to_value(row) {
        Ok(Value::Object(row)) => Some(row),
        _ => None,
    }
}

/// A line about sums that lack workers which do not measure the figure; empty where there are none.
fn bounds(rows: &[WorkOverWorkersRow]) -> String {
    let mut figures: BTreeMap<&str, usize> = BTreeMap::new();
    for figure in rows.iter().flat_map(|row| &row.lower_bounds) {
        *figures.entry(figure).or_default() += 1;
    }
    if figures.is_empty() {
        return String::new();
    }
    let names: Vec<&str> = figures.into_keys().collect();
    format!(
        "lower bounds, because some workers do not measure them: {}\n",
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::JOBS;

    #[test]
    fn every_column_is_a_field_of_a_sum() {
        let mut row = object(&WorkOverWorkersRow::default()).expect("an object");
        for figure in crate::columns::JOBS.columns {
            let daemons = serde_json::to_value(JobRow::default()).expect("JSON");
            // What tasks used is absent where it was not measured, in a daemon's rows too.
            if daemons.get(figure.field).is_none() {
                row.insert(figure.field.to_owned(), Value::Null);
            }
        }
        for kind in [&JOBS, &QUERIES].map(with_workers) {
            for column in kind.columns {
                assert!(row.contains_key(column.field), "{}", column.field);
            }
            let at = kind.columns.iter().position(|it| it.field == "workers");
            let name = kind.columns.iter().position(|it| it.field == "name");
            assert_eq!(at, name.map(|at| at + 1));
        }
    }

    #[test]
    fn figures_that_some_workers_lack_are_named_once() {
        let row = |figures: &[&str]| WorkOverWorkersRow {
            lower_bounds: figures.iter().map(|name| (*name).to_owned()).collect(),
            ..WorkOverWorkersRow::default()
        };
        assert_eq!(bounds(&[row(&[])]), "");
        assert_eq!(
            bounds(&[row(&["cpu_ns", "page_faults"]), row(&["cpu_ns"])]),
            "lower bounds, because some workers do not measure them: cpu_ns, page_faults\n"
        );
    }
}
