//! What Python workers use counts for the task that they serve: compared with what each worker reads of its own process.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_tests::json::{list, number, text};
use smtt_tests::lab::{LIMIT, SparkLab};
use xtask::process::wait_for;
use xtask::spark::Application;

/// Tasks, milliseconds of CPU time of the first one and of each later one more, and pages that each touches.
const TASKS: u64 = 6;
const MILLISECONDS: u64 = 500;
const PAGES: u64 = 3000;
/// The longest tick of a kernel: the accounts of a thread that runs are as old.
const TICK_NS: u64 = 10_000_000;

/// Figures that the worker reads of its process.
const FIGURES: [&str; 7] = [
    "cpu_ns",
    "thread_minor_faults",
    "thread_major_faults",
    "context_switches",
    "context_switches_involuntary",
    "call_read_bytes",
    "call_written_bytes",
];

/// The row of the task's Python worker.
fn worker(row: &Value) -> Option<&Value> {
    let helpers = row["helpers"].as_array()?;
    helpers.iter().find(|it| it["name"] == "python worker")
}

/// The functions of the task have the worker's service as a lane, which is in the task and no shorter than what the worker
/// did on two processors.
fn has_lane(row: &Value, pid: u64, cpu_ns: u64) -> Result<()> {
    let functions = &row["functions"];
    let spans = list(functions, "spans")?.iter();
    let lanes: Vec<&Value> = spans.filter(|it| it["thread"] == "python worker").collect();
    ensure!(lanes.len() == 1, "{functions}");
    let (begin, duration) = (
        number(lanes[0], "begin_ns")?,
        number(lanes[0], "duration_ns")?,
    );
    ensure!(
        number(lanes[0], "tid")? == pid
            && text(lanes[0], "activity")? == "python_worker"
            && duration >= cpu_ns / 2
            && begin + duration <= number(functions, "duration_ns")?,
        "{functions}"
    );
    Ok(())
}

fn burns(version: &str, cores: u64, reuse: bool) -> Result<()> {
    let lab = SparkLab::new(version)?;
    let daemon = lab.daemon()?;
    let arguments = [TASKS, MILLISECONDS, PAGES].map(|it| it.to_string());
    let arguments = arguments.each_ref().map(String::as_str);
    let master = format!("local-cluster[1,{cores},1024]");
    let application = Application::python(&lab.paths, &master, "burning.py", &arguments)?
        .conf(
            "spark.python.worker.reuse",
            if reuse { "true" } else { "false" },
        )
        .with_marker(&lab.paths);
    let mut run = lab.run(application)?;
    run.reach("end")?;
    let rows = wait_for("the workers have accounts", LIMIT, || {
        let rows = run.rows(&daemon, &["tasks"])?;
        let told = rows.iter().filter(|row| worker(row).is_some()).count();
        Ok((told as u64 == TASKS).then_some(rows))
    })?;
    let folder = lab.folder().join("gates-1");
    // By process, in the order of time.
    let mut said: BTreeMap<u64, Vec<Value>> = BTreeMap::new();
    for row in &rows {
        let path = folder.join(format!("burn-{}", number(row, "task_attempt_id")?));
        let one: Value = serde_json::from_slice(&fs::read(path)?)?;
        said.entry(number(&one, "pid")?).or_default().push(one);
    }
    let workers = said.len() as u64;
    ensure!(
        if reuse {
            workers <= cores
        } else {
            workers == TASKS
        },
        "{workers} workers"
    );
    let (mut worst, mut compared) = (0_u64, 0);
    for (pid, all) in &mut said {
        all.sort_by_key(|it| it["time_ns"].as_u64());
        let mut sum = 0;
        for (at, one) in all.iter().enumerate() {
            let id = number(one, "task")?;
            let row = rows.iter().find(|row| row["task_attempt_id"] == id);
            let row = row.context("no such task")?;
            let used = worker(row).context("no worker")?;
            let pids: Vec<u64> = list(used, "pids")?
                .iter()
                .filter_map(Value::as_u64)
                .collect();
            ensure!(
                number(used, "threads")? == 1
                    && pids == [*pid]
                    && used["partial_threads"].is_null(),
                "task {id} was served by {pid}: {used}"
            );
            for name in FIGURES {
                let value = number(used, name)?;
                let inside = number(&one["end"], name)? - number(&one["begin"], name)?;
                // From the end of the function before, or the fork of the worker, to the begin of the next one.
                let before = match at.checked_sub(1) {
                    Some(at) => number(&all[at]["end"], name)?,
                    None => 0,
                };
                let after = match all.get(at + 1) {
                    Some(next) => number(&next["begin"], name)?,
                    None => u64::MAX,
                };
                let tick = if name == "cpu_ns" { TICK_NS } else { 0 };
                ensure!(
                    inside <= value + tick && value <= (after - before).saturating_add(tick),
                    "task {id}, {name}: {value}, {inside} inside and {} outside of the function",
                    after - before
                );
                // The first service of a worker imports modules.
                if name == "cpu_ns" && at > 0 {
                    sum += value;
                    compared += 1;
                }
                // A thread ended within the service.
                ensure!(used["cpu_wait_ns"].is_null(), "{used}");
                println!("Spark {version}, task {id}, {name}: {value} of {inside}");
            }
            ensure!(number(used, "thread_minor_faults")? >= PAGES, "{used}");
            let burnt = number(&one["end"], "cpu_ns")? - number(&one["begin"], "cpu_ns")?;
            let alone = run.rows(&daemon, &["task", &id.to_string()])?;
            has_lane(alone.first().context("no such task")?, *pid, burnt)?;
            // The first task loads classes.
            ensure!(
                id == 0 || number(row, "cpu_ns")? < number(used, "cpu_ns")?,
                "the task's own thread has its worker's time: {row}"
            );
        }
        // What Python does before and after each function is the worker's use, too.
        if let [first, .., last] = &all[..] {
            let truth = number(&last["end"], "cpu_ns")? - number(&first["end"], "cpu_ns")?;
            let error = sum.abs_diff(truth);
            worst = worst.max(error);
            ensure!(
                error <= truth / 50 + TICK_NS * all.len() as u64,
                "the services of worker {pid} after its first have {sum} ns, by the worker {truth}"
            );
        }
    }
    println!("Spark {version}: CPU time of {compared} services is at most {worst} ns off");
    ensure!(!reuse || compared >= TASKS - cores);
    // The stage has their sum.
    let stages = run.rows(&daemon, &["stages"])?;
    let helpers = &stages.first().context("no stage")?["helpers"];
    for name in ["threads", "cpu_ns", "thread_minor_faults"] {
        let of = |row: &Value| worker(row).map_or(Ok(0), |it| number(it, name));
        let sum: u64 = rows.iter().map(of).sum::<Result<u64>>()?;
        // Spark 3 has writers, too.
        ensure!(
            number(helpers, name)? >= sum && (version < "4" || number(helpers, name)? == sum),
            "{name} of the stage {helpers}, of its workers {sum}"
        );
    }
    // A person sees it.
    let id = number(&rows[0], "task_attempt_id")?.to_string();
    let shown = daemon.ask(&["task", &id])?;
    ensure!(
        shown.contains("python worker") && shown.contains(", pid "),
        "{shown}"
    );
    let result = run.finish(&["end"])?;
    ensure!(
        result == format!("RESULT burning {}", TASKS * 10),
        "{result}"
    );
    drop(daemon);
    lab.passed()
}

