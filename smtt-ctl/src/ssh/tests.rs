//! Places, scripts and complaints of `--host`, without another machine.

use super::*;

#[test]
fn a_place_is_what_ssh_takes_and_never_an_option() {
    for (text, destination, port) in [
        ("worker", "worker", None),
        ("me@worker-1.example", "me@worker-1.example", None),
        ("me@worker:2222", "me@worker", Some(2222)),
        ("2001:db8::1", "2001:db8::1", None),
        ("me@[2001:db8::1]:22", "me@2001:db8::1", Some(22)),
        ("DOMAIN\\me@worker", "DOMAIN\\me@worker", None),
    ] {
        let place = Place::parse(text).expect(text);
        let found = (place.destination.as_str(), place.port);
        assert_eq!(found, (destination, port), "{text}");
    }
    for text in [
        "",
        "@",
        "me@",
        "@worker",
        "-oProxyCommand=x",
        "-v@worker",
        "me@-v",
        "a b",
        "a;b",
        "a:0",
        "a:70000",
        "a:b",
        "$(x)",
        "[::1",
        "a/b",
        "a\nb",
        "'a'",
    ] {
        let error = Place::parse(text).expect_err(text);
        assert!(error.contains("is no machine"), "{error}");
    }
}

fn settings(socket: &str) -> Result<Settings, String> {
    use clap::Parser as _;
    let args = crate::args::Args::parse_from(["smtt-ctl", "executors"]);
    Settings::of(&args.cluster, Path::new(socket))
}

#[test]
fn the_other_end_gets_a_plain_path_in_one_quoted_script() {
    for wrong in [
        "run/s", "/a b", "/a:b", "/a'b", "/a$b", "/a%b", "/a\\b", "/a\nb", "/a;b",
    ] {
        assert!(settings(wrong).is_err(), "{wrong}");
    }
    let settings = settings("/run/smtt/smtt.sock").expect("plain");
    let script = settings.script();
    assert_eq!(script.matches('\'').count(), 2, "{script}");
    assert!(!script.contains(['"', '\\', '\n']), "{script}");
    let place = Place::parse("me@worker:22").expect("a place");
    let command = settings.command(&place, Path::new("/tmp/x/s"));
    let arguments: Vec<_> = command.get_args().map(|it| it.to_string_lossy()).collect();
    let end = arguments.len() - 3;
    assert_eq!(arguments[end..], ["--", "me@worker", script.as_str()]);
    assert!(arguments.iter().any(|it| it == "BatchMode=yes"));
    assert!(
        arguments
            .iter()
            .any(|it| it == "/tmp/x/s:/run/smtt/smtt.sock")
    );
}

/// What the script says of a socket here.
fn script(socket: &Path) -> Option<String> {
    let settings = settings(socket.to_str().expect("a path")).expect("plain");
    let output = Command::new("sh")
        .args(["-c", &settings.script()])
        .stdin(Stdio::null())
        .output()
        .expect("sh runs");
    word(&mut output.stdout.as_slice())
}

#[test]
fn the_script_says_whether_there_is_a_socket() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("s");
    assert_eq!(script(&path).as_deref(), Some("missing"));
    fs::write(&path, "no socket").expect("written");
    assert_eq!(script(&path).as_deref(), Some("missing"));
    fs::remove_file(&path).expect("removed");
    let _socket = std::os::unix::net::UnixListener::bind(&path).expect("bound");
    assert_eq!(script(&path).as_deref(), Some("ready"));
}

#[test]
fn what_a_shell_prints_before_is_left_out_and_bounded() {
    let said = b"welcome\r\n\x1b[31mred\nsmtt-ctl: denied a\x1bdm\n".as_slice();
    assert_eq!(word(&mut { said }).as_deref(), Some("denied a\u{fffd}dm"));
    assert_eq!(word(&mut b"welcome\n".as_slice()), None);
    assert_eq!(word(&mut BufReader::new(io::repeat(b'x'))), None);
}

#[test]
fn complaints_of_ssh_become_what_to_do() {
    let tunnel = Tunnel::new(
        Place::parse("me@w:22").expect("a place"),
        settings("/s").expect("plain"),
    );
    for (said, part) in [
        (
            "x\nHost key verification failed.\r\n",
            "run `ssh -p 22 me@w` once",
        ),
        (
            "me@w: Permission denied (publickey,password).\r\n",
            "ssh is refused (Permission denied (publickey,password))",
        ),
        (
            "ssh: connect to host w port 22: Connection refused\r\n",
            "ssh: connect to host w port 22: Connection refused",
        ),
        ("", "the account runs no commands"),
    ] {
        let error = tunnel.complaint(said).to_string();
        assert!(
            error.contains(part) && error.lines().count() == 1,
            "{error}"
        );
    }
}
