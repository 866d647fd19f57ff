//! Answers to scrapes: one is made at a time, and all scrapers of the same second share it. Clients that read slowly
//! hold a piece each, never a whole answer.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

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

/// An answer and its audience.
struct Made {
    format: Format,
    names: Names,
    reader: Reader,
    at: Instant,
    text: Arc<String>,
}

/// The last answers, the oldest first.
#[derive(Clone, Default)]
pub struct Scrapes(Arc<Mutex<VecDeque<Made>>>);

impl Scrapes {
    /// The answer to a scrape, at most a second old; `scrape` makes a new one on another thread.
    ///
    /// # Errors
    /// When the text cannot be written.
    pub async fn answer(
        &self,
        format: Format,
        names: Names,
        reader: Reader,
        scrape: impl FnOnce() -> Result<String, fmt::Error> + Send + 'static,
    ) -> Result<Pieces, fmt::Error> {
        let answers = self.clone();
        // A task of its own: a client that hangs up must not let another scrape begin beside this one.
        let made = tokio::spawn(async move { answers.fresh(format, names, reader, scrape).await });
        made.await.unwrap_or(Err(fmt::Error))
    }

    /// The answer that is there, or a new one.
    async fn fresh(
        &self,
        format: Format,
        names: Names,
        reader: Reader,
        scrape: impl FnOnce() -> Result<String, fmt::Error> + Send + 'static,
    ) -> Result<Pieces, fmt::Error> {
        // Held while the answer is made: a scraper that waits here finds it afterwards.
        let mut made = self.0.lock().await;
        let same = |answer: &&Made| {
            (answer.format, answer.names, answer.reader) == (format, names, reader)
                && answer.at.elapsed() < FRESH
        };
        if let Some(answer) = made.iter().find(same) {
            return Ok(Pieces::of(&answer.text));
        }
        while made.len() >= ANSWERS {
            made.pop_front();
        }
        let text = tokio::task::spawn_blocking(scrape);
        let text = Arc::new(text.await.unwrap_or(Err(fmt::Error))?);
        let pieces = Pieces::of(&text);
        // From now on: scrapers that waited for a long scrape share it.
        let at = Instant::now();
        made.push_back(Made {
            format,
            names,
            reader,
            at,
            text,
        });
        // Megabytes do not stay until the next scrape.
        let answers = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(KEPT).await;
            let mut made = answers.0.lock().await;
            made.retain(|answer| answer.at.elapsed() < KEPT);
        });
        Ok(pieces)
    }
}

/// The body of an answer. It ends with an error when the answer is no longer kept.
#[derive(Debug)]
pub struct Pieces {
    text: Weak<String>,
    sent: usize,
    bytes: usize,
}

impl Pieces {
    fn of(text: &Arc<String>) -> Self {
        Self {
            text: Arc::downgrade(text),
            sent: 0,
            bytes: text.len(),
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
        let Some(text) = self.text.upgrade() else {
            let late = io::Error::new(io::ErrorKind::TimedOut, "the answer was read too slowly");
            self.sent = self.bytes;
            return Poll::Ready(Some(Err(late)));
        };
        let end = text.len().min(self.sent + PIECE);
        let piece = Bytes::copy_from_slice(&text.as_bytes()[self.sent..end]);
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
