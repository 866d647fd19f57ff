//! The defaults, and what is said about every kind of mistake.

use super::*;
use std::path::PathBuf;

fn errors(text: &str) -> Vec<String> {
    match Config::parse(text, "smtt.toml", &[]) {
        Ok(config) => panic!("accepted: {config:?}"),
        Err(error) => error.to_string().lines().map(str::to_owned).collect(),
    }
}

#[test]
fn the_default_file_is_what_the_keys_say() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../config/smtt.toml");
    let text = keys::default_text();
    if std::env::var_os("SMTT_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(&path, &text).expect("written");
    }
    let written = std::fs::read_to_string(&path).expect("config/smtt.toml");
    assert_eq!(
        written, text,
        "config/smtt.toml is out of date: SMTT_BLESS=1 cargo test -p smtt-daemon"
    );
}

#[test]
fn the_defaults_are_right() {
    let config = Config::parse("", "smtt.toml", &[]).expect("the defaults");
    assert_eq!(
        config
            .web
            .listen_address
            .map(|address| address.to_string())
            .as_deref(),
        Some("127.0.0.1:10871")
    );
    assert_eq!(config.limits.ring_bytes, 1 << 20);
    assert_eq!(config.retention_executors, Duration::from_secs(900));
    assert_eq!(config.state_limits(), Limits::default());
}

#[test]
fn values_are_taken() {
    let text = "[web]\nlisten_address = \"off\"\n[probe.fault]\nhook = \"software\"\nsample_every = 0x10\n[limits]\nring = \"4MiB\"\n";
    let config =
        Config::parse(text, "smtt.toml", &[("limits.executors", "7", "--limit")]).expect("right");
    assert_eq!(config.web.listen_address, None);
    assert_eq!(
        (config.fault.hook, config.fault.sample_every),
        (FaultHook::Software, 16)
    );
    assert_eq!(
        (config.limits.ring_bytes, config.limits.executors),
        (4 << 20, 7)
    );
}

#[test]
fn an_unknown_key_is_named_with_file_line_and_the_nearest_one() {
    assert_eq!(
        errors("[web]\n\nlisten_adress = \"127.0.0.1:1\"\n"),
        ["smtt.toml:3: web.listen_adress is not a known key; did you mean web.listen_address?"]
    );
    assert_eq!(
        errors("group = \"x\"\n"),
        ["smtt.toml:1: group is not a known key; did you mean control.group?"]
    );
    assert!(
        errors("[nothing_like_it]\nx = 1\n")[0].starts_with(
            "smtt.toml:1: nothing_like_it is not a known section; the sections are web,"
        )
    );
}

#[test]
fn a_wrong_value_says_what_is_allowed() {
    let cases = [
        (
            "[web]\nlisten_address = \"localhost\"",
            "smtt.toml:2: web.listen_address is \"localhost\", but must be an address and port",
        ),
        (
            "[web]\nlisten_address = 10871",
            "smtt.toml:2: web.listen_address is a number, but must be text in quotes",
        ),
        (
            "[web]\ntelemetry_path = \"/-/ready\"",
            "smtt.toml:2: web.telemetry_path is \"/-/ready\", but must start with /",
        ),
        (
            "[control]\nsocket = \"smtt.sock\"",
            "smtt.toml:2: control.socket must be an absolute path",
        ),
        (
            "[marker]\nlibraries = \"/x\"",
            "smtt.toml:2: marker.libraries is text, but must be a list of texts",
        ),
        (
            "[marker]\nlibraries = [1]",
            "smtt.toml:2: marker.libraries is a list of other things than texts",
        ),
        (
            "[marker]\nscan_interval = \"1\"",
            "smtt.toml:2: marker.scan_interval is \"1\", but must be a duration such as",
        ),
        (
            "[marker]\nscan_interval = \"1ms\"",
            "smtt.toml:2: marker.scan_interval is \"1ms\", but must be from 100ms to 3600s",
        ),
        (
            "[probe.fault]\nhook = \"kprobe\"",
            "smtt.toml:2: probe.fault.hook is \"kprobe\", but must be \"auto\",",
        ),
        (
            "[limits]\nring = \"3MiB\"",
            "smtt.toml:2: limits.ring is 3145728 bytes, but must be a power of two",
        ),
        (
            "[limits]\nring = \"3\"",
            "smtt.toml:2: limits.ring is \"3\", but must be a size such as",
        ),
        (
            "[limits]\nexecutors = 0",
            "smtt.toml:2: limits.executors is 0, but must be from 1 to 4096",
        ),
        (
            "[limits]\nexecutors = 1.5",
            "smtt.toml:2: limits.executors is a number with a fraction, but must be a whole number",
        ),
        (
            "[limits]\ncontexts = 10",
            "limits.contexts_per_executor is 16384, more than contexts (10)",
        ),
        (
            "[log]\nlevel = \"a=b=c\"",
            "smtt.toml:2: log.level is \"a=b=c\", but must be error, warn, info",
        ),
        (
            "limits = 1",
            "smtt.toml:1: limits is a section: write [limits]",
        ),
        ("[web\n", "smtt.toml:1: not TOML:"),
    ];
    for (text, expected) in cases {
        let seen = errors(text);
        assert!(
            seen.iter().any(|line| line.contains(expected)),
            "expected {expected:?}, seen {seen:?}"
        );
    }
}

#[test]
fn everything_that_is_wrong_is_said_at_once() {
    assert_eq!(
        errors("[limits]\nexecutors = 0\nseries = 0\n[control]\nsocket = \"x\"\n").len(),
        3
    );
}

#[test]
fn a_file_that_was_asked_for_must_be_there() {
    let error = Config::load(Some(Path::new("/no/such/file.toml")), &[]).expect_err("not there");
    assert!(
        error
            .to_string()
            .starts_with("cannot read the configuration /no/such/file.toml:"),
        "{error}"
    );
}

#[test]
fn an_override_names_its_option() {
    let error = Config::parse(
        "",
        "smtt.toml",
        &[("web.listen_address", "x", "--web.listen-address")],
    )
    .expect_err("wrong");
    assert!(
        error
            .to_string()
            .starts_with("--web.listen-address: web.listen_address is \"x\""),
        "{error}"
    );
}

proptest::proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "\\PC{0,200}") {
        let _ = Config::parse(&text, "smtt.toml", &[]);
    }

    #[test]
    fn no_value_makes_it_panic(which in proptest::prelude::any::<proptest::sample::Index>(), value in "[-0-9a-zA-Z\"\\[\\]{}=., ]{0,20}") {
        let key = keys::KEYS[which.index(keys::KEYS.len())].key;
        let _ = Config::parse(&format!("{key} = {value}\n"), "smtt.toml", &[]);
    }
}
