//! An application that loses executors and gets others, and whose task attempts end for many reasons: the answers about its
//! log equal those of Spark's own history server.
//!
//! The log in `tests/corpus/losses` is that of a real run (`tests/fixture/java`, `Losses`). `cargo xtask test versions` runs
//! the application again on further versions; with `SMTT_BLESS=1 SMTT_SPARK_VERSIONS=4.0.5` its log then replaces that of the
//! corpus, without the names of the machine ([`crate::neutral`]).

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use smtt_tests::history::serve;
use smtt_tests::lab::{LIMIT, SparkLab};
use smtt_tests::skip::skip;
use xtask::paths::{DEMO_SPARK, Paths};
use xtask::process::wait_for;
use xtask::setup::setup;
use xtask::spark::Application;

use crate::answers::{Api, compare_all, sorted_lists};
use crate::lists;
use crate::live::names;
use crate::neutral::rewrite;
use crate::older::of_the_test_alone;

/// Answers compared at least.
const COMPARED: usize = 100;

/// The folder of the log in the corpus.
pub fn corpus(paths: &Paths) -> PathBuf {
    paths.root.join("tests/corpus/losses")
}

/// Copies the log of the corpus into a folder of logs; returns the application's id.
pub fn copy(paths: &Paths, logs: &Path) -> Result<String> {
    let corpus = corpus(paths);
    let name = names(&corpus).pop().context("no log in the corpus")?;
    fs::copy(corpus.join(&name), logs.join(&name))?;
    Ok(id_of(&name))
}

fn id_of(name: &str) -> String {
    name.split('.').next().unwrap_or(name).to_owned()
}

/// Has both servers list the application: ours lists what was opened.
pub fn open(spark: &Api, ours: &Api, id: &str) -> Result<()> {
    let path = format!("applications/{id}");
    wait_for("Spark's history server lists it", LIMIT, || {
        Ok((spark.get(&path)?.0 == 200).then_some(()))
    })?;
    ensure!(ours.get(&path)?.0 == 200, "{id}");
    Ok(())
}

/// Asks both servers for all that the application has, and compares.
pub fn equal_sparks(spark: &Api, ours: &Api, id: &str) -> Result<()> {
    let compared = compare_all(spark, ours, id, |_| ())?;
    sorted_lists(spark, ours, id)?;
    let tasks = lists::tasks_of_all_stages(spark, ours, id, &[])?;
    let executors = lists::executors_of_stages(spark, ours, id, &[])?;
    println!(
        "{id}: {compared} answers; failed, killed and other tasks {tasks:?}; {executors} executors of stages"
    );
    ensure!(compared >= COMPARED, "{id}: only {compared} answers");
    shows_everything(spark, id)
}

/// The application did what it is for; otherwise equal answers would say little.
fn shows_everything(spark: &Api, id: &str) -> Result<()> {
    let list = |path: &str| -> Result<Vec<Value>> {
        let (_, list) = spark.get(&format!("applications/{id}/{path}"))?;
        Ok(list.as_array().context("no list")?.clone())
    };
    let stages = list("stages?details=true")?;
    let tasks = stages
        .iter()
        .filter_map(|stage| stage["tasks"].as_object())
        .flat_map(|tasks| tasks.values());
    let messages: Vec<&str> = tasks
        .filter_map(|task| task["errorMessage"].as_str())
        .collect();
    for begin in [
        "ExecutorLostFailure (executor ",
        "FetchFailed(BlockManagerId(",
        "TaskCommitDenied (Driver denied task commit) for job:",
        "by itself, <on purpose>",
        "by hand, <on purpose>",
        "java.lang.IllegalStateException: always",
        "Stage cancelled",
    ] {
        ensure!(
            messages.iter().any(|text| text.starts_with(begin)),
            "no {begin}: {messages:?}"
        );
    }
    // More attempts failed than are listed: Spark lists no attempt twice.
    let resubmitted = |stage: &&Value| {
        let tasks = stage["tasks"].as_object();
        let failed = tasks.map_or(0, |tasks| {
            tasks.values().filter(|it| it["status"] == "FAILED").count()
        });
        stage["numFailedTasks"].as_u64() > Some(failed as u64)
    };
    ensure!(
        stages.iter().any(|it| resubmitted(&it)),
        "no resubmitted task"
    );
    let second = |it: &Value| it["attemptId"].as_u64() > Some(0);
    ensure!(stages.iter().any(second), "no second attempt of a stage");
    ensure!(
        stages.iter().any(|it| it["failureReason"].is_string()),
        "no failed stage"
    );
    let executors = list("allexecutors")?;
    let reasons: Vec<&str> = executors
        .iter()
        .filter_map(|it| it["removeReason"].as_str())
        .collect();
    ensure!(
        reasons.len() >= 3 && executors.len() >= reasons.len() + 3,
        "{executors:?}"
    );
    ensure!(
        reasons.iter().any(|it| it.contains("driver"))
            && reasons.iter().any(|it| it.contains("52")),
        "{reasons:?}"
    );
    Ok(())
}

