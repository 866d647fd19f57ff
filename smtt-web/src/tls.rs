//! TLS of a listener. It loads certificate and key again when their files have changed, so that a renewed certificate needs
//! no restart.

use std::fmt;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};

use crate::config::{ClientAuth, TlsSettings, TlsVersion};

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

    /// Whether a client needs a certificate.
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
    let files = [Some(&settings.cert_file), Some(&settings.key_file)];
    files
        .into_iter()
        .chain([settings.client_ca_file.as_ref()])
        .flatten()
        .map(|path| {
            let file = fs::metadata(path).ok()?;
            Some((file.ino(), file.size(), file.mtime(), file.mtime_nsec()))
        })
        .collect()
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let file = fs::metadata(path).map_err(|error| wrong(path, error))?;
    if file.len() > FILE_MAX {
        return Err(wrong(path, "it is too large"));
    }
    fs::read(path).map_err(|error| wrong(path, error))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|error| wrong(path, error))?;
    match found.is_empty() {
        true => Err(wrong(path, "it has no certificate (PEM)")),
        false => Ok(found),
    }
}

fn config(settings: &TlsSettings) -> Result<ServerConfig, TlsError> {
    let TlsSettings {
        cert_file,
        key_file,
        client_ca_file,
        client_auth,
        versions,
    } = settings;
    let chain = certificates(cert_file)?;
    let mode = fs::metadata(key_file).map_err(|error| wrong(key_file, error))?;
    if mode.permissions().mode() & 0o006 != 0 {
        return Err(wrong(
            key_file,
            "it is open to every local user: chmod o-rw",
        ));
    }
    let key = PrivateKeyDer::from_pem_slice(&read(key_file)?)
        .map_err(|_| wrong(key_file, "it has no private key (PEM)"))?;
    let provider = Arc::new(default_provider());
    let known: [(TlsVersion, &'static SupportedProtocolVersion); 2] =
        [(TlsVersion::Tls12, &TLS12), (TlsVersion::Tls13, &TLS13)];
    let allowed: Vec<&'static SupportedProtocolVersion> = known
        .into_iter()
        .filter(|(version, _)| (versions.0..=versions.1).contains(version))
        .map(|(_, version)| version)
        .collect();
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&allowed)
        .map_err(|error| wrong(cert_file, error))?;
    let builder = match client_ca_file {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| wrong(path, error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = match client_auth {
                ClientAuth::RequireAndVerifyClientCert => verifier,
                _ => verifier.allow_unauthenticated(),
            };
            let verifier = verifier.build().map_err(|error| wrong(path, error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|error| wrong(cert_file, error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
