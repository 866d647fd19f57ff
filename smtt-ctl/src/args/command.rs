//! The subcommands of `smtt-ctl`, each with its arguments.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

use super::duration::{age, seconds};
use super::{By, Filters, PagesBy, Query, Since, TraceQuery, Watch, WorkQuery};
use crate::users;

/// Subcommands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Probe verdicts, losses by hop and cause, and the daemon's own resource usage.
    Status {
        /// Repetition.
        #[command(flatten)]
        watch: Watch,
    },
    /// Check whether this machine meets the requirements, and what to do where it does not. Works without the daemon
    /// too.
    Doctor {
        /// Configuration to check; by default the system's, if there is one.
        #[arg(long, value_name = "PATH")]
        config: Option<PathBuf>,
    },
    /// Executors on this worker, with the share of their page faults without a context.
    Executors(Query),
    /// Jobs: the figures of their stages, added up over the executors of this worker, or of all workers of --cluster.
    Jobs(WorkQuery),
    /// SQL executions: the figures of their jobs' stages, added up over the executors of this worker, or of all workers
    /// of --cluster.
    Queries(WorkQuery),
    /// Stages, per executor.
    Stages {
        /// Row selection.
        #[command(flatten)]
        query: Query,
        /// Show each figure in quantiles over the stage's tasks and over its executors.
        #[arg(long, conflicts_with = "since")]
        summary: bool,
        /// Show the peaks of memory: of the stage's own tasks, and of the executor while one of them ran. JSON always
        /// has them.
        #[arg(long, conflicts_with_all = ["summary", "since"])]
        peaks: bool,
        /// Work of the last time.
        #[command(flatten)]
        since: Since,
    },
    /// Task attempts.
    Tasks {
        /// Row selection.
        #[command(flatten)]
        query: Query,
        /// Only attempts that failed, were killed or were lost.
        #[arg(long)]
        failed: bool,
        /// Work of the last time.
        #[command(flatten)]
        since: Since,
    },
    /// One task attempt: what it used, and how the use went over its life.
    Task {
        /// Id of the task attempt.
        #[arg(value_name = "ID")]
        id: u64,
        /// Row selection.
        #[command(flatten)]
        filter: Filters,
    },
    /// RDDs, per executor: page faults and memory.
    Rdds {
        /// Row selection.
        #[command(flatten)]
        query: Query,
        /// Show also RDDs without page faults and memory in the table. JSON always has them.
        #[arg(long)]
        all: bool,
        /// Add up RDDs that have this in common, over the executors of this worker.
        #[arg(long, value_enum, value_name = "WHAT")]
        by: Option<By>,
    },
    /// Cached blocks and the addresses of their bytes.
    Blocks {
        /// Row selection.
        #[command(flatten)]
        query: Query,
        /// Add up the blocks of RDDs that have this in common, over the executors of this worker.
        #[arg(long, value_enum, value_name = "WHAT")]
        by: Option<By>,
    },
    /// Where the memory of each executor is, as parts that add up to its resident memory, beside its limits.
    Memory {
        /// Row selection.
        #[command(flatten)]
        query: Query,
        /// Show also the peaks under the names of Spark's executor metrics. JSON always has them.
        #[arg(long)]
        peaks: bool,
    },
    /// Page placement: bytes in memory, swapped or untouched, by page size and by NUMA node.
    Pages {
        /// Row selection.
        #[command(flatten)]
        query: Query,
        /// Meaning of a row.
        #[command(flatten)]
        by: PagesBy,
        /// Only rows with a block or Spark page on more than one NUMA node.
        #[arg(long)]
        spanning: bool,
    },
    /// Live view of executors, stages, tasks and RDDs. q, Esc or Ctrl-C quits.
    Top {
        /// Row selection.
        #[command(flatten)]
        filter: Filters,
        /// Refresh interval in seconds.
        #[arg(long, default_value = "1", value_parser = seconds, value_name = "SECONDS")]
        interval: Duration,
        /// Add up RDDs, and blocks, of RDDs that have this in common; b changes it.
        #[arg(long, value_enum, value_name = "WHAT")]
        by: Option<By>,
    },
    /// Readable summary per application: executors, top RDDs, stages and tasks, losses.
    Report {
        /// Row selection.
        #[command(flatten)]
        filter: Filters,
        /// Add up the RDDs of each application that have this in common; with --html by default their name, or their call
        /// site where the application gave them none.
        #[arg(long, value_enum, value_name = "WHAT")]
        by: Option<By>,
        /// Write a self-contained HTML page, with findings and memory over time.
        #[arg(long, conflicts_with = "json")]
        html: bool,
        /// File to write instead of standard output; in a folder one page per application.
        #[arg(short, long, value_name = "PATH", requires = "html")]
        output: Option<PathBuf>,
        /// Store of histories: the page of the whole application (--app ID or ID/ATTEMPT) with jobs, the time line of
        /// tasks, functions and RDDs of stages, by the program smtt-history. No worker is asked.
        #[arg(long, value_name = "URL", requires_all = ["html", "app"], conflicts_with_all = ["by", "executor", "rdd", "stage"])]
        store: Option<PathBuf>,
    },
    /// Findings with their numbers and remedies, the most expensive first.
    Advise {
        /// Only this application (id or name).
        #[arg(long, value_name = "ID")]
        app: Option<String>,
        /// Only applications of this user (name or number).
        #[arg(long, value_name = "USER", value_parser = users::parse)]
        user: Option<u32>,
        /// Make one finding of those of one rule about RDDs that have this in common.
        #[arg(long, value_enum, value_name = "WHAT")]
        by: Option<By>,
        /// Show also the checks that found nothing.
        #[arg(long)]
        all: bool,
        /// Store of histories: findings about the whole application (--app ID or ID/ATTEMPT), by the program
        /// smtt-history. No worker is asked.
        #[arg(long, value_name = "URL", requires = "app", conflicts_with_all = ["user", "by", "all"])]
        store: Option<PathBuf>,
    },
    /// Why executors died: the list, or the page of one of them with its evidence.
    Postmortem {
        /// Executor id, or the id of a report; of several deaths the last one.
        executor: Option<String>,
        /// Only deaths of the last TIME: 30s, 10m, 2h, 1d.
        #[arg(long, value_name = "TIME", value_parser = age, conflicts_with = "executor")]
        since: Option<Duration>,
        /// Only this application (id or name).
        #[arg(long, value_name = "ID")]
        app: Option<String>,
        /// Only applications of this user (name or number).
        #[arg(long, value_name = "USER", value_parser = users::parse)]
        user: Option<u32>,
    },
    /// Write an application in a form that other programs read.
    Export {
        /// The application (id or name) as a job trace of Hadoop's rumen: one JSON object per job.
        #[arg(long, value_name = "APP")]
        job_trace: String,
        /// Only an application of this user (name or number).
        #[arg(long, value_name = "USER", value_parser = users::parse)]
        user: Option<u32>,
        /// File to write; - is standard output.
        #[arg(value_name = "FILE", default_value = "-")]
        file: PathBuf,
    },
    /// Records of single accesses, from the trace files (without the daemon) or live with --follow. --csv prints all
    /// columns of docs/TRACE.md, --json one object per line.
    Trace(TraceQuery),
    /// Print a script that completes the arguments of smtt-ctl in a shell.
    Completions {
        /// Shell that reads the script.
        shell: clap_complete::Shell,
    },
    /// Measure the cost of a page walk on this machine, as the daemon does at its start.
    Calibrate {
        /// Configuration whose [page_walks] events replace the built-in table.
        #[arg(long, value_name = "FILE")]
        config: Option<std::path::PathBuf>,
    },
    /// Show which page-walk figures this CPU, or another one, can measure.
    Pmu {
        /// CPU id as perf writes it: GenuineIntel-6-8F[-STEPPING], an Arm MIDR, or RISC-V's mvendorid-marchid.
        #[arg(long, value_name = "ID")]
        cpuid: Option<smtt_model::cpu::CpuId>,
        /// Configuration whose [page_walks] events replace the built-in table.
        #[arg(long, value_name = "FILE")]
        config: Option<std::path::PathBuf>,
    },
}

impl Command {
    /// Interval of `--watch`.
    #[must_use]
    pub const fn watch(&self) -> Option<Duration> {
        match self {
            Self::Status { watch } => watch.watch,
            Self::Executors(query) => query.watch.watch,
            Self::Jobs(work) | Self::Queries(work) => work.query.watch.watch,
            Self::Stages { query, .. }
            | Self::Tasks { query, .. }
            | Self::Rdds { query, .. }
            | Self::Blocks { query, .. }
            | Self::Memory { query, .. }
            | Self::Pages { query, .. } => query.watch.watch,
            _ => None,
        }
    }
}
