//! Arguments of `smtt-ctl`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand};
use smtt_model::protocol::ListQuery;
use smtt_store::record::Kind;

/// Shows which Spark RDD, task and stage makes the memory hardware of this worker work.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "smtt-ctl",
    version,
    after_help = "Examples:\n  smtt-ctl rdds --sort page_faults_write\n  smtt-ctl tasks --app app-20260101120000-0001 --stage 3 --json\n  smtt-ctl top\n\nExit codes: 0 fine, 1 answered but degraded, 2 wrong usage, 69 daemon unreachable, 77 no permission, 78 wrong configuration"
)]
pub struct Args {
    /// Socket of the daemon.
    #[arg(
        long,
        global = true,
        env = "SMTT_SOCKET",
        default_value = "/run/smtt/smtt.sock",
        value_name = "PATH"
    )]
    pub socket: PathBuf,
    /// Print JSON with raw numbers instead of tables.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to show.
    #[command(subcommand)]
    pub command: Command,
}

/// What to show.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Probes with their verdicts, what was lost where, what the daemon itself uses.
    Status,
    /// Whether this machine can do it, what is missing, what to do. Works without the daemon too.
    Doctor {
        /// Configuration to check; the default one is checked when it is there.
        #[arg(long, value_name = "PATH")]
        config: Option<PathBuf>,
    },
    /// Executors on this worker, with the share of their page faults that has no context.
    Executors(Query),
    /// Stages, per executor.
    Stages(Query),
    /// Task attempts.
    Tasks(Query),
    /// RDDs, per executor: their page faults and the memory they hold.
    Rdds {
        /// Which rows.
        #[command(flatten)]
        query: Query,
        /// In the table, also RDDs that have no page faults and hold no memory. JSON always has them.
        #[arg(long)]
        all: bool,
    },
    /// Cached blocks and the addresses of their bytes.
    Blocks(Query),
    /// Where bytes are: in memory, swapped or never touched; on which page sizes; on which NUMA nodes.
    Pages {
        /// Which rows.
        #[command(flatten)]
        query: Query,
        /// What a row stands for.
        #[command(flatten)]
        by: PagesBy,
        /// Only rows with a block or page of execution memory that is on more than one NUMA node.
        #[arg(long)]
        spanning: bool,
    },
    /// Everything that matters, live. q, Esc or Ctrl-C ends it.
    Top {
        /// Which rows.
        #[command(flatten)]
        filter: Filters,
        /// Time between two looks, in seconds.
        #[arg(long, default_value = "1", value_parser = seconds, value_name = "SECONDS")]
        interval: Duration,
    },
    /// Readable summary per application: executors, RDDs, stages and tasks that stand out, losses.
    Report {
        /// Which rows.
        #[command(flatten)]
        filter: Filters,
        /// A page of its own for a browser or paper, with findings and what was held over time.
        #[arg(long, conflicts_with = "json")]
        html: bool,
        /// File to write instead of standard output; a folder gets a page for each application.
        #[arg(short, long, value_name = "PATH", requires = "html")]
        output: Option<PathBuf>,
    },
    /// What somebody should do something about: findings with their numbers and the remedy, the costliest first.
    Advise {
        /// Only this application (id or name).
        #[arg(long, value_name = "ID")]
        app: Option<String>,
        /// Also what was checked without finding anything.
        #[arg(long)]
        all: bool,
    },
    /// Records of single accesses: from the trace files, which needs no daemon, or live with --follow.
    Trace(TraceQuery),
    /// Measure what a page walk costs here, as the daemon does at its start.
    Calibrate {
        /// Configuration whose [page_walks] events take the place of the table's.
        #[arg(long, value_name = "FILE")]
        config: Option<std::path::PathBuf>,
    },
    /// What of page walks would be measured on this CPU, or on another one.
    Pmu {
        /// CPU as perf writes it: GenuineIntel-6-8F[-STEPPING], an Arm MIDR, or RISC-V's mvendorid-marchid.
        #[arg(long, value_name = "ID")]
        cpuid: Option<smtt_model::cpu::CpuId>,
        /// Configuration whose [page_walks] events take the place of the table's.
        #[arg(long, value_name = "FILE")]
        config: Option<std::path::PathBuf>,
    },
}

