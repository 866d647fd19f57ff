//! Answers are bounded, series add up, gaps stay gaps, clocks are joined, and hostile documents change only what is said of
//! themselves.

mod bounds;
mod ends;

use std::fs;
use std::sync::Arc;

use axum::http::{Request, StatusCode};
use serde_json::{Value, json};
use smtt_store::history::batch::{Batch, Cell};
use smtt_store::history::workers::{Bounds, REST, TASKS, Whose, Workers};
use tower::ServiceExt as _;

use super::cells::{CELLS, SERIES};
use crate::import::{Admission, import};
use crate::serve::{Server, Settings, router};
use crate::timeline::tests::{Given, log};

/// Start of the log's only job: zero of the time line, in milliseconds since 1970.
const ZERO: i64 = 1_790_000_000_000;
/// Boot of the first worker.
const BOOT: i64 = ZERO - 5_000_000;
const MIB: u64 = 1 << 20;

struct Store {
    folder: tempfile::TempDir,
    server: Arc<Server>,
}

impl Store {
    /// An application of 100 seconds with such tasks.
    fn new(tasks: &[Given]) -> Self {
        let folder = tempfile::tempdir().expect("makes a folder");
        let store = folder.path().join("store");
        let path = folder.path().join("log");
        fs::write(&path, log(tasks, &[(ZERO, ZERO + 100_000)])).expect("writes");
        let limits = crate::log::Bounds::default();
        import(&store, &path, limits, &Admission::default()).expect("imports");
        let server = Arc::new(Server::new(Settings {
            store,
            event_logs: None,
            bucket: None,
            cache_bytes: 64 << 20,
            bounds: limits,
        }));
        Self { folder, server }
    }

    /// What one run of a daemon writes.
    fn write(&self, host: &str, run: u64, batches: &[Batch]) {
        for batch in batches {
            self.write_part(host, run, 0, batch);
        }
    }

    fn write_part(&self, host: &str, run: u64, part: u32, batch: &Batch) {
        let any = Bounds {
            bytes: 1 << 30,
            files: 1 << 20,
        };
        let store = self.folder.path().join("store");
        let mut workers = Workers::take(&store, host, run, None, any).expect("opens");
        workers
            .add(Whose::of("app-1", 7), part, batch, &|uid| uid)
            .expect("writes");
    }

    async fn get(&self, address: &str) -> (StatusCode, String) {
        let request = Request::get(address).body(axum::body::Body::empty());
        let request = request.expect("is a request");
        let response = router(Arc::clone(&self.server)).oneshot(request).await;
        let response = response.expect("answers");
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 64 << 20).await;
        let body = body.expect("has a body");
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    async fn ask(&self, query: &str) -> (StatusCode, Value) {
        let address = format!("/smtt/v1/applications/app-1/timeline/memory?{query}");
        let (status, text) = self.get(&address).await;
        (
            status,
            serde_json::from_str(&text).unwrap_or(Value::String(text)),
        )
    }

    async fn answer(&self, query: &str) -> Value {
        let (status, json) = self.ask(query).await;
        assert_eq!(status, StatusCode::OK, "{query}: {json}");
        adds_up(&json);
        json
    }
}

/// The series of each cell add up to its total, and no mean is above the most.
fn adds_up(answer: &Value) {
    let list = |json: &Value| json.as_array().cloned().unwrap_or_default();
    let series = list(&answer["series"]);
    let named = series.iter().filter(|it| it["key"] != "other").count();
    assert!(named <= SERIES, "{named} series");
    let mut colours: Vec<i64> = series
        .iter()
        .filter_map(|it| it["colour"].as_i64())
        .collect();
    colours.sort_unstable();
    colours.dedup();
    assert_eq!(colours.len(), named, "each series has a colour of its own");
    let (total, most, measured) = (
        list(&answer["total"]),
        list(&answer["most"]),
        list(&answer["measured"]),
    );
    assert!(
        total.len() <= CELLS as usize && total.len() == most.len() && total.len() == measured.len()
    );
    for (cell, total) in total.iter().enumerate() {
        let values: Vec<&Value> = series.iter().map(|it| &it["values"][cell]).collect();
        if measured[cell] == 0 {
            assert!(
                total.is_null() && most[cell].is_null() && values.iter().all(|it| it.is_null())
            );
            continue;
        }
        let sum: u64 = values
            .iter()
            .map(|it| it.as_u64().expect("is measured"))
            .sum();
        assert_eq!(Some(sum), total.as_u64());
        let slack = series.len() as u64;
        assert!(
            sum <= most[cell].as_u64().expect("is measured") + slack,
            "{cell}: {answer}"
        );
    }
}

