//! What a running task has used so far, and the parts of its life.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_config::FaultHook;
use smtt_daemon::running::RunningTasks;
use smtt_tests::json::{list, number, text};
use xtask::daemon::Options;

use crate::accounts::{READ, numbers};
use crate::lab::{Workload, daemon_alone, lab, with_hook};

/// Series of a task's splits, by name.
fn series(task: &Value, name: &str) -> Result<Vec<u64>> {
    numbers(&task["splits"]["series"][name]["parts"]).with_context(|| format!("{name} of {task}"))
}

#[test]
fn a_running_task_has_used_what_the_kernel_says() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Off))? else {
        return Ok(());
    };
    let mut workload = Workload::start("halves", &[])?;
    let executor = lab.executor(workload.pid())?;
    workload.go()?;
    workload.expect("HELD")?;
    workload.quiet()?;
    let rows = lab.probes.running_tasks()?;
    let mut running = RunningTasks::default();
    let read = running.read(&rows, |key| (key == executor).then_some(0))?;
    let tasks = read
        .get(&executor)
        .with_context(|| format!("no running task in {read:?}"))?;
    let [task] = tasks[..] else {
        anyhow::bail!("not one task: {tasks:?}")
    };
    ensure!(task.task_attempt_id == 7 && !task.partial, "{task:?}");
    ensure!(
        task.resident_bytes > Some(128 << 20) && task.virtual_bytes > task.resident_bytes,
        "{task:?}"
    );
    let done = workload.run()?;
    let (least, most) = (numbers(&done["least"])?, numbers(&done["most"])?);
    for (at, (name, account)) in READ.into_iter().enumerate() {
        ensure!(task.present & 1 << account != 0, "no {name}: {task:?}");
        let value = task.accounts[account];
        ensure!(
            (least[at]..=most[at]).contains(&value),
            "{name}: {value} while the task runs, {} before and {} after it by its own reading",
            least[at],
            most[at]
        );
        println!("{name}: {} <= {value} <= {}", least[at], most[at]);
    }
    let read = running.read(&rows, |_| Some(0))?;
    ensure!(
        !read.contains_key(&executor),
        "the ended task is read: {read:?}"
    );
    workload.end()
}

#[test]
fn the_parts_of_a_task_show_when_it_computed_and_when_it_held_memory() -> Result<()> {
    let Some(daemon) = daemon_alone(&Options::default())? else {
        return Ok(());
    };
    let mut workload = Workload::start("halves", &["half_ms=8000"])?;
    workload.go()?;
    workload.expect("HELD")?;
    let task = || -> Result<Value> {
        let rows = daemon.rows(&["task", "7"])?;
        ensure!(rows.len() == 1, "{rows:?}");
        Ok(rows[0].clone())
    };
    let running = task()?;
    ensure!(text(&running, "state")? == "running", "{running}");
    ensure!(text(&running, "used_until")? == "now", "{running}");
    let so_far = number(&running, "cpu_ns")?;
    ensure!(so_far >= 400_000_000, "{running}");
    // What a running task has used is in no sum.
    let stages = daemon.rows(&["stages"])?;
    ensure!(
        stages.iter().all(|stage| stage["cpu_ns"].is_null()),
        "{stages:?}"
    );
    println!("{}", daemon.ask(&["task", "7"])?);
    workload.run()?;
    let ended = xtask::process::wait_for(
        "the task has ended",
        std::time::Duration::from_secs(180),
        || {
            let task = task()?;
            Ok((task["used_until"] == "task_end").then_some(task))
        },
    )?;
    println!("{}", daemon.ask(&["task", "7"])?);
    ensure!(number(&ended, "cpu_ns")? >= so_far, "{ended}");
    for task in [&running, &ended] {
        let all = task["splits"]["series"].as_object().context("no series")?;
        for (name, series) in all {
            let parts = numbers(&series["parts"])?;
            ensure!(parts.len() == 12, "{name}: {parts:?}");
            if let Some(total) = series["total"].as_u64() {
                ensure!(parts.iter().sum::<u64>() == total, "{name} of {task}");
            }
        }
        ensure!(all["cpu_ns"]["total"] == task["cpu_ns"], "{task}");
        let (cpu, held) = (series(task, "cpu_ns")?, series(task, "resident_bytes")?);
        let (first, last) = (cpu[..6].iter().sum::<u64>(), cpu[8..].iter().sum::<u64>());
        ensure!(first > 20 * last, "CPU time by part: {cpu:?}");
        // Readings are a second apart and more, and parts 1.3 seconds.
        let (low, high) = (held[..4].iter().max(), held[8..].iter().min());
        ensure!(
            low.zip(high)
                .is_some_and(|(low, high)| high - low > 120 << 20),
            "resident memory by part: {held:?}"
        );
        let faults = series(task, "thread_page_faults")?;
        ensure!(
            faults[4..8].iter().sum::<u64>() > 9 * faults.iter().sum::<u64>() / 10,
            "page faults by part: {faults:?}"
        );
        let marks = list(&task["splits"], "interpolated")?;
        let read_in = marks.iter().filter(|mark| **mark == false).count();
        ensure!(read_in >= 6, "{marks:?}");
        ensure!(number(&task["splits"], "measured_points")? >= 8, "{task}");
    }
    workload.end()
}
