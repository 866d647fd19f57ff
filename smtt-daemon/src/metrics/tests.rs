//! The metrics of a small state, in both formats.

use super::*;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use smtt_common::counter::{ContextKey, ExecutorCounters, FaultCounters};
use smtt_model::decode::{BlockFact, Event, ExecutorDescribed, Fact, RddDescribed};
use smtt_model::ledger::{DecodeCounts, SourceCounts};
use smtt_model::readings::Readings;
use smtt_model::state::Limits;
use smtt_model::subordinate::SubordinateIds;
use smtt_model::verdict::{Verdict, VerdictState};

use crate::shared::DaemonInfo;

pub(super) fn shared(series_max: usize) -> Shared {
    let info = DaemonInfo {
        version: "0.1.0".to_owned(),
        kernel_side: "test".to_owned(),
        telemetry_path: "/metrics".to_owned(),
        series_max,
        doctor: Vec::new,
    };
    let shared = Shared::new(info, Limits::default());
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
    shared
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
        executor_id: id.to_owned(),
        ..ExecutorDescribed::default()
    };
    apply(
        shared,
        executor,
        Fact::ExecutorDescribed(Box::new(described)),
    );
}

fn count(shared: &Shared, executor: u64, rdd: Option<u32>, growth: FaultCounters) {
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

fn reads(read: u64) -> FaultCounters {
    FaultCounters {
        read,
        ..FaultCounters::default()
    }
}

pub(super) fn scrape(shared: &Shared, accept: &str) -> String {
    scrape_for(shared, accept, Names::Shown)
}

fn scrape_for(shared: &Shared, accept: &str, names: Names) -> String {
    let format = Format::accepted(accept);
    let text = shared.exporter().scrape(shared, format, names);
    text.expect("written")
}

/// The value of one series of the text format.
fn value<'a>(text: &'a str, series: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))
}

