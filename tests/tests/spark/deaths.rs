//! Why an executor died, with real deaths of real executors: each has a witness outside of SMTT, such as the exit code
//! that Spark's worker logs, the JVM's crash report, or the test that sent the signal.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_tests::cgroup::{MemoryCgroup, ThreadCgroup};
use smtt_tests::json::{list, number};
use smtt_tests::lab::{LabDaemon, Run, SparkLab};
use smtt_tests::skip::skip;
use xtask::process::wait_for;
use xtask::spark::Application;

/// How long a death may take to be in the list.
const LIMIT: Duration = Duration::from_secs(300);
const VERSION: &str = "4.0.5";
/// Memory of a JVM with a small heap and of a Python worker that has grown beyond it.
const WORKER_LIMIT: u64 = 1200 << 20;
/// Threads of an executor: several times those that it has without work.
const THREAD_LIMIT: u32 = 400;

/// Repeats a test: `SMTT_DEATHS` is how many times; `cargo xtask test deaths` makes ten of each.
fn times(work: impl Fn() -> Result<()>) -> Result<()> {
    let times = match std::env::var("SMTT_DEATHS") {
        Ok(text) => text.parse().context("SMTT_DEATHS is no number")?,
        Err(_) => 1,
    };
    (0..times).try_for_each(|time| work().with_context(|| format!("run {time} of {times}")))
}

/// One executor with 512 MiB and these options of its JVM.
fn application(lab: &SparkLab, how: &str, options: &[&str]) -> Result<Application> {
    let application = Application::java(&lab.paths, "local-cluster[1,1,1024]", "Deaths", &[how])?;
    Ok(application
        .conf("spark.executor.memory", "512m")
        .conf("spark.task.maxFailures", "1")
        .conf("spark.executor.extraJavaOptions", &options.join(" "))
        .with_marker(&lab.paths))
}

/// An application whose executor is there.
fn start(lab: &SparkLab, how: &str, options: &[&str]) -> Result<Run> {
    let application = application(lab, how, options)?;
    let mut run = lab.run(application)?;
    run.reach("begin")?;
    run.open("begin")?;
    Ok(run)
}

/// The living executor: its process id.
fn executor(daemon: &LabDaemon<'_>, run: &Run) -> Result<u32> {
    let row = wait_for("the executor is listed", LIMIT, || {
        let rows = run.rows(daemon, &["executors"])?;
        let alive = |row: &Value| row["state"] == "alive" && row["executor_id"] != "driver";
        Ok(rows.into_iter().find(alive))
    })?;
    Ok(number(&row, "pid")? as u32)
}

/// Lets the application run from its begin to its end with its executor in the cgroup; returns the executor's process.
fn run_within(group: &MemoryCgroup, daemon: &LabDaemon<'_>, run: &mut Run) -> Result<u32> {
    run.reach("begin")?;
    let pid = executor(daemon, run)?;
    group.add(pid)?;
    // The daemon looks up the cgroup with every fifth sample, one a second; no listing shows it before a death.
    std::thread::sleep(Duration::from_secs(20));
    run.open("begin")?;
    run.reach("end")?;
    Ok(pid)
}

/// The deaths of this application, once there are so many.
fn deaths(daemon: &LabDaemon<'_>, application: &str, count: usize) -> Result<Vec<Value>> {
    wait_for("the death is listed", LIMIT, || {
        let list = daemon.json(&["postmortem", "--app", application])?;
        let rows = list["rows"].as_array().cloned().unwrap_or_default();
        Ok((rows.len() >= count).then_some(rows))
    })
}

/// The page of the only death, whose verdict must be this one.
fn page(daemon: &LabDaemon<'_>, run: &Run, verdict: &str) -> Result<Value> {
    let rows = deaths(daemon, &run.submitted.application_id()?, 1)?;
    ensure!(rows.len() == 1, "more than one death: {rows:#?}");
    let id = rows[0]["id"].as_str().context("no id")?;
    ensure!(rows[0]["verdict"] == verdict, "not {verdict}: {rows:#?}");
    let page = daemon.json(&["postmortem", id])?;
    println!("{}", daemon.ask(&["postmortem", id])?);
    Ok(page)
}

