//! Web configurations that work, and what is wrong in others.

use super::*;

fn read(text: &str) -> Result<WebConfig, String> {
    parse(text, Path::new("/etc/web/web.yml")).map_err(|error| error.to_string())
}

#[test]
fn the_file_of_other_exporters_is_read() {
    let text = "tls_server_config:\n  cert_file: server.crt\n  key_file: /keys/server.key\n  client_ca_file: ca.crt\n  \
                    client_auth_type: \"RequireAndVerifyClientCert\"\n  min_version: TLS13\n\n\
                    http_server_config:\n  http2: true\n  headers:\n    X-Frame-Options: deny\n    Strict-Transport-Security: max-age=31536000\n\n\
                    # htpasswd -nBC 10 \"\" | tr -d ':\\n'\nbasic_auth_users:\n  alice: $2y$10$mDwo.lAisC94iLAyP81MCesa29IzH37oigHC/42V2pdJlUprsJPze\n  'bob b': \"$2y$10$hLqFl9jSjoAAy95Z/zw8Ye8wkdMBM8c5Bn1ptYqP/AXyV0.oy0S8m\"\n";
    let config = read(text).expect("good");
    let tls = config.tls.expect("TLS");
    assert_eq!(tls.cert, Pem::File("/etc/web/server.crt".into()));
    assert_eq!(tls.key, Pem::File("/keys/server.key".into()));
    assert_eq!(tls.client_ca, Some(Pem::File("/etc/web/ca.crt".into())));
    assert_eq!(tls.client_auth, ClientAuth::RequireAndVerifyClientCert);
    assert_eq!(tls.versions, (TlsVersion::Tls13, TlsVersion::Tls13));
    assert_eq!(config.headers["X-Frame-Options"], "deny");
    assert_eq!(config.users.keys().collect::<Vec<_>>(), ["alice", "bob b"]);
    assert!(config.users["alice"].starts_with("$2y$10$mDwo"));
    for nothing in ["", "# nothing\n\n", "{}\n"] {
        assert_eq!(read(nothing).expect("good"), WebConfig::default());
    }
}

/// Every key that the documentation of the format lists.
const ALL: &str = "tls_server_config:\n  cert: |\n    -----BEGIN CERTIFICATE-----\n  key: |\n    -----BEGIN PRIVATE KEY-----\n  \
        client_ca: PEM\n  client_ca_file: ca.crt\n  client_auth_type: RequireAndVerifyClientCert\n  client_allowed_sans:\n    - prometheus.example\n    - 10.0.0.7\n  \
        min_version: TLS10\n  max_version: TLS13\n  cipher_suites:\n    - TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256\n    - TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA\n    - TLS_AES_128_GCM_SHA256\n  \
        prefer_server_cipher_suites: false\n  curve_preferences:\n    - CurveP521\n    - CurveP256\n\
        http_server_config:\n  http2: true\n  headers:\n    X-Frame-Options: deny\n    X-XSS-Protection: \"\"\n\
        basic_auth_users:\n  alice: hash\nrate_limit:\n  interval: 1s\n  burst: 20\n";

#[test]
fn every_key_of_the_format_is_read_and_those_without_effect_are_named() {
    let config = read(ALL).expect("good");
    assert!(config.is_secret());
    let tls = config.tls.expect("TLS");
    let inline = |text: &str| Pem::Inline {
        file: "/etc/web/web.yml".into(),
        text: text.to_owned(),
    };
    assert_eq!(tls.cert, inline("-----BEGIN CERTIFICATE-----\n"));
    assert_eq!(tls.key, inline("-----BEGIN PRIVATE KEY-----\n"));
    assert!(!format!("{tls:?}").contains("PRIVATE KEY"), "{tls:?}");
    assert_eq!(tls.client_ca, Some(Pem::File("/etc/web/ca.crt".into())));
    assert_eq!(
        tls.client_sans.as_deref(),
        Some(&["prometheus.example".to_owned(), "10.0.0.7".to_owned()][..])
    );
    assert_eq!(tls.versions, (TlsVersion::Tls12, TlsVersion::Tls13));
    assert_eq!(
        tls.suites.names(),
        [
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            "TLS_AES_128_GCM_SHA256"
        ]
    );
    assert_eq!(tls.suites.curves(), ["CurveP256"]);
    assert!(!tls.suites.server_order);
    assert_eq!(
        config.headers.keys().collect::<Vec<_>>(),
        ["X-Frame-Options"]
    );
    let named = config.without_effect.join(", ");
    for key in [
        "client_ca ",
        "min_version",
        "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
        "CurveP521",
        "http2",
        "rate_limit",
    ] {
        assert!(named.contains(key), "{key} is not in {named}");
    }
    assert_eq!(config.without_effect.len(), 6, "{named}");
}

