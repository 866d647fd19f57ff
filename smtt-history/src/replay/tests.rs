//! Imports of short logs: what is kept, and what hostile logs cannot do.

mod bounds;

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::Value;

use crate::codec::tests::{lz4, snappy};
use crate::import::{Admission, Imported, import};
use crate::log::Bounds;
use crate::open::App;
use crate::out::Kind;

const START: &str = r#"{"Event":"SparkListenerApplicationStart","App Name":"n","App ID":"app-1","Timestamp":1000,"User":"u"}"#;

/// Any application, also instead of an earlier import.
const ANY: Admission = Admission {
    name: None,
    replaces: true,
};

fn stage(id: u32, tasks: u32) -> String {
    format!(
        r#"{{"Stage ID":{id},"Stage Attempt ID":0,"Stage Name":"s","Number of Tasks":{tasks},"RDD Info":[],"Details":"","Submission Time":2000,"Accumulables":[]}}"#
    )
}

fn job(id: u32, stages: &[u32]) -> String {
    let infos: Vec<String> = stages.iter().map(|id| stage(*id, 2)).collect();
    format!(
        r#"{{"Event":"SparkListenerJobStart","Job ID":{id},"Submission Time":1500,"Stage Infos":[{}],"Stage IDs":{stages:?},"Properties":{{}}}}"#,
        infos.join(",")
    )
}

fn submitted(id: u32) -> String {
    format!(
        r#"{{"Event":"SparkListenerStageSubmitted","Stage Info":{},"Properties":{{}}}}"#,
        stage(id, 2)
    )
}

fn info(task: i64, launch: i64, finish: i64) -> String {
    format!(
        r#"{{"Task ID":{task},"Index":{task},"Attempt":0,"Launch Time":{launch},"Executor ID":"1","Host":"h","Locality":"ANY","Speculative":false,"Getting Result Time":0,"Finish Time":{finish},"Failed":false,"Killed":false,"Accumulables":[]}}"#
    )
}

fn task_start(stage: u32, task: i64) -> String {
    format!(
        r#"{{"Event":"SparkListenerTaskStart","Stage ID":{stage},"Stage Attempt ID":0,"Task Info":{}}}"#,
        info(task, 2000, 0)
    )
}

fn task_end(stage: u32, task: i64, run: i64) -> String {
    format!(
        r#"{{"Event":"SparkListenerTaskEnd","Stage ID":{stage},"Stage Attempt ID":0,"Task Type":"ResultTask","Task End Reason":{{"Reason":"Success"}},"Task Info":{},"Task Executor Metrics":{{"JVMHeapMemory":{run},"NewMetric":1,"TotalGCTime":0}},"Task Metrics":{{"Executor Run Time":{run}}}}}"#,
        info(task, 2000, 3000)
    )
}

fn import_bytes(
    folder: &Path,
    name: &str,
    bytes: &[u8],
    bounds: Bounds,
) -> anyhow::Result<Imported> {
    let log = folder.join(name);
    fs::write(&log, bytes)?;
    import(&folder.join("store"), &log, bounds, &ANY)
}

/// Compresses as the suffix of a log's name says, in blocks of so many bytes.
fn packed(name: &str, text: &[u8], block: usize) -> Vec<u8> {
    let blocks: Vec<&[u8]> = text.chunks(block).collect();
    match name {
        "log.zstd" => zstd::encode_all(text, 1).expect("compresses"),
        "log.lz4" => lz4(&blocks),
        "log.snappy" => snappy(&blocks),
        _ => text.to_vec(),
    }
}

fn import_lines(folder: &Path, lines: &[String]) -> anyhow::Result<Imported> {
    import_bytes(
        folder,
        "log",
        lines.join("\n").as_bytes(),
        Bounds::default(),
    )
}

fn document(app: &App, kind: Kind, id: &str) -> Value {
    serde_json::from_str(app.one(kind, id).expect("has the document")).expect("is JSON")
}

/// What a store has, but for its lock.
fn folders(store: &Path) -> Vec<String> {
    let entries = fs::read_dir(store).expect("lists").flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name != ".lock").collect()
}

