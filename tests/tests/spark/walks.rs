//! Samples of a real job: the time of every stage is the CPU time that Spark itself measured for its tasks, and all
//! sampled page faults of an executor are those that the kernel counted for it.
//!
//! The clock stands for cycles and page faults for page walks: every machine has them, and both have a witness.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use smtt_common::counter::{ContextKey, Counter};
use smtt_common::event::Kind;
use smtt_common::event::marker::LIBRARY_NAME;
use smtt_common::walk::WalkCounters;
use smtt_daemon::pmu::{Overrides, Role};
use smtt_daemon::probes::{ProbeSettings, Probes};
use smtt_daemon::source::{SourceCounters, next_batch};
use smtt_tests::lab::{Lab, Run};
use smtt_tests::witness;
use xtask::spark::Application;

use crate::LOCAL_CLUSTER;

/// Nanoseconds of the clock per sample.
const PERIOD_NS: u64 = 500_009;
/// CPU time of a task that Spark does not measure and the marker's context has, or the other way round: the end of
/// its run, where its result is sent.
const TASK_EDGE_NS: u64 = 4_000_000;

/// The probes, with the clock and page faults as events, and what was sampled.
struct Sampling {
    probes: Probes,
    drain: Box<dyn FnMut() -> Vec<(u64, u32)>>,
    /// Pid by executor key.
    executors: BTreeMap<u64, u32>,
    sampled: BTreeMap<ContextKey, WalkCounters>,
    refused: u64,
    clock: usize,
    faults: usize,
}

impl Sampling {
    fn start(lab: &Lab) -> Result<Self> {
        let mut settings = ProbeSettings::default();
        let events = [
            (Role::Cycles, "cpu-clock", PERIOD_NS),
            (Role::LoadWalksCompleted, "page-faults", 1),
        ];
        settings.page_walks.overrides = Overrides(
            events
                .iter()
                .map(|(role, event, _)| (*role, (*event).to_owned()))
                .collect(),
        );
        settings.page_walks.sample_periods = events
            .iter()
            .map(|(role, _, period)| (*role, *period))
            .collect();
        let mut probes = Probes::load(&settings)?;
        probes.attach_library(&lab.places.marker().join(LIBRARY_NAME))?;
        let mut ring = probes.take_ring()?;
        let drain = Box::new(move || {
            let counters = SourceCounters::default();
            let mut described = Vec::new();
            loop {
                let batch = next_batch(&mut ring, &counters);
                if batch.is_empty() {
                    return described;
                }
                described.extend(
                    batch
                        .iter()
                        .filter(|record| record.header.kind == Kind::EXECUTOR_DESCRIBED.0)
                        .map(|record| (record.header.executor, record.header.pid)),
                );
            }
        });
        let mut sampling = Self {
            probes,
            drain,
            executors: BTreeMap::new(),
            sampled: BTreeMap::new(),
            refused: 0,
            clock: 0,
            faults: 0,
        };
        sampling.read()?;
        Ok(sampling)
    }

    fn read(&mut self) -> Result<()> {
        self.executors.extend((self.drain)());
        let readings = self.probes.readings()?;
        self.refused = readings.counters[Counter::WALK_SAMPLES_REFUSED.0 as usize];
        let walks = readings.page_walks.context("nothing is sampled")?;
        for (key, growth) in &walks.contexts {
            self.sampled.entry(*key).or_default().add(growth);
        }
        let slot = |role: Role| {
            walks
                .slots
                .iter()
                .position(|slot| slot.role == role)
                .with_context(|| format!("{role} is not sampled"))
        };
        (self.clock, self.faults) = (slot(Role::Cycles)?, slot(Role::LoadWalksCompleted)?);
        Ok(())
    }

    fn sum(&self, fits: impl Fn(&ContextKey) -> bool) -> WalkCounters {
        let mut sum = WalkCounters::default();
        self.sampled
            .iter()
            .filter(|(key, _)| fits(key))
            .for_each(|(_, counters)| sum.add(counters));
        sum
    }

    /// Page faults of every executor that runs: sampled, and by the kernel's own count. Read while nothing happens.
    fn faults(&mut self) -> Result<BTreeMap<u32, (u64, u64)>> {
        for _ in 0..50 {
            let kernel = |sampling: &Self| -> Result<BTreeMap<u64, u64>> {
                sampling
                    .executors
                    .iter()
                    .filter(|(_, pid)| witness::faults(**pid).is_ok())
                    .map(|(key, pid)| Ok((*key, witness::faults(*pid)?.total())))
                    .collect()
            };
            self.read()?;
            let before = kernel(self)?;
            self.read()?;
            if before == kernel(self)? && !before.is_empty() {
                return Ok(before
                    .into_iter()
                    .map(|(executor, kernel)| {
                        let sum = self.sum(|key| key.executor == executor);
                        (self.executors[&executor], (sum.events[self.faults], kernel))
                    })
                    .collect());
            }
            thread::sleep(Duration::from_millis(200));
        }
        bail!("the executors do not come to rest at the gate")
    }
}

