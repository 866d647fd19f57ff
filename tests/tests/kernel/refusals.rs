//! Environments in which the daemon does not start: the message says why and what to do.

use std::process::Command;

use anyhow::{Result, ensure};
use smtt_tests::lab::programs;
use smtt_tests::skip::skip;
use xtask::process::is_root;

#[test]
fn in_a_pid_namespace_that_is_not_the_first_the_daemon_refuses() -> Result<()> {
    if !is_root() {
        return skip("root", "a pid namespace needs CAP_SYS_ADMIN");
    }
    let daemon = programs()?.join("smtt-daemon");
    let output = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc"])
        .arg(&daemon)
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success(), "it runs: {said}");
    ensure!(
        said.contains("pid namespace") && said.contains("hostPID"),
        "it does not say why, or what to do: {said}"
    );
    Ok(())
}
