//! Tests of the document: well-formed for any claimed text, without external resources, and without unmeasured figures.

mod jobs;
mod looks;
mod tasks;
mod two_nodes;

use super::*;
use smtt_model::advise::{Finding, Severity, Subject};
use smtt_model::rows::{EarlierRun, ExecutorId, ExecutorRow, HistoryRow, NodeRow, PageSizeRow};
use smtt_model::state::FaultFigures;
use smtt_model::state::history::{PagePoint, Point, RddPoint, StagePoint};

/// Texts that an executor may claim about itself.
const HOSTILE: &str = "</title></bdi><script>alert(1)</script><img src=http://x/ onerror=alert(1)>'\"&amp;\u{0}\u{202e}\u{1b}]]>";
const MIB: u64 = 1 << 20;

fn status() -> Status {
    Status {
        version: "0.1.0".to_owned(),
        ready: true,
        ..Status::default()
    }
}

fn who(name: &str) -> ExecutorId {
    ExecutorId {
        application_id: Some(name.to_owned()),
        executor_id: Some(name.to_owned()),
        pid: 1,
        uid: Some(1000),
        ..ExecutorId::default()
    }
}

fn point(second: u64, rdds: u32) -> Point {
    let held = |id: u32| RddPoint {
        rdd_id: Some(id),
        storage_heap_bytes: u64::from(id + 1) * MIB,
        execution_off_heap_bytes: MIB,
        pages: Some(Box::new(PagePoint {
            present_bytes: MIB,
            page_sizes: Some(vec![PageSizeRow {
                page_bytes: 4096,
                bytes: MIB,
            }]),
            nodes: Some(vec![NodeRow {
                node: 1,
                bytes: MIB,
            }]),
            ..PagePoint::default()
        })),
        ..RddPoint::default()
    };
    Point {
        time_ns: second * 1_000_000_000,
        page_faults: Some(second * 1000),
        rdds: (0..rdds).map(held).collect(),
        stages: vec![StagePoint {
            stage_id: Some(3),
            execution_bytes: MIB,
            tasks: 1,
            largest_task_bytes: MIB,
            ..StagePoint::default()
        }],
        ..Point::default()
    }
}

/// Facts with `name` as every text, and `rdds` RDDs.
fn facts(name: &str, rdds: u32) -> Facts {
    let faults = FaultFigures {
        page_faults: Some(5000),
        ..FaultFigures::default()
    };
    let rdd = |id: u32| RddRow {
        who: who(name),
        rdd_id: Some(id),
        name: Some(name.to_owned()),
        call_site: Some(name.to_owned()),
        node: Some(format!("node {name}")),
        storage_level: Some(name.to_owned()),
        storage_memory_bytes: u64::from(id + 1) * MIB,
        storage_memory_peak_bytes: u64::from(id + 1) * MIB,
        blocks_stored: 1,
        faults,
        ..RddRow::default()
    };
    Facts {
        application: ApplicationReport {
            application_id: Some(name.to_owned()),
            application_name: Some(name.to_owned()),
            executors: vec![ExecutorRow {
                who: who(name),
                host: Some(name.to_owned()),
                spark_version: Some(name.to_owned()),
                state: smtt_model::rows::ExecutorState::Alive,
                ..ExecutorRow::default()
            }],
            ..ApplicationReport::default()
        },
        rdds: (0..rdds).map(rdd).collect(),
        pages: Vec::new(),
        jobs: vec![WorkOverWorkersRow {
            application_id: Some(name.to_owned()),
            job_id: Some(1),
            name: Some(name.to_owned()),
            course: smtt_model::rows::CourseRow {
                failure: Some(name.to_owned()),
                ..smtt_model::rows::CourseRow::default()
            },
            ..WorkOverWorkersRow::default()
        }],
        stages: vec![StageRow {
            who: who(name),
            stage_id: Some(3),
            name: Some(name.to_owned()),
            execution_memory_peak_bytes: MIB,
            ..StageRow::default()
        }],
        tasks: vec![TaskRow {
            who: who(name),
            execution_memory_peak_bytes: MIB,
            ..TaskRow::default()
        }],
        history: Histories {
            now_ns: 20_000_000_000,
            now_unix_ms: 1_700_000_000_000,
            rows: vec![HistoryRow {
                who: who(name),
                interval_ns: 2_000_000_000,
                points: (0..10).map(|at| point(at * 2, rdds)).collect(),
            }],
        },
        advice: ApplicationAdvice {
            findings: vec![Finding {
                id: "never_read".to_owned(),
                severity: Severity::High,
                title: name.to_owned(),
                subject: Subject {
                    executor_ids: vec![name.to_owned()],
                    call_site: Some(name.to_owned()),
                    node: Some(format!("node {name}")),
                    ..Subject::default()
                },
                ..Finding::default()
            }],
            ..ApplicationAdvice::default()
        },
        finding_hosts: Vec::new(),
        workers: vec![OfWorker {
            name: None,
            status: status(),
            surroundings: Surroundings::default(),
        }],
        asked: None,
        by: None,
        has_all_stages: true,
        tasks_total: 1,
        ended: Vec::new(),
        ended_longest: 0,
        ended_total: 0,
        ended_of: "this stage",
    }
}

