//! What is written of executors that claim things, by whom, and what happens where the store cannot be written.

#![allow(
    clippy::single_range_in_vec_init,
    reason = "rows are asked for by ranges, one or several"
)]

use smtt_model::decode::{Event, ExecutorDescribed, Fact, Outcome, TaskEnded, TaskStarted};
use smtt_model::state::Limits;
use smtt_store::history::workers::{REST, WorkerFile, files, reader};

mod ends;
mod runs;
mod stages;

use super::*;
use crate::shared::DaemonInfo;

fn shared() -> Arc<Shared> {
    let info = DaemonInfo {
        version: String::new(),
        kernel_side: String::new(),
        telemetry_path: String::new(),
        metrics: crate::metrics::MetricsSettings::at_once(0),
        doctor: Vec::new,
    };
    Arc::new(Shared::new(info, Limits::default()))
}

fn tell(shared: &Shared, executor: u64, uid: u32, fact: Fact) {
    shared.state().apply(Event {
        time_ns: 1,
        executor,
        pid: u32::try_from(executor).unwrap_or_default(),
        tid: 1,
        uid,
        fact,
    });
}

fn executor(shared: &Shared, key: u64, uid: u32, application: &str) {
    executor_of(shared, key, uid, application, "");
}

fn executor_of(shared: &Shared, key: u64, uid: u32, application: &str, attempt: &str) {
    let described = ExecutorDescribed {
        application_id: application.to_owned(),
        application_attempt_id: attempt.to_owned(),
        executor_id: key.to_string(),
        ..ExecutorDescribed::default()
    };
    tell(
        shared,
        key,
        uid,
        Fact::ExecutorDescribed(Box::new(described)),
    );
}

fn task(shared: &Shared, key: u64, uid: u32, id: u64) {
    let started = TaskStarted {
        task_attempt_id: id,
        stage_id: 3,
        ..TaskStarted::default()
    };
    let ended = TaskEnded {
        task_attempt_id: id,
        stage_id: 3,
        stage_attempt: 0,
        outcome: Outcome::Succeeded,
        execution_memory_peak_bytes: 0,
        reason: String::new(),
    };
    tell(shared, key, uid, Fact::TaskStarted(started));
    tell(shared, key, uid, Fact::TaskEnded(ended));
}

fn writer(store: &std::path::Path, shared: &Arc<Shared>) -> Writer {
    let settings = HistorySettings {
        store: store.to_owned(),
        interval: Duration::ZERO,
        max_bytes: 1 << 30,
        max_files: 1 << 20,
        gid: None,
    };
    let (owners, condition) = (Arc::default(), Arc::default());
    Writer::new(settings, Arc::clone(shared), owners, condition)
}

fn tasks(file: &WorkerFile) -> Vec<Option<i64>> {
    let reader = reader(file).expect("opens");
    reader
        .numbers("task_id", &[0..reader.rows()])
        .expect("reads")
}

#[test]
fn a_claim_of_another_user_goes_to_the_claimant_s_folder() {
    let store = tempfile::tempdir().expect("a folder");
    let shared = shared();
    executor(&shared, 1, 1000, "app-1");
    executor(&shared, 2, 666, "app-1");
    executor(&shared, 3, 666, "../../etc");
    for (key, uid, id) in [(1, 1000, 5), (2, 666, 6), (3, 666, 7)] {
        task(&shared, key, uid, id);
    }
    let mut writer = writer(store.path(), &shared);
    writer.round(false);
    assert_eq!(writer.condition.failing(), "");
    let all = files(store.path(), "app-1").expect("lists");
    let tables: Vec<_> = all.iter().map(|it| (it.uid, it.name.table)).collect();
    assert_eq!(
        tables,
        [
            (666, "worker"),
            (666, "worker_tasks"),
            (1000, "worker"),
            (1000, "worker_tasks")
        ]
    );
    assert_eq!(tasks(&all[1]), [Some(6)]);
    assert_eq!(tasks(&all[3]), [Some(5)]);
    let folders = std::fs::read_dir(store.path().join("source=workers"));
    assert_eq!(
        folders.expect("lists").count(),
        1,
        "no other application has a folder"
    );
    // Nothing twice, and nothing anew where nothing has ended.
    let known = &writer.applications[&ApplicationKey {
        id: Some("app-1".into()),
        attempt: None,
        uid: Some(1000),
    }];
    let first = known.last;
    assert_eq!((known.rows, known.lost), (1, 0));
    task(&shared, 2, 666, 8);
    writer.round(false);
    let known = &writer.applications[&ApplicationKey {
        id: Some("app-1".into()),
        attempt: None,
        uid: Some(1000),
    }];
    assert_eq!((known.rows, known.last), (1, first));
    let all = files(store.path(), "app-1").expect("lists");
    assert_eq!(all.len(), 5);
    assert_eq!(tasks(&all[2]), [Some(8)]);
}

