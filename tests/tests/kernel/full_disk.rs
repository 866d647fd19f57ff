//! A disk that is full at the moment of a death: the verdict is in memory, and on the disk once there is room.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use smtt_config::PostmortemSettings;
use smtt_daemon::postmortem::keeper::{Keeper, spawn};
use smtt_model::postmortem::{Report, Row, Verdict};
use smtt_model::protocol::ListQuery;
use smtt_store::reports;
use smtt_tests::skip::skip;
use xtask::process::{is_root, wait_for};

const LIMIT: Duration = Duration::from_secs(30);

/// A file system of 256 KiB, unmounted when it is dropped.
struct Small(tempfile::TempDir);

impl Small {
    fn mount() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let done = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=256k", "none"])
            .arg(folder.path())
            .status();
        let done = done.context("mount cannot be started")?;
        ensure!(done.success(), "a tmpfs cannot be mounted: {done}");
        Ok(Self(folder))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// Ends the writer's thread, also where the test fails.
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_full_disk_delays_a_verdict_and_loses_none() -> Result<()> {
    if !is_root() {
        return skip("root", "a file system is mounted");
    }
    let disk = Small::mount()?;
    let folder = disk.path().join("postmortem");
    let filler = disk.path().join("filler");
    let mut file = File::create(&filler)?;
    let full = (0..64).try_for_each(|_| file.write_all(&[1; 8192]));
    ensure!(
        full.is_err_and(|error| error.raw_os_error() == Some(libc::ENOSPC)),
        "the file system is not full"
    );
    drop(file);

    let keeper = Arc::new(Keeper::new(Some(folder.clone())));
    let stop = Stop(Arc::default());
    let stopped = Arc::clone(&stop.0);
    let settings = PostmortemSettings {
        folder: Some(folder.clone()),
        max_bytes: 1 << 20,
        max_files: 100,
        gid: None,
    };
    spawn(settings, Arc::clone(&keeper), move || {
        stopped.load(Ordering::Relaxed)
    })?;
    let mut row = Row {
        id: "1700000000000-7".into(),
        verdict: Verdict::Crashed,
        sentence: "the JVM crashed".into(),
        ..Row::default()
    };
    row.who.uid = Some(1000);
    row.who.executor_id = Some("3".into());
    let report = Report {
        row,
        ..Report::default()
    };
    keeper.add(report.clone());

    let everything = ListQuery::default();
    wait_for("the writer meets the full disk", LIMIT, || {
        let list = keeper.list(&everything);
        Ok(list.failing.contains("No space left").then_some(()))
    })?;
    let list = keeper.list(&everything);
    ensure!(
        (list.rows.len(), list.waiting, list.lost) == (1, 1, 0),
        "the death is not in memory: {list:?}"
    );
    let asked = ListQuery {
        executor: Some("3".into()),
        ..ListQuery::default()
    };
    ensure!(
        keeper.find(&asked)?.as_deref() == Some(&report),
        "the report is not in memory"
    );

    fs::remove_file(&filler)?;
    wait_for("the report is written", LIMIT, || {
        let list = keeper.list(&everything);
        Ok((list.waiting == 0 && list.failing.is_empty()).then_some(()))
    })?;
    let path = folder.join("uid=1000/report-1700000000000-7.json");
    ensure!(path.is_file(), "no {}", path.display());
    let written = reports::read(&folder, 1000, "1700000000000-7")?;
    ensure!(written == report, "another report was written: {written:?}");
    ensure!(
        keeper.find(&asked)?.as_deref() == Some(&report),
        "the report cannot be read back"
    );
    Ok(())
}
