//! The job's result does not depend on the tracer's failures.

use anyhow::Result;
use smtt_tests::application::{LOCAL_CLUSTER, PAGE_RANK, PAGE_RANK_RESULT};
use smtt_tests::lab::{LIMIT, SparkLab, executor_logs};
use xtask::daemon::Daemon;
use xtask::process::wait_for;
use xtask::spark::Application;

/// An application with a unique name: other applications may run on the machine.
fn application(lab: &SparkLab) -> Result<Application> {
    let application = Application::java(&lab.paths, LOCAL_CLUSTER, "PageRank", &PAGE_RANK)?;
    Ok(application.conf("spark.app.name", &lab.folder().display().to_string()))
}

/// Whether the daemon traces an executor of the application with that name.
fn traced(lab: &SparkLab, daemon: &Daemon) -> Result<bool> {
    let name = lab.folder().display().to_string();
    let executors = daemon.rows(&["executors"])?;
    Ok(executors
        .iter()
        .any(|executor| executor["application_name"].as_str() == Some(&name)))
}

#[test]
fn without_the_marker() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let daemon = lab.daemon()?;
    assert_eq!(
        lab.run_through(&application(&lab)?)?.result(LIMIT)?,
        PAGE_RANK_RESULT
    );
    assert!(
        !traced(&lab, &daemon)?,
        "a JVM without the marker is no executor"
    );
    drop(daemon);
    lab.passed()
}

#[test]
fn without_a_daemon() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let mut submitted = lab.run_through(&application(&lab)?.with_marker(&lab.paths))?;
    assert_eq!(submitted.result(LIMIT)?, PAGE_RANK_RESULT);
    let logs = executor_logs(lab.folder())?;
    let said = lines_of_marker(&logs);
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines.len(), 2, "nothing else is to be said: {said}");
    for (executor, line) in lines.iter().enumerate() {
        let begin = format!("smtt-marker: on in executor {executor} of app-");
        assert!(
            line.starts_with(&begin) && line.ends_with(", Spark 4.0.5, no hook missing"),
            "{said}"
        );
    }
    lab.passed()
}

#[test]
fn the_daemon_is_killed_in_the_middle() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let mut daemon = lab.daemon()?;
    let mut run = lab.run(application(&lab)?.with_marker(&lab.paths))?;
    run.open("begin")?;
    run.reach("cached")?;
    wait_for("both executors are known", LIMIT, || {
        Ok((run.rows(&daemon, &["executors"])?.len() == 2).then_some(()))
    })?;
    run.open("cached")?;
    // Tasks are running at this moment.
    daemon.kill();
    assert_eq!(run.finish(&["end"])?, PAGE_RANK_RESULT);
    // The killed daemon left its socket; the next one replaces it.
    daemon.start_again()?;
    drop(daemon);
    lab.passed()
}

#[test]
fn without_the_native_library() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let daemon = lab.daemon()?;
    let jar = lab.paths.marker().join("smtt-marker.jar");
    let marked = application(&lab)?.with_marker_at(&jar, "library=/nonexistent/libsmtt_marker.so");
    assert_eq!(lab.run_through(&marked)?.result(LIMIT)?, PAGE_RANK_RESULT);
    assert!(!traced(&lab, &daemon)?);
    let logs = executor_logs(lab.folder())?;
    assert!(
        logs.contains("the job runs unchanged"),
        "the missing library is not warned of"
    );
    drop(daemon);
    lab.passed()
}

#[test]
fn with_a_spark_whose_hook_is_missing() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let daemon = lab.daemon()?;
    let patched = lab.folder().join("patched");
    let patched_path = patched.display().to_string();
    lab.spark.helper(
        &lab.paths,
        "RenameMethod",
        &[
            "org.apache.spark.storage.memory.MemoryStore",
            "putIterator",
            &patched_path,
        ],
    )?;
    let marked = application(&lab)?
        .with_marker(&lab.paths)
        .conf("spark.executor.extraClassPath", &patched_path);
    let mut run = lab.run(marked)?;
    run.open("begin")?;
    run.open("cached")?;
    run.reach("end")?;
    // Only the facts of the missing hook are missing.
    smtt_tests::truth::same_tasks(&daemon, &run.submitted)?;
    for executor in run.rows(&daemon, &["executors"])? {
        let missing = executor["missing_hooks"].to_string();
        assert!(
            missing.contains("putIterator"),
            "the missing hook is not named: {executor:#?}"
        );
    }
    assert_eq!(run.finish(&["end"])?, PAGE_RANK_RESULT);
    let logs = executor_logs(lab.folder())?;
    let warnings = logs
        .lines()
        .filter(|line| line.contains("smtt-marker: ") && line.contains("putIterator"))
        .count();
    assert_eq!(
        warnings,
        2,
        "one warning per executor: {}",
        lines_of_marker(&logs)
    );
    drop(daemon);
    lab.passed()
}

fn lines_of_marker(logs: &str) -> String {
    logs.lines()
        .filter(|line| line.contains("smtt-marker: "))
        .collect::<Vec<_>>()
        .join("\n")
}
