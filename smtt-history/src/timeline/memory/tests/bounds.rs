//! Answers and pages: their size, names that are markup, documents that are damaged, and executors of several users.

use super::super::cells::LISTED;
use super::*;

#[tokio::test]
async fn the_pages_have_the_panel_and_the_table_or_the_sentence() {
    let store = Store::new(&TASKS_OF_TWO);
    for path in ["timeline", "timeline/memory"] {
        let (status, text) = store.get(&format!("/applications/app-1/{path}")).await;
        assert_eq!(status, StatusCode::OK, "{path}");
        assert!(text.contains("set store in [history]"), "{path}: {text}");
        assert!(
            !text.contains("memory-picture") && !text.contains("memory-table"),
            "{path}: {text}"
        );
    }
    let name = "<script>alert(1)</script>";
    let rdd = ("rdd", with(who("1"), json!({"rdd_id": 5, "name": name})));
    let points = (0..10).map(|at| point(at * 2, &[(5, 40 * MIB)])).collect();
    store.write(
        "node-1",
        10,
        &[documents(&[worker(), history("1", points), rdd])],
    );
    let (_, text) = store.get("/applications/app-1/timeline?by=node").await;
    assert!(
        text.contains("memory-picture") && text.contains("<option value=\"node\" selected>"),
        "{text}"
    );
    let (_, text) = store
        .get("/applications/app-1/timeline/memory?from=0&to=40000")
        .await;
    assert_eq!(text.matches("<tr>").count(), 41, "{text}");
    assert!(
        text.contains("RDD 5 &lt;script&gt;") && !text.contains("<script>"),
        "{text}"
    );
    // Half of the 40 seconds was not measured: neither parts nor sums have zeros there.
    assert_eq!(text.matches("50.0 MiB").count(), 3 * 20, "{text}");
    assert_eq!(text.matches('–').count(), 3 * 20, "{text}");
    // Executors of another user claim the application.
    let any = Bounds {
        bytes: 1 << 30,
        files: 1 << 20,
    };
    let folder = store.folder.path().join("store");
    let mut other = Workers::take(&folder, "node-1", 30, None, any).expect("opens");
    other
        .add(
            Whose::of("app-1", 666),
            0,
            &documents(&[worker()]),
            &|uid| uid,
        )
        .expect("writes");
    let (status, _) = store.ask("").await;
    assert_eq!(status, StatusCode::CONFLICT);
    let (status, text) = store.get("/applications/app-1/timeline").await;
    assert!(
        status == StatusCode::OK && text.contains("executors of users 7, 666"),
        "{text}"
    );
    assert!(store.answer("user=7").await["executors"] == json!(["1"]));
}

#[tokio::test]
async fn an_answer_does_not_grow_with_the_history() {
    let store = Store::new(&TASKS_OF_TWO);
    let few = |executor: i64| -> Vec<Value> {
        (0..4)
            .map(|at| point(at * 2, &[(executor as u32, MIB)]))
            .collect()
    };
    store.write(
        "node-1",
        10,
        &[documents(&[worker(), history("1", few(1))])],
    );
    let small = store.answer("width=2000").await.to_string().len();
    // 300 executors with 400 RDDs, and a gap after each point.
    let many: Vec<(&str, Value)> = (1..=300)
        .map(|executor: i64| {
            let held = |at: i64| {
                (
                    u32::try_from((executor * 7 + at) % 400).unwrap_or(0),
                    MIB * (1 + at as u64),
                )
            };
            let points = (0..10)
                .map(|at| point(at * 10, &[held(at), held(at + 50)]))
                .collect();
            history(&executor.to_string(), points)
        })
        .collect();
    let mut all = vec![worker()];
    all.extend(many);
    store.write("node-2", 20, &[documents(&all)]);
    let answer = store.answer("width=99999").await;
    let large = answer.to_string().len();
    assert!(large < small * 3 + 100_000, "{small} {large}");
    assert_eq!(
        answer["total"].as_array().map(Vec::len),
        Some(CELLS as usize)
    );
    assert_eq!(answer["gaps"].as_array().map(Vec::len), Some(LISTED));
    assert_eq!(answer["gapsLeftOut"], 300 * 9 - LISTED as i64);
    let series = answer["series"].as_array().expect("has series");
    assert_eq!(
        (series.len(), &series[SERIES]["key"]),
        (SERIES + 1, &json!("other"))
    );
    assert_eq!(series[SERIES]["name"], format!("other: {}", 400 - SERIES));
    // A part has the series of what is largest there; colours are those of the whole.
    let part = store.answer("width=2000&from=30000&to=31000").await;
    assert!(part.to_string().len() < large * 2);
}

