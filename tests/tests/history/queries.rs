//! The queries that docs/HISTORY.md gives, run by real Spark on a store of several applications: what they find is what the
//! REST API says.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use smtt_history::import::{Admission, import};
use smtt_history::log::Bounds;
use smtt_store::history::batch::{Batch, Cell};
use smtt_store::history::read::Reader;
use smtt_store::history::{place, workers};
use smtt_tests::history::{list, serve};
use smtt_tests::lab::{LIMIT, SparkLab};
use xtask::http::get;
use xtask::spark::Application;

/// Applications, and how many days ago each ran.
const APPLICATIONS: [(&str, i64); 3] = [("app-1", 1), ("app-2", 12), ("app-old", 70)];
const STAGES: i64 = 4;
const TASKS: i64 = 6;
const DAY_MS: i64 = 86_400_000;
/// Duration of each task.
const TASK_MS: i64 = 1000;

/// A task of a log, by its id: stages 1 and 3 spill.
fn spilled(stage: i64, task: i64) -> i64 {
    if stage % 2 == 1 { 1000 + task } else { 0 }
}

/// Run time of a task.
fn run_ms(task: i64) -> i64 {
    100 + task * task
}

/// SQL metrics of a task, by accumulator: its run time, its own number, and the same for all.
fn metrics_of(task: i64) -> [(i64, i64); 3] {
    [(90, run_ms(task)), (91, 7 * task - 3), (92, 4)]
}

/// A log of two jobs at a time that share a stage.
fn log(path: &Path, id: &str, start: i64) -> Result<()> {
    let stage = |stage: i64| {
        json!({"Stage ID": stage, "Stage Attempt ID": 0, "Stage Name": format!("stage {stage}"), "Number of Tasks": TASKS,
            "Submission Time": start, "Accumulables": [], "RDD Info": []})
    };
    let mut events = vec![
        json!({"Event": "SparkListenerApplicationStart", "App Name": "n", "App ID": id, "Timestamp": start, "User": "u"}),
    ];
    for (job, stages) in [(0, vec![0, 1]), (1, vec![1, 2, 3])] {
        let infos: Vec<Value> = stages.iter().map(|id| stage(*id)).collect();
        events.push(json!({"Event": "SparkListenerJobStart", "Job ID": job, "Submission Time": start, "Stage Infos": infos,
            "Stage IDs": stages, "Properties": {}}));
    }
    for of in 0..STAGES {
        events.push(json!({"Event": "SparkListenerStageSubmitted", "Stage Info": stage(of), "Properties": {}}));
        for task in of * TASKS..(of + 1) * TASKS {
            let metrics = metrics_of(task).map(|(id, value)| {
                json!({"ID": id, "Name": "m", "Update": value.to_string(), "Metadata": "sql"})
            });
            let info = json!({"Task ID": task, "Index": task, "Attempt": 0, "Launch Time": start + 10, "Executor ID": "1",
                "Host": "h", "Locality": "ANY", "Speculative": false, "Getting Result Time": 0,
                "Finish Time": start + 10 + TASK_MS, "Failed": false, "Killed": false, "Accumulables": metrics});
            events.push(json!({"Event": "SparkListenerTaskStart", "Stage ID": of, "Stage Attempt ID": 0, "Task Info": info}));
            events.push(json!({"Event": "SparkListenerTaskEnd", "Stage ID": of, "Stage Attempt ID": 0,
                "Task Type": "ResultTask", "Task End Reason": {"Reason": "Success"}, "Task Info": info,
                "Task Metrics": {"Executor Run Time": run_ms(task), "Executor CPU Time": 1_000_000 * task,
                    "Memory Bytes Spilled": 2 * spilled(of, task), "Disk Bytes Spilled": spilled(of, task)}}));
        }
        let mut info = stage(of);
        info["Completion Time"] = (start + 2 * TASK_MS).into();
        events.push(json!({"Event": "SparkListenerStageCompleted", "Stage Info": info}));
    }
    for job in [0, 1] {
        events.push(json!({"Event": "SparkListenerJobEnd", "Job ID": job, "Completion Time": start + 2 * TASK_MS,
            "Job Result": {"Result": "JobSucceeded"}}));
    }
    events.push(json!({"Event": "SparkListenerApplicationEnd", "Timestamp": start + 3 * TASK_MS}));
    let lines: Vec<String> = events.iter().map(Value::to_string).collect();
    Ok(fs::write(path, lines.join("\n"))?)
}

