//! What the next run of the daemon lists of the ones before.

use std::sync::atomic::AtomicBool;

use super::*;

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

    // A write that fails closes the store's folder, whose descriptor is soon that of another one.
    second.workers = None;
    let others = || std::fs::File::open("/").expect("opens");
    let _others: Vec<std::fs::File> = (0..64).map(|_| others()).collect();
    assert_eq!(of("tasks", &all), [5, 6, 7]);
    // A link below the store leads nowhere.
    let folder = store.path().join("source=workers/app-2");
    let moved = store.path().join("moved");
    std::fs::rename(&folder, &moved).expect("moves");
    std::os::unix::fs::symlink(&moved, &folder).expect("links");
    assert_eq!(of("tasks", &all), [5, 6]);
}

#[test]
fn subordinate_users_have_one_share_of_the_runs_before() {
    let store = tempfile::tempdir().expect("a folder");
    // A user with many applications as many users in two runs, and another user's old one.
    let (many, more) = (100_000..100_050_u32, 100_100..100_130_u32);
    let mut key = 0;
    for (run_ms, uids) in [(1_000, many.chain([1000])), (1_500, more.chain([100_200]))] {
        let before = shared();
        for uid in uids {
            key += 1;
            executor(&before, key, uid, &format!("app-{key}"));
            task(&before, key, uid, u64::from(uid));
        }
        let mut writer = writer(store.path(), &before);
        writer.run_ms = run_ms;
        writer.round(true);
        assert_eq!(writer.condition.failing(), "");
    }
    let shared = shared();
    let mut next = writer(store.path(), &shared);
    next.run_ms = 2_000;
    next.take_workers().expect("the store is there");
    let workers = next.workers.as_ref().expect("is open");
    let listed = |share_of: &dyn Fn(u32) -> u32| {
        let boot = smtt_machine::clock::boot_id();
        let earlier = Earlier::of_boot(workers, 2_000, &boot, share_of);
        let mut ids = Vec::new();
        let rows = earlier::Rows::of("tasks").expect("a listing");
        let left_out = earlier.each(&shared, rows, &Filter::default(), |rows| {
            let of = rows
                .iter()
                .filter_map(|row| row["task_attempt_id"].as_u64());
            ids.extend(of);
            Ok(())
        });
        (ids, left_out.expect("reads"))
    };
    let (ids, left_out) = listed(&|uid| if uid >= 100_000 { 500 } else { uid });
    assert_eq!(ids.len(), 64 + 1);
    assert!(ids.contains(&1000), "the other user's");
    assert!(left_out >= 16, "{left_out} files are left out");
    // Without the ranges they are users of their own.
    assert_eq!(listed(&|uid| uid).0.len(), 82);
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
    let other = Earlier::of_boot(workers, 3_000, "another", &|uid| uid);
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

#[test]
fn a_store_that_does_not_answer_holds_no_answer_up() {
    /// Longer than any wait of the daemon.
    const LONG: Duration = Duration::from_secs(300);
    static ANSWERS: AtomicBool = AtomicBool::new(false);
    let store = tempfile::tempdir().expect("a folder");
    let before = shared();
    for key in 1..=3 {
        executor(&before, key, 1000, &format!("app-{key}"));
        task(&before, key, 1000, key);
    }
    let mut first = writer(store.path(), &before);
    first.run_ms = 1_000;
    first.round(true);
    let shared = shared();
    let mut next = writer(store.path(), &shared);
    next.run_ms = 2_000;
    next.take_workers().expect("the store is there");
    let workers = next.workers.as_ref().expect("is open");
    let boot = smtt_machine::clock::boot_id();
    let mut earlier = Earlier::of_boot(workers, 2_000, &boot, &|uid| uid);
    let rows = earlier::Rows::of("tasks").expect("a listing");
    let ask = |earlier: &Earlier| {
        let mut count = 0;
        let left_out = earlier.each(&shared, rows, &Filter::default(), |rows| {
            count += rows.len();
            Ok(())
        });
        (count, left_out.expect("answers"))
    };
    assert_eq!(ask(&earlier), (3, 0));
    let answers = earlier.column;
    earlier.column = |_, _, _| {
        while !ANSWERS.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(20));
        }
        Ok(Vec::new())
    };
    let begin = Instant::now();
    for _ in 0..3 {
        assert_eq!(ask(&earlier), (0, 3), "files are left out, and counted");
    }
    assert!(begin.elapsed() < LONG / 5, "{:?}", begin.elapsed());
    // Once it has answered it is asked again, after a pause.
    earlier.column = answers;
    ANSWERS.store(true, Ordering::Relaxed);
    let begin = Instant::now();
    while ask(&earlier) != (3, 0) {
        assert!(begin.elapsed() < LONG, "it is asked no more");
        sleep(Duration::from_millis(200));
    }
}
