//! The server of S3's protocol, a proxy before it that makes faults, and this crate's program as a user runs it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use xtask::event_log::{self, ID, Shape};
use xtask::http::get;
use xtask::paths::Paths;
use xtask::process::{Running, free_port, output, wait_for};
use xtask::setup::objects;

use crate::clouds::Cloud;

pub const LIMIT: Duration = Duration::from_secs(60);
/// A secret that no output may have.
pub const SECRET: &str = "this-is-the-secret-key";

/// The one server of all tests. Each test has a bucket of its own.
pub struct Lab {
    server: u16,
    pub folder: tempfile::TempDir,
    /// The server ends when this process does: then its standard input is closed.
    _server: Child,
}

static LAB: OnceLock<Result<Lab, String>> = OnceLock::new();

pub fn lab() -> Result<&'static Lab> {
    let lab = LAB.get_or_init(|| Lab::start().map_err(|error| format!("{error:#}")));
    lab.as_ref().map_err(|error| anyhow::anyhow!("{error}"))
}

impl Lab {
    fn start() -> Result<Self> {
        let paths = Paths::find()?;
        objects::server(&paths)?;
        let folder = tempfile::Builder::new().prefix("smtt-test-").tempdir()?;
        let server = free_port()?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/objects/server.py");
        let mut command = Command::new(objects::python(&paths));
        command.arg(script).arg(server.to_string());
        let log = fs::File::create(folder.path().join("moto.log"))?;
        command
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log);
        let _server = command.spawn().context("cannot start moto")?;
        wait_for("moto answers", LIMIT, || {
            Ok(TcpStream::connect(("127.0.0.1", server)).ok())
        })?;
        Ok(Self {
            server,
            folder,
            _server,
        })
    }

    /// A new bucket, reached without a proxy.
    pub fn bucket(&self, name: &str) -> Result<Bucket> {
        let bucket = Bucket {
            name: name.to_owned(),
            port: self.server,
            server: self.server,
            cloud: Cloud::S3,
        };
        bucket.send("PUT", "", b"")?;
        Ok(bucket)
    }
}

/// A bucket, and the port on which a program asks for it.
#[derive(Clone)]
pub struct Bucket {
    pub name: String,
    pub port: u16,
    pub server: u16,
    pub cloud: Cloud,
}

/// Status and body of an answer.
pub type Answer = (u16, Vec<u8>);

fn exchange(port: u16, request: &[u8]) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(request)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

impl Bucket {
    /// A request past the proxy. The server does not check its signature.
    pub fn send(&self, method: &str, key: &str, body: &[u8]) -> Result<Answer> {
        let (port, length) = (self.server, body.len());
        let (path, more) = (self.cloud.path(&self.name, key), self.cloud.headers());
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\nContent-Length: {length}\r\n{more}\r\n\r\n"
        )
        .into_bytes();
        request.extend_from_slice(body);
        let answer = exchange(port, &request)?;
        let end = answer.windows(4).position(|it| it == b"\r\n\r\n");
        let end = end.context("no answer")?;
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        let status = head.split(' ').nth(1).context("no status")?.parse()?;
        ensure!(status < 400 || method == "GET", "{method} {key}: {head}");
        Ok((status, answer[end + 4..].to_vec()))
    }

    pub fn put(&self, key: &str, from: &Path) -> Result<()> {
        self.send("PUT", key, &fs::read(from)?).map(drop)
    }

    pub fn read(&self, key: &str) -> Result<Vec<u8>> {
        let (status, body) = self.send("GET", key, b"")?;
        ensure!(status == 200, "{key}: {status}");
        Ok(body)
    }

    /// Keys that begin so, in their order; up to 1,000.
    pub fn keys(&self, prefix: &str) -> Result<Vec<String>> {
        let list = format!("?{}&prefix={prefix}", self.cloud.listing());
        let (status, body) = self.send("GET", &list, b"")?;
        let text = String::from_utf8(body)?;
        ensure!(status == 200, "{status}: {text}");
        let (begin, end) = self.cloud.key();
        let keys = text.split(begin).skip(1);
        let keys = keys.filter_map(|it| it.split_once(end));
        Ok(keys.map(|(key, _)| key.to_owned()).collect())
    }

    /// Puts every file of a folder under a prefix.
    pub fn upload(&self, from: &Path, prefix: &str) -> Result<()> {
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let name = entry.file_name().into_string().unwrap_or_default();
            if entry.file_type()?.is_dir() {
                self.upload(&entry.path(), &format!("{prefix}/{name}"))?;
            } else {
                self.put(&format!("{prefix}/{name}"), &entry.path())?;
            }
        }
        Ok(())
    }

    /// Address of the store.
    pub fn store(&self) -> String {
        format!("{}://{}/history", self.cloud.scheme(), self.name)
    }

    /// This crate's program, with credentials and an endpoint in its environment.
    pub fn program(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_smtt-history"));
        command
            .envs(self.cloud.environment(self.port))
            .env("SMTT_LOG", "debug")
            .stdin(Stdio::null());
        command
    }

    /// Runs the program.
    pub fn run(&self, arguments: &[&str]) -> Result<Output> {
        Ok(self.program().args(arguments).output()?)
    }

    /// Runs the program, which must succeed; its standard output.
    pub fn done(&self, arguments: &[&str]) -> Result<String> {
        let done = self.run(arguments)?;
        let said = String::from_utf8_lossy(&done.stderr);
        ensure!(done.status.success(), "{arguments:?}: {said}");
        ensure!(!said.contains(SECRET), "{said}");
        Ok(String::from_utf8(done.stdout)?)
    }

    pub fn import(&self, log: &Path) -> Result<String> {
        let log = log.display().to_string();
        self.done(&["import", "--store", &self.store(), &log])
    }

    /// Starts a server.
    pub fn serve(&self, more: &[&str]) -> Result<Served> {
        serve_with(self.program(), &self.store(), more)
    }
}

