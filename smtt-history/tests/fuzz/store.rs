//! What drivers and workers wrote into a store, changed: the documents within their tables, the numbers of rows, and the
//! bytes of the files. Every page is asked for afterwards, parts are compacted, and advice is given.

use std::fs;
use std::path::Path;

use serde_json::json;
use smtt_history::import::{Admission, import};
use smtt_history::live;
use smtt_history::log::Bounds;
use smtt_store::history::batch::{Batch, Cell};
use smtt_store::history::columns::{Column, FIRST_METRIC, Kind, META, TABLES, TASKS, Table};
use smtt_store::history::parts;
use smtt_store::history::read::Reader;
use smtt_store::history::workers::{self, REST, Whose, Workers};
use smtt_store::history::write::Writer;

use super::json::changed_json;
use super::requests::paths;
use super::rounds::{Random, changed};
use super::{ID, LINES, ask, rounds, server, tried};

/// Memory of a case.
const MEMORY: usize = 192 << 20;
/// Addresses that are asked for in a round.
const ASKED: usize = 6;
/// Rows of a worker's tables.
const ROWS: i64 = 6;
/// Numbers that may overflow where they are added or multiplied.
const NUMBERS: [i64; 9] = [
    0,
    1,
    -1,
    i32::MAX as i64,
    1_790_000_000_000,
    1_790_000_000_000_000,
    1 << 53,
    i64::MAX,
    i64::MIN,
];

const WIDTH: usize = TASKS.columns.len() + 2;
const COLUMNS: [Column<'static>; WIDTH] = {
    let mut all = [TASKS.columns[0]; WIDTH];
    let mut at = 0;
    while at < TASKS.columns.len() {
        all[at] = TASKS.columns[at];
        at += 1;
    }
    // A number that may be absent.
    all[WIDTH - 2] = TASKS.columns[FIRST_METRIC];
    all[WIDTH - 2].name = parts::STARTED;
    all[WIDTH - 1] = TASKS.columns[FIRST_METRIC];
    all[WIDTH - 1].name = parts::ENDED;
    all
};
/// The table of tasks in a driver's part.
static PART: Table = Table {
    name: "tasks",
    columns: &COLUMNS,
    order: &[],
};

/// Rows of a table, with small numbers for the most part.
fn rows(random: &mut Random, table: &'static Table) -> Batch {
    const TEXTS: [&str; 9] = [
        "1",
        "0",
        "h",
        "SUCCESS",
        "ANY",
        "ResultTask",
        "{\"task_id\":1,\"duration_ns\":9223372036854775807}",
        "[[",
        "\u{202e}<b>\0",
    ];
    let mut batch = Batch::new(table);
    for row in 0..ROWS {
        let cells: Vec<Cell<'_>> = table
            .columns
            .iter()
            .map(|column| {
                let is_wild = random.below(6) == 0;
                match column.kind {
                    _ if column.optional && random.below(6) == 0 => Cell::None,
                    Kind::Text => Cell::Text(random.of::<&str>(&TEXTS)),
                    Kind::Flag => Cell::Number(random.below(2) as i64),
                    Kind::Int => Cell::Number(if is_wild {
                        *random.of(&[i32::MAX as i64, i32::MIN as i64, -1])
                    } else {
                        random.below(3) as i64
                    }),
                    _ if is_wild => Cell::Number(*random.of(&NUMBERS)),
                    _ => Cell::Number(row * 7 + random.below(5) as i64),
                }
            })
            .collect();
        batch.push(&cells);
    }
    batch
}

fn write(table: &'static Table, folder: &Path, name: &str, batch: &Batch) {
    let writer = Writer::create(table, folder, "t", &[]).expect("creates");
    let mut writer = writer.named(name);
    writer.write(batch).expect("writes");
    writer.finish().expect("finishes");
}

/// Changes bytes of some files of a folder.
fn damage(random: &mut Random, folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.is_file())
        .collect();
    paths.sort();
    for path in paths {
        if random.below(3) == 0 {
            let bytes = fs::read(&path).expect("a file");
            fs::write(&path, changed(random, &[bytes])).expect("written");
        }
    }
}

