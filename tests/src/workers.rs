//! What two workers' daemons write about an application that never ran: the memory that its executors held over time.
//! One daemon was restarted in between, and no daemon wrote about the last two executors.

use std::ops::Range;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};
use smtt_store::history::batch::{Batch, Cell};
use smtt_store::history::workers::{Bounds, REST, Whose, Workers};
use xtask::event_log::{HOSTILE, ID, START};

/// Start of the log's first job: zero of the time line.
const ZERO: i64 = START + 990;
/// Boot of the workers.
const BOOT: i64 = START - 5_000_000;
/// Bytes of a mebibyte.
pub const MIB: i64 = 1 << 20;
/// Points of a history, as many as a daemon keeps.
pub const POINTS: i64 = 200;
/// RDDs of a point: more than there are colours.
const RDDS: i64 = 14;
/// Executors whose daemon was restarted.
pub const RESTARTED: usize = 6;

/// Time of a point on the time line of an application of so many milliseconds: its first tenth was not measured.
#[must_use]
pub const fn time(length: i64, point: i64) -> i64 {
    length / 10 + length * 9 / 10 * point / POINTS
}

/// Bytes that an executor holds of an RDD at a point, on the heap. Outside it holds a quarter of them.
#[must_use]
pub const fn held(executor: usize, point: i64, rdd: i64) -> i64 {
    (20 + rdd * 3 + executor as i64 + point % 20) * MIB
}

fn boot_ns(time: i64) -> i64 {
    (ZERO + time - BOOT) * 1_000_000
}

fn who(executor: usize) -> Value {
    json!({"application_id": ID, "executor_id": executor.to_string(), "pid": executor, "uid": 7})
}

fn with(mut json: Value, more: Value) -> Value {
    if let (Some(json), Value::Object(more)) = (json.as_object_mut(), more) {
        json.extend(more);
    }
    json
}

/// The points of an executor.
fn history(length: i64, executor: usize, points: Range<i64>) -> Value {
    let points: Vec<Value> = points
        .map(|point| {
            let rdds = (0..RDDS).map(|rdd| {
                let bytes = held(executor, point, rdd);
                json!({"rdd_id": rdd, "storage_heap_bytes": bytes, "storage_off_heap_bytes": bytes / 4,
                    "execution_heap_bytes": 0, "execution_off_heap_bytes": 0, "pages": {"present_bytes": bytes,
                    "swapped_bytes": bytes / 8, "untouched_bytes": 0, "page_sizes": [{"page_bytes": 4096, "bytes": bytes / 2},
                    {"page_bytes": 2 * MIB, "bytes": bytes / 2}], "nodes": [{"node": 0, "bytes": bytes / 3}, {"node": 1, "bytes": bytes / 3}]}})
            });
            json!({"time_ns": boot_ns(time(length, point)), "rdds": rdds.collect::<Vec<_>>(), "stages": [],
                "collections": point / 9})
        })
        .collect();
    let interval = length * 9 / 10 / POINTS * 1_000_000;
    with(
        who(executor),
        json!({"interval_ns": interval, "points": points}),
    )
}

/// The limits of an executor.
fn limits(executor: usize) -> Value {
    let limit = |name: &str, mib: i64| json!({"name": name, "limit_bytes": mib * MIB, "used_bytes": null, "free_bytes": null});
    let rows = [
        limit("-Xmx", 1500),
        limit("spark.executor.memoryOverhead", 384),
        limit("memory.max", 64_000),
    ];
    with(
        who(executor),
        json!({"state": "alive", "resident_bytes": null, "age_ns": null, "examined_age_ns": null,
        "examination_ns": null, "parts": [], "heap_committed_bytes": null, "threads": null, "children": [],
        "children_unread": 0, "limits": rows, "peaks": {},
        "cgroup": {"path": "/worker", "version": 2, "current_bytes": 0, "peak_bytes": null, "limit_bytes": null, "parts": []}}),
    )
}

/// What a daemon found: an RDD that is never read, with names that are scripts where a page does not escape them.
fn found(host: &str) -> Value {
    let finding = json!({"id": "never_read", "severity": "high", "title": format!("{HOSTILE} on {host}"), "window": "w",
        "computed": "not in seconds", "disproof": "a read", "not_measured": [HOSTILE], "cost": {"of": "o", "estimated": false},
        "subject": {"application_id": ID, "executor_ids": []},
        "numbers": [{"what": "blocks stored", "value": 4, "unit": "count"}],
        "saving": {"low": 0.25, "expected": 2.0, "high": 3.0},
        "remedies": [{"why": "free it", "lines": ["rdd.unpersist()", HOSTILE]}]});
    json!({"application_id": ID, "application_name": HOSTILE, "findings": [finding], "checks": []})
}

/// Writes the files of both daemons, of one in two runs, about an application of so many executors and milliseconds.
///
/// # Errors
/// When a file cannot be written.
pub fn write(store: &Path, executors: usize, length: i64) -> Result<()> {
    let any = Bounds {
        bytes: 1 << 30,
        files: 1 << 20,
    };
    let last = executors - 1;
    let runs = [
        ("worker0", 1, 1..RESTARTED + 1, 0..POINTS * 5 / 10),
        ("worker0", 2, 1..RESTARTED + 1, POINTS * 6 / 10..POINTS),
        ("worker1", 1, RESTARTED + 1..last, 0..POINTS),
    ];
    for (host, run, executors, points) in runs {
        let mut batch = Batch::new(&REST);
        let mut add = |kind: &str, json: &Value| {
            batch.push(&[
                Cell::Text(kind),
                Cell::Text(""),
                Cell::Text(&json.to_string()),
            ])
        };
        add(
            "worker",
            &json!({"written_unix_ms": ZERO + length, "written_boot_ns": boot_ns(length)}),
        );
        add("findings", &found(host));
        for executor in executors {
            add("history", &history(length, executor, points.clone()));
            add("memory", &limits(executor));
            add(
                "rdd",
                &with(who(executor), json!({"rdd_id": 3, "name": HOSTILE})),
            );
        }
        let mut workers = Workers::take(store, host, run, None, any)?;
        workers.add(Whose::of(ID, 7), 0, &batch, &|uid| uid)?;
    }
    Ok(())
}
