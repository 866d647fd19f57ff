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
use super::columns::{FIRST_METRIC, FIRST_PEAK, Kind, META, METRICS, PEAKS, TASK_SQL, TASKS};
use super::place;
use super::read::Reader;
use super::same;
use super::write::Writer;
use super::{MAGIC_KEY, VERSION, VERSION_KEY};

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
                rows.push([stage, attempt, task], &figures, (id, value), &[]);
            }
        }
    }
    let mut writer = Writer::create(&TASK_SQL, folder.path(), "1", &[]).expect("creates");
    writer.write(&rows.finish()).expect("writes");
    // In the next row group the copy is none.
    let mut rows = same::Rows::default();
    rows.push([0, 0, 100], &[0; METRICS], (COPY, 3), &[]);
    rows.push([0, 0, 101], &[0; METRICS], (COPY, 4), &[]);
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
        rows.push([0, 0, task], &[-1; METRICS], (7, task % 1000), &[]);
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
fn columns_of_any_size_are_read_by_row() {
    // Digits without order: the larger table's column has more than is read at once.
    let mut state = 88_172_645_463_325_252_u64;
    let mut text = || {
        let mut digit = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            format!("{state:016x}")
        };
        (0..200).map(&mut digit).collect::<String>()
    };
    for (rows, is_large) in [(20, false), (1000, true)] {
        let folder = tempfile::tempdir().expect("makes a folder");
        let texts: Vec<String> = (0..rows).map(|_| text()).collect();
        let mut batch = Batch::new(&META);
        for text in &texts {
            batch.push(&["kind", "id", text].map(Cell::Text));
        }
        let mut writer = Writer::create(&META, folder.path(), "1", &[]).expect("creates");
        writer.write(&batch).expect("writes");
        let bytes = writer.finish().expect("finishes").bytes;
        assert_eq!(bytes > 1 << 20, is_large, "{bytes}");
        let path = place::table(folder.path(), "meta");
        let reader = Reader::open(&path, "meta").expect("opens");
        let read = |ranges: &[std::ops::Range<u64>]| -> Vec<String> {
            let texts = reader.texts("json", ranges).expect("reads");
            texts.into_iter().flatten().collect()
        };
        let end = rows as u64;
        assert_eq!(read(&[0..end]), texts);
        assert_eq!(read(&[0..1]), texts[..1]);
        let some = read(&[3..5, 11..12, end - 2..end]);
        let expected = [&texts[3..5], &texts[11..12], &texts[rows - 2..]].concat();
        assert_eq!(some, expected);
        let lengths = reader.texts_as("json", &[0..end], &|text| text.len());
        let lengths = lengths.expect("reads");
        assert!(lengths.iter().all(|it| *it == Some(3200)), "{lengths:?}");
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

/// A task's row: index, partition, and values by the names of columns.
fn task(id: i64, partition: Option<i64>, values: &[(&str, i64)]) -> Vec<Cell<'static>> {
    let mut row = vec![Cell::None; TASKS.columns.len()];
    row[2] = Cell::Number(id);
    row[3] = Cell::Number(id % 50);
    row[5] = Cell::optional(partition);
    for (name, value) in values {
        let at = TASKS.columns.iter().position(|it| it.name == *name);
        row[at.expect("is a column")] = Cell::Number(*value);
    }
    row
}