fn small() -> Shared {
    let shared = shared(100);
    described(&shared, 1, "0");
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
            unknown: 0,
            major: 2,
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
    let labels = r#"{application_id="app-1",user="1000",executor_id="0",rdd_id="7",rdd_name="MapPartitionsRDD\n\"x\""}"#;
    for (metric, expected) in [
        ("smtt_rdd_page_faults_read_total", "10"),
        ("smtt_rdd_page_faults_write_total", "5"),
        ("smtt_rdd_page_faults_major_total", "2"),
        ("smtt_rdd_storage_memory_bytes", "1500"),
        ("smtt_rdd_execution_memory_bytes", "0"),
        ("smtt_rdd_partitions_cached", "1"),
    ] {
        assert_eq!(
            value(&text, &format!("{metric}{labels}")),
            Some(expected),
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
            r#"smtt_executor_info{application_id="app-1",user="1000",application_name="Page \"Rank\"\\",executor_id="0"}"#,
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
        ("smtt_series_dropped_total", "0"),
    ] {
        assert_eq!(value(&text, series), Some(expected), "{series} in\n{text}");
    }
    assert!(text.contains("# TYPE smtt_executor_page_faults_total counter\n"));
    assert!(value(&text, "process_resident_memory_bytes").is_some());
    assert!(!text.contains("unknown_access"), "nothing was unknown");
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
        text.contains("# TYPE smtt_rdd_page_faults_read counter\n"),
        "{text}"
    );
    let series = r#"smtt_rdd_page_faults_read_total{application_id="app-1",user="1000",executor_id="0",rdd_id="7",rdd_name="MapPartitionsRDD\n\"x\""} 10"#;
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
fn series_beyond_the_cap_share_a_row_whose_counters_never_go_back() {
    let shared = shared(2);
    described(&shared, 1, "0");
    let other = r#"smtt_rdd_page_faults_read_total{application_id="app-1",user="1000",executor_id="0",rdd_id="other",rdd_name=""}"#;
    let of = |text: &str, rdd: &str| {
        value(text, &format!(r#"smtt_rdd_page_faults_read_total{{application_id="app-1",user="1000",executor_id="0",rdd_id="{rdd}",rdd_name=""}}"#))
            .map(str::to_owned)
    };
    for (rdd, faults) in [(1, 100), (2, 50), (3, 10), (4, 5)] {
        count(&shared, 1, Some(rdd), reads(faults));
    }
    let text = scrape(&shared, "");
    assert_eq!(
        (
            of(&text, "1").as_deref(),
            of(&text, "3"),
            value(&text, other)
        ),
        (Some("100"), None, Some("15"))
    );
    // RDD 3 overtakes RDD 2.
    count(&shared, 1, Some(3), reads(90));
    let text = scrape(&shared, "");
    assert_eq!(
        (
            of(&text, "3").as_deref(),
            of(&text, "2"),
            value(&text, other)
        ),
        (Some("100"), None, Some("15"))
    );
    assert_eq!(value(&text, "smtt_series_dropped_total"), Some("3"));
}

#[test]
fn a_forged_claim_makes_no_series_twice() {
    let shared = shared(100);
    for executor in 1..4 {
        described(&shared, executor, "0");
        count(&shared, executor, Some(7), reads(executor));
    }
    let text = scrape(&shared, "");
    let series: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("smtt_rdd_page_faults_read_total{"))
        .collect();
    assert_eq!(series.len(), 3);
    assert!(
        series[0].contains(r#"executor_id="0""#) && series[0].ends_with(" 1"),
        "{series:?}"
    );
    assert!(
        series[1].contains(r#"executor_id="0 (pid 2)""#),
        "{series:?}"
    );
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
        .and_then(smtt_model::state::Block::mark);
    let larger = larger.expect("it has an address");
    shared.state().touched(1, 1, vec![(larger, found)]);
    shared.state().set_resolve_counts(ResolveCounts {
        pages: 3,
        ..ResolveCounts::default()
    });
    let text = scrape(&shared, "");
    let labels = |rdd| {
        format!(
            "application_id=\"app-1\",user=\"1000\",executor_id=\"0\",rdd_id=\"{rdd}\",rdd_name=\"\""
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

/// An RDD of an executor of this user, with a claim of cached bytes and a count of page faults.
fn rdd_of(
    shared: &Shared,
    user: u32,
    executor: u64,
    rdd: u32,
    name: &str,
    claimed: u64,
    faults: u64,
) {
    let told = |fact| {
        shared.state().apply(Event {
            time_ns: 1,
            executor,
            pid: executor as u32,
            tid: 1,
            uid: user,
            fact,
        });
    };
    told(Fact::ExecutorDescribed(Box::new(ExecutorDescribed {
        application_id: "app-1".to_owned(),
        executor_id: "0".to_owned(),
        ..ExecutorDescribed::default()
    })));
    told(Fact::RddDescribed(Box::new(RddDescribed {
        rdd_id: rdd,
        name: name.to_owned(),
        ..RddDescribed::default()
    })));
    told(Fact::BlockStored(Box::new(BlockFact {
        block_id: format!("rdd_{rdd}_0"),
        rdd_id: Some(rdd),
        partition: Some(0),
        size_bytes: claimed,
        ..BlockFact::default()
    })));
    count(shared, executor, Some(rdd), reads(faults));
}

#[test]
fn claims_of_one_user_cost_another_no_series() {
    let shared = shared(10);
    // Another user claims the same ids and absurd sizes, first.
    for rdd in 0..100 {
        rdd_of(&shared, 666, 2, rdd, "", 1 << 50, 0);
    }
    rdd_of(&shared, 1000, 1, 7, "ranks", 0, 5);
    rdd_of(&shared, 1000, 1, 8, "links", 0, 6);
    let text = scrape(&shared, "");
    let series = |user: u32, rdd: &str| {
        format!(
            "smtt_rdd_page_faults_read_total{{application_id=\"app-1\",user=\"{user}\",executor_id=\"0\",rdd_id=\"{rdd}"
        )
    };
    assert_eq!(
        value(&text, &(series(1000, "7") + "\",rdd_name=\"ranks\"}")),
        Some("5")
    );
    assert_eq!(
        value(&text, &(series(1000, "8") + "\",rdd_name=\"links\"}")),
        Some("6")
    );
    let own = text
        .lines()
        .filter(|line| line.starts_with(&series(666, "")));
    // Eight of ten, and "none" or "other".
    assert!((9..=10).contains(&own.count()), "{text}");
}

#[test]
fn subordinate_ids_of_one_user_cost_another_no_series() {
    let shared = shared(10);
    let (ids, _) = SubordinateIds::parse("666:100000:65536", |_| None);
    shared.state().set_subordinate_ids(Arc::new(ids));
    for user in 0..20 {
        rdd_of(
            &shared,
            100_000 + user,
            2 + u64::from(user),
            3,
            "",
            1 << 50,
            9,
        );
    }
    for rdd in 0..5 {
        rdd_of(&shared, 1000, 1, rdd, "ranks", 0, 5);
    }
    let text = scrape(&shared, "");
    for rdd in 0..5 {
        let series = format!(
            "smtt_rdd_page_faults_read_total{{application_id=\"app-1\",user=\"1000\",executor_id=\"0\",rdd_id=\"{rdd}\",rdd_name=\"ranks\"}}"
        );
        assert_eq!(value(&text, &series), Some("5"), "{text}");
    }
    assert!(text.contains("user=\"100000\""), "{text}");
}

#[test]
fn counted_faults_rank_before_claimed_bytes() {
    let shared = shared(1);
    rdd_of(&shared, 1000, 1, 7, "claims", 1 << 50, 0);
    rdd_of(&shared, 1000, 1, 8, "faults", 0, 5);
    let text = scrape(&shared, "");
    assert!(text.contains("rdd_id=\"8\""), "{text}");
    assert!(!text.contains("rdd_id=\"7\""), "{text}");
}

#[test]
fn the_first_name_of_an_rdd_stays() {
    let shared = shared(10);
    rdd_of(&shared, 1000, 1, 7, "first", 100, 5);
    assert!(scrape(&shared, "").contains("rdd_name=\"first\""));
    rdd_of(&shared, 1000, 1, 7, "second", 100, 6);
    let text = scrape(&shared, "");
    assert!(text.contains("rdd_name=\"first\""), "{text}");
    assert!(!text.contains("rdd_name=\"second\""), "{text}");
}
