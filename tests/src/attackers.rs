//! Hostile programs and their victim: the attackers of an unprivileged user, an executor at work, and what the daemon
//! says of it.

use std::ffi::CString;
use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_common::event::marker::LIBRARY_NAME;
use tempfile::TempDir;
use xtask::daemon::Daemon;

use crate::json::number;
use crate::lab::programs;
use crate::skip::leave_out;
use crate::workload::{Workload, library};

/// The unprivileged user of attackers.
pub const UNPRIVILEGED_UID: u32 = 65_534;
/// Argument of a workload that runs as this user.
pub const AS_UNPRIVILEGED: &str = "uid=65534";
/// Device number of `/dev/fuse`.
const FUSE: (u32, u32) = (10, 229);
/// Facts that the victim sends per second.
pub const PER_SECOND: u64 = 400;
/// How long the daemon may take to read the last counters after the victim has come to rest.
pub const READ_LIMIT: Duration = Duration::from_secs(180);

/// Attacks by files, of the program `attacker`.
const FILES: [&str; 11] = [
    "container",
    "exec",
    "swap",
    "giant-elf",
    "lease-library",
    "lease-slots",
    "long-maps",
    "many-slots",
    "wide-slots",
    "garbage-slots",
    "slow-readers",
];

/// Attacks by facts, faults and processes, of the program `workload`. They run into their limits or are killed.
const FACTS: [(&str, &[&str]); 13] = [
    // A child of a process whose pads were hit dies at its first one (docs/design/discovery.md).
    ("crowd", &["executors=128", "describe=no"]),
    ("garbage", &["registrations=1000000000"]),
    ("flood", &["ms=60000"]),
    ("flood", &["ms=60000"]),
    ("forks", &["children=100000000"]),
    ("churn", &["ms=600000", "per_second=90", "describe=no"]),
    ("turnover", &["ms=600000"]),
    ("contexts", &["pages=16384"]),
    ("storm", &["threads=2", "facts=100000000"]),
    ("registered", &["threads=300"]),
    ("children", &["children=200"]),
    ("worker_swaps", &["ms=600000"]),
    (
        "workers_that_are_none",
        &["namespaces=1", "per_second=2000", "ms=600000"],
    ),
];

/// What an attacker starts with: its program and the library, readable for all, and a folder of its own.
pub struct Scene {
    /// The folder with all of it.
    pub folder: TempDir,
    program: PathBuf,
    /// The library.
    pub library: PathBuf,
    /// The folder of its own.
    pub own: PathBuf,
}

impl Scene {
    /// A scene in a new folder.
    ///
    /// # Errors
    /// When a file cannot be copied.
    pub fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
        let (program, copy) = (
            folder.path().join("attacker"),
            folder.path().join(LIBRARY_NAME),
        );
        fs::copy(programs()?.join("attacker"), &program)?;
        fs::copy(library()?, &copy)?;
        let own = folder.path().join("own");
        fs::create_dir(&own)?;
        std::os::unix::fs::chown(&own, Some(UNPRIVILEGED_UID), Some(UNPRIVILEGED_UID))?;
        Ok(Self {
            folder,
            program,
            library: copy,
            own,
        })
    }

    /// Starts an attacker of this user and waits until it is ready.
    ///
    /// # Errors
    /// When it does not start, or ends.
    pub fn start(&self, name: &str, user: u32) -> Result<Attacker> {
        let mut child = Command::new(&self.program)
            .arg(name)
            .args([&self.library, &self.own])
            .uid(user)
            .gid(user)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("the attacker cannot be started")?;
        let output = child.stdout.take().context("it has no output")?;
        let mut attacker = Attacker {
            input: child.stdin.take(),
            child,
            output: BufReader::new(output),
            ready: String::new(),
        };
        attacker.ready = attacker.expect("READY")?;
        Ok(attacker)
    }

    /// Starts an attacker of the unprivileged user.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn attack(&self, name: &str) -> Result<Attacker> {
        self.start(name, UNPRIVILEGED_UID)
    }
}

/// A device of file systems that any user may open, as distributions have it.
///
/// # Errors
/// When it cannot be made.
pub fn fuse_device(path: &Path) -> Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the name is NUL-terminated.
    let made = unsafe {
        libc::mknod(
            name.as_ptr(),
            libc::S_IFCHR | 0o666,
            libc::makedev(FUSE.0, FUSE.1),
        )
    };
    ensure!(made == 0, "mknod: {}", std::io::Error::last_os_error());
    Ok(fs::set_permissions(path, Permissions::from_mode(0o666))?)
}

/// A running attacker; it is killed when this is dropped.
pub struct Attacker {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// What it said when it was ready.
    pub ready: String,
}

impl Attacker {
    /// Process id of the attacker.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends the line that it waits for.
    ///
    /// # Errors
    /// When it has ended.
    pub fn go(&mut self) -> Result<()> {
        let input = self.input.as_mut().context("it has no input")?;
        Ok(input.write_all(b"go\n")?)
    }

