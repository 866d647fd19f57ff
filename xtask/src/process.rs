//! Child processes with a log, a time limit and a guaranteed end.
//!
//! Each child leads its own process group: Ctrl-C at the terminal reaches only this program, which then stops its
//! children, in order, by process group id. No process is ever ended by name.

use std::fs::File;
use std::io::{IsTerminal, Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Polling interval of waiting loops.
const POLL: Duration = Duration::from_millis(50);
/// Grace period of a child between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(10);

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// After this call Ctrl-C and SIGTERM make [`check_interrupt`] fail instead of ending this program at once.
///
/// # Errors
/// When the signal handlers cannot be installed.
pub fn catch_interrupt() -> Result<()> {
    let flag = INTERRUPTED.get_or_init(Arc::default);
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // A second Ctrl-C ends the program at once, with the shell's status for the signal.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(flag))?;
        signal_hook::flag::register(signal, Arc::clone(flag))?;
    }
    Ok(())
}

/// Cargo, for builds that must have the kernel side: smtt-daemon's build script puts no stub in its place.
#[must_use]
pub fn cargo() -> Command {
    let mut cargo = Command::new("cargo");
    cargo.env("SMTT_EBPF_REQUIRED", "1");
    cargo
}

/// As [`cargo`], with `more` added to the nice value.
#[must_use]
pub fn nice_cargo(more: u8) -> Command {
    let mut cargo = Command::new("nice");
    cargo
        .args(["-n", &more.to_string(), "cargo"])
        .env("SMTT_EBPF_REQUIRED", "1");
    cargo
}

/// Whether this program runs as root.
#[must_use]
pub fn is_root() -> bool {
    // SAFETY: geteuid(2) has no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Fails when the user pressed Ctrl-C.
///
/// # Errors
/// When the user pressed Ctrl-C.
pub fn check_interrupt() -> Result<()> {
    if INTERRUPTED
        .get()
        .is_some_and(|flag| flag.load(Ordering::Relaxed))
    {
        bail!("interrupted");
    }
    Ok(())
}

/// A child process; dropping this value stops it.
#[derive(Debug)]
pub struct Running {
    name: String,
    child: Child,
    log: PathBuf,
    output: PathBuf,
}

impl Running {
    /// Starts `command` in a new process group, without input; its output goes to `log`.
    ///
    /// # Errors
    /// When the command cannot be started.
    pub fn start(name: &str, command: &mut Command, log: &Path) -> Result<Self> {
        let log_file = create(log)?;
        let output_file = log_file.try_clone()?;
        Self::spawn(name, command, (log, log_file), (log, output_file))
    }

    /// Starts `command` as [`Self::start`] does, with a separate file for its standard output: two streams in one file
    /// may split each other's lines.
    ///
    /// # Errors
    /// When the command cannot be started.
    pub fn start_with_output(
        name: &str,
        command: &mut Command,
        log: &Path,
        output: &Path,
    ) -> Result<Self> {
        let (log_file, output_file) = (create(log)?, create(output)?);
        Self::spawn(name, command, (log, log_file), (output, output_file))
    }

    fn spawn(
        name: &str,
        command: &mut Command,
        (log, err): (&Path, File),
        (output, out): (&Path, File),
    ) -> Result<Self> {
        let child = command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .process_group(0)
            .spawn()
            .with_context(|| {
                format!("cannot start {name} ({})", command.get_program().display())
            })?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log: log.to_path_buf(),
            output: output.to_path_buf(),
        })
    }

    /// Process id, also the id of its process group.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// File of the standard error, and of the standard output unless that has a separate file.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// File of the standard output.
    #[must_use]
    pub fn output(&self) -> &Path {
        &self.output
    }

    /// Whether the child still runs.
    pub fn alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The exit status, once the child has ended.
    ///
    /// # Errors
    /// When the system call fails.
    pub fn poll(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits for the end of the child; calls `tick` about 20 times a second meanwhile.
    ///
    /// # Errors
    /// When the time is over (the child is stopped then), `tick` fails or the user pressed Ctrl-C.
    pub fn wait(
        &mut self,
        limit: Duration,
        mut tick: impl FnMut() -> Result<()>,
    ) -> Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.poll()? {
                return Ok(status);
            }
            check_interrupt()?;
            tick()?;
            if start.elapsed() > limit {
                self.stop();
                bail!(
                    "{} did not end within {} s and was stopped{}",
                    self.name,
                    limit.as_secs(),
                    self.hint()
                );
            }
            thread::sleep(POLL);
        }
    }

    /// The log's path and last lines, for the end of an error message.
    #[must_use]
    pub fn hint(&self) -> String {
        hint(&self.log)
    }

    /// Sends a signal to the child only, not to its group.
    pub fn signal(&self, signal: i32) {
        // SAFETY: kill(2) takes two integers; the pid is that of a child which has not been waited for.
        unsafe { libc::kill(self.pid().cast_signed(), signal) };
    }

    /// Ends the child and the rest of its process group: SIGTERM, ten seconds of grace, SIGKILL.
    pub fn stop(&mut self) {
        let group = -self.pid().cast_signed();
        if self.alive() {
            // SAFETY: kill(2) takes two integers; the group is led by our child, which has not been waited for.
            unsafe { libc::kill(group, libc::SIGTERM) };
            let start = Instant::now();
            while self.alive() && start.elapsed() < GRACE {
                thread::sleep(POLL);
            }
        }
        // SAFETY: as above; a group with no members left gives ESRCH, and a group id is not given to a new
        // process while a member lives.
        unsafe { libc::kill(group, libc::SIGKILL) };
        // An error means that the child was reaped before.
        self.child.wait().ok();
    }
}

