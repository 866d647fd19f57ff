//! Counts and state of the trace writer, for the ledger, `smtt-ctl status` and the metrics.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Counts of trace records since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceCounts {
    /// Accesses to record.
    pub attempted: u64,
    /// Records in finished segments.
    pub written: u64,
    /// Records that will not be in any finished segment, by cause.
    pub lost: BTreeMap<String, u64>,
    /// Records in the queue to the writer.
    pub queued: u64,
    /// Records in unfinished segments.
    pub held: u64,
    /// Finished segments.
    pub segments: u64,
    /// Finished segments removed to stay below `[trace] max_bytes`.
    pub segments_removed: u64,
    /// Unfinished segments of a crashed daemon that were removed.
    pub leftovers_removed: u64,
    /// Bytes of all finished segments in the folder at the last scan.
    pub disk_bytes: u64,
}

/// State of the trace writer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceStatus {
    /// Folder of the segments.
    pub folder: String,
    /// Why records cannot be written now, with the next step; empty where they can.
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

/// Counts of trace records for live clients since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FollowCounts {
    /// Records selected for a client, once per client.
    pub attempted: u64,
    /// Records handed to a client's connection.
    pub delivered: u64,
    /// Records that a client did not get, by cause.
    pub lost: BTreeMap<&'static str, u64>,
    /// Records in the clients' queues.
    pub waiting: u64,
}
