//! Answers to scrapes: one is made at a time, and all scrapers of the same second share it, those that read it compressed
//! too. Clients that read slowly hold a piece each, never a whole answer.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write as _};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::Mutex;

use crate::metrics::{Format, Names, Reader};

/// How long a scraper may get the answer that another one got.
const FRESH: Duration = Duration::from_secs(1);
/// How long an answer stays for those that still read it.
const KEPT: Duration = Duration::from_secs(10);
/// Answers that are kept; a reader of an older one is cut off.
const ANSWERS: usize = 3;
/// Bytes of an answer that one connection holds.
const PIECE: usize = 64 << 10;

/// What a scraper wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub format: Format,
    pub names: Names,
    pub reader: Reader,
}

/// An answer and its audience.
struct Made {
    wanted: Wanted,
    at: Instant,
    text: Arc<Vec<u8>>,
    /// The same, compressed; `None` until a scraper wants it so.
    gzip: Option<Arc<Vec<u8>>>,
}

/// The last answers, the oldest first.
#[derive(Clone, Default)]
pub struct Scrapes(Arc<Mutex<VecDeque<Made>>>);

impl Scrapes {
    /// The answer to a scrape, at most a second old, with gzip where `is_gzip`; `scrape` makes a new one on another
    /// thread.
    ///
    /// # Errors
    /// When the text cannot be written.
    pub async fn answer(
        &self,
        wanted: Wanted,
        is_gzip: bool,
        scrape: impl FnOnce() -> Result<String, fmt::Error> + Send + 'static,
    ) -> Result<Pieces, fmt::Error> {
        let answers = self.clone();
        // A task of its own: a client that hangs up must not let another scrape begin beside this one.
        let made = tokio::spawn(async move { answers.fresh(wanted, is_gzip, scrape).await });
        made.await.unwrap_or(Err(fmt::Error))
    }

    /// The answer that is there, or a new one.
    async fn fresh(
        &self,
        wanted: Wanted,
        is_gzip: bool,
        scrape: impl FnOnce() -> Result<String, fmt::Error> + Send + 'static,
    ) -> Result<Pieces, fmt::Error> {
        // Held while the answer is made: a scraper that waits here finds it afterwards.
        let mut made = self.0.lock().await;
        let is_fresh = |answer: &Made| answer.wanted == wanted && answer.at.elapsed() < FRESH;
        let there = made.iter().position(is_fresh);
        let place = match there {
            Some(place) => place,
            None => {
                while made.len() >= ANSWERS {
                    made.pop_front();
                }
                let text = tokio::task::spawn_blocking(scrape);
                let text = text.await.unwrap_or(Err(fmt::Error))?;
                made.push_back(Made {
                    wanted,
                    // From now on: scrapers that waited for a long scrape share it.
                    at: Instant::now(),
                    text: Arc::new(text.into_bytes()),
                    gzip: None,
                });
                self.forget_later();
                made.len() - 1
            }
        };
        let answer = &mut made[place];
        if !is_gzip {
            return Ok(Pieces::of(&answer.text));
        }
        if let Some(bytes) = &answer.gzip {
            return Ok(Pieces::of(bytes));
        }
        let text = Arc::clone(&answer.text);
        let bytes = tokio::task::spawn_blocking(move || compressed(&text)).await;
        let bytes = bytes.map_err(|_| fmt::Error)?.map_err(|_| fmt::Error)?;
        Ok(Pieces::of(answer.gzip.insert(Arc::new(bytes))))
    }

    /// Megabytes do not stay until the next scrape.
    fn forget_later(&self) {
        let answers = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(KEPT).await;
            let mut made = answers.0.lock().await;
            made.retain(|answer| answer.at.elapsed() < KEPT);
        });
    }
}

/// Bytes in fewer bytes, with gzip's fastest level: the next one takes more of a CPU than the bytes are worth.
fn compressed(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes)?;
    encoder.finish()
}

/// The body of an answer. It ends with an error when the answer is no longer kept.
#[derive(Debug)]
pub struct Pieces {
    answer: Weak<Vec<u8>>,
    sent: usize,
    bytes: usize,
}

impl Pieces {
    fn of(bytes: &Arc<Vec<u8>>) -> Self {
        Self {
            answer: Arc::downgrade(bytes),
            sent: 0,
            bytes: bytes.len(),
        }
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.is_end_stream() {
            return Poll::Ready(None);
        }
        let Some(all) = self.answer.upgrade() else {
            let late = io::Error::new(io::ErrorKind::TimedOut, "the answer was read too slowly");
            self.sent = self.bytes;
            return Poll::Ready(Some(Err(late)));
        };
        let end = all.len().min(self.sent + PIECE);
        let piece = Bytes::copy_from_slice(&all[self.sent..end]);
        self.sent = end;
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.sent >= self.bytes
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact((self.bytes - self.sent) as u64)
    }
}
