//! Answers about a whole application, from the store of its history: the program that reads stores is installed apart.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::html::stem;
use super::{Exit, Failure};

/// The program; a package of its own.
const PROGRAM: &str = "smtt-history";

/// The page of an application, in this file, in this folder, or on standard output.
pub(super) fn report(
    store: &Path,
    app: &str,
    user: Option<u32>,
    output: Option<&Path>,
) -> Result<Exit, Failure> {
    let file: PathBuf = match output {
        Some(folder) if folder.is_dir() => folder.join(format!("{}.html", stem(app))),
        Some(file) => file.into(),
        None => "-".into(),
    };
    let mut command = command("report", store);
    command.arg("--html").arg(file);
    if let Some(user) = user {
        command.args(["--user", &user.to_string()]);
    }
    become_it(&mut command, app)
}

/// The findings of an application.
pub(super) fn advise(store: &Path, app: &str, json: bool) -> Result<Exit, Failure> {
    let mut command = command("advise", store);
    if json {
        command.arg("--json");
    }
    become_it(&mut command, app)
}

fn command(word: &str, store: &Path) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg(word).arg("--store").arg(store);
    command
}

/// Runs the program about an application, in place of this one.
fn become_it(command: &mut Command, app: &str) -> Result<Exit, Failure> {
    let error = command.arg("--").arg(app).exec();
    Err(Failure::Nothing(format!(
        "cannot run {PROGRAM}: {error}; install the package {PROGRAM}"
    )))
}