#[test]
fn a_reused_worker_s_time_counts_for_each_of_its_tasks() -> Result<()> {
    burns("4.0.5", 1, true)
}

#[test]
fn workers_of_two_cores_count_for_their_own_tasks() -> Result<()> {
    burns("3.5.9", 2, true)
}

#[test]
fn workers_that_end_with_their_task_count_for_it() -> Result<()> {
    burns("4.3.0", 2, false)
}

/// The worker's process and the executor's thread tell the end of the service at the same time, on two CPUs.
#[test]
fn each_of_many_short_services_counts_once() -> Result<()> {
    const SERVICES: u64 = 300;
    let lab = SparkLab::new("3.5.9")?;
    let daemon = lab.daemon()?;
    let arguments = [SERVICES.to_string(), "0".to_owned(), "1".to_owned()];
    let arguments = arguments.each_ref().map(String::as_str);
    let application = Application::python(
        &lab.paths,
        "local-cluster[1,4,1024]",
        "burning.py",
        &arguments,
    )?
    .conf("spark.python.worker.reuse", "false")
    .with_marker(&lab.paths);
    let mut run = lab.run(application)?;
    run.reach("end")?;
    let folder = lab.folder().join("gates-1");
    let rows = wait_for("the workers have accounts", LIMIT, || {
        let rows = run.rows(&daemon, &["tasks"])?;
        let told = rows.iter().filter(|row| worker(row).is_some()).count();
        Ok((told as u64 == SERVICES).then_some(rows))
    })?;
    for row in &rows {
        let id = number(row, "task_attempt_id")?;
        let said: Value = serde_json::from_slice(&fs::read(folder.join(format!("burn-{id}")))?)?;
        let used = worker(row).context("no worker")?;
        ensure!(
            number(used, "threads")? == 1
                && list(used, "pids")? == [said["pid"].clone()]
                && number(used, "thread_minor_faults")?
                    >= number(&said["end"], "thread_minor_faults")?
                        - number(&said["begin"], "thread_minor_faults")?,
            "task {id} was served by {}: {used}",
            said["pid"]
        );
    }
    run.finish(&["end"])?;
    drop(daemon);
    lab.passed()
}
