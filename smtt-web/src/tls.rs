//! TLS of a listener. It loads certificate and key again when their files have changed, so that a renewed certificate needs
//! no restart.

use std::fmt;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::clients::Clients;
use crate::config::{ClientAuth, Pem, TlsSettings};

/// Least time between two checks of the files.
const CHECK: Duration = Duration::from_secs(5);
/// Bytes of a file at most.
const FILE_MAX: u64 = 1 << 20;

/// Why TLS cannot be served, in one line.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be used for TLS: {message}", path.display())]
pub struct TlsError {
    /// The file.
    path: PathBuf,
    /// What is wrong with it.
    message: String,
}

fn wrong(path: &Path, message: impl fmt::Display) -> TlsError {
    TlsError {
        path: path.to_owned(),
        message: message.to_string(),
    }
}

/// Identity of a file's content: inode, size and time of change.
type Stamp = Option<(u64, u64, i64, i64)>;

/// The configuration in use, and the files that it was loaded from.
struct LoadedFiles {
    config: Arc<ServerConfig>,
    stamps: Vec<Stamp>,
    checked: Instant,
}

/// TLS with a certificate.
pub struct Tls {
    settings: TlsSettings,
    held: Mutex<LoadedFiles>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Tls")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads certificate and key.
    ///
    /// # Errors
    /// When a file cannot be read, every local user may read the key, or the two do not fit.
    pub fn load(settings: TlsSettings) -> Result<Self, TlsError> {
        let held = LoadedFiles {
            stamps: stamps(&settings),
            config: Arc::new(config(&settings)?),
            checked: Instant::now(),
        };
        Ok(Self {
            settings,
            held: Mutex::new(held),
        })
    }

    /// Whether a client needs a certificate of one of the authorities.
    #[must_use]
    pub fn demands_certificates(&self) -> bool {
        self.settings.client_auth == ClientAuth::RequireAndVerifyClientCert
    }

    /// The acceptor for the next connection, of the newest files. Where these are not usable, the last usable configuration
    /// stays in use.
    pub fn acceptor(&self) -> TlsAcceptor {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.checked.elapsed() >= CHECK {
            held.checked = Instant::now();
            let stamps = stamps(&self.settings);
            if stamps != held.stamps {
                held.stamps = stamps;
                match config(&self.settings) {
                    Ok(config) => held.config = Arc::new(config),
                    Err(error) => tracing::warn!(%error, "the last certificate stays in use"),
                }
            }
        }
        TlsAcceptor::from(Arc::clone(&held.config))
    }
}

fn stamps(settings: &TlsSettings) -> Vec<Stamp> {
    let all = [Some(&settings.cert), Some(&settings.key)];
    all.into_iter()
        .chain([settings.client_ca.as_ref()])
        .flatten()
        .filter_map(|pem| match pem {
            Pem::File(path) => Some(path),
            // The web configuration is read once.
            Pem::Inline { .. } => None,
        })
        .map(|path| {
            let file = fs::metadata(path).ok()?;
            Some((file.ino(), file.size(), file.mtime(), file.mtime_nsec()))
        })
        .collect()
}

fn read(pem: &Pem) -> Result<Vec<u8>, TlsError> {
    let path = match pem {
        Pem::Inline { text, .. } => return Ok(text.clone().into_bytes()),
        Pem::File(path) => path,
    };
    let file = fs::metadata(path).map_err(|error| wrong(path, error))?;
    if file.len() > FILE_MAX {
        return Err(wrong(path, "it is too large"));
    }
    fs::read(path).map_err(|error| wrong(path, error))
}

fn certificates(pem: &Pem) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(pem)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|error| wrong(pem.path(), error))?;
    match found.is_empty() {
        true => Err(wrong(pem.path(), "it has no certificate (PEM)")),
        false => Ok(found),
    }
}

fn config(settings: &TlsSettings) -> Result<ServerConfig, TlsError> {
    let TlsSettings {
        cert,
        key,
        client_ca,
        client_auth,
        client_sans,
        versions,
        suites,
    } = settings;
    let chain = certificates(cert)?;
    let mode = fs::metadata(key.path()).map_err(|error| wrong(key.path(), error))?;
    if mode.permissions().mode() & 0o006 != 0 {
        return Err(wrong(
            key.path(),
            "it is open to every local user: chmod o-rw",
        ));
    }
    let private = PrivateKeyDer::from_pem_slice(&read(key)?)
        .map_err(|_| wrong(key.path(), "it has no private key (PEM)"))?;
    let provider = Arc::new(suites.provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&suites.versions(*versions))
        .map_err(|error| wrong(cert.path(), error))?;
    let builder = match client_auth {
        ClientAuth::NoClientCert => builder.with_no_client_auth(),
        auth => {
            let mut authorities = None;
            if let Some(pem) = client_ca {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(pem)? {
                    roots
                        .add(certificate)
                        .map_err(|error| wrong(pem.path(), error))?;
                }
                authorities = Some(roots);
            }
            let at = client_ca.as_ref().unwrap_or(cert).path();
            let clients = Clients::new(&provider, authorities, auth.demands(), client_sans.clone())
                .map_err(|error| wrong(at, error))?;
            builder.with_client_cert_verifier(Arc::new(clients))
        }
    };
    let mut config = builder
        .with_single_cert(chain, private)
        .map_err(|error| wrong(cert.path(), error))?;
    config.ignore_client_order = suites.server_order;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
