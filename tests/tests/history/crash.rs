//! kill -9 at random moments: of an import, of a server that imports, of a compaction, and of a driver. Every visible file
//! opens, whatever is there is whole, nothing is there twice, and the next attempt gives what an undisturbed one gives.
//!
//! `SMTT_DRIVER_KILLS` is the number of drivers; `cargo xtask test kills` kills 50.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use smtt_history::live::compact;
use smtt_store::history::columns::TASKS;
use smtt_store::history::read::Reader;
use smtt_store::history::{parts, place};
use smtt_tests::history::{list, serve};
use smtt_tests::lab::{LIMIT, SparkLab, programs};
use xtask::event_log::{self, ID, Shape};
use xtask::http::get;
use xtask::paths::{DEMO_SPARK, Paths};
use xtask::process::{free_port, output, wait_for};
use xtask::random::{moment, random};

use crate::answers::{Api, compare_all};
use crate::application::{Ended, application};
use crate::lists;
use crate::live::{names, only, same_columns, same_tables, values};

/// How often each program is killed.
const KILLS: u32 = 20;
/// Drivers that are killed by default.
const DRIVERS: u32 = 3;
/// A driver lives for at most this time after its first, second or third part.
const DRIVER_LIFE: Duration = Duration::from_secs(8);
/// Tasks that wait for a part at most, while none is written.
const LAST_PART: usize = 1_000;
/// A part that waits is written by another thread, and its tasks come by a queue of their own: both wait for a CPU.
const HANDED_OVER: Duration = Duration::from_secs(1);

/// Opens every visible file of a folder and prints their number. No two rows of `tasks` have the same id.
const CHECK: &str = "
import pathlib, sys
import pyarrow.parquet
files = 0
for path in sorted(pathlib.Path(sys.argv[1]).rglob('*.parquet')):
    if any(part.startswith('.') for part in path.parts[1:]):
        continue
    table = pyarrow.parquet.ParquetFile(path).read()
    if path.name.startswith('tasks'):
        ids = table.column('task_id').to_pylist()
        assert len(set(ids)) == len(ids), path
    files += 1
print(files)
";

fn check(folder: &Path) -> Result<u64> {
    let python = Paths::find()?.spark_env(DEMO_SPARK).join("bin/python");
    let files = output(Command::new(python).args(["-c", CHECK]).arg(folder))?;
    Ok(files.trim().parse()?)
}

fn program() -> Result<Command> {
    let path = programs()?.join("smtt-history");
    ensure!(
        path.is_file(),
        "{} is not built: cargo build -p smtt-history",
        path.display()
    );
    let mut command = Command::new(path);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command)
}

/// Kills a child and waits for it; whether it still ran.
fn kill(mut child: Child) -> Result<bool> {
    let ran = child.try_wait()?.is_none();
    child.kill()?;
    child.wait()?;
    Ok(ran)
}

/// A log, and a store with what an undisturbed import of it makes.
struct Bench {
    folder: tempfile::TempDir,
    logs: PathBuf,
    store: PathBuf,
    reference: PathBuf,
    /// The undisturbed import's time.
    whole: Duration,
}

impl Bench {
    fn new() -> Result<Self> {
        // Files of hidden folders are not checked.
        let folder = tempfile::Builder::new().prefix("smtt-test-").tempdir()?;
        let [logs, store, reference] =
            ["logs", "store", "reference"].map(|it| folder.path().join(it));
        fs::create_dir(&logs)?;
        let shape = Shape {
            tasks: 2_000,
            stages: 7,
            executors: 5,
            cores: 4,
            sql_metrics: 3,
        };
        event_log::write(&logs.join(ID), &shape)?;
        let begun = Instant::now();
        let mut import = program()?;
        import.arg("import").arg("--store").arg(&reference);
        ensure!(import.arg(logs.join(ID)).status()?.success());
        Ok(Self {
            logs,
            store,
            reference,
            whole: begun.elapsed(),
            folder,
        })
    }

    /// What a killed import left: unfinished folders, and nothing or a whole application. It is kept for the check.
    fn look(&self, round: u32) -> Result<usize> {
        let all = names(&self.store);
        let hidden = all.iter().filter(|it| it.starts_with(".import-")).count();
        let visible: Vec<&String> = all.iter().filter(|it| !it.starts_with('.')).collect();
        let own = self.store.join(ID);
        if !visible.is_empty() {
            ensure!(visible == [ID], "{all:?}");
            same_tables(&own, &self.reference.join(ID))?;
            let seen = self.folder.path().join("seen").join(round.to_string());
            fs::create_dir_all(&seen)?;
            for table in names(&own) {
                fs::hard_link(own.join(&table), seen.join(&table))?;
            }
        }
        Ok(hidden)
    }

