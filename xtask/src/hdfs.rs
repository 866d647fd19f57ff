//! An HDFS for tests: a NameNode and a DataNode of Hadoop in one JVM on loopback, with Hadoop's own client as a witness. The
//! user of the tests may do everything in it.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::paths::{Jdk, Paths};
use crate::process::hint;
use crate::setup::hdfs;

/// Time limit of a command.
const LIMIT: Duration = Duration::from_secs(60);
/// Packages of the JDK whose members Hadoop 2.7 names or opens.
const OPENED: [&str; 6] = [
    "java.base/java.lang",
    "java.base/java.util",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/sun.nio.ch",
    "java.security.jgss/sun.security.krb5",
];

/// A file of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its path.
    pub path: String,
    /// The length that the NameNode knows.
    pub bytes: u64,
    /// Whether its writer has closed it.
    pub is_closed: bool,
    /// Its mode, as `rw-r-----`.
    pub mode: String,
}

/// The servers. They end when this value is dropped, or this process ends.
#[derive(Debug)]
pub struct Hdfs {
    /// Port of the NameNode.
    pub port: u16,
    child: Child,
    log: std::path::PathBuf,
    talk: Mutex<(ChildStdin, Receiver<String>)>,
}

impl Hdfs {
    /// Starts the servers with their files in a folder.
    ///
    /// # Errors
    /// When they cannot be set up, or do not start.
    pub fn start(paths: &Paths, folder: &Path) -> Result<Self> {
        hdfs::servers(paths)?;
        let home = hdfs::folder(paths);
        std::fs::create_dir_all(folder)?;
        let log = folder.join("hdfs.log");
        let mut java = Command::new(Jdk::main()?.tool("java"));
        java.args([
            "-Xmx192m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Xshare:auto",
        ]);
        for package in OPENED {
            java.arg(format!("--add-opens={package}=ALL-UNNAMED"));
        }
        java.arg("-cp")
            .arg(format!("{0}/classes:{0}/jars/*", home.display()))
            .arg("io.smtt.fixture.hdfs.SmallHdfs")
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?);
        let mut child = java.spawn().context("cannot start java")?;
        let input = child.stdin.take().context("has an input")?;
        let answers = BufReader::new(child.stdout.take().context("has an output")?);
        let (send, lines) = channel();
        thread::spawn(move || {
            for line in answers.lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        let mut hdfs = Self {
            port: 0,
            child,
            log,
            talk: Mutex::new((input, lines)),
        };
        let ready = hdfs.line()?;
        let port = ready.strip_prefix("ready\t").context("no port")?;
        hdfs.port = port.parse()?;
        Ok(hdfs)
    }

    fn line(&self) -> Result<String> {
        let talk = self.talk.lock().unwrap_or_else(PoisonError::into_inner);
        let line = talk.1.recv_timeout(LIMIT);
        line.with_context(|| format!("HDFS does not answer{}", hint(&self.log)))
    }

    /// Gives a command to Hadoop's client or to the servers; `tests/fixture/hdfs` has them.
    ///
    /// # Errors
    /// When it fails, or takes too long.
    pub fn ask(&self, words: &[&str]) -> Result<Vec<String>> {
        let mut talk = self.talk.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(talk.0, "{}", words.join("\t"))?;
        talk.0.flush()?;
        let mut said = Vec::new();
        loop {
            let line = talk.1.recv_timeout(LIMIT);
            let line = line.with_context(|| format!("{words:?}: no answer{}", hint(&self.log)))?;
            if line == "ok" {
                return Ok(said);
            }
            if let Some(error) = line.strip_prefix("error\t") {
                bail!("{words:?}: {error}");
            }
            said.push(line);
        }
    }

    /// Files below a folder, in the order of their paths.
    ///
    /// # Errors
    /// When the NameNode gives no answer.
    pub fn list(&self, folder: &str) -> Result<Vec<Listed>> {
        let mut all = Vec::new();
        for line in self.ask(&["list", folder])? {
            let words: Vec<&str> = line.split('\t').collect();
            let [path, bytes, state, mode] = words[..] else {
                bail!("no file of a listing: {line}");
            };
            all.push(Listed {
                path: path.to_owned(),
                bytes: bytes.parse()?,
                is_closed: state == "closed",
                mode: mode.to_owned(),
            });
        }
        all.sort_by(|left, right| left.path.cmp(&right.path));
        Ok(all)
    }

    /// Puts every file of a local folder below a folder.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn upload(&self, from: &Path, folder: &str) -> Result<()> {
        for entry in std::fs::read_dir(from)? {
            let entry = entry?;
            let to = format!("{folder}/{}", entry.file_name().display());
            if entry.file_type()?.is_dir() {
                self.upload(&entry.path(), &to)?;
            } else {
                self.ask(&["put", &entry.path().display().to_string(), &to])?;
            }
        }
        Ok(())
    }

    /// Process id of the servers.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Hdfs {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
