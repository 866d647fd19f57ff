//! Page faults whose time the program measures itself.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use smtt_common::context::ContextWord;

use crate::Options;
use crate::fault_kinds::{served_here, touch};
use crate::marker::{Marker, writing};
use crate::memory::{Mapping, PAGE, thread_cpu_time_ns};
use crate::scenario::STAGE;

/// RDDs of the fresh pages, and of the pages that are served after a pause; the tasks that work on them.
const FRESH: u32 = 40;
const WAITING: u32 = 41;
const FRESH_TASK: u64 = 1;
const WAITING_TASK: u64 = 2;
/// Pages that are touched before they are given back.
const PAGES: usize = 256;
/// Pages of one userfault.
const WAITING_PAGES: usize = 32;

/// Gives the calling thread, and those that it starts, the processor before all ordinary threads: a wait then takes as
/// long as it should on a busy machine, too.
fn first_of_all() -> Result<()> {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameters outlive the call.
    let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) };
    ensure!(
        set == 0,
        "sched_setscheduler: {}",
        std::io::Error::last_os_error()
    );
    Ok(())
}

/// Touches fresh pages for `ms`, then pages that are served after `pause_us`. The first are measured in CPU time, without
/// that of the same accesses to pages that are there: such a fault waits for nothing but the processor. The second are
/// measured by the clock.
pub fn fault_time(marker: &Marker, options: &Options) -> Result<Value> {
    let time = Duration::from_millis(options.number("ms", 3000)?);
    let pause = Duration::from_micros(options.number("pause_us", 1000)?);
    let slot = marker.register()?;
    let memory = Mapping::anonymous(PAGES)?;
    let touch_all = || {
        let before = thread_cpu_time_ns();
        (0..PAGES).for_each(|page| touch(memory.address() + page * PAGE, true));
        thread_cpu_time_ns() - before
    };
    slot.set_task(FRESH_TASK, STAGE, writing(FRESH, 0));
    let (mut rounds, mut fresh, mut present) = (0_u64, 0, 0);
    let start = Instant::now();
    while start.elapsed() < time {
        fresh += touch_all();
        present += touch_all();
        rounds += 1;
        memory.forget();
    }
    first_of_all()?;
    let (mut waiting, mut squares) = (Duration::ZERO, 0.0);
    let mut faults = 0_u64;
    slot.set_task(WAITING_TASK, STAGE, writing(WAITING, 0));
    let start = Instant::now();
    while start.elapsed() < time {
        served_here(WAITING_PAGES, false, pause, |first| {
            for page in 0..WAITING_PAGES {
                let start = Instant::now();
                touch(first + page * PAGE, true);
                let took = start.elapsed();
                waiting += took;
                squares += took.as_secs_f64().powi(2);
                faults += 1;
            }
        })?;
    }
    slot.enter(ContextWord(0));
    let mean = waiting.as_secs_f64() / faults as f64;
    let deviation = (squares / faults as f64 - mean * mean).max(0.0).sqrt();
    Ok(json!({
        "fresh": { "rdd": FRESH, "task": FRESH_TASK, "faults": rounds * PAGES as u64, "ns": fresh.saturating_sub(present) },
        "waiting": { "rdd": WAITING, "task": WAITING_TASK, "faults": faults, "ns": waiting.as_nanos() as u64,
            "deviation_of_mean": deviation / mean },
    }))
}
