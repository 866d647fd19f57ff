//! One JVM with a small Spark application that caches arrays and scans them, traced by a daemon: on this machine, and as
//! it is in emulated machines (`cargo xtask vm`), whose processor is another and whose page faults come from a kprobe.
//!
//! Needs root and what `cargo xtask setup` makes. What is different in an emulated machine is told by variables:
//! `SMTT_JAVA_ROOT`, a folder with a root file system of its own that has the JVM and, in `/opt/spark`, Spark;
//! `SMTT_FAULT_HOOK`, the rung of the fault ladder. The folder of the test must be at the same place in both file
//! systems.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;
use xtask::daemon::{Daemon, Options};
use xtask::places::{DEMO_SPARK, Jdk, Places};
use xtask::process::{Running, hint, wait_for};
use xtask::spark::{JAVA_OPTIONS, result_line};

/// From one gate to the next, where every instruction is emulated.
const GATE_LIMIT: Duration = Duration::from_secs(600);
/// The daemon's figures come with its tick, and an executor that nobody announced with its scan.
const TOLD_LIMIT: Duration = Duration::from_secs(60);

/// Partitions, MiB of all arrays, scans.
const ARGUMENTS: [&str; 3] = ["2", "96", "40"];
const CACHED_MIB: u64 = 96;
const CACHED_PAGES: u64 = CACHED_MIB * 1024 / 4;
const CACHED_RDD: &str = "cached arrays";
/// The arrays of both partitions; a partition's pages hold its number, counted from 1.
const RESULT: &str = "RESULT scan of 16 arrays, sum 1474560";
/// Share of the page faults between two gates that must be known by RDD, in hundredths. The rest is the JVM's own: its
/// compiler, the loading of classes and the scheduler, which is in the same process here.
const ATTRIBUTED_PERCENT: u64 = 70;
/// Share of the reads that missed the address cache in the pass that scans the cache that must be the cached RDD's.
const DOMINANT_PERCENT: u64 = 80;

/// Where JVM and Spark are.
struct Java {
    /// Their root file system, if it is not the machine's.
    root: Option<PathBuf>,
    program: PathBuf,
    jars: PathBuf,
}

