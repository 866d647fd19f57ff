//! Connections, limited in number and in time.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;

/// Connections at a time.
const CONNECTIONS: usize = 256;
/// Time in which a request's head must arrive.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Longest life of a connection: a client that reads slowly holds its answer no longer.
const LIFE: Duration = Duration::from_secs(600);
/// Bytes of a request's head at most.
const HEAD_BYTES: usize = 16 << 10;

/// Serves connections until the process is asked to end.
pub(super) async fn serve(listener: TcpListener, router: Router) {
    let free = Arc::new(Semaphore::new(CONNECTIONS));
    let (Ok(mut terminate), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        tracing::error!("cannot wait for signals");
        return;
    };
    loop {
        let Ok(turn) = Arc::clone(&free).acquire_owned().await else {
            return;
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = terminate.recv() => return,
            _ = interrupt.recv() => return,
        };
        let stream = match accepted {
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
