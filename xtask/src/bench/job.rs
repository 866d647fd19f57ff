//! What tracing, and sampling beside it, add to a whole job: the demo's, run in pairs.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use super::sample::CLOCK;
use super::{RUN_LIMIT, gates, least, median, most, reach, report};
use crate::daemon::{Daemon, Options};
use crate::demo;
use crate::places::{DEMO_SPARK, Jdk, Places};
use crate::spark::Spark;

/// Pairs of the whole job.
const PAIRS: usize = 5;
/// Longest job with tracing, as a multiple of the job without.
const TRACED_RATIO: f64 = 1.02;
/// Longest job with sampling at the default rate, as a multiple of the traced job without.
const SAMPLED_RATIO: f64 = 1.01;

/// How a job runs: with a daemon of these settings and the marker, or without both.
type Setting = Option<Options>;

/// With and without marker and daemon.
pub fn traced(places: &Places, folder: &Path) -> Result<()> {
    pairs(
        places,
        folder,
        "PageRank, traced / untraced",
        TRACED_RATIO,
        &Some(Options::default()),
        &None,
    )
}

/// With everything that can be switched on, trace records and sampling by the clock among it, against nothing at all.
pub fn everything(places: &Places, folder: &Path) -> Result<()> {
    let options = Options {
        toml: format!("{}\n[pmu]\n{CLOCK}\n", super::tracing(folder)),
        ..Options::default()
    };
    pairs(
        places,
        folder,
        "PageRank, everything on / off",
        TRACED_RATIO,
        &Some(options),
        &None,
    )
}

/// Both traced, one of them sampled by the clock: no other event comes as regularly, and every machine has it.
pub fn sampled(places: &Places, folder: &Path) -> Result<()> {
    let with = |pmu: &str| {
        Some(Options {
            toml: format!("[pmu]\n{pmu}\n"),
            ..Options::default()
        })
    };
    pairs(
        places,
        folder,
        "PageRank, sampled / traced",
        SAMPLED_RATIO,
        &with(CLOCK),
        &with("enabled = false"),
    )
}

/// Runs the job in both settings in turns, and prints the median of the ratios of neighbours.
fn pairs(
    places: &Places,
    folder: &Path,
    what: &str,
    target: f64,
    with: &Setting,
    without: &Setting,
) -> Result<()> {
    let spark = Spark::new(places, DEMO_SPARK, &Jdk::main()?, &folder.join("spark"))?;
    let mut number = 0;
    let mut seconds = |setting: &Setting| -> Result<f64> {
        number += 1;
        let daemon = setting
            .as_ref()
            .map(|options| {
                Daemon::start(
                    places,
                    &places.target.join("release"),
                    &folder.join(format!("daemon-{number}")),
                    options,
                )
            })
            .transpose()?;
        let gates = gates(folder, &format!("gates-{number}"), &["cached", "end"])?;
        let mut application = demo::application(places, false)?
            .conf("spark.smtt.fixture.barrier", &gates.display().to_string());
        if setting.is_some() {
            application = application.with_marker(places);
        }
        let mut submitted = application.submit(&spark, &format!("spark-{number}"))?;
        reach(&mut submitted.running, &gates.join("begin.reached"))?;
        let start = Instant::now();
        fs::write(gates.join("begin.go"), "")?;
        reach(&mut submitted.running, &gates.join("end.reached"))?;
        let elapsed = start.elapsed().as_secs_f64();
        submitted.result(RUN_LIMIT)?;
        drop(daemon);
        Ok(elapsed)
    };
    // The first run warms the page cache and counts for nothing.
    seconds(without)?;
    let mut ratios = Vec::new();
    for pair in 1..=PAIRS {
        // Which one comes first alternates too: the second of two runs may profit from the first.
        let (with, without) = if pair % 2 == 0 {
            let with = seconds(with)?;
            (with, seconds(without)?)
        } else {
            let without = seconds(without)?;
            (seconds(with)?, without)
        };
        println!(
            "    pair {pair}: {with:.2} s with, {without:.2} s without, ratio {:.3}",
            with / without
        );
        ratios.push(with / without);
    }
    let detail = format!(
        "median of {PAIRS} pairs, from {:.3} to {:.3}",
        least(&ratios),
        most(&ratios)
    );
    report(what, median(&mut ratios), "x", target, &detail);
    Ok(())
}
