//! Executors whose tasks run on threads without a row in the kernel side's table: the page faults of these tasks count
//! as unattributed. The kernel side makes the row when the thread registers, before its task is reported, so a thread
//! without one at two readings will not get it by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use smtt_common::settings::executor_pid;
use smtt_model::verdict::{TASK_THREADS, Verdict, VerdictState};

/// How long an executor is named after such a thread was last seen: short tasks run at few readings.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Executors that are remembered at most.
const EXECUTORS: usize = 1024;

/// Threads that are looked up in `/proc` at one reading.
const LOOK_UPS: usize = 64;

/// What to do, in status, `smtt-ctl doctor` and the log.
const REMEDY: &str = "`smtt-ctl executors --json` has the cause: where `threads_refused` is above 0 raise [limits] threads, where `slots_refused` is above 0 the executor has too many threads; otherwise restart smtt, which asks each executor for its threads again";

/// Executors with such threads.
#[derive(Debug, Default)]
pub(super) struct Unattributed {
    /// Threads that lacked a row at the last reading, by thread id and executor key.
    lacking: BTreeSet<(u32, u64)>,
    /// When an executor had such a thread last, by key.
    seen: BTreeMap<u64, Instant>,
}

impl Unattributed {
    /// Compares the threads that run a task with the rows of a later reading. `exists` says whether a process has a
    /// thread: where the record of a task's end was lost, it may be gone. Returns a line for the log for each executor that
    /// was not named before, by its key.
    pub fn see(
        &mut self,
        running: &[(u32, u64)],
        rows: &[(u32, u64)],
        now: Instant,
        exists: impl Fn(u32, u32) -> bool,
    ) -> Vec<(u64, String)> {
        let mut lacking: BTreeSet<(u32, u64)> = running.iter().copied().collect();
        if !lacking.is_empty() {
            for row in rows {
                lacking.remove(row);
            }
        }
        let before = std::mem::replace(&mut self.lacking, lacking);
        self.seen.retain(|_, last| now < *last + REMEMBERED);
        let mut lines = Vec::new();
        for (tid, executor) in self.lacking.intersection(&before).take(LOOK_UPS) {
            let pid = executor_pid(*executor);
            let has_room = self.seen.len() < EXECUTORS || self.seen.contains_key(executor);
            if has_room && exists(pid, *tid) && self.seen.insert(*executor, now).is_none() {
                let line = format!(
                    "tasks of process {pid} run on threads that are not traced, so that their page faults count as unattributed: {REMEDY}"
                );
                lines.push((*executor, line));
            }
        }
        lines
    }

    /// An executor has ended.
    pub fn forget(&mut self, executor: u64) {
        self.seen.remove(&executor);
    }

    /// The verdict, where there is such an executor. Any user can cause it, so it does not make the daemon degraded.
    pub fn verdict(&self) -> Option<Verdict> {
        let executors = self.seen.len();
        (executors > 0).then(|| Verdict {
            name: "marker".into(),
            hook: TASK_THREADS.into(),
            verdict: VerdictState::NotApplicable,
            reason: format!(
                "tasks of {executors} executors run on threads that are not traced, so that their page faults count as unattributed; the log names the processes. {REMEDY}"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use smtt_common::settings::executor_key;

    use super::*;

    #[test]
    fn a_thread_without_a_row_at_two_readings_gives_one_line_and_a_verdict() {
        let (mut all, start) = (Unattributed::default(), Instant::now());
        let [one, other] = [4711, 4712].map(|pid| executor_key(pid, 1));
        let at = |seconds| start + Duration::from_secs(seconds);
        let there = |_: u32, _: u32| true;
        // A row of another executor with this thread id is none.
        let rows = [(7, one), (8, one), (9, other)];
        let running = [(7, one), (8, one), (9, one), (10, other)];
        assert!(all.see(&running, &rows, at(0), there).is_empty());
        assert_eq!(all.verdict(), None, "they may come");
        let lines = all.see(&running, &[(10, other), rows[0], rows[1]], at(1), there);
        let [(executor, line)] = &lines[..] else {
            panic!("{lines:?}");
        };
        assert_eq!(*executor, one);
        assert!(
            line.starts_with("tasks of process 4711 run on threads"),
            "{line}"
        );
        let verdict = all.verdict().expect("a verdict");
        assert_eq!(verdict.hook, TASK_THREADS);
        assert!(
            verdict.reason.starts_with("tasks of 1 executors run"),
            "{verdict:?}"
        );
        assert!(
            all.see(&running, &[(10, other)], at(2), there).is_empty(),
            "one line"
        );

        // It is named for a minute, and no longer than it lives.
        assert!(all.see(&[], &[], at(61), there).is_empty());
        assert!(all.verdict().is_some());
        assert!(all.see(&[], &[], at(62), there).is_empty());
        assert_eq!(all.verdict(), None);
        all.see(&running, &[], at(63), there);
        assert_eq!(all.see(&running, &[], at(64), there).len(), 2);
        all.forget(one);
        all.forget(other);
        assert_eq!(all.verdict(), None);

        // The ends of their tasks were lost.
        assert!(all.see(&running, &[], at(65), |_, _| false).is_empty());
        assert_eq!(all.verdict(), None);
    }
}
