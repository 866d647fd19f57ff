//! Refusals: ids that climb, unknown applications, the cache's bound.

use std::fs;
use std::path::Path;

use super::{Server, Settings};
use crate::import::{Admission, import};
use crate::log::Bounds;
use crate::out::Kind;

/// Any application, also instead of an earlier import.
const ANY: Admission = Admission {
    name: None,
    replaces: true,
};

fn server(folder: &Path, event_logs: bool) -> Server {
    Server::new(Settings {
        store: folder.join("store"),
        event_logs: event_logs.then(|| folder.join("logs")),
        cache_bytes: 1 << 20,
        bounds: Bounds::default(),
    })
}

fn log(id: &str, name: &str) -> String {
    format!(
        r#"{{"Event":"SparkListenerApplicationStart","App Name":"{name}","App ID":"{id}","Timestamp":1000,"User":"u"}}"#
    )
}

#[test]
fn ids_that_climb_are_unknown() {
    let folder = tempfile::tempdir().expect("makes a folder");
    fs::create_dir_all(folder.path().join("logs")).expect("makes a folder");
    fs::write(folder.path().join("outside"), log("outside", "n")).expect("writes");
    let server = server(folder.path(), true);
    for id in ["../outside", "..", "/etc/passwd", "a/b", "", "a\0"] {
        let refusal = server.app(id, None).err().expect("is refused");
        assert_eq!(
            (refusal.0.as_u16(), refusal.1),
            (404, format!("unknown app {id}"))
        );
        assert!(server.app("app-1", Some(id)).is_err());
    }
}

#[test]
fn an_application_is_imported_when_it_is_opened_first() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let logs = folder.path().join("logs");
    fs::create_dir_all(&logs).expect("makes a folder");
    fs::write(logs.join("app-1.inprogress"), log("app-1", "first")).expect("writes");
    let none = server(folder.path(), false)
        .app("app-1", None)
        .err()
        .expect("is unknown");
    assert!(none.1.contains("--event-logs"), "{}", none.1);
    let server = server(folder.path(), true);
    let app = server.app("app-1", None).expect("opens");
    assert!(
        app.one(Kind::Application, "app-1")
            .is_some_and(|text| text.contains("first"))
    );
    let unknown = server.app("app-2", None).err().expect("is unknown");
    assert!(unknown.1.contains("neither the store"), "{}", unknown.1);
    // A new import is seen at once, although the old one is in the cache.
    fs::write(logs.join("app-1"), log("app-1", "second")).expect("writes");
    import(
        &folder.path().join("store"),
        &logs.join("app-1"),
        Bounds::default(),
        &ANY,
    )
    .expect("imports");
    let app = server.app("app-1", None).expect("opens");
    assert!(
        app.one(Kind::Application, "app-1")
            .is_some_and(|text| text.contains("second"))
    );
}

#[test]
fn the_cache_keeps_its_bound() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let store = folder.path().join("store");
    let server = server(folder.path(), false);
    for number in 0..40 {
        let path = folder.path().join("log");
        let name = "x".repeat(100_000);
        fs::write(&path, log(&format!("app-{number}"), &name)).expect("writes");
        import(&store, &path, Bounds::default(), &ANY).expect("imports");
        server.app(&format!("app-{number}"), None).expect("opens");
    }
    server.cache.run_pending_tasks();
    assert!(
        server.cache.weighted_size() <= 1 << 20,
        "{}",
        server.cache.weighted_size()
    );
    assert!(server.cache.entry_count() >= 5);
}
