//! An application that is open: its documents in memory, its tasks on disk.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::Value;
use smtt_store::history::columns::{META, TASKS};
use smtt_store::history::place;
use smtt_store::history::read::Reader;
use smtt_store::read::ParquetError;

use crate::out::Kind;

/// Documents of one kind, in the table's order: id and JSON text.
type Documents = Vec<(String, String)>;

/// Rows of stage attempts, by stage and attempt.
type Rows = BTreeMap<(i32, i32), Vec<Range<u64>>>;

/// An open application.
pub struct App {
    folder: PathBuf,
    documents: BTreeMap<&'static str, Documents>,
    bytes: usize,
    state: (u64, i64),
    id: String,
    attempt: Option<String>,
    rows: OnceLock<Rows>,
}

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
    let meta = Reader::open(&place::table(folder, META.name), META.name)?;
    if meta.rows() == 0 {
        return Ok(None);
    }
    let first = std::slice::from_ref(&(0..1));
    if meta
        .texts("kind", first)?
        .first()
        .cloned()
        .flatten()
        .as_deref()
        != Some(Kind::Application.name())
    {
        return Ok(None);
    }
    Ok(meta.texts("json", first)?.pop().flatten())
}

/// Id and attempt that the application's document says.
fn identity(documents: &BTreeMap<&'static str, Documents>) -> (String, Option<String>) {
    let own = documents.get(Kind::Application.name());
    let json: Value = own
        .and_then(|own| serde_json::from_str(&own.first()?.1).ok())
        .unwrap_or_default();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let attempt = text(&json["attempts"][0]["attemptId"]);
    (text(&json["id"]).unwrap_or_default(), attempt)
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
        let mut bytes = 0;
        for ((kind, id), text) in kinds.into_iter().zip(ids).zip(texts) {
            let kind = kind.unwrap_or_default();
            let Some(kind) = Kind::ALL.iter().find(|known| known.name() == kind) else {
                continue;
            };
            let (id, text) = (id.unwrap_or_default(), text.unwrap_or_default());
            bytes += id.len() + text.len() + 64;
            documents.entry(kind.name()).or_default().push((id, text));
        }
        let (id, attempt) = identity(&documents);
        Ok(Self {
            folder: folder.to_owned(),
            id,
            attempt,
            documents,
            bytes,
            state,
            rows: OnceLock::new(),
        })
    }

    /// Whether it is this attempt of this application.
    #[must_use]
    pub fn is_of(&self, id: &str, attempt: Option<&str>) -> bool {
        self.id == id && self.attempt.as_deref() == attempt
    }

    /// Bytes in memory, about.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the folder still has the tables that were opened.
    #[must_use]
    pub fn is_current(&self) -> bool {
        state(&self.folder) == Some(self.state)
    }

    /// Documents of a kind.
    #[must_use]
    pub fn all(&self, kind: Kind) -> &[(String, String)] {
        self.documents.get(kind.name()).map_or(&[], Vec::as_slice)
    }

    /// The document of a kind with an id.
    #[must_use]
    pub fn one(&self, kind: Kind, id: &str) -> Option<&str> {
        let all = self.all(kind).iter();
        all.rev()
            .find(|(known, _)| known == id)
            .map(|(_, text)| text.as_str())
    }

    /// The table of tasks. Each reader has a file of its own: readers of one file would move one another's position.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn tasks(&self) -> Result<Reader, ParquetError> {
        Reader::open(&place::table(&self.folder, TASKS.name), TASKS.name)
    }

    /// Rows of a stage attempt's tasks.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub fn rows(&self, tasks: &Reader, stage: (i32, i32)) -> Result<Vec<Range<u64>>, ParquetError> {
        if let Some(rows) = self.rows.get() {
            return Ok(rows.get(&stage).cloned().unwrap_or_default());
        }
        let all = [0..tasks.rows()];
        let stages = tasks.numbers("stage_id", &all)?;
        let attempts = tasks.numbers("stage_attempt", &all)?;
        let mut rows = Rows::new();
        let mut last = None;
        for ((row, stage), attempt) in (0..).zip(stages).zip(attempts) {
            let number =
                |value: Option<i64>| i32::try_from(value.unwrap_or_default()).unwrap_or(-1);
            let key = (number(stage), number(attempt));
            let ranges = rows.entry(key).or_default();
            match ranges.last_mut() {
                Some(range) if last == Some(key) => range.end = row + 1,
                _ => ranges.push(row..row + 1),
            }
            last = Some(key);
        }
        let found = rows.get(&stage).cloned().unwrap_or_default();
        let _ = self.rows.set(rows);
        Ok(found)
    }
}