    /// After an undisturbed end only the application is there.
    fn ended(&self, hit: u32, unfinished: usize) -> Result<()> {
        self.look(KILLS)?;
        let all: Vec<String> = names(&self.store);
        ensure!(all == [".lock", ID], "{all:?}");
        let files = check(&self.folder.path().join("seen"))?;
        println!("{hit} of {KILLS} met an import, {unfinished} unfinished folders, {files} files");
        ensure!(files % 3 == 0 && files > 0, "{files} files");
        ensure!(
            4 * hit >= KILLS && unfinished > 0,
            "{hit} of {KILLS} kills met an import"
        );
        Ok(())
    }
}

#[test]
fn an_import_that_is_killed_leaves_whole_tables_or_none() -> Result<()> {
    let bench = Bench::new()?;
    let import = |replaces: bool| -> Result<Command> {
        let mut import = program()?;
        import.arg("import").arg("--store").arg(&bench.store);
        import.args(replaces.then_some("--replace"));
        import.arg(bench.logs.join(ID));
        Ok(import)
    };
    let (mut hit, mut unfinished) = (0, 0);
    for round in 0..KILLS {
        // The second half replaces what is there.
        let replaces = round >= KILLS / 2;
        let is_there = bench.store.join(ID).exists();
        if replaces && !is_there {
            ensure!(import(false)?.status()?.success());
        } else if !replaces && is_there {
            fs::remove_dir_all(bench.store.join(ID))?;
        }
        let child = import(replaces)?.spawn()?;
        sleep(moment(2 * round % KILLS, KILLS, bench.whole));
        hit += u32::from(kill(child)?);
        unfinished += bench.look(round)?;
        ensure!(!replaces || bench.store.join(ID).exists(), "round {round}");
    }
    ensure!(import(true)?.status()?.success());
    bench.ended(hit, unfinished)
}

#[test]
fn a_server_that_is_killed_leaves_whole_tables_or_none() -> Result<()> {
    let bench = Bench::new()?;
    let serve = || -> Result<(Child, u16)> {
        let port = free_port()?;
        let mut serve = program()?;
        serve.args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--store"]);
        serve.arg(&bench.store).arg("--event-logs").arg(&bench.logs);
        let child = serve.spawn()?;
        wait_for("smtt-history answers", LIMIT, || {
            Ok(get(port, "/api/v1/version").ok())
        })?;
        Ok((child, port))
    };
    let path = format!("/api/v1/applications/{ID}/stages");
    let (child, port) = serve()?;
    let begun = Instant::now();
    get(port, &path)?;
    // Some kills come after the answer.
    let whole = begun.elapsed().mul_f64(1.2);
    kill(child)?;
    let (mut hit, mut unfinished) = (0, 0);
    for round in 0..KILLS {
        if bench.store.join(ID).exists() {
            fs::remove_dir_all(bench.store.join(ID))?;
        }
        let (child, port) = serve()?;
        let asked = path.clone();
        // The first question imports the log.
        let client = std::thread::spawn(move || get(port, &asked).is_ok());
        sleep(moment(round, KILLS, whole));
        kill(child)?;
        hit += u32::from(!client.join().unwrap_or_default());
        unfinished += bench.look(round)?;
    }
    let (child, port) = serve()?;
    let ours = list(port, &path)?;
    let undisturbed = list(smtt_tests::history::serve(&bench.reference, None)?, &path)?;
    ensure!(ours == undisturbed, "{ours:?}\n{undisturbed:?}");
    kill(child)?;
    bench.ended(hit, unfinished)
}

/// Compactions of parts that a real driver wrote leave all parts, or the tables.
pub fn compaction(run: &Ended<'_>) -> Result<()> {
    let id = run.id.as_str();
    let folder = run.lab.folder().join("compactions");
    let copy = |name: &str| -> Result<PathBuf> {
        let (from, store) = (run.store.join(id), folder.join(name));
        fs::create_dir_all(store.join(id))?;
        for file in names(&from) {
            fs::copy(from.join(&file), store.join(id).join(&file))?;
        }
        Ok(store)
    };
    let compact = |store: &Path| -> Result<Command> {
        let mut compact = program()?;
        compact.arg("compact").arg("--store").arg(store);
        Ok(compact)
    };
    let reference = copy("reference")?;
    let parts = names(&reference.join(id));
    let begun = Instant::now();
    ensure!(compact(&reference)?.status()?.success());
    let whole = begun.elapsed();
    let (mut hit, mut made) = (0, 0);
    for round in 0..KILLS {
        let store = copy(&round.to_string())?;
        let child = compact(&store)?.spawn()?;
        sleep(moment(round, KILLS, whole));
        hit += u32::from(kill(child)?);
        let own = store.join(id);
        if names(&own) == parts {
            ensure!(compact(&store)?.status()?.success());
        } else {
            made += 1;
        }
        same_tables(&own, &reference.join(id))?;
        ensure!(names(&own).len() == 3, "{:?}", names(&own));
    }
    let files = check(&folder)?;
    println!("{hit} of {KILLS} met a compaction, {made} had ended it; {files} files");
    ensure!(4 * hit >= KILLS, "{hit} of {KILLS} kills met a compaction");
    ensure!(files == 3 * u64::from(KILLS + 1), "{files} files");
    Ok(())
}

