//! The metrics of a small state, in both formats.

use super::*;
use std::collections::BTreeSet;
use std::path::PathBuf;

use smtt_common::counter::{ContextKey, ExecutorCounters, FaultCounters};
use smtt_model::decode::{
    BlockFact, BlockRemoved, Event, ExecutorDescribed, Fact, Outcome, RddDescribed, TaskEnded,
    TaskStarted,
};
use smtt_model::ledger::{DecodeCounts, SourceCounts};
use smtt_model::readings::Readings;
use smtt_model::state::{CgroupMemory, KernelMemory, Limits};
use smtt_model::verdict::{Verdict, VerdictState};

use crate::shared::DaemonInfo;

mod values;

/// Container of the executors.
const CONTAINER: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

/// A state and the exporter of its metrics.
pub(super) struct Exported {
    shared: Shared,
    pub(super) exporter: Exporter,
}

impl std::ops::Deref for Exported {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

pub(super) fn shared(keys: usize) -> Exported {
    shared_with(MetricsSettings::at_once(keys))
}

pub(super) fn shared_with(metrics: MetricsSettings) -> Exported {
    shared_within(metrics, Limits::default())
}

fn shared_within(metrics: MetricsSettings, limits: Limits) -> Exported {
    let info = DaemonInfo {
        version: "0.1.0".to_owned(),
        kernel_side: "test".to_owned(),
        telemetry_path: "/metrics".to_owned(),
        metrics,
        doctor: Vec::new,
    };
    let shared = Shared::new(info, limits);
    let verdict = |probe: &str, verdict| Verdict {
        name: probe.to_owned(),
        hook: String::new(),
        verdict,
        reason: String::new(),
    };
    shared.set_verdicts(vec![
        verdict("fault", VerdictState::Ok),
        verdict("fault", VerdictState::NotApplicable),
        verdict("fork", VerdictState::Unsupported),
    ]);
    shared.set_bpf_memory_bytes(4096);
    let exporter = Exporter::new(metrics);
    Exported { shared, exporter }
}

pub(super) fn apply(shared: &Shared, executor: u64, fact: Fact) {
    shared.state().apply(Event {
        time_ns: 1,
        executor,
        pid: executor as u32,
        tid: 1,
        uid: 1000,
        fact,
    });
}

pub(super) fn described(shared: &Shared, executor: u64, id: &str) {
    let described = ExecutorDescribed {
        application_id: "app-1".to_owned(),
        application_name: "Page \"Rank\"\\".to_owned(),
        queue: "root.etl".to_owned(),
        kubernetes_namespace: "analytics".to_owned(),
        kubernetes_pod: "pagerank-exec-1".to_owned(),
        executor_id: id.to_owned(),
        ..ExecutorDescribed::default()
    };
    apply(
        shared,
        executor,
        Fact::ExecutorDescribed(Box::new(described)),
    );
}

/// The kernel's name of an executor's control group is that of its container.
fn in_container(shared: &Shared, executor: u64) {
    let cgroup = CgroupMemory {
        path: format!("kubepods/burstable/pod5f7b/{CONTAINER}"),
        ..CgroupMemory::default()
    };
    let kernel = KernelMemory {
        cgroup: Some(cgroup),
        ..KernelMemory::default()
    };
    shared.state().set_memory(executor, kernel, 1);
}

pub(super) fn count(shared: &Shared, executor: u64, rdd: Option<u32>, growth: FaultCounters) {
    let context = ContextKey {
        executor,
        rdd_plus_one: rdd.map_or(0, |rdd| rdd + 1),
        ..ContextKey::default()
    };
    let mut counters = ExecutorCounters {
        attributed: growth,
        ..ExecutorCounters::default()
    };
    counters.unattributed[1].read = 3;
    let readings = Readings {
        contexts: vec![(context, growth)],
        executors: vec![(executor, counters)],
        before: vec![(executor, 11)],
        access_known: true,
        major_known: true,
        ..Readings::default()
    };
    shared.state().add(&readings, 2);
}

pub(super) fn reads(read: u64) -> FaultCounters {
    FaultCounters {
        read,
        ..FaultCounters::default()
    }
}

pub(super) fn scrape(shared: &Exported, accept: &str) -> String {
    scrape_for(shared, accept, Names::Shown)
}

fn scrape_for(shared: &Exported, accept: &str, names: Names) -> String {
    let format = Format::accepted(accept);
    let text = shared
        .exporter
        .scrape(shared, format, names, Reader::Scraper);
    text.expect("written")
}

/// The value of one series of the text format.
pub(super) fn value<'a>(text: &'a str, series: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))
}

