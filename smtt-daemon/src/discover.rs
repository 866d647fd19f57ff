//! Finds executors that started before the daemon, and marker libraries in files that have no probes yet.
//!
//! New Java processes are inspected with growing pauses; an inspection reads `/proc/PID/maps` once, never `smaps`. The
//! result is the executor's slot file (opened through `/proc/PID/map_files`, so that it stays the right file even when
//! the process id is reused), its threads with slots, its children and the probes on its copy of the library.
//!
//! Everything that a process can make slow happens on a helper thread that can be given up; see
//! `docs/design/discovery.md`.

mod slots;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use smtt_common::context::MAPPING_NAME;
use smtt_common::event::marker::LIBRARY_NAME;
use smtt_machine::proc::{
    self, Handle, Image, MAPS, Next, Started, children_of, other_pid_namespace,
};
use smtt_model::sort::small;

use self::slots::OtherLayout;
pub use self::slots::{SlotFile, ThreadSlot};
use crate::complaints::{Complaints, printable};
use crate::helpers::{Helpers, JobLimits};
use crate::probes::library::{Libraries, Probing, Process};

/// An executor that was found.
#[derive(Debug)]
pub struct Found {
    /// Process id, in the daemon's pid namespace.
    pub pid: u32,
    /// The executor's slot file.
    pub slots: SlotFile,
    /// Whether the executor's copy of the marker's library is probed; `None` where it maps none.
    pub library: Option<Probing>,
    /// The executor's descendants, in the daemon's pid namespace.
    pub children: Vec<Started>,
    /// Number of its pid namespace, where that is not the daemon's; 0 where it cannot be read.
    pub namespace: Option<u32>,
    /// User whose share the process uses.
    pub user: u32,
    /// The process itself.
    handle: Handle,
    adoption: Adoption,
}

/// Whether an executor that was handed on has to be found again. Clones are about the same executor.
#[derive(Clone, Debug, Default)]
pub struct Adoption(Arc<Outcome>);

#[derive(Debug, Default)]
struct Outcome {
    again: AtomicBool,
    evictions: AtomicU32,
}

impl Adoption {
    /// The executor could not be adopted: it is found again after a pause.
    pub fn failed(&self) {
        self.0.again.store(true, Ordering::Release);
    }

    /// The executor lives and has lost its rows to other users: it is found again after a pause that doubles with each
    /// eviction, because its rows may not find room then either.
    pub fn evicted(&self) {
        self.0.evictions.fetch_add(1, Ordering::Relaxed);
        self.0.again.store(true, Ordering::Release);
    }

    /// Pause before the executor is found again, where that has to be since the last call.
    fn take_pause(&self) -> Option<Duration> {
        if !self.0.again.swap(false, Ordering::Acquire) {
            return None;
        }
        let evictions = self.0.evictions.load(Ordering::Relaxed);
        Some(match evictions.checked_sub(1) {
            None => FIRST_PAUSE,
            Some(doubled) => EVICTED_PAUSE
                .saturating_mul(1 << doubled.min(16))
                .min(EVICTED_PAUSE_MAX),
        })
    }
}

impl Found {
    /// The process, pinned: its id may be another's by now.
    #[must_use]
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Threads that have a slot now, with thread ids of the daemon's pid namespace. Read them when the probes are in
    /// place and the kernel side knows the executor: a thread that registers later is seen by the probes.
    #[must_use]
    pub fn threads(&self) -> Vec<ThreadSlot> {
        self.slots.threads(&self.handle, self.namespace.is_none())
    }

    /// Where the outcome of the adoption belongs.
    #[must_use]
    pub fn adoption(&self) -> Adoption {
        self.adoption.clone()
    }

    /// Whether the process has not ended.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.handle.start_ticks().is_some()
    }
}

/// State of an inspected process.
#[derive(Debug)]
struct Seen {
    image: Image,
    next_inspection: Instant,
    pause: Duration,
    /// A helper inspects it now.
    inspected: bool,
    /// It was handed on as an executor.
    handed_on: bool,
    /// Nothing about it is open.
    done: bool,
    complained: Option<Instant>,
    adoption: Adoption,
}

