//! The tables of an application while they are made, in a hidden folder that gets its name at the end.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use serde_json::Value;
use smtt_store::history::batch::{Batch, Cell};
use smtt_store::history::columns::{META, METRICS, TASKS, Unknown};
use smtt_store::history::write::{GROUP_ROWS, Writer, Written};
use smtt_store::history::{place, same};
use smtt_store::read::ParquetError;
use tempfile::TempDir;

/// Bytes of all documents of an application at most, but for those of [`OWN_BYTES`].
const DOCUMENT_BYTES: usize = 256 << 20;
/// Bytes of a document at most.
const LARGEST_DOCUMENT: usize = 64 << 20;
/// Bytes of the name of a kind that this version does not know, and of a document's id there, at most.
const OTHER_NAMES: usize = 64;
/// Bytes of memory that such a document takes beside its names and its text: a place in a map, and three allocations.
const OTHER_ENTRY: usize = 128;
/// Bytes of different texts at which a row group ends early: messages of failed tasks can be long.
const TEXT_BYTES: usize = 32 << 20;
/// Rows of SQL metrics in a row group at most.
const SQL_ROWS: usize = 4 * GROUP_ROWS;
/// Bytes of the application's, the environment's or the import's document at most. They have room whatever the others take.
pub(crate) const OWN_BYTES: usize = 4 << 20;
/// How the names of folders begin and end that are not finished.
const UNFINISHED: (&str, &str) = (".import-", ".inprogress");
/// Columns of `tasks` with nanoseconds.
const NANOSECONDS: [&str; 3] = [
    "executor_deserialize_cpu_time_ns",
    "executor_cpu_time_ns",
    "shuffle_write_time_ns",
];
/// Key of [`Times`] in the own metadata of a table whose times are not complete.
pub const TIMES_KEY: &str = "smtt.history.times";
/// Key of the application's id in a table's own metadata.
pub const APPLICATION_KEY: &str = "smtt.application_id";

/// How exact the nanoseconds of tasks are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Times {
    /// As Spark reported them.
    #[default]
    Complete,
    /// As whole microseconds, which take less room.
    Microseconds,
}

impl Times {
    fn of(self, nanoseconds: i64) -> i64 {
        match self {
            Self::Complete => nanoseconds,
            Self::Microseconds => {
                let microseconds = nanoseconds.saturating_add(500).div_euclid(1000);
                microseconds.saturating_mul(1000)
            }
        }
    }
}

/// What a document describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The application, as the REST API lists it. The first row.
    Application,
    /// How the import went.
    Import,
    /// Properties and class path.
    Environment,
    /// A job; the id is its number.
    Job,
    /// A stage attempt; the id is `<stage>.<attempt>`.
    Stage,
    /// What executors did for a stage attempt.
    StageDetails,
    /// The RDDs of a stage attempt and their parents.
    StageRdds,
    /// An executor; the id is the one that Spark gave it, such as `driver`.
    Executor,
    /// A cached RDD.
    Rdd,
    /// An SQL execution.
    Sql,
}

impl Kind {
    /// All kinds, in the order of their rows.
    pub const ALL: [Self; 10] = [
        Self::Application,
        Self::Import,
        Self::Environment,
        Self::Job,
        Self::Stage,
        Self::StageDetails,
        Self::StageRdds,
        Self::Executor,
        Self::Rdd,
        Self::Sql,
    ];

    /// Name in the table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Application => "application",
            Self::Import => "import",
            Self::Environment => "environment",
            Self::Job => "job",
            Self::Stage => "stage",
            Self::StageDetails => "stage_details",
            Self::StageRdds => "stage_rdds",
            Self::Executor => "executor",
            Self::Rdd => "rdd",
            Self::Sql => "sql",
        }
    }
}

/// Numbers sort as numbers: `<stage>.<attempt>`, a job's number, an executor's name.
type Order = (Option<(i64, i64)>, String);

fn order(kind: Kind, id: &str) -> Order {
    // Spark sorts executors by their id as text.
    if kind == Kind::Executor {
        return (None, id.to_owned());
    }
    let (first, second) = id.split_once('.').unwrap_or((id, "0"));
    let numbers = first.parse().ok().zip(second.parse().ok());
    (numbers, id.to_owned())
}

/// Rows and bytes of an application's tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// The table of task attempts.
    pub tasks: Written,
    /// SQL metrics of task attempts.
    pub task_sql: Written,
    /// The table of documents: what is known of all but tasks.
    pub meta: Written,
}

