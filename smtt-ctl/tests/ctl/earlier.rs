//! Rows from before the restart of a worker's daemon, and workers that do not give them, or lie in them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::workers::{TOKEN, Workers, altered, passed_on, rows, sum, text};

/// A worker whose daemon had an earlier run; `before` makes of its rows of now those of that run, or no answer.
fn restarted(
    real: SocketAddr,
    before: impl Fn(Value) -> Option<Value> + Send + Sync + 'static,
) -> SocketAddr {
    altered(real, move |path, mut body| {
        if let Some(listing) = path.strip_prefix("/v1/earlier/") {
            return before(of_before(real, listing));
        }
        if let Some(summary) = body["summary"].as_object_mut() {
            let run = json!({"since_unix_ms": 1_000, "until_unix_ms": 61_000});
            summary.insert("earlier_runs".to_owned(), json!([run]));
            summary.insert("measured_since_unix_ms".to_owned(), json!(70_000));
        }
        Some(body)
    })
}

/// What a worker answers about the present run, marked as of an earlier one.
fn of_before(real: SocketAddr, listing: &str) -> Value {
    let head = format!(
        "GET /v1/{listing} HTTP/1.0\r\nHost: smtt\r\nAuthorization: Bearer {}\r\n\r\n",
        TOKEN
    );
    let answer = passed_on(&head, real);
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
    let mut body: Value = serde_json::from_str(body).expect("JSON");
    for row in body["rows"].as_array_mut().expect("rows") {
        row["earlier"] = json!({"since_unix_ms": 1_000, "until_unix_ms": 61_000});
    }
    body
}

/// Three workers, of which the second has such an earlier run.
fn with(
    workers: &Workers,
    before: impl Fn(Value) -> Option<Value> + Send + Sync + 'static,
) -> Vec<SocketAddr> {
    let mut addresses = workers.addresses();
    addresses[1] = restarted(addresses[1], before);
    addresses
}

