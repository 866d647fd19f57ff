//! Options of `smtt-daemon` that replace settings of its file.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_tests::lab::programs;
use xtask::daemon::Options;

use crate::lab::daemon_alone;

/// Exit code of a bad configuration, as docs have it.
const BAD_CONFIGURATION: i32 = 78;

/// The check of a configuration with another web configuration.
fn checked(config: &Path, web: &Path) -> Result<Output> {
    Command::new(programs()?.join("smtt-daemon"))
        .args(["--check", "--config"])
        .arg(config)
        .arg("--web.config.file")
        .arg(web)
        .output()
        .context("the daemon cannot be started")
}

#[test]
fn the_web_configuration_of_the_command_line_is_the_one_that_holds() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name);
    let file = |name: &str, text: &str| -> Result<()> {
        fs::write(path(name), text)?;
        Ok(fs::set_permissions(
            path(name),
            Permissions::from_mode(0o600),
        )?)
    };
    file("empty.toml", "")?;
    let output = checked(&path("empty.toml"), &path("nowhere.yml"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.code() == Some(BAD_CONFIGURATION) && said.contains("nowhere.yml"),
        "{output:?}"
    );
    // The file's own does not count any more, in either direction.
    file("good.yml", "http_server_config:\n  http2: false\n")?;
    let of_file = format!("[web]\nconfig_file = {:?}\n", path("elsewhere.yml"));
    file("broken.toml", &of_file)?;
    let output = checked(&path("broken.toml"), &path("good.yml"))?;
    ensure!(output.status.success(), "{output:?}");
    Ok(())
}

#[test]
fn the_log_is_json_where_the_command_line_says_so() -> Result<()> {
    let launcher = [
        "sh",
        "-c",
        "exec \"$0\" --log-format json --log.level debug \"$@\"",
    ];
    let options = Options {
        launcher: launcher.map(str::to_owned).to_vec(),
        toml: "[log]\nformat = \"text\"\n".to_owned(),
        ..Options::default()
    };
    let Some(daemon) = daemon_alone(&options)? else {
        return Ok(());
    };
    let log = fs::read_to_string(daemon.log())?;
    let (whole, _) = log.rsplit_once('\n').context("the log is empty")?;
    let mut lines = 0;
    for line in whole.lines() {
        let line: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        for field in ["time", "level", "message", "target"] {
            ensure!(line[field].is_string(), "{field} of {line}");
        }
        lines += 1;
    }
    ensure!(lines >= 3, "{log}");
    Ok(())
}
