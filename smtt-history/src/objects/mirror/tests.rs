//! Which objects become files of a copy, and how copies make room.

use super::super::bucket::Object;
use super::plan::{BLOCK, Source};
use super::*;
use crate::live::FILE_BYTES;
use crate::workers::{Files, Trouble as OfWorkers};

fn object(name: &str, size: u64) -> Object {
    Object {
        name: name.to_owned(),
        size,
        tag: Some(format!("tag of {name}")),
        modified_ms: 0,
    }
}

fn objects(names: &[&str]) -> Vec<Object> {
    names.iter().map(|name| object(name, 10)).collect()
}

fn names(plan: &Plan) -> Vec<&str> {
    plan.keys().map(String::as_str).collect()
}

#[test]
fn finished_parts_are_copied_and_nothing_else() {
    let plan = plan_of_parts(&objects(&[
        "meta-000001.parquet",
        "tasks-000001.parquet",
        "meta-000002.parquet",
        "tasks-000003.parquet",
        ".meta-000004.parquet.inprogress",
        "meta-0000005.parquet",
        "meta-000000.parquet",
        "../meta-000006.parquet",
        "a/meta-000007.parquet",
        "other-000001.parquet",
    ]));
    let wanted = [
        "meta-000001.parquet",
        "meta-000002.parquet",
        "tasks-000001.parquet",
    ];
    assert_eq!(names(&plan), wanted);
    assert!(plan_of_parts(&objects(&["tasks-000001.parquet"])).is_empty());
}

#[test]
fn a_part_that_is_too_large_takes_the_room_of_a_small_one() {
    let mut all = objects(&["meta-000001.parquet"]);
    all.push(object("meta-000002.parquet", FILE_BYTES + 1));
    let plan = plan_of_parts(&all);
    assert!(plan["meta-000002.parquet"].is_too_large);
    assert_eq!(plan.values().map(size).sum::<u64>(), 2 * BLOCK);
}

#[test]
fn tables_of_the_generation_that_the_pointer_names_are_copied() {
    let generation = "0123456789abcdef";
    let mut all = objects(&[
        "meta.0123456789abcdef.parquet",
        "tasks.0123456789abcdef.parquet",
        "meta.ffffffffffffffff.parquet",
    ]);
    assert_eq!(
        plan_of_tables(&all, Some(generation)),
        None,
        "a table is missing"
    );
    all.push(object("task_sql.0123456789abcdef.parquet", 10));
    let plan = plan_of_tables(&all, Some(generation)).expect("is whole");
    assert_eq!(
        names(&plan),
        ["meta.parquet", "task_sql.parquet", "tasks.parquet"]
    );
    assert_eq!(
        plan["meta.parquet"].object.name,
        "meta.0123456789abcdef.parquet"
    );
    assert_eq!(plan_of_tables(&all, None), None);
}

#[test]
fn files_of_workers_are_known_by_their_names() {
    let plan = plan_of_workers(&objects(&[
        "uid=1000/worker-1790000000000-000001.host-1.parquet",
        "uid=1000/worker_tasks-1790000000000-000001.host-1.parquet",
        "uid=01/worker-1790000000000-000001.host-1.parquet",
        "uid=1000/../worker-1790000000000-000001.host-1.parquet",
        "uid=1000/worker-1790000000000-000001./etc.parquet",
        "worker-1790000000000-000001.host-1.parquet",
    ]));
    assert_eq!(plan.len(), 2, "{:?}", names(&plan));
}

fn mirror(most: u64) -> Mirror {
    let url = "s3://bucket/prefix".parse().expect("is an address");
    let bucket = Bucket::open(&url).expect("needs no answer");
    Mirror::new(Arc::new(bucket), most).expect("makes a folder")
}

fn copy(mirror: &Mirror, name: &str, bytes: u64, used: Instant) {
    fs::create_dir(mirror.folder().join(name)).expect("makes a folder");
    let copy = Copy {
        plan: Arc::default(),
        pointer: None,
        missing: Vec::new(),
        bytes,
        used,
    };
    held(&mirror.state).copies.insert(name.to_owned(), copy);
}

fn runtime() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().expect("a runtime")
}

#[test]
fn what_was_asked_for_longest_ago_makes_room() {
    let mirror = mirror(100);
    let Some(long_ago) = Instant::now().checked_sub(2 * IN_USE) else {
        // The machine has just started, so that no time is so long ago.
        panic!("the clock is too young");
    };
    copy(&mirror, "old", 40, long_ago);
    copy(&mirror, "older", 40, long_ago - Duration::from_secs(1));
    copy(&mirror, "new", 10, Instant::now());
    let next = mirror.reserve("next", 30).expect("has room");
    let folder = |name: &str| mirror.folder().join(name).exists();
    assert_eq!(
        (folder("old"), folder("older"), folder("new")),
        (true, false, true)
    );
    // What comes takes its room at once, and what is in use stays.
    let second = mirror.reserve("second", 50).expect("has room");
    assert_eq!((folder("old"), folder("new")), (false, true));
    let error = mirror.reserve("third", 20).expect_err("has no room");
    assert!(
        error.to_string().contains("--object-cache-bytes"),
        "{error}"
    );
    assert!(folder("new"));
    // A copy takes the room of its own older state.
    drop((next, second));
    let _new = mirror.reserve("new", 100).expect("has room");
}

