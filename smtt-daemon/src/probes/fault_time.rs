//! The windows in which page faults are timed: short, at random times, all CPUs at once.
//!
//! Software events of the kernel run the programs `fault_began` and `fault_served` while they are open. A window has the
//! beginnings open for [`FAULT_WINDOW`] and the ends for [`GRACE`] longer. So each fault of an executor has the same
//! chance to be measured, and their mean is an estimate of the mean of all. Between windows nothing is open: an event that
//! is only switched off makes the kernel look for it at each fault of each process.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context as _;
use aya::Ebpf;
use aya::maps::{Array, MapData};
use aya::programs::PerfEvent;
use nix::time::{ClockId, clock_gettime};
use smtt_config::FAULT_WINDOW;
use smtt_machine::clock::thread_cpu_time;
use smtt_machine::perf::{Event, Of, Opening, refusal};
use smtt_model::cpu::Encoding;
use smtt_model::verdict::{Verdict, VerdictState};

use super::cpus::online;
use super::perf_link::link;

/// How long the end of a fault is waited for after its window. A fault that takes longer is not measured.
const GRACE: Duration = Duration::from_millis(40);
/// The time from one window to the next is at least as many times that of opening and closing the events.
const SWITCHES: u32 = 500;
/// Windows that may fail one after the other, as where a CPU goes offline, before the verdict says so.
const FAILURES: u32 = 3;
/// Pause after these.
const RETRY: Duration = Duration::from_secs(30);

/// `PERF_COUNT_SW_PAGE_FAULTS`, which the kernel raises when it begins to handle the exception.
const BEGINS: u64 = 2;
/// `PERF_COUNT_SW_PAGE_FAULTS_MIN` and `_MAJ`, which it raises when it has served the fault.
const ENDS: [u64; 2] = [5, 6];

