//! Which deaths are to be explained: those of executors, and of children that did not end with their JVM.

use super::{ChildEnd, Executor, Noted, SignalNote, State};

/// Children of one executor whose deaths are reported.
pub(super) const CHILD_DEATHS: usize = 16;
/// Within this time the same signal of one sender to the JVM and to a child has one cause, in nanoseconds: the OOM killer
/// ends all processes of a cgroup with `memory.oom.group`, and a container's runtime those of the container.
const TOGETHER_NS: u64 = 1_000_000_000;
/// Longest time from a signal to the end of a process that gives much memory back, in nanoseconds.
const ENDING_NS: u64 = 10_000_000_000;
/// Time for which the row of a dead executor stays until its death is judged, in nanoseconds: that is done once per second.
const JUDGED_NS: u64 = 5_000_000_000;
/// A signal that no process survives.
const SIGKILL: u32 = 9;

impl Executor {
    /// The next child whose death is to be reported: one that a signal of another process or of the kernel ended, which the
    /// JVM did not get too.
    fn next_child_death(&mut self, until_ns: u64) -> Option<Noted<ChildEnd>> {
        let notes = &self.black_box;
        if notes.children_told.len() >= CHILD_DEATHS {
            return None;
        }
        let due = notes.child_ends.iter().find(|note| {
            note.time_ns.saturating_add(TOGETHER_NS) <= until_ns
                && !notes.children_told.contains(&note.what.pid)
                && !self.ended_together(note)
        });
        let due = due.cloned()?;
        self.black_box.children_told.push(due.what.pid);
        Some(due)
    }

    /// Whether a child ended with its JVM, or after it: the JVM's own report has the cause, and none may say that it lived on.
    fn ended_together(&self, child: &Noted<ChildEnd>) -> bool {
        let notes = &self.black_box;
        let Some(signal) = child.what.end.signal() else {
            return false;
        };
        let mut to_child = notes.child_signals.iter().rev();
        let to_child = to_child.find(|note| {
            note.what.sent.target_pid == child.what.pid && note.what.sent.signal == signal
        });
        // A process with much memory ends later than it got its signal.
        let child_ns = to_child.map_or(child.time_ns, |note| note.time_ns);
        if self.died_ns.is_some_and(|died_ns| died_ns <= child_ns) {
            return true;
        }
        if signal != SIGKILL && self.died_ns.is_none() {
            // The JVM got it and lives on.
            return false;
        }
        let is_same = |jvm: &Noted<SignalNote>| {
            let sent = &jvm.what.sent;
            let near = match to_child {
                Some(child) => {
                    let of = &child.what.sent;
                    sent.from_kernel == of.from_kernel
                        && (sent.from_kernel || sent.sender_pid == of.sender_pid)
                        && jvm.time_ns.abs_diff(child_ns) <= TOGETHER_NS
                }
                // One of too many, or lost.
                None => child_ns
                    .saturating_add(TOGETHER_NS)
                    .checked_sub(jvm.time_ns)
                    .is_some_and(|later| later <= ENDING_NS),
            };
            sent.signal == signal && near
        };
        if !notes.signals.is_empty() {
            return notes.signals.iter().any(is_same);
        }
        // The record of the JVM's signal was lost.
        let jvm_end = notes.end.as_ref().and_then(|end| end.signal());
        let is_near = |died_ns: u64| died_ns.abs_diff(child_ns) <= TOGETHER_NS;
        jvm_end == Some(signal) && self.died_ns.is_some_and(is_near)
    }
}

impl State {
    /// Whether the row of a dead executor stays: its death is not judged yet. Where no watcher runs it does not stay for ever.
    pub(super) fn awaits_judgement(&self, key: u64) -> bool {
        self.executors.get(&key).is_some_and(|executor| {
            executor.is_death_unjudged()
                && executor
                    .died_ns
                    .is_some_and(|died_ns| self.now_ns.saturating_sub(died_ns) < JUDGED_NS)
        })
    }

    /// The death of an executor is being judged.
    pub(crate) fn see_judged(&mut self, executor: u64) {
        if let Some(executor) = self.executors.get_mut(&executor) {
            executor.black_box.judged = true;
        }
    }

    /// Executors whose rows went after their deaths and before these were judged, since the last call.
    pub fn take_deaths_lost(&mut self) -> u64 {
        std::mem::take(&mut self.deaths_lost)
    }

    /// Ends that are old enough to be explained, by executor, each once: facts that were under way have arrived. A child
    /// comes with its end, the executor itself without.
    pub fn deaths_due(&mut self, until_ns: u64) -> Vec<(u64, Option<Noted<ChildEnd>>)> {
        let mut due = Vec::new();
        for (key, executor) in &mut self.executors {
            while let Some(child) = executor.next_child_death(until_ns) {
                due.push((*key, Some(child)));
            }
            let notes = &mut executor.black_box;
            if !notes.told && executor.died_ns.is_some_and(|died| died <= until_ns) {
                notes.told = true;
                if !notes.replaced {
                    due.push((*key, None));
                }
            }
        }
        due
    }
}
