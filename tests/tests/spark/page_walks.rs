//! Samples of a real job: the sampled time of every stage equals the CPU time that Spark measured for its tasks, and
//! the sampled page faults of an executor equal the kernel's count.
//!
//! The clock replaces cycles and page faults replace page walks: every machine has both, and both have a witness.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use smtt_common::counter::{ContextKey, Counter};
use smtt_common::event::Kind;
use smtt_common::event::marker::LIBRARY_NAME;
use smtt_common::page_walk::WalkCounters;
use smtt_config::ProbeSettings;
use smtt_daemon::probes::Probes;
use smtt_daemon::ring::{SourceCounters, next_batch};
use smtt_machine::clock::now_boot_ns;
use smtt_model::cpu::{Overrides, Role};
use smtt_tests::application::LOCAL_CLUSTER;
use smtt_tests::faults::ticked_ns;
use smtt_tests::json::{number, sum};
use smtt_tests::lab::{LIMIT, Run, SparkLab};
use smtt_tests::witness;
use xtask::daemon::Options;
use xtask::process::wait_for;
use xtask::spark::Application;

/// Nanoseconds of the clock per sample.
const PERIOD_NS: u64 = 500_009;
/// CPU time by which a task in Spark's measure and in the marker's context may differ: the end of the task, in which it
/// sends its result.
const TASK_EDGE_NS: u64 = 4_000_000;
/// Pause between two readings.
const LOOK_EVERY: Duration = Duration::from_millis(400);

