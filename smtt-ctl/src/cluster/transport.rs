//! One request to one worker, over TCP with or without TLS or by ssh, whose answer goes where it is bounded.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;

use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, HOST, HeaderMap, HeaderValue};
use hyper::{Request, StatusCode};
use serde_json::Value;
use smtt_model::protocol::{INSTANCE, QUESTION};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::answer::message;
use super::bounds::Larger;
use super::{Worker, credentials};
use crate::Failure;
use crate::args::ClusterArgs;
use crate::client::{Connection, Stream, with_causes};
use crate::ssh::{Settings, Tunnel};

/// Bytes of a refusal that are read.
const REFUSAL: usize = 64 << 10;
/// Characters of an identity.
const IDENTITY: usize = 64;

/// What takes the pieces of an answer.
pub(super) type Take<'a> = dyn FnMut(&[u8]) -> Result<(), Larger> + Send + 'a;

/// Why a worker has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It does not accept the question, in these words.
    Refused(String),
    /// Its answer is larger than there is room for.
    TooLarge(String),
    /// Another reason.
    Failed(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(reason) | Self::TooLarge(reason) | Self::Failed(reason) => {
                out.write_str(reason)
            }
        }
    }
}

impl From<Larger> for Trouble {
    fn from(larger: Larger) -> Self {
        Self::TooLarge(larger.to_string())
    }
}

/// What a worker is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question<'a> {
    pub path_and_query: &'a str,
    /// An id by which the daemon remembers its answer.
    pub id: Option<&'a str>,
}

fn failed(reason: impl fmt::Display) -> Trouble {
    Trouble::Failed(message(&reason.to_string()))
}

/// How workers are reached.
pub(super) struct Access {
    authorization: Option<HeaderValue>,
    tls: Option<TlsConnector>,
    /// Sockets that ssh brings here, by name of the worker.
    tunnels: BTreeMap<String, Tunnel>,
}

impl fmt::Debug for Access {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Access").finish_non_exhaustive()
    }
}

impl Access {
    /// Reads the files that the arguments name.
    ///
    /// # Errors
    /// When one cannot be used.
    pub fn load(args: &ClusterArgs, socket: &Path, workers: &[Worker]) -> Result<Self, Failure> {
        let mut tunnels = BTreeMap::new();
        for worker in workers {
            if let Some(place) = &worker.ssh {
                let settings = Settings::of(args, socket).map_err(Failure::Question)?;
                tunnels.insert(worker.name.clone(), Tunnel::new(place.clone(), settings));
            }
        }
        Ok(Self {
            tunnels,
            authorization: credentials::authorization(args)?,
            // Without TLS in the arguments the list may ask for it: then the system's authorities hold.
            tls: match args.is_tls() {
                true => Some(credentials::connector(args)?),
                false => credentials::connector(args).ok(),
            },
        })
    }

    /// Access to an API with a token, over TLS alone.
    pub fn to_api(authorization: HeaderValue, tls: TlsConnector) -> Self {
        Self {
            authorization: Some(authorization),
            tls: Some(tls),
            tunnels: BTreeMap::new(),
        }
    }

    /// Lets ssh connect, which takes longer than an answer.
    pub async fn prepare(&self, worker: &Worker) -> Result<(), Trouble> {
        match self.tunnels.get(&worker.name) {
            Some(tunnel) => tunnel.open().await.map_err(failed),
            None => Ok(()),
        }
    }

    /// Asks a worker. The pieces of its answer go to `take`; returns the identity that the worker claims.
    pub async fn get(
        &self,
        worker: &Worker,
        question: Question<'_>,
        take: &mut Take<'_>,
    ) -> Result<Option<String>, Trouble> {
        if let Some(tunnel) = self.tunnels.get(&worker.name) {
            // The account is what the socket knows: no credentials cross it.
            let stream = tunnel.connect().await.map_err(failed)?;
            return self
                .request(Box::new(stream), worker, None, question, take)
                .await;
        }
        let authorization = self.authorization.as_ref();
        let stream = TcpStream::connect((worker.host.as_str(), worker.port))
            .await
            .map_err(|error| failed(format!("cannot connect: {error}")))?;
        let Some(certified) = &worker.certified else {
            let peer = stream.peer_addr().ok();
            if self.authorization.is_some() && !peer.is_some_and(|peer| is_local(peer.ip())) {
                return Err(failed(
                    "not asked: without TLS the credentials would cross the network in clear text (--tls, --cacert)",
                ));
            }
            return self
                .request(Box::new(stream), worker, authorization, question, take)
                .await;
        };
        let connector = self
            .tls
            .as_ref()
            .ok_or_else(|| failed("no certificate authorities are known: give --cacert"))?;
        let name = ServerName::try_from(certified.clone())
            .map_err(|_| failed("its name cannot be in a certificate"))?;
        let stream = connector
            .connect(name, stream)
            .await
            .map_err(|error| failed(format!("no TLS: {error}")))?;
        self.request(Box::new(stream), worker, authorization, question, take)
            .await
    }