impl Java {
    fn find(places: &Places) -> Result<Self> {
        let Some(root) = variable("SMTT_JAVA_ROOT").map(PathBuf::from) else {
            return Ok(Self {
                root: None,
                program: Jdk::main()?.tool("java"),
                jars: places.spark_home(DEMO_SPARK)?.join("jars"),
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

/// The application, which waits at its gates, and the daemon that traces it.
struct Scene {
    application: Running,
    daemon: Daemon,
    gates: PathBuf,
    folder: Option<TempDir>,
}

impl Scene {
    fn start() -> Result<Self> {
        let places = Places::find()?;
        let java = Java::find(&places)?;
        let folder = tempfile::Builder::new()
            .prefix("smtt-test-")
            .tempdir()
            .context("cannot make a folder for the test")?;
        // Both file systems have this folder. The library is not beside the jar: the jar has one for each processor.
        let (jar, fixture) = (
            folder.path().join("smtt-marker.jar"),
            folder.path().join("smtt-fixture.jar"),
        );
        for (from, to) in [
            (places.marker().join("smtt-marker.jar"), &jar),
            (places.fixture_jar(), &fixture),
        ] {
            fs::copy(&from, to).with_context(|| {
                format!("{} is missing: run `cargo xtask setup`", from.display())
            })?;
        }
        let gates = folder.path().join("gates");
        fs::create_dir(&gates)?;

        let hook = variable("SMTT_FAULT_HOOK").unwrap_or_else(|| "auto".to_owned());
        let options = Options {
            toml: format!("[probe.fault]\nhook = {hook:?}\nsample_every = 0\n"),
            // It is found in the running executor, and what was told before is told again.
            without_library: true,
            ..Options::default()
        };
        let daemon = Daemon::start(
            &places,
            &programs()?,
            &folder.path().join("daemon"),
            &options,
        )?;

        let mut command = java.command();
        command
            .args(JAVA_OPTIONS)
            .args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            // No collection before the end: it would move the arrays, or let them be made in pages that were touched
            // before. A thread's own part of the young heap is a share of it, so more threads than cores fill any.
            .args(["-Xms640m", "-Xmx640m", "-Xmn540m", "-XX:MetaspaceSize=256m"])
            .args(["-XX:TLABSize=128k", "-XX:-ResizeTLAB"])
            .arg(format!("-javaagent:{}", jar.display()))
            .arg("-cp")
            .arg(format!(
                "{}:{}:{}/*",
                jar.display(),
                fixture.display(),
                java.jars.display()
            ))
            .arg(format!("-Djava.io.tmpdir={}", folder.path().display()))
            .arg(format!("-Dspark.smtt.fixture.barrier={}", gates.display()))
            .arg("-Dspark.plugins.defaultList=io.smtt.marker.SmttPlugin")
            .args([
                "-Dspark.master=local[2]",
                "-Dspark.ui.enabled=false",
                "-Dspark.driver.host=127.0.0.1",
                "-Dspark.driver.bindAddress=127.0.0.1",
            ])
            .arg("io.smtt.fixture.CachedScan")
            .args(ARGUMENTS);
        let log = folder.path().join("application.log");
        let application = Running::start("the application", &mut command, &log)?;
        Ok(Self {
            application,
            daemon,
            gates,
            folder: Some(folder),
        })
    }

    /// Waits until the application stands at the gate.
    fn reach(&mut self, gate: &str) -> Result<()> {
        let reached = self.gates.join(format!("{gate}.reached"));
        let application = &mut self.application;
        let what = format!("the application reaches the gate {gate}");
        wait_for(&what, GATE_LIMIT, || {
            if reached.exists() {
                return Ok(Some(()));
            }
            if let Some(status) = application.poll()? {
                bail!("it ended before ({status}){}", application.hint());
            }
            Ok(None)
        })
        .with_context(|| format!("the application says:{}", self.application.hint()))
    }

    fn open(&self, gate: &str) -> Result<()> {
        Ok(fs::write(self.gates.join(format!("{gate}.go")), "")?)
    }

    /// The last line of a test: nothing needs to be kept.
    fn passed(mut self) -> Result<()> {
        if let Some(folder) = self.folder.take() {
            folder.close().context("cannot remove the test's folder")?;
        }
        Ok(())
    }

    /// The only executor's row, when two ticks in a row say the same of its faults: no task runs.
    fn executor(&self) -> Result<Value> {
        let mut last = Value::Null;
        wait_for("the executor's figures come to rest", TOLD_LIMIT, || {
            std::thread::sleep(Duration::from_millis(2200));
            let rows = self.daemon.rows(&["executors"])?;
            let [row] = rows.as_slice() else {
                return Ok(None);
            };
            let same = last["page_faults_attributed"] == row["page_faults_attributed"];
            last = row.clone();
            Ok((same && !last["page_faults_attributed"].is_null()).then(|| last.clone()))
        })
    }

    /// Reads that missed the address cache, as sampled, by RDD; none where nothing of the kind is measured.
    fn read_misses(&self) -> Result<Option<BTreeMap<String, u64>>> {
        let mut misses = BTreeMap::new();
        for row in self.daemon.rows(&["rdds"])? {
            if let Some(count) = row["dtlb_read_misses"].as_u64() {
                let name = format!("{} {}", row["rdd_id"], row["name"]);
                *misses.entry(name).or_default() += count;
            }
        }
        Ok((!misses.is_empty()).then_some(misses))
    }

    /// Where page walks are not measured the daemon says why; where they must be, that is an error.
    fn no_page_walks(&self) -> Result<()> {
        let status = self.daemon.json(&["status"])?;
        let verdict = status["probes"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|row| row["name"] == "page_walks")
            .with_context(|| format!("the status says nothing of page walks: {status}"))?;
        ensure!(
            variable("SMTT_PAGE_WALKS").is_none(),
            "page walks must be measured here: {verdict}"
        );
        println!(
            "skipped, reads that miss the address cache: {}",
            verdict["reason"]
        );
        Ok(())
    }

    /// The row of the cached RDD.
    fn cached(&self) -> Result<Value> {
        let rows = self.daemon.rows(&["rdds"])?;
        rows.iter()
            .find(|row| row["name"] == CACHED_RDD)
            .cloned()
            .with_context(|| format!("no RDD {CACHED_RDD:?} is listed: {rows:#?}"))
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if let Some(folder) = self.folder.take() {
            println!(
                "logs of the failed test are kept in {}; the daemon's ends:{}",
                folder.keep().display(),
                hint(self.daemon.log())
            );
        }
    }
}

#[test]
fn the_cached_rdd_of_a_jvm_is_known_and_its_faults_are_its_own() -> Result<()> {
    let mut scene = Scene::start()?;
    scene.reach("begin")?;
    let begin = scene.executor()?;
    println!("executor at the first gate: {begin}");
    let missing = begin["missing_hooks"].as_array().map(Vec::len);
    ensure!(missing == Some(0), "hooks are missing: {begin:#}");

    scene.open("begin")?;
    scene.reach("cached")?;
    let filled = scene.executor()?;
    let cached = scene.cached()?;
    println!("{CACHED_RDD}, filled: {cached}");
    let held = number(&cached, "storage_memory_bytes")?;
    ensure!(
        held >> 20 >= CACHED_MIB && held >> 20 < CACHED_MIB + 8,
        "the arrays of {CACHED_MIB} MiB take {held} bytes of storage memory"
    );
    ensure!(
        number(&cached, "partitions_cached")? == 2,
        "both partitions are cached: {cached:#}"
    );
    let grown = |key: &str| Ok::<u64, anyhow::Error>(number(&filled, key)? - number(&begin, key)?);
    let (attributed, unattributed) = (
        grown("page_faults_attributed")?,
        grown("page_faults_unattributed")?,
    );
    println!("faults while it was filled: {attributed} attributed, {unattributed} not");
    // Each page of a fresh array is touched once before anything else is, by the task that makes it.
    let own = number(&cached, "page_faults_write")?;
    ensure!(
        (CACHED_PAGES..CACHED_PAGES * 12 / 10).contains(&own),
        "{own} write faults are the cached RDD's, which has {CACHED_PAGES} pages: {cached:#}"
    );
    ensure!(
        attributed * 100 >= (attributed + unattributed) * ATTRIBUTED_PERCENT,
        "only {attributed} of {} faults are attributed",
        attributed + unattributed
    );

    let before = scene.read_misses()?;
    scene.open("cached")?;
    scene.reach("scanned")?;
    scene.executor()?;
    println!("{CACHED_RDD}, scanned: {}", scene.cached()?);
    match (before, scene.read_misses()?) {
        (Some(before), Some(after)) => dominates(&before, &after)?,
        _ => scene.no_page_walks()?,
    }
    ledger_is_clean(&scene.daemon)?;
    scene.open("scanned")?;
    let status = scene.application.wait(GATE_LIMIT, || Ok(()))?;
    ensure!(
        status.success(),
        "the application failed ({status}){}",
        scene.application.hint()
    );
    let said = result_line(scene.application.log())?;
    ensure!(said == RESULT, "it says {said:?}, not {RESULT:?}");
    scene.passed()
}

/// What was added in the pass that scans the cache is the cached RDD's.
fn dominates(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> Result<()> {
    let grown = |name: &String, count: &u64| count - before.get(name).copied().unwrap_or(0);
    let all: u64 = after.iter().map(|(name, count)| grown(name, count)).sum();
    let own: u64 = after
        .iter()
        .filter(|(name, _)| name.contains(CACHED_RDD))
        .map(|(name, count)| grown(name, count))
        .sum();
    println!(
        "reads that missed the address cache in the scans: {own} of {all} are the cached RDD's; {after:?}"
    );
    ensure!(
        own * 100 >= all * DOMINANT_PERCENT && own > CACHED_PAGES,
        "{own} of {all} are the cached RDD's: {before:?}, then {after:?}"
    );
    Ok(())
}

/// No fact was lost on any hop, and every hop adds up. The end of telling again is no loss where the executor was not
/// known when it was asked: there is nothing that it could sweep away.
fn ledger_is_clean(daemon: &Daemon) -> Result<()> {
    let status = daemon.json(&["status"])?;
    let hops = status["ledger"]
        .as_array()
        .with_context(|| format!("no ledger in {status}"))?;
    ensure!(!hops.is_empty(), "the ledger has no hops");
    for hop in hops {
        let lost: u64 = hop["lost"]
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(cause, _)| *cause != "resync_not_requested")
            .filter_map(|(_, count)| count.as_u64())
            .sum();
        ensure!(
            lost == 0 && hop["consistent"] == true,
            "the ledger is not clean: {hop}"
        );
    }
    println!("ledger: {}", status["ledger"]);
    Ok(())
}

fn number(row: &Value, key: &str) -> Result<u64> {
    row[key]
        .as_u64()
        .with_context(|| format!("no number {key} in {row}"))
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Folder of the programs under test: beside the test itself.
fn programs() -> Result<PathBuf> {
    let test = std::env::current_exe().context("cannot tell where the test lies")?;
    let folder = test
        .parent()
        .and_then(Path::parent)
        .context("the test is not in target/PROFILE/deps")?;
    Ok(folder.to_path_buf())
}
