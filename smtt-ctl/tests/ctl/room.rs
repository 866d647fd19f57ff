//! The room for answers of many workers: a large one beside small ones, and one without end.

use std::io::Write as _;

use serde_json::{Value, json};
use smtt_model::rows::Summary;

use super::workers::{Workers, facts, hear, rows, text, with_answer, worker};

/// An answer with so many rows like this one of an RDD, each of more than 1 KiB.
fn answer(row: &Value, rows: usize) -> String {
    let row = |id: usize| {
        let mut row = row.clone();
        row["rdd_id"] = json!(id);
        row["name"] = json!("x".repeat(1000));
        row
    };
    let summary = Summary {
        page_faults: Some(rows as u64),
        ..Summary::default()
    };
    let rows: Vec<Value> = (0..rows).map(row).collect();
    json!({"rows_total": rows.len(), "rows": rows, "summary": summary}).to_string()
}

#[test]
fn a_large_answer_has_the_room_that_small_ones_leave() {
    let workers = Workers::of(&[facts(0)]);
    let row = &workers.daemons[0].json(&["rdds", "--json"])[0];
    // 300 workers, whose equal shares are 874 KiB.
    let small = answer(row, 1);
    let mut addresses: Vec<_> = (0..298)
        .map(|_| with_answer("200 OK", small.clone()))
        .collect();
    let endless = worker(|mut stream| {
        hear(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n[");
        let much = vec![b' '; 1 << 20];
        while stream.write_all(&much).is_ok() {}
    });
    addresses.insert(100, endless);
    addresses.push(with_answer("200 OK", answer(row, 2000)));
    let deadline = ["--deadline", "60"];
    let output = workers.ctl(&addresses, &[&["rdds", "--json"][..], &deadline].concat());
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(rows(&all["rows"]).len(), 298 + 2000);
    assert_eq!(all["summary"]["page_faults"], 298 + 2000);
    let line = format!(
        "smtt-ctl: worker {endless}: its answer is larger than 16.0 MiB: narrow with --app or --limit\n"
    );
    assert_eq!(said, line);
    let table = workers.ctl(
        &addresses,
        &[&["rdds", "--by", "rdd"][..], &deadline].concat(),
    );
    assert!(
        text(&table.stdout).contains(
            "incomplete: the answers of 1 of 300 workers are too large and are in no sum"
        ),
        "{table:?}"
    );
    // It is no worker that does not answer.
    let alone = workers.ctl(&[endless], &[&["rdds"][..], &deadline].concat());
    assert_eq!(alone.status.code(), Some(1), "{alone:?}");
    let said = text(&alone.stderr);
    assert!(
        said.contains("the answers of all 1 workers are too large: narrow with --app or --limit"),
        "{said}"
    );
}
