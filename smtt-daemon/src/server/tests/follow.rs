//! Records of accesses as they happen, over the socket.

use std::time::{Duration, Instant};

use super::*;
use smtt_model::decode::BlockFact;
use smtt_model::protocol::{FollowQuery, LOST};

use crate::recorder::Tap;
use crate::recorder::follow::{CLIENTS, WAITING};

/// How long anything may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn event(time_ns: u64, fact: Fact) -> Event {
    Event {
        time_ns,
        executor: 9,
        pid: 9,
        tid: 9,
        uid: 1000,
        fact,
    }
}

/// Gives events to the tap and to the state, as the event loop does.
fn apply(shared: &Shared, events: impl IntoIterator<Item = Event>) {
    let mut tap = Tap::new(None, Arc::clone(shared.followers()));
    tap.read_clocks();
    let mut state = shared.state();
    for event in events {
        tap.record_access(&state, &event);
        state.apply(event);
    }
    tap.send_batch();
}

fn described() -> Event {
    let described = ExecutorDescribed {
        application_id: "app-1".to_owned(),
        executor_id: "0".to_owned(),
        ..ExecutorDescribed::default()
    };
    event(1, Fact::ExecutorDescribed(Box::new(described)))
}

fn put(rdd_id: u32, partition: u32) -> Event {
    let fact = BlockFact {
        block_id: format!("rdd_{rdd_id}_{partition}"),
        rdd_id: Some(rdd_id),
        partition: Some(partition),
        size_bytes: 100,
        range_total: 1,
        ranges: vec![(0x10_0000, 100)],
        ..BlockFact::default()
    };
    event(2, Fact::BlockStored(Box::new(fact)))
}

async fn until(what: &str, so: impl Fn() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < LIMIT, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn records_come_as_they_happen_without_any_trace_file() {
    let shared = shared();
    let feed = Arc::clone(&shared);
    let text = served(Arc::clone(&shared), async move |client| {
        apply(&feed, [described(), put(7, 0)]);
        let mut lines = client
            .lines(
                "/v1/trace/follow",
                &FollowQuery {
                    rdd: Some(7),
                    kind: Some("put".to_owned()),
                    app: Some("app-1".to_owned()),
                    ..FollowQuery::default()
                },
            )
            .await
            .expect("an answer");
        apply(&feed, [put(7, 1), put(8, 0), put(7, 2)]);
        let mut text = String::new();
        while text.lines().count() < 2 {
            let more = tokio::time::timeout(LIMIT, lines.next()).await;
            text += &more.expect("in time").expect("unbroken").expect("not over");
        }
        // The daemon ends: so does the answer.
        feed.followers().close();
        let end = tokio::time::timeout(LIMIT, lines.next()).await;
        assert_eq!(end.expect("in time").expect("unbroken"), None);
        text
    });
    let partitions: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
        .map(|record| {
            assert_eq!(
                (&record["kind"], &record["rdd_id"]),
                (&"put".into(), &7.into())
            );
            assert_eq!(record["virtual_address"], 0x10_0000);
            record["partition"].clone()
        })
        .collect();
    assert_eq!(partitions, [1, 2], "what was before is not there: {text}");
    assert!(shared.trace().is_none());
}

#[test]
fn a_client_that_hangs_up_is_noticed_and_its_place_is_free() {
    let shared = shared();
    let feed = Arc::clone(&shared);
    served(shared, async move |client| {
        let mut lines = Vec::new();
        for _ in 0..CLIENTS {
            lines.push(
                client
                    .lines("/v1/trace/follow", &())
                    .await
                    .expect("an answer"),
            );
        }
        let refused = client
            .lines("/v1/trace/follow", &())
            .await
            .expect_err("full");
        assert!(matches!(refused, ClientError::Busy(_)), "{refused:?}");
        assert!(refused.to_string().contains("follow already"), "{refused}");
        lines.clear();
        until("clients that hung up still follow", || {
            !feed.followers().has_clients()
        })
        .await;
        client
            .lines("/v1/trace/follow", &())
            .await
            .expect("room again");
        let refused = client.lines("/v1/trace/follow", &[("block", "x")]).await;
        let refused = refused.expect_err("no such question");
        assert!(matches!(refused, ClientError::Refused(_)), "{refused:?}");
    });
}

#[test]
fn a_client_that_does_not_read_loses_records_and_delays_no_other() {
    let shared = shared();
    let feed = Arc::clone(&shared);
    let (got, lost, shown) = served(shared, async move |client| {
        let mut lines = client
            .lines("/v1/trace/follow", &())
            .await
            .expect("an answer");
        apply(&feed, [described()]);
        let mut shown = 0;
        // Far more than the socket and the queue hold.
        let start = Instant::now();
        while feed
            .followers()
            .counts()
            .expect("one follows")
            .lost
            .is_empty()
        {
            apply(&feed, (0..512).map(|partition| put(7, partition)));
            shown += 512;
            assert!(start.elapsed() < LIMIT, "nothing is ever lost");
            tokio::task::yield_now().await;
        }
        assert!(shown > WAITING as u64);
        feed.followers().close();
        let (mut got, mut lost) = (0, 0);
        while let Some(text) = lines.next().await.expect("unbroken") {
            for line in text.lines() {
                let line: Value = serde_json::from_str(line).expect("JSON");
                match line[LOST].as_u64() {
                    Some(missing) => lost += missing,
                    None => got += 1,
                }
            }
        }
        (got, lost, shown)
    });
    assert!(got > 0 && lost > 0, "{got} {lost}");
    assert_eq!(got + lost, shown);
}
