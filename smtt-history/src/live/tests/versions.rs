//! Parts of other versions of the format: what this version does not know is kept, and what it cannot read is refused.

use smtt_store::history::columns::Unknown;
use smtt_store::history::{VERSION, VERSION_KEY};

use super::*;

/// Says in a file that it is of another version.
fn set_version(path: &Path, version: u32) {
    let mut bytes = fs::read(path).expect("reads");
    let key = VERSION_KEY.as_bytes();
    let mut places = memchr::memmem::find_iter(&bytes, key);
    let place = places.next().expect("has a version") + key.len();
    assert!(places.next().is_none(), "has one version");
    // The type of the value and its length come first.
    let value = &mut bytes[place + 2];
    assert_eq!(char::from(*value).to_digit(10), Some(VERSION));
    *value = char::from_digit(version, 10).map_or(0, |digit| digit as u8);
    fs::write(path, bytes).expect("writes");
}

fn unknown(name: &str, kind: smtt_store::history::columns::Kind) -> Unknown {
    let name = name.to_owned();
    Unknown { name, kind }
}

/// A part with both tasks, their SQL metrics and a document, in the form of a later version: with columns and a kind of
/// document that this version does not know.
fn later_part(folder: &Path, number: u64) {
    use smtt_store::history::columns::Kind;
    let lines = lines();
    let tasks = [(2, 40, Some(5), 6), (1, 50, Some(4), 8)];
    let said = r#"{"tasks":2,"taskSql":2,"last":true}"#;
    let events = chosen(&lines, &[1, 2, 3, 7, 9, 10]);
    part(folder, number, &events, &tasks, said);
    let file = |table: &str| format!("{table}-{number:06}.parquet");
    // The same rows with more columns.
    let reader =
        Reader::open(&parts::path(folder, "tasks", number), "tasks").expect("opens the tasks");
    let all = [0..2];
    let mut batch = Batch::with(
        &PART,
        vec![
            unknown("wait_ns", Kind::Long),
            unknown("tier", Kind::Text),
            unknown("seen_time", Kind::Time),
        ],
    );
    for row in 0..2 {
        let texts: Vec<Option<String>> = PART
            .columns
            .iter()
            .map(|it| match it.kind {
                Kind::Text => reader.texts(it.name, &all).expect("reads")[row].clone(),
                _ => None,
            })
            .collect();
        let mut cells: Vec<Cell<'_>> = PART
            .columns
            .iter()
            .zip(&texts)
            .map(|(it, text)| match it.kind {
                Kind::Text => text.as_deref().map_or(Cell::None, Cell::Text),
                _ => Cell::optional(reader.numbers(it.name, &all).expect("reads")[row]),
            })
            .collect();
        let Cell::Number(id) = cells[2] else {
            panic!("{:?}", cells[2])
        };
        cells.push(Cell::Number(i64::MAX - id));
        cells.push(if id == 1 {
            Cell::Text("cold")
        } else {
            Cell::None
        });
        cells.push(Cell::Number(id));
        batch.push(&cells);
    }
    let mut writer = Writer::create(&PART, folder, "t", &[])
        .expect("creates")
        .named(&file("tasks"));
    writer.write(&batch).expect("writes");
    writer.finish().expect("finishes");
    let mut batch = Batch::with(&TASK_SQL, vec![unknown("scope", Kind::Text)]);
    for (task, scope) in [(1, "left"), (2, "right")] {
        let mut cells = [0, 0, 30, task, 7 + task].map(Cell::Number).to_vec();
        cells.extend([Cell::None, Cell::Text(scope)]);
        batch.push(&cells);
    }
    let mut writer = Writer::create(&TASK_SQL, folder, "q", &[])
        .expect("creates")
        .named(&file("task_sql"));
    writer.write(&batch).expect("writes");
    writer.finish().expect("finishes");
    let mut batch = Batch::new(&META);
    batch.push(&[Cell::Text("part"), Cell::Text("1"), Cell::Text(said)]);
    for (kind, id, text) in [
        ("shard", "7", r#"{"of":1}"#),
        ("shard", "7", r#"{"of":2}"#),
        // Documents of this version are made of the events: a part cannot bring one.
        ("stage", "9.9", "{}"),
    ] {
        batch.push(&[kind, id, text].map(Cell::Text));
    }
    for (number, json) in events {
        batch.push(&[
            Cell::Text("event"),
            Cell::Text(&number.to_string()),
            Cell::Text(json),
        ]);
    }
    let mut writer = Writer::create(&META, folder, "m", &[])
        .expect("creates")
        .named(&file("meta"));
    writer.write(&batch).expect("writes");
    writer.finish().expect("finishes");
}

fn set_all(folder: &Path, version: u32) {
    for table in ["tasks", "task_sql", "meta"] {
        set_version(&parts::path(folder, table, 1), version);
    }
}

#[test]
fn a_merge_keeps_columns_and_kinds_of_the_next_version() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let store = folder.path().join("store");
    let own = store.join("app-1");
    later_part(&own, 1);
    set_all(&own, VERSION + 1);
    // A later part is without them, as where two versions write.
    part(&own, 2, &[], &[], r#"{"last":true}"#);
    let done = compact(&store, "app-1", false).expect("compacts");
    assert_eq!((done.lost, done.sizes.tasks.rows), (0, 2));
    let app = App::open(&done.folder).expect("opens");
    let tasks = app.tasks().expect("opens");
    let all = [0..2];
    assert_eq!(
        tasks.numbers("task_id", &all).expect("reads"),
        [Some(1), Some(2)]
    );
    assert_eq!(
        tasks.numbers("wait_ns", &all).expect("reads"),
        [Some(i64::MAX - 1), Some(i64::MAX - 2)]
    );
    assert_eq!(
        tasks.numbers("seen_time", &all).expect("reads"),
        [Some(1), Some(2)]
    );
    assert_eq!(
        tasks.texts("tier", &all).expect("reads"),
        [Some("cold".to_owned()), None]
    );
    // The numbers of the events are of parts only.
    let (unknown, left_out) = tasks.unknown(&TASKS, &[]);
    let names: Vec<&str> = unknown.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(
        (names.as_slice(), left_out),
        (&["wait_ns", "tier", "seen_time"][..], 0)
    );
    let sql = app.table(&TASK_SQL).expect("opens");
    let scopes = sql.texts("scope", &all).expect("reads");
    assert_eq!(scopes, ["left", "right"].map(|it| Some(it.to_owned())));
    let shard = ["shard", "7", r#"{"of":2}"#].map(str::to_owned).into();
    assert_eq!(app.others(), [shard]);
    assert!(app.one(Kind::Stage, "9.9").is_none());
    assert_eq!(about(&app)["leftOutColumns"], 0);
    drop((tasks, sql));
    same_as_an_import_but_for_columns(folder.path(), &done.folder);
}

/// What this version knows is as an import has it.
fn same_as_an_import_but_for_columns(folder: &Path, tables: &Path) {
    let log = folder.join("log");
    let lines: Vec<String> = lines().into_iter().map(|(_, line)| line).collect();
    fs::write(&log, lines.join("\n")).expect("writes");
    let imported = folder.join("imported");
    let imported =
        import(&imported, &log, Bounds::default(), &Admission::default()).expect("imports");
    assert_eq!(documents(tables), documents(&imported.folder));
    let open = |folder: &Path| App::open(folder).expect("opens").tasks().expect("opens");
    let (ours, theirs) = (open(tables), open(&imported.folder));
    for column in TASKS.columns {
        let same = match column.kind {
            smtt_store::history::columns::Kind::Text => {
                let of = |it: &Reader| it.texts(column.name, &[0..2]).expect("reads");
                of(&ours) == of(&theirs)
            }
            _ => {
                let of = |it: &Reader| it.numbers(column.name, &[0..2]).expect("reads");
                of(&ours) == of(&theirs)
            }
        };
        assert!(same, "{}", column.name);
    }
}

#[test]
fn tables_of_the_versions_beside_this_one_are_read_and_others_refused() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let store = folder.path();
    let own = store.join("app-1");
    later_part(&own, 1);
    set_all(&own, VERSION + 1);
    let done = compact(store, "app-1", false).expect("compacts");
    for table in ["tasks", "task_sql", "meta"] {
        set_version(&place::table(&done.folder, table), VERSION + 1);
    }
    let app = App::open(&done.folder).expect("opens");
    assert_eq!(app.all(Kind::Stage).len(), 1);
    assert_eq!(app.tasks().expect("opens").rows(), 2);
    assert!(crate::open::summary(&done.folder).expect("reads").is_some());
    fs::remove_dir_all(&done.folder).expect("removes");
    later_part(&own, 1);
    set_all(&own, VERSION + 2);
    // A part that cannot be read counts as damaged, so nothing has the application's start.
    let error = compact(store, "app-1", true).expect_err("is refused");
    assert!(error.to_string().contains("no part"), "{error:#}");
    assert!(is_live(&own), "the parts stay");
    let mut about = About::default();
    let mut replay = Replay::new(Out::create(store).expect("creates"));
    let none = Unknowns::default();
    replay_part((&own, &none), 1, &mut 0, &mut replay, &mut about).expect("names it");
    assert!(
        about.named[0].1.contains("format version"),
        "{:?}",
        about.named
    );
}
