//! Findings and the HTML document of a real application: a cached RDD that is never read has a finding, one that is
//! read has none, and the document gives the storage memory that Spark reports.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use smtt_tests::application::LOCAL_CLUSTER;
use smtt_tests::json::{number, sum};
use smtt_tests::lab::{LIMIT, Run, SparkLab, huge_pages, quick_placement};
use smtt_tests::skip::skip;
use smtt_tests::truth::same_storage;
use xtask::daemon::Daemon;
use xtask::process::wait_for;
use xtask::spark::Application;

/// Names of the application's RDDs; one contains markup.
const UNREAD: &str = "unread </bdi><b>bold</b> & more";
const READ: &str = "read";

/// Time for which an RDD's blocks must have been in memory before the rule says that they are never read.
const KEPT_NS: u64 = 5_000_000_000;

/// MiB of each of two RDDs: above the minimum of a finding about page sizes.
const LARGE_MIB: u64 = 96;
/// Most bytes of an RDD on small pages where its executors' heaps are on huge ones: below the threshold of a finding.
const SMALL_SHARE: f64 = 0.5;

/// Names of RDDs with a finding of that rule.
fn named<'a>(advice: &'a Value, rule: &str) -> Vec<&'a str> {
    let findings = advice["applications"][0]["findings"].as_array();
    findings
        .into_iter()
        .flatten()
        .filter(|finding| finding["id"] == rule)
        .filter_map(|finding| finding["subject"]["rdd_name"].as_str())
        .collect()
}

/// The advice for an application, once it matches.
fn advised(daemon: &Daemon, id: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
    let mut last = Value::Null;
    let advised = wait_for("the advice", LIMIT, || {
        last = daemon.json(&["advise", "--app", id])?;
        Ok(wanted(&last).then(|| last.clone()))
    });
    advised.with_context(|| format!("the advice is not as expected: {last:#}"))
}

/// The cells of the row in a table that begins with the name of an RDD.
fn row_of(page: &roxmltree::Document<'_>, table: &str, name: &str) -> Option<Vec<String>> {
    let table = page
        .descendants()
        .find(|node| node.attribute("id") == Some(table))?;
    let rows = table
        .descendants()
        .filter(|node| node.has_tag_name(("http://www.w3.org/1999/xhtml", "tr")));
    let texts = rows.map(|row| {
        let cells = row.children().filter(roxmltree::Node::is_element);
        cells
            .map(|cell| {
                cell.descendants()
                    .filter_map(|node| node.text().filter(|_| node.is_text()))
                    .collect::<String>()
            })
            .collect::<Vec<String>>()
    });
    texts
        .into_iter()
        .find(|cells| cells.first().is_some_and(|cell| cell.contains(name)))
}

