//! A small Spark application in one JVM that caches arrays and reads them, with the marker: on this machine, or in the
//! root file system that variables name, and on one of the machine's nodes.
//!
//! `SMTT_JAVA_ROOT` names a folder with another root file system that has the JVM and, in `/opt/spark`, Spark, as in
//! emulated machines (`cargo xtask vm`). Folders for temporary files have the same path in both file systems.

use std::fs;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
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

/// Time limit from one gate to the next, where every instruction is emulated.
const GATE_LIMIT: Duration = Duration::from_secs(600);

/// An application and the options of its JVM.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    class: &'static str,
    arguments: &'static [&'static str],
    /// MiB of the young generation, of a heap of 640 MiB.
    young_mib: u32,
    /// The last gate of the application.
    last_gate: &'static str,
    /// The application's result line.
    result: &'static str,
}

/// Caches arrays and scans them; gates `begin`, `cached` and `scanned`. No collection before the end: a collection
/// would move the arrays, or allocate them in pages that were touched before. The arguments are partitions, MiB of all
/// arrays, milliseconds of CPU time of scanning; every number in a partition's pages is the number of the partition,
/// counted from 1.
pub const CACHED_SCAN: Program = Program {
    class: "io.smtt.fixture.CachedScan",
    arguments: &["2", "96", "5000"],
    young_mib: 540,
    last_gate: "scanned",
    result: "RESULT scan of 2 arrays, sum 36864",
};

/// Caches arrays that it reads in passes, serialised bytes that it does not read before the end, and objects; gates
/// `cached`, `pass1` to `pass4` and `end`. After `pass4` it reads until the test opens `reading`. The arguments are
/// partitions, MiB of arrays and of bytes, passes.
pub const CACHED_PLACES: Program = Program {
    class: "io.smtt.fixture.CachedPlaces",
    arguments: &["2", "32", "16", "4"],
    young_mib: 400,
    last_gate: "end",
    result: "RESULT places of 516 records, sums 49152 and 3",
};

/// Name of the cached RDD.
pub const CACHED_RDD: &str = "cached arrays";
/// Id of the cached RDD: the third RDD of the application.
pub const CACHED_RDD_ID: u32 = 2;
/// MiB of the cached RDD.
pub const CACHED_MIB: u64 = 96;
/// Pages of 4 KiB of the cached RDD.
pub const CACHED_PAGES: u64 = CACHED_MIB * 1024 / 4;

/// Where the JVM and Spark are installed.
#[derive(Debug)]
struct Java {
    /// Another root file system, if they are not in the machine's own.
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

    /// The JVM's command, with an empty environment, and without huge pages: otherwise one fault would be the first
    /// touch of 512 pages.
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

    /// Puts the marker's native library beside the jar and returns its path. Without it the marker unpacks the library
    /// from the jar, which has one for each processor.
    ///
    /// # Errors
    /// When set-up has not been done.
    pub fn with_library(&self) -> Result<PathBuf> {
        self.add(&Paths::find()?.marker().join(LIBRARY_NAME))?;
        Ok(self.at(LIBRARY_NAME))
    }

    /// A path in the installation's folder.
    #[must_use]
    pub fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Copies a file into the installation's folder.
    ///
    /// # Errors
    /// When the file does not exist.
    pub fn add(&self, from: &Path) -> Result<()> {
        let name = from.file_name().context("a file has a name")?;
        fs::copy(from, self.folder.path().join(name))
            .with_context(|| format!("{} is missing: run `cargo xtask setup`", from.display()))?;
        Ok(())
    }

    /// The command of a JVM with Spark in local mode and the marker, without the class: MiB of the young generation, of a
    /// heap of 640 MiB, and further jars, which are in the installation's folder.
    #[must_use]
    pub fn java(&self, young_mib: u32, jars: &[&str]) -> Command {
        let jar = self.at("smtt-marker.jar");
        let mut classes = vec![jar.clone(), self.at("smtt-fixture.jar")];
        classes.extend(jars.iter().map(|name| self.at(name)));
        classes.push(self.java.jars.join("*"));
        let classes: Vec<_> = classes
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let mut command = self.java.command();
        command
            .args(JAVA_OPTIONS)
            .args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            .args(["-Xms640m", "-Xmx640m", "-XX:MetaspaceSize=256m"])
            .arg(format!("-Xmn{young_mib}m"))
            // A thread's allocation buffer is a share of the young generation: without a fixed size, more threads than
            // cores would fill it.
            .args(["-XX:TLABSize=128k", "-XX:-ResizeTLAB"])
            // With C1 alone the default code cache is small, and the JVM collects when a part of it is in use.
            .args(["-XX:ReservedCodeCacheSize=240m", "-Xlog:gc:stderr"])
            .arg(format!("-javaagent:{}", jar.display()))
            .arg("-cp")
            .arg(classes.join(":"))
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
            ]);
        command
    }

    /// Starts a program, optionally with CPUs and memory of one node alone.
    ///
    /// # Errors
    /// When the JVM cannot be started, or the node has no CPUs.
    pub fn start(self, program: &'static Program, node: Option<u32>) -> Result<Application> {
        let mut command = self.java(program.young_mib, &[]);
        if let Some(node) = node {
            node::bind(&mut command, node)?;
        }
        command.arg(program.class).args(program.arguments);
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

/// The running application, which waits at its gates. A failed test keeps the folder.
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

    /// Process id of the JVM.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Waits until the application stands at the gate.
    ///
    /// # Errors
    /// When the application ends before the gate, or takes too long.
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

    /// Whether the collector has run: then new objects may use pages that were touched before.
    ///
    /// # Errors
    /// When the JVM's log cannot be read.
    pub fn has_collected(&self) -> Result<bool> {
        let log = fs::read(self.running.log()).context("the application has no log")?;
        Ok(String::from_utf8_lossy(&log)
            .lines()
            .any(|line| line.contains("[gc] GC(")))
    }

    /// Opens the gate.
    ///
    /// # Errors
    /// When the file of the gate cannot be made.
    pub fn open(&self, gate: &str) -> Result<()> {
        Ok(fs::write(self.gate(&format!("{gate}.go"))?, "")?)
    }

    /// Waits until the kernel has killed the application.
    ///
    /// # Errors
    /// When the application lives on, or ended in another way.
    pub fn killed(&mut self) -> Result<()> {
        let running = &mut self.running;
        let status = wait_for("the application is killed", GATE_LIMIT, || running.poll())?;
        ensure!(
            status.signal() == Some(libc::SIGKILL),
            "it ended with {status}"
        );
        Ok(())
    }

    /// The last step of a test whose application has ended: removes the folder.
    ///
    /// # Errors
    /// When the folder cannot be removed.
    pub fn remove(mut self) -> Result<()> {
        self.folder.take().map_or(Ok(()), lab::remove)
    }

    /// The last step of a test: opens the last gate, checks the result, and removes the folder.
    ///
    /// # Errors
    /// When the application fails, or its result line differs.
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

/// The value of an environment variable; an empty one counts as unset.
#[must_use]
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