#[test]
fn a_short_log_becomes_tables() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let lines = [
        START.to_owned(),
        job(0, &[0]),
        submitted(0),
        task_start(0, 1),
        task_start(0, 2),
        task_end(0, 1, 40),
    ];
    let done = import_lines(folder.path(), &lines).expect("imports");
    assert_eq!((done.damaged, done.sizes.tasks.rows), (0, 2));
    let app = App::open(&done.folder).expect("opens");
    let stage = document(&app, Kind::Stage, "0.0");
    assert_eq!(
        (
            &stage["executorRunTime"],
            &stage["numActiveTasks"],
            &stage["numCompleteTasks"]
        ),
        (&40.into(), &1.into(), &1.into())
    );
    // A task's end raises the peaks, also where no event of the stage does.
    assert_eq!(stage["peakExecutorMetrics"]["JVMHeapMemory"], 40);
    let details = document(&app, Kind::StageDetails, "0.0");
    assert_eq!(
        details["executorSummary"]["1"]["peakMemoryMetrics"]["JVMHeapMemory"],
        40
    );
    let application = document(&app, Kind::Application, "app-1");
    assert_eq!(application["attempts"][0]["completed"], false);
    let tasks = app.tasks().expect("opens");
    let status = tasks.texts("status", &[0..2]).expect("reads");
    // Absent, not zero: the second task has not ended.
    let durations = tasks.numbers("duration_ms", &[0..2]).expect("reads");
    let both: Vec<_> = status.into_iter().flatten().zip(durations).collect();
    assert!(
        both.contains(&("SUCCESS".to_owned(), Some(1000))),
        "{both:?}"
    );
    assert!(both.contains(&("RUNNING".to_owned(), None)), "{both:?}");
}

#[test]
fn damaged_lines_are_counted_and_named_and_the_rest_is_kept() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let half = task_end(0, 1, 40);
    let lines = [
        "{".to_owned(),
        START.to_owned(),
        "not JSON at all".to_owned(),
        r#"{"Event":"SparkListenerTaskEnd","Stage ID":"x"}"#.to_owned(),
        r#"{"Event":"SparkListenerJobEnd","Job ID":99999999999}"#.to_owned(),
        r#"{"Event":"SparkListenerApplicationEnd","Timestamp":NaN}"#.to_owned(),
        r#"{"Event":"SparkListenerApplicationEnd","Timestamp":1e999}"#.to_owned(),
        r#"{"Event":"com.example.Unknown","x":[1,2]}"#.to_owned(),
        job(0, &[0]),
        half[..half.len() / 2].to_owned(),
    ];
    let done = import_lines(folder.path(), &lines).expect("imports");
    let named: Vec<u64> = done.named.iter().map(|(line, _)| *line).collect();
    assert_eq!(named, [1, 3, 4, 5, 6, 7, 10]);
    let app = App::open(&done.folder).expect("opens");
    assert_eq!(app.all(Kind::Job).len(), 1);
    assert_eq!(document(&app, Kind::Import, "")["damagedLines"], 7);
}

#[test]
fn messages_about_damaged_lines_are_short() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let long = "ä".repeat(1 << 20);
    let line = format!(r#"{{"Event":"SparkListenerTaskEnd","Stage ID":"{long}"}}"#);
    let done = import_lines(folder.path(), &[START.to_owned(), line]).expect("imports");
    let [(2, message)] = done.named.as_slice() else {
        panic!("{:?}", done.named.len());
    };
    assert!(
        message.contains("invalid type") && message.len() < 500,
        "{}",
        message.len()
    );
    let error = import_lines(folder.path(), &[START.replace("app-1", &long)]);
    assert!(error.expect_err("no folder").to_string().len() < 700);
}

