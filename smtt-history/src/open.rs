//! An application that is open: its documents in memory, its tasks on disk.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use smtt_store::history::columns::{META, TASKS, Table};
use smtt_store::history::place;
use smtt_store::history::read::Reader;
use smtt_store::read::ParquetError;
use tempfile::TempDir;

use crate::live;
use crate::out::{Kind, OWN_BYTES};

/// Documents of one kind, in the table's order: id and JSON text.
type Documents = Vec<(String, String)>;

/// Rows of stage attempts, by stage and attempt.
type Rows = BTreeMap<(i32, i32), Vec<Range<u64>>>;

/// Ranges of the index of stages at most. Writers sort each row group by stage, so a stage has one range in each.
const RANGES: u64 = 1 << 20;
/// Bytes in memory of a range of the index, with its part of the tree.
const RANGE_BYTES: u64 = 96;
/// Bytes in memory of an executor's links to its logs, beside their text.
const LOGS_BYTES: usize = 512;

/// Rows of all stage attempts, one row group in memory at a time.
fn index(tasks: &Reader, most: u64) -> Result<Rows, ParquetError> {
    let mut rows = Rows::new();
    let mut last = None;
    let (mut start, mut ranges) = (0, 0);
    for count in tasks.groups() {
        let here = [start..start + count];
        let stages = tasks.numbers("stage_id", &here)?;
        let attempts = tasks.numbers("stage_attempt", &here)?;
        for ((row, stage), attempt) in (start..).zip(stages).zip(attempts) {
            let number =
                |value: Option<i64>| i32::try_from(value.unwrap_or_default()).unwrap_or(-1);
            let key = (number(stage), number(attempt));
            let of_stage = rows.entry(key).or_default();
            match of_stage.last_mut() {
                Some(range) if last == Some(key) => range.end = row + 1,
                _ => {
                    ranges += 1;
                    if ranges > most {
                        return Err(ParquetError::General(format!(
                            "the table of tasks changes its stage more than {most} times"
                        )));
                    }
                    of_stage.push(row..row + 1);
                }
            }
            last = Some(key);
        }
        start += count;
    }
    Ok(rows)
}

/// Ranges that the index of a table can have: in each row group one for each stage attempt.
fn ranges(tasks: &Reader, stages: usize) -> u64 {
    let of_group = |rows: &u64| (stages as u64).min(*rows);
    tasks.groups().iter().map(of_group).sum::<u64>().min(RANGES)
}

/// An open application.
pub struct App {
    folder: PathBuf,
    documents: BTreeMap<&'static str, Documents>,
    /// Documents of kinds that this version does not know: kind, id and text.
    others: Vec<(String, String, String)>,
    /// Positions of each kind's documents, by id and position.
    by_id: BTreeMap<&'static str, Vec<u32>>,
    bytes: usize,
    state: (u64, i64),
    id: String,
    attempt: Option<String>,
    unfinished_bytes: Option<u64>,
    rows: OnceLock<Rows>,
    executor_logs: OnceLock<BTreeMap<String, Value>>,
    /// Where its tables were made of parts.
    parts: Option<Parts>,
}

/// Parts of which tables were made in a folder of their own.
struct Parts {
    folder: PathBuf,
    state: (u64, i64),
    opened: Instant,
    /// Goes with the application.
    _tables: TempDir,
}

/// How long the tables of an application that runs are good: they are made of all its parts.
const FRESH: Duration = Duration::from_secs(2);

/// Which file a table is: a new import gives another.
fn state(folder: &Path) -> Option<(u64, i64)> {
    let metadata = fs::metadata(place::table(folder, META.name)).ok()?;
    Some((metadata.ino(), metadata.mtime_nsec() ^ metadata.mtime()))
}

/// Whether a folder has an application.
#[must_use]
pub fn exists(folder: &Path) -> bool {
    state(folder).is_some()
}

/// The application's own document, without the others.
///
/// # Errors
/// When the table cannot be read.
pub fn summary(folder: &Path) -> Result<Option<String>, ParquetError> {
    summary_up_to(folder, OWN_BYTES)
}

/// As [`summary`], of at most `most` bytes.
///
/// # Errors
/// As [`summary`], and when it has more.
pub fn summary_up_to(folder: &Path, most: usize) -> Result<Option<String>, ParquetError> {
    let meta = Reader::open(&place::table(folder, META.name), META.name)?;
    if meta.rows() == 0 {
        return Ok(None);
    }
    let first = std::slice::from_ref(&(0..1));
    let kind = meta.texts_up_to("kind", first, most)?.pop().flatten();
    if kind.as_deref() != Some(Kind::Application.name()) {
        return Ok(None);
    }
    Ok(meta.texts_up_to("json", first, most)?.pop().flatten())
}

