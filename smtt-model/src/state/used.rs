//! What task attempts used: the kernel's accounts of a task's thread, and the JVM's of its heap.

use smtt_common::event::used::{ACCOUNTS, PARTIAL, TaskUsed, UNTIL_EXIT, UNTIL_MASK, UNTIL_NEXT};

use super::Outcome;
use super::bytes::Caps;
use super::task::{Stage, Tasks};
use crate::decode::TaskHeap;

/// Figures of a task, or sums over the tasks of a stage. What was not measured is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    accounts: [u64; ACCOUNTS],
    present: u32,
    /// Bytes allocated on the Java heap.
    pub heap_allocated_bytes: Option<u64>,
    /// Time of the JVM's collections, in milliseconds.
    pub collection_ms: Option<u64>,
}

impl Used {
    /// An account of [`smtt_common::event::used`].
    #[must_use]
    pub fn account(&self, account: usize) -> Option<u64> {
        let present = self.present & 1 << account != 0;
        present.then(|| self.accounts[account])
    }

    /// Adds the figures of a task, or of a folded row.
    pub(crate) fn add(&mut self, more: &Self) {
        for (sum, more) in self.accounts.iter_mut().zip(more.accounts) {
            *sum = sum.saturating_add(more);
        }
        self.present |= more.present;
        add(&mut self.heap_allocated_bytes, more.heap_allocated_bytes);
        add(&mut self.collection_ms, more.collection_ms);
    }

    fn of_accounts(used: &TaskUsed) -> Self {
        let present = used.present & ((1 << ACCOUNTS) - 1);
        let mut accounts = used.accounts;
        for (account, value) in accounts.iter_mut().enumerate() {
            if present & 1 << account == 0 {
                *value = 0;
            }
        }
        Self {
            accounts,
            present,
            ..Self::default()
        }
    }

    /// The accounts of a task that runs.
    pub(super) fn so_far(
        accounts: [u64; ACCOUNTS],
        present: u32,
        heap_allocated_bytes: Option<u64>,
    ) -> Self {
        let used = TaskUsed {
            accounts,
            present,
            ..TaskUsed::default()
        };
        Self {
            heap_allocated_bytes,
            ..Self::of_accounts(&used)
        }
    }

    fn of_heap(heap: &TaskHeap) -> Self {
        Self {
            heap_allocated_bytes: heap.allocated_bytes,
            collection_ms: heap.collection_ms,
            ..Self::default()
        }
    }
}

fn add(sum: &mut Option<u64>, more: Option<u64>) {
    if let Some(more) = more {
        *sum = Some(sum.unwrap_or(0).saturating_add(more));
    }
}

/// Where the figures of a task end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// At the reported end of the task.
    End,
    /// At the exit of its thread: the executor was killed.
    Exit,
    /// At the begin of the thread's next task, because no end was reported.
    Next,
}

impl Until {
    /// The word in every output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::End => "task_end",
            Self::Exit => "thread_exit",
            Self::Next => "next_task",
        }
    }
}

/// What one task attempt used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsedByTask {
    /// The figures.
    pub figures: Used,
    /// Time between the first and the second reading, in nanoseconds.
    pub duration_ns: u64,
    /// Where the figures end; `None` where the kernel side has sent no account of the task.
    pub until: Option<Until>,
    /// The task began before its first reading.
    pub partial: bool,
}

impl UsedByTask {
    /// Takes the kernel's accounts. Returns what the stage's sums gain; `None` where the task has accounts already. A
    /// record without a first reading does not replace accounts, and accounts replace it.
    pub(super) fn take(&mut self, used: &TaskUsed) -> Option<Used> {
        if self.until.is_some() && (self.figures.present != 0 || used.present == 0) {
            return None;
        }
        let figures = Used::of_accounts(used);
        self.figures.add(&figures);
        self.duration_ns = used.duration_ns;
        self.partial = used.flags & PARTIAL != 0;
        self.until = Some(match used.flags & UNTIL_MASK {
            UNTIL_EXIT => Until::Exit,
            UNTIL_NEXT => Until::Next,
            _ => Until::End,
        });
        Some(figures)
    }

    /// Takes the JVM's accounts, once; returns what the stage's sums gain.
    pub(super) fn take_heap(&mut self, heap: &TaskHeap) -> Option<Used> {
        let known = &self.figures;
        if known.heap_allocated_bytes.is_some() || known.collection_ms.is_some() {
            return None;
        }
        let figures = Used::of_heap(heap);
        self.figures.add(&figures);
        Some(figures)
    }
}

