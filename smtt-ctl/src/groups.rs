//! `--by` of `rdds`, `blocks`, `pages` and `top`: rows whose RDDs have something in common, added up.

mod held;

use serde::Serialize;
use serde_json::{Map, Value};
use smtt_model::protocol::ListQuery;
use smtt_model::rows::{ApplicationKey, Listing, RddRow, rdd_groups, rdd_groups_of};
use smtt_model::sort::{Sort, sort};

use super::args::{By, Query};
use super::cluster::WORKER;
use super::columns::{BLOCKS, ListingKind, RDDS, USER};
use super::listing::no_match::no_match;
use super::listing::{Rows, data, outcome, text, unfiltered};
use super::output::{Form as OutputForm, Output};
use super::table::{self, Column, Form, Table, column};
use super::{Exit, Failure, earlier};
use crate::client::{Client, ClientError};
pub(super) use held::application;

/// Columns of groups whose common value has this heading, with further ones.
macro_rules! columns {
    ($heading:literal, $($more:tt)*) => {{
        const COLUMNS: &[Column] = &[
            column("application_id", "APPLICATION", Form::Text, 1),
            USER,
            column("group", $heading, Form::Title, 0),
            column("sql_executions", "RUNS", Form::Count, 1),
            column("rdds", "RDDS", Form::Count, 1),
            column("executors", "EXECS", Form::Count, 4),
            $($more)*
        ];
        COLUMNS
    }};
}

/// Columns of RDDs.
macro_rules! rdds {
    ($heading:literal) => {
        columns! { $heading,
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
        }
    };
}

/// Columns of blocks.
macro_rules! blocks {
    ($heading:literal) => {
        columns! { $heading,
            column("blocks", "BLOCKS", Form::Count, 0),
            column("size_bytes", "SIZE", Form::Bytes, 0),
            column("off_heap_bytes", "OFF HEAP", Form::Bytes, 3),
            column("object_bytes", "AS OBJECTS", Form::Bytes, 4),
            column("reads", "READS", Form::Count, 2),
            column("blocks_unread", "UNREAD", Form::Count, 2),
            column("range_total", "RANGES", Form::Count, 6),
            column("age_ns", "OLDEST", Form::Duration, 5),
        }
    };
}

/// Columns of page placement, as those of single RDDs.
macro_rules! pages {
    ($heading:literal) => {
        columns! { $heading,
            column("held_bytes", "HELD", Form::Bytes, 0),
            column("sample", "OF SAMPLED OBJECTS", Form::Text, 3),
            column("resolved_bytes", "RESOLVED", Form::Bytes, 6),
            column("present_bytes", "PRESENT", Form::Bytes, 0),
            column("swapped_bytes", "SWAPPED", Form::Bytes, 2),
            column("untouched_bytes", "UNTOUCHED", Form::Bytes, 2),
            column("unmapped_bytes", "UNMAPPED", Form::Bytes, 9),
            column("page_sizes", "PAGE SIZES", Form::Word, 1),
            column("nodes", "NODES", Form::Word, 1),
            column("spanning_nodes", "SPANNING", Form::Count, 7),
            column("reads", "READS", Form::Count, 4),
            column("hotness", "ACCESSED", Form::Share, 4),
            column("hot_bytes", "HOT", Form::Bytes, 4),
            column("remote_access_ratio", "REMOTE", Form::Share, 1),
            column("examined_share", "EXAMINED", Form::Share, 5),
            column("addresses", "ADDRESSES", Form::Word, 8),
            column("age_ns", "AGE", Form::Duration, 4),
        }
    };
}

/// What is added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    Rdds,
    Blocks,
    Pages,
}

impl Of {
    /// What the rows of a listing are added up from; `None` where they are of no RDDs.
    pub(super) fn listing(kind: &ListingKind) -> Option<Self> {
        let all = [Self::Rdds, Self::Blocks, Self::Pages];
        all.into_iter().find(|of| of.path() == kind.path)
    }

