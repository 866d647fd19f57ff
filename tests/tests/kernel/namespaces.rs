//! An executor in another pid namespace: its worker's page faults belong to the worker's task, although the marker reports
//! an id that is another process on the host. The witness is the number of pages that the worker touches.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use smtt_tests::json::number;
use smtt_tests::witness;
use xtask::daemon::Options;

use crate::lab::{Workload, daemon_alone};

/// RDD of the worker's context.
const RDD: u64 = 11;
/// How long the daemon may take to read the last counters.
const READ_LIMIT: Duration = Duration::from_secs(180);

#[test]
fn a_worker_in_another_pid_namespace_belongs_to_its_task() -> Result<()> {
    worker_in_namespaces(1)
}

/// A container in a container: what is the worker's id for its executor is the executor's own id one level further out.
#[test]
fn a_worker_three_pid_namespaces_deep_belongs_to_its_task() -> Result<()> {
    worker_in_namespaces(3)
}

/// The ids of a process, from the first pid namespace to its own.
fn ids(pid: u64) -> Result<Vec<u64>> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let ids = line.context("no NSpid")?.split_whitespace();
    ids.map(|id| id.parse().context("an id")).collect()
}

/// A worker of an executor that many pid namespaces below the first one.
fn worker_in_namespaces(levels: usize) -> Result<()> {
    let Some(daemon) = daemon_alone(&Options::default())? else {
        return Ok(());
    };
    let namespaces = format!("namespaces={levels}");
    let mut workload = Workload::start("namespaced_worker", &[&namespaces, "name=java"])?;
    let said = workload.run()?;
    ensure!(
        said["inner_pid"] == 1,
        "it is not in a namespace of its own: {said}"
    );
    let pages = number(&said, "pages")?;
    let start = Instant::now();
    loop {
        let executors = daemon.rows(&["executors"])?;
        let own = witness::descendants(workload.pid())?;
        let executor = executors
            .iter()
            .find(|row| {
                row["pid"]
                    .as_u64()
                    .is_some_and(|pid| own.contains(&(pid as u32)))
            })
            .context("the executor is not listed by its id on the host")?;
        let ids = ids(number(executor, "pid")?)?;
        ensure!(
            ids.len() == levels + 1 && ids.last() == Some(&1),
            "the executor that is listed has the ids {ids:?}"
        );
        let key = executor["executor_id"].as_str().context("no id")?;
        let rdds = daemon.rows(&["rdds", "--executor", key])?;
        let faults = rdds
            .iter()
            .find(|rdd| rdd["rdd_id"] == RDD)
            .map_or(Ok(0), |rdd| number(rdd, "page_faults"))?;
        let idle = executor["unattributed"]["child_process"]
            .as_u64()
            .unwrap_or(0);
        // The second mapping, and a few faults of the allocator.
        if (pages..pages + 60).contains(&faults) && idle >= pages {
            println!(
                "{faults} page faults of the worker in its task, {idle} before; {pages} pages each"
            );
            break;
        }
        ensure!(
            start.elapsed() < READ_LIMIT,
            "{faults} page faults of the worker in its task, {idle} without one; it touched {pages} pages each: {executor}"
        );
        thread::sleep(Duration::from_millis(200));
    }
    workload.end()
}
