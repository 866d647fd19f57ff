//! What a driver writes while its application runs is what an import of the same application's event log makes: table by
//! table, row by row, value by value. And a driver that dies, or a store that fails, does no harm.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::Value;
use smtt_history::import::{Admission, import};
use smtt_history::log::Bounds;
use smtt_store::history::columns::{Kind, META, SQL_SAME_AS, TABLES, TASK_SQL, TASKS, Table};
use smtt_store::history::read::Reader;
use smtt_store::history::{parts, place};
use smtt_tests::history::serve;
use xtask::http::request;

use crate::application::Ended;

/// A table's values: by column, then by row, as text.
pub type Values = BTreeMap<String, Vec<Option<String>>>;

pub fn values(path: &Path, table: &Table) -> Result<Values> {
    let reader = Reader::open(path, table.name)?;
    let rows = 0..reader.rows();
    let all = std::slice::from_ref(&rows);
    let column = |name: &str, kind: Kind| -> Result<Vec<Option<String>>> {
        Ok(match kind {
            Kind::Text => reader.texts(name, all)?,
            _ => reader
                .numbers(name, all)?
                .into_iter()
                .map(|it| it.map(|number| number.to_string()))
                .collect(),
        })
    };
    let columns = table.columns.iter();
    columns
        .map(|it| Ok((it.name.to_owned(), column(it.name, it.kind)?)))
        .collect()
}

/// Documents, without how they were made and when the log or the parts last changed.
fn documents(folder: &Path) -> Result<BTreeMap<(String, String), Value>> {
    let meta = values(&place::table(folder, META.name), &META)?;
    let column = |name: &str| meta[name].iter().map(|it| it.clone().unwrap_or_default());
    let mut all = BTreeMap::new();
    for ((kind, id), json) in column("kind").zip(column("id")).zip(column("json")) {
        let mut json: Value = serde_json::from_str(&json)?;
        if kind == "application" {
            for name in ["lastUpdated", "lastUpdatedEpoch"] {
                json["attempts"][0][name] = Value::Null;
            }
        }
        if kind != "import" {
            all.insert((kind, id), json);
        }
    }
    Ok(all)
}

/// Every table of two folders has the same values.
pub fn same_tables(left: &Path, right: &Path) -> Result<()> {
    for table in [&TASKS, &TASK_SQL] {
        let (of_left, of_right) = (
            values(&place::table(left, table.name), table)?,
            values(&place::table(right, table.name), table)?,
        );
        for (column, values) in &of_left {
            ensure!(
                *values == of_right[column],
                "{}.{column} differs: {:?} and {:?}",
                table.name,
                first_difference(values, &of_right[column]),
                values.len()
            );
        }
    }
    let (of_left, of_right) = (documents(left)?, documents(right)?);
    let ids = |all: &BTreeMap<(String, String), Value>| all.keys().cloned().collect::<Vec<_>>();
    ensure!(
        ids(&of_left) == ids(&of_right),
        "{:?}\n{:?}",
        ids(&of_left),
        ids(&of_right)
    );
    for (id, document) in &of_left {
        ensure!(
            same(document, &of_right[id], false),
            "{id:?}:\n{document}\n{}",
            of_right[id]
        );
    }
    Ok(())
}

/// Figures of Spark's executor metrics, which may differ: a heartbeat and the end of a stage come from two threads of the
/// driver, and Spark gives each event to its listeners' queues one after the other. So a heartbeat in that moment may be before
/// the end in the queue of the event log, and behind it in that of the history.
const OF_HEARTBEATS: [&str; 2] = ["peakMemoryMetrics", "peakExecutorMetrics"];
/// By how much such a figure may differ, in percent, and small counts and times: metrics grow between two heartbeats.
const NEAR_PERCENT: f64 = 10.0;
const NEAR: f64 = 100.0;

