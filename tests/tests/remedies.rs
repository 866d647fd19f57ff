//! What the history's advice predicts, tried: sick applications have their finding, and after its remedy it is gone and
//! the time is saved. The paper's workloads, which are healthy, have next to none.
//!
//! What is saved is the difference of the times in which the finding's stages had tasks, of two runs; for a finding of a
//! daemon that of the CPU times of tasks, as Spark counts them. Only `cargo xtask test remedies` runs these tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use smtt_history::advise::read::Log;
use smtt_history::advise::workers::Figures;
use smtt_history::advise::{Advice, Finding, advise};
use smtt_history::import::{Admission, import};
use smtt_history::log::Bounds;
use smtt_history::open::App;
use smtt_model::advise::Saving;
use smtt_tests::cgroup::CpuCgroup;
use smtt_tests::json::{number, sum};
use smtt_tests::lab::{LIMIT, SparkLab, huge_pages, quick_placement};
use smtt_tests::skip::skip;
use xtask::daemon::Daemon;
use xtask::experiment::{fixture_step, names};
use xtask::paths::DEMO_SPARK;
use xtask::process::wait_for;
use xtask::spark::Application;
use xtask::step::Steps;

/// Two executors with one core each.
const CLUSTER: &str = "local-cluster[2,1,1024]";
/// One executor with a core and a heap whose memory is touched for the first time as RDDs are cached.
const LARGE_CLUSTER: &str = "local-cluster[1,1,6144]";
/// MiB of each of two cached RDDs; both fit into the executor's storage memory.
const CACHED_MIB: u64 = 1536;
/// Runs of each application with its fault and without.
const TIMES: usize = 5;
/// Share of the savings that must lie in their interval.
const INSIDE: f64 = 0.8;
/// Share of a CPU that each host has, and the slow one. The driver has what is left: a machine whose CPUs the executors
/// share among themselves would not become faster with the remedy.
const QUICK: f64 = 0.7;
const SLOW: f64 = 0.3;
/// Findings that all of the paper's workloads may have together.
const FALSE_FINDINGS: usize = 1;

/// A fault of an application, and what removes it.
struct Fault {
    /// Argument of the fixture.
    kind: &'static str,
    /// Number with which the application is sick.
    sick: usize,
    /// Rule of the finding.
    rule: &'static str,
    /// Words in the name of the setting whose value is the number of the remedied application.
    setting: &'static str,
    conf: &'static [(&'static str, &'static str)],
}

const FAULTS: [Fault; 4] = [
    Fault {
        kind: "even",
        sick: 1,
        rule: "idle_cores",
        setting: "partitions",
        conf: &[],
    },
    Fault {
        kind: "even",
        sick: 4000,
        rule: "small_tasks",
        setting: "partitions",
        conf: &[],
    },
    Fault {
        kind: "skew",
        sick: 1,
        rule: "skew",
        setting: "salt",
        conf: &[],
    },
    Fault {
        kind: "sort",
        sick: 4,
        rule: "spilling",
        setting: "partitions",
        // 36 MiB for execution.
        conf: &[("spark.memory.fraction", "0.05")],
    },
];

/// Runs of each application, as `SMTT_REMEDIES` says.
fn times() -> Result<usize> {
    match std::env::var("SMTT_REMEDIES") {
        Ok(text) => text.parse().context("SMTT_REMEDIES is no number"),
        Err(_) => Ok(TIMES),
    }
}

/// A run of an application.
#[derive(Debug)]
struct Ran {
    advice: Advice,
    /// Milliseconds in which each stage attempt had tasks, with the stage's name.
    windows: Vec<(String, f64)>,
}

impl Ran {
    /// The finding of that rule that is expected to save most.
    fn found(&self, rule: &str) -> Option<&Finding> {
        self.advice.findings.iter().find(|it| it.rule == rule)
    }

    /// Whether it has that finding about the same stages.
    fn still_has(&self, finding: &Finding) -> bool {
        let of = |it: &Finding| it.rule == finding.rule && it.stage_name == finding.stage_name;
        self.advice.findings.iter().any(of)
    }

    /// Seconds in which stages of that name had tasks.
    fn seconds(&self, stage_name: &str) -> f64 {
        let own = self.windows.iter().filter(|(name, _)| name == stage_name);
        own.map(|(_, window)| window / 1000.0).sum()
    }
}

