//! Connections of a listener within limits: their number, the time for a request's head and for its answer, and the
//! bytes of a head. A connection carries one request.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use axum::serve::Listener;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Sleep, sleep, timeout};

/// Bytes of a request's head, and of what waits to be sent.
const BUFFER: usize = 16 << 10;
/// Headers of a request.
const HEADERS: usize = 64;
/// How long connections may finish when the server stops.
const FINISH: Duration = Duration::from_secs(2);

/// Limits of one listener.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time.
    pub connections: usize,
    /// Time for the head of a request.
    pub head: Duration,
    /// Time in which a client reads nothing of its answer.
    pub stall: Duration,
    /// Time from the connection to the end of the answer; `None` where answers may be endless.
    pub life: Option<Duration>,
}

/// The metrics port: any local user may connect.
pub const WEB: Limits = Limits {
    connections: 32,
    head: Duration::from_secs(5),
    stall: Duration::from_secs(10),
    life: Some(Duration::from_secs(30)),
};

/// The control socket: its group may connect.
pub const CONTROL: Limits = Limits {
    connections: 64,
    head: Duration::from_secs(5),
    stall: Duration::from_secs(30),
    life: None,
};

/// In the extensions of a request: whether its client may stop reading for any time, because the answer has a bounded
/// queue of its own.
#[derive(Clone, Debug, Default)]
pub struct Endless(Arc<AtomicBool>);

impl Endless {
    /// The answer has no time limit from now on.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A running connection.
struct Place {
    connection: AbortHandle,
    /// Whether the head of its request is complete.
    asked: Arc<AtomicBool>,
}

/// Serves a listener until `shutdown` is done. `greet` sees each new connection.
pub async fn serve<L: Listener>(
    mut listener: L,
    router: Router,
    limits: Limits,
    greet: impl Fn(&L::Io),
    shutdown: impl Future<Output = ()>,
) {
    let mut running = JoinSet::new();
    // In the order of their beginnings.
    let mut places: Vec<Place> = Vec::new();
    let (stop, stopped) = watch::channel(());
    tokio::pin!(shutdown);
    loop {
        places.retain(|place| !place.connection.is_finished());
        let silent = |places: &[Place]| {
            places
                .iter()
                .position(|place| !place.asked.load(Ordering::Acquire))
        };
        let full = places.len() >= limits.connections;
        tokio::select! {
            () = &mut shutdown => break,
            Some(_) = running.join_next() => {}
            (io, _) = listener.accept(), if !full || silent(&places).is_some() => {
                places.retain(|place| !place.connection.is_finished());
                if places.len() >= limits.connections {
                    // The connection that has waited longest without a request makes room: clients that never ask
                    // keep no other client out.
                    match silent(&places) {
                        Some(longest) => places.remove(longest).connection.abort(),
                        None => continue,
                    }
                }
                greet(&io);
                let asked = Arc::new(AtomicBool::new(false));
                let answered = answer(io, router.clone(), limits, Arc::clone(&asked), stopped.clone());
                places.push(Place { connection: running.spawn(answered), asked });
            }
        }
    }
    drop(listener);
    let _ = stop.send(());
    let _ = timeout(FINISH, async {
        while running.join_next().await.is_some() {}
    })
    .await;
}

/// Answers the request of one connection.
async fn answer<Io: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    io: Io,
    router: Router,
    limits: Limits,
    asked: Arc<AtomicBool>,
    mut stopped: watch::Receiver<()>,
) {
    let endless = Endless::default();
    let io = Watched {
        io,
        stall: limits.stall,
        endless: endless.clone(),
        stalled: None,
    };
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        asked.store(true, Ordering::Release);
        request.extensions_mut().insert(endless.clone());
        let answer = router.call(request);
        async move { answer.await as Result<Response<Body>, Infallible> }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(BUFFER)
        .max_headers(HEADERS)
        .keep_alive(false)
        .serve_connection(TokioIo::new(io), service);
    tokio::pin!(connection);
    let answered = async {
        tokio::select! {
            ended = connection.as_mut() => return ended,
            _ = stopped.changed() => {}
        }
        connection.as_mut().graceful_shutdown();
        connection.as_mut().await
    };
    let ended = match limits.life {
        Some(life) => match timeout(life, answered).await {
            Ok(ended) => ended,
            Err(_) => return tracing::debug!("a connection is closed: its time is over"),
        },
        None => answered.await,
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection is closed");
    }
}

/// A stream whose writes fail when the peer reads nothing for a while.
struct Watched<Io> {
    io: Io,
    stall: Duration,
    endless: Endless,
    /// Runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<Io> Watched<Io> {
    /// Judges the result of a write.
    fn judge<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() || self.endless.is_set() {
            self.stalled = None;
            return written;
        }
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(sleep(self.stall)));
        match stalled.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for Watched<Io> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, into)
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for Watched<Io> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(context, bytes);
        self.judge(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(context, pieces);
        self.judge(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(context);
        self.judge(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.io).poll_shutdown(context);
        self.judge(ended, context)
    }
}
