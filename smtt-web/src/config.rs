//! The web configuration of Prometheus exporters (`--web.config.file`): TLS, headers and users of a listener.
//!
//! A key that this listener does not implement is an error, so that no security setting is silently without effect.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

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
    /// A certificate is optional; one that a client sends is verified.
    VerifyClientCertIfGiven,
    /// Each client must send a certificate, which is verified.
    RequireAndVerifyClientCert,
}

/// TLS of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// Certificate with its chain, PEM.
    pub cert_file: PathBuf,
    /// Private key, PEM.
    pub key_file: PathBuf,
    /// Certificates of the authorities that sign clients' certificates, PEM.
    pub client_ca_file: Option<PathBuf>,
    /// Whether the server asks clients for certificates.
    pub client_auth: ClientAuth,
    /// Lowest and highest version that is accepted.
    pub versions: (TlsVersion, TlsVersion),
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
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    tls_server_config: Option<Tls>,
    http_server_config: Option<Http>,
    basic_auth_users: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tls {
    cert_file: String,
    key_file: String,
    client_ca_file: Option<String>,
    #[serde(default)]
    client_auth_type: ClientAuth,
    min_version: Option<TlsVersion>,
    max_version: Option<TlsVersion>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Http {
    /// Whether HTTP/2 is allowed; this listener has HTTP/1.1 either way.
    #[serde(rename = "http2")]
    _http2: Option<bool>,
    headers: Option<BTreeMap<String, String>>,
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
    let document: Document = serde_saphyr::from_str(text).map_err(|error| {
        let line = error.location().map_or(1, |place| place.line());
        let message = error.without_snippet().to_string();
        wrong(
            usize::try_from(line).unwrap_or(1),
            message.lines().next().unwrap_or_default().to_owned(),
        )
    })?;
    let place = |word: &str| {
        let has = |line: &str| {
            line.trim_start()
                .trim_start_matches(['"', '\''])
                .starts_with(word)
        };
        text.lines().position(has).map_or(1, |index| index + 1)
    };
    let beside = |file: &str| path.parent().unwrap_or(Path::new("/")).join(file);
    let tls = document.tls_server_config.map(|tls| TlsSettings {
        cert_file: beside(&tls.cert_file),
        key_file: beside(&tls.key_file),
        client_ca_file: tls.client_ca_file.as_deref().map(beside),
        client_auth: tls.client_auth_type,
        versions: (
            tls.min_version.unwrap_or(TlsVersion::Tls12),
            tls.max_version.unwrap_or(TlsVersion::Tls13),
        ),
    });
    if let Some(tls) = &tls {
        if tls.versions.0 > tls.versions.1 {
            let message = "min_version is above max_version".to_owned();
            return Err(wrong(place("min_version"), message));
        }
        let has_authorities = tls.client_ca_file.is_some();
        if has_authorities != (tls.client_auth != ClientAuth::NoClientCert) {
            let message = "client_ca_file and client_auth_type need one another".to_owned();
            return Err(wrong(place("client_"), message));
        }
    }
    let headers = document
        .http_server_config
        .and_then(|http| http.headers)
        .unwrap_or_default();
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
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<WebConfig, String> {
        parse(text, Path::new("/etc/web/web.yml")).map_err(|error| error.to_string())
    }

    #[test]
    fn the_file_of_other_exporters_is_read() {
        let text = "tls_server_config:\n  cert_file: server.crt\n  key_file: /keys/server.key\n  client_ca_file: ca.crt\n  \
                    client_auth_type: \"RequireAndVerifyClientCert\"\n  min_version: TLS13\n\n\
                    http_server_config:\n  http2: true\n  headers:\n    X-Frame-Options: deny\n    Strict-Transport-Security: max-age=31536000\n\n\
                    # htpasswd -nBC 10 \"\" | tr -d ':\\n'\nbasic_auth_users:\n  alice: $2y$10$mDwo.lAisC94iLAyP81MCesa29IzH37oigHC/42V2pdJlUprsJPze\n  'bob b': \"$2y$10$hLqFl9jSjoAAy95Z/zw8Ye8wkdMBM8c5Bn1ptYqP/AXyV0.oy0S8m\"\n";
        let config = read(text).expect("good");
        let tls = config.tls.expect("TLS");
        assert_eq!(tls.cert_file, Path::new("/etc/web/server.crt"));
        assert_eq!(tls.key_file, Path::new("/keys/server.key"));
        assert_eq!(
            tls.client_ca_file.as_deref(),
            Some(Path::new("/etc/web/ca.crt"))
        );
        assert_eq!(tls.client_auth, ClientAuth::RequireAndVerifyClientCert);
        assert_eq!(tls.versions, (TlsVersion::Tls13, TlsVersion::Tls13));
        assert_eq!(config.headers["X-Frame-Options"], "deny");
        assert_eq!(config.users.keys().collect::<Vec<_>>(), ["alice", "bob b"]);
        assert!(config.users["alice"].starts_with("$2y$10$mDwo"));
        for nothing in ["", "# nothing\n\n", "{}\n"] {
            assert_eq!(read(nothing).expect("good"), WebConfig::default());
        }
    }

    #[test]
    fn an_error_is_one_line_that_names_the_place() {
        let tls = "tls_server_config:\n  cert_file: a\n  key_file: b\n";
        for (text, line, part) in [
            (format!("{tls}  cipher_suites: []\n"), 4, "cipher_suites"),
            (
                format!("{tls}  client_alowed_sans: []\n"),
                4,
                "client_alowed_sans",
            ),
            (
                format!("{tls}tls_sever_config: {{}}\n"),
                4,
                "tls_sever_config",
            ),
            (format!("{tls}  min_version: TLS10\n"), 4, "TLS10"),
            (
                format!("{tls}  min_version: TLS13\n  max_version: TLS12\n"),
                4,
                "above",
            ),
            (
                format!("{tls}  client_auth_type: RequestClientCert\n"),
                4,
                "RequestClientCert",
            ),
            (
                format!("{tls}  client_auth_type: VerifyClientCertIfGiven\n"),
                4,
                "client_ca_file",
            ),
            (format!("{tls}  client_ca_file: x\n"), 4, "client_auth_type"),
            (
                "tls_server_config:\n  cert_file: a\n".to_owned(),
                2,
                "key_file",
            ),
            (
                "http_server_config:\n  headers:\n    Set-Cookie: x\n".to_owned(),
                3,
                "Set-Cookie",
            ),
            (
                "http_server_config:\n  headers:\n    X-Frame-Options: \"a\\nb\"\n".to_owned(),
                3,
                "X-Frame-Options",
            ),
            ("basic_auth_users:\n  a: x\n  a: y\n".to_owned(), 3, "a"),
            ("basic_auth_users: [\n".to_owned(), 1, "mapping"),
        ] {
            let error = read(&text).expect_err(&text);
            let begin = format!("configuration /etc/web/web.yml, line {line}: ");
            assert!(error.starts_with(&begin), "{text}: {error}");
            assert!(error.contains(part), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}