/// Runs an application to its end and asks for advice.
fn advised(lab: &SparkLab, application: Application) -> Result<Ran> {
    let folder = tempfile::tempdir_in(lab.folder())?.keep();
    let logs = folder.join("logs");
    fs::create_dir_all(&logs)?;
    let application = application
        .conf("spark.eventLog.enabled", "true")
        .conf("spark.eventLog.dir", &format!("file://{}", logs.display()))
        .conf("spark.eventLog.rolling.enabled", "false");
    // As users have it: the quick compiler alone would be slower than what the advice was made for.
    lab.run_through(&application.both_compilers())?
        .result(LIMIT)?;
    let log = wait_for("the event log is finished", LIMIT, || {
        let mut entries = fs::read_dir(&logs)?.flatten().map(|entry| entry.path());
        Ok(entries.find(|path| path.extension().is_none_or(|end| end != "inprogress")))
    })?;
    let admission = Admission {
        name: None,
        replaces: false,
    };
    let store = folder.join("store");
    import(&store, &log, Bounds::default(), &admission)?;
    let only: Vec<PathBuf> = fs::read_dir(&store)?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect();
    ensure!(only.len() == 1, "one application: {only:?}");
    let app = App::open(&only[0])?;
    let attempts = Log::read(&app)?.attempts.into_iter();
    Ok(Ran {
        advice: advise(&app, Figures::default())?,
        windows: attempts.map(|it| (it.name, it.window)).collect(),
    })
}

fn sick(lab: &SparkLab, fault: &Fault, number: usize) -> Result<Ran> {
    let number = number.to_string();
    let mut application = Application::java(&lab.paths, CLUSTER, "Sick", &[fault.kind, &number])?;
    for (key, value) in fault.conf {
        application = application.conf(key, value);
    }
    advised(lab, application)
}

/// The number in the value of a setting.
fn wanted(finding: &Finding, setting: &str) -> Result<usize> {
    let setting = finding
        .settings
        .iter()
        .find(|it| it.name.contains(setting))
        .with_context(|| format!("no setting {setting}: {finding:#?}"))?;
    let digits = setting.value.split(|it: char| !it.is_ascii_digit());
    let digits = digits.take(1).collect::<String>();
    digits
        .parse()
        .with_context(|| format!("no number in {setting:?}"))
}

/// Savings that were measured, and those that lie in their interval.
#[derive(Default)]
struct Tally {
    inside: usize,
    all: usize,
}

impl Tally {
    /// Adds a finding of the history: its stages' times before and after the remedy.
    fn add_stages(&mut self, finding: &Finding, before: &Ran, after: &Ran) {
        let [before, after] = [before, after].map(|ran| ran.seconds(&finding.stage_name));
        self.add(finding.rule, &finding.saving, before, after);
    }

    fn add(&mut self, rule: &str, saving: &Saving, before: f64, after: f64) {
        let saved = before - after;
        let is_inside = saving.low <= saved && saved <= saving.high;
        println!(
            "{}: {before:.2} s, remedied {after:.2} s: {saved:.2} s saved, predicted {:.2} s ({:.2} to {:.2}){}",
            rule,
            saving.expected,
            saving.low,
            saving.high,
            if is_inside { "" } else { ": OUTSIDE" }
        );
        self.all += 1;
        self.inside += usize::from(is_inside);
    }

    fn check(&self) -> Result<()> {
        println!("{} of {} savings in their interval", self.inside, self.all);
        ensure!(self.all > 0, "nothing was measured");
        ensure!(
            self.inside as f64 >= INSIDE * self.all as f64,
            "only {} of {} savings lie in their interval",
            self.inside,
            self.all
        );
        Ok(())
    }
}

/// The sick application has the finding; the remedied one has it no more.
fn remedy(lab: &SparkLab, fault: &Fault) -> Result<(Finding, Ran, Ran)> {
    let before = sick(lab, fault, fault.sick)?;
    let finding = before
        .found(fault.rule)
        .with_context(|| format!("no finding {}: {before:#?}", fault.rule))?
        .clone();
    let number = wanted(&finding, fault.setting)?;
    let after = sick(lab, fault, number)?;
    ensure!(
        !after.still_has(&finding),
        "{} is still there with {number}: {after:#?}",
        fault.rule
    );
    Ok((finding, before, after))
}

#[test]
fn a_finding_is_gone_after_its_remedy() -> Result<()> {
    let lab = SparkLab::new(DEMO_SPARK)?;
    let mut tally = Tally::default();
    let mut wrong = Vec::new();
    for time in 0..times()? {
        for fault in &FAULTS {
            match remedy(&lab, fault) {
                Ok((finding, before, after)) => tally.add_stages(&finding, &before, &after),
                Err(error) => {
                    println!("{}: {error:#}", fault.rule);
                    wrong.push(format!("{} in round {time}", fault.rule));
                }
            }
        }
    }
    let checked = tally.check();
    ensure!(wrong.is_empty(), "without the right finding: {wrong:?}");
    checked?;
    lab.passed()
}

