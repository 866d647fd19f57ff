//! The job's result is the same whatever happens to the tracer.

use anyhow::{Context, Result};
use smtt_tests::lab::Lab;
use xtask::daemon::Daemon;
use xtask::spark::Application;

use crate::{LOCAL_CLUSTER, PAGE_RANK, PAGE_RANK_RESULT};

/// Its name tells it apart from whatever else runs on the machine.
fn application(lab: &Lab) -> Result<Application> {
    let application = Application::java(&lab.paths, LOCAL_CLUSTER, "PageRank", &PAGE_RANK)?;
    Ok(application.conf("spark.app.name", &lab.folder().display().to_string()))
}

/// Whether the daemon has seen an executor of that name's application.
fn traced(lab: &Lab, daemon: &Daemon) -> Result<bool> {
    let name = lab.folder().display().to_string();
    let executors = daemon.rows(&["executors"])?;
    Ok(executors
        .iter()
        .any(|executor| executor["application_name"].as_str() == Some(&name)))
}

/// What the executors and the driver wrote to their logs.
fn executor_logs(lab: &Lab) -> Result<String> {
    let mut text = String::new();
    let mut folders = vec![lab.folder().join("spark")];
    while let Some(folder) = folders.pop() {
        for entry in folder
            .read_dir()
            .with_context(|| format!("cannot list {}", folder.display()))?
        {
            let path = entry?.path();
            if path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if path.file_name().is_some_and(|name| name == "stderr")
                || path.extension().is_some_and(|extension| extension == "log")
            {
                text.push_str(&String::from_utf8_lossy(&std::fs::read(&path)?));
            }
        }
    }
    Ok(text)
}

#[test]
fn without_the_marker() -> Result<()> {
    let lab = Lab::new("4.0.5")?;
    let daemon = lab.daemon()?;
    assert_eq!(
        lab.run_through(&application(&lab)?)?
            .result(smtt_tests::lab::LIMIT)?,
        PAGE_RANK_RESULT
    );
    assert!(
        !traced(&lab, &daemon)?,
        "a JVM without the marker is no executor"
    );
    lab.passed()
}

#[test]
fn without_a_daemon() -> Result<()> {
    let lab = Lab::new("4.0.5")?;
    let mut submitted = lab.run_through(&application(&lab)?.with_marker(&lab.paths))?;
    assert_eq!(submitted.result(smtt_tests::lab::LIMIT)?, PAGE_RANK_RESULT);
    let logs = executor_logs(&lab)?;
    assert!(
        !logs.contains("smtt-marker: "),
        "nothing is wrong, so the marker has nothing to say: {}",
        lines_of_marker(&logs)
    );
    lab.passed()
}

#[test]
fn the_daemon_is_killed_in_the_middle() -> Result<()> {
    let lab = Lab::new("4.0.5")?;
    let mut daemon = lab.daemon()?;
    let mut run = lab.run(application(&lab)?.with_marker(&lab.paths))?;
    run.open("begin")?;
    run.reach("cached")?;
    assert_eq!(run.rows(&daemon, &["executors"])?.len(), 2);
    run.open("cached")?;
    // Tasks are running now.
    daemon.kill();
    assert_eq!(run.finish(&["end"])?, PAGE_RANK_RESULT);
    // It left a socket behind; the next one replaces it.
    daemon.start_again()?;
    lab.passed()
}

#[test]
fn without_the_native_library() -> Result<()> {
    let lab = Lab::new("4.0.5")?;
    let daemon = lab.daemon()?;
    let jar = lab.paths.marker().join("smtt-marker.jar");
    let marked = application(&lab)?.with_marker_at(&jar, "library=/nonexistent/libsmtt_marker.so");
    assert_eq!(
        lab.run_through(&marked)?.result(smtt_tests::lab::LIMIT)?,
        PAGE_RANK_RESULT
    );
    assert!(!traced(&lab, &daemon)?);
    let logs = executor_logs(&lab)?;
    assert!(
        logs.contains("smtt-marker: "),
        "the missing library is not warned of"
    );
    lab.passed()
}

#[test]
fn with_a_spark_whose_hook_is_missing() -> Result<()> {
    let lab = Lab::new("4.0.5")?;
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
    // Everything but what that hook tells is still told.
    smtt_tests::truth::same_tasks(&daemon, &run.submitted)?;
    for executor in run.rows(&daemon, &["executors"])? {
        let missing = executor["missing_hooks"].to_string();
        assert!(
            missing.contains("putIterator"),
            "the missing hook is not named: {executor:#?}"
        );
    }
    assert_eq!(run.finish(&["end"])?, PAGE_RANK_RESULT);
    let logs = executor_logs(&lab)?;
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
    lab.passed()
}

fn lines_of_marker(logs: &str) -> String {
    logs.lines()
        .filter(|line| line.contains("smtt-marker: "))
        .collect::<Vec<_>>()
        .join("\n")
}
