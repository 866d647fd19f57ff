//! The daemon's server, a real Prometheus that scrapes it, and a relay between them that sees what passes.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use smtt_daemon::metrics::Exporter;
use smtt_daemon::server::{self, ControlSocket, Sources, Web};
use smtt_daemon::shared::Shared;
use tokio::net::TcpListener;
use tokio::sync::watch;
use xtask::http;
use xtask::process::{Running, free_port, wait_for};

use crate::LIMIT;

/// A daemon's server on threads of its own.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) exporter: Arc<Exporter>,
    pub(crate) stop: watch::Sender<bool>,
    _runtime: tokio::runtime::Runtime,
}

impl Served {
    pub(crate) fn start(
        shared: &Arc<Shared>,
        folder: &Path,
        readers: impl Into<Web>,
    ) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (stop, stopped) = watch::channel(false);
        let sources = Sources::from(Arc::clone(shared));
        let exporter = Arc::clone(&sources.exporter);
        let address = runtime.block_on(async {
            let socket = ControlSocket::bind(&folder.join("smtt.sock"), "")?;
            let web = TcpListener::bind("127.0.0.1:0").await?;
            let address = web.local_addr()?;
            let until = || server::until_stopped(stopped.clone());
            server::spawn(sources, socket, web, readers, until)?;
            anyhow::Ok(address)
        })?;
        Ok(Self {
            address,
            exporter,
            stop,
            _runtime: runtime,
        })
    }

    pub(crate) fn stop(&self) -> Result<()> {
        let sent = self.stop.send(true);
        sent.context("the server ended by itself")
    }
}

/// What passed between Prometheus and the daemon.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Passed {
    pub(crate) scrapes: usize,
    /// Scrapes that asked for gzip and got it.
    pub(crate) compressed: usize,
    pub(crate) bytes: usize,
}

/// A listener before the daemon's that sees what passes.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    pub(crate) passed: Arc<Mutex<Passed>>,
}

impl Relay {
    pub(crate) fn start(to: SocketAddr) -> Result<Self> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let passed = Arc::new(Mutex::new(Passed::default()));
        let noted = Arc::clone(&passed);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A daemon that is gone refuses, and so does the relay, by closing.
                let _ = relay(client, to, &noted);
            }
        });
        Ok(Self { address, passed })
    }

    pub(crate) fn passed(&self) -> Passed {
        *self.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Passes one request and its answer; the daemon's connections have no more.
pub(crate) fn relay(
    mut client: TcpStream,
    to: SocketAddr,
    noted: &Mutex<Passed>,
) -> std::io::Result<()> {
    let mut server = TcpStream::connect(to)?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte)?;
        head.extend_from_slice(&byte);
    }
    server.write_all(&head)?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer)?;
    let asked = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let begin = &answer[..answer.len().min(1000)];
    let given = String::from_utf8_lossy(begin).to_ascii_lowercase();
    let is_gzip =
        asked.contains("\naccept-encoding: gzip") && given.contains("\ncontent-encoding: gzip\r");
    {
        let mut passed = noted.lock().unwrap_or_else(PoisonError::into_inner);
        passed.scrapes += 1;
        passed.compressed += usize::from(is_gzip);
        passed.bytes += answer.len();
    }
    client.write_all(&answer)?;
    client.shutdown(Shutdown::Both)
}

/// A Prometheus, and its port.
pub(crate) struct Prometheus {
    _running: Running,
    pub(crate) port: u16,
}

impl Prometheus {
    /// `more` are further keys of the scrape job.
    pub(crate) fn start(
        programs: &Path,
        packaging: &Path,
        folder: &Path,
        target: SocketAddr,
        more: &str,
    ) -> Result<Self> {
        let rules = ["recording.yml", "alerts.yml"].map(|name| packaging.join(name));
        let config = format!(
            "global: {{scrape_interval: 5s, scrape_timeout: 5s, evaluation_interval: 1s}}\n\
             rule_files: [{:?}, {:?}]\n\
             scrape_configs:\n  - job_name: smtt\n    static_configs: [{{targets: [\"{target}\"]}}]\n{more}",
            rules[0], rules[1]
        );
        Self::with_config(programs, folder, &config)
    }

