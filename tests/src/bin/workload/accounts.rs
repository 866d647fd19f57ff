//! Tasks with known use: the workload reads its thread's accounts from /proc outside and inside of each task, so the
//! kernel side's figure is between the two differences.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use smtt_common::context::ContextWord;
use smtt_common::event::Kind;
use smtt_common::event::marker::outcome;
use smtt_common::event::used::Helper;

use crate::Options;
use crate::marker::{Marker, computing};
use crate::memory::{Mapping, PAGE, thread_cpu_time_ns};
use crate::scenario::{STAGE, in_threads};

/// Pages that a task touches.
const PAGES: usize = 300;
/// Bytes that a task writes to a file and reads again.
const FILE_BYTES: usize = 1 << 20;
/// Pages of the file that a task maps and touches, where its options do not say otherwise.
const MAPPED_PAGES: u64 = 32;

/// The accounts of the calling thread, from the files of /proc. Each file is opened anew: the kernel answers then.
pub struct Accounts {
    buffer: Vec<u8>,
}

/// One reading: ten accounts in the order of `smtt_common::event::used`, without the wait for disks, which comes last and
/// in clock ticks.
pub type Reading = [u64; 11];

impl Accounts {
    pub fn new() -> Self {
        Self {
            buffer: vec![0; 8192],
        }
    }

    fn text(&mut self, name: &str) -> Result<&str> {
        let mut file = File::open(format!("/proc/thread-self/{name}"))?;
        let bytes = file.read(&mut self.buffer)?;
        Ok(std::str::from_utf8(&self.buffer[..bytes])?)
    }

    /// Bytes that the calling thread has read so far, without this reading.
    fn io(&mut self) -> Result<[u64; 4]> {
        let text = self.text("io")?;
        let field = |name: &str| number(text, name);
        Ok([
            field("rchar:")?,
            field("wchar:")?,
            field("read_bytes:")?,
            field("write_bytes:")?,
        ])
    }

    /// Everything but `io`, which counts what the readings themselves read.
    fn others(&mut self) -> Result<[u64; 6]> {
        let waited = self
            .text("schedstat")?
            .split_whitespace()
            .nth(1)
            .and_then(|word| word.parse().ok())
            .context("schedstat has no waiting time")?;
        let status = self.text("status")?;
        let switches = (
            number(status, "\nvoluntary_ctxt_switches:")?,
            number(status, "\nnonvoluntary_ctxt_switches:")?,
        );
        let stat = self.text("stat")?;
        // The fields after the name in brackets: state is the third of the file. No list of them: new memory would be
        // a fault within the reading.
        let (_, rest) = stat.rsplit_once(')').context("stat has no name")?;
        let field = |at: usize| -> Result<u64> {
            let field = rest.split_whitespace().nth(at - 3);
            Ok(field.context("stat is too short")?.parse()?)
        };
        let (minor, major, disk_wait) = (field(10)?, field(12)?, field(42)?);
        Ok([waited, switches.0, switches.1, minor, major, disk_wait])
    }

    /// `io` comes last, and what comes after it reads only the clock.
    pub fn at_the_end_of_a_reading(&mut self) -> Result<Reading> {
        let others = self.others()?;
        let io = self.io()?;
        Ok(joined(thread_cpu_time_ns(), others, io))
    }

    /// `io` comes first.
    pub fn at_the_begin_of_a_reading(&mut self) -> Result<Reading> {
        let cpu = thread_cpu_time_ns();
        let io = self.io()?;
        Ok(joined(cpu, self.others()?, io))
    }
}

fn joined(cpu: u64, others: [u64; 6], io: [u64; 4]) -> Reading {
    let mut all = [cpu; 11];
    all[1..6].copy_from_slice(&others[..5]);
    all[6..10].copy_from_slice(&io);
    all[10] = others[5];
    all
}

fn number(text: &str, name: &str) -> Result<u64> {
    let name = name.trim_start();
    text.lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.trim().parse().ok())
        .with_context(|| format!("no number after {name}"))
}

pub fn difference(after: &Reading, before: &Reading) -> Value {
    let each = after.iter().zip(before);
    each.map(|(after, before)| after - before).collect()
}

/// Uses the CPU for this time, by the thread's own clock.
pub fn spin(time: Duration) {
    let end = thread_cpu_time_ns() + time.as_nanos() as u64;
    while thread_cpu_time_ns() < end {
        std::hint::spin_loop();
    }
}

pub fn begin(marker: &Marker, task: u64) {
    // As the marker does: the kernel brings the CPU time of a thread up to date for the thread that asks for it.
    let _ = thread_cpu_time_ns();
    marker.tell_words(Kind::TASK_BEGUN, &[task, 0]);
}

pub fn end(marker: &Marker, task: u64) {
    let _ = thread_cpu_time_ns();
    marker.tell_words(
        Kind::TASK_ENDED,
        &[task, u64::from(STAGE), 0, outcome::SUCCESS, 0],
    );
}