/// Creates a file, and its folder if necessary.
fn create(path: &Path) -> Result<File> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    File::create(path).with_context(|| format!("cannot write {}", path.display()))
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Runs a command to its end and fails unless it succeeds; error messages use `title`.
///
/// # Errors
/// When the command cannot be started, takes longer than `limit`, or fails; with the last lines of the log.
pub fn run(title: &str, command: &mut Command, log: &Path, limit: Duration) -> Result<()> {
    let mut running = Running::start(title, command, log)?;
    let status = running.wait(limit, || Ok(()))?;
    if !status.success() {
        bail!("{title} failed ({status}){}", running.hint());
    }
    Ok(())
}

/// Runs a command with little output, and returns its standard output.
///
/// # Errors
/// When the command cannot be started or fails; with its standard error.
pub fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().display().to_string();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {name}"))?;
    if !output.status.success() {
        bail!(
            "{name} failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Polls `ready` until it returns a value.
///
/// # Errors
/// When `ready` fails, the time is over, or the user pressed Ctrl-C.
pub fn wait_for<T>(
    what: &str,
    limit: Duration,
    mut ready: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(value) = ready()? {
            return Ok(value);
        }
        check_interrupt()?;
        if start.elapsed() > limit {
            bail!("{what}: not within {} s", limit.as_secs());
        }
        thread::sleep(POLL);
    }
}

/// A log's path and last lines, for the end of an error message.
#[must_use]
pub fn hint(log: &Path) -> String {
    let lines = tail(log, 12);
    if lines.is_empty() {
        return format!("; its log {} is empty", log.display());
    }
    format!(
        "; the end of its log {}:\n    {}",
        log.display(),
        lines.join("\n    ")
    )
}

/// The last `count` lines of a file that are not empty.
#[must_use]
pub fn tail(log: &Path, count: usize) -> Vec<String> {
    const BYTES: u64 = 16 * 1024;
    let mut text = Vec::new();
    let read = File::open(log).and_then(|mut file| {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(BYTES)))?;
        file.read_to_end(&mut text)
    });
    if read.is_err() {
        return Vec::new();
    }
    let text = String::from_utf8_lossy(&text);
    // Progress bars rewrite a line with carriage returns; only the last state counts.
    let lines: Vec<String> = text
        .lines()
        .filter_map(|line| line.rsplit('\r').find(|part| !part.trim().is_empty()))
        .map(|line| line.trim_end().chars().take(300).collect())
        .collect();
    lines[lines.len().saturating_sub(count)..].to_vec()
}

