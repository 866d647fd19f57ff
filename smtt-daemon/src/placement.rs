//! The resolver finds where the bytes of blocks and of execution memory are. Virtual address -> in memory, swapped or
//! never touched; page size; NUMA node.
//!
//! The resolver works on a thread of its own, in rounds, within a [`Budget`] of pages and CPU time per second. An
//! executor with more pages than its share is sampled: evenly spread pages from a random start, up to the share. The
//! resolver never walks a whole process, never reads `smaps`, and holds no lock of the state while it inspects pages.
//! It asks the kernel about at most [`SLICE`] pages at a time, so that a thread that maps memory never waits long.
//!
//! Bytes on the Java heap are inspected only while their reported addresses are valid: the resolver reads the
//! executor's count of collections before and after every slice, and discards heap results of a slice during which a
//! collection began. Where the marker does not count collections, the last reported addresses are used.
//! [`crate::hotness`] measures how often pages are accessed, where the kernel offers that.

mod budget;
mod inspect;
mod mappings;
mod sample;
mod session;
mod watch;

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use smtt_common::settings::executor_pid;

use self::inspect::{InspectError, Process};

pub use self::budget::Budget;
pub(crate) use self::sample::shares;
use smtt_config::PlacementSettings;
use smtt_machine::clock::{now_boot_ns, thread_cpu_time};
use smtt_machine::pages::Machine;
use smtt_model::state::{ResolveCounts, Resolved, Seen, Targets};

use self::sample::{Runs, pages_of, pages_of_all, with_spare};
use self::session::{Session, Sessions};
use self::watch::Watch;
use crate::shared::Shared;

/// Most pages that the kernel is asked about at a time.
pub const SLICE: u64 = 256;
/// Longest sleep before the resolver checks whether the daemon is stopping.
const NAP: Duration = Duration::from_millis(250);
/// Assumed CPU time per page before the first measurement, in nanoseconds.
const PAGE_NS: f64 = 500.0;
/// Weight of the last round in the running mean of the CPU time per page.
const WEIGHT: f64 = 0.25;

/// See the module.
#[derive(Debug)]
pub struct Resolver {
    settings: PlacementSettings,
    machine: Arc<Machine>,
    budget: Budget,
    /// CPU time per inspected page in nanoseconds, as a running mean.
    page_ns: f64,
    random: u64,
    counts: ResolveCounts,
    sessions: Sessions,
}

/// CPU time of this thread in nanoseconds.
fn cpu_ns() -> u64 {
    thread_cpu_time().as_nanos() as u64
}

impl Resolver {
    /// A resolver that uses the best method of this machine.
    #[must_use]
    pub fn new(settings: PlacementSettings) -> Self {
        Self::with(settings, Machine::find())
    }

    /// A resolver that uses a given method.
    #[must_use]
    pub fn with(settings: PlacementSettings, machine: Machine) -> Self {
        let now_ns = now_boot_ns();
        Self {
            budget: Budget::new(
                settings.pages_per_second,
                settings.milliseconds_per_second.saturating_mul(1_000_000),
                now_ns,
            ),
            settings,
            machine: Arc::new(machine),
            page_ns: PAGE_NS,
            // Any odd number that differs from start to start.
            random: now_ns | 1,
            counts: ResolveCounts::default(),
            sessions: Sessions::default(),
        }
    }

    /// Counts since the start.
    #[must_use]
    pub const fn counts(&self) -> ResolveCounts {
        self.counts
    }

    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Pages that one round may inspect: the smaller of the page limit and the CPU time limit, for one interval.
    fn round_pages(&self) -> u64 {
        let by_number = self.settings.pages_per_second as f64;
        let by_time = self.settings.milliseconds_per_second as f64 * 1e6 / self.page_ns.max(1.0);
        (by_number.min(by_time) * self.settings.interval.as_secs_f64()).max(1.0) as u64
    }

    /// Waits until the budget allows another slice; false when the daemon is stopping.
    fn wait(&mut self, stopped: &dyn Fn() -> bool) -> bool {
        loop {
            if stopped() {
                return false;
            }
            let wait = self.budget.wait_ns(now_boot_ns());
            if wait == 0 {
                return true;
            }
            sleep(Duration::from_nanos(wait).min(NAP));
        }
    }

