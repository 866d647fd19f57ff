//! A real NameNode and DataNode, a proxy before the NameNode that stops or holds requests, and this crate's program as a user
//! runs it.

use std::fs;
use std::io::{Read, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use xtask::event_log::ID;
use xtask::hdfs::{Hdfs, Listed};
use xtask::paths::Paths;

use crate::lab::{self, LIMIT, Served, lab};

static HDFS: OnceLock<Result<Hdfs, String>> = OnceLock::new();

/// The one HDFS of tests that do not stop it. Each test has a folder of its own.
pub fn hdfs() -> Result<&'static Hdfs> {
    let hdfs = HDFS.get_or_init(|| own("hdfs").map_err(|error| format!("{error:#}")));
    hdfs.as_ref().map_err(|error| anyhow::anyhow!("{error}"))
}

/// A new one, with its files below the folder of all tests.
pub fn own(name: &str) -> Result<Hdfs> {
    Hdfs::start(&Paths::find()?, &lab()?.folder.path().join(name))
}

/// A folder of an HDFS, and the port on which a program asks for it.
#[derive(Clone)]
pub struct Place<'a> {
    pub hdfs: &'a Hdfs,
    pub folder: String,
    pub port: u16,
}

impl<'a> Place<'a> {
    pub fn new(hdfs: &'a Hdfs, name: &str) -> Self {
        Self {
            hdfs,
            folder: format!("/{name}"),
            port: hdfs.port,
        }
    }

    /// Address of a name in the folder.
    pub fn address(&self, name: &str) -> String {
        format!("hdfs://127.0.0.1:{}{}/{name}", self.port, self.folder)
    }

    pub fn store(&self) -> String {
        self.address("history")
    }

    /// Path of the application in the store.
    pub fn path(&self) -> String {
        format!("{}/history/{ID}", self.folder)
    }

    /// The files of the application, without their folder.
    pub fn files(&self) -> Result<Vec<Listed>> {
        let path = self.path();
        let mut files = self.hdfs.list(&path)?;
        for file in &mut files {
            file.path = file.path[path.len() + 1..].to_owned();
        }
        Ok(files)
    }

    pub fn names(&self) -> Result<Vec<String>> {
        Ok(self.files()?.into_iter().map(|it| it.path).collect())
    }

    /// Reads a file with Hadoop's client.
    pub fn read(&self, path: &str) -> Result<Vec<u8>> {
        let folder = tempfile::tempdir()?;
        let to = folder.path().join("file");
        self.hdfs.ask(&["get", path, &to.display().to_string()])?;
        Ok(fs::read(to)?)
    }

    pub fn put(&self, from: &Path, name: &str) -> Result<()> {
        let to = format!("{}/{name}", self.folder);
        self.hdfs.ask(&["put", &from.display().to_string(), &to])?;
        Ok(())
    }

    pub fn upload(&self, from: &Path) -> Result<()> {
        self.hdfs.upload(from, &format!("{}/history", self.folder))
    }

    /// Removes the store.
    pub fn empty(&self) -> Result<()> {
        let store = format!("{}/history", self.folder);
        self.hdfs.ask(&["remove", &store]).map(drop)
    }

    /// Tables that the pointer names, byte by byte those of a folder; `None` where there is no pointer. Every file is closed.
    pub fn tables(&self, reference: &Path, tables: &[&str]) -> Result<Option<()>> {
        let files = self.files()?;
        let pointers = files.iter().filter(|it| it.path.starts_with("tables-"));
        let Some(pointer) = pointers.last() else {
            return Ok(None);
        };
        ensure!(pointer.is_closed, "{pointer:?}");
        let text = self.read(&format!("{}/{}", self.path(), pointer.path))?;
        let pointer: serde_json::Value = serde_json::from_slice(&text)?;
        let generation = pointer["generation"].as_str().context("no generation")?;
        for table in tables {
            let name = table.replace(".parquet", &format!(".{generation}.parquet"));
            let file = files.iter().find(|it| it.path == name);
            ensure!(file.is_some_and(|it| it.is_closed), "{name}: {file:?}");
            let ours = self.read(&format!("{}/{name}", self.path()))?;
            ensure!(
                ours == fs::read(reference.join(ID).join(table))?,
                "{table} differs"
            );
        }
        Ok(Some(()))
    }

