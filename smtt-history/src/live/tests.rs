//! Parts as a driver writes them, and what readers make of them where some are missing, damaged or there twice.

mod races;
mod versions;

use std::fs;
use std::path::Path;

use serde_json::Value;
use smtt_store::history::batch::{Batch, Cell};
use smtt_store::history::columns::{Column, FIRST_METRIC, META, METRICS, TASKS, Table};
use smtt_store::history::place;
use smtt_store::history::write::Writer;

use super::*;
use crate::import::{Admission, import};
use crate::log::Bounds;

const WIDTH: usize = TASKS.columns.len() + 2;
const COLUMNS: [Column<'static>; WIDTH] = {
    let mut all = [TASKS.columns[0]; WIDTH];
    let mut at = 0;
    while at < TASKS.columns.len() {
        all[at] = TASKS.columns[at];
        at += 1;
    }
    // A number that may be absent.
    all[WIDTH - 2] = TASKS.columns[FIRST_METRIC];
    all[WIDTH - 2].name = parts::STARTED;
    all[WIDTH - 1] = TASKS.columns[FIRST_METRIC];
    all[WIDTH - 1].name = parts::ENDED;
    all
};
static PART: Table = Table {
    name: "tasks",
    columns: &COLUMNS,
    order: &[],
};

/// A task's row: its id, its run time, the numbers of its start and end.
type Task = (i64, i64, Option<i64>, i64);

fn part(folder: &Path, number: u64, events: &[(i64, &str)], tasks: &[Task], said: &str) {
    fs::create_dir_all(folder).expect("makes the folder");
    let name = |table: &str| format!("{table}-{number:06}.parquet");
    if !tasks.is_empty() {
        let mut batch = Batch::new(&PART);
        for &(id, run, started, ended) in tasks {
            let mut row = [Cell::None; WIDTH];
            for (at, number) in [
                (0, 0),
                (1, 0),
                (2, id),
                (3, id),
                (4, 0),
                (8, 2000),
                (9, 1000),
            ] {
                row[at] = Cell::Number(number);
            }
            for (at, text) in [(6, "1"), (7, "h"), (11, "SUCCESS"), (12, "ANY")] {
                row[at] = Cell::Text(text);
            }
            (row[13], row[18]) = (Cell::Number(0), Cell::Number(1));
            (row[14], row[15]) = (Cell::Text("ResultTask"), Cell::Text("Success"));
            for cell in &mut row[FIRST_METRIC..FIRST_METRIC + METRICS] {
                *cell = Cell::Number(0);
            }
            row[FIRST_METRIC + 2] = Cell::Number(run);
            row[WIDTH - 2] = Cell::optional(started);
            row[WIDTH - 1] = Cell::Number(ended);
            batch.push(&row);
        }
        let writer = Writer::create(&PART, folder, "t", &[]).expect("creates");
        let mut writer = writer.named(&name("tasks"));
        writer.write(&batch).expect("writes");
        writer.finish().expect("finishes");
    }
    let mut batch = Batch::new(&META);
    batch.push(&[Cell::Text("part"), Cell::Text("1"), Cell::Text(said)]);
    for (number, json) in events {
        let id = number.to_string();
        batch.push(&[Cell::Text("event"), Cell::Text(&id), Cell::Text(json)]);
    }
    let writer = Writer::create(&META, folder, "m", &[]).expect("creates");
    let mut writer = writer.named(&name("meta"));
    writer.write(&batch).expect("writes");
    writer.finish().expect("finishes");
}

const STAGE: &str = r#""Stage Info":{"Stage ID":0,"Stage Attempt ID":0,"Stage Name":"s","Number of Tasks":2,"RDD Info":[],"Details":"","Submission Time":2000,"Accumulables":[]}"#;

