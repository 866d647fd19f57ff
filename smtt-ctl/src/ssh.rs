//! `--host`: the socket of another machine's daemon, forwarded by the system's ssh.
//!
//! `ssh` brings its own configuration, keys and agent. It never asks at the terminal, nor does the ssh that it starts
//! for a jump. A script at the other end says whether the socket can be used and ends when this program does.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, BufRead as _, BufReader, Read};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::UnixStream;
use tokio::sync::oneshot;

use crate::args::ClusterArgs;

/// Time in which ssh connects, at least.
const CONNECT: Duration = Duration::from_secs(10);
/// Time beyond its own limit in which ssh complains and ends.
const END: Duration = Duration::from_secs(2);
/// Time that ssh has to end with what it started, and the interval of looking for its end.
const LAST: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(5);
/// Bytes of what ssh and the other machine report that are read.
const SAID_MAX: u64 = 64 << 10;
/// Beginning of the lines of the script at the other end.
const MARK: &str = "smtt-ctl: ";
/// Options that hold whatever the user's configuration says: no questions, no rights for the other machine, no
/// connection that outlives this program. Whether the socket is forwarded shows where it is opened: other forwards of
/// the configuration may fail.
const OPTIONS: [&str; 12] = [
    "BatchMode=yes",
    "ExitOnForwardFailure=no",
    "StreamLocalBindMask=0177",
    "ControlMaster=no",
    "ControlPath=none",
    "RemoteCommand=none",
    "PermitLocalCommand=no",
    "ForwardAgent=no",
    "ForwardX11=no",
    "GSSAPIDelegateCredentials=no",
    "Tunnel=no",
    "LogLevel=ERROR",
];

/// Environment of ssh. A jump is an ssh of its own, which inherits this but no option: instead of asking at the terminal
/// it runs a program that gives no answer (OpenSSH 8.4).
const ENVIRONMENT: [(&str, &str); 2] = [
    ("SSH_ASKPASS_REQUIRE", "force"),
    ("SSH_ASKPASS", "/bin/false"),
];

/// Why the socket of another machine cannot be used. One line each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SshError {
    /// There is no ssh on this machine.
    #[error(
        "ssh is not installed here: apt install openssh-client, or query the daemon's port with --cluster"
    )]
    NotInstalled,
    /// The other machine's key is unknown.
    #[error("ssh does not know the host's key: run `ssh {0}` once to accept it")]
    UnknownKey(String),
    /// The other machine accepts no key of this user.
    #[error(
        "ssh is refused ({said}): `ssh -o BatchMode=yes {place}` must log in without a question, with a key or an agent"
    )]
    Refused {
        /// The machine as ssh's arguments name it.
        place: String,
        /// What ssh reports.
        said: String,
    },
    /// No daemon's socket is there.
    #[error(
        "there is no socket {0} on it: is smtt-daemon running there (systemctl status smtt)? --socket names another one"
    )]
    NoSocket(String),
    /// The account may not use the socket.
    #[error("its account has no permission for {socket}: {}", remedy(.group))]
    NoPermission {
        /// The socket.
        socket: String,
        /// The group that may use it.
        group: String,
    },
    /// It takes too long.
    #[error("ssh does not connect within {0:?}")]
    Late(Duration),
    /// Another reason.
    #[error("ssh: {0}")]
    Failed(String),
}

/// What gives an account the permission for a socket of this group.
fn remedy(group: &str) -> String {
    match group {
        "root" => "only root may use it ([control] group names a group for others)".to_owned(),
        group => format!("add it to the group {group} there (usermod -aG {group} USER)"),
    }
}

/// A machine as ssh names it: `[user@]host[:port]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The text that names it.
    pub text: String,
    /// `host` or `user@host`.
    destination: String,
    port: Option<u16>,
}