/// Id and attempt that the application's document states.
fn identity(documents: &BTreeMap<&'static str, Documents>) -> (String, Option<String>) {
    let own = documents.get(Kind::Application.name());
    let json: Value = own
        .and_then(|own| serde_json::from_str(&own.first()?.1).ok())
        .unwrap_or_default();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let attempt = text(&json["attempts"][0]["attemptId"]);
    (text(&json["id"]).unwrap_or_default(), attempt)
}

/// Bytes of the log that was imported before the application had ended.
fn unfinished_bytes(documents: &BTreeMap<&'static str, Documents>) -> Option<u64> {
    let first = |kind: Kind| -> Option<Value> {
        let text = &documents.get(kind.name())?.first()?.1;
        serde_json::from_str(text).ok()
    };
    let has_ended = first(Kind::Application)?["attempts"][0]["completed"] == true;
    let bytes = first(Kind::Import)?["logBytes"].as_u64();
    bytes.filter(|_| !has_ended)
}

impl App {
    /// Opens an application's folder.
    ///
    /// # Errors
    /// When its documents cannot be read.
    pub fn open(folder: &Path) -> Result<Self, ParquetError> {
        let state = state(folder).unwrap_or_default();
        let meta = Reader::open(&place::table(folder, META.name), META.name)?;
        let all = [0..meta.rows()];
        let (kinds, ids, texts) = (
            meta.texts("kind", &all)?,
            meta.texts("id", &all)?,
            meta.texts("json", &all)?,
        );
        let mut documents: BTreeMap<&'static str, Documents> = BTreeMap::new();
        let (mut bytes, mut others) = (0, Vec::new());
        for ((kind, id), text) in kinds.into_iter().zip(ids).zip(texts) {
            let kind = kind.unwrap_or_default();
            let (id, text) = (id.unwrap_or_default(), text.unwrap_or_default());
            bytes += id.len() + text.len() + 64;
            let Some(kind) = Kind::ALL.iter().find(|known| known.name() == kind) else {
                bytes += kind.len();
                others.push((kind, id, text));
                continue;
            };
            if kind == &Kind::Executor {
                bytes += text.len() + LOGS_BYTES;
            }
            documents.entry(kind.name()).or_default().push((id, text));
        }
        let mut by_id = BTreeMap::new();
        for (kind, all) in &documents {
            let mut positions: Vec<u32> =
                (0..u32::try_from(all.len()).unwrap_or(u32::MAX)).collect();
            positions.sort_by_key(|&at| &all[at as usize].0);
            bytes += positions.len() * size_of::<u32>();
            by_id.insert(*kind, positions);
        }
        let (id, attempt) = identity(&documents);
        // The index is made when a stage is first asked for; the cache weighs an application once.
        if let Ok(tasks) = Reader::open(&place::table(folder, TASKS.name), TASKS.name) {
            let stages = documents.get(Kind::Stage.name()).map_or(0, Vec::len);
            bytes += usize::try_from(ranges(&tasks, stages) * RANGE_BYTES).unwrap_or(usize::MAX);
        }
        Ok(Self {
            folder: folder.to_owned(),
            unfinished_bytes: unfinished_bytes(&documents),
            id,
            attempt,
            documents,
            others,
            by_id,
            bytes,
            state,
            rows: OnceLock::new(),
            executor_logs: OnceLock::new(),
            parts: None,
        })
    }

    /// Bytes of its log at the import, if it had not ended then.
    #[must_use]
    pub const fn unfinished_bytes(&self) -> Option<u64> {
        self.unfinished_bytes
    }

    /// The links to each executor's logs.
    #[must_use]
    pub fn executor_logs(&self) -> &BTreeMap<String, Value> {
        self.executor_logs.get_or_init(|| {
            let logs = |(id, text): &(String, String)| {
                let mut json: Map<String, Value> = serde_json::from_str(text).ok()?;
                Some((id.clone(), json.remove("executorLogs")?))
            };
            self.all(Kind::Executor).iter().filter_map(logs).collect()
        })
    }

    /// Its tables, made of parts in `folder` that had a state.
    pub(crate) fn of_parts(mut self, folder: PathBuf, state: (u64, i64), tables: TempDir) -> Self {
        self.parts = Some(Parts {
            folder,
            state,
            opened: Instant::now(),
            _tables: tables,
        });
        self
    }

    /// Whether it is this attempt of this application.
    #[must_use]
    pub fn is_of(&self, id: &str, attempt: Option<&str>) -> bool {
        self.id == id && self.attempt.as_deref() == attempt
    }

    /// The application's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The attempt of the application, where its cluster manager makes several.
    #[must_use]
    pub fn attempt(&self) -> Option<&str> {
        self.attempt.as_deref()
    }

    /// Both.
    #[must_use]
    pub fn identity(&self) -> (&str, Option<&str>) {
        (self.id(), self.attempt())
    }

    /// Bytes in memory, about.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Folder and tables: two that are equal have the same tasks.
    #[must_use]
    pub fn state_key(&self) -> (PathBuf, (u64, i64)) {
        (self.folder.clone(), self.state)
    }

