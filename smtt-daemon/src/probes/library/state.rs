//! What is known of the files with probes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::Process;
use super::inode::Page;
use super::known::{Differences, Digest, Known};
use super::link::Links;
use super::rate_limit::Pace;

/// Device and inode of an open file, as its file system shows them. While it has probes the kernel keeps the file, so they
/// are of no other one, but an overlay shows another inode by them after a change.
pub type FileId = (u64, u64);

/// What changes when a file is replaced or rewritten.
pub type Stamp = (FileId, u64, i64, i64);

/// A file with probes.
#[derive(Debug)]
pub struct Probed {
    pub links: Links,
    /// Shows whether another file is the same inode.
    pub page: Arc<Page>,
    /// Bytes that it had when it was probed.
    pub digest: Digest,
    /// How its facts differ from those of this version.
    pub differences: Differences,
    /// Whether the configuration names the file.
    pub configured: bool,
    /// User whose share it uses: that of the executor that brought it.
    pub share: u32,
    pub executors: BTreeSet<Process>,
    /// When its last executor ended.
    pub idle_since: Instant,
}

/// A path of the configuration.
#[derive(Debug)]
pub struct Configured {
    pub stamp: Stamp,
    pub tried: Instant,
    /// Pause after this try, where it failed and the file does not change.
    pub pause: Duration,
    /// The probed file, or why there is none.
    pub file: Result<FileId, String>,
}

/// All files.
#[derive(Debug, Default)]
pub struct State {
    pub known: Vec<Known>,
    /// Digests of libraries whose bytes have not been seen yet.
    pub digests: Vec<Digest>,
    pub configured: BTreeMap<PathBuf, Configured>,
    pub files: HashMap<FileId, Probed>,
    /// Pages of all files with probes, also of those that are being detached from.
    pub pages: Vec<Weak<Page>>,
    /// Files that got other numbers so far, because an overlay shows another inode by theirs: the next such number.
    pub replaced_ids: u64,
    pub pace: Pace,
    /// Living processes whose library is not known.
    pub unknown: BTreeSet<Process>,
    /// Living processes whose slot files have another layout, with that layout.
    pub other_layout: BTreeMap<Process, u32>,
}

impl State {
    /// Gives a file with these numbers others, which no file has: an overlay shows another inode by them now.
    pub fn replace_id(&mut self, id: FileId) {
        let Some(probed) = self.files.remove(&id) else {
            return;
        };
        let other = (u64::MAX, self.replaced_ids);
        self.replaced_ids += 1;
        for configured in self.configured.values_mut() {
            if configured.file == Ok(id) {
                configured.file = Ok(other);
            }
        }
        self.files.insert(other, probed);
    }
}
