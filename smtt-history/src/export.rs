//! An application as relational tables for other programs: a folder of CSV files, or an SQLite database.
//!
//! Both have the same tables and columns. `details` has every document whole, so that nothing is lost by the selection of
//! columns in `jobs`, `stages` and `executors`.

pub mod csv;
mod metrics;
pub mod sqlite;
#[cfg(test)]
mod tests;

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};
use smtt_store::history::batch::Cell;
use smtt_store::history::columns::{Kind, META, SQL_SAME_AS, TASK_SQL, TASKS, Table};

use crate::fetches::{Fetch, Fetches, OfWorkers};
use crate::functions::{Span, Spans};
use crate::json::milliseconds;
use crate::open::App;
use crate::out;

/// Rows that are read at a time: each of their texts may have 64 KiB.
const ROWS: u64 = 4000;

/// A column of an exported table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Name in the table.
    pub name: String,
    /// What it holds. Times are milliseconds since 1970.
    pub kind: Kind,
}

/// Takes a row.
pub type Push<'a> = dyn FnMut(&[Cell<'_>]) -> Result<()> + 'a;
/// Gives all rows of a table.
pub type Fill<'a> = dyn FnMut(&mut Push<'_>) -> Result<()> + 'a;

/// Where tables go.
pub trait Sink {
    /// Writes a table.
    ///
    /// # Errors
    /// When it cannot be written, or its rows cannot be read.
    fn table(&mut self, name: &str, columns: &[Column], fill: &mut Fill<'_>) -> Result<()>;
}

/// Rows of the exported tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rows of the table of jobs.
    pub jobs: u64,
    /// Rows of the table of stage attempts.
    pub stages: u64,
    /// Rows of the table of task attempts.
    pub tasks: u64,
}

/// A table of documents: its name, their kind, and fields with their kinds. A column is named as its field, in snake case.
struct Documents {
    name: &'static str,
    of: out::Kind,
    fields: &'static [(&'static str, Kind)],
}

const DOCUMENTS: [Documents; 3] = [
    Documents {
        name: "jobs",
        of: out::Kind::Job,
        fields: &[
            ("jobId", Kind::Long),
            ("name", Kind::Text),
            ("description", Kind::Text),
            ("jobGroup", Kind::Text),
            ("status", Kind::Text),
            ("submissionTime", Kind::Time),
            ("completionTime", Kind::Time),
            ("numTasks", Kind::Long),
            ("numActiveTasks", Kind::Long),
            ("numCompletedTasks", Kind::Long),
            ("numSkippedTasks", Kind::Long),
            ("numFailedTasks", Kind::Long),
            ("numKilledTasks", Kind::Long),
            ("numActiveStages", Kind::Long),
            ("numCompletedStages", Kind::Long),
            ("numSkippedStages", Kind::Long),
            ("numFailedStages", Kind::Long),
        ],
    },
    Documents {
        name: "stages",
        of: out::Kind::Stage,
        fields: &[
            ("stageId", Kind::Long),
            ("attemptId", Kind::Long),
            ("name", Kind::Text),
            ("description", Kind::Text),
            ("status", Kind::Text),
            ("failureReason", Kind::Text),
            ("submissionTime", Kind::Time),
            ("firstTaskLaunchedTime", Kind::Time),
            ("completionTime", Kind::Time),
            ("numTasks", Kind::Long),
            ("numActiveTasks", Kind::Long),
            ("numCompleteTasks", Kind::Long),
            ("numFailedTasks", Kind::Long),
            ("numKilledTasks", Kind::Long),
            ("executorDeserializeTime", Kind::Long),
            ("executorDeserializeCpuTime", Kind::Long),
            ("executorRunTime", Kind::Long),
            ("executorCpuTime", Kind::Long),
            ("resultSize", Kind::Long),
            ("jvmGcTime", Kind::Long),
            ("resultSerializationTime", Kind::Long),
            ("memoryBytesSpilled", Kind::Long),
            ("diskBytesSpilled", Kind::Long),
            ("peakExecutionMemory", Kind::Long),
            ("inputBytes", Kind::Long),
            ("inputRecords", Kind::Long),
            ("outputBytes", Kind::Long),
            ("outputRecords", Kind::Long),
            ("shuffleFetchWaitTime", Kind::Long),
            ("shuffleReadBytes", Kind::Long),
            ("shuffleReadRecords", Kind::Long),
            ("shuffleWriteBytes", Kind::Long),
            ("shuffleWriteTime", Kind::Long),
            ("shuffleWriteRecords", Kind::Long),
            ("schedulingPool", Kind::Text),
            ("resourceProfileId", Kind::Long),
        ],
    },
    Documents {
        name: "executors",
        of: out::Kind::Executor,
        fields: &[
            ("id", Kind::Text),
            ("hostPort", Kind::Text),
            ("isActive", Kind::Flag),
            ("addTime", Kind::Time),
            ("removeTime", Kind::Time),
            ("removeReason", Kind::Text),
            ("totalCores", Kind::Long),
            ("maxTasks", Kind::Long),
            ("activeTasks", Kind::Long),
            ("failedTasks", Kind::Long),
            ("completedTasks", Kind::Long),
            ("totalTasks", Kind::Long),
            ("totalDuration", Kind::Long),
            ("totalGCTime", Kind::Long),
            ("totalInputBytes", Kind::Long),
            ("totalShuffleRead", Kind::Long),
            ("totalShuffleWrite", Kind::Long),
            ("rddBlocks", Kind::Long),
            ("memoryUsed", Kind::Long),
            ("diskUsed", Kind::Long),
            ("maxMemory", Kind::Long),
            ("resourceProfileId", Kind::Long),
        ],
    },
];

