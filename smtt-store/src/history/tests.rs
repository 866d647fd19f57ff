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
use super::columns::{FIRST_METRIC, FIRST_PEAK, META, METRICS, PEAKS, TASK_SQL, TASKS};
use super::place;
use super::read::Reader;
use super::same;
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

/// Rows of a metric in the table of SQL metrics: the value, and the column that has it.
fn metric(reader: &Reader, accumulator: i64) -> Vec<(Option<i64>, Option<String>)> {
    let all = [0..reader.rows()];
    let ids = reader.numbers("accumulator_id", &all).expect("reads");
    let values = reader.numbers("value", &all).expect("reads");
    let same = reader.texts("same_as", &all).expect("reads");
    let rows = ids.into_iter().zip(values.into_iter().zip(same));
    rows.filter(|(id, _)| *id == Some(accumulator))
        .map(|(_, row)| row)
        .collect()
}

#[test]
fn a_copy_of_a_task_s_figure_is_named_and_everything_else_keeps_its_value() {
    const COPY: i64 = 10;
    const CONSTANT: i64 = 11;
    const NEARLY: i64 = 12;
    const OWN: i64 = 13;
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut rows = same::Rows::default();
    for task in 0..100_i64 {
        let mut figures = [0; METRICS];
        figures[at("executor_run_time_ms")] = task % 7;
        figures[at("shuffle_write_bytes")] = 1000 + task;
        figures[at("result_size_bytes")] = 5;
        for (id, value) in [
            (COPY, 1000 + task),
            (CONSTANT, 5),
            (NEARLY, if task == 50 { 0 } else { 1000 + task }),
            (OWN, i64::MIN + task),
        ] {
            // A copy in one stage may differ in another, and in another attempt.
            for (stage, attempt) in [(0, 0), (0, 1), (1, 0)] {
                let own = stage == 1 && id == COPY || attempt == 1 && id == NEARLY;
                let value = if own { -task } else { value };
                rows.push([stage, attempt, task], &figures, (id, value));
            }
        }
    }
    let mut writer = Writer::create(&TASK_SQL, folder.path(), "1", &[]).expect("creates");
    writer.write(&rows.finish()).expect("writes");
    // In the next row group the copy is none.
    let mut rows = same::Rows::default();
    rows.push([0, 0, 100], &[0; METRICS], (COPY, 3));
    rows.push([0, 0, 101], &[0; METRICS], (COPY, 4));
    writer.write(&rows.finish()).expect("writes");
    writer.finish().expect("finishes");
    let reader = Reader::open(&place::table(folder.path(), "task_sql"), "task_sql").expect("opens");
    let named = |column: &str| (None, Some(column.to_owned()));
    let whole = |value: i64| (Some(value), None);
    let copy = metric(&reader, COPY);
    assert_eq!(copy[..200], vec![named("shuffle_write_bytes"); 200]);
    let own: Vec<_> = (0..100).map(|task: i64| whole(-task)).collect();
    assert_eq!(copy[200..300], own);
    assert_eq!(copy[300..], [whole(3), whole(4)]);
    assert_eq!(metric(&reader, CONSTANT), vec![whole(5); 300]);
    let nearly = metric(&reader, NEARLY);
    assert_eq!((&nearly[49], &nearly[50]), (&whole(1049), &whole(0)));
    assert!(
        nearly
            .iter()
            .all(|(value, same)| value.is_some() && same.is_none())
    );
    assert_eq!(metric(&reader, OWN)[3], whole(i64::MIN + 3));
}

/// Place of a column among the figures of a task.
fn at(column: &str) -> usize {
    let mut columns = TASKS.columns.iter();
    let at = columns.position(|it| it.name == column);
    at.expect("is a column") - FIRST_METRIC
}

#[test]
fn only_figures_of_tasks_have_copies() {
    for column in ["executor_deserialize_time_ms", "shuffle_write_records"] {
        assert!(same::is_figure(column), "{column}");
    }
    for column in ["host", "task_id", "peak_jvm_heap_bytes", "", "unknown"] {
        assert!(!same::is_figure(column), "{column}");
    }
}

#[test]
fn a_column_of_a_row_group_is_one_page() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut rows = same::Rows::default();
    for task in 0..300_000 {
        rows.push([0, 0, task], &[-1; METRICS], (7, task % 1000));
    }
    let mut writer = Writer::create(&TASK_SQL, folder.path(), "1", &[]).expect("creates");
    writer.write(&rows.finish()).expect("writes");
    writer.finish().expect("finishes");
    let path = place::table(folder.path(), "task_sql");
    let file = SerializedFileReader::new(File::open(path).expect("opens")).expect("opens");
    let group = file.get_row_group(0).expect("has a row group");
    for column in 0..TASK_SQL.columns.len() {
        let pages = group.get_column_page_reader(column).expect("has pages");
        let of_data = pages.filter(|page| {
            let kind = page.as_ref().expect("reads").page_type();
            kind != parquet::basic::PageType::DICTIONARY_PAGE
        });
        assert_eq!(of_data.count(), 1, "{}", TASK_SQL.columns[column].name);
    }
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
