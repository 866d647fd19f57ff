//! Memory, limits and kills of an executor's cgroup, as a daemon reports them: the limit is its own or that of a cgroup
//! above it, and the daemon is beside the executor or in a pod with a cgroup namespace of its own. In emulated machines the
//! cgroups are of version 2, on other machines of the version that the machine has.
//!
//! The witnesses are the kernel's own counts of the cgroups, of which the daemon reads other files, and the exit status
//! that `wait4` gets. No daemon here reads the kernel's log: only the counts can say which limit was reached.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_tests::cgroup::{MemoryCgroup, in_pod, without_kernel_log};
use smtt_tests::json::{list, number};
use smtt_tests::lab::programs;
use smtt_tests::skip::{leave_out, skip};
use tempfile::TempDir;
use xtask::daemon::{Daemon, Options};
use xtask::paths::Paths;
use xtask::process::wait_for;

use crate::lab::{Workload, alone, death};

const MIB: u64 = 1 << 20;
/// Limit of those that reach it.
const LIMIT: u64 = 64 * MIB;
/// Bytes that an executor holds, and of a file that its cgroup holds.
const HELD: u64 = 128 * MIB;
const FILE: u64 = 16 * MIB;
/// How long the daemon may take to find executors and to read their memory.
const READ: Duration = Duration::from_secs(180);
/// The daemon looks up the cgroup with every fifth sample, one a second; no listing shows it before a death.
const SAMPLED: Duration = Duration::from_secs(20);

/// An executor, and its child, in a cgroup from its begin on.
fn start(group: &MemoryCgroup, hold_mib: u64) -> Result<Workload> {
    let hold = format!("hold={hold_mib}");
    group.within(|| Ok(with_child(&hold)?.0))
}

/// An executor and its Python worker.
fn with_child(hold: &str) -> Result<(Workload, u32)> {
    let options = ["grow=own", "name=java", "child=python3", hold];
    let mut workload = Workload::start("deaths", &options)?;
    workload.go()?;
    let child = workload.expect("CHILD ")?.parse()?;
    Ok((workload, child))
}

/// The row of a process in the listing of memory, once it has its cgroup.
fn row(daemon: &Daemon, pid: u32) -> Result<Value> {
    wait_for("the cgroup is listed", READ, || {
        // A daemon on a busy machine may not answer in time.
        let rows = daemon.rows(&["memory"]).unwrap_or_default();
        let row = rows.into_iter().find(|row| row["pid"] == pid);
        Ok(row.filter(|row| row["cgroup"].is_object()))
    })
}

/// The table of a cgroup adds up to what the kernel says that it uses.
fn adds_up(daemon: &Daemon, group: &MemoryCgroup, pid: u32) -> Result<()> {
    let (table, current) = wait_for("a reading of the cgroup as it is", READ, || {
        let before = group.current_bytes()?;
        thread::sleep(Duration::from_secs(2));
        let table = row(daemon, pid)?["cgroup"].clone();
        let now = group.current_bytes()?;
        let rests = before.abs_diff(now) <= now / 1000;
        // A slow daemon's reading may be of before.
        let near = number(&table, "current_bytes")?.abs_diff(now) <= now / 100;
        Ok((rests && near).then_some((table, now)))
    })?;
    println!("{table}, the kernel says {current}");
    let parts = list(&table, "parts")?;
    let part = |name: &str| {
        let found = parts.iter().find(|part| part["name"] == name);
        found.and_then(|part| part["bytes"].as_i64()).unwrap_or(0)
    };
    let sum: i64 = parts.iter().filter_map(|part| part["bytes"].as_i64()).sum();
    ensure!(
        sum.unsigned_abs().abs_diff(current) <= current / 100,
        "{sum} instead of {current}"
    );
    ensure!(part("not_explained").unsigned_abs() <= current / 100);
    ensure!(part("jvm") >= HELD as i64);
    // On a disk or in memory.
    let file = part("page_cache") + part("shared_memory");
    ensure!(file >= FILE as i64);
    ensure!(table["version"] == group.version);
    ensure!(number(&table, "limit_bytes")? == 4 * HELD);
    let peak = number(&table, "peak_bytes")?;
    ensure!(
        peak >= HELD + FILE && peak <= group.peak_bytes()?,
        "peak {peak}"
    );
    Ok(())
}

