//! Reads what running tasks have used so far: the accounts of their threads in `/proc`, less those at their begin.
//!
//! On a thread of its own, once in each tick of the daemon, and only for threads that have run a task for a while. Helpers
//! read, because an executor may make a read of its files wait. At most [`THREADS_PER_ROUND`] threads are read in a round;
//! with more tasks each is read less often.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use smtt_common::event::used::{PARTIAL, TaskBegin, helper};
use smtt_common::settings::executor_pid;
use smtt_machine::accounts::{Accounts, memory};
use smtt_machine::clock::now_boot_ns;
use smtt_machine::proc::Handle;
use smtt_model::sort::small::{self, Gather as _};
use smtt_model::state::TaskReading;

use crate::helpers::JobLimits;
use crate::placement::shares;
use crate::shared::Shared;
use crate::timed_reads::{TimedReads, Wanted};

/// Most threads that are read in a round, of all executors: each reading opens four files.
pub const THREADS_PER_ROUND: u64 = 256;
/// A task that has run for less is not read.
const AGE_MIN_NS: u64 = 200_000_000;
/// Executors that are read at a time, and how long a round waits for all of them.
const PLACES: JobLimits = JobLimits {
    per_user: 4,
    all: 16,
};
const WAIT: Duration = Duration::from_millis(500);
/// Longest sleep before the thread checks whether the daemon is stopping.
const NAP: Duration = Duration::from_millis(250);

/// A thread that runs a task, and the readings at the task's begin.
type Row = (u32, TaskBegin);
/// Readings of an executor's tasks, each with its row.
type Read = Vec<(Row, TaskReading)>;

/// See the module.
#[derive(Debug)]
pub struct RunningTasks {
    reads: TimedReads<Read>,
    known: BTreeSet<u64>,
}

impl Default for RunningTasks {
    fn default() -> Self {
        Self {
            reads: TimedReads::new("smtt-tasks", PLACES),
            known: BTreeSet::new(),
        }
    }
}

impl RunningTasks {
    /// Reads the tasks in the rows that `rows` gives. `user` has the user whose share an executor uses; without one it
    /// is not read.
    ///
    /// # Errors
    /// When `rows` fails.
    pub fn read(
        &mut self,
        rows: impl Fn() -> io::Result<Vec<Row>>,
        user: impl Fn(u64) -> Option<u32>,
    ) -> io::Result<BTreeMap<u64, Vec<TaskReading>>> {
        let now_ns = now_boot_ns();
        let mut old: BTreeMap<u64, Vec<Row>> = BTreeMap::new();
        for row in rows()? {
            // Helpers of a task are no part of its figures.
            let own = helper(row.1.flags).0 == 0;
            if own && now_ns.saturating_sub(row.1.time_ns) >= AGE_MIN_NS {
                old.entry(row.1.executor).or_default().push(row);
            }
        }
        for gone in self.known.iter().filter(|key| !old.contains_key(key)) {
            self.reads.forget(*gone);
        }
        self.known = old.keys().copied().gather();
        if old.is_empty() {
            return Ok(BTreeMap::new());
        }
        let needs: Vec<u64> = old.values().map(|rows| rows.len() as u64).collect();
        let shares = shares(&needs, THREADS_PER_ROUND);
        let round = self.reads.rounds();
        let wanted = old
            .into_iter()
            .zip(shares)
            .filter_map(|((key, rows), share)| {
                let rows = turn(rows, share as usize, round);
                let work: Wanted<Read> = (key, user(key)?, Box::new(move || read_all(key, &rows)));
                Some(work)
            });
        let read = self.reads.read(wanted.collect(), WAIT);
        // A thread that has ended its task meanwhile has another row, or none.
        let after: BTreeMap<u32, TaskBegin> = rows()?.into_iter().gather();
        let same = |(tid, begin): &Row| {
            after.get(tid).is_some_and(|now| {
                (now.executor, now.task_attempt_id, now.time_ns)
                    == (begin.executor, begin.task_attempt_id, begin.time_ns)
            })
        };
        Ok(read
            .into_iter()
            .map(|(key, tasks)| {
                let still = tasks.into_iter().filter(|(row, _)| same(row));
                (key, still.map(|(_, reading)| reading).collect())
            })
            .gather())
    }
}

/// The rows whose turn it is: `share` of them, and others in the next round.
fn turn(mut rows: Vec<Row>, share: usize, round: u64) -> Vec<Row> {
    small::sort_by_key(&mut rows, |(tid, _)| *tid);
    if share < rows.len() {
        let first = (round % rows.len() as u64) as usize * share % rows.len();
        rows.rotate_left(first);
        rows.truncate(share);
    }
    rows
}