/// Which stages a job has.
const JOB_STAGES: &str = "job_stages";
/// Functions of tasks, from workers.
const FUNCTIONS: &str = "functions";
/// Columns of [`FUNCTIONS`].
const FUNCTION_COLUMNS: [(&str, Kind); 10] = [
    ("task_id", Kind::Long),
    ("thread", Kind::Text),
    ("tid", Kind::Long),
    ("activity", Kind::Text),
    ("function", Kind::Text),
    ("begin_unix_us", Kind::Long),
    ("begin_ns", Kind::Long),
    ("duration_ns", Kind::Long),
    ("own_ns", Kind::Long),
    ("rdd_id", Kind::Long),
];
/// Requests of tasks for shuffle blocks, from workers.
const FETCHES: &str = "fetches";
/// Columns of [`FETCHES`].
const FETCH_COLUMNS: [(&str, Kind); 9] = [
    ("task_id", Kind::Long),
    ("from_address", Kind::Text),
    ("from_executor_id", Kind::Text),
    ("begin_unix_us", Kind::Long),
    ("begin_ns", Kind::Long),
    ("duration_ns", Kind::Long),
    ("blocks", Kind::Long),
    ("bytes", Kind::Long),
    ("outcome", Kind::Text),
];
/// Every document of `meta`, and the functions and requests of each task.
const DETAILS: &str = "details";

/// `completionTime` as `completion_time`; `totalGCTime` as `total_gc_time`.
fn snake(field: &str) -> String {
    let mut name = String::new();
    let mut was_small = false;
    let letters: Vec<char> = field.chars().collect();
    for (at, letter) in letters.iter().enumerate() {
        let before_small = letters.get(at + 1).is_some_and(char::is_ascii_lowercase);
        if letter.is_ascii_uppercase() && at > 0 && (was_small || before_small) {
            name.push('_');
        }
        was_small = letter.is_ascii_lowercase();
        name.push(letter.to_ascii_lowercase());
    }
    name
}

fn column(name: &str, kind: Kind) -> Column {
    Column {
        name: name.to_owned(),
        kind,
    }
}

impl Documents {
    fn columns(&self) -> Vec<Column> {
        let fields = self.fields.iter();
        fields
            .map(|(name, kind)| column(&snake(name), *kind))
            .collect()
    }
}

fn columns(table: &Table) -> Vec<Column> {
    let columns = table.columns.iter();
    columns.map(|it| column(it.name, it.kind)).collect()
}