/// All documents of a table.
fn documents(path: &Path) -> Vec<[String; 3]> {
    let reader = Reader::open(path, META.name).expect("a table");
    let all = std::slice::from_ref(&(0..reader.rows())).to_vec();
    let column = |name| reader.texts(name, &all).expect("a column");
    let (kinds, ids, texts) = (column("kind"), column("id"), column("json"));
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    (0..kinds.len())
        .map(|at| [text(&kinds[at]), text(&ids[at]), text(&texts[at])])
        .collect()
}

/// Documents as they are with some changed.
fn with_changes(
    random: &mut Random,
    table: &'static Table,
    documents: &[[String; 3]],
) -> (Batch, String) {
    let texts: Vec<String> = documents.iter().map(|it| it[2].clone()).collect();
    let (mut batch, mut all) = (Batch::new(table), String::new());
    let some = random.below(documents.len());
    for (at, document) in documents.iter().enumerate() {
        let mut document = document.clone();
        if at == some || random.below(12) == 0 {
            match random.below(8) {
                0 => document[0].clone_from(&random.of(documents)[0]),
                1 => document[1].clone_from(&random.of(documents)[1]),
                _ => document[2] = changed_json(random, &document[2], &texts),
            }
        }
        batch.push(&[
            Cell::Text(&document[0]),
            Cell::Text(&document[1]),
            Cell::Text(&document[2]),
        ]);
        all.push_str(&document.join("\t"));
        all.push('\n');
    }
    (batch, all)
}

fn ask_some(random: &mut Random, store: &Path) {
    let server = server(store);
    for _ in 0..ASKED {
        ask(&server, "GET", random.of::<String>(paths()));
    }
}

/// What a worker says: one document of each kind.
fn of_worker() -> Vec<[String; 3]> {
    let who = |more: serde_json::Value| {
        let mut all =
            json!({"application_id": ID, "executor_id": "1", "pid": 100, "uid": 7, "host": "h"});
        let fields = all.as_object_mut().expect("an object");
        fields.extend(more.as_object().expect("an object").clone());
        all
    };
    let held = json!({"rdd_id": 1, "stage_id": 0, "storage_heap_bytes": 4096, "storage_off_heap_bytes": 0,
        "execution_heap_bytes": 1024, "execution_off_heap_bytes": 0});
    let point = |ns: u64| json!({"time_ns": ns, "rdds": [held], "stages": [held]});
    let limits = json!([{"name": "cgroup", "limit_bytes": 1 << 30, "used_bytes": 1 << 20, "free_bytes": null}]);
    let finding = json!({"id": "never_read", "severity": "high", "title": "t", "window": "w", "computed": "c",
        "disproof": "d", "not_measured": ["m"], "cost": {"of": "o", "estimated": false},
        "subject": {"application_id": ID, "executor_ids": ["1"]},
        "numbers": [{"what": "blocks stored", "value": 4, "unit": "count"}],
        "saving": {"low": 1.0, "expected": 2.0, "high": 3.0},
        "remedies": [{"why": "free it", "lines": ["rdd.unpersist()"]}]});
    let counts = json!({"rdd_id": 1, "name": "links", "stage_id": 0, "stage_attempt": 0, "page_faults": 9,
        "storage_heap_bytes": 4096, "state": "ended", "duration_ns": 1_000_000});
    [
        ("worker", "", json!({"written_unix_ms": 1_790_000_099_000_i64, "written_boot_ns": 5_099_000_000_000_i64})),
        ("history", "1", who(json!({"interval_ns": 2_000_000_000, "points": [point(5_000_000_000_000), point(5_002_000_000_000)]}))),
        ("memory", "1", who(json!({"state": "alive", "parts": [], "children": [], "limits": limits, "peaks": {},
            "cgroup": {"path": "/a", "version": 2, "current_bytes": 0, "parts": []}}))),
        ("executor", "1.100", who(json!({"state": "gone", "page_faults": 5}))),
        ("stage", "0.0.1.100", who(counts.clone())),
        ("rdd", "1.1.100", who(counts)),
        ("places", "1", who(json!({"rdd_id": 1, "nodes": [], "page_sizes": []}))),
        ("death", "1", who(json!({"verdict": "oom", "said": ["x"], "memory": []}))),
        ("findings", ID, json!({"application_id": ID, "application_name": "n", "findings": [finding], "checks": []})),
    ]
    .map(|(kind, id, json)| [kind.to_owned(), id.to_owned(), json.to_string()])
    .into()
}