/// Pause before a process is inspected again; it grows by a quarter each time, so a marker that Spark brings into a running
/// executor is found after little more than the time in which the executor fetched it.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(60);
/// Pause before an executor that lost its rows is found again: the first one, and the longest.
const EVICTED_PAUSE: Duration = Duration::from_secs(10);
const EVICTED_PAUSE_MAX: Duration = Duration::from_secs(600);
/// How long one scan waits for its helpers.
const SCAN_TIME: Duration = Duration::from_secs(1);
/// Inspections at a time.
const PLACES: JobLimits = JobLimits {
    per_user: 2,
    all: 16,
};
/// Command names of the processes to inspect.
const NAMES: [&str; 2] = ["java", "jsvc"];

/// Result of one inspection.
#[derive(Debug)]
struct Inspected {
    found: Option<Found>,
    /// What is wrong with the process, for the log.
    trouble: Vec<String>,
}

/// The inspected processes.
#[derive(Debug)]
pub struct Discoverer {
    libraries: Arc<Libraries>,
    seen: HashMap<u32, Seen>,
    helpers: Helpers<(u32, Image), Inspected>,
    hanging: Arc<AtomicUsize>,
    complaints: Complaints,
}

impl Discoverer {
    /// Inspects nothing yet; libraries of executors get their probes from `libraries`.
    #[must_use]
    pub fn new(libraries: Arc<Libraries>) -> Self {
        Self {
            libraries,
            seen: HashMap::new(),
            helpers: Helpers::new("smtt-inspect", PLACES),
            hanging: Arc::default(),
            complaints: Complaints::default(),
        }
    }

    /// Number of inspections that hang, kept up to date.
    #[must_use]
    pub fn hanging(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.hanging)
    }

    /// Inspects the Java processes that are due and returns the executors that are new. Takes at most about a second,
    /// whatever the processes do; what is not ready by then comes with a later scan.
    pub fn scan(&mut self, now: Instant) -> Vec<Found> {
        let alive = proc::named(&NAMES);
        let libraries = &self.libraries;
        self.seen.retain(|pid, seen| {
            let stays = alive.get(pid) == Some(&seen.image);
            if !stays {
                libraries.process_ended(*pid, seen.image);
            }
            stays
        });
        self.libraries.give_back();
        let mut due = Vec::new();
        for (pid, image) in alive {
            let seen = self.seen.entry(pid).or_insert(Seen {
                image,
                next_inspection: now,
                pause: FIRST_PAUSE,
                inspected: false,
                handed_on: false,
                done: false,
                complained: None,
                adoption: Adoption::default(),
            });
            if let Some(pause) = seen.adoption.take_pause() {
                (seen.done, seen.handed_on) = (false, false);
                seen.next_inspection = seen.next_inspection.max(now + pause);
            }
            if !seen.done && !seen.inspected && now >= seen.next_inspection {
                due.push((seen.pause, pid));
            }
        }
        // New processes first: a process that is inspected in vain again and again goes to the end.
        small::sort_by(&mut due, Ord::cmp);
        let begin = Instant::now();
        let mut found = Vec::new();
        loop {
            due.retain(|(_, pid)| !self.start(*pid, now));
            let wait = if self.helpers.any_in_time() {
                SCAN_TIME.saturating_sub(begin.elapsed())
            } else {
                Duration::ZERO
            };
            // A helper that hangs from now on must not hold the scan.
            match self.helpers.next(wait.min(Duration::from_millis(100))) {
                Some((process, result)) => {
                    found.extend(self.apply_inspection(process, result, now))
                }
                None if wait.is_zero() => break,
                None => {}
            }
        }
        self.complain_about_hanging(now);
        found
    }

    /// Starts the inspection of a process; false where it has to wait for a place.
    fn start(&mut self, pid: u32, now: Instant) -> bool {
        let Some(seen) = self.seen.get_mut(&pid) else {
            return true;
        };
        // The handle pins the process: every read below is of this process or fails.
        let Ok(handle) = Handle::open(pid) else {
            return true;
        };
        let Ok(user) = handle.user() else {
            return true;
        };
        if handle.image() != Some(seen.image) {
            return true;
        }
        let share = self.libraries.share_of(user);
        if !self.helpers.has_place(share) {
            return false;
        }
        let process = Process {
            pid,
            image: seen.image,
            share,
        };
        let libraries = Arc::clone(&self.libraries);
        let adoption = seen.adoption.clone();
        let job = move || inspect(process, handle, &libraries, adoption);
        if let Err(error) = self.helpers.start((pid, seen.image), share, job) {
            let text = format!("no thread to inspect process {pid}: {error}");
            self.complaints.warn(&mut seen.complained, now, &text);
            return true;
        }
        seen.inspected = true;
        seen.next_inspection = now + seen.pause;
        seen.pause = (seen.pause * 5 / 4).min(LAST_PAUSE);
        true
    }

    /// Applies the result of an inspection: the executor, if there is one that the event loop does not have yet.
    fn apply_inspection(
        &mut self,
        (pid, image): (u32, Image),
        result: Option<Inspected>,
        now: Instant,
    ) -> Option<Found> {
        let Some(seen) = self.seen.get_mut(&pid).filter(|seen| seen.image == image) else {
            // It ended, or runs another program, while it was inspected.
            self.libraries.process_ended(pid, image);
            return None;
        };
        seen.inspected = false;
        let Inspected { found, trouble } = result?;
        if !trouble.is_empty() {
            let text = format!("process {pid}: {}", trouble.join("; "));
            self.complaints.warn(&mut seen.complained, now, &text);
        }
        let found = found?;
        let probed = !matches!(
            found.library,
            Some(Probing::Unknown(_) | Probing::Failed(_))
        );
        let news = probed || !seen.handed_on;
        seen.done = probed;
        seen.handed_on = true;
        news.then_some(found)
    }

    fn complain_about_hanging(&mut self, now: Instant) {
        let hanging: Vec<(u32, Image)> = self.helpers.hanging().collect();
        self.hanging.store(hanging.len(), Ordering::Relaxed);
        for (pid, image) in hanging {
            if let Some(seen) = self.seen.get_mut(&pid).filter(|seen| seen.image == image) {
                let text = format!(
                    "process {pid} lets its inspection hang; the other processes are inspected without it"
                );
                self.complaints.warn(&mut seen.complained, now, &text);
            }
        }
    }
}

