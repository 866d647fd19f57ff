//! Functions of a task attempt, from the files of the worker that ran it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde_json::Value;
use smtt_model::rows::{FunctionRow, FunctionsRow};
use smtt_store::history::read::Reader;
use smtt_store::history::workers::{FETCHES, FUNCTIONS, TASKS, WorkerFile};
use smtt_store::read::ParquetError;

use crate::fetches::fetches;
use crate::workers::{Document, Files, Trouble, opened, ranges};

/// Most spans, and most requests, of a task that are read. A daemon writes no more.
const SPANS: usize = 1000;
/// Bytes of their texts.
const SPAN_BYTES: usize = 1 << 20;
/// Most spans of an application that are read for a trace or an export.
pub const ALL_SPANS: usize = 2_000_000;
/// Bytes of their texts: a span of Spark has fewer than 100.
const ALL_BYTES: usize = 256 << 20;

/// Rows of a task's spans in a file. Attempts of an application in one file may have the same task, and executors of other
/// names ran it.
fn of_task(
    reader: &Reader,
    id: i64,
    executor: Option<&str>,
    left: &mut usize,
) -> Result<Vec<Range<u64>>, ParquetError> {
    let ids = reader.numbers("task_id", &[0..reader.rows()])?;
    let mut most = ALL_SPANS;
    let rows = ranges(ids.into_iter().map(|it| {
        let is_task = most > 0 && it == Some(id);
        most -= usize::from(is_task);
        is_task
    }));
    let executors = reader.texts_up_to("executor_id", &rows, *left)?;
    let bytes: usize = executors.iter().flatten().map(String::len).sum();
    *left = left.saturating_sub(bytes);
    let of_executor = rows.into_iter().flatten().zip(executors);
    let of_executor = of_executor.filter(|(_, it)| it.as_deref() == executor);
    Ok(of_executor
        .take(SPANS)
        .map(|(row, _)| row..row + 1)
        .collect())
}

/// What a worker knows of one task attempt.
#[derive(Clone, Debug)]
pub struct OfTask {
    /// The task's row, without its functions.
    pub document: Document,
    /// Its functions, with the spans and the requests for shuffle blocks; absent where the daemon knows none.
    pub functions: Option<FunctionsRow>,
}

/// A span with its task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Id of the task attempt.
    pub task: i64,
    /// Begin by the worker's clock, in microseconds since 1970.
    pub begin_unix_us: Option<i64>,
    /// The span as the worker's daemon recorded it.
    pub row: FunctionRow,
}

/// Spans by task attempt.
pub type Spans = BTreeMap<i64, Vec<Span>>;

/// Spans in some rows of a file. `left` are the bytes that texts may have.
fn spans(
    reader: &Reader,
    rows: &[Range<u64>],
    left: &mut usize,
) -> Result<Vec<Span>, ParquetError> {
    let number = |name: &str| reader.numbers(name, rows).map(Vec::into_iter);
    let mut text = |name: &str| -> Result<_, ParquetError> {
        let texts = reader.texts_up_to(name, rows, *left)?;
        let bytes: usize = texts.iter().flatten().map(String::len).sum();
        *left = left.saturating_sub(bytes);
        Ok(texts.into_iter())
    };
    let (mut tids, mut begins, mut rdds) = (number("tid")?, number("begin_ns")?, number("rdd_id")?);
    let (mut lengths, mut own) = (number("duration_ns")?, number("own_ns")?);
    let mut unix = number("begin_unix_us")?;
    let (mut threads, mut activities) = (text("thread")?, text("activity")?);
    let mut functions = text("function")?;
    let mut found = Vec::new();
    for task in number("task_id")? {
        let count = |values: &mut dyn Iterator<Item = Option<i64>>| {
            let value = values.next().flatten().unwrap_or_default();
            u64::try_from(value).unwrap_or_default()
        };
        let small = |value: i64| u32::try_from(value).ok();
        found.push(Span {
            task: task.unwrap_or_default(),
            begin_unix_us: unix.next().flatten(),
            row: FunctionRow {
                thread: threads.next().flatten().unwrap_or_default(),
                tid: tids.next().flatten().and_then(small).unwrap_or_default(),
                activity: activities.next().flatten().unwrap_or_default(),
                function: functions.next().flatten(),
                begin_ns: count(&mut begins),
                duration_ns: count(&mut lengths),
                own_ns: count(&mut own),
                rdd_id: rdds.next().flatten().and_then(small),
            },
        });
    }
    Ok(found)
}