#[test]
fn attempts_of_an_application_have_folders_of_their_own() {
    let store = tempfile::tempdir().expect("a folder");
    let shared = shared();
    for (key, attempt) in [(1, "1"), (2, "2"), (3, "../2"), (4, "")] {
        executor_of(&shared, key, 1000, "app-1", attempt);
        task(&shared, key, 1000, 5);
    }
    task(&shared, 2, 1000, 6);
    let mut writer = writer(store.path(), &shared);
    writer.round(false);
    assert_eq!(writer.condition.failing(), "");
    for (folder, want) in [
        ("app-1_1", vec![Some(5)]),
        ("app-1_2", vec![Some(5), Some(6)]),
        // What is no number is no attempt.
        ("app-1", vec![Some(5), Some(5)]),
    ] {
        let all = files(store.path(), folder).expect("lists");
        let tables: Vec<_> = all.iter().map(|it| it.name.table).collect();
        assert_eq!(tables, ["worker", "worker_tasks"], "{folder}");
        assert_eq!(tasks(&all[1]), want, "{folder}");
        let rest = reader(&all[0]).expect("opens");
        let kinds = rest.texts("kind", &[0..rest.rows()]).expect("reads");
        let executors = kinds.iter().filter(|it| it.as_deref() == Some("executor"));
        let unnamed = usize::from(folder == "app-1");
        assert_eq!(executors.count(), 1 + unnamed, "{folder}: {kinds:?}");
    }
    let folders = std::fs::read_dir(store.path().join("source=workers"));
    assert_eq!(folders.expect("lists").count(), 3, "no attempt climbs out");
}

#[test]
fn tasks_wait_for_a_store_that_cannot_be_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().join("store");
    let shared = shared();
    executor(&shared, 1, 1000, "app-1");
    task(&shared, 1, 1000, 5);
    let mut writer = writer(&store, &shared);
    writer.round(false);
    let failing = writer.condition.failing();
    assert!(failing.contains("cannot be written"), "{failing}");
    assert_eq!(writer.pause, Some(PAUSE));
    let degraded = shared_status(&shared, &writer);
    assert!(degraded.contains(&failing), "{degraded:?}");
    task(&shared, 1, 1000, 6);
    std::fs::create_dir(&store).expect("makes it");
    writer.round(true);
    assert_eq!(writer.condition.failing(), "");
    let all = files(&store, "app-1").expect("lists");
    let of = |name: &str| {
        all.iter()
            .find(|it| it.name.table == name)
            .expect("is there")
    };
    assert_eq!(tasks(of(TASKS.name)), [Some(5), Some(6)]);
    let rest = reader(of(REST.name)).expect("opens");
    let kinds = rest.texts("kind", &[0..rest.rows()]).expect("reads");
    for kind in ["worker", "executor", "memory", "stage", "findings"] {
        assert!(kinds.contains(&Some(kind.to_owned())), "{kind}: {kinds:?}");
    }
    // Both clocks at one moment: readers place times since boot on the time of day.
    let worker = kinds
        .iter()
        .position(|kind| kind.as_deref() == Some("worker"));
    let row = worker.expect("is there") as u64;
    let text = rest.texts("json", &[row..row + 1]).expect("reads");
    let json: serde_json::Value =
        serde_json::from_str(text[0].as_deref().expect("has a document")).expect("is JSON");
    let number = |name: &str| json[name].as_u64().expect(name);
    let boot_ms = number("written_unix_ms") - number("written_boot_ns") / 1_000_000;
    let here_ms = (now_unix_ns() - now_boot_ns()) / 1_000_000;
    assert!(boot_ms.abs_diff(here_ms) < 100, "{boot_ms} {here_ms}");
}

