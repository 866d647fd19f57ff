//! Processes whose threads do the same at the same moment, and faults beside facts.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use smtt_common::event::Kind;

use super::greedy::fork;
use crate::Options;
use crate::marker::Marker;
use crate::memory::{Mapping, PAGE};

/// Waits until both threads have come here for the `round`th time. Spins: a thread that is woken up comes too late.
fn meet(here: &AtomicU32, round: u32) {
    here.fetch_add(1, Ordering::AcqRel);
    while here.load(Ordering::Acquire) < 2 * round {
        std::hint::spin_loop();
    }
}

/// `children` child processes, one after the other, with two threads each. Both threads describe their process as an
/// executor at the same moment, register, and exit at the same moment.
pub fn twins(marker: &Marker, options: &Options) -> Result<Value> {
    let children = options.number("children", 300)?;
    let mut pids = Vec::new();
    for _ in 0..children {
        let child = fork(|| {
            let here = AtomicU32::new(0);
            let life = || {
                meet(&here, 1);
                marker.describe();
                let _ = marker.register();
                meet(&here, 2);
                // SAFETY: ends this thread only; the memory of both threads lives as long as the process.
                unsafe { libc::syscall(libc::SYS_exit, 0) };
            };
            std::thread::scope(|scope| {
                scope.spawn(life);
                life();
            });
        })?;
        let mut status = 0;
        // SAFETY: the child is this process's own.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        ensure!(
            waited == child && status == 0,
            "a child ended with status {status}"
        );
        pids.push(child);
    }
    Ok(json!({ "children": pids }))
}

/// Touches `pages` fresh pages, and sends `facts` facts right after.
pub fn touch_and_tell(marker: &Marker, options: &Options) -> Result<Value> {
    let pages = options.number("pages", 20_000)? as usize;
    let facts = options.number("facts", 400)?;
    let memory = Mapping::anonymous(pages)?;
    (0..pages).for_each(|page| memory.write(page * PAGE));
    for fact in 0..facts {
        marker.tell_words(Kind::BLOCK_READ, &[8, fact, 0]);
    }
    Ok(json!({ "told": facts }))
}
