//! What is written of executors that claim things, by whom, and what happens where the store cannot be written.

#![allow(
    clippy::single_range_in_vec_init,
    reason = "rows are asked for by ranges, one or several"
)]

use smtt_model::decode::{Event, ExecutorDescribed, Fact, Outcome, TaskEnded, TaskStarted};
use smtt_model::state::Limits;
use smtt_store::history::workers::{REST, WorkerFile, files, reader};

mod ends;
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

#[test]
fn the_next_run_lists_what_the_one_before_knew() {
    let store = tempfile::tempdir().expect("a folder");
    let before = shared();
    executor(&before, 1, 1000, "app-1");
    executor(&before, 2, 666, "app-1");
    executor(&before, 3, 1000, "app-2");
    for (key, uid, id) in [(1, 1000, 5), (2, 666, 6), (3, 1000, 7)] {
        task(&before, key, uid, id);
    }
    let mut first = writer(store.path(), &before);
    first.run_ms = 1_000;
    first.round(true);
    assert_eq!(first.condition.failing(), "");
    assert!(before.earlier().expect("was looked for").written_is_empty());

    let shared = shared();
    let mut second = writer(store.path(), &shared);
    second.run_ms = 2_000;
    second.take_workers().expect("the store is there");
    let of = |listing: &str, filter: &Filter| -> Vec<u64> {
        let rows = earlier_rows(&shared, listing, filter);
        for row in &rows {
            assert_eq!(row["earlier"]["since_unix_ms"], 1_000, "{row}");
            let until = row["earlier"]["until_unix_ms"].as_u64().expect("a time");
            assert!(now_unix_ns() / 1_000_000 - until < 60_000, "{row}");
        }
        let ids = rows.iter().map(|row| {
            let id = match listing {
                "tasks" => &row["task_attempt_id"],
                "stages" => &row["stage_id"],
                _ => &row["pid"],
            };
            id.as_u64().expect("a number")
        });
        let mut ids: Vec<u64> = ids.collect();
        ids.sort_unstable();
        ids
    };
    let all = Filter::default();
    assert_eq!(of("executors", &all), [1, 2, 3]);
    assert_eq!(of("memory", &all), [1, 2, 3]);
    assert_eq!(of("history", &all), [1, 2, 3]);
    assert_eq!(of("tasks", &all), [5, 6, 7]);
    let filter = |change: &dyn Fn(&mut Filter)| {
        let mut filter = Filter::default();
        change(&mut filter);
        filter
    };
    let user = filter(&|it| it.user = Some(666));
    assert_eq!(of("tasks", &user), [6]);
    let app = filter(&|it| it.app = Some("app-*".to_owned()));
    assert_eq!(of("executors", &app), [1, 2, 3]);
    let app = filter(&|it| it.app = Some("app-2".to_owned()));
    assert_eq!(of("executors", &app), [3]);
    let executor = filter(&|it| it.executor = Some("2".to_owned()));
    assert_eq!(of("tasks", &executor), [6]);
    let task = filter(&|it| it.task = Some(7));
    assert_eq!(of("tasks", &task), [7]);
    for (stage, want) in [("3", 3), ("3.0", 3), ("3.1", 0), ("4", 0), ("x", 0)] {
        let stage = filter(&|it| it.stage = Some(stage.to_owned()));
        assert_eq!(of("tasks", &stage).len(), want);
        assert_eq!(of("stages", &stage).len(), want);
    }
    let rdd = filter(&|it| it.rdd = Some("9".to_owned()));
    assert_eq!(of("executors", &rdd).len(), 0);
    let summary = |filter: &Filter| {
        let mut summary = smtt_model::rows::Summary::default();
        let earlier = shared.earlier().expect("was found");
        earlier.add_to(&mut summary, &shared.state(), filter);
        (summary.earlier_runs.len(), summary.measured_since_unix_ms)
    };
    assert_eq!(summary(&all), (1, Some(2_000)));
    assert_eq!(summary(&rdd), (1, Some(2_000)));
    let nobody = filter(&|it| it.user = Some(7));
    assert_eq!(summary(&nobody), (0, None));
    for (id, runs) in [("app-1", 1), ("app-3", 0)] {
        let exactly = smtt_model::rows::ApplicationKey {
            id: Some(id.to_owned()),
            uid: Some(1000),
            ..Default::default()
        };
        let one = filter(&|it| it.application = Some(exactly.clone()));
        assert_eq!(summary(&one).0, runs, "{id}");
    }
}

#[test]
fn files_of_another_run_of_the_machine_and_damaged_ones_are_left_out() {
    let store = tempfile::tempdir().expect("a folder");
    for (run_ms, damage) in [(1_000, false), (2_000, true)] {
        let shared = shared();
        executor(&shared, 1, 1000, "app-1");
        task(&shared, 1, 1000, 5);
        let mut writer = writer(store.path(), &shared);
        writer.run_ms = run_ms;
        writer.round(true);
        let all = files(store.path(), "app-1").expect("lists");
        let tasks = all
            .iter()
            .filter(|it| it.name.run == run_ms && it.name.table == TASKS.name);
        for file in tasks.filter(|_| damage) {
            std::fs::write(&file.path, b"PAR1 is no table PAR1").expect("writes");
        }
    }
    let shared = shared();
    let mut next = writer(store.path(), &shared);
    next.run_ms = 3_000;
    next.take_workers().expect("the store is there");
    let all = Filter::default();
    assert_eq!(earlier_rows(&shared, "tasks", &all).len(), 1);
    assert_eq!(earlier_rows(&shared, "executors", &all).len(), 2);
    // Times since another start of the machine would be taken for times since this one.
    let workers = next.workers.as_ref().expect("is open");
    let other = Earlier::of_boot(workers, 3_000, "another");
    assert!(other.written_is_empty());
}

#[test]
fn an_answer_about_earlier_runs_is_bounded_and_leaves_each_user_its_newest() {
    let store = tempfile::tempdir().expect("a folder");
    let shared_before = shared();
    let mut first = writer(store.path(), &shared_before);
    first.run_ms = 1_000;
    for (key, uid) in [(1, 1000), (2, 666)] {
        executor(&shared_before, key, uid, "app-1");
    }
    // One user has many files, the other one has two.
    let files_of = |uid: u32| if uid == 666 { 20 } else { 2 };
    for part in 0..20 {
        for (key, uid) in [(1, 1000), (2, 666)] {
            if part < files_of(uid) {
                task(&shared_before, key, uid, part);
            }
        }
        for known in first.applications.values_mut() {
            known.last = None;
        }
        first.round(true);
    }
    let shared = shared();
    let mut second = writer(store.path(), &shared);
    second.run_ms = 2_000;
    second.take_workers().expect("the store is there");
    let rows = EarlierRows::of("tasks").expect("is a listing");
    let mut of_user: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let found = shared.earlier().expect("was found");
    let room = 8 * earlier::FILE_COST;
    let left_out = found.each_within(room, &shared, rows, &Filter::default(), |rows| {
        for row in rows {
            let number = |name: &str| row[name].as_u64().expect("a number");
            let ids = of_user.entry(number("uid")).or_default();
            ids.push(number("task_attempt_id"));
        }
        Ok(())
    });
    let left_out = left_out.expect("reads");
    assert!(left_out > 8, "{left_out} were left out");
    assert_eq!(of_user[&1000], [1, 0]);
    let mine = &of_user[&666];
    assert_eq!(mine.len() as u64 + left_out, 20);
    assert_eq!(mine[0], 19, "the newest come first");
}
