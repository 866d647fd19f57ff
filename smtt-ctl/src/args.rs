//! Arguments of `smtt-ctl`.

mod of_cluster;

pub use self::of_cluster::ClusterArgs;

use crate::users;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use smtt_model::protocol::ListQuery;
use smtt_model::rows::GroupBy;
use smtt_store::record::Kind;

/// Shows which Spark RDDs, tasks and stages load the memory hardware of this worker.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "smtt-ctl",
    version,
    after_help = "Examples:\n  smtt-ctl rdds --sort page_faults_write\n  smtt-ctl rdds --rdd 'users*' --columns rdd,name,faults,storage_memory_peak_bytes\n  smtt-ctl tasks --app app-20260101120000-0001 --stage 3 --json\n  smtt-ctl executors --watch 5\n  smtt-ctl top\n\nExit codes: 0 answered, 1 nothing matches or no answer can be given (with --fail-on degraded also: answered but degraded), 2 wrong usage, 3 answered without some workers of --cluster, 69 daemon unreachable, 77 no permission, 78 wrong configuration"
)]
pub struct Args {
    /// Socket of the daemon; with --host the one on that machine.
    #[arg(
        long,
        global = true,
        env = "SMTT_SOCKET",
        default_value = "/run/smtt/smtt.sock",
        value_name = "PATH"
    )]
    pub socket: PathBuf,
    /// Print JSON with raw numbers instead of tables, all rows and all fields.
    #[arg(long, global = true)]
    pub json: bool,
    /// Print comma-separated values with raw numbers and a header of field names, all rows. Listings have the fields of
    /// their table, or those of --columns; other answers have all fields.
    #[arg(long, global = true, conflicts_with = "json")]
    pub csv: bool,
    /// Print text for other programs: tables with tabs between the cells; nothing is cut or hidden, no styles.
    #[arg(long, global = true, conflicts_with_all = ["json", "csv"])]
    pub plain: bool,
    /// Exit with 1 where the answer is incomplete or less exact.
    #[arg(long, global = true, value_enum, value_name = "WHAT")]
    pub fail_on: Option<FailOn>,
    /// Workers to ask together, and how.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// What is a failure, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FailOn {
    /// An answer that is incomplete or less exact.
    Degraded,
}

/// What RDDs have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// The description of the SQL execution that the RDDs worked for first: all runs of a query are one row.
    Query,
    /// The plan node of a query that made the RDDs, by its name, such as Exchange; outside of queries the operation, such
    /// as map.
    Node,
    /// The place in the application that created the RDDs.
    Callsite,
    /// The name of the RDDs.
    Name,
    /// The RDD: one row for all executors.
    Rdd,
}

impl From<By> for GroupBy {
    fn from(by: By) -> Self {
        match by {
            By::Query => Self::Query,
            By::Node => Self::Node,
            By::Callsite => Self::CallSite,
            By::Name => Self::Name,
            By::Rdd => Self::Rdd,
        }
    }
}

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
    Blocks(Query),
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
    },
    /// Findings with their numbers and remedies, the most expensive first.
    Advise {
        /// Only this application (id or name).
        #[arg(long, value_name = "ID")]
        app: Option<String>,
        /// Only applications of this user (name or number).
        #[arg(long, value_name = "USER", value_parser = users::parse)]
        user: Option<u32>,
        /// Show also the checks that found nothing.
        #[arg(long)]
        all: bool,
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
            Self::Executors(query) | Self::Blocks(query) => query.watch.watch,
            Self::Jobs(work) | Self::Queries(work) => work.query.watch.watch,
            Self::Stages { query, .. }
            | Self::Tasks { query, .. }
            | Self::Rdds { query, .. }
            | Self::Memory { query, .. }
            | Self::Pages { query, .. } => query.watch.watch,
            _ => None,
        }
    }
}

/// Conditions on rows.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct Filters {
    /// Only this application (id or name, or a pattern such as 'etl-*'). The same id of two users is two applications:
    /// see --user.
    #[arg(long, value_name = "ID")]
    pub app: Option<String>,
    /// Only applications of this user (name or number).
    #[arg(long, value_name = "USER", value_parser = users::parse)]
    pub user: Option<u32>,
    /// Only this executor (id, or a pattern).
    #[arg(long, value_name = "ID")]
    pub executor: Option<String>,
    /// Only this RDD (id or name, or a pattern of names such as 'users*'), its blocks, and the work on it.
    #[arg(long, value_name = "ID")]
    pub rdd: Option<String>,
    /// Only this stage (3, or 3.1 for attempt 1), its tasks, their blocks, and the work for it.
    #[arg(long, value_name = "ID")]
    pub stage: Option<String>,
}

