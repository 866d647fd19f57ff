//! Keys of RDDs as scrapers see them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use smtt_common::counter::{ContextKey, ExecutorCounters, FaultCounters};
use smtt_model::decode::{
    BlockFact, Event, ExecutorDescribed, Fact, PageAllocated, PageFreed, RddDescribed,
    StageDescribed,
};
use smtt_model::readings::Readings;
use smtt_model::subordinate::SubordinateIds;

use super::super::tests::{Exported, reads, shared, shared_with, value};
use super::super::{Format, KeyLimits, MetricsSettings, Names, Reader};
use super::*;
use crate::shared::Shared;

const SECOND: u64 = 1_000_000_000;

fn told(shared: &Shared, (user, executor): (u32, u64), time_ns: u64, fact: Fact) {
    shared.state().apply(Event {
        time_ns,
        executor,
        pid: executor as u32,
        tid: 1,
        uid: user,
        fact,
    });
}

fn executor(shared: &Shared, who: (u32, u64)) {
    let said = ExecutorDescribed {
        application_id: "app-1".to_owned(),
        application_name: "queries".to_owned(),
        executor_id: "0".to_owned(),
        ..ExecutorDescribed::default()
    };
    told(shared, who, 1, Fact::ExecutorDescribed(Box::new(said)));
}

fn rdd(shared: &Shared, who: (u32, u64), id: u32, name: &str, site: &str) {
    let said = RddDescribed {
        rdd_id: id,
        name: name.to_owned(),
        call_site: site.to_owned(),
        ..RddDescribed::default()
    };
    told(shared, who, 1, Fact::RddDescribed(Box::new(said)));
}

fn stores(shared: &Shared, who: (u32, u64), rdd: u32, bytes: u64) {
    let block = BlockFact {
        block_id: format!("rdd_{rdd}_0"),
        rdd_id: Some(rdd),
        partition: Some(0),
        size_bytes: bytes,
        ..BlockFact::default()
    };
    told(shared, who, 1, Fact::BlockStored(Box::new(block)));
}

/// Page faults of RDDs; the executor's own count is the test's, as the kernel's is.
fn faults(shared: &Shared, who: (u32, u64), counts: &[(u32, u64)], now_ns: u64) {
    let context = |rdd: u32| ContextKey {
        executor: who.1,
        rdd_plus_one: rdd + 1,
        ..ContextKey::default()
    };
    let contexts = counts.iter().map(|(rdd, n)| (context(*rdd), reads(*n)));
    let before = shared.state().executors()[&who.1].counters.attributed.read;
    let grown: u64 = counts.iter().map(|(_, n)| n).sum();
    let counters = ExecutorCounters {
        attributed: reads(before + grown),
        ..ExecutorCounters::default()
    };
    let readings = Readings {
        contexts: contexts.collect(),
        executors: vec![(who.1, counters)],
        access_known: true,
        major_known: true,
        ..Readings::default()
    };
    shared.state().add(&readings, now_ns);
}

fn scrape(shared: &Exported, reader: Reader) -> String {
    let text = shared
        .exporter
        .scrape(shared, Format::Text, Names::Shown, reader);
    text.expect("written")
}

/// Page faults by key, of all applications of a user.
fn keys(text: &str, user: u32) -> BTreeMap<String, u64> {
    let of = text
        .lines()
        .filter(|line| line.starts_with("smtt_rdd_page_faults_total{"));
    let of = of.filter(|line| line.contains(&format!("user=\"{user}\"")));
    let key = |line: &str| {
        let (_, rest) = line.split_once("rdd=\"")?;
        let (name, _) = rest.split_once("\",access=")?;
        let (_, count) = line.rsplit_once(' ')?;
        Some((name.to_owned(), count.parse().ok()?))
    };
    of.map(|line| key(line).expect("a series of an RDD"))
        .collect()
}

fn seen(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
    let owned = |(name, count): &(&str, u64)| ((*name).to_owned(), *count);
    pairs.iter().map(owned).collect()
}

const ME: (u32, u64) = (1000, 1);