#[test]
fn a_log_that_claims_another_application_changes_nothing() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let done = import_lines(folder.path(), &[START.to_owned()]).expect("imports");
    let before = fs::read(done.folder.join("meta.parquet")).expect("reads");
    let log = folder.path().join("app-2");
    fs::write(&log, [START, &job(0, &[0])].join("\n")).expect("writes");
    let store = folder.path().join("store");
    for (name, replaces, part) in [
        (Some("app-2"), false, "is of app-1"),
        (Some("app-2"), true, "is of app-1"),
        (Some("app-1"), false, "--replace"),
        (None, false, "--replace"),
    ] {
        let admission = Admission {
            name: name.map(str::to_owned),
            replaces,
        };
        let error = import(&store, &log, Bounds::default(), &admission).expect_err("is refused");
        assert!(error.to_string().contains(part), "{error}");
        let after = fs::read(done.folder.join("meta.parquet")).expect("reads");
        assert!(after == before, "{name:?} {replaces}");
    }
    assert_eq!(folders(&store), ["app-1"]);
    let done = import(&store, &log, Bounds::default(), &ANY).expect("replaces");
    assert_eq!(
        App::open(&done.folder).expect("opens").all(Kind::Job).len(),
        1
    );
}

/// Spark writes an event with what it knows of the task by then.
#[test]
fn a_start_may_state_the_end() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let ended = |task, field: &str| {
        let start = task_start(0, task).replace(r#""Finish Time":0"#, r#""Finish Time":2007"#);
        start.replace(
            &format!(r#""{field}":false"#),
            &format!(r#""{field}":true"#),
        )
    };
    let lines = [
        START.to_owned(),
        job(0, &[0]),
        submitted(0),
        task_start(0, 1),
        ended(2, ""),
        ended(3, "Failed"),
        ended(4, "Killed"),
    ];
    let done = import_lines(folder.path(), &lines).expect("imports");
    let app = App::open(&done.folder).expect("opens");
    let tasks = app.tasks().expect("opens");
    let rows = 0..tasks.rows();
    let all = std::slice::from_ref(&rows);
    let status = tasks.texts("status", all).expect("reads");
    let status: Vec<_> = status.iter().flatten().map(|it| &**it).collect();
    assert_eq!(status, ["RUNNING", "SUCCESS", "FAILED", "KILLED"]);
    let durations = tasks.numbers("duration_ms", all).expect("reads");
    assert_eq!(durations, [None, Some(7), Some(7), Some(7)]);
    assert_eq!(
        tasks.numbers("has_metrics", all).expect("reads"),
        [Some(0); 4]
    );
    let stage = document(&app, Kind::Stage, "0.0");
    assert_eq!(stage["numActiveTasks"], 4, "{stage}");
}

/// Spark's history server compacts with its own settings, under the name that the log's codec gave.
#[test]
fn the_content_of_a_part_says_its_codec() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let compacted = format!("{START}\n{}\n", job(0, &[0]));
    for (at, (written, named)) in [
        ("log.zstd", ""),
        ("log.lz4", ""),
        ("log.snappy", ""),
        ("log", ".zstd"),
        ("log", ".snappy"),
        ("log.lz4", ".zstd"),
    ]
    .into_iter()
    .enumerate()
    {
        let log = folder.path().join(format!("eventlog_v2_app-{at}"));
        fs::create_dir(&log).expect("makes a folder");
        let part = log.join(format!("events_2_app-1{named}.compact"));
        fs::write(part, packed(written, compacted.as_bytes(), 100)).expect("writes");
        fs::write(log.join("events_3_app-1"), job(1, &[1])).expect("writes");
        let done = import(&folder.path().join("store"), &log, Bounds::default(), &ANY);
        let done = done.expect("imports");
        assert_eq!((done.damaged, done.lines), (0, 3), "{written} as {named}");
        let app = App::open(&done.folder).expect("opens");
        assert_eq!(app.all(Kind::Job).len(), 2, "{written} as {named}");
    }
}

#[test]
fn a_line_over_the_bound_takes_no_memory_and_a_bomb_ends() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut text = format!("{START}\n").into_bytes();
    text.extend(std::iter::repeat_n(b'[', 16 << 20));
    text.extend(format!("\n{}\n", job(0, &[0])).into_bytes());
    for name in ["log.zstd", "log.lz4", "log.snappy"] {
        let packed = packed(name, &text, 1 << 20);
        assert!(packed.len() < text.len() / 15, "{name}: {}", packed.len());
        bomb(folder.path(), name, &packed);
    }
}

