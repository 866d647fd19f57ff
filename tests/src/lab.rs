//! One daemon and one Spark in a separate folder, and the gates at which an application waits.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;
use xtask::daemon::{Daemon, Options};
use xtask::paths::{Jdk, Paths};
use xtask::process::wait_for;
use xtask::spark::{Application, Spark, Submitted};

/// How long an application may take from one gate to the next on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(300);

/// How long stopped processes may continue to write into a folder.
const REMOVE_LIMIT: Duration = Duration::from_secs(20);

/// Two Sparks at once would starve each other on a small machine.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Options of a daemon that examines all pages twice a second, instead of within the default's CPU time.
#[must_use]
pub fn quick_placement() -> Options {
    Options {
        toml: "[placement]\npages_per_second = 10000000\nmilliseconds_per_second = 1000\ninterval = \"500ms\"\n"
            .to_owned(),
        ..Options::default()
    }
}

/// How transparent huge pages are set on this machine.
///
/// # Errors
/// When the kernel does not say it.
pub fn huge_pages() -> Result<String> {
    let text = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")?;
    let set = text.split(['[', ']']).nth(1);
    Ok(set.context("no mode of transparent huge pages")?.to_owned())
}

/// All files and programs of one test. A failed test keeps them on the disk.
#[derive(Debug)]
pub struct SparkLab {
    /// Folders of the checkout, the cache and the target.
    pub paths: Paths,
    /// The Spark under test.
    pub spark: Spark,
    folder: Option<TempDir>,
    path: PathBuf,
    runs: std::cell::Cell<u32>,
    _turn: MutexGuard<'static, ()>,
}

impl SparkLab {
    /// Spark `version` on the machine's JDK 17.
    ///
    /// # Errors
    /// When set-up has not been done.
    pub fn new(version: &str) -> Result<Self> {
        Self::on(version, &Jdk::main()?)
    }

    /// Spark `version` on the given JDK.
    ///
    /// # Errors
    /// When set-up has not been done.
    pub fn on(version: &str, jdk: &Jdk) -> Result<Self> {
        // A test that panicked while it held the lock leaves no state that affects the next test.
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let paths = Paths::find()?;
        let folder = tempfile::Builder::new()
            .prefix("smtt-test-")
            .tempdir()
            .context("cannot make a folder for the test")?;
        let path = folder.path().to_path_buf();
        let spark = Spark::new(&paths, version, jdk, &path.join("spark"))?;
        Ok(Self {
            paths,
            spark,
            folder: Some(folder),
            path,
            runs: std::cell::Cell::new(0),
            _turn: turn,
        })
    }

    /// Starts a daemon that has the path of the marker's library in its configuration.
    ///
    /// # Errors
    /// When it does not get ready.
    pub fn daemon(&self) -> Result<LabDaemon<'_>> {
        self.daemon_with(&Options::default())
    }

    /// Starts a daemon with further options.
    ///
    /// # Errors
    /// When it does not get ready.
    pub fn daemon_with(&self, options: &Options) -> Result<LabDaemon<'_>> {
        let daemon = Daemon::start(&self.paths, &programs()?, &self.path, options)?;
        Ok(LabDaemon { daemon, _lab: self })
    }

    /// Submits an application that waits at its gates. Its executors have the quick compiler only, unless it asks for
    /// both.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn run(&self, application: Application) -> Result<Run> {
        self.runs.set(self.runs.get() + 1);
        let gates = self.path.join(format!("gates-{}", self.runs.get()));
        std::fs::create_dir_all(&gates)?;
        let submitted = application
            .quick_executors()
            .conf("spark.smtt.fixture.barrier", &gates.display().to_string())
            .submit(&self.spark, &format!("application-{}", self.runs.get()))?;
        Ok(Run { submitted, gates })
    }

    /// As [`Self::run`], without gates.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn run_through(&self, application: &Application) -> Result<Submitted> {
        self.runs.set(self.runs.get() + 1);
        let application = application.clone().quick_executors();
        application.submit(&self.spark, &format!("application-{}", self.runs.get()))
    }

    /// The last line of every test: removes the folder. A failed test keeps it for inspection. A daemon of the lab
    /// writes into the folder until the daemon is dropped; the compiler enforces that order.
    ///
    /// # Errors
    /// When the folder cannot be removed.
    pub fn passed(mut self) -> Result<()> {
        match self.folder.take() {
            Some(folder) => remove(folder),
            None => Ok(()),
        }
    }

    /// The test's folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.path
    }
}

impl Drop for SparkLab {
    fn drop(&mut self) {
        if let Some(folder) = self.folder.take() {
            println!(
                "logs of the failed test are kept in {}",
                folder.keep().display()
            );
        }
    }
}

/// A daemon whose files are in the lab's folder: it must be dropped before the lab can remove the folder.
#[derive(Debug)]
pub struct LabDaemon<'lab> {
    daemon: Daemon,
    _lab: &'lab SparkLab,
}

impl Deref for LabDaemon<'_> {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}

impl DerefMut for LabDaemon<'_> {
    fn deref_mut(&mut self) -> &mut Daemon {
        &mut self.daemon
    }
}

