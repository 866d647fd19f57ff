//! The HTTP side: routes of the Unix socket and of the metrics port, and the socket itself.

mod advice;
mod lines;
mod report;
mod routes;
mod rows;
mod socket;

use std::future::Future;
use std::sync::Arc;

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use tokio::net::{TcpListener, UnixListener};

use crate::shared::Shared;

pub use advice::advice;
pub use report::report;
pub use routes::{control_router, web_router};
pub use socket::{BindError, ControlSocket, group_id};

/// The peer of a connection to the Unix socket, as the kernel reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// User id.
    pub uid: Option<u32>,
    /// Group id.
    pub gid: Option<u32>,
    /// Process id, where the kernel reports it.
    pub pid: Option<i32>,
}

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        let peer = match stream.io().peer_cred() {
            Ok(credentials) => Self {
                uid: Some(credentials.uid()),
                gid: Some(credentials.gid()),
                pid: credentials.pid(),
            },
            Err(error) => {
                tracing::info!(%error, "control connection without credentials");
                Self::default()
            }
        };
        tracing::debug!(
            uid = peer.uid,
            gid = peer.gid,
            pid = peer.pid,
            "control connection"
        );
        peer
    }
}

/// Serves the control socket until `shutdown` is done.
///
/// # Errors
/// When the socket cannot be used.
pub async fn serve_control(
    shared: Arc<Shared>,
    socket: ControlSocket,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let (listener, _remove_when_done) = socket.into_listener()?;
    let service = control_router(shared).into_make_service_with_connect_info::<Peer>();
    axum::serve(listener, service)
        .with_graceful_shutdown(shutdown)
        .await
}

/// Serves the metrics port until `shutdown` is done.
///
/// # Errors
/// When the listener cannot be used.
pub async fn serve_web(
    shared: Arc<Shared>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    axum::serve(listener, web_router(shared))
        .with_graceful_shutdown(shutdown)
        .await
}

#[cfg(test)]
mod tests;