impl Place {
    /// Reads a name.
    ///
    /// # Errors
    /// When it is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no machine: write [USER@]HOST or [USER@]HOST:PORT");
        let (user, rest) = match text.rsplit_once('@') {
            Some((user, rest)) => (Some(user), rest),
            None => (None, text),
        };
        let port = |port: &str| {
            port.parse()
                .ok()
                .filter(|port| *port != 0)
                .ok_or_else(wrong)
        };
        let (host, port) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, end)) => {
                let end = end.strip_prefix(':').ok_or_else(wrong)?;
                (host, Some(port(end)?))
            }
            // An address of version 6 without a port has several colons.
            None if rest.matches(':').count() > 1 => (rest, None),
            None => match rest.split_once(':') {
                Some((host, end)) => (host, Some(port(end)?)),
                None => (rest, None),
            },
        };
        let is_name = |name: &str, more: &str| {
            let is_letter = |letter: char| letter.is_ascii_alphanumeric() || more.contains(letter);
            // What begins with a dash would be an option.
            (1..=253).contains(&name.len()) && !name.starts_with('-') && name.chars().all(is_letter)
        };
        if !is_name(host, ".-_:%") || !user.is_none_or(|user| is_name(user, ".-_+\\")) {
            return Err(wrong());
        }
        let destination = match user {
            Some(user) => format!("{user}@{host}"),
            None => host.to_owned(),
        };
        Ok(Self {
            text: text.to_owned(),
            destination,
            port,
        })
    }

    /// The machine as ssh's arguments name it.
    fn arguments(&self) -> String {
        match self.port {
            Some(port) => format!("-p {port} {}", self.destination),
            None => self.destination.clone(),
        }
    }
}

/// How ssh is run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The socket on the other machine.
    socket: String,
    /// ssh's configuration instead of the user's.
    config: Option<PathBuf>,
    limit: Duration,
    /// The program and its first arguments.
    program: &'static [&'static str],
}

impl Settings {
    /// The settings of the arguments.
    ///
    /// # Errors
    /// When the path of the socket cannot be passed on.
    pub fn of(args: &ClusterArgs, socket: &Path) -> Result<Self, String> {
        let text = socket.to_str().unwrap_or_default();
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+@".contains(letter);
        if !text.starts_with('/') || !text.chars().all(is_plain) {
            return Err(format!(
                "--socket {} cannot be used with --host: write an absolute path of letters, digits and ._-+@",
                socket.display()
            ));
        }
        Ok(Self {
            socket: text.to_owned(),
            config: args.ssh_config.clone(),
            limit: CONNECT.max(args.deadline),
            program: &["ssh"],
        })
    }

    /// The same settings for another program than ssh.
    #[cfg(test)]
    pub(crate) fn with_program(self, program: &'static [&'static str]) -> Self {
        Self { program, ..self }
    }

    /// The script at the other end. It has neither quotes nor backslashes, whatever the account's shell makes of them,
    /// and ends with the connection.
    fn script(&self) -> String {
        let (socket, folder) = (&self.socket, Path::new(&self.socket).parent());
        let folder = folder.unwrap_or(Path::new("/")).display();
        format!(
            "sh -c 'if test -S {socket}; then if test -w {socket}; then echo {MARK}ready; exec cat >/dev/null; fi; \
             echo {MARK}denied $(stat -c %G {socket}); \
             elif test -d {folder} && ! test -x {folder}; then echo {MARK}denied $(stat -c %G {folder}); \
             else echo {MARK}missing; fi'"
        )
    }

    fn command(&self, place: &Place, local: &Path) -> Command {
        let (program, first) = self.program.split_first().unwrap_or((&"ssh", &[]));
        let mut command = Command::new(program);
        command.args(first).envs(ENVIRONMENT);
        if let Some(config) = &self.config {
            command.arg("-F").arg(config);
        }
        command.arg("-T");
        for option in OPTIONS {
            command.args(["-o", option]);
        }
        let seconds = self.limit.as_secs().max(1);
        command.args(["-o", &format!("ConnectTimeout={seconds}")]);
        command.args(["-o", &format!("ServerAliveInterval={seconds}")]);
        command.arg("-L");
        command.arg(format!("{}:{}", local.display(), self.socket));
        if let Some(port) = place.port {
            command.args(["-p", &port.to_string()]);
        }
        command.args(["--", &place.destination, &self.script()]);
        command
    }
}