#[test]
fn rows_of_before_are_listed_and_marked() {
    let workers = Workers::start();
    let addresses = with(&workers, Some);
    let now = workers.json(&["executors", "--json"]);
    let output = workers.ctl(&addresses, &["executors", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let (before, other): (Vec<_>, Vec<_>) = rows(&all["rows"])
        .iter()
        .partition(|row| row["earlier"].is_object());
    assert_eq!((before.len(), other.len()), (1, 3), "{all:#}");
    assert_eq!(
        (&all["complete"], &all["rows_total"]),
        (&json!(true), &json!(4))
    );
    assert_eq!(all["summary"]["page_faults"], now["summary"]["page_faults"]);
    let runs = rows(&all["workers"])
        .iter()
        .filter(|worker| worker["earlier_runs"].is_array());
    let hosts: Vec<&Value> = runs.map(|worker| &worker["host"]).collect();
    assert_eq!(hosts, [addresses[1].to_string().as_str()]);

    let table = text(&workers.ctl(&addresses, &["executors"]).stdout);
    for part in [
        "MEASURED".to_owned(),
        "until 00:01:01".to_owned(),
        "before the daemon's restart: 1 row, in no figure above".to_owned(),
        format!("not measured on {}: 00:01:01 to 00:01:10 UTC", addresses[1]),
    ] {
        assert!(table.contains(&part), "no {part:?} in\n{table}");
    }
    let table = text(&workers.ctl(&addresses, &["executors", "--this-run"]).stdout);
    assert!(
        !table.contains("MEASURED") && !table.contains("not measured"),
        "{table}"
    );

    // Sums are those of all runs.
    let faults = |addresses: &[SocketAddr]| {
        let output = workers.ctl(addresses, &["rdds", "--by", "name", "--json"]);
        let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        sum(rows(&all["rows"]), "page_faults")
    };
    let own = faults(&workers.addresses()[1..2]);
    assert!(own > 0);
    assert_eq!(faults(&addresses), faults(&workers.addresses()) + own);
}

#[test]
fn files_of_before_without_room_are_counted() {
    let workers = Workers::start();
    let addresses = with(&workers, |mut before| {
        before["summary"]["earlier_left_out"] = json!(7);
        Some(before)
    });
    for question in [
        &["executors"][..],
        &["rdds", "--by", "name"],
        &["memory"],
        &["stages", "--peaks"],
    ] {
        let table = text(&workers.ctl(&addresses, question).stdout);
        assert!(
            table.contains("not listed: 7 older files"),
            "{question:?}:\n{table}"
        );
    }
}

#[test]
fn lines_that_look_alike_have_no_rows_of_before() {
    let workers = Workers::start();
    let addresses = with(&workers, Some);
    for form in ["--csv", "--plain"] {
        let lines = |addresses: &[SocketAddr], more: &[&str]| {
            let output = workers.ctl(addresses, &[&["executors", form], more].concat());
            assert_eq!(output.status.code(), Some(0), "{output:?}");
            text(&output.stdout).lines().count()
        };
        let now = lines(&workers.addresses(), &[]);
        assert_eq!(lines(&addresses, &[]), now, "{form}");
        let both = lines(&addresses, &["--columns", "executor_id,earlier"]);
        assert_eq!(both, now + 1, "{form}");
    }
}

#[test]
fn a_listing_without_rows_of_before_does_not_ask_for_any() {
    let workers = Workers::start();
    let addresses = with(&workers, |_| None);
    for listing in [
        &["blocks"][..],
        &["pages"],
        &["jobs", "--per-worker"],
        &["queries", "--per-worker"],
        &["tasks", "--failed"],
    ] {
        let output = workers.ctl(&addresses, &[listing, &["--json"]].concat());
        let said = text(&output.stderr);
        assert!(!said.contains("restart"), "{listing:?}: {said}");
        let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(all["complete"], true, "{listing:?}");
    }
}

#[test]
fn a_worker_that_does_not_give_its_rows_of_before_is_named() {
    let workers = Workers::start();
    let addresses = with(&workers, |_| None);
    let line = format!(
        "worker {}: gives no rows from before its daemon's restart: ",
        addresses[1]
    );
    let output = workers.ctl(&addresses, &["executors", "--json"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains(&line), "{said}");
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(rows(&all["rows"]).len(), 3);
    assert_eq!(all["complete"], false);
    let worker = &all["workers"][1];
    assert!(
        worker["error"].is_null() && worker["lacks"].is_string(),
        "{worker}"
    );

    let output = workers.ctl(&addresses, &["rdds", "--by", "name"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let sums = text(&output.stdout) + &text(&output.stderr);
    assert!(
        sums.contains(
            "1 of 3 workers gave no rows from before their daemons' restarts, which are in no sum"
        ),
        "{sums}"
    );
}

#[test]
fn a_worker_that_hangs_about_before_costs_half_a_deadline() {
    let workers = Workers::start();
    let addresses = with(&workers, |_| {
        std::thread::sleep(Duration::from_secs(60));
        None
    });
    let start = Instant::now();
    let output = workers.ctl(&addresses, &["executors", "--json", "--deadline", "8"]);
    let took = start.elapsed();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(took < Duration::from_secs(30), "{took:?}");
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(rows(&all["rows"]).len(), 3);
}

#[test]
fn a_lie_about_before_changes_no_other_row() {
    let workers = Workers::start();
    let addresses = with(&workers, |mut before| {
        before["rows_total"] = json!(u64::MAX);
        for row in before["rows"].as_array_mut()? {
            row["page_faults"] = json!("x");
        }
        Some(before)
    });
    let question = ["executors", "--sort", "page_faults", "--json"];
    let largest = &workers.json(&question)["rows"][0];
    let output = workers.ctl(&addresses, &question);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(all["rows_total"], json!(u64::MAX));
    let first = rows(&all["rows"])
        .iter()
        .find(|row| row["page_faults"].is_u64());
    let first = first.expect("a number");
    assert_eq!(first["executor_id"], largest["executor_id"], "{all:#}");

    // Of a run that the first answer does not know: the daemon has started once more since then.
    let addresses = with(&workers, |mut before| {
        for row in before["rows"].as_array_mut()? {
            row["earlier"]["since_unix_ms"] = json!(70_000);
        }
        Some(before)
    });
    let output = workers.ctl(&addresses, &["executors", "--json"]);
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (rows(&all["rows"]).len(), &all["rows_total"]),
        (3, &json!(3))
    );

    // More rows than were requested.
    let addresses = with(&workers, |mut before| {
        let rows = before["rows"].as_array_mut()?;
        let row = rows.first()?.clone();
        *rows = vec![row; 3];
        Some(before)
    });
    let output = workers.ctl(&addresses, &["executors", "--limit", "2", "--json"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(
        text(&output.stderr).contains("it has 3 rows, 2 were requested"),
        "{output:?}"
    );
}
