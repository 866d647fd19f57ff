//! An executor at work whose own counts a test compares with the daemon's, and a program that claims to be another
//! executor.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};
use smtt_common::event::Kind;
use smtt_tests::memory::{thread_cpu_time_ns, thread_faults};

use crate::Options;
use crate::marker::{Marker, writing};
use crate::memory::{Mapping, PAGE};
use crate::scenario::{STAGE, in_threads};

/// RDD of the work.
const RDD: u32 = 8;
/// Pages of a thread's mapping; they are given back to the kernel before they are touched again.
const PAGES: usize = 4096;

/// `phases` times, each after a line from the test: two threads make `per_second` operations a second for `ms`
/// milliseconds. An operation sends one fact, writes to `pages` fresh pages and computes for `steps` steps. `PHASE` and the threads' own counts,
/// with their CPU time, end each phase. A requested snapshot is reported.
pub fn victim(marker: &Marker, options: &Options) -> Result<Value> {
    let phases = options.number("phases", 2)?;
    let operations = Operations {
        per_second: options.number("per_second", 400)?.div_ceil(THREADS),
        length: Duration::from_millis(options.number("ms", 15_000)?),
        pages: options.number("pages", 8)? as usize,
        steps: options.number("steps", 0)?,
    };
    for phase in 0..phases {
        let sums = Mutex::new(Sums::default());
        in_threads(THREADS, |thread| {
            let sum = operations.run(marker, phase * THREADS + thread)?;
            sums.lock().unwrap_or_else(PoisonError::into_inner).add(sum);
            Ok(())
        })?;
        let sums = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
        crate::say(&format!("PHASE {}", sums.to_json()))?;
        crate::wait()?;
    }
    Ok(json!({ "phases": phases }))
}

/// Threads of the work.
const THREADS: u64 = 2;

struct Operations {
    per_second: u64,
    length: Duration,
    pages: usize,
    steps: u64,
}

/// What threads did, by their own counts and the kernel's of these threads.
#[derive(Clone, Copy, Default)]
struct Sums {
    operations: u64,
    pages: u64,
    faults: u64,
    cpu_ns: u64,
    late_ns: u64,
}

impl Sums {
    fn add(&mut self, more: Self) {
        self.operations += more.operations;
        self.pages += more.pages;
        self.faults += more.faults;
        self.cpu_ns += more.cpu_ns;
        self.late_ns = self.late_ns.max(more.late_ns);
    }

    fn to_json(self) -> Value {
        json!({
            "operations": self.operations,
            "pages": self.pages,
            "faults": self.faults,
            "cpu_ns": self.cpu_ns,
            "late_ns": self.late_ns,
        })
    }
}

impl Operations {
    fn run(&self, marker: &Marker, task: u64) -> Result<Sums> {
        let slot = marker.register()?;
        let memory = Mapping::anonymous(PAGES)?;
        let mut sums = Sums::default();
        let mut page = 0;
        // What the loop needs is touched before the count begins.
        marker.tell_words(Kind::BLOCK_READ, &[u64::from(RDD), 0, task]);
        slot.set_task(task, STAGE, writing(RDD, 0));
        let faults = thread_faults();
        let start = Instant::now();
        let mut next = start;
        while start.elapsed() < self.length {
            let begin = thread_cpu_time_ns();
            sums.late_ns = sums.late_ns.max(next.elapsed().as_nanos() as u64);
            marker.tell_words(Kind::BLOCK_READ, &[u64::from(RDD), sums.operations, task]);
            for _ in 0..self.pages {
                if page == PAGES {
                    memory.forget();
                    page = 0;
                }
                memory.write(page * PAGE);
                page += 1;
            }
            std::hint::black_box(compute(self.steps));
            sums.cpu_ns += thread_cpu_time_ns() - begin;
            sums.operations += 1;
            sums.pages += self.pages as u64;
            if let Some(request) = marker.resync_request() {
                marker.describe();
                marker.resync_done(request);
            }
            // An operation that is late is made at once, so the rate is kept on a busy machine.
            next += Duration::from_micros(1_000_000 / self.per_second);
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        sums.faults = thread_faults() - faults;
        slot.enter(smtt_common::context::ContextWord(0));
        // The fact before the count.
        sums.operations += 1;
        Ok(sums)
    }
}

/// Work in registers, which caches and other programs do not slow.
fn compute(steps: u64) -> u64 {
    (0..steps).fold(1, |sum, step| sum.rotate_left(5) ^ step)
}

/// Describes itself as executor `executor` of the application that all workloads claim, and reports facts about RDD 8
/// and about the threads of process `pid`, for `ms` milliseconds.
pub fn claims(marker: &Marker, options: &Options) -> Result<Value> {
    let executor = options.text("executor").unwrap_or("none");
    let pid = options.number("pid", 1)?;
    let end = Instant::now() + Duration::from_millis(options.number("ms", 15_000)?);
    let mut told = 0;
    while Instant::now() < end {
        marker.describe_as(executor);
        for (kind, words) in [
            (Kind::BLOCK_READ, [u64::from(RDD), told, 0].as_slice()),
            (Kind::BLOCK_REMOVED, &[u64::from(RDD), 0]),
            (Kind::THREAD_REGISTERED, &[0xdead_beef, pid, 1]),
            (Kind::THREAD_GONE, &[0xdead_beef, pid, 1]),
            (Kind::PYTHON_WORKER, &[pid, told, writing(RDD, 0).0, 1, 0]),
        ] {
            marker.tell_words(kind, words);
            told += 1;
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(json!({ "told": told }))
}
