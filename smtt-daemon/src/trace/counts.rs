//! What became of trace records, and how the writer fares: for the ledger, `smtt-ctl status` and the metrics.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

/// Counts since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceCounts {
    /// Accesses that were decoded.
    pub attempted: u64,
    /// Records in finished segments.
    pub written: u64,
    /// Records that are in no finished segment and never will be, by cause.
    pub lost: BTreeMap<String, u64>,
    /// Records on their way to the writer.
    pub queued: u64,
    /// Records in segments that are not finished.
    pub held: u64,
    /// Finished segments.
    pub segments: u64,
    /// Finished segments that were removed to keep within `[trace] max_bytes`.
    pub segments_removed: u64,
    /// Unfinished segments of an earlier crash that were removed.
    pub leftovers_removed: u64,
    /// Bytes of all finished segments in the folder, when it was last looked at.
    pub disk_bytes: u64,
}

/// How the writer fares.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceStatus {
    /// Where segments are written.
    pub folder: String,
    /// Why nothing can be written now, with the next step; empty when all is well.
    pub failing: String,
    /// Counts since the start.
    #[serde(flatten)]
    pub counts: TraceCounts,
}

/// Where the middle, the writer and the listeners meet.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<TraceStatus>);

impl Ledger {
    /// Counts of nothing yet, of a folder.
    #[must_use]
    pub fn new(folder: &str) -> Self {
        Self(Mutex::new(TraceStatus {
            folder: folder.to_owned(),
            ..TraceStatus::default()
        }))
    }

    /// The status now.
    #[must_use]
    pub fn status(&self) -> TraceStatus {
        self.lock().clone()
    }

    /// A count of the status is right even when the thread that changed it last has crashed.
    pub(super) fn lock(&self) -> MutexGuard<'_, TraceStatus> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TraceCounts {
    /// Counts records as lost.
    pub(super) fn lose(&mut self, cause: &str, records: u64) {
        if records > 0 {
            *self.lost.entry(cause.to_owned()).or_default() += records;
        }
    }
}
