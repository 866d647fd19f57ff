//! Scrapes and their job: one at a time, whose looks fail, take long or come from hostile logs.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use smtt_store::history::batch::{Batch, Cell};
use smtt_store::history::columns::TASKS;
use smtt_store::history::place;
use smtt_store::history::workers::{Bounds, REST, Whose, Workers};

use super::super::ANSWERS;
use super::PAUSE;
use crate::made::{Made, Stage, Task};
use crate::pages::tests::{HOSTILE, Site, log};

/// Longest time of a test's wait, far beyond what one takes.
const LONG: Duration = Duration::from_secs(60);

/// What a test sees of the job, and does to it.
#[derive(Default)]
pub(super) struct Probe {
    jobs: AtomicUsize,
    /// Applications whose findings were looked for in their tables, and when.
    advised: Mutex<Vec<(String, Instant)>>,
    is_closed: AtomicBool,
    panics: AtomicBool,
    delay_ms: AtomicU64,
}

impl Probe {
    pub(super) fn starts(&self) {
        self.jobs.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn advises(&self, name: &str) {
        let now = Instant::now();
        let mut advised = self.advised.lock().expect("locks");
        advised.push((name.to_owned(), now));
        drop(advised);
        while self.is_closed.load(Ordering::SeqCst) && now.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(self.delay_ms.load(Ordering::SeqCst)));
        assert!(!self.panics.load(Ordering::SeqCst), "as the test asks");
    }

    fn names(&self) -> Vec<String> {
        let advised = self.advised.lock().expect("locks");
        advised.iter().map(|(name, _)| name.clone()).collect()
    }
}

/// An application with one task that is far longer than the others.
fn sick(id: &str) -> String {
    let mut tasks = vec![Task::new(2000, 1_000_000); 64];
    tasks[40].run = 60_000;
    let mut made = Made::new(id, vec![Stage::new("map", tasks)]);
    made.name = format!("{HOSTILE}\n\\");
    made.log().0
}

fn probe(site: &Site) -> &Probe {
    &site.server().recent.probe
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONG, "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn scrape(site: &Site) -> String {
    let asked = tokio::time::timeout(LONG, site.get("/metrics")).await;
    let (status, _, text) = asked.expect("a scrape waits");
    assert_eq!(status.as_u16(), 200);
    text
}

/// A scrape after the job that another one has started.
async fn settled(site: &Site) -> String {
    scrape(site).await;
    let recent = &site.server().recent;
    until("the job goes on", || {
        !recent.is_looking.load(Ordering::Acquire)
    })
    .await;
    let text = scrape(site).await;
    until("the job goes on", || {
        !recent.is_looking.load(Ordering::Acquire)
    })
    .await;
    text
}

async fn open(site: &Site, names: &[&str]) {
    for name in names {
        let (status, _, text) = site.get(&format!("/applications/{name}/jobs")).await;
        assert_eq!(status.as_u16(), 200, "{text}");
    }
}

/// A worker writes about an application.
fn write(site: &Site, name: &str, host: &str) {
    let any = Bounds {
        bytes: 1 << 30,
        files: 1 << 20,
    };
    let mut workers = Workers::take(&site.store(), host, 10, None, any).expect("opens");
    let mut batch = Batch::new(&REST);
    batch.push(&[Cell::Text("worker"), Cell::Text("1"), Cell::Text("{}")]);
    let done = workers.add(Whose::of(name, 7), 0, &batch, &|uid| uid);
    done.expect("writes");
}