/// The lines of a log, by number. Task 1 ends after the stage has, as a speculative one does.
fn lines() -> Vec<(i64, String)> {
    let task = |event: &str, id: i64, finish: i64, more: &str| {
        format!(
            r#"{{"Event":"SparkListenerTask{event}","Stage ID":0,"Stage Attempt ID":0,{more}"Task Info":{{"Task ID":{id},"Index":{id},"Attempt":0,"Launch Time":2000,"Executor ID":"1","Host":"h","Locality":"ANY","Speculative":false,"Getting Result Time":0,"Finish Time":{finish},"Failed":false,"Killed":false,"Accumulables":[]}}}}"#
        )
    };
    let end = |id, run: i64| {
        let more = format!(
            r#""Task Type":"ResultTask","Task End Reason":{{"Reason":"Success"}},"Task Metrics":{{"Executor Run Time":{run}}},"#
        );
        task("End", id, 3000, &more)
    };
    [
        r#"{"Event":"SparkListenerApplicationStart","App Name":"n","App ID":"app-1","Timestamp":1000,"User":"u"}"#.to_owned(),
        format!(r#"{{"Event":"SparkListenerJobStart","Job ID":0,"Submission Time":1500,"Stage Infos":[{}],"Stage IDs":[0],"Properties":{{}}}}"#, &STAGE["\"Stage Info\":".len()..]),
        format!(r#"{{"Event":"SparkListenerStageSubmitted",{STAGE},"Properties":{{}}}}"#),
        task("Start", 1, 0, ""),
        task("Start", 2, 0, ""),
        end(2, 40),
        format!(r#"{{"Event":"SparkListenerStageCompleted",{STAGE}}}"#),
        end(1, 50),
        r#"{"Event":"SparkListenerJobEnd","Job ID":0,"Completion Time":4000,"Job Result":{"Result":"JobSucceeded"}}"#.to_owned(),
        r#"{"Event":"SparkListenerApplicationEnd","Timestamp":5000}"#.to_owned(),
    ]
    .into_iter()
    .zip(1..)
    .map(|(line, number)| (number, line))
    .collect()
}

fn chosen<'a>(lines: &'a [(i64, String)], numbers: &[i64]) -> Vec<(i64, &'a str)> {
    let wanted = lines.iter().filter(|(number, _)| numbers.contains(number));
    wanted
        .map(|(number, line)| (*number, line.as_str()))
        .collect()
}

/// Three parts: both tasks run when the first is cut, one when the second is.
pub(crate) fn parts_of(folder: &Path) {
    let lines = lines();
    let said = |tasks: u32, last: bool| {
        format!(r#"{{"tasks":{tasks},"taskSql":0,"lostTasks":0,"lostEvents":0,"last":{last}}}"#)
    };
    part(
        folder,
        1,
        &chosen(&lines, &[1, 2, 3, 4]),
        &[],
        &said(0, false),
    );
    part(
        folder,
        2,
        &chosen(&lines, &[7]),
        &[(2, 40, Some(5), 6)],
        &said(1, false),
    );
    part(
        folder,
        3,
        &chosen(&lines, &[9, 10]),
        &[(1, 50, None, 8)],
        &said(1, true),
    );
}

fn documents(folder: &Path) -> Vec<(String, Value)> {
    let app = App::open(folder).expect("opens");
    let mut all = Vec::new();
    for kind in Kind::ALL {
        for (id, text) in app.all(kind) {
            let mut json: Value = serde_json::from_str(text).expect("is JSON");
            if kind == Kind::Application {
                json["attempts"][0]["lastUpdated"] = Value::Null;
                json["attempts"][0]["lastUpdatedEpoch"] = Value::Null;
            }
            if kind != Kind::Import {
                all.push((format!("{kind:?} {id}"), json));
            }
        }
    }
    all
}

fn about(app: &App) -> Value {
    serde_json::from_str(app.one(Kind::Import, "").expect("is there")).expect("is JSON")
}

fn same_as_an_import(folder: &Path, tables: &Path) {
    let log = folder.join("log");
    let lines: Vec<String> = lines().into_iter().map(|(_, line)| line).collect();
    fs::write(&log, lines.join("\n")).expect("writes");
    let imported = folder.join("imported");
    let admission = Admission::default();
    let imported = import(&imported, &log, Bounds::default(), &admission).expect("imports");
    assert_eq!(documents(tables), documents(&imported.folder));
    let bytes = |folder: &Path| fs::read(place::table(folder, "tasks")).expect("reads");
    assert_eq!(bytes(tables), bytes(&imported.folder));
}

#[test]
fn rows_and_events_of_one_part_are_replayed_in_the_order_of_their_numbers() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let store = folder.path().join("store");
    let lines = lines();
    let events = chosen(&lines, &[1, 2, 3, 7, 9, 10]);
    let tasks = [(2, 40, Some(5), 6), (1, 50, Some(4), 8)];
    let said = r#"{"tasks":2,"taskSql":0,"last":true}"#;
    part(&store.join("app-1"), 1, &events, &tasks, said);
    let done = compact(&store, "app-1", false).expect("compacts");
    same_as_an_import(folder.path(), &done.folder);
}

#[test]
fn lossy_times_are_the_same_by_an_import_and_a_compaction() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let (store, imported) = (folder.path().join("store"), folder.path().join("imported"));
    let lines = lines();
    let line = r#""Task Metrics":{"Executor Run Time":40}"#;
    let cpu = line.replace("{\"Executor", "{\"Executor CPU Time\":1234567,\"Executor");
    let logged: Vec<String> = lines.iter().map(|(_, it)| it.replace(line, &cpu)).collect();
    let log = folder.path().join("log");
    fs::write(&log, logged.join("\n")).expect("writes");
    let bounds = Bounds {
        times: Times::Microseconds,
        ..Bounds::default()
    };
    let done = import(&imported, &log, bounds, &Admission::default()).expect("imports");
    parts_of(&store.join("app-1"));
    let compacted = compact_with(&store, "app-1", false, Times::Microseconds).expect("compacts");
    for (folder, of_task_2) in [(&done.folder, 1_235_000), (&compacted.folder, 0)] {
        let app = App::open(folder).expect("opens");
        assert_eq!(about(&app)["lossyTimes"], "us");
        let tasks = app.tasks().expect("opens");
        assert_eq!(tasks.said(crate::out::TIMES_KEY).as_deref(), Some("us"));
        let all = [0..2];
        let cpu = tasks.numbers("executor_cpu_time_ns", &all).expect("reads");
        assert_eq!(cpu, [Some(0), Some(of_task_2)]);
        let run = tasks.numbers("executor_run_time_ms", &all).expect("reads");
        assert_eq!(run, [Some(50), Some(40)]);
    }
    // Sums of stages are those of Spark's own figures.
    let app = App::open(&done.folder).expect("opens");
    let stage = app.one(Kind::Stage, "0.0").expect("is there");
    assert!(stage.contains("\"executorCpuTime\":1234567"), "{stage}");
    let complete = import(
        &folder.path().join("complete"),
        &log,
        Bounds::default(),
        &Admission::default(),
    );
    let app = App::open(&complete.expect("imports").folder).expect("opens");
    let tasks = app.tasks().expect("opens");
    let cpu = tasks
        .numbers("executor_cpu_time_ns", &[0..2])
        .expect("reads");
    assert_eq!(cpu, [Some(0), Some(1_234_567)]);
    assert!(tasks.said(crate::out::TIMES_KEY).is_none() && about(&app)["lossyTimes"].is_null());
}

#[test]
fn parts_become_the_tables_of_an_import() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let store = folder.path().join("store");
    parts_of(&store.join("app-1"));
    assert!(is_live(&store.join("app-1")));
    assert_eq!(names(&store).expect("lists"), ["app-1"]);
    let done = compact(&store, "app-1", false).expect("compacts");
    assert_eq!((done.parts.0, done.lost, done.sizes.tasks.rows), (3, 0, 2));
    same_as_an_import(folder.path(), &done.folder);
    // The parts are gone, so there is nothing to compact.
    let error = compact(&store, "app-1", true).expect_err("is compact");
    assert!(error.to_string().contains("no parts"), "{error:#}");
}

