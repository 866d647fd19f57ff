//! The native workload as a process: starts a scenario, talks with it, and waits until it is at rest.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use xtask::paths::Paths;

use crate::lab::programs;
use crate::witness;

/// How long anything may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);

/// The marker's native library.
///
/// # Errors
/// When it was not built.
pub fn library() -> Result<PathBuf> {
    let path = Paths::find()?
        .marker()
        .join(smtt_common::event::marker::LIBRARY_NAME);
    ensure!(
        path.is_file(),
        "{} is missing: run `cargo xtask setup`, or `cargo build -p smtt-marker-native --profile marker`",
        path.display()
    );
    Ok(path)
}

/// A running workload. When it is dropped, it ends or is killed.
pub struct Workload {
    child: Child,
    input: Option<ChildStdin>,
    /// Lines of its output, read by a thread: a silent workload fails the test instead of blocking it.
    output: Receiver<String>,
}

impl Workload {
    /// Starts a workload and waits until it is ready and quiet.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(scenario: &str, options: &[&str]) -> Result<Self> {
        Self::start_with(&library()?, scenario, options)
    }

    /// Starts a workload with another copy of the marker's library.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start_with(library: &Path, scenario: &str, options: &[&str]) -> Result<Self> {
        let mut child = Command::new(programs()?.join("workload"))
            .arg(library)
            .arg(scenario)
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("the workload cannot be started")?;
        let input = child.stdin.take();
        let lines =
            BufReader::new(child.stdout.take().context("the workload has no output")?).lines();
        let (said, output) = channel();
        std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .try_for_each(|line| said.send(line))
        });
        let mut workload = Self {
            child,
            input,
            output,
        };
        workload.expect("READY")?;
        workload.quiet()?;
        Ok(workload)
    }

    /// Process id of the workload.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends the workload the line that it waits for.
    ///
    /// # Errors
    /// When it has ended.
    pub fn go(&mut self) -> Result<()> {
        Ok(self
            .input
            .as_mut()
            .context("the workload's input is closed")?
            .write_all(b"go\n")?)
    }

    /// Lets the workload run its scenario, waits until it is done and quiet, and returns its results.
    ///
    /// # Errors
    /// When it has ended.
    pub fn run(&mut self) -> Result<Value> {
        self.go()?;
        self.done()
    }

    /// Waits until the workload is done and quiet, and returns its results.
    ///
    /// # Errors
    /// When it has ended.
    pub fn done(&mut self) -> Result<Value> {
        let line = self.expect("DONE ")?;
        self.quiet()?;
        Ok(serde_json::from_str(&line)?)
    }

    /// As [`Self::done`], for a workload that may still run: `None` where it says nothing in this time.
    ///
    /// # Errors
    /// When it has ended.
    pub fn done_within(&mut self, time: Duration) -> Result<Option<Value>> {
        match self.output.recv_timeout(time) {
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("the workload ended"),
            Ok(line) => {
                let done = line.strip_prefix("DONE ").context("no results")?;
                Ok(Some(serde_json::from_str(done)?))
            }
        }
    }

    /// Lets a scenario that waits in the middle run to its end.
    ///
    /// # Errors
    /// When it has ended.
    pub fn go_on_to_the_end(&mut self) -> Result<()> {
        self.run().map(|_| ())
    }

    /// Ends the workload, at the latest by the end of its input.
    ///
    /// # Errors
    /// When it fails.
    pub fn end(mut self) -> Result<()> {
        self.go()?;
        self.input = None;
        let status = self.child.wait()?;
        ensure!(status.success(), "the workload ended with {status}");
        Ok(())
    }

    /// Waits for the end of the workload as its parent: the raw status of `wait4` and the most resident bytes.
    ///
    /// # Errors
    /// When it is not the caller's child any more.
    pub fn reap(self) -> Result<(u32, u64)> {
        let (mut status, mut used) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
        // SAFETY: the child is ours and not reaped, and both places are ours to be filled in.
        let reaped =
            unsafe { libc::wait4(self.pid() as i32, &raw mut status, 0, used.as_mut_ptr()) };
        ensure!(reaped == self.pid() as i32, "wait4 returned {reaped}");
        // SAFETY: the kernel has filled it in, and any bytes are a valid value.
        let used = unsafe { used.assume_init() };
        Ok((status as u32, used.ru_maxrss as u64 * 1024))
    }

    /// Waits for a line with this prefix, and returns the rest of the line.
    ///
    /// # Errors
    /// When it says another line, nothing in time, or ends.
    pub fn expect(&mut self, start: &str) -> Result<String> {
        let line = match self.output.recv_timeout(LIMIT) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => {
                bail!("the workload has not said {start} in {LIMIT:?}")
            }
            Err(RecvTimeoutError::Disconnected) => bail!(
                "the workload ended before it said {start}: {}",
                self.child.wait()?
            ),
        };
        line.strip_prefix(start)
            .map(str::to_owned)
            .with_context(|| format!("the workload said {line:?}, not {start}"))
    }

    /// Waits until the workload waits for input: its faults stand still. Both ends of an interval are such moments, so
    /// the kernel's own count and ours cover the same faults.
    ///
    /// # Errors
    /// When it does not come to rest.
    pub fn quiet(&self) -> Result<()> {
        // A thread that only waits for a busy processor has no faults either, but its state is not sleeping.
        let look =
            || Ok::<_, anyhow::Error>((witness::sleeps(self.pid())?, witness::faults(self.pid())?));
        let until = Instant::now() + LIMIT;
        let mut last = look()?;
        while Instant::now() < until {
            std::thread::sleep(Duration::from_millis(30));
            let now = look()?;
            if now.0 && now == last {
                return Ok(());
            }
            last = now;
        }
        bail!("the workload does not come to rest: {last:?}");
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        // The workload ends at the end of its input; a stuck one is killed. An error means that it has ended.
        self.input = None;
        for _ in 0..100 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
