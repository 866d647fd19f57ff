//! The counts of trace records, where the event loop, the writer and the server meet.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smtt_model::ledger::trace::TraceStatus;
use smtt_store::record::Record;

use super::QUEUE;

/// A user may have this number of records in the queue for each record that still fits: one user alone fills three
/// quarters of it, two get three sevenths each, and there is always room for another. An executor may have the same
/// number for each record that its user may still add.
const SHARE: u64 = 3;

/// The status of the writer, shared.
#[derive(Debug, Default)]
pub struct Ledger {
    status: Mutex<TraceStatus>,
    waiting: Mutex<Waiting>,
}

/// Waiting records.
#[derive(Debug, Default)]
struct Waiting {
    by_share: HashMap<Option<u32>, u64>,
    /// By the address of their origin, which they keep alive.
    by_executor: HashMap<usize, u64>,
}

impl Waiting {
    /// Whether another record finds room in the queue, which has `queued` records.
    fn fits(&self, record: &Record, queued: u64) -> bool {
        let free = SHARE * QUEUE.saturating_sub(queued);
        let of_share = self.by_share.get(&record.source.share).copied();
        let of_share = of_share.unwrap_or(0);
        let own = self.by_executor.get(&origin(record)).copied().unwrap_or(0);
        // With each record that the user adds, `SHARE` fewer fit and one more is its own.
        let left = free.saturating_sub(of_share).div_ceil(SHARE + 1);
        of_share < free && own < SHARE * left
    }
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

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the records of a batch that find room in the queue, which has `queued` records.
    pub(super) fn admit(&self, mut queued: u64, batch: &mut Vec<Record>) {
        let mut waiting = self.waiting();
        batch.retain(|record| {
            let fits = waiting.fits(record, queued);
            if fits {
                *waiting.by_share.entry(record.source.share).or_default() += 1;
                *waiting.by_executor.entry(origin(record)).or_default() += 1;
                queued += 1;
            }
            fits
        });
    }

    /// Records have left the queue.
    pub(super) fn taken(&self, batch: &[Record]) {
        let mut waiting = self.waiting();
        for record in batch {
            if let Some(own) = waiting.by_share.get_mut(&record.source.share) {
                *own = own.saturating_sub(1);
            }
            if let Some(own) = waiting.by_executor.get_mut(&origin(record)) {
                *own = own.saturating_sub(1);
            }
        }
        waiting.by_share.retain(|_, own| *own > 0);
        waiting.by_executor.retain(|_, own| *own > 0);
    }
}
