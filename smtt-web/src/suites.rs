//! Cipher suites and groups of the key exchange by the names that a web configuration has, which are those of Go.

use tokio_rustls::rustls::crypto::ring::{cipher_suite as known, default_provider, kx_group};
use tokio_rustls::rustls::crypto::{CryptoProvider, SupportedKxGroup};
use tokio_rustls::rustls::{SupportedCipherSuite, SupportedProtocolVersion, version};

use crate::config::TlsVersion;

/// Suites of this listener.
static SUITES: [(&str, &SupportedCipherSuite); 9] = [
    ("TLS_AES_256_GCM_SHA384", &known::TLS13_AES_256_GCM_SHA384),
    ("TLS_AES_128_GCM_SHA256", &known::TLS13_AES_128_GCM_SHA256),
    (
        "TLS_CHACHA20_POLY1305_SHA256",
        &known::TLS13_CHACHA20_POLY1305_SHA256,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        &known::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        &known::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        &known::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    (
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        &known::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    ),
    (
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        &known::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    ),
    (
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        &known::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
];
/// Suites that exporters accept and this listener does not have.
const OTHER_SUITES: [&str; 8] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
];
/// Groups of this listener.
static CURVES: [(&str, &&dyn SupportedKxGroup); 3] = [
    ("X25519", &kx_group::X25519),
    ("CurveP256", &kx_group::SECP256R1),
    ("CurveP384", &kx_group::SECP384R1),
];
/// Groups that exporters accept and this listener does not have.
const OTHER_CURVES: [&str; 1] = ["CurveP521"];

/// The chosen suites and groups. Without a choice all are offered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suites {
    suites: Vec<&'static str>,
    curves: Vec<&'static str>,
    /// Whether the order of the server counts, not that of the client.
    pub server_order: bool,
}

/// The names of a list that are supported. Those that are known and not supported are added to `without_effect`.
fn supported(
    key: &'static str,
    wanted: &[String],
    ours: impl Iterator<Item = &'static str> + Clone,
    others: &[&str],
    without_effect: &mut Vec<String>,
) -> Result<Vec<&'static str>, (&'static str, String)> {
    let mut names = Vec::new();
    for name in wanted {
        if let Some(own) = ours.clone().find(|own| own == name) {
            if !names.contains(&own) {
                names.push(own);
            }
        } else if others.contains(&name.as_str()) {
            without_effect.push(format!("{name} of {key} (not supported)"));
        } else {
            return Err((key, format!("{name} is not known as one of {key}")));
        }
    }
    if names.is_empty() && !wanted.is_empty() {
        let all: Vec<&str> = ours.collect();
        let message = format!("none of {key} is supported, only {}", all.join(", "));
        return Err((key, message));
    }
    Ok(names)
}

/// Reads the lists of a web configuration. As in exporters, `cipher_suites` restricts TLS 1.2 only.
///
/// # Errors
/// The key and a message, where a name is unknown, or no name of a list is supported.
pub(crate) fn chosen(
    suites: &[String],
    curves: &[String],
    server_order: Option<bool>,
    highest: TlsVersion,
    without_effect: &mut Vec<String>,
) -> Result<Suites, (&'static str, String)> {
    let of = |name: &&'static str| SUITES.iter().find(|(own, _)| own == name);
    let names = SUITES.iter().map(|(name, _)| *name);
    let suites = supported(
        "cipher_suites",
        suites,
        names,
        &OTHER_SUITES,
        without_effect,
    )?;
    let has_tls12 = suites
        .iter()
        .filter_map(of)
        .any(|(_, suite)| suite.tls13().is_none());
    if !suites.is_empty() && !has_tls12 && highest < TlsVersion::Tls13 {
        let message = "no suite of cipher_suites is one of TLS 1.2, and max_version is TLS12";
        return Err(("cipher_suites", message.to_owned()));
    }
    let names = CURVES.iter().map(|(name, _)| *name);
    Ok(Suites {
        suites,
        curves: supported(
            "curve_preferences",
            curves,
            names,
            &OTHER_CURVES,
            without_effect,
        )?,
        server_order: server_order.unwrap_or(true),
    })
}

impl Suites {
    /// Names of the chosen suites.
    #[must_use]
    pub fn names(&self) -> &[&'static str] {
        &self.suites
    }

    /// Names of the chosen groups.
    #[must_use]
    pub fn curves(&self) -> &[&'static str] {
        &self.curves
    }

    /// The chosen suites and groups in their order, and all suites of TLS 1.3.
    pub(crate) fn provider(&self) -> CryptoProvider {
        let mut provider = default_provider();
        if !self.suites.is_empty() {
            let listed = |name: &&'static str| SUITES.iter().find(|(own, _)| own == name);
            let mut suites: Vec<SupportedCipherSuite> = self
                .suites
                .iter()
                .filter_map(listed)
                .map(|(_, suite)| **suite)
                .collect();
            let rest = provider.cipher_suites.iter().copied();
            let rest: Vec<_> = rest
                .filter(|suite| suite.tls13().is_some() && !suites.contains(suite))
                .collect();
            suites.extend(rest);
            provider.cipher_suites = suites;
        }
        if !self.curves.is_empty() {
            let listed = |name: &&'static str| CURVES.iter().find(|(own, _)| own == name);
            let curves = self.curves.iter().filter_map(listed);
            provider.kx_groups = curves.map(|(_, group)| **group).collect();
        }
        provider
    }

    /// The versions between these two that a suite is left for.
    pub(crate) fn versions(
        &self,
        (lowest, highest): (TlsVersion, TlsVersion),
    ) -> Vec<&'static SupportedProtocolVersion> {
        let has_tls12 = self.suites.is_empty()
            || self
                .provider()
                .cipher_suites
                .iter()
                .any(|suite| suite.tls13().is_none());
        let known = [
            (TlsVersion::Tls12, &version::TLS12, has_tls12),
            (TlsVersion::Tls13, &version::TLS13, true),
        ];
        known
            .into_iter()
            .filter(|(version, _, has_suite)| *has_suite && (lowest..=highest).contains(version))
            .map(|(_, version, _)| version)
            .collect()
    }
}