/// Selection and form of trace records.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct TraceQuery {
    /// Folder of the trace files; by default the daemon's, where no daemon runs the configured one.
    #[arg(long, value_name = "PATH")]
    pub folder: Option<PathBuf>,
    /// Configuration that names the folder; by default the system's, if there is one.
    #[arg(long, value_name = "PATH")]
    pub config: Option<PathBuf>,
    /// Only this application (id). The same id of two users is two applications: see --user.
    #[arg(long, value_name = "ID")]
    pub app: Option<String>,
    /// Only applications of this user (name or number).
    #[arg(long, value_name = "USER", value_parser = users::parse)]
    pub user: Option<u32>,
    /// Only this executor (id).
    #[arg(long, value_name = "ID")]
    pub executor: Option<String>,
    /// Only this RDD (id).
    #[arg(long, value_name = "ID", value_parser = rdd)]
    pub rdd: Option<u32>,
    /// Only this stage (3, or 3.1 for attempt 1).
    #[arg(long, value_name = "ID", value_parser = stage)]
    pub stage: Option<(u32, Option<u32>)>,
    /// Only this kind: put, get, drop, move, allocate, free, alive, or the activity of a span, such as spill.
    #[arg(long, value_name = "KIND", value_parser = kind)]
    pub kind: Option<String>,
    /// Only records of the last TIME: 30s, 10m, 2h, 1d.
    #[arg(long, value_name = "TIME", value_parser = age)]
    pub since: Option<Duration>,
    /// Print records live from the daemon until Ctrl-C; needs no trace files. With --folder, or where no daemon runs,
    /// print segments as they are finished.
    #[arg(long)]
    pub follow: bool,
}

fn rdd(text: &str) -> Result<u32, String> {
    let wrong = |_| {
        format!("{text:?} is no id of an RDD, and records have no names: smtt-ctl rdds lists both")
    };
    text.parse().map_err(wrong)
}

fn kind(text: &str) -> Result<String, String> {
    let known = Kind::names();
    if known.contains(&text) {
        Ok(text.to_owned())
    } else {
        Err(format!("there are {}", known.join(", ")))
    }
}

fn stage(text: &str) -> Result<(u32, Option<u32>), String> {
    let wrong = || format!("{text:?} is no stage: give its id, or id and attempt as in 3.1");
    let (id, attempt) = match text.split_once('.') {
        Some((id, attempt)) => (id, Some(attempt.parse().map_err(|_| wrong())?)),
        None => (text, None),
    };
    Ok((id.parse().map_err(|_| wrong())?, attempt))
}

fn age(text: &str) -> Result<Duration, String> {
    smtt_config::duration_of(text)
        .ok_or_else(|| format!("{text:?} is no time: write a number and s, m, h or d, as in 10m"))
}

/// Meaning of a row of `smtt-ctl pages`; by default an RDD on an executor.
#[derive(Clone, Debug, Default, ClapArgs)]
#[group(multiple = false)]
pub struct PagesBy {
    /// One row per cached block.
    #[arg(long)]
    pub blocks: bool,
    /// One row per executor for this block.
    #[arg(long, value_name = "NAME")]
    pub block: Option<String>,
    /// One row per task attempt that holds execution memory.
    #[arg(long)]
    pub tasks: bool,
    /// One row for this task attempt.
    #[arg(long, value_name = "ID")]
    pub task: Option<u64>,
    /// One row per executor.
    #[arg(long)]
    pub executors: bool,
}

/// Selection and order of rows.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct Query {
    /// Row selection.
    #[command(flatten)]
    pub filter: Filters,
    /// Sort by a column of the table or a field of the JSON; by default numbers descend and text ascends.
    #[arg(long, value_name = "COLUMN[:asc|desc]")]
    pub sort: Option<String>,
    /// Maximum number of rows, or all. By default a table has 50 rows, --json and --csv have all.
    #[arg(long, value_name = "ROWS", value_parser = limit)]
    pub limit: Option<Limit>,
    /// Columns to show, in this order: headings of the table or fields of the JSON; all shows every column of the table.
    #[arg(long, value_name = "COLUMN,...", value_delimiter = ',')]
    pub columns: Vec<String>,
    /// Repetition.
    #[command(flatten)]
    pub watch: Watch,
    /// [`Since`] of listings of work.
    #[arg(skip)]
    pub since: Option<Duration>,
}

/// Work of the last time.
#[derive(Clone, Copy, Debug, Default, ClapArgs)]
pub struct Since {
    /// Only what ran in the last TIME: 30s, 10m, 2h, 1d. A stage, job or query ran when one of its tasks did.
    #[arg(long, value_name = "TIME", value_parser = age)]
    pub since: Option<Duration>,
}

impl Query {
    /// This query for the work of the last time.
    #[must_use]
    pub fn since(&self, since: Since) -> Self {
        Self {
            since: since.since,
            ..self.clone()
        }
    }
}

