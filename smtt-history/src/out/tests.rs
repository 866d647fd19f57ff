//! What a table says about itself, and which documents stay where there is no room for all.

use serde_json::json;
use smtt_store::history::read::Reader;

use super::*;

#[test]
fn a_table_of_two_row_groups_names_its_application() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut out = Out::create(folder.path()).expect("creates");
    for task in 0..=GROUP_ROWS as i64 {
        out.task(&[Cell::Number(0), Cell::Number(0), Cell::Number(task)])
            .expect("writes");
    }
    let (folder, sizes) = out
        .finish(folder.path(), "app-1", "app-1", false)
        .expect("finishes");
    assert_eq!(sizes.tasks.rows, GROUP_ROWS as u64 + 1);
    for table in ["tasks", "task_sql", "meta"] {
        let reader = Reader::open(&place::table(&folder, table), table).expect("opens");
        assert_eq!(
            reader.said(APPLICATION_KEY).as_deref(),
            Some("app-1"),
            "{table}"
        );
    }
}

#[test]
fn the_folder_of_a_killed_import_is_removed_and_that_of_a_running_one_stays() {
    let store = tempfile::tempdir().expect("makes a folder");
    let running = Out::create(store.path()).expect("creates");
    let killed = store.path().join(".import-killed.inprogress");
    fs::create_dir(&killed).expect("makes a folder");
    fs::write(killed.join("rest"), "rest").expect("writes");
    let next = Out::create(store.path()).expect("creates");
    assert!(!killed.exists());
    assert!(running.folder.path().exists());
    drop((running, next));
    let left = fs::read_dir(store.path()).expect("lists").flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    assert_eq!(left, [".lock"]);
}

#[test]
fn an_import_puts_back_what_a_killed_import_had_renamed() {
    let store = tempfile::tempdir().expect("makes a folder");
    let folder = |name: &str, text: &str| {
        let path = store.path().join(name);
        fs::create_dir(&path).expect("makes a folder");
        fs::write(path.join("file"), text).expect("writes");
    };
    // Killed between the renames: the old tables have no name, the new ones are unfinished.
    folder(".import-killed.inprogress", "new");
    folder(".replaced-app-1_1-0123abcd", "old");
    folder("app-2", "new");
    folder(".replaced-app-2-0123abcd", "old");
    drop(Out::create(store.path()).expect("creates"));
    let text = |name: &str| fs::read_to_string(store.path().join(name).join("file")).ok();
    assert_eq!(text("app-1_1").as_deref(), Some("old"));
    assert_eq!(text("app-2").as_deref(), Some("new"));
    let left = fs::read_dir(store.path()).expect("lists").flatten();
    let mut left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    left.sort();
    assert_eq!(left, [".lock", "app-1_1", "app-2"]);
}

#[test]
fn a_pipe_or_a_link_in_a_folder_s_place_is_not_waited_for() {
    use nix::sys::stat::Mode;
    let store = tempfile::tempdir().expect("makes a folder");
    let pipe = store.path().join(".import-pipe.inprogress");
    nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).expect("makes a pipe");
    let link = store.path().join(".import-link.inprogress");
    std::os::unix::fs::symlink(store.path(), &link).expect("links");
    assert!(opened(&pipe).is_err() && opened(&link).is_err());
    assert!(opened(store.path()).is_ok());
}

#[test]
fn the_application_s_own_documents_have_room_and_details_give_way_first() {
    let store = tempfile::tempdir().expect("makes a folder");
    let mut out = Out::create(store.path()).expect("creates");
    out.most = 10_000;
    let long = json!("x".repeat(1000));
    for stage in 0..5 {
        out.meta(Kind::StageDetails, &format!("{stage}.0"), &long);
    }
    // Chains of RDDs give way to what executors did.
    for stage in 0..9 {
        out.meta(Kind::StageRdds, &format!("{stage}.0"), &long);
    }
    let chains = |out: &Out| {
        let all = out.documents.keys();
        all.filter(|(it, _)| *it == Kind::StageRdds).count()
    };
    assert_eq!((chains(&out), out.dropped), (4, 5));
    for stage in 5..9 {
        out.meta(Kind::StageDetails, &format!("{stage}.0"), &long);
    }
    assert_eq!((chains(&out), out.dropped), (0, 9));
    out.dropped = 0;
    for job in 0..20 {
        out.meta(Kind::Job, &job.to_string(), &long);
    }
    out.meta(Kind::StageDetails, "9.0", &long);
    for kind in [Kind::Application, Kind::Environment, Kind::Import] {
        out.meta(kind, "", &long);
    }
    let count = |kind: Kind| out.documents.keys().filter(|(it, _)| *it == kind).count();
    assert_eq!((count(Kind::StageDetails), count(Kind::Job)), (0, 9));
    for kind in [Kind::Application, Kind::Environment, Kind::Import] {
        assert_eq!(count(kind), 1, "{kind:?}");
    }
    // Nine details, eleven jobs, and the details that came last.
    assert_eq!(out.dropped, 9 + 11 + 1);
    let kept = out
        .documents
        .iter()
        .filter(|((kind, _), _)| *kind == Kind::Job);
    assert_eq!(
        out.document_bytes,
        kept.map(|(_, text)| text.len()).sum::<usize>()
    );
    out.meta(Kind::Application, "", &json!("x".repeat(OWN_BYTES)));
    assert_eq!(out.dropped, 9 + 11 + 2);
}

#[test]
fn documents_of_unknown_kinds_take_room_without_a_text() {
    let store = tempfile::tempdir().expect("makes a folder");
    let mut out = Out::create(store.path()).expect("creates");
    out.most = 10_000;
    let all = 1000;
    for round in 0..2 {
        for id in 0..all {
            out.other("shard", &format!("{id:05}"), String::new());
        }
        // In the second round those that are there replace themselves, and take no more room.
        let kept = out.others.len();
        assert_eq!(kept, 10_000 / (OTHER_ENTRY + 10));
        assert_eq!(out.document_bytes, kept * (OTHER_ENTRY + 10));
        assert_eq!(out.dropped, (round + 1) * (all - kept as u64));
    }
    // Documents that this version knows have the same room.
    out.meta(Kind::Job, "1", &json!("x".repeat(1000)));
    assert_eq!((out.documents.len(), out.dropped), (0, 2 * 928 + 1));
}