/// More threads than processors, so that they wait for one another; each runs tasks that use the CPU, sleep, touch
/// memory, write and read a file, and touch `mapped` pages of the file. Task `thread * 1000 + number`.
pub fn accounts(marker: &Marker, options: &Options) -> Result<Value> {
    let threads = options.number("threads", 4)?;
    let tasks = options.number("tasks", 10)?;
    let mapped = options.number("mapped", MAPPED_PAGES)? as usize;
    let start = Barrier::new(threads as usize);
    let all = std::sync::Mutex::new(Vec::new());
    in_threads(threads, |thread| {
        let slot = marker.register()?;
        let mut accounts = Accounts::new();
        let mut file = tempfile::tempfile_in(".")?;
        let bytes = vec![7; FILE_BYTES];
        let mut back = vec![0; FILE_BYTES];
        // What the readings themselves need is touched before.
        accounts.at_the_begin_of_a_reading()?;
        accounts.at_the_end_of_a_reading()?;
        start.wait();
        for number in 0..tasks {
            let task = thread * 1000 + number;
            slot.set_task(task, STAGE, computing());
            let outer = accounts.at_the_end_of_a_reading()?;
            begin(marker, task);
            let inner = accounts.at_the_begin_of_a_reading()?;
            spin(Duration::from_millis(12));
            std::thread::sleep(Duration::from_millis(2));
            let memory = Mapping::anonymous(PAGES)?;
            (0..PAGES).for_each(|page| memory.write(page * PAGE));
            write_and_read(&mut file, &bytes, &mut back)?;
            touch(&file, mapped)?;
            let inner_end = accounts.at_the_end_of_a_reading()?;
            end(marker, task);
            let outer_end = accounts.at_the_begin_of_a_reading()?;
            slot.enter(ContextWord(0));
            all.lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .push(json!({
                    "task": task,
                    "inner": difference(&inner_end, &inner),
                    "outer": difference(&outer_end, &outer),
                }));
        }
        Ok(())
    })?;
    Ok(json!({ "tasks": all.into_inner().unwrap_or_default() }))
}

/// Writes to the disk and reads from it, where the file is on one.
fn write_and_read(file: &mut File, bytes: &[u8], back: &mut [u8]) -> Result<()> {
    file.rewind()?;
    file.write_all(bytes)?;
    file.sync_data()?;
    leave_the_cache(file);
    file.rewind()?;
    file.read_exact(back)?;
    Ok(())
}

/// Touches pages of a file that are not in the page cache: a major fault and a read from the disk each.
fn touch(file: &File, pages: usize) -> Result<()> {
    leave_the_cache(file);
    let mapping = Mapping::of_file(file, FILE_BYTES)?;
    (0..pages).for_each(|page| {
        mapping.read(page * PAGE);
    });
    Ok(())
}

/// Removes the pages of a file, which are not dirty, from the page cache.
fn leave_the_cache(file: &File) {
    // SAFETY: the descriptor is open.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

/// Very many short tasks: each uses the CPU for `spin_us` and sleeps for the rest of `us`. The CPU time inside and
/// outside of each task is in the results.
pub fn short_tasks(marker: &Marker, options: &Options) -> Result<Value> {
    let threads = options.number("threads", 4)?;
    let tasks = options.number("tasks", 10_000)?;
    let length = Duration::from_micros(options.number("us", 5000)?);
    let spun = Duration::from_micros(options.number("spin_us", 300)?);
    let all = std::sync::Mutex::new(Vec::new());
    let started = Instant::now();
    in_threads(threads, |thread| {
        let slot = marker.register()?;
        let mut own = Vec::new();
        for task in (thread..tasks).step_by(threads as usize) {
            slot.set_task(task, STAGE, computing());
            let outer = thread_cpu_time_ns();
            let start = Instant::now();
            begin(marker, task);
            let inner = thread_cpu_time_ns();
            marker.tell_words(Kind::TASK_STARTED, &[task, u64::from(STAGE), 0, task, 0, 0]);
            spin(spun);
            std::thread::sleep(length.saturating_sub(start.elapsed()));
            let inner_end = thread_cpu_time_ns();
            end(marker, task);
            let outer_end = thread_cpu_time_ns();
            slot.enter(ContextWord(0));
            own.push(json!([task, inner_end - inner, outer_end - outer]));
        }
        all.lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .append(&mut own);
        Ok(())
    })?;
    Ok(
        json!({ "tasks": all.into_inner().unwrap_or_default(), "ms": started.elapsed().as_millis() as u64 }),
    )
}

/// Tasks that do not end as they should, each with 20 ms of CPU time: 1 is followed by the next one without an end, 2 is
/// told again by another thread and ends, 3 ends and was never begun, 4 is ended by another thread. Two threads help 2: one
/// ends as it should, of the other the task's own thread says so, and it exits. Then 5 begins and its thread waits: the
/// test kills the process.
pub fn odd_tasks(marker: &Marker, _: &Options) -> Result<Value> {
    let time = Duration::from_millis(20);
    let slot = marker.register()?;
    slot.set_task(1, STAGE, computing());
    begin(marker, 1);
    spin(time);
    begin(marker, 2);
    std::thread::scope(|scope| {
        scope.spawn(|| -> Result<()> {
            marker.register()?;
            marker.tell_words(Kind::TASK_STARTED, &[2, u64::from(STAGE), 0, 0, 0, 0]);
            end(marker, 4);
            Ok(())
        });
    });
    spin(time);
    let helps = |helper: Helper| marker.tell_words(Kind::HELPER_BEGUN, &[2, helper.0.into()]);
    let ended = |helper: Helper| marker.tell_words(Kind::HELPER_ENDED, &[2, helper.0.into(), 7]);
    for helper in [Helper::PYTHON_WRITER, Helper::PIPE_WRITER] {
        std::thread::scope(|scope| {
            scope.spawn(|| -> Result<()> {
                marker.register()?;
                helps(helper);
                spin(time);
                let _ = thread_cpu_time_ns();
                if helper == Helper::PYTHON_WRITER {
                    ended(helper);
                    // No longer the task's.
                    spin(time);
                }
                Ok(())
            });
        });
    }
    ended(Helper::PIPE_WRITER);
    end(marker, 2);
    end(marker, 3);
    begin(marker, 5);
    spin(time);
    crate::say("OPEN")?;
    crate::wait()?;
    bail!("the test kills the process")
}