#[test]
fn what_is_cached_and_never_read_is_found_and_the_page_says_what_spark_says() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let daemon = lab.daemon()?;
    let application =
        Application::java(&lab.paths, LOCAL_CLUSTER, "Unread", &["4", "24", "2", "1"])?
            .conf("spark.rdd.compress", "false")
            // Each block is read where it is: by default a task waits 3 s for its executor.
            .conf("spark.locality.wait", "300s")
            .with_marker(&lab.paths);
    let mut run = lab.run(application)?;
    run.open("cached")?;
    run.reach("read")?;

    let storage = same_storage(&daemon, &run.submitted)?;
    let id = run.submitted.application_id()?;
    // Facts of the last tasks may still be in flight.
    let advice = advised(&daemon, &id, |advice| {
        named(advice, "never_read") == [UNREAD]
    })?;
    let finding = &advice["applications"][0]["findings"]
        .as_array()
        .and_then(|findings| {
            findings
                .iter()
                .find(|finding| finding["id"] == "never_read")
        })
        .context("a finding")?;
    let number = |what: &str| {
        let numbers = finding["numbers"].as_array()?;
        numbers.iter().find(|number| number["what"] == what)?["value"].as_u64()
    };
    assert_eq!(
        number("storage memory now"),
        storage.get(UNREAD).copied(),
        "{finding:#}"
    );
    assert_eq!(number("blocks stored"), Some(4), "{finding:#}");
    let text = daemon.ask(&["advise", "--app", &id])?;
    assert!(text.contains("rdd.unpersist()"), "{text}");
    // One of the two RDDs was read: the daemon counts one read per task and block in each pass.
    wait_for("four partitions were read in each pass", LIMIT, || {
        let mut rows = run.rows(&daemon, &["rdds"])?;
        rows.retain(|row| row["name"] == READ);
        let reads = sum(&rows, "block_reads");
        Ok((reads >= 4 && reads.is_multiple_of(4)).then_some(()))
    })?;

    let file = lab.folder().join("report.html");
    daemon.ask(&[
        "report",
        "--html",
        "--app",
        &id,
        "--output",
        &file.display().to_string(),
    ])?;
    let page = std::fs::read_to_string(&file)?;
    assert!(
        page.matches("<script").count() == 1 && !page.contains("<b>bold"),
        "a name became markup"
    );
    let options = roxmltree::ParsingOptions {
        allow_dtd: true,
        ..roxmltree::ParsingOptions::default()
    };
    let parsed = roxmltree::Document::parse_with_options(&page, options)
        .context("the page is not well-formed")?;
    for name in [UNREAD, READ] {
        let row = row_of(&parsed, "holding", name).with_context(|| format!("no row of {name}"))?;
        let bytes = *storage.get(name).context("Spark caches it")?;
        let shown = format!("{:.1} MiB", bytes as f64 / 1_048_576.0);
        assert!(
            row.contains(&shown),
            "Spark says {shown} of {name}, the page {row:?}"
        );
    }
    run.finish(&["read"])?;
    drop(daemon);
    lab.passed()
}

/// Runs the application with further JVM options of the executors until its RDDs are at their final addresses; returns
/// the advice, once it matches, and the share of the RDDs' bytes on small pages.
fn with_heap_on(
    lab: &SparkLab,
    daemon: &Daemon,
    options: &str,
    wanted: impl Fn(&Value) -> bool,
) -> Result<(Value, f64)> {
    let size = LARGE_MIB.to_string();
    let application =
        Application::java(&lab.paths, LOCAL_CLUSTER, "Unread", &["4", &size, "0", "1"])?
            .conf("spark.rdd.compress", "false")
            .conf("spark.executor.extraJavaOptions", options)
            .with_marker(&lab.paths);
    let mut run = lab.run(application)?;
    run.open("cached")?;
    run.reach("read")?;
    let id = run.submitted.application_id()?;
    let pages = wait_for("all its bytes are examined", LIMIT, || {
        let mut rows = run.rows(daemon, &["pages"])?;
        rows.retain(|row| row["name"] == READ);
        let looked = sum(&rows, "present_bytes");
        Ok((looked >= (LARGE_MIB * 15) << 16).then_some(rows))
    })?;
    let on = |small: bool| {
        let sizes = pages
            .iter()
            .filter_map(|row| row["page_sizes"].as_array())
            .flatten();
        sum(
            sizes.filter(|size| (size["page_bytes"].as_u64() < Some(1 << 20)) == small),
            "bytes",
        )
    };
    let share = on(true) as f64 / (on(true) + on(false)).max(1) as f64;
    // In a moment in which the addresses of an executor are stale, its pages are unknown.
    let advice = advised(daemon, &id, wanted)?;
    run.finish(&["read"])?;
    Ok((advice, share))
}