/// Readings of threads of one executor. A thread that has ended is left out.
fn read_all(executor: u64, rows: &[Row]) -> Read {
    let Ok(process) = Handle::open(executor_pid(executor)) else {
        return Vec::new();
    };
    let (virtual_bytes, resident_bytes) = memory(&process);
    let read = |(tid, begin): &Row| {
        let now = Accounts::of(&process, *tid).ok()?;
        let (accounts, present) = now.since(&begin.accounts, begin.present);
        let reading = TaskReading {
            task_attempt_id: begin.task_attempt_id,
            accounts,
            present,
            duration_ns: now_boot_ns().saturating_sub(begin.time_ns),
            partial: begin.flags & PARTIAL != 0,
            virtual_bytes,
            resident_bytes,
        };
        Some(((*tid, *begin), reading))
    };
    rows.iter().filter_map(read).collect()
}

/// Starts the readings on a thread of their own, which ends with the daemon.
pub fn spawn(
    rows: impl Fn() -> io::Result<Vec<Row>> + Send + 'static,
    every: Duration,
    shared: Arc<Shared>,
    stopped: impl Fn() -> bool + Send + 'static,
) {
    let work = move || {
        let mut tasks = RunningTasks::default();
        while !stopped() {
            let begin = Instant::now();
            let user = |key| shared.state().executors().get(&key)?.share;
            match tasks.read(&rows, user) {
                Ok(read) => {
                    for (executor, readings) in read {
                        shared.state().tasks_read(executor, &readings);
                    }
                }
                Err(error) => tracing::warn!("running tasks have no figures: {error}"),
            }
            while !stopped() && begin.elapsed() < every {
                sleep(every.saturating_sub(begin.elapsed()).min(NAP));
            }
        }
    };
    if let Err(error) = std::thread::Builder::new()
        .name("smtt-running".into())
        .spawn(work)
    {
        tracing::error!("running tasks have no figures: their thread cannot be started: {error}");
    }
}

#[cfg(test)]
mod tests {
    use smtt_common::event::used::{HELPER_SHIFT, Helper};

    use super::*;

    /// A row of this process, whose task began a second ago with its first thread's accounts at zero.
    fn row(tid: u32, task: u64) -> Row {
        let begin = TaskBegin {
            executor: u64::from(std::process::id()),
            task_attempt_id: task,
            time_ns: now_boot_ns() - 1_000_000_000,
            present: 1,
            ..TaskBegin::default()
        };
        (tid, begin)
    }

    /// Reads the tasks of `before`, where the table has `after` when they are read.
    fn read(before: Row, after: Vec<Row>) -> Vec<TaskReading> {
        let first = std::cell::Cell::new(true);
        let rows = || {
            Ok(match first.replace(false) {
                true => vec![before],
                false => after.clone(),
            })
        };
        let read = RunningTasks::default().read(rows, |_| Some(1000));
        let read = read.expect("read").remove(&before.1.executor);
        read.unwrap_or_default()
    }

    #[test]
    fn a_thread_that_has_gone_on_to_another_task_is_left_out() {
        let own = std::process::id();
        let before = row(own, 5);
        let same = read(before, vec![before]);
        let [task] = same[..] else { panic!("{same:?}") };
        assert!(task.task_attempt_id == 5 && task.present == 1);
        assert!(task.accounts[0] > 0 && task.duration_ns >= 1_000_000_000);
        assert!(task.resident_bytes > Some(1 << 20));
        assert_eq!(read(before, vec![row(own, 6)]), []);
        assert_eq!(read(before, Vec::new()), []);
        // A thread of another process.
        assert_eq!(read(row(1, 5), vec![row(1, 5)]), []);
    }

    #[test]
    fn every_task_has_its_turn() {
        let rows: Vec<Row> = (0..1000).map(|tid| row(tid, u64::from(tid))).collect();
        let mut read = BTreeSet::new();
        for round in 0..8 {
            let turn = turn(rows.clone(), 150, round);
            assert_eq!(turn.len(), 150);
            read.extend(turn.iter().map(|(tid, _)| *tid));
        }
        assert_eq!(read.len(), 1000);
    }

    #[test]
    fn a_thread_that_helps_a_task_is_not_read_for_it() {
        let mut helper = row(std::process::id(), 5);
        helper.1.flags = u32::from(Helper::PYTHON_WRITER.0) << HELPER_SHIFT;
        assert_eq!(read(helper, vec![helper]), []);
    }

    #[test]
    fn a_young_task_and_one_without_a_user_are_not_read() {
        let own = std::process::id();
        let mut young = row(own, 5);
        young.1.time_ns = now_boot_ns();
        let mut tasks = RunningTasks::default();
        let read = tasks.read(|| Ok(vec![young]), |_| Some(1000));
        assert!(read.expect("read").is_empty());
        let read = tasks.read(|| Ok(vec![row(own, 5)]), |_| None);
        assert!(read.expect("read").is_empty());
    }
}
