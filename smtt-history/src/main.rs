//! `smtt-history`: imports event logs and serves finished applications.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use smtt_history::import::{Admission, import};
use smtt_history::log::Bounds;
use smtt_history::serve::{Settings, run as run_server};

/// Finished Spark applications: compact tables from event logs, and Spark's REST API from the tables.
#[derive(Debug, Parser)]
#[command(name = "smtt-history", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Imports event logs: files (plain, .zstd, .lz4, .snappy, .inprogress) or folders eventlog_v2_*.
    Import {
        /// Folder of the applications.
        #[arg(long, env = "SMTT_HISTORY_STORE")]
        store: PathBuf,
        /// Bytes of a log at most, after decompression.
        #[arg(long, default_value_t = Bounds::default().log_bytes)]
        max_bytes: u64,
        /// Replaces applications that the store has already.
        #[arg(long)]
        replace: bool,
        /// Event logs.
        #[arg(required = true)]
        logs: Vec<PathBuf>,
    },
    /// Serves Spark's REST API from a store.
    Serve {
        /// Folder of the applications.
        #[arg(long, env = "SMTT_HISTORY_STORE")]
        store: PathBuf,
        /// Spark's folder of event logs: an application that is not in the store is imported when it is first opened.
        #[arg(long)]
        event_logs: Option<PathBuf>,
        /// Address of the server.
        #[arg(long, default_value = "127.0.0.1:18081")]
        listen: SocketAddr,
        /// Bytes of open applications at most.
        #[arg(long, default_value_t = 256 << 20)]
        cache_bytes: u64,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("SMTT_LOG")
                .unwrap_or_else(|_| "info".into()),
        )
        .with_writer(std::io::stderr)
        .init();
    match run(arguments.command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("smtt-history: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether everything was done and nothing was damaged.
fn run(command: Command) -> Result<bool> {
    match command {
        Command::Import {
            store,
            max_bytes,
            replace,
            logs,
        } => {
            let admission = Admission {
                name: None,
                replaces: replace,
            };
            let bounds = Bounds {
                log_bytes: max_bytes,
                ..Bounds::default()
            };
            let mut is_whole = true;
            for log in logs {
                // Who names a log by a link means its target.
                let log = std::fs::canonicalize(&log).unwrap_or(log);
                match import(&store, &log, bounds, &admission) {
                    Ok(done) => {
                        let bytes = done.sizes.tasks.bytes
                            + done.sizes.task_sql.bytes
                            + done.sizes.meta.bytes;
                        println!(
                            "{}: {} tasks, {} lines of {} bytes, now {} bytes in {}",
                            done.id,
                            done.sizes.tasks.rows,
                            done.lines,
                            done.bytes,
                            bytes,
                            done.folder.display()
                        );
                        for (line, what) in &done.named {
                            eprintln!("{}, line {line}: {what}", log.display());
                        }
                        is_whole &= done.damaged == 0 && done.too_long == 0;
                    }
                    Err(error) => {
                        eprintln!("smtt-history: {error:#}");
                        is_whole = false;
                    }
                }
            }
            Ok(is_whole)
        }
        Command::Serve {
            store,
            event_logs,
            listen,
            cache_bytes,
        } => {
            let settings = Settings {
                store,
                event_logs,
                cache_bytes,
                bounds: Bounds::default(),
            };
            run_server(settings, listen)?;
            Ok(true)
        }
    }
}
