//! A daemon with its own configuration, socket and port, and queries to it through `smtt-ctl`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use smtt_common::event::marker::LIBRARY_NAME;

use crate::http;
use crate::paths::Paths;
use crate::process::{Running, free_port, wait_for};

/// How long loading the kernel side and the first scan may take.
const START_LIMIT: Duration = Duration::from_secs(300);

/// How long a query may stay unanswered on a busy machine; the time limit of `smtt-ctl` is shorter.
const ANSWER_LIMIT: Duration = Duration::from_secs(300);
/// The message of `smtt-ctl` at its time limit.
const GAVE_UP: &str = "no answer within";

/// Differences to the default configuration, except socket, port and library.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// More lines of TOML: whole sections other than `[web]`, `[control]` and `[marker]`.
    pub toml: String,
    /// More lines of the `[marker]` section.
    pub marker_toml: String,
    /// `[web] scrape_interval`; absent for metrics that show new counters at once.
    pub scrape_interval: Option<String>,
    /// Do not configure the path of the native library, only its digest: the daemon must find it in executors.
    pub without_library: bool,
    /// The marker's library that is configured; absent for the one of `cargo xtask setup`.
    pub library: Option<PathBuf>,
    /// The command that starts the daemon, with its arguments: as another user, for example. Empty for none.
    pub launcher: Vec<String>,
}

/// A running daemon; dropping this value stops it.
#[derive(Debug)]
pub struct Daemon {
    running: Running,
    ctl: PathBuf,
    socket: PathBuf,
    config: PathBuf,
    /// The daemon, behind its launcher.
    program: Vec<OsString>,
    /// Port of `/metrics` on 127.0.0.1.
    pub port: u16,
}

impl Daemon {
    /// Starts the daemon of the folder `programs` with its files in `folder`, and waits until it is ready.
    ///
    /// # Errors
    /// When the daemon does not get ready, with the end of its log.
    pub fn start(paths: &Paths, programs: &Path, folder: &Path, options: &Options) -> Result<Self> {
        let program = programs.join("smtt-daemon");
        let ctl = programs.join("smtt-ctl");
        for path in [&program, &ctl] {
            if !path.is_file() {
                bail!(
                    "{} is not built: run `cargo build -p smtt-daemon`, or `cargo xtask test`",
                    path.display()
                );
            }
        }
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let socket = folder.join("smtt.sock");
        let port = free_port()?;
        let built = paths.marker().join(LIBRARY_NAME);
        let library = options.library.as_ref().unwrap_or(&built);
        // The daemon probes known bytes only: it knows them from the file, or by their digest.
        let known = if options.without_library {
            format!("libraries = []\ndigests = [{:?}]", sha256(library)?)
        } else {
            format!("libraries = [{:?}]", library.display().to_string())
        };
        let interval = options.scrape_interval.as_deref().unwrap_or("0s");
        let text = format!(
            "[web]\nlisten_address = \"127.0.0.1:{port}\"\nnames = \"shown\"\nscrape_interval = {interval:?}\n\n[control]\nsocket = {:?}\n\n[marker]\n{known}\n{}\n{}",
            socket.display().to_string(),
            options.marker_toml,
            options.toml
        );
        // Tests leave nothing in the system's folder.
        let text = if text.contains("[postmortem]") {
            text
        } else {
            let folder = folder.join("postmortem").display().to_string();
            format!("{text}\n[postmortem]\nfolder = {folder:?}\n")
        };
        let config = folder.join("smtt.toml");
        fs::write(&config, text).with_context(|| format!("cannot write {}", config.display()))?;
        let launcher = options.launcher.iter().map(OsString::from);
        let program: Vec<OsString> = launcher.chain([program.into_os_string()]).collect();
        let running = launch(&program, &config)?;
        let mut daemon = Self {
            running,
            ctl,
            socket,
            config,
            program,
            port,
        };
        daemon.wait_ready()?;
        Ok(daemon)
    }

