//! Both halves of an application, one of them, and claims of other users.

use std::fs;
use std::path::PathBuf;

use smtt_store::history::batch::{Batch, Cell};
use smtt_store::history::workers::{Bounds, FUNCTIONS, REST, TASKS, Whose, Workers};

use super::*;
use crate::serve::Settings;

/// More than the tests write.
const ANY: Bounds = Bounds {
    bytes: 1 << 30,
    files: 1 << 20,
};

fn server(store: PathBuf, event_logs: Option<PathBuf>) -> Arc<Server> {
    Arc::new(Server::new(Settings {
        store,
        event_logs: event_logs.map(Into::into),
        cache_bytes: 1 << 20,
        bounds: crate::log::Bounds::default(),
        bucket: None,
    }))
}

async fn ask(server: &Arc<Server>, id: &str, path: &str) -> (u16, Value) {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let parameters = query.split('&').filter_map(|pair| pair.split_once('='));
    let parameters = parameters.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let path = Path((id.to_owned(), path.to_owned()));
    let response = part(State(Arc::clone(server)), path, Query(parameters.collect())).await;
    let status = response.status().as_u16();
    let body = axum::body::to_bytes(response.into_body(), 1 << 20).await;
    let body = body.expect("has a body");
    let text = String::from_utf8_lossy(&body).into_owned();
    let json = serde_json::from_str(&text).unwrap_or(Value::String(text));
    (status, json)
}

fn task(id: i64, executor: &str, json: &str) -> Batch {
    let mut batch = Batch::new(&TASKS);
    batch.push(&[
        Cell::Number(0),
        Cell::Number(0),
        Cell::Number(id),
        Cell::Text(executor),
        Cell::Text("succeeded"),
        Cell::None,
        Cell::None,
        Cell::None,
        Cell::None,
        Cell::None,
        Cell::Text(json),
    ]);
    batch
}

#[tokio::test]
async fn advice_has_the_workers_findings_also_without_the_log() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let store = folder.path().join("store");
    fs::create_dir_all(&store).expect("makes a folder");
    let mut workers = Workers::take(&store, "node-1", 10, None, ANY).expect("opens");
    let found = r#"{"application_id":"app-1","application_name":"n","findings":[],"checks":[]}"#;
    let whose = Whose::of("app-1", 7);
    let done = workers.add(whose, 0, &document("findings", found), &|uid| uid);
    done.expect("writes");
    let server = server(store, None);
    let (status, answer) = ask(&server, "app-1", "advice").await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["workers"][0]["worker"], "node-1", "{answer}");
    assert_eq!(answer["workers"][0]["advice"]["application_id"], "app-1");
    assert!(answer.get("findings").is_none(), "{answer}");
}

fn document(kind: &str, json: &str) -> Batch {
    let mut batch = Batch::new(&REST);
    batch.push(&[Cell::Text(kind), Cell::Text("1"), Cell::Text(json)]);
    batch
}

