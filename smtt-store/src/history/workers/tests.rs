//! Restarts, links and foreign folders, users without end, names.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;
use crate::history::batch::Cell;

const ANY: Bounds = Bounds {
    bytes: 1 << 30,
    files: 1 << 20,
};

fn rows(text: &str) -> Batch {
    let mut batch = Batch::new(&REST);
    batch.push(&[Cell::Text("executor"), Cell::Text("1"), Cell::Text(text)]);
    batch
}

fn own(uid: u32) -> u32 {
    uid
}

#[test]
fn files_are_found_by_application_and_a_restart_counts_them() -> io::Result<()> {
    let store = tempfile::tempdir()?;
    let mut workers = Workers::take(store.path(), "host-1", 5, None, ANY)?;
    workers.add(Whose::of("app-1", 7), 0, &rows("{}"), &own)?;
    workers.add(Whose::of("app-1", 7), 0, &rows("{\"a\":1}"), &own)?;
    workers.add(Whose::of("app-1", 8), 1, &rows("{}"), &own)?;
    workers.add(Whose::of("app-2", 7), 0, &rows("{}"), &own)?;
    let usage = workers.usage();
    assert_eq!(usage.1, 3, "the second one replaces the first");
    let found = files(store.path(), "app-1")?;
    let users: Vec<(u32, u32)> = found.iter().map(|it| (it.uid, it.name.part)).collect();
    assert_eq!(users, [(7, 0), (8, 1)]);
    let all = &[0..1];
    let json = reader(&found[0]).and_then(|it| it.texts("json", all));
    assert_eq!(json.map_err(io::Error::other)?, [Some("{\"a\":1}".into())]);
    let folder = found[0].path.parent().unwrap_or(Path::new("/"));
    let stray = folder.join(".worker.host-1.inprogress");
    let other = folder.join(".worker.host-2.inprogress");
    fs::write(&stray, "half")?;
    fs::write(&other, "half")?;
    let again = Workers::take(store.path(), "host-1", 6, None, ANY)?;
    assert_eq!(again.usage(), usage);
    assert!(!stray.exists() && other.exists());
    assert_eq!(
        Workers::take(store.path(), "host-2", 6, None, ANY)?
            .usage()
            .1,
        0
    );
    assert!(files(store.path(), "app-3")?.is_empty());
    assert!(files(store.path(), "../app-1")?.is_empty());
    Ok(())
}

#[test]
fn links_foreign_folders_and_climbing_ids_are_refused() -> io::Result<()> {
    let (store, elsewhere) = (tempfile::tempdir()?, tempfile::tempdir()?);
    symlink(elsewhere.path(), store.path().join(FOLDER))?;
    assert!(Workers::take(store.path(), "h", 1, None, ANY).is_err());
    fs::remove_file(store.path().join(FOLDER))?;
    let mut workers = Workers::take(store.path(), "h", 1, None, ANY)?;
    for id in ["../x", "a/b", "", ".hidden", "source=workers", "a b"] {
        let error = workers
            .add(Whose::of(id, 7), 0, &rows("{}"), &own)
            .expect_err("is refused");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{id}");
    }
    let root = store.path().join(FOLDER);
    symlink(elsewhere.path(), root.join("app-1"))?;
    assert!(
        workers
            .add(Whose::of("app-1", 7), 0, &rows("{}"), &own)
            .is_err()
    );
    fs::create_dir(root.join("app-2"))?;
    symlink(elsewhere.path(), root.join("app-2/uid=7"))?;
    assert!(
        workers
            .add(Whose::of("app-2", 7), 0, &rows("{}"), &own)
            .is_err()
    );
    fs::create_dir(root.join("app-3"))?;
    fs::set_permissions(root.join("app-3"), fs::Permissions::from_mode(0o777))?;
    let error = workers
        .add(Whose::of("app-3", 7), 0, &rows("{}"), &own)
        .expect_err("is open to all");
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(fs::read_dir(elsewhere.path())?.count(), 0);
    assert_eq!(fs::read_dir(&root)?.count(), 3, "no other folder was made");
    Ok(())
}

#[test]
fn a_user_without_end_takes_room_from_itself_only() -> io::Result<()> {
    let store = tempfile::tempdir()?;
    let bounds = Bounds { files: 20, ..ANY };
    let mut workers = Workers::take(store.path(), "h", 1, None, bounds)?;
    workers.add(Whose::of("victim", 1), 0, &rows("{}"), &own)?;
    for at in 0..60 {
        // Two users of one share.
        workers.add(
            Whose::of(&format!("app-{at}"), 100 + at % 2),
            0,
            &rows("{}"),
            &|uid| uid.min(100),
        )?;
        assert!(workers.usage().1 <= 20);
    }
    assert_eq!(workers.removed(), 41);
    assert_eq!(files(store.path(), "victim")?.len(), 1);
    assert_eq!(files(store.path(), "app-59")?.len(), 1);
    let folders = fs::read_dir(store.path().join(FOLDER))?.count();
    assert_eq!(folders, 20, "empty folders go");
    Ok(())
}

#[test]
fn names_say_what_they_hold_and_nothing_else_is_a_name() {
    let name = Name {
        run: 12,
        part: 3,
        table: "worker_tasks",
        host: "node-1.example".into(),
    };
    assert_eq!(
        name.text(),
        "worker_tasks-0000000000012-000003.node-1.example.parquet"
    );
    assert_eq!(Name::parse(&name.text()), Some(name));
    for text in [
        "worker-1-2.h.parquet",
        "worker-0000000000012-000003..parquet",
        "tasks.parquet",
    ] {
        assert_eq!(Name::parse(text), None, "{text}");
    }
    assert_eq!(host_name("../a b/ü"), "-a-b---");
    assert_eq!(host_name(""), "unnamed");
}
