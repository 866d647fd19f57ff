//! Who may read the metrics port, and what it serves.

use smtt_web::{Files, Guard, GuardError};

use crate::metrics::{Names, Reader};

/// Why the metrics port cannot be served as configured. One line each.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    /// A file of its protection is not usable.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// Listings without authentication.
    #[error(
        "[web] api = true shows the names of all users' applications: set users_file, token_file or basic_auth_users too"
    )]
    OpenApi,
    /// Listings that would cross a network in clear text.
    #[error(
        "[web] api = true on {0} would send names and credentials in clear text over the network: set tls_server_config in config_file"
    )]
    ClearApi(std::net::SocketAddr),
    /// Names that whoever reaches the machine could read.
    #[error(
        "[web] names = \"shown\" on {0} shows the names of all users' applications to the network: set users_file, token_file or basic_auth_users too, or names = \"hidden\""
    )]
    OpenNames(std::net::SocketAddr),
}

/// Who may read the metrics port, and what it shows.
#[derive(Clone, Debug)]
pub struct Web {
    /// Whether the metrics show names.
    pub names: Names,
    /// Users, tokens, TLS and headers. Without users and tokens every local user may read it.
    pub guard: Guard,
    /// Whether it serves the listings of the control socket too. It does not without users and tokens.
    pub api: bool,
    /// Who reads it.
    pub reader: Reader,
}

impl Web {
    /// Reads the files that the configuration names.
    ///
    /// # Errors
    /// When a file is not usable, or listings or names would be served without protection.
    pub fn load(config: &smtt_config::Web) -> Result<Self, WebError> {
        let guard = Guard::load(Files {
            config: config.config_file.as_deref(),
            users: config.users_file.as_deref(),
            tokens: config.token_file.as_deref(),
        })?;
        if config.api && guard.is_open() {
            return Err(WebError::OpenApi);
        }
        if config.api && guard.tls.is_none() && !config.listen_address.ip().is_loopback() {
            return Err(WebError::ClearApi(config.listen_address));
        }
        if config.names_shown && guard.is_open() {
            if !config.listen_address.ip().is_loopback() {
                return Err(WebError::OpenNames(config.listen_address));
            }
            tracing::warn!(
                "[web] names = \"shown\" without users and tokens: every local user reads the names of all users' applications"
            );
        }
        Ok(Self {
            names: if config.names_shown {
                Names::Shown
            } else {
                Names::Hidden
            },
            guard,
            api: config.api,
            reader: Reader::Scraper,
        })
    }
}

impl From<Names> for Web {
    fn from(names: Names) -> Self {
        Self {
            names,
            guard: Guard::default(),
            api: false,
            reader: Reader::Scraper,
        }
    }
}