#[test]
fn values_that_follow_from_other_columns_take_no_room_and_are_read_as_they_were() {
    const GROUP: i64 = 100;
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut expected: Vec<[Option<i64>; 3]> = Vec::new();
    let mut write = |thorough: bool| -> (Reader, u64) {
        let name = if thorough { "thorough" } else { "plain" };
        let own = folder.path().join(name);
        fs::create_dir(&own).expect("makes a folder");
        let writer = Writer::create(&TASKS, &own, "1", &[]).expect("creates");
        let mut writer = if thorough { writer.thorough() } else { writer };
        expected.clear();
        for group in 0..5 {
            let mut batch = Batch::new(&TASKS);
            for id in group * GROUP..(group + 1) * GROUP {
                // Of the third group one partition is another, of the fourth the log has none.
                let partition = match group {
                    2 if id == 250 => Some(7),
                    3 => None,
                    _ => Some(id % 50),
                };
                let (minor, major) = (id * 7919 % 1000, id * 104_729 % 500);
                let total = minor + major + i64::from(id == 451);
                let mut values = vec![("minor_gc_time_ms", minor), ("major_gc_time_ms", major)];
                // Some tasks have no peaks at all.
                let mut total_of = None;
                if id % 3 == 0 {
                    values.clear();
                } else {
                    values.push(("total_gc_time_ms", total));
                    total_of = Some(total);
                }
                let mut unified = None;
                if id % 2 == 0 {
                    let (execution, storage) = (id * 31, id * 1_000_003);
                    values.push(("peak_on_heap_execution_bytes", execution));
                    values.push(("peak_on_heap_storage_bytes", storage));
                    values.push(("peak_on_heap_unified_bytes", execution + storage));
                    unified = Some(execution + storage);
                }
                expected.push([partition, total_of, unified]);
                batch.push(&task(id, partition, &values));
            }
            writer.write(&batch).expect("writes");
        }
        let bytes = writer.finish().expect("finishes").bytes;
        let path = place::table(&own, TASKS.name);
        (Reader::open(&path, TASKS.name).expect("opens"), bytes)
    };
    let columns = [
        "partition",
        "total_gc_time_ms",
        "peak_on_heap_unified_bytes",
    ];
    let (plain, plain_bytes) = write(false);
    let (thorough, bytes) = write(true);
    assert!(bytes < plain_bytes, "{bytes} and {plain_bytes} bytes");
    let all = [0..500];
    for reader in [&plain, &thorough] {
        for (at, column) in columns.iter().enumerate() {
            let of: Vec<_> = expected.iter().map(|row| row[at]).collect();
            assert_eq!(reader.numbers(column, &all).expect("reads"), of, "{column}");
            let ranges = [3..4, 198..203, 249..252, 299..305, 499..500];
            let rows = ranges.iter().flat_map(|it| it.clone());
            let of: Vec<_> = rows.map(|row| of[row as usize]).collect();
            let some = reader.numbers(column, &ranges).expect("reads");
            assert_eq!(some, of, "{column}");
        }
    }
    // In the file are only the row groups where a value is another one.
    let own = |column: &str| -> Vec<usize> {
        let values = thorough.own_numbers(column, &all).expect("reads");
        let count = |rows: &[Option<i64>]| rows.iter().flatten().count();
        values.chunks(GROUP as usize).map(count).collect()
    };
    assert_eq!(own("partition"), [0, 0, 100, 0, 0]);
    let total = own("total_gc_time_ms");
    assert!(total[4] > 0 && total[..4] == [0; 4], "{total:?}");
    assert_eq!(own("peak_on_heap_unified_bytes"), [0; 5]);
    let said = thorough.said(super::derived::DERIVED_KEY);
    assert!(said.is_some_and(|it| it.contains("partition:0-1,") && it.contains("partition:4-4")));
    assert_eq!(plain.said(super::derived::DERIVED_KEY), None);
}

#[test]
fn a_text_that_names_no_row_groups_says_nothing() {
    for text in [
        "",
        "partition",
        "partition:",
        "partition:x-y",
        "partition:2-1",
        "partition:0-9",
        "partition:0-18446744073709551615",
        "task_id:0-1",
        ",,:-,",
    ] {
        let parsed = super::derived::parsed(text, 3);
        assert!(parsed.iter().all(Vec::is_empty), "{text:?}: {parsed:?}");
    }
    let [partition, ..] = super::derived::parsed("partition:1-1,partition:0-0,partition:2-2", 3);
    assert_eq!(partition, [false, true, true]);
}