#[tokio::test]
async fn hostile_documents_are_text_and_bounded() {
    let store = Store::new(&TASKS_OF_TWO);
    let name = "<script>alert(1)</script>\u{202e}".repeat(100);
    let largest = json!({"rdd_id": 5, "storage_heap_bytes": u64::MAX, "storage_off_heap_bytes": u64::MAX,
        "execution_heap_bytes": u64::MAX, "execution_off_heap_bytes": u64::MAX,
        "pages": {"present_bytes": 1, "swapped_bytes": u64::MAX, "untouched_bytes": u64::MAX,
            "page_sizes": [{"page_bytes": u64::MAX, "bytes": u64::MAX}], "nodes": [{"node": u32::MAX, "bytes": u64::MAX}]}});
    let at = |time: u64, rdds: Value| json!({"time_ns": time, "rdds": rdds, "stages": []});
    let wide: Vec<Value> = vec![largest.clone(); 65];
    let points = vec![
        at(u64::MAX, json!([largest])),
        at(boot_ns(4) as u64, json!([largest])),
        at(boot_ns(4) as u64, json!([largest])),
        at(boot_ns(2) as u64, json!([largest])),
        at(0, json!([])),
        at(boot_ns(6) as u64, json!(wide)),
    ];
    let huge = with(who("1"), json!({"interval_ns": u64::MAX, "points": points}));
    let documents = documents(&[
        worker(),
        (
            "worker",
            json!({"written_unix_ms": u64::MAX, "written_boot_ns": 0}),
        ),
        ("worker", json!([])),
        ("history", huge),
        ("history", json!("text")),
        (
            "history",
            with(
                who("2"),
                json!({"interval_ns": 0, "points": [{"time_ns": -1, "rdds": [], "stages": []}]}),
            ),
        ),
        ("rdd", with(who("1"), json!({"rdd_id": 5, "name": name}))),
        ("memory", json!({})),
        limits(
            "1",
            "/a",
            &[
                ("-Xmx", u64::MAX),
                ("-Xmx", 1),
                ("memory.max", u64::MAX),
                ("unknown", 1),
            ],
        ),
    ]);
    store.write("node-1", 10, &[documents]);
    for by in ["rdd", "region", "page_size", "node"] {
        for window in [
            "",
            "&from=1&to=2",
            "&from=-9223372036854775808&to=9223372036854775807&width=-1",
        ] {
            let answer = store.answer(&format!("by={by}{window}")).await;
            assert!(answer.to_string().len() < 200_000, "{by}{window}");
            let most = answer["most"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_u64)
                .max();
            assert!(most.is_none_or(|most| most <= 1 << 53), "{most:?}");
        }
    }
    let answer = store.answer("width=200").await;
    let shown = series(&answer, "rdd.5")["name"]
        .as_str()
        .expect("is text")
        .to_owned();
    assert!(
        shown.starts_with("RDD 5 <script>") && shown.chars().count() <= 161,
        "{shown}"
    );
    // A point that is too wide, and four documents that are none of their kind.
    assert!(
        answer["notes"]
            .to_string()
            .contains("documents or points were damaged"),
        "{}",
        answer["notes"]
    );
}

#[tokio::test]
async fn documents_beyond_the_bound_are_refused_before_they_are_read() {
    let store = Store::new(&TASKS_OF_TWO);
    // In a few kilobytes on disk more than a reader of texts takes at once.
    let text = "x".repeat(1 << 20);
    let mut batch = Batch::new(&REST);
    for _ in 0..520 {
        batch.push(&["history", "1", &text].map(Cell::Text));
    }
    store.write("node-1", 10, &[batch]);
    let (status, text) = store
        .get("/smtt/v1/applications/app-1/timeline/memory")
        .await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{text}");
    assert!(text.contains("ask for one worker"), "{text}");
}
