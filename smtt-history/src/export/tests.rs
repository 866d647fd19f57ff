//! Names of columns, functions, and metrics that the store only names. What tables have is compared in tests/tests/history/export.rs.

use serde_json::{Value, json};
use smtt_model::rows::{FetchRow, FunctionRow};
use smtt_store::history::columns::TASK_SQL;

use super::{csv, snake, sqlite, tables};
use crate::fetches::{Fetch, OfWorkers};
use crate::functions::Span;
use crate::import::{Admission, import};
use crate::log::Bounds;
use crate::made::{Made, Stage, Task};
use crate::perfetto::open;

#[test]
fn columns_are_fields_in_snake_case() {
    for (field, column) in [
        ("jobId", "job_id"),
        ("totalGCTime", "total_gc_time"),
        ("jvmGcTime", "jvm_gc_time"),
        ("id", "id"),
    ] {
        assert_eq!(snake(field), column);
    }
    for (table, columns) in tables() {
        let mut names: Vec<_> = columns.iter().map(|it| &it.name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), columns.len(), "{table}");
    }
}

/// SQL metrics of a task, by accumulator: of each four one repeats a figure of the task, one is the same for all.
fn metrics(task: i64) -> [(i64, i64); 4] {
    [
        (70, task * 3),
        (71, 9),
        (72, 1000 + task * task),
        (73, 20 + task),
    ]
}

/// The log with SQL metrics at the ends of tasks.
fn with_metrics(log: &str) -> String {
    let lines = log.lines().map(|line| {
        let mut event: Value = serde_json::from_str(line).expect("is JSON");
        if event["Event"] == "SparkListenerTaskEnd" {
            let task = event["Task Info"]["Task ID"].as_i64().expect("has an id");
            let all = metrics(task).map(|(id, update)| {
                json!({"ID": id, "Name": "m", "Update": update.to_string(), "Metadata": "sql"})
            });
            event["Task Info"]["Accumulables"] = Value::from(all.to_vec());
        }
        event.to_string()
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn metrics_of_which_the_table_only_names_a_column_have_their_values() -> anyhow::Result<()> {
    const TASKS: i64 = 500;
    let folder = tempfile::tempdir()?;
    let (store, path) = (folder.path().join("store"), folder.path().join("log"));
    // Their run times are those of accumulator 73.
    let tasks = (0..TASKS).map(|task| Task::new(20 + task, 0)).collect();
    let made = Made::new("app-1", vec![Stage::new("s", tasks)]);
    std::fs::write(&path, with_metrics(&made.log().0))?;
    import(&store, &path, Bounds::default(), &Admission::default())?;
    let app = open(&store, "app-1", None)?;
    let table = app.table(&TASK_SQL)?;
    let same = table.texts("same_as", &[0..table.rows()])?;
    let named = same
        .iter()
        .flatten()
        .filter(|it| *it == "executor_run_time_ms");
    assert_eq!((named.count(), same.iter().flatten().count()), (500, 500));
    let file = folder.path().join("export.sqlite");
    sqlite::export(&app, &OfWorkers::default(), &file)?;
    let database = rusqlite::Connection::open(&file)?;
    let mut rows =
        database.prepare("SELECT task_id, accumulator_id, value FROM task_sql ORDER BY 1, 2")?;
    let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let rows: Vec<(i64, i64, i64)> = rows.collect::<Result<_, _>>()?;
    let expected = (0..TASKS).flat_map(|task| metrics(task).map(|(id, value)| (task, id, value)));
    assert_eq!(rows, expected.collect::<Vec<_>>());
    Ok(())
}

#[test]
fn functions_of_tasks_are_a_table_and_details() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let (store, path) = (folder.path().join("store"), folder.path().join("log"));
    let made = Made::new("app-1", vec![Stage::new("s", vec![Task::new(20, 10)])]);
    std::fs::write(&path, made.log().0)?;
    import(&store, &path, Bounds::default(), &Admission::default())?;
    let app = open(&store, "app-1", None)?;
    let span = |begin_ns, duration_ns| Span {
        task: 0,
        begin_unix_us: Some(5),
        row: FunctionRow {
            thread: "task".to_owned(),
            tid: 7,
            activity: "spill".to_owned(),
            function: None,
            begin_ns,
            duration_ns,
            own_ns: 3,
            rdd_id: Some(2),
        },
    };
    let fetch = Fetch {
        task: 0,
        begin_unix_us: Some(6),
        row: FetchRow {
            address: Some("node-2:7337".to_owned()),
            executor_id: None,
            begin_ns: 1,
            duration_ns: 2,
            blocks: 3,
            bytes: u64::MAX,
            outcome: "complete".to_owned(),
        },
    };
    let workers = OfWorkers {
        spans: [(0, vec![span(1, 4), span(6, u64::MAX)])].into(),
        fetches: [(0, vec![fetch])].into(),
    };
    let file = folder.path().join("export.sqlite");
    sqlite::export(&app, &workers, &file)?;
    let database = rusqlite::Connection::open(&file)?;
    let count = |sql: &str| database.query_row(sql, [], |row| row.get::<_, i64>(0));
    assert_eq!(count("SELECT COUNT(*) FROM functions")?, 2);
    let joined = "SELECT SUM(own_ns) FROM functions JOIN tasks USING (task_id) WHERE thread = 'task'
        AND function IS NULL AND rdd_id = 2 AND begin_unix_us = 5 AND tid = 7 AND activity = 'spill'";
    assert_eq!(count(joined)?, 6);
    assert_eq!(count("SELECT MAX(duration_ns) FROM functions")?, i64::MAX);
    let details = "SELECT json_extract(json, '$[0].duration_ns') FROM details WHERE kind = 'functions' AND id = '0'";
    assert_eq!(count(details)?, 4);
    csv::export(&app, &workers, &folder.path().join("csv"))?;
    let text = std::fs::read_to_string(folder.path().join("csv/functions.csv"))?;
    assert!(
        text.contains("\n0,\"task\",7,\"spill\",,5,1,4,3,2\n"),
        "{text}"
    );
    let joined =
        "SELECT blocks FROM fetches JOIN tasks USING (task_id) WHERE from_executor_id IS NULL";
    assert_eq!(count(joined)?, 3);
    let details =
        "SELECT json_extract(json, '$[0].blocks') FROM details WHERE kind = 'fetches' AND id = '0'";
    assert_eq!(count(details)?, 3);
    let text = std::fs::read_to_string(folder.path().join("csv/fetches.csv"))?;
    let row = "\n0,\"node-2:7337\",,6,1,2,3,9223372036854775807,\"complete\"\n";
    assert!(text.contains(row), "{text}");
    Ok(())
}
