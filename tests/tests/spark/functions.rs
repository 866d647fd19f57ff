//! Functions of tasks, from the job through the daemon's files in a store to the answers of smtt-history, compared with
//! what the application measured itself and with Spark's own metrics.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_tests::application::LOCAL_CLUSTER;
use smtt_tests::history::serve;
use smtt_tests::json::number;
use smtt_tests::lab::{LIMIT, Run, SparkLab};
use xtask::daemon::{Daemon, Options};
use xtask::http::get;
use xtask::process::wait_for;
use xtask::spark::Application;

use crate::collections;

const PARTITIONS: usize = 3;
const MS: u64 = 1_000_000;
/// Milliseconds of a comparison and of the tasks' function.
const COMPARISON_MS: &str = "2";
const FUNCTION_MS: &str = "1500";

/// By task attempt: nanoseconds of its sort and of its function.
fn measured(result: &str) -> Result<BTreeMap<u64, (u64, u64)>> {
    let words = result.split(' ').skip(2);
    let one = |word: &str| -> Result<(u64, (u64, u64))> {
        let numbers: Result<Vec<u64>, _> = word.split(':').map(str::parse).collect();
        match numbers?[..] {
            [task, sort, function] => Ok((task, (sort, function))),
            _ => anyhow::bail!("{word} is no task"),
        }
    };
    words.map(one).collect()
}

/// Own time of an activity.
fn activity(functions: &Value, name: &str) -> u64 {
    let all = functions["activities"].as_array().into_iter().flatten();
    let own = all.filter(|it| it["activity"] == name);
    own.filter_map(|it| it["own_ns"].as_u64()).sum()
}