fn documents(all: &[(&str, Value)]) -> Batch {
    let mut batch = Batch::new(&REST);
    for (kind, json) in all {
        batch.push(&[
            Cell::Text(kind),
            Cell::Text("1"),
            Cell::Text(&json.to_string()),
        ]);
    }
    batch
}

/// Nanoseconds since the boot of a worker at a second of the time line.
fn boot_ns(second: i64) -> i64 {
    (ZERO - BOOT + second * 1000) * 1_000_000
}

fn worker() -> (&'static str, Value) {
    let clocks = json!({"written_unix_ms": ZERO + 99_000, "written_boot_ns": boot_ns(99)});
    ("worker", clocks)
}

/// A point at a second: RDDs with their bytes on the heap.
fn point(second: i64, rdds: &[(u32, u64)]) -> Value {
    let held = |(id, bytes): &(u32, u64)| {
        json!({"rdd_id": id, "storage_heap_bytes": bytes, "storage_off_heap_bytes": 0, "execution_heap_bytes": bytes / 4,
            "execution_off_heap_bytes": 0})
    };
    let rdds: Vec<Value> = rdds.iter().map(held).collect();
    json!({"time_ns": boot_ns(second), "rdds": rdds, "stages": []})
}

fn who(executor: &str) -> Value {
    json!({"application_id": "app-1", "executor_id": executor, "pid": 100, "uid": 7})
}

fn with(mut document: Value, more: Value) -> Value {
    let fields = document.as_object_mut().expect("is an object");
    fields.extend(more.as_object().expect("is an object").clone());
    document
}

fn history(executor: &str, points: Vec<Value>) -> (&'static str, Value) {
    (
        "history",
        with(
            who(executor),
            json!({"interval_ns": 2_000_000_000_u64, "points": points}),
        ),
    )
}

fn limits(executor: &str, group: &str, of: &[(&str, u64)]) -> (&'static str, Value) {
    let limits: Vec<Value> = of
        .iter()
        .map(|(name, bytes)| json!({"name": name, "limit_bytes": bytes, "used_bytes": null, "free_bytes": null}))
        .collect();
    let row = json!({"state": "alive", "resident_bytes": null, "age_ns": null, "examined_age_ns": null,
        "examination_ns": null, "parts": [], "heap_committed_bytes": null, "threads": null, "children": [],
        "children_unread": 0, "limits": limits, "peaks": {},
        "cgroup": {"path": group, "version": 2, "current_bytes": 0, "peak_bytes": null, "limit_bytes": null, "parts": []}});
    ("memory", with(who(executor), row))
}

fn series<'a>(answer: &'a Value, key: &str) -> &'a Value {
    let all = answer["series"].as_array().expect("has series");
    let found = all.iter().find(|it| it["key"] == key);
    found.unwrap_or_else(|| panic!("no series {key}: {answer}"))
}

/// Tasks of two executors, so that the time line has both.
const TASKS_OF_TWO: [Given; 2] = [
    (1, 1, ZERO + 1000, ZERO + 9000),
    (2, 2, ZERO + 1000, ZERO + 9000),
];

