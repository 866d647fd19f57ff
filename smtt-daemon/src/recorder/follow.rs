//! Live records for `smtt-ctl trace --follow`: one JSON object per line, without a file in between.
//!
//! The tap offers its records to [`Followers`]; without a client that costs one read of a number. At most [`WAITING`]
//! records wait for each client. Records beyond that are lost to this client only, and a line reports their number.
//! A thread per client makes the text, never the event loop; the thread ends when its client hangs up.

use std::collections::{BTreeMap, VecDeque};
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use smtt_model::ledger::trace::FollowCounts;
use smtt_model::protocol::{FollowQuery, LOST};
use smtt_store::record::Record;
use tokio::sync::mpsc;

/// Clients at a time.
pub const CLIENTS: usize = 4;
/// Records that wait for one client.
pub const WAITING: usize = 4096;
/// Records of one piece of an answer.
const PIECE: usize = 128;

/// Whether a client wants a record.
fn wants(query: &FollowQuery, record: &Record) -> bool {
    fn is<T: PartialEq>(asked: Option<T>, said: impl FnOnce() -> Option<T>) -> bool {
        asked.is_none() || asked == said()
    }
    let source = &record.source;
    is(query.app.as_deref(), || Some(&source.application_id))
        && is(query.user, || source.uid)
        && is(query.executor.as_deref(), || Some(&source.executor_id))
        && is(query.rdd, || record.rdd_id)
        && is(query.stage, || record.stage_id)
        && is(query.attempt, || record.stage_attempt)
        && is(query.kind.as_deref(), || Some(record.kind.name()))
}

/// Records that wait for one client.
#[derive(Debug, Default)]
struct Client {
    wanted: FollowQuery,
    records: VecDeque<Record>,
    /// Records lost since the last line that reported a loss.
    lost: u64,
    gone: bool,
}

/// One piece of an answer.
struct Taken {
    records: Vec<Record>,
    /// Records lost after these.
    lost: u64,
}

#[derive(Debug, Default)]
struct Inner {
    clients: BTreeMap<u64, Client>,
    next: u64,
    closed: bool,
    counts: FollowCounts,
}

impl Inner {
    fn lose(&mut self, cause: &'static str, records: u64) {
        if records > 0 {
            *self.counts.lost.entry(cause).or_default() += records;
        }
    }
}

/// Why a client cannot follow.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// All places are taken.
    #[error("{CLIENTS} clients follow already: end one of them first")]
    Full,
    /// The daemon is stopping.
    #[error("the daemon is stopping")]
    Stopping,
    /// The system refuses another thread.
    #[error("a thread for another client cannot be started: {0}")]
    NoThread(#[source] std::io::Error),
}

/// The live clients and the records that wait for them.
#[derive(Debug, Default)]
pub struct Followers {
    following: AtomicUsize,
    inner: Mutex<Inner>,
    ready: Condvar,
}

impl Followers {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // After a panic of another holder the numbers and records are still usable.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is a client.
    #[must_use]
    pub fn has_clients(&self) -> bool {
        self.following.load(Ordering::Relaxed) > 0
    }

    /// Queues the records for every client that wants them.
    pub fn offer(&self, batch: &[Record]) {
        if batch.is_empty() || !self.has_clients() {
            return;
        }
        let mut inner = self.lock();
        let Inner {
            clients, counts, ..
        } = &mut *inner;
        for client in clients.values_mut().filter(|client| !client.gone) {
            for record in batch.iter().filter(|record| wants(&client.wanted, record)) {
                counts.attempted += 1;
                // After a loss nothing is queued until the loss is reported, so that its line stands where the gap is.
                if client.records.len() >= WAITING || client.lost > 0 {
                    client.lost += 1;
                    *counts.lost.entry("client_too_slow").or_default() += 1;
                } else {
                    client.records.push_back(record.clone());
                    counts.waiting += 1;
                }
            }
        }
        drop(inner);
        self.ready.notify_all();
    }