#[test]
fn functions_are_what_the_application_measured() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let (store, logs) = (lab.folder().join("store"), lab.folder().join("logs"));
    fs::create_dir_all(&store)?;
    fs::create_dir_all(&logs)?;
    let options = Options {
        toml: format!("[history]\nstore = \"{}\"\n", store.display()),
        ..Options::default()
    };
    let mut daemon = lab.daemon_with(&options)?;
    let partitions = PARTITIONS.to_string();
    let arguments = [&partitions, "60", COMPARISON_MS, FUNCTION_MS];
    let mut application =
        Application::java(&lab.paths, LOCAL_CLUSTER, "Phases", &arguments)?.with_marker(&lab.paths);
    for (key, value) in [
        ("spark.eventLog.enabled", "true"),
        ("spark.eventLog.dir", &format!("file://{}", logs.display())),
        ("spark.eventLog.rolling.enabled", "false"),
    ] {
        application = application.conf(key, value);
    }
    let mut run = lab.run(application)?;
    run.open("begin")?;
    run.reach("end")?;
    let id = run.submitted.application_id()?;
    let listed = wait_for("all tasks have their accounts", LIMIT, || {
        let rows = run.rows(&daemon, &["tasks"])?;
        let done = rows.iter().all(|row| row["used_until"] == "task_end");
        Ok((done && rows.len() == PARTITIONS + 2).then_some(rows))
    })?;
    let result = run.finish(&["end"])?;
    let measured = measured(&result)?;
    ensure!(measured.len() == PARTITIONS, "{result}");
    // A daemon that stops writes what it knows.
    daemon.stop();
    drop(daemon);
    let port = serve(&store, Some(logs))?;
    let base = format!("/smtt/v1/applications/{id}/tasks");
    let mut waited = (0, 0);
    for row in &listed {
        let task = number(row, "task_attempt_id")?;
        let answer: Value = serde_json::from_str(&get(port, &format!("{base}/{task}/functions"))?)?;
        let functions = &answer["smtt"]["functions"];
        println!("task {task}: {functions:#}");
        let duration = number(functions, "duration_ns")?;
        ensure!(row["used_duration_ns"] == duration, "{row} {functions}");
        // The parts add up, whatever they are.
        let all = functions["activities"].as_array();
        let all = all.context("no activities")?;
        let own: Result<Vec<u64>> = all.iter().map(|it| number(it, "own_ns")).collect();
        let rest = number(functions, "rest_ns")?;
        ensure!(own?.iter().sum::<u64>() + rest == duration, "{functions}");
        let thread = &functions["thread"];
        let did = ["cpu_ns", "cpu_wait_ns", "disk_wait_ns", "other_ns"];
        let did: u64 = did.iter().filter_map(|it| thread[it].as_u64()).sum();
        ensure!(
            did == duration && thread["cpu_ns"] == row["cpu_ns"],
            "{thread}"
        );
        // Spark's own times lie within: it counts milliseconds, from after the begin of the runner.
        let spark: Value = serde_json::from_str(&get(port, &format!("{base}/{task}"))?)?;
        let metrics = &spark["task"]["taskMetrics"];
        let run_ns = number(metrics, "executorRunTime")? * MS;
        ensure!(duration + 2 * MS >= run_ns, "{duration} {metrics}");
        // Spark counts whole milliseconds of each wait, a little before and after the marker's clock. The thread may have
        // waited for a CPU between the two.
        let preempted = thread["cpu_wait_ns"].as_u64().unwrap_or(0);
        let read = &metrics["shuffleReadMetrics"];
        let blocks = number(read, "localBlocksFetched")? + number(read, "remoteBlocksFetched")?;
        let fetched = activity(functions, "shuffle_fetch");
        ensure!(
            fetched <= (number(read, "fetchWaitTime")? + blocks) * MS + preempted,
            "{functions} {read}"
        );
        waited = (
            waited.0 + number(read, "fetchWaitTime")? * MS,
            waited.1 + fetched + preempted,
        );
        let spans = functions["spans"].as_array();
        let spans = spans.map_or(&[][..], Vec::as_slice);
        for span in spans.iter().filter(|it| it["activity"] == "shuffle_fetch") {
            let name = span["function"].as_str().unwrap_or_default();
            ensure!(
                name.starts_with("ShuffleBlockFetcherIterator.next from "),
                "{name}"
            );
        }
        let Some((sort, function)) = measured.get(&task) else {
            let sorted = activity(functions, "sort");
            ensure!(sorted < 100 * MS + preempted, "{functions}");
            continue;
        };
        // From below what the application measured, from above what is left beside its function.
        let sorted = activity(functions, "sort");
        println!("task {task}: sort {sort} ns by its order, {sorted} ns by its spans");
        ensure!(
            sorted >= *sort && sorted + function <= duration,
            "{functions}"
        );
        ensure!(rest >= *function && rest + sort <= duration, "{functions}");
        ensure!(*sort > 100 * MS && *function > 1400 * MS, "{result}");
        let sorts: Vec<&Value> = spans.iter().filter(|it| it["activity"] == "sort").collect();
        ensure!(
            sorts.len() == 1 && sorts[0]["thread"] == "task",
            "{spans:?}"
        );
        let name = sorts[0]["function"].as_str().unwrap_or_default();
        ensure!(name.contains("ExternalSorter"), "{name}");
        let end = number(sorts[0], "begin_ns")? + number(sorts[0], "duration_ns")?;
        ensure!(
            end + function <= duration,
            "the function came after: {functions}"
        );
        // The task asked for a collection, and each other task on the executor may have.
        let paused = number(&functions["paused"], "pauses")?;
        let spans_of =
            |thread: &str| spans.iter().filter(|it| it["thread"] == thread).count() as u64;
        ensure!(
            paused >= 1 && spans_of("collections") == paused,
            "{functions}"
        );
        // The page has the same numbers.
        let page = get(port, &format!("/applications/{id}/tasks/{task}"))?;
        ensure!(
            page.contains("outside the spans (user code, framework)"),
            "{page}"
        );
        ensure!(
            page.contains(name) && page.contains("id=\"life\""),
            "{page}"
        );
        ensure!(
            page.contains("collections: pauses of the whole executor"),
            "{page}"
        );
    }
    println!("waits for fetches by Spark, by spans and for CPUs: {waited:?} ns");
    // Waits of less than 1 ms are no spans.
    ensure!(
        waited.0 < 10 * MS || 2 * waited.1 >= waited.0,
        "{waited:?} ns"
    );
    lab.passed()
}

