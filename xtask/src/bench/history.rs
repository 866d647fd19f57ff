//! The history server: sizes, of an application that Spark runs for it; and times, beside Spark's own server, paired in one
//! run, of an application that never ran.
//!
//! Spark's server runs as it is installed: no option of the tests' quick starts. Both servers answer the same questions, in
//! turns. Sizes depend on the numbers in the log: those of an application that never ran are more random than Spark's, or
//! less, so its sizes are shown without a verdict.

mod large;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{RUN_LIMIT, median, most, report, timeline};
use crate::event_log::{self, ID, Shape};
use crate::http::get;
use crate::paths::{DEMO_SPARK, Jdk, Paths};
use crate::process::{Running, free_port, output, run, wait_for};
use crate::spark::{Application, Spark};
use crate::witness;

/// An event log that is there already, to be measured instead of a run of Spark.
const LOG: &str = "SMTT_BENCH_LOG";
/// Measures only what needs no Spark, with so many tasks in place of a million: one stage of them, a raw log, the crowd.
const LARGE: &str = "SMTT_BENCH_LARGE";
/// Tasks of a wide stage of the application that Spark runs, 1,000 if it is not set: a small number for a try.
const WIDE: &str = "SMTT_BENCH_WIDE";
/// A run of 29,000 tasks takes ten minutes of CPU time, and the most of an hour on a busy machine.
const SPARK_LIMIT: Duration = Duration::from_secs(3600);
/// Tasks of the application that never ran.
const TASKS: usize = 29_000;
/// Pairs of first opens.
const PAIRS: usize = 3;
/// Sorted pages that are asked for.
const PAGES: usize = 20;
/// Small applications, those that Spark's server opens too, and clients that open them at a time.
const SMALL: (usize, usize, usize) = (1000, 200, 32);
/// Spark's server lists large logs; a busy machine takes minutes.
const START_LIMIT: Duration = Duration::from_secs(600);

/// Targets of docs/HISTORY.md.
const STORE_MB: f64 = 0.90;
const RUNNING_MB: f64 = 1.1;
const BELOW_RAW: f64 = 190.0;
const BELOW_ZSTD: f64 = 7.5;
const OPEN_MS: f64 = 30.0;
const OPEN_MB: f64 = 60.0;
const IMPORT_MB: f64 = 100.0;
const FASTER: f64 = 10.0;
const PAGE_MS: f64 = 20.0;
const P99_MS: f64 = 300.0;
/// Bytes of open applications in the server that a crowd asks: less than the crowd's applications have.
const CROWD_CACHE: u32 = 4_000_000;

/// A figure that has to be large.
fn at_least(what: &str, value: f64, target: f64, detail: &str) {
    let verdict = if value >= target { "ok" } else { "MISSED" };
    println!("{what:32} {value:9.3} x      at least {target} x: {verdict}  ({detail})");
}

/// A server and its port.
struct Server {
    process: Running,
    port: u16,
}

impl Server {
    /// Milliseconds until an answer is there.
    fn ask(&self, path: &str) -> Result<f64> {
        let begun = Instant::now();
        get(self.port, &format!("/api/v1/{path}"))?;
        Ok(begun.elapsed().as_secs_f64() * 1000.0)
    }

    fn most_resident_mb(&self) -> Result<f64> {
        Ok(witness::resident_peak_bytes(self.process.pid())? as f64 / 1e6)
    }
}

/// Bytes of a log, of the log as zstd-3, and of its store.
struct Size {
    tasks: usize,
    raw: f64,
    zstd: f64,
    stored: f64,
}

struct Bench<'a> {
    program: PathBuf,
    folder: &'a Path,
    logs: PathBuf,
    store: PathBuf,
    spark: Spark,
}

/// Measures; needs Spark, but no root.
pub(super) fn history(paths: &Paths, folder: &Path) -> Result<()> {
    let program = timeline::program(paths)?;
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    let bench = Bench {
        program,
        folder,
        logs: folder.join("logs"),
        store: folder.join("store"),
        spark: Spark::new(paths, DEMO_SPARK, &Jdk::main()?, &folder.join("spark"))?,
    };
    fs::create_dir_all(&bench.logs)?;
    let begun = Instant::now();
    if let Some(tasks) = std::env::var(LARGE).ok().and_then(|it| it.parse().ok()) {
        bench.million(tasks)?;
        bench.raw(tasks / 2)?;
        bench.clients_of_ours()?;
        fs::remove_dir_all(folder)?;
        return Ok(());
    }
    bench.sizes(paths)?;
    bench.opens()?;
    bench.pages()?;
    bench.clients()?;
    bench.million(large::MILLION)?;
    bench.raw(large::RAW_TASKS)?;
    println!("history: measured in {} s", begun.elapsed().as_secs());
    fs::remove_dir_all(folder)?;
    Ok(())
}

