//! What tracing, and sampling beside it, add to a whole job: the demo's, run in pairs.
//!
//! Two figures: how much longer it takes, which is what its user waits for, and how much more CPU time all its processes
//! and the daemon take together, which scatters less where something else runs on the machine.

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
use crate::witness;

/// Pairs of the whole job.
const PAIRS: usize = 7;
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
    let mut run = |setting: &Setting| -> Result<Run> {
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
        let driver = submitted.running.pid();
        let daemon_pid = daemon.as_ref().map(Daemon::pid);
        let spent = || -> Result<f64> {
            let mut pids = witness::descendants(driver)?;
            pids.push(driver);
            pids.extend(daemon_pid);
            pids.into_iter().map(witness::cpu_seconds).sum()
        };
        let (start, before) = (Instant::now(), spent()?);
        fs::write(gates.join("begin.go"), "")?;
        reach(&mut submitted.running, &gates.join("end.reached"))?;
        let run = Run {
            elapsed: start.elapsed().as_secs_f64(),
            cpu: spent()? - before,
        };
        submitted.result(RUN_LIMIT)?;
        drop(daemon);
        Ok(run)
    };
    // The first run warms the page cache and counts for nothing.
    run(without)?;
    let (mut elapsed, mut cpu) = (Vec::new(), Vec::new());
    for pair in 1..=PAIRS {
        // Which one comes first alternates too: the second of two runs may profit from the first.
        let (with, without) = if pair % 2 == 0 {
            let with = run(with)?;
            (with, run(without)?)
        } else {
            let without = run(without)?;
            (run(with)?, without)
        };
        let ratios = (with.elapsed / without.elapsed, with.cpu / without.cpu);
        println!(
            "    pair {pair}: {:.2} s with, {:.2} s without, ratio {:.3}; {:.2} s of CPU time with, {:.2} s without, ratio {:.3}",
            with.elapsed, without.elapsed, ratios.0, with.cpu, without.cpu, ratios.1
        );
        elapsed.push(ratios.0);
        cpu.push(ratios.1);
    }
    for (ratios, figure) in [(&mut elapsed, "time"), (&mut cpu, "CPU time")] {
        let detail = format!(
            "median of {PAIRS} pairs, from {:.3} to {:.3}",
            least(ratios),
            most(ratios)
        );
        report(
            &format!("{what}, {figure}"),
            median(ratios),
            "x",
            target,
            &detail,
        );
    }
    Ok(())
}

/// Seconds that the job took, and seconds of CPU time that its processes and the daemon took for it.
struct Run {
    elapsed: f64,
    cpu: f64,
}