    /// Counts since the start; `None` before the first client.
    #[must_use]
    pub fn counts(&self) -> Option<FollowCounts> {
        let inner = self.lock();
        (inner.next > 0).then(|| inner.counts.clone())
    }

    /// Ends every answer after its waiting records and refuses further clients.
    pub fn close(&self) {
        self.lock().closed = true;
        self.ready.notify_all();
    }

    /// Adds a client that gets records from now on; its answer ends with the daemon.
    ///
    /// # Errors
    /// See [`FollowError`].
    pub fn follow(self: &Arc<Self>, wanted: FollowQuery) -> Result<Answer, FollowError> {
        let id = {
            let mut inner = self.lock();
            if inner.closed {
                return Err(FollowError::Stopping);
            }
            if inner.clients.len() >= CLIENTS {
                return Err(FollowError::Full);
            }
            inner.next += 1;
            let id = inner.next;
            let client = Client {
                wanted,
                ..Client::default()
            };
            inner.clients.insert(id, client);
            self.following.store(inner.clients.len(), Ordering::Relaxed);
            id
        };
        let (pieces, answer) = mpsc::channel(1);
        let followers = Arc::clone(self);
        let thread = std::thread::Builder::new()
            .name("smtt-follow".into())
            .spawn(move || {
                followers.serve(id, &pieces);
                followers.remove(id);
            });
        if let Err(error) = thread {
            self.remove(id);
            return Err(FollowError::NoThread(error));
        }
        Ok(Answer {
            pieces: answer,
            followers: Arc::clone(self),
            id,
        })
    }

    /// Sends a client its records until it hangs up or the daemon ends.
    fn serve(&self, id: u64, pieces: &mpsc::Sender<Vec<u8>>) {
        while let Some(Taken { records, lost }) = self.wait_for_records(id) {
            let mut text = Vec::new();
            for record in &records {
                // Writing to memory cannot fail, and every value of a record has a JSON form.
                let _ = serde_json::to_writer(&mut text, &record.object());
                text.push(b'\n');
            }
            if lost > 0 {
                let _ = writeln!(text, "{{\"{LOST}\":{lost}}}");
            }
            let sent = pieces.blocking_send(text).is_ok();
            let mut inner = self.lock();
            let records = records.len() as u64;
            inner.counts.waiting -= records;
            if !sent {
                inner.lose("client_gone", records);
                return;
            }
            inner.counts.delivered += records;
        }
    }

    /// Waits for records of a client; `None` at the end.
    fn wait_for_records(&self, id: u64) -> Option<Taken> {
        let mut inner = self.lock();
        loop {
            let closed = inner.closed;
            let client = inner.clients.get_mut(&id).filter(|client| !client.gone)?;
            if !client.records.is_empty() || client.lost > 0 {
                let piece = client.records.len().min(PIECE);
                let records = client.records.drain(..piece).collect();
                let last = client.records.is_empty();
                let lost = if last {
                    std::mem::take(&mut client.lost)
                } else {
                    0
                };
                return Some(Taken { records, lost });
            }
            if closed {
                return None;
            }
            inner = self
                .ready
                .wait(inner)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Removes a client. The records that waited for it are lost.
    fn remove(&self, id: u64) {
        let mut inner = self.lock();
        if let Some(client) = inner.clients.remove(&id) {
            let records = client.records.len() as u64;
            inner.counts.waiting -= records;
            inner.lose("client_gone", records);
        }
        self.following.store(inner.clients.len(), Ordering::Relaxed);
    }
}

/// The answer to one client. Dropping it ends the client's thread.
#[derive(Debug)]
pub struct Answer {
    pieces: mpsc::Receiver<Vec<u8>>,
    followers: Arc<Followers>,
    id: u64,
}

impl Answer {
    /// Polls for the next piece of text: whole lines, at least one; `None` at the end.
    pub fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        self.pieces.poll_recv(context)
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(client) = self.followers.lock().clients.get_mut(&self.id) {
            client.gone = true;
        }
        self.followers.ready.notify_all();
    }
}

#[cfg(test)]
mod tests;
