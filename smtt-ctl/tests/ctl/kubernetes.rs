//! `--cluster kubernetes:` against a server with TLS on this machine that answers as Kubernetes documents its API: lists in
//! parts, the token of a service account, refusals as `Status` objects.

use std::io::{BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::tls::certificates;
use super::workers::{Workers, dead, patience, rows, text};

const TOKEN: &str = "eyJhbGciOiJSUzI1NiJ9.of-a-pod.x";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/monitoring/endpointslices\
                      ?labelSelector=kubernetes.io%2Fservice-name%3Dsmtt&limit=100";
/// The token of the second part needs an escape in a query.
const NEXT: &str = "eyJ2Ijoi+/=";

/// The API of a cluster, until the end of the process.
struct Api {
    address: SocketAddr,
    /// Paths that were asked for.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Api {
    /// An API with these endpoints, each list in two parts.
    fn start(folder: &Path, endpoints: &[Value], port: u16) -> Self {
        let chain = CertificateDer::pem_file_iter(folder.join("server.crt"));
        let chain: Result<Vec<_>, _> = chain.expect("a certificate").collect();
        let key = PrivateKeyDer::from_pem_file(folder.join("server.key")).expect("a key");
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(chain.expect("a certificate"), key)
            .expect("a configuration");
        let config = Arc::new(config);
        let (first, second) = endpoints.split_at(endpoints.len() / 2);
        let parts = [list(first, port, NEXT), list(second, port, "")];
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let known = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let connection = ServerConnection::new(Arc::clone(&config)).expect("a connection");
                let mut stream = StreamOwned::new(connection, stream);
                let mut head = [0; 8192];
                // A client that trusts another authority closes here.
                let Ok(count) = BufReader::new(&mut stream).read(&mut head) else {
                    continue;
                };
                let head = String::from_utf8_lossy(&head[..count]).into_owned();
                let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                let (status, body) = answer(&head, &path, &parts);
                known.lock().expect("the list").push(path);
                let length = body.len();
                let _ = write!(
                    stream,
                    "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
                );
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        });
        Self { address, asked }
    }
}

fn answer(head: &str, path: &str, parts: &[Value; 2]) -> (&'static str, String) {
    let refused = |code: u16, reason: &str, message: &str| {
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
               "message": message, "reason": reason, "code": code})
        .to_string()
    };
    let is_known = head
        .to_ascii_lowercase()
        .contains(&format!("authorization: bearer {TOKEN}\r\n").to_ascii_lowercase());
    if !is_known {
        return (
            "401 Unauthorized",
            refused(401, "Unauthorized", "Unauthorized"),
        );
    }
    let next = format!("{SLICES}&continue=eyJ2Ijoi%2B%2F%3D");
    match path {
        SLICES => ("200 OK", parts[0].to_string()),
        path if path == next => ("200 OK", parts[1].to_string()),
        _ => (
            "403 Forbidden",
            refused(
                403,
                "Forbidden",
                "endpointslices.discovery.k8s.io is forbidden: User \"system:serviceaccount:monitoring:smtt\" cannot list resource",
            ),
        ),
    }
}

/// A list with one slice.
fn list(endpoints: &[Value], port: u16, next: &str) -> Value {
    json!({
        "kind": "EndpointSliceList",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"resourceVersion": "1234", "continue": next},
        "items": [{
            "metadata": {"name": "smtt-x", "namespace": "monitoring",
                         "labels": {"kubernetes.io/service-name": "smtt"}},
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": [{"name": "metrics", "port": port, "protocol": "TCP"}],
        }],
    })
}

fn endpoint(address: &str, node: &str, conditions: &Value) -> Value {
    json!({"addresses": [address], "conditions": conditions, "nodeName": node,
           "targetRef": {"kind": "Pod", "namespace": "monitoring", "name": format!("smtt-{node}")}})
}

