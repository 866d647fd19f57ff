//! The listings on the metrics port: off by default, never without credentials, and without what waits or writes.

use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::limits::{both, connect, get, large};
use super::*;
use crate::metrics::Names;
use smtt_model::protocol;

const TOKEN: &str = "5f4dcc3b5aa765d61d8327deb882cf99";
/// Header with the token, and the other one with the name `ann` and the password `secret`.
const BEARER: &str = "Authorization: Bearer 5f4dcc3b5aa765d61d8327deb882cf99\r\n";
const BASIC: &str = "Authorization: Basic YW5uOnNlY3JldA==\r\n";

/// Paths that the metrics port can serve.
const LISTINGS: [&str; 21] = [
    "/v1/status",
    "/v1/answered",
    "/v1/executors",
    "/v1/stages",
    "/v1/stages/summary",
    "/v1/jobs",
    "/v1/queries",
    "/v1/tasks",
    "/v1/tasks/failed",
    "/v1/tasks/ended",
    "/v1/rdds",
    "/v1/blocks",
    "/v1/memory",
    "/v1/pages",
    "/v1/pages/blocks",
    "/v1/pages/tasks",
    "/v1/pages/executors",
    "/v1/report",
    "/v1/advise",
    "/v1/history",
    "/v1/postmortem",
];

fn secret(folder: &Path, name: &str, text: &str) -> std::path::PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("set");
    path
}

fn defaults() -> smtt_config::Web {
    let config = smtt_config::parse("", Path::new("/etc/smtt/smtt.toml"));
    config.expect("the defaults are good").web
}

/// A configuration of the port with a file of users and a file of tokens.
fn config(folder: &Path) -> smtt_config::Web {
    let hash = bcrypt::hash("secret", 4).expect("hashed");
    smtt_config::Web {
        users_file: Some(secret(folder, "users", &format!("ann:{hash}\n"))),
        token_file: Some(secret(folder, "tokens", TOKEN)),
        api: true,
        ..defaults()
    }
}

fn ask(stream: TcpStream, path: &str, header: &str) -> (String, String, String) {
    let (head, body) = get(stream, &format!("{path} HTTP/1.1\r\n{header}Accept: */*"));
    let status = head.split(' ').nth(1).expect("a status").to_owned();
    (status, head.to_lowercase(), body)
}

#[test]
fn the_port_serves_listings_to_those_who_authenticate() {
    let folder = tempfile::tempdir().expect("a folder");
    let web = Web::load(&config(folder.path())).expect("a web");
    both(&large(3), web, |served| {
        for path in LISTINGS.into_iter().chain(["/", "/metrics"]) {
            for header in [
                "",
                "Authorization: Bearer 5f4dcc3b5aa765d61d8327deb882cf98\r\n",
                "Authorization: Basic YW5uOndyb25n\r\n",
            ] {
                let (status, head, body) = ask(connect(served.port), path, header);
                assert_eq!(status, "401", "{path}");
                assert!(head.contains("www-authenticate: basic"), "{head}");
                assert!(!body.contains("app-secret"), "{body}");
            }
            for header in [BEARER, BASIC] {
                let (status, _, body) = ask(connect(served.port), path, header);
                assert_eq!(status, "200", "{path}: {body}");
            }
        }
        let (_, _, rows) = ask(connect(served.port), "/v1/rdds?limit=1", BEARER);
        assert!(rows.contains("app-secret-0001"), "names are shown: {rows}");
        let own = std::os::unix::net::UnixStream::connect(&served.socket).expect("connected");
        assert_eq!(rows, get(own, "/v1/rdds?limit=1").1);
        // What is endless or asks the machine stays on the socket, and so does every other method.
        for path in ["/v1/trace/follow", "/v1/doctor"] {
            assert_eq!(ask(connect(served.port), path, BEARER).0, "404", "{path}");
        }
        let mut stream = connect(served.port);
        let request = format!("POST /v1/rdds HTTP/1.1\r\nHost: smtt\r\n{BEARER}\r\n");
        std::io::Write::write_all(&mut stream, request.as_bytes()).expect("asked");
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut stream, &mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
    });
}