    const fn path(self) -> &'static str {
        match self {
            Self::Rdds => RDDS.path,
            Self::Blocks => BLOCKS.path,
            Self::Pages => "/v1/pages",
        }
    }

    /// The rows that are added up, in words.
    const fn what(self) -> &'static str {
        match self {
            Self::Rdds => RDDS.what,
            Self::Blocks => BLOCKS.what,
            Self::Pages => "RDDs that hold memory",
        }
    }

    /// The listing of groups.
    pub(super) const fn kind(self, by: By) -> ListingKind {
        let columns: &[Column] = match (self, by) {
            (Self::Rdds, By::Query) => rdds!("QUERY"),
            (Self::Rdds, By::Node) => rdds!("NODE"),
            (Self::Rdds, By::Callsite) => rdds!("CALL SITE"),
            (Self::Rdds, By::Name) => rdds!("NAME"),
            (Self::Rdds, By::Rdd) => rdds!("RDD"),
            (Self::Blocks, By::Query) => blocks!("QUERY"),
            (Self::Blocks, By::Node) => blocks!("NODE"),
            (Self::Blocks, By::Callsite) => blocks!("CALL SITE"),
            (Self::Blocks, By::Name) => blocks!("NAME"),
            (Self::Blocks, By::Rdd) => blocks!("RDD"),
            (Self::Pages, By::Query) => pages!("QUERY"),
            (Self::Pages, By::Node) => pages!("NODE"),
            (Self::Pages, By::Callsite) => pages!("CALL SITE"),
            (Self::Pages, By::Name) => pages!("NAME"),
            (Self::Pages, By::Rdd) => pages!("RDD"),
        };
        let what = match (self, by) {
            (Self::Rdds, By::Query) => "queries with RDDs",
            (Self::Rdds, By::Node) => "plan nodes of RDDs",
            (Self::Rdds, By::Callsite) => "call sites of RDDs",
            (Self::Rdds, By::Name) => "names of RDDs",
            (Self::Rdds, By::Rdd) => "RDDs",
            (_, By::Query) => "queries that hold memory",
            (_, By::Node) => "plan nodes that hold memory",
            (_, By::Callsite) => "call sites that hold memory",
            (_, By::Name) => "names of RDDs that hold memory",
            (_, By::Rdd) => "RDDs that hold memory",
        };
        ListingKind {
            path: self.path(),
            what,
            columns,
            shows_faults: matches!(self, Self::Rdds),
        }
    }
}

/// Groups of RDDs.
pub(super) const fn kind(by: By) -> ListingKind {
    Of::Rdds.kind(by)
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
) -> Result<Vec<Map<String, Value>>, Failure> {
    let all = ListQuery {
        sort: None,
        limit: None,
        ..question
    };
    let mut groups = rows(client, Of::Rdds, by, &all, None).await?.rows;
    groups.retain(works);
    Ok(groups)
}

