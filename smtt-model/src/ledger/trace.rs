//! What became of trace records, and how the writer fares: for the ledger, `smtt-ctl status` and the metrics.

use std::collections::BTreeMap;

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

impl TraceCounts {
    /// Counts records as lost.
    pub fn lose(&mut self, cause: &str, records: u64) {
        if records > 0 {
            *self.lost.entry(cause.to_owned()).or_default() += records;
        }
    }
}

/// What became of records that clients wanted, since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FollowCounts {
    /// Records that were wanted, once per client.
    pub attempted: u64,
    /// Records that were handed to a client's connection.
    pub delivered: u64,
    /// The others, by cause.
    pub lost: BTreeMap<&'static str, u64>,
    /// Records that wait.
    pub waiting: u64,
}
