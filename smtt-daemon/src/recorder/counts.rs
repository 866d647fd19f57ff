//! The counts of trace records, where the event loop, the writer and the server meet.

use std::sync::{Mutex, MutexGuard, PoisonError};

use smtt_model::ledger::trace::TraceStatus;

/// The status of the writer, shared.
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
