//! An executor in a pid namespace of its own, whose worker has other ids there than on the host.

use std::io::{Read as _, Write as _};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use smtt_common::context::{Access, Activity, ContextWord, Region};
use smtt_common::event::Kind;

use crate::Options;
use crate::marker::Marker;
use crate::memory::{Mapping, PAGE};
use crate::scenario::STAGE;

/// How long a daemon may take to find the executor.
const FIND_LIMIT: Duration = Duration::from_secs(60);
/// The daemon reads the ring every 50 ms, and sets the worker's task then.
const SET_TIME: Duration = Duration::from_millis(1500);

/// Goes on as the first process of a new pid namespace. The process that called waits for its end, and ends as it does.
pub fn enter() -> Result<()> {
    // SAFETY: takes a number only.
    let done = unsafe { libc::unshare(libc::CLONE_NEWPID) };
    ensure!(done == 0, "unshare: {}", std::io::Error::last_os_error());
    // SAFETY: this program has one thread now, so the child may call any function.
    match unsafe { libc::fork() } {
        -1 => bail!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            // SAFETY: takes numbers only. A test that kills the waiting process ends this one too.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            Ok(())
        }
        child => {
            let mut status = 0;
            // SAFETY: the status is a valid place, and the child is this process's own.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            std::process::exit(i32::from(status != 0));
        }
    }
}

/// A child of this process with a child in a pid namespace further in, whose id there is `id`. Both wait until they are
/// killed: the inner ones end with the outer one.
fn with_inner_id(id: i32) -> Result<i32> {
    let (mut there, mut telling) = std::io::pipe()?;
    // SAFETY: this program has one thread now, so the child may call any function.
    let outer = unsafe { libc::fork() };
    if outer == 0 {
        // SAFETY: these calls take numbers only. The first process of the namespace makes others until one has the id.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::unshare(libc::CLONE_NEWPID) != 0 {
                libc::_exit(1);
            }
            if libc::fork() == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                for _ in 0..100 {
                    if libc::fork() == 0 {
                        if libc::getpid() == id {
                            let _ = telling.write_all(b"x");
                        }
                        break;
                    }
                }
            }
            loop {
                libc::pause();
            }
        }
    }
    ensure!(outer > 0, "fork: {}", std::io::Error::last_os_error());
    drop(telling);
    let there = there.read_exact(&mut [0]);
    ensure!(there.is_ok(), "no process further in has the id {id}");
    Ok(outer)
}

/// Waits until a daemon asks for a snapshot, and reports it. Then reports `unknown` workers with ids that no process has.
/// Then a child touches pages, first without a task and then as the worker of task 77, which is reported with the child's
/// id in this namespace. Another child has a process in a namespace further in, with the same id there.
pub fn namespaced_worker(marker: &Marker, options: &Options) -> Result<Value> {
    let pages = options.number("pages", 300)? as usize;
    let unknown = options.number("unknown", 2000)?;
    let start = Instant::now();
    let request = loop {
        if let Some(request) = marker.resync_request() {
            break request;
        }
        ensure!(
            start.elapsed() < FIND_LIMIT,
            "no daemon asks for a snapshot"
        );
        thread::sleep(Duration::from_millis(10));
    };
    marker.describe();
    marker.resync_done(request);
    let worker = ContextWord::new(Activity::PYTHON_WORKER, Access::NONE, Region::NONE, 12, 0);
    let tell = |pid: u64| {
        marker.tell_words(
            Kind::PYTHON_WORKER,
            &[pid, 77, worker.0, u64::from(STAGE), 0],
        );
    };
    (0..unknown).for_each(|number| tell(1_000_000 + number));
    thread::sleep(SET_TIME);
    let (mut told, mut telling) = std::io::pipe()?;
    // SAFETY: this program has one thread now, so the child may call any function.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let touch = || {
            Mapping::anonymous(pages)
                .map(|memory| (0..pages).for_each(|page| memory.write(page * PAGE)))
        };
        let served = touch().is_ok() && told.read_exact(&mut [0]).is_ok() && touch().is_ok();
        // SAFETY: ends the child without the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!served)) };
    }
    ensure!(child > 0, "fork: {}", std::io::Error::last_os_error());
    thread::sleep(SET_TIME);
    let outer = with_inner_id(child)?;
    thread::sleep(SET_TIME);
    tell(child as u64);
    thread::sleep(SET_TIME);
    telling.write_all(b"x")?;
    let mut status = 0;
    // SAFETY: the status is a valid place, and the child is this process's own.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    // SAFETY: takes numbers only, and the child is this process's own.
    unsafe { libc::kill(outer, libc::SIGKILL) };
    ensure!(
        waited == child && status == 0,
        "the worker failed with status {status}"
    );
    Ok(json!({ "pages": pages, "inner_pid": std::process::id(), "worker": child }))
}