/// Tables in the order in which they are written, with their columns.
#[must_use]
pub fn tables() -> Vec<(&'static str, Vec<Column>)> {
    let mut all: Vec<_> = DOCUMENTS.iter().map(|it| (it.name, it.columns())).collect();
    let link = ["job_id", "stage_id"].map(|name| column(name, Kind::Long));
    all.insert(1, (JOB_STAGES, link.to_vec()));
    all.push((TASKS.name, columns(&TASKS)));
    // With the copies of tasks' figures.
    let metrics = columns(&TASK_SQL).into_iter().take(SQL_SAME_AS);
    all.push((TASK_SQL.name, metrics.collect()));
    let functions = FUNCTION_COLUMNS.map(|(name, kind)| column(name, kind));
    all.push((FUNCTIONS, functions.to_vec()));
    let fetches = FETCH_COLUMNS.map(|(name, kind)| column(name, kind));
    all.push((FETCHES, fetches.to_vec()));
    all.push((DETAILS, columns(&META)));
    all
}

/// Writes all tables, with what workers know of the tasks.
///
/// # Errors
/// When a table of the application cannot be read, or the sink cannot be written.
pub fn write(app: &App, workers: &OfWorkers, sink: &mut dyn Sink) -> Result<Counts> {
    let mut counts = Counts::default();
    for (name, columns) in tables() {
        let mut rows = 0;
        sink.table(name, &columns, &mut |push| {
            let mut push = |row: &[Cell<'_>]| {
                rows += 1;
                push(row)
            };
            match name {
                JOB_STAGES => job_stages(app, &mut push),
                FUNCTIONS => functions(&workers.spans, &mut push),
                FETCHES => fetches(&workers.fetches, &mut push),
                DETAILS => details(app, workers, &mut push),
                _ => match DOCUMENTS.iter().find(|it| it.name == name) {
                    Some(documents) => self::documents(app, documents, &mut push),
                    None if name == TASKS.name => table(app, &TASKS, &mut push),
                    None => metrics::metrics(app, &mut push).map(drop),
                },
            }
        })?;
        match name {
            "jobs" => counts.jobs = rows,
            "stages" => counts.stages = rows,
            "tasks" => counts.tasks = rows,
            _ => {}
        }
    }
    Ok(counts)
}

fn documents(app: &App, documents: &Documents, push: &mut Push<'_>) -> Result<()> {
    for (id, text) in app.all(documents.of) {
        let json: Map<String, Value> = serde_json::from_str(text)
            .with_context(|| format!("the document of {} {id} is damaged", documents.name))?;
        let cells = documents.fields.iter().map(|(field, kind)| {
            let value = json.get(*field).unwrap_or(&Value::Null);
            match kind {
                Kind::Text => value.as_str().map_or(Cell::None, Cell::Text),
                Kind::Flag => Cell::optional(value.as_bool().map(i64::from)),
                // A time beyond the calendar is a number already.
                Kind::Time => {
                    let time = value.as_str().and_then(milliseconds);
                    Cell::optional(time.or_else(|| value.as_i64()))
                }
                Kind::Int | Kind::Long => Cell::optional(value.as_i64()),
            }
        });
        push(&cells.collect::<Vec<_>>())?;
    }
    Ok(())
}

fn job_stages(app: &App, push: &mut Push<'_>) -> Result<()> {
    for (id, text) in app.all(out::Kind::Job) {
        let json: Value = serde_json::from_str(text)
            .with_context(|| format!("the document of job {id} is damaged"))?;
        let job = Cell::optional(json["jobId"].as_i64());
        for stage in json["stageIds"].as_array().into_iter().flatten() {
            push(&[job, Cell::optional(stage.as_i64())])?;
        }
    }
    Ok(())
}

fn functions(spans: &Spans, push: &mut Push<'_>) -> Result<()> {
    let number = |value: u64| Cell::Number(i64::try_from(value).unwrap_or(i64::MAX));
    for Span {
        task,
        begin_unix_us,
        row,
    } in spans.values().flatten()
    {
        push(&[
            Cell::Number(*task),
            Cell::Text(&row.thread),
            number(row.tid.into()),
            Cell::Text(&row.activity),
            row.function.as_deref().map_or(Cell::None, Cell::Text),
            Cell::optional(*begin_unix_us),
            number(row.begin_ns),
            number(row.duration_ns),
            number(row.own_ns),
            Cell::optional(row.rdd_id.map(i64::from)),
        ])?;
    }
    Ok(())
}