#[test]
fn an_application_that_runs_is_open_and_stays_as_it_is() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let store = folder.path();
    parts_of(&store.join("app-1"));
    fs::remove_file(store.join("app-1/meta-000003.parquet")).expect("removes");
    let summary: Value =
        serde_json::from_str(&summary(&store.join("app-1")).expect("is there")).expect("is JSON");
    assert_eq!(summary["attempts"][0]["completed"], false);
    let app = open(store, "app-1").expect("opens");
    assert!(app.is_of("app-1", None) && app.is_current());
    let stage: Value =
        serde_json::from_str(app.one(Kind::Stage, "0.0").expect("is there")).expect("is JSON");
    assert_eq!(
        (&stage["numActiveTasks"], &stage["executorRunTime"]),
        (&1.into(), &40.into())
    );
    assert_eq!(about(&app)["hasLastPart"], false);
    assert!(is_live(&store.join("app-1")));
    let error = compact(store, "app-1", false).expect_err("runs");
    assert!(error.to_string().contains("--dead"), "{error:#}");
    assert!(names(store).expect("lists").is_empty());
    let done = compact(store, "app-1", true).expect("compacts");
    assert_eq!(done.sizes.tasks.rows, 2);
}

#[test]
fn missing_damaged_and_repeated_parts_are_named_and_nothing_is_there_twice() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let store = folder.path();
    let own = store.join("app-1");
    parts_of(&own);
    // Of a part with two files one is gone, another is cut, and one comes again under a later number.
    fs::remove_file(own.join("tasks-000003.parquet")).expect("removes");
    for table in ["meta", "tasks"] {
        let bytes = fs::read(parts::path(&own, table, 2)).expect("reads");
        fs::write(parts::path(&own, table, 6), bytes).expect("writes");
    }
    fs::write(own.join("meta-000005.parquet"), b"PAR1").expect("writes");
    let done = compact(store, "app-1", true).expect("compacts");
    let app = App::open(&done.folder).expect("opens");
    let about = about(&app);
    let named: Vec<i64> = about["damaged"]
        .as_array()
        .expect("is a list")
        .iter()
        .filter_map(|it| it["part"].as_i64())
        .collect();
    assert_eq!(named, [3, 4, 5], "{about}");
    assert_eq!(done.sizes.tasks.rows, 2);
    let tasks = app.tasks().expect("opens");
    let mut ids = tasks.numbers("task_id", &[0..2]).expect("reads");
    ids.sort_unstable();
    assert_eq!(ids, [Some(1), Some(2)]);
}

