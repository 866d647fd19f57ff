//! A child process that serves tasks as a Python worker does. It reads its own accounts inside of each service, so the kernel
//! side's figures lie between differences of these readings.

use std::io::{Read as _, Write as _};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use smtt_common::context::{Access, Activity, ContextWord, Region};
use smtt_common::event::Kind;
use smtt_common::event::used::Helper;

use crate::Options;
use crate::accounts::spin;
use crate::marker::Marker;
use crate::memory::{Mapping, PAGE};
use crate::scenario::STAGE;

/// Pages that a service touches.
const PAGES: usize = 400;
/// CPU time of each of the service's three threads.
const TIME: Duration = Duration::from_millis(20);
/// Bytes that a service writes to a file.
const FILE_BYTES: usize = 1 << 20;
/// Length of the child's answer: the two readings.
const ANSWER: usize = 2 * size_of::<Reading>();

/// CPU time of the whole process, voluntary and involuntary switches, minor and major faults, bytes read and written by
/// calls: of all threads, also of those that have ended.
type Reading = [u64; 7];

/// What the kernel says of this process.
fn reading() -> Result<Reading> {
    let io = std::fs::read_to_string("/proc/self/io")?;
    let number = |name: &str| -> Result<u64> {
        let line = io.lines().find_map(|line| line.strip_prefix(name));
        Ok(line.context("no such account")?.trim().parse()?)
    };
    // SAFETY: the structs are plain numbers, and the calls fill them.
    let (usage, time) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        let mut time: libc::timespec = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time);
        (usage, time)
    };
    Ok([
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64,
        usage.ru_nvcsw as u64,
        usage.ru_nivcsw as u64,
        usage.ru_minflt as u64,
        usage.ru_majflt as u64,
        number("rchar:")?,
        number("wchar:")?,
    ])
}

/// The child: for each byte that it gets, a service. Its second thread lives as long as the child, a third one ends within
/// each service. A service for `e` ends with the child.
fn serve(mut orders: impl std::io::Read, mut answers: impl std::io::Write) -> Result<()> {
    // SAFETY: takes numbers only.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let (more, work) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        while work.recv().is_ok() {
            spin(TIME);
            if tell.send(()).is_err() {
                break;
            }
        }
    });
    let mut file = tempfile::tempfile()?;
    let bytes = vec![7; FILE_BYTES];
    loop {
        let mut order = [0];
        orders.read_exact(&mut order)?;
        let begin = reading()?;
        more.send(())?;
        let ends = std::thread::spawn(|| spin(TIME));
        spin(TIME);
        let memory = Mapping::anonymous(PAGES)?;
        (0..PAGES).for_each(|page| memory.write(page * PAGE));
        file.write_all(&bytes)?;
        told.recv()?;
        ends.join()
            .map_err(|_| anyhow::anyhow!("a thread failed"))?;
        let end = reading()?;
        if order == *b"e" {
            return Ok(());
        }
        let words = begin.iter().chain(&end).flat_map(|it| it.to_le_bytes());
        answers.write_all(&words.collect::<Vec<u8>>())?;
    }
}

/// A worker serves the tasks 1 to 6 one after the other. The service to 2 is reported twice, that to 3 has no end, and in the
/// one to 6 the worker ends. Then this process calls processes its workers that are none: the one of `foreign`, the one that
/// started it, and itself.
pub fn services(marker: &Marker, options: &Options) -> Result<Value> {
    let foreign = options.number("foreign", 1)?;
    let (orders, mut order) = std::io::pipe()?;
    let (mut answer, answers) = std::io::pipe()?;
    // SAFETY: this program has one thread now, so the child may call any function.
    let child = unsafe { libc::fork() };
    if child < 0 {
        bail!("fork: {}", std::io::Error::last_os_error());
    }
    if child == 0 {
        drop((order, answer));
        let served = serve(orders, answers).is_ok();
        // SAFETY: ends the child without the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!served)) };
    }
    drop((orders, answers));
    let word = ContextWord::new(Activity::PYTHON_WORKER, Access::NONE, Region::NONE, 12, 0);
    let tell = |pid: u64, task: u64| {
        let hot = if task == u64::MAX { 0 } else { word.0 };
        marker.tell_words(Kind::PYTHON_WORKER, &[pid, task, hot, u64::from(STAGE), 0]);
    };
    let worker = child as u64;
    // The child waits, so its CPU time is up to date.
    let rests = || std::thread::sleep(Duration::from_millis(30));
    let mut services = Vec::new();
    for task in 1..=5 {
        rests();
        tell(worker, task);
        order.write_all(b"s")?;
        if task == 2 {
            tell(worker, task);
        }
        let mut said = [0; ANSWER];
        answer.read_exact(&mut said)?;
        let words: Vec<u64> = said
            .as_chunks()
            .0
            .iter()
            .map(|bytes| u64::from_le_bytes(*bytes))
            .collect();
        let (begin, end) = words.split_at(words.len() / 2);
        services.push(json!({ "task": task, "begin": begin, "end": end }));
        rests();
        if task != 3 {
            tell(worker, u64::MAX);
            // Nobody serves it any more.
            tell(worker, u64::MAX);
        }
    }
    tell(worker, 6);
    order.write_all(b"e")?;
    // SAFETY: no status is wanted.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    tell(worker, u64::MAX);
    // SAFETY: no precondition.
    let above = unsafe { libc::getppid() } as u64;
    for none in [foreign, above, u64::from(std::process::id()), worker] {
        tell(none, 7);
        tell(none, u64::MAX);
    }
    // A thread of this process is no worker, whatever it says.
    let helper = u64::from(Helper::PYTHON_WORKER.0);
    let _slot = marker.register()?;
    marker.tell_words(Kind::HELPER_BEGUN, &[8, helper]);
    marker.tell_words(Kind::HELPER_ENDED, &[8, helper, 0]);
    Ok(json!({ "services": services, "worker": worker, "pages": PAGES }))
}
