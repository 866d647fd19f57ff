//! Trace files hold every access that the marker sent, and Spark and PyArrow can read them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use smtt_config::TraceSettings;
use smtt_daemon::recorder::Trace;
use smtt_store::folder::partition;
use smtt_store::record::{Kind, Origin, Record};
use smtt_tests::application::{LOCAL_CLUSTER, PAGE_RANK};
use smtt_tests::lab::{LIMIT, SparkLab};
use smtt_tests::records::{COUNT, Kinds, parse, tracing, whole_lines, word};
use xtask::daemon::Daemon;
use xtask::paths::DEMO_SPARK;
use xtask::process::{output, wait_for};
use xtask::spark::Application;

/// How long the last records may take to reach their segment, which lasts one second.
const SETTLE: Duration = Duration::from_secs(90);

/// Accesses by kind that the markers sent, from the logs that they write.
fn told(folder: &Path) -> Result<Kinds> {
    let activities = |code: &str| {
        let code = code.parse().ok()?;
        smtt_common::context::Activity(code).name()
    };
    let mut kinds = Kinds::new();
    for log in std::fs::read_dir(folder)? {
        let text = String::from_utf8_lossy(&std::fs::read(log?.path())?).into_owned();
        for line in whole_lines(&text) {
            let again = || {
                word(line, "flags")
                    .and_then(|flags| flags.parse::<u64>().ok())
                    .is_some_and(|flags| flags & smtt_common::event::marker::REPORTED_AGAIN != 0)
            };
            let kind = match line.split(' ').nth(1) {
                Some("blockStored" | "pageAllocated") if again() => "alive",
                Some("blockStored") => "put",
                Some("blockMoved") => "move",
                Some("blockRead") => "get",
                Some("blockRemoved") => "drop",
                Some("pageAllocated") => "allocate",
                Some("pageFreed") => "free",
                Some("span") => word(line, "activity")
                    .and_then(activities)
                    .with_context(|| format!("no activity in {line}"))?,
                _ => continue,
            };
            *kinds.entry(kind.to_owned()).or_default() += 1;
        }
    }
    Ok(kinds)
}

