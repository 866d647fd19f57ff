//! Refusals, first opens, attempts, and the bounds of answers.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::http::Request;
use serde_json::Value;
use tokio::sync::watch;
use tower::ServiceExt as _;

use super::routes::{CountedText, attempts, work};
use super::{ANSWERS, BODY_KIB, IMPORTS, Listen, Server, Settings, applications, run};
use crate::import::{Admission, import};
use crate::live::tests::parts_of;
use crate::log::Bounds;
use crate::out::Kind;

/// Any application, also instead of an earlier import.
const ANY: Admission = Admission {
    name: None,
    replaces: true,
};

fn server(folder: &Path, event_logs: bool) -> Arc<Server> {
    Arc::new(Server::new(Settings {
        store: folder.join("store"),
        event_logs: event_logs.then(|| folder.join("logs").into()),
        cache_bytes: 1 << 20,
        bounds: Bounds::default(),
        bucket: None,
    }))
}

fn log(id: &str, name: &str) -> String {
    format!(
        r#"{{"Event":"SparkListenerApplicationStart","App Name":"{name}","App ID":"{id}","Timestamp":1000,"User":"u"}}"#
    )
}

/// The refusal of an application.
async fn refused(server: &Arc<Server>, id: &str, attempt: Option<&str>) -> (u16, String) {
    let refusal = server.app(id, attempt).await.err().expect("is refused");
    (refusal.0.as_u16(), refusal.1)
}

