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

#[test]
fn a_jump_does_not_ask_either() {
    let settings = settings("/s").expect("plain");
    let place = Place::parse("w").expect("a place");
    let command = settings.command(&place, Path::new("/tmp/x/s"));
    assert_eq!(command.get_program(), "ssh");
    let environment: Vec<_> = command.get_envs().collect();
    for (name, value) in [
        ("SSH_ASKPASS_REQUIRE", "force"),
        ("SSH_ASKPASS", "/bin/false"),
    ] {
        let set = (name.as_ref(), Some(value.as_ref()));
        assert!(environment.contains(&set), "{environment:?}");
    }
}

#[test]
fn only_the_sockets_forward_counts_and_no_rights_go_to_the_other_machine() {
    let settings = settings("/s").expect("plain");
    let place = Place::parse("w").expect("a place");
    let command = settings.command(&place, Path::new("/tmp/x/s"));
    let arguments: Vec<_> = command.get_args().map(|it| it.to_string_lossy()).collect();
    let options: Vec<_> = arguments
        .windows(2)
        .filter(|pair| pair[0] == "-o")
        .map(|pair| &*pair[1])
        .collect();
    for option in [
        "BatchMode=yes",
        "ExitOnForwardFailure=no",
        "ForwardAgent=no",
        "ForwardX11=no",
        "GSSAPIDelegateCredentials=no",
        "Tunnel=no",
    ] {
        assert!(options.contains(&option), "{option}: {options:?}");
    }
}

#[test]
fn a_socket_that_is_not_forwarded_is_said() {
    let says_ready = settings("/s").expect("plain").with_program(&[
        "sh",
        "-c",
        "echo smtt-ctl: ready; exec cat >/dev/null",
    ]);
    let tunnel = Tunnel::new(Place::parse("w").expect("a place"), says_ready);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let error = runtime.block_on(tunnel.open()).expect_err("no socket");
    assert_eq!(error.to_string(), "ssh: it does not forward the socket");
}

/// A program with this script, once it has said that it runs.
fn running(script: &str, folder: &Path) -> Ssh {
    let mut child = Command::new("sh")
        .args(["-c", script])
        .current_dir(folder)
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh runs");
    let mut out = BufReader::new(child.stdout.take().expect("its output"));
    let mut line = String::new();
    out.read_line(&mut line).expect("read");
    assert_eq!(line, "ready\n");
    Ssh(child)
}

#[test]
fn ssh_may_end_what_it_started_and_is_killed_where_it_does_not_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let wait = "echo ready; while :; do sleep 0.01; done";
    drop(running(
        &format!("trap 'touch ended; exit' TERM; {wait}"),
        folder.path(),
    ));
    assert!(folder.path().join("ended").exists());
    let stubborn = running(&format!("trap '' TERM; {wait}"), folder.path());
    let process = PathBuf::from(format!("/proc/{}", stubborn.0.id()));
    drop(stubborn);
    assert!(!process.exists());
}