#[test]
fn parts_that_claim_another_application_are_refused() {
    let folder = tempfile::tempdir().expect("makes a folder");
    parts_of(&folder.path().join("app-2"));
    let error = compact(folder.path(), "app-2", false).expect_err("is refused");
    assert!(error.to_string().contains("app-1"), "{error:#}");
    for name in ["../app-1", ".app", "", "app-9"] {
        assert!(compact(folder.path(), name, true).is_err(), "{name}");
    }
}

#[test]
fn of_two_that_compact_one_replaces_and_the_other_leaves_its_tables() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let store = folder.path().join("store");
    parts_of(&store.join("app-1"));
    let other = store.clone();
    let error = compact_after((&store, Times::Complete), "app-1", move || {
        compact(&other, "app-1", false).expect("compacts");
    })
    .expect_err("was second");
    assert!(error.to_string().contains("has changed"), "{error:#}");
    same_as_an_import(folder.path(), &store.join("app-1"));
    assert_eq!(names_in(&store), [".lock", "app-1"]);
}

fn names_in(store: &Path) -> Vec<String> {
    let names = fs::read_dir(store).expect("lists").flatten();
    let mut names: Vec<String> = names
        .filter_map(|it| it.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

#[test]
fn a_part_that_comes_while_the_tables_are_made_keeps_the_parts() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let store = folder.path();
    parts_of(&store.join("app-1"));
    let own = store.join("app-1");
    let more = own.clone();
    let error = compact_after((store, Times::Complete), "app-1", move || {
        part(&more, 4, &[], &[], "{}")
    });
    assert!(error.is_err() && is_live(&own));
    assert_eq!(parts::list(&own).expect("lists"), [1, 2, 3, 4]);
}

#[test]
fn tables_that_another_makes_while_parts_are_read_are_opened() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let store = folder.path().join("store");
    parts_of(&store.join("app-1"));
    fs::remove_file(store.join("app-1/meta-000003.parquet")).expect("removes");
    let other = store.clone();
    let app = open_after(&store, "app-1", move || {
        compact(&other, "app-1", true).expect("compacts");
    })
    .expect("opens");
    assert_eq!(app.state_key().0, store.join("app-1"));
}

