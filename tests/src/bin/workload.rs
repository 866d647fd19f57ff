//! A native program that speaks the marker's contract without Java, so that the expected counts are known exactly.
//!
//! `workload LIBRARY SCENARIO [key=value ...]` loads the marker's native library, makes the slot file, describes itself
//! as an executor of the application "workload" and prints `READY`. Then it waits for a line on its standard input,
//! runs the scenario, prints `DONE` and the results as JSON, and waits for another line before it ends. The workload
//! touches no memory while it waits, so a test compares counts at quiet moments on both ends.
//!
//! Options of all scenarios: `name=TEXT` sets the command name, `describe=no` sends no description at first, `uid=N`
//! makes it a program of an unprivileged user before that, `namespaces=N` puts it into N pid namespaces, each in the one
//! before.

#[path = "workload/accounts.rs"]
mod accounts;
#[path = "workload/churn.rs"]
mod churn;
#[path = "workload/deaths.rs"]
mod deaths;
#[path = "workload/fault_kinds.rs"]
mod fault_kinds;
#[path = "workload/fault_time.rs"]
mod fault_time;
#[path = "workload/fill.rs"]
mod fill;
#[path = "attacker/fuse.rs"]
mod fuse;
#[path = "workload/greedy.rs"]
mod greedy;
#[path = "workload/halves.rs"]
mod halves;
#[path = "attacker/hang.rs"]
mod hang;
#[path = "workload/hot.rs"]
mod hot;
#[path = "workload/marker.rs"]
mod marker;
#[path = "workload/namespace.rs"]
mod namespace;
#[path = "workload/neighbours.rs"]
mod neighbours;
#[path = "workload/pages.rs"]
mod pages;
#[path = "workload/races.rs"]
mod races;
#[path = "workload/releases.rs"]
mod releases;
#[path = "workload/resync.rs"]
mod resync;
#[path = "workload/scenario.rs"]
mod scenario;
#[path = "workload/services.rs"]
mod services;
#[path = "workload/starting.rs"]
mod starting;
#[path = "workload/touched.rs"]
mod touched;
#[path = "workload/victim.rs"]
mod victim;
#[path = "workload/walks.rs"]
mod walks;

use std::collections::HashMap;
use std::io::BufRead as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use marker::Marker;
use serde_json::{Map, Value};
use smtt_tests::memory;
use smtt_tests::steps::{say, wait};

/// `key=value` arguments.
pub struct Options(HashMap<String, String>);

impl Options {
    /// The value of a numeric option, or the default.
    fn number(&self, key: &str, default: u64) -> Result<u64> {
        self.0.get(key).map_or(Ok(default), |text| {
            text.parse()
                .with_context(|| format!("{key}={text} is no number"))
        })
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let library = arguments
        .next()
        .context("the first argument is the marker's native library")?;
    let scenario = arguments
        .next()
        .context("the second argument is the scenario")?;
    let options = Options(
        arguments
            .map(|argument| {
                let (key, value) = argument
                    .split_once('=')
                    .with_context(|| format!("{argument} is not key=value"))?;
                Ok((key.to_owned(), value.to_owned()))
            })
            .collect::<Result<_>>()?,
    );
    if let Some(name) = options.text("name") {
        memory::set_name(name);
    }
    if scenario == "plain" {
        // The image that a workload replaces itself with; the image does not know the marker.
        return interval(|| scenario::plain(&options));
    }
    // As many pid namespaces, each in the one before.
    for _ in 0..options.number("namespaces", 0)? {
        namespace::enter()?;
    }
    let marker = Marker::load(&library)?;
    if options.text("uid").is_some() {
        greedy::become_user(options.number("uid", 0)? as u32)?;
        if options.number("namespaces", 0)? > 0 {
            // A change of the user takes back that this process ends with the one that waits for it.
            // SAFETY: takes numbers only.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        }
    }
    if options.text("describe") != Some("no") {
        marker.describe();
    }
    let run = match scenario.as_str() {
        "faults" => scenario::faults,
        "fault_kinds" => fault_kinds::fault_kinds,
        "fault_time" => fault_time::fault_time,
        "storm" => scenario::storm,
        "blocks" => scenario::blocks,
        "garbage" => scenario::garbage,
        "threads" => scenario::threads,
        "fork" => scenario::fork,
        "leader" => scenario::leader,
        "exec" => scenario::exec,
        "late" => scenario::late,
        "releases" => releases::releases,
        "resync" => resync::resync,
        "pages" => pages::pages,
        "latency" => pages::latency,
        "hang" => hanging,
        "hot" => hot::hot,
        "monitor" => hot::monitor,
        "walks" => walks::walks,
        "duty" => walks::duty,
        "contexts" => walks::contexts,
        "spin" => walks::spin,
        "other_user" => greedy::other_user,
        "crowd" => greedy::crowd,
        "forks" => greedy::forks,
        "flood" => greedy::flood,
        "steady" => greedy::steady,
        "fill" => fill::fill,
        "evicted" => fill::evicted,
        "turnover" => fill::turnover,
        "registered" => neighbours::registered,
        "children" => neighbours::children,
        "worker_swaps" => neighbours::worker_swaps,
        "worker_races" => neighbours::worker_races,
        "workers_that_are_none" => neighbours::workers_that_are_none,
        "namespaced_worker" => namespace::namespaced_worker,
        "accounts" => accounts::accounts,
        "short_tasks" => accounts::short_tasks,
        "odd_tasks" => accounts::odd_tasks,
        "services" => services::services,
        "halves" => halves::halves,
        "deaths" => deaths::deaths,
        "churn" => churn::churn,
        "fork_times" => churn::fork_times,
        "starting" => starting::starting,
        "victim" => victim::victim,
        "claims" => victim::claims,
        "touched" => touched::touched,
        "hidden" => touched::hidden,
        "twins" => races::twins,
        "touch_and_tell" => races::touch_and_tell,
        other => bail!("there is no scenario {other}"),
    };
    interval(|| run(&marker, &options))
}

/// Reports a block and holds its own memory lock with a file system that is mounted on `folder`, until the next line.
fn hanging(marker: &Marker, options: &Options) -> Result<Value> {
    let path = |key| options.text(key).map(Path::new).context(key);
    let bytes = 64 * memory::PAGE;
    let address = pages::small(bytes)?;
    pages::write(address, 0..64);
    pages::tell(marker, 20, address, bytes);
    let held = hang::hold(path("device")?, path("folder")?)?;
    say("HELD")?;
    // The lock is released at the end of the input as well.
    std::io::stdin().lock().read_line(&mut String::new())?;
    drop(held);
    Ok(Value::Object(Map::new()))
}

/// Runs the scenario between two waits for a line.
fn interval(run: impl FnOnce() -> Result<Value>) -> Result<()> {
    say("READY")?;
    wait()?;
    let start = memory::cpu_time_ns();
    let mut done = run()?;
    // CPU time of the scenario, for comparisons of runs with and without the tracer.
    done["cpu_ns"] = (memory::cpu_time_ns() - start).into();
    say(&format!("DONE {done}"))?;
    wait()
}