/// Nanoseconds that a task waited for a CPU.
fn wait_ns(task: i64) -> i64 {
    task * 20_000_000
}

/// The rows that a daemon would write.
fn worker(store: &Path, id: &str) -> Result<()> {
    let bounds = workers::Bounds {
        bytes: 1 << 30,
        files: 1 << 20,
    };
    let mut own = workers::Workers::take(store, "node-1", 10, None, bounds)?;
    let mut batch = Batch::new(&workers::TASKS);
    for task in 0..STAGES * TASKS {
        let (wait, stage) = (wait_ns(task), task / TASKS);
        let row = json!({"executor_id": "1", "task_id": task, "cpu_wait_ns": wait}).to_string();
        batch.push(&[
            Cell::Number(stage),
            Cell::Number(0),
            Cell::Number(task),
            Cell::Text("1"),
            Cell::Text("succeeded"),
            Cell::None,
            Cell::None,
            Cell::None,
            Cell::None,
            Cell::None,
            Cell::Text(&row),
        ]);
    }
    own.add(workers::Whose::of(id, 1000), 0, &batch, &|uid| uid)?;
    Ok(())
}

/// Rows of an answer by application and ids.
fn by_key<'a>(rows: &'a Value, keys: &[&str]) -> Result<BTreeMap<(String, Vec<i64>), &'a Value>> {
    let rows = rows.as_array().context("no rows")?;
    let key = |row: &'a Value| {
        let ids = keys.iter().map(|key| row[*key].as_i64().unwrap_or(-1));
        let application = row["application"].as_str().unwrap_or_default();
        ((application.to_owned(), ids.collect()), row)
    };
    let found: BTreeMap<_, _> = rows.iter().map(key).collect();
    ensure!(found.len() == rows.len(), "rows with equal keys: {rows:?}");
    Ok(found)
}

fn descends(rows: &Value, column: &str) -> bool {
    let values = rows.as_array().into_iter().flatten();
    let values: Vec<f64> = values.filter_map(|row| row[column].as_f64()).collect();
    values.windows(2).all(|pair| pair[0] >= pair[1])
}

#[test]
fn queries_of_the_manual_find_what_the_rest_api_says() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let store = lab.folder().join("store");
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as i64;
    for (id, days) in APPLICATIONS {
        let path = lab.folder().join(id);
        log(&path, id, now - days * DAY_MS)?;
        let done = import(&store, &path, Bounds::default(), &Admission::default())?;
        ensure!(done.damaged == 0, "{:?}", done.named);
        worker(&store, id)?;
    }
    // An import that has not ended.
    let unfinished = store.join(".import-x.inprogress");
    fs::create_dir(&unfinished)?;
    fs::write(unfinished.join("tasks.parquet"), "PAR1")?;
    let answers = ask(&lab, &store, &[])?;
    let port = serve(&store, None)?;
    spills(&answers["spilled"], port)?;
    waits(&answers["waited"], port)?;
    jobs(&answers["jobs"], port)?;
    metrics(&answers["metrics"], &store)?;
    for (id, _) in APPLICATIONS {
        ensure!(equal_sums(&answers, port, id)? == STAGES as usize);
    }
    lab.passed()
}

/// The sums of a real application, by Spark and by DuckDB, are those of the REST API of Spark's own history server.
pub fn sums_of_an_application(lab: &SparkLab, store: &Path, spark: u16, id: &str) -> Result<()> {
    let answers = ask(lab, store, &["sums", "sums_of_duckdb"])?;
    let stages = equal_sums(&answers, spark, id)?;
    println!("sums of {stages} stages by Spark and DuckDB equal Spark's REST API");
    ensure!(stages >= 15, "only {stages} stages");
    let rows = answers["sums_of_duckdb"].as_array().context("no sums")?;
    for column in [
        "input_bytes",
        "output_bytes",
        "shuffle_read_bytes",
        "shuffle_write_bytes",
        "disk_spilled_bytes",
    ] {
        let has = |row: &Value| row[column].as_i64() > Some(0);
        ensure!(rows.iter().any(has), "no stage has {column}");
    }
    Ok(())
}