    /// As an operator starts it: the packaged configuration for workers by name, with this target in place of them, and
    /// without the password.
    pub(crate) fn installed(
        programs: &Path,
        packaging: &Path,
        folder: &Path,
        target: SocketAddr,
    ) -> Result<Self> {
        let text = fs::read_to_string(packaging.join("scrape/static.yml"))?;
        let mut config = text.clone();
        for (there, here) in [
            ("/etc/prometheus/smtt/", format!("{}/", packaging.display())),
            (
                "    basic_auth:\n      username: prometheus\n      password_file: /etc/prometheus/smtt-password\n",
                String::new(),
            ),
            (
                "\"worker-1:10871\", \"worker-2:10871\"",
                format!("{target:?}"),
            ),
        ] {
            ensure!(config.contains(there), "no {there} in {text}");
            config = config.replace(there, &here);
        }
        Self::with_config(programs, folder, &config)
    }

    /// With the text of its configuration.
    pub(crate) fn with_config(programs: &Path, folder: &Path, config: &str) -> Result<Self> {
        let path = folder.join("prometheus.yml");
        fs::write(&path, config)?;
        let port = free_port()?;
        let mut command = Command::new(programs.join("prometheus"));
        command
            .arg(format!("--config.file={}", path.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.join("tsdb").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let running = Running::start("prometheus", &mut command, &folder.join("prometheus.log"))?;
        wait_for("Prometheus gets ready", LIMIT, || {
            Ok(http::get(port, "/-/ready").ok())
        })
        .with_context(|| running.hint())?;
        Ok(Self {
            _running: running,
            port,
        })
    }

    /// The result of an expression, now or at a time in seconds since 1970.
    pub(crate) fn ask(&self, expression: &str, time: Option<f64>) -> Result<Vec<Value>> {
        let encoded: String = expression
            .bytes()
            .map(|byte| match byte {
                byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
                byte => format!("%{byte:02X}"),
            })
            .collect();
        let time = time.map_or_else(String::new, |time| format!("&time={time:.3}"));
        let text = http::get(self.port, &format!("/api/v1/query?query={encoded}{time}"))
            .with_context(|| format!("Prometheus refuses {expression}"))?;
        let answer: Value = serde_json::from_str(&text)?;
        let rows = answer["data"]["result"].as_array();
        rows.cloned().with_context(|| format!("no result: {text}"))
    }

    /// A single number.
    pub(crate) fn number(&self, expression: &str, time: Option<f64>) -> Result<f64> {
        let rows = self.ask(expression, time)?;
        let value = rows.first().and_then(|row| row["value"][1].as_str());
        let value = value.with_context(|| format!("{expression} has no value"))?;
        Ok(value.parse()?)
    }

    /// Time of the last scrape.
    pub(crate) fn scraped(&self) -> Result<f64> {
        self.number("timestamp(smtt_build_info)", None)
    }

    /// Series that exist, by its status, and series that were ever made.
    pub(crate) fn series(&self) -> Result<(u64, u64)> {
        let status: Value = serde_json::from_str(&http::get(self.port, "/api/v1/status/tsdb")?)?;
        let active = status["data"]["headStats"]["numSeries"].as_u64();
        let own = http::get(self.port, "/metrics")?;
        let made = own
            .lines()
            .find_map(|line| line.strip_prefix("prometheus_tsdb_head_series_created_total "));
        let made = made.context("Prometheus does not say how many series it made")?;
        Ok((active.context("no numSeries")?, made.parse::<f64>()? as u64))
    }
}

/// Runs promtool; `input` is its standard input.
pub(crate) fn promtool(
    programs: &Path,
    folder: &Path,
    arguments: &[&str],
    input: &str,
) -> Result<()> {
    let mut child = Command::new(programs.join("promtool"))
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("promtool does not start: run `cargo xtask setup`")?;
    let mut stdin = child.stdin.take().context("no standard input")?;
    let text = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output()?;
    let _ = writer.join();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    ensure!(output.status.success(), "promtool {arguments:?}: {said}");
    Ok(())
}
