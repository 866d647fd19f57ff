//! The JVM's own library is replaced below running executors, as an upgrade of the JDK's package does it: another file at
//! the same path. Executors that began before have the old file, those that begin after it the new one; all are traced.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use smtt_tests::application::{LOCAL_CLUSTER, PAGE_RANK, PAGE_RANK_RESULT};
use smtt_tests::json::number;
use smtt_tests::lab::{Run, SparkLab};
use smtt_tests::truth::{same_storage, same_tasks};
use smtt_tests::witness;
use xtask::daemon::Daemon;
use xtask::paths::Jdk;
use xtask::process::wait_for;
use xtask::spark::Application;

/// How long the daemon may take to read the last counters.
const READ_WITHIN: Duration = Duration::from_secs(120);

/// A JDK of the test's own: hard links, so that another file at a path leaves the machine's JDK as it is.
fn own_jdk(folder: &Path) -> Result<Jdk> {
    let main = Jdk::main()?;
    let home = folder.join("jdk");
    let mut copy = Command::new("cp");
    copy.args(["-a", "--link"])
        .arg(main.home.canonicalize()?)
        .arg(&home);
    ensure!(copy.status()?.success(), "the JDK cannot be linked");
    Ok(Jdk {
        home,
        release: main.release,
    })
}

/// An application that has cached its blocks.
fn cached(lab: &SparkLab) -> Result<Run> {
    let application = Application::java(&lab.paths, LOCAL_CLUSTER, "PageRank", &PAGE_RANK)?;
    let mut run = lab.run(application.with_marker(&lab.paths))?;
    run.open("begin")?;
    run.reach("cached")?;
    Ok(run)
}

/// Whether each executor has the file that was at the path.
fn have_old_file(daemon: &Daemon, run: &Run, path: &Path) -> Result<Vec<bool>> {
    let path = path.display().to_string();
    let rows = run.rows(daemon, &["executors"])?;
    let has_old = rows.iter().map(|row| {
        let maps = fs::read_to_string(format!("/proc/{}/maps", number(row, "pid")?))?;
        let line = maps.lines().find(|line| line.contains(&path));
        let line = line.context("an executor has no libjvm of this JDK")?;
        Ok(line.ends_with("(deleted)"))
    });
    has_old.collect()
}

/// Each page fault since the start of each executor, by the kernel's count, within 1 %.
fn same_faults(daemon: &Daemon, run: &Run) -> Result<()> {
    let mut seen = Vec::new();
    let same = wait_for("the page faults of all executors", READ_WITHIN, || {
        seen = run
            .rows(daemon, &["executors"])?
            .iter()
            .map(|row| {
                let kernel = witness::faults(number(row, "pid")? as u32)?.total();
                let counted =
                    number(row, "page_faults")? + number(row, "page_faults_before_tracing")?;
                Ok((counted, kernel))
            })
            .collect::<Result<Vec<_>>>()?;
        let close = |(counted, kernel): &(u64, u64)| counted.abs_diff(*kernel) * 100 <= *kernel;
        Ok((seen.len() == 2 && seen.iter().all(close)).then_some(()))
    });
    println!("page faults and the kernel's count: {seen:?}");
    same.with_context(|| format!("{seen:?}"))
}

#[test]
fn executors_below_which_libjvm_is_replaced_are_traced_on_and_so_are_the_next() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let jdk = own_jdk(folder.path())?;
    let libjvm = jdk.home.join("lib/server/libjvm.so");
    let lab = SparkLab::on("4.0.5", &jdk)?;
    let daemon = lab.daemon()?;
    let mut old = cached(&lab)?;
    same_storage(&daemon, &old.submitted)?;

    let new_file = libjvm.with_extension("so.dpkg-new");
    fs::copy(&libjvm, &new_file)?;
    fs::rename(&new_file, &libjvm)?;
    let mut new = cached(&lab)?;
    let files = [&old, &new].map(|run| have_old_file(&daemon, run, &libjvm));
    let [old_files, new_files] = files;
    let (old_files, new_files) = (old_files?, new_files?);
    ensure!(
        old_files == [true, true] && new_files == [false, false],
        "executors with the old file: {old_files:?}, {new_files:?}"
    );
    for run in [&mut old, &mut new] {
        run.open("cached")?;
        run.reach("end")?;
        same_storage(&daemon, &run.submitted)?;
        same_tasks(&daemon, &run.submitted)?;
        same_faults(&daemon, run)?;
        assert_eq!(run.finish(&["end"])?, PAGE_RANK_RESULT);
    }
    drop(daemon);
    lab.passed()
}