#[test]
fn a_slow_host_is_found_and_its_saving_is_true() -> Result<()> {
    let lab = SparkLab::new(DEMO_SPARK)?;
    let hosts = [CpuCgroup::make("quick-host"), CpuCgroup::make("slow-host")];
    let [Some(quick), Some(slow)] = hosts else {
        return skip(
            "cpu_cgroup",
            "no cgroup with a limit of CPU time can be made",
        );
    };
    let cluster = lab
        .spark
        .standalone_on(&["127.0.0.1", "127.0.0.2"], 1, 2048)?;
    let application = || -> Result<Application> {
        Ok(
            Application::java(&lab.paths, &cluster.url, "Sick", &["even", "100"])?
                .conf("spark.cores.max", "2")
                .conf("spark.scheduler.minRegisteredResourcesRatio", "1")
                .conf("spark.scheduler.maxRegisteredResourcesWaitingTime", "300s"),
        )
    };
    // Executors are children of their worker and begin in its cgroup.
    for (worker, host) in cluster.workers().zip([&quick, &slow]) {
        host.add(worker)?;
        host.limit(Some(QUICK))?;
    }
    let mut tally = Tally::default();
    for _ in 0..times()? {
        slow.limit(Some(SLOW))?;
        let before = advised(&lab, application()?)?;
        slow.limit(Some(QUICK))?;
        let after = advised(&lab, application()?)?;
        let finding = before
            .found("slow_host")
            .with_context(|| format!("no finding slow_host: {before:#?}"))?;
        ensure!(!after.still_has(finding), "still there: {after:#?}");
        tally.add_stages(finding, &before, &after);
    }
    drop(cluster);
    tally.check()?;
    lab.passed()
}

#[test]
fn a_small_side_of_a_join_is_broadcast() -> Result<()> {
    const THRESHOLD: &str = "spark.sql.autoBroadcastJoinThreshold";
    let lab = SparkLab::new(DEMO_SPARK)?;
    let tables = lab.folder().join("tables").display().to_string();
    let application = |what: &str| {
        Application::python(&lab.paths, CLUSTER, "joins.py", &[what, &tables])
            .map(|it| it.conf("spark.sql.shuffle.partitions", "8"))
    };
    advised(&lab, application("write")?)?;
    let mut tally = Tally::default();
    for _ in 0..times()? {
        let before = advised(&lab, application("join")?)?;
        let finding = before
            .found("broadcast")
            .with_context(|| format!("no finding broadcast: {before:#?}"))?;
        let mib = wanted(finding, THRESHOLD)?;
        let after = application("join")?.conf(THRESHOLD, &format!("{mib}m"));
        let after = advised(&lab, after)?;
        ensure!(!after.still_has(finding), "still there: {after:#?}");
        // The stages of the join run at the same time in part.
        let [long, short] = [&before, &after].map(|ran| ran.advice.stage_seconds);
        tally.add(finding.rule, &finding.saving, long, short);
    }
    tally.check()?;
    lab.passed()
}

/// Runs an application that caches two RDDs, with further JVM options of its executor: the CPU time in seconds of the
/// stages that made them, as Spark has it, and what the daemon expects to save by huge pages.
fn cached_on_pages(
    lab: &SparkLab,
    daemon: &Daemon,
    options: &str,
    wanted: usize,
) -> Result<(f64, Saving)> {
    let mib = CACHED_MIB.to_string();
    let application =
        Application::java(&lab.paths, LARGE_CLUSTER, "Unread", &["48", &mib, "0", "1"])?
            .conf("spark.rdd.compress", "false")
            .conf("spark.executor.memory", "6g")
            .conf("spark.executor.extraJavaOptions", options)
            .both_compilers()
            .with_marker(&lab.paths);
    let mut run = lab.run(application)?;
    run.open("cached")?;
    run.reach("read")?;
    let id = run.submitted.application_id()?;
    wait_for("the pages of both RDDs are examined", LIMIT, || {
        let rows = run.rows(daemon, &["pages"])?;
        let present = sum(&rows, "present_bytes");
        Ok((present >= (2 * CACHED_MIB * 15) << 16).then_some(()))
    })?;
    let mut last = Value::Null;
    let advice = wait_for("the advice about small pages", LIMIT, || {
        last = daemon.json(&["advise", "--app", &id])?;
        Ok((of_rule(&last, "small_pages").count() == wanted).then(|| last.clone()))
    });
    let advice = advice.with_context(|| format!("not {wanted} findings: {last:#}"))?;
    let mut saving = Saving::default();
    for finding in of_rule(&advice, "small_pages") {
        saving.add(&serde_json::from_value(finding["saving"].clone())?);
    }
    let stages = run.submitted.rest("stages")?;
    let made = stages.as_array().into_iter().flatten().filter(|stage| {
        let name = stage["name"].as_str().unwrap_or_default();
        name.starts_with("count at")
    });
    let times = made.map(|stage| number(stage, "executorCpuTime"));
    let nanoseconds: u64 = times.collect::<Result<Vec<_>>>()?.into_iter().sum();
    run.finish(&["read"])?;
    Ok((nanoseconds as f64 / 1e9, saving))
}

