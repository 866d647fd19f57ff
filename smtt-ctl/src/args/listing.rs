//! Arguments of listings: which rows, what a row stands for, their order and number, and repetition.

use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use smtt_model::protocol::ListQuery;
use smtt_model::rows::GroupBy;

use super::duration::{age, seconds};
use crate::users;

/// Conditions on rows.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct Filters {
    /// Only this application (id or name, or a pattern such as 'etl-*'). The same id of two users is two applications:
    /// see --user.
    #[arg(long, value_name = "ID")]
    pub app: Option<String>,
    /// Only applications of this user (name or number).
    #[arg(long, value_name = "USER", value_parser = users::parse)]
    pub user: Option<u32>,
    /// Only this executor (id, or a pattern).
    #[arg(long, value_name = "ID")]
    pub executor: Option<String>,
    /// Only this RDD (id or name, or a pattern of names such as 'users*'), its blocks, and the work on it.
    #[arg(long, value_name = "ID")]
    pub rdd: Option<String>,
    /// Only this stage (3, or 3.1 for attempt 1), its tasks, their blocks, and the work for it.
    #[arg(long, value_name = "ID")]
    pub stage: Option<String>,
}

impl Filters {
    /// The query with these conditions.
    #[must_use]
    pub fn question(&self) -> ListQuery {
        ListQuery {
            app: self.app.clone(),
            user: self.user,
            executor: self.executor.clone(),
            rdd: self.rdd.clone(),
            stage: self.stage.clone(),
            ..ListQuery::default()
        }
    }

    /// The query for one application with these conditions; `user` is absent where the application's user is unknown.
    #[must_use]
    pub fn of_application(&self, id: Option<&str>, user: Option<u32>) -> ListQuery {
        ListQuery {
            app: Some(id.unwrap_or_default().to_owned()),
            user: user.or(self.user),
            ..self.question()
        }
    }

    /// The query with these conditions, an order and a limit.
    #[must_use]
    pub fn ordered(&self, sort: Option<String>, limit: Option<usize>) -> ListQuery {
        ListQuery {
            sort,
            limit,
            ..self.question()
        }
    }
}

/// What RDDs have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// The description of the SQL execution that the RDDs worked for first: all runs of a query are one row.
    Query,
    /// The plan node of a query that made the RDDs, by its name, such as Exchange; outside of queries the operation, such
    /// as map.
    Node,
    /// The place in the application that created the RDDs.
    Callsite,
    /// The name of the RDDs.
    Name,
    /// The RDD: one row for all executors.
    Rdd,
}

impl From<By> for GroupBy {
    fn from(by: By) -> Self {
        match by {
            By::Query => Self::Query,
            By::Node => Self::Node,
            By::Callsite => Self::CallSite,
            By::Name => Self::Name,
            By::Rdd => Self::Rdd,
        }
    }
}

/// Meaning of a row of `smtt-ctl pages`; by default an RDD on an executor.
#[derive(Clone, Debug, Default, ClapArgs)]
#[group(multiple = false)]
pub struct PagesBy {
    /// One row per cached block.
    #[arg(long)]
    pub blocks: bool,
    /// One row per executor for this block.
    #[arg(long, value_name = "NAME")]
    pub block: Option<String>,
    /// One row per task attempt that holds execution memory.
    #[arg(long)]
    pub tasks: bool,
    /// One row for this task attempt.
    #[arg(long, value_name = "ID")]
    pub task: Option<u64>,
    /// One row per executor.
    #[arg(long)]
    pub executors: bool,
    /// Add up RDDs that have this in common, over the executors of this worker.
    #[arg(long, value_enum, value_name = "WHAT")]
    pub by: Option<By>,
}

/// Selection and order of rows.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct Query {
    /// Row selection.
    #[command(flatten)]
    pub filter: Filters,
    /// Sort by a column of the table or a field of the JSON; by default numbers descend and text ascends.
    #[arg(long, value_name = "COLUMN[:asc|desc]")]
    pub sort: Option<String>,
    /// Maximum number of rows, or all. By default a table has 50 rows, --json and --csv have all.
    #[arg(long, value_name = "ROWS", value_parser = limit)]
    pub limit: Option<Limit>,
    /// Columns to show, in this order: headings of the table or fields of the JSON; all shows every column of the table.
    #[arg(long, value_name = "COLUMN,...", value_delimiter = ',')]
    pub columns: Vec<String>,
    /// Leave out what was measured before the daemon's restart. Such rows are of the history ([history] store).
    #[arg(long)]
    pub this_run: bool,
    /// Repetition.
    #[command(flatten)]
    pub watch: Watch,
    /// [`Since`] of listings of work.
    #[arg(skip)]
    pub since: Option<Duration>,
}

impl Query {
    /// Maximum number of rows; `None` for all. `by_default` holds without `--limit`.
    #[must_use]
    pub const fn rows(&self, by_default: Option<usize>) -> Option<usize> {
        match self.limit {
            Some(Limit::Rows(rows)) => Some(rows),
            Some(Limit::All) => None,
            None => by_default,
        }
    }

    /// This query for the work of the last time.
    #[must_use]
    pub fn since(&self, since: Since) -> Self {
        Self {
            since: since.since,
            ..self.clone()
        }
    }
}

/// Work of the last time.
#[derive(Clone, Copy, Debug, Default, ClapArgs)]
pub struct Since {
    /// Only what ran in the last TIME: 30s, 10m, 2h, 1d. A stage, job or query ran when one of its tasks did.
    #[arg(long, value_name = "TIME", value_parser = age)]
    pub since: Option<Duration>,
}

/// Selection and order of jobs or SQL executions.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct WorkQuery {
    /// Row selection.
    #[command(flatten)]
    pub query: Query,
    /// With --cluster: a row for each worker instead of one for all of them.
    #[arg(long)]
    pub per_worker: bool,
    /// Work of the last time.
    #[command(flatten)]
    pub since: Since,
}

/// Repetition of a command.
#[derive(Clone, Copy, Debug, Default, ClapArgs)]
pub struct Watch {
    /// Ask again every SECONDS (2 by default) until Ctrl-C.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, num_args = 0..=1, default_missing_value = "2")]
    pub watch: Option<Duration>,
}

/// Maximum number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// So many.
    Rows(usize),
    /// All rows.
    All,
}

/// Rows of a table without `--limit`.
pub const TABLE_ROWS: usize = 50;

fn limit(text: &str) -> Result<Limit, String> {
    match text {
        "all" => Ok(Limit::All),
        number => match number.parse() {
            Ok(rows) if rows > 0 => Ok(Limit::Rows(rows)),
            _ => Err("give a number of rows from 1, or all".to_owned()),
        },
    }
}
