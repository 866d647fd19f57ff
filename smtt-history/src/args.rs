//! Arguments of `smtt-history`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::log::Bounds;
use crate::objects::Location;
use crate::out::Times;

/// Finished Spark applications: compact tables from event logs, and pages and Spark's REST API from the tables.
#[derive(Debug, Parser)]
#[command(name = "smtt-history", version, max_term_width = 100)]
pub struct Arguments {
    #[command(subcommand)]
    /// What to do.
    pub command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
#[allow(
    missing_docs,
    reason = "a field of flattened options has no help of its own"
)]
pub enum Command {
    /// Imports event logs: files (plain, .zstd, .lz4, .snappy, .inprogress) or folders eventlog_v2_*.
    Import {
        /// Folder, bucket or HDFS of the applications: PATH, file:///PATH, s3://BUCKET/PREFIX, gs://, az://,
        /// hdfs://HOST:PORT/PATH.
        #[arg(long, env = "SMTT_HISTORY_STORE")]
        store: Location,
        /// Bytes of a log at most, after decompression.
        #[arg(long, default_value_t = Bounds::default().log_bytes)]
        max_bytes: u64,
        /// Replaces applications that the store has already.
        #[arg(long)]
        replace: bool,
        #[command(flatten)]
        times: LossyTimes,
        #[command(flatten)]
        copies: Copies,
        /// Event logs: paths, or addresses in a bucket or an HDFS, of which a copy is made first.
        #[arg(required = true)]
        logs: Vec<Location>,
    },
    /// Makes the tables of applications whose drivers wrote parts while they ran.
    Compact {
        #[command(flatten)]
        from: StoreToRead,
        /// Compacts the named applications also where their last part is missing. Only for drivers that are dead: name
        /// their applications.
        #[arg(long, requires = "apps")]
        dead: bool,
        #[command(flatten)]
        times: LossyTimes,
        /// Folders of applications in the store. Without names: all applications whose drivers wrote a last part.
        apps: Vec<String>,
    },
    /// Writes an application for other programs.
    Export {
        #[command(flatten)]
        from: StoreToRead,
        /// The application's id.
        app: String,
        /// Its attempt, where the cluster manager counts them.
        #[arg(long)]
        attempt: Option<String>,
        #[command(flatten)]
        to: Targets,
    },
    /// Writes an application's pages as one file that needs no server: jobs, the time line of tasks, functions of the longest
    /// tasks, stages with their RDDs, memory over time, findings.
    Report {
        #[command(flatten)]
        from: StoreToRead,
        /// The application's id, with its attempt where the cluster manager counts them: ID/ATTEMPT.
        app: String,
        /// File of the page; - is the standard output.
        #[arg(long, value_name = "FILE")]
        html: PathBuf,
        /// User (uid) of the executors, where those of several users claim the application.
        #[arg(long, value_name = "UID")]
        user: Option<u32>,
    },
    /// Reports what costs time in an application, what to set, and how many seconds that would save.
    Advise {
        #[command(flatten)]
        from: StoreToRead,
        /// The application's id, with its attempt where the cluster manager counts them: ID/ATTEMPT.
        app: String,
        /// Writes JSON.
        #[arg(long)]
        json: bool,
    },
    /// Reports what changed between two runs, stage by stage matched by call site.
    Diff {
        #[command(flatten)]
        from: StoreToRead,
        /// Id of the first run, with its attempt where the cluster manager counts them: ID/ATTEMPT.
        first: String,
        /// Id of the second run.
        second: String,
        /// Writes JSON.
        #[arg(long)]
        json: bool,
    },
    /// Serves pages and Spark's REST API from a store.
    Serve {
        /// Folder, bucket or HDFS of the applications: PATH, file:///PATH, s3://BUCKET/PREFIX, gs://, az://,
        /// hdfs://HOST:PORT/PATH.
        #[arg(long, env = "SMTT_HISTORY_STORE")]
        store: Location,
        /// Spark's event logs, a folder, bucket or HDFS as --store: an application that is not in the store is imported when it is
        /// first opened.
        #[arg(long)]
        event_logs: Option<Location>,
        /// Address of the server. One beyond loopback needs authentication and TLS.
        #[arg(long, default_value = "127.0.0.1:18081")]
        listen: SocketAddr,
        #[command(flatten)]
        protection: Protection,
        /// Bytes of open applications at most.
        #[arg(long, default_value_t = 256 << 20)]
        cache_bytes: u64,
        #[command(flatten)]
        copies: Copies,
    },
}

/// How exact times are kept.
#[derive(Clone, Copy, Debug, Args)]
pub struct LossyTimes {
    /// Rounds the nanoseconds of tasks (CPU time, shuffle write time) to microseconds, which takes less room. Without it
    /// everything is kept as Spark reported it.
    #[arg(long, value_name = "UNIT")]
    pub lossy_times: Option<Unit>,
}

/// A unit of lossy times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Unit {
    /// Microseconds.
    Us,
}

impl LossyTimes {
    /// What a command keeps.
    #[must_use]
    pub const fn times(self) -> Times {
        match self.lossy_times {
            None => Times::Complete,
            Some(Unit::Us) => Times::Microseconds,
        }
    }
}

/// The store of a command that reads it.
#[derive(Clone, Debug, Args)]
pub struct StoreToRead {
    /// Folder, bucket or HDFS of the applications: PATH, file:///PATH, s3://BUCKET/PREFIX, gs://, az://,
    /// hdfs://HOST:PORT/PATH.
    #[arg(long, env = "SMTT_HISTORY_STORE")]
    pub store: Location,
    /// Copies of what a bucket or an HDFS has.
    #[command(flatten)]
    pub copies: Copies,
}

/// Copies of what a bucket or an HDFS has.
#[derive(Clone, Copy, Debug, Args)]
pub struct Copies {
    /// Bytes of copies from a bucket or an HDFS at most, in the temporary folder.
    #[arg(long, default_value_t = 8 << 30)]
    pub object_cache_bytes: u64,
}

/// What protects a server.
#[derive(Debug, Args)]
pub struct Protection {
    /// Web configuration of Prometheus exporters: TLS, users and headers.
    #[arg(long = "web.config.file", value_name = "FILE")]
    pub web_config: Option<PathBuf>,
    /// Secrets, one a line, whose bearers may read (Authorization: Bearer SECRET).
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// A proxy before this server authenticates its clients and has TLS, so an address beyond loopback needs neither.
    #[arg(long)]
    pub behind_proxy: bool,
}

/// What an export writes.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct Targets {
    /// A trace for Perfetto and Chrome; - is the standard output.
    #[arg(long, value_name = "FILE")]
    pub perfetto: Option<PathBuf>,
    /// Tables as CSV files in a new folder.
    #[arg(long, value_name = "FOLDER")]
    pub csv: Option<PathBuf>,
    /// Tables in a new SQLite database.
    #[arg(long, value_name = "FILE")]
    pub sqlite: Option<PathBuf>,
}