#[test]
fn changed_files_of_workers_change_answers_and_end_nothing() {
    let base = tempfile::tempdir().expect("a folder");
    let log = base.path().join("log");
    fs::write(&log, LINES.join("\n")).expect("written");
    let imported = base.path().join("store");
    let done = import(&imported, &log, Bounds::default(), &Admission::default());
    let tables = done.expect("imports").folder;
    let own = documents(&tables.join("meta.parquet"));
    let said = of_worker();
    rounds(|random| {
        let folder = tempfile::tempdir().expect("a folder");
        let store = folder.path();
        let copy = store.join(ID);
        fs::create_dir(&copy).expect("a folder");
        let mut all = String::new();
        for table in TABLES {
            let name = format!("{}.parquet", table.name);
            if table.name == META.name && random.below(2) == 0 {
                let (batch, text) = with_changes(random, &META, &own);
                all.push_str(&text);
                write(&META, &copy, &name, &batch);
            } else if table.name != META.name && random.below(3) == 0 {
                write(table, &copy, &name, &rows(random, table));
            } else {
                fs::copy(tables.join(&name), copy.join(&name)).expect("copied");
            }
        }
        let any = workers::Bounds {
            bytes: 1 << 30,
            files: 1 << 20,
        };
        for run in 0..1 + random.below(2) as u64 {
            let mut worker = Workers::take(store, "node-1", 10 + run, None, any).expect("opens");
            let (batch, text) = with_changes(random, &REST, &said);
            all.push_str(&text);
            let mut add = |batch: &Batch| {
                let done = worker.add(Whose::of(ID, 7), 0, batch, &|uid| uid);
                done.expect("writes");
            };
            add(&batch);
            for table in workers::TABLES.iter().take(3) {
                add(&rows(random, table));
            }
        }
        if random.below(4) == 0 {
            damage(random, &copy);
        }
        tried(all.as_bytes(), MEMORY, || ask_some(random, store));
    });
}

#[test]
fn changed_parts_of_a_driver_become_tables_or_an_error() {
    rounds(|random| {
        let folder = tempfile::tempdir().expect("a folder");
        let store = folder.path();
        let copy = store.join(ID);
        fs::create_dir(&copy).expect("a folder");
        let (mut all, parts) = (String::new(), 1 + random.below(3));
        for part in 0..parts {
            let mut batch = Batch::new(&META);
            let said = format!(r#"{{"version":1,"last":{}}}"#, part + 1 == parts);
            let said = match random.below(6) {
                0 => changed_json(random, &said, &LINES),
                _ => said,
            };
            batch.push(&[Cell::Text("part"), Cell::Text("1"), Cell::Text(&said)]);
            for (at, line) in LINES.iter().enumerate().skip(part).step_by(parts) {
                let number = match random.below(60) {
                    0 => random.of(&NUMBERS).to_string(),
                    _ => at.to_string(),
                };
                let line = match random.below(20) {
                    0 => changed_json(random, line, &LINES),
                    _ => line.clone(),
                };
                batch.push(&["event", number.as_str(), line.as_str()].map(Cell::Text));
                all.push_str(&line);
                all.push('\n');
            }
            write(&META, &copy, &format!("meta-{part:06}.parquet"), &batch);
            let name = format!("tasks-{part:06}.parquet");
            write(&PART, &copy, &name, &rows(random, &PART));
        }
        if random.below(4) == 0 {
            damage(random, &copy);
        }
        tried(all.as_bytes(), MEMORY, || {
            if random.below(2) == 0 {
                // An error is as good.
                let _ = live::compact(store, ID, true).is_ok();
            }
            ask_some(random, store);
        });
    });
}
