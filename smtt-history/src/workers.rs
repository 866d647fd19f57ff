//! What the workers' daemons wrote about an application, read from their files.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::Value;
use smtt_store::history::read::Reader;
use smtt_store::history::workers::ended::{EXECUTOR, Ended};
use smtt_store::history::workers::{FOLDER, REST, TASKS, WorkerFile, files, folders, reader};
use smtt_store::read::ParquetError;

/// Bytes of documents in one answer.
pub const BYTES: usize = 128 << 20;

/// Bytes of the kinds of a file's documents.
const KIND_BYTES: usize = 32 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// A file cannot be read.
    #[error("{0}")]
    Unreadable(#[from] ParquetError),
    /// A folder cannot be read.
    #[error("{0}")]
    Folder(#[from] io::Error),
    /// The bucket's folder of workers could not be copied.
    #[error(
        "what the workers wrote about this application cannot be copied from the store now, so it is missing here: ask again"
    )]
    Uncopied,
    /// The documents are more than [`BYTES`].
    #[error(
        "the documents have more than {BYTES} bytes: ask for one worker by its host (host=NAME)"
    )]
    TooLarge,
    /// Executors of several users claim the application's id.
    #[error("executors of users {} claim this application: ask for one (user=UID)", .0.iter().map(u32::to_string).collect::<Vec<_>>().join(", "))]
    Ambiguous(Vec<u32>),
}

/// A worker's document, with what its file's name states.
#[derive(Clone, Debug)]
pub struct Document {
    /// User of the executors.
    pub uid: u32,
    /// Host of the daemon.
    pub host: String,
    /// Start of the daemon in milliseconds since 1970.
    pub run: u64,
    /// Number of the part within the run.
    pub part: u32,
    /// Its id within the kind, or the task's id.
    pub id: String,
    /// What the daemon wrote, as JSON.
    pub json: Value,
}

/// Files of an application.
pub struct Files(Vec<WorkerFile>);

/// Rows whose flag is set, as ranges.
pub(crate) fn ranges(flags: impl Iterator<Item = bool>) -> Vec<Range<u64>> {
    joined((0..).zip(flags).filter(|it| it.1).map(|it| it.0))
}

/// Ascending rows, as ranges.
fn joined(rows: impl Iterator<Item = u64>) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = Vec::new();
    for row in rows {
        match all.last_mut() {
            Some(range) if range.end == row => range.end += 1,
            _ => all.push(row..row + 1),
        }
    }
    all
}

/// The numbers with which the id of a document begins: stage and attempt (`STAGE.ATTEMPT.EXECUTOR.PID`), or an RDD
/// (`RDD.EXECUTOR.PID`). `None` where it does not have them: then only the document says what it belongs to.
#[must_use]
pub fn leading<const N: usize>(id: &str) -> Option<[i64; N]> {
    // The executor and the process end each id.
    if id.split('.').count() < N + 2 {
        return None;
    }
    let mut numbers = [0; N];
    for (number, part) in numbers.iter_mut().zip(id.split('.')) {
        *number = part.parse().ok()?;
    }
    Some(numbers)
}

/// The reader of a file; `None` where its daemon has removed it to make room for others.
pub(crate) fn opened(file: &WorkerFile) -> Result<Option<Reader>, ParquetError> {
    match reader(file) {
        Err(ParquetError::External(error))
            if error
                .downcast_ref::<io::Error>()
                .is_some_and(|error| error.kind() == io::ErrorKind::NotFound) =>
        {
            Ok(None)
        }
        reader => reader.map(Some),
    }
}

/// Texts of a column in some rows, which take their bytes from `left`. No more are read.
pub(crate) fn texts(
    reader: &Reader,
    column: &str,
    rows: &[Range<u64>],
    left: &mut usize,
) -> Result<Vec<Option<String>>, Trouble> {
    let texts = reader.texts_within(column, rows, *left)?;
    let texts = texts.ok_or(Trouble::TooLarge)?;
    *left -= texts.iter().flatten().map(String::len).sum::<usize>();
    Ok(texts)
}

/// The mark in a folder of copies that states that one of the workers' folders is missing there.
pub(crate) fn uncopied(store: &Path, folder: &str) -> PathBuf {
    store.join(FOLDER).join(format!(".uncopied-{folder}"))
}

