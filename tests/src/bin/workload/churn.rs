//! Executors that come and go.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::{Value, json};
use smtt_common::context::ContextWord;
use smtt_common::event::Kind;
use smtt_common::event::marker::{BLOCK_SERIALIZED, outcome};
use smtt_model::decode::encode::payload;

use crate::Options;
use crate::marker::{Marker, writing};
use crate::memory::{Mapping, PAGE};

/// Tasks of an executor, and RDDs: a block of each RDD for each task.
const TASKS: u64 = 4;
const RDDS: u64 = 3;

/// For `ms` milliseconds, `per_second` executors a second, one after the other. Each describes itself, an RDD and a stage
/// of ids that only it has, runs tasks that touch memory and store blocks, removes a part of the blocks, and ends.
pub fn churn(_: &Marker, options: &Options) -> Result<Value> {
    let library = std::env::args().nth(1).unwrap_or_default();
    let length = Duration::from_millis(options.number("ms", 30_000)?);
    let pause = Duration::from_micros(1_000_000 / options.number("per_second", 10)?);
    let start = Instant::now();
    let mut executors = 0;
    while start.elapsed() < length {
        // SAFETY: this program has one thread, so the child may call any function.
        match unsafe { libc::fork() } {
            -1 => bail!("fork: {}", std::io::Error::last_os_error()),
            0 => {
                let failed = live(&library, executors).is_err();
                // SAFETY: ends the child without the parent's exit handlers.
                unsafe { libc::_exit(i32::from(failed)) };
            }
            child => {
                let mut status = 0;
                // SAFETY: the status is a valid place, and the child is this process's own.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                if status != 0 {
                    bail!("executor {executors} ended with {status}");
                }
            }
        }
        executors += 1;
        let next = start + pause * executors as u32;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(json!({ "executors": executors, "tasks": executors * TASKS }))
}

/// The life of one executor, in a process of its own: a child does not inherit the slot file.
fn live(library: &str, number: u64) -> Result<()> {
    let marker = Marker::load(library)?;
    marker.describe();
    let slot = marker.register()?;
    let memory = Mapping::anonymous(16)?;
    let stage = number & 0xffff;
    let rdd = |index: u64| (number * RDDS + index) & 0xff_ffff;
    marker.tell_words(Kind::STAGE_DESCRIBED, &[stage, 0, TASKS, 0, rdd(0)]);
    for index in 0..RDDS {
        marker.tell_words(Kind::RDD_DESCRIBED, &[rdd(index), TASKS, 2]);
    }
    for task in number * TASKS..(number + 1) * TASKS {
        marker.tell_words(Kind::TASK_STARTED, &[task, stage, 0, task % TASKS, 0, 0]);
        for index in 0..RDDS {
            slot.set_task(task, stage as u32, writing(rdd(index) as u32, 0));
            memory.forget();
            (0..16).for_each(|page| memory.write(page * PAGE));
            let name = format!("rdd_{}_{}", rdd(index), task % TASKS);
            let words = [
                rdd(index),
                task % TASKS,
                4096,
                BLOCK_SERIALIZED,
                task,
                1,
                0,
                1,
            ];
            let range = (0x7000_0000_0000 + task * 4096, 4096);
            marker.tell(Kind::BLOCK_STORED, &payload(&words, &[range], &[&name]));
            if index > 0 {
                let words = [rdd(index), task % TASKS];
                marker.tell(Kind::BLOCK_REMOVED, &payload(&words, &[], &[&name, "0"]));
            }
        }
        slot.enter(ContextWord(0));
        marker.tell_words(Kind::TASK_ENDED, &[task, stage, 0, outcome::SUCCESS, 0]);
    }
    Ok(())
}

/// `phases` times, each after a line from the test: for `ms` milliseconds, a child process each millisecond that ends at
/// once. `PHASE` and how long the calls of `fork` took end each phase.
pub fn fork_times(_: &Marker, options: &Options) -> Result<Value> {
    let length = Duration::from_millis(options.number("ms", 10_000)?);
    let phases = options.number("phases", 2)?;
    for _ in 0..phases {
        let start = Instant::now();
        let mut times = Vec::new();
        while start.elapsed() < length {
            let begin = Instant::now();
            // SAFETY: this program has one thread; the child only ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: ends the child without the parent's exit handlers.
                unsafe { libc::_exit(0) };
            }
            times.push(begin.elapsed().as_nanos() as u64);
            if child < 0 {
                bail!("fork: {}", std::io::Error::last_os_error());
            }
            // SAFETY: the child is this process's own.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            std::thread::sleep(Duration::from_millis(1));
        }
        times.sort_unstable();
        let part = |permille: usize| times[(times.len() - 1) * permille / 1000];
        let said = json!({
            "forks": times.len(),
            "median_ns": part(500),
            "p99_ns": part(990),
            "worst_ns": part(1000),
            "above_10_ms": times.iter().filter(|time| **time > 10_000_000).count(),
            "sum_ns": times.iter().sum::<u64>(),
        });
        crate::say(&format!("PHASE {said}"))?;
        crate::wait()?;
    }
    Ok(json!({ "phases": phases }))
}
