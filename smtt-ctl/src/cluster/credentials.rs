//! What smtt-ctl shows to workers, and whose certificates it accepts.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::HeaderValue;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::Failure;
use crate::args::ClusterArgs;

/// Files of the authorities that the system trusts, by distribution.
const SYSTEM: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Bytes of a secret.
const SECRET_MAX: usize = 1024;
/// Bytes of a file with a secret.
const FILE_MAX: u64 = 1 << 20;

fn unreadable(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::Question(format!("{} cannot be used: {error}", path.display()))
}

/// Text of a file that other local users may neither read nor write.
fn secret_text(path: &Path) -> Result<String, Failure> {
    let text = || -> io::Result<Option<String>> {
        let file = File::open(path)?;
        if file.metadata()?.permissions().mode() & 0o006 != 0 {
            return Ok(None);
        }
        let mut text = String::new();
        file.take(FILE_MAX).read_to_string(&mut text)?;
        Ok(Some(text))
    };
    let text = text().map_err(|error| unreadable(path, error))?;
    text.ok_or_else(|| unreadable(path, "it is open to every local user: chmod o-rw"))
}

/// A token: the first line of a file that is neither blank nor a comment, as the daemon reads its tokens.
fn token(path: &Path) -> Result<String, Failure> {
    let text = secret_text(path)?;
    let mut lines = text.lines().map(str::trim);
    let token = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
    match token {
        Some(token) if token.len() <= SECRET_MAX => Ok(token.to_owned()),
        _ => Err(unreadable(path, "it has no token")),
    }
}

/// A password: the first line of a file.
fn password(path: &Path) -> Result<String, Failure> {
    let text = secret_text(path)?;
    match text.lines().next() {
        Some(line) if !line.is_empty() && line.len() <= SECRET_MAX => Ok(line.to_owned()),
        _ => Err(unreadable(path, "its first line is no secret")),
    }
}

/// The header with the credentials, if the arguments name some.
pub(super) fn authorization(args: &ClusterArgs) -> Result<Option<HeaderValue>, Failure> {
    let (path, value) = match (&args.token_file, &args.auth_user, &args.password_file) {
        (Some(path), ..) => (path, format!("Bearer {}", token(path)?)),
        (None, Some(name), Some(path)) => {
            let pair = STANDARD.encode(format!("{name}:{}", password(path)?));
            (path, format!("Basic {pair}"))
        }
        _ => return Ok(None),
    };
    let mut value = HeaderValue::try_from(value)
        .map_err(|_| unreadable(path, "its first line is no secret"))?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// Connections with TLS to workers whose certificates an authority has signed that `--cacert` names, or else the system.
pub(super) fn connector(args: &ClusterArgs) -> Result<TlsConnector, Failure> {
    let path = match &args.cacert {
        Some(path) => path.clone(),
        None => SYSTEM
            .iter()
            .map(PathBuf::from)
            .find(|path| path.exists())
            .ok_or_else(|| {
                Failure::Question(
                    "this system has no file of certificate authorities: give --cacert".to_owned(),
                )
            })?,
    };
    let roots = authorities(&path, args.cacert.is_some())?;
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| unreadable(&path, error))?
        .with_root_certificates(roots);
    let config = match (&args.cert, &args.key) {
        (Some(cert), Some(key)) => {
            let (chain, private) = identity(cert, key)?;
            config
                .with_client_auth_cert(chain, private)
                .map_err(|error| unreadable(cert, error))?
        }
        _ => config.with_no_client_auth(),
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Connections with TLS to a server whose certificate an authority of this file has signed.
pub(super) fn trusting(path: &Path) -> Result<TlsConnector, Failure> {
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| unreadable(path, error))?
        .with_root_certificates(authorities(path, true)?)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The authorities of a file. A system's file may hold some that this library does not know.
fn authorities(path: &Path, all_are_known: bool) -> Result<RootCertStore, Failure> {
    let text = fs::read(path).map_err(|error| unreadable(path, error))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|error| unreadable(path, error))?;
        let added = roots.add(certificate);
        if all_are_known {
            added.map_err(|error| unreadable(path, error))?;
        }
    }
    match roots.is_empty() {
        true => Err(unreadable(path, "it has no certificate (PEM)")),
        false => Ok(roots),
    }
}

/// The certificate that workers ask for, and its key.
fn identity(
    cert: &Path,
    key: &Path,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Failure> {
    let text = fs::read(cert).map_err(|error| unreadable(cert, error))?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let chain = chain.map_err(|error| unreadable(cert, error))?;
    if chain.is_empty() {
        return Err(unreadable(cert, "it has no certificate (PEM)"));
    }
    let private = PrivateKeyDer::from_pem_slice(secret_text(key)?.as_bytes())
        .map_err(|_| unreadable(key, "it has no private key (PEM)"))?;
    Ok((chain, private))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str, mode: u32) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), text).expect("written");
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(file.path(), mode).expect("set");
        file
    }

    #[test]
    fn a_token_is_the_first_line_that_is_no_comment() {
        let text = "# scraper\n\n  0123456789abcdef \nanother\n";
        let found = token(file(text, 0o600).path()).expect("a token");
        assert_eq!(found, "0123456789abcdef");
        let error = token(file("# none\n", 0o600).path()).expect_err("none");
        assert!(error.to_string().contains("it has no token"), "{error}");
    }

    #[test]
    fn secrets_that_every_local_user_may_read_or_write_are_not_used() {
        for (mode, may) in [(0o600, true), (0o640, true), (0o644, false), (0o602, false)] {
            let file = file("0123456789abcdef\n", mode);
            for found in [token(file.path()), password(file.path())] {
                assert_eq!(found.is_ok(), may, "{mode:o}");
            }
        }
    }
}
