//! `smtt-ctl --host` through a real OpenSSH server on loopback, with keys and accounts of its own: the daemon's server
//! behind its socket answers as it does without ssh, and what is wrong is one line.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use smtt_common::counter::ExecutorCounters;
use smtt_daemon::metrics::MetricsSettings;
use smtt_daemon::server::{ControlSocket, serve_control};
use smtt_daemon::shared::{DaemonInfo, Shared};
use smtt_model::decode::{Event, ExecutorDescribed, Fact};
use smtt_model::readings::Readings;
use smtt_model::state::Limits;
use smtt_model::verdict::{Verdict, VerdictState};
use tokio::sync::oneshot;
use xtask::paths::Paths;
use xtask::process::{Running, free_port, wait_for};
use xtask::setup::openssh;

const LIMIT: Duration = Duration::from_secs(30);
/// Accounts of the server: the second one may not use the daemon's socket.
const ACCOUNTS: &str = "root:x:0:0:root:/root:/bin/sh
sshd:x:64990:65534::/nonexistent:/usr/sbin/nologin
guest:x:64991:65534::/:/bin/sh
";

/// The daemon's server behind a socket, with one executor.
struct Daemon {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    fn start(socket: &Path) -> Result<Self> {
        let info = DaemonInfo {
            version: "0.1.0".to_owned(),
            kernel_side: "test".to_owned(),
            telemetry_path: "/metrics".to_owned(),
            metrics: MetricsSettings::at_once(100),
            doctor: Vec::new,
        };
        let shared = Arc::new(Shared::new(info, Limits::default()));
        shared.set_ready(true);
        shared.set_verdicts(vec![Verdict {
            name: "fault".to_owned(),
            hook: String::new(),
            verdict: VerdictState::Ok,
            reason: String::new(),
        }]);
        shared.state().apply(Event {
            time_ns: 1,
            executor: 4711,
            pid: 4711,
            tid: 4711,
            uid: 1000,
            fact: Fact::ExecutorDescribed(Box::new(ExecutorDescribed {
                application_id: "app-1".to_owned(),
                executor_id: "7".to_owned(),
                ..ExecutorDescribed::default()
            })),
        });
        let mut counters = ExecutorCounters::default();
        counters.attributed.read = 5;
        let readings = Readings {
            executors: vec![(4711, counters)],
            access_known: true,
            major_known: true,
            ..Readings::default()
        };
        shared.state().add(&readings, 2);
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, bound) = std::sync::mpsc::channel();
        let path = socket.to_owned();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.expect("a runtime").block_on(async {
                let socket = ControlSocket::bind(&path, "").expect("bound");
                ready.send(()).expect("the test waits");
                let until = async {
                    let _ = stopped.await;
                };
                serve_control(shared, socket, until).await.expect("served");
            });
        });
        bound.recv().context("the socket is not served")?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A worker: an OpenSSH server with the daemon's socket.
struct Worker {
    port: u16,
    ctl: PathBuf,
    socket: PathBuf,
    folder: tempfile::TempDir,
    _daemon: Daemon,
    _server: Running,
}

impl Worker {
    fn start() -> Result<Self> {
        let paths = Paths::find()?;
        let ctl = paths.target.join("debug/smtt-ctl");
        ensure!(ctl.is_file(), "run `cargo build -p smtt-ctl`");
        let folder = tempfile::Builder::new()
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir()?;
        let at = |name: &str| folder.path().join(name);
        for name in ["host", "key", "other"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(at(name))
                .status();
            ensure!(made.context("ssh-keygen does not start")?.success());
        }
        let port = free_port()?;
        let key = fs::read_to_string(at("host.pub"))?;
        let key: Vec<&str> = key.split(' ').take(2).collect();
        fs::write(
            at("known"),
            format!("[127.0.0.1]:{port},[localhost]:{port} {}\n", key.join(" ")),
        )?;
        fs::copy(at("key.pub"), at("authorized"))?;
        fs::write(at("passwd"), ACCOUNTS)?;
        let shadow = ACCOUNTS.lines().filter_map(|line| line.split(':').next());
        let shadow: String = shadow
            .map(|name| format!("{name}:*:19000:0:99999:7:::\n"))
            .collect();
        fs::write(at("shadow"), shadow)?;
        fs::create_dir(at("run"))?;
        let shown = folder.path().display();
        fs::write(
            at("sshd_config"),
            format!(
                "ListenAddress 127.0.0.1\nPort {port}\nHostKey {shown}/host\nPidFile none\nUsePAM no\nStrictModes no\n\
                 AuthorizedKeysFile {shown}/authorized\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
                 PermitRootLogin prohibit-password\n"
            ),
        )?;
        for (name, key, known) in [
            ("right", "key", "known"),
            ("stranger", "other", "known"),
            ("unknown", "key", "none"),
        ] {
            let text = format!(
                "Host *\nIdentityFile {shown}/{key}\nIdentitiesOnly yes\nUserKnownHostsFile {shown}/{known}\n\
                 GlobalKnownHostsFile none\nForwardAgent yes\nRequestTTY force\nRemoteCommand false\n"
            );
            fs::write(at(name), text)?;
        }
        let server = openssh::server(&paths);
        // A root's server has an account and a folder of the system: here they are seen by no other process.
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c"]);
        command.arg(
            "mount --bind passwd /etc/passwd && mount --bind shadow /etc/shadow && mount -t tmpfs tmpfs /run && \
             mkdir -m 755 /run/sshd && exec \"$@\"",
        );
        command.arg("sh").arg(server.get_program());
        command.args(server.get_args());
        for (name, value) in server.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        command.args(["-D", "-e", "-f"]).arg(at("sshd_config"));
        command.current_dir(folder.path());
        let log = at("sshd.log");
        let mut running = Running::start("sshd", &mut command, &log)?;
        let open = || std::net::TcpStream::connect(("127.0.0.1", port)).ok();
        wait_for("sshd does not listen", LIMIT, || {
            ensure!(running.alive(), "sshd ended{}", running.hint());
            Ok(open())
        })?;
        let socket = at("smtt.sock");
        Ok(Self {
            port,
            ctl,
            _daemon: Daemon::start(&socket)?,
            socket,
            folder,
            _server: running,
        })
    }