fn parsed(page: &str) -> roxmltree::Document<'_> {
    let options = roxmltree::ParsingOptions {
        allow_dtd: true,
        ..roxmltree::ParsingOptions::default()
    };
    roxmltree::Document::parse_with_options(page, options).expect("well-formed")
}

#[test]
fn whatever_is_claimed_the_page_is_well_formed_and_asks_for_nothing() {
    for rdds in [0, 1, 30, 300] {
        for name in [
            HOSTILE,
            "",
            "a name that goes on and on ".repeat(200).as_str(),
        ] {
            let page = document::page(&facts(name, rdds));
            let document = parsed(&page);
            for node in document.descendants().filter(roxmltree::Node::is_element) {
                let element = node.tag_name().name();
                let is_ours = node.text() == Some(document::SCRIPT);
                assert!(
                    (element == "script") == is_ours,
                    "a script that is not the page's: {node:?}"
                );
                assert!(
                    !["img", "link", "iframe", "object", "base", "form"].contains(&element),
                    "{element}"
                );
                for attribute in node.attributes() {
                    let (name, value) = (attribute.name(), attribute.value());
                    assert!(!name.starts_with("on") && name != "src", "{name}");
                    assert!(name != "href" || value.starts_with('#'), "{value}");
                    assert!(name != "style" || value.starts_with("width:"), "{value}");
                }
            }
            assert_eq!(page.matches("<script").count(), 1, "one script");
            assert!(!include_str!("style.css").contains("url("));
            assert!(!page.contains(['\u{0}', '\u{1b}', '\u{202e}']));
        }
    }
}

#[test]
fn figures_are_in_their_rows_and_what_was_not_measured_has_none() {
    let mut restarted = facts("links", 2);
    let page = document::page(&restarted);
    assert!(!page.contains("Measured since"));
    let summary = &mut restarted.application.summary;
    summary.earlier_runs.push(EarlierRun::default());
    summary.measured_since_unix_ms = Some(61_000);
    let later = document::page(&restarted);
    assert!(later.contains("Measured since") && later.contains("00:01:01 UTC, after a restart"));
    let document = parsed(&page);
    let table = |id: &str| {
        let found = document
            .descendants()
            .find(|node| node.attribute("id") == Some(id));
        let cells = found
            .expect("the table")
            .descendants()
            .filter(|node| node.is_text());
        cells
            .filter_map(|node| node.text())
            .collect::<Vec<_>>()
            .join("|")
    };
    let holding = table("holding");
    assert!(
        holding.contains("links|RDD 0, 1") && holding.contains("3.0 MiB"),
        "{holding}"
    );
    // No page was examined and no read was attributed to a node: the columns are absent and the note says why.
    assert!(
        !holding.contains("Page sizes") && !holding.contains("Swapped"),
        "{holding}"
    );
    assert!(
        page.contains(
            "Not measured, so without a column: Reads, Page sizes, Nodes, Swapped, Remote reads."
        ),
        "{page}"
    );
    assert!(page.contains("Page walks were not measured: this CPU has no event for them."));
    assert!(table("costing").contains("10,000"));
    assert!(page.contains("node 1") && page.contains("4 KiB pages"));
}

#[test]
fn long_lists_are_cut_and_the_page_says_so() {
    let mut facts = facts("links", 300);
    facts.by = Some(By::Rdd);
    let page = document::page(&facts);
    let document = parsed(&page);
    let rows = document
        .descendants()
        .filter(|node| node.tag_name().name() == "tr")
        .count();
    assert!((400..450).contains(&rows), "{rows}");
    assert!(page.contains("100 more rows are left out"));
    assert!(page.contains("288 that held less have no charts"));
}

