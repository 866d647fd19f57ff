//! Tables survive a round trip, unsafe ids get no path, and a foreign file is refused.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use parquet::file::metadata::{KeyValue, ParquetMetaDataWriter};
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::batch::{Batch, Cell};
use super::columns::{FIRST_PEAK, META, PEAKS, TASK_SQL, TASKS};
use super::place;
use super::read::Reader;
use super::write::Writer;
use super::{MAGIC_KEY, VERSION_KEY};

#[test]
fn the_task_table_has_all_its_columns() {
    assert_eq!(TASKS.columns.len(), FIRST_PEAK + PEAKS.len());
    let mut names: Vec<&str> = TASKS.columns.iter().map(|column| column.name).collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all);
}

#[test]
fn ids_that_leave_the_store_have_no_folder() {
    let store = Path::new("/store");
    for id in [
        "..", ".", "", "a/b", "/etc", "a\\b", "a\0b", ".hidden", "a b", "%2e%2e",
    ] {
        assert_eq!(place::folder(store, id, None), None, "{id:?}");
        assert_eq!(place::folder(store, "app-1", Some(id)), None, "{id:?}");
    }
    assert_eq!(place::folder(store, &"a".repeat(161), None), None);
    let folder = place::folder(store, "application_1_2", Some("1"));
    assert_eq!(
        folder.as_deref(),
        Some(Path::new("/store/application_1_2_1"))
    );
}

#[test]
fn rows_come_back_sorted_and_by_range() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut writer = Writer::create(
        &TASK_SQL,
        folder.path(),
        "1",
        &[("smtt.application_id", "app-1")],
    )
    .expect("creates");
    for group in 0..2 {
        let mut batch = Batch::new(&TASK_SQL);
        for row in (0..1000_i64).rev() {
            let cells = [group, 0, row % 7, row, i64::MIN + row];
            batch.push(&cells.map(Cell::Number));
        }
        writer.write(&batch).expect("writes");
    }
    assert_eq!(writer.finish().expect("finishes").rows, 2000);
    let reader = Reader::open(&place::table(folder.path(), "task_sql"), "task_sql").expect("opens");
    let whole = reader.numbers("task_id", &[0..2000]).expect("reads");
    assert_eq!(whole.len(), 2000);
    assert_eq!(whole[..3], [Some(0), Some(7), Some(14)]);
    let ranges = [5..6, 998..1002, 1999..2000];
    let some = reader.numbers("value", &ranges).expect("reads");
    let expected: Vec<Option<i64>> = [5, 998, 999, 1000, 1001, 1999]
        .map(|row: usize| whole[row].map(|task| i64::MIN + task))
        .to_vec();
    assert_eq!(some, expected);
    assert_eq!(
        reader.numbers("new_column", &[0..3]).expect("reads"),
        [None; 3]
    );
    assert!(Reader::open(&place::table(folder.path(), "task_sql"), "tasks").is_err());
}

#[test]
fn absent_values_stay_absent() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut writer = Writer::create(&TASKS, folder.path(), "1", &[]).expect("creates");
    let mut batch = Batch::new(&TASKS);
    let mut row = vec![Cell::None; TASKS.columns.len()];
    row[2] = Cell::Number(7);
    row[6] = Cell::Text("driver");
    batch.push(&row);
    row[2] = Cell::Number(8);
    row[16] = Cell::Text("an error");
    row[21] = Cell::Number(0);
    batch.push(&row);
    writer.write(&batch).expect("writes");
    writer.finish().expect("finishes");
    let reader = Reader::open(&place::table(folder.path(), "tasks"), "tasks").expect("opens");
    assert_eq!(
        reader.texts("error", &[0..2]).expect("reads"),
        [None, Some("an error".to_owned())]
    );
    let run_time = reader
        .numbers("executor_run_time_ms", &[0..2])
        .expect("reads");
    assert_eq!(run_time, [None, Some(0)]);
}

#[test]
fn a_damaged_file_is_an_error() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let path = place::table(folder.path(), "meta");
    let mut writer = Writer::create(&META, folder.path(), "1", &[]).expect("creates");
    let mut batch = Batch::new(&META);
    for row in 0..500 {
        batch.push(&[
            Cell::Text("job"),
            Cell::Text(&row.to_string()),
            Cell::Text("{}"),
        ]);
    }
    writer.write(&batch).expect("writes");
    writer.finish().expect("finishes");
    let good = std::fs::read(&path).expect("reads");
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x5a;
        std::fs::write(&path, &bad).expect("writes");
        if let Ok(reader) = Reader::open(&path, "meta") {
            let rows = reader.rows().min(1000);
            let _ = reader.texts("id", &[0..rows]);
        }
    }
}

#[test]
fn claims_of_rows_and_repeated_columns_are_refused() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let path = place::table(folder.path(), "task_sql");
    let mut writer = Writer::create(&TASK_SQL, folder.path(), "1", &[]).expect("creates");
    let mut batch = Batch::new(&TASK_SQL);
    batch.push(&[Cell::Number(1); 5]);
    writer.write(&batch).expect("writes");
    writer.finish().expect("finishes");
    let reader = Reader::open(&path, "task_sql").expect("opens");
    for column in ["value", "new_column"] {
        let error = reader.numbers(column, &[0..u64::MAX, 0..u64::MAX]);
        assert!(
            error
                .expect_err("is too much")
                .to_string()
                .contains("more than")
        );
    }
    let file = File::open(&path).expect("opens");
    let good = SerializedFileReader::new(file)
        .expect("opens")
        .metadata()
        .clone();
    for rows in [i64::MAX, -1, 1 << 40] {
        let group = good.row_group(0).clone().into_builder().set_num_rows(rows);
        let group = group.build().expect("builds");
        let forged = good
            .clone()
            .into_builder()
            .set_row_groups(vec![group])
            .build();
        let mut bytes = b"PAR1".to_vec();
        ParquetMetaDataWriter::new(&mut bytes, &forged)
            .finish()
            .expect("writes");
        fs::write(&path, bytes).expect("writes");
        let error = Reader::open(&path, "task_sql").err().expect("is refused");
        assert!(error.to_string().contains("too many rows"), "{error}");
    }
    let said = [(MAGIC_KEY, "task_sql"), (VERSION_KEY, "1")]
        .map(|(key, value)| KeyValue::new(key.to_owned(), value.to_owned()));
    let properties = WriterProperties::builder().set_key_value_metadata(Some(said.to_vec()));
    let schema = parse_message_type("message history { repeated int64 value; }").expect("parses");
    let file = File::create(&path).expect("makes a file");
    SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties.build()))
        .and_then(SerializedFileWriter::close)
        .expect("writes");
    let error = Reader::open(&path, "task_sql").err().expect("is refused");
    assert!(error.to_string().contains("repeated"), "{error}");
}
