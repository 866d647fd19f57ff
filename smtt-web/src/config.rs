//! The web configuration of Prometheus exporters (`--web.config.file`): TLS, headers and users of a listener.
//!
//! All keys of that format are read. A key without effect on this listener is named in a warning, and an unknown one is an
//! error, so that no security setting is silently without effect.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;
use smtt_model::yaml;

use crate::suites::{self, Suites};

/// Bytes of the file at most.
const FILE_MAX: u64 = 1 << 20;
/// Headers that the file may set, as in other exporters.
const HEADERS: [&str; 6] = [
    "Content-Security-Policy",
    "Strict-Transport-Security",
    "X-Content-Type-Options",
    "X-Frame-Options",
    "X-XSS-Protection",
    "Referrer-Policy",
];

/// Why a web configuration is refused. Each message is one line.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("configuration {} cannot be read: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        error: std::io::Error,
    },
    /// The file has an unknown key or an invalid value.
    #[error("configuration {}, line {line}: {message}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong in that line.
        message: String,
    },
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum TlsVersion {
    /// TLS 1.0, which is not served.
    #[serde(rename = "TLS10")]
    Tls10,
    /// TLS 1.1, which is not served.
    #[serde(rename = "TLS11")]
    Tls11,
    /// TLS 1.2.
    #[serde(rename = "TLS12")]
    Tls12,
    /// TLS 1.3.
    #[serde(rename = "TLS13")]
    Tls13,
}

/// Whether the server asks clients for certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum ClientAuth {
    /// The server asks for none.
    #[default]
    NoClientCert,
    /// A certificate is optional, and is not verified.
    RequestClientCert,
    /// Each client must send a certificate, which is not verified.
    #[serde(alias = "RequireClientCert")]
    RequireAnyClientCert,
    /// A certificate is optional; one that a client sends is verified.
    VerifyClientCertIfGiven,
    /// Each client must send a certificate, which is verified.
    RequireAndVerifyClientCert,
}

impl ClientAuth {
    /// Whether certificates are verified, which needs those of the authorities.
    const fn verifies(self) -> bool {
        matches!(
            self,
            Self::VerifyClientCertIfGiven | Self::RequireAndVerifyClientCert
        )
    }

    /// Whether each client must send a certificate.
    pub(crate) const fn demands(self) -> bool {
        matches!(
            self,
            Self::RequireAnyClientCert | Self::RequireAndVerifyClientCert
        )
    }
}

/// Certificates or a key, PEM.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// In a file.
    File(PathBuf),
    /// In the web configuration itself.
    Inline {
        /// The web configuration.
        file: PathBuf,
        /// The text.
        text: String,
    },
}

impl Pem {
    /// The file that has the text.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::File(path) | Self::Inline { file: path, .. } => path,
        }
    }
}

/// Without the text, which may be a key.
impl fmt::Debug for Pem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.fmt(out),
            Self::Inline { file, .. } => write!(out, "inline in {}", file.display()),
        }
    }
}

/// TLS of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// Certificate with its chain.
    pub cert: Pem,
    /// Private key.
    pub key: Pem,
    /// Certificates of the authorities that sign clients' certificates.
    pub client_ca: Option<Pem>,
    /// Whether the server asks clients for certificates.
    pub client_auth: ClientAuth,
    /// Names of which a client's certificate must have one (subject alternative names); `None` for any.
    pub client_sans: Option<Vec<String>>,
    /// Lowest and highest version that is accepted.
    pub versions: (TlsVersion, TlsVersion),
    /// Cipher suites and groups of the key exchange, and whether the server's order of them counts.
    pub suites: Suites,
}

/// A web configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebConfig {
    /// Certificates and versions; `None` for plain HTTP.
    pub tls: Option<TlsSettings>,
    /// Headers that are added to each response.
    pub headers: BTreeMap<String, String>,
    /// Users and the bcrypt hashes of their passwords.
    pub users: BTreeMap<String, String>,
    /// Keys and values of the file that have no effect on this listener.
    pub without_effect: Vec<String>,
}

