//! Client of the Unix socket, or of the workers of a cluster, for `smtt-ctl` and tests.

use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, HOST};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use smtt_model::protocol::ListQuery;
use smtt_model::text::harmless;
use smtt_model::units;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use super::cluster::{Cluster, Merge, message, read_harmless, with_host};
use super::columns::ListingKind;
use super::ssh::{SshError, Tunnel};

/// Timeout for the first byte of a response, and between two pieces of it.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of a refusal of another machine that are read.
const REFUSAL: usize = 64 << 10;

/// Bounds of what the daemon of another machine sends.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Bytes of an answer.
    answer: usize,
    /// Bytes of a line of an endless answer.
    line: usize,
    /// Time of an answer from the request to its end.
    time: Duration,
}

/// The bounds of `--host`.
const FAR: Bounds = Bounds {
    answer: 256 << 20,
    line: 1 << 20,
    time: Duration::from_secs(300),
};

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon listens on the socket.
    #[error("cannot reach smtt-daemon at {}: {error}. Is it running (systemctl status smtt)? Another socket is given with --socket", .path.display())]
    Unreachable {
        /// Path of the socket.
        path: PathBuf,
        /// The error of the system call.
        #[source]
        error: io::Error,
    },
    /// No permission to use the socket.
    #[error("no permission for {}: run as root, or join the socket's group (usermod -aG smtt $USER, then log in again)", .0.display())]
    NoPermission(PathBuf),
    /// ssh does not bring the request to the daemon.
    #[error("cannot reach smtt-daemon at {socket}: {error}")]
    NoSsh {
        /// Machine and socket.
        socket: String,
        /// What is wrong.
        error: SshError,
    },
    /// The daemon rejected the request.
    #[error("{0}")]
    Refused(String),
    /// The daemon does not know the one thing that was asked for.
    #[error("{0}")]
    Unknown(String),
    /// The daemon's limit for such requests is reached.
    #[error("{0}")]
    Busy(String),
    /// No worker of the cluster has answered.
    #[error("none of {0} workers answered")]
    NoWorker(usize),
    /// The answers of all workers are larger than there is room for.
    #[error("the answers of all {0} workers are too large: narrow with --app or --limit")]
    TooLarge(usize),
    /// The response is invalid.
    #[error("smtt-daemon at {} answered wrongly: {reason}", .path.display())]
    Broken {
        /// The socket.
        path: PathBuf,
        /// The defect of the response.
        reason: String,
    },
}

/// Connection parameters of a daemon, or of those of a cluster.
#[derive(Clone, Debug)]
pub struct Client {
    path: PathBuf,
    tunnel: Option<Arc<Tunnel>>,
    cluster: Option<Arc<Cluster>>,
    /// Bounds of the answers; `None` for the daemon of this machine, which is trusted.
    bounds: Option<Bounds>,
    /// Timeout of a step of a response.
    timeout: Duration,
}

