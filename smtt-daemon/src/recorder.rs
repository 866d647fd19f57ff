//! Trace files: one record per access to Spark's memory, as Parquet that Spark itself reads. docs/TRACE.md has the
//! columns.
//!
//! The middle task turns events into records ([`Tap`]) and hands them over; a thread of its own writes them
//! ([`writer`]). Between the two at most [`QUEUE`] records wait; one more is a named loss. Whoever follows them live
//! ([`follow`]) needs no files.

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

pub use self::tap::Tap;

/// Records between the middle and the writer.
pub const QUEUE: u64 = 16_384;

/// The way to the writer; its end ends the writer.
#[derive(Debug)]
pub struct Queue {
    records: mpsc::Sender<Vec<Record>>,
    ledger: Arc<Ledger>,
}

impl Queue {
    /// Hands records over; what has no room is counted as lost.
    pub fn send(&self, mut batch: Vec<Record>) {
        if batch.is_empty() {
            return;
        }
        let mut status = self.ledger.lock();
        let counts = &mut status.counts;
        counts.attempted += batch.len() as u64;
        let room = QUEUE.saturating_sub(counts.queued).min(batch.len() as u64);
        counts.lose("queue_full", batch.len() as u64 - room);
        batch.truncate(room as usize);
        if batch.is_empty() {
            return;
        }
        counts.queued += room;
        if self.records.send(batch).is_err() {
            counts.queued -= room;
            counts.lose("writer_gone", room);
        }
    }
}

/// The writer's thread.
#[derive(Debug)]
pub struct Trace {
    thread: JoinHandle<()>,
    /// What became of records.
    pub ledger: Arc<Ledger>,
}

impl Trace {
    /// Starts the writer. A folder that cannot be written now is no error: it is tried again.
    ///
    /// # Errors
    /// When there is no thread for it.
    pub fn start(settings: TraceSettings) -> anyhow::Result<(Self, Queue)> {
        let ledger = Arc::new(Ledger::new(&settings.folder.display().to_string()));
        let writer = Writer::new(settings, Arc::clone(&ledger))
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

    /// Waits until the writer has finished its segments, which it does when the queue's other end is gone. Returns
    /// whether it has.
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