/// Waits until every access that was sent is in finished segments, and returns the counts by kind. A loss on the way is
/// an error that names the loss: this job is small. The records of other applications do not count.
fn settled(
    daemon: &Daemon,
    logs: &Path,
    trace: impl Fn(&[&str]) -> Result<String>,
) -> Result<Kinds> {
    let start = Instant::now();
    loop {
        let kinds = told(logs)?;
        let mut written = Kinds::new();
        for line in trace(&["--json"])?.lines() {
            let record: serde_json::Value = serde_json::from_str(line)?;
            let kind = record["kind"].as_str().context("no kind")?;
            // A block of many ranges takes several records per access; only the first one counts.
            if matches!(kind, "get" | "drop") && record["range_first"].as_u64() > Some(0) {
                continue;
            }
            *written.entry(kind.to_owned()).or_default() += 1;
        }
        if written == kinds {
            return Ok(kinds);
        }
        if start.elapsed() > SETTLE {
            bail!(
                "the markers told {kinds:?}, written are {written:?}: {}",
                serde_json::to_string_pretty(&daemon.json(&["status"])?["ledger"])?
            );
        }
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// A client that follows the trace from before the application starts.
struct Live {
    ctl: Child,
    said: PathBuf,
}

impl Live {
    fn start(daemon: &Daemon, said: &Path) -> Result<Self> {
        let mut command = daemon.command(&["trace", "--follow", "--json"]);
        let live = Self {
            ctl: command.stdout(std::fs::File::create(said)?).spawn()?,
            said: said.to_owned(),
        };
        wait_for("a client follows", LIMIT, || {
            let status = daemon.json(&["status"])?;
            let hops = status["ledger"].as_array().context("no ledger")?;
            Ok(hops.iter().any(|hop| hop["name"] == "follow").then_some(()))
        })?;
        Ok(live)
    }

    /// Waits until the client has received every record of the files.
    fn agrees(&self, application: &str, files: impl Fn() -> Result<String>) -> Result<()> {
        let start = Instant::now();
        loop {
            let said = std::fs::read_to_string(&self.said)?;
            let mut seen: Vec<&str> = whole_lines(&said)
                .filter(|line| line.contains(application))
                .collect();
            let written = files()?;
            let mut written: Vec<&str> = written.lines().collect();
            seen.sort_unstable();
            written.sort_unstable();
            if seen == written {
                println!("{} records came live", seen.len());
                return Ok(());
            }
            if start.elapsed() > SETTLE {
                bail!(
                    "{} records came live, {} are in files; the first that differs: {:?}",
                    seen.len(),
                    written.len(),
                    seen.iter().zip(&written).find(|(live, file)| live != file)
                );
            }
            std::thread::sleep(Duration::from_millis(300));
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // The client may have ended with the daemon.
        let _ = self.ctl.kill();
        let _ = self.ctl.wait();
    }
}

/// Writes trace files of a block that is put once and read twice, with three records per access; returns their folder.
fn block_of_many_ranges(folder: &Path, application: &str) -> Result<PathBuf> {
    let source = Arc::new(Origin {
        uid: Some(0),
        share: Some(0),
        application_id: application.to_owned(),
        host: "elsewhere".to_owned(),
        executor_id: "9".to_owned(),
        partition: partition(Some(0), application, "elsewhere"),
    });
    let settings = TraceSettings {
        folder: folder.to_owned(),
        segment_bytes: 1 << 20,
        segment_time: SETTLE,
        max_bytes: 1 << 30,
        max_files: 1 << 20,
        gid: None,
    };
    let (trace, queue) = Trace::start(settings, std::sync::Arc::default())?;
    for (time_ns, kind) in [(1, Kind::Put), (2, Kind::Get), (3, Kind::Get)] {
        let records = [0, 96, 192].map(|first| {
            let mut record = Record::new(Arc::clone(&source), time_ns, kind);
            record.rdd_id = Some(1_000_000);
            record.partition = Some(0);
            record.block_id = Some("rdd_1000000_0".to_owned());
            record.region = Some("storage");
            record.range_first = Some(first);
            record.range_total = Some(200);
            record.ranges = vec![((first + 1) << 16, 4096)];
            record
        });
        queue.send(records.to_vec());
    }
    drop(queue);
    if !trace.finish(SETTLE) {
        bail!("the records are not written");
    }
    Ok(folder.join(&source.partition))
}

#[test]
fn trace_files_hold_every_access_and_spark_reads_them() -> Result<()> {
    let lab = SparkLab::new(DEMO_SPARK)?;
    let folder = lab.folder().join("trace");
    let logs = lab.folder().join("told");
    std::fs::create_dir(&logs)?;
    let daemon = lab.daemon_with(&tracing(&folder, ""))?;
    let live = Live::start(&daemon, &lab.folder().join("live.json"))?;
    let jar = lab.paths.marker().join("smtt-marker.jar");
    let application = Application::java(&lab.paths, LOCAL_CLUSTER, "PageRank", &PAGE_RANK)?
        // Each block is read where it is: by default a task waits 3 s for its executor.
        .conf("spark.locality.wait", "300s")
        .with_marker_at(&jar, &format!("log={}/%p", logs.display()));
    let mut run = lab.run(application)?;
    let id = {
        run.open("begin")?;
        run.open("cached")?;
        run.reach("end")?;
        run.submitted.application_id()?
    };
    let trace = |more: &[&str]| -> Result<String> {
        let folder = folder.display().to_string();
        daemon.ask(&[&["trace", "--folder", &folder, "--app", &id], more].concat())
    };
    let kinds = settled(&daemon, &logs, trace)?;
    println!("told and written: {kinds:?}");
    for (kind, least) in [("put", 4), ("get", 12), ("allocate", 4), ("free", 4)] {
        assert!(
            kinds.get(kind).is_some_and(|count| *count >= least),
            "fewer than {least} of kind {kind}: {kinds:?}"
        );
    }

    live.agrees(&id, || trace(&["--json"]))?;

    // Reads the folder while the daemon continues to write.
    let python = lab.paths.spark_env(DEMO_SPARK).join("bin/python");
    let counted = output(
        Command::new(&python)
            .args(["-c", COUNT])
            .arg(&folder)
            .arg(&id),
    )?;
    assert_eq!(parse(&counted)?, kinds, "PyArrow");

    let links = run.rows(&daemon, &["rdds"])?;
    let links = links
        .iter()
        .find(|row| row["name"] == "links")
        .and_then(|row| row["rdd_id"].as_u64())
        .context("no RDD links")?
        .to_string();
    // Each cached partition is put once and read once in each of the three iterations, and each record has the fields
    // that the paper lists.
    let puts = trace(&["--rdd", &links, "--kind", "put", "--json"])?;
    let gets = trace(&["--rdd", &links, "--kind", "get", "--json"])?;
    assert_eq!(
        (puts.lines().count(), gets.lines().count()),
        (4, 12),
        "{puts}{gets}"
    );
    for line in puts.lines().chain(gets.lines()) {
        let record: serde_json::Value = serde_json::from_str(line)?;
        for column in [
            "time",
            "access",
            "executor_id",
            "stage_id",
            "task_attempt_id",
            "partition",
            "block_id",
            "virtual_address",
            "length_bytes",
            "first_page",
            "pages",
        ] {
            assert!(!record[column].is_null(), "no {column} in {line}");
        }
    }
    let text = trace(&["--rdd", &links])?;
    assert!(
        text.lines().count() >= 17,
        "a heading and 16 records: {text}"
    );
    assert!(
        text.lines().all(|line| line.matches(" | ").count() == 6),
        "{text}"
    );
    assert_eq!(
        trace(&["--csv"])?.lines().count() as u64,
        1 + kinds.values().sum::<u64>()
    );
    run.finish(&["end"])?;

    // Another worker's records of the same application: a block whose ranges take three records.
    let elsewhere = lab.folder().join("elsewhere");
    let told = block_of_many_ranges(&elsewhere, &id)?;
    let of_application = folder.join(format!("uid=0/application_id={id}"));
    std::fs::rename(told, of_application.join("host=elsewhere"))?;
    let script = lab.paths.root.join("docs/examples/trace_report.py");
    // The same folder; this application's records are complete.
    let report = Application::python(
        &lab.paths,
        "local[1]",
        &script.display().to_string(),
        &[&folder.display().to_string(), &id],
    )?;
    let result = lab.run_through(&report)?.result(LIMIT)?;
    let mut words = result.split_whitespace().skip(1);
    let sum: u64 = words.next().context("no sum")?.parse()?;
    let seen = parse(&words.collect::<Vec<_>>().join(" "))?;
    assert_eq!(sum, seen.values().sum::<u64>());
    // The end of the application adds frees and removals; earlier records stay.
    for (kind, count) in &kinds {
        assert!(
            seen.get(kind).is_some_and(|more| more >= count),
            "Spark reads fewer than {count} of kind {kind}: {seen:?}"
        );
    }
    let with_elsewhere = |kind: &str, more| kinds.get(kind).map(|count| count + more);
    assert_eq!(seen.get("put").copied(), with_elsewhere("put", 1), "Spark");
    assert_eq!(seen.get("get").copied(), with_elsewhere("get", 2), "Spark");
    drop(live);
    drop(daemon);
    lab.passed()
}

/// Partitions of every cached RDD, and the reads of each.
const PARTITIONS: u64 = 5;
const READS: u64 = 4;

#[test]
fn reads_of_a_known_workload_are_as_many_as_it_made() -> Result<()> {
    let lab = SparkLab::new(DEMO_SPARK)?;
    let folder = lab.folder().join("trace");
    let logs = lab.folder().join("told");
    std::fs::create_dir(&logs)?;
    let daemon = lab.daemon_with(&tracing(&folder, ""))?;
    let jar = lab.paths.marker().join("smtt-marker.jar");
    let job = [
        PARTITIONS.to_string(),
        "300000".to_owned(),
        READS.to_string(),
    ];
    let job: Vec<&str> = job.iter().map(String::as_str).collect();
    let application = Application::java(&lab.paths, LOCAL_CLUSTER, "KnownReads", &job)?
        // A task reads where its partition is: a block that is fetched from another executor is no read of this memory.
        .conf("spark.locality.wait", "300s")
        .conf("spark.memory.offHeap.enabled", "true")
        .conf("spark.memory.offHeap.size", "256m")
        .with_marker_at(&jar, &format!("log={}/%p", logs.display()));
    let mut run = lab.run(application)?;
    run.reach("read")?;
    let id = run.submitted.application_id()?;
    let trace = |more: &[&str]| -> Result<String> {
        let folder = folder.display().to_string();
        daemon.ask(&[&["trace", "--folder", &folder, "--app", &id], more].concat())
    };
    let kinds = settled(&daemon, &logs, trace)?;
    println!("told and written: {kinds:?}");

    let stored = run.submitted.rest("storage/rdd")?;
    let stored = stored.as_array().context("no stored RDDs")?;
    assert_eq!(stored.len(), 5, "{stored:?}");
    for rdd in stored {
        let name = rdd["name"].as_str().context("no name")?;
        let rdd = rdd["id"].as_u64().context("no id")?.to_string();
        let mut reads: BTreeMap<u64, u64> = BTreeMap::new();
        for line in trace(&["--rdd", &rdd, "--kind", "get", "--json"])?.lines() {
            let record: serde_json::Value = serde_json::from_str(line)?;
            let told = record["range_total"].as_u64().context("no range_total")?;
            let further = record["further_addresses"].as_array().map_or(0, Vec::len) as u64;
            let first = u64::from(
                record["virtual_address"].is_string() || record["virtual_address"].is_u64(),
            );
            // The first object of the sample stands for all: the put's record has it.
            let expected = if record["contents"] == "objects" {
                told.min(1)
            } else {
                told
            };
            assert_eq!(first + further, expected, "not all ranges of {line}");
            *reads
                .entry(record["partition"].as_u64().context("no partition")?)
                .or_default() += 1;
        }
        // `first()` reads partition 0 once more; the columns are only read as a whole.
        let expected: BTreeMap<u64, u64> = (0..PARTITIONS)
            .map(|partition| {
                let more = partition == 0 && !name.contains("columns");
                (partition, READS + u64::from(more))
            })
            .collect();
        assert_eq!(reads, expected, "reads of {name} by partition");
        for block in run.rows(&daemon, &["blocks", "--rdd", &rdd])? {
            let partition = block["partition"].as_u64().context("no partition")?;
            assert_eq!(
                block["reads"].as_u64(),
                expected.get(&partition).copied(),
                "{block}"
            );
        }
    }
    run.open("read")?;
    run.reach("end")?;
    let kinds = settled(&daemon, &logs, trace)?;
    let drops = trace(&["--kind", "drop", "--json"])?;
    assert!(
        kinds
            .get("drop")
            .is_some_and(|drops| *drops >= 4 * PARTITIONS),
        "four RDDs were unpersisted: {kinds:?}"
    );
    assert!(
        drops
            .lines()
            .any(|line| line.contains("further_addresses") || line.contains("virtual_address")),
        "{drops}"
    );
    run.finish(&["end"])?;
    drop(daemon);
    lab.passed()
}