/// Runs the manual's queries: all, or some by name.
fn ask(lab: &SparkLab, store: &Path, names: &[&str]) -> Result<Value> {
    let document = lab.paths.root.join("docs/HISTORY.md");
    let out = lab.folder().join("answers.json");
    let arguments = [&document, store, &out].map(|path| path.display().to_string());
    let mut arguments = arguments.each_ref().map(String::as_str).to_vec();
    arguments.extend(names);
    let application =
        Application::python(&lab.paths, "local[2]", "history_queries.py", &arguments)?;
    let application = application.conf("spark.sql.shuffle.partitions", "2");
    lab.run_through(&application)?.result(LIMIT)?;
    Ok(serde_json::from_str(&fs::read_to_string(&out)?)?)
}

/// Compares the sums of one application's stages; returns the number of those that have tasks.
fn equal_sums(answers: &Value, port: u16, id: &str) -> Result<usize> {
    let keys = ["stage_id", "stage_attempt"];
    let of_id = |name: &str| -> Result<BTreeMap<Vec<i64>, Value>> {
        let rows = by_key(&answers[name], &keys)?.into_iter();
        let own = rows.filter(|((application, _), _)| application == id);
        Ok(own.map(|((_, key), row)| (key, row.clone())).collect())
    };
    let (spark, duckdb) = (of_id("sums")?, of_id("sums_of_duckdb")?);
    ensure!(spark == duckdb, "Spark {spark:?}\nDuckDB {duckdb:?}");
    let mut with_tasks = 0;
    for stage in stages(port, id)? {
        let number = |name: &str| {
            stage[name]
                .as_i64()
                .with_context(|| format!("{name}: {stage}"))
        };
        let key = vec![number("stageId")?, number("attemptId")?];
        let mut tasks = 0;
        for name in [
            "numCompleteTasks",
            "numFailedTasks",
            "numKilledTasks",
            "numActiveTasks",
        ] {
            tasks += number(name)?;
        }
        let Some(row) = duckdb.get(&key) else {
            ensure!(tasks == 0, "no row of {stage}");
            continue;
        };
        with_tasks += 1;
        for (column, sum) in [
            ("tasks", tasks),
            ("run_time_ms", number("executorRunTime")?),
            ("cpu_time_ns", number("executorCpuTime")?),
            ("input_bytes", number("inputBytes")?),
            ("output_bytes", number("outputBytes")?),
            ("shuffle_read_bytes", number("shuffleReadBytes")?),
            ("shuffle_write_bytes", number("shuffleWriteBytes")?),
            ("disk_spilled_bytes", number("diskBytesSpilled")?),
        ] {
            // No task ended: no sum.
            let found = row[column].as_i64().unwrap_or(0);
            ensure!(found == sum, "{column} is {sum} in {stage}\n{row}");
        }
    }
    ensure!(
        with_tasks == duckdb.len(),
        "stages that REST does not have: {duckdb:?}"
    );
    Ok(with_tasks)
}

/// All metrics have the values of the log, also those that the tables only name.
fn metrics(answer: &Value, store: &Path) -> Result<()> {
    let found = by_key(answer, &["stage_id", "task_id", "accumulator_id"])?;
    for (id, _) in APPLICATIONS {
        for task in 0..STAGES * TASKS {
            for (accumulator, value) in metrics_of(task) {
                let key = (id.to_owned(), vec![task / TASKS, task, accumulator]);
                let row = found.get(&key).with_context(|| format!("no {key:?}"))?;
                ensure!(row["value"] == value, "{value}: {row}");
            }
        }
        let table = Reader::open(&place::table(&store.join(id), "task_sql"), "task_sql")?;
        let named = table.texts("same_as", std::slice::from_ref(&(0..table.rows())))?;
        let named = named.iter().flatten().count();
        ensure!(
            named == (STAGES * TASKS) as usize,
            "{named} of {id} are named"
        );
    }
    ensure!(found.len() == APPLICATIONS.len() * (STAGES * TASKS * 3) as usize);
    Ok(())
}

fn stages(port: u16, id: &str) -> Result<Vec<Value>> {
    list(port, &format!("/api/v1/applications/{id}/stages"))
}

