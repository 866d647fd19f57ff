//! Measures hotness: how often a block's pages are accessed, by the kernel's DAMON.
//!
//! Off by default (`[hotness] method = "damon"` switches it on): a machine has one DAMON, and while the daemon uses it,
//! no other program can. DAMON clears the accessed bit of one page per region and check, and preserves that information
//! for the kernel's reclaim; it changes nothing else. Where DAMON is unavailable, a verdict gives the reason, and
//! hotness comes from Spark's reads alone.
//!
//! It works on a thread of its own, in windows: the blocks of all executors are cut into at most [`plan::REGIONS`]
//! regions, each region is checked many times at a random page, and at the end of the window each block gets the share
//! of checks that found an access. Like the resolver's, the figures apply to the addresses that were examined.

pub mod plan;

use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use smtt_common::settings::executor_pid;
use smtt_machine::clock::now_boot_ns;
use smtt_machine::damon::windows::{self, Access, Format, Windows};
use smtt_machine::damon::{self, Damon, Pace, Refusal};
use smtt_machine::proc::Handle;
use smtt_model::verdict::{Verdict, VerdictState};

use self::plan::Plan;
use crate::shared::Shared;

/// Name of its verdict.
pub const PROBE: &str = "hotness";
/// Longest sleep between two checks for ended windows and for the daemon's stop.
const NAP: Duration = Duration::from_millis(250);
/// Time before another attempt to acquire DAMON.
const AGAIN: Duration = Duration::from_secs(30);

/// How much longer than three windows to wait for a window.
const PATIENCE: Duration = Duration::from_secs(10);

/// An executor's memory while DAMON monitors it.
#[derive(Debug)]
struct Watched {
    handle: Handle,
    memory: std::fs::File,
}

impl Watched {
    /// The process that registered as an executor in that second since boot.
    fn open(executor: u64) -> Option<Self> {
        let handle = Handle::open(executor_pid(executor)).ok()?;
        if handle.start_second()? > executor >> 32 {
            return None;
        }
        let memory = handle.open_file("pagemap", OFlag::O_RDONLY).ok()?;
        Some(Self { handle, memory })
    }

    /// Whether the process still runs the same program.
    fn is_there(&self) -> bool {
        use std::os::unix::fs::FileExt as _;
        let mut word = [0; 8];
        matches!(self.memory.read_at(&mut word, 0), Ok(8)) && self.handle.start_ticks().is_some()
    }
}

/// The monitoring that is in progress.
#[derive(Debug)]
struct Work {
    windows: Windows,
    plan: Plan,
    watched: Vec<Watched>,
    /// When the last window ended, or the first began.
    since: Instant,
}

/// See the module.
#[derive(Debug)]
pub struct Hotness {
    pace: Pace,
    // Dropped before DAMON, whose thread it listens to.
    work: Option<Work>,
    damon: Option<Damon>,
    turn: usize,
    /// Earliest time of the next attempt.
    again: Option<Instant>,
}

impl Hotness {
    /// Monitors nothing yet.
    #[must_use]
    pub const fn new(pace: Pace) -> Self {
        Self {
            pace,
            work: None,
            damon: None,
            turn: 0,
            again: None,
        }
    }

    /// DAMON, while this daemon holds it.
    #[must_use]
    pub const fn damon(&self) -> Option<&Damon> {
        self.damon.as_ref()
    }

    /// One step: applies a window that has ended, and makes DAMON monitor the current blocks.
    pub fn step(&mut self, shared: &Shared) {
        if let Some(work) = &mut self.work {
            match work.windows.last() {
                Ok(Some(window)) => {
                    work.since = Instant::now();
                    self.apply_window(shared, &window);
                }
                // Some kernels leave out processes that have ended: then no window is complete any more.
                Ok(None)
                    if work.since.elapsed() < self.pace.window * 3 + PATIENCE
                        && self.damon.as_ref().is_some_and(Damon::is_on) =>
                {
                    return;
                }
                // DAMON has ended with its last process, or reports nothing.
                Ok(None) => self.work = None,
                Err(why) => {
                    tracing::debug!("{why}");
                    self.work = None;
                }
            }
        }
        if self.again.is_some_and(|again| Instant::now() < again) {
            return;
        }
        let verdict = match self.monitor_blocks(shared) {
            Ok(what) => {
                if self.work.is_none() {
                    self.again = Some(Instant::now() + self.pace.window);
                }
                verdict(VerdictState::Ok, what)
            }
            Err(refusal) => {
                (self.work, self.damon) = (None, None);
                self.again = Some(Instant::now() + AGAIN);
                let state = VerdictState::Unsupported;
                verdict(
                    state,
                    format!("{refusal}; hotness comes from Spark's reads alone"),
                )
            }
        };
        shared.set_hotness_verdict(verdict);
    }