#[test]
fn runs_of_one_query_are_one_key() {
    let shared = shared(100);
    executor(&shared, ME);
    executor(&shared, (1000, 2));
    for run in 0..500 {
        let who = (1000, 1 + u64::from(run % 2));
        rdd(
            &shared,
            who,
            run,
            "MapPartitionsRDD",
            "collect at Jobs.scala:7",
        );
        faults(&shared, who, &[(run, 3)], 2);
    }
    rdd(&shared, ME, 900, "ranks", "map at Jobs.scala:9");
    faults(&shared, ME, &[(900, 4)], 3);
    let text = scrape(&shared, Reader::Scraper);
    let expected = seen(&[("collect at Jobs.scala:7", 1500), ("ranks", 4)]);
    assert_eq!(keys(&text, 1000), expected, "{text}");
    // All-zero series are not exported.
    let of_rdds = text.lines().filter(|line| line.starts_with("smtt_rdd_"));
    assert_eq!(of_rdds.count(), 3, "{text}");
}

/// Page faults of RDDs in a stage.
fn faults_in(shared: &Shared, who: (u32, u64), stage: u32, counts: &[(u32, u64)], now_ns: u64) {
    let context = |rdd: u32| ContextKey {
        executor: who.1,
        rdd_plus_one: rdd + 1,
        stage_id: stage,
        ..ContextKey::default()
    };
    let contexts = counts.iter().map(|(rdd, n)| (context(*rdd), reads(*n)));
    let readings = Readings {
        contexts: contexts.collect(),
        access_known: true,
        major_known: true,
        ..Readings::default()
    };
    shared.state().add(&readings, now_ns);
}

fn stage(shared: &Shared, who: (u32, u64), stage_id: u32, query: Option<(u64, &str)>) {
    let said = StageDescribed {
        stage_id,
        name: "collect at Jobs.scala:7".to_owned(),
        sql_execution_id: query.map(|(id, _)| id),
        sql_description: query.map_or_else(String::new, |(_, text)| text.to_owned()),
        ..StageDescribed::default()
    };
    told(shared, who, 1, Fact::StageDescribed(said));
}

#[test]
fn a_hundred_runs_of_a_query_are_one_key_and_its_twenty_rdds_too() {
    let shared = shared_with(MetricsSettings {
        by: GroupBy::Query,
        ..MetricsSettings::at_once(100)
    });
    for executor_key in [1, 2] {
        executor(&shared, (1000, executor_key));
    }
    for run in 0..100 {
        let who = (1000, 1 + u64::from(run % 2));
        let rdds: Vec<u32> = (0..20).map(|number| 1 + run * 20 + number).collect();
        for id in &rdds {
            let site = format!("collect at Jobs.scala:{}", id % 9);
            rdd(&shared, who, *id, "MapPartitionsRDD", &site);
        }
        let counts: Vec<(u32, u64)> = rdds.iter().map(|id| (*id, 3)).collect();
        let now = u64::from(run) * SECOND;
        faults_in(&shared, who, run, &counts, now);
        // The counts come before the driver's description of the stage.
        shared.exporter.account(&shared);
        let text = format!("SELECT count(*)\nFROM users WHERE id = {run}");
        stage(&shared, who, run, Some((u64::from(run) + 900, &text)));
        let _ = scrape(&shared, Reader::Scraper);
    }
    // An RDD of no SQL execution has its name; one whose stages are never described has it after a while.
    rdd(&shared, ME, 5000, "ranks", "map at Jobs.scala:9");
    faults_in(&shared, ME, 700, &[(5000, 4)], 100 * SECOND);
    stage(&shared, ME, 700, None);
    rdd(&shared, ME, 5001, "links", "map at Jobs.scala:10");
    faults_in(&shared, ME, 701, &[(5001, 5)], 100 * SECOND);
    let query = "SELECT count(*) FROM users WHERE id = ?";
    let text = scrape(&shared, Reader::Scraper);
    assert_eq!(keys(&text, 1000), seen(&[(query, 6000), ("ranks", 4)]));
    shared.state().add(&Readings::default(), 115 * SECOND);
    let text = scrape(&shared, Reader::Scraper);
    let expected = seen(&[(query, 6000), ("ranks", 4), ("links", 5)]);
    assert_eq!(keys(&text, 1000), expected);
    // A query that was seen is not normalised again, however many RDDs it has.
    let made = naming::tests::MADE.get();
    for _ in 0..3 {
        shared.exporter.account(&shared);
        let _ = scrape(&shared, Reader::Scraper);
    }
    assert_eq!(naming::tests::MADE.get() - made, 0);
    // Labels are those of the first run: no id of a run is in them.
    let labels = text.lines().filter(|line| line.contains("SELECT"));
    let labels: BTreeSet<&str> = labels
        .filter_map(|line| line.split_once('{'))
        .map(|(_, rest)| rest.rsplit_once(' ').map_or(rest, |(labels, _)| labels))
        .collect();
    assert_eq!(labels.len(), 1, "{labels:?}");
}