fn small() -> Exported {
    let shared = shared(100);
    described(&shared, 1, "0");
    in_container(&shared, 1);
    let name = "MapPartitionsRDD\n\"x\"".to_owned();
    apply(
        &shared,
        1,
        Fact::RddDescribed(Box::new(RddDescribed {
            rdd_id: 7,
            name,
            ..RddDescribed::default()
        })),
    );
    let block = BlockFact {
        block_id: "rdd_7_0".to_owned(),
        rdd_id: Some(7),
        size_bytes: 1500,
        ..BlockFact::default()
    };
    apply(&shared, 1, Fact::BlockStored(Box::new(block)));
    count(
        &shared,
        1,
        Some(7),
        FaultCounters {
            read: 10,
            write: 5,
            major: 2,
            ..FaultCounters::default()
        },
    );
    shared.tick(
        SourceCounts {
            taken: 4,
            malformed: 1,
        },
        &DecodeCounts {
            attempted: 3,
            decoded: 3,
            ..DecodeCounts::default()
        },
    );
    shared
}

#[test]
fn the_text_format_has_every_figure() {
    let text = scrape(&small(), "");
    let labels = r#"application_id="app-1",application_name="Page \"Rank\"\\",user="1000",rdd="MapPartitionsRDD\n\"x\"""#;
    for (metric, access, expected) in [
        ("smtt_rdd_page_faults_total", ",access=\"read\"", Some("10")),
        ("smtt_rdd_page_faults_total", ",access=\"write\"", Some("5")),
        ("smtt_rdd_page_faults_total", ",access=\"unknown\"", None),
        ("smtt_rdd_major_page_faults_total", "", Some("2")),
        ("smtt_rdd_storage_memory_bytes", "", Some("1500")),
        ("smtt_rdd_execution_memory_bytes", "", None),
        ("smtt_rdd_partitions_cached", "", Some("1")),
        ("smtt_rdd_blocks_stored_total", "", Some("1")),
        ("smtt_rdd_block_reads_total", "", None),
    ] {
        assert_eq!(
            value(&text, &format!("{metric}{{{labels}{access}}}")),
            expected,
            "{metric} in\n{text}"
        );
    }
    for (series, expected) in [
        (
            r#"smtt_build_info{version="0.1.0",kernel_side="test"}"#,
            "1",
        ),
        (r#"smtt_probe_up{probe="fault"}"#, "1"),
        (r#"smtt_probe_up{probe="fork"}"#, "0"),
        (
            r#"smtt_executor_info{application_id="app-1",user="1000",application_name="Page \"Rank\"\\",executor_id="0",queue="root.etl",kubernetes_namespace="analytics",kubernetes_pod="pagerank-exec-1",container_id="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}"#,
            "1",
        ),
        (
            r#"smtt_executor_page_faults_total{application_id="app-1",user="1000",executor_id="0",attribution="attributed"}"#,
            "15",
        ),
        (
            r#"smtt_executor_page_faults_total{application_id="app-1",user="1000",executor_id="0",attribution="unattributed"}"#,
            "3",
        ),
        (
            r#"smtt_executor_page_faults_total{application_id="app-1",user="1000",executor_id="0",attribution="before_tracing"}"#,
            "11",
        ),
        (
            r#"smtt_events_lost_total{hop="source",cause="malformed"}"#,
            "1",
        ),
        (r#"smtt_events_attempted_total{hop="aggregate"}"#, "3"),
        ("smtt_bpf_memory_bytes", "4096"),
        ("smtt_rdd_keys_refused_total", "0"),
    ] {
        assert_eq!(value(&text, series), Some(expected), "{series} in\n{text}");
    }
    assert!(text.contains("# TYPE smtt_executor_page_faults_total counter\n"));
    assert!(value(&text, "process_resident_memory_bytes").is_some());
}

#[test]
fn every_line_of_the_text_format_is_of_a_known_metric_and_no_series_comes_twice() {
    let text = scrape(&small(), "text/plain");
    let mut seen = BTreeSet::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, number) = line.rsplit_once(' ').expect("a sample");
        number.parse::<f64>().expect("a number");
        let name = series.split('{').next().expect("a name");
        assert!(METRICS.iter().any(|metric| metric.name == name), "{name}");
        assert!(seen.insert(series.to_owned()), "{series} twice");
    }
}

#[test]
fn openmetrics_is_given_where_it_is_asked_for() {
    let shared = small();
    let accept = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
    assert_eq!(Format::accepted(accept).content_type(), OPENMETRICS);
    let text = scrape(&shared, accept);
    assert!(text.ends_with("# EOF\n"));
    assert!(
        text.contains("# TYPE smtt_rdd_page_faults counter\n"),
        "{text}"
    );
    let series = r#"smtt_rdd_page_faults_total{application_id="app-1",application_name="Page \"Rank\"\\",user="1000",rdd="MapPartitionsRDD\n\"x\"",access="read"} 10"#;
    assert!(text.lines().any(|line| line == series), "{text}");
    assert!(text.contains("# TYPE smtt_executor info\n"), "{text}");
    assert!(
        text.lines()
            .any(|line| line.starts_with("smtt_executor_info{application_id=\"app-1\",")),
        "{text}"
    );
    assert!(!wants_openmetrics(
        "application/openmetrics-text;q=0.2,text/plain;q=0.5"
    ));
    assert!(!wants_openmetrics("application/openmetrics-text;q=0"));
    assert!(!wants_openmetrics("*/*"));
}

#[test]
fn what_was_not_measured_has_no_series() {
    let shared = shared(100);
    shared.set_verdicts(Vec::new());
    described(&shared, 1, "0");
    let block = BlockFact {
        block_id: "rdd_7_0".to_owned(),
        rdd_id: Some(7),
        size_bytes: 10,
        ..BlockFact::default()
    };
    apply(&shared, 1, Fact::BlockStored(Box::new(block)));
    let text = scrape(&shared, "");
    assert!(!text.contains("page_faults"), "{text}");
    assert!(text.contains("smtt_rdd_storage_memory_bytes{"));
}

#[test]
fn the_metrics_document_is_what_the_table_says() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/METRICS.md");
    let text = document();
    if std::env::var_os("SMTT_BLESS").is_some() {
        std::fs::write(&path, &text).expect("written");
    }
    let written = std::fs::read_to_string(&path).expect("docs/METRICS.md");
    assert_eq!(
        written, text,
        "docs/METRICS.md is out of date: SMTT_BLESS=1 cargo test -p smtt-daemon"
    );
}

