//! What the table of jobs adds to Spark's numbers: times that tasks lost, the query, and what the workers saw.

use axum::http::StatusCode;
use smtt_store::history::batch::{Batch, Cell as Stored};
use smtt_store::history::workers::{Bounds as Room, Whose, Workers};

use super::super::tests::{HOSTILE, Site};
use crate::made::{Made, Stage, Task};

/// An application of two jobs, the second of a query, whose figures are given.
fn two_jobs() -> String {
    use serde_json::json;
    let mut first = Task::new(3000, 1_000_000);
    (
        first.gc,
        first.fetch,
        first.delay,
        first.peak,
        first.spilled,
    ) = (400, 300, 50, 7 << 20, 6 << 20);
    let mut second = first.clone();
    (second.gc, second.peak) = (100, 9 << 20);
    let stages = vec![
        Stage::new("map", vec![first, second]),
        Stage::new("collect", vec![Task::new(1000, 5_000_000)]),
    ];
    let (log, _) = Made::new("app-1", stages).log();
    let query = json!({"Event": "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart", "executionId": 4,
        "description": format!("SELECT {HOSTILE}"), "details": "", "physicalPlanDescription": "", "time": 1,
        "sparkPlanInfo": {"nodeName": "n", "simpleString": "s", "children": [], "metadata": {}, "metrics": []}});
    let mut lines: Vec<String> = Vec::new();
    for line in log.lines() {
        let mut event: serde_json::Value = serde_json::from_str(line).expect("is JSON");
        if event["Event"] == "SparkListenerJobStart" && event["Job ID"] == 1 {
            lines.push(query.to_string());
            event["Properties"] = json!({"spark.sql.execution.id": "4"});
        }
        lines.push(event.to_string());
    }
    lines.join("\n")
}

/// Cells of a row of a table, as text, by the heads' keys.
fn cells(page: &str, row: usize) -> std::collections::BTreeMap<String, String> {
    let (head, body) = page.split_once("<tbody>").expect("has a table");
    let heads = head.split("sort=").skip(1);
    let heads = heads.map(|it| it.split(['"', '&']).next().unwrap_or_default());
    let row = body.split("<tr>").nth(row + 1).expect("has the row");
    let text = |cell: &str| {
        let (mut text, mut is_tag) = (String::new(), true);
        for letter in cell.split("</td>").next().unwrap_or_default().chars() {
            match letter {
                '<' => is_tag = true,
                '>' => is_tag = false,
                _ if !is_tag => text.push(letter),
                _ => {}
            }
        }
        text
    };
    let key = |head: &str| {
        head.trim_start_matches("%2D")
            .trim_start_matches('-')
            .to_owned()
    };
    heads
        .map(key)
        .filter(|it| !it.is_empty())
        .zip(row.split("<td").skip(1).map(text))
        .collect()
}

#[tokio::test]
async fn jobs_have_what_their_tasks_lost_and_their_query() {
    let site = Site::new(&[two_jobs()]);
    let (status, _, page) = site.get("/applications/app-1/jobs?sort=jobId").await;
    assert_eq!(status, StatusCode::OK, "{page}");
    let (first, second) = (cells(&page, 0), cells(&page, 1));
    let of = |row: &std::collections::BTreeMap<String, String>| {
        [
            "input", "peak", "gc", "fetch", "delay", "spilled", "path", "held",
        ]
        .map(|key| row[key].clone())
    };
    // Sums of the two tasks, and the larger peak.
    let expected = [
        "1.9 MiB", "9.0 MiB", "500.0 ms", "600.0 ms", "100.0 ms", "4.0 MiB", "0", "–",
    ];
    assert_eq!(of(&first), expected, "{first:?}");
    assert!(
        second["sql"].starts_with("SELECT &lt;script&gt;alert(1)"),
        "{second:?}"
    );
    assert_eq!(
        (first["sql"].as_str(), second["gc"].as_str()),
        ("–", "0 ms")
    );
    assert!(page.contains("/sql/4\""), "{page}");
    let (_, _, found) = site.get("/applications/app-1/jobs?q=select").await;
    assert!(
        found.contains("1 to 1 of 1"),
        "the search reads the query: {found}"
    );
    let (_, _, sorted) = site.get("/applications/app-1/jobs?sort=-input").await;
    assert_eq!(cells(&sorted, 0)["jobId"], "1");
    // A stage is critical for its job, and says so in its row and on its page.
    let (_, _, stages) = site.get("/applications/app-1/stages?sort=stageId").await;
    assert_eq!(cells(&stages, 0)["critical"], "job 0");
    let (_, _, stage) = site.get("/applications/app-1/stages/0/0").await;
    assert!(
        stage.contains("id=\"critical\"") && stage.contains("The last to end was"),
        "{stage}"
    );
    let (_, _, tasks) = site.get("/applications/app-1/tasks?sort=id").await;
    let kinds: Vec<String> = (0..3)
        .map(|row| cells(&tasks, row)["kind"].clone())
        .collect();
    assert_eq!(
        kinds
            .iter()
            .filter(|kind| kind.contains("critical"))
            .count(),
        2,
        "{kinds:?}"
    );
}