#[test]
fn rdds_by_node_and_call_site() {
    for (by, expected) in [
        (GroupBy::Node, seen(&[("Exchange", 7), ("ranks", 4)])),
        (
            GroupBy::CallSite,
            seen(&[("collect at A.scala:1", 3), ("collect at A.scala:2", 8)]),
        ),
    ] {
        let shared = shared_with(MetricsSettings {
            by,
            ..MetricsSettings::at_once(100)
        });
        executor(&shared, ME);
        for (rdd_id, name, node, line) in [
            (1, "MapPartitionsRDD", "Exchange", 1),
            (2, "ShuffledRowRDD", "Exchange", 2),
            (3, "ranks", "", 2),
        ] {
            let said = RddDescribed {
                rdd_id,
                name: name.to_owned(),
                node: node.to_owned(),
                call_site: format!("collect at A.scala:{line}"),
                ..RddDescribed::default()
            };
            told(&shared, ME, 1, Fact::RddDescribed(Box::new(said)));
        }
        faults(&shared, ME, &[(1, 3), (2, 4), (3, 4)], 2);
        let text = scrape(&shared, Reader::Scraper);
        assert_eq!(keys(&text, 1000), expected, "{by:?}: {text}");
    }
}

#[test]
fn a_new_counter_is_zero_for_every_scraper_first() {
    let shared = shared_with(MetricsSettings {
        scrape_interval: Duration::from_secs(15),
        ..MetricsSettings::at_once(100)
    });
    executor(&shared, ME);
    rdd(&shared, ME, 7, "links", "");
    faults(&shared, ME, &[(7, 40)], 100 * SECOND);
    // The thread between scrapes sees it first; there was no scrape yet.
    shared.exporter.account(&shared);
    let at = |seconds: u64, growth: u64| {
        faults(&shared, ME, &[(7, growth)], seconds * SECOND);
        let executor = r#"smtt_executor_page_faults_total{application_id="app-1",user="1000",executor_id="0",attribution="attributed"}"#;
        let text = scrape(&shared, Reader::Scraper);
        let of_executor = value(&text, executor).map(str::to_owned);
        let person = keys(&scrape(&shared, Reader::Person), 1000);
        (keys(&text, 1000)["links"], of_executor, person["links"])
    };
    let executor = |value: &str| Some(value.to_owned());
    assert_eq!(at(100, 0), (0, executor("0"), 40));
    assert_eq!(at(114, 5), (0, executor("0"), 45), "a second scraper");
    assert_eq!(at(115, 0), (45, executor("45"), 45));
    assert_eq!(at(116, 1), (46, executor("46"), 46));
    // Another counter of the same key begins later, at 0 as well.
    let major = FaultCounters {
        major: 2,
        ..FaultCounters::default()
    };
    let context = ContextKey {
        executor: 1,
        rdd_plus_one: 8,
        ..ContextKey::default()
    };
    let readings = Readings {
        contexts: vec![(context, major)],
        access_known: true,
        major_known: true,
        ..Readings::default()
    };
    shared.state().add(&readings, 120 * SECOND);
    let series = r#"smtt_rdd_major_page_faults_total{application_id="app-1",application_name="queries",user="1000",rdd="links"}"#;
    let text = scrape(&shared, Reader::Scraper);
    assert_eq!(value(&text, series), Some("0"), "{text}");
    shared.state().add(&Readings::default(), 135 * SECOND);
    let text = scrape(&shared, Reader::Scraper);
    assert_eq!(value(&text, series), Some("2"), "{text}");
}

