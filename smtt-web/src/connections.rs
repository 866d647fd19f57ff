//! Serves the connections of a listener within limits: their number, the time for the head of a request and for its answer,
//! and the bytes of a head.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::response::Response;
use axum::serve::Listener;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Sleep, sleep, timeout};

use crate::holding::holding;
use crate::meter::Meter;
use crate::tls::Tls;

/// Bytes of a request's head, and of the buffer for writing, at most.
const BUFFER: usize = 16 << 10;
/// Headers of a request at most.
const HEADERS: usize = 64;
/// While a listener is full, it checks this often for a connection to close.
const CHECK: Duration = Duration::from_millis(20);
/// Time before [`Limits::rate`] is applied to an answer.
const SLOW: Duration = Duration::from_secs(2);
/// Time for open connections to finish when the server stops.
const FINISH: Duration = Duration::from_secs(2);

/// Limits of one listener.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time at most.
    pub connections: usize,
    /// Time for the head of a request.
    pub head: Duration,
    /// Time without progress after which an answer is aborted: the client reads nothing.
    pub stall: Duration,
    /// Time from the connection to the end of the last answer, of which the last half takes no new request; `None` where
    /// answers may be endless.
    pub life: Option<Duration>,
    /// Least bytes per second of an answer that is not finished after [`SLOW`]; `None` where clients may pause.
    pub rate: Option<u64>,
    /// Bytes of an answer that the kernel holds for one connection over TCP, at most about twice this number.
    pub kernel_bytes: usize,
    /// Whether a connection carries further requests after the first. Between two it makes room as one without a request.
    pub keep_alive: bool,
}

/// A stream of a listener.
pub trait Peer: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Prepares a new connection. The kernel buffers at most this many bytes of an answer.
    fn prepare(&self, _kernel_bytes: usize) {}

    /// Bytes of the answer in the kernel that the client has not acknowledged yet.
    fn unsent(&self) -> u64 {
        0
    }

    /// Says that the client has the whole answer: closing the stream loses nothing.
    fn finish(&self) {}
}

impl Peer for UnixStream {}

impl Peer for TcpStream {
    /// Bounds the bytes in the kernel, and lets a connection that is given up end with a reset, which drops them.
    fn prepare(&self, kernel_bytes: usize) {
        // A refusal is no error: then the kernel's defaults hold.
        let _ = setsockopt(self, sockopt::SndBuf, &kernel_bytes);
        set_reset(self, true);
    }

