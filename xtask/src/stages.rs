//! `cargo xtask test`: all stages of tests with one command, and one summary line at the end.
//!
//! | module | what |
//! |---|---|
//! | [`table`] | the stages, and which of them run at the same time |
//! | [`run`] | runs one stage |
//! | [`output`] | the results in its output |
//! | [`screen`] | shows stages that run at the same time |
//!
//! Two lanes run side by side. Stages with daemons and executors on this machine's kernel wait for a third to two thirds
//! of their time; compilers and emulated machines take the processors meanwhile.

pub mod output;
mod run;
mod screen;
mod table;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::features;
use crate::paths::{Paths, SPARK_VERSIONS};
use crate::process::{check_interrupt, is_root};
use crate::setup::perfetto::perfetto;
use crate::setup::{browser, setup};
use output::Tally;
use run::Results;
use screen::{Place, Screen};
use table::{Lane, Stage};

pub use output::NOT_RUN_LINE;
pub use table::{names, names_by_name_only};

/// Number of the slowest tests in the list at the end.
const SLOWEST: usize = 40;

/// Runs the stages (all, or the named ones) and prints the totals in the last line.
///
/// # Errors
/// When a test or a command failed.
pub fn test(paths: &Paths, only: &[String]) -> Result<()> {
    let chosen = table::chosen(only);
    if !is_root() {
        let listed = |root: bool| {
            let stages = table::STAGES.iter().filter(|stage| stage.root == root);
            let names: Vec<_> = stages.map(|stage| stage.name).collect();
            names.join(", ")
        };
        if chosen.iter().any(|stage| stage.root) {
            bail!(
                "the stages {} need root; without it there are {}",
                listed(true),
                listed(false)
            );
        }
    }
    let start = Instant::now();
    setup(paths, &SPARK_VERSIONS)?;
    if chosen.iter().any(|stage| stage.name == "browser") {
        browser(paths)?;
        perfetto(paths)?;
    }
    let must_have = features::of_this_machine().join(",");
    println!("{}={must_have}", features::MUST_HAVE);
    let set_up = start.elapsed().as_secs();

    let screen = Arc::new(Screen::default());
    let of = |lanes: &[Lane]| -> Vec<&Stage> {
        let stages = chosen.iter().copied();
        stages.filter(|stage| lanes.contains(&stage.lane)).collect()
    };
    let now = |stage: &Stage| {
        let place = Arc::new(Place::Screen(Arc::clone(&screen)));
        run::stage(paths, stage, &must_have, &place)
    };
    let first = each(&of(&[Lane::First]), now)?;
    let (host, beside) = (of(&[Lane::Host]), of(&[Lane::Beside]));
    let alone = host.is_empty();
    let (host, beside) = thread::scope(|scope| {
        let beside = scope.spawn(|| {
            each(&beside, |stage| {
                if alone {
                    return now(stage);
                }
                let log = paths.target.join(format!("log/stage-{}.log", stage.name));
                let place = match Place::file(&screen, &log) {
                    Ok(place) => Arc::new(place),
                    Err(problem) => {
                        screen.whole(format!("{problem:#}: the stage is shown as it runs\n"));
                        return now(stage);
                    }
                };
                screen.whole(format!(
                    "\n== {} begins beside the others; until it ends its output is in {}\n",
                    stage.name,
                    log.display()
                ));
                let results = run::stage(paths, stage, &must_have, &place);
                place.end();
                results
            })
        });
        (each(&host, now), beside.join())
    });
    screen.end_line();
    let beside = beside.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let (host, beside) = (host?, beside?);
    let by_name = each(&of(&[Lane::ByName]), now)?;

    let mut total = Tally::default();
    let (mut summary, mut tests, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    let mut left_out = Vec::new();
    for mut results in [first, host, beside, by_name].into_iter().flatten() {
        total.add(results.tally);
        summary.append(&mut results.summary);
        tests.append(&mut results.tests);
        failures.append(&mut results.failures);
        left_out.append(&mut results.left_out);
    }
    println!("set-up {set_up:10} s\n{}", summary.join("\n"));
    println!("whole  {:10} s", start.elapsed().as_secs());
    println!("{}", slowest(tests));
    for (name, error) in failures {
        println!("failed: {name}\n        {error}");
    }
    for what in left_out {
        println!("{}{what}", output::NOT_RUN_LINE);
    }
    println!("{total}");
    if total.failed > 0 {
        bail!("not everything passed");
    }
    Ok(())
}

/// The results of stages that run one after another.
///
/// # Errors
/// When the user pressed Ctrl-C.
fn each(stages: &[&Stage], run: impl Fn(&Stage) -> Result<Results>) -> Result<Vec<Results>> {
    let mut results = Vec::new();
    for stage in stages {
        check_interrupt()?;
        results.push(run(stage)?);
    }
    Ok(results)
}

/// The slowest tests, one per line; empty where none took a second.
fn slowest(mut tests: Vec<(Duration, String)>) -> String {
    tests.retain(|(time, _)| *time >= Duration::from_secs(1));
    tests.sort_by(|a, b| b.cmp(a));
    tests.truncate(SLOWEST);
    let lines: Vec<String> = tests
        .iter()
        .map(|(time, name)| format!("{:17}{:3} s  {name}\n", "", time.as_secs()))
        .collect();
    if lines.is_empty() {
        return String::new();
    }
    format!("\nslowest tests\n{}", lines.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_come_first() {
        let seconds = |seconds: u64| (Duration::from_secs(seconds), format!("t{seconds}"));
        let said = slowest((0..50).map(seconds).collect());
        let names: Vec<&str> = said
            .lines()
            .filter_map(|line| line.split_whitespace().nth(2))
            .collect();
        assert_eq!(names.len(), SLOWEST, "{said}");
        assert_eq!((names[0], names[39]), ("t49", "t10"), "{said}");
        assert_eq!(slowest(vec![seconds(0)]), "");
    }
}