impl Client {
    /// Client of the daemon behind a socket. Connects at each request.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            tunnel: None,
            cluster: None,
            bounds: None,
            timeout: TIMEOUT,
        }
    }

    /// Client of the daemon of another machine. Its path is a name for messages.
    #[must_use]
    pub fn through(tunnel: Tunnel) -> Self {
        let path = tunnel.shown();
        Self {
            tunnel: Some(Arc::new(tunnel)),
            bounds: Some(FAR),
            ..Self::new(Path::new(&path))
        }
    }

    /// Client of all workers of a cluster.
    #[must_use]
    pub fn of(cluster: Cluster) -> Self {
        Self {
            cluster: Some(Arc::new(cluster)),
            ..Self::new(Path::new(""))
        }
    }

    /// The cluster whose workers are asked; `None` for the daemon of this machine.
    #[must_use]
    pub fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_deref()
    }

    /// The listing with a column for the worker, where there are several.
    pub(super) fn kind(&self, kind: &ListingKind) -> ListingKind {
        match self.cluster {
            Some(_) => with_host(kind),
            None => *kind,
        }
    }

    /// Requests a path with a query string and parses the response as JSON.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn get<Answer: DeserializeOwned>(
        &self,
        path_and_query: &str,
    ) -> Result<Answer, ClientError> {
        let (status, body) = self.get_bytes(path_and_query, "application/json").await?;
        if !status.is_success() {
            return Err(self.refusal(path_and_query, status, &body));
        }
        self.read(&body)
            .map_err(|reason| self.broken(format!("{path_and_query}: {reason}")))
    }

    /// Reads an answer. No text of another machine has a character that harms a terminal.
    fn read<Answer: DeserializeOwned>(&self, body: &[u8]) -> Result<Answer, String> {
        match self.bounds {
            Some(bounds) => read_harmless(body, bounds.answer as u64),
            None => serde_json::from_slice(body).map_err(|error| error.to_string()),
        }
    }

    /// Requests a path with a typed query and parses the response as JSON; of a cluster the responses of all workers.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn ask<Answer: DeserializeOwned + Merge>(
        &self,
        path: &str,
        question: &ListQuery,
    ) -> Result<Answer, ClientError> {
        match &self.cluster {
            Some(cluster) => cluster.ask(path, question).await,
            None => self.ask_one(path, question).await,
        }
    }

    /// Requests a path of the daemon of this machine, as [`Client::ask`].
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn ask_one<Answer: DeserializeOwned>(
        &self,
        path: &str,
        question: &ListQuery,
    ) -> Result<Answer, ClientError> {
        self.get(&with_query(path, question)?).await
    }

    /// Requests a path with a query string and returns the raw response.
    ///
    /// # Errors
    /// When the daemon cannot be reached or does not respond in time.
    pub async fn get_bytes(
        &self,
        path_and_query: &str,
        accept: &str,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        self.open().await?;
        let answer = async {
            let (response, _connection) = self.in_time(self.send(path_and_query, accept)).await?;
            let status = response.status();
            Ok((status, self.whole(response.into_body()).await?))
        };
        let Some(Bounds { time, .. }) = self.bounds else {
            return answer.await;
        };
        match tokio::time::timeout(time, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(self.broken(format!("its answer has no end within {time:?}"))),
        }
    }

    /// Requests an endless stream of lines.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn lines(&self, path: &str, question: &impl Serialize) -> Result<Lines, ClientError> {
        let path_and_query = &with_query(path, question)?;
        self.open().await?;
        let asked = self.send(path_and_query, "application/x-ndjson");
        let (response, connection) = self.in_time(asked).await?;
        let (status, body) = (response.status(), response.into_body());
        if !status.is_success() {
            let said = self.whole(body).await?;
            return Err(self.refusal(path_and_query, status, &said));
        }
        Ok(Lines {
            client: self.clone(),
            body,
            _connection: connection,
            read: Vec::new(),
        })
    }

    /// Lets ssh connect where the daemon is on another machine. It has a limit of its own.
    async fn open(&self) -> Result<(), ClientError> {
        match &self.tunnel {
            Some(tunnel) => tunnel.open().await.map_err(|error| ClientError::NoSsh {
                socket: tunnel.shown(),
                error,
            }),
            None => Ok(()),
        }
    }

    /// Waits for a step of a response, no longer than the timeout.
    async fn in_time<T>(
        &self,
        step: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        match tokio::time::timeout(self.timeout, step).await {
            Ok(done) => done,
            Err(_) => Err(self.broken(format!("no answer within {} s", self.timeout.as_secs()))),
        }
    }

    async fn connect(&self) -> Result<UnixStream, ClientError> {
        let path = self.path.clone();
        if let Some(tunnel) = &self.tunnel {
            let socket = tunnel.shown();
            let failed = |error| ClientError::NoSsh { socket, error };
            return tunnel.connect().await.map_err(failed);
        }
        UnixStream::connect(&path)
            .await
            .map_err(|error| match error.kind() {
                io::ErrorKind::PermissionDenied => ClientError::NoPermission(path),
                _ => ClientError::Unreachable { path, error },
            })
    }

    /// Sends a request and returns the response with its body unread.
    async fn send(
        &self,
        path_and_query: &str,
        accept: &str,
    ) -> Result<(Response<Incoming>, Connection), ClientError> {
        let stream = self.connect().await?;
        let (mut sender, connection) = Connection::begin(Box::new(stream))
            .await
            .map_err(|error| self.cut_off(&error))?;
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
            .map_err(|error| self.cut_off(&error))?;
        Ok((response, connection))
    }

    async fn whole(&self, mut body: Incoming) -> Result<Bytes, ClientError> {
        let mut bytes = Vec::new();
        loop {
            let frame = async { Ok(body.frame().await) };
            let Some(frame) = self.in_time(frame).await? else {
                return Ok(bytes.into());
            };
            let frame = frame.map_err(|error| self.cut_off(&error))?;
            if let Some(data) = frame.data_ref() {
                bytes.extend_from_slice(data);
            }
            if let Some(Bounds { answer, .. }) = self.bounds
                && bytes.len() > answer
            {
                let most = units::bytes(answer as u64);
                return Err(self.broken(format!(
                    "its answer is larger than {most}: narrow with --app or --limit"
                )));
            }
        }
    }

    /// The error that the daemon reports.
    fn refusal(&self, path_and_query: &str, status: StatusCode, body: &[u8]) -> ClientError {
        let error: Option<Value> = match self.bounds {
            Some(_) if body.len() > REFUSAL => None,
            _ => serde_json::from_slice(body).ok(),
        };
        let said = error
            .as_ref()
            .and_then(|error| error.get("error"))
            .and_then(Value::as_str);
        let said = said.map(|said| self.message(said));
        let said = said.unwrap_or_else(|| format!("{path_and_query}: {status}"));
        match status {
            StatusCode::SERVICE_UNAVAILABLE => ClientError::Busy(said),
            StatusCode::NOT_FOUND if error.is_some() => ClientError::Unknown(said),
            status if status.is_client_error() => ClientError::Refused(said),
            _ => self.broken(format!("{path_and_query}: {status}")),
        }
    }

    fn cut_off(&self, error: &hyper::Error) -> ClientError {
        self.broken(with_causes(error))
    }

    fn broken(&self, reason: String) -> ClientError {
        ClientError::Broken {
            path: self.path.clone(),
            reason: self.message(&reason),
        }
    }

    /// A message of the daemon or about its answer; of another machine one short line.
    fn message(&self, text: &str) -> String {
        match self.bounds {
            Some(_) => message(text),
            None => text.to_owned(),
        }
    }
}

