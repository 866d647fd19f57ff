//! Programs that take from their neighbours: threads and children that stay, and Python workers that change their task all
//! the time or do not exist.

use std::io::{Read as _, Write as _};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::{Value, json};
use smtt_common::context::{Access, Activity, ContextWord, Region};
use smtt_common::event::Kind;

use crate::Options;
use crate::marker::Marker;
use crate::memory::{Mapping, PAGE};
use crate::scenario::in_threads;

/// `threads` threads at once, each with a slot. They stay until the next line.
pub fn registered(marker: &Marker, options: &Options) -> Result<Value> {
    let threads = options.number("threads", 300)?;
    let all = Barrier::new(threads as usize);
    in_threads(threads, |_| {
        let _slot = marker.register()?;
        if all.wait().is_leader() {
            crate::say("STANDS")?;
            crate::wait()?;
        }
        all.wait();
        Ok(())
    })?;
    Ok(json!({ "threads": threads }))
}

/// `children` child processes at once. They live until the next line, and this program's end at the latest.
pub fn children(_: &Marker, options: &Options) -> Result<Value> {
    let count = options.number("children", 200)?;
    let mut children = Vec::new();
    for _ in 0..count {
        children.push(crate::greedy::fork(|| {
            // SAFETY: takes numbers only; the child has no handlers that need to run.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                loop {
                    libc::pause();
                }
            }
        })?);
    }
    crate::say("STANDS")?;
    crate::wait()?;
    for child in children {
        // SAFETY: the child is this process's own, and not waited for yet.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
    }
    Ok(json!({ "children": count }))
}

/// The context word of a worker that serves a task which computes this RDD.
fn serving(rdd: u32) -> ContextWord {
    ContextWord::new(
        Activity::PYTHON_WORKER,
        Access::NONE,
        Region::NONE,
        rdd + 1,
        0,
    )
}

/// For `ms` milliseconds, a child has page faults all the time while it is said to serve task 1 (stage 21, RDD 11) and task 2
/// (stage 22, RDD 12) in turn, as fast as possible.
pub fn worker_swaps(marker: &Marker, options: &Options) -> Result<Value> {
    let end = Instant::now() + Duration::from_millis(options.number("ms", 5000)?);
    // SAFETY: this program has one thread now, so the child may call any function.
    let child = unsafe { libc::fork() };
    if child < 0 {
        bail!("fork: {}", std::io::Error::last_os_error());
    }
    if child == 0 {
        // SAFETY: takes numbers only.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        loop {
            let Ok(memory) = Mapping::anonymous(256) else {
                // SAFETY: ends the child without the parent's exit handlers.
                unsafe { libc::_exit(1) }
            };
            for page in 0..256 {
                memory.write(page * PAGE);
            }
        }
    }
    let mut swaps = 0_u64;
    while Instant::now() < end {
        tell_worker(marker, child, 1 + swaps % 2);
        swaps += 1;
    }
    // SAFETY: the child is this process's own, and not waited for yet.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    Ok(json!({ "swaps": swaps }))
}

/// Says that a child serves this task.
fn tell_worker(marker: &Marker, child: i32, task: u64) {
    let hot = serving(10 + task as u32);
    marker.tell_words(
        Kind::PYTHON_WORKER,
        &[child as u64, task, hot.0, 20 + task, 0],
    );
}

/// Waits until all of so many arrivals are there. The processor may be needed by the other thread.
fn meet(arrived: &AtomicU64, all: u64) {
    arrived.fetch_add(1, Ordering::SeqCst);
    while arrived.load(Ordering::SeqCst) < all {
        for _ in 0..1000 {
            std::hint::spin_loop();
        }
        std::thread::yield_now();
    }
}

/// For `ms` milliseconds, round by round, two threads at one moment say of one child that it serves task 1 and task 2, as in
/// [`worker_swaps`]. Then the child touches a page.
pub fn worker_races(marker: &Marker, options: &Options) -> Result<Value> {
    const PAGES: usize = 1024;
    let end = Instant::now() + Duration::from_millis(options.number("ms", 5000)?);
    let (mut told, telling) = std::io::pipe()?;
    let (reading, mut touched) = std::io::pipe()?;
    let child = crate::greedy::fork(|| {
        // SAFETY: takes numbers only.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        while let Ok(memory) = Mapping::anonymous(PAGES) {
            for page in 0..PAGES {
                if told.read_exact(&mut [0]).is_err() {
                    return;
                }
                memory.write(page * PAGE);
                if touched.write_all(b"x").is_err() {
                    return;
                }
            }
        }
    })?;
    let (begun, ended) = (AtomicU64::new(0), AtomicU64::new(0));
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    in_threads(2, |thread| {
        for round in 1_u64.. {
            if thread == 0 && Instant::now() >= end {
                stop.store(true, Ordering::SeqCst);
            }
            meet(&begun, 2 * round);
            if stop.load(Ordering::SeqCst) {
                break;
            }
            tell_worker(marker, child, 1 + thread);
            meet(&ended, 2 * round);
            if thread == 0 {
                (&telling).write_all(b"x")?;
                (&reading).read_exact(&mut [0])?;
                rounds.store(round, Ordering::SeqCst);
            }
        }
        Ok(())
    })?;
    // SAFETY: the child is this process's own, and not waited for yet.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    Ok(json!({ "rounds": rounds.into_inner() }))
}

/// For `ms` milliseconds, `per_second` reports of workers with ids that no process has, each another one.
pub fn workers_that_are_none(marker: &Marker, options: &Options) -> Result<Value> {
    let per_second = options.number("per_second", 2000)?;
    let length = Duration::from_millis(options.number("ms", 8000)?);
    let start = Instant::now();
    let mut told = 0;
    while start.elapsed() < length {
        for _ in 0..per_second / 100 {
            let words = [1_000_000 + told, told, serving(11).0, 21, 0];
            marker.tell_words(Kind::PYTHON_WORKER, &words);
            told += 1;
        }
        let next = start + Duration::from_secs_f64(told as f64 / per_second as f64);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(json!({ "told": told }))
}