// Without this the compiler would allow the lab to be dropped while the daemon still runs.
impl Drop for LabDaemon<'_> {
    fn drop(&mut self) {
        self.daemon.stop();
    }
}

/// Removes a folder; executors that outlive their driver may still write into the folder for a moment.
///
/// # Errors
/// When the folder is not empty in the end.
pub fn remove(folder: TempDir) -> Result<()> {
    // From here on only this function removes the folder.
    let path = folder.keep();
    let mut last = None;
    wait_for("the test's folder is removed", REMOVE_LIMIT, || {
        Ok(match std::fs::remove_dir_all(&path) {
            Ok(()) => Some(()),
            Err(error) => {
                last = Some(error);
                None
            }
        })
    })
    .with_context(|| format!("{}: {last:?}", path.display()))
}

/// A running application with gates.
#[derive(Debug)]
pub struct Run {
    /// The driver's process and its REST API.
    pub submitted: Submitted,
    gates: PathBuf,
}

impl Run {
    /// The folder with the files of the gates.
    #[must_use]
    pub fn gates(&self) -> &Path {
        &self.gates
    }

    /// Waits until the application stands at the gate.
    ///
    /// # Errors
    /// When the application ends before the gate, or takes too long.
    pub fn reach(&mut self, gate: &str) -> Result<()> {
        let reached = self.gates.join(format!("{gate}.reached"));
        let running = &mut self.submitted.running;
        wait_for(
            &format!("the application reaches the gate {gate}"),
            LIMIT,
            || {
                if reached.exists() {
                    return Ok(Some(()));
                }
                if let Some(status) = running.poll()? {
                    bail!(
                        "the application ended before the gate {gate} ({status}){}",
                        running.hint()
                    );
                }
                Ok(None)
            },
        )
        .with_context(|| {
            format!(
                "the application's log is {}",
                self.submitted.running.log().display()
            )
        })
    }

    /// A listing of the daemon, restricted to this application: other applications may run on the machine.
    ///
    /// # Errors
    /// When either side does not answer.
    pub fn rows(&self, daemon: &Daemon, listing: &[&str]) -> Result<Vec<Value>> {
        let application = self.submitted.application_id()?;
        daemon.rows(&[listing, &["--app", &application]].concat())
    }

    /// Opens the gate; the application need not have reached it.
    ///
    /// # Errors
    /// When the file of the gate cannot be made.
    pub fn open(&self, gate: &str) -> Result<()> {
        std::fs::write(self.gates.join(format!("{gate}.go")), "")?;
        Ok(())
    }

    /// Opens the gates, waits for the end of the application and returns its result line.
    ///
    /// # Errors
    /// When the application fails.
    pub fn finish(&mut self, gates: &[&str]) -> Result<String> {
        for gate in gates {
            self.open(gate)?;
        }
        let result = self.submitted.result(LIMIT)?;
        // Executors that outlive the driver are in its process group.
        self.submitted.running.stop();
        Ok(result)
    }
}

/// What the driver and its executors wrote to their logs.
#[derive(Debug, Default)]
pub struct Logs {
    /// Logs of drivers.
    pub of_driver: Vec<String>,
    /// Logs of executors.
    pub of_executors: Vec<String>,
}

impl Logs {
    /// All logs in the folder of a lab.
    ///
    /// # Errors
    /// When a log is empty: an empty log proves nothing.
    pub fn read(folder: &Path) -> Result<Self> {
        let mut logs = Self::default();
        let mut folders = vec![folder.join("spark")];
        while let Some(folder) = folders.pop() {
            for entry in folder
                .read_dir()
                .with_context(|| format!("cannot list {}", folder.display()))?
            {
                let path = entry?.path();
                if path.is_symlink() {
                    continue;
                }
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let kind = if name == "stderr" {
                    &mut logs.of_executors
                } else if name.starts_with("application-") && name.ends_with(".log") {
                    &mut logs.of_driver
                } else {
                    continue;
                };
                let said = std::fs::read(&path)?;
                ensure!(!said.is_empty(), "{} is empty", path.display());
                kind.push(String::from_utf8_lossy(&said).into_owned());
            }
        }
        Ok(logs)
    }
}

/// The logs of the driver and its two executors, in the folder of a lab.
///
/// # Errors
/// When a log is missing or empty.
pub fn executor_logs(folder: &Path) -> Result<String> {
    let logs = Logs::read(folder)?;
    let counts = (logs.of_executors.len(), logs.of_driver.len());
    ensure!(
        counts == (2, 1),
        "there are logs of (executors, drivers) {counts:?}"
    );
    Ok([logs.of_driver, logs.of_executors].concat().concat())
}

/// Folder of the programs under test: that of the running program, or the one above that of the running test.
///
/// # Errors
/// When the running program has no folder.
pub fn programs() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot tell where this program lies")?;
    let folder = program.parent().context("this program has no folder")?;
    let above = folder.parent().filter(|_| folder.ends_with("deps"));
    Ok(above.unwrap_or(folder).to_path_buf())
}