#[test]
fn keys_and_other_add_up_and_never_go_back() {
    let shared = shared(2);
    executor(&shared, ME);
    let (mut all, mut before) = (0, BTreeMap::new());
    // Steps of a generator; RDDs of seven names come, more than the table of RDDs has, so that rows are folded.
    let mut random = 7_u64;
    for step in 0..3000_u64 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        let id = (random >> 33) as u32 % 2500;
        let name = format!("name {}", id % 7);
        if step % 3 > 0 {
            rdd(&shared, ME, id, &name, "");
        }
        let count = 1 + (random >> 60);
        faults(&shared, ME, &[(id, count)], step * SECOND);
        all += count;
        if step % 5 == 0 {
            let now = keys(&scrape(&shared, Reader::Scraper), 1000);
            for (name, count) in &now {
                let was = before.get(name).copied().unwrap_or(0);
                assert!(*count >= was, "{name} falls from {was} to {count}");
            }
            assert!(now.len() <= 3, "{now:?}");
            before = now;
        }
    }
    // RDDs without a description wait for it, but not forever.
    for now in [3000, 3015] {
        shared.state().add(&Readings::default(), now * SECOND);
        shared.exporter.account(&shared);
    }
    let now = keys(&scrape(&shared, Reader::Scraper), 1000);
    assert_eq!(now.values().sum::<u64>(), all, "{now:?}");
    assert!(now["other"] > 0 && now.len() == 3, "{now:?}");
    assert!(shared.state().executors()[&1].rdds_over_cap > 0);
}

#[test]
fn an_executor_that_is_forgotten_takes_no_count_back() {
    let shared = shared(10);
    for who in [ME, (1000, 2)] {
        executor(&shared, who);
        rdd(&shared, who, 7, "links", "");
        faults(&shared, who, &[(7, 5)], 2 * SECOND);
    }
    shared.exporter.account(&shared);
    told(
        &shared,
        (1000, 2),
        3 * SECOND,
        Fact::ProcessGone {
            exec: false,
            is_executor: true,
            end: None,
        },
    );
    let tick = smtt_model::state::Tick::default();
    let gone = shared.state().take_in(&tick, 3600 * SECOND);
    assert_eq!(gone, [2]);
    let now = keys(&scrape(&shared, Reader::Scraper), 1000);
    assert_eq!(now, seen(&[("links", 10)]));
}

#[test]
fn an_idle_key_makes_room_and_a_claim_yields_to_a_count() {
    let shared = shared(1);
    executor(&shared, ME);
    for (id, name) in [(1, "claims"), (2, "old"), (3, "new")] {
        rdd(&shared, ME, id, name, "");
    }
    stores(&shared, ME, 1, 1 << 50);
    let text = scrape(&shared, Reader::Scraper);
    let storage = "smtt_rdd_storage_memory_bytes{application_id=\"app-1\",application_name=\"queries\",user=\"1000\",rdd=";
    assert!(text.contains(&format!("{storage}\"claims\"}}")), "{text}");
    faults(&shared, ME, &[(2, 5)], 10 * SECOND);
    let text = scrape(&shared, Reader::Scraper);
    assert_eq!(keys(&text, 1000), seen(&[("old", 5)]));
    // The memory is still somewhere.
    assert!(text.contains(&format!("{storage}\"other\"}}")), "{text}");
    faults(&shared, ME, &[(3, 7)], 20 * SECOND);
    let now = |shared: &Exported| keys(&scrape(shared, Reader::Scraper), 1000);
    assert_eq!(now(&shared), seen(&[("old", 5), ("other", 7)]));
    faults(&shared, ME, &[(3, 1)], 700 * SECOND);
    assert_eq!(now(&shared), seen(&[("new", 1), ("other", 7)]));
}