fn text<'a>(page: &'a Value, field: &str) -> &'a str {
    page[field].as_str().unwrap_or_default()
}

/// Whether Spark's own log has one of these exit codes.
fn spark_says(run: &Run, codes: &[u32]) -> Result<()> {
    let what = format!("Spark's log has an exit code of {codes:?}");
    wait_for(&what, LIMIT, || {
        let log = fs::read_to_string(run.submitted.running.log())?;
        let said = |code: &u32| {
            log.contains(&format!("Command exited with code {code}"))
                || log.contains(&format!("exitStatus {code}"))
        };
        Ok(codes.iter().any(said).then_some(()))
    })
}

fn kill(pid: u32, signal: i32) -> Result<()> {
    // SAFETY: kill has no precondition; the executor is this test's.
    let done = unsafe { libc::kill(pid as i32, signal) };
    ensure!(done == 0, "kill: {}", std::io::Error::last_os_error());
    Ok(())
}

/// The application ends its own executor; then the rest of it ends well.
fn own_end(
    how: &str,
    options: &[&str],
    verdict: &str,
    codes: &[u32],
    check: impl Fn(&Value) -> Result<()>,
) -> Result<()> {
    times(|| check(&own_end_once(how, options, verdict, codes)?))
}

fn own_end_once(how: &str, options: &[&str], verdict: &str, codes: &[u32]) -> Result<Value> {
    let lab = SparkLab::new(VERSION)?;
    let daemon = lab.daemon()?;
    let mut run = start(&lab, how, options)?;
    run.reach("end")?;
    let page = page(&daemon, &run, verdict)?;
    spark_says(&run, codes)?;
    run.finish(&["end"])?;
    drop(daemon);
    lab.passed()?;
    Ok(page)
}

#[test]
fn a_full_heap_is_named_with_the_task() -> Result<()> {
    own_end("heap", &[], "heap_exhausted", &[52], |page| {
        let sentence = text(page, "sentence");
        ensure!(sentence.contains("on the thread of task 1"), "{sentence}");
        ensure!(
            page["advice"][0]
                .as_str()
                .is_some_and(|text| text.contains("spark.executor.memory="))
        );
        let most = page["samples"].as_array().map_or(0, Vec::len);
        ensure!(most > 0, "no sample");
        ensure!(
            page["last"]["tasks"][0]["task_attempt_id"] == 1,
            "{}",
            page["last"]
        );
        Ok(())
    })
}

#[test]
fn a_jvm_that_exits_at_once_was_out_of_memory_too() -> Result<()> {
    let options = ["-XX:+ExitOnOutOfMemoryError"];
    own_end("heap", &options, "out_of_memory_error", &[3], |_| Ok(()))
}

#[test]
fn full_direct_memory_is_no_full_heap() -> Result<()> {
    let options = ["-XX:MaxDirectMemorySize=256m"];
    own_end(
        "direct",
        &options,
        "direct_memory_exhausted",
        &[52],
        |page| {
            ensure!(
                page["advice"][0]
                    .as_str()
                    .is_some_and(|text| text.contains("now 256m")),
                "{}",
                page["advice"]
            );
            Ok(())
        },
    )
}

#[test]
fn full_metaspace_is_no_full_heap() -> Result<()> {
    let options = ["-XX:MaxMetaspaceSize=128m"];
    // 51: Spark's handler of uncaught errors found no metaspace for its own work.
    let codes = [51, 52];
    own_end("metaspace", &options, "metaspace_exhausted", &codes, |_| {
        Ok(())
    })
}

