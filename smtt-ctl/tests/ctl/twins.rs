//! A daemon with two names in the list of workers counts once; a worker that claims another's identity removes no other
//! worker's rows.

use std::io::Write as _;
use std::net::SocketAddr;

use serde_json::{Value, json};
use smtt_daemon::metrics::Names;
use smtt_daemon::server::Web;
use smtt_web::{Files, Guard};

use super::workers::{Port, Workers, head, passed_on, rows, text, worker};

/// A second address of a worker's daemon.
fn second(workers: &Workers, daemon: usize) -> Port {
    let tokens = workers.folder.path().join("tokens");
    let guard = Guard::load(Files {
        tokens: Some(&tokens),
        ..Files::default()
    });
    let web = Web {
        guard: guard.expect("tokens"),
        api: true,
        ..Web::from(Names::Hidden)
    };
    Port::of(&workers.daemons[daemon], web)
}

/// A worker that passes on what it is asked, and answers as the one at `real` with its identity, but with `alter`ed
/// listings.
fn mask(real: SocketAddr, alter: impl Fn(String) -> String + Send + Sync + 'static) -> SocketAddr {
    mask_until(real, "/never", alter)
}

/// A worker as [`mask`] that does not answer questions with this path.
fn mask_until(
    real: SocketAddr,
    silent: &'static str,
    alter: impl Fn(String) -> String + Send + Sync + 'static,
) -> SocketAddr {
    worker(move |mut stream| {
        let head = head(&mut stream);
        if head.contains(silent) {
            return;
        }
        let answer = passed_on(&head, real);
        let (answered, body) = answer.split_once("\r\n\r\n").expect("a head");
        let identity = answered
            .lines()
            .find(|line| line.to_ascii_lowercase().starts_with("smtt-instance:"));
        let identity = identity.expect("an identity");
        let body = match head.contains("/v1/answered") {
            true => body.to_owned(),
            false => alter(body.to_owned()),
        };
        let length = body.len();
        let _ = write!(
            stream,
            "HTTP/1.1 200 OK\r\n{identity}\r\nContent-Length: {length}\r\n\r\n{body}"
        );
    })
}

/// The answer without the rows of any executor.
fn emptied(answer: String) -> String {
    let mut answer: Value = serde_json::from_str(&answer).expect("JSON");
    answer["rows"] = json!([]);
    answer["rows_total"] = json!(0);
    answer.to_string()
}

#[test]
fn a_daemon_with_two_names_counts_once() {
    let workers = Workers::start();
    let first = workers.addresses();
    let again = second(&workers, 1);
    let mut addresses = first.clone();
    addresses.insert(0, again.address);
    for question in [
        &["executors"][..],
        &["rdds"],
        &["rdds", "--by", "rdd"],
        &["jobs"],
        &["tasks", "--limit", "5"],
        &["report"],
        &["advise"],
        &["status"],
    ] {
        let question = [question, &["--json"]].concat();
        let output = workers.ctl(&addresses, &question);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{question:?}: {said}");
        // The later one of both in the list.
        let line = format!(
            "smtt-ctl: worker {}: the same daemon as {}, counted once\n",
            first[1], again.address
        );
        assert_eq!(said, line, "{question:?}");
        let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let once = workers.json(&question);
        for sum in ["summary", "rows_total"] {
            assert_eq!(all[sum], once[sum], "{question:?}");
        }
        for list in ["rows", "applications"] {
            let count = |answer: &Value| answer[list].as_array().map(Vec::len);
            assert_eq!(count(&all), count(&once), "{question:?}");
        }
        let same = rows(&all["workers"])
            .iter()
            .filter(|worker| worker["same_as"] == again.address.to_string().as_str());
        assert_eq!(same.count(), 1, "{}", all["workers"]);
        assert_eq!(all["complete"], true);
    }
}

#[test]
fn a_worker_with_the_identity_of_another_does_not_silence_it() {
    let workers = Workers::start();
    let real = workers.addresses();
    let forger = mask(real[0], emptied);
    for first in [true, false] {
        let mut addresses = real.clone();
        addresses.insert(if first { 0 } else { 3 }, forger);
        let output = workers.ctl(&addresses, &["executors", "--json"]);
        let said = text(&output.stderr);
        let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let once = workers.json(&["executors", "--json"]);
        assert_eq!(
            rows(&all["rows"]),
            rows(&once["rows"]),
            "first: {first}: {said}"
        );
        let line = match first {
            // The real worker does not confirm that it gave that answer.
            true => format!(
                "worker {}: answers with the identity of {forger} but did not give its answer: both count",
                real[0]
            ),
            // The forger confirms the real answer, and is left out.
            false => format!(
                "worker {forger}: the same daemon as {}, counted once",
                real[0]
            ),
        };
        assert!(said.contains(&line) && said.lines().count() == 1, "{said}");
        assert_eq!(output.status.code(), Some(0), "{said}");
    }
    let strict = ["executors", "--fail-on", "degraded"];
    let output = workers.ctl(&[forger, real[0]], &strict);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn a_worker_that_only_passes_answers_on_changes_no_sum() {
    let workers = Workers::start();
    let real = workers.addresses();
    let relay = mask(real[0], |answer| answer);
    let addresses = [&[relay], &real[..]].concat();
    let output = workers.ctl(&addresses, &["executors", "--json"]);
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let once = workers.json(&["executors", "--json"]);
    assert_eq!(all["summary"], once["summary"]);
    assert_eq!(rows(&all["rows"]).len(), rows(&once["rows"]).len());
    let line = format!(
        "worker {}: the same daemon as {relay}, counted once",
        real[0]
    );
    assert!(text(&output.stderr).contains(&line), "{output:?}");
}

#[test]
fn a_daemon_that_was_counted_under_a_name_that_fails_later_is_missing_and_named() {
    let workers = Workers::start();
    let real = workers.addresses();
    let relay = mask_until(real[0], "/v1/rdds", |answer| answer);
    let addresses = [&[relay], &real[..]].concat();
    let output = workers.ctl(&addresses, &["report", "--json"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    let line = format!(
        "worker {}: was counted as {relay}, the same daemon, which failed",
        real[0]
    );
    assert!(said.contains(&line), "{said}");
    assert!(!said.contains("counted once"), "{said}");
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(all["complete"], false);
    let (missing, there): (Vec<_>, Vec<_>) = rows(&all["workers"])
        .iter()
        .partition(|worker| worker["error"].is_string());
    assert_eq!((missing.len(), there.len()), (2, 2), "{}", all["workers"]);
    let names = [relay, real[0]].map(|address| address.to_string());
    for application in rows(&all["applications"]) {
        for host in rows(&application["hosts"]) {
            let host = host.as_str().expect("a name");
            assert!(!names.iter().any(|name| name == host), "{application}");
        }
    }
}

#[test]
fn an_answer_to_an_earlier_or_another_question_is_not_confirmed() {
    let workers = Workers::start();
    let real = workers.addresses();
    // It asks the real worker for another selection, and passes on that answer.
    let forger = worker(move |mut stream| {
        let head = head(&mut stream);
        let head = head.replacen("/v1/executors", "/v1/executors?app=nowhere", 1);
        let _ = stream.write_all(passed_on(&head, real[0]).as_bytes());
    });
    let real = workers.addresses();
    let addresses = [&[forger], &real[..]].concat();
    let output = workers.ctl(&addresses, &["executors", "--json"]);
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(rows(&all["rows"]).len(), 3, "{output:?}");
    let part = format!("worker {}: answers with the identity of {forger}", real[0]);
    assert!(text(&output.stderr).contains(&part), "{output:?}");
}