/// CPU time in which new memory of 2 GiB is touched, with that advice to the kernel.
fn touched(advice: i32) -> Result<Duration> {
    const BYTES: usize = 2 << 30;
    const PAGE: usize = 4096;
    let (protection, kind) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new mapping, which nothing else knows, is written within its bounds and given back.
    let ran = unsafe {
        let start = libc::mmap(std::ptr::null_mut(), BYTES, protection, kind, -1, 0);
        ensure!(start != libc::MAP_FAILED, "no memory to map");
        libc::madvise(start, BYTES, advice);
        let before = cpu_time()?;
        for page in (0..BYTES).step_by(PAGE) {
            start.cast::<u8>().add(page).write_volatile(1);
        }
        let ran = cpu_time()?.saturating_sub(before);
        libc::munmap(start, BYTES);
        ran
    };
    Ok(ran)
}

/// CPU time of this thread.
fn cpu_time() -> Result<Duration> {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID)?;
    Ok(time.into())
}

/// The daemon's findings of a rule.
fn of_rule<'a>(advice: &'a Value, rule: &'a str) -> impl Iterator<Item = &'a Value> {
    let findings = advice["applications"][0]["findings"].as_array();
    let findings = findings.into_iter().flatten();
    findings.filter(move |finding| finding["id"] == rule)
}

#[test]
fn small_pages_are_found_on_a_worker_and_their_saving_is_true() -> Result<()> {
    let mode = huge_pages()?;
    if mode != "madvise" {
        return skip(
            "madvise_huge_pages",
            format!("transparent huge pages are set to {mode}: a JVM cannot choose"),
        );
    }
    let lab = SparkLab::new(DEMO_SPARK)?;
    let daemon = lab.daemon_with(&quick_placement())?;
    let [small, huge] = [libc::MADV_NOHUGEPAGE, libc::MADV_HUGEPAGE].map(touched);
    let (small, huge) = (small?, huge?);
    if huge >= small {
        return skip(
            "cheap_huge_pages",
            format!(
                "touching 2 GiB takes {small:?} of CPU time on small pages and {huge:?} on huge ones"
            ),
        );
    }
    let mut tally = Tally::default();
    for _ in 0..times()? {
        let heap = "-Xms6144m";
        let (before, saving) = cached_on_pages(&lab, &daemon, heap, 2)?;
        let remedied = format!("{heap} -XX:+UseTransparentHugePages");
        let (after, _) = cached_on_pages(&lab, &daemon, &remedied, 0)?;
        tally.add("small_pages", &saving, before, after);
    }
    drop(daemon);
    tally.check()?;
    lab.passed()
}

/// Runs an application whose two RDDs push one another out of an executor's memory: seconds for which its tasks ran, as
/// Spark has them; the saving that the daemon expects; the memory that it advises, where it does.
fn pushed_out(
    lab: &SparkLab,
    daemon: &Daemon,
    memory: &str,
) -> Result<(f64, Saving, Option<String>)> {
    // A block takes some 100 ms to make.
    let job = ["8", "192", "3", "20"];
    let application = Application::java(&lab.paths, "local-cluster[1,1,2048]", "Evicting", &job)?
        .conf("spark.rdd.compress", "false")
        .conf("spark.executor.memory", memory)
        .conf("spark.memory.fraction", "0.4")
        .conf("spark.memory.offHeap.enabled", "true")
        .conf("spark.memory.offHeap.size", "128m")
        .both_compilers()
        .with_marker(&lab.paths);
    let mut run = lab.run(application)?;
    run.reach("read")?;
    let id = run.submitted.application_id()?;
    let stages = run.submitted.rest("stages")?;
    let stages = stages.as_array().into_iter().flatten();
    let times = stages.map(|stage| number(stage, "executorRunTime"));
    let ran: u64 = times.collect::<Result<Vec<_>>>()?.into_iter().sum();
    wait_for("the ends of all tasks have come", LIMIT, || {
        let tasks = run.rows(daemon, &["tasks"])?;
        let ended = tasks.iter().filter(|task| task["state"] == "succeeded");
        Ok((ended.count() == 3 * 3 * 8).then_some(()))
    })?;
    let advice = daemon.json(&["advise", "--app", &id])?;
    let mut saving = Saving::default();
    for finding in of_rule(&advice, "evicted_and_stored_again") {
        saving.add(&serde_json::from_value(finding["saving"].clone())?);
    }
    let said = advice.to_string();
    let advised = said.split_once("spark.executor.memory  ");
    let advised = advised.map(|(_, rest)| {
        let digits = rest.chars().take_while(char::is_ascii_alphanumeric);
        digits.collect()
    });
    run.finish(&["read"])?;
    Ok((ran as f64 / 1000.0, saving, advised))
}

