//! The asking side of the Unix socket, for `smtt-ctl` and tests.

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, HOST};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("cannot reach smtt-daemon at {}: {error}. Is it running (systemctl status smtt)? Another socket is given with --socket", .path.display())]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// The socket is for others.
    #[error("no permission for {}: run as root, or join the socket's group (usermod -aG smtt $USER, then log in again)", .0.display())]
    NoPermission(PathBuf),
    /// The daemon did not like the question.
    #[error("{0}")]
    Refused(String),
    /// The answer is not one.
    #[error("smtt-daemon at {} answered wrongly: {reason}", .path.display())]
    Broken {
        /// The socket.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// A daemon to ask.
#[derive(Clone, Debug)]
pub struct Client {
    path: PathBuf,
}

impl Client {
    /// The daemon behind a socket. Connects only when asked something.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
        }
    }

    /// Asks for a path with its query, and takes the answer as JSON.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn get<Answer: DeserializeOwned>(
        &self,
        path_and_query: &str,
    ) -> Result<Answer, ClientError> {
        let (status, body) = self.get_bytes(path_and_query, "application/json").await?;
        if status.is_client_error() {
            let error: Option<Value> = serde_json::from_slice(&body).ok();
            let said = error
                .as_ref()
                .and_then(|error| error.get("error"))
                .and_then(Value::as_str);
            return Err(ClientError::Refused(said.map_or_else(
                || format!("{path_and_query}: {status}"),
                str::to_owned,
            )));
        }
        if !status.is_success() {
            return Err(self.broken(format!("{path_and_query}: {status}")));
        }
        serde_json::from_slice(&body)
            .map_err(|error| self.broken(format!("{path_and_query}: {error}")))
    }

    /// Asks for a path with its query, and takes the answer as it is.
    ///
    /// # Errors
    /// When the daemon cannot be reached or does not answer in time.
    pub async fn get_bytes(
        &self,
        path_and_query: &str,
        accept: &str,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        match tokio::time::timeout(TIMEOUT, self.exchange(path_and_query, accept)).await {
            Ok(answer) => answer,
            Err(_) => Err(self.broken(format!("no answer within {} s", TIMEOUT.as_secs()))),
        }
    }

    async fn exchange(
        &self,
        path_and_query: &str,
        accept: &str,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let stream = UnixStream::connect(&self.path)
            .await
            .map_err(|error| match error.kind() {
                io::ErrorKind::PermissionDenied => ClientError::NoPermission(self.path.clone()),
                _ => ClientError::Unreachable {
                    path: self.path.clone(),
                    error,
                },
            })?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.broken(error.to_string()))?;
        // Ends with the exchange; its errors show in the answer.
        let connection = tokio::spawn(connection);
        let request = Request::get(path_and_query)
            .header(HOST, "smtt")
            .header(ACCEPT, accept)
            .body(Empty::<Bytes>::new())
            .map_err(|error| {
                ClientError::Refused(format!("cannot ask for {path_and_query}: {error}"))
            })?;
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| self.broken(error.to_string()))?;
        let status = response.status();
        let body = response
            .into_body()
            .collect()
            .await
            .map_err(|error| self.broken(error.to_string()))?
            .to_bytes();
        connection.abort();
        Ok((status, body))
    }

    fn broken(&self, reason: String) -> ClientError {
        ClientError::Broken {
            path: self.path.clone(),
            reason,
        }
    }
}

/// A query string of the pairs that have a value.
#[must_use]
pub fn query(pairs: &[(&str, Option<&str>)]) -> String {
    let mut text = String::new();
    for (name, value) in pairs
        .iter()
        .filter_map(|(name, value)| value.map(|value| (name, value)))
    {
        text.push(if text.is_empty() { '?' } else { '&' });
        text.push_str(name);
        text.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                text.push(char::from(byte));
            } else {
                text.push_str(&format!("%{byte:02X}"));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::query;

    #[test]
    fn a_query_is_escaped() {
        assert_eq!(
            query(&[
                ("app", Some("a b&c")),
                ("rdd", None),
                ("stage", Some("3.1"))
            ]),
            "?app=a%20b%26c&stage=3.1"
        );
        assert_eq!(query(&[]), "");
    }
}