/// Groups as a table.
pub(super) fn table(groups: &[Map<String, Value>], by: By, output: Output) -> Table {
    table::fit(kind(by).columns, groups, output, false)
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

fn objects<'a, Row: Serialize + 'a>(
    rows: impl IntoIterator<Item = &'a Row>,
) -> Vec<Map<String, Value>> {
    let object = |row| match serde_json::to_value(row) {
        Ok(Value::Object(row)) => Some(row),
        _ => None,
    };
    rows.into_iter().filter_map(object).collect()
}

/// Whether a group of RDDs works or holds memory.
fn works(group: &Map<String, Value>) -> bool {
    let figures = [
        "page_faults",
        "storage_memory_bytes",
        "execution_memory_bytes",
        "blocks_stored",
    ];
    let figure = |field: &&str| group.get(*field).and_then(Value::as_u64).unwrap_or(0);
    figures.iter().any(|field| figure(field) > 0)
}

/// Answers that are added up.
pub(super) struct Parts {
    rdds: Listing<RddRow>,
    /// Blocks or page placement, where these are added up.
    held: Option<Rows>,
}

impl Parts {
    /// Asks for what is added up; for RDDs also of earlier runs of the daemon where a query asks for them.
    pub(super) async fn ask(
        client: &Client,
        of: Of,
        question: &ListQuery,
        query: Option<&Query>,
    ) -> Result<Self, ClientError> {
        if of == Of::Rdds {
            let rdds = match query {
                Some(_) => earlier::ask(client, RDDS.path, question, query).await?,
                None => client.ask(RDDS.path, question).await?,
            };
            return Ok(Self { rdds, held: None });
        }
        // Blocks that a stage stored may be of RDDs that no page fault of it names. What earlier runs saw in memory is
        // not there now.
        let all = ListQuery {
            stage: None,
            ..question.clone()
        };
        // A worker that fails this question is not asked the next one. One that fails the next one has no rows in it.
        // Both are in no sum.
        let rdds = client.ask(RDDS.path, &all).await?;
        let held = Some(client.ask(of.path(), question).await?);
        Ok(Self { rdds, held })
    }

    /// Leaves out the rows of other workers.
    pub(super) fn retain_worker(&mut self, worker: &str) {
        let is_of = |row: &RddRow| row.who.worker.as_deref() == Some(worker);
        self.rdds.rows.retain(is_of);
        let is_of = |row: &Map<String, Value>| row.get(WORKER).is_some_and(|of| of == worker);
        if let Some(held) = &mut self.held {
            held.rows.retain(is_of);
        }
    }

    /// The RDDs, each with its group.
    pub(super) fn rdds(&self, by: By) -> Vec<(String, Map<String, Value>)> {
        let groups = rdd_groups_of(&self.rdds.rows, by.into());
        groups.into_iter().zip(objects(&self.rdds.rows)).collect()
    }

    /// All groups.
    pub(super) fn add_up(self, of: Of, by: By) -> Rows {
        let (rows, summary) = match self.held {
            Some(held) => (
                held::add_up(held.rows, &self.rdds.rows, of, by.into()),
                held.summary,
            ),
            None => (
                objects(&rdd_groups(&self.rdds.rows, by.into())),
                self.rdds.summary,
            ),
        };
        Rows {
            rows_total: rows.len() as u64,
            rows,
            summary,
        }
    }
}

/// Groups of a listing, all of them.
pub(super) async fn rows(
    client: &Client,
    of: Of,
    by: By,
    question: &ListQuery,
    query: Option<&Query>,
) -> Result<Rows, ClientError> {
    Ok(Parts::ask(client, of, question, query)
        .await?
        .add_up(of, by))
}

/// The RDDs of a group, on each executor.
pub(super) async fn members(
    client: &Client,
    question: &ListQuery,
    by: By,
    group: &(ApplicationKey, String),
) -> Result<Rows, ClientError> {
    let rdds: Listing<RddRow> = client.ask(RDDS.path, question).await?;
    let rows = of_group(&rdds.rows, by, group);
    Ok(Rows {
        rows_total: rows.len() as u64,
        rows,
        summary: rdds.summary,
    })
}

/// Those of the RDDs that are in a group of an application.
fn of_group(
    rdds: &[RddRow],
    by: By,
    (application, group): &(ApplicationKey, String),
) -> Vec<Map<String, Value>> {
    let rows = rdds.iter().zip(rdd_groups_of(rdds, by.into()));
    let is_of =
        |(row, of): &(&RddRow, String)| of == group && row.who.application() == *application;
    objects(rows.filter(is_of).map(|(row, _)| row))
}

/// Sorts groups as the query says, and leaves as many as it says.
pub(super) fn ordered(
    listing: &mut Rows,
    kind: &ListingKind,
    query: &Query,
    output: Output,
) -> Result<(), Failure> {
    listing.rows_total = listing.rows.len() as u64;
    if let Some(asked) = &query.sort {
        let refused = |error: smtt_model::sort::SortError| Failure::Question(error.to_string());
        let by: Sort = kind.sort(asked).parse().map_err(refused)?;
        listing.rows = sort(std::mem::take(&mut listing.rows), &[by]).map_err(refused)?;
    }
    let most = query.rows(output.rows).unwrap_or(usize::MAX);
    listing.rows.truncate(most);
    Ok(())
}

/// Requests rows, adds them up and prints the sums. Without `all` a table leaves out groups without work and memory.
pub(super) async fn run(
    client: &Client,
    output: Output,
    query: &Query,
    of: Of,
    by: By,
    all: bool,
) -> Result<Exit, Failure> {
    let kind = of.kind(by);
    let question = query.filter.question();
    // The summary of all executors is below the table, as in the listing of single RDDs.
    let mut listing = rows(client, of, by, &question, Some(query)).await?;
    if listing.rows.is_empty() && question != unfiltered(&question) {
        if output.is_data() {
            data(client, &kind, query, &listing, output)?;
        }
        return Err(no_match(client, kind.path, of.what(), &question).await);
    }
    let found = listing.rows.len();
    if of == Of::Rdds && output.form == OutputForm::Text && !all {
        listing.rows.retain(works);
    }
    let idle = found - listing.rows.len();
    ordered(&mut listing, &kind, query, output)?;
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
    if output.form == OutputForm::Text {
        said.push_str(&earlier::left_out(&listing.summary));
        if let Some(cluster) = client.cluster() {
            said.push_str(&cluster.incomplete());
        }
    }
    output.text(&said)?;
    Ok(outcome(&kind, &listing.summary))
}

#[cfg(test)]
mod tests {
    use super::*;
    use smtt_model::rows::{BlockRow, ExecutorId, RddGroupRow, Summary};

    fn rdd(who: &ExecutorId, faults: u64) -> RddRow {
        let mut rdd = RddRow {
            who: who.clone(),
            rdd_id: Some(1),
            name: Some("links".to_owned()),
            ..RddRow::default()
        };
        rdd.faults.page_faults = Some(faults);
        rdd
    }

    /// Executors of different workers have the same ids and may have the same process id.
    #[test]
    fn groups_within_a_worker_have_nothing_of_others() {
        let on = |worker: &str| ExecutorId {
            executor_id: Some("1".to_owned()),
            worker: Some(worker.to_owned()),
            ..ExecutorId::default()
        };
        let block = |worker: &str, size_bytes| BlockRow {
            who: on(worker),
            rdd_id: Some(1),
            size_bytes,
            ..BlockRow::default()
        };
        let sum = |of: Of, field: &str, worker: Option<&str>| {
            let rdds = vec![rdd(&on("w1"), 10), rdd(&on("w2"), 300)];
            let held = objects(&[block("w1", 7), block("w2", 500)]);
            let mut parts = Parts {
                rdds: Listing {
                    rows_total: 2,
                    rows: rdds,
                    summary: Summary::default(),
                },
                held: (of != Of::Rdds).then(|| Rows {
                    rows_total: 2,
                    rows: held,
                    summary: Summary::default(),
                }),
            };
            if let Some(worker) = worker {
                parts.retain_worker(worker);
            }
            let groups = parts.add_up(of, By::Name).rows;
            assert_eq!(groups.len(), 1, "{groups:?}");
            assert_eq!(groups[0]["group"], "links");
            groups[0][field].as_u64()
        };
        for (worker, faults, bytes) in [
            (None, 310, 507),
            (Some("w1"), 10, 7),
            (Some("w2"), 300, 500),
        ] {
            assert_eq!(sum(Of::Rdds, "page_faults", worker), Some(faults));
            assert_eq!(sum(Of::Blocks, "size_bytes", worker), Some(bytes));
        }
    }

    #[test]
    fn a_group_has_no_rdds_of_another_application() {
        let first = ExecutorId {
            application_id: Some("app-1".to_owned()),
            application_attempt_id: Some("1".to_owned()),
            uid: Some(1000),
            ..ExecutorId::default()
        };
        let others = [
            ExecutorId {
                application_id: Some("app-2".to_owned()),
                ..first.clone()
            },
            ExecutorId {
                application_attempt_id: Some("2".to_owned()),
                ..first.clone()
            },
            ExecutorId {
                uid: Some(1001),
                ..first.clone()
            },
        ];
        let mut rdds = vec![rdd(&first, 10)];
        rdds.extend(others.iter().map(|who| rdd(who, 20)));
        let groups = objects(&rdd_groups(&rdds, By::Name.into()));
        assert_eq!(groups.len(), 4);
        for group in groups {
            let of = (application(&group), "links".to_owned());
            let rows = of_group(&rdds, By::Name, &of);
            assert_eq!(rows.len(), 1, "{of:?}");
            assert_eq!(application(&rows[0]), of.0);
        }
    }

    #[test]
    fn every_column_is_a_field_of_its_row() {
        let row = &objects(&[RddGroupRow::default()])[0];
        for column in kind(By::Query).columns {
            assert!(row.contains_key(column.field), "{}", column.field);
        }
    }
}
