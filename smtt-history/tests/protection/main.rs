//! `smtt-history serve` as a program with TLS, users and tokens. curl and gzip are the witnesses; openssl makes the
//! certificates.

mod clients;
mod server;

use std::path::Path;
use std::time::{Duration, Instant};

use server::{Answer, Server, certificates, curl, refused, secret, sign, store};

const TOKEN: &str = "5f4dcc3b5aa765d61d8327deb882cf99";
const BEARER: &str = "Authorization: Bearer 5f4dcc3b5aa765d61d8327deb882cf99";

/// Spark's paths, those of this server, and its pages: each kind once.
const PATHS: [&str; 46] = [
    "api/v1/version",
    "api/v1/applications",
    "api/v1/applications/app-1",
    "api/v1/applications/app-1/jobs",
    "api/v1/applications/app-1/jobs?status=succeeded",
    "api/v1/applications/app-1/jobs/0",
    "api/v1/applications/app-1/stages",
    "api/v1/applications/app-1/stages?details=true&withSummaries=true",
    "api/v1/applications/app-1/stages/0",
    "api/v1/applications/app-1/stages/0/0",
    "api/v1/applications/app-1/stages/0/0/taskSummary",
    "api/v1/applications/app-1/stages/0/0/taskList",
    "api/v1/applications/app-1/stages/0/0/taskList?length=300",
    "api/v1/applications/app-1/stages/0/0/executorSummary",
    "api/v1/applications/app-1/stages/failedTasks",
    "api/v1/applications/app-1/executors",
    "api/v1/applications/app-1/allexecutors",
    "api/v1/applications/app-1/storage/rdd",
    "api/v1/applications/app-1/storage/rdd/7",
    "api/v1/applications/app-1/sql",
    "api/v1/applications/app-1/sql/0",
    "api/v1/applications/app-1/environment",
    "api/v1/applications/app-2",
    "api/v1/applications/app-1/nothing",
    "smtt/v1/applications/app-1/import",
    "smtt/v1/applications/app-1/timeline",
    "smtt/v1/applications/app-1/tasks/0",
    "smtt/v1/applications/app-1/workers",
    "nothing",
    "",
    "files/page.css",
    "files/timeline.js",
    "files/lanes.js",
    "files/live.js",
    "metrics",
    "applications/app-1/",
    "applications/app-1",
    "applications/app-1/jobs",
    "applications/app-1/stages",
    "applications/app-1/stages/0/0",
    "applications/app-1/tasks",
    "applications/app-1/executors",
    "applications/app-1/rdds",
    "applications/app-1/environment",
    "applications/app-1/sql/0",
    "applications/app-1/findings",
];

/// The part of a web configuration with the certificate.
const TLS: &str = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n";

/// Authorities, certificates, a store, and a web configuration with TLS and a user.
fn secured(more: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("makes a folder");
    store(folder.path());
    certificates(folder.path(), "authority", "server");
    certificates(folder.path(), "stranger", "other");
    // Of the password `secret`, by crypt(3).
    let hash = "$2y$05$X5rrbVWOkAB1qZ1XEl.g/OI5tsiPPAkz9uDzE2T1jmuFRmuTYyQbi";
    let config = format!(
        "{TLS}{more}\
         http_server_config:\n  headers:\n    X-Frame-Options: deny\nbasic_auth_users:\n  ann: {hash}\n"
    );
    secret(folder.path(), "web.yml", &config);
    secret(folder.path(), "tokens", &format!("{TOKEN}\n"));
    folder
}

const PROTECTED: [&str; 4] = ["--web.config.file", "web.yml", "--token-file", "tokens"];
const ANN: [&str; 4] = ["--cacert", "authority.crt", "--user", "ann:secret"];