#[test]
fn file_names_stay_in_their_folder() {
    assert_eq!(stem("app-20260101-0001"), "app-20260101-0001");
    assert_eq!(stem("../../etc/passwd\u{0}"), "______etc_passwd_");
}

#[test]
fn no_page_takes_the_place_of_another_one() {
    let key = |id: &str, uid: u32| ApplicationKey {
        id: Some(id.to_owned()),
        attempt: None,
        uid: Some(uid),
    };
    let known = [
        key("app-1", 1000),
        key("app-1", 1001),
        key("app/2", 1000),
        key("app.2", 1000),
        key("app-1-user1000", 1002),
        key("app-3", 1000),
    ];
    assert_eq!(
        file_names(&known),
        [
            "app-1-user1000-2.html",
            "app-1-user1001.html",
            "app_2-user1000.html",
            "app_2-user1000-2.html",
            "app-1-user1000.html",
            "app-3.html"
        ]
    );
}

#[test]
fn times_of_a_process_that_a_worker_invents_make_a_page() {
    let mut facts = facts("app", 1);
    let process = Process {
        user_ns: Some(u64::MAX),
        system_ns: Some(u64::MAX),
        ..Process::default()
    };
    let processes = &mut facts.workers[0].surroundings.processes;
    processes.insert(facts.application.executors[0].who.pid, process);
    assert!(document::page(&facts).contains("CPU time"));
}

#[test]
fn replicas_are_no_further_partitions() {
    let mut facts = facts("app", 2);
    facts.by = Some(By::Rdd);
    for row in &mut facts.rdds {
        row.partitions = Some(4);
        row.partitions_cached = 4;
    }
    facts.rdds[0].storage_level = Some("Memory Serialized 2x Replicated".to_owned());
    facts.rdds[1].storage_level = Some("Memory Serialized 1x Replicated".to_owned());
    let replica = RddRow {
        who: who("other"),
        ..facts.rdds[0].clone()
    };
    facts.rdds.push(replica);
    let page = document::page(&facts);
    for cell in [">8 of 2 × 4<", ">4 of 4<"] {
        assert!(page.contains(cell), "no {cell} in {page}");
    }
}

#[test]
fn rdds_of_a_name_or_a_call_site_are_one_row_and_one_series() {
    let mut facts = facts("links", 3);
    for (row, name) in facts
        .rdds
        .iter_mut()
        .zip(["links", "MapPartitionsRDD", "ShuffledRDD"])
    {
        row.name = Some(name.to_owned());
        row.call_site = Some("join at Rank.scala:9".to_owned());
        row.storage_level_name = Some("MEMORY_AND_DISK_SER".to_owned());
    }
    let shown = |facts: &Facts| {
        let page = document::page(facts);
        let document = parsed(&page);
        let names = |id: &str, tag: &str| -> Vec<String> {
            let part = document
                .descendants()
                .find(|node| node.attribute("id") == Some(id));
            let names = part.into_iter().flat_map(|part| part.descendants());
            let names = names.filter(|node| node.has_tag_name(tag));
            names
                .filter_map(|name| {
                    let inside = name.descendants().find(|node| node.has_tag_name("bdi"))?;
                    Some(inside.text()?.to_owned())
                })
                .collect()
        };
        let rows = names("holding", "td");
        let figure = names("memory", "li");
        assert!(page.contains("MEMORY_AND_DISK_SER"), "{page}");
        let series = figure[..rows.len()].to_vec();
        (rows, series)
    };
    // RDDs 1 and 2 hold 2 and 3 MiB, RDD 0 one: the group of both is first, in the table and in the chart.
    let (rows, series) = shown(&facts);
    assert_eq!(rows, ["join at Rank.scala:9", "links"]);
    assert_eq!(series, rows);
    facts.by = Some(By::Rdd);
    let (rows, series) = shown(&facts);
    assert_eq!(rows, ["2: ShuffledRDD", "1: MapPartitionsRDD", "0: links"]);
    assert_eq!(series, rows);
}

#[test]
fn what_held_memory_for_longer_is_before_what_held_more() {
    let mut facts = facts("app", 2);
    facts.by = Some(By::Rdd);
    // RDD 1 holds 100 MiB at one of ten points, RDD 0 20 MiB at all of them.
    for (at, point) in facts.history.rows[0].points.iter_mut().enumerate() {
        point.rdds[0].storage_heap_bytes = 20 * MIB;
        point.rdds[1].storage_heap_bytes = if at == 4 { 100 * MIB } else { 0 };
        point.rdds[0].execution_off_heap_bytes = 0;
        point.rdds[1].execution_off_heap_bytes = 0;
    }
    let page = document::page(&facts);
    let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("no {text}"));
    assert!(at("<bdi>0: app</bdi>") < at("<bdi>1: app</bdi>"));
    // 20 MiB for 18 s, 100 MiB for 2 s.
    assert!(page.contains("360.0 MiB·s") && page.contains("200.0 MiB·s"));
}

