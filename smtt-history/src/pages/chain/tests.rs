//! Chains of known shape: the table has every RDD with its parents, the picture a box for each and a line for each parent.

use serde_json::{Value, json};
use smtt_store::history::batch::{Batch, Cell};
use smtt_store::history::workers::{Bounds, REST, Whose, Workers};

use super::super::tests::{HOSTILE, Site, log};
use super::{ATTEMPTS, BYTES, Chain, Rdd, STAGES, others, places};

/// A log whose stage 0 has RDDs: id, parents, whether it is stored.
fn with(rdds: &[(i64, &[i64], bool)], stages: &str) -> String {
    let info = |(id, parents, stored): &(i64, &[i64], bool)| -> Value {
        json!({"RDD ID": id, "Name": format!("{id} {HOSTILE}"), "Callsite": HOSTILE, "Parent IDs": parents,
            "Scope": json!({"id": "1", "name": HOSTILE, "parent": {"id": "0", "name": "outer"}}).to_string(),
            "Number of Partitions": 7, "Storage Level": {"Use Memory": stored, "Replication": 1}})
    };
    let all = Value::from(rdds.iter().map(info).collect::<Vec<_>>());
    let text = log("app-1", "");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let at = lines
        .iter()
        .position(|line| line.contains("StageSubmitted"))
        .expect("has a stage");
    let mut event: Value = serde_json::from_str(&lines[at]).expect("is JSON");
    event["Stage Info"]["RDD Info"] = all;
    event["Stage Info"]["Parent IDs"] = serde_json::from_str(stages).expect("is JSON");
    lines[at] = event.to_string();
    for id in ["1", "2"] {
        let added = json!({"Event": "SparkListenerExecutorAdded", "Timestamp": 1100, "Executor ID": id,
            "Executor Info": {"Host": "node", "Total Cores": 1}});
        lines.insert(at, added.to_string());
    }
    lines.join("\n")
}

fn count(text: &str, what: &str) -> usize {
    text.matches(what).count()
}

#[tokio::test]
async fn the_picture_and_the_table_have_every_rdd_and_names_are_text() {
    // 5 is read through a shuffle; 8 reads two; 9 is the last one.
    let site = Site::new(&[with(
        &[
            (6, &[5], false),
            (7, &[], true),
            (8, &[6, 7], false),
            (9, &[8], true),
        ],
        "[]",
    )]);
    let (_, _, text) = site.get("/applications/app-1/stages/0/0").await;
    let (_, section) = text.split_once("id=\"chain\"").expect("has the section");
    let said = section.split("</p>").next().unwrap_or_default();
    let said = said.replace("<code>", "").replace("</code>", "");
    assert!(
        said.contains(
            "compute of the RDD below calls iterator of the one above for its records, which calls its own compute. At an RDD \
             with a storage level the calls end where the block is there."
        ),
        "{said}"
    );
    assert_eq!(count(section, "<rect x="), 5);
    assert_eq!(count(section, "<path class=\"edge"), 4);
    assert_eq!(count(section, "<path class=\"edge shuffle\""), 1);
    assert_eq!(
        (
            count(section, "<g class=\"stored\">"),
            count(section, "<g class=\"outside\">")
        ),
        (2, 1)
    );
    let (_, table) = section
        .split_once("id=\"rdds-of-stage\"")
        .expect("has the table");
    let heads: Vec<&str> = table
        .split("<th scope=\"row\">")
        .skip(1)
        .filter_map(|row| row.split('<').next())
        .collect();
    assert_eq!(heads, ["9", "8", "7", "6", "5"]);
    assert!(
        table.contains("<td class=\"words\">6, 7</td>") && table.contains("outer / "),
        "{table}"
    );
    assert!(table.contains("another stage"), "{table}");
    for markup in ["<script>", "\" onx", "style=", " onclick"] {
        assert!(!text.contains(markup), "{markup}: {text}");
    }
    assert!(count(section, "&lt;script&gt;") >= 4 * 4, "{section}");
}

/// Writes what a daemon says of RDDs.
fn worker(store: &std::path::Path, host: &str, run: u64, rows: &[Value]) {
    let rows: Vec<(&str, &Value)> = rows.iter().map(|row| ("rdd", row)).collect();
    documents(store, host, run, &rows);
}

/// Writes documents of a daemon by their kinds, without ids.
fn documents(store: &std::path::Path, host: &str, run: u64, rows: &[(&str, &Value)]) {
    let rows: Vec<(&str, &str, String)> = rows
        .iter()
        .map(|(kind, row)| (*kind, "", row.to_string()))
        .collect();
    with_ids(store, host, run, &rows);
}

