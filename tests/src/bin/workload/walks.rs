//! Scenarios about samples: the kernel's plain counters and clocks count each RDD's work independently.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use smtt_common::context::ContextWord;
use smtt_tests::page_walk::{
    FEW_RDD, READ_RDD, WRITTEN_RDD, Witness, Work, a_processor_of_each_node, page_faults,
    read_and_write_walks, to_json,
};

use crate::Options;
use crate::marker::{Marker, OwnSlot, reading, writing};
use crate::memory::{Mapping, PAGE, pin, thread_cpu_time_ns, thread_faults};
use crate::scenario::{STAGE, in_threads, warm_up};

/// RDD 1 reads `pages` pages, RDD 2 writes `pages` pages, RDD 3 returns to eight pages. Every thread does this in
/// `turns` turns, `rounds` times, as task attempt `thread`. On a machine with several nodes the threads are pinned to
/// all nodes.
///
/// One round under the thread's own plain counters comes first. The counters are closed before the scenario prints
/// `PLAIN` and the counts and waits for a line: later events need not share hardware counters with them.
///
/// `fresh=yes` takes fresh memory for every round and counts page faults; `leave=yes` ends the threads within their
/// last context, without a fact.
pub fn walks(marker: &Marker, options: &Options) -> Result<Value> {
    let threads = options.number("threads", 2)?;
    let rounds = options.number("rounds", 1)?;
    let pages = options.number("pages", 20_000)? as usize;
    let turns = options.number("turns", 10)? as usize;
    let fresh = options.text("fresh") == Some("yes");
    let leave = options.text("leave") == Some("yes");
    let nodes = a_processor_of_each_node();
    let events = if fresh {
        vec![page_faults()]
    } else {
        read_and_write_walks()?
            .context("this machine counts no page walks: fresh=yes counts page faults")?
            .to_vec()
    };
    let plain = Mutex::new(vec![Value::Null; threads as usize]);
    let (counted, ready) = (
        Barrier::new(threads as usize + 1),
        Barrier::new(threads as usize + 1),
    );
    thread::scope(|scope| {
        let work = scope.spawn(|| {
            in_threads(threads, |thread| {
                // An error must not leave the other threads waiting for this thread.
                let prepared = (|| {
                    if nodes.len() > 1 {
                        pin(nodes[thread as usize % nodes.len()])?;
                    }
                    let slot = marker.register()?;
                    let work = Work::new(pages)?;
                    if !fresh {
                        work.make_resident();
                    }
                    let mut witness = Witness::open(&events)?;
                    work.round(turns, |rdd| witness.enter(rdd))?;
                    plain.lock().unwrap_or_else(PoisonError::into_inner)[thread as usize] =
                        to_json(witness.counts());
                    Ok::<_, anyhow::Error>((slot, work))
                })();
                counted.wait();
                ready.wait();
                let (slot, mut work) = prepared?;
                slot.set_task(thread, STAGE, ContextWord(0));
                for round in 0..rounds {
                    if fresh {
                        work = Work::new(pages)?;
                    }
                    work.round(turns, |rdd| {
                        // A thread that leaves in the middle never becomes idle again.
                        if rdd.is_some() || !leave || round + 1 < rounds {
                            slot.enter(rdd.map_or(ContextWord(0), |rdd| hot(rdd, thread as u32)));
                        }
                        Ok(())
                    })?;
                }
                Ok(())
            })
        });
        counted.wait();
        let said = plain
            .lock()
            .map(|counts| Value::from(counts.clone()))
            .unwrap_or_default();
        crate::say(&format!("PLAIN {said}"))?;
        crate::wait()?;
        ready.wait();
        work.join()
            .map_err(|_| anyhow::anyhow!("a thread panicked"))?
    })?;
    Ok(json!({ "threads": threads, "rounds": rounds, "pages": pages }))
}

fn hot(rdd: u32, partition: u32) -> ContextWord {
    match rdd {
        READ_RDD => reading(rdd, partition),
        WRITTEN_RDD | FEW_RDD => writing(rdd, partition),
        _ => ContextWord(0),
    }
}

