//! `smtt-history export`: CSV files and an SQLite database have what the REST API and the event log have, cell by cell, also
//! where names are hostile. Python's `csv` and `sqlite3` read them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use smtt_history::export::{csv, sqlite};
use smtt_history::fetches::OfWorkers;
use smtt_history::import::{Admission, import};
use smtt_history::log::Bounds;
use smtt_history::perfetto::open;
use smtt_tests::export::check;
use smtt_tests::history::serve;
use xtask::event_log::{self, ID, Shape};
use xtask::paths::Paths;

/// Names that break a careless writer of CSV or SQL, or that a spreadsheet would compute.
const NAMES: [&str; 12] = [
    "=HYPERLINK(\"http://127.0.0.1/\",\"x\")",
    "+1",
    "-1,5",
    "@SUM(A1)",
    "'quoted'",
    "a,b;c\td",
    "line\nbreak\r\nand \"quotes\"\"",
    "\ttab",
    "\rreturn",
    "'); DROP TABLE jobs; --",
    "\u{0}nul\u{202e}\u{1f600}",
    "",
];

/// A log in which every text is hostile, tasks updated SQL metrics, and one task still runs.
fn hostile(path: &Path, id: &str) -> Result<()> {
    let name = |at: usize| NAMES[at % NAMES.len()];
    let mut events = vec![
        json!({"Event": "SparkListenerApplicationStart", "App Name": name(0), "App ID": id, "Timestamp": 1000, "User": name(6)}),
    ];
    for executor in 0..NAMES.len() {
        events.push(json!({"Event": "SparkListenerExecutorAdded", "Timestamp": 1000, "Executor ID": executor.to_string(),
            "Executor Info": {"Host": name(executor), "Total Cores": 1}}));
    }
    for stage in 0..NAMES.len() {
        let info = json!({"Stage ID": stage, "Stage Attempt ID": 0, "Stage Name": name(stage), "Details": name(stage),
            "Number of Tasks": 2, "Submission Time": 2000, "Accumulables": [], "RDD Info": []});
        events.push(json!({"Event": "SparkListenerJobStart", "Job ID": stage, "Submission Time": 2000, "Stage Infos": [info],
            "Stage IDs": [stage], "Properties": {"spark.job.description": name(stage + 1), "spark.jobGroup.id": name(stage + 2)}}));
        events.push(
            json!({"Event": "SparkListenerStageSubmitted", "Stage Info": info, "Properties": {}}),
        );
        for task in [2 * stage, 2 * stage + 1] {
            let info = json!({"Task ID": task, "Index": task, "Attempt": 0, "Launch Time": 3000, "Executor ID": stage.to_string(),
                "Host": name(stage), "Locality": "ANY", "Speculative": false, "Getting Result Time": 0, "Finish Time": 3500,
                "Failed": task % 2 == 1, "Killed": false, "Accumulables": [
                    {"ID": 7, "Name": name(stage), "Update": task * 10, "Value": 1, "Metadata": "sql"}]});
            events.push(json!({"Event": "SparkListenerTaskStart", "Stage ID": stage, "Stage Attempt ID": 0, "Task Info": info}));
            if task == 2 * NAMES.len() - 1 {
                continue;
            }
            let reason = if task % 2 == 1 {
                json!({"Reason": "TaskKilled", "Kill Reason": name(stage)})
            } else {
                json!({"Reason": "Success"})
            };
            events.push(json!({"Event": "SparkListenerTaskEnd", "Stage ID": stage, "Stage Attempt ID": 0, "Task Type": "ResultTask",
                "Task End Reason": reason, "Task Info": info, "Task Metrics": {"Executor Run Time": 400 + task,
                "Executor CPU Time": i64::MAX / 64, "Disk Bytes Spilled": task}}));
        }
    }
    let lines: Vec<String> = events.iter().map(Value::to_string).collect();
    Ok(fs::write(path, lines.join("\n"))?)
}

#[test]
fn exports_equal_the_rest_api_cell_by_cell() -> Result<()> {
    let paths = Paths::find()?;
    let folder = tempfile::tempdir()?;
    let store = folder.path().join("store");
    let shape = Shape {
        tasks: 9_000,
        stages: 7,
        executors: 5,
        cores: 4,
        sql_metrics: 3,
    };
    let logs = [ID, "app-hostile"].map(|id| (id, folder.path().join(id)));
    event_log::write(&logs[0].1, &shape)?;
    hostile(&logs[1].1, "app-hostile")?;
    for (_, log) in &logs {
        let done = import(&store, log, Bounds::default(), &Admission::default())?;
        ensure!(done.damaged == 0, "{:?}", done.named);
    }
    let port = serve(&store, None)?;
    for (id, log) in &logs {
        let folder = folder.path().join(format!("export-{id}"));
        fs::create_dir(&folder)?;
        let url = format!("http://127.0.0.1:{port}/api/v1/applications/{id}");
        let checked = check(&paths, &folder, &store, id, &url, log)?;
        let tables = ["jobs", "stages", "executors", "tasks", "sums"].map(|it| &checked[it]);
        println!("{id}: jobs, stages, executors, tasks, sums: {tables:?} values equal");
        let of_tasks = checked["tasks"].as_u64().context("no tasks")?;
        ensure!(of_tasks > 400, "only {of_tasks} values of tasks");
    }
    refuses_what_is_there(&store, folder.path())
}

/// An export replaces nothing, and leaves nothing where it fails.
fn refuses_what_is_there(store: &Path, folder: &Path) -> Result<()> {
    let app = open(store, ID, None)?;
    let folder = folder.join("taken");
    let (file, full, empty) = (folder.join("f"), folder.join("full"), folder.join("empty"));
    fs::create_dir_all(&full)?;
    fs::create_dir(&empty)?;
    fs::write(&file, "mine")?;
    fs::write(full.join("f"), "mine")?;
    ensure!(
        csv::export(&app, &OfWorkers::default(), &full).is_err()
            && csv::export(&app, &OfWorkers::default(), &file).is_err()
    );
    for taken in [&file, &full, &empty] {
        ensure!(
            sqlite::export(&app, &OfWorkers::default(), taken).is_err(),
            "{}",
            taken.display()
        );
    }
    ensure!(fs::read_to_string(&file)? == "mine" && fs::read_to_string(full.join("f"))? == "mine");
    ensure!(csv::export(&app, &OfWorkers::default(), &empty)?.tasks == 9_000);
    // A table that is damaged.
    fs::write(store.join(ID).join("task_sql.parquet"), "no table")?;
    let error = format!(
        "{:#}",
        sqlite::export(&app, &OfWorkers::default(), &folder.join("new"))
            .err()
            .context("is whole")?
    );
    ensure!(error.contains("task_sql"), "{error}");
    let mut left: Vec<_> = fs::read_dir(&folder)?
        .flatten()
        .map(|it| it.file_name())
        .collect();
    left.sort();
    ensure!(left == ["empty", "f", "full"], "{left:?}");
    Ok(())
}
