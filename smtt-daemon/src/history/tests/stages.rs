//! Stages of earlier runs of the daemon, which may have ended since.

use smtt_model::decode::StageDescribed;

use super::*;

fn stage(shared: &Shared, executor: u64, uid: u32, stage_id: u32, ended: Option<u64>, why: &str) {
    let said = StageDescribed {
        stage_id,
        tasks: 2,
        submitted_unix_ms: Some(1_000),
        completed_unix_ms: ended,
        failure: why.to_owned(),
        ..StageDescribed::default()
    };
    tell(shared, executor, uid, Fact::StageDescribed(said));
}

/// State, duration and failure of each stage that the run before wrote.
fn courses(shared: &Shared, user: u32) -> Vec<(u64, String, Option<u64>, String)> {
    let filter = Filter {
        user: Some(user),
        ..Filter::default()
    };
    let rows = earlier_rows(shared, "stages", &filter);
    let course = |row: &serde_json::Value| {
        let text = |field: &str| row[field].as_str().unwrap_or_default().to_owned();
        let id = row["stage_id"].as_u64().expect("an id");
        (
            id,
            text("state"),
            row["duration_ns"].as_u64(),
            text("failure"),
        )
    };
    let mut all: Vec<_> = rows.iter().map(course).collect();
    all.sort_unstable();
    all
}

#[test]
fn stages_that_ran_before_the_restart_go_as_the_driver_says_now() {
    let store = tempfile::tempdir().expect("a folder");
    let before = shared();
    for (key, uid) in [(1, 1000), (2, 666)] {
        executor(&before, key, uid, "app-1");
        task(&before, key, uid, 5);
        for id in 3..7 {
            stage(&before, key, uid, id, None, "");
        }
        stage(&before, key, uid, 7, Some(1_500), "");
    }
    let mut first = writer(store.path(), &before);
    first.run_ms = 1_000;
    first.round(true);

    let shared = shared();
    let mut second = writer(store.path(), &shared);
    second.run_ms = 2_000;
    second.take_workers().expect("the store is there");
    let one = |id, state: &str, ms: Option<u64>, why: &str| {
        let ns = ms.map(|ms| ms * 1_000_000);
        (id, state.to_owned(), ns, why.to_owned())
    };
    // The driver has told nothing since: that they ran then does not say that they run now.
    let unknown = [3, 4, 5, 6].map(|id| one(id, "", None, ""));
    let ended = one(7, "succeeded", Some(500), "");
    let nothing: Vec<_> = unknown.iter().cloned().chain([ended.clone()]).collect();
    assert_eq!(courses(&shared, 1000), nothing);

    executor(&shared, 1, 1000, "app-1");
    executor(&shared, 8, 1000, "app-1");
    stage(&shared, 1, 1000, 3, Some(3_000), "");
    stage(&shared, 1, 1000, 4, Some(4_000), "it was cancelled");
    stage(&shared, 1, 1000, 5, None, "");
    // One executor has heard of the end, another one not.
    stage(&shared, 1, 1000, 6, Some(2_000), "");
    stage(&shared, 8, 1000, 6, None, "");
    let now = [
        one(3, "succeeded", Some(2_000), ""),
        one(4, "failed", Some(3_000), "it was cancelled"),
        one(5, "running", None, ""),
        one(6, "succeeded", Some(1_000), ""),
        ended,
    ];
    assert_eq!(courses(&shared, 1000), now);
    // What executors of another user claim says nothing of these.
    assert_eq!(courses(&shared, 666), nothing);
}