#[tokio::test]
async fn halves_are_joined_by_ids_and_a_missing_one_is_absent() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let (logs, store) = (folder.path().join("logs"), folder.path().join("store"));
    fs::create_dir_all(&logs).expect("makes a folder");
    fs::create_dir_all(&store).expect("makes a folder");
    let mut log = r#"{"Event":"SparkListenerApplicationStart","App Name":"n","App ID":"app-1","Timestamp":1,"User":"u"}
{"Event":"SparkListenerExecutorAdded","Timestamp":1,"Executor ID":"1","Executor Info":{"Host":"h","Total Cores":1,"Log Urls":{},"Attributes":{},"Resources":{},"Resource Profile Id":0}}
{"Event":"SparkListenerStageSubmitted","Stage Info":{"Stage ID":0,"Stage Name":"s"}}"#
        .to_owned();
    for task in [5, 6] {
        log += &format!(
            "\n{{\"Event\":\"SparkListenerTaskStart\",\"Stage ID\":0,\"Stage Attempt ID\":0,\"Task Info\":{{\"Task ID\":{task},\"Index\":{task},\"Attempt\":0,\"Launch Time\":1,\"Executor ID\":\"1\",\"Host\":\"h\",\"Locality\":\"ANY\",\"Speculative\":false,\"Finish Time\":0,\"Failed\":false}}}}"
        );
    }
    fs::write(logs.join("app-1"), log).expect("writes");
    let own = |uid| uid;
    let mut old = Workers::take(&store, "node-1", 10, None, ANY).expect("opens");
    let text = r#"{"executor_id":"1","run":"old"}"#;
    old.add(Whose::of("app-1", 7), 0, &task(5, "1", text), &own)
        .expect("writes");
    old.add(
        Whose::of("app-1", 7),
        0,
        &document("executor", r#"{"executor_id":"1"}"#),
        &own,
    )
    .expect("writes");
    let mut new = Workers::take(&store, "node-2", 20, None, ANY).expect("opens");
    let text = r#"{"executor_id":"2","run":"new"}"#;
    for id in [5, 6] {
        new.add(Whose::of("app-1", 7), 0, &task(id, "2", text), &own)
            .expect("writes");
    }
    new.add(Whose::of("app-2", 7), 0, &task(9, "2", text), &own)
        .expect("writes");
    let server = server(store, Some(logs));
    let (status, tasks) = ask(&server, "app-1", "stages/0/0/tasks").await;
    assert_eq!(status, 200, "{tasks}");
    let rows = &tasks["rows"];
    assert_eq!(rows[0]["taskId"], 5);
    assert_eq!(
        rows[0]["smtt"]["smtt"]["run"], "old",
        "the executor is the same"
    );
    assert_eq!(rows[0]["smtt"]["worker"], "node-1");
    assert_eq!(rows[0]["smtt"]["daemon_start_unix_ms"], 10);
    let other = "only another executor had a task of this id";
    assert_eq!(
        (&rows[1]["taskId"], rows[1].get("smtt")),
        (&json!(6), None),
        "{other}"
    );
    let (_, executors) = ask(&server, "app-1", "executors").await;
    assert_eq!(executors["rows"][0]["spark"]["id"], "1", "{executors}");
    let (_, none) = ask(&server, "app-1", "deaths").await;
    assert_eq!(none, json!({"rows": []}));
    // No log: the workers' half alone.
    let (status, tasks) = ask(&server, "app-2", "stages/0/0/tasks").await;
    assert_eq!(
        (status, tasks["rows"].as_array().map(Vec::len)),
        (200, Some(1))
    );
    assert_eq!(tasks["rows"][0]["smtt"]["run"], "new");
    for (id, path) in [
        ("app-3", "tasks"),
        ("../app-1", "executors"),
        ("app-1", "x"),
    ] {
        assert_eq!(ask(&server, id, path).await.0, 404, "{id} {path}");
    }
    // Another user claims the application: nothing is shown until one of both is named.
    new.add(
        Whose::of("app-1", 666),
        0,
        &document("executor", r#"{"executor_id":"1"}"#),
        &own,
    )
    .expect("writes");
    let (status, text) = ask(&server, "app-1", "executors").await;
    assert_eq!(status, 409);
    assert!(
        text.as_str().is_some_and(|text| text.contains("7, 666")),
        "{text}"
    );
    let (status, one) = ask(&server, "app-1", "executors?user=7").await;
    assert_eq!((status, &one["rows"][0]["uid"]), (200, &json!(7)));
    let (_, host) = ask(&server, "app-1", "stages/0/0/tasks?user=7&host=node-1").await;
    assert_eq!(host["rows"][0]["smtt"]["smtt"]["run"], "old");
    let (_, host) = ask(&server, "app-1", "stages/0/0/tasks?user=7&host=node-2").await;
    assert_eq!(host["rows"][0].get("smtt"), None, "{other}");
}

/// Spans of a task: executor, thread, activity, begin and duration.
fn spans(id: i64, rows: &[(&str, &str, &str, i64, i64)]) -> Batch {
    let mut batch = Batch::new(&FUNCTIONS);
    for (executor, thread, activity, begin, duration) in rows {
        batch.push(&[
            Cell::Number(0),
            Cell::Number(0),
            Cell::Number(id),
            Cell::Text(executor),
            Cell::Text(thread),
            Cell::Number(77),
            Cell::Text(activity),
            Cell::Text("Sorter.spill"),
            Cell::Number(1_000_000 + begin / 1000),
            Cell::Number(*begin),
            Cell::Number(*duration),
            Cell::Number(*duration),
            Cell::None,
        ]);
    }
    batch
}

#[tokio::test]
async fn functions_of_a_task_are_those_of_the_daemon_that_has_its_row() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let store = folder.path().join("store");
    fs::create_dir_all(&store).expect("makes a folder");
    let own = |uid| uid;
    let text = |executor: &str, duration: u64| {
        let functions = json!({"begin_ns": 5, "duration_ns": duration, "rest_ns": 4,
            "activities": [{"activity": "spill", "spans": 2, "own_ns": duration - 4}]});
        json!({"executor_id": executor, "functions": functions}).to_string()
    };
    let add = |workers: &mut Workers, batch: &Batch| {
        workers
            .add(Whose::of("app-1", 7), 0, batch, &own)
            .expect("writes");
    };
    let mut old = Workers::take(&store, "node-1", 10, None, ANY).expect("opens");
    add(&mut old, &task(5, "1", &text("1", 10)));
    add(
        &mut old,
        &spans(
            5,
            &[("1", "task", "spill", 1, 3), ("1", "task", "spill", 5, 3)],
        ),
    );
    let mut new = Workers::take(&store, "node-2", 20, None, ANY).expect("opens");
    add(&mut new, &task(5, "2", &text("2", 30)));
    let many = vec![("2", "helper", "<b>", -1, -5); 5000];
    add(&mut new, &spans(5, &many));
    let server = server(store, None);
    let (status, row) = ask(&server, "app-1", "tasks/5/functions?executor=1").await;
    assert_eq!((status, &row["worker"]), (200, &json!("node-1")), "{row}");
    let functions = &row["smtt"]["functions"];
    assert_eq!(functions["duration_ns"], 10);
    assert_eq!(
        functions["spans"],
        json!([
            {"thread": "task", "tid": 77, "activity": "spill", "function": "Sorter.spill", "begin_ns": 1, "duration_ns": 3, "own_ns": 3},
            {"thread": "task", "tid": 77, "activity": "spill", "function": "Sorter.spill", "begin_ns": 5, "duration_ns": 3, "own_ns": 3},
        ])
    );
    // More spans than a daemon writes, and times before the task.
    let (_, row) = ask(&server, "app-1", "tasks/5/functions").await;
    let spans = row["smtt"]["functions"]["spans"].as_array().expect("spans");
    assert_eq!((&row["worker"], spans.len()), (&json!("node-2"), 1000));
    assert_eq!(
        (&spans[0]["begin_ns"], &spans[0]["own_ns"]),
        (&json!(0), &json!(0))
    );
    // No daemon has written about the task on executor 3: the others' attempts are not it.
    for path in [
        "tasks/6/functions",
        "tasks/x/functions",
        "tasks/5/functions?executor=3",
    ] {
        assert_eq!(ask(&server, "app-1", path).await.0, 404, "{path}");
    }
}