#[test]
fn tasks_that_the_history_cannot_have_are_refused_and_not_lost() {
    let store = tempfile::tempdir().expect("a folder");
    let shared = shared();
    executor(&shared, 1, 1000, "..");
    task(&shared, 1, 1000, 5);
    task(&shared, 1, 1000, 6);
    let mut writer = writer(store.path(), &shared);
    writer.round(true);
    assert_eq!(writer.condition.failing(), "");
    let seen = (writer.condition.refused(), writer.condition.lost());
    assert_eq!(seen, (2, 0));
    // They do not wait either.
    let mut all = writer.applications.values();
    let known = all.next().expect("the application");
    assert_eq!((known.waiting.len(), known.lost), (0, 0));
}

/// Why the daemon is degraded.
fn shared_status(shared: &Arc<Shared>, writer: &Writer) -> Vec<String> {
    shared.set_history(Arc::clone(&writer.condition));
    shared.status().degraded
}

#[test]
fn functions_of_ended_tasks_are_a_table_beside_them() {
    let store = tempfile::tempdir().expect("a folder");
    let shared = shared();
    executor(&shared, 1, 1000, "app-1");
    let started = TaskStarted {
        task_attempt_id: 5,
        stage_id: 3,
        ..TaskStarted::default()
    };
    tell(&shared, 1, 1000, Fact::TaskStarted(started));
    let span = smtt_model::decode::Span {
        task_attempt_id: Some(5),
        activity: smtt_common::context::Activity::SPILL.0,
        duration_ns: 1_000_001,
        rdd_id: Some(2),
        name: "Sorter.spill".to_owned(),
        ..smtt_model::decode::Span::default()
    };
    tell(&shared, 1, 1000, Fact::Span(span));
    let fetched = smtt_model::decode::Fetched {
        task_attempt_id: 5,
        duration_ns: 70,
        requests: 1,
        blocks: 4,
        arrived_blocks: 4,
        arrived_bytes: 99,
        address: "node-2:7337".to_owned(),
        executor_id: "2".to_owned(),
        ..smtt_model::decode::Fetched::default()
    };
    tell(&shared, 1, 1000, Fact::Fetched(Box::new(fetched)));
    task(&shared, 1, 1000, 5);
    task(&shared, 1, 1000, 6);
    let mut writer = writer(store.path(), &shared);
    writer.round(false);
    assert_eq!(writer.condition.failing(), "");
    let all = files(store.path(), "app-1").expect("lists");
    let tables: Vec<_> = all.iter().map(|it| it.name.table).collect();
    let expected = [
        "worker",
        "worker_fetches",
        "worker_functions",
        "worker_tasks",
    ];
    assert_eq!(tables, expected);
    let fetches = reader(&all[1]).expect("opens");
    for (name, value) in [
        ("task_id", 5),
        ("duration_ns", 70),
        ("blocks", 4),
        ("bytes", 99),
    ] {
        let found = fetches.numbers(name, &[0..fetches.rows()]).expect(name);
        assert_eq!(found, [Some(value)], "{name}");
    }
    for (name, value) in [
        ("from_address", "node-2:7337"),
        ("from_executor_id", "2"),
        ("outcome", "complete"),
    ] {
        let found = fetches.texts(name, &[0..fetches.rows()]).expect(name);
        assert_eq!(found, [Some(value.to_owned())], "{name}");
    }
    let functions = reader(&all[2]).expect("opens");
    let numbers = |name: &str| functions.numbers(name, &[0..functions.rows()]).expect(name);
    let texts = |name: &str| functions.texts(name, &[0..functions.rows()]).expect(name);
    let expected = [
        ("stage_id", 3),
        ("task_id", 5),
        ("duration_ns", 1_000_001),
        ("own_ns", 1_000_001),
        ("rdd_id", 2),
    ];
    for (name, value) in expected {
        assert_eq!(numbers(name), [Some(value)], "{name}");
    }
    let expected = [
        ("thread", "task"),
        ("activity", "spill"),
        ("function", "Sorter.spill"),
    ];
    for (name, value) in expected {
        assert_eq!(texts(name), [Some(value.to_owned())], "{name}");
    }
    // The row of the task has the sums only.
    let rows = reader(&all[3]).expect("opens");
    let json = rows.texts("json", &[0..1]).expect("reads");
    let json: serde_json::Value =
        serde_json::from_str(json[0].as_deref().expect("has a document")).expect("is JSON");
    assert_eq!(json["functions"]["activities"][0]["activity"], "spill");
    assert_eq!(json["functions"].get("spans"), None, "{json}");
    assert_eq!(json["functions"].get("fetches"), None, "{json}");
    assert_eq!(json["functions"]["fetched"]["bytes"], 99);
    // Nothing twice.
    writer.round(true);
    assert_eq!(files(store.path(), "app-1").expect("lists").len(), 4);
}

