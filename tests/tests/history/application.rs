//! An application whose driver writes its history and an event log, run to its end.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use smtt_tests::lab::{LIMIT, SparkLab};
use xtask::process::wait_for;
use xtask::spark::Application;

use crate::live::only;

/// An application of the fixture with the marker's plugin in its driver, a store, and an event log beside.
pub fn application(lab: &SparkLab, store: &Path, file: &str, master: &str) -> Result<Application> {
    application_with(lab, store, file, master, &[])
}

/// As [`application`], with arguments.
pub fn application_with(
    lab: &SparkLab,
    store: &Path,
    file: &str,
    master: &str,
    arguments: &[&str],
) -> Result<Application> {
    let logs = logs(lab);
    fs::create_dir_all(&logs)?;
    let (logs, store) = (
        format!("file://{}", logs.display()),
        format!("file://{}", store.display()),
    );
    let mut application =
        Application::python(&lab.paths, master, file, arguments)?.with_marker_by_spark(&lab.paths);
    for (key, value) in [
        ("spark.smtt.attach", "false"),
        ("spark.smtt.history.dir", store.as_str()),
        ("spark.eventLog.enabled", "true"),
        ("spark.eventLog.dir", logs.as_str()),
        ("spark.eventLog.rolling.enabled", "false"),
        ("spark.eventLog.logBlockUpdates.enabled", "true"),
        ("spark.eventLog.logStageExecutorMetrics", "true"),
        ("spark.sql.shuffle.partitions", "4"),
        ("spark.task.maxFailures", "3"),
    ] {
        application = application.conf(key, value);
    }
    Ok(application)
}

fn logs(lab: &SparkLab) -> PathBuf {
    lab.folder().join("logs")
}

/// What an application left.
pub struct Ended<'lab> {
    pub lab: &'lab SparkLab,
    pub id: String,
    /// The store with the parts that the driver wrote.
    pub store: PathBuf,
    /// The folder of event logs, and the application's log in it.
    pub logs: PathBuf,
    pub log: PathBuf,
    /// Whether it has speculative attempts.
    pub speculative: bool,
}

/// Runs the application with much of what a history shows. Where it has `speculative` attempts, its executors are on two
/// addresses of this machine, which Spark takes for hosts: it makes no second attempt on the host of the first.
pub fn run(lab: &SparkLab, speculative: bool) -> Result<Ended<'_>> {
    let store = lab.folder().join("store");
    let hosts = ["127.0.0.1", "127.0.0.2"];
    let cluster = speculative.then(|| lab.spark.standalone_on(&hosts, 2, 1024));
    let cluster = cluster.transpose()?;
    let master = cluster.as_ref().map(|it| it.url.as_str());
    let master = master.unwrap_or("local-cluster[2,2,1024]");
    let mut application = application(lab, &store, "history.py", master)?
        // Sorts of more rows spill.
        .conf("spark.shuffle.spill.numElementsForceSpillThreshold", "5000");
    if speculative {
        for (key, value) in [
            ("spark.cores.max", "4"),
            ("spark.scheduler.minRegisteredResourcesRatio", "1"),
            ("spark.scheduler.maxRegisteredResourcesWaitingTime", "300s"),
            ("spark.speculation", "true"),
            ("spark.speculation.interval", "100ms"),
            ("spark.speculation.quantile", "0.5"),
            ("spark.speculation.multiplier", "1.5"),
        ] {
            application = application.conf(key, value);
        }
    }
    let mut running = lab.run_through(&application)?;
    running.result(LIMIT)?;
    drop(cluster);
    let logs = logs(lab);
    let log = wait_for("the event log is finished", LIMIT, || {
        let mut entries = fs::read_dir(&logs)?.flatten().map(|entry| entry.path());
        Ok(entries.find(|path| path.extension().is_none_or(|end| end != "inprogress")))
    })?;
    let name = log.file_name().and_then(|name| name.to_str());
    let id = name.and_then(|name| name.split('.').next());
    let id = id.context("a log without a name")?.to_owned();
    anyhow::ensure!(only(&store)? == id, "the store has another application");
    Ok(Ended {
        lab,
        id,
        store,
        logs,
        log,
        speculative,
    })
}