#[test]
fn claims_of_one_user_cost_another_no_key() {
    let shared = shared(10);
    let (ids, _) = SubordinateIds::parse("666:100000:65536", |_| None);
    shared.state().set_subordinate_ids(Arc::new(ids));
    // Another user claims the same ids and absurd sizes, first; its subordinate ids do too.
    for user in [666, 100_001, 100_002] {
        let who = (user, 10 + u64::from(user));
        executor(&shared, who);
        for id in 0..100 {
            rdd(&shared, who, id, &format!("claim {id}"), "");
            stores(&shared, who, id, 1 << 50);
            faults(&shared, who, &[(id, 9)], 2);
        }
    }
    let _ = scrape(&shared, Reader::Scraper);
    executor(&shared, ME);
    for id in 0..5 {
        rdd(&shared, ME, id, &format!("own {id}"), "");
        faults(&shared, ME, &[(id, 5)], 3);
    }
    let text = scrape(&shared, Reader::Scraper);
    let own = keys(&text, 1000);
    assert_eq!(own.len(), 5, "{text}");
    assert!(own.values().all(|count| *count == 5), "{own:?}");
    let claimed = [666, 100_001, 100_002].map(|user| keys(&text, user));
    let named = claimed.iter().flat_map(BTreeMap::keys);
    let named: BTreeSet<_> = named.filter(|name| *name != "other").collect();
    assert!(named.len() <= 5, "{named:?}");
    assert!(claimed.iter().all(|keys| keys["other"] > 0), "{claimed:?}");
}

#[test]
fn one_application_has_so_many_keys() {
    let shared = shared_with(MetricsSettings {
        keys: KeyLimits {
            all: 200,
            per_application: 100,
        },
        by: GroupBy::Name,
        scrape_interval: Duration::ZERO,
    });
    executor(&shared, ME);
    for id in 0..150 {
        rdd(&shared, ME, id, &format!("own {id}"), "");
        faults(&shared, ME, &[(id, 5)], 3);
    }
    let text = scrape(&shared, Reader::Scraper);
    assert_eq!(keys(&text, 1000).len(), 101, "{text}");
    assert_eq!(keys(&text, 1000)["other"], 250);
    assert_eq!(value(&text, "smtt_rdd_keys_refused_total"), Some("50"));
}

#[test]
fn a_short_lived_execution_memory_has_a_peak() {
    let shared = shared_with(MetricsSettings {
        scrape_interval: Duration::from_secs(15),
        ..MetricsSettings::at_once(10)
    });
    executor(&shared, ME);
    rdd(&shared, ME, 7, "sorted", "");
    faults(&shared, ME, &[(7, 1)], 30 * SECOND);
    let page = PageAllocated {
        task_attempt_id: Some(5),
        page_number: Some(0),
        address: 1 << 20,
        size_bytes: 5000,
        rdd_id: Some(7),
        ..PageAllocated::default()
    };
    let freed = PageFreed {
        task_attempt_id: Some(5),
        page_number: Some(0),
        address: 1 << 20,
        size_bytes: 5000,
        ..PageFreed::default()
    };
    // Between two counts.
    told(&shared, ME, 30 * SECOND, Fact::PageAllocated(page));
    told(&shared, ME, 30 * SECOND, Fact::PageFreed(freed));
    shared.exporter.account(&shared);
    let peak = |seconds: u64| {
        shared.state().add(&Readings::default(), seconds * SECOND);
        let text = scrape(&shared, Reader::Scraper);
        let of = |name: &str| {
            let series = format!(
                "{name}{{application_id=\"app-1\",application_name=\"queries\",user=\"1000\",rdd=\"sorted\"}}"
            );
            value(&text, &series).map(str::to_owned)
        };
        (
            of("smtt_rdd_execution_memory_bytes"),
            of("smtt_rdd_execution_memory_peak_bytes"),
        )
    };
    let some = |value: &str| Some(value.to_owned());
    assert_eq!(peak(31), (some("0"), some("5000")));
    assert_eq!(peak(59), (some("0"), some("5000")), "each scraper sees it");
    assert_eq!(peak(61), (None, None));
}

#[test]
fn a_key_is_the_name_or_the_call_site() {
    let key_of = |name: &str, site: &str| key_of(GroupBy::Name, name, site, "Exchange");
    assert_eq!(key_of("ranks", "map at A.scala:1"), "ranks");
    assert_eq!(
        key_of("MapPartitionsRDD", "map at A.scala:1"),
        "map at A.scala:1"
    );
    assert_eq!(key_of("MapPartitionsRDD", ""), "MapPartitionsRDD");
    assert_eq!(key_of("my RDD", "map at A.scala:1"), "my RDD");
    assert_eq!(key_of("", "map at A.scala:1"), "map at A.scala:1");
    assert_eq!(key_of("", ""), "(not described)");
    assert_eq!(key_of("other", ""), "RDD other");
    assert_eq!(key_of("none", ""), "RDD none");
    assert!(key_of(&"x".repeat(500), "").len() <= 128);
}