#[test]
fn the_first_sentence_says_what_was_lost_where() {
    const MS: u64 = 1_000_000;
    let mut facts = facts("links", 1);
    let lead = |facts: &Facts| {
        let page = document::page(facts);
        let document = parsed(&page);
        let mut all = document.descendants();
        let line = all.find(|node| node.attribute("id") == Some("lead"));
        let texts = line.into_iter().flat_map(|line| line.descendants());
        texts
            .filter(roxmltree::Node::is_text)
            .filter_map(|node| node.text())
            .collect::<String>()
    };
    assert!(lead(&facts).starts_with("No task has ended yet"));
    let stage = |id: u32, task_ms: u64, collection_ms: u64| {
        let mut row = facts.stages[0].clone();
        row.stage_id = Some(id);
        row.name = Some("map".to_owned());
        row.task_time_ns = task_ms * MS;
        row.used.collection_ns = Some(collection_ms * MS);
        row.used.cpu_wait_ns = Some(1);
        row.used.memory_spilled_bytes = (id == 4).then_some(3 * MIB);
        row
    };
    facts.stages = vec![stage(3, 10_000, 1000), stage(4, 30_000, 3200)];
    let timed = |ms: u64| smtt_model::state::FaultFigures {
        page_faults: Some(500_000),
        page_faults_timed: Some(1000),
        page_fault_time_ns: Some(ms * MS),
        page_fault_time_error_ns: Some(100 * MS),
        ..smtt_model::state::FaultFigures::default()
    };
    for executor in &mut facts.application.executors {
        executor.faults = smtt_model::state::FaultFigures::default();
    }
    facts.application.executors[0].faults = timed(1900);
    facts.rdds[0].faults.page_fault_time_ns = Some(1200 * MS);
    let spans = &mut facts.application.executors[0].spans;
    spans.insert(
        "shuffle_fetch".to_owned(),
        smtt_model::rows::SpanRow {
            count: 3,
            duration_ns: 800 * MS,
        },
    );
    facts.advice.findings[0].saving = Some(smtt_model::advise::Saving::new(1.0, 2.0, 3.0));
    assert_eq!(
        lead(&facts),
        "Of 40.0 s of task time, 4.2 s (10.5 %) went to garbage collection, most in stage 4: map (3.2 s); \
         1.9 s \u{b1} 0.1 s (4.8 %) went to page faults, most in links (1.2 s); \
         0.8 s (2.0 %) went to waits for shuffle data. \
         3.0 MiB were spilled, most in stage 4: map (3.0 MiB). \
         The remedy that saves most: links, 2.0 s (between 1.0 s and 3.0 s)."
    );
    let page = document::page(&facts);
    assert!(page.contains("Not measured, so in no sum: waits for a disk."));
    facts.has_all_stages = false;
    facts.stages[0].faults = timed(1900);
    let said = lead(&facts);
    assert!(said.starts_with("Of 40.0 s of task time of the 2 stages on this page, "));
    // Fetches are those of whole executors.
    assert!(said.contains("1.9 s \u{b1} 0.1 s (4.8 %) went to page faults"));
    assert!(
        said.contains("0.8 s went to waits for shuffle data"),
        "{said}"
    );
    facts.has_all_stages = true;
    facts.stages[0].tasks_running = 99;
    facts.application.executors[0].faults = timed(99_000);
    let said = lead(&facts);
    assert!(
        said.starts_with("Beside 40.0 s of task time that has ended, and in running tasks: 99.0 s \u{b1} 0.1 s went to page faults"),
        "{said}"
    );
    assert!(!said.contains('%'), "{said}");
}

#[test]
fn only_the_pages_own_script_may_run() {
    let page = document::page(&facts("app", 1));
    let start = page.find("<script>").expect("a script") + "<script>".len();
    let script = &page[start..start + page[start..].find("</script>").expect("its end")];
    // As a browser does it.
    let digest = base64::Engine::encode(
        &base64::engine::general_purpose::STANDARD,
        <sha2::Sha256 as sha2::Digest>::digest(script),
    );
    assert!(page.contains(&format!("script-src &#39;sha256-{digest}&#39;")));
}