    /// Whether the folder still has the tables that were opened.
    #[must_use]
    pub fn is_current(&self) -> bool {
        match &self.parts {
            None => state(&self.folder) == Some(self.state),
            Some(parts) if parts.opened.elapsed() < FRESH => true,
            Some(parts) => {
                !exists(&parts.folder) && live::state(&parts.folder) == Some(parts.state)
            }
        }
    }

    /// Documents of a kind.
    #[must_use]
    pub fn all(&self, kind: Kind) -> &[(String, String)] {
        self.documents.get(kind.name()).map_or(&[], Vec::as_slice)
    }

    /// Documents of kinds that this version does not know: kind, id and text.
    #[must_use]
    pub fn others(&self) -> &[(String, String, String)] {
        &self.others
    }

    /// The document of a kind with an id.
    #[must_use]
    pub fn one(&self, kind: Kind, id: &str) -> Option<&str> {
        let (all, by_id) = (self.all(kind), self.by_id.get(kind.name())?);
        // Of documents with the same id the last one counts.
        let end = by_id.partition_point(|&at| all[at as usize].0.as_str() <= id);
        let (known, text) = &all[by_id[end.checked_sub(1)?] as usize];
        (known == id).then_some(text.as_str())
    }

    /// Spark's properties of the application: name to value.
    #[must_use]
    pub fn spark_properties(&self) -> BTreeMap<String, String> {
        let json: Value = self
            .one(Kind::Environment, "")
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        let pairs = json["sparkProperties"].as_array().into_iter().flatten();
        let pair =
            |pair: &Value| Some((pair[0].as_str()?.to_owned(), pair[1].as_str()?.to_owned()));
        pairs.filter_map(pair).collect()
    }

    /// The table of tasks. Each reader has a file of its own: readers of one file would move one another's position.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn tasks(&self) -> Result<Reader, ParquetError> {
        self.table(&TASKS)
    }

    /// A table of the application, as [`App::tasks`].
    ///
    /// # Errors
    /// When it cannot be opened, or the folder has the tables of another import: their rows are not those of the documents
    /// here.
    pub fn table(&self, table: &Table) -> Result<Reader, ParquetError> {
        let opened = Reader::open(&place::table(&self.folder, table.name), table.name)?;
        // After the open: what is replaced now leaves this reader its file.
        if state(&self.folder) != Some(self.state) {
            let what = "the tables were replaced while they were read, ask again";
            return Err(ParquetError::General(what.to_owned()));
        }
        Ok(opened)
    }

    /// Rows of a stage attempt's tasks.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub fn rows(&self, tasks: &Reader, stage: (i32, i32)) -> Result<Vec<Range<u64>>, ParquetError> {
        if let Some(rows) = self.rows.get() {
            return Ok(rows.get(&stage).cloned().unwrap_or_default());
        }
        let rows = index(tasks, RANGES)?;
        let found = rows.get(&stage).cloned().unwrap_or_default();
        let _ = self.rows.set(rows);
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use smtt_store::history::batch::{Batch, Cell};
    use smtt_store::history::write::Writer;

    use super::*;

    fn table(folder: &Path, name: &str, groups: &[Vec<Vec<Cell<'_>>>]) {
        let tables = [&META, &TASKS];
        let table = tables
            .into_iter()
            .find(|it| it.name == name)
            .expect("is known");
        let mut writer = Writer::create(table, folder, "1", &[]).expect("creates");
        for rows in groups {
            let mut batch = Batch::new(table);
            rows.iter().for_each(|row| batch.push(row));
            writer.write(&batch).expect("writes");
        }
        writer.finish().expect("finishes");
    }

    #[test]
    fn the_index_of_stages_is_weighed_and_bounded() {
        let folder = tempfile::tempdir().expect("makes a folder");
        let stage = |id: i64| vec![Cell::Number(id), Cell::Number(0)];
        let group: Vec<_> = (0..50).flat_map(|id| [stage(id), stage(id)]).collect();
        table(folder.path(), "tasks", &[group.clone(), group]);
        let document = |id| vec![Cell::Text("stage"), Cell::Text(id), Cell::Text("{}")];
        let ids: Vec<String> = (0..50).map(|id| format!("{id}.0")).collect();
        let documents = ids.iter().map(|id| document(id)).collect();
        table(folder.path(), "meta", &[documents]);
        let app = App::open(folder.path()).expect("opens");
        let text: usize = ids.iter().map(|id| id.len() + 2 + 64 + 4).sum();
        assert_eq!(app.bytes(), text + 100 * RANGE_BYTES as usize);
        let tasks = app.tasks().expect("opens");
        assert_eq!(app.rows(&tasks, (7, 0)).expect("reads"), [14..16, 114..116]);
        assert!(index(&tasks, 100).is_ok());
        let error = index(&tasks, 99).expect_err("is too large").to_string();
        assert!(error.contains("99 times"), "{error}");
    }
}
