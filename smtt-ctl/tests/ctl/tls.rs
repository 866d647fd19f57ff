//! `--cluster` over TLS, with certificates of an authority that openssl makes. curl is the witness.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use smtt_daemon::server::Web;

use super::workers::{Port, Workers, patience, rows, secret, text};

const EXTENSIONS: &str = "subjectAltName=IP:127.0.0.1\n";

fn openssl(folder: &Path, arguments: &str) {
    let output = Command::new("openssl")
        .args(arguments.split(' '))
        .current_dir(folder)
        .output()
        .expect("openssl runs");
    assert!(output.status.success(), "{arguments}: {output:?}");
}

/// Makes an authority, and a certificate of it for 127.0.0.1 with its key.
pub(super) fn certificates(folder: &Path, authority: &str, name: &str) {
    std::fs::write(folder.join("extensions"), EXTENSIONS).expect("written");
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    for arguments in [
        format!(
            "req -x509 {key} -keyout {authority}.key -out {authority}.crt -days 30 -subj /CN={authority}"
        ),
        format!("req {key} -keyout {name}.key -out {name}.csr -subj /CN={name}"),
        format!(
            "x509 -req -in {name}.csr -CA {authority}.crt -CAkey {authority}.key -CAcreateserial -out {name}.crt -days 30 -extfile extensions"
        ),
    ] {
        openssl(folder, &arguments);
    }
}

/// Three daemons with TLS and a user, as an exporter's web configuration says.
struct Secured {
    workers: Workers,
    ports: Vec<Port>,
}

impl Secured {
    fn start() -> Self {
        Self::with("")
    }

    /// `more` are further lines of `tls_server_config`.
    fn with(more: &str) -> Self {
        Self::of(|_| format!("  cert_file: server.crt\n  key_file: server.key\n{more}"))
    }

    /// `section` makes the lines of `tls_server_config`, with the certificates in the folder.
    fn of(section: impl Fn(&Path) -> String) -> Self {
        let workers = Workers::start();
        let folder = workers.folder.path();
        certificates(folder, "authority", "server");
        certificates(folder, "stranger", "other");
        let hash = bcrypt::hash("secret", 4).expect("hashed");
        let section = section(folder);
        let config = format!(
            "tls_server_config:\n{section}http_server_config:\n  headers:\n    X-Frame-Options: deny\n\
             basic_auth_users:\n  ann: {hash}\n"
        );
        let config_file = secret(folder, "web.yml", &config);
        secret(folder, "password", "secret\n");
        let defaults = smtt_config::parse("", Path::new("/etc/smtt/smtt.toml"));
        let config = smtt_config::Web {
            config_file: Some(config_file),
            api: true,
            // Where TLS is set, the port may listen anywhere.
            listen_address: "0.0.0.0:10871".parse().expect("an address"),
            ..defaults.expect("the defaults are good").web
        };
        let web = Web::load(&config).expect("a web");
        let ports = workers
            .daemons
            .iter()
            .map(|daemon| Port::of(daemon, web.clone()))
            .collect();
        Self { workers, ports }
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.ports.iter().map(|port| port.address).collect()
    }

    fn ctl(&self, addresses: &[String], arguments: &[&str]) -> Output {
        let folder = self.workers.folder.path();
        let hosts = secret(folder, "hosts", &addresses.join("\n"));
        Command::new(env!("CARGO_BIN_EXE_smtt-ctl"))
            .current_dir(folder)
            .env("COLUMNS", "120")
            .arg("--cluster")
            .arg(hosts)
            .args(patience(arguments))
            .args(arguments)
            .output()
            .expect("smtt-ctl runs")
    }

    fn curl(&self, address: SocketAddr, path: &str, arguments: &[&str]) -> Output {
        Command::new("curl")
            .current_dir(self.workers.folder.path())
            .args(["--silent", "--show-error", "--max-time", "30"])
            .args(arguments)
            .arg(format!("https://{address}{path}"))
            .output()
            .expect("curl runs")
    }
}

const ANN: [&str; 4] = ["--auth-user", "ann", "--password-file", "password"];