#[test]
fn small_pages_are_found_where_they_are_and_not_where_the_heap_is_on_huge_ones() -> Result<()> {
    let mode = huge_pages()?;
    if mode != "madvise" {
        return skip(
            "madvise_huge_pages",
            format!("transparent huge pages are set to {mode}: a JVM cannot choose"),
        );
    }
    let lab = SparkLab::new("4.0.5")?;
    let daemon = lab.daemon_with(&quick_placement())?;
    let (advice, small) = with_heap_on(&lab, &daemon, "-Dsmall.pages=yes", |advice| {
        named(advice, "small_pages").contains(&READ)
    })?;
    println!("{:.1} % of it on small pages", 100.0 * small);
    assert!(small > 0.99, "{small} of it is on small pages");
    let findings = advice["applications"][0]["findings"].as_array();
    let finding = findings
        .into_iter()
        .flatten()
        .find(|finding| finding["id"] == "small_pages")
        .context("a finding")?;
    let text = finding.to_string();
    assert!(
        text.contains("-XX:+UseTransparentHugePages"),
        "what helps under {mode}: {finding:#}"
    );
    assert!(
        text.contains("page walks"),
        "that walks were not measured belongs to it: {finding:#}"
    );

    let options = "-XX:+UseTransparentHugePages -XX:+AlwaysPreTouch -Xms1024m";
    let (_, small) = with_heap_on(&lab, &daemon, options, |advice| {
        let checks = advice["applications"][0]["checks"].as_array();
        checks
            .into_iter()
            .flatten()
            .any(|check| check["id"] == "small_pages" && check["went"] == "nothing")
    })?;
    println!("{:.1} % of it on small pages", 100.0 * small);
    assert!(small < SMALL_SHARE, "{small} of it is on small pages");
    drop(daemon);
    lab.passed()
}

/// Figures of all tasks of an application from Spark's REST API.
#[derive(Debug, Default)]
struct SparkTasks {
    /// Bytes in memory that were spilled to disk.
    spilled_bytes: u64,
    /// The spilled bytes on the disk.
    spilled_disk_bytes: u64,
    /// Time in which tasks ran, and time from their launch to their end as the driver measured it, in milliseconds.
    ran_ms: u64,
    took_ms: u64,
    tasks: u64,
}

fn spark_tasks(run: &Run) -> Result<SparkTasks> {
    let mut sum = SparkTasks::default();
    let stages = run.submitted.rest("stages")?;
    for stage in stages.as_array().context("no stages")? {
        let id = &stage["stageId"];
        sum.spilled_bytes += number(stage, "memoryBytesSpilled")?;
        sum.spilled_disk_bytes += number(stage, "diskBytesSpilled")?;
        let tasks = run.submitted.rest(&format!("stages/{id}/0/taskList"))?;
        for task in tasks.as_array().context("no tasks")? {
            sum.tasks += 1;
            sum.ran_ms += number(&task["taskMetrics"], "executorRunTime")?;
            sum.took_ms += number(task, "duration")?;
        }
    }
    Ok(sum)
}

/// The finding of a rule, and the rule's result.
fn of_rule<'a>(advice: &'a Value, rule: &str) -> (Option<&'a Value>, Option<&'a Value>) {
    let of = |list: &str| {
        let list = advice["applications"][0][list].as_array();
        list.into_iter().flatten().find(|row| row["id"] == rule)
    };
    (of("findings"), of("checks"))
}

/// A figure of a finding.
fn figure(finding: &Value, what: &str) -> Result<u64> {
    let numbers = finding["numbers"].as_array();
    let mut numbers = numbers.into_iter().flatten();
    numbers
        .find(|number| number["what"] == what)
        .and_then(|number| number["value"].as_u64())
        .with_context(|| format!("no {what} in {finding:#}"))
}

/// Shuffles with `fraction` of the heap as Spark's memory; returns Spark's figures and the daemon's advice.
fn shuffled(lab: &SparkLab, daemon: &Daemon, fraction: &str) -> Result<(SparkTasks, Value)> {
    let application = Application::java(&lab.paths, LOCAL_CLUSTER, "Spilling", &["4", "48"])?
        .conf("spark.memory.fraction", fraction)
        .with_marker(&lab.paths);
    let mut run = lab.run(application)?;
    run.reach("shuffled")?;
    let id = run.submitted.application_id()?;
    wait_for("the ends of all tasks have come", LIMIT, || {
        let tasks = run.rows(daemon, &["tasks"])?;
        let ended = tasks.iter().filter(|task| task["state"] == "succeeded");
        Ok((ended.count() as u64 == spark_tasks(&run)?.tasks).then_some(()))
    })?;
    let (spark, advice) = (spark_tasks(&run)?, daemon.json(&["advise", "--app", &id])?);
    run.finish(&["shuffled"])?;
    Ok((spark, advice))
}

