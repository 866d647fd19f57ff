//! The listeners of a daemon, for tests that ask them as clients do.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use smtt_daemon::metrics::Names;
use smtt_daemon::server::{self, ControlSocket};
use smtt_daemon::shared::Shared;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Runs `ask` against a server of the daemon, with the socket and the port of its listeners.
pub fn served(shared: &Arc<Shared>, ask: impl FnOnce(&Path, SocketAddr)) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("smtt.sock");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let (stop, stopped) = watch::channel(false);
    let (port, ended) = runtime.block_on(async {
        let socket = ControlSocket::bind(&path, "").expect("a socket");
        let web = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = web.local_addr().expect("an address");
        let until = || server::until_stopped(stopped.clone());
        let served = server::spawn(Arc::clone(shared), socket, web, Names::Hidden, until);
        (port, served.expect("a thread"))
    });
    ask(&path, port);
    stop.send(true).expect("still served");
    let ended = runtime.block_on(ended).expect("no crash");
    ended.expect("served");
}