fn bomb(folder: &Path, name: &str, packed: &[u8]) {
    let bounds = Bounds {
        line_bytes: 1 << 20,
        ..Bounds::default()
    };
    let done = import_bytes(folder, name, packed, bounds).expect("imports");
    assert_eq!((done.too_long, done.damaged, done.lines), (1, 0, 3));
    let app = App::open(&done.folder).expect("opens");
    assert_eq!(app.all(Kind::Job).len(), 1);
    let bounds = Bounds {
        log_bytes: 10 << 20,
        ..bounds
    };
    let error = import_bytes(folder, name, packed, bounds).expect_err("is too large");
    assert!(error.to_string().contains("--max-bytes"), "{error}");
}

#[test]
fn a_truncated_block_keeps_what_was_before_it() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut text = format!("{START}\n{}\n", job(0, &[0]));
    for task in 0..20_000 {
        let _ = writeln!(text, "{}", task_start(0, task * 7919 % 104_729));
    }
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).expect("begins");
    encoder.write_all(text.as_bytes()).expect("compresses");
    let packed = encoder.finish().expect("ends");
    let half = &packed[..packed.len() / 2];
    let done = import_bytes(
        folder.path(),
        "log.zstd.inprogress",
        half,
        Bounds::default(),
    );
    let done = done.expect("imports");
    assert_eq!(done.damaged, 1);
    assert!(done.sizes.tasks.rows > 100, "{done:?}");
}

#[test]
fn deep_json_and_deep_plans_are_refused_or_kept_without_a_crash() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let plan = |depth: usize| {
        let mut text = String::new();
        for _ in 0..depth {
            text.push_str(r#"{"nodeName":"Project","simpleString":"p","metrics":[],"children":["#);
        }
        text.push_str(&"]}".repeat(depth));
        format!(
            r#"{{"Event":"org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart","executionId":{depth},"description":"d","details":"","physicalPlanDescription":"p","sparkPlanInfo":{text},"time":1}}"#
        )
    };
    let lines = [
        START.to_owned(),
        plan(1000),
        plan(100_000),
        "[".repeat(1_000_000),
        format!(
            r#"{{"Event":"SparkListenerJobStart","x":{}"#,
            "[".repeat(1_000_000)
        ),
    ];
    let done = import_lines(folder.path(), &lines).expect("imports");
    assert_eq!(done.damaged, 3, "{:?}", done.named);
    let app = App::open(&done.folder).expect("opens");
    let execution = document(&app, Kind::Sql, "1000");
    assert_eq!(execution["nodes"].as_array().map(Vec::len), Some(1000));
}

#[test]
fn ids_that_leave_the_store_are_refused() {
    for id in [
        "../../etc/app",
        "/etc/app",
        "a/../../b",
        "",
        ".hidden",
        "a\\u0000b",
    ] {
        let folder = tempfile::tempdir().expect("makes a folder");
        let line = START.replace("app-1", id);
        let error = import_lines(folder.path(), &[line]).expect_err(id);
        assert!(
            error.to_string().contains("cannot name a folder"),
            "{error}"
        );
        let left = folders(&folder.path().join("store"));
        assert!(left.is_empty(), "a refused import left {left:?}");
    }
}

#[test]
fn duplicates_negative_times_and_extreme_numbers_change_nothing_else() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let lines = [
        START.replace("1000", &i64::MIN.to_string()),
        START.replace("app-1", "app-2"),
        job(0, &[0]),
        job(0, &[0]),
        submitted(0),
        submitted(0),
        task_start(0, 1),
        task_start(0, 1),
        task_end(0, 1, i64::MAX),
        task_end(0, 1, i64::MAX),
        task_end(0, -5, i64::MIN),
        // No JSON, and no number.
        task_start(0, 2).replace(r#""Index":2"#, r#""Index":NaN"#),
        r#"{"Event":"SparkListenerApplicationEnd","Timestamp":"NaN"}"#.to_owned(),
        r#"{"Event":"SparkListenerApplicationEnd","Timestamp":9223372036854775807}"#.to_owned(),
    ];
    let done = import_lines(folder.path(), &lines).expect("imports");
    assert_eq!(
        (done.id.as_str(), done.damaged, done.sizes.tasks.rows),
        ("app-1", 2, 1)
    );
    let app = App::open(&done.folder).expect("opens");
    assert_eq!(
        document(&app, Kind::Stage, "0.0")["executorRunTime"],
        i64::MAX
    );
    let dropped = document(&app, Kind::Import, "");
    assert_eq!(dropped["dropped"]["task ends without a start"], 2);
}