/// A server that runs.
pub struct Served {
    pub port: u16,
    pub running: Running,
}

impl Served {
    /// Its log so far.
    pub fn log(&self) -> Result<String> {
        let text = fs::read_to_string(self.running.log())?;
        ensure!(!text.contains(SECRET), "the log has the secret");
        Ok(text)
    }
}

/// Starts a server of a store.
pub fn serve_with(mut command: Command, store: &str, more: &[&str]) -> Result<Served> {
    let port = free_port()?;
    let address = format!("127.0.0.1:{port}");
    command.args(["serve", "--listen", &address, "--store", store]);
    command.args(more);
    let log = lab()?.folder.path().join(format!("serve-{port}.log"));
    let running = Running::start("smtt-history", &mut command, &log)?;
    wait_for("smtt-history answers", LIMIT, || {
        Ok(get(port, "/api/v1/version").ok())
    })?;
    Ok(Served { port, running })
}

/// Serves a folder.
pub fn serve_folder(store: &Path) -> Result<Served> {
    let command = Command::new(env!("CARGO_BIN_EXE_smtt-history"));
    serve_with(command, &store.display().to_string(), &[])
}

/// An event log of so many tasks.
pub fn log(folder: &Path, tasks: usize) -> Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let log = folder.join(ID);
    let shape = Shape {
        tasks,
        stages: 7,
        executors: 5,
        cores: 4,
        sql_metrics: 3,
    };
    event_log::write(&log, &shape)?;
    Ok(log)
}

/// What an undisturbed import into a folder makes.
pub fn imported(folder: &Path, log: &Path) -> Result<PathBuf> {
    let store = folder.join("store");
    let mut import = Command::new(env!("CARGO_BIN_EXE_smtt-history"));
    output(import.arg("import").arg("--store").arg(&store).arg(log))?;
    Ok(store)
}

/// A fault that a proxy makes.
#[derive(Clone, Debug)]
pub enum Fault {
    /// None.
    None,
    /// An answer with this status instead of the server's.
    Status(u16),
    /// Status 503, not before the flag is set.
    Held(Arc<AtomicBool>),
    /// The answer, later.
    Late(Duration),
    /// The first half of the answer's bytes.
    Half,
    /// A body that is longer than it should be.
    TooLong,
    /// A body in which a function changes the text.
    Edit(fn(&str) -> String),
    /// No answer, and a note that the request came; with `true` the server has done what it asks.
    Stop(bool, Arc<AtomicBool>),
}

/// Says of each request, by its method and path with query, which fault it meets.
pub type Rule = dyn Fn(&str, &str) -> Fault + Send + Sync;

/// A proxy before the server.
pub struct Proxy {
    seen: Arc<Mutex<Vec<String>>>,
    rule: Arc<Mutex<Box<Rule>>>,
}