/// Ids of the tasks in an application's parts, in the order of their ends.
fn written(folder: &Path) -> Result<Vec<i64>> {
    let mut tasks = Vec::new();
    for number in parts::list(folder)? {
        let path = parts::path(folder, TASKS.name, number);
        if path.exists() {
            let reader = Reader::open(&path, TASKS.name)?;
            let rows = 0..reader.rows();
            let all = std::slice::from_ref(&rows);
            let ended = reader.numbers(parts::ENDED, all)?.into_iter().flatten();
            let ids = reader.numbers("task_id", all)?.into_iter().flatten();
            tasks.extend(ended.zip(ids));
        }
    }
    ensure!(tasks.is_sorted(), "ends in parts are in no order");
    Ok(tasks.into_iter().map(|(_, id)| id).collect())
}

/// Ids and finish times of the tasks in a log, in the order of their ends. The last line may be half there.
fn logged(log: &Path) -> Result<Vec<(i64, i64)>> {
    let mut tasks = Vec::new();
    for line in BufReader::new(fs::File::open(log)?).lines() {
        let event: Value = serde_json::from_str(&line?).unwrap_or_default();
        if event["Event"] == "SparkListenerTaskEnd" {
            let number = |name: &str| event["Task Info"][name].as_i64();
            tasks.push((
                number("Task ID").context("no id")?,
                number("Finish Time").context("no finish time")?,
            ));
        }
    }
    Ok(tasks)
}

/// How long the longest write of a part took, from its first hidden file to the last change of a file; of the write in which
/// the driver was killed, so far as it came.
fn longest_write(folder: &Path) -> Result<Duration> {
    let mut writes: BTreeMap<u64, (SystemTime, SystemTime)> = BTreeMap::new();
    for entry in fs::read_dir(folder)?.flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let digits = name
            .split('.')
            .find_map(|it| it.rsplit('-').next()?.parse().ok());
        let Some(number) = digits else { continue };
        let file = entry.metadata()?;
        // A rename changes this time only.
        let changed = Duration::new(file.ctime().try_into()?, file.ctime_nsec().try_into()?);
        let (begun, ended) = (file.created()?, SystemTime::UNIX_EPOCH + changed);
        let write = writes.entry(number).or_insert((begun, ended));
        *write = (write.0.min(begun), write.1.max(ended));
    }
    let longest = writes
        .values()
        .map(|(begun, ended)| ended.duration_since(*begun));
    longest.flatten().max().context("no part is there")
}

/// How many tasks ended within a time at most.
fn ended_within(tasks: &[(i64, i64)], time: Duration) -> usize {
    let mut ends: Vec<i64> = tasks.iter().map(|it| it.1).collect();
    ends.sort_unstable();
    let time = i64::try_from(time.as_millis()).unwrap_or(i64::MAX) + 1;
    let within = |(at, first): (usize, &i64)| {
        ends[at..].partition_point(|end| *end <= first.saturating_add(time))
    };
    ends.iter()
        .enumerate()
        .map(within)
        .max()
        .unwrap_or_default()
}

