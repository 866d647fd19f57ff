//! Whole jobs in pairs: one run with a setting and one without, in turns, because the machine's speed changes.
//!
//! Two figures: how much longer a job takes, which its user notices, and how much more CPU time all its processes and
//! the daemon take together, which scatters less on a busy machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;

use super::{RUN_LIMIT, gates, least, median, most, reach, report};
use crate::daemon::{Daemon, Options};
use crate::paths::{DEMO_SPARK, Jdk, Paths};
use crate::spark::{Application, Spark};
use crate::witness;

/// The configuration of a run: a daemon with these settings and the marker, or neither.
pub(super) type Setting = Option<Options>;

/// Seconds of a job from its gate `begin` to `end`, and CPU seconds of its processes and the daemon in that time.
struct Run {
    elapsed: f64,
    cpu: f64,
}

/// Ratios of the pairs: the figure with the setting, as a multiple of the figure without.
#[derive(Debug, Default)]
pub(super) struct Ratios {
    elapsed: Vec<f64>,
    cpu: Vec<f64>,
}

impl Ratios {
    /// Adds the pairs of another job.
    pub(super) fn add(&mut self, other: Self) {
        self.elapsed.extend(other.elapsed);
        self.cpu.extend(other.cpu);
    }

    /// Prints the medians and their limits.
    pub(super) fn report(&mut self, what: &str, target: f64) {
        for (ratios, figure) in [(&mut self.elapsed, "time"), (&mut self.cpu, "CPU time")] {
            let detail = format!(
                "median of {} pairs, from {:.3} to {:.3}",
                ratios.len(),
                least(ratios),
                most(ratios)
            );
            let what = format!("{what}, {figure}");
            report(&what, median(ratios), "x", target, &detail);
        }
    }

    /// Prints the geometric means with their 95 % confidence intervals, from the scatter of the pairs.
    pub(super) fn report_means(&self, what: &str, target: f64) {
        for (ratios, figure) in [(&self.elapsed, "time"), (&self.cpu, "CPU time")] {
            let (mean, low, high) = geometric_mean(ratios);
            let detail = format!(
                "geometric mean of {} pairs, 95 % interval {low:.3} to {high:.3}",
                ratios.len()
            );
            report(&format!("{what}, {figure}"), mean, "x", target, &detail);
        }
    }
}

/// Runs jobs in pairs.
pub(super) struct Pairs<'a> {
    paths: &'a Paths,
    folder: PathBuf,
    spark: Spark,
    runs: usize,
}

impl<'a> Pairs<'a> {
    /// A runner of pairs that writes all files below the folder.
    ///
    /// # Errors
    /// When Spark is not set up.
    pub(super) fn new(paths: &'a Paths, folder: &Path) -> Result<Self> {
        Ok(Self {
            paths,
            folder: folder.to_owned(),
            spark: Spark::new(paths, DEMO_SPARK, &Jdk::main()?, &folder.join("spark"))?,
            runs: 0,
        })
    }

    /// Runs the job in pairs, `pairs` times in both settings, and prints each pair.
    ///
    /// # Errors
    /// When the job or the daemon does not run.
    pub(super) fn of(
        &mut self,
        job: &dyn Fn() -> Result<Application>,
        pairs: usize,
        with: &Setting,
        without: &Setting,
    ) -> Result<Ratios> {
        let mut ratios = Ratios::default();
        // The first run warms the page cache and is not counted.
        if self.runs == 0 {
            self.run(job, without)?;
        }
        for pair in 1..=pairs {
            // The order within a pair alternates too: the second of two runs may profit from the first.
            let (with, without) = if pair % 2 == 0 {
                let with = self.run(job, with)?;
                (with, self.run(job, without)?)
            } else {
                let without = self.run(job, without)?;
                (self.run(job, with)?, without)
            };
            let (elapsed, cpu) = (with.elapsed / without.elapsed, with.cpu / without.cpu);
            println!(
                "    pair {pair}: {:.2} s with, {:.2} s without, ratio {elapsed:.3}; {:.2} s of CPU time with, {:.2} s without, ratio {cpu:.3}",
                with.elapsed, without.elapsed, with.cpu, without.cpu
            );
            ratios.elapsed.push(elapsed);
            ratios.cpu.push(cpu);
        }
        Ok(ratios)
    }

    fn run(&mut self, job: &dyn Fn() -> Result<Application>, setting: &Setting) -> Result<Run> {
        self.runs += 1;
        let number = self.runs;
        let daemon = setting
            .as_ref()
            .map(|options| {
                Daemon::start(
                    self.paths,
                    &self.paths.target.join("release"),
                    &self.folder.join(format!("daemon-{number}")),
                    options,
                )
            })
            .transpose()?;
        let gates = gates(&self.folder, &format!("gates-{number}"), &["cached", "end"])?;
        let mut application =
            job()?.conf("spark.smtt.fixture.barrier", &gates.display().to_string());
        if setting.is_some() {
            application = application.with_marker(self.paths);
        }
        let mut submitted = application.submit(&self.spark, &format!("spark-{number}"))?;
        reach(&mut submitted.running, &gates.join("begin.reached"))?;
        let driver = submitted.running.pid();
        let daemon_pid = daemon.as_ref().map(Daemon::pid);
        let spent = || -> Result<f64> {
            let mut pids = witness::descendants(driver)?;
            pids.push(driver);
            pids.extend(daemon_pid);
            // A script's helper process that ends meanwhile is left out; the JVMs stay.
            Ok(pids
                .into_iter()
                .filter_map(|pid| witness::cpu_seconds(pid).ok())
                .sum())
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
    }
}

/// The geometric mean and its 95 % confidence interval.
#[must_use]
pub fn geometric_mean(ratios: &[f64]) -> (f64, f64, f64) {
    let count = ratios.len() as f64;
    let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let mean = logs.iter().sum::<f64>() / count;
    let squares: f64 = logs.iter().map(|log| (log - mean).powi(2)).sum();
    let error = (squares / (count - 1.0) / count).sqrt();
    (
        mean.exp(),
        (mean - 1.96 * error).exp(),
        (mean + 1.96 * error).exp(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_of_ratios() {
        let (mean, low, high) = geometric_mean(&[0.5, 2.0]);
        assert!((mean - 1.0).abs() < 1e-9, "{mean}");
        // The standard error of two logarithms, each ln 2 from the mean, is ln 2.
        assert!((high - (1.96 * 2f64.ln()).exp()).abs() < 1e-9, "{high}");
        assert!((low * high - 1.0).abs() < 1e-9, "{low}");
    }
}
