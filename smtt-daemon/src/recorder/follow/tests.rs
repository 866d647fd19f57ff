//! Live clients get the records that they asked for, or a line that reports how many they lost.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::*;
use smtt_store::record::{Kind, Origin};

/// How long anything may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn records(numbers: std::ops::Range<u64>) -> Vec<Record> {
    let source = Arc::new(Origin {
        uid: Some(1000),
        share: Some(1000),
        application_id: "app-1".to_owned(),
        host: "host-1".to_owned(),
        executor_id: "0".to_owned(),
        partition: PathBuf::new(),
    });
    numbers
        .map(|number| Record {
            task_attempt_id: Some(number),
            rdd_id: Some((number % 2) as u32),
            ..Record::new(Arc::clone(&source), 1000 + number, Kind::Get)
        })
        .collect()
}

/// Reads an answer to its end, as lines.
fn read(mut answer: Answer) -> Vec<Value> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let mut bytes = Vec::new();
    runtime.block_on(async {
        while let Some(piece) = std::future::poll_fn(|context| answer.poll_piece(context)).await {
            bytes.extend(piece);
        }
    });
    let text = String::from_utf8(bytes).expect("text");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

fn adds_up(followers: &Followers) -> FollowCounts {
    let counts = followers.counts().expect("there was a client");
    let lost: u64 = counts.lost.values().sum();
    assert_eq!(
        counts.attempted,
        counts.delivered + lost + counts.waiting,
        "{counts:?}"
    );
    counts
}

/// Waits until there is no client.
fn no_clients(followers: &Followers) {
    let start = Instant::now();
    while followers.has_clients() {
        assert!(start.elapsed() < LIMIT, "{followers:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_client_gets_what_it_asked_for_in_order() {
    let followers = Arc::new(Followers::default());
    assert_eq!(followers.counts(), None);
    followers.offer(&records(0..3));
    let wanted = FollowQuery {
        rdd: Some(1),
        kind: Some("get".to_owned()),
        ..FollowQuery::default()
    };
    let answer = followers.follow(wanted).expect("followed");
    for numbers in [3..4, 4..7, 7..10] {
        followers.offer(&records(numbers));
    }
    followers.close();
    let tasks: Vec<_> = read(answer)
        .iter()
        .map(|record| record["task_attempt_id"].as_u64())
        .collect();
    assert_eq!(tasks, [Some(3), Some(5), Some(7), Some(9)]);
    no_clients(&followers);
    let counts = adds_up(&followers);
    assert_eq!((counts.attempted, counts.delivered), (4, 4), "{counts:?}");
}

#[test]
fn every_part_of_a_question_counts() {
    let record = &records(0..1)[0];
    let asked = |question: &str| {
        let wanted: FollowQuery = serde_json::from_str(question).expect("a question");
        wants(&wanted, record)
    };
    for (question, expected) in [
        (r#"{"app":"app-1"}"#, true),
        (r#"{"app":"app-2"}"#, false),
        (r#"{"user":1000}"#, true),
        (r#"{"app":"app-1","user":1001}"#, false),
        (r#"{"executor":"0"}"#, true),
        (r#"{"executor":"1"}"#, false),
        (r#"{"rdd":0,"kind":"get"}"#, true),
        (r#"{"rdd":0,"kind":"put"}"#, false),
        (r#"{"stage":1}"#, false),
        (r#"{"attempt":0}"#, false),
    ] {
        assert_eq!(asked(question), expected, "{question}");
    }
}

#[test]
fn a_slow_client_is_told_where_records_are_missing_and_how_many() {
    let shown = 3 * WAITING as u64;
    let followers = Arc::new(Followers::default());
    let slow = followers.follow(FollowQuery::default()).expect("followed");
    let none = followers
        .follow(FollowQuery {
            rdd: Some(9),
            ..FollowQuery::default()
        })
        .expect("followed");
    for number in (0..shown).step_by(64) {
        followers.offer(&records(number..number + 64));
    }
    let counts = adds_up(&followers);
    assert!(counts.waiting <= (WAITING + PIECE) as u64, "{counts:?}");
    followers.close();
    let (mut next, mut lost, mut got) = (0, 0, 0);
    for line in read(slow) {
        match line[LOST].as_u64() {
            Some(missing) => {
                lost += missing;
                next += missing;
            }
            None => {
                assert_eq!(
                    line["task_attempt_id"].as_u64(),
                    Some(next),
                    "the gap lies elsewhere"
                );
                next += 1;
                got += 1;
            }
        }
    }
    assert_eq!((next, got + lost), (shown, shown));
    assert!(lost > 0 && got >= WAITING as u64, "{got} of {shown}");
    assert_eq!(read(none), Vec::<Value>::new(), "it asked for others");
    no_clients(&followers);
    let counts = adds_up(&followers);
    assert_eq!(
        (counts.delivered, counts.lost),
        (got, BTreeMap::from([("client_too_slow", lost)]))
    );
}

#[test]
fn a_client_that_hangs_up_leaves_nothing_behind() {
    let followers = Arc::new(Followers::default());
    let answer = followers.follow(FollowQuery::default()).expect("followed");
    followers.offer(&records(0..1000));
    drop(answer);
    no_clients(&followers);
    let counts = adds_up(&followers);
    assert_eq!(counts.waiting, 0);
    assert_eq!(
        counts.delivered + counts.lost["client_gone"],
        1000,
        "{counts:?}"
    );
    followers.offer(&records(0..5));
    assert_eq!(adds_up(&followers), counts, "there is no client");
}

#[test]
fn only_so_many_follow_and_none_once_the_daemon_stops() {
    let followers = Arc::new(Followers::default());
    let mut answers: Vec<Answer> = (0..CLIENTS)
        .map(|_| followers.follow(FollowQuery::default()).expect("followed"))
        .collect();
    let error = followers.follow(FollowQuery::default()).expect_err("full");
    assert!(matches!(error, FollowError::Full), "{error}");
    answers.pop();
    let start = Instant::now();
    let again = loop {
        match followers.follow(FollowQuery::default()) {
            Ok(answer) => break answer,
            Err(error) => assert!(start.elapsed() < LIMIT, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    followers.close();
    assert_eq!(read(again), Vec::<Value>::new());
    let error = followers
        .follow(FollowQuery::default())
        .expect_err("stopping");
    assert!(matches!(error, FollowError::Stopping), "{error}");
}
