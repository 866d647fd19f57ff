//! Executors that end: their last documents are written once and shown once.

use super::*;

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
