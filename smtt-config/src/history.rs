//! Settings of the files in a store of finished applications.

use std::path::PathBuf;
use std::time::Duration;

use super::file;
use super::values::{Problem, absolute, bytes, duration, within};

/// Files of this worker in a store of finished applications.
#[derive(Clone, Debug)]
pub struct HistorySettings {
    /// Folder of the store.
    pub store: PathBuf,
    /// Time between two files of an application while its tasks end.
    pub interval: Duration,
    /// Disk space of all files, in bytes.
    pub max_bytes: u64,
    /// Number of files.
    pub max_files: u64,
    /// Group that may read them.
    pub gid: Option<u32>,
}

pub(super) fn check(file: &file::History) -> Result<Option<HistorySettings>, Problem> {
    let (least, most) = (Duration::from_secs(1), Duration::from_secs(3600));
    let settings = HistorySettings {
        store: match file.store.as_str() {
            "" => PathBuf::new(),
            path => absolute("history.store", path)?,
        },
        interval: duration("history.interval", &file.interval, least, most)?,
        max_bytes: bytes("history.max_bytes", &file.max_bytes, 1 << 20, 1 << 60)?,
        max_files: within("history.max_files", file.max_files, 64, 1 << 32)?,
        gid: None,
    };
    Ok((!file.store.is_empty()).then_some(settings))
}