#[test]
fn many_stages_take_linear_time() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut lines = vec![START.to_owned()];
    let stages: Vec<u32> = (0..10_000).collect();
    lines.push(job(0, &stages));
    for id in 1..2000 {
        lines.push(job(id, &[id]));
        lines.push(format!(
            r#"{{"Event":"SparkListenerJobEnd","Job ID":{id},"Completion Time":5,"Job Result":{{"Result":"JobSucceeded"}}}}"#
        ));
    }
    let begun = Instant::now();
    let done = import_lines(folder.path(), &lines).expect("imports");
    assert!(
        begun.elapsed() < Duration::from_secs(60),
        "{:?}",
        begun.elapsed()
    );
    let app = App::open(&done.folder).expect("opens");
    assert_eq!(app.all(Kind::Stage).len(), 10_000);
    assert_eq!(app.all(Kind::Job).len(), 2000);
}

#[test]
fn a_second_import_replaces_the_first_and_one_of_two_at_once_wins() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let store = folder.path().join("store");
    let log = folder.path().join("log");
    fs::write(&log, START).expect("writes");
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (store, log) = (store.clone(), log.clone());
            std::thread::spawn(move || {
                import(&store, &log, Bounds::default(), &ANY).expect("imports")
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("ends");
    }
    assert_eq!(folders(&store), ["app-1"]);
    App::open(&store.join("app-1")).expect("opens");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn no_change_of_a_log_makes_the_import_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        cut in any::<prop::sample::Index>(),
        name in prop::sample::select(vec!["log", "log.zstd", "log.lz4", "log.snappy"]),
    ) {
        let folder = tempfile::tempdir().expect("makes a folder");
        let lines = [
            START.to_owned(), job(0, &[0, 1]), submitted(0), task_start(0, 1), task_end(0, 1, 40),
            task_start(0, 2), submitted(1), task_end(0, 2, -1),
        ];
        // Several blocks: a change may be in the head of one, or in what it has.
        let mut text = packed(name, lines.join("\n").as_bytes(), 700);
        for (at, byte) in changes {
            let at = at.index(text.len());
            text[at] = byte;
        }
        text.truncate(cut.index(text.len()) + 1);
        let result = import_bytes(folder.path(), name, &text, Bounds::default());
        if let Err(error) = result {
            prop_assert!(!format!("{error:#}").contains("please report"), "{error:#}");
        }
    }
}

#[test]
fn tables_of_another_import_are_not_read() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let lines = |stage: u32| {
        let (start, end) = (task_start(stage, 1), task_end(stage, 1, 5));
        [START.to_owned(), submitted(stage), start, end]
    };
    let done = import_lines(folder.path(), &lines(0)).expect("imports");
    let app = App::open(&done.folder).expect("opens");
    let held = app.tasks().expect("opens");
    import_lines(folder.path(), &lines(1)).expect("imports");
    // What is open stays; what is opened now would have tasks of another stage.
    assert_eq!(held.numbers("stage_id", &[0..1]).expect("reads"), [Some(0)]);
    let error = app.tasks().err().expect("is refused").to_string();
    assert!(error.contains("ask again"), "{error}");
    assert!(!app.is_current());
    let app = App::open(&done.folder).expect("opens");
    let tasks = app.tasks().expect("opens");
    assert_eq!(
        tasks.numbers("stage_id", &[0..1]).expect("reads"),
        [Some(1)]
    );
}
