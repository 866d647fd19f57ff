//! Processes of an unprivileged user that hold their own memory lock for as long as they wish: a reader of their maps,
//! command line or page table waits in the kernel and cannot be killed (`tests/src/bin/attacker/hang.rs`). The daemon
//! finds one, has the pages of another to inspect, and is asked for that one's command line; meanwhile it answers, and
//! an executor beside them loses nothing.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use smtt_tests::attackers::{Counted, fuse_device, phase, row, server_without_work};
use smtt_tests::json::sum;
use smtt_tests::lab::programs;
use smtt_tests::skip::skip;
use xtask::daemon::{Daemon, Options};
use xtask::paths::Paths;

use crate::foreign_files::{Scene, UNPRIVILEGED_UID};
use crate::lab::{Workload, alone, library};
use crate::victim::{answers, same};

/// Length of the victim's phase.
const PHASE: Duration = Duration::from_secs(6);
/// How long the daemon may take to find a process, or to get at its pages.
const LIMIT: Duration = Duration::from_secs(60);
/// Limit of the median answer of `/-/healthy`; the slowest may take as long as the slowest of a server without work, ten
/// times.
const ANSWER: Duration = Duration::from_millis(100);
/// The daemon's threads that touch other processes' memory.
const HELPERS: [&str; 3] = ["smtt-inspect", "smtt-pages", "smtt-cmdline"];

/// Names of the daemon's threads that wait in the kernel and cannot be disturbed.
fn waiting(daemon: u32) -> Result<Vec<String>> {
    let mut waiting = Vec::new();
    for thread in fs::read_dir(format!("/proc/{daemon}/task"))? {
        let folder = thread?.path();
        // A thread may end at any time.
        let stat = fs::read_to_string(folder.join("stat")).unwrap_or_default();
        if stat
            .rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('D'))
        {
            let name = fs::read_to_string(folder.join("comm")).unwrap_or_default();
            waiting.push(name.trim().to_owned());
        }
    }
    Ok(waiting)
}

/// Whether each of the helpers waits.
fn all_wait(daemon: u32) -> Result<bool> {
    let waiting = waiting(daemon)?;
    Ok(HELPERS
        .iter()
        .all(|helper| waiting.iter().any(|name| name == helper)))
}

fn until(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !done()? {
        ensure!(start.elapsed() < LIMIT, "{what}: not in {LIMIT:?}");
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

#[test]
fn processes_that_hold_their_memory_lock_hold_up_no_other() -> Result<()> {
    let Some(_turn) = alone()? else {
        return Ok(());
    };
    if !Path::new("/dev/fuse").exists() {
        return skip("fuse", "there is no /dev/fuse");
    }
    let folder = tempfile::tempdir()?;
    let scene = Scene::new()?;
    fuse_device(&scene.own.join("device"))?;
    let mount = scene.own.join("mount");
    fs::create_dir(&mount)?;
    std::os::unix::fs::chown(&mount, Some(UNPRIVILEGED_UID), Some(UNPRIVILEGED_UID))?;
    let options = Options {
        toml: "[placement]\ninterval = \"1s\"\n".into(),
        ..Options::default()
    };
    let daemon = Daemon::start(&Paths::find()?, &programs()?, folder.path(), &options)?;
    let idle = server_without_work()?;
    let length = format!("ms={}", PHASE.as_millis());
    let mut victim = Workload::start("victim", &[&length, "phases=2", "name=java"])?;
    until("the victim is found", || {
        Ok(Counted::read(&daemon, victim.pid()).is_ok())
    })?;
    let mut before = Counted::read(&daemon, victim.pid())?.0;

    // Both are dropped before the daemon: a process that maps the library and holds its lock holds up the end of the
    // probes.
    let found = scene.attack("hang")?;
    let paths = [
        format!("uid={UNPRIVILEGED_UID}"),
        format!("device={}", scene.own.join("device").display()),
        format!("folder={}", mount.display()),
        "name=java".into(),
    ];
    let options: Vec<&str> = paths.iter().map(String::as_str).collect();
    let mut known = Workload::start_with(&library()?, "hang", &options)?;
    let adopted = format!("executor found: process {} ", known.pid());
    until("the other process is adopted", || {
        Ok(fs::read_to_string(daemon.log())?.contains(&adopted))
    })?;
    known.go()?;
    known.expect("HELD")?;
    until("the daemon waits for their memory", || {
        daemon.ask(&["advise"])?;
        all_wait(daemon.pid())
    })?;

    let end = AtomicBool::new(false);
    victim.go()?;
    let (said, times) = thread::scope(|scope| {
        let asking = scope.spawn(|| answers((daemon.port, idle), &end, &mut || Ok(())));
        // An executor whose library has no probes yet is found and traced.
        let other = Workload::start_with(&scene.library, "steady", &["ms=100", "name=java"]);
        let said = phase(&mut victim);
        let traced = other.and_then(|mut other| {
            until("another executor is found", || {
                Ok(row(&daemon, other.pid()).is_ok())
            })?;
            other.run()?;
            until("its facts arrive", || {
                let row = row(&daemon, other.pid())?;
                Ok(sum([&row["facts_by_kind"]], "blockRead") > 0)
            })?;
            other.end()
        });
        end.store(true, Ordering::Relaxed);
        let times = asking
            .join()
            .map_err(|_| anyhow::anyhow!("the asking thread panicked"))?;
        traced?;
        Ok::<_, anyhow::Error>((said?, times?))
    })?;
    before = same(&daemon, &victim, &said, before)?;
    let [mut healthy, mut null] = times;
    let (healthy, null) = (healthy.sum_up()?, null.sum_up()?);
    println!("{said}; /-/healthy {healthy}, a server without work {null}");
    ensure!(
        healthy.median <= ANSWER + null.median * 10
            && healthy.slowest <= ANSWER + null.slowest * 10,
        "/-/healthy: {healthy}, a server without work {null}"
    );
    ensure!(
        all_wait(daemon.pid())?,
        "the memory was released meanwhile: only {:?} wait",
        waiting(daemon.pid())?
    );
    let log = fs::read_to_string(daemon.log())?;
    ensure!(
        log.contains(&format!("process {} lets its inspection hang", found.pid())),
        "the log does not name process {}: {log}",
        found.pid()
    );
    ensure!(
        !log.contains("the event loop has been"),
        "a step of the event loop took long: {log}"
    );

    // Released: the threads come back, and nothing of the victim is lost.
    drop(found);
    known.go()?;
    known.done()?;
    until("the daemon's threads come back", || {
        Ok(waiting(daemon.pid())?.is_empty())
    })?;
    known.end()?;
    victim.go()?;
    let said = phase(&mut victim)?;
    same(&daemon, &victim, &said, before)?;
    victim.go()?;
    victim.done()?;
    victim.end()
}
