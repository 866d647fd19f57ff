//! Valid and invalid configurations, and the texts of errors.

use super::*;

fn error(text: &str) -> String {
    parse(text, Path::new("/etc/smtt/smtt.toml"))
        .expect_err("it is wrong")
        .to_string()
}

#[test]
fn the_default_file_says_the_defaults_and_is_committed() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/smtt.toml");
    if std::env::var_os("SMTT_BLESS").is_some() {
        std::fs::write(&path, default_text()).expect("it can be written");
    }
    assert_eq!(
        std::fs::read_to_string(&path).expect("config/smtt.toml"),
        default_text(),
        "run `cargo xtask tidy`"
    );
    let written = parse(&default_text(), &path).expect("the default file is good");
    let empty = parse("", &path).expect("an empty file is good");
    assert_eq!(format!("{written:?}"), format!("{empty:?}"));
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_the_likely_one() {
    let message = error("[web]\nlisten_adress = \"127.0.0.1:1\"\n");
    assert_eq!(
        message,
        "configuration /etc/smtt/smtt.toml, line 2: unknown key \"listen_adress\": did you mean \"listen_address\"?"
    );
    assert!(error("[wep]\n").contains("did you mean \"web\""));
    assert!(error("[limits]\nzzzzzzzz = 1\n").contains("expected one of"));
}

#[test]
fn a_wrong_value_is_named_with_its_line_and_what_is_allowed() {
    for (text, part) in [
        (
            "[web]\nlisten_address = \"here\"\n",
            "line 2: web.listen_address: \"here\" is no address and port",
        ),
        (
            "[web]\ntelemetry_path = \"/\"\n",
            "line 2: web.telemetry_path",
        ),
        (
            "[marker]\ndigests = [\"ab\"]\n",
            "line 2: marker.digests: \"ab\" is no digest",
        ),
        (
            "\n[probe.fault]\n\nhook = \"ptrace\"\n",
            "line 4: probe.fault.hook: \"ptrace\" is none of",
        ),
        (
            "[limits]\nring = \"3MiB\"\n",
            "line 2: limits.ring: \"3MiB\" is no power of two",
        ),
        (
            "[limits]\nring = \"lots\"\n",
            "line 2: limits.ring: \"lots\" is no size",
        ),
        (
            "[limits]\nexecutors = 0\n",
            "line 2: limits.executors: 0 is not from 1 to 4096",
        ),
        ("[limits]\nexecutors = -1\n", "line 2"),
        (
            "[retention]\nexecutors = \"soon\"\n",
            "line 2: retention.executors: \"soon\" is no duration",
        ),
        (
            "[control]\nsocket = \"smtt.sock\"\n",
            "line 2: control.socket: \"smtt.sock\" is not an absolute path",
        ),
        (
            "[trace]\nfolder = \"trace\"\n",
            "line 2: trace.folder: \"trace\" is not an absolute path",
        ),
        (
            "[trace]\nsegment_seconds = 0\n",
            "line 2: trace.segment_seconds: 0 is not from 1 to 86400",
        ),
        (
            "[trace]\nsegment_bytes = \"2GiB\"\n",
            "trace.max_bytes: \"4GiB\" is not from 8589934592",
        ),
        (
            "[page_walks]\nevents = { load_walk_cycles = \"no-such-event\" }\n",
            "line 2: page_walks.events: event of role load_walk_cycles: ",
        ),
        (
            "[page_walks.events]\nload_walks = \"cycles\"\n",
            "line 2: unknown variant `load_walks`",
        ),
        (
            "[page_walks]\nsample_periods = { cycles = 0 }\n",
            "line 2: page_walks.sample_periods: cycles = 0 takes no samples",
        ),
        (
            "[page_walks]\nmax_samples_per_second = 0\n",
            "line 2: page_walks.max_samples_per_second: 0 is not from 1 to 100000",
        ),
        ("[log]\nlevel = \"=\"\n", "line 2: log.level"),
        ("[log]\nlevel = \"loud\"\n", "line 2: log.level"),
        ("[log]\nlevel = \"info,loud\"\n", "line 2: log.level"),
        ("[log]\nlevel = \"smtt_daemon=\"\n", "line 2: log.level"),
        ("[log]\nlevel = \"[span]=debug\"\n", "line 2: log.level"),
        ("tick = \"1ms\"\n", "line 1: tick"),
        ("[web\n", "line 1"),
    ] {
        assert!(
            error(text).contains(part),
            "for {text:?} seen {:?}, expected {part:?}",
            error(text)
        );
    }
}

#[test]
fn every_rung_of_the_fault_ladder_can_be_forced() {
    for (name, hook) in [
        ("auto", FaultHook::Auto),
        ("raw_tracepoint", FaultHook::RawTracepoint),
        ("fexit", FaultHook::Fexit),
        ("kprobe", FaultHook::Kprobe),
        ("software", FaultHook::Software),
        ("off", FaultHook::Off),
    ] {
        let text = format!("[probe.fault]\nhook = \"{name}\"\n");
        let config = parse(&text, Path::new("x")).expect("a known hook");
        assert_eq!(config.probes.fault_hook, hook, "{name}");
    }
}

#[test]
fn a_missing_file_is_an_error_only_when_it_was_asked_for() {
    assert!(
        load(Some(Path::new("/nonexistent/smtt.toml")))
            .expect_err("it is not there")
            .to_string()
            .contains("/nonexistent/smtt.toml cannot be read")
    );
}

proptest::proptest! {
    #[test]
    fn no_text_crashes_the_reader(text in "\\PC{0,200}") {
        let _ = parse(&text, Path::new("x"));
    }
}