#[tokio::test]
async fn executors_of_two_workers_add_up_while_they_are_measured() {
    let store = Store::new(&TASKS_OF_TWO);
    let rdd = |id: u32, name: &str| ("rdd", with(who("1"), json!({"rdd_id": id, "name": name})));
    let even: Vec<Value> = (0..50).map(|at| point(at * 2, &[(5, 40 * MIB)])).collect();
    store.write(
        "node-1",
        10,
        &[documents(&[
            worker(),
            history("1", even),
            rdd(5, "links"),
            rdd(9, "other"),
        ])],
    );
    let later: Vec<Value> = (10..20)
        .map(|at| point(at * 2, &[(5, 8 * MIB), (6, 4 * MIB)]))
        .collect();
    store.write("node-2", 20, &[documents(&[worker(), history("2", later)])]);
    // Cells of a second.
    let all = store.answer("width=200&from=0&to=100000").await;
    assert_eq!(all["cellMs"], 1000.0);
    assert_eq!(all["executors"], json!(["1", "2"]));
    let of = |key: &str, cell: usize| {
        series(&all, key)["values"][cell]
            .as_u64()
            .expect("is measured")
    };
    assert_eq!((of("rdd.5", 5), of("rdd.6", 5)), (50 * MIB, 0));
    assert_eq!((of("rdd.5", 30), of("rdd.6", 30)), (60 * MIB, 5 * MIB));
    assert_eq!(
        (
            &all["measured"][5],
            &all["measured"][30],
            &all["measured"][45]
        ),
        (&json!(1), &json!(2), &json!(1))
    );
    assert_eq!(series(&all, "rdd.5")["name"], "RDD 5 links");
    assert_eq!(series(&all, "rdd.6")["name"], "RDD 6");
    assert_eq!(
        (
            &series(&all, "rdd.5")["colour"],
            &series(&all, "rdd.6")["colour"]
        ),
        (&json!(0), &json!(1))
    );
    // By region the same bytes.
    let by_region = store.answer("width=200&by=region&from=0&to=100000").await;
    assert_eq!(by_region["total"], all["total"]);
    assert_eq!(series(&by_region, "storage_heap")["values"][30], 52 * MIB);
    assert_eq!(series(&by_region, "execution_heap")["values"][30], 13 * MIB);
    // One executor: the other's time is none of its own.
    let one = store.answer("width=200&executor=2&from=0&to=100000").await;
    assert_eq!(
        (&one["total"][10], &one["total"][30]),
        (&Value::Null, &json!(15 * MIB))
    );
    let (status, text) = store.ask("executor=3").await;
    assert_eq!(status, StatusCode::NOT_FOUND, "{text}");
    for query in ["by=colour", "user=x"] {
        let (status, text) = store.ask(query).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{query}: {text}");
    }
    // One worker.
    let one = store.answer("width=200&host=node-2").await;
    assert_eq!(one["executors"], json!(["2"]));
    assert!(
        one["notes"]
            .to_string()
            .contains("memory of 1 of 2 executors (1)"),
        "{}",
        one["notes"]
    );
}

