//! One request to one worker, over TCP with or without TLS, with a bounded answer.

use std::fmt;
use std::net::IpAddr;

use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, HOST, HeaderValue};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use smtt_model::units;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::answer::message;
use super::{Worker, credentials};
use crate::Failure;
use crate::args::ClusterArgs;
use crate::client::Connection;

/// Bytes of a refusal that are read.
const REFUSAL: usize = 64 << 10;

/// Why a worker has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It does not accept the question, in these words.
    Refused(String),
    /// Another reason.
    Failed(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(reason) | Self::Failed(reason) => out.write_str(reason),
        }
    }
}

fn failed(reason: impl fmt::Display) -> Trouble {
    Trouble::Failed(message(&reason.to_string()))
}

/// How workers are reached.
pub(super) struct Access {
    authorization: Option<HeaderValue>,
    tls: Option<TlsConnector>,
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
    pub fn load(args: &ClusterArgs) -> Result<Self, Failure> {
        Ok(Self {
            authorization: credentials::authorization(args)?,
            // Without TLS in the arguments the list may ask for it: then the system's authorities hold.
            tls: match args.is_tls() {
                true => Some(credentials::connector(args)?),
                false => credentials::connector(args).ok(),
            },
        })
    }

    /// Requests a path of a worker. Its answer has `share` bytes at most.
    pub async fn get(
        &self,
        worker: &Worker,
        path_and_query: &str,
        share: u64,
    ) -> Result<Vec<u8>, Trouble> {
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
            return self.request(stream, worker, path_and_query, share).await;
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
        self.request(stream, worker, path_and_query, share).await
    }

    async fn request(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        worker: &Worker,
        path_and_query: &str,
        share: u64,
    ) -> Result<Vec<u8>, Trouble> {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(failed)?;
        let _connection = Connection::run(connection);
        let host = match worker.host.contains(':') {
            true => format!("[{}]:{}", worker.host, worker.port),
            false => format!("{}:{}", worker.host, worker.port),
        };
        let mut request = Request::get(path_and_query)
            .header(HOST, host)
            .header(ACCEPT, "application/json");
        if let Some(value) = &self.authorization {
            request = request.header(AUTHORIZATION, value);
        }
        let request = request.body(Empty::<Bytes>::new()).map_err(failed)?;
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| failed(format!("no HTTP: {error}")))?;
        let status = response.status();
        let body = whole(response.into_body(), share).await?;
        if status == StatusCode::OK {
            return Ok(body);
        }
        Err(refusal(status, &body))
    }
}

/// Whether what is sent to this address stays on this machine.
fn is_local(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// A body of `share` bytes at most.
async fn whole(mut body: Incoming, share: u64) -> Result<Vec<u8>, Trouble> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| failed(format!("its answer breaks off: {error}")))?;
        let Some(data) = frame.data_ref() else {
            continue;
        };
        if (bytes.len() + data.len()) as u64 > share {
            return Err(failed(format!(
                "its answer is larger than {}: select less, as with --app or --limit",
                units::bytes(share)
            )));
        }
        bytes.extend_from_slice(data);
    }
    Ok(bytes)
}

/// What another status than 200 says.
fn refusal(status: StatusCode, body: &[u8]) -> Trouble {
    let body = body.get(..REFUSAL).unwrap_or(body);
    let answer: Option<Value> = serde_json::from_slice(body).ok();
    let said = answer
        .as_ref()
        .and_then(|answer| answer.get("error"))
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
