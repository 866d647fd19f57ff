//! Arguments of `smtt-ctl trace`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;
use smtt_store::record::Kind;

use super::duration::age;
use crate::users;

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
