//! `smtt-ctl doctor`: whether this machine can do it, what is missing, what to do.

use super::{Exit, Failure, Output, say};
use crate::config::{self, ConfigError};

const DEFAULT_PATH: &str = "/etc/smtt/smtt.toml";
use crate::control::client::{Client, ClientError};
use crate::control::protocol::{Check, Status};
use std::path::{Path, PathBuf};

/// Checks that need no daemon: the kernel and the machine.
#[must_use]
pub fn local_checks() -> Vec<Check> {
    let mut checks = vec![group_check()];
    checks.insert(0, root_check());
    checks
}

fn root_check() -> Check {
    let root = nix::unistd::geteuid().is_root();
    Check {
        name: "root".to_owned(),
        ok: root,
        detail: if root {
            "runs as root"
        } else {
            "does not run as root: some checks cannot see the whole machine"
        }
        .to_owned(),
        remedy: if root {
            ""
        } else {
            "run smtt-ctl doctor as root"
        }
        .to_owned(),
    }
}

fn group_check() -> Check {
    let found = nix::unistd::Group::from_name("smtt").is_ok_and(|group| group.is_some());
    Check {
        name: "group".to_owned(),
        // Root does not need it.
        ok: true,
        detail: if found {
            "group smtt exists"
        } else {
            "group smtt does not exist: only root can ask the daemon"
        }
        .to_owned(),
        remedy: if found { "" } else { "groupadd --system smtt" }.to_owned(),
    }
}

fn config_check(path: Option<&Path>) -> (Check, Option<ConfigError>) {
    let shown = path
        .unwrap_or_else(|| Path::new(DEFAULT_PATH))
        .display()
        .to_string();
    let (detail, error) = match config::load(path) {
        Ok(_) => (
            format!("{shown} is right (or not there, then the defaults hold)"),
            None,
        ),
        Err(error) => (error.to_string(), Some(error)),
    };
    let remedy = if error.is_some() {
        "correct the lines that are named"
    } else {
        ""
    }
    .to_owned();
    (
        Check {
            name: "configuration".to_owned(),
            ok: error.is_none(),
            detail,
            remedy,
        },
        error,
    )
}

/// Asks the daemon, or checks here when it is not up; prints.
pub(super) async fn run(
    client: &Client,
    output: Output,
    config: &Option<PathBuf>,
) -> Result<Exit, Failure> {
    let (config_check, config_error) = config_check(config.as_deref());
    let mut checks = vec![config_check];
    let answer: Result<Vec<Check>, ClientError> = client.get("/v1/doctor").await;
    match answer {
        Ok(answered) => {
            checks.extend(answered);
            let status: Status = client.get("/v1/status").await?;
            let ok = status.degraded.is_empty();
            let detail = if ok {
                format!("smtt-daemon {} runs well", status.version)
            } else {
                status.degraded.join("; ")
            };
            let remedy = if ok { "" } else { "see smtt-ctl status" }.to_owned();
            checks.push(Check {
                name: "daemon".to_owned(),
                ok,
                detail,
                remedy,
            });
        }
        Err(error) => {
            say(&format!("{error}; checking from here"));
            checks.extend(local_checks());
            checks.push(Check {
                name: "daemon".to_owned(),
                ok: false,
                detail: "does not answer".to_owned(),
                remedy: "systemctl start smtt-daemon, or give its socket with --socket".to_owned(),
            });
        }
    }
    if output.json {
        output.json(&checks)?;
    } else {
        output.text(&text(&checks))?;
    }
    Ok(match config_error {
        // Only a file that was given is what the person asks about.
        Some(_) if config.is_some() => Exit::BadConfig,
        _ if checks.iter().all(|check| check.ok) => Exit::Fine,
        _ => Exit::Degraded,
    })
}

fn text(checks: &[Check]) -> String {
    let width = checks
        .iter()
        .map(|check| check.name.chars().count())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let mark = if check.ok { "ok     " } else { "missing" };
        text.push_str(&format!(
            "{mark}  {:width$}  {}\n",
            check.name,
            check.detail.replace('\n', "; ")
        ));
        if !check.remedy.is_empty() {
            text.push_str(&format!("         {:width$}  -> {}\n", "", check.remedy));
        }
    }
    let missing = checks.iter().filter(|check| !check.ok).count();
    text.push_str(&match missing {
        0 => "all is there\n".to_owned(),
        missing => format!(
            "{missing} of {} checks found something missing\n",
            checks.len()
        ),
    });
    text
}
