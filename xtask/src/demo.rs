//! `cargo xtask demo`: traces a real Spark application and shows its memory while it runs.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::daemon::{Daemon, Options};
use crate::paths::{Jdk, Paths};
use crate::process::{cargo, check_interrupt, is_root, on_terminal, show};
use crate::setup::setup;
use crate::spark::{Application, Spark, Submitted};
use crate::step::Steps;

const BUILD_LIMIT: Duration = Duration::from_secs(3600);
const RUN_LIMIT: Duration = Duration::from_secs(300);
/// Time between two updates, on a terminal and in a log.
const REFRESH: Duration = Duration::from_secs(2);
const REFRESH_IN_LOG: Duration = Duration::from_secs(6);
/// Rows of the table.
const ROWS: usize = 8;
/// Two executors with one core each: separate JVMs, as on a real cluster.
const MASTER: &str = "local-cluster[2,1,1024]";

/// Sets up, builds, traces PageRank and leaves the results in `target/demo`.
///
/// # Errors
/// When a part fails; every started program is stopped.
pub fn demo(paths: &Paths, version: &str, python: bool) -> Result<()> {
    if !is_root() {
        bail!("loading eBPF programs needs root: run it as root");
    }
    setup(paths, &[version])?;
    Steps::new(1).always(
        "release build of smtt-daemon and smtt-ctl",
        paths.logs().join("build.log"),
        |step| {
            let mut cargo = cargo();
            cargo
                .args([
                    "build",
                    "--release",
                    "--package",
                    "smtt-daemon",
                    "--package",
                    "smtt-ctl",
                ])
                .current_dir(&paths.root);
            step.run(&mut cargo, BUILD_LIMIT)
        },
    )?;

    let folder = paths.target.join("demo");
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    let gates = folder.join("gates");
    fs::create_dir_all(&gates)?;
    let daemon = Daemon::start(
        paths,
        &paths.target.join("release"),
        &folder,
        &Options::default(),
    )?;
    println!(
        "\ndaemon: pid {}, metrics on http://127.0.0.1:{}/metrics",
        daemon.pid(),
        daemon.port
    );
    println!("{}", probes(&daemon)?);

    let spark = Spark::new(paths, version, &Jdk::main()?, &folder.join("spark"))?;
    let application = application(paths, python)?;
    let language = if python { "Python" } else { "Java" };
    println!(
        "Spark {version}: PageRank in {language} on {MASTER}, web interface on http://127.0.0.1:{}\n",
        application.ui_port
    );
    // Only the last gate waits: the cached blocks still exist for the report.
    for gate in ["begin", "cached"] {
        fs::write(gates.join(format!("{gate}.go")), "")?;
    }
    let mut submitted = application
        .with_marker(paths)
        .conf("spark.smtt.fixture.barrier", &gates.display().to_string())
        .submit(&spark, "spark")?;
    watch(&daemon, &mut submitted, &gates.join("end.reached"))?;
    keep(&daemon, &submitted.application_id()?, &folder)?;
    fs::write(gates.join("end.go"), "")?;
    let result = submitted.result(RUN_LIMIT)?;
    println!(
        "\nthe application's own result: {}",
        result.trim_start_matches("RESULT ")
    );
    println!(
        "kept: {0}/report.html (open it in a browser), {0}/metrics.txt, {0}/report.json, {0}/daemon.log, {0}/spark/spark.log",
        shown(paths, &folder)
    );
    Ok(())
}

/// The PageRank of demo and benchmarks, without the marker.
///
/// # Errors
/// When set-up has not been done.
pub fn application(paths: &Paths, python: bool) -> Result<Application> {
    if python {
        Application::python(paths, MASTER, "pagerank.py", &["60000", "10", "4", "4"])
    } else {
        Application::java(
            paths,
            MASTER,
            "PageRank",
            &["400000", "10", "6", "4", "MEMORY_ONLY_SER"],
        )
    }
}

