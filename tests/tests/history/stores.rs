//! Stores that fail while the driver writes: full, full for a while, read-only, frozen, not a folder, and one that loses a
//! part afterwards. The application's jobs are neither failed nor held up, the driver's log names the state, and the server
//! says what is missing. One driver has a SparkContext for each.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;
use smtt_history::import::{Admission, import};
use smtt_history::log::Bounds;
use smtt_store::history::columns::{META, TASKS};
use smtt_store::history::parts;
use smtt_tests::history::serve;
use smtt_tests::lab::{LIMIT, SparkLab};
use smtt_tests::skip::leave_out;
use xtask::http::get;
use xtask::process::wait_for;
use xtask::spark::Submitted;

use crate::answers::compare;
use crate::application::application_with;
use crate::live::{names, only, same_columns, same_tables};
use crate::mount::Mount;

/// Tasks of a job, with that of its last stage.
const TASKS_OF_A_JOB: u64 = 1_201;

/// How long each write of the slow store hangs: longer than any wait of these tests.
const HANGS: Duration = Duration::from_secs(2 * LIMIT.as_secs());
/// A job with a sick store takes at most this many times what one with a healthy store took in the same driver, and this
/// much more: what other work on the machine does to a job.
const SLOWER: u32 = 3;
const LATER: Duration = Duration::from_secs(5);
/// A stop waits for the last part, 7 s at most.
const STOP: Duration = Duration::from_secs(20);

/// The driver, and where it says how far it is.
struct Driver {
    running: Submitted,
    folder: PathBuf,
}

impl Driver {
    fn reach(&mut self, name: &str) -> Result<()> {
        let file = self.folder.join(name);
        wait_for(&format!("the driver reaches {name}"), LIMIT, || {
            ensure!(
                file.exists() || self.running.running.alive(),
                "the driver ended before {name}{}",
                self.running.running.hint()
            );
            Ok(file.exists().then_some(()))
        })
    }

    fn go(&self, name: &str) -> Result<()> {
        Ok(fs::write(self.folder.join(format!("{name}.go")), "")?)
    }

    /// How long a job or a stop took in the driver.
    fn took(&self, name: &str) -> Result<Duration> {
        let seconds = fs::read_to_string(self.folder.join(name))?;
        Ok(Duration::from_secs_f64(seconds.parse()?))
    }

    /// Neither the jobs of an application nor its end waited for its store, which fails. `healthy` is the job of the same
    /// driver with a store that does not (yet).
    fn was_not_held_up(&self, name: &str, healthy: &str) -> Result<()> {
        let [first, second, stop] =
            [".1", ".2", ".stopped"].map(|end| self.took(&format!("{name}{end}")));
        let (first, second, stop) = (first?, second?, stop?);
        let most = self.took(healthy)? * SLOWER + LATER;
        println!("{name}: jobs {first:.1?} and {second:.1?} of {most:.1?}, stop {stop:.1?}");
        let is_sick = !healthy.starts_with(name);
        ensure!(
            second <= most && (first <= most || !is_sick) && stop <= STOP,
            "{name}: {first:?}, {second:?}, {stop:?}"
        );
        Ok(())
    }

    /// What the marker said of a store.
    fn said(&self, store: &Path) -> Result<Vec<String>> {
        let log = fs::read_to_string(self.running.running.log())?;
        let said = log.lines().filter(|line| {
            line.starts_with("smtt-marker: ") && line.contains(&format!("{}", store.display()))
        });
        Ok(said.map(str::to_owned).collect())
    }

    /// Waits until the driver has said something of a store.
    fn complains(&self, store: &Path, what: &str) -> Result<()> {
        wait_for(&format!("{what}: {}", store.display()), LIMIT, || {
            Ok(self
                .said(store)?
                .iter()
                .any(|line| line.contains(what))
                .then_some(()))
        })
    }
}

/// A part with a job's tasks is there.
fn has_tasks(store: &Path) -> Result<()> {
    wait_for("a part with tasks is there", LIMIT, || {
        let folder = only(store).ok().map(|id| store.join(id));
        let rows = folder.and_then(|folder| same_columns(&folder).ok());
        Ok(rows.filter(|rows| *rows >= 1_000).map(|_| ()))
    })
}

fn answer(port: u16, path: &str) -> Result<Value> {
    Ok(serde_json::from_str(&get(port, path)?)?)
}