#[test]
fn tasks_that_spill_are_found_and_those_with_room_are_not() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let daemon = lab.daemon()?;
    // A task needs 48 MiB of execution memory and has 21.
    let (spark, advice) = shuffled(&lab, &daemon, "0.03")?;
    let (finding, check) = of_rule(&advice, "spilling");
    println!("{spark:?}, {check:?}, {finding:#?}");
    ensure!(spark.spilled_disk_bytes > 96 << 20, "{spark:?}");
    let finding = finding.with_context(|| format!("{spark:?}, {advice:#}"))?;
    let (task_ns, spill_ns) = (
        figure(finding, "time of ended tasks")?,
        figure(finding, "time in them")?,
    );
    // On a busy machine the driver may learn of an end before the thread has left the task.
    ensure!(
        (spark.ran_ms * 1_000_000..spark.took_ms * 2_000_000).contains(&task_ns),
        "{task_ns} ns of {spark:?}"
    );
    ensure!(spill_ns < task_ns, "{spill_ns} of {task_ns} ns");
    // A task that gets no more memory spills all it holds: each spill counts once.
    let spills = figure(finding, "spills of 1 ms or more")?;
    let numbers = finding["numbers"].as_array().into_iter().flatten();
    let peak = numbers
        .filter(|number| number["unit"] == "bytes")
        .find_map(|number| number["value"].as_u64())
        .with_context(|| format!("no bytes in {finding:#}"))?;
    ensure!(
        (spark.spilled_bytes..spark.spilled_bytes * 3 / 2).contains(&(spills * peak)),
        "{spills} spills of {peak} bytes at most, Spark says {spark:?}"
    );

    let (spark, advice) = shuffled(&lab, &daemon, "0.6")?;
    let (finding, check) = of_rule(&advice, "spilling");
    println!("{spark:?}, {check:?}");
    ensure!(
        (spark.spilled_bytes, spark.spilled_disk_bytes) == (0, 0),
        "there was room: {spark:?}"
    );
    ensure!(finding.is_none(), "Spark has not spilled: {finding:#?}");
    let looked = check.context("the rule was not checked")?["why"].to_string();
    ensure!(
        looked.contains("0 spills"),
        "Spark has not spilled, and {looked} were seen"
    );
    drop(daemon);
    lab.passed()
}

/// Whether a rule was checked and found nothing.
fn is_silent(advice: &Value, rule: &str) -> bool {
    let (finding, check) = of_rule(advice, rule);
    finding.is_none() && check.is_some_and(|check| check["went"] == "nothing")
}

/// Runs an application whose two RDDs push one another out of an executor with so much memory, where it is too small; the
/// advice when all its tasks have ended, and how many blocks were stored again.
fn pushed_out(lab: &SparkLab, daemon: &Daemon, memory: &str) -> Result<(Value, u64)> {
    const TASKS: usize = 3 * 3 * 8;
    let job = ["8", "192", "3"];
    let application = Application::java(&lab.paths, "local-cluster[1,1,2048]", "Evicting", &job)?
        .conf("spark.rdd.compress", "false")
        .conf("spark.executor.memory", memory)
        .conf("spark.memory.fraction", "0.4")
        .conf("spark.memory.offHeap.enabled", "true")
        .conf("spark.memory.offHeap.size", "128m")
        .with_marker(&lab.paths);
    let mut run = lab.run(application)?;
    run.reach("read")?;
    let id = run.submitted.application_id()?;
    let again = wait_for("the ends of all tasks have come", LIMIT, || {
        let tasks = run.rows(daemon, &["tasks"])?;
        let ended = tasks.iter().filter(|task| task["state"] == "succeeded");
        let is_whole = ended.count() == TASKS;
        let rows = run.rows(daemon, &["rdds"])?;
        Ok(is_whole.then(|| sum(&rows, "blocks_stored_again")))
    })?;
    let advice = daemon.json(&["advise", "--app", &id])?;
    run.finish(&["read"])?;
    Ok((advice, again))
}