fn count(text: &str, name: &str) -> u64 {
    let name = format!("smtt_history_applications_{name} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&name));
    value.expect(&name).parse().expect("is a number")
}

/// Whether the application's finding is a series.
fn has(text: &str, id: &str) -> bool {
    let labels = "smtt_history_finding{rule=\"skew\",severity=\"high\",application_id=";
    text.contains(&format!("{labels}\"{id}\""))
}

#[tokio::test]
async fn findings_of_opened_applications_are_series_and_a_scrape_opens_none() {
    let site = Site::new(&[sick("app-1"), sick("app-2"), log("app-3", "")]);
    let text = settled(&site).await;
    assert_eq!(count(&text, "recent"), 0);
    assert!(!text.contains("smtt_history_finding"), "{text}");
    // Of those that were opened, by any path.
    site.get("/applications/app-1/jobs").await;
    site.get("/api/v1/applications/app-3/stages").await;
    let text = scrape(&site).await;
    assert_eq!((count(&text, "recent"), count(&text, "unchecked")), (2, 2));
    assert!(!text.contains("smtt_history_finding"), "{text}");
    let text = settled(&site).await;
    assert_eq!((count(&text, "recent"), count(&text, "unchecked")), (2, 0));
    assert_eq!(count(&text, "failed"), 0);
    let found = |name: &str| -> Vec<&str> {
        let all = text.lines().filter(|line| line.starts_with(name));
        all.collect()
    };
    let name = "<script>alert(1)</script>\\\\\\\" onx='&amp;\\n\\\\";
    let labels = format!("application_id=\"app-1\",application_name=\"{name}\"");
    let one = found("smtt_history_finding{rule=\"skew\",severity=\"high\"");
    assert_eq!(one.len(), 1, "{text}");
    assert!(
        one[0].contains(&labels) && one[0].ends_with("} 1"),
        "{text}"
    );
    // As the findings of the REST API say.
    let (_, _, json) = site.get("/smtt/v1/applications/app-1/advice").await;
    let json: serde_json::Value = serde_json::from_str(&json).expect("is JSON");
    let saving = &json["findings"][0]["saving"];
    assert_eq!(json["findings"][0]["rule"], "skew");
    for end in ["low", "expected", "high"] {
        let series = found("smtt_history_finding_saving_seconds{rule=\"skew\"");
        let series = series
            .iter()
            .find(|it| it.contains(&format!("end=\"{end}\"}}")));
        let value = series
            .and_then(|it| it.rsplit(' ').next())
            .expect("is a series");
        let value: f64 = value.parse().expect("is a number");
        assert!(
            (value - saving[end].as_f64().unwrap_or(-1.0)).abs() < 1e-9,
            "{end}: {text}"
        );
    }
    assert!(!text.contains("app-2") && !has(&text, "app-3"), "{text}");
    // Alerts and dashboards of the daemons' series have none of them.
    assert!(!text.contains("smtt_finding"), "{text}");
}

#[tokio::test]
async fn what_is_known_of_an_application_stays_until_it_is_opened_again() {
    let site = Site::new(&[sick("app-1")]);
    site.get("/api/v1/applications/app-1/jobs").await;
    assert!(has(&settled(&site).await, "app-1"));
    // Its log went on, and nothing is late any more.
    let healthy = Made::new(
        "app-1",
        vec![Stage::new("map", vec![Task::new(2000, 1); 64])],
    );
    site.replace(&healthy.log().0);
    assert!(has(&settled(&site).await, "app-1"));
    // The tables that were opened have gone, which is no failure.
    write(&site, "app-1", "node-1");
    let text = settled(&site).await;
    assert!(has(&text, "app-1") && count(&text, "failed") == 0, "{text}");
    site.get("/api/v1/applications/app-1/jobs").await;
    let text = settled(&site).await;
    assert!(!text.contains("rule=\"skew\""), "{text}");
    assert_eq!(count(&text, "unchecked"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scrapes_start_one_job_together_and_wait_for_no_look_and_no_answer() {
    let site = Arc::new(Site::new(&[sick("app-1"), sick("app-2"), sick("app-3")]));
    open(&site, &["app-1"]).await;
    assert!(has(&settled(&site).await, "app-1"));
    open(&site, &["app-2", "app-3"]).await;
    let (before, probe) = (probe(&site).jobs.load(Ordering::SeqCst), probe(&site));
    let many = async || {
        let begun = Instant::now();
        let asked: Vec<_> = (0..20)
            .map(|_| {
                let site = Arc::clone(&site);
                tokio::spawn(async move { scrape(&site).await })
            })
            .collect();
        for text in asked {
            let text = text.await.expect("ends");
            assert!(has(&text, "app-1") && !has(&text, "app-2"), "{text}");
            assert_eq!(count(&text, "unchecked"), 2);
        }
        println!("20 scrapes: {:?}", begun.elapsed());
    };
    // While each answer takes as long as this test wishes.
    let mut turns = Vec::new();
    for _ in 0..ANSWERS {
        turns.push(site.server().turn().await.expect("has a turn"));
    }
    probe.is_closed.store(true, Ordering::SeqCst);
    many().await;
    assert_eq!(probe.names(), ["app-1"]);
    turns.clear();
    // While a look does.
    until("the job looks", || probe.names().len() > 1).await;
    many().await;
    // Whoever asks for a page has the other permits.
    for _ in 1..ANSWERS {
        turns.push(site.server().turn().await.expect("has a turn"));
    }
    assert_eq!(site.server().answers.available_permits(), 0);
    assert_eq!(probe.names(), ["app-1", "app-2"]);
    assert_eq!(probe.jobs.load(Ordering::SeqCst), before + 1);
    drop(turns);
    probe.is_closed.store(false, Ordering::SeqCst);
    let text = settled(&site).await;
    assert!(has(&text, "app-2") && has(&text, "app-3"), "{text}");
    assert_eq!(site.server().answers.available_permits(), ANSWERS);
    // Each of them once: their files are the same.
    assert_eq!(probe.names(), ["app-1", "app-2", "app-3"]);
}

#[tokio::test]
async fn a_look_that_fails_leaves_what_was_known_and_is_not_repeated() {
    let site = Site::new(&[sick("app-1"), sick("app-2")]);
    let table = |name: &str| -> PathBuf { place::table(&site.store().join(name), TASKS.name) };
    let good = std::fs::read(table("app-1")).expect("reads");
    open(&site, &["app-1"]).await;
    assert!(has(&settled(&site).await, "app-1"));
    open(&site, &["app-2"]).await;
    for name in ["app-1", "app-2"] {
        std::fs::write(table(name), "no table").expect("writes");
    }
    // Nothing of the first one changed as far as anybody can see: what is known holds.
    let text = settled(&site).await;
    assert!(has(&text, "app-1") && !has(&text, "app-2"), "{text}");
    assert_eq!((count(&text, "failed"), count(&text, "unchecked")), (1, 0));
    assert_eq!(probe(&site).names(), ["app-1", "app-2"]);
    write(&site, "app-1", "node-1");
    for _ in 0..3 {
        let text = settled(&site).await;
        assert!(has(&text, "app-1"), "{text}");
        assert_eq!((count(&text, "failed"), count(&text, "unchecked")), (2, 0));
    }
    assert_eq!(probe(&site).names(), ["app-1", "app-2", "app-1"]);
    // So is one that panics.
    std::fs::write(table("app-1"), good).expect("writes");
    probe(&site).panics.store(true, Ordering::SeqCst);
    write(&site, "app-1", "node-2");
    for _ in 0..2 {
        let text = settled(&site).await;
        assert!(has(&text, "app-1") && count(&text, "failed") == 2, "{text}");
    }
    assert_eq!(probe(&site).names().len(), 4);
    probe(&site).panics.store(false, Ordering::SeqCst);
    write(&site, "app-1", "node-3");
    let text = settled(&site).await;
    assert!(has(&text, "app-1") && count(&text, "failed") == 1, "{text}");
}

#[tokio::test]
async fn those_that_were_never_or_longest_not_looked_at_are_next_whatever_their_names() {
    let names = ["app-0", "app-1", "app-2"];
    let site = Site::new(&names.map(|name| log(name, "")));
    // The one whose workers write always is first by its name.
    open(&site, &["app-0", "app-2"]).await;
    settled(&site).await;
    assert_eq!(probe(&site).names(), ["app-0", "app-2"]);
    open(&site, &["app-1"]).await;
    for name in names {
        write(&site, name, "node-1");
    }
    settled(&site).await;
    let second = ["app-1", "app-0", "app-2"];
    assert_eq!(probe(&site).names()[2..], second);
    for name in names {
        write(&site, name, "node-2");
    }
    settled(&site).await;
    assert_eq!(probe(&site).names()[5..], second);
}

#[tokio::test]
async fn the_job_has_pauses() {
    let site = Site::new(&[log("app-1", ""), log("app-2", "")]);
    open(&site, &["app-1", "app-2"]).await;
    let long = Duration::from_millis(40);
    probe(&site).delay_ms.store(40, Ordering::SeqCst);
    settled(&site).await;
    let advised = probe(&site).advised.lock().expect("locks").clone();
    let [(_, first), (_, second)] = &advised[..] else {
        panic!("{advised:?}");
    };
    assert!(*second - *first >= long * (PAUSE + 1), "{advised:?}");
}
