//! Forks of other processes while a user brings as many library files as he may: the kernel holds them up while a probe is
//! attached or removed. The witness is the clock of the program that forks.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_tests::json::number;
use xtask::daemon::Options;

use crate::foreign_files::{Scene, UNPRIVILEGED_UID};
use crate::lab::{Workload, daemon_alone, grace_period};

/// Length of each of the phases: without probes, while they are attached, while they are removed.
const PHASE: Duration = Duration::from_secs(10);
/// Library files at once by default, and the time after which a user may bring one more. A user may bring 32 at once;
/// `SMTT_LIBRARY_FILES` sets the number. The removal of 32 takes the kernel a minute.
const AT_ONCE: usize = 8;
const ONE_MORE: Duration = Duration::from_secs(2);
/// Limit of the slowest fork, and grace periods beyond it on a busy machine. Each probe costs the kernel one or two, of 50 to
/// 200 ms each.
const WORST_NS: u64 = 2_000_000_000;
const GRACE_PERIODS: u32 = 20;

fn milliseconds(said: &Value, field: &str) -> Result<f64> {
    Ok(number(said, field)? as f64 / 1e6)
}

#[test]
fn forks_wait_a_bounded_time_while_probes_come_and_go() -> Result<()> {
    let Some(daemon) = daemon_alone(&Options::default())? else {
        return Ok(());
    };
    let at_once = match std::env::var("SMTT_LIBRARY_FILES") {
        Ok(text) => text.parse().context("SMTT_LIBRARY_FILES is no number")?,
        Err(_) => AT_ONCE,
    };
    let scene = Scene::new()?;
    let length = format!("ms={}", PHASE.as_millis());
    let mut forks = Workload::start("fork_times", &[&length, "phases=3", "describe=no"])?;
    let mut attackers = Vec::new();
    for phase in ["without probes", "probes attached", "probes removed"] {
        if phase == "probes removed" {
            attackers.clear();
        }
        let before = grace_period()?;
        forks.go()?;
        let end = Instant::now() + PHASE;
        if phase == "probes attached" {
            for _ in 0..at_once {
                attackers.push(scene.attack("container")?);
            }
            while Instant::now() + ONE_MORE < end {
                thread::sleep(ONE_MORE);
                attackers.push(scene.attack("container")?);
            }
        }
        let said: Value = serde_json::from_str(&forks.expect("PHASE ")?)?;
        println!(
            "{phase}: {} forks, median {:.2} ms, 99 % {:.2} ms, worst {:.1} ms, {} above 10 ms, {:.0} % of the time in fork",
            number(&said, "forks")?,
            milliseconds(&said, "median_ns")?,
            milliseconds(&said, "p99_ns")?,
            milliseconds(&said, "worst_ns")?,
            number(&said, "above_10_ms")?,
            milliseconds(&said, "sum_ns")? / PHASE.as_millis() as f64 * 100.0
        );
        let slowest = grace_period()?.max(before);
        let limit = WORST_NS + (GRACE_PERIODS * slowest).as_nanos() as u64;
        ensure!(
            number(&said, "worst_ns")? < limit,
            "a fork took {:.0} ms {phase}",
            milliseconds(&said, "worst_ns")?
        );
    }
    let traced = daemon
        .rows(&["executors"])?
        .iter()
        .filter(|row| row["uid"] == UNPRIVILEGED_UID)
        .count();
    ensure!(
        traced >= at_once,
        "{traced} executors with library files of their own were found, {at_once} were there"
    );
    forks.go()?;
    forks.done()?;
    forks.end()
}