/// A socket of another machine; ssh runs from the first connection on, and again after its end.
#[derive(Debug)]
pub struct Tunnel {
    place: Place,
    settings: Settings,
    open: tokio::sync::Mutex<Option<Open>>,
}

impl Tunnel {
    /// The socket of a machine. Connects when it is used.
    #[must_use]
    pub fn new(place: Place, settings: Settings) -> Self {
        Self {
            place,
            settings,
            open: tokio::sync::Mutex::default(),
        }
    }

    /// Name of the socket in messages.
    #[must_use]
    pub fn shown(&self) -> String {
        format!("{}:{}", self.place.text, self.settings.socket)
    }

    /// Starts ssh where it does not run.
    ///
    /// # Errors
    /// When the socket cannot be used.
    pub async fn open(&self) -> Result<(), SshError> {
        let mut open = self.open.lock().await;
        if !open.as_mut().is_some_and(Open::runs) {
            *open = None;
            *open = Some(self.start().await?);
        }
        Ok(())
    }

    /// Connects to the socket.
    ///
    /// # Errors
    /// When it cannot be used.
    pub async fn connect(&self) -> Result<UnixStream, SshError> {
        self.open().await?;
        let open = self.open.lock().await;
        let path = open.as_ref().map(Open::path).unwrap_or_default();
        let connected = UnixStream::connect(path).await;
        connected.map_err(|error| SshError::Failed(error.to_string()))
    }

    async fn start(&self) -> Result<Open, SshError> {
        let failed = |error: io::Error| SshError::Failed(error.to_string());
        let folder = Folder::new().map_err(failed)?;
        let local = folder.0.join("s");
        let mut command = self.settings.command(&self.place, &local);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => SshError::NotInstalled,
            _ => failed(error),
        })?;
        let mut ssh = Ssh(child);
        let complaints = Arc::new(Mutex::new(String::new()));
        let (told, verdict) = oneshot::channel();
        if let (Some(out), Some(err)) = (ssh.0.stdout.take(), ssh.0.stderr.take()) {
            let heard = Arc::clone(&complaints);
            let (closed, ended) = std::sync::mpsc::channel::<()>();
            // Threads, because both pipes are read until ssh ends, also while this program waits for nothing.
            std::thread::spawn(move || {
                listen(err, &heard);
                drop(closed);
            });
            std::thread::spawn(move || {
                let mut out = BufReader::new(out);
                let word = word(&mut out);
                if word.is_none() {
                    // Its last complaint comes with its end.
                    let _ = ended.recv_timeout(END);
                }
                let _ = told.send(word);
                let _ = io::copy(&mut out, &mut io::sink());
            });
        }
        let word = match tokio::time::timeout(self.settings.limit + END, verdict).await {
            Ok(word) => word.ok().flatten(),
            Err(_) => return Err(SshError::Late(self.settings.limit)),
        };
        let socket = self.settings.socket.clone();
        match word
            .as_deref()
            .map(|word| word.split_once(' ').unwrap_or((word, "")))
        {
            Some(("ready", _)) => {
                let socket = OpenOptions::new()
                    .read(true)
                    .custom_flags(OFlag::O_PATH.bits())
                    .open(&local);
                // The folder is not needed any more: nothing stays behind, however this program ends.
                drop(folder);
                let unforwarded = |error: io::Error| match error.kind() {
                    io::ErrorKind::NotFound => {
                        SshError::Failed("it does not forward the socket".to_owned())
                    }
                    _ => failed(error),
                };
                Ok(Open {
                    ssh,
                    socket: socket.map_err(unforwarded)?,
                })
            }
            Some(("denied", group)) => {
                let group = group.to_owned();
                Err(SshError::NoPermission { socket, group })
            }
            Some(_) => Err(SshError::NoSocket(socket)),
            None => {
                let said = complaints.lock().unwrap_or_else(PoisonError::into_inner);
                Err(self.complaint(&said))
            }
        }
    }

    /// What ssh's last words mean.
    fn complaint(&self, said: &str) -> SshError {
        let lines = || said.lines().map(str::trim).filter(|line| !line.is_empty());
        let place = self.place.arguments();
        if said.contains("Host key verification failed") {
            return SshError::UnknownKey(place);
        }
        match lines().find(|line| line.contains("Permission denied (")) {
            Some(line) => {
                let said = line.rsplit(": ").next().unwrap_or(line);
                let said = crate::table::cut(said.trim_end_matches('.'), 100);
                SshError::Refused { place, said }
            }
            None => {
                let last = lines().next_back();
                let last =
                    last.unwrap_or("it ends without a word, and the account runs no commands");
                SshError::Failed(crate::table::cut(last.trim_start_matches("ssh: "), 200))
            }
        }
    }
}

