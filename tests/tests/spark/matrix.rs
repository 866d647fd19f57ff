//! Every supported Spark, JDK and mode: the job's result is right, and storage, stages and tasks equal Spark's.

use anyhow::{Result, ensure};
use smtt_tests::application::{LOCAL_CLUSTER, PAGE_RANK, PAGE_RANK_RESULT};
use smtt_tests::faults::{at_rest, between};
use smtt_tests::json::sum;
use smtt_tests::lab::SparkLab;
use smtt_tests::skip::skip;
use smtt_tests::truth::{same_faults_within, same_stages, same_storage, same_tasks};
use xtask::paths::Jdk;
use xtask::spark::Application;

/// Least number of page faults of an executor between the two gates.
const FAULTS_MIN: u64 = 2_000;
/// Share by which both sides' counts may differ. The job is short: 0.5 % of its 12,000 faults enter the kernel's
/// handler a second time; `page_faults.rs` compares ten times more faults.
const TOLERANCE: f64 = 0.02;

fn page_rank(lab: &SparkLab, master: &str) -> Result<()> {
    let daemon = lab.daemon()?;
    let application =
        Application::java(&lab.paths, master, "PageRank", &PAGE_RANK)?.with_marker(&lab.paths);
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
    assert_eq!(run.finish(&["end"])?, PAGE_RANK_RESULT);
    Ok(())
}

fn mode(version: &str, master: &str) -> Result<()> {
    let lab = SparkLab::new(version)?;
    page_rank(&lab, master)?;
    lab.passed()
}

fn standalone(version: &str) -> Result<()> {
    let lab = SparkLab::new(version)?;
    let cluster = lab.spark.standalone(2, 1, 1024)?;
    page_rank(&lab, &cluster.url)?;
    drop(cluster);
    lab.passed()
}

#[test]
fn spark_3_5_local() -> Result<()> {
    mode("3.5.9", "local[*]")
}

#[test]
fn spark_3_5_local_cluster() -> Result<()> {
    mode("3.5.9", LOCAL_CLUSTER)
}

#[test]
fn spark_3_5_standalone() -> Result<()> {
    standalone("3.5.9")
}

#[test]
fn spark_4_0_local() -> Result<()> {
    mode("4.0.5", "local[*]")
}

#[test]
fn spark_4_0_local_cluster() -> Result<()> {
    mode("4.0.5", LOCAL_CLUSTER)
}

#[test]
fn spark_4_0_standalone() -> Result<()> {
    standalone("4.0.5")
}

#[test]
fn spark_4_3_local() -> Result<()> {
    mode("4.3.0", "local[*]")
}

#[test]
fn spark_4_3_local_cluster() -> Result<()> {
    mode("4.3.0", LOCAL_CLUSTER)
}

#[test]
fn spark_4_3_standalone() -> Result<()> {
    standalone("4.3.0")
}

#[test]
fn spark_4_3_on_the_newest_jdk() -> Result<()> {
    // Spark 4.3 is the only version here that runs on a JDK newer than 21.
    let Some(jdk) = Jdk::all().into_iter().rfind(|jdk| jdk.release > 17) else {
        return skip("jdk_after_17", "there is none under /usr/lib/jvm");
    };
    println!("Spark 4.3.0 on JDK {}", jdk.release);
    let lab = SparkLab::on("4.3.0", &jdk)?;
    page_rank(&lab, LOCAL_CLUSTER)?;
    lab.passed()
}