/// Kinds of a file's documents.
pub(crate) fn kinds(reader: &Reader) -> Result<Vec<Option<String>>, Trouble> {
    let mut left = KIND_BYTES;
    texts(reader, "kind", &[0..reader.rows()], &mut left)
}

impl Files {
    /// Files of an application, of one user's executors and one host where these are given. Of an attempt its own; where
    /// there are none, those of executors that did not name theirs: an attempt's executors have the same marker.
    ///
    /// # Errors
    /// [`Trouble::Ambiguous`] where several users claim the application and none is given.
    pub fn of(
        store: &Path,
        (application, attempt): (&str, Option<&str>),
        user: Option<u32>,
        host: Option<&str>,
    ) -> Result<Self, Trouble> {
        let mut all = Vec::new();
        for folder in folders(application, attempt) {
            all = files(store, &folder)?;
            if !all.is_empty() {
                break;
            }
            if uncopied(store, &folder).exists() {
                return Err(Trouble::Uncopied);
            }
        }
        all.retain(|file| user.is_none_or(|user| user == file.uid));
        let mut users: Vec<u32> = all.iter().map(|file| file.uid).collect();
        users.dedup();
        if users.len() > 1 {
            return Err(Trouble::Ambiguous(users));
        }
        all.retain(|file| host.is_none_or(|host| host == file.name.host));
        Ok(Self(all))
    }

    /// Whether no worker has written about the application.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Documents of a kind, of all workers. An executor's last documents are in place of those that part 0 of the same run
    /// has of it.
    ///
    /// # Errors
    /// When a file cannot be read, or they are too many.
    pub fn documents(&self, kind: &str) -> Result<Vec<Document>, Trouble> {
        let mut all = Vec::new();
        self.each(kind, None, &mut |document| all.push(document))?;
        Ok(all)
    }

    /// Gives each document of a kind, as [`Self::documents`], whose id `has` chooses; returns their bytes. The others are
    /// neither read nor counted.
    ///
    /// # Errors
    /// As [`Self::documents`]; some may have been given before.
    pub fn documents_with(
        &self,
        kind: &str,
        has: &dyn Fn(&str) -> bool,
        each: &mut dyn FnMut(Document),
    ) -> Result<usize, Trouble> {
        self.each(kind, Some(has), each)
    }

    fn each(
        &self,
        kind: &str,
        has: Option<&dyn Fn(&str) -> bool>,
        each: &mut dyn FnMut(Document),
    ) -> Result<usize, Trouble> {
        let mut left = BYTES;
        let ended = if Ended::matters(kind) {
            self.ended(&mut left)?
        } else {
            BTreeMap::new()
        };
        let before = left;
        let select = |reader: &Reader| {
            let kinds = kinds(reader)?;
            let rows = ranges(kinds.iter().map(|it| it.as_deref() == Some(kind)));
            let Some(has) = has else {
                return Ok(rows);
            };
            let chosen = reader.texts_as("id", &rows, &|id| has(&String::from_utf8_lossy(id)))?;
            let all = rows.into_iter().flatten().zip(chosen);
            // A document without an id is read, too.
            let all = all.filter(|(_, is_chosen)| *is_chosen != Some(false));
            Ok(joined(all.map(|(row, _)| row)))
        };
        self.read_each(REST.name, "id", &mut left, select, &mut |document| {
            let of_run = ended.get(&(document.host.as_str(), document.run));
            let fields = document.json.as_object();
            let replaced = of_run.zip(fields);
            let is_replaced = replaced.is_some_and(|(ended, it)| ended.has_that_of(it));
            if document.part > 0 || !is_replaced {
                each(document);
            }
        })?;
        Ok(before - left)
    }

    /// Executors whose last documents are in a part of their own, by host and run, of the runs that have a part 0.
    pub(crate) fn ended(&self, left: &mut usize) -> Result<BTreeMap<(&str, u64), Ended>, Trouble> {
        let run = |file: &WorkerFile| (file.name.host.clone(), file.name.run);
        let rest = self.of_table(REST.name);
        let rest = rest.filter(|file| !Ended::is_part(&file.name));
        let replaced: HashSet<(String, u64)> = rest.map(run).collect();
        let mut all: BTreeMap<(&str, u64), Ended> = BTreeMap::new();
        let parts = self.of_table(REST.name);
        for file in parts.filter(|it| Ended::is_part(&it.name) && replaced.contains(&run(it))) {
            let Some(reader) = opened(file)? else {
                continue;
            };
            let kinds = kinds(&reader)?;
            let rows = ranges(kinds.iter().map(|it| it.as_deref() == Some(EXECUTOR)));
            let ids = texts(&reader, "id", &rows, left)?;
            let of_run = all.entry((file.name.host.as_str(), file.name.run));
            of_run.or_default().extend(ids.into_iter().flatten());
        }
        Ok(all)
    }

