//! Trace files: one record per access to Spark's memory, as Parquet that Spark itself reads. docs/TRACE.md has the
//! columns.
//!
//! The event loop turns events into records ([`Tap`]) and sends them to a thread that writes them ([`writer`]). At most
//! [`QUEUE`] records wait between the two, and each user
//! and each executor has a share of them; further ones are a named loss. Live clients ([`follow`]) need no files.

pub mod counts;
pub mod follow;
mod tap;
pub mod writer;

use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use smtt_config::TraceSettings;
use smtt_store::record::Record;

use self::counts::Ledger;
use self::writer::Writer;
use crate::subordinate::ShareOwners;

pub use self::tap::Tap;

/// Records between the event loop and the writer.
pub const QUEUE: u64 = 16_384;

/// Sends batches to the writer. The writer ends when this is dropped.
#[derive(Debug)]
pub struct Queue {
    records: mpsc::Sender<Vec<Record>>,
    ledger: Arc<Ledger>,
}

impl Queue {
    /// Sends records to the writer; those that find no room are counted as lost.
    pub fn send(&self, mut batch: Vec<Record>) {
        if batch.is_empty() {
            return;
        }
        let mut status = self.ledger.lock();
        let counts = &mut status.counts;
        counts.attempted += batch.len() as u64;
        let attempted = batch.len() as u64;
        self.ledger.admit(counts.queued, &mut batch);
        let room = batch.len() as u64;
        counts.lose("queue_full", attempted - room);
        if batch.is_empty() {
            return;
        }
        counts.queued += room;
        if let Err(mpsc::SendError(batch)) = self.records.send(batch) {
            self.ledger.taken(&batch);
            counts.queued -= room;
            counts.lose("writer_gone", room);
        }
    }
}

/// The writer's thread.
#[derive(Debug)]
pub struct Trace {
    thread: JoinHandle<()>,
    /// Counts of records that were written or lost.
    pub ledger: Arc<Ledger>,
}

impl Trace {
    /// Starts the writer. A folder that cannot be written now is no error: the writer retries. Users share its disk space
    /// as `owners` says.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(
        settings: TraceSettings,
        owners: Arc<ShareOwners>,
    ) -> anyhow::Result<(Self, Queue)> {
        let ledger = Arc::new(Ledger::new(&settings.folder.display().to_string()));
        let writer = Writer::new(settings, Arc::clone(&ledger), owners)
            .context("trace records have no valid form")?;
        let (records, incoming) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("smtt-trace".into())
            .spawn(move || writer.run(&incoming))
            .context("no thread for trace records")?;
        let queue = Queue {
            records,
            ledger: Arc::clone(&ledger),
        };
        Ok((Self { thread, ledger }, queue))
    }

    /// Waits until the writer has finished its segments, which it does when the queue's sender is dropped. Returns
    /// whether it finished within the limit.
    #[must_use]
    pub fn finish(self, limit: Duration) -> bool {
        let start = Instant::now();
        while !self.thread.is_finished() {
            if start.elapsed() > limit {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.thread.join().is_ok()
    }
}

#[cfg(test)]
mod tests;