    /// Makes DAMON monitor the current blocks; returns a description of them for the verdict.
    fn monitor_blocks(&mut self, shared: &Shared) -> Result<String, Refusal> {
        self.again = None;
        let executors = shared.state().to_resolve();
        let targets: Vec<_> = executors
            .into_iter()
            .map(|(executor, _)| (executor, shared.state().block_targets(executor)))
            .collect();
        let page_bytes = procfs::page_size().max(1);
        let mut plan = Plan::new(&targets, page_bytes, self.turn);
        self.turn = self.turn.wrapping_add(1);
        let mut watched = Vec::new();
        plan.targets
            .retain(|target| match Watched::open(target.executor) {
                Some(process) => {
                    watched.push(process);
                    true
                }
                None => false,
            });
        if plan.targets.is_empty() {
            // Release DAMON for other programs.
            (self.work, self.damon) = (None, None);
            return match damon::refusal(&damon::owner(Path::new("/"))) {
                Some(refusal) => Err(refusal),
                None => Ok("no block has an address now".into()),
            };
        }
        let what = format!(
            "{} regions of {} executors{}",
            plan.regions(),
            plan.targets.len(),
            if plan.partial { ", in turns" } else { "" }
        );
        if self.work.as_ref().is_some_and(|work| work.plan == plan) {
            return Ok(what);
        }
        self.work = None;
        if self.damon.is_none()
            && let Some(refusal) = damon::refusal(&damon::owner(Path::new("/")))
        {
            return Err(refusal);
        }
        let format = Format::read(&windows::folders(Path::new("/"))).map_err(Refusal)?;
        let damon = match &mut self.damon {
            Some(damon) => damon,
            None => self.damon.insert(Damon::take()?),
        };
        let ranges = plan
            .targets
            .iter()
            .map(|target| (executor_pid(target.executor), target.regions.as_slice()))
            .collect();
        let thread = match damon.start(&ranges, self.pace) {
            Ok(thread) => thread,
            // A process has just ended: the next step leaves it out.
            Err(_) if !watched.iter().all(Watched::is_there) => return Ok(what),
            Err(refusal) => return Err(refusal),
        };
        let windows = Windows::open(&format, thread, plan.targets.len()).map_err(Refusal)?;
        self.work = Some(Work {
            windows,
            plan,
            watched,
            since: Instant::now(),
        });
        Ok(what)
    }

    /// Applies the results of a window to the state.
    fn apply_window(&self, shared: &Shared, window: &[Access]) {
        let Some(work) = &self.work else {
            return;
        };
        let (now_ns, checks) = (now_boot_ns(), self.pace.checks());
        for (index, (target, process)) in work.plan.targets.iter().zip(&work.watched).enumerate() {
            if process.is_there() {
                let accessed = work.plan.accessed(index, window, checks);
                shared.state().accessed(target.executor, now_ns, accessed);
            }
        }
    }
}

fn verdict(state: VerdictState, reason: String) -> Verdict {
    Verdict {
        name: PROBE.into(),
        hook: "damon".into(),
        verdict: state,
        reason,
    }
}

/// Starts the monitoring on a thread of its own, which ends with the daemon. Does nothing where it is not configured.
pub fn spawn(
    pace: Option<Pace>,
    shared: Arc<Shared>,
    stopped: impl Fn() -> bool + Send + 'static,
) -> Option<std::thread::JoinHandle<()>> {
    let mut hotness = Hotness::new(pace?);
    let work = move || {
        while !stopped() {
            hotness.step(&shared);
            sleep(NAP);
        }
    };
    std::thread::Builder::new()
        .name("smtt-hotness".into())
        .spawn(work)
        .inspect_err(|error| {
            tracing::error!("DAMON is not used: its thread cannot be started: {error}")
        })
        .ok()
}
