//! Answers in fewer bytes, for clients that accept them so. An answer's text is compressed piece by piece while its
//! client reads it.

use std::io::{self, Write as _};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::Frame;
use smtt_web::coding::Accepted;
use smtt_web::holding;
use tokio::sync::Semaphore;
use zstd::stream::write::Encoder as ZstdEncoder;

/// Answers that are compressed at a time: each takes up to about 1.5 MB. Further ones are sent as they are.
const AT_A_TIME: usize = 32;
/// Shorter answers are not compressed: one packet has them.
const LEAST: u64 = 1024;
/// Bytes of an answer that are compressed in one step.
const PIECE: usize = 64 << 10;
/// Log2 of the bytes in which zstd looks for repetitions.
const WINDOW_LOG: u32 = 19;

/// Turns of answers that are compressed.
#[derive(Clone)]
pub(super) struct Compressors(Arc<Semaphore>);

impl Default for Compressors {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_A_TIME)))
    }
}

/// A content coding, the better one last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Coding {
    Gzip,
    Zstd,
}

impl Coding {
    const ALL: [Self; 2] = [Self::Gzip, Self::Zstd];

    const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }

    /// The coding that a client prefers; `None` where it accepts none of them.
    fn accepted(headers: &HeaderMap) -> Option<Self> {
        let listed = Accepted::of(headers);
        let all = Self::ALL
            .into_iter()
            .map(|it| (listed.weight(it.name()), it));
        let accepted = all.filter(|(weight, _)| *weight > 0.0);
        accepted
            .max_by(|(left, first), (right, second)| left.total_cmp(right).then(first.cmp(second)))
            .map(|(_, coding)| coding)
    }
}

/// Compresses the answer to a request, where its client accepts it and it is long enough.
pub(super) async fn compress(turns: Compressors, request: Request, next: Next) -> Response {
    let coding = Coding::accepted(request.headers());
    let mut answer = next.run(request).await;
    let bytes = answer.body().size_hint().exact();
    let Some(bytes) = bytes.filter(|bytes| *bytes >= LEAST) else {
        return answer;
    };
    let vary = HeaderValue::from_static("accept-encoding");
    answer.headers_mut().append(header::VARY, vary);
    let Some(coding) = coding else {
        return answer;
    };
    let Ok(turn) = turns.0.try_acquire_owned() else {
        return answer;
    };
    let encoder = match Encoder::new(coding, bytes) {
        Ok(encoder) => encoder,
        Err(error) => {
            tracing::warn!(%error, "an answer is not compressed");
            return answer;
        }
    };
    let headers = answer.headers_mut();
    headers.remove(header::CONTENT_LENGTH);
    let coding = HeaderValue::from_static(coding.name());
    headers.insert(header::CONTENT_ENCODING, coding);
    answer.map(|body| {
        let compressed = Body::new(Compressed {
            body,
            piece: Bytes::new(),
            encoder: Some(encoder),
        });
        holding(compressed, turn)
    })
}

/// Compresses into its own buffer.
enum Encoder {
    Gzip(GzEncoder<Vec<u8>>),
    Zstd(ZstdEncoder<'static, Vec<u8>>),
}

impl Encoder {
    fn new(coding: Coding, bytes: u64) -> io::Result<Self> {
        Ok(match coding {
            Coding::Gzip => Self::Gzip(GzEncoder::new(Vec::new(), Compression::fast())),
            Coding::Zstd => {
                let mut encoder = ZstdEncoder::new(Vec::new(), 1)?;
                encoder.window_log(WINDOW_LOG)?;
                encoder.set_pledged_src_size(Some(bytes))?;
                Self::Zstd(encoder)
            }
        })
    }

    /// Takes a piece, and gives what is finished.
    fn step(&mut self, piece: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            Self::Gzip(encoder) => {
                encoder.write_all(piece)?;
                Ok(std::mem::take(encoder.get_mut()))
            }
            Self::Zstd(encoder) => {
                encoder.write_all(piece)?;
                Ok(std::mem::take(encoder.get_mut()))
            }
        }
    }

    fn finish(self) -> io::Result<Vec<u8>> {
        match self {
            Self::Gzip(encoder) => encoder.finish(),
            Self::Zstd(encoder) => encoder.finish(),
        }
    }
}

/// The body of a compressed answer.
struct Compressed {
    body: Body,
    /// What the body gave, and was not compressed yet.
    piece: Bytes,
    /// `None` when the last bytes are given.
    encoder: Option<Encoder>,
}

impl HttpBody for Compressed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        while let Some(encoder) = &mut this.encoder {
            let written = if this.piece.is_empty() {
                match Pin::new(&mut this.body).poll_frame(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                    Poll::Ready(Some(Ok(frame))) => {
                        // Answers have no trailers.
                        this.piece = frame.into_data().unwrap_or_default();
                        continue;
                    }
                    Poll::Ready(None) => {
                        this.encoder.take().map_or(Ok(Vec::new()), Encoder::finish)
                    }
                }
            } else {
                let length = this.piece.len().min(PIECE);
                encoder.step(&this.piece.split_to(length))
            };
            match written {
                Ok(bytes) if bytes.is_empty() => {}
                Ok(bytes) => return Poll::Ready(Some(Ok(Frame::data(bytes.into())))),
                Err(error) => return Poll::Ready(Some(Err(axum::Error::new(error)))),
            }
        }
        Poll::Ready(None)
    }
}

#[cfg(test)]
mod tests;