#[test]
fn unverified_certificates_need_no_authority() {
    let tls = "tls_server_config:\n  cert_file: a\n  key_file: b\n  client_auth_type: ";
    for (name, auth) in [
        ("RequestClientCert", ClientAuth::RequestClientCert),
        ("RequireAnyClientCert", ClientAuth::RequireAnyClientCert),
        ("RequireClientCert", ClientAuth::RequireAnyClientCert),
    ] {
        let config = read(&format!("{tls}{name}\n")).expect("good");
        assert_eq!(config.tls.expect("TLS").client_auth, auth);
        assert!(config.without_effect.is_empty());
        let config = read(&format!("{tls}{name}\n  client_ca_file: c\n")).expect("good");
        assert_eq!(config.tls.expect("TLS").client_ca, None);
        assert!(config.without_effect[0].contains("client_ca"));
    }
}

#[test]
fn an_error_is_one_line_that_names_the_place() {
    let tls = "tls_server_config:\n  cert_file: a\n  key_file: b\n";
    for (text, line, part) in [
        (
            format!("{tls}  cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]\n"),
            4,
            "TLS_RSA_WITH_RC4_128_SHA is not known",
        ),
        (
            format!("{tls}  cipher_suites:\n    - TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA\n"),
            4,
            "none of cipher_suites is supported",
        ),
        (
            format!("{tls}  max_version: TLS12\n  cipher_suites: [TLS_AES_128_GCM_SHA256]\n"),
            5,
            "TLS 1.2",
        ),
        (
            format!("{tls}  curve_preferences: [CurveP224]\n"),
            4,
            "CurveP224 is not known",
        ),
        (
            format!("{tls}  curve_preferences: [CurveP521]\n"),
            4,
            "none of curve_preferences is supported",
        ),
        (
            format!("{tls}  client_allowed_sans: [a]\n"),
            4,
            "client_auth_type",
        ),
        (
            format!("{tls}  client_auth_type: RequireAnyClientCert\n  client_allowed_sans: []\n"),
            5,
            "is empty",
        ),
        ("rate_limit: {intervall: 1s}\n".to_owned(), 1, "intervall"),
        (
            format!("{tls}  client_alowed_sans: []\n"),
            4,
            "client_alowed_sans",
        ),
        (
            format!("{tls}tls_sever_config: {{}}\n"),
            4,
            "tls_sever_config",
        ),
        (format!("{tls}  min_version: SSL30\n"), 4, "SSL30"),
        (
            format!("{tls}  min_version: TLS10\n  max_version: TLS11\n"),
            5,
            "not served",
        ),
        (
            format!("{tls}  min_version: TLS13\n  max_version: TLS12\n"),
            4,
            "above",
        ),
        (
            format!("{tls}  client_auth_type: AskClientCert\n"),
            4,
            "AskClientCert",
        ),
        (
            format!("{tls}  client_auth_type: VerifyClientCertIfGiven\n"),
            4,
            "client_ca_file",
        ),
        (format!("{tls}  client_ca_file: x\n"), 4, "client_auth_type"),
        (
            "tls_server_config:\n  cert_file: a\n".to_owned(),
            1,
            "key_file",
        ),
        (
            "http_server_config:\n  headers:\n    Set-Cookie: x\n".to_owned(),
            3,
            "Set-Cookie",
        ),
        (
            "http_server_config:\n  headers:\n    X-Frame-Options: \"a\\nb\"\n".to_owned(),
            3,
            "X-Frame-Options",
        ),
        ("basic_auth_users:\n  a: x\n  a: y\n".to_owned(), 3, "a"),
        ("basic_auth_users: [\n".to_owned(), 1, "unclosed bracket"),
        ("basic_auth_users: []\n".to_owned(), 1, "expected a map"),
    ] {
        let error = read(&text).expect_err(&text);
        let begin = format!("configuration /etc/web/web.yml, line {line}: ");
        assert!(error.starts_with(&begin), "{text}: {error}");
        assert!(error.contains(part), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}
