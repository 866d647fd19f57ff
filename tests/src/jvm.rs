//! A small Spark application in one JVM that caches arrays and reads them, with the marker: on this machine, or where
//! variables say that the JVM is, and on one of its nodes.
//!
//! `SMTT_JAVA_ROOT` names a folder with a root file system of its own that has the JVM and, in `/opt/spark`, Spark, as in
//! emulated machines (`cargo xtask vm`). Folders for temporary files are at the same place in both file systems.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use smtt_common::event::marker::LIBRARY_NAME;
use tempfile::TempDir;
use xtask::paths::{DEMO_SPARK, Jdk, Paths};
use xtask::process::{Running, wait_for};
use xtask::spark::{JAVA_OPTIONS, finished};

use crate::{lab, node};

/// From one gate to the next, where every instruction is emulated.
const GATE_LIMIT: Duration = Duration::from_secs(600);

/// An application and how its JVM is started.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    class: &'static str,
    arguments: &'static [&'static str],
    /// MiB of the young heap, of 640.
    young_mib: u32,
    /// The gate that it ends behind.
    last_gate: &'static str,
    /// What it says in the end.
    result: &'static str,
}

/// Caches arrays and scans them; gates `begin`, `cached` and `scanned`. No collection before the end: it would move the
/// arrays, or let them be made in pages that were touched before. The arguments are partitions, MiB of all arrays,
/// milliseconds of CPU time of scanning; both partitions' pages hold its number, counted from 1.
pub const CACHED_SCAN: Program = Program {
    class: "io.smtt.fixture.CachedScan",
    arguments: &["2", "96", "5000"],
    young_mib: 540,
    last_gate: "scanned",
    result: "RESULT scan of 2 arrays, sum 36864",
};

/// Caches arrays that it reads in passes, serialised bytes that it does not read before the end, and objects; gates
/// `cached`, `pass1` to `pass4` and `end`. Between the last two it goes on reading until `reading` is opened. The
/// arguments are partitions, MiB of arrays and of bytes, passes.
pub const CACHED_PLACES: Program = Program {
    class: "io.smtt.fixture.CachedPlaces",
    arguments: &["2", "32", "16", "4"],
    young_mib: 400,
    last_gate: "end",
    result: "RESULT places of 516 records, sums 49152 and 3",
};

/// Name of the RDD that is cached.
pub const CACHED_RDD: &str = "cached arrays";
/// Its id: the third that the application makes.
pub const CACHED_RDD_ID: u32 = 2;
/// What it holds, in MiB.
pub const CACHED_MIB: u64 = 96;
/// The pages of that, of 4 KiB.
pub const CACHED_PAGES: u64 = CACHED_MIB * 1024 / 4;

/// Where JVM and Spark are.
#[derive(Debug)]
struct Java {
    /// Their root file system, if it is not the machine's.
    root: Option<PathBuf>,
    program: PathBuf,
    jars: PathBuf,
}

impl Java {
    fn find(paths: &Paths) -> Result<Self> {
        let Some(root) = variable("SMTT_JAVA_ROOT").map(PathBuf::from) else {
            return Ok(Self {
                root: None,
                program: Jdk::main()?.tool("java"),
                jars: paths.spark_home(DEMO_SPARK)?.join("jars"),
            });
        };
        let inside = PathBuf::from("usr/lib/jvm");
        let homes = fs::read_dir(root.join(&inside))
            .with_context(|| format!("no JVM in {}", root.display()))?;
        let name = homes
            .filter_map(|home| Some(home.ok()?.file_name()))
            .find(|name| root.join(&inside).join(name).join("bin/java").is_file())
            .with_context(|| format!("no JVM in {}/usr/lib/jvm", root.display()))?;
        Ok(Self {
            root: Some(root),
            program: Path::new("/").join(inside).join(name).join("bin/java"),
            jars: "/opt/spark/jars".into(),
        })
    }