    /// Rows of a stage attempt's tasks, of all workers.
    ///
    /// # Errors
    /// As [`Self::documents`].
    pub fn tasks(&self, stage: (i32, i32)) -> Result<Vec<Document>, Trouble> {
        let mut left = BYTES;
        self.read(TASKS.name, "task_id", &mut left, |reader| {
            let all = &[0..reader.rows()];
            let stages = reader.numbers("stage_id", all)?;
            let attempts = reader.numbers("stage_attempt", all)?;
            let wanted = (Some(i64::from(stage.0)), Some(i64::from(stage.1)));
            Ok(ranges(
                stages.into_iter().zip(attempts).map(|it| it == wanted),
            ))
        })
    }

    /// Page faults of task attempts by their ids; what the newest daemon reports counts.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn page_faults(&self) -> Result<HashMap<i64, u64>, Trouble> {
        let mut newest: HashMap<i64, (u64, u64)> = HashMap::new();
        for file in self.0.iter().filter(|file| file.name.table == TASKS.name) {
            let Some(reader) = opened(file)? else {
                continue;
            };
            let all = &[0..reader.rows()];
            let ids = reader.numbers("task_id", all)?.into_iter();
            for (id, faults) in ids.zip(reader.numbers("page_faults", all)?) {
                let Some((id, faults)) = id.zip(faults) else {
                    continue;
                };
                let entry = newest.entry(id).or_default();
                *entry = (*entry).max((file.name.run, u64::try_from(faults).unwrap_or_default()));
            }
        }
        Ok(newest
            .into_iter()
            .map(|(id, (_, faults))| (id, faults))
            .collect())
    }

    /// All files, by user, daemon and part.
    pub(crate) fn all(&self) -> &[WorkerFile] {
        &self.0
    }

    /// Files of a table.
    pub(crate) fn of_table(&self, table: &'static str) -> impl Iterator<Item = &WorkerFile> {
        self.0.iter().filter(move |file| file.name.table == table)
    }

    pub(crate) fn read(
        &self,
        table: &'static str,
        id: &str,
        left: &mut usize,
        select: impl Fn(&Reader) -> Result<Vec<Range<u64>>, Trouble>,
    ) -> Result<Vec<Document>, Trouble> {
        let mut all = Vec::new();
        self.read_each(table, id, left, select, &mut |document| all.push(document))?;
        Ok(all)
    }

    /// Gives each document of the rows that `select` has of a file. Texts and ids take their bytes from `left`.
    fn read_each(
        &self,
        table: &'static str,
        id: &str,
        left: &mut usize,
        select: impl Fn(&Reader) -> Result<Vec<Range<u64>>, Trouble>,
        each: &mut dyn FnMut(Document),
    ) -> Result<(), Trouble> {
        for file in self.of_table(table) {
            let Some(reader) = opened(file)? else {
                continue;
            };
            let rows = select(&reader)?;
            if rows.is_empty() {
                continue;
            }
            let ids: Vec<String> = if table == TASKS.name {
                let ids = reader.numbers(id, &rows)?.into_iter();
                ids.map(|id| id.unwrap_or_default().to_string()).collect()
            } else {
                let ids = texts(&reader, id, &rows, left)?.into_iter();
                ids.map(Option::unwrap_or_default).collect()
            };
            for (id, text) in ids.into_iter().zip(texts(&reader, "json", &rows, left)?) {
                let text = text.unwrap_or_default();
                // Documents of a few bytes are bounded in number by their place in memory.
                let own = size_of::<Document>();
                *left = left.checked_sub(own).ok_or(Trouble::TooLarge)?;
                each(Document {
                    uid: file.uid,
                    host: file.name.host.clone(),
                    run: file.name.run,
                    part: file.name.part,
                    id,
                    // A document that is no JSON is shown as the text that it is.
                    json: serde_json::from_str(&text).unwrap_or(Value::String(text)),
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