#[test]
fn caches_that_are_remedied_have_no_finding_any_more() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let daemon = lab.daemon()?;
    let (advice, again) = pushed_out(&lab, &daemon, "1024m")?;
    ensure!(again > 0, "nothing was pushed out: {advice:#}");
    let found = named(&advice, "evicted_and_stored_again");
    ensure!(found.contains(&"one"), "{advice:#}");
    let (finding, _) = of_rule(&advice, "evicted_and_stored_again");
    let finding = finding.context("a finding")?;
    ensure!(
        finding["saving"]["high"].as_f64() > Some(0.0),
        "blocks are made in tasks whose begin is known: {finding:#}"
    );
    let said = advice.to_string();
    let (_, memory) = said
        .split_once("spark.executor.memory  ")
        .with_context(|| format!("no memory is advised: {advice:#}"))?;
    let memory: String = memory
        .chars()
        .take_while(char::is_ascii_alphanumeric)
        .collect();
    println!("{again} blocks were stored again; advised: {memory}");
    let (advice, again) = pushed_out(&lab, &daemon, &memory)?;
    ensure!(again == 0, "{again} blocks with {memory}: {advice:#}");
    ensure!(is_silent(&advice, "evicted_and_stored_again"), "{advice:#}");

    // The RDD that nothing reads is not cached any more.
    let job = ["4", "24", "0", "7", "plain"];
    let application = Application::java(&lab.paths, LOCAL_CLUSTER, "Unread", &job)?
        .conf("spark.locality.wait", "300s")
        .with_marker(&lab.paths);
    let mut run = lab.run(application)?;
    run.open("cached")?;
    run.reach("read")?;
    let id = run.submitted.application_id()?;
    // The other one was stored later: if both were cached, both would be there for long enough.
    wait_for(
        "the other one is read, and there for long enough",
        LIMIT,
        || {
            let mut rows = run.rows(&daemon, &["rdds"])?;
            rows.retain(|row| row["name"] == READ && row["blocks_stored"].as_u64() > Some(0));
            let are_old = rows
                .iter()
                .all(|row| row["kept_ns"].as_u64() >= Some(KEPT_NS));
            Ok((sum(&rows, "block_reads") >= 4 && are_old).then_some(()))
        },
    )?;
    let advice = daemon.json(&["advise", "--app", &id])?;
    ensure!(is_silent(&advice, "never_read"), "{advice:#}");
    run.finish(&["read"])?;
    drop(daemon);
    lab.passed()
}

/// Transitions of an RDD's blocks in memory: stored, stored again after they had left memory, left memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Blocks {
    stored: u64,
    again: u64,
    left: u64,
}

/// Transitions of each RDD's blocks according to the updates in Spark's event log.
fn logged(log: &Path) -> Result<BTreeMap<u64, Blocks>> {
    let mut rdds: BTreeMap<u64, Blocks> = BTreeMap::new();
    // Per executor and block, whether the block is in memory; blocks that never were are absent.
    let mut there: BTreeMap<(String, String), bool> = BTreeMap::new();
    let text = std::fs::read_to_string(log)?;
    // A line without a line end is still being written.
    let lines = text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    for line in lines.filter(|line| line.contains("SparkListenerBlockUpdated")) {
        let event: Value = serde_json::from_str(line)?;
        let update = &event["Block Updated Info"];
        let id = update["Block ID"].as_str().context("no block id")?;
        let Some(rdd) = id.strip_prefix("rdd_").and_then(|id| id.split('_').next()) else {
            continue;
        };
        let executor = update["Block Manager ID"]["Executor ID"].as_str();
        let key = (executor.context("no executor")?.to_owned(), id.to_owned());
        let now = update["Storage Level"]["Use Memory"] == true
            && update["Memory Size"].as_u64() > Some(0);
        let before = there.insert(key, now);
        let blocks = rdds.entry(rdd.parse()?).or_default();
        blocks.stored += u64::from(now && before != Some(true));
        blocks.again += u64::from(now && before == Some(false));
        blocks.left += u64::from(!now && before == Some(true));
    }
    Ok(rdds)
}

