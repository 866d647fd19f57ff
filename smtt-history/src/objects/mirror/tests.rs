//! Which objects become files of a copy, and how copies make room.

use super::*;

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
fn a_part_that_is_too_large_takes_no_room() {
    let mut all = objects(&["meta-000001.parquet"]);
    all.push(object("meta-000002.parquet", FILE_BYTES + 1));
    let plan = plan_of_parts(&all);
    assert!(plan["meta-000002.parquet"].is_too_large);
    assert_eq!(plan.values().map(size).sum::<u64>(), 10);
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
        bytes,
        used,
    };
    held(&mirror.state).copies.insert(name.to_owned(), copy);
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
    mirror.make_room("next", 30).expect("has room");
    let folder = |name: &str| mirror.folder().join(name).exists();
    assert_eq!(
        (folder("old"), folder("older"), folder("new")),
        (true, false, true)
    );
    // What comes takes its room at once, and what is in use stays.
    mirror.make_room("second", 50).expect("has room");
    assert_eq!((folder("old"), folder("new")), (false, true));
    let error = mirror.make_room("third", 20).expect_err("has no room");
    assert!(
        error.to_string().contains("--object-cache-bytes"),
        "{error}"
    );
    assert!(folder("new"));
    // A copy takes the room of its own older state.
    held(&mirror.state).coming = 0;
    mirror.make_room("new", 100).expect("has room");
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
}