/// Whether two values are equal, but for [`OF_HEARTBEATS`], which are near each other.
fn same(left: &Value, right: &Value, of_heartbeats: bool) -> bool {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left.iter().all(|(name, value)| {
                    let near = of_heartbeats || OF_HEARTBEATS.contains(&name.as_str());
                    let other = right.get(name);
                    other.is_some_and(|other| same(value, other, near))
                })
        }
        (Value::Array(left), Value::Array(right)) => {
            let mut pairs = left.iter().zip(right);
            left.len() == right.len() && pairs.all(|(left, right)| same(left, right, of_heartbeats))
        }
        (Value::Number(one), Value::Number(other)) if of_heartbeats => {
            let (one, other) = (one.as_f64(), other.as_f64());
            one.zip(other).is_some_and(|(one, other)| {
                (one - other).abs() <= NEAR + one.max(other).abs() * NEAR_PERCENT / 100.0
            })
        }
        _ => left == right,
    }
}

fn first_difference(
    left: &[Option<String>],
    right: &[Option<String>],
) -> Option<(usize, Option<String>, Option<String>)> {
    let at = (0..left.len().max(right.len())).find(|&at| left.get(at) != right.get(at))?;
    let short = |all: &[Option<String>]| all.get(at).cloned().flatten();
    Some((at, short(left), short(right)))
}

/// Names in a folder, sorted.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// The only application of a store.
pub fn only(store: &Path) -> Result<String> {
    let all: Vec<String> = names(store)
        .into_iter()
        .filter(|it| place::is_safe(it))
        .collect();
    ensure!(all.len() == 1, "the store has {all:?}");
    Ok(all[0].clone())
}

/// Columns of a part are those of the table, in order; tasks have two more, and SQL metrics have all values.
pub fn same_columns(folder: &Path) -> Result<u64> {
    let mut rows = 0;
    for number in parts::list(folder)? {
        for table in TABLES {
            let path = parts::path(folder, table.name, number);
            if !path.exists() {
                continue;
            }
            let reader = Reader::open(&path, table.name)?;
            let mut expected: Vec<&str> = table.columns.iter().map(|it| it.name).collect();
            if table.name == TASK_SQL.name {
                expected.truncate(SQL_SAME_AS);
            }
            if table.name == TASKS.name {
                expected.extend([parts::STARTED, parts::ENDED]);
                rows += reader.rows();
            }
            ensure!(reader.columns() == expected, "{}", path.display());
        }
    }
    Ok(rows)
}

pub fn get(port: u16, path: &str) -> Result<Value> {
    let (status, body) = request(port, &format!("/api/v1/{path}"), "")?;
    ensure!(status == 200, "{path}: {status} {body}");
    Ok(serde_json::from_str(&body)?)
}

/// The tables that the parts become are those of an import.
pub fn equals_import(run: &Ended<'_>) -> Result<()> {
    let (store, id) = (&run.store, run.id.as_str());
    let folder = store.join(id);
    let all = names(&folder);
    ensure!(all.iter().all(|it| it.contains("-0")), "{all:?}");
    let rows = same_columns(&folder)?;
    ensure!(rows > 30, "{rows} rows in parts");
    let imported = run.lab.folder().join("imported");
    import(
        &imported,
        &run.log,
        Bounds::default(),
        &Admission::default(),
    )?;
    // The server is asked while the store has parts only: it makes the tables.
    let (live, from_log) = (serve(store, None)?, serve(&imported, None)?);
    let listed = get(live, "applications")?;
    ensure!(listed[0]["id"] == id, "{listed}");
    for path in [
        "stages",
        "jobs",
        "allexecutors",
        "sql",
        "storage/rdd",
        "environment",
    ] {
        let path = format!("applications/{id}/{path}");
        let (left, right) = (get(live, &path)?, get(from_log, &path)?);
        ensure!(same(&left, &right, false), "{path}:\n{left}\n{right}");
    }
    let import = request(live, &format!("/smtt/v1/applications/{id}/import"), "")?.1;
    let import: Value = serde_json::from_str(&import)?;
    ensure!(import["hasLastPart"] == true, "{import}");
    for lost in ["lostTasks", "lostEvents", "damagedParts"] {
        ensure!(import[lost] == 0, "{import}");
    }
    let all = names(&folder);
    let tables = ["meta.parquet", "task_sql.parquet", "tasks.parquet"];
    ensure!(all == tables, "{all:?}");
    same_tables(&folder, &imported.join(id))?;
    println!(
        "{}: {rows} tasks in parts, the same tables",
        run.lab.spark.version
    );
    Ok(())
}