/// An executor takes memory until the kernel kills it at the limit of `limited`; it is in `inside`, which may be the same.
fn dies(
    daemon: &Daemon,
    mut workload: Workload,
    limited: &MemoryCgroup,
    inside: &MemoryCgroup,
) -> Result<()> {
    let pid = workload.pid();
    workload.go()?;
    let (status, peak) = workload.reap()?;
    ensure!(status == libc::SIGKILL as u32, "wait4 says {status:#x}");
    ensure!(limited.oom_kills()? == 1 || limited.version == 1);
    ensure!(
        inside.oom_kills()? == 1,
        "the kernel counts {}",
        inside.oom_kills()?
    );
    let report = death(daemon, pid)?;
    println!("{report:#}");
    ensure!(report["verdict"] == "oom_killed_cgroup");
    ensure!(report["peak_rss_bytes"] == peak, "wait4 says {peak}");
    let cgroup = &report["cgroup"];
    ensure!(cgroup["version"] == limited.version);
    ensure!(cgroup["limit_bytes"] == LIMIT);
    ensure!(cgroup["peak_bytes"] == inside.peak_bytes()?);
    let grown = |counts: &str| -> Result<u64> {
        let counts = list(cgroup, counts)?;
        let (before, after) = (counts[0].as_u64(), counts[1].as_u64());
        before
            .zip(after)
            .map(|(before, after)| after - before)
            .context("counts")
    };
    ensure!(grown("oom_kills")? == 1);
    // The count may go on while the process ends.
    ensure!((1..=limited.limit_hits()?).contains(&grown("limit_hits")?));
    Ok(())
}

/// A daemon's own cgroup, and the executors in theirs. The fields are dropped in this order: a cgroup goes after those
/// below it.
struct Groups {
    daemon: MemoryCgroup,
    held: MemoryCgroup,
    own: MemoryCgroup,
    below: MemoryCgroup,
    above: MemoryCgroup,
}

impl Groups {
    fn make() -> Result<Option<Self>> {
        let make = MemoryCgroup::make;
        let Some(above) = make("above", LIMIT)? else {
            skip("memory_cgroup", "no cgroup with a memory limit can be made")?;
            return Ok(None);
        };
        let another = |group: Option<MemoryCgroup>| group.context("one more cgroup");
        Ok(Some(Self {
            daemon: another(MemoryCgroup::unlimited("daemon")?)?,
            held: another(make("held", 4 * HELD)?)?,
            own: another(make("own", LIMIT)?)?,
            below: above.below("below")?,
            above,
        }))
    }
}