#[test]
fn a_daemon_lists_the_digests_of_its_answers_under_one_identity() {
    use sha2::Digest as _;
    let folder = tempfile::tempdir().expect("a folder");
    let web = Web::load(&config(folder.path())).expect("a web");
    both(&large(300), web, |served| {
        let ask = |path: &str, id: &str| {
            // HTTP/1.0: the body is as it is, without the sizes of its pieces.
            let question = format!("{path} HTTP/1.0\r\nsmtt-question: {id}\r\n{BEARER}Accept: */*");
            let (head, body) = get(connect(served.port), &question);
            let name = "smtt-instance: ";
            let identity = head.lines().find_map(|line| line.strip_prefix(name));
            (identity.expect("an identity").to_owned(), head, body)
        };
        let listed = || {
            // The other listener knows both.
            let own = std::os::unix::net::UnixStream::connect(&served.socket).expect("connected");
            let (_, body) = get(own, "/v1/answered HTTP/1.0\r\nAccept: */*");
            let listed = serde_json::from_str(&body).expect("JSON");
            let protocol::Answered { instance, digests } = listed;
            (instance, digests)
        };
        // A body that is made at once, and one in pieces.
        let mut expected = Vec::new();
        for (path, id) in [("/v1/status", "a"), ("/v1/rdds?sort=name", "b")] {
            let (identity, _, body) = ask(path, id);
            assert!(
                path == "/v1/status" || body.len() > 1 << 17,
                "{}",
                body.len()
            );
            let digest = sha2::Sha256::digest(format!("{id}\n{path}\n{body}"));
            expected.push(
                digest
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect::<String>(),
            );
            assert_eq!(listed(), (identity, expected.clone()));
        }
        // No digest: a refusal, a question without an id, and one with an id that is too long.
        ask("/v1/rdds?nonsense=1", "c");
        get(
            connect(served.port),
            &format!("/v1/status HTTP/1.0\r\n{BEARER}Accept: */*"),
        );
        ask("/v1/status", &"x".repeat(65));
        assert_eq!(listed().1, expected);
        // The list is bounded, and the oldest go first.
        for id in 0..300 {
            ask("/v1/answered", &id.to_string());
        }
        let (_, digests) = listed();
        assert_eq!(digests.len(), 256);
        assert!(!digests.contains(&expected[1]));
        // Who has no credentials learns nothing of it.
        let (head, _) = get(connect(served.port), "/v1/status");
        assert!(!head.contains("smtt-instance"), "{head}");
    });
}

#[test]
fn the_port_serves_no_listings_by_default_or_without_credentials() {
    let folder = tempfile::tempdir().expect("a folder");
    let off = smtt_config::Web {
        api: false,
        ..config(folder.path())
    };
    let open = Web {
        api: true,
        ..Web::from(Names::Shown)
    };
    for web in [Web::load(&off).expect("a web"), open] {
        both(&large(3), web, |served| {
            for path in LISTINGS {
                let (status, _, body) = ask(connect(served.port), path, BEARER);
                assert_eq!(status, "404", "{path}: {body}");
            }
        });
    }
    assert!(!defaults().api);
}

#[test]
fn a_configuration_that_would_show_names_to_all_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let good = config(folder.path());
    let open = smtt_config::Web {
        users_file: None,
        token_file: None,
        ..good.clone()
    };
    let clear = smtt_config::Web {
        listen_address: "0.0.0.0:10871".parse().expect("an address"),
        ..good.clone()
    };
    let named = smtt_config::Web {
        names_shown: true,
        listen_address: "0.0.0.0:10871".parse().expect("an address"),
        ..defaults()
    };
    // On this machine, or with users, names are shown.
    for good in [
        smtt_config::Web {
            listen_address: "127.0.0.1:10871".parse().expect("an address"),
            ..named.clone()
        },
        smtt_config::Web {
            users_file: good.users_file.clone(),
            ..named.clone()
        },
    ] {
        assert_eq!(Web::load(&good).expect("a web").names, Names::Shown);
    }
    for (config, part) in [
        (open, "set users_file, token_file or"),
        (clear, "clear text"),
        (named, "to the network"),
    ] {
        let error = Web::load(&config).expect_err("refused").to_string();
        assert!(
            error.contains(part) && error.lines().count() == 1,
            "{error}"
        );
    }
    let path = good.token_file.clone().expect("a file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("set");
    let error = Web::load(&good).expect_err("refused").to_string();
    assert!(error.contains("open to every local user"), "{error}");
    assert!(!error.contains(TOKEN), "{error}");
}