/// Whether standard output is a terminal, on which a line may be overwritten.
#[must_use]
pub fn on_terminal() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("CI").is_none()
}

/// Prints without a line end and flushes. A closed standard output is ignored.
pub fn show(text: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .ok();
}

/// A TCP port of the loopback interface that was free a moment ago, and that this process has not had before. It is none of
/// those that the kernel gives to whoever asks for any port: a server may bind it much later.
///
/// # Errors
/// When no port is free.
pub fn free_port() -> Result<u16> {
    /// Below the kernel's own range, which begins at 32768.
    const PORTS: std::ops::Range<u32> = 12_000..32_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in PORTS {
        // Processes begin apart.
        let at = std::process::id().wrapping_mul(97) + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = (PORTS.start + at % (PORTS.end - PORTS.start)) as u16;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port on 127.0.0.1")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("smtt-process-{name}-{}.log", std::process::id()))
    }

    #[test]
    fn a_child_that_takes_too_long_is_stopped_with_its_descendants() {
        let path = log("slow");
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 300 & echo child $!; wait"]);
        let mut running = Running::start("slow", &mut command, &path).expect("starts");
        let line = wait_for("the shell has a child", Duration::from_secs(60), || {
            Ok(tail(&path, 1).pop())
        });
        let line = line.expect("a line");
        let error = running
            .wait(Duration::from_millis(400), || Ok(()))
            .expect_err("it must not end");
        assert!(
            error.to_string().contains("did not end within"),
            "{error:#}"
        );
        let child: i32 = line.trim_start_matches("child ").parse().expect("a pid");
        // SAFETY: signal 0 only checks whether the process exists.
        let gone = || unsafe { libc::kill(child, 0) } != 0;
        wait_for("the descendant ends", Duration::from_secs(60), || {
            Ok((gone() || zombie(child)).then_some(()))
        })
        .expect("ends");
        std::fs::remove_file(path).ok();
    }

    fn zombie(pid: i32) -> bool {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
    }

    #[test]
    fn a_failure_shows_the_end_of_the_log() {
        let path = log("fails");
        let mut command = Command::new("sh");
        command.args(["-c", "echo first; echo the reason >&2; exit 3"]);
        let error = run("it", &mut command, &path, Duration::from_secs(10))
            .expect_err("it must fail")
            .to_string();
        assert!(
            error.contains("exit status: 3") && error.contains("the reason"),
            "{error}"
        );
        std::fs::remove_file(path).ok();
    }

    #[test]
    fn standard_output_of_its_own_has_no_line_of_the_log() {
        let (path, output) = (log("streams"), log("streams-out"));
        let mut command = Command::new("sh");
        command.args(["-c", "printf RES; echo noise >&2; echo ULT"]);
        let mut running =
            Running::start_with_output("streams", &mut command, &path, &output).expect("starts");
        let status = running
            .wait(Duration::from_secs(10), || Ok(()))
            .expect("ends");
        assert!(status.success());
        assert_eq!(tail(running.output(), 9), ["RESULT"]);
        assert_eq!(tail(running.log(), 9), ["noise"]);
        std::fs::remove_file(path).ok();
        std::fs::remove_file(output).ok();
    }

    #[test]
    fn the_last_state_of_a_progress_line_counts() {
        let path = log("progress");
        std::fs::write(&path, "one\n10 %\r55 %\r100 %\n\nend").expect("writes");
        assert_eq!(tail(&path, 2), ["100 %", "end"]);
        std::fs::remove_file(path).ok();
    }
}
