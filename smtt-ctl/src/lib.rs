//! `smtt-ctl`: requests data from the daemon and prints it. Data on stdout, messages on stderr.
//!
//! Exit codes: 0 fine, 1 answered but degraded, 2 wrong usage, 69 the daemon cannot be reached, 77 no permission,
//! 78 wrong configuration.

mod advise;
pub mod args;
pub mod client;
pub mod columns;
mod doctor;
mod html;
mod listing;
mod memory;
mod pages;
mod pmu;
mod postmortem;
mod report;
mod status;
mod summary;
pub mod table;
mod task;
pub mod top;
mod trace;
pub mod users;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use args::{Args, Command};
use smtt_model::protocol::ListQuery;

use crate::client::{Client, ClientError};

/// Result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The command succeeded.
    Fine = 0,
    /// The command printed an answer that is incomplete or less exact.
    Degraded = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The daemon cannot be reached.
    Unreachable = 69,
    /// No permission to use the socket.
    NoPermission = 77,
    /// The configuration is wrong.
    BadConfig = 78,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The request failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The checked configuration is wrong.
    #[error(transparent)]
    Config(#[from] smtt_config::ConfigError),
    /// A trace file or folder cannot be read.
    #[error("cannot read {}: {error}{help}", path.display())]
    Trace {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system call.
        error: io::Error,
        /// The next step of the user; empty if there is none.
        help: &'static str,
    },
    /// The requested data is unavailable.
    #[error("{0}")]
    Question(String),
    /// An HTML page cannot be written.
    #[error("cannot write {}: {error}", path.display())]
    Page {
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        error: io::Error,
    },
    /// The answer cannot be written.
    #[error("cannot write: {0}")]
    Write(#[from] io::Error),
}

impl Failure {
    /// The exit code for the error.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            Self::Client(ClientError::Unreachable { .. } | ClientError::Broken { .. }) => {
                Exit::Unreachable
            }
            Self::Client(ClientError::NoPermission(_)) => Exit::NoPermission,
            Self::Client(ClientError::Busy(_)) => Exit::Degraded,
            Self::Client(ClientError::Refused(_)) | Self::Question(_) => Exit::Usage,
            Self::Config(_) => Exit::BadConfig,
            Self::Trace { error, .. }
                if matches!(error.kind(), io::ErrorKind::PermissionDenied) =>
            {
                Exit::NoPermission
            }
            Self::Trace { .. } | Self::Page { .. } | Self::Write(_) => Exit::Degraded,
        }
    }
}

/// Where and how to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    /// Columns of the terminal; `None` where lines have no maximum length.
    pub width: Option<usize>,
    /// Whether headings may be bold.
    pub styled: bool,
    /// Whether to print JSON instead of tables.
    pub json: bool,
}

impl Output {
    fn detect(json: bool) -> Self {
        let terminal = io::stdout().is_terminal();
        let asked = std::env::var("COLUMNS")
            .ok()
            .and_then(|columns| columns.parse().ok());
        let size = || {
            terminal.then(|| {
                crossterm::terminal::size().map_or(80, |(columns, _)| usize::from(columns))
            })
        };
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            width: asked.or_else(size).map(|width: usize| width.max(20)),
            styled: terminal && !plain,
            json,
        }
    }

    /// Prints a value as JSON.
    fn json(&self, value: &impl serde::Serialize) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        serde_json::to_writer_pretty(&mut out, value).map_err(io::Error::from)?;
        writeln!(out)?;
        Ok(())
    }

    /// Prints text.
    fn text(&self, text: &str) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        Ok(())
    }
}

/// Prints a message to stderr.
fn say(message: &str) {
    // An error on stderr cannot be reported.
    let _ = writeln!(io::stderr(), "smtt-ctl: {message}");
}

/// Runs the command.
#[must_use]
pub fn run(args: &Args) -> Exit {
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            say(&format!("cannot start: {error}"));
            return Exit::Unreachable;
        }
    };
    let client = Client::new(&args.socket);
    let output = Output::detect(args.json);
    let result = match &args.command {
        Command::Status => runtime.block_on(status::run(&client, output)),
        Command::Doctor { config } => {
            runtime.block_on(doctor::run(&client, output, config.as_ref()))
        }
        Command::Executors(query) => runtime.block_on(listing::run(
            &client,
            output,
            &columns::EXECUTORS,
            query,
            true,
        )),
        Command::Jobs(query) => {
            runtime.block_on(listing::run(&client, output, &columns::JOBS, query, true))
        }
        Command::Queries(query) => runtime.block_on(listing::run(
            &client,
            output,
            &columns::QUERIES,
            query,
            true,
        )),
        Command::Stages {
            query,
            summary: true,
        } => runtime.block_on(summary::run(&client, output, query)),
        Command::Stages { query, .. } => {
            runtime.block_on(listing::run(&client, output, &columns::STAGES, query, true))
        }
        Command::Tasks { query, failed } => {
            let kind = if *failed {
                &columns::FAILED_TASKS
            } else {
                &columns::TASKS
            };
            runtime.block_on(listing::run(&client, output, kind, query, true))
        }
        Command::Task { id, filter } => runtime.block_on(task::run(&client, output, filter, *id)),
        Command::Rdds { query, all } => {
            runtime.block_on(listing::run(&client, output, &columns::RDDS, query, *all))
        }
        Command::Blocks(query) => {
            runtime.block_on(listing::run(&client, output, &columns::BLOCKS, query, true))
        }
        Command::Memory { query, peaks } => {
            runtime.block_on(memory::run(&client, output, query, *peaks))
        }
        Command::Pages {
            query,
            by,
            spanning,
        } => runtime.block_on(pages::run(&client, output, query, by, *spanning)),
        Command::Report {
            filter,
            html: true,
            output,
        } => runtime.block_on(html::run(&client, filter, output.as_deref())),
        Command::Report { filter, .. } => runtime.block_on(report::run(&client, output, filter)),
        Command::Advise { app, user, all } => {
            runtime.block_on(advise::run(&client, output, app.as_deref(), *user, *all))
        }
        Command::Postmortem {
            executor,
            app,
            user,
        } => {
            let query = ListQuery {
                app: app.clone(),
                user: *user,
                ..ListQuery::default()
            };
            let asked = postmortem::run(&client, output, executor.as_deref(), query);
            runtime.block_on(asked)
        }
        Command::Trace(query) => runtime.block_on(trace::run(&client, output, query)),
        Command::Calibrate { config } => pmu::calibrate(output, config.as_deref()),
        Command::Pmu { cpuid, config } => pmu::run(output, cpuid.as_ref(), config.as_deref()),
        Command::Top { filter, interval } => top::run(&runtime, &client, filter, *interval),
    };
    match result {
        Ok(exit) => exit,
        // A closed pipe is no error: the reader has stopped reading.
        Err(Failure::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Fine,
        Err(failure) => {
            say(&failure.to_string());
            failure.exit()
        }
    }
}