/// Writes documents of a daemon: kind, id and text.
fn with_ids(store: &std::path::Path, host: &str, run: u64, rows: &[(&str, &str, String)]) {
    let any = Bounds {
        bytes: 1 << 30,
        files: 1 << 20,
    };
    let mut batch = Batch::new(&REST);
    for (kind, id, row) in rows {
        batch.push(&[Cell::Text(kind), Cell::Text(id), Cell::Text(row)]);
    }
    let mut workers = Workers::take(store, host, run, None, any).expect("opens");
    let done = workers.add(Whose::of("app-1", 7), 0, &batch, &|uid| uid);
    done.expect("writes");
}

#[tokio::test]
async fn the_chain_has_what_workers_measured_and_absent_is_absent() {
    let site = Site::new(&[with(
        &[(6, &[], true), (7, &[6], false), (8, &[7], false)],
        "[]",
    )]);
    let (_, _, text) = site.get("/applications/app-1/stages/0/0").await;
    assert!(!text.contains("id=\"measured\""), "{text}");
    let row = |executor: &str, pid: u32, rdd: u32, more: Value| {
        let mut row = json!({"executor_id": executor, "pid": pid, "rdd_id": rdd, "name": HOSTILE});
        let fields = row.as_object_mut().expect("is a map");
        fields.extend(more.as_object().expect("is a map").clone());
        row
    };
    let of_6 = |peak: u64| {
        json!({"storage_memory_peak_bytes": peak << 20, "execution_memory_peak_bytes": 1 << 20, "blocks_stored": 4,
        "blocks_evicted": 1, "block_reads": 10, "page_faults": 1000, "page_walk_samples": 7})
    };
    // Two runs of a daemon with the same executor, one of another worker, and an RDD without the probes.
    worker(&site.store(), "node-1", 1, &[row("1", 11, 6, of_6(5))]);
    worker(
        &site.store(),
        "node-1",
        2,
        &[row("1", 11, 6, of_6(3)), json!("no row")],
    );
    worker(
        &site.store(),
        "node-2",
        1,
        &[
            row("2", 12, 6, of_6(2)),
            row("2", 12, 7, json!({"blocks_stored": 0})),
        ],
    );
    let (_, _, text) = site.get("/applications/app-1/stages/0/0").await;
    let (_, table) = text
        .split_once("id=\"rdds-of-stage\"")
        .expect("has the table");
    let cells = |id: &str| -> Vec<String> {
        let row = table
            .split(&format!("<th scope=\"row\">{id}</th>"))
            .nth(1)
            .expect("has the RDD");
        let row = row.split("</tr>").next().unwrap_or_default();
        let all: Vec<String> = row
            .split("<td")
            .skip(1)
            .map(|cell| {
                let (_, cell) = cell.split_once('>').unwrap_or_default();
                let cell = cell.replace(
                    "<span class=\"soft\" title=\"not measured, or not yet\">",
                    "",
                );
                cell.split('<').next().unwrap_or_default().to_owned()
            })
            .collect();
        all[all.len() - 7..].to_vec()
    };
    // Held: the larger peak of executor 1 and that of executor 2.
    assert_eq!(
        cells("6"),
        ["7.0 MiB", "2.0 MiB", "30", "12", "3", "3,000", "21"]
    );
    assert_eq!(cells("7"), ["0 B", "0 B", "–", "0", "0", "–", "–"]);
    assert_eq!(cells("8"), ["–"; 7]);
    assert!(text.contains("id=\"measured\""), "{text}");
    assert!(
        text.contains("Σ 7.0 MiB, 3,000 faults") && text.contains("30 blocks read"),
        "{text}"
    );
    for markup in ["<script>", "\" onx", "style="] {
        assert!(!text.contains(markup), "{markup}: {text}");
    }
}

/// The last cells of an RDD's row.
fn cells_of(text: &str, id: &str, last: usize) -> Vec<String> {
    let (_, table) = text
        .split_once("id=\"rdds-of-stage\"")
        .expect("has the table");
    let row = table.split(&format!("<th scope=\"row\">{id}</th>")).nth(1);
    let row = row.and_then(|row| row.split("</tr>").next());
    let cells = row.expect("has the RDD").split("<td").skip(1);
    let all: Vec<String> = cells
        .map(|cell| {
            let text = cell.split_once('>').unwrap_or_default().1;
            let text = text.split('>').find(|part| !part.starts_with('<'));
            text.and_then(|it| it.split('<').next())
                .unwrap_or_default()
                .to_owned()
        })
        .collect();
    all[all.len() - last..].to_vec()
}

