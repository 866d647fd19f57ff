//! Workers for tests of `--cluster`: daemons with ports of their own, and peers that answer as they like.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use serde_json::Value;
use smtt_daemon::metrics::Names;
use smtt_daemon::server::{Web, serve_web};
use smtt_model::decode::Fact;
use smtt_web::{Files, Guard};
use tokio::sync::oneshot;

use super::{Daemon, Server, job};

pub(super) const TOKEN: &str = "5f4dcc3b5aa765d61d8327deb882cf99";

/// A file that only its owner may read.
pub(super) fn secret(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("set");
    path
}

/// A metrics port of a daemon.
pub(super) struct Port {
    pub(super) address: SocketAddr,
    _server: Server,
}

impl Port {
    pub(super) fn of(daemon: &Daemon, web: Web) -> Self {
        Self::on(
            TcpListener::bind("127.0.0.1:0").expect("a port"),
            daemon,
            web,
        )
    }

    /// A port that is bound already.
    fn on(listener: TcpListener, daemon: &Daemon, web: Web) -> Self {
        let address = listener.local_addr().expect("an address");
        listener.set_nonblocking(true).expect("set");
        let (stop, stopped) = oneshot::channel::<()>();
        let shared = Arc::clone(&daemon.shared);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a port");
                let until = async {
                    let _ = stopped.await;
                };
                serve_web(shared, listener, web, until)
                    .await
                    .expect("served");
            });
        });
        Self {
            address,
            _server: Server::new(stop, thread),
        }
    }
}

/// The head of a request.
pub(super) fn head(stream: &mut TcpStream) -> String {
    let mut head = [0; 4096];
    let count = stream.read(&mut head).unwrap_or(0);
    String::from_utf8_lossy(&head[..count]).into_owned()
}

/// The answer of the worker at `real` to a request, with a body in one piece, which ends with the connection.
pub(super) fn passed_on(head: &str, real: SocketAddr) -> String {
    let head = head.replacen("HTTP/1.1", "HTTP/1.0", 1);
    let mut real = TcpStream::connect(real).expect("connected");
    real.write_all(head.as_bytes()).expect("asked");
    let mut answer = Vec::new();
    real.read_to_end(&mut answer).expect("answered");
    String::from_utf8(answer).expect("text")
}

/// A worker that answers each connection with `answer`, until the end of the process.
pub(super) fn worker(answer: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            std::thread::spawn(move || answer(stream));
        }
    });
    address
}

/// Reads a request.
pub(super) fn hear(stream: &mut TcpStream) {
    let mut head = [0; 4096];
    let _ = stream.read(&mut head);
}

/// A worker that answers this to each request.
pub(super) fn with_answer(status: &'static str, body: String) -> SocketAddr {
    worker(move |mut stream| {
        hear(&mut stream);
        let length = body.len();
        let _ = write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nLocation: http://127.0.0.1:1/\r\n\r\n{body}"
        );
    })
}

/// A worker that passes on what the one at `real` answers, altered by path; `None` is an error of its own.
pub(super) fn altered(
    real: SocketAddr,
    alter: impl Fn(&str, Value) -> Option<Value> + Send + Sync + 'static,
) -> SocketAddr {
    worker(move |mut stream| {
        let head = head(&mut stream);
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let answer = passed_on(&head, real);
        let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
        let body = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"));
        let (status, body) = match alter(&path, body) {
            Some(body) => ("200 OK", body.to_string()),
            None => ("500 Oops", String::new()),
        };
        let length = body.len();
        let _ = write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}"
        );
    })
}

/// An address where nothing listens, another one at each call: the ports are beyond those that the kernel gives, so they are
/// no other test's.
pub(super) fn dead() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(65_000);
    SocketAddr::from(([127, 0, 0, 1], NEXT.fetch_add(1, Ordering::Relaxed)))
}

/// Three daemons with different jobs of two applications, and their ports.
pub(super) struct Workers {
    pub(super) daemons: Vec<Daemon>,
    pub(super) ports: Vec<Port>,
    pub(super) folder: tempfile::TempDir,
}

impl Workers {
    pub(super) fn start() -> Self {
        Self::of(&(0..3).map(facts).collect::<Vec<_>>())
    }

    /// A daemon for each of these lists of facts.
    pub(super) fn of(facts: &[Vec<Fact>]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let tokens = secret(folder.path(), "tokens", &format!("{TOKEN}\n"));
        let guard = Guard::load(Files {
            tokens: Some(&tokens),
            ..Files::default()
        });
        let guard = guard.expect("tokens");
        let daemons: Vec<Daemon> = facts.iter().map(|facts| Daemon::with(facts, 0)).collect();
        let web = Web {
            guard,
            api: true,
            ..Web::from(Names::Hidden)
        };
        let bind = |_: &Daemon| TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut listeners: Vec<TcpListener> = daemons.iter().map(bind).collect();
        // The names of the workers are in the order of the daemons.
        listeners.sort_by_key(|listener| {
            let address = listener.local_addr().expect("an address");
            address.to_string()
        });
        let ports = daemons
            .iter()
            .zip(listeners)
            .map(|(daemon, listener)| Port::on(listener, daemon, web.clone()))
            .collect();
        Self {
            daemons,
            ports,
            folder,
        }
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.ports.iter().map(|port| port.address).collect()
    }

    /// Asks these workers.
    pub(super) fn ctl(&self, addresses: &[SocketAddr], arguments: &[&str]) -> Output {
        let list: String = addresses
            .iter()
            .map(|address| format!("{address}\n"))
            .collect();
        let hosts = secret(self.folder.path(), "hosts", &list);
        self.ctl_by(&hosts.display().to_string(), arguments)
    }

    /// Asks the workers that the option's value leads to.
    pub(super) fn ctl_by(&self, spec: &str, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_smtt-ctl"))
            .env("COLUMNS", "120")
            .args(["--cluster", spec])
            .arg("--token-file")
            .arg(self.folder.path().join("tokens"))
            .args(patience(arguments))
            .args(arguments)
            .output()
            .expect("smtt-ctl runs")
    }

    pub(super) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.ctl(&self.addresses(), arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }
}

/// A time for answers that a busy machine keeps too, unless the arguments have one.
pub(super) fn patience(arguments: &[&str]) -> &'static [&'static str] {
    if arguments.contains(&"--deadline") {
        &[]
    } else {
        &["--deadline", "60"]
    }
}

/// The small job on the worker with this index; the third one has an application of its own.
pub(super) fn facts(index: u64) -> Vec<Fact> {
    let mut facts = job();
    for fact in &mut facts {
        match fact {
            Fact::ExecutorDescribed(said) => {
                said.executor_id = index.to_string();
                if index == 2 {
                    "app-20260101120000-0002".clone_into(&mut said.application_id);
                }
            }
            Fact::BlockStored(block) => block.size_bytes <<= index,
            Fact::PageAllocated(page) => page.size_bytes += index * 1000,
            _ => {}
        }
    }
    facts
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Sum of a field over rows.
pub(super) fn sum<'a>(rows: impl IntoIterator<Item = &'a Value>, field: &str) -> u64 {
    let value = |row: &Value| {
        row[field]
            .as_u64()
            .unwrap_or_else(|| panic!("{field} in {row}"))
    };
    rows.into_iter().map(value).sum()
}

pub(super) fn rows(value: &Value) -> &Vec<Value> {
    value.as_array().expect("rows")
}