#[test]
fn a_part_that_vanishes_or_cannot_be_read_is_an_error_and_no_damage() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let store = folder.path();
    let own = store.join("app-1");
    parts_of(&own);
    // A name that was listed and leads nowhere is as good as one that has vanished.
    let missing = own.join("meta-000002.parquet");
    let bytes = fs::read(&missing).expect("reads");
    fs::remove_file(&missing).expect("removes");
    let (mut last, mut about) = (0, About::default());
    let mut replay = Replay::new(Out::create(store).expect("creates"));
    let error = replay_part(
        (&own, &Unknowns::default()),
        2,
        &mut last,
        &mut replay,
        &mut about,
    )
    .expect_err("is an error");
    assert!(format!("{error:#}").contains("meta-000002"), "{error:#}");
    fs::write(&missing, bytes).expect("writes");
    assert_eq!(compact(store, "app-1", false).expect("compacts").lost, 0);
}

#[test]
fn a_list_reads_the_events_of_the_last_part_only_where_it_ends_the_application() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let own = folder.path().join("app-1");
    let lines = lines();
    let completed = |last: bool| {
        let said = format!(r#"{{"last":{last}}}"#);
        part(&own, 2, &chosen(&lines, &[10]), &[], &said);
        let text = summary(&own).expect("is there");
        let json: Value = serde_json::from_str(&text).expect("is JSON");
        json["attempts"][0]["completed"] == true
    };
    part(&own, 1, &chosen(&lines, &[1]), &[], "{}");
    // The end is in the part either way, so the answer shows whether its events were read.
    assert!(!completed(false) && completed(true));
}

#[test]
fn a_part_with_the_greatest_number_is_read() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let own = folder.path().join("app-1");
    let lines = lines();
    part(&own, 1, &chosen(&lines, &[1]), &[], "{}");
    part(
        &own,
        u64::MAX,
        &chosen(&lines, &[10]),
        &[],
        r#"{"last":true}"#,
    );
    let done = compact(folder.path(), "app-1", false).expect("compacts");
    assert_eq!((done.parts.0, done.lost), (2, 21));
}

#[test]
fn links_pipes_and_other_kinds_of_files_are_damaged_parts_and_nothing_waits_for_them() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let store = folder.path();
    let own = store.join("app-1");
    parts_of(&own);
    let elsewhere = store.join("elsewhere");
    fs::rename(own.join("meta-000002.parquet"), &elsewhere).expect("renames");
    std::os::unix::fs::symlink(&elsewhere, own.join("meta-000002.parquet")).expect("links");
    let pipe = own.join("meta-000004.parquet");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("makes a pipe");
    fs::create_dir(own.join("meta-000005.parquet")).expect("makes a folder");
    let large = fs::File::create(own.join("meta-000006.parquet")).expect("creates");
    large.set_len(FILE_BYTES + 1).expect("grows");
    let (own_copy, store_copy) = (own.clone(), store.to_owned());
    let work = std::thread::spawn(move || {
        let is_there = summary(&own_copy).is_some();
        let done = compact(&store_copy, "app-1", true).expect("compacts");
        (is_there, done.lost)
    });
    let until = Instant::now() + Duration::from_secs(30);
    while !work.is_finished() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(work.is_finished(), "something waits for the pipe");
    assert_eq!(work.join().expect("ends"), (true, 4));
}

#[test]
fn parts_beyond_the_bounds_are_damaged_and_a_deadline_ends_the_work() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let store = folder.path();
    let own = store.join("app-1");
    parts_of(&own);
    let text = "x".repeat(EVENT_BYTES / 2);
    part(&own, 4, &[(11, &text), (12, &text)], &[], "{}");
    let many: Vec<Task> = (0..=50_000).map(|id| (id, 1, None, 13)).collect();
    part(&own, 5, &[], &many, r#"{"tasks":1}"#);
    let out = || Out::create(store).expect("creates");
    let error = make_within(store, "app-1", out(), Duration::ZERO).err();
    assert!(error.is_some_and(|it| it.to_string().contains("longer than 0 s")));
    let (_, about, _) = make(store, "app-1", out()).expect("makes");
    let named: Vec<u64> = about.named.iter().map(|(part, _)| *part).collect();
    assert_eq!(named, [4, 5], "{:?}", about.named);
    assert!(about.named[0].1.contains("bytes") && about.named[1].1.contains("rows"));
}