/// Tables that are being made.
pub struct Out {
    folder: TempDir,
    /// Held as long as the folder is in use.
    _in_use: Option<File>,
    tasks: Rows<Batch>,
    task_sql: Rows<same::Rows>,
    documents: BTreeMap<(Kind, Order), String>,
    /// Documents of kinds that this version does not know, by kind and id.
    others: BTreeMap<(String, String), String>,
    document_bytes: usize,
    times: Times,
    /// Rows of a row group of tasks, and of their SQL metrics, at most.
    group_rows: [usize; 2],
    most: usize,
    /// Documents that had no place.
    pub dropped: u64,
}

/// A table and the rows that wait for their row group.
struct Rows<T> {
    waiting: T,
    writer: Option<Writer>,
}

impl<T> Rows<T> {
    const fn new(waiting: T) -> Self {
        Self {
            waiting,
            writer: None,
        }
    }

    fn write(&mut self, folder: &Path, batch: &Batch) -> Result<(), ParquetError> {
        if self.writer.is_none() {
            self.writer = Some(Writer::create(batch.table(), folder, "import", &[])?.thorough());
        }
        match &mut self.writer {
            Some(writer) => writer.write(batch),
            None => Ok(()),
        }
    }

    /// The same rows, of which those of whole row groups are in a file in another folder.
    fn fork(&mut self, folder: &Path) -> Result<Self, ParquetError>
    where
        T: Clone,
    {
        let writer = self.writer.as_mut();
        let writer = writer.map(|writer| writer.fork(folder, "import"));
        Ok(Self {
            waiting: self.waiting.clone(),
            writer: writer.transpose()?,
        })
    }

    fn finish(self, id: &str) -> Result<Written, ParquetError> {
        let Some(mut writer) = self.writer else {
            return Ok(Written::default());
        };
        // The id is not known when the first row group is written.
        writer.say(APPLICATION_KEY, id);
        writer.finish()
    }
}

/// Opens a folder. Every user may have a name in a store: what is there now may be a link or a pipe.
fn opened(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let mut options = File::options();
    options.read(true).custom_flags(flags.bits()).open(path)
}

/// Removes the folders of imports that were killed: no process holds their locks.
fn sweep(store: &Path) {
    for entry in fs::read_dir(store).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_unfinished = name
            .to_str()
            .is_some_and(|name| name.starts_with(UNFINISHED.0) && name.ends_with(UNFINISHED.1));
        if !is_unfinished || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let path = entry.path();
        if opened(&path).is_ok_and(|folder| folder.try_lock().is_ok())
            && let Err(error) = fs::remove_dir_all(&path)
        {
            tracing::warn!(path = %path.display(), %error, "cannot remove the rest of a killed import");
        }
    }
}