    fn unsent(&self) -> u64 {
        let mut bytes = 0_i32;
        // SAFETY: the descriptor is open, and the request writes one integer.
        let asked =
            unsafe { libc::ioctl(self.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        u64::try_from(bytes).map_or(0, |bytes| if asked == 0 { bytes } else { 0 })
    }

    fn finish(&self) {
        set_reset(self, false);
    }
}

/// Sets whether closing the stream drops what the kernel holds for its peer.
fn set_reset(stream: &TcpStream, reset: bool) {
    let linger = libc::linger {
        l_onoff: i32::from(reset),
        l_linger: 0,
    };
    let _ = setsockopt(stream, sockopt::Linger, &linger);
}

/// A flag in the extensions of a request. The handler sets it where the client may stop reading for any time, because the
/// answer has a bounded queue of its own.
#[derive(Clone, Debug, Default)]
pub struct Endless(Arc<AtomicBool>);

impl Endless {
    /// Removes the time limit of the answer.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A running connection.
struct Place {
    connection: AbortHandle,
    meter: Arc<Meter>,
}

/// The connection that is closed to make room for a new one: of those with the greatest rank the first.
fn to_evict(places: &[Place]) -> Option<usize> {
    let places = places.iter().enumerate();
    let ranked = places.filter_map(|(index, place)| Some((place.meter.eviction_rank()?, index)));
    ranked
        .max_by_key(|(rank, index)| (*rank, std::cmp::Reverse(*index)))
        .map(|(_, index)| index)
}

/// Serves a listener until `shutdown` is done. `greet` sees each new connection.
pub async fn serve<L: Listener<Io: Peer>>(
    mut listener: L,
    router: Router,
    limits: Limits,
    tls: Option<Arc<Tls>>,
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
        let full = places.len() >= limits.connections;
        tokio::select! {
            () = &mut shutdown => break,
            Some(_) = running.join_next() => {}
            () = sleep(CHECK), if full => {}
            (io, _) = listener.accept(), if !full || to_evict(&places).is_some() => {
                places.retain(|place| !place.connection.is_finished());
                if places.len() >= limits.connections {
                    // Clients that never ask, or do not read, keep no other client out.
                    if let Some(index) = to_evict(&places) {
                        places.remove(index).connection.abort();
                    }
                }
                greet(&io);
                io.prepare(limits.kernel_bytes);
                let meter = Arc::new(Meter::default());
                let io = watched(io, limits, &meter);
                let answered = answer(io, router.clone(), limits, tls.clone(), Arc::clone(&meter), stopped.clone());
                places.push(Place { connection: running.spawn(answered), meter });
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

/// A stream of any kind: HTTP and TLS are compiled once for all of them.
trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<Io: AsyncRead + AsyncWrite + Unpin + Send> Duplex for Io {}

type Stream = Box<dyn Duplex>;

/// A stream with the limits of its writes.
fn watched<Io: Peer>(io: Io, limits: Limits, meter: &Arc<Meter>) -> Stream {
    Box::new(Watched {
        io,
        limits,
        meter: Arc::clone(meter),
        stalled: None,
        check: None,
        unsent: None,
    })
}

/// Serves one accepted connection, with a TLS handshake where the listener has a certificate.
async fn answer(
    io: Stream,
    router: Router,
    limits: Limits,
    tls: Option<Arc<Tls>>,
    meter: Arc<Meter>,
    stopped: watch::Receiver<()>,
) {
    let answered = async {
        let Some(tls) = tls else {
            return carry(io, router, limits, meter, stopped).await;
        };
        // A handshake has its place among the connections and the time of a head. Until its end there is no request, so
        // it makes room as any other silent connection.
        let handshake = tls.acceptor().accept(io);
        match timeout(limits.head, handshake).await {
            Ok(Ok(stream)) => carry(Box::new(stream), router, limits, meter, stopped).await,
            Ok(Err(error)) => tracing::debug!(%error, "a connection is closed: no TLS"),
            Err(_) => tracing::debug!("a connection is closed: its handshake takes too long"),
        }
    };
    match limits.life {
        Some(life) => {
            if timeout(life, answered).await.is_err() {
                tracing::debug!("a connection is closed: its time is over");
            }
        }
        None => answered.await,
    }
}

/// Serves the requests of one stream, plain or decrypted.
async fn carry(
    io: Stream,
    router: Router,
    limits: Limits,
    meter: Arc<Meter>,
    mut stopped: watch::Receiver<()>,
) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        meter.ask();
        request.extensions_mut().insert(meter.endless.clone());
        let answer = router.call(request);
        let rests = limits.keep_alive.then(|| Rests(Arc::clone(&meter)));
        async move {
            let answer: Result<Response, Infallible> = answer.await;
            answer.map(|answer| match rests {
                Some(rests) => answer.map(|body| holding(body, rests)),
                None => answer,
            })
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(BUFFER)
        .max_headers(HEADERS)
        .keep_alive(limits.keep_alive)
        .serve_connection(TokioIo::new(io), service);
    tokio::pin!(connection);
    let answered = async {
        tokio::select! {
            ended = connection.as_mut() => return ended,
            _ = stopped.changed() => {}
            () = worn(limits) => {}
        }
        connection.as_mut().graceful_shutdown();
        connection.as_mut().await
    };
    if let Err(error) = answered.await {
        tracing::debug!(%error, "a connection is closed");
    }
}

/// Waits for half the time limit of a connection that carries several requests. After it the connection takes no new
/// request, and an answer that has begun has the other half.
async fn worn(limits: Limits) {
    match limits.life.filter(|_| limits.keep_alive) {
        Some(life) => sleep(life / 2).await,
        None => std::future::pending().await,
    }
}

/// Marks the connection as idle when it is dropped with the answer's body.
struct Rests(Arc<Meter>);

impl Drop for Rests {
    fn drop(&mut self) {
        self.0.rest();
    }
}

/// A stream whose writes fail when the peer reads nothing for a while, or less than the least rate.
struct Watched<Io> {
    io: Io,
    limits: Limits,
    meter: Arc<Meter>,
    /// Time limit of a write that waits for the client.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Time limit of the last bytes, which the kernel has and the client not yet.
    check: Option<Pin<Box<Sleep>>>,
    /// Bytes of a complete answer that the client did not have at the last check.
    unsent: Option<u64>,
}

impl<Io: Peer> Watched<Io> {
    fn count(&self, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(bytes)) = written {
            self.meter.wrote(*bytes);
        }
    }

    fn wait_for_check(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let check = self.check.get_or_insert_with(|| Box::pin(sleep(CHECK)));
        check.as_mut().poll(context)
    }

    /// Whether the client lacks bytes of a complete answer, and has sent nothing since. Until it has them the connection
    /// does not rest: otherwise its place would go to another one, or the time for its next request would end, while the
    /// client still reads.
    fn is_read_from_kernel(&mut self, context: &mut Context<'_>) -> bool {
        if !self.meter.rests() || self.meter.has_heard() {
            self.unsent = None;
            return false;
        }
        loop {
            let unsent = self.io.unsent();
            if unsent == 0 {
                if self.unsent.take().is_some() {
                    self.meter.rest();
                }
                self.check = None;
                return false;
            }
            if self.unsent.is_none_or(|before| unsent < before) {
                self.unsent = Some(unsent);
                self.stalled = None;
                self.meter.set_blocked(false);
            }
            if self.wait_for_check(context).is_pending() {
                return true;
            }
            self.check = None;
        }
    }

    /// Records whether a write waits for the client, and fails where the client is too slow.
    fn judge<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        self.meter.set_blocked(written.is_pending());
        if written.is_ready() || self.meter.endless.is_set() {
            self.stalled = None;
            return written;
        }
        let Limits { stall, rate, .. } = self.limits;
        let wait = rate.map_or(stall, |rate| self.meter.patience(rate, SLOW).min(stall));
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(wait)));
        match stalled.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<Io: Peer> AsyncRead for Watched<Io> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.io).poll_read(context, into);
        if read.is_pending() {
            self.meter.wait_for_bytes();
        } else if into.filled().len() > before {
            self.meter.hear();
        } else if matches!(read, Poll::Ready(Ok(()))) && self.unsent.is_some() {
            // The client has ended its side and still reads: the check of its bytes comes back here.
            return Poll::Pending;
        }
        read
    }
}

impl<Io: Peer> AsyncWrite for Watched<Io> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(context, bytes);
        self.count(&written);
        self.judge(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(context, pieces);
        self.count(&written);
        self.judge(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(context);
        if matches!(flushed, Poll::Ready(Ok(()))) && self.is_read_from_kernel(context) {
            return self.judge(Poll::Pending, context);
        }
        self.judge(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.io).poll_shutdown(context);
        if matches!(ended, Poll::Ready(Ok(()))) && self.io.unsent() > 0 {
            // The place is free when the answer is with the client: otherwise the kernel's memory had no bound.
            while self.wait_for_check(context).is_ready() {
                self.check = None;
            }
            return self.judge(Poll::Pending, context);
        }
        if ended.is_ready() {
            self.io.finish();
        }
        self.judge(ended, context)
    }
}

#[cfg(test)]
mod tests;
