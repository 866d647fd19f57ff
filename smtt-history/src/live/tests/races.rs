//! Importers and a compaction of one application at the same time: one result, whichever is first.

use super::*;

/// The application's log, beside the store.
fn log_of(folder: &Path) -> PathBuf {
    let log = folder.join("log");
    let lines: Vec<String> = lines().into_iter().map(|(_, line)| line).collect();
    fs::write(&log, lines.join("\n")).expect("writes");
    log
}

#[test]
fn two_importers_and_a_compaction_at_once_make_one_application() {
    let replaces = Admission {
        name: None,
        replaces: true,
    };
    for round in 0..20 {
        let folder = tempfile::tempdir().expect("makes a folder");
        let store = folder.path().join("store");
        parts_of(&store.join("app-1"));
        let log = log_of(folder.path());
        let begin = std::sync::Barrier::new(3);
        // Importers that may not replace find parts or tables in any case, and change nothing.
        let admission = if round % 4 == 3 {
            Admission::default()
        } else {
            replaces.clone()
        };
        let done = std::thread::scope(|scope| {
            let importer = || {
                scope.spawn(|| {
                    begin.wait();
                    import(&store, &log, Bounds::default(), &admission).map(|it| it.sizes)
                })
            };
            let importers = [importer(), importer()];
            let compaction = scope.spawn(|| {
                begin.wait();
                compact(&store, "app-1", false).map(|it| it.sizes)
            });
            let importers = importers.map(|it| it.join().expect("ends"));
            (importers, compaction.join().expect("ends"))
        });
        let ([first, second], compaction) = done;
        for imported in [&first, &second] {
            match imported {
                Ok(sizes) => assert!(admission.replaces && sizes.tasks.rows == 2),
                Err(error) => assert!(
                    !admission.replaces && error.to_string().contains("--replace"),
                    "{error:#}"
                ),
            }
        }
        // The compaction replaces its parts or, where an importer did, says why it does not.
        match &compaction {
            Ok(sizes) => assert_eq!(sizes.tasks.rows, 2),
            Err(error) => assert!(
                admission.replaces && !is_live(&store.join("app-1")),
                "{error:#}"
            ),
        }
        assert_eq!(names_in(&store), [".lock", "app-1"]);
        assert!(!is_live(&store.join("app-1")));
        same_as_an_import(folder.path(), &store.join("app-1"));
    }
}

#[test]
fn a_compaction_leaves_what_two_importers_made_meanwhile() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let store = folder.path().join("store");
    parts_of(&store.join("app-1"));
    let log = log_of(folder.path());
    let other = store.clone();
    let error = compact_after((&store, Times::Complete), "app-1", move || {
        let replaces = Admission {
            name: None,
            replaces: true,
        };
        let import = || import(&other, &log, Bounds::default(), &replaces).expect("imports");
        std::thread::scope(|scope| {
            let both = [scope.spawn(import), scope.spawn(import)];
            for import in both {
                import.join().expect("ends");
            }
        });
    })
    .expect_err("was third");
    assert!(error.to_string().contains("has changed"), "{error:#}");
    assert_eq!(names_in(&store), [".lock", "app-1"]);
    same_as_an_import(folder.path(), &store.join("app-1"));
}

#[test]
fn an_importer_replaces_what_a_compaction_made_meanwhile() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let store = folder.path().join("store");
    parts_of(&store.join("app-1"));
    let log = log_of(folder.path());
    let replaces = Admission {
        name: Some("app-1".to_owned()),
        replaces: true,
    };
    let other = store.clone();
    let compacts = move |name: &str| {
        compact(&other, name, false)?;
        Ok(true)
    };
    let done = crate::import::import_unless(&store, &log, Bounds::default(), &replaces, compacts);
    assert_eq!(done.expect("imports").sizes.tasks.rows, 2);
    assert_eq!(names_in(&store), [".lock", "app-1"]);
    same_as_an_import(folder.path(), &store.join("app-1"));
}
