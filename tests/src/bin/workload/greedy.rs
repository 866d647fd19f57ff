//! Programs that want all of the shared tables and of the ring.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use smtt_common::event::Kind;

use crate::Options;
use crate::marker::Marker;

/// Makes this process one of an unprivileged user. The files that it needs are open by now.
pub fn become_user(uid: u32) -> Result<()> {
    // SAFETY: an empty list of groups; the other calls have no precondition.
    let done = unsafe {
        libc::setgroups(0, std::ptr::null()) == 0
            && libc::setresgid(uid, uid, uid) == 0
            && libc::setresuid(uid, uid, uid) == 0
    };
    ensure!(
        done,
        "user {uid} is refused: {}",
        std::io::Error::last_os_error()
    );
    Ok(())
}

/// The executor changes its user and reports one fact more.
pub fn other_user(marker: &Marker, options: &Options) -> Result<Value> {
    become_user(options.number("to", 65_534)? as u32)?;
    marker.tell_words(Kind::BLOCK_READ, &[8, 0, 0]);
    Ok(json!({}))
}

/// `executors` child processes, each of which describes itself as an executor and lives until this one ends. With
/// `users_from` each becomes a user of its own first.
pub fn crowd(_: &Marker, options: &Options) -> Result<Value> {
    let library = std::env::args().nth(1).unwrap_or_default();
    let executors = options.number("executors", 64)?;
    let users_from = options.number("users_from", 0)? as u32;
    for child in 0..executors as u32 {
        // SAFETY: this program has one thread, so the child may call any function.
        match unsafe { libc::fork() } {
            -1 => bail!("fork: {}", std::io::Error::last_os_error()),
            0 => {
                if users_from > 0 {
                    become_user(users_from + child)?;
                }
                // A child does not inherit the slot file: it has one of its own.
                Marker::load(&library)?.describe();
                // SAFETY: the child ends with its parent, and has no handlers that need to run.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    loop {
                        libc::pause();
                    }
                }
            }
            _ => {}
        }
    }
    // The children need no more than this to reach their pause.
    std::thread::sleep(Duration::from_millis(500));
    let mut status = 0;
    // SAFETY: the status is a valid place, and only children of this process are asked for.
    let ended = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    ensure!(ended == 0, "child {ended} ended with {status}");
    Ok(json!({ "executors": executors }))
}

/// Starts a child process that does the work and ends; returns its process id.
pub fn fork(work: impl FnOnce()) -> Result<i32> {
    // SAFETY: this program has one thread, so the child may call any function.
    match unsafe { libc::fork() } {
        -1 => bail!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            work();
            // SAFETY: ends the child without the parent's exit handlers.
            unsafe { libc::_exit(0) }
        }
        child => Ok(child),
    }
}

/// `children` child processes, one after the other, that end at once.
pub fn forks(_: &Marker, options: &Options) -> Result<Value> {
    let children = options.number("children", 500)?;
    for _ in 0..children {
        let child = fork(|| {})?;
        // SAFETY: the child is this process's own.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    }
    Ok(json!({ "children": children }))
}

/// Facts of 1.9 KB as fast as possible, for `ms` milliseconds.
pub fn flood(marker: &Marker, options: &Options) -> Result<Value> {
    let end = Instant::now() + Duration::from_millis(options.number("ms", 3000)?);
    let payload = [0_u8; 1900];
    let mut told = 0;
    while Instant::now() < end {
        for _ in 0..100 {
            marker.tell(Kind::BLOCK_STORED, &payload);
        }
        told += 100;
    }
    Ok(json!({ "told": told }))
}

/// `per_second` facts a second, evenly, for `ms` milliseconds.
pub fn steady(marker: &Marker, options: &Options) -> Result<Value> {
    let per_second = options.number("per_second", 400)?;
    let facts = per_second * options.number("ms", 3000)? / 1000;
    let start = Instant::now();
    for fact in 0..facts {
        marker.tell_words(Kind::BLOCK_READ, &[8, fact, 0]);
        let next = start + Duration::from_micros(1_000_000 * (fact + 1) / per_second);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(json!({ "told": facts }))
}
