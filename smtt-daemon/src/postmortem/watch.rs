//! What the machine shows of one executor while it lives.

use std::collections::VecDeque;

use smtt_machine::cgroup::{Counts, Last, MemoryCgroup};
use smtt_machine::clock::now_unix_ns;
use smtt_machine::deaths::{CrashReport, sample};
use smtt_machine::proc::Handle;
use smtt_model::postmortem::Case;
use smtt_model::state::MemorySample;

/// Readings of a cgroup's counts that are kept: those before a death are among them.
const COUNTS: usize = 4;
/// The cgroup is looked up again after so many samples.
const CGROUP_EVERY: u64 = 5;

/// One executor.
pub struct Watched {
    handle: Handle,
    /// Whose share its readings use.
    pub share: u32,
    parent: Option<u32>,
    /// Samples so far.
    samples: u64,
    cgroup: Option<MemoryCgroup>,
    /// Counts of the cgroup, by the time of their reading.
    counts: VecDeque<(u64, Counts)>,
    /// Counts after the death.
    after: Option<Counts>,
    last: Last,
    /// Options of the JVM, once they are read.
    pub options: Option<Vec<String>>,
    /// Where its crash report would be.
    pub crash_report: Option<CrashReport>,
    /// When it was first seen here, in seconds since 1970.
    pub opened_unix_s: i64,
}

impl Watched {
    /// Pins a process.
    pub fn open(pid: u32, share: u32) -> Option<Self> {
        let handle = Handle::open(pid).ok()?;
        let status = handle.read("status").ok()?;
        let (_, parent) = sample(&status)?;
        Some(Self {
            share,
            parent,
            samples: 0,
            cgroup: None,
            counts: VecDeque::new(),
            after: None,
            last: Last::default(),
            options: None,
            crash_report: CrashReport::of(pid, &status),
            opened_unix_s: (now_unix_ns() / 1_000_000_000) as i64,
            handle,
        })
    }

    /// Reads the memory of the process and of its cgroup; `None` where it is ending.
    pub fn sample(&mut self, now_ns: u64) -> Option<MemorySample> {
        let (read, _) = sample(&self.handle.read("status").ok()?)?;
        // A cluster manager may move a process after its start.
        if self.samples.is_multiple_of(CGROUP_EVERY)
            && let Some(cgroup) = self.handle.read("cgroup").ok()
        {
            let cgroup = MemoryCgroup::of(&cgroup);
            if cgroup != self.cgroup {
                self.cgroup = cgroup;
                self.counts.clear();
                self.last = Last::default();
            }
        }
        self.samples += 1;
        if let Some(cgroup) = &self.cgroup {
            self.last = Last {
                current: cgroup.current().or(self.last.current),
                bounds: cgroup.bounds().or(self.last.bounds),
            };
            let counts = cgroup.counts();
            self.see_counts(now_ns, counts);
        }
        Some(MemorySample {
            time_ns: now_ns,
            cgroup_bytes: self.cgroup.as_ref().and(self.last.current),
            ..read
        })
    }

    fn see_counts(&mut self, now_ns: u64, counts: Counts) {
        // A cgroup that is gone has no counts.
        if counts == Counts::default() {
            return;
        }
        if self.counts.len() >= COUNTS {
            self.counts.pop_front();
        }
        self.counts.push_back((now_ns, counts));
    }

    /// Reads the counts of the cgroup once after the death.
    pub fn see_after(&mut self) {
        if let (None, Some(cgroup)) = (self.after, &self.cgroup) {
            let counts = cgroup.counts();
            self.after = (counts != Counts::default()).then_some(counts);
        }
    }

    /// Adds what is known to a case.
    pub fn describe(&self, case: &mut Case) {
        case.outside.parent_pid = self.parent;
        case.outside.options = self.options.clone().unwrap_or_default();
        let Some(cgroup) = &self.cgroup else { return };
        // The OOM killer counts before its victim ends.
        let pid = case.subject_pid();
        let chosen = case.oom.iter().find(|note| note.what.victim_pid == pid);
        let death_ns = chosen.map_or(case.died_ns, |note| note.time_ns);
        let mut all = self.counts.iter().rev();
        let before = all.find(|(time_ns, _)| *time_ns < death_ns);
        let before = before.map(|(_, counts)| *counts);
        // A child's executor lives, and its counts go on.
        let after = self.after.or_else(|| {
            let counts = cgroup.counts();
            (counts != Counts::default()).then_some(counts)
        });
        case.outside.cgroup = Some(cgroup.limits(before, after, &self.last));
    }
}