    /// Inspects every executor once, as far as the budget allows.
    pub fn round(&mut self, shared: &Shared, stopped: &dyn Fn() -> bool) {
        let before = self.counts;
        let executors = shared.state().to_resolve();
        let needs: Vec<u64> = executors
            .iter()
            // An unaligned range touches at most one extra page.
            .map(|(_, bytes)| {
                (bytes / self.machine.page_bytes)
                    .saturating_mul(2)
                    .saturating_add(64)
            })
            .collect();
        let round_pages = self.round_pages();
        let shares = shares(&needs, round_pages);
        let mut spare = round_pages.saturating_sub(shares.iter().sum());
        let all = executors.len();
        for (at, ((executor, _), share)) in executors.into_iter().zip(shares).enumerate() {
            if !self.wait(stopped) {
                return;
            }
            let start = cpu_ns();
            let (targets, user) = {
                let state = shared.state();
                let user = state.executors().get(&executor).and_then(|row| row.share);
                (state.targets(executor), user.unwrap_or_default())
            };
            self.spend(0, cpu_ns().saturating_sub(start));
            if targets.ranges.is_empty() {
                continue;
            }
            // Blocks may have been stored since the needs were estimated, and many small ranges touch more pages.
            let needed = pages_of_all(&targets, self.machine.page_bytes);
            let share = with_spare(share, needed, all - at, &mut spare);
            self.counts.looks += 1;
            let (machine, pid) = (Arc::clone(&self.machine), executor_pid(executor));
            let open = move || Process::open(machine, pid, executor >> 32);
            let inspected = match self.sessions.open(executor, user, open) {
                Ok(session) => {
                    let targets = Arc::new(targets);
                    let result = self.inspect(shared, executor, &session, &targets, share, stopped);
                    self.sessions.close(session);
                    result
                }
                Err(error) => Err(error),
            };
            match inspected {
                Ok(Some(resolved)) => {
                    let unmapped = resolved.owners.iter().map(|(_, seen)| seen.unmapped_bytes);
                    self.counts.unmapped_bytes = self
                        .counts
                        .unmapped_bytes
                        .saturating_add(unmapped.fold(0, u64::saturating_add));
                    shared.state().resolved(executor, resolved);
                }
                Ok(None) => return,
                Err(InspectError::Ended) => self.counts.ended += 1,
                Err(error) => {
                    self.counts.refused += 1;
                    tracing::debug!(
                        pid = executor_pid(executor),
                        "the placement of the executor's pages is unknown: {error}"
                    );
                }
            }
        }
        let pages = self.counts.pages - before.pages;
        if pages > 0 {
            let page_ns = (self.counts.cpu_ns - before.cpu_ns) as f64 / pages as f64;
            self.page_ns += WEIGHT * (page_ns - self.page_ns);
        }
        shared.state().set_resolve_counts(self.counts);
    }

    fn spend(&mut self, pages: u64, cpu_ns: u64) {
        self.budget.spend(pages, cpu_ns);
        self.counts.pages += pages;
        self.counts.cpu_ns += cpu_ns;
    }

    /// Inspects one executor; `None` when the daemon is stopping.
    fn inspect(
        &mut self,
        shared: &Shared,
        executor: u64,
        session: &Session<Process>,
        targets: &Arc<Targets>,
        share: u64,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Option<Resolved>, InspectError> {
        let time_ns = now_boot_ns();
        let random = self.random();
        // A slice is at most a tenth of a second's budget.
        let slice = SLICE.min(self.settings.pages_per_second / 10).max(1);
        let page_bytes = self.machine.page_bytes;
        let mut seen = vec![Seen::default(); targets.owners.len()];
        for range in &targets.ranges {
            let pages = &mut seen[range.owner].pages;
            *pages = pages.saturating_add(pages_of(range.address, range.length, page_bytes).1);
        }
        let begun = || {
            let slots = shared.slots(executor)?;
            let read = session.step(move |_| slots.collections().ok());
            Some(read.ok()??.1)
        };
        let mut watch = Watch::new(shared, executor, targets, &begun);
        let mut runs = Runs::new(targets, page_bytes, share, random);
        loop {
            if !self.wait(stopped) {
                return Ok(None);
            }
            let start = cpu_ns();
            let (mut pages, mut admitted) = (0, Vec::new());
            watch.begin_slice();
            while pages < slice
                && let Some(run) = runs.next(slice - pages)
            {
                pages += run.pages;
                if watch.admits(run, &seen) {
                    admitted.push(run);
                }
            }
            let inspected = admitted.iter().map(|run| run.pages).sum();
            let (of, frames) = (Arc::clone(targets), self.settings.frames);
            let mut known = std::mem::take(&mut seen);
            let step = move |process: &mut Process| {
                let start = cpu_ns();
                let done = process.inspect_all(&of, &admitted, frames, &mut known);
                (done.map(|()| known), cpu_ns().saturating_sub(start))
            };
            let (known, helper_ns) = session.step(step)?;
            seen = known?;
            if !watch.end_slice(&mut seen) {
                self.counts.discarded += 1;
            }
            self.spend(inspected, helper_ns + cpu_ns().saturating_sub(start));
            if pages == 0 {
                break;
            }
        }
        let of = Arc::clone(targets);
        let (end, helper_ns) = session.step(move |process| {
            let start = cpu_ns();
            let remapped = process.remapped(&of);
            let end = remapped.map(|remapped| {
                let is_there = process.is_there();
                is_there.then_some((remapped, process.sizes_by))
            });
            (end, cpu_ns().saturating_sub(start))
        })?;
        self.spend(0, helper_ns);
        let (remapped, sizes_by) = end?.ok_or(InspectError::Ended)?;
        Ok(Some(Resolved {
            time_ns,
            page_bytes,
            sizes_by,
            owners: targets
                .owners
                .iter()
                .copied()
                .zip(seen)
                .zip(remapped)
                .filter_map(|(owner, remapped)| (!remapped).then_some(owner))
                .collect(),
        }))
    }
}

/// Starts the resolver on a thread of its own, which ends with the daemon. Does nothing where it is switched off.
pub fn spawn(
    settings: PlacementSettings,
    shared: Arc<Shared>,
    stopped: impl Fn() -> bool + Send + 'static,
) {
    if settings.pages_per_second == 0 {
        tracing::info!("page placement is not measured: [placement] pages_per_second is 0");
        return;
    }
    let work = move || {
        let mut resolver = Resolver::new(settings);
        tracing::debug!(machine = ?resolver.machine, "page placement is measured");
        while !stopped() {
            let start = Instant::now();
            resolver.round(&shared, &stopped);
            while !stopped() {
                let left = settings.interval.saturating_sub(start.elapsed());
                if left.is_zero() {
                    break;
                }
                sleep(left.min(NAP));
            }
        }
    };
    if let Err(error) = std::thread::Builder::new()
        .name("smtt-resolve".into())
        .spawn(work)
    {
        tracing::error!("page placement is not measured: its thread cannot be started: {error}");
    }
}