/// A store that lacks its last part: the server has what is there, and says so.
fn lacks_its_end(driver: &Driver, store: &Path, state: Option<&str>) -> Result<()> {
    let said = driver.said(store)?;
    let of_state = said
        .iter()
        .filter(|line| line.contains("cannot be written"));
    let of_state: Vec<&String> = of_state.collect();
    ensure!(of_state.len() == usize::from(state.is_some()), "{said:?}");
    let is_named = |line: &&String| state.is_some_and(|state| line.contains(state));
    ensure!(of_state.iter().all(is_named), "{said:?}");
    ensure!(
        said.iter()
            .any(|line| line.contains("lacks its last part: ")),
        "{said:?}"
    );
    let id = only(store)?;
    let rows = same_columns(&store.join(&id))?;
    let port = serve(store, None)?;
    let listed = answer(port, "/api/v1/applications")?;
    ensure!(listed[0]["attempts"][0]["completed"] == false, "{listed}");
    let import = answer(port, &format!("/smtt/v1/applications/{id}/import"))?;
    ensure!(import["hasLastPart"] == false, "{import}");
    ensure!(import["damagedParts"] == 0, "{import}");
    let stages = answer(port, &format!("/api/v1/applications/{id}/stages"))?;
    let complete = stages.as_array().into_iter().flatten();
    let complete = complete.filter_map(|it| it["numCompleteTasks"].as_u64());
    ensure!(complete.sum::<u64>() == rows, "{rows} rows: {stages}");
    ensure!((1_000..2 * TASKS_OF_A_JOB).contains(&rows), "{rows} rows");
    println!("{}: {rows} tasks; {said:?}", store.display());
    Ok(())
}

/// A part's files go: the server names the part, and has the others.
fn loses_a_part(store: &Path, folder: &Path) -> Result<()> {
    let id = only(store)?;
    let numbers = parts::list(&store.join(&id))?;
    let copy = folder.join("lost").join(&id);
    fs::create_dir_all(&copy)?;
    for name in names(&store.join(&id)) {
        fs::copy(store.join(&id).join(&name), copy.join(&name))?;
    }
    let middle = numbers[numbers.len() / 2];
    ensure!(middle > 1 && middle < numbers.len() as u64, "{numbers:?}");
    let all = same_columns(&copy)?;
    let path = |table: &str| parts::path(&copy, table, middle);
    for table in [META.name, TASKS.name, "task_sql"] {
        fs::remove_file(path(table)).ok();
    }
    let rows = same_columns(&copy)?;
    let port = serve(&folder.join("lost"), None)?;
    answer(port, &format!("/api/v1/applications/{id}/stages"))?;
    let import = answer(port, &format!("/smtt/v1/applications/{id}/import"))?;
    ensure!(import["damagedParts"] == 1, "{import}");
    ensure!(import["damaged"][0]["part"] == middle, "{import}");
    ensure!(
        import["damaged"][0]["problem"] == "the part is missing",
        "{import}"
    );
    println!("without part {middle}: {rows} of {all} tasks");
    Ok(())
}

