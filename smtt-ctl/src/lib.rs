//! `smtt-ctl`: requests data from the daemon and prints it. Data on stdout, messages on stderr.
//!
//! Exit codes: 0 answered, 1 nothing matches or no answer can be given (with `--fail-on degraded` also: answered but
//! degraded), 2 wrong usage, 3 answered, but some workers of `--cluster` did not answer, 69 the daemon cannot be reached, 77 no permission, 78 wrong configuration.

mod advise;
pub mod args;
pub mod client;
pub mod cluster;
pub mod columns;
mod doctor;
mod earlier;
mod export;
mod groups;
mod history;
mod html;
mod listing;
mod memory;
mod output;
mod pages;
mod peaks;
mod pmu;
mod postmortem;
mod report;
pub mod ssh;
mod status;
mod summary;
pub mod table;
mod task;
pub mod top;
mod trace;
pub mod users;
mod watch;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use args::{Args, Command, FailOn};
use clap::{CommandFactory, Parser as _};
use smtt_model::protocol::ListQuery;
use tokio::runtime::Runtime;

pub use crate::output::Output;

use crate::client::{Client, ClientError};
use crate::cluster::Cluster;
use crate::groups::Of;
use crate::ssh::{Settings, SshError, Tunnel};

/// Result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    /// The command succeeded.
    Fine = 0,
    /// The command printed an answer that is incomplete or less exact; the exit code is 0 without `--fail-on degraded`.
    Degraded = 100,
    /// Nothing matches the selection, or no answer can be given.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The answer lacks workers of the cluster that did not answer.
    Partial = 3,
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
    /// The selection matches nothing.
    #[error("{0}")]
    Nothing(String),
    /// A file cannot be written.
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
            Self::Client(
                ClientError::Unreachable { .. }
                | ClientError::Broken { .. }
                | ClientError::NoWorker(_),
            ) => Exit::Unreachable,
            Self::Client(
                ClientError::NoPermission(_)
                | ClientError::NoSsh {
                    error: SshError::NoPermission { .. },
                    ..
                },
            ) => Exit::NoPermission,
            Self::Client(ClientError::NoSsh { .. }) => Exit::Unreachable,
            Self::Client(
                ClientError::Busy(_) | ClientError::Unknown(_) | ClientError::TooLarge(_),
            )
            | Self::Nothing(_) => Exit::Failed,
            Self::Client(ClientError::Refused(_)) | Self::Question(_) => Exit::Usage,
            Self::Config(_) => Exit::BadConfig,
            Self::Trace { error, .. }
                if matches!(error.kind(), io::ErrorKind::PermissionDenied) =>
            {
                Exit::NoPermission
            }
            Self::Trace { .. } | Self::Page { .. } | Self::Write(_) => Exit::Failed,
        }
    }
}

/// Prints a message to stderr.
fn say(message: &str) {
    // An error on stderr cannot be reported.
    let _ = writeln!(io::stderr(), "smtt-ctl: {message}");
}

/// Runs the program with a command line, whose first word is the program's name in messages.
#[must_use]
pub fn main(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    run(&Args::parse_from(words)).into()
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
    let exit = asked(&runtime, args);
    // A look-up of a name may still wait for its server.
    runtime.shutdown_background();
    match exit {
        Exit::Degraded if args.fail_on == Some(FailOn::Degraded) => Exit::Failed,
        Exit::Degraded => Exit::Fine,
        other => other,
    }
}

/// The client of the daemons that the arguments name.
fn client(runtime: &Runtime, args: &Args) -> Result<Client, Failure> {
    let of = &args.cluster;
    match (&of.cluster, of.host.as_slice()) {
        (None, []) => Ok(Client::new(&args.socket)),
        (None, [place]) => {
            cluster::check_one(args)?;
            let settings = Settings::of(of, &args.socket).map_err(Failure::Question)?;
            Ok(Client::through(Tunnel::new(place.clone(), settings)))
        }
        _ => {
            cluster::check(args)?;
            let found = runtime.block_on(Cluster::find(of, &args.socket))?;
            Ok(Client::of(found))
        }
    }
}

/// Asks as often as the arguments say.
fn asked(runtime: &Runtime, args: &Args) -> Exit {
    let output = Output::detect(args);
    let handed = history::hand_on(args, output.form);
    let client = match handed.and_then(|()| client(runtime, args)) {
        Ok(client) => client,
        Err(failure) => return ended(Err(failure)),
    };
    let answer = || answered(runtime, &client, output, &args.command);
    let of_cluster = |cluster: &Cluster| {
        cluster.begin();
        let result = answer();
        // What is missing stands below the answer, also where there is none.
        let exit = result.as_ref().map_or_else(Failure::exit, |exit| *exit);
        let exit = cluster.end(exit);
        match result {
            Err(Failure::Nothing(said)) if exit == Exit::Partial => {
                say(&said);
                Ok(exit)
            }
            result => result.map(|_| exit),
        }
    };
    let answer = || client.cluster().map_or_else(answer, of_cluster);
    match args.command.watch() {
        Some(interval) => watch::repeat(output, interval, answer),
        None => ended(answer()),
    }
}