    /// The JVM's command, with nothing of this process's environment, and without huge pages: one fault would then be
    /// the first touch of 512 pages.
    fn command(&self) -> Command {
        let mut command = match &self.root {
            Some(root) => {
                let mut command = Command::new("chroot");
                command.arg(root).arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        command.env_clear();
        for (name, value) in [
            ("PATH", "/bin:/usr/bin:/usr/sbin"),
            ("HOME", "/tmp"),
            ("SPARK_LOCAL_IP", "127.0.0.1"),
        ] {
            command.env(name, value);
        }
        // SAFETY: prctl takes numbers only, and is one of the calls that may be made between fork and exec.
        unsafe {
            command.pre_exec(|| {
                if libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        command
    }
}

/// The files of the applications, none started yet.
#[derive(Debug)]
pub struct Prepared {
    java: Java,
    folder: TempDir,
}

impl Prepared {
    /// A folder with the marker's jar and the applications'.
    ///
    /// # Errors
    /// When set-up has not been done.
    pub fn new() -> Result<Self> {
        let paths = Paths::find()?;
        let java = Java::find(&paths)?;
        let folder = tempfile::Builder::new()
            .prefix("smtt-test-")
            .tempdir()
            .context("cannot make a folder for the test")?;
        let prepared = Self { java, folder };
        fs::create_dir(prepared.at("gates"))?;
        for from in [paths.marker().join("smtt-marker.jar"), paths.fixture_jar()] {
            prepared.add(&from)?;
        }
        Ok(prepared)
    }

    /// Puts the marker's native library beside its jar and gives its path. Without, it comes out of the jar, which has
    /// one for each processor.
    ///
    /// # Errors
    /// When set-up has not been done.
    pub fn with_library(&self) -> Result<PathBuf> {
        self.add(&Paths::find()?.marker().join(LIBRARY_NAME))?;
        Ok(self.at(LIBRARY_NAME))
    }

    /// A path in the folder.
    #[must_use]
    pub fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn add(&self, from: &Path) -> Result<()> {
        let name = from.file_name().context("a file has a name")?;
        fs::copy(from, self.folder.path().join(name))
            .with_context(|| format!("{} is missing: run `cargo xtask setup`", from.display()))?;
        Ok(())
    }

    /// Starts a program of it, with CPUs and memory of one node alone if one is given.
    ///
    /// # Errors
    /// When the JVM cannot be started, or that node has no CPUs.
    pub fn start(self, program: &'static Program, node: Option<u32>) -> Result<Application> {
        let (jar, fixture) = (self.at("smtt-marker.jar"), self.at("smtt-fixture.jar"));
        let mut command = self.java.command();
        if let Some(node) = node {
            node::bind(&mut command, node)?;
        }
        command
            .args(JAVA_OPTIONS)
            .args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            .args(["-Xms640m", "-Xmx640m", "-XX:MetaspaceSize=256m"])
            .arg(format!("-Xmn{}m", program.young_mib))
            // A thread's own part of the young heap is a share of it, so more threads than cores fill any.
            .args(["-XX:TLABSize=128k", "-XX:-ResizeTLAB"])
            // A JVM that compiles for speed of start has a small room for code, and collects when some of it is taken.
            .args(["-XX:ReservedCodeCacheSize=240m", "-Xlog:gc:stderr"])
            .arg(format!("-javaagent:{}", jar.display()))
            .arg("-cp")
            .arg(format!(
                "{}:{}:{}/*",
                jar.display(),
                fixture.display(),
                self.java.jars.display()
            ))
            .arg(format!("-Djava.io.tmpdir={}", self.folder.path().display()))
            .arg(format!(
                "-Dspark.smtt.fixture.barrier={}",
                self.at("gates").display()
            ))
            .arg("-Dspark.plugins.defaultList=io.smtt.marker.SmttPlugin")
            .args([
                "-Dspark.master=local[2]",
                "-Dspark.ui.enabled=false",
                "-Dspark.driver.host=127.0.0.1",
                "-Dspark.driver.bindAddress=127.0.0.1",
            ])
            .arg(program.class)
            .args(program.arguments);
        let running = Running::start_with_output(
            "the application",
            &mut command,
            &self.at("application.log"),
            &self.at("application.out"),
        )?;
        Ok(Application {
            program,
            running,
            folder: Some(self.folder),
        })
    }
}

/// The running application, which waits at its gates. Its folder is kept when the test fails.
#[derive(Debug)]
pub struct Application {
    program: &'static Program,
    running: Running,
    folder: Option<TempDir>,
}

impl Application {
    fn gate(&self, name: &str) -> Result<PathBuf> {
        let folder = self.folder.as_ref().context("the folder is gone")?;
        Ok(folder.path().join("gates").join(name))
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Waits until it stands at the gate.
    ///
    /// # Errors
    /// When it ends before, or takes too long.
    pub fn reach(&mut self, gate: &str) -> Result<()> {
        let reached = self.gate(&format!("{gate}.reached"))?;
        let running = &mut self.running;
        let what = format!("the application reaches the gate {gate}");
        wait_for(&what, GATE_LIMIT, || {
            if reached.exists() {
                return Ok(Some(()));
            }
            if let Some(status) = running.poll()? {
                bail!("it ended before ({status})");
            }
            Ok(None)
        })
        .with_context(|| format!("the application says:{}", self.running.hint()))
    }

    /// Whether its collector has run: then it may be using pages again that it had touched before.
    ///
    /// # Errors
    /// When its log cannot be read.
    pub fn has_collected(&self) -> Result<bool> {
        let log = fs::read(self.running.log()).context("the application has no log")?;
        Ok(String::from_utf8_lossy(&log)
            .lines()
            .any(|line| line.contains("[gc] GC(")))
    }

    /// Opens the gate.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn open(&self, gate: &str) -> Result<()> {
        Ok(fs::write(self.gate(&format!("{gate}.go"))?, "")?)
    }

    /// The last step of a test: opens the last gate, checks the result; nothing needs to be kept.
    ///
    /// # Errors
    /// When the application fails, or says something else.
    pub fn finish(mut self) -> Result<()> {
        self.open(self.program.last_gate)?;
        let said = finished(&mut self.running, GATE_LIMIT)?;
        let expected = self.program.result;
        ensure!(said == expected, "it says {said:?}, not {expected:?}");
        if let Some(folder) = self.folder.take() {
            lab::remove(folder)?;
        }
        Ok(())
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        if let Some(folder) = self.folder.take() {
            println!(
                "logs of the failed test are kept in {}",
                folder.keep().display()
            );
        }
    }
}

/// What a variable says, if it says anything.
#[must_use]
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
