//! Executors that end: their last documents are written once and shown once.

use super::*;
use smtt_store::history::batch::{Batch, Cell};

/// The executors of each kind of documents about executors in what the next run lists.
fn listed(store: &std::path::Path, kinds: &[&str]) -> Vec<Vec<u64>> {
    let shared = shared();
    let mut next = writer(store, &shared);
    next.run_ms = 2_000;
    next.take_workers().expect("the store is there");
    let of = |kind: &&str| {
        let rows = earlier_rows(&shared, kind, &Filter::default());
        let mut pids: Vec<u64> = rows.iter().filter_map(|row| row["pid"].as_u64()).collect();
        pids.sort_unstable();
        pids
    };
    kinds.iter().map(of).collect()
}

#[test]
fn an_executor_that_ended_before_a_kill_is_listed_once() {
    let store = tempfile::tempdir().expect("a folder");
    let shared = shared();
    for key in [1, 2] {
        executor(&shared, key, 1000, "app-1");
        task(&shared, key, 1000, key);
    }
    let mut writer = writer(store.path(), &shared);
    writer.run_ms = 1_000;
    writer.round(false);
    let all = files(store.path(), "app-1").expect("lists");
    let is_part_0 = |it: &&WorkerFile| it.name.table == REST.name && it.name.part == 0;
    let part_0 = all.iter().find(is_part_0).expect("is there");
    let before = std::fs::read(&part_0.path).expect("reads");
    tell(&shared, 1, 1000, exited());
    for _ in 0..4 {
        writer.round(false);
    }
    assert_eq!(writer.condition.failing(), "");
    let kinds = ["executors", "memory", "stages", "history"];
    let once = [[1, 2]; 4];
    assert_eq!(listed(store.path(), &kinds), once);
    // The daemon was killed between the part with the last documents and the next part 0.
    std::fs::write(&part_0.path, before).expect("writes");
    assert_eq!(
        ids(store.path(), "app-1", "executor"),
        ["1.1", "1.1", "2.2"]
    );
    assert_eq!(listed(store.path(), &kinds), once);
}

#[test]
fn last_documents_do_not_wait_for_the_interval() {
    let store = tempfile::tempdir().expect("a folder");
    let shared = shared();
    executor(&shared, 1, 1000, "app-1");
    executor(&shared, 2, 1000, "app-1");
    let mut writer = writer(store.path(), &shared);
    writer.settings.interval = Duration::from_secs(3600);
    writer.round(false);
    tell(&shared, 1, 1000, exited());
    for _ in 0..3 {
        for known in writer.applications.values_mut() {
            known.last = Instant::now().checked_sub(SETTLED_PAUSE);
        }
        writer.round(false);
    }
    shared.state().expire(u64::MAX / 2);
    writer.round(false);
    let both = ["1.1", "2.2"];
    assert_eq!(ids(store.path(), "app-1", "executor"), both);
    assert_eq!(writer.condition.executors_lost(), 0);
}

#[test]
fn a_retention_below_what_the_last_documents_take_is_named_with_its_remedy() {
    assert_eq!(too_short(RETENTION_LEAST), None);
    let text = too_short(Duration::from_secs(5)).expect("is too short");
    assert!(text.contains("[retention] executors = \"5s\""), "{text}");
    assert!(text.contains("set it to \"30s\""), "{text}");
}

#[test]
fn executors_that_go_before_their_last_documents_are_written_are_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().join("store");
    std::fs::create_dir(&store).expect("makes it");
    let shared = shared();
    for key in 1..=4 {
        executor(&shared, key, 1000, "app-1");
    }
    let mut writer = writer(&store, &shared);
    shared.set_history(Arc::clone(&writer.condition));
    let lost = || shared.status().history.expect("is written").executors_lost;
    // One whose documents are written.
    tell(&shared, 1, 1000, exited());
    for _ in 0..4 {
        writer.round(false);
    }
    shared.state().expire(u64::MAX / 4);
    writer.round(false);
    assert_eq!((lost(), writer.condition.failing()), (0, String::new()));
    // One while the store cannot be written, and one that goes at once.
    std::fs::remove_dir_all(&store).expect("removes it");
    writer.workers = None;
    tell(&shared, 2, 1000, exited());
    for _ in 0..4 {
        writer.round(false);
    }
    assert!(!writer.condition.failing().is_empty());
    tell(&shared, 3, 1000, exited());
    shared.state().expire(u64::MAX / 2);
    assert_eq!(shared.executor_keys(), [4]);
    for _ in 0..2 {
        writer.round(false);
        assert_eq!(lost(), 2, "each once");
    }
    std::fs::create_dir(&store).expect("makes it");
    writer.round(true);
    assert_eq!(writer.condition.failing(), "");
    let all = files(&store, "app-1").expect("lists");
    let rest = reader(&all[0]).expect("opens");
    let kinds = rest.texts("kind", &[0..rest.rows()]).expect("reads");
    let json = rest.texts("json", &[0..rest.rows()]).expect("reads");
    let worker = kinds
        .iter()
        .zip(json)
        .find(|(kind, _)| kind.as_deref() == Some("worker"));
    let json = worker.and_then(|(_, json)| json).expect("is there");
    let worker: serde_json::Value = serde_json::from_str(&json).expect("is JSON");
    assert_eq!(worker["executors_lost"], 2);
}

#[test]
fn executors_of_an_application_that_can_have_no_history_are_not_lost() {
    let store = tempfile::tempdir().expect("a folder");
    let shared = shared();
    executor(&shared, 1, 1000, "../../etc");
    executor(&shared, 2, 1000, "app-1");
    let mut writer = writer(store.path(), &shared);
    writer.round(false);
    for key in [1, 2] {
        tell(&shared, key, 1000, exited());
    }
    shared.state().expire(u64::MAX / 2);
    assert!(shared.executor_keys().is_empty());
    writer.round(false);
    assert_eq!(writer.condition.executors_lost(), 1, "that of app-1");
}

#[test]
fn a_part_whose_ids_cannot_be_read_lists_nobody_twice() {
    let store = tempfile::tempdir().expect("a folder");
    let shared = shared();
    executor(&shared, 1, 1000, "app-1");
    let mut writer = writer(store.path(), &shared);
    writer.run_ms = 1_000;
    writer.round(false);
    let all = files(store.path(), "app-1").expect("lists");
    let part_0 = reader(&all[0]).expect("opens");
    let texts = |name: &str| part_0.texts(name, &[0..part_0.rows()]).expect(name);
    let json = texts("kind").into_iter().zip(texts("json"));
    let mut json = json.filter(|(kind, _)| kind.as_deref() == Some("executor"));
    let json = json.next().and_then(|(_, json)| json).expect("its row");
    // The ids of the next part have more bytes than are read of a column.
    let mut batch = Batch::new(&REST);
    let long = "x".repeat(1 << 20);
    let rows = std::iter::repeat_n((long.as_str(), "{}"), 17);
    for (id, json) in [("1.1", json.as_str())].into_iter().chain(rows) {
        batch.push(&["executor", id, json].map(Cell::Text));
    }
    let whose = Whose {
        application: "app-1",
        attempt: None,
        uid: 1000,
    };
    let workers = writer.workers.as_mut().expect("is open");
    let written = workers.add(whose, 1, &batch, &|uid| uid);
    written.expect("writes");
    assert_eq!(listed(store.path(), &["executors"]), [[1]]);
}
