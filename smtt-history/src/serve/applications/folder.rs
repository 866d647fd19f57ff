//! The applications of a local store, those that changed last first. A folder's own time says when it changed: a part, a
//! compaction and an import each rename something in it or give it its name.
//!
//! Writers add to no index: a request reads the modification time of every folder, and reads documents only as far as
//! its page needs them. What was read is kept in memory as long as the folder is the same.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use moka::sync::Cache;
use serde::Deserialize;
use smtt_store::history::place;

use super::{LISTED, is_of};
use crate::live;
use crate::open::{exists, summary_up_to};

/// Bytes of documents in memory at most.
const BYTES: u64 = 64 << 20;
/// Bytes of an entry beside its texts, about.
const ENTRY: usize = 200;

/// Inode, and when it was changed: what is in the folder, and the folder itself.
type State = (u64, [i64; 4]);

/// A folder of the store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Changed {
    modified_ms: i64,
    pub(super) name: String,
    state: State,
}

impl Changed {
    fn of(name: String, metadata: &Metadata) -> Self {
        let (seconds, nanoseconds) = (metadata.mtime(), metadata.mtime_nsec());
        let state = [
            seconds,
            nanoseconds,
            metadata.ctime(),
            metadata.ctime_nsec(),
        ];
        Self {
            modified_ms: seconds
                .saturating_mul(1000)
                .saturating_add(nanoseconds / 1_000_000),
            name,
            state: (metadata.ino(), state),
        }
    }
}

/// The document that a folder had in a state; `None` for one that has no place in a list.
type Known = (State, Option<Arc<str>>);

/// A local store.
pub(crate) struct Folder {
    store: PathBuf,
    known: Cache<String, Known>,
    /// Folders beyond [`LISTED`], as of the last list.
    left_out: AtomicU64,
}

impl Folder {
    /// A store of which nothing was read.
    pub(crate) fn new(store: PathBuf) -> Self {
        let weight = |name: &String, (_, text): &Known| {
            let bytes = name.len() + text.as_ref().map_or(0, |text| text.len()) + ENTRY;
            u32::try_from(bytes).unwrap_or(u32::MAX)
        };
        let known = Cache::builder().max_capacity(BYTES).weigher(weight).build();
        Self {
            store,
            known,
            left_out: AtomicU64::new(0),
        }
    }

    /// Folders that may be applications, the last changed first. Of many more than [`LISTED`] only those are held.
    pub(super) fn folders(&self) -> Vec<Changed> {
        let Ok(entries) = fs::read_dir(&self.store) else {
            return Vec::new();
        };
        let folders = entries.filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            if !place::is_safe(&name) {
                return None;
            }
            let metadata = entry.metadata().ok()?;
            metadata.is_dir().then(|| Changed::of(name, &metadata))
        });
        let (mut newest, mut left_out) = (BinaryHeap::new(), 0_u64);
        for folder in folders {
            newest.push(Reverse(folder));
            if newest.len() > LISTED {
                newest.pop();
                left_out += 1;
            }
        }
        if left_out > 0 {
            tracing::warn!(left_out, "the list of applications is cut");
        }
        self.left_out.store(left_out, Ordering::Relaxed);
        let sorted = newest.into_sorted_vec();
        sorted.into_iter().map(|Reverse(folder)| folder).collect()
    }

    /// Folders that the last list had no room for.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }

    /// The document of a folder: `None` where it has no application, `Some(None)` where the document has more than `most`
    /// bytes, cannot be read, or is of another application than the folder's name states.
    fn document(&self, folder: &Changed, most: usize) -> Option<Option<Arc<str>>> {
        let name = &folder.name;
        if let Some((state, text)) = self.known.get(name)
            && state == folder.state
        {
            return Some(text.filter(|text| text.len() <= most));
        }
        let path = self.store.join(name);
        let text = if exists(&path) {
            // What cannot be read now may be readable soon.
            let Ok(text) = summary_up_to(&path, most) else {
                return Some(None);
            };
            text
        } else {
            Some(live::summary(&path)?)
        };
        let text = text.filter(|text| is_of(text, name)).map(Arc::from);
        let known = (folder.state, text.clone());
        self.known.insert(name.clone(), known);
        Some(text.filter(|text| text.len() <= most))
    }

    /// The store's applications, each with the documents of its attempts.
    pub(super) fn applications(&self, most: (usize, usize)) -> Applications<'_> {
        let folders = self.folders();
        let names = folders.iter().map(|folder| folder.name.clone());
        Applications {
            folder: self,
            at_name: names.zip(0..).collect(),
            is_done: vec![false; folders.len()],
            folders,
            at: 0,
            most,
            bytes: 0,
            left_out: 0,
        }
    }

    /// Folders of which something is in memory.
    #[cfg(test)]
    pub(super) fn known(&self) -> u64 {
        self.known.run_pending_tasks();
        self.known.entry_count()
    }
}

/// What says which documents are attempts of one application.
#[derive(Deserialize)]
pub(super) struct Named {
    pub(super) id: String,
}

/// Applications of a store, one after the other.
pub(super) struct Applications<'a> {
    folder: &'a Folder,
    folders: Vec<Changed>,
    at_name: BTreeMap<String, usize>,
    /// Folders whose documents were given.
    is_done: Vec<bool>,
    at: usize,
    most: (usize, usize),
    bytes: usize,
    pub(super) left_out: u64,
}

impl Applications<'_> {
    /// When the last changed of the folders that are left changed: none of them has an application that ended later.
    pub(super) fn newest_left(&mut self) -> Option<i64> {
        while self.is_done.get(self.at) == Some(&true) {
            self.at += 1;
        }
        self.folders.get(self.at).map(|folder| folder.modified_ms)
    }

    /// The document of a folder and its application, if there is room for it beside the others of the application.
    fn take(&mut self, at: usize, texts: &mut Vec<Arc<str>>, id: Option<&str>) -> Option<String> {
        let text = self.folder.document(&self.folders[at], self.most.0)?;
        let named = text.and_then(|text| {
            let Named { id } = serde_json::from_str(&text).ok()?;
            Some((id, text))
        });
        // An attempt `1` of `a` and an application `a_1` have names that begin alike.
        if let (Some(id), Some((other, _))) = (id, &named)
            && other != id
        {
            return None;
        }
        if id.is_some() {
            self.is_done[at] = true;
        }
        let of_application = texts.iter().map(|text| text.len()).sum::<usize>();
        let named = named.filter(|(_, text)| {
            self.bytes + text.len() <= self.most.1 && of_application + text.len() <= self.most.0
        });
        let Some((id, text)) = named else {
            self.left_out += 1;
            return None;
        };
        self.bytes += text.len();
        texts.push(text);
        Some(id)
    }
}

impl Iterator for Applications<'_> {
    type Item = Vec<Arc<str>>;

    fn next(&mut self) -> Option<Vec<Arc<str>>> {
        loop {
            self.newest_left()?;
            let at = self.at;
            self.is_done[at] = true;
            let mut texts = Vec::new();
            let Some(id) = self.take(at, &mut texts, None) else {
                continue;
            };
            let attempts = self.at_name.range(id.clone()..);
            let attempts = attempts.take_while(|(name, _)| name.starts_with(&id));
            let is_attempt =
                |name: &str| name[id.len()..].is_empty() || name[id.len()..].starts_with('_');
            let others: Vec<usize> = attempts
                .filter(|(name, at)| is_attempt(name) && !self.is_done[**at])
                .map(|(_, at)| *at)
                .collect();
            for other in others {
                self.take(other, &mut texts, Some(&id));
            }
            return Some(texts);
        }
    }
}