#[test]
fn the_table_keeps_the_rules_of_names() {
    let mut names = BTreeSet::new();
    for metric in METRICS {
        assert!(names.insert(metric.name), "{} twice", metric.name);
        assert_eq!(
            metric.name.ends_with("_total"),
            metric.kind == Kind::Counter,
            "{}",
            metric.name
        );
        assert_eq!(
            metric.name.ends_with("_info"),
            metric.kind == Kind::Info,
            "{}",
            metric.name
        );
        assert!(
            !metric.help.ends_with('.') && !metric.help.is_empty(),
            "{}",
            metric.name
        );
    }
}

#[test]
fn where_bytes_are_has_series_once_it_was_looked_at() {
    use smtt_model::state::{Accessed, ResolveCounts, Resolved, Seen, SizesBy};
    let shared = shared(1);
    described(&shared, 1, "0");
    for (rdd, bytes) in [(7, 8192), (8, 4096)] {
        let said = RddDescribed {
            rdd_id: rdd,
            name: rdd.to_string(),
            ..RddDescribed::default()
        };
        apply(&shared, 1, Fact::RddDescribed(Box::new(said)));
        let block = BlockFact {
            block_id: format!("rdd_{rdd}_0"),
            rdd_id: Some(rdd),
            size_bytes: bytes,
            serialized: true,
            range_total: 1,
            ranges: vec![(u64::from(rdd) << 20, bytes)],
            ..BlockFact::default()
        };
        apply(&shared, 1, Fact::BlockStored(Box::new(block)));
    }
    let before = scrape(&shared, "");
    assert!(!before.contains("smtt_rdd_memory_"), "{before}");
    assert!(!before.contains("smtt_resolver_"), "{before}");
    let owners = shared.state().targets(1).owners;
    let seen = |mark| {
        let mut seen = Seen {
            pages: 2,
            examined_pages: 1,
            examined_bytes: 4096,
            present_bytes: 4096,
            ..Seen::default()
        };
        seen.add_page_size(4096, 4096);
        seen.add_node(1, 4096);
        (mark, seen)
    };
    shared.state().resolved(
        1,
        Resolved {
            time_ns: 1,
            page_bytes: 4096,
            sizes_by: SizesBy::PageTables,
            owners: owners.into_iter().map(seen).collect(),
        },
    );
    let found = Accessed {
        checked_bytes: 8192,
        hot_bytes: 4096,
        accessed: 2048.0,
    };
    let larger = shared.state().executors()[&1]
        .memory
        .blocks
        .get("rdd_7_0")
        .and_then(smtt_model::state::Block::ranges_id);
    let larger = larger.expect("it has an address");
    shared.state().accessed(1, 1, vec![(larger, found)]);
    shared.state().set_resolve_counts(ResolveCounts {
        pages: 3,
        ..ResolveCounts::default()
    });
    let text = scrape(&shared, "");
    let labels = |rdd| {
        format!(
            r#"application_id="app-1",application_name="Page \"Rank\"\\",user="1000",rdd="{rdd}""#
        )
    };
    let node = |rdd| format!("smtt_rdd_memory_node_bytes{{{},node=\"1\"}}", labels(rdd));
    // The larger one has its own series; one page of two stands for both.
    assert_eq!(value(&text, &node("7")), Some("8192"), "{text}");
    assert_eq!(value(&text, &node("other")), Some("4096"), "{text}");
    let swapped = format!("smtt_rdd_memory_swapped_bytes{{{}}}", labels("7"));
    assert_eq!(value(&text, &swapped), Some("0"), "{text}");
    let series = |name: &str| format!("{name}{{{}}}", labels("7"));
    let hot = value(&text, &series("smtt_rdd_memory_hot_bytes"));
    assert_eq!(hot, Some("4096"), "{text}");
    let ratio = value(&text, &series("smtt_rdd_memory_accessed_ratio"));
    assert_eq!(ratio, Some("0.25"), "{text}");
    assert_eq!(value(&text, "smtt_resolver_pages_total"), Some("3"));
}

