//! With limits that are far too small records are lost, and every loss has a name.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use smtt_tests::application::{LOCAL_CLUSTER, PAGE_RANK, PAGE_RANK_RESULT};
use smtt_tests::lab::{Run, SparkLab};
use smtt_tests::records::{ACCESSES, Kinds, sum, told, tracing, written};
use xtask::daemon::Daemon;
use xtask::paths::DEMO_SPARK;
use xtask::spark::Application;

/// How long the last records may take to reach their segment, which lasts one second.
const SETTLE: Duration = Duration::from_secs(90);
/// Far fewer facts than an executor of this job sends in its busiest second.
const FACTS_PER_SECOND: u64 = 12;
/// Lines about executors that the daemon logs in a minute.
const LINES: u64 = 20;

/// The daemon's log names the losses by application, in few lines, and has no codes of a terminal.
fn are_logged(daemon: &Daemon, application: &str, began: Instant) -> Result<()> {
    let log = std::fs::read_to_string(daemon.log())?;
    ensure!(!log.contains('\u{1b}'), "escape codes in {log}");
    let of_losses = |line: &&str| line.contains(" were lost: it is asked for a snapshot");
    let lines: Vec<&str> = log.lines().filter(of_losses).collect();
    println!("{} lines: {:?}", lines.len(), lines.first());
    ensure!(
        lines.iter().any(|line| line.contains(application)),
        "no loss of {application} in {log}"
    );
    let minutes = began.elapsed().as_secs() / 60 + 1;
    ensure!(lines.len() as u64 <= LINES * minutes, "{log}");
    Ok(())
}

/// Compares every process of the application, and returns its accesses: sent, written and lost.
fn compare(
    daemon: &Daemon,
    run: &Run,
    logs: &Path,
    folder: &Path,
) -> Result<Result<[u64; 3], String>> {
    let written = written(daemon, folder, &run.submitted.application_id()?)?;
    let mut totals = [0; 3];
    for row in run.rows(daemon, &["executors"])? {
        let pid = row["pid"].as_u64().context("no pid")?;
        let executor = row["executor_id"].as_str().context("no executor")?;
        let kinds =
            |field: &str| -> Result<Kinds> { Ok(serde_json::from_value(row[field].clone())?) };
        let (came, lost) = (kinds("facts_by_kind")?, kinds("facts_dropped_by_cause")?);
        let told = told(&logs.join(pid.to_string()))?;
        let none = Kinds::new();
        let written = written.get(executor).unwrap_or(&none);
        let lost: u64 = lost.values().sum();
        let accesses_lost = sum(&told, true) - sum(written, true).min(sum(&told, true));
        let others_lost = sum(&told, false) - sum(&came, false).min(sum(&told, false));
        let accesses_came: Kinds = came
            .iter()
            .filter(|(kind, _)| ACCESSES.contains(&kind.as_str()))
            .map(|(kind, count)| (kind.clone(), *count))
            .collect();
        if *written != accesses_came
            || accesses_lost + others_lost != lost
            || told.values().sum::<u64>() != row["facts"].as_u64().context("no facts")?
        {
            return Ok(Err(format!(
                "executor {executor}: told {told:?}, came {came:?}, written {written:?}: {accesses_lost} accesses and \
                 {others_lost} others are missing, the daemon names {lost} of {} facts",
                row["facts"]
            )));
        }
        totals[0] += sum(&told, true);
        totals[1] += sum(written, true);
        totals[2] += accesses_lost;
    }
    Ok(Ok(totals))
}

#[test]
fn records_are_the_accesses_told_less_the_losses_that_have_a_name() -> Result<()> {
    let lab = SparkLab::new(DEMO_SPARK)?;
    let folder = lab.folder().join("trace");
    let logs = lab.folder().join("told");
    std::fs::create_dir(&logs)?;
    let began = Instant::now();
    let daemon = lab.daemon_with(&tracing(
        &folder,
        &format!(
            "[limits]\nring = \"8KiB\"\n\n\
             [probe.marker]\nfacts_per_second = {FACTS_PER_SECOND}\n"
        ),
    ))?;
    let jar = lab.paths.marker().join("smtt-marker.jar");
    let application = Application::java(&lab.paths, LOCAL_CLUSTER, "PageRank", &PAGE_RANK)?
        .with_marker_at(&jar, &format!("log={}/%p", logs.display()));
    let mut run = lab.run(application)?;
    run.open("begin")?;
    run.open("cached")?;
    run.reach("end")?;
    let start = Instant::now();
    let [told, written, lost] = loop {
        match compare(&daemon, &run, &logs, &folder)? {
            Ok(totals) => break totals,
            Err(different) if start.elapsed() > SETTLE => bail!(
                "{different}: {}",
                serde_json::to_string_pretty(&daemon.json(&["status"])?["ledger"])?
            ),
            // Records are in flight, or the marker resyncs.
            Err(_) => std::thread::sleep(Duration::from_millis(300)),
        }
    };
    println!("{told} accesses told, {written} written, {lost} lost");
    ensure!(
        lost > 0 && written > 0,
        "{told} accesses told, {written} written, {lost} lost: the limit was not too low, or nothing came"
    );
    assert_eq!(told, written + lost);
    are_logged(&daemon, &run.submitted.application_id()?, began)?;
    assert_eq!(
        run.finish(&["end"])?,
        PAGE_RANK_RESULT,
        "losses do not change the job"
    );
    drop(daemon);
    lab.passed()
}