#[tokio::test]
async fn a_mean_hides_no_peak_and_a_cell_is_divided_by_what_was_measured() {
    let store = Store::new(&TASKS_OF_TWO);
    // Measured from 10 s to 16 s; the peak is at 12 s.
    let points = vec![
        point(10, &[(5, 40 * MIB)]),
        point(12, &[(5, 400 * MIB)]),
        point(14, &[(5, 40 * MIB)]),
    ];
    store.write(
        "node-1",
        10,
        &[documents(&[worker(), history("1", points)])],
    );
    let one = store.answer("width=2&from=0&to=100000").await;
    // The picture is at least 50 pixels wide, so 25 cells of 4 s.
    assert_eq!(one["total"].as_array().map(Vec::len), Some(25));
    let near = |value: &Value, mib: u64| {
        value
            .as_u64()
            .is_some_and(|it| it.abs_diff(mib * MIB) < MIB)
    };
    // From 8 s to 12 s two seconds are measured.
    assert!(
        near(&one["total"][2], 50) && near(&one["total"][3], 275),
        "{}",
        one["total"]
    );
    assert_eq!(
        (&one["total"][1], &one["total"][4]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(one["most"][3], 500 * MIB);
}

#[tokio::test]
async fn gaps_stay_gaps_and_the_restart_of_a_daemon_is_marked() {
    let store = Store::new(&TASKS_OF_TWO);
    let first = vec![
        point(0, &[(5, MIB)]),
        point(2, &[(5, MIB)]),
        point(20, &[(5, MIB)]),
    ];
    store.write("node-1", 10, &[documents(&[worker(), history("1", first)])]);
    let second = vec![point(40, &[(5, MIB)]), point(42, &[])];
    store.write(
        "node-1",
        50,
        &[documents(&[worker(), history("1", second)])],
    );
    let all = store.answer("width=200&from=0&to=100000").await;
    let gaps = json!([
        {"executor": "1", "from": 4000, "to": 20000, "reason": "missing"},
        {"executor": "1", "from": 22000, "to": 40000, "reason": "restart"},
    ]);
    assert_eq!(all["gaps"], gaps);
    let total = |cell: usize| &all["total"][cell];
    assert_eq!(
        (total(3), total(10), total(30)),
        (&json!(MIB * 5 / 4), &Value::Null, &Value::Null)
    );
    // Nothing held is zero, and not measured is no value.
    assert_eq!((total(43), total(50)), (&json!(0), &Value::Null));
    let late = store.answer("width=200&from=50000&to=90000").await;
    assert_eq!((&late["gaps"], &late["series"]), (&json!([]), &json!([])));
}

#[tokio::test]
async fn limits_are_sums_where_all_have_them_and_a_shared_group_counts_once() {
    let store = Store::new(&TASKS_OF_TWO);
    let long =
        |from: i64| -> Vec<Value> { (from..30).map(|at| point(at * 2, &[(5, MIB)])).collect() };
    let all = documents(&[
        worker(),
        history("1", long(0)),
        history("2", long(10)),
        limits(
            "1",
            "/a",
            &[
                ("-Xmx", 100 * MIB),
                ("spark.executor.memory", 90 * MIB),
                ("memory.max", 300 * MIB),
            ],
        ),
        limits(
            "2",
            "/a",
            &[
                ("-Xmx", 50 * MIB),
                ("spark.memory.offHeap.size", 7 * MIB),
                ("spark.executor.memoryOverhead", 6 * MIB),
                ("memory.max", 200 * MIB),
            ],
        ),
    ]);
    store.write("node-1", 10, &[all]);
    let answer = store.answer("width=200&from=0&to=100000").await;
    let line = |answer: &Value, name: &str, cell: usize| {
        let lines = answer["limits"].as_array().expect("has limits").clone();
        let found = lines.into_iter().find(|line| line["name"] == name);
        found.map(|line| line["values"][cell].clone())
    };
    assert_eq!(line(&answer, "-Xmx", 5), Some(json!(100 * MIB)));
    assert_eq!(line(&answer, "-Xmx", 30), Some(json!(150 * MIB)));
    assert_eq!(
        line(&answer, "-Xmx", 70),
        Some(Value::Null),
        "no executor was measured"
    );
    assert_eq!(line(&answer, "memory.max", 30), Some(json!(300 * MIB)));
    assert_eq!(
        line(&answer, "spark.executor.memory", 30),
        None,
        "it is the heap again"
    );
    assert_eq!(
        line(&answer, "spark.memory.offHeap.size", 30),
        None,
        "executor 1 has none"
    );
    let two = store.answer("width=200&executor=2&from=0&to=100000").await;
    assert_eq!(
        line(&two, "spark.memory.offHeap.size", 30),
        Some(json!(7 * MIB))
    );
    assert_eq!(
        line(&two, "heap + spark.executor.memoryOverhead", 30),
        Some(json!(56 * MIB))
    );
    assert_eq!(line(&two, "memory.max", 30), Some(json!(200 * MIB)));
}

#[tokio::test]
async fn collections_are_marks_where_their_count_grew() {
    let store = Store::new(&TASKS_OF_TWO);
    let counted =
        |second: i64, count: u64| with(point(second, &[(5, MIB)]), json!({"collections": count}));
    let points = vec![counted(0, 3), counted(2, 3), counted(4, 8), counted(6, 2)];
    let others: Vec<Value> = vec![point(20, &[]), point(22, &[])];
    store.write(
        "node-1",
        10,
        &[documents(&[
            worker(),
            history("1", points),
            history("2", others),
        ])],
    );
    let all = store.answer("width=200&from=0&to=100000").await;
    let cells = all["collections"].as_array().expect("has cells");
    // A count that fell is that of another JVM. Executor 2 does not count.
    let expected = [0, 0, 0, 0, 5, 0, 0].map(|count| json!(count));
    assert_eq!((&cells[..7], &cells[7]), (&expected[..], &Value::Null));
    assert!(cells[7..].iter().all(Value::is_null));
}

#[tokio::test]
async fn places_of_pages_are_series_and_what_was_not_examined_is_one() {
    let store = Store::new(&TASKS_OF_TWO);
    let mut held = point(0, &[(5, 8 * MIB), (6, 4 * MIB)]);
    held["rdds"][0]["pages"] = json!({"present_bytes": 6 * MIB, "swapped_bytes": MIB, "untouched_bytes": MIB,
        "page_sizes": [{"page_bytes": 4096, "bytes": MIB}, {"page_bytes": 2 * MIB, "bytes": 4 * MIB}],
        "nodes": [{"node": 0, "bytes": 2 * MIB}, {"node": 3, "bytes": 4 * MIB}]});
    store.write(
        "node-1",
        10,
        &[documents(&[worker(), history("1", vec![held])])],
    );
    let sizes = store
        .answer("width=200&by=page_size&from=0&to=100000")
        .await;
    let of = |answer: &Value, key: &str| series(answer, key)["values"][0].as_u64();
    for (key, mib) in [
        ("page_size.4096", 1),
        ("page_size.2097152", 4),
        ("present", 1),
        ("swapped", 1),
        ("untouched", 1),
    ] {
        assert_eq!(of(&sizes, key), Some(mib * MIB), "{key}");
    }
    // Two of ten MiB of the first RDD, and all five of the second.
    assert_eq!(of(&sizes, "not_examined"), Some(7 * MIB));
    assert_eq!(series(&sizes, "page_size.2097152")["name"], "2 MiB pages");
    let nodes = store.answer("width=200&by=node&from=0&to=100000").await;
    assert_eq!(
        (
            of(&nodes, "node.0"),
            of(&nodes, "node.3"),
            of(&nodes, "not_examined")
        ),
        (Some(2 * MIB), Some(4 * MIB), Some(7 * MIB))
    );
    assert_eq!(sizes["total"], nodes["total"]);
}

/// A succeeded task as its worker wrote it, by seconds of the time line on the worker's clock.
fn task(id: i64, executor: &str, start: i64, end: i64) -> Batch {
    let json = json!({"executor_id": executor, "task_attempt_id": id, "state": "succeeded", "start_ns": boot_ns(start),
        "end_ns": boot_ns(end)});
    let mut batch = Batch::new(&TASKS);
    let (number, none) = (Cell::Number, || Cell::None);
    batch.push(&[
        number(0),
        number(0),
        number(id),
        Cell::Text(executor),
        Cell::Text("succeeded"),
        none(),
        none(),
        none(),
        none(),
        none(),
        Cell::Text(&json.to_string()),
    ]);
    batch
}

#[tokio::test]
async fn a_worker_s_clock_is_joined_by_its_tasks() {
    let store = Store::new(&TASKS_OF_TWO);
    // The worker's clock is 20 s behind: its task ran from -18 s to -11 s, the driver's from 1 s to 9 s.
    let points = vec![point(-10, &[(5, MIB)]), point(-8, &[(5, MIB)])];
    let rest = documents(&[worker(), history("1", points)]);
    store.write("node-1", 10, &[task(1, "1", -18, -11), rest]);
    let all = store.answer("width=200&from=0&to=100000").await;
    let clock = &all["clocks"][0];
    assert_eq!(
        (&clock["shiftMs"], &clock["errorMs"], &clock["tasks"]),
        (&json!(19_500), &json!(501), &json!(1))
    );
    let first = (0..100).find(|cell| !all["total"][*cell].is_null());
    assert_eq!(first, Some(9), "-10 s on the worker is 9.5 s");
    assert!(
        all["notes"].to_string().contains("at most 501 ms wrong"),
        "{}",
        all["notes"]
    );
    // Without a clock of its own and without a task of both there is no place.
    let (_, mut no_clock) = worker();
    no_clock["written_boot_ns"] = Value::Null;
    let points = vec![point(1, &[(5, MIB)])];
    store.write(
        "node-2",
        20,
        &[documents(&[("worker", no_clock), history("2", points)])],
    );
    let all = store.answer("width=200&from=0&to=100000").await;
    assert_eq!(
        all["executors"],
        json!(["1"]),
        "the files have changed, and the answer with them"
    );
    assert!(
        all["notes"]
            .to_string()
            .contains("memory of 1 executors has no place"),
        "{}",
        all["notes"]
    );
}

#[tokio::test]
async fn without_a_worker_one_sentence_says_what_to_configure() {
    let store = Store::new(&TASKS_OF_TWO);
    let none = store.answer("width=1000").await;
    let notes = none["notes"].as_array().expect("has notes");
    assert_eq!(notes.len(), 1);
    assert!(
        notes[0]
            .as_str()
            .is_some_and(|note| note.contains("[history]")),
        "{notes:?}"
    );
    assert_eq!(
        (&none["series"], &none["limits"], &none["executors"]),
        (&json!([]), &json!([]), &json!([]))
    );
    // A worker that writes, and has seen no point yet.
    store.write("node-1", 10, &[documents(&[worker()])]);
    let none = store.answer("width=1000").await;
    assert!(
        none["notes"].to_string().contains("no memory over time"),
        "{}",
        none["notes"]
    );
}