#[test]
fn what_is_being_copied_makes_no_room() {
    let mirror = mirror(100);
    let long_ago = Instant::now().checked_sub(2 * IN_USE);
    let long_ago = long_ago.expect("the machine runs for longer");
    copy(&mirror, "grows", 40, long_ago);
    // New parts of an application come to those that are there.
    let grows = mirror.reserve("grows", 50).expect("has room");
    mirror.reserve("other", 50).expect_err("has no room");
    assert!(mirror.folder().join("grows").exists(), "its parts are gone");
    drop(grows);
    let _other = mirror.reserve("other", 80).expect("has room");
    assert!(!mirror.folder().join("grows").exists());
}

#[test]
fn a_copy_that_is_given_up_gives_its_room_back() {
    let mirror = mirror(10_000);
    let plan = Plan::from([(
        "meta.parquet".to_owned(),
        Source {
            object: object("meta.0123456789abcdef.parquet", 9_000),
            is_too_large: false,
        },
    )]);
    runtime().block_on(async {
        let copied = timeout(Duration::ZERO, mirror.copy("app", plan, Pointed::default()));
        assert!(copied.await.is_err(), "it waits for the store");
    });
    assert!(held(&mirror.state).coming.is_empty());
    mirror.reserve("other", 9_000).expect("has room");
}

#[test]
fn only_so_many_folders_are_listed_at_a_time() {
    let mirror = Arc::new(mirror(100));
    let (_end, ended) = watch::channel(None);
    let names = (0..RUNNING).map(|number| (number.to_string(), ended.clone()));
    held(&mirror.running).extend(names);
    let brought = runtime().block_on(mirror.bring("next"));
    let error = brought.expect_err("is one too many");
    assert!(error.to_string().contains("too many"), "{error}");
    assert_eq!(held(&mirror.running).len(), RUNNING);
}

#[test]
fn the_folders_of_servers_that_were_killed_go() {
    let above = tempfile::tempdir().expect("makes a folder");
    let names = ["smtt-objects-dead", "smtt-objects-living", "other"];
    let [dead, living, other] = names.map(|name| above.path().join(name));
    for folder in [&dead, &living, &other] {
        fs::create_dir(folder).expect("makes a folder");
    }
    let lock = File::open(&living).expect("opens");
    lock.try_lock().expect("locks");
    sweep(above.path(), Duration::from_secs(60));
    assert!(dead.exists(), "it may be new");
    sweep(above.path(), Duration::ZERO);
    assert_eq!(
        (dead.exists(), living.exists(), other.exists()),
        (false, true, true)
    );
    // A link leads nowhere.
    let link = above.path().join("smtt-objects-link");
    std::os::unix::fs::symlink(&other, &link).expect("links");
    sweep(above.path(), Duration::ZERO);
    assert!(other.exists() && link.is_symlink());
}

#[test]
fn a_copy_that_panics_leaves_its_name_free_and_says_so() {
    let mirror = Arc::new(mirror(100));
    runtime().block_on(async {
        let mut ended = mirror.begin_with("app", async { panic!("on purpose") });
        let waiting = timeout(Duration::from_secs(30), ended.wait_for(Option::is_some)).await;
        let result = waiting.expect("has an end").expect("is said").clone();
        let error = result.expect("has an end").expect_err("has no copy");
        assert!(
            error.to_string().contains("an error of this program"),
            "{error}"
        );
        assert!(held(&mirror.running).is_empty());
        // Another copy may begin.
        let mut ended = mirror.begin_with("app", async { Ok(()) });
        let result = ended
            .wait_for(Option::is_some)
            .await
            .expect("is said")
            .clone();
        result.expect("has an end").expect("is copied");
    });
}

#[test]
fn the_copies_of_a_command_make_no_room_for_one_another() {
    let url = "s3://bucket/prefix".parse().expect("is an address");
    let bucket = Bucket::open(&url).expect("needs no answer");
    let mirror = Mirror::keeping(Arc::new(bucket), 100).expect("makes a folder");
    let long_ago = Instant::now().checked_sub(2 * IN_USE);
    copy(
        &mirror,
        "first",
        60,
        long_ago.expect("the machine runs for longer"),
    );
    let error = mirror.reserve("second", 60).expect_err("has no room");
    assert!(
        error.to_string().contains("--object-cache-bytes"),
        "{error}"
    );
    assert!(mirror.folder().join("first").exists());
    let _second = mirror.reserve("second", 40).expect("has room");
}

#[test]
fn a_missing_part_of_workers_is_marked_until_it_is_copied() {
    let mirror = mirror(100);
    let of = || Files::of(mirror.folder(), ("app-1", None), None, None);
    assert!(of().expect("no worker wrote").is_empty());
    for _ in 0..2 {
        let trouble = Trouble::Failed("no answer".to_owned());
        mirror.mark("app-1", Some(trouble)).expect("marks");
        assert!(matches!(of(), Err(OfWorkers::Uncopied)));
        assert!(mirror.is_marked("source=workers/app-1") && !mirror.is_marked("app-1"));
    }
    assert!(Files::of(mirror.folder(), ("app-2", None), None, None).is_ok());
    assert!(Files::of(mirror.folder(), ("../app-1", None), None, None).is_ok());
    for _ in 0..2 {
        mirror.mark("app-1", None).expect("takes the mark away");
        assert!(of().expect("no worker wrote").is_empty());
    }
}