#[test]
fn a_thread_that_the_kernel_refuses_is_no_full_heap() -> Result<()> {
    times(|| {
        let lab = SparkLab::new(VERSION)?;
        let daemon = lab.daemon()?;
        let Some(group) = ThreadCgroup::make("threads", THREAD_LIMIT)? else {
            return skip(
                "pids_cgroup",
                "no cgroup with a limit of threads can be made",
            );
        };
        let mut run = lab.run(application(&lab, "threads", &[])?)?;
        run.reach("begin")?;
        group.add(executor(&daemon, &run)?)?;
        ensure!(group.refusals()? == 0, "the limit is too low");
        run.open("begin")?;
        run.reach("end")?;
        let page = page(&daemon, &run, "threads_exhausted")?;
        // The kernel's own count, and the exit code that Spark's worker saw.
        ensure!(group.refusals()? > 0, "the kernel refused no thread");
        spark_says(&run, &[52])?;
        let sentence = text(&page, "sentence");
        ensure!(
            sentence.contains("ran out of threads on the thread of task 1"),
            "{sentence}"
        );
        ensure!(
            page["advice"][0]
                .as_str()
                .is_some_and(|text| text.contains("thread")),
            "{}",
            page["advice"]
        );
        run.finish(&["end"])?;
        drop(daemon);
        lab.passed()
    })
}

#[test]
fn an_exit_code_is_no_more_than_that() -> Result<()> {
    own_end("exit", &[], "exited", &[7], |page| {
        ensure!(text(page, "sentence").contains("exit code 7"));
        Ok(())
    })
}

/// The test ends the executor while its task waits.
fn foreign_end(
    signal: i32,
    verdict: &str,
    check: impl Fn(&Run, u32, &Value) -> Result<()>,
) -> Result<()> {
    times(|| foreign_end_once(signal, verdict, &check))
}

fn foreign_end_once(
    signal: i32,
    verdict: &str,
    check: impl Fn(&Run, u32, &Value) -> Result<()>,
) -> Result<()> {
    let lab = SparkLab::new(VERSION)?;
    let mut daemon = lab.daemon()?;
    let mut run = start(&lab, "wait", &[])?;
    run.reach("running")?;
    let pid = executor(&daemon, &run)?;
    wait_for("the task runs", LIMIT, || {
        let tasks = run.rows(&daemon, &["tasks"])?;
        let runs = tasks.iter().any(|row| row["state"] == "running");
        Ok(runs.then_some(()))
    })?;
    // Samples are there.
    std::thread::sleep(Duration::from_secs(3));
    kill(pid, signal)?;
    let first = page(&daemon, &run, verdict)?;
    ensure!(
        text(&first, "sentence").contains(&format!("rocess {} (", std::process::id())),
        "the sender is not named: {first:#}"
    );
    check(&run, pid, &first)?;
    // Also after a restart of the daemon.
    daemon.kill();
    daemon.start_again()?;
    ensure!(
        page(&daemon, &run, verdict)? == first,
        "the report differs after the restart"
    );
    run.open("running")?;
    run.reach("end")?;
    run.finish(&["end"])?;
    drop(daemon);
    lab.passed()
}

#[test]
fn a_kill_from_outside_is_named_with_its_sender() -> Result<()> {
    foreign_end(libc::SIGKILL, "killed_by_signal", |run, _, page| {
        ensure!(text(page, "sentence").contains("SIGKILL"), "{page:#}");
        spark_says(run, &[137])
    })
}

#[test]
fn a_stop_from_outside_is_not_one_of_spark() -> Result<()> {
    foreign_end(libc::SIGTERM, "killed_by_signal", |run, _, _| {
        spark_says(run, &[143])
    })
}

#[test]
fn a_crash_is_named_with_its_report() -> Result<()> {
    foreign_end(libc::SIGSEGV, "crashed", |_, pid, page| {
        let sentence = text(page, "sentence");
        let report = sentence
            .split_once("its report is ")
            .map(|(_, path)| path.trim_end_matches('.'))
            .with_context(|| format!("no report: {sentence}"))?;
        ensure!(
            report.ends_with(&format!("hs_err_pid{pid}.log")),
            "{report}"
        );
        let written = fs::read_to_string(report)?;
        ensure!(
            written.contains(&format!("pid={pid}")),
            "the report is another one"
        );
        Ok(())
    })
}