fn held<T>(lock: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxy {
    /// The thread ends with the process.
    pub fn start(bucket: &Bucket) -> Result<(Self, Bucket)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let proxy = Self {
            seen: Arc::default(),
            rule: Arc::new(Mutex::new(Box::new(|_, _| Fault::None))),
        };
        let (seen, rule, server) = (
            Arc::clone(&proxy.seen),
            Arc::clone(&proxy.rule),
            (bucket.server, bucket.cloud),
        );
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, rule) = (Arc::clone(&seen), Arc::clone(&rule));
                // A client that goes away ends its connection only.
                thread::spawn(move || pass(stream, server, &seen, &rule));
            }
        });
        let through = Bucket {
            port,
            ..bucket.clone()
        };
        Ok((proxy, through))
    }

    pub fn rule(&self, rule: impl Fn(&str, &str) -> Fault + Send + Sync + 'static) {
        *held(&self.rule) = Box::new(rule);
    }

    /// Requests so far, and forgets them.
    pub fn seen(&self) -> Vec<String> {
        std::mem::take(&mut *held(&self.seen))
    }
}

fn pass(
    mut stream: TcpStream,
    (server, cloud): (u16, Cloud),
    seen: &Mutex<Vec<String>>,
    rule: &Mutex<Box<Rule>>,
) -> Result<()> {
    stream.set_read_timeout(Some(LIMIT))?;
    let mut request = Vec::new();
    let mut buffer = [0; 65536];
    let end = loop {
        if let Some(at) = request.windows(4).position(|it| it == b"\r\n\r\n") {
            break at;
        }
        let count = stream.read(&mut buffer)?;
        ensure!(count > 0, "the client went away");
        request.extend_from_slice(&buffer[..count]);
    };
    let head = String::from_utf8_lossy(&request[..end]).into_owned();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse().ok())?
    });
    let whole = end + 4 + length.unwrap_or(0_usize);
    while request.len() < whole {
        let count = stream.read(&mut buffer)?;
        ensure!(count > 0, "the client went away");
        request.extend_from_slice(&buffer[..count]);
    }
    let mut words = head.split(' ');
    let (method, path) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    let path = cloud.plain(path);
    held(seen).push(format!("{method} {path}"));
    let mut fault = held(rule)(method, &path);
    if let Fault::Held(released) = &fault {
        while !released.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(10));
        }
        fault = Fault::Status(503);
    }
    if let Fault::Status(status) = fault {
        let body = "<Error><Code>SlowDown</Code><Message>later</Message></Error>";
        write!(
            stream,
            "HTTP/1.1 {status} Fault\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        return Ok(());
    }
    if let Fault::Stop(false, came) = &fault {
        came.store(true, Ordering::Relaxed);
        thread::sleep(LIMIT);
        return Ok(());
    }
    if matches!(fault, Fault::Edit(_)) {
        // The server knows no token that an edited listing has.
        let text = String::from_utf8_lossy(&request).into_owned();
        request = text
            .replace("continuation-token=again", "no-token=again")
            .into_bytes();
    }
    let end = request
        .windows(4)
        .position(|it| it == b"\r\n\r\n")
        .context("no head")?;
    // One request on each connection.
    request.splice(end..end, *b"\r\nConnection: close");
    let mut answer = exchange(server, &request)?;
    match fault {
        Fault::Late(pause) => thread::sleep(pause),
        Fault::Half => answer.truncate(answer.len() / 2),
        Fault::TooLong => answer = with_body(&answer, |body| body.extend_from_slice(&[0; 1000]))?,
        Fault::Edit(edit) => {
            answer = with_body(&answer, |body| {
                *body = edit(&String::from_utf8_lossy(body)).into_bytes();
            })?;
        }
        Fault::Stop(_, came) => {
            came.store(true, Ordering::Relaxed);
            thread::sleep(LIMIT);
            return Ok(());
        }
        Fault::None | Fault::Status(_) | Fault::Held(_) => {}
    }
    stream.write_all(&answer)?;
    stream.shutdown(Shutdown::Both)?;
    Ok(())
}

/// An answer with another body, and with its length.
fn with_body(answer: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Result<Vec<u8>> {
    let end = answer
        .windows(4)
        .position(|it| it == b"\r\n\r\n")
        .context("no head")?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let mut body = answer[end + 4..].to_vec();
    change(&mut body);
    let lines = head
        .lines()
        .filter(|it| !it.to_ascii_lowercase().starts_with("content-length"));
    let mut text = lines.collect::<Vec<_>>().join("\r\n").into_bytes();
    text.extend_from_slice(format!("\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes());
    text.extend_from_slice(&body);
    Ok(text)
}
