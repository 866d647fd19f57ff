//! Tables of a history: of an application (tasks, SQL metrics, and the documents in `meta`; a driver's parts are the same
//! tables by number) and of workers.
//!
//! Parquet files of this writer have no checksums. A cut is always an error: the footer is at the end. A changed bit in the
//! footer or in a page's header mostly is one. What cannot be seen is a bit inside a value, and in the name of a column,
//! which then is absent as in a file of an earlier version: such a table gives other values without an error. It never gives
//! another number of rows than its footer says.

use std::path::Path;

use smtt_store::history::batch::{Batch, Cell};
use smtt_store::history::columns::{Kind, META, TABLES, TASKS, Table};
use smtt_store::history::read::Reader;
use smtt_store::history::workers;
use smtt_store::history::write::Writer;

use super::{Came, damage};

/// Of the table of tasks, which has some eighty columns of four forms, bits of every so many bytes are changed without
/// `SMTT_DAMAGED_EVERY`: every byte takes half a minute.
const TASKS_EVERY: usize = 8;
/// Rows of a table.
const ROWS: i64 = 3;

/// A value of a table as text.
type Value = Option<String>;

/// All columns of a table; `None` where that gives an error.
fn read(path: &Path, table: &Table) -> Option<Vec<Vec<Value>>> {
    let reader = Reader::open(path, table.name).ok()?;
    let rows = 0..reader.rows();
    let all = std::slice::from_ref(&rows);
    let text = |number: Option<i64>| number.map(|number| number.to_string());
    let columns = table.columns.iter().map(|column| {
        let values: Vec<Value> = match column.kind {
            Kind::Text => reader.texts(column.name, all).ok()?,
            _ => {
                let numbers = reader.numbers(column.name, all).ok()?;
                numbers.into_iter().map(text).collect()
            }
        };
        assert_eq!(
            values.len() as u64,
            reader.rows(),
            "rows of {}",
            column.name
        );
        Some(values)
    });
    columns.collect()
}

fn written(table: &'static Table, folder: &Path) -> std::path::PathBuf {
    let mut batch = Batch::new(table);
    for row in 0..ROWS {
        let text = format!("{{\"row\":{row}}}");
        let cells: Vec<Cell<'_>> = table
            .columns
            .iter()
            .enumerate()
            .map(|(at, column)| match column.kind {
                _ if column.optional && (row + at as i64) % 3 == 0 => Cell::None,
                Kind::Text => Cell::Text(&text),
                Kind::Flag => Cell::Number(row % 2),
                _ => Cell::Number(row * 1000 + at as i64),
            })
            .collect();
        batch.push(&cells);
    }
    let mut writer = Writer::create(table, folder, "t", &[]).expect("creates");
    writer.write(&batch).expect("writes");
    writer.finish().expect("finishes");
    folder.join(format!("{}.parquet", table.name))
}

/// Damages a table at every byte, and checks what comes of it.
fn damaged(table: &'static Table) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = written(table, folder.path());
    let every = std::env::var("SMTT_DAMAGED_EVERY").ok();
    let every = every.map_or(TASKS_EVERY, |it| it.parse().expect("a number"));
    let bits = |at: usize| match table.name {
        // The documents of an application are in this one.
        name if name == META.name => (0..8).collect(),
        name if name == TASKS.name && !at.is_multiple_of(every) => Vec::new(),
        _ => vec![(at / 3 % 8) as u8],
    };
    let [changed, cut] = damage(&path, bits, |path| read(path, table));
    println!(
        "{}: error, intact, other: {changed:?} changed, {cut:?} cut",
        table.name
    );
    assert_eq!(
        cut[Came::Intact as usize..],
        [0, 0],
        "a cut table is an error"
    );
    assert!(changed[Came::Error as usize] > 0);
}

#[test]
fn every_damaged_byte_of_an_application_s_tables_gives_an_error_or_rows_and_no_panic() {
    for table in TABLES {
        damaged(table);
    }
}

#[test]
fn every_damaged_byte_of_a_worker_s_tables_gives_an_error_or_rows_and_no_panic() {
    for table in workers::TABLES {
        damaged(table);
    }
}