#[test]
fn the_limit_of_a_cgroup_is_named() -> Result<()> {
    times(limit_of_a_cgroup)
}

fn limit_of_a_cgroup() -> Result<()> {
    let lab = SparkLab::new(VERSION)?;
    let daemon = lab.daemon()?;
    let Some(group) = MemoryCgroup::make("spark", 700 << 20)? else {
        return skip("memory_cgroup", "no cgroup with a memory limit can be made");
    };
    let application = application(&lab, "direct", &["-XX:MaxDirectMemorySize=4g"])?;
    let mut run = lab.run(application)?;
    run_within(&group, &daemon, &mut run)?;
    let page = page(&daemon, &run, "oom_killed_cgroup")?;
    ensure!(
        group.oom_kills()? == 1,
        "the kernel counted {}",
        group.oom_kills()?
    );
    ensure!(
        page["cgroup"]["limit_bytes"] == 700 << 20,
        "{}",
        page["cgroup"]
    );
    ensure!(
        page["advice"][0]
            .as_str()
            .is_some_and(|text| text.contains("spark.executor.memoryOverhead=")),
        "{}",
        page["advice"]
    );
    run.finish(&["end"])?;
    drop(daemon);
    lab.passed()
}

/// The page of a worker that outgrew the cgroup of an executor with a heap of 512 MiB: who grew, where the JVM's memory
/// was, and how much more it needs. `peak` is the most that the cgroup had, by the kernel.
fn explained(page: &Value, peak: u64) -> Result<()> {
    const HEAP: u64 = 512 << 20;
    let growth = list(page, "growth")?;
    let most = growth.first().context("nothing grew")?;
    println!("{growth:#?} {}", page["advice"]);
    ensure!(
        most["what"]
            .as_str()
            .is_some_and(|what| what.contains("Python")),
        "{growth:#?}"
    );
    let memory = &page["memory"];
    let resident = number(memory, "resident_bytes")?;
    let parts = list(memory, "parts")?;
    let parts: i64 = parts.iter().filter_map(|part| part["bytes"].as_i64()).sum();
    ensure!(
        parts.unsigned_abs().abs_diff(resident) <= resident / 100,
        "{parts} of {resident} bytes: {memory:#}"
    );
    let advice = page["advice"][0].as_str().context("no advice")?;
    let overhead = advice.split_once("spark.executor.memoryOverhead=");
    let (_, overhead) = overhead.with_context(|| advice.to_owned())?;
    let size: String = overhead.chars().take_while(char::is_ascii_digit).collect();
    let unit = if overhead[size.len()..].starts_with('g') {
        30
    } else {
        20
    };
    let overhead = size.parse::<u64>()? << unit;
    // What the kernel counted for all processes, without the heap, did not fit; a tenth and a step of 256 MiB are room.
    let least = WORKER_LIMIT - HEAP;
    let needed = peak.saturating_sub(resident.min(HEAP));
    ensure!(
        overhead > least
            && overhead <= (needed + needed / 5).max(least + (256 << 20)) + (512 << 20),
        "{overhead} bytes beside a heap of {HEAP}; the kernel's peak is {peak}, the JVM had {resident}"
    );
    Ok(())
}