/// The application again, with `cargo xtask test versions`.
#[test]
fn losses_in_other_versions_are_answered_as_by_their_servers() -> Result<()> {
    let Ok(versions) = std::env::var("SMTT_SPARK_VERSIONS") else {
        return skip("other_versions", "`cargo xtask test versions` runs them");
    };
    for version in versions.split(',') {
        setup(&Paths::find()?, &[version])?;
        let lab = SparkLab::new(version)?;
        let log = run(&lab)?;
        let logs = log.parent().context("a log without a folder")?;
        let server = lab.spark.history_server(logs)?;
        let spark = Api { port: server.port };
        let ours = Api {
            port: serve(&lab.folder().join("opened"), Some(logs.to_owned()))?,
        };
        let name = log.file_name().and_then(|name| name.to_str());
        let name = name.context("a log without a name")?;
        open(&spark, &ours, &id_of(name))?;
        equal_sparks(&spark, &ours, &id_of(name))?;
        if version == DEMO_SPARK && std::env::var_os("SMTT_BLESS").is_some() {
            let corpus = corpus(&lab.paths);
            if corpus.exists() {
                fs::remove_dir_all(&corpus)?;
            }
            fs::create_dir_all(&corpus)?;
            rewrite(&log, &corpus.join(name))?;
        }
        lab.passed()?;
    }
    Ok(())
}

/// Runs the application; returns its log.
fn run(lab: &SparkLab) -> Result<PathBuf> {
    let (logs, own) = of_the_test_alone(lab)?;
    let mut application = Application::java(&own, "local-cluster[3,1,1024]", "Losses", &[])?;
    for (key, value) in [
        // Others come when tasks wait.
        ("spark.scheduler.minRegisteredResourcesRatio", "0"),
        ("spark.dynamicAllocation.enabled", "true"),
        ("spark.dynamicAllocation.shuffleTracking.enabled", "true"),
        ("spark.dynamicAllocation.shuffleTracking.timeout", "4s"),
        ("spark.dynamicAllocation.minExecutors", "1"),
        ("spark.dynamicAllocation.maxExecutors", "3"),
        ("spark.dynamicAllocation.executorIdleTimeout", "4s"),
        ("spark.task.maxFailures", "3"),
        ("spark.eventLog.enabled", "true"),
        ("spark.eventLog.dir", &format!("file://{}", logs.display())),
        ("spark.eventLog.rolling.enabled", "false"),
        ("spark.eventLog.compress", "true"),
        ("spark.eventLog.compression.codec", "zstd"),
        ("spark.eventLog.logStageExecutorMetrics", "true"),
    ] {
        application = application.conf(key, value);
    }
    let mut running = lab.run_through(&application)?;
    running.result(LIMIT)?;
    let all = names(&logs);
    ensure!(
        all.len() == 1 && !all[0].ends_with(".inprogress"),
        "{all:?}"
    );
    Ok(logs.join(&all[0]))
}