fn spills(answer: &Value, port: u16) -> Result<()> {
    let found = by_key(answer, &["stage_id", "stage_attempt"])?;
    let mut expected = 0;
    for (id, _) in APPLICATIONS.into_iter().filter(|(_, days)| *days < 28) {
        for stage in stages(port, id)? {
            if stage["diskBytesSpilled"].as_i64() == Some(0) {
                continue;
            }
            expected += 1;
            let key = ["stageId", "attemptId"].map(|field| stage[field].as_i64().unwrap_or(-1));
            let row = found.get(&(id.to_owned(), key.to_vec()));
            let row = row.with_context(|| format!("{id} {key:?} spilled: {answer}"))?;
            for (column, field) in [
                ("disk_spilled_bytes", "diskBytesSpilled"),
                ("memory_spilled_bytes", "memoryBytesSpilled"),
                ("tasks", "numCompleteTasks"),
            ] {
                ensure!(row[column] == stage[field], "{column}: {row} {stage}");
            }
        }
    }
    ensure!(expected == 4 && found.len() == 4, "{answer}");
    ensure!(descends(answer, "disk_spilled_bytes"), "{answer}");
    Ok(())
}

fn waits(answer: &Value, port: u16) -> Result<()> {
    let found = by_key(answer, &["stage_id", "task_id"])?;
    let mut expected = 0;
    for (id, _) in APPLICATIONS {
        for stage in 0..STAGES {
            let path = format!("/smtt/v1/applications/{id}/stages/{stage}/0/tasks");
            let tasks: Value = serde_json::from_str(&get(port, &path)?)?;
            for task in tasks["rows"].as_array().context("no rows")? {
                let wait = task["smtt"]["smtt"]["cpu_wait_ns"].as_i64();
                let wait = wait.with_context(|| format!("no worker's row: {task}"))?;
                let duration = task["duration"].as_i64().context("no duration")?;
                let task_id = task["taskId"].as_i64().unwrap_or(-1);
                let row = found.get(&(id.to_owned(), vec![stage, task_id]));
                if wait <= duration * 100_000 {
                    ensure!(row.is_none(), "{task} did not wait");
                    continue;
                }
                expected += 1;
                let row = row.with_context(|| format!("{task} waited"))?;
                ensure!(
                    row["cpu_wait_ms"].as_f64() == Some(wait as f64 / 1e6),
                    "{row}"
                );
                ensure!(row["duration_ms"] == task["duration"], "{row}");
            }
        }
    }
    // Of 24 tasks of an application the first six waited for at most a tenth of their second.
    ensure!(expected == 18 * 3 && found.len() == expected, "{expected}");
    ensure!(descends(answer, "cpu_wait_ms"), "{answer}");
    Ok(())
}

fn jobs(answer: &Value, port: u16) -> Result<()> {
    let found = by_key(answer, &["job_id"])?;
    for (id, _) in APPLICATIONS {
        let stages = stages(port, id)?;
        let mut all = list(port, &format!("/api/v1/applications/{id}/jobs"))?;
        all.sort_by_key(|job| job["jobId"].as_i64());
        let mut counted: Vec<i64> = Vec::new();
        for job in &all {
            let key = (id.to_owned(), vec![job["jobId"].as_i64().unwrap_or(-1)]);
            let row = found.get(&key).with_context(|| format!("no {key:?}"))?;
            let own = job["stageIds"].as_array().into_iter().flatten();
            let own: Vec<i64> = own.filter_map(Value::as_i64).collect();
            let sum = |field: &str| -> i64 {
                let of = |stage: &&Value| {
                    let id = stage["stageId"].as_i64().unwrap_or(-1);
                    own.contains(&id) && !counted.contains(&id)
                };
                let own = stages.iter().filter(of);
                own.filter_map(|stage| stage[field].as_i64()).sum()
            };
            for (column, field) in [
                ("run_time_ms", "executorRunTime"),
                ("cpu_time_ns", "executorCpuTime"),
                ("tasks", "numCompleteTasks"),
            ] {
                ensure!(row[column] == sum(field), "{column}: {row}");
            }
            ensure!(row["name"] == job["name"] && row["run_time_ms"].as_i64() > Some(0));
            counted.extend(own);
        }
    }
    ensure!(found.len() == 2 * APPLICATIONS.len(), "{answer}");
    ensure!(descends(answer, "run_time_ms"), "{answer}");
    Ok(())
}