/// The timer. Dropping it closes the events.
#[derive(Debug)]
pub(super) struct FaultTimer {
    is_one_alive: Arc<AtomicBool>,
    /// Why the last windows failed; empty where they did not.
    problem: Arc<Mutex<String>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FaultTimer {
    /// Loads the programs, opens the events once, to see whether the kernel takes them, and starts the thread of the
    /// windows. A mean time of `every` passes from one to the next while an executor lives.
    ///
    /// # Errors
    /// When the kernel refuses a program or an event.
    pub fn start(ebpf: &mut Ebpf, every: Duration) -> anyhow::Result<Self> {
        let window = ebpf.take_map("FAULT_WINDOW").context("no table")?;
        let windows = Windows {
            began: program(ebpf, "fault_began")?,
            served: program(ebpf, "fault_served")?,
            window: Array::try_from(window)?,
            problem: Arc::default(),
        };
        drop(windows.open(&windows.began, &[BEGINS])?);
        drop(windows.open(&windows.served, &ENDS)?);
        let problem = Arc::clone(&windows.problem);
        let is_one_alive = Arc::new(AtomicBool::new(false));
        let alive = Arc::clone(&is_one_alive);
        let (stop, stopped) = channel();
        let thread = thread::Builder::new()
            .name("smtt-fault-time".into())
            .spawn(move || windows.run(every, &alive, &stopped))
            .context("no thread can be started")?;
        Ok(Self {
            is_one_alive,
            problem,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Windows are opened only while an executor lives.
    pub fn executor_lives(&self, is_one_alive: bool) {
        self.is_one_alive.store(is_one_alive, Ordering::Relaxed);
    }
}

impl Drop for FaultTimer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Its panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// The verdict of the timer: why it is off or broken, or nothing.
pub(super) fn verdict(timer: &Result<FaultTimer, (VerdictState, String)>) -> Verdict {
    let (verdict, reason) = match timer {
        Ok(timer) => {
            let problem = timer.problem.lock().unwrap_or_else(PoisonError::into_inner);
            match problem.as_str() {
                "" => (VerdictState::Ok, String::new()),
                problem => (VerdictState::Broken, problem.to_owned()),
            }
        }
        Err((state, reason)) => (*state, reason.clone()),
    };
    Verdict {
        name: "fault_time".into(),
        hook: "perf:software/page-faults/".into(),
        verdict,
        reason,
    }
}

/// An open event with its program.
#[derive(Debug)]
struct Opened {
    /// Dropped first: the program must not run for a closed event.
    _link: OwnedFd,
    _event: Event,
}

/// What the thread of the windows owns.
struct Windows {
    began: OwnedFd,
    served: OwnedFd,
    window: Array<MapData, u64>,
    problem: Arc<Mutex<String>>,
}

impl Windows {
    fn run(mut self, every: Duration, is_one_alive: &AtomicBool, stopped: &Receiver<()>) {
        let (mut switching, mut failures) = (Duration::ZERO, 0);
        loop {
            // From half to one and a half of the mean: no program's rhythm can fit it.
            let random = RandomState::new().build_hasher().finish() as u32;
            let part = 0.5 + f64::from(random) / f64::from(u32::MAX);
            let rest = every.saturating_sub(FAULT_WINDOW + GRACE);
            if is_stopped(stopped, rest.mul_f64(part).max(switching * SWITCHES)) {
                return;
            }
            if !is_one_alive.load(Ordering::Relaxed) {
                continue;
            }
            let problem = match self.one(stopped) {
                Ok(took) => {
                    (switching, failures) = (took, 0);
                    String::new()
                }
                Err(error) => {
                    failures += 1;
                    if failures < FAILURES {
                        continue;
                    }
                    format!("page faults are not timed: {error:#}")
                }
            };
            let failed = !problem.is_empty();
            let mut last = self.problem.lock().unwrap_or_else(PoisonError::into_inner);
            if failed && last.is_empty() {
                tracing::warn!("{problem}; tried again every {} s", RETRY.as_secs());
            }
            *last = problem;
            drop(last);
            if failed && is_stopped(stopped, RETRY) {
                return;
            }
        }
    }

    /// One window. Returns the CPU time of opening and closing.
    fn one(&mut self, stopped: &Receiver<()>) -> anyhow::Result<Duration> {
        let start = thread_cpu_time();
        let ends = self.open(&self.served, &ENDS)?;
        self.window
            .set(0, now(), 0)
            .context("the kernel side's table cannot be written")?;
        let begins = self.open(&self.began, &[BEGINS])?;
        let mut took = thread_cpu_time().saturating_sub(start);
        let is_over = is_stopped(stopped, FAULT_WINDOW);
        let start = thread_cpu_time();
        drop(begins);
        took += thread_cpu_time().saturating_sub(start);
        if !is_over {
            is_stopped(stopped, GRACE);
        }
        let start = thread_cpu_time();
        drop(ends);
        Ok(took + thread_cpu_time().saturating_sub(start))
    }

    /// Opens software events on all CPUs, with a program that runs at each occurrence.
    fn open(&self, program: &OwnedFd, numbers: &[u64]) -> anyhow::Result<Vec<Opened>> {
        let mut events = Vec::new();
        for cpu in online()? {
            for number in numbers {
                let event = opened(program, cpu, *number);
                let event =
                    event.map_err(|error| anyhow::anyhow!("CPU {cpu}: {}", refusal(&error)))?;
                events.push(event);
            }
        }
        Ok(events)
    }
}

/// Opens a software event of all processes on a CPU, with a program that runs at each occurrence.
fn opened(program: &OwnedFd, cpu: u32, number: u64) -> io::Result<Opened> {
    let encoding = Encoding::software(number);
    let event = Event::open(Opening {
        event: &encoding,
        of: Of::Cpu(cpu),
        period: 1,
        addresses: false,
        leader: None,
    })?;
    let link = link(program.as_fd(), event.as_fd(), 0)?;
    event.enable()?;
    Ok(Opened {
        _link: link,
        _event: event,
    })
}

/// Loads a program.
fn program(ebpf: &mut Ebpf, name: &str) -> anyhow::Result<OwnedFd> {
    let program: &mut PerfEvent = ebpf
        .program_mut(name)
        .context("the object lacks the program")?
        .try_into()?;
    program.load().context("the kernel refuses the program")?;
    Ok(program.fd()?.as_fd().try_clone_to_owned()?)
}

/// Waits; returns early and true when the timer is dropped.
fn is_stopped(stopped: &Receiver<()>, pause: Duration) -> bool {
    stopped.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected)
}

/// Nanoseconds of the clock that the kernel side reads.
fn now() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(u64::MAX, |time| Duration::from(time).as_nanos() as u64)
}
