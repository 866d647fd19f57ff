//! The page's tables and lanes of made tasks.

use smtt_model::rows::FetchRow;
use smtt_store::history::batch::{Batch, Cell};
use smtt_store::history::workers::{Bounds, FETCHES, FUNCTIONS, TASKS, Whose, Workers};

use super::super::tests::{HOSTILE, Site, log};
use super::fetches::{FETCH_ROWS, in_rows};
use super::*;

fn span(thread: &str, tid: u32, begin_ns: u64, duration_ns: u64) -> FunctionRow {
    FunctionRow {
        thread: thread.to_owned(),
        tid,
        activity: "sort".to_owned(),
        begin_ns,
        duration_ns,
        ..FunctionRow::default()
    }
}

#[test]
fn a_span_lies_below_those_around_it() {
    let spans = [
        span(HELPER, 3, 0, 9),
        span(TASK, 8, 10, 10),
        span(TASK, 8, 12, 3),
        span(TASK, 8, 15, 5),
        span(TASK, 8, 16, u64::MAX),
        span(TASK, 8, 30, 1),
        // A process that has the id of a thread is a lane of its own.
        span(WORKER, 3, 2, 7),
        span(WORKER, 2, 2, 7),
        span(COLLECTIONS, 0, 11, 1),
    ];
    let lanes = by_thread(&spans);
    let depths = |lane: &Lane<'_>| lane.spans.iter().map(|it| it.0).collect::<Vec<_>>();
    let all: Vec<_> = lanes
        .iter()
        .map(|it| (it.title.as_str(), depths(it)))
        .collect();
    assert_eq!(
        all,
        [
            ("task", vec![0, 1, 1, 2, 1]),
            ("helper thread 3", vec![0]),
            ("Python worker 2", vec![0]),
            ("Python worker 3", vec![0]),
            ("collections: pauses of the whole executor", vec![0])
        ]
    );
}

#[test]
fn requests_at_the_same_time_are_in_rows_of_their_own() {
    let fetch = |begin_ns, duration_ns| FetchRow {
        begin_ns,
        duration_ns,
        ..FetchRow::default()
    };
    let all = [fetch(0, 10), fetch(5, 3), fetch(8, 0), fetch(10, u64::MAX)];
    let rows: Vec<usize> = in_rows(&all).iter().map(|(row, _)| *row).collect();
    assert_eq!(rows, [0, 1, 1, 0]);
    let many = vec![fetch(0, 10); 1_000];
    let rows = in_rows(&many);
    assert!(rows.iter().all(|(row, _)| *row < FETCH_ROWS));
}

fn task(row: &Value) -> Batch {
    let mut batch = Batch::new(&TASKS);
    let (none, zero) = (Cell::None, Cell::Number(0));
    let (json, state) = (row.to_string(), Cell::Text("succeeded"));
    let executor = Cell::Text(HOSTILE);
    let cells = [
        zero,
        zero,
        Cell::Number(7),
        executor,
        state,
        none,
        none,
        none,
        none,
        none,
    ];
    batch.push(&[&cells[..], &[Cell::Text(&json)]].concat());
    batch
}

#[tokio::test]
async fn a_task_has_its_functions_and_their_names_are_text() {
    let site = Site::new(&[log("app-1", "")]);
    let any = Bounds {
        bytes: 1 << 30,
        files: 1 << 20,
    };
    let store = site.store();
    let mut workers = Workers::take(&store, HOSTILE, 10, None, any).expect("opens");
    let activities = json!([{"activity": HOSTILE, "spans": 2, "own_ns": 600_000_000},
        {"activity": "spill", "spans": 2, "own_ns": u64::MAX}]);
    let series = json!({"resident_bytes": {"parts": [1, 2, 3], "measured_points": 4},
        "cpu_ns": {"parts": [u64::MAX], "measured_points": 4}});
    // As the log has it: the text is part of a JSON document there.
    let ran: String = serde_json::from_str(&format!("\"{HOSTILE}\"")).expect("is JSON");
    let row = json!({
        "executor_id": ran,
        "shuffle_read_records": 123_456,
        "functions": {"begin_ns": 5, "duration_ns": 1_000_000_000, "rest_ns": 400_000_000,
            "fetched": {"requests": 40, "blocks": 41, "arrived_blocks": 42, "bytes": 43, "left_out": 38},
            "activities": activities, "thread": {"cpu_ns": 250_000_000, "other_ns": 750_000_000},
            "on_cpu": {"event": HOSTILE, "samples": 345, "activities": [
                {"activity": "insert", "samples": 345, "share": 0.875, "share_low": 0.8125, "share_high": 1e300}]}},
        "splits": {"progress_by": HOSTILE, "measured_points": 4, "interpolated": [true, false, true], "series": series},
    });
    let mut spans = Batch::new(&FUNCTIONS);
    for (begin, length) in [(0, 2_000_000), (i64::MAX, i64::MAX)] {
        let (text, zero) = (Cell::Text(HOSTILE), Cell::Number(0));
        let times = [zero, Cell::Number(begin), Cell::Number(length), zero, zero];
        let who = [
            zero,
            zero,
            Cell::Number(7),
            Cell::Text(&ran),
            text,
            zero,
            text,
            text,
        ];
        spans.push(&[&who[..], &times[..]].concat());
    }
    let mut fetches = Batch::new(&FETCHES);
    for (begin, length) in [(0, 2_000_000), (i64::MAX, i64::MAX)] {
        let (text, zero) = (Cell::Text(HOSTILE), Cell::Number(0));
        let who = [
            zero,
            zero,
            Cell::Number(7),
            Cell::Text(&ran),
            text,
            text,
            zero,
        ];
        let what = [
            Cell::Number(begin),
            Cell::Number(length),
            zero,
            Cell::Number(3 << 20),
            text,
        ];
        fetches.push(&[&who[..], &what[..]].concat());
    }
    for batch in [task(&row), spans, fetches] {
        let done = workers.add(Whose::of("app-1", 7), 0, &batch, &|uid| uid);
        done.expect("writes");
    }
    let path = "/applications/app-1/tasks/7";
    let (_, policy, text) = site.get(&format!("{path}?sort=-duration&span=0")).await;
    assert_eq!(policy, super::super::POLICY);
    for part in [
        "outside the spans (user code, framework)",
        "40.0 %",
        "60.0 %",
        "waiting for anything else",
        "75.0 %",
        "123,456",
        "resident memory of the executor",
        "id=\"span\"",
        "class=\"p0 chosen\"",
        "aria-sort=\"descending\"",
        "&lt;script&gt;alert(1)",
        "id=\"on-cpu\"",
        "insert 87.5 % (95 % interval 81.2 % to 100.0 %)",
        "81.2 % to ",
        "id=\"fetches-lane\"",
        "id=\"fetches\"",
        "3.0 MiB",
    ] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    for markup in ["<script>", "style=", " onclick", "\" onx", "NaN", "inf"] {
        assert!(!text.contains(markup), "{markup}: {text}");
    }
    // A column of one table leaves the other one as it is.
    let (status, _, text) = site.get(&format!("{path}?sort=-bytes")).await;
    assert!(status == 200 && text.contains("id=\"spans\""), "{text}");
    let (status, _, text) = site.get(&format!("{path}?sort=x")).await;
    assert_eq!(status, 400, "{text}");
}

