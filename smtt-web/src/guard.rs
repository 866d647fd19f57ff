//! Authorises requests to a listener by users and tokens, and adds the configured headers to its responses.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use crate::config::{self, ConfigError, WebConfig};
use crate::tls::{Tls, TlsError};
use crate::tokens::Tokens;
use crate::users::{Access, Users, UsersError, secret_text};

/// Why a listener cannot be protected as configured. Each message is one line.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// The file of users or tokens is refused.
    #[error(transparent)]
    Credentials(#[from] UsersError),
    /// The web configuration is not usable.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A certificate or key is not usable.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Paths of the files that configure the protection of a listener. Each is optional.
#[derive(Clone, Copy, Debug, Default)]
pub struct Files<'a> {
    /// A web configuration in the form of Prometheus exporters.
    pub config: Option<&'a Path>,
    /// Users and bcrypt hashes of their passwords, as `htpasswd -B` writes them.
    pub users: Option<&'a Path>,
    /// Bearer tokens, one a line.
    pub tokens: Option<&'a Path>,
}

/// The protection of a listener, as it was loaded from its files.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    /// Users that may read its answers; `None` without.
    pub users: Option<Arc<Users>>,
    /// Tokens whose bearers may read it. Without users and tokens every client may that can connect.
    pub tokens: Option<Arc<Tokens>>,
    /// TLS; `None` for plain HTTP.
    pub tls: Option<Arc<Tls>>,
    /// Headers that are added to each response.
    pub headers: HeaderMap,
}

/// Parses the headers of a configuration that was checked before.
fn headers(all: &BTreeMap<String, String>) -> HeaderMap {
    let parsed = |(name, value): (&String, &String)| {
        let name = HeaderName::try_from(name.as_str()).ok()?;
        Some((name, HeaderValue::try_from(value.as_str()).ok()?))
    };
    all.iter().filter_map(parsed).collect()
}

impl Guard {
    /// Loads the protection from its files.
    ///
    /// # Errors
    /// When a file is not usable.
    pub fn load(files: Files<'_>) -> Result<Self, GuardError> {
        let more = match files.config {
            Some(path) => config::load(path)?,
            None => WebConfig::default(),
        };
        if let Some(path) = files.config {
            if more.is_secret() {
                secret_text(path)?;
            }
            if !more.without_effect.is_empty() {
                tracing::warn!(
                    "these keys of {} have no effect: {}",
                    path.display(),
                    more.without_effect.join(", ")
                );
            }
        }
        let users = Users::load(files.users, files.config.map(|path| (path, &more.users)))?;
        let tokens = files.tokens.map(Tokens::load).transpose()?;
        Ok(Self {
            users: users.map(Arc::new),
            tokens: tokens.map(Arc::new),
            tls: more.tls.map(Tls::load).transpose()?.map(Arc::new),
            headers: headers(&more.headers),
        })
    }

    /// Whether requests need neither a password nor a token.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.users.is_none() && self.tokens.is_none()
    }

    /// Whether each client proves who it is: by a password, a token, or a certificate that TLS demands.
    #[must_use]
    pub fn authenticates(&self) -> bool {
        !self.is_open()
            || self
                .tls
                .as_ref()
                .is_some_and(|tls| tls.demands_certificates())
    }

    /// Value of `WWW-Authenticate` for a client that is refused.
    const fn challenge(&self) -> &'static str {
        match self.users {
            Some(_) => "Basic realm=\"smtt\"",
            None => "Bearer realm=\"smtt\"",
        }
    }

    /// Text of the response to a client that is refused.
    const fn refusal(&self) -> &'static str {
        match self.users {
            Some(_) => "unknown user or password\n",
            None => "unknown token\n",
        }
    }

    /// The response that refuses a request; `None` where its credentials are right.
    async fn denied(&self, headers: &HeaderMap) -> Option<Response> {
        let is_bearer = |tokens: &Arc<Tokens>| tokens.admit(headers);
        if self.is_open() || self.tokens.as_ref().is_some_and(is_bearer) {
            return None;
        }
        let access = match &self.users {
            Some(users) => users.access(headers).await,
            None => Access::Denied,
        };
        match access {
            Access::Granted => None,
            Access::Denied => {
                let ask = [(header::WWW_AUTHENTICATE, self.challenge())];
                Some((StatusCode::UNAUTHORIZED, ask, self.refusal()).into_response())
            }
            Access::Busy => {
                let retry = [(header::RETRY_AFTER, "5")];
                let text = "too many passwords are being verified\n";
                Some((StatusCode::SERVICE_UNAVAILABLE, retry, text).into_response())
            }
        }
    }
}

/// Lets requests with the right credentials pass: for `axum::middleware::from_fn_with_state`.
pub async fn admit(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    match guard.denied(request.headers()).await {
        Some(denied) => denied,
        None => next.run(request).await,
    }
}

/// Adds the headers of the web configuration to an answer: for `axum::middleware::from_fn_with_state`.
pub async fn add_headers(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let mut answer = next.run(request).await;
    let headers = guard.headers.iter();
    answer
        .headers_mut()
        .extend(headers.map(|(name, value)| (name.clone(), value.clone())));
    answer
}
