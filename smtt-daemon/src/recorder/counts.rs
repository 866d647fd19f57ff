//! The counts of trace records, where the event loop, the writer and the server meet.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smtt_model::ledger::trace::TraceStatus;
use smtt_store::record::Record;

use super::QUEUE;

/// An executor may have this number of records in the queue for each record that still fits: one executor alone fills
/// three quarters of it, two get three sevenths each, and there is always room for another.
const SHARE: u64 = 3;

/// The status of the writer, shared.
#[derive(Debug, Default)]
pub struct Ledger {
    status: Mutex<TraceStatus>,
    /// Waiting records by executor: by the address of their origin, which they keep alive.
    waiting: Mutex<HashMap<usize, u64>>,
}

/// The address of a record's origin.
fn origin(record: &Record) -> usize {
    Arc::as_ptr(&record.source) as usize
}

impl Ledger {
    /// Counts of zero for a folder.
    #[must_use]
    pub fn new(folder: &str) -> Self {
        let status = TraceStatus {
            folder: folder.to_owned(),
            ..TraceStatus::default()
        };
        Self {
            status: Mutex::new(status),
            waiting: Mutex::default(),
        }
    }

    /// A copy of the status.
    #[must_use]
    pub fn status(&self) -> TraceStatus {
        self.lock().clone()
    }

    /// The lock of the status. Its counts are usable even when a thread panicked while it held the lock.
    pub(super) fn lock(&self) -> MutexGuard<'_, TraceStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<usize, u64>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the records of a batch that find room in the queue, which has `queued` records.
    pub(super) fn admit(&self, mut queued: u64, batch: &mut Vec<Record>) {
        let mut waiting = self.waiting();
        batch.retain(|record| {
            let own = waiting.entry(origin(record)).or_default();
            let fits = *own < SHARE * QUEUE.saturating_sub(queued);
            if fits {
                *own += 1;
                queued += 1;
            }
            fits
        });
        waiting.retain(|_, own| *own > 0);
    }

    /// Records have left the queue.
    pub(super) fn taken(&self, batch: &[Record]) {
        let mut waiting = self.waiting();
        for record in batch {
            if let Some(own) = waiting.get_mut(&origin(record)) {
                *own = own.saturating_sub(1);
            }
        }
        waiting.retain(|_, own| *own > 0);
    }
}