impl Out {
    /// Begins the tables of an application in a store.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn create(store: &Path) -> io::Result<Self> {
        fs::create_dir_all(store)?;
        // Under the store's lock no folder is between its creation and its own lock.
        let lock = place::lock(store).ok();
        if let Some(lock) = &lock {
            for error in place::put_back(store, lock) {
                tracing::warn!(%error, "a replaced folder cannot be put back or removed");
            }
            sweep(store);
        }
        let folder = tempfile::Builder::new()
            .prefix(UNFINISHED.0)
            .suffix(UNFINISHED.1)
            .tempdir_in(store)?;
        // Not every file system has locks. Without them the folders of killed imports stay.
        let in_use = File::open(folder.path())?;
        let in_use = in_use.try_lock().is_ok().then_some(in_use);
        drop(lock);
        Ok(Self {
            folder,
            _in_use: in_use,
            tasks: Rows::new(Batch::new(&TASKS)),
            task_sql: Rows::new(same::Rows::default()),
            documents: BTreeMap::new(),
            others: BTreeMap::new(),
            document_bytes: 0,
            times: Times::Complete,
            group_rows: [GROUP_ROWS, SQL_ROWS],
            most: DOCUMENT_BYTES,
            dropped: 0,
        })
    }

    /// Tables below a store, which have the rows and documents that these have so far.
    ///
    /// # Errors
    /// When the rows cannot be copied.
    pub(crate) fn fork(&mut self, store: &Path) -> anyhow::Result<Self> {
        let mut fork = Self::create(store)?;
        fork.tasks = self.tasks.fork(fork.folder.path())?;
        fork.task_sql = self.task_sql.fork(fork.folder.path())?;
        fork.documents.clone_from(&self.documents);
        fork.others.clone_from(&self.others);
        (fork.document_bytes, fork.dropped) = (self.document_bytes, self.dropped);
        (fork.times, fork.group_rows, fork.most) = (self.times, self.group_rows, self.most);
        Ok(fork)
    }

    /// Ends row groups of both tables after so many rows.
    #[cfg(test)]
    pub(crate) const fn end_groups_after(&mut self, rows: usize) {
        self.group_rows = [rows; 2];
    }

    /// Bytes in memory, about.
    pub(crate) fn bytes(&self) -> usize {
        let own = self.documents.len() * OTHER_ENTRY + self.document_bytes;
        own + self.tasks.waiting.bytes() + self.task_sql.waiting.bytes()
    }

    /// Keeps nanoseconds so exactly. There is no row yet.
    #[must_use]
    pub const fn with_times(mut self, times: Times) -> Self {
        self.times = times;
        self
    }

    /// How exact nanoseconds are kept, for the document of the import; `None` where they are complete.
    #[must_use]
    pub const fn lossy_times(&self) -> Option<&'static str> {
        match self.times {
            Times::Complete => None,
            Times::Microseconds => Some("us"),
        }
    }

    /// Keeps columns that this version does not know, beside those of `tasks` and `task_sql`. There is no row yet.
    pub fn keep(&mut self, tasks: Vec<Unknown>, task_sql: Vec<Unknown>) {
        self.tasks.waiting = Batch::with(&TASKS, tasks);
        self.task_sql.waiting = same::Rows::with(task_sql);
    }

    /// Adds a task attempt.
    ///
    /// # Errors
    /// When the table cannot be written.
    pub fn task(&mut self, row: &[Cell<'_>]) -> Result<(), ParquetError> {
        let waiting = &mut self.tasks.waiting;
        if self.times == Times::Complete {
            waiting.push(row);
        } else {
            let mut row = row.to_vec();
            for (cell, column) in row.iter_mut().zip(TASKS.columns) {
                if let Cell::Number(value) = cell
                    && NANOSECONDS.contains(&column.name)
                {
                    *value = self.times.of(*value);
                }
            }
            waiting.push(&row);
        }
        if waiting.len() >= self.group_rows[0] || waiting.text_bytes() >= TEXT_BYTES {
            self.flush_tasks()?;
        }
        Ok(())
    }

    /// Adds an SQL metric of a task attempt: its accumulator and value. The task has a stage, an attempt and an id, and
    /// figures in the order of the columns of `tasks`; `further` are the cells of unknown columns.
    ///
    /// # Errors
    /// When the table cannot be written.
    pub fn task_sql(
        &mut self,
        task: [i64; 3],
        figures: &[i64; METRICS],
        metric: (i64, i64),
        further: &[Cell<'_>],
    ) -> Result<(), ParquetError> {
        let waiting = &mut self.task_sql.waiting;
        waiting.push(task, figures, metric, further);
        if waiting.batch().len() >= self.group_rows[1] {
            self.flush_sql()?;
        }
        Ok(())
    }

    fn flush_tasks(&mut self) -> Result<(), ParquetError> {
        let next = Batch::with(&TASKS, self.tasks.waiting.unknown().to_vec());
        let batch = std::mem::replace(&mut self.tasks.waiting, next);
        self.tasks.write(self.folder.path(), &batch)
    }

    fn flush_sql(&mut self) -> Result<(), ParquetError> {
        let next = same::Rows::with(self.task_sql.waiting.batch().unknown().to_vec());
        let batch = std::mem::replace(&mut self.task_sql.waiting, next).finish();
        self.task_sql.write(self.folder.path(), &batch)
    }

    /// Adds a document, or replaces the earlier one with the same id. One without place is counted.
    pub fn meta(&mut self, kind: Kind, id: &str, json: &Value) {
        let text = json.to_string();
        let key = (kind, order(kind, id));
        if matches!(kind, Kind::Application | Kind::Import | Kind::Environment) {
            if text.len() > OWN_BYTES {
                self.dropped += 1;
            } else {
                self.documents.insert(key, text);
            }
            return;
        }
        if text.len() > LARGEST_DOCUMENT.min(self.most) {
            self.dropped += 1;
            return;
        }
        let before = self.documents.get(&key).map_or(0, String::len);
        let mut bytes = self.document_bytes - before + text.len();
        // The RDDs of stages, and then what executors did for them, give way to everything else.
        while bytes > self.most && kind != Kind::StageRdds {
            let first = if kind == Kind::StageDetails {
                Kind::StageRdds
            } else {
                Kind::StageDetails
            };
            let details = (first, (None, String::new()))..(Kind::Executor, (None, String::new()));
            let Some(last) = self.documents.range(details).next_back() else {
                break;
            };
            let last = last.0.clone();
            bytes -= self.documents.remove(&last).map_or(0, |text| text.len());
            self.dropped += 1;
        }
        if bytes > self.most {
            self.dropped += 1;
            self.document_bytes = bytes - text.len() + before;
            return;
        }
        self.document_bytes = bytes;
        self.documents.insert(key, text);
    }

    /// Whether there is a document of a kind with this id.
    pub(crate) fn has(&self, kind: Kind, id: &str) -> bool {
        self.documents.contains_key(&(kind, order(kind, id)))
    }

    /// Adds a document of a kind that this version does not know, as it is. One without place is counted.
    pub fn other(&mut self, kind: &str, id: &str, text: String) {
        let key = (kind.to_owned(), id.to_owned());
        // Many documents without text take memory, too.
        let own = OTHER_ENTRY + kind.len() + id.len();
        let before = self.others.get(&key).map_or(0, |text| own + text.len());
        let bytes = self.document_bytes - before + own + text.len();
        let fits = kind.len() <= OTHER_NAMES && id.len() <= OTHER_NAMES;
        if !fits || text.len() > LARGEST_DOCUMENT || bytes > self.most {
            self.dropped += 1;
            return;
        }
        self.document_bytes = bytes;
        self.others.insert(key, text);
    }

    /// Finishes the tables and gives the folder its name in the store. A folder of that name is replaced as a whole, or
    /// kept with an error.
    ///
    /// # Errors
    /// When a table or the folder cannot be written.
    pub fn finish(
        self,
        store: &Path,
        id: &str,
        name: &str,
        replaces: bool,
    ) -> anyhow::Result<(PathBuf, Sizes)> {
        self.finish_with(store, id, name, |folder, target| {
            place::publish(folder, target, replaces)
        })
    }

    /// As [`Out::finish`], but replaces the folder of that name only if under the store's lock it is still the one that was
    /// read.
    ///
    /// # Errors
    /// As [`Out::finish`], and when the folder is another.
    pub fn finish_if(
        self,
        store: &Path,
        id: &str,
        name: &str,
        is_same: impl FnOnce() -> bool,
    ) -> anyhow::Result<(PathBuf, Sizes)> {
        self.finish_with(store, id, name, |folder, target| {
            place::publish_if(folder, target, is_same)
        })
    }

    fn finish_with(
        mut self,
        store: &Path,
        id: &str,
        name: &str,
        publish: impl FnOnce(&Path, &Path) -> io::Result<Option<String>>,
    ) -> anyhow::Result<(PathBuf, Sizes)> {
        self.flush_tasks()?;
        self.flush_sql()?;
        let folder = self.folder.path();
        let mut documents = Batch::new(&META);
        // Each document goes as soon as it is there: all of them twice would be the most memory of an import.
        for ((kind, (_, id)), text) in std::mem::take(&mut self.documents) {
            documents.push(&[kind.name(), &id, &text].map(Cell::Text));
        }
        for ((kind, id), text) in std::mem::take(&mut self.others) {
            documents.push(&[kind, id, text].each_ref().map(|it| Cell::Text(it)));
        }
        let meta = Writer::create(&META, folder, "import", &[(APPLICATION_KEY, id)])?;
        let mut meta = meta.thorough();
        meta.write(&documents)?;
        if let (Some(times), Some(writer)) = (self.lossy_times(), &mut self.tasks.writer) {
            writer.say(TIMES_KEY, times);
        }
        let sizes = Sizes {
            tasks: self.tasks.finish(id)?,
            task_sql: self.task_sql.finish(id)?,
            meta: meta.finish()?,
        };
        let target = store.join(name);
        if let Some(stays) = publish(folder, &target)? {
            tracing::warn!(stays, "what was replaced cannot be removed: remove it");
        }
        Ok((target, sizes))
    }
}

#[cfg(test)]
mod sizes;
#[cfg(test)]
mod tests;
