//! Who may read the metrics port, and what it serves.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use smtt_config::web::{self, WebConfig};

use super::tls::{Tls, TlsError};
use super::tokens::Tokens;
use super::users::{Users, UsersError, secret_text};
use crate::metrics::{Names, Reader};

/// Why the metrics port cannot be served as configured. One line each.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    /// A file of credentials is not used.
    #[error(transparent)]
    Credentials(#[from] UsersError),
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
    /// The web configuration is not usable.
    #[error(transparent)]
    Config(#[from] smtt_config::ConfigError),
    /// A certificate or key is not usable.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Headers out of a checked configuration.
fn headers(all: &BTreeMap<String, String>) -> HeaderMap {
    let parsed = |(name, value): (&String, &String)| {
        let name = HeaderName::try_from(name.as_str()).ok()?;
        Some((name, HeaderValue::try_from(value.as_str()).ok()?))
    };
    all.iter().filter_map(parsed).collect()
}

/// Who may read the metrics port, and what it shows.
#[derive(Clone, Debug)]
pub struct Web {
    /// Whether the metrics show names.
    pub names: Names,
    /// Users that may read it.
    pub users: Option<Arc<Users>>,
    /// Tokens whose bearers may read it. Without users and tokens every local user may.
    pub tokens: Option<Arc<Tokens>>,
    /// Whether it serves the listings of the control socket too. It does not without users and tokens.
    pub api: bool,
    /// TLS; `None` without.
    pub tls: Option<Arc<Tls>>,
    /// Headers of each answer.
    pub headers: HeaderMap,
    /// Who reads it.
    pub reader: Reader,
}

impl Web {
    /// Reads the files that the configuration names.
    ///
    /// # Errors
    /// When a file is not usable, or listings would be served without protection.
    pub fn load(config: &smtt_config::Web) -> Result<Self, WebError> {
        let more = match &config.config_file {
            Some(path) => web::load(path)?,
            None => WebConfig::default(),
        };
        if let Some(path) = config
            .config_file
            .as_deref()
            .filter(|_| !more.users.is_empty())
        {
            // It has hashes of passwords.
            secret_text(path)?;
        }
        let users = Users::load(
            config.users_file.as_deref(),
            config
                .config_file
                .as_deref()
                .map(|path| (path, &more.users)),
        )?;
        let tokens = config.token_file.as_deref().map(Tokens::load).transpose()?;
        let web = Self {
            names: if config.names_shown {
                Names::Shown
            } else {
                Names::Hidden
            },
            users: users.map(Arc::new),
            tokens: tokens.map(Arc::new),
            api: config.api,
            tls: more.tls.map(Tls::load).transpose()?.map(Arc::new),
            headers: headers(&more.headers),
            reader: Reader::Scraper,
        };
        if web.api && web.is_open() {
            return Err(WebError::OpenApi);
        }
        if web.api && web.tls.is_none() && !config.listen_address.ip().is_loopback() {
            return Err(WebError::ClearApi(config.listen_address));
        }
        Ok(web)
    }

    /// Whether every local user may read it.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.users.is_none() && self.tokens.is_none()
    }

    /// How a client that is refused can authenticate.
    pub(super) const fn challenge(&self) -> &'static str {
        match self.users {
            Some(_) => "Basic realm=\"smtt\"",
            None => "Bearer realm=\"smtt\"",
        }
    }

    /// What a client that is refused reads.
    pub(super) const fn refusal(&self) -> &'static str {
        match self.users {
            Some(_) => "unknown user or password\n",
            None => "unknown token\n",
        }
    }
}

impl From<Names> for Web {
    fn from(names: Names) -> Self {
        Self {
            names,
            users: None,
            tokens: None,
            api: false,
            tls: None,
            headers: HeaderMap::new(),
            reader: Reader::Scraper,
        }
    }
}
