//! A machine without memory: the kernel's OOM killer ends an executor that no cgroup limits. The witnesses are the exit
//! status that `wait` gets, and `oom_kill` in `/proc/vmstat`.
//!
//! Only an emulated machine is used up.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use smtt_config::FaultHook;
use smtt_tests::attackers::Counted;
use smtt_tests::lab::programs;
use smtt_tests::skip::{must_have, skip};
use xtask::daemon::{Daemon, Options};
use xtask::paths::Paths;

use crate::lab::{Workload, death, lab, with_hook};

const LIMIT: Duration = Duration::from_secs(180);

/// Processes that the kernel's OOM killer has ended since the start of the machine.
fn oom_kills() -> Result<u64> {
    let counts = fs::read_to_string("/proc/vmstat")?;
    let line = counts
        .lines()
        .find_map(|line| line.strip_prefix("oom_kill "));
    Ok(line.context("no oom_kill in /proc/vmstat")?.parse()?)
}

#[test]
fn guest_a_machine_without_memory_is_named_as_the_cause() -> Result<()> {
    let Some(_lab) = lab(&with_hook(FaultHook::Off))? else {
        return Ok(());
    };
    if !must_have("spare_machine") {
        return skip(
            "spare_machine",
            "only an emulated machine's memory is used up",
        );
    }
    let folder = tempfile::tempdir()?;
    let daemon = Daemon::start(
        &Paths::find()?,
        &programs()?,
        folder.path(),
        &Options::default(),
    )?;
    let mut victim = Workload::start("deaths", &["grow=own", "name=java"])?;
    let pid = victim.pid();
    // The kernel takes it first: no other process of the machine has a higher score.
    fs::write(format!("/proc/{pid}/oom_score_adj"), "1000")?;
    let began = Instant::now();
    while Counted::read(&daemon, pid).is_err() {
        ensure!(began.elapsed() < LIMIT, "the workload is not found");
        thread::sleep(Duration::from_millis(200));
    }
    victim.go()?;
    victim.expect("CHILD ")?;
    let before = oom_kills()?;
    victim.go()?;
    let (status, peak) = victim.reap()?;
    ensure!(status == libc::SIGKILL as u32, "wait4 says {status:#x}");
    ensure!(
        oom_kills()? == before + 1,
        "the kernel counts {} kills, {before} before",
        oom_kills()?
    );
    let report = death(&daemon, pid)?;
    println!("{report:#}");
    ensure!(report["verdict"] == "oom_killed_machine", "{report:#}");
    ensure!(
        report["peak_rss_bytes"] == peak,
        "wait4 says {peak}: {report:#}"
    );
    Ok(())
}