#[test]
fn blocks_that_push_one_another_out_are_found_as_often_as_sparks_event_log_has_them() -> Result<()>
{
    let lab = SparkLab::new("4.0.5")?;
    let daemon = lab.daemon()?;
    let events = lab.folder().join("events");
    std::fs::create_dir(&events)?;
    // One executor, so a block returns to the same memory. The executor has 289 MiB for blocks.
    let job = ["8", "192", "3"];
    let application = Application::java(&lab.paths, "local-cluster[1,1,1024]", "Evicting", &job)?
        .conf("spark.rdd.compress", "false")
        .conf("spark.memory.fraction", "0.4")
        .conf("spark.memory.offHeap.enabled", "true")
        .conf("spark.memory.offHeap.size", "128m")
        .conf("spark.eventLog.enabled", "true")
        .conf(
            "spark.eventLog.dir",
            &format!("file://{}", events.display()),
        )
        .conf("spark.eventLog.rolling.enabled", "false")
        .conf("spark.eventLog.compress", "false")
        .conf("spark.eventLog.logBlockUpdates.enabled", "true")
        .with_marker(&lab.paths);
    let mut run = lab.run(application)?;
    run.reach("read")?;
    let id = run.submitted.application_id()?;
    let log = events.join(format!("{id}.inprogress"));
    let mut last = String::new();
    let agreed = wait_for("both sides know the same blocks", LIMIT, || {
        let logged = logged(&log)?;
        let rows = run.rows(&daemon, &["rdds"])?;
        let mut seen = BTreeMap::new();
        // Broadcasts are blocks without an RDD.
        for row in rows.iter().filter(|row| row["rdd_id"].is_u64()) {
            let of = |field: &str| row[field].as_u64().unwrap_or(0);
            let blocks = Blocks {
                stored: of("blocks_stored"),
                again: of("blocks_stored_again"),
                left: of("blocks_removed"),
            };
            if blocks.stored > 0 {
                seen.insert(of("rdd_id"), blocks);
            }
        }
        last = format!("Spark's event log {logged:?}, seen {seen:?}");
        Ok((seen == logged && logged.len() == 3).then_some((logged, rows)))
    });
    let (logged, rows) = agreed.with_context(|| last.clone())?;
    println!("{last}");
    let advice = daemon.json(&["advise", "--app", &id])?;
    let findings = advice["applications"][0]["findings"].as_array();
    let mut found = Vec::new();
    for finding in findings.into_iter().flatten() {
        if finding["id"] != "evicted_and_stored_again" {
            continue;
        }
        let rdd = finding["subject"]["rdd_id"]
            .as_u64()
            .with_context(|| format!("no RDD in {finding:#}"))?;
        let said = Blocks {
            stored: figure(finding, "blocks stored")?,
            again: figure(
                finding,
                "of them, of partitions that had left memory (at least)",
            )?,
            left: figure(finding, "blocks that left memory")?,
        };
        ensure!(
            logged.get(&rdd) == Some(&said),
            "Spark's event log says {:?}: {finding:#}",
            logged.get(&rdd)
        );
        let evicted = figure(finding, "of them, evicted because others needed the room")?;
        ensure!(
            evicted == said.left,
            "no block was unpersisted: {finding:#}"
        );
        found.push(rdd);
    }
    // In three passes each of the two RDDs returns twice, at least the part that does not fit beside the other.
    for row in &rows {
        let (Some(rdd), Some(name)) = (row["rdd_id"].as_u64(), row["name"].as_str()) else {
            continue;
        };
        let expected = matches!(name, "one" | "other");
        ensure!(
            found.contains(&rdd) == expected,
            "{name}: {:?}, {advice:#}",
            logged.get(&rdd)
        );
    }
    run.finish(&["read"])?;
    drop(daemon);
    lab.passed()
}