    async fn request(
        &self,
        stream: Stream,
        worker: &Worker,
        authorization: Option<&HeaderValue>,
        question: Question<'_>,
        take: &mut Take<'_>,
    ) -> Result<Option<String>, Trouble> {
        let (mut sender, _connection) = Connection::begin(stream).await.map_err(failed)?;
        let host = match worker.host.contains(':') {
            _ if worker.ssh.is_some() => "smtt".to_owned(),
            true => format!("[{}]:{}", worker.host, worker.port),
            false => format!("{}:{}", worker.host, worker.port),
        };
        let mut request = Request::get(question.path_and_query)
            .header(HOST, host)
            .header(ACCEPT, "application/json");
        if let Some(value) = authorization {
            request = request.header(AUTHORIZATION, value);
        }
        if let Some(id) = question.id {
            request = request.header(QUESTION, id);
        }
        let request = request.body(Empty::<Bytes>::new()).map_err(failed)?;
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| failed(format!("no HTTP: {}", with_causes(&error))))?;
        let status = response.status();
        if status == StatusCode::OK {
            let instance = instance(response.headers());
            read(response.into_body(), take).await?;
            return Ok(instance);
        }
        let mut said = Vec::new();
        let mut take = |more: &[u8]| {
            said.extend_from_slice(more);
            match said.len() {
                0..=REFUSAL => Ok(()),
                _ => Err(Larger::ThanAny),
            }
        };
        match read(response.into_body(), &mut take).await {
            Ok(()) | Err(Trouble::TooLarge(_)) => Err(refusal(status, &said)),
            Err(trouble) => Err(trouble),
        }
    }
}

/// The identity that an answer claims, if it is one.
fn instance(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(INSTANCE)?.to_str().ok()?;
    let is_identity = value.len() <= IDENTITY && value.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_identity && !value.is_empty()).then(|| value.to_owned())
}

/// Whether what is sent to this address stays on this machine.
fn is_local(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Reads a body to its end, or until `take` refuses.
async fn read(mut body: Incoming, take: &mut Take<'_>) -> Result<(), Trouble> {
    while let Some(frame) = body.frame().await {
        let frame = frame
            .map_err(|error| failed(format!("its answer breaks off: {}", with_causes(&error))))?;
        if let Some(data) = frame.data_ref() {
            take(data)?;
        }
    }
    Ok(())
}

/// The reason that a worker gives for an answer whose status is not 200.
fn refusal(status: StatusCode, body: &[u8]) -> Trouble {
    let answer: Option<Value> = serde_json::from_slice(body).ok();
    let said = answer
        .as_ref()
        // The API of Kubernetes says it in a field of another name.
        .and_then(|answer| answer.get("error").or_else(|| answer.get("message")))
        .and_then(Value::as_str)
        .map(message);
    match (status, said) {
        (StatusCode::BAD_REQUEST, Some(said)) => Trouble::Refused(said),
        (StatusCode::UNAUTHORIZED, _) => failed(
            "refuses the credentials (401): give --token-file, or --auth-user and --password-file",
        ),
        (StatusCode::NOT_FOUND, None) => {
            failed("serves no listings (404): [web] api is not set there, or its daemon is older")
        }
        (_, Some(said)) => failed(format!("{said} ({})", status.as_u16())),
        (_, None) => failed(format!("answers {}", status.as_u16())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_do_not_leave_the_machine_in_clear_text() {
        for (address, local) in [
            ("127.0.0.1", true),
            ("127.8.9.10", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("192.0.2.1", false),
            ("0.0.0.0", false),
            ("::ffff:192.0.2.1", false),
            ("2001:db8::1", false),
            ("fe80::1", false),
        ] {
            let parsed = address.parse().expect("an address");
            assert_eq!(is_local(parsed), local, "{address}");
        }
    }
}