#[test]
fn the_page_names_the_activities_without_spans_as_the_manual_does() {
    let manual = include_str!("../../../../docs/TASKS.md");
    let names = times::WITHOUT_SPANS.map(|name| format!("`{name}`"));
    assert!(manual.contains(&format!("({}) have no spans", names.join(", "))));
}

/// A part of a task's time as an address has it: what it shows of 1,000 spans, without a script.
#[tokio::test]
async fn a_part_of_a_task_with_many_spans_has_room_for_each() {
    const MS: i64 = 1_000_000;
    let site = Site::new(&[log("app-1", "")]);
    let any = Bounds {
        bytes: 1 << 30,
        files: 1 << 20,
    };
    let mut workers = Workers::take(&site.store(), "node-1", 10, None, any).expect("opens");
    let ran: String = serde_json::from_str(&format!("\"{HOSTILE}\"")).expect("is JSON");
    let row = json!({"executor_id": ran, "functions": {"begin_ns": 5, "duration_ns": 10_000 * MS, "rest_ns": 0, "activities": []}});
    let mut spans = Batch::new(&FUNCTIONS);
    for number in 0..1_000 {
        let (zero, text) = (Cell::Number(0), Cell::Text("sort"));
        let who = [
            zero,
            zero,
            Cell::Number(7),
            Cell::Text(&ran),
            Cell::Text(TASK),
            zero,
            text,
            text,
        ];
        let times = [
            zero,
            Cell::Number(number * 10 * MS),
            Cell::Number(2 * MS),
            zero,
            zero,
        ];
        spans.push(&[&who[..], &times[..]].concat());
    }
    for batch in [spans, task(&row)] {
        let done = workers.add(Whose::of("app-1", 7), 0, &batch, &|uid| uid);
        done.expect("writes");
    }
    let path = "/applications/app-1/tasks/7";
    let (_, _, text) = site.get(path).await;
    let out = |text: &str| text.matches("class=\"out\"").count();
    let (said, _) = text
        .split_once(" of 1,000 spans and requests")
        .expect("says it");
    assert!(
        said.ends_with("From 0 ns to 10.0 s, 1,000") && out(&text) == 0,
        "{said}"
    );
    assert!(
        text.contains("href=\"?from=2500000000&amp;to=7500000000#lanes\" data-do=\"in\""),
        "{text}"
    );
    // A hundredth: ten spans, each of a fiftieth of the width.
    let (_, _, text) = site
        .get(&format!(
            "{path}?from=1000000000&to=1100000000&sort=-duration"
        ))
        .await;
    assert_eq!(out(&text), 990);
    assert!(text.contains("From 1.0 s to 1.1 s, 10 of 1,000"), "{text}");
    let shown =
        "x=\"10\" y=\"0\" height=\"13\" width=\"2\" data-begin=\"1010000000\" data-ns=\"2000000\"";
    assert!(text.contains(shown), "{text}");
    for link in [
        "?sort=-duration&amp;from=1025000000&amp;to=1075000000#lanes",
        "?sort=-duration&amp;from=950000000&amp;to=1150000000#lanes",
        "?sort=-duration&amp;from=1025000000&amp;to=1125000000#lanes",
        "?sort=-duration#lanes",
        // Spans and the table keep the window.
        "?from=1000000000&amp;to=1100000000&amp;sort=-duration&amp;span=100#span",
    ] {
        assert!(
            text.contains(&format!("href=\"{link}\"")),
            "{link} is missing: {text}"
        );
    }
    let (status, _, _) = site.get(&format!("{path}?from=x")).await;
    assert_eq!(status, 404);
}