#[tokio::test]
async fn a_stage_has_its_own_faults_beside_those_of_the_application() {
    let site = Site::new(&[with(&[(6, &[], true), (7, &[6], false)], "[]")]);
    let stage = |executor: &str, stage: i64, attempt: i64, faults: u64| {
        json!({"executor_id": executor, "pid": 1, "stage_id": stage, "stage_attempt": attempt, "rdds": [
            {"rdd_id": 6, "name": HOSTILE, "page_faults": faults, "page_faults_read": 1, "page_faults_write": faults - 1,
                "page_walk_samples": 3},
            {"rdd_id": null, "page_faults": 90_000}]})
    };
    let of_6 = json!({"executor_id": "1", "pid": 1, "rdd_id": 6, "storage_memory_peak_bytes": 1 << 20, "page_faults": 5_000,
        "blocks_stored": 4});
    let (own, retry, other) = (
        stage("1", 0, 0, 300),
        stage("1", 0, 1, 70),
        stage("1", 1, 0, 2_000),
    );
    let elsewhere = stage("2", 0, 0, 40);
    documents(
        &site.store(),
        "node-1",
        1,
        &[
            ("rdd", &of_6),
            ("stage", &own),
            ("stage", &retry),
            ("stage", &other),
        ],
    );
    documents(&site.store(), "node-2", 1, &[("stage", &elsewhere)]);
    let (_, _, text) = site.get("/applications/app-1/stages/0/0").await;
    let cells = cells_of(&text, "6", 13);
    assert_eq!(cells[..6], ["–", "–", "340", "2", "338", "6"], "{cells:?}");
    assert_eq!(
        (cells[6].as_str(), cells[11].as_str()),
        ("1.0 MiB", "5,000")
    );
    assert_eq!(cells_of(&text, "7", 13), ["–"; 13]);
    // The box has the stage's own figures.
    assert!(text.contains(">340 faults</text>"), "{text}");
    assert!(text.contains("Measured in this stage"), "{text}");
}

/// A document of a stage with 7 page faults on RDD 6.
fn of_stage(executor: &str) -> String {
    json!({"executor_id": executor, "pid": 1, "stage_id": 0, "stage_attempt": 0, "rdds": [{"rdd_id": 6, "page_faults": 7}]})
        .to_string()
}

/// A document of an RDD.
fn of_rdd(id: i64) -> String {
    json!({"executor_id": "1", "pid": 1, "rdd_id": id, "page_faults": 5_000, "blocks_stored": 4})
        .to_string()
}

#[tokio::test]
async fn too_many_documents_of_other_stages_and_rdds_leave_the_page_whole() {
    let site = Site::new(&[with(&[(6, &[], true)], "[]")]);
    let long = format!("\"{}\"", "x".repeat(1 << 20));
    let mut rows = vec![
        ("stage", "0.0.1.1", of_stage("1")),
        // Without a stage in its id, as a row whose stage the daemon does not know.
        ("stage", "2.1", of_stage("2")),
        ("rdd", "6.1.1", of_rdd(6)),
    ];
    // Together more than an answer reads.
    for _ in 0..130 {
        rows.push(("stage", "1.0.1.1", long.clone()));
        rows.push(("rdd", "7.1.1", long.clone()));
    }
    with_ids(&site.store(), "node-1", 1, &rows);
    let (_, _, text) = site.get("/applications/app-1/stages/0/0").await;
    let cells = cells_of(&text, "6", 13);
    assert_eq!((cells[2].as_str(), cells[11].as_str()), ("14", "5,000"));
    // The memory over time reads all RDDs for their names.
    assert!(!text.contains("page walks, is missing"), "{text}");
    assert!(!text.contains("application is missing"), "{text}");
}

#[tokio::test]
async fn too_many_documents_of_the_stage_leave_the_application_and_name_no_path() {
    let site = Site::new(&[with(&[(6, &[], true)], "[]")]);
    let long = format!("\"{}\"", "x".repeat(1 << 20));
    let mut rows = vec![("rdd", "6.1.1", of_rdd(6))];
    for _ in 0..130 {
        rows.push(("stage", "0.0.1.1", long.clone()));
    }
    with_ids(&site.store(), "node-1", 1, &rows);
    let (_, _, text) = site.get("/applications/app-1/stages/0/0").await;
    let cells = cells_of(&text, "6", 13);
    assert_eq!((cells[2].as_str(), cells[11].as_str()), ("–", "5,000"));
    assert!(
        text.contains("page walks, is missing: the documents have more than"),
        "{text}"
    );
    // A file that is no table: why goes to the server's log.
    site.spoil_workers();
    let (status, _, text) = site.get("/applications/app-1/stages/0/0").await;
    assert_eq!(status.as_u16(), 200);
    assert!(
        text.contains("is missing: the tables cannot be read: the server"),
        "{text}"
    );
    assert!(
        !text.contains(&site.store().display().to_string()),
        "{text}"
    );
}