impl Files {
    /// What the worker knows of a task attempt; `None` where none does. Attempts of an application have the same ids: of
    /// those that the executor ran, where it is given, the newest daemon's newest part counts.
    ///
    /// # Errors
    /// When a file cannot be read, or the texts of the spans have more than [`SPAN_BYTES`].
    pub fn task(&self, id: i64, executor: Option<&str>) -> Result<Option<OfTask>, Trouble> {
        let mut left = crate::workers::BYTES;
        let found = self.read(TASKS.name, "task_id", &mut left, |reader| {
            let ids = reader.numbers("task_id", &[0..reader.rows()])?;
            Ok(ranges(ids.iter().map(|it| *it == Some(id))))
        })?;
        let is_same = |it: &Document| executor.is_none_or(|id| it.json["executor_id"] == id);
        let found = found.into_iter().filter(is_same);
        let newest = found.max_by_key(|it| (it.run, it.part));
        let Some(mut document) = newest else {
            return Ok(None);
        };
        let fields = document.json.as_object_mut();
        let functions = fields.and_then(|fields| fields.shift_remove("functions"));
        let functions: Option<FunctionsRow> =
            functions.and_then(|functions| serde_json::from_value(functions).ok());
        let Some(mut functions) = functions else {
            return Ok(Some(OfTask {
                document,
                functions: None,
            }));
        };
        let (uid, host) = (document.uid, &document.host);
        let of_part = |file: &&WorkerFile| {
            (file.uid, &file.name.host, file.name.run, file.name.part)
                == (uid, host, document.run, document.part)
        };
        let file = self.of_table(FUNCTIONS.name).find(of_part);
        if let Some(reader) = file.map(opened).transpose()?.flatten() {
            let mut left = SPAN_BYTES;
            let executor = document.json["executor_id"].as_str();
            let rows = of_task(&reader, id, executor, &mut left)?;
            let all = spans(&reader, &rows, &mut left)?;
            functions.spans = all.into_iter().map(|span| span.row).collect();
        }
        let file = self.of_table(FETCHES.name).find(of_part);
        if let Some(reader) = file.map(opened).transpose()?.flatten() {
            let mut left = SPAN_BYTES;
            let executor = document.json["executor_id"].as_str();
            let rows = of_task(&reader, id, executor, &mut left)?;
            let all = fetches(&reader, &rows, &mut left)?;
            functions.fetches = all.into_iter().map(|fetch| fetch.row).collect();
        }
        Ok(Some(OfTask {
            document,
            functions: Some(functions),
        }))
    }

    /// Ids of the task attempts that have spans, of as many as [`ALL_SPANS`].
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn tasks_with_spans(&self) -> Result<BTreeSet<i64>, Trouble> {
        let (mut all, mut left) = (BTreeSet::new(), ALL_SPANS as u64);
        for file in self.of_table(FUNCTIONS.name) {
            let Some(reader) = opened(file)? else {
                continue;
            };
            let rows = 0..reader.rows().min(left);
            left -= rows.end;
            let ids = reader.numbers("task_id", &[rows])?;
            all.extend(ids.into_iter().flatten());
        }
        Ok(all)
    }

    /// Spans of all tasks, by task, and the number of those beyond [`ALL_SPANS`]; of a task that several daemons name, those
    /// of the newest one.
    ///
    /// # Errors
    /// When a file cannot be read, or the texts of all have [`ALL_BYTES`].
    pub fn all_spans(&self) -> Result<(Spans, u64), Trouble> {
        self.all_spans_up_to(ALL_SPANS, ALL_BYTES)
    }

    fn all_spans_up_to(
        &self,
        mut left: usize,
        mut left_bytes: usize,
    ) -> Result<(Spans, u64), Trouble> {
        let mut cut = 0;
        let mut newest: BTreeMap<i64, (u64, Vec<Span>)> = BTreeMap::new();
        for file in self.of_table(FUNCTIONS.name) {
            let Some(reader) = opened(file)? else {
                continue;
            };
            let run = file.name.run;
            let rows = 0..reader.rows().min(left as u64);
            cut += reader.rows() - rows.end;
            for span in spans(&reader, std::slice::from_ref(&rows), &mut left_bytes)? {
                left -= 1;
                let (of_run, all) = newest.entry(span.task).or_default();
                if run > *of_run {
                    (*of_run, *all) = (run, Vec::new());
                }
                if run == *of_run {
                    all.push(span);
                }
            }
        }
        let all = newest.into_iter().map(|(task, (_, all))| (task, all));
        Ok((all.collect(), cut))
    }
}

impl OfTask {
    /// The task's row with its functions.
    #[must_use]
    pub fn into_row(self) -> Document {
        let mut document = self.document;
        let functions = self.functions.map(serde_json::to_value);
        if let (Value::Object(row), Some(Ok(functions))) = (&mut document.json, functions) {
            row.insert("functions".to_owned(), functions);
        }
        document
    }
}

#[cfg(test)]
mod tests {
    use smtt_store::history::batch::{Batch, Cell};
    use smtt_store::history::workers::{Bounds, Whose, Workers};

    use super::*;

    #[test]
    fn the_texts_of_all_parts_have_one_bound() {
        let folder = tempfile::tempdir().expect("makes a folder");
        let any = Bounds {
            bytes: 1 << 30,
            files: 1 << 20,
        };
        let mut workers = Workers::take(folder.path(), "node-1", 10, None, any).expect("opens");
        let long = "x".repeat(500);
        for part in 0..4 {
            let (text, zero) = (Cell::Text(&long), Cell::Number(0));
            let (none, task) = (Cell::None, Cell::Number(part.into()));
            let who = [zero, zero, task, none, Cell::Text("task"), zero];
            let what = [Cell::Text("sort"), text, zero, zero, zero, zero, none];
            let mut batch = Batch::new(&FUNCTIONS);
            batch.push(&[&who[..], &what[..]].concat());
            let done = workers.add(Whose::of("app-1", 7), part, &batch, &|uid| uid);
            done.expect("writes");
        }
        let files = Files::of(folder.path(), ("app-1", None), None, None).expect("lists");
        for (most, kept) in [(100, 4), (4, 4), (3, 3), (0, 0)] {
            let (all, cut) = files.all_spans_up_to(most, 4 * 508).expect("fits");
            assert_eq!((all.len(), cut), (kept, 4 - kept as u64));
        }
        for bytes in [0, 508, 4 * 508 - 1] {
            let refused = files.all_spans_up_to(100, bytes);
            assert!(matches!(refused, Err(Trouble::Unreadable(_))), "{bytes}");
        }
    }
}