fn fetches(fetches: &Fetches, push: &mut Push<'_>) -> Result<()> {
    let number = |value: u64| Cell::Number(i64::try_from(value).unwrap_or(i64::MAX));
    for Fetch {
        task,
        begin_unix_us,
        row,
    } in fetches.values().flatten()
    {
        push(&[
            Cell::Number(*task),
            row.address.as_deref().map_or(Cell::None, Cell::Text),
            row.executor_id.as_deref().map_or(Cell::None, Cell::Text),
            Cell::optional(*begin_unix_us),
            number(row.begin_ns),
            number(row.duration_ns),
            number(row.blocks),
            number(row.bytes),
            Cell::Text(&row.outcome),
        ])?;
    }
    Ok(())
}

fn details(app: &App, workers: &OfWorkers, push: &mut Push<'_>) -> Result<()> {
    for kind in out::Kind::ALL {
        for (id, text) in app.all(kind) {
            push(&[Cell::Text(kind.name()), Cell::Text(id), Cell::Text(text)])?;
        }
    }
    for (kind, id, text) in app.others() {
        push(&[Cell::Text(kind), Cell::Text(id), Cell::Text(text)])?;
    }
    for (task, of_task) in &workers.spans {
        let rows: Vec<_> = of_task.iter().map(|span| &span.row).collect();
        let (task, json) = (task.to_string(), serde_json::to_string(&rows)?);
        push(&[Cell::Text(FUNCTIONS), Cell::Text(&task), Cell::Text(&json)])?;
    }
    for (task, of_task) in &workers.fetches {
        let rows: Vec<_> = of_task.iter().map(|fetch| &fetch.row).collect();
        let (task, json) = (task.to_string(), serde_json::to_string(&rows)?);
        push(&[Cell::Text(FETCHES), Cell::Text(&task), Cell::Text(&json)])?;
    }
    Ok(())
}

/// Values of a column in some rows.
enum Values {
    Numbers(Vec<Option<i64>>),
    Texts(Vec<Option<String>>),
}

impl Values {
    fn cell(&self, row: usize) -> Cell<'_> {
        match self {
            Self::Numbers(values) => Cell::optional(values.get(row).copied().flatten()),
            Self::Texts(values) => {
                let text = values.get(row).and_then(Option::as_deref);
                text.map_or(Cell::None, Cell::Text)
            }
        }
    }
}

fn table(app: &App, table: &Table, push: &mut Push<'_>) -> Result<()> {
    let reader = app
        .table(table)
        .with_context(|| format!("cannot read the table {}", table.name))?;
    let mut start = 0;
    for &count in reader.groups() {
        let end = start + count;
        while start < end {
            let rows = start..end.min(start + ROWS);
            let range = std::slice::from_ref(&rows);
            let mut columns = Vec::new();
            for column in table.columns {
                columns.push(match column.kind {
                    Kind::Text => Values::Texts(reader.texts(column.name, range)?),
                    _ => Values::Numbers(reader.numbers(column.name, range)?),
                });
            }
            for row in 0..usize::try_from(rows.end - rows.start)? {
                let cells: Vec<Cell<'_>> = columns.iter().map(|column| column.cell(row)).collect();
                push(&cells)?;
            }
            start = rows.end;
        }
    }
    Ok(())
}

/// The folder in which a target gets its name, and a temporary name there; an error where the target is taken.
fn beside(target: &Path) -> Result<(PathBuf, tempfile::Builder<'static, 'static>)> {
    let parent = match target.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => bail!("{} cannot be an export: name a file", target.display()),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".smtt-export-").suffix(".inprogress");
    Ok((parent.to_owned(), builder))
}

/// Permissions of what is written: the process's mask takes away from them.
fn permissions(mode: u32) -> Permissions {
    Permissions::from_mode(mode)
}

/// Whether something has the name already. An empty folder has room for tables.
fn is_taken(target: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(target) {
        Ok(metadata) if metadata.is_dir() => Ok(fs::read_dir(target)?.next().is_some()),
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