/// A running ssh with its forwarded socket.
#[derive(Debug)]
struct Open {
    ssh: Ssh,
    /// The socket, which has no path any more.
    socket: File,
}

impl Open {
    fn runs(&mut self) -> bool {
        matches!(self.ssh.0.try_wait(), Ok(None))
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.socket.as_raw_fd()))
    }
}

/// ssh; ends on drop, with its connection to a jump. Where this program is killed, the end of its input ends it.
#[derive(Debug)]
struct Ssh(Child);

impl Drop for Ssh {
    fn drop(&mut self) {
        let until = Instant::now() + LAST;
        // It may have ended itself. Killed at once, it would leave the ssh of a jump behind.
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        }
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder that only this user can enter; removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> io::Result<Self> {
        let base = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        // The path of a socket has 107 bytes, and a colon would end it in ssh's argument.
        let is_fit = |base: &PathBuf| {
            let text = base.to_str().unwrap_or(":");
            base.is_dir()
                && text.len() < 60
                && text.starts_with('/')
                && !text.contains([':', ' ', '%', '$', '"', '\\'])
        };
        let base = base.filter(is_fit).unwrap_or_else(|| PathBuf::from("/tmp"));
        let random = RandomState::new().build_hasher().finish();
        let path = base.join(format!("smtt-ctl-{random:016x}"));
        // Fails where the name is taken, and follows no link.
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is an empty folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The script's word, after whatever the account's shell prints before it.
fn word(out: &mut impl io::BufRead) -> Option<String> {
    let mut line = Vec::new();
    let mut limited = out.take(SAID_MAX);
    while limited
        .read_until(b'\n', &mut line)
        .is_ok_and(|count| count > 0)
    {
        let text = String::from_utf8_lossy(&line);
        if let Some(word) = text.trim_end().strip_prefix(MARK) {
            return Some(harmless(word));
        }
        line.clear();
    }
    None
}

/// Keeps what ssh complains about, not too much of it, until it ends.
fn listen(mut err: impl Read, heard: &Mutex<String>) {
    let mut piece = [0; 4096];
    while let Ok(count @ 1..) = err.read(&mut piece) {
        let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        if (heard.len() as u64) < SAID_MAX {
            let text = String::from_utf8_lossy(piece.get(..count).unwrap_or_default());
            heard.push_str(
                &text
                    .split('\n')
                    .map(harmless)
                    .collect::<Vec<_>>()
                    .join("\n"),
            );
        }
    }
}

/// Text of another machine without control characters.
fn harmless(text: &str) -> String {
    smtt_model::text::harmless(text.trim_end_matches('\r'))
}

#[cfg(test)]
mod tests;