impl Tasks {
    /// The kernel side sent the accounts of a task.
    pub(super) fn used(&mut self, used: &TaskUsed, caps: &Caps) -> Outcome {
        let partial = used.flags & PARTIAL != 0;
        self.gain(
            used.task_attempt_id,
            caps,
            |task| task.take(used),
            |stage| {
                stage.used_tasks += u64::from(used.present != 0);
                stage.used_partial_tasks += u64::from(partial);
            },
        )
    }

    /// The marker reported the heap of a task.
    pub(super) fn used_heap(&mut self, heap: &TaskHeap, caps: &Caps) -> Outcome {
        self.gain(
            heap.task_attempt_id,
            caps,
            |task| task.take_heap(heap),
            |_| {},
        )
    }

    fn gain(
        &mut self,
        id: u64,
        caps: &Caps,
        take: impl FnOnce(&mut UsedByTask) -> Option<Used>,
        count: impl FnOnce(&mut Stage),
    ) -> Outcome {
        let full = self.tasks_full(caps);
        let Some(mut task) = self.task(id, caps) else {
            return Outcome::OverCap(full);
        };
        let stage = task.stage;
        let Some(gained) = take(&mut task.used) else {
            return Outcome::Ignored("used_twice");
        };
        if task.used.until.is_some() {
            task.close();
        }
        drop(task);
        if let Some(mut stage) = stage.and_then(|key| self.stages.get_mut(&key)) {
            stage.used.add(&gained);
            count(&mut stage);
        }
        Outcome::Applied
    }
}

#[cfg(test)]
mod tests {
    use smtt_common::event::used::{CPU_NS, CPU_WAIT_NS, DISK_WAIT_NS};

    use super::*;

    fn record(present: u32, flags: u32) -> TaskUsed {
        let mut accounts = [0; ACCOUNTS];
        (accounts[CPU_NS], accounts[CPU_WAIT_NS]) = (100, 7);
        // A kernel side that leaves something in an absent account changes nothing.
        accounts[DISK_WAIT_NS] = 9;
        TaskUsed {
            task_attempt_id: 4,
            accounts,
            duration_ns: 200,
            present,
            flags,
        }
    }

    #[test]
    fn an_absent_account_is_absent_and_not_zero() {
        let mut task = UsedByTask::default();
        let grown = task.take(&record(1 << CPU_NS | 1 << CPU_WAIT_NS, UNTIL_EXIT));
        assert_eq!(grown, Some(task.figures));
        assert_eq!(task.figures.account(CPU_NS), Some(100));
        assert_eq!(task.figures.account(DISK_WAIT_NS), None);
        assert_eq!(task.until, Some(Until::Exit));
        let mut stage = Used::default();
        stage.add(&task.figures);
        stage.add(&task.figures);
        assert_eq!(stage.account(CPU_WAIT_NS), Some(14));
        assert_eq!(stage.account(DISK_WAIT_NS), None);
        assert_eq!(stage.heap_allocated_bytes, None);
    }

    #[test]
    fn accounts_count_once_and_replace_a_record_without_them() {
        let mut task = UsedByTask::default();
        let nothing = task.take(&record(0, PARTIAL)).expect("the first record");
        assert_eq!(nothing, Used::default());
        assert!(task.partial && task.until == Some(Until::End));
        let grown = task.take(&record(1 << CPU_NS, UNTIL_NEXT));
        assert_eq!(grown.and_then(|grown| grown.account(CPU_NS)), Some(100));
        assert!(!task.partial && task.until == Some(Until::Next));
        assert_eq!(task.take(&record(1 << CPU_NS, 0)), None);
        assert_eq!(task.take(&record(0, PARTIAL)), None);
        assert!(!task.partial);
        assert_eq!(task.figures.account(CPU_NS), Some(100));
    }

    #[test]
    fn the_heap_counts_once() {
        let heap = TaskHeap {
            task_attempt_id: 4,
            allocated_bytes: Some(5),
            collection_ms: None,
        };
        let mut task = UsedByTask::default();
        assert!(task.take_heap(&heap).is_some());
        assert_eq!(task.take_heap(&heap), None);
        assert_eq!(task.figures.heap_allocated_bytes, Some(5));
        assert_eq!(task.figures.collection_ms, None);
        assert_eq!(task.until, None);
    }
}