/// The two RDDs between which threads change, and the intended microseconds of each.
const DUTY: [(u32, u64); 2] = [(4, 1400), (5, 600)];
/// A thread moves to another processor after this number of stretches.
const HOP_EVERY: u64 = 7;
/// A thread sleeps after this number of stretches.
const SLEEP_EVERY: u64 = 11;

/// Threads that change between two RDDs a thousand times per second of CPU time: RDD 4 gets 70 % of it and RDD 5 30 %.
/// The threads sleep and move to other processors within either. Each stretch has a random length between a half and
/// one and a half of the typical length; the thread's CPU clock measures it.
pub fn duty(marker: &Marker, options: &Options) -> Result<Value> {
    let threads = options.number("threads", 4)?;
    let cpu_ns = options.number("cpu_ms", 1500)? * 1_000_000;
    let processors = thread::available_parallelism()?.get();
    let sum = Mutex::new([0_u64; 5]);
    in_threads(threads, |thread| {
        let slot = marker.register()?;
        slot.set_task(thread, STAGE, ContextWord(0));
        let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(thread + 1);
        let (mut spent, mut changes, mut hops, mut sleeps) = ([0_u64; 2], 0_u64, 0, 0);
        let mut context = 0;
        enter(&slot, context, thread);
        let start = thread_cpu_time_ns();
        let mut since = start;
        while since - start < cpu_ns {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let typical = DUTY[context].1 * 1000;
            let length = typical / 2 + random % typical;
            if changes % HOP_EVERY == thread % HOP_EVERY {
                pin(random as usize / 8 % processors)?;
                hops += 1;
            }
            if changes % SLEEP_EVERY == thread % SLEEP_EVERY {
                thread::sleep(Duration::from_micros(300));
                sleeps += 1;
            }
            while thread_cpu_time_ns() - since < length {}
            enter(&slot, 1 - context, thread);
            let now = thread_cpu_time_ns();
            spent[context] += now - since;
            since = now;
            context = 1 - context;
            changes += 1;
        }
        slot.enter(ContextWord(0));
        let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
        for (sum, more) in sum
            .iter_mut()
            .zip([spent[0], spent[1], changes, hops, sleeps])
        {
            *sum += more;
        }
        Ok(())
    })?;
    let [a_ns, b_ns, changes, hops, sleeps] = *sum.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(json!({
        "a": DUTY[0].0, "a_ns": a_ns, "b": DUTY[1].0, "b_ns": b_ns,
        "threads": threads, "changes": changes, "hops": hops, "sleeps": sleeps,
    }))
}

fn enter(slot: &OwnSlot, context: usize, thread: u64) {
    slot.enter(reading(DUTY[context].0, thread as u32));
}

/// One thread that writes `pages` fresh pages, each in a separate context: RDD 100 and up.
pub fn contexts(marker: &Marker, options: &Options) -> Result<Value> {
    let pages = options.number("pages", 100)?;
    let faults = AtomicU64::new(0);
    in_threads(1, |thread| {
        let slot = marker.register()?;
        let memory = Mapping::anonymous(pages as usize)?;
        warm_up(&slot)?;
        let before = thread_faults();
        slot.set_task(thread, STAGE, ContextWord(0));
        for page in 0..pages {
            slot.enter(writing(100 + page as u32, 0));
            memory.write(page as usize * PAGE);
        }
        slot.enter(ContextWord(0));
        faults.store(thread_faults() - before, Ordering::Relaxed);
        Ok(())
    })?;
    Ok(json!({ "pages": pages, "faults": faults.into_inner() }))
}

/// One thread in one context that computes `rounds` rounds of a short loop, and touches no memory.
pub fn spin(marker: &Marker, options: &Options) -> Result<Value> {
    let rounds = options.number("rounds", 1_000_000_000)?;
    in_threads(1, |thread| {
        let slot = marker.register()?;
        slot.set_task(thread, STAGE, reading(6, 0));
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..rounds {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
        }
        std::hint::black_box(random);
        slot.enter(ContextWord(0));
        Ok(())
    })?;
    Ok(json!({ "rounds": rounds }))
}