/// A folder with a folder of logs.
fn with_logs(logs: &[(&str, String)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("makes a folder");
    fs::create_dir_all(folder.path().join("logs")).expect("makes a folder");
    for (name, text) in logs {
        fs::write(folder.path().join("logs").join(name), text).expect("writes");
    }
    folder
}

#[tokio::test]
async fn ids_that_climb_are_unknown() {
    let folder = with_logs(&[]);
    fs::write(folder.path().join("outside"), log("outside", "n")).expect("writes");
    let server = server(folder.path(), true);
    for id in ["../outside", "..", "/etc/passwd", "a/b", "", "a\0"] {
        let refusal = refused(&server, id, None).await;
        assert_eq!(refusal, (404, format!("unknown app {id}")));
        assert!(server.app("app-1", Some(id)).await.is_err());
    }
}

#[tokio::test]
async fn an_application_is_imported_when_it_is_opened_first() {
    let folder = with_logs(&[("app-1.inprogress", log("app-1", "first"))]);
    let none = refused(&server(folder.path(), false), "app-1", None).await;
    assert!(none.1.contains("--event-logs"), "{}", none.1);
    let server = server(folder.path(), true);
    let (app, _) = server.app("app-1", None).await.expect("opens");
    let named = |name: &'static str| move |text: &str| text.contains(name);
    assert!(
        app.one(Kind::Application, "app-1")
            .is_some_and(named("first"))
    );
    let unknown = refused(&server, "app-2", None).await;
    assert!(unknown.1.contains("neither the store"), "{}", unknown.1);
    // A new import is seen at once, although the old one is in the cache.
    let new = folder.path().join("logs/app-1");
    fs::write(&new, log("app-1", "second")).expect("writes");
    import(&folder.path().join("store"), &new, Bounds::default(), &ANY).expect("imports");
    let (app, _) = server.app("app-1", None).await.expect("opens");
    assert!(
        app.one(Kind::Application, "app-1")
            .is_some_and(named("second"))
    );
}

#[tokio::test]
async fn an_application_that_was_imported_while_it_ran_is_imported_again_when_its_log_has_grown() {
    let folder = with_logs(&[("app-1.inprogress", log("app-1", "first"))]);
    let (logs, store) = (folder.path().join("logs"), folder.path().join("store"));
    let running = logs.join("app-1.inprogress");
    import(&store, &running, Bounds::default(), &ANY).expect("imports");
    let server = server(folder.path(), true);
    let name = async || {
        let (app, _) = server.app("app-1", None).await.expect("opens");
        let text = &app.all(Kind::Application)[0].1;
        let json: serde_json::Value = serde_json::from_str(text).expect("is JSON");
        json["name"].as_str().map(str::to_owned)
    };
    assert_eq!(
        name().await.as_deref(),
        Some("first"),
        "the log is the same"
    );
    // A log that became damaged replaces nothing.
    fs::write(&running, "x".repeat(1000)).expect("writes");
    assert_eq!(name().await.as_deref(), Some("first"));
    server.again.invalidate_all();
    let end = r#"{"Event":"SparkListenerApplicationEnd","Timestamp":2000}"#;
    fs::write(&running, log("app-1", "second half")).expect("writes");
    assert_eq!(name().await.as_deref(), Some("second half"));
    // Not at each request.
    let ended = format!("{}\n{end}", log("app-1", "the third part"));
    fs::remove_file(&running).expect("removes");
    fs::write(logs.join("app-1"), &ended).expect("writes");
    assert_eq!(name().await.as_deref(), Some("second half"));
    server.again.invalidate_all();
    assert_eq!(name().await.as_deref(), Some("the third part"));
    // It has ended: nothing replaces it.
    server.again.invalidate_all();
    fs::write(logs.join("app-1"), ended.replace("third", "a later")).expect("writes");
    assert_eq!(name().await.as_deref(), Some("the third part"));
}

#[tokio::test]
async fn the_log_of_an_application_that_runs_is_followed_until_its_end() {
    let folder = with_logs(&[("app-1.inprogress", log("app-1", "n") + "\n")]);
    let running = folder.path().join("logs/app-1.inprogress");
    let server = server(folder.path(), true);
    let lines = async || {
        server.again.invalidate_all();
        let (app, _) = server.app("app-1", None).await.expect("opens");
        let text = app.one(Kind::Import, "").expect("has a document");
        let json: serde_json::Value = serde_json::from_str(text).expect("is JSON");
        (json["lines"].as_u64(), json["damagedLines"].as_u64())
    };
    assert_eq!(lines().await, (Some(1), Some(0)));
    let end = r#"{"Event":"SparkListenerApplicationEnd","Timestamp":2000}"#;
    let append = |text: &str| {
        let file = fs::File::options().append(true).open(&running);
        file.and_then(|mut file| file.write_all(text.as_bytes()))
            .expect("writes");
    };
    append(&end[..20]);
    assert_eq!(lines().await, (Some(2), Some(1)), "half a line");
    assert_eq!(server.followed.names(), ["app-1"]);
    let followed = server.followed.take("app-1").expect("is followed");
    assert_eq!(followed.lines(), 1);
    server.followed.put("app-1", followed);
    append(&end[20..]);
    assert_eq!(lines().await, (Some(2), Some(0)));
    assert_eq!(server.followed.names(), [""; 0], "it has ended");
}

#[tokio::test]
async fn a_log_that_claims_another_application_is_refused_and_not_read_again() {
    let folder = with_logs(&[
        ("app-1", log("app-1", "good")),
        ("app-2", log("app-1", "bad")),
    ]);
    let server = server(folder.path(), true);
    drop(server.app("app-1", None).await.expect("opens"));
    let refusal = refused(&server, "app-2", None).await;
    assert_eq!(refusal.0, 500);
    let (app, _) = server.app("app-1", None).await.expect("opens");
    assert!(app.all(Kind::Application)[0].1.contains("good"));
    fs::write(folder.path().join("logs/app-2"), log("app-2", "n")).expect("writes");
    assert_eq!(refused(&server, "app-2", None).await, refusal);
}

#[tokio::test]
async fn refusals_name_no_path_of_the_machine() {
    let folder = with_logs(&[("app-1", "{}".to_owned()), ("app-2", log("app-2", "n"))]);
    let server = server(folder.path(), true);
    drop(server.app("app-2", None).await.expect("opens"));
    let tables = folder.path().join("store/app-2/meta.parquet");
    fs::write(&tables, "no table").expect("writes");
    for id in ["app-1", "app-2", "app-3"] {
        let refusal = refused(&server, id, None).await;
        let path = folder.path().display().to_string();
        assert!(!refusal.1.contains(&path), "{}", refusal.1);
    }
}

#[tokio::test]
async fn attempts_are_merged_and_each_is_found() {
    let attempt = |number: i64| {
        let of = format!(r#""App Attempt ID":"{number}","Timestamp":{number}000"#);
        log("app-1", "n").replace(r#""Timestamp":1000"#, &of)
    };
    let damaged = format!("{}\nno JSON\n", attempt(2));
    let folder = with_logs(&[("app-1_1", attempt(1)), ("app-1_2", damaged)]);
    let server = server(folder.path(), true);
    let all = attempts(&server, "app-1").await.expect("are found");
    let all = applications::merged(all);
    let all: Vec<_> = all["attempts"].as_array().into_iter().flatten().collect();
    let ids: Vec<_> = all
        .iter()
        .filter_map(|it| it["attemptId"].as_str())
        .collect();
    assert_eq!(ids, ["2", "1"]);
    let (second, _) = server.app("app-1", Some("2")).await.expect("opens");
    assert!(second.is_of("app-1", Some("2")));
    for (id, attempt) in [("app-1", None), ("app-1", Some("3")), ("app-1_1", None)] {
        assert_eq!(
            refused(&server, id, attempt).await.0,
            404,
            "{id} {attempt:?}"
        );
    }
    assert!(attempts(&server, "app-2").await.is_err());
    // Each attempt has its own report of its import.
    for (number, damaged) in [(1, 0), (2, 1)] {
        let path = format!("/smtt/v1/applications/app-1/import?attempt={number}");
        let request = Request::get(path).body(Body::empty()).expect("a request");
        let router = super::router(Arc::clone(&server));
        let answer = router.oneshot(request).await.expect("answers");
        assert_eq!(answer.status(), 200);
        let text = to_bytes(answer.into_body(), 1 << 20).await.expect("reads");
        let report: Value = serde_json::from_slice(&text).expect("is JSON");
        assert_eq!(report["damagedLines"], damaged, "{report}");
    }
}

#[tokio::test]
async fn a_list_that_is_cut_says_how_many_it_lacks() {
    let folder = with_logs(&[]);
    let store = folder.path().join("store");
    for number in 0..applications::LISTED + 3 {
        fs::create_dir_all(store.join(format!("local-{number:013}"))).expect("makes a folder");
    }
    let server = server(folder.path(), false);
    for (removed, expected) in [(0, Some("3")), (3, None)] {
        for number in 0..removed {
            fs::remove_dir(store.join(format!("local-{number:013}"))).expect("removes");
        }
        // A filter that fits no application finds none of those that are left out either.
        let path = "/api/v1/applications?minDate=2020-01-01&maxDate=2020-02-01";
        let request = Request::get(path).body(Body::empty()).expect("a request");
        let router = super::router(Arc::clone(&server));
        let answer = router.oneshot(request).await.expect("answers");
        let said = answer.headers().get("x-smtt-applications-left-out");
        assert_eq!(said.and_then(|it| it.to_str().ok()), expected);
        let request = Request::get("/").body(Body::empty()).expect("a request");
        let router = super::router(Arc::clone(&server));
        let page = router.oneshot(request).await.expect("answers");
        let page = to_bytes(page.into_body(), 1 << 20).await.expect("reads");
        let page = String::from_utf8_lossy(&page);
        assert_eq!(page.contains("At least 3"), expected.is_some(), "{page}");
    }
}

#[tokio::test]
async fn an_import_holds_no_answer_and_waits_for_no_other() {
    let folder = with_logs(&[("app-1", log("app-1", "n")), ("app-2", log("app-2", "n"))]);
    let server = server(folder.path(), true);
    let (end, ended) = watch::channel(None);
    let name = "app-1".to_owned();
    server.importing.lock().expect("locks").insert(name, ended);
    let first = {
        let server = Arc::clone(&server);
        tokio::spawn(async move { server.app("app-1", None).await.map(|_| ()) })
    };
    // The import of app-1 runs; its request waits.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!first.is_finished());
    assert_eq!(server.answers.available_permits(), ANSWERS);
    let turns: Vec<_> = (0..IMPORTS)
        .map(|_| Arc::clone(&server.imports).try_acquire_owned())
        .collect();
    assert_eq!(refused(&server, "app-2", None).await.0, 503);
    drop(turns);
    drop(server.app("app-2", None).await.expect("opens"));
    server.importing.lock().expect("locks").clear();
    end.send(Some(Ok(None))).expect("is waited for");
    let ended = first.await.expect("ends");
    assert!(ended.is_err_and(|refusal| refusal.0.as_u16() == 500));
}

#[tokio::test]
async fn an_answer_is_counted_until_its_work_ends_and_its_text_is_written() {
    let folder = with_logs(&[("app-1", log("app-1", "n"))]);
    let server = server(folder.path(), true);
    drop(server.app("app-1", None).await.expect("opens"));
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let (begun, begins) = tokio::sync::oneshot::channel();
    let answer = work(Arc::clone(&server), "app-1".to_owned(), None, move |_| {
        let _ = begun.send(());
        let _ = wait.recv();
        Ok("{}".to_owned())
    });
    let client = tokio::spawn(answer);
    begins.await.expect("begins");
    client.abort();
    assert!(client.await.is_err());
    assert_eq!(server.answers.available_permits(), ANSWERS - 1);
    release.send(()).expect("is waited for");
    let until = Instant::now() + Duration::from_secs(30);
    while server.answers.available_permits() < ANSWERS && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(server.answers.available_permits(), ANSWERS);
    let text = "x".repeat(1 << 20);
    let bytes = CountedText::bytes(text, &server.bodies)
        .await
        .expect("has room");
    let body = axum::body::Body::from(bytes);
    let bytes = axum::body::to_bytes(body, usize::MAX).await.expect("reads");
    let all = BODY_KIB as usize;
    assert_eq!(server.bodies.available_permits(), all - 1024);
    drop(bytes);
    assert_eq!(server.bodies.available_permits(), all);
}

#[tokio::test]
async fn a_full_server_ends_when_it_is_asked_to() {
    let folder = with_logs(&[]);
    let settings = server(folder.path(), false).settings.clone();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listens");
    let address = listener.local_addr().expect("has an address");
    drop(listener);
    let mut listen = Listen::local(address.port());
    // No client goes before the test ends.
    listen.limits.head = Duration::from_secs(600);
    let ended = std::thread::spawn(move || run(settings, listen));
    let mut clients = Vec::new();
    let until = Instant::now() + Duration::from_secs(30);
    while clients.len() <= super::listen::LIMITS.connections && Instant::now() < until {
        match tokio::net::TcpStream::connect(address).await {
            Ok(client) => clients.push(client),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let process = std::process::id().to_string();
    let asked = std::process::Command::new("kill")
        .args(["-TERM", &process])
        .status();
    assert!(asked.expect("runs kill").success());
    let until = Instant::now() + Duration::from_secs(60);
    while !ended.is_finished() && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(ended.is_finished(), "with {} connections", clients.len());
}

#[tokio::test]
async fn the_cache_keeps_its_bound() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let store = folder.path().join("store");
    let server = server(folder.path(), false);
    for number in 0..40 {
        let path = folder.path().join("log");
        let name = "x".repeat(60_000);
        fs::write(&path, log(&format!("app-{number}"), &name)).expect("writes");
        import(&store, &path, Bounds::default(), &ANY).expect("imports");
        let opened = server.app(&format!("app-{number}"), None).await;
        drop(opened.expect("opens"));
    }
    server.cache.run_pending_tasks();
    let size = server.cache.weighted_size();
    assert!(size <= 1 << 20, "{size}");
    assert!(server.cache.entry_count() >= 5);
}

#[tokio::test]
async fn what_is_made_of_parts_reaches_its_asker_where_the_cache_has_no_room() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let own = folder.path().join("store/app-1");
    parts_of(&own);
    // Without its last part it runs, so its tables are in no folder of the store.
    fs::remove_file(own.join("meta-000003.parquet")).expect("removes");
    let mut settings = server(folder.path(), false).settings.clone();
    settings.cache_bytes = 0;
    let server = Arc::new(Server::new(settings));
    let (first, second) = tokio::join!(server.app("app-1", None), server.app("app-1", None));
    for opened in [first, second] {
        assert!(opened.expect("opens").0.is_of("app-1", None));
    }
    assert!(server.app("app-1", Some("1")).await.is_err());
}
