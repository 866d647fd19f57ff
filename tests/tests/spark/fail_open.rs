//! The job's result does not depend on the tracer's failures.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use smtt_tests::application::{LOCAL_CLUSTER, PAGE_RANK, PAGE_RANK_RESULT};
use smtt_tests::lab::{LIMIT, Logs, SparkLab, executor_logs};
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

/// The plugin's class, in the settings and in the exception of a JVM that misses it.
const PLUGIN: &str = "io.smtt.marker.SmttPlugin";
/// No jar.
const MISSING: &str = "/nonexistent/smtt-marker.jar";
/// What a JVM says whose plugin is in no jar, see docs/TROUBLESHOOTING.md.
const NO_CLASS: &str = "java.lang.ClassNotFoundException: io.smtt.marker.SmttPlugin";
/// What a JVM says whose agent's jar is missing.
const NO_AGENT: &str =
    "Error opening zip file or JAR manifest missing : /nonexistent/smtt-marker.jar";

/// One small executor, and these settings.
fn one_executor(lab: &SparkLab, settings: &[(&str, &str)]) -> Result<Application> {
    let application = Application::java(
        &lab.paths,
        "local-cluster[1,1,1024]",
        "PageRank",
        &PAGE_RANK,
    )?;
    let with = |all: Application, (key, value): &(&str, &str)| all.conf(key, value);
    Ok(settings.iter().fold(application, with))
}

/// Runs an application that must fail; returns all logs.
fn fails(lab: &SparkLab, settings: &[(&str, &str)]) -> Result<Logs> {
    let end = lab
        .run_through(&one_executor(lab, settings)?)?
        .result(LIMIT);
    ensure!(
        end.is_err_and(|error| error.to_string().contains("the application failed")),
        "the application did not fail with {settings:?}"
    );
    Logs::read(lab.folder())
}

#[test]
fn a_driver_without_the_configured_jar_does_not_run() -> Result<()> {
    let agent = format!("-javaagent:{MISSING}");
    let plugin = ("spark.plugins.defaultList", PLUGIN);
    for (way, settings, said) in [
        ("jars/ of Spark", &[plugin][..], NO_CLASS),
        (
            "the class path",
            &[
                plugin,
                ("spark.driver.extraClassPath", MISSING),
                ("spark.executor.extraClassPath", MISSING),
            ],
            NO_CLASS,
        ),
        (
            "--jars",
            &[("spark.jars", MISSING), ("spark.plugins", PLUGIN)],
            NO_CLASS,
        ),
        (
            "-javaagent",
            &[plugin, ("spark.driver.defaultJavaOptions", agent.as_str())],
            NO_AGENT,
        ),
    ] {
        let lab = SparkLab::new("4.0.5")?;
        let logs = fails(&lab, settings).context(way)?;
        ensure!(
            logs.of_driver.len() == 1 && logs.of_driver[0].contains(said),
            "{way}: {logs:#?}"
        );
        ensure!(logs.of_executors.is_empty(), "{way}: {logs:#?}");
        ensure!(
            way != "--jars" || logs.of_driver[0].contains("does not exist, skipping"),
            "{logs:#?}"
        );
        lab.passed()?;
    }
    Ok(())
}

/// A stand-alone master starts executors again for ever that have started and then end.
#[test]
fn executors_without_the_configured_jar_end_and_are_started_again() -> Result<()> {
    let agent = format!("-javaagent:{MISSING}");
    for (way, setting, said) in [
        (
            "the class path",
            ("spark.executor.extraClassPath", MISSING),
            NO_CLASS,
        ),
        (
            "-javaagent",
            ("spark.executor.defaultJavaOptions", agent.as_str()),
            NO_AGENT,
        ),
    ] {
        let lab = SparkLab::new("4.0.5")?;
        let jar = lab.paths.marker().join("smtt-marker.jar");
        let jar = jar.display().to_string();
        let plugin = ("spark.plugins.defaultList", PLUGIN);
        // The driver's host has the jar.
        let driver = ("spark.driver.extraClassPath", jar.as_str());
        let application = one_executor(&lab, &[plugin, driver, setting])?;
        let mut submitted = lab.run_through(&application)?;
        // Executors end one after the other.
        let folder = lab.folder().join("spark");
        wait_for("two executors have ended", LIMIT, || {
            Ok((outputs(&folder)?.matches(said).count() >= 2).then_some(()))
        })
        .with_context(|| format!("{way}: {said} is not said twice in {}", folder.display()))?;
        let log = std::fs::read_to_string(submitted.running.log())?;
        ensure!(log.contains("Command exited with code 1"), "{way}: {log}");
        // By Spark's own list no executor has had a task.
        let listed = submitted.rest("allexecutors")?;
        let listed = listed.as_array().context("Spark lists no executors")?;
        ensure!(
            listed.iter().all(|executor| executor["totalTasks"] == 0),
            "{way}: {listed:#?}"
        );
        ensure!(
            submitted.running.poll()?.is_none(),
            "{way}: the application ended"
        );
        submitted.running.stop();
        lab.passed()?;
    }
    Ok(())
}

/// Standard output and standard error of all executors.
fn outputs(folder: &Path) -> Result<String> {
    let mut text = String::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir()? {
            let path = entry?.path();
            if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            } else if path.ends_with("stderr") || path.ends_with("stdout") {
                text.push_str(&String::from_utf8_lossy(&std::fs::read(&path)?));
            }
        }
    }
    Ok(text)
}

fn lines_of_marker(logs: &str) -> String {
    logs.lines()
        .filter(|line| line.contains("smtt-marker: "))
        .collect::<Vec<_>>()
        .join("\n")
}
