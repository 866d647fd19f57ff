//! Answers about a whole application, from the store of its history: the program that reads stores is installed apart.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::html::stem;
use super::output::Form;
use super::{Args, Failure, args};

/// The program, a package of its own. It stands beside this one: a search by `PATH` would let root run a user's.
const PROGRAM: &str = "smtt-history";

/// Runs that program in place of this one where the arguments name a store. No worker is asked.
///
/// # Errors
/// When it is not installed, or has no such form.
pub(super) fn hand_on(args: &Args, form: Form) -> Result<(), Failure> {
    let mut command = Command::new(beside()?);
    let app = match &args.command {
        args::Command::Report {
            filter,
            output,
            store: Some(store),
            ..
        } => {
            let app = filter.app.as_deref().unwrap_or_default();
            command.arg("report").arg("--store").arg(store);
            command.arg("--html").arg(page(app, output.as_deref()));
            if let Some(user) = filter.user {
                command.args(["--user", &user.to_string()]);
            }
            app
        }
        args::Command::Advise {
            app,
            store: Some(store),
            ..
        } => {
            command.arg("advise").arg("--store").arg(store);
            match form {
                Form::Json => {
                    command.arg("--json");
                }
                Form::Csv => {
                    let only = "findings of a store are text or --json";
                    return Err(Failure::Question(only.to_owned()));
                }
                Form::Text | Form::Plain => {}
            }
            app.as_deref().unwrap_or_default()
        }
        _ => return Ok(()),
    };
    Err(missing(command.arg("--").arg(app).exec()))
}

/// The file of a page: this one, one in this folder, or standard output.
fn page(app: &str, output: Option<&Path>) -> PathBuf {
    match output {
        Some(folder) if folder.is_dir() => folder.join(format!("{}.html", stem(app))),
        Some(file) => file.to_owned(),
        None => "-".into(),
    }
}

fn beside() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().map_err(missing)?;
    Ok(own.with_file_name(PROGRAM))
}

fn missing(error: std::io::Error) -> Failure {
    Failure::Nothing(format!(
        "cannot run {PROGRAM}: {error}; install the package {PROGRAM}"
    ))
}
