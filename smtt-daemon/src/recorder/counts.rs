//! The counts of trace records, where the event loop, the writer and the server meet.

use std::sync::{Mutex, MutexGuard, PoisonError};

use smtt_model::ledger::trace::TraceStatus;

/// The status of the writer, shared.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<TraceStatus>);

impl Ledger {
    /// Counts of zero for a folder.
    #[must_use]
    pub fn new(folder: &str) -> Self {
        Self(Mutex::new(TraceStatus {
            folder: folder.to_owned(),
            ..TraceStatus::default()
        }))
    }

    /// A copy of the status.
    #[must_use]
    pub fn status(&self) -> TraceStatus {
        self.lock().clone()
    }

    /// The lock of the status. Its counts are usable even when a thread panicked while it held the lock.
    pub(super) fn lock(&self) -> MutexGuard<'_, TraceStatus> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