/// Which rows.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct Filters {
    /// Only this application (id or name).
    #[arg(long, value_name = "ID")]
    pub app: Option<String>,
    /// Only this executor.
    #[arg(long, value_name = "ID")]
    pub executor: Option<String>,
    /// Only this RDD (id or name): itself, its blocks, and what worked on it.
    #[arg(long, value_name = "ID")]
    pub rdd: Option<String>,
    /// Only this stage (3, or 3.1 for its attempt 1): itself, its tasks, their blocks, and what worked for it.
    #[arg(long, value_name = "ID")]
    pub stage: Option<String>,
}

/// Which trace records, and how they are printed.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct TraceQuery {
    /// Folder of the trace files; without it the one of the configuration.
    #[arg(long, value_name = "PATH")]
    pub folder: Option<PathBuf>,
    /// Configuration that names the folder; the default one is read when it is there.
    #[arg(long, value_name = "PATH")]
    pub config: Option<PathBuf>,
    /// Only this application (id).
    #[arg(long, value_name = "ID")]
    pub app: Option<String>,
    /// Only this executor.
    #[arg(long, value_name = "ID")]
    pub executor: Option<String>,
    /// Only this RDD (id).
    #[arg(long, value_name = "ID", value_parser = rdd)]
    pub rdd: Option<u32>,
    /// Only this stage (3, or 3.1 for its attempt 1).
    #[arg(long, value_name = "ID", value_parser = stage)]
    pub stage: Option<(u32, Option<u32>)>,
    /// Only this kind: put, get, drop, move, allocate, free, alive, or a span's activity as spill.
    #[arg(long, value_name = "KIND", value_parser = kind)]
    pub kind: Option<String>,
    /// Only the last so many: 30s, 10m, 2h, 1d.
    #[arg(long, value_name = "TIME", value_parser = age)]
    pub since: Option<Duration>,
    /// Records as they happen, from the daemon, until Ctrl-C; needs no trace files. With --folder, and where no daemon
    /// runs, segments of files as they are finished.
    #[arg(long)]
    pub follow: bool,
    /// All columns of docs/TRACE.md as comma-separated values, with a heading. --json prints one object per line.
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
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

/// What a row of `smtt-ctl pages` stands for; an RDD on an executor unless told.
#[derive(Clone, Debug, Default, ClapArgs)]
#[group(multiple = false)]
pub struct PagesBy {
    /// A row for each cached block.
    #[arg(long)]
    pub blocks: bool,
    /// A row for this block, on each executor that has it.
    #[arg(long, value_name = "NAME")]
    pub block: Option<String>,
    /// A row for each task attempt that holds execution memory.
    #[arg(long)]
    pub tasks: bool,
    /// A row for this task attempt.
    #[arg(long, value_name = "ID")]
    pub task: Option<u64>,
    /// A row for each executor.
    #[arg(long)]
    pub executors: bool,
}

/// Which rows, in which order.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct Query {
    /// Which rows.
    #[command(flatten)]
    pub filter: Filters,
    /// Sort by a column of the table or a field of the JSON; numbers descend and text ascends unless told.
    #[arg(long, value_name = "COLUMN[:asc|desc]")]
    pub sort: Option<String>,
    /// At most so many rows.
    #[arg(long, value_name = "ROWS")]
    pub limit: Option<usize>,
}

impl Filters {
    /// What was asked for, as it was asked; empty where everything was.
    #[must_use]
    pub fn words(&self) -> String {
        let conditions = [
            ("--app", &self.app),
            ("--executor", &self.executor),
            ("--rdd", &self.rdd),
            ("--stage", &self.stage),
        ];
        let words = conditions
            .into_iter()
            .filter_map(|(name, wanted)| Some(format!("{name} {}", wanted.as_deref()?)));
        words.collect::<Vec<_>>().join(" ")
    }

    /// The question for these rows.
    #[must_use]
    pub fn question(&self) -> ListQuery {
        ListQuery {
            app: self.app.clone(),
            executor: self.executor.clone(),
            rdd: self.rdd.clone(),
            stage: self.stage.clone(),
            ..ListQuery::default()
        }
    }

    /// The question for these rows in an order.
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
        for listing in ["executors", "stages", "tasks", "rdds", "blocks", "pages"] {
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
            ];
            let args = Args::try_parse_from(line).expect("parsed");
            assert!(args.json);
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
    fn an_absurd_interval_is_refused() {
        assert!(Args::try_parse_from(["smtt-ctl", "top", "--interval", "0"]).is_err());
        assert!(Args::try_parse_from(["smtt-ctl", "top", "--interval", "NaN"]).is_err());
        assert!(Args::try_parse_from(["smtt-ctl", "top", "--interval", "0.5"]).is_ok());
    }
}