#[test]
fn a_cluster_with_tls_answers_what_curl_gets() {
    let secured = Secured::start();
    let addresses: Vec<String> = secured
        .addresses()
        .iter()
        .map(ToString::to_string)
        .collect();
    let arguments = [
        &["--cacert", "authority.crt", "executors", "--json"][..],
        &ANN,
    ]
    .concat();
    let output = secured.ctl(&addresses, &arguments);
    assert!(output.status.success(), "{output:?}");
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(rows(&all["rows"]).len(), 3);
    for address in secured.addresses() {
        let with = ["--cacert", "authority.crt", "-u", "ann:secret"];
        let seen = secured.curl(address, "/v1/executors", &with);
        assert!(seen.status.success(), "{seen:?}");
        let own: Value = serde_json::from_slice(&seen.stdout).expect("JSON");
        let mut row = rows(&all["rows"])
            .iter()
            .find(|row| row["worker"] == address.to_string().as_str())
            .expect("a row")
            .clone();
        row.as_object_mut().expect("a row").remove("worker");
        assert_eq!(row, own["rows"][0]);
    }
    // Without the user there is nothing, for curl neither; headers are set on every answer.
    let with = ["--cacert", "authority.crt", "--include"];
    let seen = text(
        &secured
            .curl(secured.ports[0].address, "/v1/executors", &with)
            .stdout,
    );
    assert!(seen.starts_with("HTTP/1.1 401"), "{seen}");
    assert!(
        seen.to_lowercase().contains("x-frame-options: deny"),
        "{seen}"
    );
    let output = secured.ctl(&addresses, &["--cacert", "authority.crt", "executors"]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    assert!(text(&output.stderr).contains("(401)"), "{output:?}");
}

#[test]
fn workers_that_ask_for_a_certificate_get_one() {
    let secured = Secured::with(
        "  client_ca_file: authority.crt\n  client_auth_type: RequireAndVerifyClientCert\n",
    );
    let addresses: Vec<String> = secured
        .addresses()
        .iter()
        .map(ToString::to_string)
        .collect();
    let known = ["--cert", "server.crt", "--key", "server.key"];
    let unknown = ["--cert", "other.crt", "--key", "other.key"];
    for (certificate, code) in [(&known[..], 0), (&unknown[..], 69), (&[][..], 69)] {
        let arguments = [
            &["--cacert", "authority.crt", "executors", "--json"][..],
            certificate,
            &ANN,
        ]
        .concat();
        let output = secured.ctl(&addresses, &arguments);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
    }
}

#[test]
fn a_worker_that_cannot_prove_its_name_gets_no_credentials() {
    let secured = Secured::start();
    let port = secured.ports[0].address.port();
    for (address, authority) in [
        // Another authority, and a name that is not in the certificate.
        (format!("127.0.0.1:{port}"), "stranger.crt"),
        (format!("localhost:{port}"), "authority.crt"),
    ] {
        let arguments = [&["--cacert", authority, "executors"][..], &ANN].concat();
        let output = secured.ctl(std::slice::from_ref(&address), &arguments);
        assert_eq!(output.status.code(), Some(69), "{output:?}");
        assert!(text(&output.stderr).contains("no TLS"), "{output:?}");
    }
    // Without TLS the port answers nothing.
    let arguments = [&["executors"][..], &ANN].concat();
    let output = secured.ctl(&[format!("http://127.0.0.1:{port}")], &arguments);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    let arguments = [&["--cacert", "nowhere.crt", "executors"][..], &ANN].concat();
    let output = secured.ctl(&[format!("127.0.0.1:{port}")], &arguments);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(
        text(&output.stderr).contains("nowhere.crt cannot be used"),
        "{output:?}"
    );
}

#[test]
fn handshakes_that_do_not_end_keep_no_other_client_out_and_are_closed() {
    let secured = Secured::start();
    let address = secured.ports[0].address;
    let connect = || {
        let stream = TcpStream::connect(address).expect("connected");
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("set");
        stream
    };
    // More than the port has places: some say nothing, some begin a handshake, some speak another protocol.
    let silent: Vec<TcpStream> = (0..96)
        .map(|number| {
            let mut stream = connect();
            let begin: &[u8] = match number % 3 {
                0 => b"",
                // The head of a record of 256 bytes with a ClientHello, and a part of it.
                1 => b"\x16\x03\x01\x01\x00\x01\x00\x00\xfc\x03\x03",
                _ => b"GET /v1/executors HTTP/1.1\r\nHost: x\r\n\r\n",
            };
            // The server may have closed the connection.
            let _ = stream.write_all(begin);
            stream
        })
        .collect();
    let addresses = [format!("{address}")];
    let arguments = [
        &[
            "--cacert",
            "authority.crt",
            "executors",
            "--json",
            "--deadline",
            "30",
        ][..],
        &ANN,
    ]
    .concat();
    let output = secured.ctl(&addresses, &arguments);
    assert!(output.status.success(), "{output:?}");
    for mut stream in silent {
        let mut bytes = Vec::new();
        // The end or a reset, and at most an alert of TLS; never an answer, and not only after a minute.
        let error = stream
            .read_to_end(&mut bytes)
            .err()
            .map(|error| error.kind());
        let is_open = matches!(
            error,
            Some(std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
        );
        assert!(!is_open, "a connection stays open");
        assert!(bytes.len() < 64 && !bytes.starts_with(b"HTTP"), "{bytes:?}");
    }
}

#[test]
fn a_renewed_certificate_needs_no_restart() {
    let secured = Secured::start();
    let folder = secured.workers.folder.path();
    let address = secured.ports[0].address;
    let with = |authority| {
        let seen = secured.curl(address, "/-/healthy", &["--cacert", authority]);
        seen.status.success()
    };
    assert!(with("authority.crt") && !with("stranger.crt"));
    for part in ["crt", "key"] {
        let from = folder.join(format!("other.{part}"));
        std::fs::rename(from, folder.join(format!("server.{part}"))).expect("renewed");
    }
    let begin = std::time::Instant::now();
    while !with("stranger.crt") {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "the old certificate stays"
        );
        std::thread::sleep(Duration::from_millis(200));
    }
    // A file that is not usable leaves the last one in use.
    std::fs::write(folder.join("server.crt"), "no certificate").expect("written");
    std::thread::sleep(Duration::from_secs(6));
    assert!(with("stranger.crt"));
    assert!(with("stranger.crt"));
}

/// Whether curl gets an answer with these options.
fn answers(secured: &Secured, options: &str) -> bool {
    let options: Vec<&str> = options.split(' ').filter(|word| !word.is_empty()).collect();
    let with = [&["--cacert", "authority.crt"][..], &options].concat();
    let seen = secured.curl(secured.ports[0].address, "/-/healthy", &with);
    seen.status.success()
}

#[test]
fn a_client_needs_one_of_the_allowed_names() {
    let allowed = [
        "prometheus.example",
        "10.0.0.7",
        "ops@example.org",
        "spiffe://a/b",
        "2001:db8::1",
    ];
    let verified = Secured::with(&format!(
        "  client_ca_file: authority.crt\n  client_auth_type: RequireAndVerifyClientCert\n  client_allowed_sans: {allowed:?}\n"
    ));
    let folder = verified.workers.folder.path();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    for (name, san, expected) in [
        ("dns", "DNS:else.example,DNS:prometheus.example", true),
        ("address", "IP:10.0.0.7", true),
        ("sixth", "IP:2001:db8::1", true),
        ("mail", "email:ops@example.org", true),
        ("uri", "URI:spiffe://a/b", true),
        // Exactly these, and only as alternative names.
        ("below", "DNS:a.prometheus.example", false),
        ("prometheus.example", "DNS:else.example", false),
        ("none", "", false),
    ] {
        let extensions = match san {
            "" => "basicConstraints=CA:FALSE\n".to_owned(),
            san => format!("basicConstraints=critical,CA:FALSE\nsubjectAltName=critical,{san}\n"),
        };
        std::fs::write(folder.join("names"), extensions).expect("written");
        for arguments in [
            format!("req {key} -keyout {name}.key -out {name}.csr -subj /CN={name}"),
            format!(
                "x509 -req -in {name}.csr -CA authority.crt -CAkey authority.key -CAcreateserial -out {name}.crt -days 30 -extfile names"
            ),
        ] {
            openssl(folder, &arguments);
        }
        let with = format!("--cert {name}.crt --key {name}.key");
        for version in ["--tls-max 1.2", ""] {
            let seen = answers(&verified, &format!("{with} {version}"));
            assert_eq!(seen, expected, "{name} {version}");
        }
    }
    assert!(!answers(&verified, ""), "no certificate");
    // Another authority: the name alone does not help.
    std::fs::write(
        folder.join("names"),
        "subjectAltName=DNS:prometheus.example\n",
    )
    .expect("written");
    openssl(
        folder,
        "x509 -req -in dns.csr -CA stranger.crt -CAkey stranger.key -CAcreateserial -out strange.crt -days 30 -extfile names",
    );
    assert!(!answers(&verified, "--cert strange.crt --key dns.key"));
}

#[test]
fn a_client_may_have_to_send_any_certificate() {
    let any = Secured::with("  client_auth_type: RequireAnyClientCert\n");
    assert!(answers(&any, "--cert other.crt --key other.key"));
    assert!(answers(
        &any,
        "--cert other.crt --key other.key --tls-max 1.2"
    ));
    assert!(!answers(&any, ""));
    let asked = Secured::with("  client_auth_type: RequestClientCert\n");
    assert!(answers(&asked, "--cert other.crt --key other.key") && answers(&asked, ""));
}

#[test]
fn the_suites_curves_and_versions_of_the_configuration_are_those_that_are_offered() {
    let secured = Secured::with(
        "  cipher_suites:\n    - TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA\n    - TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256\n    - TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256\n  \
         curve_preferences: [CurveP521, CurveP384]\n",
    );
    let old = "--tls-max 1.2 --ciphers";
    assert!(answers(&secured, ""), "TLS 1.3 has its own suites");
    assert!(answers(
        &secured,
        &format!("{old} ECDHE-ECDSA-AES128-GCM-SHA256")
    ));
    assert!(answers(
        &secured,
        &format!("{old} ECDHE-ECDSA-CHACHA20-POLY1305")
    ));
    assert!(!answers(
        &secured,
        &format!("{old} ECDHE-ECDSA-AES256-GCM-SHA384")
    ));
    assert!(!answers(&secured, &format!("{old} ECDHE-ECDSA-AES128-SHA")));
    assert!(answers(&secured, "--curves P-384") && !answers(&secured, "--curves P-256"));
    // Only suites of TLS 1.3 leave that version.
    let newest = Secured::with("  cipher_suites: [TLS_AES_128_GCM_SHA256]\n");
    assert!(answers(&newest, "") && !answers(&newest, "--tls-max 1.2"));
    // The order is the server's, or the client's.
    for (prefer, first) in [("true", "AES256"), ("false", "AES128")] {
        let secured = Secured::with(&format!(
            "  max_version: TLS12\n  prefer_server_cipher_suites: {prefer}\n  cipher_suites:\n    - TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384\n    - TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256\n"
        ));
        let both = "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384";
        let options = ["--cacert", "authority.crt", "--verbose", "--ciphers", both];
        let seen = secured.curl(secured.ports[0].address, "/-/healthy", &options);
        let said = text(&seen.stderr);
        let line = said
            .lines()
            .find(|line| line.contains("SSL connection using"));
        assert!(
            line.is_some_and(|line| line.contains(first)),
            "{prefer}: {said}"
        );
    }
}

#[test]
fn certificates_in_the_configuration_itself_are_served() {
    let secured = Secured::of(|folder| {
        let indented = |name: &str| {
            let text = std::fs::read_to_string(folder.join(name)).expect("a file");
            text.lines()
                .map(|line| format!("    {line}\n"))
                .collect::<String>()
        };
        format!(
            "  cert: |\n{}  key: |\n{}  client_ca: |\n{}  client_auth_type: VerifyClientCertIfGiven\n",
            indented("server.crt"),
            indented("server.key"),
            indented("authority.crt")
        )
    });
    assert!(answers(&secured, ""));
    assert!(answers(&secured, "--cert server.crt --key server.key"));
    assert!(!answers(&secured, "--cert other.crt --key other.key"));
    // The file has a key now: the daemon refuses it where every local user may read it.
    let folder = secured.workers.folder.path();
    let file = folder.join("web.yml");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("set");
    let error = smtt_web::Guard::load(smtt_web::Files {
        config: Some(&file),
        ..smtt_web::Files::default()
    });
    let error = error.expect_err("refused").to_string();
    assert!(error.contains("open to every local user"), "{error}");
}
