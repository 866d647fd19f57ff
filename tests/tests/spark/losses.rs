//! With far too little room on the way, records are missing, and every one that is missing has a name.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use smtt_tests::lab::{Lab, Run};
use xtask::daemon::{Daemon, Options};
use xtask::paths::DEMO_SPARK;
use xtask::spark::Application;

use crate::LOCAL_CLUSTER;

/// How long the last records may take to their segment, whose time is one second.
const SETTLE: Duration = Duration::from_secs(30);
/// Far fewer than an executor of this job tells in its busiest second.
const FACTS_PER_SECOND: u64 = 12;
/// Facts that are accesses, each of which is a record.
const ACCESSES: [&str; 7] = [
    "blockStored",
    "blockMoved",
    "blockRead",
    "blockRemoved",
    "pageAllocated",
    "pageFreed",
    "span",
];

/// Facts by kind.
pub type Kinds = BTreeMap<String, u64>;

/// Facts of one process by kind, from the log that its marker keeps itself.
pub fn told(log: &Path) -> Result<Kinds> {
    let mut kinds = Kinds::new();
    let text = String::from_utf8_lossy(&std::fs::read(log)?).into_owned();
    for line in text.lines() {
        let kind = line.split(' ').nth(1).context("no kind")?;
        *kinds.entry(kind.to_owned()).or_default() += 1;
    }
    Ok(kinds)
}

/// The fact that a record was made of.
fn fact_of(kind: &str, on_page: bool) -> &'static str {
    match kind {
        "alive" if on_page => "pageAllocated",
        "put" | "alive" => "blockStored",
        "move" => "blockMoved",
        "get" => "blockRead",
        "drop" => "blockRemoved",
        "allocate" => "pageAllocated",
        "free" => "pageFreed",
        _ => "span",
    }
}

/// Records in finished segments, by executor and fact.
pub fn written(
    daemon: &Daemon,
    folder: &Path,
    application: &str,
) -> Result<BTreeMap<String, Kinds>> {
    let folder = folder.display().to_string();
    let lines = daemon.ask(&["trace", "--folder", &folder, "--app", application, "--json"])?;
    let mut all: BTreeMap<String, Kinds> = BTreeMap::new();
    for line in lines.lines() {
        let record: serde_json::Value = serde_json::from_str(line)?;
        let kind = record["kind"].as_str().context("no kind")?;
        // A block of many ranges is read in one access that takes several records.
        if matches!(kind, "get" | "drop") && record["range_first"].as_u64() > Some(0) {
            continue;
        }
        let executor = record["executor_id"].as_str().context("no executor")?;
        let fact = fact_of(kind, record["region"] == "execution");
        let kinds = all.entry(executor.to_owned()).or_default();
        *kinds.entry(fact.to_owned()).or_default() += 1;
    }
    Ok(all)
}

/// Facts that are accesses, or that are none.
pub fn sum(kinds: &Kinds, accesses: bool) -> u64 {
    let wanted = kinds
        .iter()
        .filter(|(kind, _)| ACCESSES.contains(&kind.as_str()) == accesses);
    wanted.map(|(_, count)| count).sum()
}

/// Compares every process of the application, and returns its accesses told, written and lost.
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
    let lab = Lab::new(DEMO_SPARK)?;
    let folder = lab.folder().join("trace");
    let logs = lab.folder().join("told");
    std::fs::create_dir(&logs)?;
    let daemon = lab.daemon_with(&Options {
        toml: format!(
            "[trace]\nenabled = true\nfolder = {:?}\nsegment_seconds = 1\n\n[limits]\nring = \"8KiB\"\n\n\
             [probe.marker]\nfacts_per_second = {FACTS_PER_SECOND}\n",
            folder.display().to_string()
        ),
        ..Options::default()
    })?;
    let jar = lab.paths.marker().join("smtt-marker.jar");
    let job = ["20000", "8", "3", "4", "MEMORY_ONLY_SER"];
    let application = Application::java(&lab.paths, LOCAL_CLUSTER, "PageRank", &job)?
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
            // Records are on their way, or the marker tells everything again.
            Err(_) => std::thread::sleep(Duration::from_millis(300)),
        }
    };
    println!("{told} accesses told, {written} written, {lost} lost");
    ensure!(
        lost > 0 && written > 0,
        "{told} accesses told, {written} written, {lost} lost: the limit was not too low, or nothing came"
    );
    assert_eq!(told, written + lost);
    assert_eq!(
        run.finish(&["end"])?,
        crate::PAGE_RANK_RESULT,
        "losses do not change the job"
    );
    lab.passed()
}
