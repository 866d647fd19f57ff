//! Names of columns. What tables have is compared in tests/tests/history/export.rs.

use smtt_model::rows::FunctionRow;

use super::{csv, snake, sqlite, tables};
use crate::functions::{Span, Spans};
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
    let spans = Spans::from([(0, vec![span(1, 4), span(6, u64::MAX)])]);
    let file = folder.path().join("export.sqlite");
    sqlite::export(&app, &spans, &file)?;
    let database = rusqlite::Connection::open(&file)?;
    let count = |sql: &str| database.query_row(sql, [], |row| row.get::<_, i64>(0));
    assert_eq!(count("SELECT COUNT(*) FROM functions")?, 2);
    let joined = "SELECT SUM(own_ns) FROM functions JOIN tasks USING (task_id) WHERE thread = 'task'
        AND function IS NULL AND rdd_id = 2 AND begin_unix_us = 5 AND tid = 7 AND activity = 'spill'";
    assert_eq!(count(joined)?, 6);
    assert_eq!(count("SELECT MAX(duration_ns) FROM functions")?, i64::MAX);
    let details = "SELECT json_extract(json, '$[0].duration_ns') FROM details WHERE kind = 'functions' AND id = '0'";
    assert_eq!(count(details)?, 4);
    csv::export(&app, &spans, &folder.path().join("csv"))?;
    let text = std::fs::read_to_string(folder.path().join("csv/functions.csv"))?;
    assert!(
        text.contains("\n0,\"task\",7,\"spill\",,5,1,4,3,2\n"),
        "{text}"
    );
    Ok(())
}