#[tokio::test]
async fn an_attempt_has_what_its_own_executors_did_else_what_no_attempt_is_known_of() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let store = folder.path().to_owned();
    let mut workers = Workers::take(&store, "node-1", 10, None, ANY).expect("opens");
    let text = |run: &str| json!({"executor_id": "1", "run": run}).to_string();
    for (attempt, id, run) in [
        (Some("1"), 5, "first"),
        (Some("2"), 5, "second"),
        (None, 5, "unnamed"),
    ] {
        let whose = Whose {
            attempt,
            ..Whose::of("app-1", 7)
        };
        workers
            .add(whose, 0, &task(id, "1", &text(run)), &|uid| uid)
            .expect("writes");
    }
    let server = server(store, None);
    for (path, status, run) in [
        ("tasks/5/functions?attempt=1", 200, "first"),
        ("tasks/5/functions?attempt=2", 200, "second"),
        ("tasks/5/functions?attempt=3", 200, "unnamed"),
        ("tasks/5/functions", 200, "unnamed"),
        ("tasks/5/functions?attempt=../app-1_1", 404, ""),
    ] {
        let (said, row) = ask(&server, "app-1", path).await;
        assert_eq!(said, status, "{path}: {row}");
        if said == 200 {
            assert_eq!(row["smtt"]["run"], run, "{path}");
        }
    }
}

#[tokio::test]
async fn functions_of_an_attempt_are_not_mixed_with_those_of_another() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let store = folder.path().to_owned();
    let mut workers = Workers::take(&store, "node-1", 10, None, ANY).expect("opens");
    let mut add = |part: u32, batches: &[Batch]| {
        for batch in batches {
            let done = workers.add(Whose::of("app-1", 7), part, batch, &|uid| uid);
            done.expect("writes");
        }
    };
    let text = |executor: &str, duration: u64| {
        let functions = json!({"begin_ns": 5, "duration_ns": duration, "activities": []});
        json!({"executor_id": executor, "functions": functions}).to_string()
    };
    // The first attempt of the application ran the task on executor 1, the second on executors 1 and 2.
    let of_first = spans(5, &[("1", "task", "spill", 100, 3)]);
    add(0, &[task(5, "1", &text("1", 10)), of_first]);
    let of_both = [("2", 300), ("1", 200)].map(|it| (it.0, "task", "spill", it.1, 3));
    add(1, &[task(5, "1", &text("1", 20)), spans(5, &of_both)]);
    // Texts beyond what a daemon writes.
    let long = "x".repeat(4000);
    let of_long = spans(6, &[("1", "task", long.as_str(), 1, 1); 300]);
    add(2, &[task(6, "1", &text("1", 20)), of_long]);
    let server = server(store, None);
    for path in ["tasks/5/functions", "tasks/5/functions?executor=1"] {
        let (status, row) = ask(&server, "app-1", path).await;
        let functions = &row["smtt"]["functions"];
        assert_eq!((status, &functions["duration_ns"]), (200, &json!(20)));
        let spans = functions["spans"].as_array().expect("spans");
        let begins: Vec<&Value> = spans.iter().map(|it| &it["begin_ns"]).collect();
        assert_eq!(begins, [200], "{row}");
    }
    let (status, text) = ask(&server, "app-1", "tasks/6/functions").await;
    assert_eq!(status, 500, "{text}");
}
