//! Exit codes.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use smtt_skip::{NotSkipped, skip};

use super::{Daemon, ctl};

#[test]
fn exit_codes_say_how_it_went() {
    let daemon = Daemon::with_job();
    let code = |output: Output| output.status.code();
    assert_eq!(code(daemon.ctl(&["status"])), Some(0));
    assert_eq!(code(daemon.ctl(&["rdds", "--sort", "nonsense"])), Some(2));
    assert_eq!(code(daemon.ctl(&["rdds", "--shape"])), Some(2));
    assert_eq!(
        code(daemon.ctl(&["doctor", "--config", "/nonexistent/smtt.toml"])),
        Some(78)
    );
    assert_eq!(
        code(ctl(Path::new("/nonexistent/smtt.sock"), &["rdds"], "80")),
        Some(69)
    );
    // Without page faults the answer is degraded, and a message says so.
    daemon.shared.set_verdicts(Vec::new());
    let empty = Daemon::start();
    let output = empty.ctl(&["rdds"]);
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("page faults are not measured"),
        "{output:?}"
    );
    assert_eq!(code(output), Some(0));
    let grouped = empty.ctl(&["rdds", "--by", "name", "--fail-on", "degraded"]);
    assert_eq!(code(grouped), Some(1), "groups of RDDs have no faults");
    let died = empty.ctl(&["postmortem", "nosuch"]);
    assert!(
        String::from_utf8_lossy(&died.stderr).contains("no such executor has died"),
        "{died:?}"
    );
    assert_eq!(code(died), Some(1));
    for asked in ["rdds", "status"] {
        let failing = empty.ctl(&[asked, "--fail-on", "degraded"]);
        assert_eq!(code(failing), Some(1), "{asked}: it is still starting");
        assert_eq!(code(empty.ctl(&[asked])), Some(0), "{asked}");
    }
    let well = daemon.ctl(&["rdds", "--fail-on", "degraded"]);
    assert_eq!(code(well), Some(0));
    assert_eq!(code(empty.ctl(&["blocks"])), Some(0));
}

#[test]
fn a_daemon_that_does_not_answer_is_a_check_with_its_unit() {
    let socket = Path::new("/nonexistent/smtt.sock");
    let output = ctl(socket, &["doctor", "--json"], "80");
    let checks: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let checks = checks.as_array().expect("checks");
    let daemon = checks.iter().find(|check| check["name"] == "daemon");
    let daemon = daemon.expect("a check of the daemon");
    assert_eq!(daemon["ok"], false);
    assert_eq!(daemon["required"], true);
    let remedy = daemon["remedy"].as_str().expect("a remedy");
    let unit = remedy.strip_prefix("systemctl start ").expect("a command");
    let (unit, rest) = unit.split_once(',').expect("another way");
    assert_eq!(rest, " or give its socket with --socket");
    // The unit of the package.
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/../config");
    let file = Path::new(config).join(format!("{unit}.service"));
    let text = std::fs::read_to_string(&file).expect("its file");
    assert!(text.contains("/smtt-daemon "), "{text}");
    let shown = ctl(socket, &["doctor"], "200");
    let shown = String::from_utf8_lossy(&shown.stdout);
    assert!(
        shown.contains("MISSING  daemon") && shown.contains(&format!("-> {remedy}")),
        "{shown}"
    );
    let failing = ctl(socket, &["doctor", "--fail-on", "degraded"], "80");
    assert_eq!(failing.status.code(), Some(1));
}

#[test]
fn no_permission_is_its_own_code() -> Result<(), NotSkipped> {
    if !nix::unistd::geteuid().is_root() {
        return skip("root", "smtt-ctl runs as another user");
    }
    let daemon = Daemon::with_job();
    // The other user may enter the folder, but not use the socket.
    let folder = daemon.socket.parent().expect("a folder");
    std::fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("set");
    // A copy, because the build's folder may be closed to others.
    let copy = folder.join("smtt-ctl");
    std::fs::copy(env!("CARGO_BIN_EXE_smtt-ctl"), &copy).expect("copied");
    let run = || {
        use std::os::unix::process::CommandExt;
        Command::new(&copy)
            .arg("--socket")
            .arg(&daemon.socket)
            .arg("rdds")
            .uid(65_534)
            .gid(65_534)
            .output()
    };
    // Another test that forks at this moment holds the copy open for writing until it executes.
    let busy = |result: &std::io::Result<Output>| {
        result
            .as_ref()
            .is_err_and(|error| error.kind() == std::io::ErrorKind::ExecutableFileBusy)
    };
    let mut result = run();
    while busy(&result) {
        std::thread::sleep(std::time::Duration::from_millis(10));
        result = run();
    }
    let output = result.expect("smtt-ctl runs");
    assert_eq!(output.status.code(), Some(77), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("no permission"),
        "{output:?}"
    );
    Ok(())
}
