//! `--cluster` beside workers that are dead, silent, too old or hostile: each is named, and the others count.

use std::io::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use super::workers::{Workers, altered, dead, hear, rows, sum, text, with_answer, worker};

#[test]
fn workers_that_do_not_answer_rightly_are_named_and_the_others_count() {
    let workers = Workers::start();
    let listing = |rows: Value| json!({"rows": rows, "rows_total": 1, "summary": {}}).to_string();
    let whole = workers.daemons[0].json(&["executors", "--json"])[0].clone();
    let mut coloured = whole.clone();
    coloured["application_name"] = json!("\u{1b}]0;owned\u{7}\u{202e}evil");
    coloured["\u{1b}[2J"] = json!(1);
    let summary = |rows: Value| {
        let summary = serde_json::to_value(smtt_model::rows::Summary::default()).expect("JSON");
        json!({"rows": rows, "rows_total": 1, "summary": summary}).to_string()
    };
    let hostile = [
        (dead(), "cannot connect"),
        (
            worker(|mut stream| {
                hear(&mut stream);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n[");
                let much = vec![b' '; 1 << 20];
                while stream.write_all(&much).is_ok() {}
            }),
            "its answer is larger than",
        ),
        (
            with_answer("200 OK", "\u{1b}[31mnot JSON".to_owned()),
            "answered wrongly",
        ),
        (
            with_answer("200 OK", "[".repeat(100_000)),
            "answered wrongly",
        ),
        (
            with_answer("200 OK", listing(json!([1]))),
            "a row is no object",
        ),
        (
            with_answer("200 OK", listing(json!({}))),
            "answered wrongly",
        ),
        (with_answer("302 Found", String::new()), "answers 302"),
        (
            with_answer("404 Not Found", String::new()),
            "serves no listings (404)",
        ),
        (
            with_answer("500 Oops", "\u{1b}[31mred".to_owned()),
            "answers 500",
        ),
        (
            with_answer(
                "503 Busy",
                json!({"error": format!("\u{1b}[31m{}", "x".repeat(5000))}).to_string(),
            ),
            "(503)",
        ),
        (
            worker(|mut stream| drop(stream.write_all(b"SSH-2.0-x\r\n"))),
            "no HTTP",
        ),
    ];
    let disguised = with_answer("200 OK", summary(json!([coloured])));
    let mut addresses = workers.addresses();
    addresses.extend(hostile.iter().map(|(address, _)| *address));
    addresses.push(disguised);
    let output = workers.ctl(&addresses, &["executors", "--json"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(rows(&all["rows"]).len(), 4, "three and the disguised one");
    assert_eq!(all["summary"]["executors"], 3);
    let said = text(&output.stderr);
    for (address, part) in &hostile {
        let name = address.to_string();
        let line = said.lines().find(|line| line.contains(&name));
        let line = line.unwrap_or_else(|| panic!("{name} ({part}) in {said}"));
        let worker = rows(&all["workers"])
            .iter()
            .find(|worker| worker["host"] == name.as_str())
            .expect("named");
        let error = worker["error"].as_str().unwrap_or_default();
        assert!(line.contains(part), "{part}: {line}");
        assert!(error.contains(part), "{part}: {error}");
        assert!(error.chars().count() < 300, "{error}");
    }
    for answered in workers.addresses() {
        assert!(!said.contains(&answered.to_string()), "{said}");
    }
    // Nothing of it reaches a terminal as an escape sequence.
    let table = workers.ctl(&addresses, &["executors", "--columns", "all"]);
    for text in
        [&output.stdout, &output.stderr, &table.stdout, &table.stderr].map(|part| text(part))
    {
        let bad = |letter: char| (letter.is_control() && letter != '\n') || letter == '\u{202e}';
        assert!(!text.contains(bad), "{text:?}");
    }
    assert_eq!(table.status.code(), Some(3), "{table:?}");
}

#[test]
fn workers_that_do_not_answer_in_time_are_named_and_the_others_count() {
    let workers = Workers::start();
    let quiet = [
        worker(|stream| {
            // Accepts, and never answers.
            std::thread::sleep(Duration::from_secs(600));
            drop(stream);
        }),
        worker(|mut stream| {
            // Answers a byte now and then.
            hear(&mut stream);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n");
            while stream.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(50));
            }
        }),
    ];
    let mut addresses = workers.addresses();
    addresses.extend(quiet);
    // On a busy machine the others may need a longer time.
    let counted = [0.5, 5.0, 60.0].into_iter().any(|seconds: f64| {
        let deadline = seconds.to_string();
        let arguments = ["executors", "--json", "--deadline", &deadline];
        let output = workers.ctl(&addresses, &arguments);
        let said = text(&output.stderr);
        let part = format!("no answer within {:?}", Duration::from_secs_f64(seconds));
        let answered = workers.addresses();
        if answered.iter().any(|it| said.contains(&it.to_string())) {
            println!("{said}");
            return false;
        }
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        for address in quiet {
            let name = address.to_string();
            let line = said.lines().find(|line| line.contains(&name));
            assert!(line.is_some_and(|line| line.contains(&part)), "{said}");
        }
        let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(rows(&all["rows"]).len(), 3);
        assert_eq!(all["summary"]["executors"], 3);
        true
    });
    assert!(counted, "the others do not answer");
}

#[test]
fn a_cluster_without_an_answer_is_unreachable() {
    let workers = Workers::start();
    let output = workers.ctl(&[dead(), dead()], &["executors"]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    let said = text(&output.stderr);
    assert!(said.contains("none of 2 workers answered"), "{said}");
    assert!(said.contains("cannot connect"), "{said}");
    // Without the token, all refuse.
    std::fs::write(
        workers.folder.path().join("tokens"),
        "wrong-wrong-wrong-wrong\n",
    )
    .expect("written");
    let output = workers.ctl(&workers.addresses(), &["executors"]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    assert!(text(&output.stderr).contains("refuses the credentials (401)"));
}

/// A listing by groups asks each worker twice: one that fails any question is in no sum.
#[test]
fn a_worker_that_fails_one_of_two_questions_is_in_no_sum() {
    let workers = Workers::start();
    for (listing, bytes) in [("blocks", "size_bytes"), ("pages", "held_bytes")] {
        for failed in ["/v1/rdds", "/v1/blocks", "/v1/pages"] {
            if failed == "/v1/rdds" || failed.ends_with(listing) {
                let mut addresses = workers.addresses();
                let arguments = [listing, "--by", "name", "--json"];
                let output = workers.ctl(&addresses[..2], &arguments);
                let others: Value = serde_json::from_slice(&output.stdout).expect("JSON");
                addresses[2] = altered(addresses[2], move |path, body| {
                    (!path.starts_with(failed)).then_some(body)
                });
                let output = workers.ctl(&addresses, &arguments);
                assert_eq!(output.status.code(), Some(3), "{output:?}");
                let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
                assert!(sum(rows(&said["rows"]), bytes) > 0);
                assert_eq!(said["rows"], others["rows"], "{listing}: {failed}");
                assert_eq!(said["summary"], others["summary"], "{listing}: {failed}");
            }
        }
    }
}