/// Measures, then kills, with a daemon that is started in this way.
fn reported(begin: impl FnOnce(&Groups, &TempDir) -> Result<Daemon>) -> Result<()> {
    let Some(_turn) = alone()? else {
        return Ok(());
    };
    let Some(groups) = Groups::make()? else {
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let daemon = begin(&groups, &folder)?;
    let held = start(&groups.held, HELD / MIB)?;
    let (own, below) = (start(&groups.own, 0)?, start(&groups.below, 0)?);
    let bytes = vec![1; FILE as usize];
    groups
        .held
        .within(|| Ok(fs::write(folder.path().join("file"), bytes)?))?;
    adds_up(&daemon, &groups.held, held.pid())?;
    for workload in [&own, &below] {
        let row = row(&daemon, workload.pid())?;
        ensure!(row["cgroup"]["limit_bytes"] == LIMIT, "{row}");
    }
    thread::sleep(SAMPLED);
    dies(&daemon, own, &groups.own, &groups.own)?;
    dies(&daemon, below, &groups.above, &groups.below)?;
    // No limit of the one that lives was reached.
    let metrics = daemon.metrics()?;
    let counted = "smtt_executor_deaths_total{verdict=\"oom_killed_cgroup\"} 2";
    ensure!(metrics.contains(counted), "{metrics}");
    drop(held);
    Ok(())
}

fn daemon(folder: &Path) -> Result<Daemon> {
    Daemon::start(&Paths::find()?, &programs()?, folder, &Options::default())
}

#[test]
fn limits_of_a_cgroup_and_of_one_above_it_are_measured_and_named_as_the_cause() -> Result<()> {
    reported(|_, folder| without_kernel_log(|| daemon(folder.path())))
}

#[test]
fn a_daemon_in_a_pod_with_the_tree_of_the_host_sees_the_limits_of_others() -> Result<()> {
    reported(|groups, folder| {
        let host = folder.path().join("host-cgroup");
        fs::create_dir(&host)?;
        in_pod(&groups.daemon, &host, || daemon(folder.path()))
    })
}

/// The cgroup of a container goes as soon as its last process has ended; that of its pod, which has no limit, stays.
#[test]
fn a_cgroup_that_goes_with_its_last_process_is_no_machine_without_memory() -> Result<()> {
    let Some(_turn) = alone()? else {
        return Ok(());
    };
    let Some(pod) = MemoryCgroup::unlimited("pod")? else {
        return skip("memory_cgroup", "no cgroup with a memory limit can be made");
    };
    let folder = tempfile::tempdir()?;
    let daemon = without_kernel_log(|| daemon(folder.path()))?;
    // The last sample is far from the limit, and near it.
    for (hold, verdicts) in [
        (0, &["oom_killed", "oom_killed_cgroup"][..]),
        (HELD, &["oom_killed_cgroup"]),
    ] {
        let container = pod.below("container")?;
        let mut workload = start(&container, hold / MIB)?;
        let limit = (container.current_bytes()? + MIB).max(LIMIT);
        container.limit(limit)?;
        row(&daemon, workload.pid())?;
        thread::sleep(SAMPLED);
        let pid = workload.pid();
        workload.go()?;
        let (status, _) = workload.reap()?;
        drop(container);
        ensure!(status == libc::SIGKILL as u32, "wait4 says {status:#x}");
        let report = death(&daemon, pid)?;
        println!("{report:#}");
        let is_one = verdicts.iter().any(|verdict| report["verdict"] == *verdict);
        ensure!(is_one, "{}", report["verdict"]);
        ensure!(report["cgroup"]["limit_bytes"] == limit, "not {limit}");
    }
    Ok(())
}

/// Workers whose deaths are counted.
fn worker_deaths(daemon: &Daemon) -> Result<u64> {
    let metrics = daemon.metrics()?;
    let mut lines = metrics.lines();
    let counted = lines.find(|line| {
        line.starts_with("smtt_executor_deaths_total") && line.contains("python_worker_killed")
    });
    let value = counted.and_then(|line| line.rsplit(' ').next());
    Ok(value.map_or(Ok(0), str::parse)?)
}

/// The only report of an executor's death is that of its JVM; one worker died before.
fn one_report(daemon: &Daemon, pid: u32, verdicts: &[&str]) -> Result<()> {
    let report = death(daemon, pid)?;
    let is_one = verdicts.iter().any(|verdict| report["verdict"] == *verdict);
    ensure!(is_one && report["child_pid"].is_null(), "{report:#}");
    // The child's would be there by now: it is judged at most a second later.
    thread::sleep(Duration::from_secs(4));
    let workers = worker_deaths(daemon)?;
    ensure!(workers == 1, "{workers} deaths of workers");
    Ok(())
}

/// An executor and its Python worker, both known to the daemon.
fn known_with_child(daemon: &Daemon) -> Result<(Workload, u32)> {
    let (workload, child) = with_child("hold=0")?;
    wait_for("the daemon has the child", READ, || {
        let rows = daemon.rows(&["memory"]).unwrap_or_default();
        let row = rows.iter().find(|row| row["pid"] == workload.pid());
        let children = row.and_then(|row| row["children"].as_array());
        let mut children = children.into_iter().flatten();
        Ok(children.any(|of| of["pid"] == child).then_some(()))
    })?;
    Ok((workload, child))
}

#[test]
fn processes_that_are_killed_together_are_one_death() -> Result<()> {
    let Some(_turn) = alone()? else {
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let daemon = daemon(folder.path())?;
    let kill = |pid: u32| {
        // SAFETY: kill has no precondition; both processes are of this test and not reaped.
        let done = unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        ensure!(done == 0, "kill: {}", std::io::Error::last_os_error());
        Ok(())
    };
    // A worker alone is a death.
    let (workload, child) = known_with_child(&daemon)?;
    kill(child)?;
    let report = death(&daemon, workload.pid())?;
    ensure!(report["verdict"] == "python_worker_killed", "{report:#}");
    ensure!(worker_deaths(&daemon)? == 1);
    drop(workload);
    // As a container's runtime does it, in either order.
    for is_child_first in [true, false] {
        let (workload, child) = known_with_child(&daemon)?;
        let pid = workload.pid();
        let (first, second) = if is_child_first {
            (child, pid)
        } else {
            (pid, child)
        };
        kill(first)?;
        kill(second)?;
        let (status, _) = workload.reap()?;
        ensure!(status == libc::SIGKILL as u32, "wait4 says {status:#x}");
        // The test is the process that has started it, too.
        one_report(&daemon, pid, &["killed_by_signal", "stopped_by_spark"])?;
    }
    // As the kernel does it with the cgroup of a pod.
    let Some(group) = MemoryCgroup::make("whole", LIMIT)? else {
        return skip("memory_cgroup", "no cgroup with a memory limit can be made");
    };
    if group.version == 1 {
        return leave_out(
            "memory_cgroup_2",
            "cgroups of version 1 are never killed as a whole",
        );
    }
    group.kill_as_a_whole()?;
    let mut workload = start(&group, 0)?;
    let pid = workload.pid();
    row(&daemon, pid)?;
    workload.go()?;
    let (status, _) = workload.reap()?;
    ensure!(status == libc::SIGKILL as u32, "wait4 says {status:#x}");
    ensure!(group.number("memory.events oom_group_kill")? == 1);
    // The executor and its child; the kernel counts the one that it chose twice.
    let kills = group.oom_kills()?;
    ensure!((2..=3).contains(&kills), "{kills} kills");
    one_report(&daemon, pid, &["oom_killed_cgroup"])
}