/// One line about the probes, and one more for each missing probe.
fn probes(daemon: &Daemon) -> Result<String> {
    let status = daemon.json(&["status"])?;
    let probes = status["probes"]
        .as_array()
        .context("smtt-ctl status --json lists no probes")?;
    let verdict = |probe: &Value, name: &str| probe["verdict"].as_str() == Some(name);
    let working: Vec<String> = probes
        .iter()
        .filter(|probe| verdict(probe, "ok"))
        .map(|probe| {
            probe["probe"]
                .as_str()
                .or(probe["name"].as_str())
                .unwrap_or("?")
                .to_owned()
        })
        .collect();
    let mut lines = vec![format!("probes: {}", working.join(", "))];
    for probe in probes
        .iter()
        .filter(|probe| verdict(probe, "unsupported") || verdict(probe, "broken"))
    {
        lines.push(format!(
            "  not {}: {}",
            probe["hook"].as_str().unwrap_or("?"),
            probe["reason"].as_str().unwrap_or("?")
        ));
    }
    Ok(lines.join("\n"))
}

/// Shows the RDDs with the most faults until the application waits at its last gate.
fn watch(daemon: &Daemon, submitted: &mut Submitted, reached: &Path) -> Result<()> {
    let start = Instant::now();
    let mut picture = Picture::default();
    let mut shown: Option<Instant> = None;
    let refresh = if on_terminal() {
        REFRESH
    } else {
        REFRESH_IN_LOG
    };
    while !reached.exists() {
        check_interrupt()?;
        if let Some(status) = submitted.running.poll()? {
            bail!(
                "the application ended early ({status}){}",
                submitted.running.hint()
            );
        }
        if start.elapsed() > RUN_LIMIT {
            bail!(
                "the application did not end within {} s{}",
                RUN_LIMIT.as_secs(),
                submitted.running.hint()
            );
        }
        if shown.is_none_or(|at| at.elapsed() >= refresh) {
            shown = Some(Instant::now());
            // Other executors on this machine are traced as well; the demo shows its own.
            let table = match submitted.application_id() {
                Ok(id) => daemon.ask(&["rdds", "--app", &id, "--sort", "page_faults:desc"])?,
                Err(_) => String::new(),
            };
            let lines: Vec<&str> = table.lines().take(ROWS + 4).collect();
            picture.draw(&format!(
                "{:3} s  {}\n{}",
                start.elapsed().as_secs(),
                progress(submitted),
                lines.join("\n")
            ));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    picture.clear();
    Ok(())
}

/// The application's progress according to Spark.
fn progress(submitted: &Submitted) -> String {
    let Ok(Value::Array(stages)) = submitted.rest("stages") else {
        return "Spark is starting".to_owned();
    };
    let count = |status: &str| {
        stages
            .iter()
            .filter(|stage| stage["status"].as_str() == Some(status))
            .count()
    };
    let tasks: u64 = stages
        .iter()
        .filter_map(|stage| stage["numCompleteTasks"].as_u64())
        .sum();
    let active = stages
        .iter()
        .find(|stage| stage["status"].as_str() == Some("ACTIVE"));
    let name = active
        .and_then(|stage| stage["name"].as_str())
        .unwrap_or("between stages");
    format!(
        "{} stages and {tasks} tasks done; now: {name}",
        count("COMPLETE")
    )
}

/// A block of lines that each update overwrites on a terminal.
#[derive(Default)]
struct Picture {
    lines: usize,
}

impl Picture {
    fn draw(&mut self, text: &str) {
        self.clear();
        show(&format!("{text}\n"));
        if on_terminal() {
            self.lines = text.lines().count();
        } else {
            show("\n");
        }
    }

    fn clear(&mut self) {
        if self.lines > 0 {
            show(&format!("\x1b[{}A\x1b[J", self.lines));
            self.lines = 0;
        }
    }
}

/// Prints the report, and writes it and the metrics to files.
fn keep(daemon: &Daemon, application: &str, folder: &Path) -> Result<()> {
    // Wait for another reading of the kernel's counters, which includes the last task.
    std::thread::sleep(Duration::from_millis(1500));
    println!(
        "{}",
        daemon.ask(&["report", "--app", application])?.trim_end()
    );
    println!(
        "{}",
        daemon.ask(&["advise", "--app", application])?.trim_end()
    );
    let page = folder.join("report.html").display().to_string();
    daemon.ask(&["report", "--html", "--app", application, "--output", &page])?;
    fs::write(folder.join("metrics.txt"), daemon.metrics()?)?;
    let report = daemon.json(&["report", "--app", application])?;
    fs::write(
        folder.join("report.json"),
        format!("{}\n", serde_json::to_string_pretty(&report)?),
    )?;
    Ok(())
}

fn shown(paths: &Paths, path: &Path) -> String {
    path.strip_prefix(&paths.root)
        .unwrap_or(path)
        .display()
        .to_string()
}