#[test]
fn blocks_that_are_made_again_cost_what_a_worker_expects() -> Result<()> {
    let lab = SparkLab::new(DEMO_SPARK)?;
    let daemon = lab.daemon()?;
    let mut tally = Tally::default();
    for _ in 0..times()? {
        let (before, saving, memory) = pushed_out(&lab, &daemon, "1024m")?;
        let memory = memory.context("no memory is advised")?;
        let (after, rest, _) = pushed_out(&lab, &daemon, &memory)?;
        ensure!(
            rest == Saving::default(),
            "still there with {memory}: {rest:?}"
        );
        tally.add("evicted_and_stored_again", &saving, before, after);
    }
    drop(daemon);
    tally.check()?;
    lab.passed()
}

/// Runs an application, and asks the daemon all the time what it finds: rules and what they are about. Some rules see
/// living executors only.
fn watched(
    lab: &SparkLab,
    daemon: &Daemon,
    application: Application,
) -> Result<(Advice, BTreeMap<String, Value>)> {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asker = scope.spawn(|| {
            let (mut all, mut answers) = (BTreeMap::new(), 0);
            while !ended.load(Ordering::Relaxed) {
                let Ok(advice) = daemon.json(&["advise"]) else {
                    continue;
                };
                let applications = advice["applications"].as_array();
                for application in applications.into_iter().flatten() {
                    answers += usize::from(application["application_id"].is_string());
                    let findings = application["findings"].as_array();
                    for finding in findings.into_iter().flatten() {
                        let of = [&application["application_id"], &finding["id"]];
                        let key = format!("{of:?} {}", finding["subject"]["rdd_id"]);
                        all.insert(key, finding.clone());
                    }
                }
                std::thread::sleep(Duration::from_millis(500));
            }
            (all, answers)
        });
        let ran = advised(lab, application.with_marker(&lab.paths));
        ended.store(true, Ordering::Relaxed);
        let (mut found, answers) = asker.join().expect("the asking thread ends");
        let advice = ran?.advice;
        ensure!(answers > 0, "the daemon knew no application");
        // The daemon still knows the applications before.
        found.retain(|key, _| key.contains(&advice.application_id));
        Ok((advice, found))
    })
}

#[test]
fn the_papers_workloads_are_healthy() -> Result<()> {
    let lab = SparkLab::new(DEMO_SPARK)?;
    fixture_step(&lab.paths, &mut Steps::new(1))?;
    let daemon = lab.daemon_with(&quick_placement())?;
    let mut findings = Vec::new();
    let mut of_daemon = BTreeMap::new();
    for workload in names() {
        let arguments = [workload, "4", "4"];
        let application = Application::scala(&lab.paths, CLUSTER, "Experiment", &arguments)?
            .conf("spark.sql.shuffle.partitions", "4");
        let (advice, found) =
            watched(&lab, &daemon, application).with_context(|| workload.to_owned())?;
        println!(
            "{workload}: {:.1} s of stages, {} stages, {} findings, {} of the daemon",
            advice.stage_seconds,
            advice.checked_stages,
            advice.findings.len(),
            found.len()
        );
        of_daemon.extend(found);
        ensure!(
            advice.checked_stages > 0 && advice.stage_seconds > 0.0,
            "{workload}: {advice:?}"
        );
        findings.extend(advice.findings.into_iter().map(|it| (workload, it)));
    }
    for (what, finding) in &of_daemon {
        println!("{what}: {}", finding["title"]);
    }
    ensure!(
        findings.len() + of_daemon.len() <= FALSE_FINDINGS,
        "{findings:#?} {of_daemon:#?}"
    );
    drop(daemon);
    lab.passed()
}
