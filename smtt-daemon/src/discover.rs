//! Finds executors that started before the daemon, and marker libraries in files that have no probes yet.
//!
//! New Java processes are inspected with growing pauses; an inspection reads `/proc/PID/maps` once, never `smaps`. The
//! result is the executor's slot file (opened through `/proc/PID/map_files`, so that it stays the right file even when
//! the process id is reused), its threads with slots, its children and its copy of the library.

mod slots;

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use smtt_common::context::MAPPING_NAME;
use smtt_common::event::marker::LIBRARY_NAME;
use smtt_machine::proc::{self, Handle, children_of, in_our_namespace};

pub use self::slots::{SlotFile, ThreadSlot};

/// An executor that was found.
#[derive(Debug)]
pub struct Found {
    /// Process id, in the daemon's pid namespace.
    pub pid: u32,
    /// The executor's slot file.
    pub slots: SlotFile,
    /// The executor's copy of the marker's library, as a path that the daemon can open.
    pub library: Option<PathBuf>,
    /// The executor's descendants, in the daemon's pid namespace.
    pub children: Vec<u32>,
    /// Whether it shares the daemon's pid namespace.
    pub same_namespace: bool,
    /// The process itself.
    handle: Handle,
}

impl Found {
    /// Threads that have a slot now, with thread ids of the daemon's pid namespace. Read them when the probes are in
    /// place and the kernel side knows the executor: a thread that registers later is seen by the probes.
    #[must_use]
    pub fn threads(&self) -> Vec<ThreadSlot> {
        self.slots.threads(&self.handle, self.same_namespace)
    }
}

/// State of an inspected process.
#[derive(Debug)]
struct Seen {
    start_ticks: u64,
    next_inspection: Instant,
    pause: Duration,
    found: bool,
}

/// Pause before a process is inspected again; it doubles from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(60);
/// Command names of the processes to inspect.
const NAMES: [&str; 2] = ["java", "jsvc"];

/// The inspected processes.
#[derive(Debug, Default)]
pub struct Discoverer {
    seen: HashMap<u32, Seen>,
}

impl Discoverer {
    /// Inspects the Java processes that are due and returns the executors that are new.
    pub fn scan(&mut self, now: Instant) -> Vec<Found> {
        let alive = proc::named(&NAMES);
        self.seen
            .retain(|pid, seen| alive.get(pid) == Some(&seen.start_ticks));
        let mut found = Vec::new();
        for (pid, start_ticks) in alive {
            let seen = self.seen.entry(pid).or_insert(Seen {
                start_ticks,
                next_inspection: now,
                pause: FIRST_PAUSE,
                found: false,
            });
            if seen.found || now < seen.next_inspection {
                continue;
            }
            seen.next_inspection = now + seen.pause;
            seen.pause = (seen.pause * 2).min(LAST_PAUSE);
            if let Some(executor) = inspect_process(pid) {
                seen.found = true;
                found.push(executor);
            }
        }
        found
    }
}

/// Searches one process for a slot file.
fn inspect_process(pid: u32) -> Option<Found> {
    // The handle pins the process: every read below is of this process or fails.
    let handle = Handle::open(pid).ok()?;
    let maps = handle.read("maps").ok()?;
    let mut slots = None;
    let mut library = None;
    for line in maps.lines() {
        let Some((range, name)) = proc::mapping(line) else {
            continue;
        };
        if slots.is_none() && name == format!("/memfd:{MAPPING_NAME} (deleted)") {
            match SlotFile::open(&handle, range) {
                Ok(file) => slots = Some(file),
                Err(error) => tracing::warn!(pid, "a slot file is not used: {error:#}"),
            }
        } else if library.is_none()
            && name.trim_end_matches(" (deleted)").rsplit('/').next() == Some(LIBRARY_NAME)
        {
            library = Some(PathBuf::from(format!("/proc/{pid}/map_files/{range}")));
        }
    }
    let slots = slots?;
    let same_namespace = in_our_namespace(pid);
    Some(Found {
        pid,
        children: children_of(pid),
        same_namespace,
        slots,
        library,
        handle,
    })
}