impl WebConfig {
    /// Whether the file itself has a key or hashes of passwords.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        let has_key = |tls: &TlsSettings| matches!(tls.key, Pem::Inline { .. });
        !self.users.is_empty() || self.tls.as_ref().is_some_and(has_key)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    tls_server_config: Option<Tls>,
    http_server_config: Option<Http>,
    rate_limit: Option<RateLimit>,
    basic_auth_users: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tls {
    cert: Option<String>,
    key: Option<String>,
    client_ca: Option<String>,
    cert_file: Option<String>,
    key_file: Option<String>,
    client_ca_file: Option<String>,
    client_auth_type: Option<ClientAuth>,
    client_allowed_sans: Option<Vec<String>>,
    min_version: Option<TlsVersion>,
    max_version: Option<TlsVersion>,
    cipher_suites: Option<Vec<String>>,
    prefer_server_cipher_suites: Option<bool>,
    curve_preferences: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Http {
    /// Whether HTTP/2 is allowed; this listener has HTTP/1.1 either way.
    http2: Option<bool>,
    headers: Option<BTreeMap<String, String>>,
}

/// This listener has limits of its own.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RateLimit {
    #[serde(rename = "interval")]
    _interval: Option<IgnoredAny>,
    #[serde(rename = "burst")]
    _burst: Option<IgnoredAny>,
}

/// What is wrong in the text: the word at the begin of its line, and the message.
struct Wrong(&'static str, String);

/// A text or a file: the file, where both are set, as in other exporters.
fn pem(
    path: &Path,
    (file_key, file): (&'static str, Option<String>),
    (text_key, text): (&'static str, Option<String>),
    without_effect: &mut Vec<String>,
) -> Option<Pem> {
    let given = |text: &String| !text.trim().is_empty();
    let (file, text) = (file.filter(given), text.filter(given));
    match (file, text) {
        (Some(file), text) => {
            if text.is_some() {
                without_effect.push(format!("{text_key} ({file_key} is set)"));
            }
            Some(Pem::File(
                path.parent().unwrap_or(Path::new("/")).join(file),
            ))
        }
        (None, Some(text)) => Some(Pem::Inline {
            file: path.to_owned(),
            text,
        }),
        (None, None) => None,
    }
}

/// The settings of a section; `None` where it is empty.
fn tls_settings(
    tls: Tls,
    path: &Path,
    without_effect: &mut Vec<String>,
) -> Result<Option<TlsSettings>, Wrong> {
    let cert = pem(
        path,
        ("cert_file", tls.cert_file),
        ("cert", tls.cert),
        without_effect,
    );
    let key = pem(
        path,
        ("key_file", tls.key_file),
        ("key", tls.key),
        without_effect,
    );
    let client_ca = pem(
        path,
        ("client_ca_file", tls.client_ca_file),
        ("client_ca", tls.client_ca),
        without_effect,
    );
    let is_empty = cert.is_none()
        && key.is_none()
        && client_ca.is_none()
        && tls.client_auth_type.is_none()
        && tls.client_allowed_sans.is_none()
        && tls.min_version.is_none()
        && tls.max_version.is_none()
        && tls.cipher_suites.is_none()
        && tls.curve_preferences.is_none();
    if is_empty {
        return Ok(None);
    }
    let missing = |name: &str| {
        Wrong(
            "tls_server_config",
            format!("{name} or {name}_file is missing"),
        )
    };
    let (cert, key) = (
        cert.ok_or_else(|| missing("cert"))?,
        key.ok_or_else(|| missing("key"))?,
    );
    let client_auth = tls.client_auth_type.unwrap_or_default();
    match (&client_ca, client_auth) {
        (Some(_), ClientAuth::NoClientCert) => {
            let message = "client_ca and client_ca_file need a client_auth_type".to_owned();
            return Err(Wrong("client_ca", message));
        }
        (Some(_), auth) if !auth.verifies() => {
            without_effect.push(format!("client_ca ({auth:?} verifies nothing)"));
        }
        (None, auth) if auth.verifies() => {
            let message = format!("{auth:?} needs client_ca or client_ca_file");
            return Err(Wrong("client_auth_type", message));
        }
        _ => {}
    }
    if let Some(sans) = &tls.client_allowed_sans {
        let message = match (sans.is_empty(), client_auth.demands()) {
            (true, _) => Some("client_allowed_sans is empty: no client could connect"),
            (_, false) => Some(
                "client_allowed_sans needs the client_auth_type RequireAndVerifyClientCert or RequireAnyClientCert",
            ),
            _ => None,
        };
        if let Some(message) = message {
            return Err(Wrong("client_allowed_sans", message.to_owned()));
        }
    }
    let lowest = tls.min_version.unwrap_or(TlsVersion::Tls12);
    let highest = tls.max_version.unwrap_or(TlsVersion::Tls13);
    if lowest > highest {
        let message = "min_version is above max_version".to_owned();
        return Err(Wrong("min_version", message));
    }
    if highest < TlsVersion::Tls12 {
        let message =
            "TLS 1.0 and 1.1 are not served: max_version must be TLS12 or TLS13".to_owned();
        return Err(Wrong("max_version", message));
    }
    if lowest < TlsVersion::Tls12 {
        without_effect.push("min_version (the lowest version that is served is TLS12)".to_owned());
    }
    let suites = suites::chosen(
        &tls.cipher_suites.unwrap_or_default(),
        &tls.curve_preferences.unwrap_or_default(),
        tls.prefer_server_cipher_suites,
        highest,
        without_effect,
    );
    Ok(Some(TlsSettings {
        cert,
        key,
        client_ca: client_ca.filter(|_| client_auth.verifies()),
        client_auth,
        client_sans: tls.client_allowed_sans,
        versions: (lowest.max(TlsVersion::Tls12), highest),
        suites: suites.map_err(|(key, message)| Wrong(key, message))?,
    }))
}

/// Reads a web configuration. Its file names are relative to its folder.
///
/// # Errors
/// When the file cannot be read, or has an unknown key or an invalid value.
pub fn load(path: &Path) -> Result<WebConfig, ConfigError> {
    let unreadable = |error| ConfigError::Unreadable {
        path: path.to_owned(),
        error,
    };
    let is_large = std::fs::metadata(path).map_err(unreadable)?.len() > FILE_MAX;
    if is_large {
        return Err(unreadable(std::io::ErrorKind::FileTooLarge.into()));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    parse(&text, path)
}

/// Checks the text of a web configuration; `path` is for file names and messages.
///
/// # Errors
/// When the text has an unknown key or an invalid value.
pub fn parse(text: &str, path: &Path) -> Result<WebConfig, ConfigError> {
    let wrong = |line: usize, message: String| ConfigError::Wrong {
        path: path.to_owned(),
        line,
        message,
    };
    // A file without a document sets nothing.
    let is_blank = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    if text.lines().all(is_blank) {
        return Ok(WebConfig::default());
    }
    let document: Document =
        yaml::from_str(text).map_err(|error| wrong(error.line, error.message))?;
    let place = |word: &str| {
        let has = |line: &str| {
            line.trim_start()
                .trim_start_matches(['"', '\''])
                .starts_with(word)
        };
        text.lines().position(has).map_or(1, |index| index + 1)
    };
    let mut without_effect = Vec::new();
    let tls = match document.tls_server_config {
        Some(tls) => tls_settings(tls, path, &mut without_effect)
            .map_err(|Wrong(word, message)| wrong(place(word), message))?,
        None => None,
    };
    let http = document.http_server_config;
    if http.as_ref().and_then(|http| http.http2) == Some(true) {
        without_effect.push("http2 (this listener has HTTP/1.1)".to_owned());
    }
    if document.rate_limit.is_some() {
        without_effect.push("rate_limit (this listener has limits of its own)".to_owned());
    }
    let mut headers = http.and_then(|http| http.headers).unwrap_or_default();
    // As in other exporters.
    headers.retain(|_, value| !value.trim().is_empty());
    for (name, value) in &headers {
        if !HEADERS.iter().any(|known| known.eq_ignore_ascii_case(name)) {
            let message = format!("header {name:?} cannot be set, only {}", HEADERS.join(", "));
            return Err(wrong(place(name), message));
        }
        if !value
            .bytes()
            .all(|byte| byte == b' ' || byte.is_ascii_graphic())
        {
            let message = format!("the value of {name:?} is no header's");
            return Err(wrong(place(name), message));
        }
    }
    Ok(WebConfig {
        tls,
        headers,
        users: document.basic_auth_users.unwrap_or_default(),
        without_effect,
    })
}

#[cfg(test)]
mod tests;