/// Ids of the documents of a kind in all files of an application, sorted.
fn ids(store: &std::path::Path, folder: &str, kind: &str) -> Vec<String> {
    let mut found = Vec::new();
    let all = files(store, folder).expect("lists");
    for file in all.iter().filter(|it| it.name.table == REST.name) {
        let reader = reader(file).expect("opens");
        let texts = |name: &str| reader.texts(name, &[0..reader.rows()]).expect(name);
        let of_kind = texts("kind").into_iter().zip(texts("id"));
        let of_kind = of_kind.filter(|(it, _)| it.as_deref() == Some(kind));
        found.extend(of_kind.filter_map(|(_, id)| id));
    }
    found.sort();
    found
}

#[test]
fn an_executor_that_expires_stays_in_the_history() {
    let store = tempfile::tempdir().expect("a folder");
    let shared = shared();
    executor(&shared, 1, 1000, "app-1");
    executor(&shared, 2, 1000, "app-1");
    task(&shared, 1, 1000, 5);
    let mut writer = writer(store.path(), &shared);
    writer.round(false);
    tell(&shared, 1, 1000, exited());
    for _ in 0..4 {
        writer.round(false);
    }
    assert_eq!(writer.condition.failing(), "");
    let both = ["1.1", "2.2"];
    assert_eq!(ids(store.path(), "app-1", "executor"), both);
    // Its rows expire, and then those of the other one change.
    shared.state().expire(u64::MAX / 2);
    assert_eq!(shared.executor_keys(), [2]);
    task(&shared, 2, 1000, 6);
    writer.round(true);
    assert_eq!(ids(store.path(), "app-1", "executor"), both);
    assert_eq!(ids(store.path(), "app-1", "memory"), both);
    assert_eq!(ids(store.path(), "app-1", "worker").len(), 1);
}

#[test]
fn an_application_that_comes_back_overwrites_nothing() {
    let store = tempfile::tempdir().expect("a folder");
    let shared = shared();
    let mut writer = writer(store.path(), &shared);
    for (key, id) in [(1, 5), (2, 6), (3, 7)] {
        executor(&shared, key, 1000, "app-1");
        task(&shared, key, 1000, id);
        tell(&shared, key, 1000, exited());
        for _ in 0..4 {
            writer.round(false);
        }
        shared.state().expire(u64::MAX / 2);
        writer.round(false);
        writer
            .applications
            .values_mut()
            .for_each(|known| known.last = None);
        if key == 2 {
            // Nor where what was remembered of it is gone.
            writer.applications.clear();
        }
    }
    writer.round(true);
    assert_eq!(writer.condition.failing(), "");
    let all = files(store.path(), "app-1").expect("lists");
    let parts = all.iter().filter(|it| it.name.table == TASKS.name);
    let found: Vec<_> = parts.flat_map(tasks).collect();
    assert_eq!(found, [Some(5), Some(6), Some(7)]);
    let executors = ids(store.path(), "app-1", "executor");
    assert_eq!(executors, ["1.1", "2.2", "3.3"]);
}

/// The end of a process.
fn exited() -> Fact {
    Fact::ProcessGone {
        exec: false,
        is_executor: true,
        end: None,
    }
}

/// Rows of earlier runs that a filter selects.
fn earlier_rows(shared: &Shared, listing: &str, filter: &Filter) -> Vec<serde_json::Value> {
    let earlier = shared.earlier().expect("was found");
    let rows = EarlierRows::of(listing).expect("is a listing");
    let mut all = Vec::new();
    earlier
        .each(shared, rows, filter, |rows| {
            all.extend(rows.into_iter().map(serde_json::Value::Object));
            Ok(())
        })
        .map(|left_out| assert_eq!(left_out, 0))
        .expect("reads");
    all
}
