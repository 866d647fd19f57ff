//! What task attempts used: the kernel's accounts of a task's thread, and the JVM's of its heap.

use smtt_common::event::used::{
    ACCOUNTS, DISK_WAIT_NS, PARTIAL, TaskUsed, UNTIL_EXIT, UNTIL_MASK, UNTIL_NEXT, helper,
};

use super::Outcome;
use super::bytes::Caps;
use super::helpers::{self, HelperSum};
use super::task::{Stage, Task, Tasks};
use crate::attribute::StageKey;
use crate::decode::{SPARK_METRICS, SPARK_TIMES, TaskHeap, TaskMetrics};

/// Figures of a task, or sums over the tasks of a stage. What was not measured is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    accounts: [u64; ACCOUNTS],
    present: u32,
    /// Bytes allocated on the Java heap.
    pub heap_allocated_bytes: Option<u64>,
    /// Time of the JVM's collections, in milliseconds.
    pub collection_ms: Option<u64>,
    /// Spark's metrics in the order of [`SPARK_METRICS`].
    pub metrics: Option<[u64; SPARK_METRICS.len()]>,
    /// Spark's times in the order of [`SPARK_TIMES`].
    pub times: Option<[u64; SPARK_TIMES.len()]>,
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
        add_each(&mut self.metrics, more.metrics);
        add_each(&mut self.times, more.times);
    }

    /// The accounts of a record about one thread.
    pub(crate) fn of_accounts(used: &TaskUsed) -> Self {
        Self::of_threads(used, 1)
    }

    /// The accounts of a record about so many threads at most. A wait for a disk that is longer than the record's time, for
    /// each of them, is absent: since Linux 6.12 the kernel may count a wait from the thread's earlier wait on, or from the
    /// machine's start.
    pub(super) fn of_threads(used: &TaskUsed, threads: u64) -> Self {
        let mut present = used.present & ((1 << ACCOUNTS) - 1);
        if used.accounts[DISK_WAIT_NS] > used.duration_ns.saturating_mul(threads) {
            present &= !(1 << DISK_WAIT_NS);
        }
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

    /// The accounts of a task that runs for this time, in nanoseconds.
    pub(super) fn so_far(
        accounts: [u64; ACCOUNTS],
        present: u32,
        duration_ns: u64,
        heap_allocated_bytes: Option<u64>,
    ) -> Self {
        let used = TaskUsed {
            accounts,
            present,
            duration_ns,
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

fn add_each<const N: usize>(sums: &mut Option<[u64; N]>, more: Option<[u64; N]>) {
    if let Some(more) = more {
        for (sum, more) in sums.get_or_insert([0; N]).iter_mut().zip(more) {
            *sum = sum.saturating_add(more);
        }
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

impl UsedByTask {
    /// Takes Spark's metrics, once; returns what the stage's sums gain.
    pub(super) fn take_metrics(&mut self, metrics: &TaskMetrics) -> Option<Used> {
        if self.figures.metrics.is_some() {
            return None;
        }
        let figures = Used {
            metrics: Some(metrics.values),
            times: metrics.times,
            ..Used::default()
        };
        self.figures.add(&figures);
        Some(figures)
    }
}

/// Whether a task has accounts of the kernel, and whether it counts as partial.
type Counted = [bool; 2];

impl UsedByTask {
    const fn counted(&self) -> Counted {
        [self.figures.present != 0, self.partial]
    }
}

/// What a task has used and held when its stage becomes known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Brought {
    used: UsedByTask,
    helpers: Option<HelperSum>,
    live_bytes: u64,
    seen_peak_bytes: u64,
}

impl Task {
    /// Sets the task's stage where it is not known. Returns what the task has used and held until then.
    pub(super) fn join(&mut self, stage: Option<StageKey>) -> Option<Brought> {
        if self.stage.is_some() {
            return None;
        }
        self.stage = stage;
        stage.map(|_| Brought {
            used: self.used,
            helpers: helpers::sum_of(&self.helpers),
            live_bytes: self.live_bytes,
            seen_peak_bytes: self.seen_peak_bytes,
        })
    }
}

impl Stage {
    /// Counts what a task has gained, and how the task counts since then.
    fn gain(&mut self, gained: &Used, before: Counted, now: Counted) {
        self.used.add(gained);
        let counts = [&mut self.used_tasks, &mut self.used_partial_tasks];
        for ((count, before), now) in counts.into_iter().zip(before).zip(now) {
            *count = count.saturating_add_signed(i64::from(now) - i64::from(before));
        }
    }
}

impl Tasks {
    /// The kernel side sent the accounts of a task.
    pub(super) fn used(&mut self, used: &TaskUsed, caps: &Caps) -> Outcome {
        let helper = helper(used.flags);
        if helper.0 != 0 {
            return self.helper_used(used, helper, caps);
        }
        self.gain(used.task_attempt_id, caps, |task| task.take(used))
    }

    /// The marker reported the heap of a task.
    pub(super) fn used_heap(&mut self, heap: &TaskHeap, caps: &Caps) -> Outcome {
        self.gain(heap.task_attempt_id, caps, |task| task.take_heap(heap))
    }

    /// The marker reported Spark's metrics of a task.
    pub(super) fn used_metrics(&mut self, metrics: &TaskMetrics, caps: &Caps) -> Outcome {
        self.gain(metrics.task_attempt_id, caps, |task| {
            task.take_metrics(metrics)
        })
    }

    /// A task's stage became known, which [`Task::join`] reported: what the task has used and held counts for the stage.
    pub(super) fn joined(
        &mut self,
        stage: Option<StageKey>,
        brought: Option<Brought>,
        now_ns: u64,
        caps: &Caps,
    ) {
        if let (Some(stage), Some(brought)) = (stage, brought) {
            let used = brought.used;
            self.stage_gains(stage, &used.figures, Counted::default(), used.counted());
            if let Some(helpers) = &brought.helpers {
                // Without room they are in the overflow row.
                self.stage_helpers_gain(stage, helpers, caps);
            }
            if let Some(mut stage) = self.stages.get_mut(&stage) {
                let held = &mut stage.held;
                held.join(brought.live_bytes, brought.seen_peak_bytes, now_ns);
            }
        }
    }

    fn gain(
        &mut self,
        id: u64,
        caps: &Caps,
        take: impl FnOnce(&mut UsedByTask) -> Option<Used>,
    ) -> Outcome {
        let full = self.tasks_full(caps);
        let Some(mut task) = self.task(id, caps) else {
            return Outcome::OverCap(full);
        };
        let (stage, before) = (task.stage, task.used.counted());
        let Some(gained) = take(&mut task.used) else {
            return Outcome::Ignored("used_twice");
        };
        if task.used.until.is_some() {
            task.close();
        }
        let now = task.used.counted();
        drop(task);
        if let Some(stage) = stage {
            self.stage_gains(stage, &gained, before, now);
        }
        Outcome::Applied
    }

    fn stage_gains(&mut self, stage: StageKey, gained: &Used, before: Counted, now: Counted) {
        if let Some(mut stage) = self.stages.get_mut(&stage) {
            stage.gain(gained, before, now);
        } else {
            // The stage was folded, or found no room.
            self.stages_over_cap.used.add(gained);
        }
    }
}

#[cfg(test)]
mod tests {
    use smtt_common::event::used::{CPU_NS, CPU_WAIT_NS, DISK_WAIT_NS};

    use super::*;
    use crate::decode::{TaskEnded, TaskStarted};
    use crate::state::Limits;

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
    fn a_wait_for_a_disk_that_is_longer_than_the_task_is_absent() {
        let mut used = record(1 << CPU_NS | 1 << DISK_WAIT_NS, UNTIL_EXIT);
        used.accounts[DISK_WAIT_NS] = used.duration_ns;
        assert_eq!(Used::of_accounts(&used).account(DISK_WAIT_NS), Some(200));
        used.accounts[DISK_WAIT_NS] += 1;
        let figures = Used::of_accounts(&used);
        assert_eq!(figures.account(DISK_WAIT_NS), None);
        assert_eq!(figures.account(CPU_NS), Some(100));
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
    fn sparks_metrics_count_once_and_zero_is_not_absent() {
        let mut task = UsedByTask::default();
        let mut metrics = TaskMetrics {
            task_attempt_id: ID,
            values: [0; SPARK_METRICS.len()],
            times: None,
        };
        metrics.values[3] = u64::MAX;
        let gained = task.take_metrics(&metrics).expect("the first report");
        assert_eq!(task.take_metrics(&metrics), None);
        assert_eq!(task.figures.metrics, Some(metrics.values));
        let mut stage = Used::default();
        assert_eq!(stage.metrics, None);
        stage.add(&Used::default());
        assert_eq!(stage.metrics, None);
        stage.add(&gained);
        stage.add(&gained);
        assert_eq!(stage.metrics, Some(metrics.values));
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

    const ID: u64 = 4;
    const STAGE: StageKey = StageKey { id: 2, attempt: 0 };

    /// Applies a fact about the task by its letter: start, end, heap, Spark's metrics, accounts, accounts without a first reading, and the
    /// growth of a fault that has the stage.
    fn apply(tasks: &mut Tasks, fact: char, caps: &Caps) {
        match fact {
            's' => {
                let started = TaskStarted {
                    task_attempt_id: ID,
                    stage_id: STAGE.id,
                    ..TaskStarted::default()
                };
                tasks.started(&started, false, 1, caps);
            }
            'e' => {
                let ended = TaskEnded {
                    task_attempt_id: ID,
                    stage_id: STAGE.id,
                    stage_attempt: 0,
                    outcome: crate::decode::Outcome::Succeeded,
                    execution_memory_peak_bytes: 0,
                    reason: String::new(),
                };
                tasks.ended(&ended, 2, caps);
            }
            'h' => {
                let heap = TaskHeap {
                    task_attempt_id: ID,
                    allocated_bytes: Some(5),
                    collection_ms: Some(6),
                };
                tasks.used_heap(&heap, caps);
            }
            'm' => {
                let metrics = TaskMetrics {
                    task_attempt_id: ID,
                    values: [3; SPARK_METRICS.len()],
                    times: Some([2; SPARK_TIMES.len()]),
                };
                tasks.used_metrics(&metrics, caps);
            }
            'u' => {
                tasks.used(&record(1 << CPU_NS, PARTIAL), caps);
            }
            'n' => {
                tasks.used(&record(0, PARTIAL), caps);
            }
            _ => {
                let used = tasks
                    .task(ID, caps)
                    .and_then(|mut task| task.join(Some(STAGE)));
                drop(tasks.stage(STAGE, caps));
                tasks.joined(Some(STAGE), used, 1, caps);
            }
        }
    }

    #[test]
    fn a_stage_has_what_its_tasks_used_whatever_the_order_of_the_facts() {
        let orders = |facts: &str| -> Vec<Vec<char>> {
            let mut orders = vec![Vec::new()];
            for fact in facts.chars() {
                orders = orders
                    .iter()
                    .flat_map(|order: &Vec<char>| {
                        (0..=order.len()).map(|at| {
                            let mut more = order.clone();
                            more.insert(at, fact);
                            more
                        })
                    })
                    .collect();
            }
            orders
        };
        // Facts that were lost are missing; repeated ones change nothing.
        for facts in ["shue", "hue", "hnue", "shu", "fhu", "fhnues", "hhuuee"] {
            for order in orders(facts) {
                let (mut tasks, caps) = (Tasks::default(), Caps::new(Limits::default(), 1 << 20));
                for fact in &order {
                    apply(&mut tasks, *fact, &caps);
                }
                let stage = tasks.stages.get(&STAGE).expect("the stage has a row");
                assert_eq!(
                    stage.used,
                    tasks.tasks.get(&ID).expect("a task").used.figures
                );
                assert_eq!(stage.used.account(CPU_NS), Some(100), "{order:?}");
                assert_eq!(stage.used.heap_allocated_bytes, Some(5), "{order:?}");
                assert_eq!(stage.used.collection_ms, Some(6), "{order:?}");
                let counts = (stage.used_tasks, stage.used_partial_tasks);
                assert_eq!(counts, (1, 1), "{order:?}");
            }
        }
        for order in orders("shmmue") {
            let (mut tasks, caps) = (Tasks::default(), Caps::new(Limits::default(), 1 << 20));
            for fact in &order {
                apply(&mut tasks, *fact, &caps);
            }
            let stage = tasks.stages.get(&STAGE).expect("the stage has a row");
            let three = Some([3; SPARK_METRICS.len()]);
            assert_eq!(stage.used.metrics, three, "{order:?}");
        }
    }

    #[test]
    fn what_a_task_used_counts_for_the_overflow_row_where_its_stage_has_none() {
        let (mut tasks, caps) = (Tasks::default(), Caps::new(Limits::default(), 1 << 20));
        for fact in "se".chars() {
            apply(&mut tasks, fact, &caps);
        }
        assert_eq!(tasks.fold_stages(1), 1);
        apply(&mut tasks, 'h', &caps);
        assert_eq!(tasks.stages_over_cap.used.heap_allocated_bytes, Some(5));
    }
}
