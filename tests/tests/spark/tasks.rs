//! Tasks and stages equal those of Spark's REST API: none missing, none extra, whatever their outcome.

use anyhow::Result;
use smtt_tests::application::LOCAL_CLUSTER;
use smtt_tests::course::same_course;
use smtt_tests::lab::SparkLab;
use smtt_tests::truth::{same_stages, same_tasks};
use xtask::spark::Application;

/// Successes, a failed attempt with a retry, a retried stage, killed tasks.
fn every_outcome(version: &str) -> Result<()> {
    let lab = SparkLab::new(version)?;
    let daemon = lab.daemon()?;
    let application =
        Application::java(&lab.paths, LOCAL_CLUSTER, "Outcomes", &["4"])?.with_marker(&lab.paths);
    let mut run = lab.run(application)?;
    run.open("begin")?;
    run.reach("end")?;
    let tasks = same_tasks(&daemon, &run.submitted)?;
    // 4 plain, 4 and one more attempt, 4 map tasks, 3 tasks that lose a fetch, tasks of the second attempt
    // (the lost partition at least), 2 that ran when the job was cancelled.
    assert!(tasks >= 19, "only {tasks} tasks were compared");
    same_stages(&daemon, &run.submitted)?;
    let courses = same_course(&daemon, &run.submitted)?;
    println!("{courses:?}");
    assert!(courses.len() >= 4, "not all states: {courses:?}");
    let states: Vec<String> = run
        .rows(&daemon, &["tasks"])?
        .iter()
        .filter_map(|task| task["state"].as_str().map(str::to_owned))
        .collect();
    for state in ["succeeded", "failed", "killed"] {
        assert!(
            states.iter().any(|seen| seen == state),
            "no task is listed as {state}: {states:?}"
        );
    }
    assert_eq!(run.finish(&["end"])?, "RESULT outcomes 4 4 4");
    drop(daemon);
    lab.passed()
}

#[test]
fn every_outcome_in_spark_3_5() -> Result<()> {
    every_outcome("3.5.9")
}

#[test]
fn every_outcome_in_spark_4_0() -> Result<()> {
    every_outcome("4.0.5")
}

#[test]
fn every_outcome_in_spark_4_3() -> Result<()> {
    every_outcome("4.3.0")
}
