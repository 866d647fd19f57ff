//! Questions as text, and answers of another machine's daemon: bounded and cleaned.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream as Stream};

use tempfile::TempDir;

use super::*;
use crate::Output;
use crate::args::{Args, ClusterArgs};
use crate::ssh::{Place, Settings};

#[test]
fn a_question_is_escaped_and_leaves_out_what_is_not_asked() {
    let query = ListQuery {
        app: Some("a b&c".to_owned()),
        stage: Some("3.1".to_owned()),
        task: Some(7),
        ..ListQuery::default()
    };
    assert_eq!(
        with_query("/v1/rdds", &query).expect("written"),
        "/v1/rdds?app=a+b%26c&stage=3.1&task=7"
    );
    let all = ListQuery::default();
    assert_eq!(with_query("/v1/rdds", &all).expect("written"), "/v1/rdds");
}

/// A socket that answers each request like this, and its client with these bounds.
fn far(bounds: Bounds, answer: impl Fn(Stream) + Send + 'static) -> (TempDir, Client) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("s");
    let listener = UnixListener::bind(&path).expect("bound");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = [0; 4096];
            let _ = stream.read(&mut head);
            answer(stream);
        }
    });
    let client = Client {
        bounds: Some(bounds),
        ..Client::new(&path)
    };
    (folder, client)
}

fn wait<T>(answer: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(answer)
}

const SMALL: Bounds = Bounds {
    answer: 1 << 20,
    line: 64 << 10,
    time: Duration::from_secs(20),
};
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";

/// Sends a piece repeatedly, until the client closes the connection.
fn without_end(stream: &mut Stream, piece: &[u8], pause: Duration) {
    let _ = stream.write_all(HEAD);
    while stream.write_all(piece).is_ok() {
        std::thread::sleep(pause);
    }
}

fn is_clean(text: &str) -> bool {
    !text.contains(|letter: char| letter.is_control() || letter == '\u{202e}')
}

#[test]
fn an_answer_of_another_machine_has_an_end() {
    let (_folder, client) = far(SMALL, |mut stream| {
        without_end(&mut stream, &[b' '; 64 << 10], Duration::ZERO);
    });
    let error = wait(client.get::<Value>("/v1/status")).expect_err("endless");
    assert!(error.to_string().contains("larger than 1.0 MiB"), "{error}");
    let error = wait(async {
        let question = ListQuery::default();
        let asked = client.lines("/v1/trace/follow", &question);
        asked.await.expect("lines").next().await
    });
    let error = error.expect_err("endless").to_string();
    assert!(error.contains("a line is longer than 64.0 KiB"), "{error}");
    let slow = Bounds {
        time: Duration::from_millis(100),
        ..SMALL
    };
    let (_folder, client) = far(slow, |mut stream| {
        without_end(&mut stream, b" ", Duration::from_millis(5));
    });
    let error = wait(client.get::<Value>("/v1/status")).expect_err("endless");
    assert!(error.to_string().contains("no end within 100ms"), "{error}");
}

#[test]
fn an_answer_of_another_machine_has_room_for_what_it_becomes() {
    let (_folder, client) = far(SMALL, |mut stream| {
        let list = vec!["{}"; 200_000].join(",");
        let _ = stream.write_all(&[HEAD, b"[", list.as_bytes(), b"]"].concat());
    });
    let error = wait(client.get::<Value>("/v1/status")).expect_err("too many");
    assert!(error.to_string().contains("too many objects"), "{error}");
}

#[test]
fn text_of_another_machine_reaches_no_terminal_as_it_is() {
    let said = |status: &str, body: &str| {
        let answer = format!("HTTP/1.1 {status}\r\n\r\n{body}");
        far(SMALL, move |mut stream| {
            let _ = stream.write_all(answer.as_bytes());
        })
    };
    let bad = "a\\u001b[31m\\n\u{202e}b".repeat(1000);
    for (status, body) in [
        ("400 Bad Request", format!("{{\"error\": \"{bad}\"}}")),
        ("404 Not Found", format!("{{\"error\": \"{bad}\"}}")),
        ("200 OK", format!("\"{bad}\"")),
    ] {
        let (_folder, client) = said(status, &body);
        let asked = client.get::<Map<String, Value>>("/v1/executors");
        let error = wait(asked).expect_err("refused").to_string();
        assert!(is_clean(&error), "{status}: {error:?}");
        assert!(error.chars().count() < 400, "{status}: {error}");
    }
    let (_folder, client) = said(
        "200 OK",
        "{\"application_id\": \"a\\u001b[31m\u{202e}b\", \"executor_id\": \"1\"}",
    );
    let row: Map<String, Value> = wait(client.get("/v1/executors")).expect("a row");
    let columns = crate::columns::EXECUTORS.columns;
    let table = crate::table::render(columns, &[row], Output::default());
    assert!(table.contains("a\u{fffd}[31m\u{fffd}b"), "{table:?}");
    assert!(table.lines().all(is_clean), "{table:?}");
    let (_folder, client) = said("200 OK", "{\"kind\": \"\\u001b\u{202e}\"}\n");
    let record = wait(async {
        let mut lines = client
            .lines("/v1/trace/follow", &ListQuery::default())
            .await
            .expect("lines");
        let text = lines.next().await.expect("sent").expect("a line");
        assert!(text.lines().all(is_clean), "{text:?}");
        lines.record(text.trim_end()).expect("a record")
    });
    assert_eq!(record["kind"], "\u{fffd}\u{fffd}");
}

#[test]
fn ssh_has_its_own_time_to_connect() {
    use clap::Parser as _;
    let args: ClusterArgs = Args::parse_from(["smtt-ctl", "executors"]).cluster;
    let settings = Settings::of(&args, Path::new("/s")).expect("plain");
    let late = settings.with_program(&["sh", "-c", "sleep 0.5; echo gone >&2; exit 255"]);
    let tunnel = Tunnel::new(Place::parse("w").expect("a place"), late);
    let client = Client {
        timeout: Duration::from_millis(50),
        ..Client::through(tunnel)
    };
    let error = wait(client.get::<Value>("/v1/status")).expect_err("no ssh");
    assert!(matches!(error, ClientError::NoSsh { .. }), "{error}");
    let question = ListQuery::default();
    let asked = client.lines("/v1/trace/follow", &question);
    let error = wait(asked).map(|_| ()).expect_err("no ssh");
    assert!(matches!(error, ClientError::NoSsh { .. }), "{error}");
}
