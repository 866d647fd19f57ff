//! The HTTP side: routes of the Unix socket and of the metrics port, and the socket itself.

mod answered;
mod connections;
mod deaths;
mod heavy;
mod lines;
mod report;
mod routes;
mod rows;
mod runs;
mod scrape;
mod socket;
mod summaries;
mod web;

use std::future::Future;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::metrics::Exporter;
use crate::shared::Shared;

pub use report::report;
pub use routes::{control_router, web_router};
pub use socket::{BindError, ControlSocket, group_id};
pub use web::{Web, WebError};

/// Threads that make answers, for each listener.
const THREADS: usize = 8;

/// What the answers of all listeners are made from.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The state, the verdicts and the ledger.
    pub shared: Arc<Shared>,
    /// Makes the metrics. Listeners share it, so that a counter has one past for all scrapers.
    pub exporter: Arc<Exporter>,
}

impl From<Arc<Shared>> for Sources {
    /// With an exporter that nothing else uses.
    fn from(shared: Arc<Shared>) -> Self {
        Self {
            exporter: Arc::new(Exporter::new(shared.info().metrics)),
            shared,
        }
    }
}

/// Logs the peer of a connection to the Unix socket, as the kernel reports it.
fn greet(stream: &UnixStream) {
    match stream.peer_cred() {
        Ok(peer) => tracing::debug!(
            uid = peer.uid(),
            gid = peer.gid(),
            pid = peer.pid(),
            "control connection"
        ),
        Err(error) => tracing::info!(%error, "control connection without credentials"),
    }
}

/// Serves the control socket until `shutdown` is done.
///
/// # Errors
/// When the socket cannot be used.
pub async fn serve_control(
    sources: impl Into<Sources>,
    socket: ControlSocket,
    shutdown: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let (listener, _remove_when_done) = socket.into_listener()?;
    let router = control_router(sources.into());
    connections::serve(
        listener,
        router,
        connections::CONTROL,
        None,
        greet,
        shutdown,
    )
    .await;
    Ok(())
}

/// Serves the metrics port until `shutdown` is done.
///
/// # Errors
/// When the listener cannot be used.
pub async fn serve_web(
    sources: impl Into<Sources>,
    listener: TcpListener,
    web: Web,
    shutdown: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let tls = web.guard.tls.clone();
    let router = web_router(sources.into(), web);
    connections::serve(listener, router, connections::WEB, tls, |_| {}, shutdown).await;
    Ok(())
}

/// Waits until `stopped` is true, or its sender is gone.
pub async fn until_stopped(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stop| *stop).await;
}

/// A runtime for one listener. Each has its own: handshakes of the metrics port, which any client can begin, do not hold
/// up the control socket.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(THREADS)
        .thread_name("smtt-answer")
        .build()
        .context("no runtime for the listeners")
}

/// Serves both on threads of their own, which answer whatever the event loop does. `shutdown` makes a future that is
/// done when the daemon ends. The receiver gets the result.
///
/// # Errors
/// When there is no thread or no runtime for it.
pub fn spawn<Until: Future<Output = ()> + Send + 'static>(
    sources: impl Into<Sources>,
    socket: ControlSocket,
    web: TcpListener,
    readers: impl Into<Web>,
    shutdown: impl Fn() -> Until,
) -> anyhow::Result<oneshot::Receiver<anyhow::Result<()>>> {
    let (of_control, of_web) = (runtime()?, runtime()?);
    // Registered with the other runtime until now.
    let web = web.into_std().context("the metrics port cannot be used")?;
    let readers = readers.into();
    let (control_until, web_until) = (shutdown(), shutdown());
    let (done, ended) = oneshot::channel();
    let (web_done, web_ended) = oneshot::channel();
    let sources = sources.into();
    let of_port = sources.clone();
    let serve_port = move || {
        let result = of_web.block_on(async {
            let web = TcpListener::from_std(web)?;
            serve_web(of_port, web, readers, web_until).await
        });
        let _ = web_done.send(result);
        of_web.shutdown_background();
    };
    std::thread::Builder::new()
        .name("smtt-web".into())
        .spawn(serve_port)
        .context("no thread for the metrics port")?;
    let serve = move || {
        let result = of_control.block_on(async {
            let mut listeners = JoinSet::new();
            listeners.spawn(async move {
                serve_control(sources, socket, control_until)
                    .await
                    .context("the control socket failed")
            });
            listeners.spawn(async move {
                let served = web_ended.await.context("the metrics port crashed")?;
                served.context("the metrics port failed")
            });
            while let Some(listener) = listeners.join_next().await {
                listener.context("a listener crashed")??;
            }
            Ok(())
        });
        let _ = done.send(result);
        // An answer that waits for a file of another process does not keep the daemon from ending.
        of_control.shutdown_background();
    };
    std::thread::Builder::new()
        .name("smtt-serve".into())
        .spawn(serve)
        .context("no thread for the listeners")?;
    Ok(ended)
}

#[cfg(test)]
mod tests;