/// Searches one process for a slot file, and probes its library. Only the first mapping of either name counts.
fn inspect(
    process: Process,
    handle: Handle,
    libraries: &Libraries,
    adoption: Adoption,
) -> Inspected {
    let mut trouble = Vec::new();
    let slots_name = format!("/memfd:{MAPPING_NAME} (deleted)");
    let (mut slots, mut library) = (None, None);
    let read = handle.open_file("maps", OFlag::O_RDONLY).and_then(|maps| {
        proc::lines(maps, &MAPS, |line| {
            let line = String::from_utf8_lossy(line);
            if let Some((range, name)) = proc::mapping(&line) {
                if slots.is_none() && name == slots_name {
                    slots = Some(range.to_owned());
                } else if library.is_none()
                    && name.trim_end_matches(" (deleted)").rsplit('/').next() == Some(LIBRARY_NAME)
                {
                    library = Some((range.to_owned(), printable(name)));
                }
            }
            if slots.is_some() && library.is_some() {
                Next::Stop
            } else {
                Next::Line
            }
        })
    });
    if matches!(read, Ok(false)) {
        trouble.push("it has more mappings than are read".to_owned());
    }
    let slots = slots.and_then(|range| match SlotFile::open(&handle, &range) {
        Ok(file) => Some(file),
        Err(error) => {
            if let Some(OtherLayout(layout)) = error.downcast_ref() {
                libraries.note_other_layout(process, *layout);
            }
            trouble.push(format!("its slot file is not used: {error:#}"));
            None
        }
    });
    let found = slots.map(|slots| {
        let library = library.map(|(range, name)| {
            let probing = libraries.probe(process, &handle, &range);
            match &probing {
                Probing::Probed => {}
                Probing::Unknown(why) => trouble.push(format!(
                    "its library {name} is not known and not probed: {why}; add its digest to [marker] digests, or install the daemon and the marker of the same version"
                )),
                Probing::Failed(why) => {
                    trouble.push(format!("its library {name} is not probed yet: {why}"));
                }
            }
            probing
        });
        Found {
            pid: process.pid,
            children: children_of(process.pid),
            namespace: other_pid_namespace(process.pid),
            slots,
            library,
            user: process.share,
            handle,
            adoption,
        }
    });
    Inspected { found, trouble }
}
