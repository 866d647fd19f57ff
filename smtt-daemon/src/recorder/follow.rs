//! Records as they happen, for `smtt-ctl trace --follow`: one JSON object per line, no file in between.
//!
//! The tap shows its records to [`Followers`]; while nobody follows that is one look at a number. For each client at
//! most [`WAITING`] records wait; what comes while so many wait is lost to this client only, and a line tells it how
//! many. Text is made on a thread per client, never by the middle task; the thread ends when its client hangs up.

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
        && is(query.executor.as_deref(), || Some(&source.executor_id))
        && is(query.rdd, || record.rdd_id)
        && is(query.stage, || record.stage_id)
        && is(query.attempt, || record.stage_attempt)
        && is(query.kind.as_deref(), || Some(record.kind.name()))
}

/// What waits for one client.
#[derive(Debug, Default)]
struct Client {
    wanted: FollowQuery,
    records: VecDeque<Record>,
    /// Records that are lost since the client was last told.
    lost: u64,
    gone: bool,
}

/// One piece of an answer.
struct Taken {
    records: Vec<Record>,
    /// Records after them that the client does not get.
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
    /// There are enough.
    #[error("{CLIENTS} clients follow already: end one of them first")]
    Full,
    /// The daemon ends.
    #[error("the daemon is stopping")]
    Stopping,
    /// The system has none.
    #[error("no thread for another client: {0}")]
    NoThread(#[source] std::io::Error),
}

/// Where the tap and those who follow meet.
#[derive(Debug, Default)]
pub struct Followers {
    following: AtomicUsize,
    inner: Mutex<Inner>,
    ready: Condvar,
}

impl Followers {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Whoever panicked with it left numbers and records that are still of use.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anybody follows.
    #[must_use]
    pub fn any(&self) -> bool {
        self.following.load(Ordering::Relaxed) > 0
    }

    /// Shows records to all who follow.
    pub fn show(&self, batch: &[Record]) {
        if batch.is_empty() || !self.any() {
            return;
        }
        let mut inner = self.lock();
        let Inner {
            clients, counts, ..
        } = &mut *inner;
        for client in clients.values_mut().filter(|client| !client.gone) {
            for record in batch.iter().filter(|record| wants(&client.wanted, record)) {
                counts.attempted += 1;
                // After a loss nothing waits behind it until the client has been told: its line is where the gap is.
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

    /// Counts since the start; `None` where nobody has ever followed.
    #[must_use]
    pub fn counts(&self) -> Option<FollowCounts> {
        let inner = self.lock();
        (inner.next > 0).then(|| inner.counts.clone())
    }

    /// Ends every answer after what waits, and takes no more clients.
    pub fn close(&self) {
        self.lock().closed = true;
        self.ready.notify_all();
    }

    /// A client that wants records from now on; its answer ends with the daemon.
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
                followers.leave(id);
            });
        if let Err(error) = thread {
            self.leave(id);
            return Err(FollowError::NoThread(error));
        }
        Ok(Answer {
            pieces: answer,
            followers: Arc::clone(self),
            id,
        })
    }

    /// Hands a client what waits for it, until it hangs up or the daemon ends.
    fn serve(&self, id: u64, pieces: &mpsc::Sender<Vec<u8>>) {
        while let Some(Taken { records, lost }) = self.take(id) {
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
    fn take(&self, id: u64) -> Option<Taken> {
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

    /// A client is gone: its place is free, what waited for it is lost.
    fn leave(&self, id: u64) {
        let mut inner = self.lock();
        if let Some(client) = inner.clients.remove(&id) {
            let records = client.records.len() as u64;
            inner.counts.waiting -= records;
            inner.lose("client_gone", records);
        }
        self.following.store(inner.clients.len(), Ordering::Relaxed);
    }
}

/// What one client gets. Dropped, it ends the client's thread.
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
