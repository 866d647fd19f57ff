//! Where a server listens, what protects it, and the limits of its connections.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use smtt_web::connections::Limits;
use smtt_web::guard::{add_headers, admit};
use smtt_web::{Files, Guard, GuardError};

use super::compress::{Compressors, compress};

/// Limits of connections. A browser has several, and each carries many requests.
pub(super) const LIMITS: Limits = Limits {
    connections: 256,
    head: Duration::from_secs(10),
    stall: Duration::from_secs(30),
    // A client that reads slowly holds its answer no longer.
    life: Some(Duration::from_secs(600)),
    rate: None,
    kernel_bytes: 512 << 10,
    keep_alive: true,
};

/// Why a server does not listen as its command line requires. One line each.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// A file of the protection is not usable.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// Applications without authentication.
    #[error(
        "--listen {0} would show all applications to the network without authentication: set basic_auth_users or client certificates in --web.config.file, or --token-file, or --behind-proxy where a proxy before this server authenticates"
    )]
    Open(SocketAddr),
    /// Answers that would cross a network in clear text.
    #[error(
        "--listen {0} would send credentials and answers in clear text over the network: set tls_server_config in --web.config.file, or --behind-proxy where a proxy before this server has TLS"
    )]
    Clear(SocketAddr),
}

/// An address, and what protects it.
#[derive(Clone, Debug)]
pub struct Listen {
    /// Address and port to bind.
    pub address: SocketAddr,
    /// Users, tokens, TLS and headers.
    pub(super) guard: Guard,
    /// Limits of its connections.
    pub(super) limits: Limits,
}

impl Listen {
    /// Reads the files that protect an address.
    ///
    /// # Errors
    /// When a file is not usable, or an address beyond loopback has no authentication or no TLS, neither here nor in a
    /// proxy.
    pub fn load(
        address: SocketAddr,
        files: Files<'_>,
        behind_proxy: bool,
    ) -> Result<Self, ListenError> {
        let guard = Guard::load(files)?;
        if !address.ip().is_loopback() && !behind_proxy {
            if !guard.authenticates() {
                return Err(ListenError::Open(address));
            }
            if guard.tls.is_none() {
                return Err(ListenError::Clear(address));
            }
        }
        Ok(Self {
            address,
            guard,
            limits: LIMITS,
        })
    }

    /// A port of the loopback interface without protection.
    #[must_use]
    pub fn local(port: u16) -> Self {
        Self {
            address: (Ipv4Addr::LOCALHOST, port).into(),
            guard: Guard::default(),
            limits: LIMITS,
        }
    }

    /// The address as a browser has it.
    pub(super) const fn scheme(&self) -> &'static str {
        match self.guard.tls {
            Some(_) => "https",
            None => "http",
        }
    }

    /// Routes whose every answer, also of a path that does not exist, needs credentials and is compressed.
    pub(super) fn protect(&self, router: Router) -> Router {
        let compressors = Compressors::default();
        router
            .layer(from_fn(move |request, next| {
                compress(compressors.clone(), request, next)
            }))
            .layer(from_fn_with_state(self.guard.clone(), admit))
            .layer(from_fn_with_state(self.guard.clone(), add_headers))
    }
}