#[test]
fn a_python_worker_that_the_oom_killer_ended_is_named() -> Result<()> {
    times(|| {
        let lab = SparkLab::new(VERSION)?;
        let daemon = lab.daemon()?;
        let Some(group) = MemoryCgroup::make("python", WORKER_LIMIT)? else {
            return skip("memory_cgroup", "no cgroup with a memory limit can be made");
        };
        let application = Application::python(
            &lab.paths,
            "local-cluster[1,1,1024]",
            "growing.py",
            &["4096"],
        )?
        .conf("spark.executor.memory", "512m")
        .conf("spark.task.maxFailures", "1")
        .with_marker(&lab.paths);
        let mut run = lab.run(application)?;
        let pid = run_within(&group, &daemon, &mut run)?;
        let page = page(&daemon, &run, "python_worker_killed")?;
        ensure!(
            group.oom_kills()? == 1,
            "the kernel counted {}",
            group.oom_kills()?
        );
        let sentence = text(&page, "sentence");
        ensure!(
            sentence.contains("OOM killer") && sentence.contains("the JVM lived on"),
            "{sentence}"
        );
        ensure!(
            page["cgroup"]["limit_bytes"] == WORKER_LIMIT,
            "{}",
            page["cgroup"]
        );
        explained(&page, group.peak_bytes()?)?;
        // The metric is what the kernel's file has, of all processes of the group.
        wait_for("the peak of the cgroup is a metric", LIMIT, || {
            let peak = group.peak_bytes()?;
            let metrics = daemon.metrics()?;
            let own = metrics.lines().find(|line| {
                line.starts_with("smtt_executor_cgroup_peak_bytes{")
                    && line.contains("executor_id=\"0\"")
            });
            let shown = own.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
            Ok((shown == Some(peak as f64)).then_some(()))
        })?;
        // The JVM lives, and nothing else has died.
        ensure!(executor(&daemon, &run)? == pid);
        ensure!(deaths(&daemon, &run.submitted.application_id()?, 1)?.len() == 1);
        let result = run.finish(&["end"])?;
        ensure!(result == "RESULT growing failed", "{result}");
        drop(daemon);
        lab.passed()
    })
}

#[test]
fn an_executor_that_spark_scales_down_is_stopped_by_spark() -> Result<()> {
    times(|| {
        let lab = SparkLab::new(VERSION)?;
        let daemon = lab.daemon()?;
        let application =
            Application::java(&lab.paths, "local-cluster[2,1,1024]", "Deaths", &["shrink"])?
                .conf("spark.executor.memory", "512m")
                .with_marker(&lab.paths);
        let mut run = lab.run(application)?;
        run.open("begin")?;
        run.reach("end")?;
        let application = run.submitted.application_id()?;
        // While the application runs only the executor has ended that Spark did not need any more.
        let rows = deaths(&daemon, &application, 1)?;
        let log = fs::read_to_string(run.submitted.running.log())?;
        ensure!(
            log.contains("Requesting to kill executor(s) 0"),
            "Spark's log does not say that it stopped executor 0"
        );
        ensure!(
            rows.len() == 1
                && rows[0]["executor_id"] == "0"
                && rows[0]["verdict"] == "stopped_by_spark",
            "{rows:#?}"
        );
        run.finish(&["end"])?;
        drop(daemon);
        lab.passed()
    })
}

#[test]
fn an_executor_that_ended_well_gets_no_cause() -> Result<()> {
    times(ended_well)
}

fn ended_well() -> Result<()> {
    let lab = SparkLab::new(VERSION)?;
    let daemon = lab.daemon()?;
    let mut run = start(&lab, "nothing", &[])?;
    run.reach("end")?;
    // Spark answers only while the application runs.
    let application = run.submitted.application_id()?;
    ensure!(
        daemon.json(&["postmortem", "--app", &application])?["rows"] == Value::Array(Vec::new()),
        "nothing has died"
    );
    run.open("end")?;
    run.submitted.result(LIMIT)?;
    for row in deaths(&daemon, &application, 1)? {
        let verdict = text(&row, "verdict");
        ensure!(["ended", "stopped_by_spark"].contains(&verdict), "{row:#}");
    }
    let metrics = daemon.metrics()?;
    ensure!(
        metrics.contains("smtt_executor_deaths_total{verdict=\"killed_by_signal\"} 0"),
        "{metrics}"
    );
    run.submitted.running.stop();
    drop(daemon);
    lab.passed()
}
