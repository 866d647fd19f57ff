//! Arguments of `smtt-ctl`.

mod cluster;
mod command;
mod duration;
mod listing;
mod trace;

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

pub use self::cluster::ClusterArgs;
pub use self::command::Command;
pub use self::listing::{By, Filters, Limit, PagesBy, Query, Since, TABLE_ROWS, Watch, WorkQuery};
pub use self::trace::TraceQuery;

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

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