    fn wait_ready(&mut self) -> Result<()> {
        let port = self.port;
        let running = &mut self.running;
        wait_for("the daemon gets ready", START_LIMIT, || {
            if let Some(status) = running.poll()? {
                bail!("the daemon ended at once ({status}){}", running.hint());
            }
            Ok(http::get(port, "/-/ready").ok().map(|_| ()))
        })
        .with_context(|| format!("the log of the daemon is {}", self.running.log().display()))
    }

    /// Process id of the daemon.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Path of the daemon's log.
    #[must_use]
    pub fn log(&self) -> &Path {
        self.running.log()
    }

    /// Path of the daemon's socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// A command that queries the daemon, not started yet.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.ctl);
        command
            .arg("--socket")
            .arg(&self.socket)
            .args(arguments)
            .stdin(Stdio::null());
        command
    }

    /// Standard output of an `smtt-ctl` query. A degraded answer (exit code 1) is an answer. If the daemon is too busy
    /// to answer in time, the query is repeated.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn ask(&self, arguments: &[&str]) -> Result<String> {
        let start = Instant::now();
        let output = loop {
            let output = self
                .command(arguments)
                .output()
                .with_context(|| format!("cannot start {}", self.ctl.display()))?;
            let gave_up = String::from_utf8_lossy(&output.stderr).contains(GAVE_UP);
            if !gave_up || output.status.success() || start.elapsed() > ANSWER_LIMIT {
                break output;
            }
        };
        if !matches!(output.status.code(), Some(0 | 1)) {
            let error = String::from_utf8_lossy(&output.stderr);
            bail!(
                "smtt-ctl {} failed ({}): {}{}",
                arguments.join(" "),
                output.status,
                error.trim(),
                self.running.hint()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// As [`Self::ask`], with `--json`, parsed.
    ///
    /// # Errors
    /// When the answer is missing or not JSON.
    pub fn json(&self, arguments: &[&str]) -> Result<Value> {
        let mut all = arguments.to_vec();
        all.push("--json");
        let text = self.ask(&all)?;
        serde_json::from_str(&text)
            .with_context(|| format!("smtt-ctl {} did not answer in JSON: {text}", all.join(" ")))
    }

    /// A listing, as its rows.
    ///
    /// # Errors
    /// When the answer is not an array.
    pub fn rows(&self, arguments: &[&str]) -> Result<Vec<Value>> {
        match self.json(arguments)? {
            Value::Array(rows) => Ok(rows),
            other => bail!(
                "smtt-ctl {} --json is not an array: {other}",
                arguments.join(" ")
            ),
        }
    }

    /// Text of `/metrics`.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn metrics(&self) -> Result<String> {
        http::get(self.port, "/metrics")
    }

    /// Stops the daemon with SIGTERM, as systemd does.
    pub fn stop(&mut self) {
        self.running.stop();
    }

    /// Kills the daemon without a chance to clean up, and waits until it is gone.
    pub fn kill(&mut self) {
        self.running.signal(libc::SIGKILL);
        self.running.stop();
    }

    /// Starts the daemon again with the same configuration, after [`Self::stop`] or [`Self::kill`].
    ///
    /// # Errors
    /// When the daemon does not get ready.
    pub fn start_again(&mut self) -> Result<()> {
        self.running = launch(&self.program, &self.config)?;
        self.wait_ready()
    }
}

/// Digest of a file, as `sha256sum` prints it.
fn sha256(path: &Path) -> Result<String> {
    let bytes = fs::read(path)
        .with_context(|| format!("{} cannot be read: run `cargo xtask setup`", path.display()))?;
    Ok(Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

fn launch(program: &[OsString], config: &Path) -> Result<Running> {
    let (first, more) = program.split_first().context("no program")?;
    let mut command = Command::new(first);
    command
        .args(more)
        .arg("--config")
        .arg(config)
        .env_remove("NOTIFY_SOCKET");
    Running::start(
        "smtt-daemon",
        &mut command,
        &config.with_file_name("daemon.log"),
    )
}