/// What a task's row says of an activity on CPUs: its share, and the ends of the interval.
fn on_cpu(row: &Value, name: &str) -> (f64, f64, f64) {
    let all = row["functions"]["on_cpu"]["activities"].as_array();
    let one = all.into_iter().flatten().find(|it| it["activity"] == name);
    let figure = |field: &str| one.and_then(|it| it[field].as_f64()).unwrap_or(0.0);
    (figure("share"), figure("share_low"), figure("share_high"))
}

/// The event that this machine's daemon samples by itself, by its status: cycles where the processor counts them.
fn sampled_event(status: &Value) -> Result<String> {
    let verdict = |name: &str| {
        let probes = status["probes"].as_array().into_iter().flatten();
        let mut own = probes.filter(|probe| probe["name"] == name);
        own.next().unwrap_or(&Value::Null)
    };
    let (walks, clock) = (verdict("page_walks"), verdict("on_cpu"));
    println!("{walks} {clock}");
    let events = status["page_walks"]["events"].as_array();
    let cycles = events
        .into_iter()
        .flatten()
        .find(|it| it["role"] == "cycles");
    if let Some(event) = cycles.and_then(|it| it["event"].as_str()) {
        ensure!(clock["verdict"] == "not_applicable", "{clock}");
        return Ok(event.to_owned());
    }
    ensure!(
        walks["verdict"] == "unsupported" && status["page_walks"].is_null(),
        "{status}"
    );
    ensure!(
        clock["verdict"] == "ok" && clock["hook"] == "perf:cpu-clock",
        "{clock}"
    );
    Ok("cpu-clock".to_owned())
}

/// Where only the clock is sampled, nothing that comes from the processor's counters has a value.
fn no_page_walks(daemon: &Daemon, run: &Run, tasks: &[Value]) -> Result<()> {
    let is_of_counters =
        |name: &str| name.contains("walk") || name.contains("cycles") || name.contains("dtlb");
    let mut rows = tasks.to_vec();
    for listing in ["rdds", "stages", "executors"] {
        rows.extend(run.rows(daemon, &[listing])?);
    }
    for row in &rows {
        let fields = row.as_object().context("no object")?;
        let of_counters: Vec<&String> = fields.keys().filter(|name| is_of_counters(name)).collect();
        ensure!(of_counters.is_empty(), "{of_counters:?} in {row}");
        let series = row["splits"]["series"].as_object();
        let mut series = series.into_iter().flatten();
        ensure!(!series.any(|(name, _)| is_of_counters(name)), "{row}");
    }
    let metrics = daemon.metrics()?;
    let samples = metrics.lines().filter(|line| !line.starts_with('#'));
    let named = samples.filter(|line| line.contains("walk") || line.contains("cycles"));
    let (probes, others): (Vec<&str>, Vec<&str>) =
        named.partition(|line| line.starts_with("smtt_probe_up"));
    let others: Vec<&&str> = others.iter().filter(|line| !line.ends_with(" 0")).collect();
    println!("{probes:?} {others:?}");
    ensure!(
        probes.is_empty() && others.is_empty(),
        "{probes:?} {others:?}"
    );
    ensure!(
        metrics.contains("smtt_probe_up{probe=\"on_cpu\"} 1"),
        "the clock's probe is not up"
    );
    Ok(())
}