    /// Waits for a line that begins so, and returns the rest.
    ///
    /// # Errors
    /// When it says another line, or ends.
    pub fn expect(&mut self, start: &str) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        line.trim_end()
            .strip_prefix(start)
            .map(|rest| rest.trim().to_owned())
            .with_context(|| format!("the attacker said {line:?}, not {start}"))
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The daemon's row of a process.
///
/// # Errors
/// When the process is not listed.
pub fn row(daemon: &Daemon, pid: u32) -> Result<Value> {
    let rows = daemon.rows(&["executors"])?;
    rows.into_iter()
        .find(|row| row["pid"] == pid)
        .with_context(|| format!("process {pid} is not listed"))
}

/// What the daemon says of the victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Facts that arrived.
    pub facts: u64,
    /// Page faults with a context.
    pub attributed: u64,
    /// All page faults since the process began.
    pub faults: u64,
}

impl Counted {
    /// Asks the daemon.
    ///
    /// # Errors
    /// When the victim is not listed.
    pub fn read(daemon: &Daemon, pid: u32) -> Result<(Self, Value)> {
        let row = row(daemon, pid)?;
        let counted = Self {
            facts: row["facts_by_kind"]["blockRead"].as_u64().unwrap_or(0),
            attributed: number(&row, "page_faults_attributed")?,
            faults: number(&row, "page_faults")? + number(&row, "page_faults_before_tracing")?,
        };
        Ok((counted, row))
    }
}

/// The victim's counts of one phase.
///
/// # Errors
/// When the victim ends, or does not come to rest.
pub fn phase(victim: &mut Workload) -> Result<Value> {
    let said: Value = serde_json::from_str(&victim.expect("PHASE ")?)?;
    victim.quiet()?;
    Ok(said)
}

/// CPU time of one operation of the victim, in microseconds.
///
/// # Errors
/// When it has not said what it used.
pub fn cpu_us(said: &Value) -> Result<f64> {
    Ok(number(said, "cpu_ns")? as f64 / 1e3 / number(said, "operations")? as f64)
}

/// A server that answers at once, on a thread of this process.
///
/// # Errors
/// When there is no free port.
pub fn server_without_work() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let answered = stream.and_then(|mut stream| {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte)?;
                    head.extend(byte);
                }
                stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nfine\n")
            });
            if answered.is_err() {
                return;
            }
        }
    });
    Ok(port)
}

/// All attackers; they are killed when this is dropped.
pub struct Attackers {
    files: Vec<(&'static str, Attacker)>,
    facts: Vec<(&'static str, Workload)>,
}

impl Attackers {
    /// Starts all of them.
    ///
    /// # Errors
    /// When one does not start.
    pub fn start(scene: &Scene, victim: u32) -> Result<Self> {
        let mut files = Vec::new();
        for name in FILES {
            files.push((name, scene.attack(name).context(name)?));
        }
        if Path::new("/dev/fuse").exists() {
            files.push(("fuse", scene.start("fuse", 0).context("fuse")?));
            fuse_device(&scene.own.join("device"))?;
            files.push(("hang", scene.attack("hang").context("hang")?));
        } else {
            leave_out("fuse", "there is no /dev/fuse")?;
        }
        let user = format!("uid={UNPRIVILEGED_UID}");
        let mut facts = Vec::new();
        for (name, options) in FACTS {
            let options: Vec<&str> = options
                .iter()
                .copied()
                .chain([user.as_str(), "name=java"])
                .collect();
            facts.push((name, Workload::start(name, &options).context(name)?));
        }
        let claims = [
            format!("executor={victim}"),
            format!("pid={victim}"),
            "ms=60000".into(),
        ];
        let options: Vec<&str> = claims
            .iter()
            .map(String::as_str)
            .chain([user.as_str(), "name=java"])
            .collect();
        facts.push(("claims", Workload::start("claims", &options)?));
        for (_, attacker) in &mut facts {
            attacker.go()?;
        }
        Ok(Self { files, facts })
    }

    /// The next step of those that wait for one.
    ///
    /// # Errors
    /// When one has ended.
    pub fn step(&mut self) -> Result<()> {
        for (name, attacker) in &mut self.files {
            if *name == "exec" {
                attacker.go()?;
                attacker.expect("READY")?;
            }
        }
        Ok(())
    }

    /// Whether each still runs, so that it was an attack until the end.
    ///
    /// # Errors
    /// When one has ended.
    pub fn all_alive(&self) -> Result<()> {
        let files = self
            .files
            .iter()
            .map(|(name, attacker)| (name, attacker.pid()));
        let facts = self
            .facts
            .iter()
            .map(|(name, attacker)| (name, attacker.pid()));
        for (name, pid) in files.chain(facts) {
            // An ended one stays in /proc until its parent waits for it.
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let state = stat
                .rsplit_once(") ")
                .and_then(|(_, rest)| rest.chars().next());
            let lives = state.is_some_and(|state| !matches!(state, 'Z' | 'X'));
            ensure!(lives, "the attacker {name} has ended");
        }
        Ok(())
    }
}
