//! A marker of a neighbouring release and this daemon: an older library that lacks an entry point, a newer one with facts,
//! fields and activities that the daemon does not know, and one whose slot files it cannot read. The libraries are built
//! from changed source.
//!
//! The witnesses are the workload's own counts, the kernel's of its page faults, and Spark's REST API.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_tests::application::{LOCAL_CLUSTER, PAGE_RANK, PAGE_RANK_RESULT};
use smtt_tests::json::number;
use smtt_tests::lab::{SparkLab, executor_logs};
use smtt_tests::release::{LACKED_ENTRY, Release, UNKNOWN_ENTRY};
use smtt_tests::task_metrics::same_metrics_from;
use smtt_tests::truth::{same_storage, same_tasks_from};
use smtt_tests::workload::Workload;
use xtask::daemon::{Daemon, Options};
use xtask::marker::JAR_NAME;
use xtask::process::wait_for;
use xtask::setup::compile_jars;
use xtask::spark::Application;

/// The daemon scans, ticks, and answers on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Hooks of verdicts.
const OLDER: &str = "older marker";
const NEWER: &str = "newer marker";

/// The daemon's verdict with this hook, once there is one.
fn verdict(daemon: &Daemon, hook: &str) -> Result<String> {
    let mut last = Value::Null;
    let found = wait_for("the verdict", LIMIT, || {
        last = daemon.json(&["status"])?;
        let mut probes = last["probes"].as_array().into_iter().flatten();
        let found = probes.find(|probe| probe["hook"].as_str().is_some_and(|is| is.contains(hook)));
        Ok(found.and_then(|probe| Some(probe["reason"].as_str()?.to_owned())))
    });
    found.with_context(|| format!("no verdict about {hook:?} in {last:#}"))
}

/// A daemon that knows a library by its digest alone, as an administrator allows it.
fn by_digest(library: PathBuf) -> Options {
    Options {
        without_library: true,
        library: Some(library),
        ..Options::default()
    }
}

/// Runs the workload of a release with its library. Returns what it says, its row, and the daemon's status.
fn run(daemon: &Daemon, library: &Path, release: &str) -> Result<(Value, Value, Value)> {
    let options = ["name=java", &format!("release={release}")];
    let mut workload = Workload::start_with(library, "releases", &options)?;
    verdict(daemon, "libsmtt_marker.so in executors")?;
    let said = workload.run()?;
    let pid = workload.pid().to_string();
    let of = |listing: &str| daemon.rows(&[listing, "--executor", &pid, "--limit", "all"]);
    let mut rdds = Vec::new();
    wait_for("the task's end and its faults", LIMIT, || {
        rdds = of("rdds")?;
        let ended = of("tasks")?.iter().any(|task| task["state"] == "succeeded");
        let seen = |name: &str| {
            rdds.iter()
                .any(|row| row["name"] == name && row["page_faults"].as_u64() > Some(0))
        };
        Ok((ended && seen("links") && seen("ranks")).then_some(()))
    })
    .with_context(|| format!("{rdds:#?}"))?;
    let rdd = |name: &str| {
        let found = rdds.iter().find(|row| row["name"] == name);
        found.with_context(|| format!("no RDD {name} in {rdds:#?}"))
    };
    // Figures of known facts are exact.
    let links = rdd("links")?;
    for (row, counted) in [(links, "faults"), (rdd("ranks")?, "new_faults")] {
        ensure!(
            number(row, "page_faults")? == number(&said, counted)?,
            "the kernel counted {}: {row:#}",
            said[counted]
        );
    }
    ensure!(
        number(links, "storage_memory_bytes")? == number(&said, "block_bytes")?
            && links["partitions_cached"] == 100,
        "{said}: {links:#}"
    );
    let activity = &rdd("ranks")?["contexts"][0]["activity"];
    ensure!(
        activity == "unknown",
        "an activity of a later release is {activity}"
    );
    let tasks = of("tasks")?;
    let executors = of("executors")?;
    let row = executors.first().context("no executor")?;
    ensure!(row["facts_dropped"] == 0, "{row:#}");
    let status = daemon.json(&["status"])?;
    ensure!(status["degraded"] == serde_json::json!([]), "{status:#}");
    workload.end()?;
    Ok((said, serde_json::json!([row, tasks[0]]), status))
}

/// Facts of the hop for facts that only a newer marker has.
fn newer_facts(status: &Value) -> u64 {
    let hops = status["ledger"].as_array().into_iter().flatten();
    let mut hops = hops.filter(|hop| hop["name"] == "newer_marker");
    hops.next()
        .and_then(|hop| hop["attempted"].as_u64())
        .unwrap_or(0)
}

#[test]
fn a_newer_library_gives_every_known_figure_and_its_unknown_facts_are_counted() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let library = Release::Newer.library(&lab.paths)?;
    let daemon = lab.daemon_with(&by_digest(library.clone()))?;
    let (said, rows, status) = run(&daemon, &library, "newer")?;
    let told = number(&said, "unknown")?;
    ensure!(told == 5000, "{said}");
    ensure!(number(&rows[0], "facts_unknown")? == told, "{rows:#}");
    ensure!(newer_facts(&status) == told, "{status:#}");
    ensure!(rows[1]["input_bytes"] == 12_345, "{rows:#}");
    let reason = verdict(&daemon, NEWER)?;
    println!("{reason}");
    ensure!(
        reason.contains(UNKNOWN_ENTRY) && reason.contains("upgrade the daemon"),
        "{reason}"
    );
    drop(daemon);
    lab.passed()
}