/// Selection and order of jobs or SQL executions.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct WorkQuery {
    /// Row selection.
    #[command(flatten)]
    pub query: Query,
    /// With --cluster: a row for each worker instead of one for all of them.
    #[arg(long)]
    pub per_worker: bool,
    /// Work of the last time.
    #[command(flatten)]
    pub since: Since,
}

/// Repetition of a command.
#[derive(Clone, Copy, Debug, Default, ClapArgs)]
pub struct Watch {
    /// Ask again every SECONDS (2 by default) until Ctrl-C.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, num_args = 0..=1, default_missing_value = "2")]
    pub watch: Option<Duration>,
}

/// Maximum number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// So many.
    Rows(usize),
    /// All rows.
    All,
}

/// Rows of a table without `--limit`.
pub const TABLE_ROWS: usize = 50;

fn limit(text: &str) -> Result<Limit, String> {
    match text {
        "all" => Ok(Limit::All),
        number => match number.parse() {
            Ok(rows) if rows > 0 => Ok(Limit::Rows(rows)),
            _ => Err("give a number of rows from 1, or all".to_owned()),
        },
    }
}

impl Query {
    /// Maximum number of rows; `None` for all. `by_default` holds without `--limit`.
    #[must_use]
    pub const fn rows(&self, by_default: Option<usize>) -> Option<usize> {
        match self.limit {
            Some(Limit::Rows(rows)) => Some(rows),
            Some(Limit::All) => None,
            None => by_default,
        }
    }
}

impl Filters {
    /// The query with these conditions.
    #[must_use]
    pub fn question(&self) -> ListQuery {
        ListQuery {
            app: self.app.clone(),
            user: self.user,
            executor: self.executor.clone(),
            rdd: self.rdd.clone(),
            stage: self.stage.clone(),
            ..ListQuery::default()
        }
    }

    /// The query with these conditions, an order and a limit.
    #[must_use]
    pub fn ordered(&self, sort: Option<String>, limit: Option<usize>) -> ListQuery {
        ListQuery {
            sort,
            limit,
            ..self.question()
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give a number of seconds from 0.1 to 3600".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn every_listing_takes_json_filters_and_sort() {
        for listing in [
            "executors",
            "jobs",
            "queries",
            "stages",
            "tasks",
            "rdds",
            "blocks",
            "pages",
        ] {
            let line = [
                "smtt-ctl",
                listing,
                "--json",
                "--app",
                "a",
                "--executor",
                "1",
                "--rdd",
                "7",
                "--stage",
                "3",
                "--sort",
                "x:asc",
                "--limit",
                "all",
                "--columns",
                "a,b",
                "--watch",
                "5",
            ];
            let args = Args::try_parse_from(line).expect("parsed");
            assert!(args.json);
            assert_eq!(args.command.watch(), Some(Duration::from_secs(5)));
        }
    }

    #[test]
    fn rows_of_pages_stand_for_one_thing() {
        let parse = |more: &[&str]| Args::try_parse_from([&["smtt-ctl", "pages"], more].concat());
        assert!(parse(&["--rdd", "7", "--blocks"]).is_ok());
        assert!(parse(&["--block", "rdd_7_0"]).is_ok());
        assert!(parse(&["--block", "rdd_7_0", "--task", "3"]).is_err());
        assert!(parse(&["--blocks", "--tasks"]).is_err());
        assert!(parse(&["--blocks", "--spanning"]).is_ok());
    }

    #[test]
    fn answers_have_one_form_and_a_sensible_limit() {
        let parse = |more: &[&str]| Args::try_parse_from([&["smtt-ctl", "rdds"], more].concat());
        assert!(parse(&["--csv", "--json"]).is_err());
        assert!(parse(&["--plain", "--csv"]).is_err());
        assert!(parse(&["--limit", "0"]).is_err());
        assert!(parse(&["--limit", "few"]).is_err());
        let query = |more: &[&str]| match parse(more).expect("parsed").command {
            Command::Rdds { query, .. } => query,
            other => panic!("{other:?}"),
        };
        assert_eq!(query(&[]).rows(Some(50)), Some(50));
        assert_eq!(query(&["--limit", "all"]).rows(Some(50)), None);
        assert_eq!(query(&["--limit", "7"]).rows(None), Some(7));
        assert_eq!(
            query(&["--watch"]).watch.watch,
            Some(Duration::from_secs(2))
        );
    }

    #[test]
    fn an_absurd_interval_is_refused() {
        assert!(Args::try_parse_from(["smtt-ctl", "top", "--interval", "0"]).is_err());
        assert!(Args::try_parse_from(["smtt-ctl", "top", "--interval", "NaN"]).is_err());
        assert!(Args::try_parse_from(["smtt-ctl", "top", "--interval", "0.5"]).is_ok());
    }
}
