//! Every supported Spark, JDK and mode: the job's result is right, and storage, stages and tasks equal Spark's. One mode
//! of each version has the marker by Spark alone (`spark.jars`), without `-javaagent`.

use anyhow::{Result, ensure};
use serde_json::Value;
use smtt_tests::application::{LOCAL_CLUSTER, PAGE_RANK, PAGE_RANK_RESULT};
use smtt_tests::faults::{at_rest, between};
use smtt_tests::json::sum;
use smtt_tests::lab::{LIMIT, LabDaemon, SparkLab};
use smtt_tests::skip::skip;
use smtt_tests::truth::{same_faults_within, same_stages, same_storage, same_tasks};
use xtask::paths::{Jdk, Paths};
use xtask::process::wait_for;
use xtask::setup::setup;
use xtask::spark::Application;

/// Least number of page faults of an executor between the two gates.
const FAULTS_MIN: u64 = 2_000;
/// Share by which both sides' counts may differ. The job is short: 0.5 % of its 12,000 faults enter the kernel's
/// handler a second time; `page_faults.rs` compares ten times more faults.
const TOLERANCE: f64 = 0.02;

/// How the marker comes to the executors.
type Load = fn(Application, &Paths) -> Application;

fn page_rank(lab: &SparkLab, master: &str, marker: Load) -> Result<()> {
    let daemon = lab.daemon()?;
    let application = Application::java(&lab.paths, master, "PageRank", &PAGE_RANK)?;
    // No job begins before both executors of a stand-alone cluster are there.
    let application = marker(application, &lab.paths)
        .conf("spark.cores.max", "2")
        .conf("spark.scheduler.minRegisteredResourcesRatio", "1")
        .conf("spark.scheduler.maxRegisteredResourcesWaitingTime", "300s");
    // One mode of each version, and the newest JDK, have the compilers that users have.
    let application = if master == LOCAL_CLUSTER {
        application.both_compilers()
    } else {
        application
    };
    let mut run = lab.run(application)?;
    run.reach("begin")?;
    let begin = at_rest(&daemon, &run)?;
    run.open("begin")?;
    run.open("cached")?;
    run.reach("end")?;
    for (executor, pair) in &between(&begin, &at_rest(&daemon, &run)?) {
        ensure!(
            pair.kernel > FAULTS_MIN,
            "executor {executor}: too few faults to compare: {pair:?}"
        );
        same_faults_within(&format!("executor {executor}"), pair, TOLERANCE)?;
    }
    let cached = same_storage(&daemon, &run.submitted)?;
    assert!(cached.contains_key("links"), "{cached:?}");
    let tasks = same_tasks(&daemon, &run.submitted)?;
    assert!(tasks > 20, "only {tasks} tasks");
    same_stages(&daemon, &run.submitted)?;
    // The cached RDD was written, then read by every iteration.
    let mut rdds = run.rows(&daemon, &["rdds"])?;
    rdds.retain(|row| row["name"] == "links");
    assert!(
        sum(&rdds, "page_faults") > 0,
        "no page fault is counted for the RDD links: {rdds:#?}"
    );
    for executor in run.rows(&daemon, &["executors"])? {
        let missing = executor["missing_hooks"].as_array().map(Vec::len);
        assert_eq!(
            missing,
            Some(0),
            "hooks are missing in Spark {}: {executor:#?}",
            lab.spark.version
        );
    }
    let application = run.submitted.application_id()?;
    let executors = run.rows(&daemon, &["executors"])?.len();
    assert_eq!(run.finish(&["end"])?, PAGE_RANK_RESULT);
    ended_well(&daemon, &application, executors)
}

/// Executors of an application that ended well have ended, and none has died of anything.
fn ended_well(daemon: &LabDaemon<'_>, application: &str, executors: usize) -> Result<()> {
    let ends = wait_for("the executors' ends are judged", LIMIT, || {
        let list = daemon.json(&["postmortem", "--app", application])?;
        let rows = list["rows"].as_array().cloned().unwrap_or_default();
        Ok((rows.len() >= executors).then_some(rows))
    })?;
    let well = |row: &Value| row["verdict"] == "ended" || row["verdict"] == "stopped_by_spark";
    ensure!(
        ends.len() == executors && ends.iter().all(well),
        "{executors} executors ended well, and these are the verdicts: {ends:#?}"
    );
    Ok(())
}

fn mode(version: &str, master: &str, marker: Load) -> Result<()> {
    let lab = SparkLab::new(version)?;
    page_rank(&lab, master, marker)?;
    lab.passed()
}

fn standalone(version: &str, marker: Load) -> Result<()> {
    let lab = SparkLab::new(version)?;
    let cluster = lab.spark.standalone(2, 1, 1024)?;
    page_rank(&lab, &cluster.url, marker)?;
    drop(cluster);
    lab.passed()
}

#[test]
fn spark_3_5_local() -> Result<()> {
    mode("3.5.9", "local[*]", Application::with_marker_by_spark)
}

#[test]
fn spark_3_5_local_cluster() -> Result<()> {
    mode("3.5.9", LOCAL_CLUSTER, Application::with_marker)
}

#[test]
fn spark_3_5_standalone() -> Result<()> {
    standalone("3.5.9", Application::with_marker)
}

#[test]
fn spark_4_0_local() -> Result<()> {
    mode("4.0.5", "local[*]", Application::with_marker)
}

#[test]
fn spark_4_0_local_cluster() -> Result<()> {
    mode("4.0.5", LOCAL_CLUSTER, Application::with_marker)
}

#[test]
fn spark_4_0_standalone() -> Result<()> {
    standalone("4.0.5", Application::with_marker_by_spark)
}

#[test]
fn spark_4_3_local() -> Result<()> {
    mode("4.3.0", "local[*]", Application::with_marker)
}

#[test]
fn spark_4_3_local_cluster() -> Result<()> {
    mode("4.3.0", LOCAL_CLUSTER, Application::with_marker)
}

#[test]
fn spark_4_3_standalone() -> Result<()> {
    standalone("4.3.0", Application::with_marker)
}

#[test]
fn spark_4_3_on_the_newest_jdk() -> Result<()> {
    // Spark 4.3 is the only version here that runs on a JDK newer than 21.
    let Some(jdk) = Jdk::all().into_iter().rfind(|jdk| jdk.release > 17) else {
        return skip("jdk_after_17", "there is none under /usr/lib/jvm");
    };
    println!("Spark 4.3.0 on JDK {}", jdk.release);
    let lab = SparkLab::on("4.3.0", &jdk)?;
    page_rank(&lab, LOCAL_CLUSTER, Application::with_marker_by_spark)?;
    lab.passed()
}

/// Further versions, with `cargo xtask test versions`: they take half a gigabyte each.
#[test]
fn other_versions() -> Result<()> {
    let Ok(versions) = std::env::var("SMTT_SPARK_VERSIONS") else {
        return skip("other_versions", "`cargo xtask test versions` runs them");
    };
    for version in versions.split(',') {
        println!("Spark {version}");
        setup(&Paths::find()?, &[version])?;
        mode(version, LOCAL_CLUSTER, Application::with_marker_by_spark)?;
        standalone(version, Application::with_marker)?;
    }
    Ok(())
}