#[test]
fn an_older_library_gives_every_figure_that_it_has_and_a_verdict_names_the_rest() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let library = Release::Older.library(&lab.paths)?;
    let daemon = lab.daemon_with(&by_digest(library.clone()))?;
    let (_, rows, status) = run(&daemon, &library, "older")?;
    ensure!(rows[1]["input_bytes"].is_null(), "{rows:#}");
    ensure!(newer_facts(&status) == 0, "{status:#}");
    let reason = verdict(&daemon, OLDER)?;
    println!("{reason}");
    ensure!(
        reason.contains(LACKED_ENTRY) && reason.contains("upgrade the marker's jar"),
        "{reason}"
    );
    drop(daemon);
    lab.passed()
}

#[test]
fn a_library_whose_slot_files_cannot_be_read_is_not_probed_and_verdicts_have_the_remedy()
-> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let library = Release::OtherLayout.library(&lab.paths)?;
    // By its path: the probes would be there before the executor.
    let daemon = lab.daemon_with(&Options {
        library: Some(library.clone()),
        ..Options::default()
    })?;
    let mut workload = Workload::start_with(&library, "releases", &["name=java"])?;
    let of_files = verdict(&daemon, "slot files of another layout")?;
    let of_library = verdict(&daemon, "libsmtt_marker.so")?;
    println!("{of_files}\n{of_library}");
    for reason in [&of_files, &of_library] {
        ensure!(
            reason.contains("layout 2") && reason.contains("upgrade the daemon"),
            "{reason}"
        );
    }
    workload.run()?;
    ensure!(daemon.rows(&["executors"])?.is_empty(), "it is traced");
    workload.end()?;
    drop(daemon);
    lab.passed()
}

/// Runs a job with a jar, and a library that only a digest makes known and that the verdict with the hook `other` is
/// about. Returns the rows of its executors.
fn job(
    lab: &SparkLab,
    daemon: &Daemon,
    jar: &Path,
    agent: &str,
    other: &str,
) -> Result<Vec<Value>> {
    let application = Application::java(&lab.paths, LOCAL_CLUSTER, "PageRank", &PAGE_RANK)?;
    let mut run = lab.run(application.with_marker_at(jar, agent))?;
    run.reach("begin")?;
    // The warm-up, stage 0, may have run before.
    wait_for("both executors are found", LIMIT, || {
        Ok((run.rows(daemon, &["executors"])?.len() == 2).then_some(()))
    })?;
    run.open("begin")?;
    run.reach("cached")?;
    same_storage(daemon, &run.submitted)?;
    run.open("cached")?;
    run.reach("end")?;
    let tasks = same_tasks_from(daemon, &run.submitted, 1)?;
    ensure!(tasks > 8, "only {tasks} tasks were compared");
    if other == NEWER {
        same_metrics_from(daemon, &run.submitted, 1)?;
        // The kernel side's counts are read from time to time.
        wait_for(
            "a fact of the newer marker beside each block",
            LIMIT,
            || {
                let rows = run.rows(daemon, &["executors"])?;
                let mut rows = rows.iter();
                let same =
                    rows.all(|row| row["facts_unknown"] == row["facts_by_kind"]["blockStored"]);
                Ok(same.then_some(()))
            },
        )?;
    }
    let rows = run.rows(daemon, &["executors"])?;
    // A library without executors has no verdict.
    verdict(daemon, other)?;
    assert_eq!(run.finish(&["end"])?, PAGE_RANK_RESULT);
    Ok(rows)
}

#[test]
fn a_newer_jar_and_library_trace_a_job_of_spark() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let folder = Release::Newer.jar(&lab.paths, &compile_jars(&lab.paths)?)?;
    let library = folder.join("libsmtt_marker.so");
    let daemon = lab.daemon_with(&by_digest(library))?;
    let rows = job(&lab, &daemon, &folder.join(JAR_NAME), "", NEWER)?;
    for row in &rows {
        let stored = number(&row["facts_by_kind"], "blockStored")?;
        ensure!(
            stored > 0 && number(row, "facts_unknown")? == stored && row["facts_dropped"] == 0,
            "a fact of the newer marker comes beside each block: {row:#}"
        );
    }
    drop(daemon);
    lab.passed()
}

#[test]
fn this_jar_with_an_older_library_traces_a_job_of_spark_and_says_what_is_missing() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let library = Release::Older.library(&lab.paths)?;
    let daemon = lab.daemon_with(&by_digest(library.clone()))?;
    let jar = lab.paths.marker().join(JAR_NAME);
    let agent = format!("library={}", library.display());
    let rows = job(&lab, &daemon, &jar, &agent, OLDER)?;
    for row in &rows {
        ensure!(
            row["facts_dropped"] == 0 && row["facts_by_kind"][LACKED_ENTRY].is_null(),
            "{row:#}"
        );
    }
    let application = rows[0]["application_id"].as_str().context("no id")?;
    let tasks = daemon.rows(&["tasks", "--app", application])?;
    ensure!(
        tasks.iter().all(|task| task["input_bytes"].is_null()),
        "figures that were not measured are absent: {tasks:#?}"
    );
    drop(daemon);
    let logs = executor_logs(lab.folder())?;
    let said = format!("has no {LACKED_ENTRY}");
    let lines = logs.lines().filter(|line| line.contains(&said)).count();
    ensure!(
        lines == 2,
        "one line for each executor, not {lines}:\n{logs}"
    );
    lab.passed()
}