    fn command(&self, config: &str) -> Command {
        let mut command = Command::new(&self.ctl);
        command
            .env("XDG_RUNTIME_DIR", self.folder.path().join("run"))
            .env("SMTT_SSH_CONFIG", self.folder.path().join(config))
            .env("SMTT_SOCKET", &self.socket)
            .env("COLUMNS", "120")
            .stdin(Stdio::null());
        command
    }

    fn ctl(&self, arguments: &[&str]) -> Result<Output> {
        Ok(self.command("right").args(arguments).output()?)
    }

    fn place(&self, account_and_host: &str) -> String {
        format!("{account_and_host}:{}", self.port)
    }

    /// ssh programs of this test that still run.
    fn running(&self) -> Result<Vec<String>> {
        let mark = self.folder.path().join("right").display().to_string();
        let mut found = Vec::new();
        for process in fs::read_dir("/proc")?.flatten() {
            let line = fs::read_to_string(process.path().join("cmdline")).unwrap_or_default();
            if line.starts_with("ssh\0") && line.contains(&mark) {
                found.push(line.replace('\0', " "));
            }
        }
        Ok(found)
    }

    /// Whether nothing of ssh stays behind.
    fn is_clean(&self) -> Result<()> {
        wait_for("ssh does not end", LIMIT, || {
            Ok(self.running()?.is_empty().then_some(()))
        })?;
        let left: Vec<_> = fs::read_dir(self.folder.path().join("run"))?.collect();
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A failure is one line with these words and this exit code.
fn fails(output: &Output, code: i32, part: &str) -> Result<()> {
    let said = text(&output.stderr);
    ensure!(
        output.status.code() == Some(code) && said.contains(part) && said.lines().count() == 1,
        "not {code}, {part:?}: {output:?}"
    );
    Ok(())
}

#[test]
fn a_daemon_answers_by_ssh_as_it_does_without() -> Result<()> {
    let worker = Worker::start()?;
    let place = worker.place("root@127.0.0.1");
    for command in [
        &["executors", "--json"][..],
        &["report", "--json"],
        &["rdds", "--csv"],
        &["executors"],
    ] {
        let direct = worker.ctl(command)?;
        let by_ssh = worker.ctl(&[&["--host", &place], command].concat())?;
        ensure!(
            direct.status.success() && by_ssh.status.success(),
            "{by_ssh:?}"
        );
        ensure!(direct.stdout == by_ssh.stdout, "{direct:?}\n{by_ssh:?}");
        ensure!(by_ssh.stderr.is_empty(), "{by_ssh:?}");
        worker.is_clean()?;
    }
    // However it ends, ssh ends too.
    let mut killed = worker.command("right");
    killed.args(["--host", &place, "executors", "--watch", "60"]);
    let mut killed = killed.stdout(Stdio::null()).spawn()?;
    wait_for("ssh does not run", LIMIT, || {
        let has_connected = !worker.running()?.is_empty()
            && fs::read_dir(worker.folder.path().join("run"))?
                .next()
                .is_none();
        Ok(has_connected.then_some(()))
    })?;
    killed.kill()?;
    killed.wait()?;
    worker.is_clean()
}

#[test]
fn workers_by_ssh_are_in_the_listings_of_a_cluster() -> Result<()> {
    let worker = Worker::start()?;
    let (first, second) = (
        worker.place("root@127.0.0.1"),
        worker.place("root@localhost"),
    );
    let hosts = worker.folder.path().join("hosts");
    fs::write(&hosts, format!("ssh://{first}\n"))?;
    let cluster = hosts.display().to_string();
    let asked = [
        "--cluster",
        &cluster,
        "--host",
        &second,
        "executors",
        "--json",
        "--deadline",
        "60",
    ];
    let output = worker.ctl(&asked)?;
    let said = text(&output.stderr);
    // Both names are one daemon.
    let line = format!("smtt-ctl: worker {second}: the same daemon as {first}, counted once\n");
    ensure!(output.status.success() && said == line, "{output:?}");
    let all: Value = serde_json::from_slice(&output.stdout)?;
    ensure!(
        all["summary"]["executors"] == 1 && all["rows_total"] == 1,
        "{all}"
    );
    ensure!(all["rows"][0]["worker"] == first.as_str(), "{all}");
    let dead = format!("root@127.0.0.1:{}", free_port()?);
    let guest = worker.place("guest@127.0.0.1");
    let asked = [
        "--host",
        &first,
        "--host",
        &dead,
        "--host",
        &guest,
        "executors",
        "--json",
        "--deadline",
        "60",
    ];
    let output = worker.ctl(&asked)?;
    ensure!(output.status.code() == Some(3), "{output:?}");
    let said = text(&output.stderr);
    for part in [
        format!("worker {dead}: ssh: "),
        format!("worker {guest}: its account has no permission for"),
    ] {
        ensure!(
            said.contains(&part) && said.lines().count() == 2,
            "{part} in {said}"
        );
    }
    ensure!(said.contains("Connection refused"), "{said}");
    let all: Value = serde_json::from_slice(&output.stdout)?;
    ensure!(all["summary"]["executors"] == 1, "{all}");
    worker.is_clean()
}

#[test]
fn what_is_wrong_with_ssh_is_one_line() -> Result<()> {
    let worker = Worker::start()?;
    let place = worker.place("root@127.0.0.1");
    let ask = ["--host", &place, "executors"];
    let config = |name: &str| worker.command(name).args(ask).output();
    fails(
        &config("stranger")?,
        69,
        "ssh is refused (Permission denied (publickey))",
    )?;
    fails(
        &config("unknown")?,
        69,
        "ssh does not know the host's key: run `ssh -p ",
    )?;
    let missing = worker.folder.path().join("none.sock").display().to_string();
    let asked = ["--socket", &missing, "--host", &place, "executors"];
    let part = format!("there is no socket {missing} on it");
    fails(&worker.ctl(&asked)?, 69, &part)?;
    let guest = worker.place("guest@127.0.0.1");
    let ask_guest = ["--host", &guest, "executors"];
    let part = "only root may use it ([control] group names a group for others)";
    fails(&worker.ctl(&ask_guest)?, 77, part)?;
    std::os::unix::fs::chown(&worker.socket, None, Some(1))?;
    let part = format!(
        "its account has no permission for {}: add it to the group daemon there",
        worker.socket.display()
    );
    fails(&worker.ctl(&ask_guest)?, 77, &part)?;
    let dead = format!("127.0.0.1:{}", free_port()?);
    fails(
        &worker.ctl(&["--host", &dead, "executors"])?,
        69,
        "Connection refused",
    )?;
    let mut without = worker.command("right");
    without.env("PATH", worker.folder.path()).args(ask);
    fails(&without.output()?, 69, "ssh is not installed here")?;
    // A server that accepts connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0")?;
    let silent = silent.local_addr()?.to_string();
    let start = Instant::now();
    fails(&worker.ctl(&["--host", &silent, "executors"])?, 69, "ssh")?;
    ensure!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
    for (arguments, part) in [
        (
            &["--host=-oProxyCommand=touch x", "executors"][..],
            "is no machine",
        ),
        (&["--host", "a b", "executors"], "is no machine"),
        (
            &["--host", &place, "--socket", "/a:b", "executors"],
            "cannot be used with --host",
        ),
        (&["--host", &place, "pmu"], "run it there, without --host"),
        (
            &["--host", &place, "--host", "b", "doctor"],
            "asks one worker",
        ),
    ] {
        let output = worker.ctl(arguments)?;
        let said = text(&output.stderr);
        ensure!(
            output.status.code() == Some(2) && said.contains(part),
            "{output:?}"
        );
    }
    worker.is_clean()
}