/// The end of a run; a failure is printed.
fn ended(result: Result<Exit, Failure>) -> Exit {
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

/// Requests jobs or SQL executions and prints them: of a cluster as sums over its workers.
fn work(
    runtime: &Runtime,
    client: &Client,
    output: Output,
    kind: &columns::ListingKind,
    asked: &args::WorkQuery,
) -> Result<Exit, Failure> {
    let query = &asked.query.since(asked.since);
    match client.cluster() {
        Some(cluster) if !asked.per_worker => {
            runtime.block_on(cluster::work(client, cluster, output, kind, query))
        }
        _ => runtime.block_on(listing::run(client, output, kind, query, true)),
    }
}

/// Requests an answer and prints it.
fn answered(
    runtime: &Runtime,
    client: &Client,
    output: Output,
    command: &Command,
) -> Result<Exit, Failure> {
    let list = |kind, query, all| runtime.block_on(listing::run(client, output, kind, query, all));
    match command {
        Command::Status { .. } => runtime.block_on(status::run(client, output)),
        Command::Doctor { config } => {
            runtime.block_on(doctor::run(client, output, config.as_ref()))
        }
        Command::Executors(query) => list(&columns::EXECUTORS, query, true),
        Command::Jobs(asked) => work(runtime, client, output, &columns::JOBS, asked),
        Command::Queries(asked) => work(runtime, client, output, &columns::QUERIES, asked),
        Command::Stages {
            query,
            summary: true,
            ..
        } => runtime.block_on(summary::run(client, output, query)),
        Command::Stages {
            query, peaks: true, ..
        } => runtime.block_on(peaks::run(client, output, query)),
        Command::Stages { query, since, .. } => list(&columns::STAGES, &query.since(*since), true),
        Command::Tasks {
            query,
            failed,
            since,
        } => {
            let kind = if *failed {
                &columns::FAILED_TASKS
            } else {
                &columns::TASKS
            };
            list(kind, &query.since(*since), true)
        }
        Command::Task { id, filter } => runtime.block_on(task::run(client, output, filter, *id)),
        Command::Rdds {
            query,
            all,
            by: Some(by),
        } => runtime.block_on(groups::run(client, output, query, Of::Rdds, *by, *all)),
        Command::Rdds { query, all, .. } => list(&columns::RDDS, query, *all),
        Command::Blocks {
            query,
            by: Some(by),
        } => runtime.block_on(groups::run(client, output, query, Of::Blocks, *by, true)),
        Command::Blocks { query, .. } => list(&columns::BLOCKS, query, true),
        Command::Memory { query, peaks } => {
            runtime.block_on(memory::run(client, output, query, *peaks))
        }
        Command::Pages {
            query,
            by,
            spanning,
        } => runtime.block_on(pages::run(client, output, query, by, *spanning)),
        Command::Report {
            filter,
            html: true,
            by,
            output,
            ..
        } => runtime.block_on(html::run(client, filter, *by, output.as_deref())),
        Command::Report { filter, by, .. } => {
            runtime.block_on(report::run(client, output, filter, *by))
        }
        Command::Advise {
            app, user, by, all, ..
        } => {
            let question = ListQuery {
                app: app.clone(),
                user: *user,
                by: by.map(Into::into),
                ..ListQuery::default()
            };
            runtime.block_on(advise::run(client, output, question, *all))
        }
        Command::Postmortem {
            executor,
            since,
            app,
            user,
        } => {
            let query = ListQuery {
                app: app.clone(),
                user: *user,
                ..ListQuery::default()
            };
            let asked = postmortem::run(client, output, executor.as_deref(), query, *since);
            runtime.block_on(asked)
        }
        Command::Export {
            job_trace,
            user,
            file,
        } => runtime.block_on(export::run(client, job_trace, *user, file)),
        Command::Trace(query) => runtime.block_on(trace::run(client, output, query)),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Args::command(), "smtt-ctl", &mut script);
            // clap_complete 4.6 takes the dash of the program's name for a subcommand in a part of bash's script.
            let script = String::from_utf8_lossy(&script).replace("smtt__subcmd__ctl", "smtt__ctl");
            output.text(&script)?;
            Ok(Exit::Fine)
        }
        Command::Calibrate { config } => pmu::calibrate(output, config.as_deref()),
        Command::Pmu { cpuid, config } => pmu::run(output, cpuid.as_ref(), config.as_deref()),
        Command::Top {
            filter,
            interval,
            by,
        } => top::run(runtime, client, filter, *by, *interval),
    }
}