#[tokio::test]
async fn rows_of_executors_of_another_attempt_are_not_added() {
    let site = Site::new(&[with(&[(6, &[], true)], "[]")]);
    let other = of_rdd(6).replace("\"1\"", "\"3\"");
    let rows = [
        ("stage", "0.0.1.1", of_stage("1")),
        ("stage", "0.0.2.1", of_stage("2")),
        ("stage", "0.0.3.1", of_stage("3")),
        ("rdd", "6.1.1", of_rdd(6)),
        ("rdd", "6.3.1", other),
    ];
    with_ids(&site.store(), "node-1", 1, &rows);
    let (_, _, text) = site.get("/applications/app-1/stages/0/0").await;
    let cells = cells_of(&text, "6", 13);
    assert_eq!((cells[2].as_str(), cells[11].as_str()), ("14", "5,000"));
}

#[tokio::test]
async fn circles_and_crowds_have_an_end() {
    // A parent that is made later, itself as a parent, the same one twice, and more RDDs than a picture has.
    let many: Vec<(i64, Vec<i64>)> = (0..3000_i64)
        .map(|id| (id, vec![id - 1, id + 1, id, id - 1]))
        .collect();
    let many: Vec<(i64, &[i64], bool)> = many
        .iter()
        .map(|(id, parents)| (*id, parents.as_slice(), false))
        .collect();
    let site = Site::new(&[with(&many, "[0, 1, 2147483647]")]);
    let (status, _, text) = site.get("/applications/app-1/stages/0/0").await;
    assert_eq!(status.as_u16(), 200);
    assert_eq!(count(&text, "<rect x="), super::DRAWN);
    assert_eq!(count(&text, "<path class=\"edge"), super::DRAWN - 1);
    assert!(
        text.contains("1000 earlier RDDs are left out"),
        "{}",
        &text[text.len() - 4000..]
    );
}

#[test]
fn each_document_of_the_stages_before_is_read_once_and_all_are_bounded() {
    let asked = |stages: &[i64], has: &dyn Fn(&str) -> bool, text: &str| {
        let mut asked: Vec<String> = Vec::new();
        let found = others(&json!({"parentStageIds": stages}), |id| {
            asked.push(id.to_owned());
            has(id).then_some(text)
        });
        (asked, found.len())
    };
    let small = r#"{"rdds":[{"id":1}]}"#;
    // One stage fifty times, then another one.
    let mut same = vec![7; 50];
    same.push(8);
    let (ids, found) = asked(&same, &|id| id == "7.0" || id == "8.0", small);
    assert_eq!(
        (ids, found),
        (["7.0", "7.1", "8.0", "8.1"].map(str::to_owned).to_vec(), 1)
    );
    // No end of attempts, and of stages.
    let (ids, _) = asked(&[7], &|_| true, small);
    assert_eq!(ids.len(), ATTEMPTS as usize);
    let many: Vec<i64> = (0..1000).collect();
    let (ids, _) = asked(&many, &|_| true, small);
    assert_eq!(ids.len(), STAGES * ATTEMPTS as usize);
    // The fifth document is beyond the bytes.
    let large = format!("{small}{}", " ".repeat(BYTES / 4 - small.len()));
    let (ids, found) = asked(&[7], &|_| true, &large);
    assert_eq!((ids.len(), found), (5, 1));
}

#[test]
fn an_rdd_is_below_all_that_it_reads() {
    let rdd = |parents: &[i64]| Rdd {
        parents: parents.iter().copied().collect(),
        ..Rdd::default()
    };
    let chain = Chain {
        rdds: [
            (1, rdd(&[])),
            (2, rdd(&[])),
            (3, rdd(&[1])),
            (4, rdd(&[2, 3])),
            (5, rdd(&[1, 4])),
        ]
        .into(),
        left_out: 0,
        missing: std::collections::BTreeSet::new(),
    };
    let (places, (width, height)) = places(&chain.rdds);
    for (id, rdd) in &chain.rdds {
        for parent in &rdd.parents {
            assert!(places[parent].1 < places[id].1, "{places:?}");
        }
    }
    // 2 is read by 4 only, which is below 3.
    assert_eq!(places[&2].1, places[&3].1, "{places:?}");
    let mut all: Vec<(i64, i64)> = places.values().copied().collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 5, "no two at one place: {places:?}");
    assert!(
        all.iter()
            .all(|(x, y)| x + super::BOX.0 < width + 1 && y + super::BOX.1 < height + 1)
    );
}