    /// How many tables are hidden, and how many are not. Of the latter each is closed and has a footer.
    pub fn whole(&self) -> Result<(usize, usize)> {
        let files = self.files()?;
        let tables = files.iter().filter(|it| it.path.ends_with(".parquet"));
        let (hidden, visible): (Vec<_>, Vec<_>) = tables.partition(|it| it.path.starts_with('.'));
        for file in &visible {
            let bytes = self.read(&format!("{}/{}", self.path(), file.path))?;
            ensure!(file.is_closed && bytes.ends_with(b"PAR1"), "{file:?}");
        }
        Ok((hidden.len(), visible.len()))
    }

    pub fn program(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_smtt-history"));
        command
            .env_remove("HADOOP_CONF_DIR")
            .env_remove("HADOOP_HOME")
            .env("SMTT_LOG", "info")
            .stdin(Stdio::null());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Result<Output> {
        Ok(self.program().args(arguments).output()?)
    }

    /// Runs the program, which must succeed; its standard output.
    pub fn done(&self, arguments: &[&str]) -> Result<String> {
        let done = self.run(arguments)?;
        let said = String::from_utf8_lossy(&done.stderr);
        ensure!(done.status.success(), "{arguments:?}: {said}");
        Ok(String::from_utf8(done.stdout)?)
    }

    pub fn import(&self, log: &Path, more: &[&str]) -> Vec<String> {
        let mut arguments = vec!["import".to_owned(), "--store".to_owned(), self.store()];
        arguments.extend(more.iter().map(|it| (*it).to_owned()));
        arguments.push(log.display().to_string());
        arguments
    }

    pub fn serve(&self, more: &[&str]) -> Result<Served> {
        lab::serve_with(self.program(), &self.store(), more)
    }
}

/// What happens to a request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Nothing.
    None,
    /// No answer, and a note that the request came; with `true` the NameNode has done what it asks.
    Stop(bool, Arc<AtomicBool>),
    /// It waits until the second flag is set, after a note that it came.
    Hold(Arc<AtomicBool>, Arc<AtomicBool>),
}

/// Says of each request, by the name of its method, which fault it meets.
type Rule = dyn Fn(&str) -> Fault + Send + Sync;

/// A proxy before the NameNode.
pub struct Proxy {
    rule: Arc<Mutex<Box<Rule>>>,
    /// Port of a DataNode that answers have in place of the real one; 0 for none.
    datanode: Arc<AtomicU16>,
}

fn held<T>(lock: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxy {
    /// The threads end with the process.
    pub fn start<'a>(place: &Place<'a>) -> Result<(Self, Place<'a>)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let through = Place {
            port: listener.local_addr()?.port(),
            ..place.clone()
        };
        let rule: Arc<Mutex<Box<Rule>>> = Arc::new(Mutex::new(Box::new(|_| Fault::None)));
        let proxy = Self {
            rule: Arc::clone(&rule),
            datanode: Arc::default(),
        };
        let datanode = Arc::clone(&proxy.datanode);
        let server = place.hdfs.port;
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (rule, datanode) = (Arc::clone(&rule), Arc::clone(&datanode));
                // A client that goes away ends its connection only.
                thread::spawn(move || pass(stream, server, &rule, datanode));
            }
        });
        Ok((proxy, through))
    }

    pub fn rule(&self, rule: impl Fn(&str) -> Fault + Send + Sync + 'static) {
        *held(&self.rule) = Box::new(rule);
    }

    /// From now on the NameNode's answers name a DataNode at this port.
    pub fn datanode(&self, port: u16) {
        self.datanode.store(port, Ordering::Relaxed);
    }
}