fn number(stage: &Value, name: &str) -> Result<u64> {
    stage[name]
        .as_u64()
        .with_context(|| format!("no number {name} in {stage}"))
}

/// Spark's own list of the stages that are complete.
fn complete(run: &Run) -> Result<Vec<Value>> {
    match run.submitted.rest("stages?status=complete")? {
        Value::Array(stages) => Ok(stages),
        other => bail!("Spark's list of stages is no list: {other}"),
    }
}

#[test]
fn sampled_time_of_every_stage_is_the_cpu_time_that_spark_measured() -> Result<()> {
    let lab = Lab::new("4.0.5")?;
    let mut sampling = Sampling::start(&lab)?;
    let application = Application::java(
        &lab.places,
        LOCAL_CLUSTER,
        "PageRank",
        &["100000", "10", "4", "4", "MEMORY_ONLY_SER"],
    )?;
    let mut run = lab.run(application.with_marker(&lab.places))?;
    run.reach("begin")?;
    let before = sampling.faults()?;
    // Its tasks load the marker's own classes: that comes before any context.
    let warm_up = complete(&run)?
        .iter()
        .map(|stage| number(stage, "stageId"))
        .collect::<Result<Vec<u64>>>()?;
    run.open("begin")?;
    run.open("cached")?;
    run.reach("end")?;
    let after = sampling.faults()?;

    let (mut compared, mut all) = (0, (0, 0, 0));
    for stage in complete(&run)? {
        let (id, tasks) = (
            number(&stage, "stageId")?,
            number(&stage, "numCompleteTasks")?,
        );
        if warm_up.contains(&id) {
            continue;
        }
        // A task's context begins while Spark measures the time in which it is deserialised, or loads classes for
        // that, and lasts until its result is sent.
        let least = number(&stage, "executorCpuTime")?;
        let most = least + number(&stage, "executorDeserializeCpuTime")?;
        let sum = sampling.sum(|key| key.class().is_none() && u64::from(key.stage_id) == id);
        let (sampled, samples) = (sum.events[sampling.clock], sum.samples[sampling.clock]);
        // What a number of samples taken by chance keeps to in 19 of 20 cases; regular ones scatter less.
        let interval = (1.96 * (samples as f64).sqrt() * PERIOD_NS as f64) as u64;
        println!(
            "stage {id}, {tasks} tasks: {:.1} ms by {samples} samples, the interval is {:.1} ms; {:.1} ms by Spark, with deserialising {:.1} ms",
            sampled as f64 / 1e6,
            interval as f64 / 1e6,
            least as f64 / 1e6,
            most as f64 / 1e6
        );
        let edges = tasks * TASK_EDGE_NS;
        ensure!(
            sampled + interval >= least && sampled <= most + interval + edges,
            "stage {id}: {sampled} ns sampled, {least} to {most} ns by Spark"
        );
        compared += 1;
        all = (all.0 + sampled, all.1 + least, all.2 + most);
    }
    let (sampled, least, most) = all;
    println!("all {compared} stages: {sampled} ns sampled, {least} to {most} ns by Spark");
    ensure!(compared >= 6, "only {compared} stages were compared");
    ensure!(
        sampled + sampled / 50 >= least && sampled <= most + most / 50,
        "all stages: {sampled} ns sampled, {least} to {most} ns by Spark, which is more than 2 % apart"
    );

    for (pid, (sampled, kernel)) in &after {
        let (sampled_before, kernel_before) = before
            .get(pid)
            .with_context(|| format!("executor {pid} was not there at the beginning"))?;
        let (sampled, kernel) = (sampled - sampled_before, kernel - kernel_before);
        println!("executor {pid}: {sampled} page faults sampled, {kernel} by the kernel");
        ensure!(
            kernel > 10_000 && sampled.abs_diff(kernel) * 100 <= kernel,
            "executor {pid}: {sampled} page faults sampled, {kernel} by the kernel"
        );
    }
    ensure!(
        sampling.refused == 0,
        "{} samples found no row",
        sampling.refused
    );
    run.finish(&["end"])?;
    lab.passed()
}