/// A table with a column of 64 bits and one of a type that no table has, as a file of a version.
fn of_version(path: &std::path::Path, version: u32) {
    let said = [
        (MAGIC_KEY, "task_sql".to_owned()),
        (VERSION_KEY, version.to_string()),
    ];
    let said = said.map(|(key, value)| KeyValue::new(key.to_owned(), value));
    let properties = WriterProperties::builder().set_key_value_metadata(Some(said.to_vec()));
    let text = "message history { required int64 task_id; optional int64 later; optional double share; optional binary Bad (UTF8); }";
    let schema = parse_message_type(text).expect("parses");
    let file = File::create(path).expect("makes a file");
    let mut writer =
        SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties.build()))
            .expect("begins");
    let mut group = writer.next_row_group().expect("begins");
    while let Some(mut column) = group.next_column().expect("has a column") {
        use parquet::column::writer::ColumnWriter;
        match column.untyped() {
            ColumnWriter::Int64ColumnWriter(out) => {
                let is_later = out.get_descriptor().name() == "later";
                let levels = is_later.then_some(&[1, 1][..]);
                out.write_batch(&[7, 8], levels, None).expect("writes");
            }
            ColumnWriter::DoubleColumnWriter(out) => {
                out.write_batch(&[], Some(&[0, 0]), None).expect("writes");
            }
            ColumnWriter::ByteArrayColumnWriter(out) => {
                out.write_batch(&[], Some(&[0, 0]), None).expect("writes");
            }
            _ => panic!("another column"),
        }
        column.close().expect("ends");
    }
    group.close().expect("ends");
    writer.close().expect("ends");
}

#[test]
fn a_reader_reads_its_version_and_the_two_beside_it() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let path = place::table(folder.path(), "task_sql");
    for version in [VERSION - 1, VERSION, VERSION + 1] {
        of_version(&path, version);
        let reader = Reader::open(&path, "task_sql").expect("opens");
        let column = |name: &str| reader.numbers(name, &[0..2]).expect("reads");
        assert_eq!(column("task_id"), [Some(7), Some(8)]);
        assert_eq!(column("later"), [Some(7), Some(8)]);
        // A column of this version that the file does not have.
        assert_eq!(column("value"), [None, None]);
        let (unknown, left_out) = reader.unknown(&TASK_SQL, &[]);
        assert_eq!(
            (unknown[0].name.as_str(), unknown[0].kind),
            ("later", Kind::Long)
        );
        assert_eq!((unknown.len(), left_out), (1, 2));
        assert!(reader.unknown(&TASK_SQL, &["later"]).0.is_empty());
    }
    for version in [VERSION - 2, VERSION + 2] {
        of_version(&path, version);
        let error = Reader::open(&path, "task_sql").err().expect("is refused");
        let said = format!("format version {:?}", Some(version));
        assert!(error.to_string().contains(&said), "{error}");
    }
}

#[test]
fn a_column_whose_values_are_equal_at_first_keeps_all_of_them() {
    let mut batch = Batch::new(&TASK_SQL);
    for row in 0..1000 {
        batch.push(&[3, 0, 5, row, i64::from(row >= 900)].map(Cell::Number));
    }
    let equal = batch.bytes();
    batch.set(10, 4, Cell::Number(7));
    batch.set(11, 4, Cell::None);
    batch.set(12, 5, Cell::Text("jvm_gc_time_ms"));
    let value = |row| batch.number(4, row);
    let values = [9, 10, 11, 899, 900, 1000].map(value);
    assert_eq!(values, [Some(0), Some(7), None, Some(0), Some(1), None]);
    let rows = [12, 13, 11];
    let texts: Vec<_> = batch.texts(5, &rows).collect();
    assert_eq!(texts, [Some("jvm_gc_time_ms"), None, None]);
    assert_eq!(batch.numbers(0, &rows).0, [3, 3, 3]);
    assert_eq!(batch.numbers(4, &rows), (vec![0, 0], vec![1, 1, 0]));
    // Two of its columns have values of their own.
    assert!((16_000..40_000).contains(&equal), "{equal} bytes");
}
