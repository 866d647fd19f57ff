//! An executor whose threads register while a daemon finds it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use crate::Options;
use crate::marker::{Marker, writing};
use crate::memory::{Mapping, PAGE};
use crate::scenario::STAGE;
use smtt_common::context::ContextWord;

/// Polling interval of the resync request, as the marker's own thread makes them.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// `threads` threads begin and register at random times within some `ms` milliseconds. Then the scenario prints
/// `REGISTERED` and waits for a line. Then thread `n` writes to `pages` fresh pages as RDD `100 + n`. A requested snapshot
/// is reported at any time.
pub fn starting(marker: &Marker, options: &Options) -> Result<Value> {
    let threads = options.number("threads", 64)?;
    let pages = options.number("pages", 20)? as usize;
    let length_us = options.number("ms", 1600)? * 1000;
    let mut random = options
        .number("seed", 1)?
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        | 1;
    let (registered, end) = (AtomicU64::new(0), AtomicBool::new(false));
    let failed = RwLock::new(None);
    let go = Barrier::new(threads as usize + 1);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                if let Some(request) = marker.resync_request() {
                    marker.describe();
                    marker.resync_done(request);
                }
                thread::sleep(LOOK_EVERY);
            }
        });
        let mut working = Vec::new();
        for thread in 0..threads {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            thread::sleep(Duration::from_micros(random % (2 * length_us / threads)));
            let (go, registered, failed) = (&go, &registered, &failed);
            working.push(scope.spawn(move || {
                let prepared = marker.register().and_then(|slot| {
                    slot.set_task(thread, STAGE, writing(100 + thread as u32, 0));
                    Ok((slot, Mapping::anonymous(pages)?))
                });
                registered.fetch_add(1, Ordering::Relaxed);
                go.wait();
                match prepared {
                    Ok((slot, memory)) => {
                        (0..pages).for_each(|page| memory.write(page * PAGE));
                        slot.enter(ContextWord(0));
                    }
                    Err(error) => {
                        *failed.write().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    }
                }
            }));
        }
        while registered.load(Ordering::Relaxed) < threads {
            thread::sleep(LOOK_EVERY);
        }
        let told = crate::say("REGISTERED").and_then(|()| crate::wait());
        go.wait();
        for thread in working {
            // A thread that panicked is reported by the scope.
            let _ = thread.join();
        }
        end.store(true, Ordering::Relaxed);
        told
    })?;
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(json!({ "threads": threads, "pages": pages })),
    }
}