#[test]
fn a_broken_hook_shows_beside_an_attached_one_and_what_the_machine_lacks_has_no_series() {
    let shared = shared(100);
    let verdict = |probe: &str, verdict| Verdict {
        name: probe.to_owned(),
        hook: String::new(),
        verdict,
        reason: String::new(),
    };
    shared.set_verdicts(vec![
        verdict("marker", VerdictState::Ok),
        verdict("marker", VerdictState::Broken),
        verdict("fault", VerdictState::Unsupported),
        verdict("page_walks", VerdictState::Broken),
        verdict("hotness", VerdictState::Unsupported),
        verdict("first_touch", VerdictState::Unsupported),
    ]);
    shared.set_unknown_libraries(3);
    let text = scrape(&shared, "");
    for (series, expected) in [
        (r#"smtt_probe_up{probe="marker"}"#, Some("1")),
        (r#"smtt_probe_broken_hooks{probe="marker"}"#, Some("1")),
        (r#"smtt_probe_up{probe="fault"}"#, Some("0")),
        (r#"smtt_probe_broken_hooks{probe="fault"}"#, Some("0")),
        (r#"smtt_probe_up{probe="page_walks"}"#, Some("0")),
        (r#"smtt_probe_up{probe="hotness"}"#, None),
        (r#"smtt_probe_up{probe="first_touch"}"#, None),
        ("smtt_processes_with_unknown_library", Some("3")),
        // Neither is written here.
        ("smtt_history_up", None),
        ("smtt_postmortem_up", None),
    ] {
        assert_eq!(value(&text, series), expected, "{series} in\n{text}");
    }
}

#[test]
fn findings_end_with_the_blocks_and_with_the_last_executor() {
    let shared = shared(100);
    described(&shared, 1, "0");
    let block = BlockFact {
        block_id: "rdd_7_0".to_owned(),
        rdd_id: Some(7),
        partition: Some(0),
        size_bytes: 64 << 20,
        ..BlockFact::default()
    };
    let removed = BlockRemoved {
        block_id: block.block_id.clone(),
        ..BlockRemoved::default()
    };
    let apply_at = |time_ns, fact| {
        shared.state().apply(Event {
            time_ns,
            executor: 1,
            pid: 1,
            tid: 1,
            uid: 1000,
            fact,
        });
    };
    const S: u64 = 1_000_000_000;
    let cached = |tasks: std::ops::Range<u64>| {
        apply_at(tasks.start * S, Fact::BlockStored(Box::new(block.clone())));
        for task_attempt_id in tasks {
            let task = TaskStarted {
                task_attempt_id,
                ..TaskStarted::default()
            };
            let at = task_attempt_id * S;
            apply_at(at + 1, Fact::TaskStarted(task));
            let ended = TaskEnded {
                task_attempt_id,
                stage_id: 0,
                stage_attempt: 0,
                outcome: Outcome::Succeeded,
                execution_memory_peak_bytes: 0,
                reason: String::new(),
            };
            apply_at(at + 2, Fact::TaskEnded(ended));
        }
    };
    let unread = || {
        let found = findings::find(&shared);
        found.keys().any(|labels| labels[0] == "never_read")
    };
    cached(10..30);
    assert!(unread());
    apply_at(35 * S, Fact::BlockRemoved(removed));
    assert!(!unread(), "the block is gone");
    cached(40..60);
    assert!(unread());
    let gone = Fact::ProcessGone {
        exec: false,
        is_executor: true,
        end: None,
    };
    apply_at(70 * S, gone);
    assert!(!unread(), "the executor is dead");
}