/// Calls smtt-ctl as in a pod.
fn ctl(folder: &Path, api: SocketAddr, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_smtt-ctl"))
        .env("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        .env("KUBERNETES_SERVICE_PORT", api.port().to_string())
        .env_remove("KUBERNETES_SERVICE_PORT_HTTPS")
        .env("SMTT_KUBERNETES_ACCOUNT", folder)
        .env("COLUMNS", "120")
        // The workers ask for a token of their own.
        .arg("--token-file")
        .arg(folder.join("tokens"))
        .args(patience(arguments))
        .args(arguments)
        .output()
        .expect("smtt-ctl runs")
}

#[test]
fn the_endpoints_of_a_service_are_the_workers() {
    let workers = Workers::start();
    let folder = workers.folder.path();
    certificates(folder, "ca", "server");
    certificates(folder, "stranger", "other");
    std::fs::write(folder.join("token"), TOKEN).expect("written");
    let port = workers.ports[0].address.port();
    // Loopback has many addresses; one worker listens on one of them, another address has none.
    let endpoints = [
        endpoint(
            "127.0.0.1",
            "node-a",
            &json!({"ready": true, "serving": true, "terminating": false}),
        ),
        endpoint(
            "127.0.0.2",
            "node-b",
            &json!({"ready": false, "serving": false}),
        ),
        endpoint(
            "127.0.0.3",
            "node-c",
            &json!({"ready": false, "terminating": true}),
        ),
    ];
    let api = Api::start(folder, &endpoints, port);
    let output = ctl(
        folder,
        api.address,
        &[
            "--cluster",
            "kubernetes:monitoring/smtt",
            "executors",
            "--json",
        ],
    );
    // The endpoint that is not ready does not answer: it is named, and the exit code says so.
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let known: Vec<&Value> = rows(&all["workers"])
        .iter()
        .map(|row| &row["host"])
        .collect();
    assert_eq!(known, [&json!("node-a"), &json!("node-b")]);
    // Witness: the daemon's own answer on its socket.
    let own = workers.daemons[0].json(&["executors", "--json"]);
    assert_eq!(rows(&all["rows"]).len(), rows(&own).len());
    assert_eq!(all["rows"][0]["pid"], own[0]["pid"]);
    assert_eq!(all["rows"][0]["worker"], "node-a");
    assert_eq!(api.asked.lock().expect("the list").len(), 2, "both parts");
    assert!(text(&output.stderr).contains("node-b"), "{output:?}");
}

#[test]
fn an_api_that_refuses_or_is_a_stranger_is_a_line() {
    let workers = Workers::start();
    let folder = workers.folder.path();
    certificates(folder, "ca", "server");
    certificates(folder, "stranger", "other");
    std::fs::write(folder.join("token"), TOKEN).expect("written");
    let api = Api::start(folder, &[endpoint("127.0.0.1", "a", &json!({}))], 1).address;
    let said = |spec: &str, api: SocketAddr| {
        let output = ctl(folder, api, &["--cluster", spec, "executors"]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let said = text(&output.stderr);
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(!said.contains(TOKEN), "{said}");
        said
    };
    assert!(said("kubernetes:other/smtt", api).contains("is forbidden"));
    assert!(said("kubernetes:monitoring", api).contains("write kubernetes:NAMESPACE/SERVICE"));
    let nowhere = dead();
    assert!(said("kubernetes:monitoring/smtt", nowhere).contains("cannot connect"));
    std::fs::write(folder.join("token"), "another").expect("written");
    assert!(said("kubernetes:monitoring/smtt", api).contains("401"));
    std::fs::copy(folder.join("stranger.crt"), folder.join("ca.crt")).expect("copied");
    assert!(said("kubernetes:monitoring/smtt", api).contains("no TLS"));
    std::fs::remove_file(folder.join("token")).expect("removed");
    assert!(said("kubernetes:monitoring/smtt", api).contains("token cannot be used"));
}
