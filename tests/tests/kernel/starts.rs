//! Starts of the daemon: two at once, and one that is killed at any moment of its start.

use std::io::Error;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use smtt_tests::lab::programs;
use smtt_tests::witness;
use xtask::daemon::{Daemon, Options};
use xtask::paths::Paths;

use crate::lab::{Workload, alone};

/// Kills, evenly spread over the time that a start takes.
const KILLS: u32 = 25;
/// How long the kernel may take to free what a dead process held.
const FREED_LIMIT: Duration = Duration::from_secs(120);

/// Commands of bpf(2) that return the next id of a program, a map and a link.
const NEXT_IDS: [(&str, libc::c_int); 3] = [("programs", 11), ("maps", 12), ("links", 31)];

/// Programs, maps and links in the kernel, of all processes.
fn in_kernel() -> [usize; 3] {
    NEXT_IDS.map(|(_, command)| {
        /// The part of the kernel's `union bpf_attr` for these commands.
        #[repr(C)]
        struct NextId {
            start: u32,
            next: u32,
            flags: u32,
        }
        let mut attribute = NextId {
            start: 0,
            next: 0,
            flags: 0,
        };
        let mut count = 0;
        // SAFETY: the attribute is laid out as the kernel's and outlives the call.
        while unsafe {
            libc::syscall(
                libc::SYS_bpf,
                command,
                &raw mut attribute,
                size_of::<NextId>(),
            )
        } == 0
        {
            count += 1;
            attribute.start = attribute.next;
        }
        count
    })
}

/// Waits until the kernel has no more objects than before.
fn freed(before: [usize; 3]) -> Result<()> {
    let start = Instant::now();
    loop {
        let now = in_kernel();
        if now.iter().zip(before).all(|(now, before)| *now <= before) {
            return Ok(());
        }
        ensure!(
            start.elapsed() < FREED_LIMIT,
            "the kernel keeps programs, maps and links of a daemon that is dead: {now:?}, {before:?} before"
        );
        sleep(Duration::from_millis(50));
    }
}

fn start(folder: &Path) -> Result<Daemon> {
    Daemon::start(&Paths::find()?, &programs()?, folder, &Options::default())
}

#[test]
fn a_daemon_that_is_killed_at_any_moment_of_its_start_leaves_nothing() -> Result<()> {
    let Some(_turn) = alone()? else {
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let before = in_kernel();
    let begun = Instant::now();
    let mut daemon = start(folder.path())?;
    let whole = begun.elapsed();
    ensure!(in_kernel()[0] > before[0], "a daemon has programs");
    daemon.kill();
    freed(before)?;
    let config = folder.path().join("smtt.toml");
    for kill in 0..KILLS {
        let mut child = Command::new(programs()?.join("smtt-daemon"))
            .arg("--config")
            .arg(&config)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("the daemon cannot be started")?;
        sleep(whole * kill / (KILLS - 1));
        child.kill()?;
        child.wait()?;
        freed(before).with_context(|| format!("killed after {:?}", whole * kill / (KILLS - 1)))?;
    }
    // The socket of the last dead daemon is in the way, and a new daemon takes its place.
    daemon.start_again()?;
    daemon.stop();
    freed(before)
}

#[test]
fn two_daemons_count_the_same_executor_and_the_end_of_one_does_not_matter() -> Result<()> {
    let Some(_turn) = alone()? else {
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let mut first = start(&folder.path().join("first"))?;
    let second = start(&folder.path().join("second"))?;

    // The same socket is not taken over while its daemon lives.
    let config = folder.path().join("first/smtt.toml");
    let refused = Command::new(programs()?.join("smtt-daemon"))
        .arg("--config")
        .arg(&config)
        .output()?;
    let said = String::from_utf8_lossy(&refused.stderr);
    ensure!(
        !refused.status.success() && said.contains("socket"),
        "a second daemon with the socket of the first: {said}"
    );

    let mut workload = Workload::start("faults", &["rounds=3", "reads=400", "writes=200"])?;
    let pid = workload.pid();
    for daemon in [&first, &second] {
        adopted(daemon, pid)?;
    }
    let before = [faults_of(&first, pid)?, faults_of(&second, pid)?];
    let kernel = witness::faults(pid)?.total();
    workload.run()?;
    let grown = witness::faults(pid)?.total() - kernel;
    // The next tick reads the counters.
    let counted = |daemon: &Daemon, before: u64| -> Result<()> {
        let start = Instant::now();
        loop {
            let now = faults_of(daemon, pid)?.saturating_sub(before);
            if now.abs_diff(grown) * 100 <= grown {
                return Ok(());
            }
            if start.elapsed() > FREED_LIMIT {
                bail!("{now} faults counted, the kernel counted {grown}");
            }
            sleep(Duration::from_millis(200));
        }
    };
    counted(&first, before[0]).context("the first daemon")?;
    counted(&second, before[1]).context("the second daemon")?;
    first.kill();
    ensure!(
        faults_of(&second, pid)? >= grown,
        "the second daemon has lost the executor"
    );
    workload.end()
}

/// All page faults that a daemon counts for a process.
fn faults_of(daemon: &Daemon, pid: u32) -> Result<u64> {
    let rows = daemon.rows(&["executors"])?;
    let row = rows.iter().find(|row| row["pid"] == pid);
    row.and_then(|row| row["page_faults"].as_u64())
        .with_context(|| format!("process {pid} is not listed with page faults: {rows:#?}"))
}

/// Waits until a daemon lists the process.
fn adopted(daemon: &Daemon, pid: u32) -> Result<()> {
    let start = Instant::now();
    while faults_of(daemon, pid).is_err() {
        ensure!(
            start.elapsed() < FREED_LIMIT,
            "process {pid} was not found: {}",
            Error::other(daemon.ask(&["executors"])?)
        );
        sleep(Duration::from_millis(200));
    }
    Ok(())
}