#[tokio::test]
async fn jobs_have_the_most_that_executors_held_together() {
    use serde_json::json;
    use smtt_store::history::workers::REST;
    let site = Site::new(&[two_jobs()]);
    // The first job ends 3,050 ms after the time line's begin, the second after 4,055 ms.
    let start = crate::made::START;
    let boot_ns = |ms: i64| (10_000_000 + ms) * 1_000_000;
    let mut batch = Batch::new(&REST);
    let mut add = |kind: &str, json: &serde_json::Value| {
        batch.push(&[
            Stored::Text(kind),
            Stored::Text(""),
            Stored::Text(&json.to_string()),
        ]);
    };
    add(
        "worker",
        &json!({"written_unix_ms": start + 5000, "written_boot_ns": boot_ns(5000)}),
    );
    // MiB that two executors held: their peaks are not at one moment.
    let held = [
        ("0", [(0, 10), (1000, 40), (2000, 20), (3000, 1)]),
        ("1", [(0, 4), (1000, 5), (2000, 60), (3000, 2)]),
    ];
    for (executor, all) in held {
        let points = all.map(|(ms, mib)| {
            let rdd = json!({"rdd_id": 1, "storage_heap_bytes": mib << 19, "storage_off_heap_bytes": 0,
                "execution_heap_bytes": mib << 19, "execution_off_heap_bytes": 0});
            json!({"time_ns": boot_ns(ms), "rdds": [rdd], "stages": []})
        });
        add(
            "history",
            &json!({"application_id": "app-1", "executor_id": executor, "pid": 100, "uid": 7,
                "interval_ns": 1_000_000_000_u64, "points": points}),
        );
    }
    let any = Room {
        bytes: 1 << 30,
        files: 1 << 20,
    };
    let mut workers = Workers::take(&site.store(), "node-1", 10, None, any).expect("opens");
    let done = workers.add(Whose::of("app-1", 7), 0, &batch, &|uid| uid);
    done.expect("writes");
    let (_, _, page) = site.get("/applications/app-1/jobs?sort=-held").await;
    let rows = [cells(&page, 0), cells(&page, 1)];
    let shown = rows.map(|row| (row["jobId"].clone(), row["held"].clone()));
    let expected = [("0", "80.0 MiB"), ("1", "3.0 MiB")];
    let expected = expected.map(|(job, held)| (job.to_owned(), held.to_owned()));
    assert_eq!(shown, expected);
}

#[tokio::test]
async fn jobs_have_what_workers_saw_their_tasks_wait_for() {
    use smtt_store::history::workers::{FUNCTIONS, TASKS};
    let site = Site::new(&[two_jobs()]);
    let shown = |page: &str, row: usize| {
        let row = cells(page, row);
        ["cpu_wait", "faults", "spills", "seen"].map(|key| row[key].clone())
    };
    let path = "/applications/app-1/jobs?sort=jobId";
    let (_, _, page) = site.get(path).await;
    assert_eq!(
        (shown(&page, 0), shown(&page, 1)),
        (["–"; 4].map(str::to_owned), ["–"; 4].map(str::to_owned))
    );
    let any = Room {
        bytes: 1 << 30,
        files: 1 << 20,
    };
    let mut batch = Batch::new(&TASKS);
    let (none, zero) = (Stored::None, Stored::Number(0));
    // The first job's two tasks, of which one had too few faults that were measured; none of the second job; an unknown one.
    for (task, cpu, faults) in [
        (0, 200, Stored::Number(70_000_000)),
        (1, 300, none),
        (99, 5_000, zero),
    ] {
        let who = [
            zero,
            zero,
            Stored::Number(task),
            none,
            Stored::Text("succeeded"),
        ];
        let what = [none, none, none, none, none, Stored::Text("{}")];
        let waits = [Stored::Number(cpu * 1_000_000), none, faults, none];
        batch.push(&[&who[..], &what[..], &waits[..]].concat());
    }
    let mut workers = Workers::take(&site.store(), "node-1", 10, None, any).expect("opens");
    let done = workers.add(Whose::of("app-1", 7), 0, &batch, &|uid| uid);
    done.expect("writes");
    let mut spans = Batch::new(&FUNCTIONS);
    let who = [zero, zero, zero, none, Stored::Text("task"), zero];
    let what = [
        Stored::Text("spill"),
        none,
        none,
        zero,
        zero,
        Stored::Number(9_000_000),
        none,
    ];
    spans.push(&[&who[..], &what[..]].concat());
    let done = workers.add(Whose::of("app-1", 7), 0, &spans, &|uid| uid);
    done.expect("writes");
    let (_, _, page) = site.get(path).await;
    assert_eq!(shown(&page, 0), ["500.0 ms", "70.0 ms", "9.0 ms", "2"]);
    assert_eq!(shown(&page, 1), ["–"; 4]);
    let (_, _, sorted) = site.get("/applications/app-1/jobs?sort=-cpu_wait").await;
    assert_eq!(cells(&sorted, 0)["jobId"], "0");
    // Of two users one is asked for.
    let done = workers.add(Whose::of("app-1", 8), 0, &batch, &|uid| uid);
    done.expect("writes");
    let (_, _, page) = site.get(path).await;
    assert!(
        shown(&page, 0)[0] == "–" && page.contains("users 7, 8 claim"),
        "{page}"
    );
    let (_, _, page) = site.get(&format!("{path}&user=8")).await;
    assert_eq!(shown(&page, 0)[0], "500.0 ms");
}
