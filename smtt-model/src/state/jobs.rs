//! What the driver says of the application's jobs: begin, end, failure.

use std::collections::BTreeMap;

use super::bytes::{Caps, tree_bytes, tree_entry_bytes};
use crate::decode::JobDescribed;

/// Bytes of an entry.
const ENTRY: usize = size_of::<(u32, JobDescribed)>();

/// Jobs by id. There may be as many as stages of an executor; the first ones make room.
#[derive(Debug, Default)]
pub struct Jobs {
    rows: BTreeMap<u32, JobDescribed>,
    /// Bytes of the texts.
    texts: usize,
}

impl Jobs {
    /// The jobs in the order of their ids.
    pub fn values(&self) -> impl Iterator<Item = &JobDescribed> {
        self.rows.values()
    }

    /// Bytes of all rows.
    pub(super) fn bytes(&self) -> usize {
        tree_bytes(self.rows.len(), ENTRY) + self.texts
    }

    /// Keeps what the driver says of a job; false beyond the limits.
    pub(super) fn describe(&mut self, job: JobDescribed, caps: &Caps) -> bool {
        let before = self.bytes();
        self.remove(job.job_id);
        while self.rows.len() >= caps.stages_per_executor.max(1) {
            let Some(first) = self.rows.keys().next().copied() else {
                break;
            };
            self.remove(first);
        }
        caps.give_back(before.saturating_sub(self.bytes()));
        let text = job.failure.capacity();
        if !caps.admit(tree_entry_bytes(ENTRY) + text) {
            return false;
        }
        self.texts += text;
        self.rows.insert(job.job_id, job);
        true
    }

    /// Another application begins in the same JVM, and its jobs have the same ids.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn remove(&mut self, id: u32) {
        if let Some(job) = self.rows.remove(&id) {
            self.texts -= job.failure.capacity();
        }
    }
}
