//! `smtt-ctl doctor`: checks whether this machine meets the requirements, and prints what to do.

use std::path::{Path, PathBuf};

use smtt_config::{self, ConfigError, DEFAULT_FILE};
use smtt_machine::doctor;
use smtt_model::protocol::{MachineCheck, Status};
use smtt_model::verdict::TASK_THREADS;

use super::advise::wrapped;
use super::{Exit, Failure, Output, say};
use crate::client::{Client, ClientError};

/// Check of the configuration.
fn config_check(path: Option<&Path>) -> (MachineCheck, Option<ConfigError>) {
    let error = smtt_config::load(path).err();
    let shown = path.map_or_else(
        || DEFAULT_FILE.to_owned(),
        |path| path.display().to_string(),
    );
    let there = path.is_some() || Path::new(DEFAULT_FILE).exists();
    let detail = match &error {
        Some(error) => error.to_string(),
        None if there => format!("{shown} is right"),
        None => format!("{shown} does not exist: the defaults hold"),
    };
    let remedy = if error.is_some() {
        "correct what is named"
    } else {
        ""
    };
    let check = MachineCheck {
        name: "configuration".to_owned(),
        ok: error.is_none(),
        required: true,
        detail,
        remedy: remedy.to_owned(),
    };
    (check, error)
}

/// Whether the group of the socket exists.
fn group_check(path: Option<&Path>) -> MachineCheck {
    let group =
        smtt_config::load(path).map_or_else(|_| "smtt".to_owned(), |config| config.control.group);
    let found = group.is_empty()
        || nix::unistd::Group::from_name(&group).is_ok_and(|found| found.is_some());
    let (detail, remedy) = match (group.is_empty(), found) {
        (true, _) => (
            "only root may ask the daemon, as configured".to_owned(),
            String::new(),
        ),
        (false, true) => (
            format!("members of {group} may ask the daemon"),
            String::new(),
        ),
        (false, false) => (
            format!("{group} does not exist: only root can ask the daemon"),
            format!("groupadd --system {group}"),
        ),
    };
    MachineCheck {
        name: "group".to_owned(),
        ok: found,
        required: false,
        detail,
        remedy,
    }
}

/// Check of the daemon, from its status.
fn daemon_check(status: &Status) -> MachineCheck {
    let ok = status.degraded.is_empty();
    MachineCheck {
        name: "daemon".to_owned(),
        ok,
        required: true,
        detail: if ok {
            format!("{} runs well", status.version)
        } else {
            status.degraded.join("; ")
        },
        remedy: if ok { "" } else { "see smtt-ctl status" }.to_owned(),
    }
}

/// Whether the threads of all tasks are traced, from the daemon's status.
fn task_threads_check(status: &Status) -> MachineCheck {
    let verdict = status
        .probes
        .iter()
        .find(|probe| probe.hook == TASK_THREADS);
    let (detail, remedy) = match verdict {
        None => ("no task runs on a thread that is not traced".to_owned(), ""),
        Some(verdict) => (
            verdict.reason.clone(),
            "smtt-ctl executors --json; the log names the processes",
        ),
    };
    MachineCheck {
        name: TASK_THREADS.to_owned(),
        ok: verdict.is_none(),
        required: false,
        detail,
        remedy: remedy.to_owned(),
    }
}

/// Requests the checks from the daemon, or runs them here where no daemon runs, and prints them.
pub(super) async fn run(
    client: &Client,
    output: Output,
    config: Option<&PathBuf>,
) -> Result<Exit, Failure> {
    let config = config.map(PathBuf::as_path);
    let (config_check, config_error) = config_check(config);
    let mut checks = vec![config_check, group_check(config)];
    let answer: Result<Vec<MachineCheck>, ClientError> = client.get("/v1/doctor").await;
    match answer {
        Ok(answered) => {
            checks.extend(answered);
            let status = client.get("/v1/status").await?;
            checks.push(task_threads_check(&status));
            checks.push(daemon_check(&status));
        }
        Err(error) => {
            say(&format!("{error}; checking from here"));
            checks.extend(doctor::examine());
            checks.push(MachineCheck {
                name: "daemon".to_owned(),
                ok: false,
                required: true,
                detail: "does not answer".to_owned(),
                remedy: "systemctl start smtt, or give its socket with --socket".to_owned(),
            });
        }
    }
    if output.is_data() {
        output.data(&checks)?;
    } else {
        output.text(&text(&checks, output.width.unwrap_or(usize::MAX)))?;
    }
    Ok(match config_error {
        // Only an explicitly given file decides the exit code.
        Some(_) if config.is_some() => Exit::BadConfig,
        _ if checks.iter().all(|check| check.ok || !check.required) => Exit::Fine,
        _ => Exit::Degraded,
    })
}

/// The checks, in lines of at most `columns` columns.
fn text(checks: &[MachineCheck], columns: usize) -> String {
    let width = checks
        .iter()
        .map(|check| check.name.chars().count())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let mark = match (check.ok, check.required) {
            (true, _) => "ok      ",
            (false, true) => "MISSING ",
            (false, false) => "without ",
        };
        let name = format!("{mark} {:width$}  ", check.name);
        push(&mut text, &name, &check.detail.replace('\n', "; "), columns);
        if !check.remedy.is_empty() {
            let blank = format!("         {:width$}  ", "");
            push(&mut text, &blank, &format!("-> {}", check.remedy), columns);
        }
    }
    let missing = |required| {
        checks
            .iter()
            .filter(|check| !check.ok && check.required == required)
            .count()
    };
    text.push_str(&match (missing(true), missing(false)) {
        (0, 0) => "all is there\n".to_owned(),
        (0, optional) => format!("all that is needed is there; {optional} more would give more\n"),
        (needed, _) => format!("{needed} of what is needed is missing\n"),
    });
    text
}

/// Appends what is said beside a name, in as many lines as it takes.
fn push(text: &mut String, name: &str, said: &str, columns: usize) {
    let beside = name.chars().count();
    for (at, line) in wrapped(said, columns.saturating_sub(beside), 0)
        .iter()
        .enumerate()
    {
        match at {
            0 => text.push_str(name),
            _ => text.push_str(&" ".repeat(beside)),
        }
        text.push_str(line);
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(ok: bool, required: bool) -> MachineCheck {
        MachineCheck {
            name: "x".to_owned(),
            ok,
            required,
            detail: "seen".to_owned(),
            remedy: if ok { String::new() } else { "do".to_owned() },
        }
    }

    #[test]
    fn what_is_needed_stands_out() {
        assert_eq!(
            text(&[check(true, true)], 80),
            "ok       x  seen\nall is there\n"
        );
        assert_eq!(
            text(&[check(false, false)], 80),
            "without  x  seen\n            -> do\nall that is needed is there; 1 more would give more\n"
        );
        assert!(
            text(&[check(false, true), check(false, false)], 80)
                .ends_with("1 of what is needed is missing\n")
        );
    }

    #[test]
    fn a_wrong_configuration_is_a_wrong_check() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("smtt.toml");
        std::fs::write(&path, "[web]\nlisten_adress = \"x\"\n").expect("written");
        let (check, error) = config_check(Some(&path));
        assert!(!check.ok && error.is_some());
        assert!(check.detail.contains("listen_address"), "{}", check.detail);
    }
}