impl Bench<'_> {
    fn ours(&self, store: &Path, logs: bool) -> Result<Server> {
        self.ours_with(store, logs, &[])
    }

    fn ours_with(&self, store: &Path, logs: bool, more: &[&str]) -> Result<Server> {
        let port = free_port()?;
        let mut serve = Command::new(&self.program);
        serve.args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--store"]);
        serve.arg(store).args(more);
        if logs {
            serve.arg("--event-logs").arg(&self.logs);
        }
        let log = self.folder.join("serve.log");
        let process = Running::start("smtt-history", &mut serve, &log)?;
        wait_for("smtt-history answers", START_LIMIT, || {
            Ok(get(port, "/api/v1/version").ok())
        })?;
        Ok(Server { process, port })
    }

    /// Spark's server, when it has listed the last application.
    fn sparks(&self, logs: &Path, last: &str) -> Result<Server> {
        let server = self.spark.installed_history_server(logs)?;
        let path = format!("/api/v1/applications/{last}");
        wait_for("Spark's server has read the folder", START_LIMIT, || {
            Ok(get(server.port, &path).ok())
        })?;
        let (process, port) = (server.process, server.port);
        Ok(Server { process, port })
    }

    fn import(&self, store: &Path, logs: &[PathBuf]) -> Result<()> {
        let mut import = Command::new(&self.program);
        import.arg("import").arg("--store").arg(store).args(logs);
        let log = self.folder.join("import.log");
        run("the import", &mut import, &log, RUN_LIMIT)
    }

    fn sizes(&self, paths: &Paths) -> Result<()> {
        let (real, parts) = match std::env::var_os(LOG) {
            Some(log) => (log.into(), None),
            None => {
                let (log, parts) = self.run_spark(paths)?;
                (log, Some(parts))
            }
        };
        println!("log of Spark: {}", real.display());
        let store = self.folder.join("store-of-spark");
        let size = self.size(paths, &store, &real)?;
        let tasks = size.tasks;
        let detail = format!("{tasks} tasks; the log has {:.1} MB", size.raw / 1e6);
        report(
            "store, complete",
            size.stored / 1e6,
            "MB",
            STORE_MB,
            &detail,
        );
        match parts {
            Some(parts) => while_it_runs(&parts, tasks)?,
            None => println!("store, while it runs: not measured, {LOG} has no parts"),
        }
        let below_raw = size.raw / size.stored;
        at_least(
            "store below the raw log",
            below_raw,
            BELOW_RAW,
            "raw / store",
        );
        let detail = format!("the log as zstd-3 has {:.2} MB", size.zstd / 1e6);
        let below_zstd = size.zstd / size.stored;
        at_least("store below zstd-3", below_zstd, BELOW_ZSTD, &detail);

        let shape = Shape {
            tasks: TASKS,
            stages: 47,
            executors: 25,
            cores: 8,
            sql_metrics: 8,
        };
        let log = self.logs.join(ID);
        event_log::write(&log, &shape)?;
        // The second application of equal size finds Spark's JVM warm.
        copy_as(&log, &self.logs, &second())?;
        let size = self.size(paths, &self.store, &log)?;
        println!(
            "log of no Spark: {} tasks, {:.1} MB, {:.2} MB as zstd-3; store {:.2} MB, {:.1} x below zstd-3",
            size.tasks,
            size.raw / 1e6,
            size.zstd / 1e6,
            size.stored / 1e6,
            size.zstd / size.stored
        );
        Ok(())
    }

    /// The event log of an application of Spark, on this machine, with the peaks of executors taken every 25 ms; and the
    /// store with the parts that its driver wrote.
    fn run_spark(&self, paths: &Paths) -> Result<(PathBuf, PathBuf)> {
        let logs = self.folder.join("logs-of-spark");
        fs::create_dir_all(&logs)?;
        let parts = self.folder.join("parts-of-spark");
        let master = "local-cluster[2,1,1024]";
        let wide = std::env::var(WIDE).unwrap_or_else(|_| "1000".to_owned());
        let application = Application::python(paths, master, "sizes.py", &[&wide])?;
        let mut application = application.with_marker_by_spark(paths);
        for (key, value) in [
            // As Spark has them where nothing is set.
            (
                "spark.serializer",
                "org.apache.spark.serializer.JavaSerializer",
            ),
            ("spark.shuffle.sort.bypassMergeThreshold", "200"),
            ("spark.ui.enabled", "false"),
            ("spark.smtt.attach", "false"),
            (
                "spark.smtt.history.dir",
                &format!("file://{}", parts.display()),
            ),
            ("spark.eventLog.enabled", "true"),
            ("spark.eventLog.dir", &format!("file://{}", logs.display())),
            ("spark.eventLog.compress", "false"),
            ("spark.eventLog.rolling.enabled", "false"),
            ("spark.eventLog.logBlockUpdates.enabled", "true"),
            ("spark.eventLog.logStageExecutorMetrics", "true"),
            ("spark.executor.metrics.pollingInterval", "25"),
            ("spark.sql.adaptive.coalescePartitions.enabled", "false"),
        ] {
            application = application.conf(key, value);
        }
        let mut running = application.submit(&self.spark, "sizes")?;
        running.result(SPARK_LIMIT)?;
        let mut found = fs::read_dir(&logs)?.flatten().map(|entry| entry.path());
        let log = found.next().context("Spark wrote no event log")?;
        Ok((log, parts))
    }

    /// Imports a log into a store of its own.
    fn size(&self, paths: &Paths, store: &Path, log: &Path) -> Result<Size> {
        self.import(store, &[log.to_owned()])?;
        let folders = fs::read_dir(store)?.flatten().map(|entry| entry.path());
        let mut folders = folders.filter(|path| path.is_dir());
        let folder = folders.next().context("the import made no folder")?;
        let mut stored = 0.0;
        for table in fs::read_dir(&folder)? {
            let table = table?;
            let bytes = table.metadata()?.len();
            println!("    {}: {bytes} bytes", table.file_name().display());
            stored += bytes as f64;
        }
        let mut tasks = 0;
        for line in BufReader::new(File::open(log)?).split(b'\n') {
            tasks += usize::from(line?.starts_with(br#"{"Event":"SparkListenerTaskEnd""#));
        }
        // Of Spark's own codec, by another program.
        let code = "import pyarrow, sys; print(len(pyarrow.Codec('zstd', 3).compress(open(sys.argv[1], 'rb').read())))";
        let mut python = Command::new(paths.spark_env(DEMO_SPARK).join("bin/python"));
        let zstd = output(python.args(["-c", code]).arg(log))?;
        Ok(Size {
            tasks,
            raw: fs::metadata(log)?.len() as f64,
            zstd: zstd.trim().parse()?,
            stored,
        })
    }

    /// First opens: compact and raw here, raw by Spark, in turns.
    fn opens(&self) -> Result<()> {
        let stages = |id: &str| format!("applications/{id}/stages");
        let (mut compact, mut raw, mut cold, mut warm) = (vec![], vec![], vec![], vec![]);
        let (mut small, mut large, mut jvm) = (0.0_f64, 0.0_f64, 0.0_f64);
        for pair in 0..PAIRS {
            let ours = |raw: &mut Vec<f64>, compact: &mut Vec<f64>| -> Result<(f64, f64)> {
                let server = self.ours(&self.store, false)?;
                compact.push(server.ask(&stages(ID))?);
                let empty = self.folder.join(format!("empty-{pair}"));
                let importing = self.ours(&empty, true)?;
                raw.push(importing.ask(&stages(ID))?);
                Ok((server.most_resident_mb()?, importing.most_resident_mb()?))
            };
            let theirs = |cold: &mut Vec<f64>, warm: &mut Vec<f64>| -> Result<f64> {
                let server = self.sparks(&self.logs, &second())?;
                cold.push(server.ask(&stages(ID))?);
                warm.push(server.ask(&stages(&second()))?);
                server.most_resident_mb()
            };
            // Who is second may profit from the page cache.
            let (mine, of_jvm) = if pair % 2 == 0 {
                (ours(&mut raw, &mut compact)?, theirs(&mut cold, &mut warm)?)
            } else {
                let of_jvm = theirs(&mut cold, &mut warm)?;
                (ours(&mut raw, &mut compact)?, of_jvm)
            };
            println!(
                "    pair {}: {:.1} ms compact, {:.0} ms raw; Spark {:.0} ms, its second application {:.0} ms",
                pair + 1,
                compact[pair],
                raw[pair],
                cold[pair],
                warm[pair]
            );
            (small, large, jvm) = (small.max(mine.0), large.max(mine.1), jvm.max(of_jvm));
        }
        let detail = format!(
            "/stages, median of {PAIRS} new servers, most {:.1} ms",
            most(&compact)
        );
        report(
            "first open, compact",
            median(&mut compact),
            "ms",
            OPEN_MS,
            &detail,
        );
        let detail = format!("VmHWM; Spark's server {jvm:.0} MB");
        report(
            "first open, compact, resident",
            small,
            "MB",
            OPEN_MB,
            &detail,
        );
        report("first open, raw, resident", large, "MB", IMPORT_MB, &detail);
        for (what, theirs) in [
            ("first open, raw, Spark cold", &cold),
            ("first open, raw, Spark warm", &warm),
        ] {
            let mut ratios: Vec<f64> = theirs
                .iter()
                .zip(&raw)
                .map(|(theirs, ours)| theirs / ours)
                .collect();
            at_least(
                what,
                median(&mut ratios),
                FASTER,
                "median of the pairs, Spark's time / ours",
            );
        }
        let mut ratios: Vec<f64> = cold
            .iter()
            .zip(&compact)
            .map(|(theirs, ours)| theirs / ours)
            .collect();
        println!(
            "first open, Spark's raw / our compact: {:.0} x",
            median(&mut ratios)
        );
        Ok(())
    }

    /// Sorted pages of a stage with all tasks.
    fn pages(&self) -> Result<()> {
        let logs = self.folder.join("one-stage");
        fs::create_dir_all(&logs)?;
        let shape = Shape {
            tasks: TASKS,
            stages: 1,
            executors: 25,
            cores: 8,
            sql_metrics: 0,
        };
        event_log::write(&logs.join(ID), &shape)?;
        let store = self.folder.join("one-stage-store");
        self.import(&store, &[logs.join(ID)])?;
        let (ours, theirs) = (self.ours(&store, false)?, self.sparks(&logs, ID)?);
        let (mut mine, mut sparks) = (vec![], vec![]);
        for page in 0..PAGES {
            let path = format!(
                "applications/{ID}/stages/0/0/taskList?sortBy=-runtime&length=100&offset={}",
                page * (TASKS / PAGES)
            );
            mine.push(ours.ask(&path)?);
            sparks.push(theirs.ask(&path)?);
        }
        let detail = format!(
            "100 of {TASKS}, median of {PAGES}, first {:.1} ms; Spark {:.1} ms, first {:.1} ms",
            mine[0],
            median(&mut sparks.clone()),
            sparks[0]
        );
        report(
            "taskList, sorted page",
            median(&mut mine),
            "ms",
            PAGE_MS,
            &detail,
        );
        Ok(())
    }

    /// Many small applications, opened by many clients of ours. Returns logs of the few that Spark's server opens, and ids.
    fn clients_of_ours(&self) -> Result<(PathBuf, Vec<String>)> {
        let (all, of_spark, clients) = SMALL;
        let (logs, few, store) = ["small", "few", "small-store"]
            .map(|it| self.folder.join(it))
            .into();
        fs::create_dir_all(&logs)?;
        fs::create_dir_all(&few)?;
        let shape = Shape {
            tasks: 100,
            stages: 4,
            executors: 4,
            cores: 4,
            sql_metrics: 2,
        };
        let pattern = self.folder.join("pattern");
        event_log::write(&pattern, &shape)?;
        let ids: Vec<String> = (0..all)
            .map(|at| format!("app-20260922000000-{:04}", at + 5000))
            .collect();
        let mut paths = Vec::new();
        for (at, id) in ids.iter().enumerate() {
            paths.push(copy_as(&pattern, &logs, id)?);
            if at < of_spark {
                copy_as(&pattern, &few, id)?;
            }
        }
        self.import(&store, &paths)?;
        let cache = CROWD_CACHE.to_string();
        let ours = self.ours_with(&store, false, &["--cache-bytes", &cache])?;
        let (mut mine, errors) = crowd(&ours, &ids, clients)?;
        let resident = ours.most_resident_mb()?;
        let detail = format!(
            "{all} applications, {clients} clients, {errors} errors, median {:.1} ms",
            median(&mut mine)
        );
        report(
            "clients, p99",
            percentile(&mut mine, 99),
            "ms",
            P99_MS,
            &detail,
        );
        // What a server has beside its cache is what a first open may take.
        let bound = OPEN_MB + f64::from(CROWD_CACHE) / 1e6;
        let detail =
            format!("VmHWM, with --cache-bytes {CROWD_CACHE}; {all} applications were open");
        report("clients, resident", resident, "MB", bound, &detail);
        ensure!(
            errors == 0,
            "{errors} of {all} applications were not opened"
        );
        Ok((few, ids))
    }

    /// The crowd at both servers.
    fn clients(&self) -> Result<()> {
        let (_, of_spark, clients) = SMALL;
        let (few, ids) = self.clients_of_ours()?;
        let theirs = self.sparks(&few, &ids[of_spark - 1])?;
        let (mut sparks, errors) = crowd(&theirs, &ids[..of_spark], clients)?;
        println!(
            "clients, Spark's server: p99 {:.0} ms, median {:.0} ms, {errors} errors, {:.0} MB, {of_spark} applications",
            percentile(&mut sparks, 99),
            median(&mut sparks),
            theirs.most_resident_mb()?
        );
        Ok(())
    }
}

/// The bytes of the parts that a driver wrote, for an application of [`TASKS`] tasks.
fn while_it_runs(store: &Path, tasks: usize) -> Result<()> {
    let (mut bytes, mut parts) = (0, 0);
    for folder in fs::read_dir(store)?.flatten() {
        for file in fs::read_dir(folder.path())?.flatten() {
            let name = file.file_name();
            let name = name.to_string_lossy();
            if name.ends_with(".parquet") {
                bytes += file.metadata()?.len();
                parts += u32::from(name.starts_with("meta-"));
            }
        }
    }
    ensure!(parts > 0, "the driver wrote no part");
    let of_all = bytes as f64 / 1e6 * TASKS as f64 / tasks as f64;
    let detail = format!("{parts} parts of {bytes} bytes for {tasks} tasks, as for {TASKS}");
    report("store, while it runs", of_all, "MB", RUNNING_MB, &detail);
    Ok(())
}

fn second() -> String {
    format!("{ID}-second")
}

/// The log under another id, in a folder.
fn copy_as(log: &Path, folder: &Path, id: &str) -> Result<PathBuf> {
    let path = folder.join(id);
    let mut from = BufReader::new(File::open(log)?);
    let mut to = BufWriter::new(File::create(&path)?);
    // The application's start is among the first lines.
    for _ in 0..3 {
        let mut line = String::new();
        from.read_line(&mut line)?;
        to.write_all(line.replace(ID, id).as_bytes())?;
    }
    std::io::copy(&mut from, &mut to)?;
    to.flush()
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// All applications opened by clients at a time: milliseconds of each, and failures.
fn crowd(server: &Server, ids: &[String], clients: usize) -> Result<(Vec<f64>, usize)> {
    let (next, failed, times) = (
        AtomicUsize::new(0),
        AtomicUsize::new(0),
        Mutex::new(Vec::new()),
    );
    thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                while let Some(id) = ids.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match server.ask(&format!("applications/{id}/stages")) {
                        Ok(time) => times
                            .lock()
                            .unwrap_or_else(std::sync::PoisonError::into_inner)
                            .push(time),
                        Err(_) => {
                            failed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    let times = times
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok((times, failed.into_inner()))
}

/// The value that so many per cent of the values do not exceed.
fn percentile(values: &mut [f64], percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() * percent).div_ceil(100).saturating_sub(1);
    values.get(at).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn percentiles() {
        let mut values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert!((percentile(&mut values, 99) - 198.0).abs() < f64::EPSILON);
        assert!((percentile(&mut [7.0], 99) - 7.0).abs() < f64::EPSILON);
        assert!(percentile(&mut [], 99).is_nan());
    }
}