/// Asks until the job behind `/metrics` has looked at the application: from then on all scrapes are the same.
fn know(server: &Server, credentials: &[&str]) {
    let paths = ["api/v1/applications/app-1", "metrics"];
    let counts =
        ["recent 1\n", "unchecked 0\n"].map(|it| format!("smtt_history_applications_{it}"));
    let begun = Instant::now();
    loop {
        let answers = server.ask_all(&paths, credentials);
        let metrics = &answers[1].body;
        if counts.iter().all(|it| metrics.contains(it)) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{metrics}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn every_path_needs_credentials_and_then_answers_as_without_protection() {
    let folder = secured("");
    let (open, guarded) = (
        Server::start(folder.path(), &[]),
        Server::start(folder.path(), &PROTECTED),
    );
    assert!(open.url.starts_with("http://127.0.0.1:"), "{}", open.url);
    assert!(
        guarded.url.starts_with("https://127.0.0.1:"),
        "{}",
        guarded.url
    );
    know(&open, &[]);
    know(&guarded, &ANN);
    let plain = open.ask_all(&PATHS, &[]);
    let found = plain.iter().filter(|answer| answer.status == 200).count();
    assert!(found >= PATHS.len() - 5, "{found} answers");
    for (path, answer) in PATHS.iter().zip(&plain) {
        let expected = match *path {
            "api/v1/applications/app-2" | "api/v1/applications/app-1/nothing" | "nothing" => 404,
            "applications/app-1/" => 307,
            _ => 200,
        };
        assert_eq!(answer.status, expected, "{path}: {}", answer.body);
    }
    for credentials in [
        &["--cacert", "authority.crt"][..],
        &["--cacert", "authority.crt", "--user", "ann:wrong"],
        &["--cacert", "authority.crt", "--user", "eve:secret"],
        &[
            "--cacert",
            "authority.crt",
            "--header",
            "Authorization: Bearer 5f4dcc3b5aa765d61d8327deb882cf98",
        ],
    ] {
        // A wrong password takes its time.
        let few = if credentials.contains(&"--user") {
            3
        } else {
            PATHS.len()
        };
        for (path, answer) in PATHS
            .iter()
            .zip(guarded.ask_all(&PATHS[..few], credentials))
        {
            assert_eq!(answer.status, 401, "{path}");
            let challenge = "www-authenticate: basic realm=\"smtt\"";
            assert!(answer.head.contains(challenge), "{path}: {}", answer.head);
            assert!(answer.head.contains("x-frame-options: deny"), "{path}");
            assert_eq!(answer.body, "unknown user or password\n", "{path}");
        }
    }
    let token = ["--cacert", "authority.crt", "--header", BEARER];
    for credentials in [&ANN[..], &token] {
        let answers = guarded.ask_all(&PATHS, credentials);
        let connections: u32 = answers.iter().map(|answer| answer.connections).sum();
        assert_eq!(connections, 1, "one handshake is enough");
        for ((path, plain), answer) in PATHS.iter().zip(&plain).zip(&answers) {
            assert_eq!(answer.status, plain.status, "{path}");
            assert_eq!(answer.body, plain.body, "{path}");
            assert!(answer.head.contains("x-frame-options: deny"), "{path}");
        }
    }
}

#[test]
fn answers_are_compressed_for_those_who_accept_it() {
    let folder = secured("");
    let server = Server::start(folder.path(), &PROTECTED);
    let path = "api/v1/applications/app-1/stages/0/0/taskList?length=300";
    let ask = |coding: &str| {
        let accepts = format!("Accept-Encoding: {coding}");
        let arguments = [&ANN[..], &["--header", &accepts]].concat();
        server.ask_all(&[path], &arguments).remove(0)
    };
    let plain = ask("identity");
    assert_eq!(plain.status, 200);
    assert!(plain.bytes.len() > 100_000, "{} bytes", plain.bytes.len());
    for coding in ["gzip", "zstd"] {
        let answer = ask(coding);
        let header = format!("content-encoding: {coding}");
        assert!(answer.head.contains(&header), "{}", answer.head);
        assert!(
            answer.head.contains("vary: accept-encoding"),
            "{}",
            answer.head
        );
        let smaller = answer.bytes.len();
        assert!(
            smaller * 8 < plain.bytes.len(),
            "{coding}: {smaller} of {} bytes",
            plain.bytes.len()
        );
        println!("{coding}: {smaller} of {} bytes", plain.bytes.len());
        if coding == "gzip" {
            assert!(server::gunzip(&answer.bytes) == plain.bytes);
        }
    }
    // As browsers and curl do it themselves.
    let arguments = [&ANN[..], &["--compressed"]].concat();
    let Answer { head, bytes, .. } = server.ask_all(&[path], &arguments).remove(0);
    assert!(head.contains("content-encoding: zstd"), "{head}");
    assert!(bytes == plain.bytes);
}

#[test]
fn a_client_gets_no_answer_of_a_server_that_cannot_prove_its_name() {
    let folder = secured("");
    let server = Server::start(folder.path(), &PROTECTED);
    let port = server.port();
    for (url, authority, code) in [
        (format!("https://127.0.0.1:{port}/"), "stranger.crt", 60),
        // A name that is not in the certificate.
        (format!("https://localhost:{port}/"), "authority.crt", 60),
    ] {
        let output = curl(folder.path(), &["--cacert", authority, &url]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
    }
    let clear = curl(
        folder.path(),
        &["--user", "ann:secret", &format!("http://127.0.0.1:{port}/")],
    );
    assert!(
        !clear.status.success() && clear.stdout.is_empty(),
        "{clear:?}"
    );
}

#[test]
fn an_expired_certificate_is_renewed_without_a_restart() {
    let folder = secured("");
    sign(folder.path(), "authority", "server", -1);
    let server = Server::start(folder.path(), &PROTECTED);
    let ask = || curl(folder.path(), &[&ANN[..], &[&server.url]].concat());
    let expired = ask();
    assert_eq!(expired.status.code(), Some(60), "{expired:?}");
    let said = String::from_utf8_lossy(&expired.stderr).into_owned();
    assert!(said.contains("certificate has expired"), "{said}");
    // As tools for renewal do it: a new file takes the place of the old one.
    std::fs::rename(
        folder.path().join("server.crt"),
        folder.path().join("expired.crt"),
    )
    .expect("renames");
    sign(folder.path(), "authority", "server", 30);
    let begin = Instant::now();
    while !ask().status.success() {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "the old certificate stays"
        );
        std::thread::sleep(Duration::from_millis(200));
    }
    // A file that is not usable leaves the last one in use.
    std::fs::write(folder.path().join("server.crt"), "no certificate").expect("writes");
    std::thread::sleep(Duration::from_secs(6));
    for _ in 0..2 {
        let output = ask();
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn where_certificates_of_clients_are_demanded_only_valid_ones_get_in() {
    let folder = secured(
        "  client_ca_file: authority.crt\n  client_auth_type: RequireAndVerifyClientCert\n",
    );
    for (name, days) in [("good", 30), ("expired", -1)] {
        server::request(folder.path(), name);
        sign(folder.path(), "authority", name, days);
    }
    let server = Server::start(folder.path(), &PROTECTED);
    for (name, status) in [
        ("good", true),
        ("other", false),
        ("expired", false),
        ("", false),
    ] {
        let (cert, key) = (format!("{name}.crt"), format!("{name}.key"));
        let shown = ["--cert", &cert, "--key", &key];
        let shown = if name.is_empty() {
            &shown[..0]
        } else {
            &shown[..]
        };
        let output = curl(
            folder.path(),
            &[&ANN[..], shown, &["--fail", &server.url]].concat(),
        );
        assert_eq!(output.status.success(), status, "{name}: {output:?}");
        assert_eq!(output.stdout.is_empty(), !status, "{name}");
    }
    // A certificate is no password.
    let output = curl(
        folder.path(),
        &[
            "--cacert",
            "authority.crt",
            "--cert",
            "good.crt",
            "--key",
            "good.key",
            "--include",
            &server.url,
        ],
    );
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.starts_with("HTTP/1.1 401"), "{said}");
}

#[test]
fn a_server_that_would_be_open_or_in_clear_text_does_not_start() {
    let folder = secured("");
    let path = folder.path();
    secret(path, "tls.yml", TLS);
    let demanded =
        "  client_ca_file: authority.crt\n  client_auth_type: RequireAndVerifyClientCert\n";
    secret(path, "demanded.yml", &format!("{TLS}{demanded}"));
    secret(path, "typing.yml", "tls_sever_config: {}\n");
    // No host has this address: a server that is not refused listens nowhere.
    let beyond = ["--listen", "203.0.113.7:18081"];
    let beyond = |more: &[&'static str]| [&beyond[..], more].concat();
    for (arguments, part) in [
        (beyond(&[]), "without authentication: set basic_auth_users"),
        (
            beyond(&["--web.config.file", "tls.yml"]),
            "without authentication",
        ),
        (
            beyond(&["--web.config.file", "demanded.yml"]),
            "cannot listen on 203.0.113.7:18081",
        ),
        (
            beyond(&["--token-file", "tokens"]),
            "in clear text over the network: set tls_server_config",
        ),
        (beyond(&PROTECTED), "cannot listen on 203.0.113.7:18081"),
        (
            beyond(&["--behind-proxy"]),
            "cannot listen on 203.0.113.7:18081",
        ),
        (
            vec!["--web.config.file", "nothing.yml"],
            "nothing.yml cannot be read",
        ),
        (vec!["--web.config.file", "typing.yml"], "line 1: "),
        (vec!["--token-file", "nothing"], "nothing cannot be read"),
    ] {
        let (code, said) = refused(path, &arguments);
        // Another program may give the port back; what is configured stays wrong.
        let expected = if part.starts_with("cannot listen") {
            2
        } else {
            78
        };
        assert_eq!(code, Some(expected), "{arguments:?}: {said}");
        assert!(
            said.contains(part) && said.lines().count() == 1,
            "{arguments:?}: {said}"
        );
    }
    open_to_all(path, "tokens", &["--token-file", "tokens"], "chmod o-rw");
    open_to_all(
        path,
        "web.yml",
        &["--web.config.file", "web.yml"],
        "chmod o-rw",
    );
    open_to_all(
        path,
        "server.key",
        &["--web.config.file", "tls.yml"],
        "chmod o-rw",
    );
}

/// A secret that every local user may read is refused.
fn open_to_all(folder: &Path, file: &str, arguments: &[&str], part: &str) {
    server::set_mode(&folder.join(file), 0o644);
    let (code, said) = refused(folder, arguments);
    assert_eq!(code, Some(78), "{file}: {said}");
    assert!(said.contains(part) && said.lines().count() == 1, "{said}");
    server::set_mode(&folder.join(file), 0o600);
}