/// The probes, with the clock and page faults as events, and their samples.
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
    fn start(lab: &SparkLab) -> Result<Self> {
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
        probes.attach_library(&lab.paths.marker().join(LIBRARY_NAME))?;
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
                .channels
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

    /// Page faults of every running executor: sampled, and the kernel's own count. Read while no task runs.
    fn faults(&mut self) -> Result<BTreeMap<u32, (u64, u64)>> {
        let begin = Instant::now();
        while begin.elapsed() < LIMIT {
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

/// Spark's own list of completed stages.
fn complete(run: &Run) -> Result<Vec<Value>> {
    match run.submitted.rest("stages?status=complete")? {
        Value::Array(stages) => Ok(stages),
        other => bail!("Spark's list of stages is no list: {other}"),
    }
}

/// Compares the samples of every stage (nanoseconds and number) with the CPU time that Spark measured.
fn as_spark_measured(
    run: &Run,
    warm_up: &[u64],
    of_stage: impl Fn(u64) -> (u64, u64),
) -> Result<()> {
    let (mut compared, mut all) = (0, [0; 4]);
    for stage in complete(run)? {
        let (id, tasks) = (
            number(&stage, "stageId")?,
            number(&stage, "numCompleteTasks")?,
        );
        if warm_up.contains(&id) {
            continue;
        }
        // A task's context includes the time in which Spark deserialises the task or loads its classes, and ends after
        // the result is sent.
        let least = number(&stage, "executorCpuTime")?;
        let most = least + number(&stage, "executorDeserializeCpuTime")?;
        let (sampled, samples) = of_stage(id);
        // The 99 % interval of a number of randomly taken samples; regular samples scatter less.
        let interval = (2.576 * (samples as f64).sqrt() * PERIOD_NS as f64) as u64;
        // In a virtual machine a timer that is due on an idle processor may fire late, in the thread that has woken up
        // meanwhile, and the clock has run on: that sample includes idle time. So the sampled time is at least the
        // tasks' time, and the number of samples is at most what it allows.
        let by_number = samples * PERIOD_NS;
        println!(
            "stage {id}, {tasks} tasks: {:.1} ms by {samples} samples, {:.1} ms by their number, the interval is {:.1} ms; {:.1} ms by Spark, with deserialising {:.1} ms",
            sampled as f64 / 1e6,
            by_number as f64 / 1e6,
            interval as f64 / 1e6,
            least as f64 / 1e6,
            most as f64 / 1e6
        );
        let edges = tasks * TASK_EDGE_NS;
        ensure!(
            sampled + interval >= least && by_number <= most + interval + edges,
            "stage {id}: {sampled} ns sampled, {by_number} ns by the number of samples, {least} to {most} ns by Spark"
        );
        compared += 1;
        all[0] += sampled;
        all[1] += by_number;
        all[2] += least;
        all[3] += most + edges;
    }
    let [sampled, by_number, least, most] = all;
    println!(
        "all {compared} stages: {sampled} ns sampled, {by_number} ns by the number of samples, {least} to {most} ns by Spark"
    );
    ensure!(compared >= 6, "only {compared} stages were compared");
    ensure!(
        sampled + sampled / 50 >= least && by_number <= most + most / 50 && sampled * 2 <= most * 3,
        "all stages: {sampled} ns sampled, {by_number} ns by the number of samples, {least} to {most} ns by Spark, which is more than 2 % apart"
    );
    Ok(())
}

/// The job, and the stages before its gate `begin`.
fn start(lab: &SparkLab) -> Result<(Run, Vec<u64>)> {
    let application = Application::java(
        &lab.paths,
        LOCAL_CLUSTER,
        "PageRank",
        &["100000", "10", "4", "4", "MEMORY_ONLY_SER"],
    )?;
    let mut run = lab.run(application.with_marker(&lab.paths))?;
    run.reach("begin")?;
    // Tasks of the first stages load the marker's own classes, before any context exists.
    let warm_up = complete(&run)?
        .iter()
        .map(|stage| number(stage, "stageId"))
        .collect::<Result<_>>()?;
    Ok((run, warm_up))
}

#[test]
fn sampled_time_of_every_stage_is_the_cpu_time_that_spark_measured() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let mut sampling = Sampling::start(&lab)?;
    let (mut run, warm_up) = start(&lab)?;
    let before = sampling.faults()?;
    run.open("begin")?;
    run.open("cached")?;
    run.reach("end")?;
    let after = sampling.faults()?;

    as_spark_measured(&run, &warm_up, |id| {
        let sum = sampling.sum(|key| key.class().is_none() && u64::from(key.stage_id) == id);
        (sum.events[sampling.clock], sum.samples[sampling.clock])
    })?;
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

/// Sum of all series of a metric with the label.
fn metric(text: &str, name: &str, label: &str) -> Result<u64> {
    let mut sum = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix(name)
            && rest.starts_with('{')
            && rest.contains(label)
        {
            let value: f64 = line
                .rsplit(' ')
                .next()
                .and_then(|value| value.parse().ok())
                .with_context(|| format!("no number: {line}"))?;
            *sum.get_or_insert(0) += value as u64;
        }
    }
    sum.with_context(|| format!("no series {name} with {label}"))
}

#[test]
fn figures_of_rdds_and_stages_add_up_to_those_of_executors_in_listings_and_metrics() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let daemon = lab.daemon_with(&Options {
        toml: format!(
            "[page_walks]\nevents = {{ cycles = \"cpu-clock\", load_walks_completed = \"page-faults\" }}\nsample_periods = {{ cycles = {PERIOD_NS}, load_walks_completed = 1 }}\n"
        ),
        ..Options::default()
    })?;
    let (mut run, warm_up) = start(&lab)?;
    run.open("begin")?;
    run.open("cached")?;
    run.reach("end")?;
    // No task runs any more; when a tick of the daemon adds nothing, all samples have been read.
    let application = run.submitted.application_id()?;
    let (mut before, mut read_ns) = (0, now_boot_ns());
    wait_for("the tasks' figures come to rest", LIMIT, || {
        thread::sleep(LOOK_EVERY);
        let ticked = ticked_ns(&daemon, |row| row["application_id"] == application)?;
        if ticked <= Some(read_ns) {
            return Ok(None);
        }
        let now = sum(&run.rows(&daemon, &["tasks"])?, "cycles");
        let same = now > 0 && now == before;
        (before, read_ns) = (now, now_boot_ns());
        Ok(same.then_some(()))
    })?;
    let executors = run.rows(&daemon, &["executors"])?;
    let rdds = run.rows(&daemon, &["rdds"])?;
    let stages = run.rows(&daemon, &["stages"])?;
    let tasks = run.rows(&daemon, &["tasks"])?;
    ensure!(executors.len() == 2, "{executors:#?}");

    // A stage has one row per executor.
    as_spark_measured(&run, &warm_up, |id| {
        let rows: Vec<Value> = stages
            .iter()
            .filter(|row| row["stage_id"].as_u64() == Some(id))
            .cloned()
            .collect();
        (sum(&rows, "cycles"), sum(&rows, "cycles_samples"))
    })?;

    for executor in &executors {
        let key = &executor["executor_id"];
        let own = |rows: &[Value]| -> Vec<Value> {
            rows.iter()
                .filter(|row| row["executor_id"] == *key)
                .cloned()
                .collect()
        };
        let unattributed: u64 = executor["cycles_unattributed"]
            .as_object()
            .with_context(|| format!("no cycles_unattributed in {executor}"))?
            .values()
            .filter_map(Value::as_u64)
            .sum();
        let attributed = number(executor, "cycles")? - unattributed;
        let (by_rdd, by_task) = (sum(&own(&rdds), "cycles"), sum(&own(&tasks), "cycles"));
        println!(
            "executor {key}: {attributed} ns in contexts; {by_rdd} by RDD, {by_task} by task; {unattributed} ns in none"
        );
        ensure!(
            by_rdd == attributed && by_task == attributed && attributed > 1_000_000_000,
            "executor {key}: RDDs have {by_rdd} ns, tasks {by_task} of {attributed}"
        );
        // A task begins before its thread has the stage id.
        let of_the_job = |rows: &[Value]| -> u64 {
            let rows: Vec<Value> = own(rows)
                .into_iter()
                .filter(|row| {
                    row["stage_id"]
                        .as_u64()
                        .is_none_or(|id| !warm_up.contains(&id))
                })
                .collect();
            sum(&rows, "cycles")
        };
        let (by_stage, by_task) = (of_the_job(&stages), of_the_job(&tasks));
        println!("executor {key}: {by_stage} ns by stage, {by_task} by task after the warm-up");
        ensure!(
            by_stage <= by_task && by_stage * 100 >= by_task * 95,
            "executor {key}: stages have {by_stage} ns, their tasks {by_task}"
        );
        // Every fault is a sample: compares with the fault probe.
        let faults = number(executor, "page_faults_attributed")?
            + number(executor, "page_faults_unattributed")?;
        let sampled = number(executor, "dtlb_read_misses")?;
        println!("executor {key}: {sampled} page faults sampled, {faults} by the fault probe");
        ensure!(
            sampled.abs_diff(faults) * 100 <= faults,
            "executor {key}: {sampled} page faults sampled, {faults} by the fault probe"
        );
    }

    let metrics = daemon.metrics()?;
    let application = run.submitted.application_id()?;
    let label = format!("application_id=\"{application}\"");
    let in_metrics = metric(&metrics, "smtt_rdd_dtlb_misses_total", &label)?;
    let listed = sum(&rdds, "dtlb_read_misses");
    ensure!(
        in_metrics == listed,
        "RDDs have {listed} in the listing, {in_metrics} in the metrics"
    );
    // Executors' own threads continue between the two answers.
    let in_metrics = metric(&metrics, "smtt_executor_cycles_total", &label)?;
    let listed = sum(&executors, "cycles");
    ensure!(
        in_metrics >= listed && in_metrics - listed < 5_000_000_000,
        "executors have {listed} ns in the listing, {in_metrics} in the metrics"
    );
    run.finish(&["end"])?;
    drop(daemon);
    lab.passed()
}