#[test]
fn a_driver_that_is_killed_loses_its_last_part_at_most() -> Result<()> {
    let kills = std::env::var("SMTT_DRIVER_KILLS").ok();
    let kills = kills.map_or(Ok(DRIVERS), |kills| kills.parse())?;
    let lab = SparkLab::new("4.0.5")?;
    let stores = lab.folder().join("stores");
    let (mut most, mut all) = (0, 0);
    let mut ids = Vec::new();
    for kill in 0..kills {
        let store = stores.join(kill.to_string());
        let application = application(&lab, &store, "steady.py", "local[2]")?
            .conf("spark.eventLog.compress", "false");
        let mut running = lab.run_through(&application)?;
        // The first part has no task.
        wait_for("parts are there", LIMIT, || {
            let folder = only(&store).ok().map(|id| store.join(id));
            let parts = folder.and_then(|folder| parts::list(&folder).ok());
            Ok(parts
                .filter(|parts| parts.len() > kill as usize % 3)
                .map(|_| ()))
        })?;
        sleep(DRIVER_LIFE.mul_f64((random() % 1000) as f64 / 1000.0));
        ensure!(running.running.alive(), "the application ended by itself");
        running.running.signal(libc::SIGKILL);
        running.running.stop();
        let id = only(&store)?;
        let folder = store.join(&id);
        let numbers = parts::list(&folder)?;
        ensure!(
            numbers.iter().copied().eq(1..=numbers.len() as u64),
            "{numbers:?}"
        );
        let rows = same_columns(&folder)?;
        let log = lab.folder().join(format!("logs/{id}.inprogress"));
        let (written, logged) = (written(&folder)?, logged(&log)?);
        let both = written.len().min(logged.len());
        ensure!(
            logged[..both].iter().map(|it| &it.0).eq(&written[..both]),
            "the parts and the log have other tasks"
        );
        let missing = logged.len().saturating_sub(both);
        most = most.max(missing);
        all += rows;
        let write = longest_write(&folder)?;
        let most_of_last = LAST_PART + ended_within(&logged, write + HANDED_OVER);
        println!(
            "killed after {} parts: {rows} tasks, the log has {}; a write took {write:.1?}, so {most_of_last} may be missing",
            numbers.len(),
            logged.len(),
        );
        ensure!(missing <= most_of_last, "{missing} tasks are missing");
        check(&stores)?;
        dead(&store, &id, numbers.len() as u64, rows)?;
        ids.push(id);
    }
    ensure!(all > 0, "no part has a task");
    println!("{kills} drivers: at most {most} tasks of the log were in no part");
    logs_equal_sparks(&lab, &ids)?;
    lab.passed()
}

/// Leaves out what differs while an application has no end: Spark counts until now, smtt-history until the log last changed.
fn until_now(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let is_running = fields.get("status").is_some_and(|it| it == "RUNNING")
                || fields.get("completed").is_some_and(|it| it == false)
                || fields.get("isActive").is_some_and(|it| it == true);
            if is_running {
                for name in [
                    "duration",
                    "totalDuration",
                    "lastUpdated",
                    "lastUpdatedEpoch",
                ] {
                    fields.remove(name);
                }
            }
            fields.values_mut().for_each(until_now);
        }
        Value::Array(list) => list.iter_mut().for_each(until_now),
        _ => {}
    }
}

/// The logs of drivers that were killed, which stay `.inprogress`, give the answers of Spark's own history server; all answers
/// about the last one.
fn logs_equal_sparks(lab: &SparkLab, ids: &[String]) -> Result<()> {
    let logs = lab.folder().join("logs");
    let server = lab.spark.history_server(&logs)?;
    let spark = Api { port: server.port };
    let ours = Api {
        port: serve(&lab.folder().join("opened"), Some(logs))?,
    };
    for id in ids {
        let path = format!("applications/{id}");
        wait_for("Spark's history server lists them", LIMIT, || {
            Ok((spark.get(&path)?.0 == 200).then_some(()))
        })?;
        ensure!(ours.get(&path)?.0 == 200, "{id} is not imported");
    }
    let last = ids.last().context("no driver was killed")?;
    let compared = compare_all(&spark, &ours, last, until_now)?;
    let listed = lists::applications(&spark, &ours, until_now)?;
    println!("{compared} answers of a killed driver's log and {listed} lists equal Spark's");
    ensure!(compared >= 40, "only {compared} answers");
    Ok(())
}

/// The driver is dead, which the store cannot know.
fn dead(store: &Path, id: &str, parts: u64, rows: u64) -> Result<()> {
    let error = compact(store, id, false).expect_err("it may still run");
    ensure!(error.to_string().contains("--dead"), "{error:#}");
    let live = serve(store, None)?;
    let listed = list(live, "/api/v1/applications")?;
    ensure!(listed[0]["attempts"][0]["completed"] == false, "{listed:?}");
    list(live, &format!("/api/v1/applications/{id}/jobs"))?;
    let done = compact(store, id, true)?;
    ensure!(done.parts.0 == parts && done.lost == 0, "{done:?}");
    let folder = store.join(id);
    let tasks = values(&place::table(&folder, TASKS.name), &TASKS)?;
    let ids = &tasks["task_id"];
    let once: HashSet<_> = ids.iter().collect();
    ensure!(once.len() == ids.len(), "a task is there twice");
    // The start of a short task may state its end, which no part has.
    let has = tasks["has_metrics"].iter().flatten();
    let ended = has.filter(|it| *it == "1").count() as u64;
    ensure!(ended == rows, "{ended} of {rows} tasks");
    Ok(())
}
