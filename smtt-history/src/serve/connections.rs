//! Connections, limited in number and in time.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::Sleep;

/// Connections at a time.
pub(super) const CONNECTIONS: usize = 256;
/// Time in which a request's head must arrive.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Time in which a client must take more of an answer.
const WRITE_TIME: Duration = Duration::from_secs(30);
/// Longest life of a connection: a client that reads slowly holds its answer no longer.
const LIFE: Duration = Duration::from_secs(600);
/// Bytes of a request's head at most.
const HEAD_BYTES: usize = 16 << 10;

/// Serves connections until it is dropped.
pub(super) async fn serve(listener: TcpListener, router: Router, connections: usize) {
    let free = Arc::new(Semaphore::new(connections));
    loop {
        let Ok(turn) = Arc::clone(&free).acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Too many open files: the next attempt would fail at once too.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let stream = Timed {
                stream,
                limit: WRITE_TIME,
                stalled: None,
            };
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME)
                .max_buf_size(HEAD_BYTES)
                .serve_connection(TokioIo::new(stream), service);
            if let Ok(Err(error)) = tokio::time::timeout(LIFE, connection).await {
                tracing::debug!(%error, "connection ended");
            }
            drop(turn);
        });
    }
}

/// A connection that ends with an error when a write makes no progress.
struct Timed {
    stream: TcpStream,
    limit: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Timed {
    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let limit = self.limit;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        match stalled.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Timed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, out)
    }
}

impl AsyncWrite for Timed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.watch(context, written)
    }

    // With it an answer is written from where it is, not from a copy that no permit counts.
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn a_reader_that_takes_nothing_ends_its_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
        let address = listener.local_addr().expect("has an address");
        let idle = TcpStream::connect(address).await.expect("connects");
        let (stream, _) = listener.accept().await.expect("accepts");
        let mut timed = Timed {
            stream,
            limit: Duration::from_millis(100),
            stalled: None,
        };
        let text = vec![0; 64 << 20];
        let written = tokio::time::timeout(Duration::from_secs(30), timed.write_all(&text));
        let error = written.await.expect("ends").expect_err("cannot be written");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(idle);
    }
}
