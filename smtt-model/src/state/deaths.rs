//! Which deaths are to be explained: those of executors, and of children that did not end with their JVM.

use super::{ChildEnd, Executor, Noted, State};

/// Children of one executor whose deaths are reported.
pub(super) const CHILD_DEATHS: usize = 16;
/// Within this time of a signal to the JVM the same signal to a child has the same cause, in nanoseconds: the OOM killer
/// ends all processes of a cgroup with `memory.oom.group`, and a container's runtime those of the container.
const TOGETHER_NS: u64 = 1_000_000_000;

impl Executor {
    /// The next child whose death is to be reported: one that a signal of another process or of the kernel ended, which the
    /// JVM did not get too.
    fn next_child_death(&mut self, until_ns: u64) -> Option<Noted<ChildEnd>> {
        let notes = &self.black_box;
        if notes.children_told.len() >= CHILD_DEATHS {
            return None;
        }
        let due = notes.child_ends.iter().find(|note| {
            note.time_ns <= until_ns
                && !notes.children_told.contains(&note.what.pid)
                && !self.ended_together(note)
        });
        let due = due.cloned()?;
        self.black_box.children_told.push(due.what.pid);
        Some(due)
    }

    /// Whether the JVM got the signal that ended a child, at that time: its own report has the cause.
    fn ended_together(&self, child: &Noted<ChildEnd>) -> bool {
        let notes = &self.black_box;
        let Some(signal) = child.what.end.signal() else {
            return false;
        };
        let to_child = notes.child_signals.iter().rev().find(|note| {
            note.what.sent.target_pid == child.what.pid && note.what.sent.signal == signal
        });
        // A process with much memory ends later than it got its signal.
        let child_ns = to_child.map_or(child.time_ns, |note| note.time_ns);
        let is_near = |time_ns: u64| time_ns.abs_diff(child_ns) <= TOGETHER_NS;
        let mut to_jvm = notes.signals.iter();
        let jvm_end = notes.end.as_ref().and_then(|end| end.signal());
        to_jvm.any(|note| note.what.sent.signal == signal && is_near(note.time_ns))
            // Where the signal's record was lost.
            || (jvm_end == Some(signal) && self.died_ns.is_some_and(is_near))
    }
}

impl State {
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