#[test]
fn a_store_that_fails_does_the_job_no_harm() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let mounts = lab.folder().join("mounts");
    fs::create_dir(&mounts)?;
    let full = Mount::in_memory(mounts.join("full"))?;
    let freed = Mount::in_memory(mounts.join("freed"))?;
    let read_only = Mount::in_memory(mounts.join("read-only"))?;
    let frozen = match Mount::on_a_device(mounts.join("frozen")) {
        Ok(frozen) => Some(frozen),
        Err(error) => {
            leave_out("loop_ext4", format!("{error:#}"))?;
            None
        }
    };
    // Not a folder.
    let file = mounts.join("file");
    fs::write(&file, "")?;
    let control = lab.folder().join("control");
    fs::create_dir(&control)?;
    let mut arguments = vec![control.display().to_string()];
    for store in [&full.path, &freed.path, &read_only.path, &file] {
        arguments.push(argument(store));
    }
    arguments.extend(frozen.iter().map(|frozen| argument(&frozen.path)));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let expected = format!("RESULT {}", 2 * 12_000 * (arguments.len() - 1));
    let application = application_with(&lab, &full.path, "stores.py", "local[2]", &arguments)?
        .conf("spark.eventLog.compress", "false");
    let mut driver = Driver {
        running: lab.run_through(&application)?,
        folder: control,
    };

    driver.reach("full.1")?;
    has_tasks(&full.path)?;
    full.fill()?;
    driver.go("full.1")?;
    driver.complains(&full.path, "cannot be written")?;
    driver.reach("full.2")?;
    driver.go("full.2")?;

    driver.reach("freed.1")?;
    has_tasks(&freed.path)?;
    freed.fill()?;
    driver.go("freed.1")?;
    driver.reach("freed.2")?;
    driver.complains(&freed.path, "cannot be written")?;
    freed.free()?;
    driver.complains(&freed.path, "is written again")?;
    driver.go("freed.2")?;

    driver.reach("read-only.1")?;
    has_tasks(&read_only.path)?;
    read_only.read_only()?;
    driver.go("read-only.1")?;
    driver.reach("read-only.2")?;
    driver.complains(&read_only.path, "cannot be written")?;
    driver.go("read-only.2")?;

    for gate in ["file.1", "file.2"] {
        driver.reach(gate)?;
        driver.go(gate)?;
    }
    driver.reach("file.stopped")?;

    if let Some(mut frozen) = frozen {
        driver.reach("frozen.1")?;
        has_tasks(&frozen.path)?;
        frozen.freeze()?;
        driver.go("frozen.1")?;
        driver.reach("frozen.2")?;
        driver.go("frozen.2")?;
        // The context stops while the device is frozen. The kernel ends no process that waits for it.
        driver.reach("frozen.stopped")?;
        frozen.thaw()?;
        ensure!(driver.running.result(LIMIT)? == expected);
        driver.was_not_held_up("frozen", "frozen.1")?;
        lacks_its_end(&driver, &frozen.path, None)?;
    } else {
        ensure!(driver.running.result(LIMIT)? == expected);
    }

    for name in ["full", "freed", "read-only"] {
        driver.was_not_held_up(name, &format!("{name}.1"))?;
    }
    driver.was_not_held_up("file", "read-only.1")?;
    lacks_its_end(&driver, &full.path, Some("No space left"))?;
    lacks_its_end(&driver, &read_only.path, Some("Read-only file system"))?;
    let said = driver.said(&file)?;
    ensure!(
        said.len() == 2 && said[0].contains("cannot be written"),
        "{said:?}"
    );
    ensure!(said[1].contains("lacks its last part"), "{said:?}");

    loses_a_part(&freed.path, lab.folder())?;
    let id = only(&freed.path)?;
    let (log, imported) = (
        lab.folder().join("logs").join(&id),
        lab.folder().join("imported"),
    );
    import(&imported, &log, Bounds::default(), &Admission::default())?;
    let port = serve(&freed.path, None)?;
    let said = answer(port, &format!("/smtt/v1/applications/{id}/import"))?;
    ensure!(
        said["hasLastPart"] == true && said["lostTasks"] == 0,
        "{said}"
    );
    same_tables(&freed.path.join(&id), &imported.join(&id))?;
    // A folder that has mounts cannot be removed.
    drop((full, freed, read_only));
    lab.passed()
}

/// In the second store each write hangs for ten minutes. The jobs and the context's end take none of it, and the driver's process ends. No event
/// log is written: what the healthy store of the same driver shows is what Spark showed while the application ran.
#[test]
fn a_store_whose_writes_hang_does_not_hold_the_job_up() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let (store, control) = (lab.folder().join("slow"), lab.folder().join("control"));
    fs::create_dir(&control)?;
    // To its client the first store is an object store.
    let healthy = lab.folder().join("healthy");
    let requests = lab.folder().join("requests");
    let arguments = [
        control.display().to_string(),
        format!("healthy=s3a://{}", healthy.display()),
        format!("slow=slow://{}", store.display()),
    ];
    let arguments = arguments.each_ref().map(String::as_str);
    let application = application_with(&lab, &store, "stores.py", "local[2]", &arguments)?
        .conf("spark.eventLog.enabled", "false")
        .conf(
            "spark.driver.extraClassPath",
            &lab.paths.fixture_jar().display().to_string(),
        )
        .conf(
            "spark.hadoop.fs.slow.impl",
            "io.smtt.fixture.SlowFileSystem",
        )
        .conf("spark.hadoop.fs.slow.seconds", &HANGS.as_secs().to_string())
        .conf(
            "spark.hadoop.fs.s3a.impl",
            "io.smtt.fixture.ObjectFileSystem",
        )
        .conf(
            "spark.hadoop.fs.s3a.requests",
            &requests.display().to_string(),
        );
    let mut driver = Driver {
        running: lab.run_through(&application)?,
        folder: control,
    };
    let begun = Instant::now();
    for gate in ["healthy.1", "healthy.2", "slow.1", "slow.2"] {
        driver.reach(gate)?;
        driver.go(gate)?;
    }
    ensure!(driver.running.result(LIMIT)? == "RESULT 48000");
    driver.was_not_held_up("slow", "healthy.2")?;
    let all = begun.elapsed();
    ensure!(all < HANGS, "the driver waited for a write: {all:?}");
    // The first write hung until the process ended: the folder is made, and has no part.
    let id = only(&store)?;
    ensure!(parts::list(&store.join(&id))?.is_empty());
    let said = driver.said(&store)?;
    ensure!(
        said.iter()
            .any(|line| line.contains("lacks its last part: ")),
        "{said:?}"
    );
    ensure!(names(&lab.folder().join("logs")).is_empty(), "an event log");
    // Each file is one upload, and there is no other request that changes anything.
    let asked = fs::read_to_string(&requests)?;
    let mut asked: Vec<&str> = asked.lines().collect();
    asked.sort_unstable();
    let files = names(&healthy.join(only(&healthy)?));
    let mut puts: Vec<String> = files.iter().map(|name| format!("PUT {name}")).collect();
    puts.sort_unstable();
    ensure!(files.len() >= 6 && asked == puts, "{asked:?}, {files:?}");
    shows_what_spark_showed(&driver, &healthy)?;
    lab.passed()
}