/// A frame with its length.
fn frame(from: &mut impl Read) -> Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let bytes = u32::from_be_bytes(length) as usize;
    let mut frame = vec![0; 4 + bytes];
    frame[..4].copy_from_slice(&length);
    from.read_exact(&mut frame[4..])?;
    Ok(frame)
}

/// A number of Protocol Buffers, and what follows.
fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let end = bytes.iter().position(|it| it & 0x80 == 0)?;
    let digits = bytes[..=end].iter().rev();
    let number = digits.fold(0, |sum, it| sum << 7 | usize::from(it & 0x7f));
    Some((number, &bytes[end + 1..]))
}

/// The method of a request: the first field of its second message.
fn method(frame: &[u8]) -> Option<&str> {
    let (header, rest) = number(frame.get(4..)?)?;
    let (_, message) = number(rest.get(header..)?)?;
    let (length, name) = number(message.strip_prefix(&[0x0a])?)?;
    std::str::from_utf8(name.get(..length)?).ok()
}

/// Puts a port in place of a DataNode's: the fourth field of its id, before the fifth. Both are ports that need three bytes.
fn rename_datanode(answer: &mut [u8], port: u16) {
    for at in 0..answer.len().saturating_sub(4) {
        let is_port = matches!(
            answer[at..at + 5],
            [0x20, 0x80..=0xff, 0x80..=0xff, 1..=3, 0x28]
        );
        if is_port {
            let low = |shift: u16| u8::try_from(port >> shift & 0x7f).unwrap_or_default();
            answer[at + 1..at + 4].copy_from_slice(&[low(0) | 0x80, low(7) | 0x80, low(14)]);
        }
    }
}

fn pass(
    mut client: TcpStream,
    server: u16,
    rule: &Mutex<Box<Rule>>,
    datanode: Arc<AtomicU16>,
) -> Result<()> {
    let mut server = TcpStream::connect(("127.0.0.1", server))?;
    server.set_nodelay(true)?;
    client.set_nodelay(true)?;
    // The first bytes, which are no frame, and the frame of the connection.
    let mut begin = [0; 7];
    client.read_exact(&mut begin)?;
    server.write_all(&begin)?;
    server.write_all(&frame(&mut client)?)?;
    let silent: Arc<Mutex<Option<Arc<AtomicBool>>>> = Arc::default();
    let (mut from, mut to, is_silent) = (
        server.try_clone()?,
        client.try_clone()?,
        Arc::clone(&silent),
    );
    thread::spawn(move || -> Result<()> {
        loop {
            let Ok(mut answer) = frame(&mut from) else {
                return Ok(to.shutdown(Shutdown::Both)?);
            };
            match datanode.load(Ordering::Relaxed) {
                0 => {}
                port => rename_datanode(&mut answer, port),
            }
            match &*held(&is_silent) {
                Some(came) => came.store(true, Ordering::Relaxed),
                None => to.write_all(&answer)?,
            }
        }
    });
    loop {
        let Ok(request) = frame(&mut client) else {
            return Ok(server.shutdown(Shutdown::Both)?);
        };
        let method = method(&request);
        if method == Some("complete") {
            // Before the DataNode has reported the block, the answer is no, and the client waits half a second.
            thread::sleep(Duration::from_millis(10));
        }
        let fault = method.map(|method| held(rule)(method));
        match fault.unwrap_or(Fault::None) {
            Fault::None => {}
            Fault::Stop(false, came) => {
                came.store(true, Ordering::Relaxed);
                continue;
            }
            Fault::Stop(true, came) => *held(&silent) = Some(came),
            Fault::Hold(came, released) => {
                came.store(true, Ordering::Relaxed);
                lab_wait(&released);
            }
        }
        server.write_all(&request)?;
    }
}

fn lab_wait(flag: &AtomicBool) {
    let begun = std::time::Instant::now();
    while !flag.load(Ordering::Relaxed) && begun.elapsed() < LIMIT {
        thread::sleep(Duration::from_millis(10));
    }
}
