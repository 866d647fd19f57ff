//! Requests of task attempts for shuffle blocks, from the files of the worker that ran them.

use std::collections::BTreeMap;
use std::ops::Range;

use smtt_model::rows::FetchRow;
use smtt_store::history::read::Reader;
use smtt_store::history::workers::FETCHES;
use smtt_store::read::ParquetError;

use crate::functions::{ALL_SPANS, Spans};
use crate::workers::{Files, Trouble, opened};

/// Most requests of an application that are read for a trace or an export.
const ALL_FETCHES: usize = 2_000_000;
/// Bytes of their texts.
const ALL_BYTES: usize = 256 << 20;

/// A request with its task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// Id of the task attempt.
    pub task: i64,
    /// Begin by the worker's clock, in microseconds since 1970.
    pub begin_unix_us: Option<i64>,
    /// The request as the worker's daemon recorded it.
    pub row: FetchRow,
}

/// Requests by task attempt.
pub type Fetches = BTreeMap<i64, Vec<Fetch>>;

/// What workers know of the tasks of an application.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OfWorkers {
    /// Functions.
    pub spans: Spans,
    /// Requests for shuffle blocks.
    pub fetches: Fetches,
}

/// Requests in some rows of a file. `left` are the bytes that texts may have.
pub(crate) fn fetches(
    reader: &Reader,
    rows: &[Range<u64>],
    left: &mut usize,
) -> Result<Vec<Fetch>, ParquetError> {
    let number = |name: &str| reader.numbers(name, rows).map(Vec::into_iter);
    let mut text = |name: &str| -> Result<_, ParquetError> {
        let texts = reader.texts_up_to(name, rows, *left)?;
        let bytes: usize = texts.iter().flatten().map(String::len).sum();
        *left = left.saturating_sub(bytes);
        Ok(texts.into_iter())
    };
    let (mut begins, mut lengths) = (number("begin_ns")?, number("duration_ns")?);
    let (mut blocks, mut bytes) = (number("blocks")?, number("bytes")?);
    let mut unix = number("begin_unix_us")?;
    let (mut addresses, mut executors) = (text("from_address")?, text("from_executor_id")?);
    let mut outcomes = text("outcome")?;
    let mut found = Vec::new();
    for task in number("task_id")? {
        let count = |values: &mut dyn Iterator<Item = Option<i64>>| {
            let value = values.next().flatten().unwrap_or_default();
            u64::try_from(value).unwrap_or_default()
        };
        found.push(Fetch {
            task: task.unwrap_or_default(),
            begin_unix_us: unix.next().flatten(),
            row: FetchRow {
                address: addresses.next().flatten(),
                executor_id: executors.next().flatten(),
                begin_ns: count(&mut begins),
                duration_ns: count(&mut lengths),
                blocks: count(&mut blocks),
                bytes: count(&mut bytes),
                outcome: outcomes.next().flatten().unwrap_or_default(),
            },
        });
    }
    Ok(found)
}

impl Files {
    /// Functions and requests of all tasks, and what is left out, in words.
    #[must_use]
    pub fn of_tasks(&self) -> (OfWorkers, Vec<String>) {
        let mut left_out = Vec::new();
        let (spans, cut) = self.all_spans().unwrap_or_else(|trouble| {
            left_out.push(format!("the functions of tasks are left out: {trouble}"));
            (Spans::new(), 0)
        });
        if cut > 0 {
            left_out.push(format!(
                "up to {cut} functions of tasks are left out: there are more than {ALL_SPANS}"
            ));
        }
        let fetches = self.all_fetches().unwrap_or_else(|trouble| {
            left_out.push(format!(
                "the requests of tasks for shuffle blocks are left out: {trouble}"
            ));
            (Fetches::new(), 0)
        });
        let (fetches, cut) = fetches;
        if cut > 0 {
            left_out.push(format!(
                "{cut} requests of tasks for shuffle blocks are left out: there are more than {ALL_FETCHES}"
            ));
        }
        (OfWorkers { spans, fetches }, left_out)
    }

    /// Requests of all tasks, by task, and the number of those beyond [`ALL_FETCHES`]; of a task that several daemons name,
    /// those of the newest one.
    ///
    /// # Errors
    /// When a file cannot be read, or the texts of all have [`ALL_BYTES`].
    pub fn all_fetches(&self) -> Result<(Fetches, u64), Trouble> {
        let mut cut = 0;
        let mut left_bytes = ALL_BYTES;
        let mut newest: BTreeMap<i64, (u64, Vec<Fetch>)> = BTreeMap::new();
        let mut left = ALL_FETCHES;
        for file in self.of_table(FETCHES.name) {
            let Some(reader) = opened(file)? else {
                continue;
            };
            let run = file.name.run;
            let rows = 0..reader.rows().min(left as u64);
            cut += reader.rows() - rows.end;
            for fetch in fetches(&reader, std::slice::from_ref(&rows), &mut left_bytes)? {
                left -= 1;
                let (of_run, all) = newest.entry(fetch.task).or_default();
                if run > *of_run {
                    (*of_run, *all) = (run, Vec::new());
                }
                if run == *of_run {
                    all.push(fetch);
                }
            }
        }
        let all = newest.into_iter().map(|(task, (_, all))| (task, all));
        Ok((all.collect(), cut))
    }
}