/// Fields of a living application that change with time, or until its end: memory in use, and what only a live server knows.
const OF_THE_MOMENT: [&str; 12] = [
    "memoryUsed",
    "diskUsed",
    "memoryMetrics",
    "peakMemoryMetrics",
    "peakExecutorMetrics",
    "totalDuration",
    "totalGCTime",
    "duration",
    "lastUpdated",
    "lastUpdatedEpoch",
    "endTime",
    "endTimeEpoch",
];

fn without_the_moment(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !OF_THE_MOMENT.contains(&name.as_str()));
            // Heartbeats, which no log has, give a live server metrics of queries that no task ever added to.
            if let Some(Value::Array(metrics)) = fields.get_mut("metrics") {
                let is_zero = |it: &Value| {
                    let value = it["value"].as_str().unwrap_or_default();
                    matches!(value, "0" | "0 ms" | "0.0 B")
                };
                metrics.retain(|metric| !is_zero(metric));
            }
            fields.values_mut().for_each(without_the_moment);
        }
        Value::Array(list) => list.iter_mut().for_each(without_the_moment),
        _ => {}
    }
}

/// Without an event log the store has what Spark's own REST API answered before the application's end: the same jobs, stages,
/// tasks, queries, RDDs and executors, and the results that the application printed.
fn shows_what_spark_showed(driver: &Driver, store: &Path) -> Result<()> {
    let text = fs::read_to_string(driver.folder.join("healthy.rest"))?;
    let answers: BTreeMap<String, Value> = serde_json::from_str(&text)?;
    let id = only(store)?;
    let port = serve(store, None)?;
    let import = answer(port, &format!("/smtt/v1/applications/{id}/import"))?;
    for lost in ["lostTasks", "lostEvents", "damagedParts"] {
        ensure!(import[lost] == 0, "{import}");
    }
    ensure!(import["hasLastPart"] == true, "{import}");
    let mut found = Vec::new();
    let mut fields = 0;
    for (path, mut spark) in answers {
        let mut ours = answer(port, &format!("/api/v1/applications/{id}/{path}"))?;
        without_the_moment(&mut spark);
        without_the_moment(&mut ours);
        fields += spark.to_string().matches(':').count();
        let kind = path.split(['/', '?']).next().unwrap_or_default();
        compare(kind, &spark, &ours, &[], &mut found);
    }
    println!("without an event log: {fields} fields of Spark's live answers");
    // The application printed the rows that its queries counted: 12,000 in each.
    let queries = answer(port, &format!("/api/v1/applications/{id}/sql"))?;
    let nodes = queries.as_array().into_iter().flatten();
    let nodes = nodes.flat_map(|it| it["nodes"].as_array().into_iter().flatten());
    let ranges = nodes.filter(|node| {
        node["nodeName"]
            .as_str()
            .is_some_and(|it| it.starts_with("Range"))
    });
    let rows: Vec<&Value> = ranges
        .flat_map(|node| node["metrics"].as_array().into_iter().flatten())
        .filter(|metric| metric["name"] == "number of output rows")
        .map(|metric| &metric["value"])
        .collect();
    ensure!(rows == ["12,000", "12,000"], "{queries}");
    let jobs = answer(port, &format!("/api/v1/applications/{id}/jobs"))?;
    let tasks = jobs.as_array().into_iter().flatten();
    let tasks = tasks.filter_map(|job| job["numCompletedTasks"].as_u64());
    ensure!(tasks.sum::<u64>() == 2 * TASKS_OF_A_JOB, "{jobs}");
    found.truncate(20);
    ensure!(found.is_empty(), "{}", found.join("\n"));
    ensure!(fields > 20_000, "only {fields} fields");
    Ok(())
}

fn argument(store: &Path) -> String {
    let name = store.file_name().map(|name| name.display().to_string());
    format!("{}=file://{}", name.unwrap_or_default(), store.display())
}
