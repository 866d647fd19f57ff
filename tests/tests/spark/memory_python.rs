//! Memory of Python workers and of a control group: compared with the kernel's counts of each process and of the group.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_tests::json::{list, number, text};
use smtt_tests::lab::{LIMIT, SparkLab};
use smtt_tests::skip::skip;
use xtask::process::wait_for;
use xtask::spark::Application;

/// The daemon reads the memory of executors once a second.
const TWO_READINGS: Duration = Duration::from_millis(2200);
const WORKERS: u64 = 2;
const MIB_EACH: u64 = 300;
const HELD_BYTES: u64 = (WORKERS * MIB_EACH) << 20;

/// A control group of this test, in the group of the test itself.
struct Group {
    folder: PathBuf,
    before: PathBuf,
    version: u8,
}

impl Group {
    /// Makes the group; `None` where no memory controller can be given to it.
    fn make() -> Result<Option<Self>> {
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let path = |wanted: &str| {
            own.lines().find_map(|line| {
                let (_, rest) = line.split_once(':')?;
                let (controllers, path) = rest.split_once(':')?;
                let found = controllers.split(',').any(|one| one == wanted);
                found.then(|| path.trim_start_matches('/').to_owned())
            })
        };
        let (version, before) = match path("memory") {
            Some(path) => (1, Path::new("/sys/fs/cgroup/memory").join(path)),
            None => (
                2,
                Path::new("/sys/fs/cgroup").join(path("").unwrap_or_default()),
            ),
        };
        // In version 2 a group with processes has no children with controllers: the new one is beside it.
        let parent = match version {
            1 => before.clone(),
            _ => before.parent().unwrap_or(&before).to_path_buf(),
        };
        let folder = parent.join(format!("smtt-test-{}", std::process::id()));
        if fs::create_dir(&folder).is_err() || !folder.join("memory.stat").exists() {
            let _ = fs::remove_dir(&folder);
            return Ok(None);
        }
        Ok(Some(Self {
            folder,
            before,
            version,
        }))
    }

    /// Runs something whose processes are in the group.
    fn within<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let own = std::process::id().to_string();
        fs::write(self.folder.join("cgroup.procs"), &own)?;
        let result = work();
        fs::write(self.before.join("cgroup.procs"), &own)?;
        result
    }

    fn current(&self) -> Result<u64> {
        let file = match self.version {
            1 => "memory.usage_in_bytes",
            _ => "memory.current",
        };
        Ok(fs::read_to_string(self.folder.join(file))?.trim().parse()?)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}

fn sum(parts: &[Value]) -> i64 {
    parts.iter().filter_map(|part| part["bytes"].as_i64()).sum()
}

/// Resident memory of a process by the kernel, in bytes.
fn resident(pid: u64) -> Result<u64> {
    of_process(pid, "VmRSS:")
}

fn of_process(pid: u64, name: &'static str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib: u64 = line
        .and_then(|line| line.split_whitespace().next()?.parse().ok())
        .context(name)?;
    Ok(kib * 1024)
}

#[test]
fn python_workers_and_their_control_group_are_measured() -> Result<()> {
    let Some(group) = Group::make()? else {
        return skip("memory_cgroup", "no group of the test's own can be made");
    };
    let lab = SparkLab::new("4.0.5")?;
    let daemon = lab.daemon()?;
    let arguments = [WORKERS.to_string(), MIB_EACH.to_string()];
    let arguments = arguments.each_ref().map(String::as_str);
    let application = Application::python(
        &lab.paths,
        "local-cluster[1,2,1024]",
        "greedy.py",
        &arguments,
    )?;
    let application = application.with_marker(&lab.paths);
    let mut run = group.within(|| lab.run(application))?;
    let folder = lab.folder().join("gates-1");
    wait_for("the workers hold their memory", LIMIT, || {
        let held = (0..WORKERS).all(|worker| folder.join(format!("worker-{worker}")).exists());
        Ok(held.then_some(()))
    })?;
    // A reading begins after the workers hold their memory, and is up to a second old: it counts where the group has not
    // changed since then.
    let (row, current) = wait_for("the workers' memory is read", LIMIT, || {
        let before = group.current()?;
        std::thread::sleep(TWO_READINGS);
        let rows = run.rows(&daemon, &["memory"])?;
        let current = group.current()?;
        let row = rows.into_iter().find(|row| row["executor_id"] == "0");
        let row = row.filter(|row| {
            let children = row["children"].as_array().into_iter().flatten();
            let greedy =
                children.filter(|child| child["resident_bytes"].as_u64() > Some(MIB_EACH << 20));
            greedy.count() as u64 == WORKERS && row["examined_age_ns"].is_u64()
        });
        let rests = before.abs_diff(current) <= current / 1000;
        Ok(row.filter(|_| rests).map(|row| (row, current)))
    })?;
    println!("{row}, the group has {current}");
    for child in list(&row, "children")? {
        let (now, told) = (
            resident(number(child, "pid")?)?,
            number(child, "resident_bytes")?,
        );
        ensure!(text(child, "kind")? == "python", "{child}");
        ensure!(
            now.abs_diff(told) <= now / 100,
            "{told} instead of {now}: {child}"
        );
    }
    let parts = list(&row["cgroup"], "parts")?;
    ensure!(
        sum(parts).unsigned_abs().abs_diff(current) <= current / 100,
        "the parts of the group add up to {} instead of {current}",
        sum(parts)
    );
    let part = |name: &str| {
        let found = parts.iter().find(|part| part["name"] == name);
        found.and_then(|part| part["bytes"].as_i64()).unwrap_or(0)
    };
    ensure!(part("python_workers") >= HELD_BYTES as i64, "{row}");
    ensure!(
        part("not_explained").unsigned_abs() <= current / 100,
        "{row}"
    );
    ensure!(
        sum(list(&row, "parts")?) == row["resident_bytes"].as_i64().unwrap_or(0),
        "{row}"
    );
    let peak = |metric: &str| row["peaks"][metric]["value"].as_u64();
    ensure!(
        peak("ProcessTreePythonRSSMemory") >= Some(HELD_BYTES),
        "{row}"
    );
    // Each worker has served one task in its life.
    let mut marks = Vec::new();
    for child in list(&row, "children")? {
        let pid = number(child, "pid")?;
        if number(child, "resident_bytes")? > MIB_EACH << 20 {
            marks.push(of_process(pid, "VmHWM:")?);
        }
    }
    let tasks = run.rows(&daemon, &["tasks"])?;
    let running = tasks.iter().filter(|task| task["state"] == "running");
    let mut peaks: Vec<u64> = running
        .map(|task| number(task, "python_worker_peak_bytes"))
        .collect::<Result<_>>()?;
    marks.sort_unstable();
    peaks.sort_unstable();
    println!("peaks of the tasks {peaks:?}, of their workers {marks:?}");
    ensure!(peaks.len() as u64 == WORKERS && marks.len() == peaks.len());
    let within = |(peak, mark): (&u64, &u64)| peak <= mark && mark - peak <= mark / 100;
    ensure!(peaks.iter().zip(&marks).all(within));
    let result = run.finish(&["greedy"])?;
    ensure!(
        result == format!("RESULT greedy {}", HELD_BYTES),
        "{result}"
    );
    drop(daemon);
    lab.passed()
}