#[test]
fn time_on_cpus_is_divided_as_the_application_measured() -> Result<()> {
    /// Share by which a sampled share may lie outside its interval: the hooks' own edges, and what the task does beside its
    /// two phases. Of intervals of 95 % one in twenty misses: the test doubles them.
    const EDGE: f64 = 0.03;
    let lab = SparkLab::new("4.0.5")?;
    // As it is installed: nobody has named an event.
    let daemon = lab.daemon_with(&Options::default())?;
    let logs = lab.folder().join("collections");
    fs::create_dir_all(&logs)?;
    let event = sampled_event(&daemon.json(&["status"])?)?;
    let partitions = PARTITIONS.to_string();
    let arguments = [&partitions, "60", COMPARISON_MS, FUNCTION_MS, "busy"];
    let application = Application::java(&lab.paths, LOCAL_CLUSTER, "Phases", &arguments)?
        .with_marker(&lab.paths)
        .conf(
            "spark.executor.extraJavaOptions",
            &collections::options(&logs),
        );
    let mut run = lab.run(application)?;
    run.open("begin")?;
    run.reach("end")?;
    let mut before = 0;
    // The last samples come up to a second late.
    let listed = wait_for("all samples of the tasks", LIMIT, || {
        thread::sleep(Duration::from_millis(1500));
        let listed = run.rows(&daemon, &["tasks"])?;
        let mut rows = Vec::new();
        for row in &listed {
            let id = number(row, "task_attempt_id")?.to_string();
            // The functions are in a row that is asked for alone.
            rows.extend(run.rows(&daemon, &["task", &id])?);
        }
        let samples = rows
            .iter()
            .filter_map(|row| row["functions"]["on_cpu"]["samples"].as_u64())
            .sum();
        let is_whole = std::mem::replace(&mut before, samples) == samples && samples > 0;
        let ended = rows
            .iter()
            .all(|row| row["used_until"] == "task_end" && row["functions"]["paused"].is_object());
        Ok((is_whole && ended && rows.len() == PARTITIONS + 2).then_some(rows))
    })?;
    let measured = measured(&run.finish(&["end"])?)?;
    ensure!(measured.len() == PARTITIONS, "{measured:?}");
    for row in &listed {
        let Some((sort, function)) = measured.get(&number(row, "task_attempt_id")?) else {
            continue;
        };
        let on_cpu_row = &row["functions"]["on_cpu"];
        let cpu_ns = number(row, "cpu_ns")? as f64;
        println!("sort {sort} ns, function {function} ns of {cpu_ns} ns: {on_cpu_row}");
        ensure!(on_cpu_row["event"] == event, "{on_cpu_row} {event}");
        let all = on_cpu_row["activities"].as_array();
        let all = all.context("no activities")?.iter();
        let shares: f64 = all.filter_map(|it| it["share"].as_f64()).sum();
        ensure!((shares - 1.0).abs() < 1e-9, "{on_cpu_row}");
        let (sort, function) = (*sort as f64 / cpu_ns, *function as f64 / cpu_ns);
        let (share, low, high) = on_cpu(row, "sort");
        let (low, high) = (2.0 * low - share, 2.0 * high - share);
        ensure!(
            low - EDGE <= sort && sort <= high + EDGE,
            "the sort had {sort:.3} of the CPU time, sampled {share:.3} ({low:.3} to {high:.3})"
        );
        // The function is in no span: only samples tell it. What else a task computes is beside the sort, too.
        let (share, low, high) = on_cpu(row, "compute");
        let (low, high) = (2.0 * low - share, 2.0 * high - share);
        ensure!(
            low - EDGE <= 1.0 - sort && function <= high + EDGE,
            "the function had {function:.3} of the CPU time, all but the sort {:.3}, sampled {share:.3} ({low:.3} to {high:.3})",
            1.0 - sort
        );
    }
    collections::are_those_of_the_logs(&listed, &logs)?;
    if event == "cpu-clock" {
        no_page_walks(&daemon, &run, &listed)?;
    }
    drop(daemon);
    lab.passed()
}