/// A failed connection: the error and all its causes, down to what the system reports.
pub(crate) fn with_causes(error: &hyper::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// A stream of any kind: HTTP is compiled once for all of them.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<Io: AsyncRead + AsyncWrite + Unpin + Send> Duplex for Io {}

/// A stream to a daemon.
pub(super) type Stream = Box<dyn Duplex>;

/// A connection; closed on drop.
#[derive(Debug)]
pub(super) struct Connection(JoinHandle<()>);

impl Connection {
    /// Begins HTTP on a stream, in a task of its own.
    ///
    /// # Errors
    /// When the stream is closed.
    pub async fn begin(stream: Stream) -> hyper::Result<(SendRequest<Empty<Bytes>>, Self)> {
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        Ok((sender, Self::run(connection)))
    }

    /// Runs a connection in a task of its own.
    fn run<Done: Send>(connection: impl Future<Output = Done> + Send + 'static) -> Self {
        Self(tokio::spawn(async move {
            // Errors of the connection appear in the response.
            let _ = connection.await;
        }))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An endless response, line by line.
#[derive(Debug)]
pub struct Lines {
    client: Client,
    body: Incoming,
    _connection: Connection,
    /// Received part of the next lines.
    read: Vec<u8>,
}

impl Lines {
    /// Waits for more bytes and returns all complete lines; `None` when the daemon has ended the response.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn next(&mut self) -> Result<Option<String>, ClientError> {
        loop {
            let Some(frame) = self.body.frame().await else {
                return Ok(None);
            };
            let frame = frame.map_err(|error| self.client.cut_off(&error))?;
            let Some(data) = frame.data_ref() else {
                continue;
            };
            let before = self.read.len();
            self.read.extend_from_slice(data);
            if let Some(end) = data.iter().rposition(|byte| *byte == b'\n') {
                let rest = self.read.split_off(before + end + 1);
                let lines = std::mem::replace(&mut self.read, rest);
                return Ok(Some(self.text(&lines)));
            }
            if let Some(Bounds { line, .. }) = self.client.bounds
                && self.read.len() > line
            {
                let most = units::bytes(line as u64);
                return Err(self.client.broken(format!("a line is longer than {most}")));
            }
        }
    }

    fn text(&self, lines: &[u8]) -> String {
        let text = String::from_utf8_lossy(lines);
        match self.client.bounds {
            Some(_) => text
                .split('\n')
                .map(harmless)
                .collect::<Vec<_>>()
                .join("\n"),
            None => text.into_owned(),
        }
    }

    /// A line as a record.
    ///
    /// # Errors
    /// Why it is none.
    pub fn record(&self, line: &str) -> Result<Map<String, Value>, String> {
        self.client
            .read(line.as_bytes())
            .map_err(|error| self.client.message(&format!("no record: {error}: {line}")))
    }
}

/// A path with a typed query.
///
/// # Errors
/// When the query cannot be written as a query string, which is a defect of its type.
pub(super) fn with_query(path: &str, question: &impl Serialize) -> Result<String, ClientError> {
    let query = serde_urlencoded::to_string(question)
        .map_err(|error| ClientError::Refused(format!("cannot ask for {path}: {error}")))?;
    Ok(if query.is_empty() {
        path.to_owned()
    } else {
        format!("{path}?{query}")
    })
}

#[cfg(test)]
mod tests;
