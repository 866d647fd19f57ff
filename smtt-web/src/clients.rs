//! Certificates of clients: verified by their authorities or not, and their names.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::{
    CryptoProvider, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};

/// Most names of a certificate that are compared.
const NAMES_MAX: usize = 1000;

/// Verifies certificates of clients.
#[derive(Debug)]
pub(crate) struct Clients {
    provider: Arc<CryptoProvider>,
    /// Verifies by the authorities; `None` where any certificate will do.
    by_authority: Option<Arc<dyn ClientCertVerifier>>,
    is_mandatory: bool,
    /// Names of which a certificate must have one.
    allowed: Option<Vec<String>>,
}

impl Clients {
    /// With these authorities, or without a check of who signed.
    ///
    /// # Errors
    /// When the authorities are not usable.
    pub(crate) fn new(
        provider: &Arc<CryptoProvider>,
        authorities: Option<RootCertStore>,
        is_mandatory: bool,
        allowed: Option<Vec<String>>,
    ) -> Result<Self, String> {
        let by_authority = authorities.map(|roots| {
            let provider = Arc::clone(provider);
            let built = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            built.build().map_err(|error| error.to_string())
        });
        Ok(Self {
            provider: Arc::clone(provider),
            by_authority: by_authority.transpose()?,
            is_mandatory,
            allowed,
        })
    }
}

impl ClientCertVerifier for Clients {
    fn client_auth_mandatory(&self) -> bool {
        self.is_mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        let own = self.by_authority.as_ref();
        own.map_or(&[], |verifier| verifier.root_hint_subjects())
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if let Some(verifier) = &self.by_authority {
            verifier.verify_client_cert(end_entity, intermediates, now)?;
        }
        if let Some(allowed) = &self.allowed {
            let names = names(end_entity).ok_or(CertificateError::BadEncoding)?;
            if !names.iter().any(|name| allowed.contains(name)) {
                return Err(CertificateError::ApplicationVerificationFailure.into());
            }
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let known = &self.provider.signature_verification_algorithms;
        known.supported_schemes()
    }
}

const SEQUENCE: u8 = 0x30;
const OBJECT_ID: u8 = 0x06;
const OCTETS: u8 = 0x04;
/// The extensions of a certificate.
const EXTENSIONS: u8 = 0xa3;
/// Kinds of names: mail, host, URI, address.
const MAIL: u8 = 0x81;
const DNS: u8 = 0x82;
const URI: u8 = 0x86;
const ADDRESS: u8 = 0x87;
/// `2.5.29.17`, subject alternative names.
const ALTERNATIVE_NAMES: [u8; 3] = [0x55, 0x1d, 0x11];

/// The first value of some DER: its tag, its content, and what follows.
fn value(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81..=0x83 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let length = digits
                .iter()
                .fold(0, |sum, digit| sum << 8 | usize::from(*digit));
            (length, rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

fn content(bytes: &[u8], wanted: u8) -> Option<&[u8]> {
    value(bytes).and_then(|(tag, content, _)| (tag == wanted).then_some(content))
}

/// The values in some DER; ends at the first byte that is none.
fn values(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (tag, content, rest) = value(bytes)?;
        bytes = rest;
        Some((tag, content))
    })
}

/// Alternative names of a certificate's subject, as Go prints them; none where it has none. `None` for bytes that are no
/// certificate.
fn names(certificate: &[u8]) -> Option<Vec<String>> {
    let signed = content(content(certificate, SEQUENCE)?, SEQUENCE)?;
    let extensions = values(signed).find(|(tag, _)| *tag == EXTENSIONS);
    let Some((_, extensions)) = extensions else {
        return Some(Vec::new());
    };
    for (_, extension) in values(content(extensions, SEQUENCE)?) {
        let mut parts = values(extension);
        if parts.next() != Some((OBJECT_ID, &ALTERNATIVE_NAMES)) {
            continue;
        }
        // A flag may be between.
        let (_, list) = parts.find(|(tag, _)| *tag == OCTETS)?;
        let names = values(content(list, SEQUENCE)?).take(NAMES_MAX);
        return Some(names.filter_map(|(tag, bytes)| name(tag, bytes)).collect());
    }
    Some(Vec::new())
}

fn name(tag: u8, bytes: &[u8]) -> Option<String> {
    match tag {
        MAIL | DNS | URI => std::str::from_utf8(bytes).ok().map(str::to_owned),
        ADDRESS => match bytes.len() {
            4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).to_string()),
            16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_string()),
            _ => None,
        },
        _ => None,
    }
}
