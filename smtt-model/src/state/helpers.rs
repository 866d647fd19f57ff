//! What threads used that work for one task beside the task's own thread, by what they do.

use smtt_common::event::used::{ACCOUNTS, Helper, PARTIAL, REST, TaskUsed, WorkerUsed};

use super::Outcome;
use super::bytes::Caps;
use super::functions::Service;
use super::task::{Stage, Task, Tasks};
use super::used::Used;
use crate::attribute::StageKey;

/// Name of helpers whose code this version does not know.
const OTHER: &str = "other";
/// Most threads of a Python worker whose accounts the kernel side adds up.
const WORKER_THREADS: u64 = 64;

/// Sums over helpers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HelperSum {
    /// Ended threads whose accounts by the kernel are in `figures`.
    pub threads: u64,
    /// Sums over these threads.
    pub figures: Used,
}

impl HelperSum {
    pub(crate) fn add(&mut self, more: &Self) {
        self.threads = self.threads.saturating_add(more.threads);
        self.figures.add(&more.figures);
    }
}

/// What the helpers of one kind used for a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HelperUsed {
    /// What the threads do; 0 for all that this version does not know.
    pub helper: Helper,
    /// Sums over these threads.
    pub sum: HelperSum,
    /// Threads that worked for the task before the first reading of their accounts, which are too small or absent.
    pub partial: u64,
}

impl HelperUsed {
    /// The word in every output.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.helper.name().unwrap_or(OTHER)
    }
}

impl Task {
    /// The sums of a kind of helpers; `None` where the bytes do not fit. There are as many as known kinds, and one more.
    fn helper(&mut self, helper: Helper, caps: &Caps) -> Option<&mut HelperUsed> {
        let helper = helper.name().map_or(Helper::default(), |_| helper);
        let known = self.helpers.iter().position(|kind| kind.helper == helper);
        let at = match known {
            Some(at) => at,
            None => {
                // The vector moves: for a moment there are two.
                let places = 2 * self.helpers.len() + 1;
                if !caps.admit(places * size_of::<HelperUsed>()) {
                    return None;
                }
                self.helpers.reserve_exact(1);
                self.helpers.push(HelperUsed {
                    helper,
                    ..HelperUsed::default()
                });
                self.helpers.len() - 1
            }
        };
        self.helpers.get_mut(at)
    }
}

/// Sums over all kinds of helpers; `None` without a helper.
pub(super) fn sum_of(kinds: &[HelperUsed]) -> Option<HelperSum> {
    kinds.iter().map(|kind| kind.sum).reduce(|mut sum, more| {
        sum.add(&more);
        sum
    })
}

impl Stage {
    /// Counts what helpers of the stage's tasks used; false where the bytes do not fit.
    fn helpers_gain(&mut self, more: &HelperSum, caps: &Caps) -> bool {
        let fits = self.helpers.is_some() || caps.admit(size_of::<HelperSum>());
        if fits {
            self.helpers.get_or_insert_default().add(more);
        }
        fits
    }
}

impl Tasks {
    /// The kernel side sent the accounts of a helper.
    pub(super) fn helper_used(&mut self, used: &TaskUsed, helper: Helper, caps: &Caps) -> Outcome {
        let more = HelperSum {
            threads: 1,
            figures: Used::of_accounts(used),
        };
        self.helper_gains(used.task_attempt_id, helper, caps, &more)
    }

    /// The kernel side sent the accounts of a Python worker at the end of its service to a task, or what it did after that
    /// and before the next service.
    pub(super) fn worker_used(&mut self, worker: &WorkerUsed, now_ns: u64, caps: &Caps) -> Outcome {
        let used = &worker.used;
        let is_rest = used.flags & REST != 0;
        let more = HelperSum {
            threads: u64::from(!is_rest),
            figures: Used::of_threads(used, WORKER_THREADS),
        };
        let id = used.task_attempt_id;
        let outcome = self.helper_gains(id, Helper::PYTHON_WORKER, caps, &more);
        if is_rest || !matches!(outcome, Outcome::Applied) {
            return outcome;
        }
        let Some(mut task) = self.tasks.get_mut(&id) else {
            return outcome;
        };
        let is_partial = used.flags & PARTIAL != 0;
        if is_partial && let Some(kind) = task.helper(Helper::PYTHON_WORKER, caps) {
            kind.partial = kind.partial.saturating_add(1);
        }
        task.serve(
            Service {
                pid: worker.pid,
                begin_ns: now_ns.saturating_sub(used.duration_ns),
                duration_ns: used.duration_ns,
            },
            caps,
        )
    }

    /// The marker reported what a helper allocated on the heap.
    pub(super) fn helper_heap(
        &mut self,
        task: u64,
        helper: Helper,
        allocated_bytes: Option<u64>,
        caps: &Caps,
    ) -> Outcome {
        let more = HelperSum {
            threads: 0,
            figures: Used::so_far([0; ACCOUNTS], 0, 0, allocated_bytes),
        };
        self.helper_gains(task, helper, caps, &more)
    }

    fn helper_gains(
        &mut self,
        task: u64,
        helper: Helper,
        caps: &Caps,
        more: &HelperSum,
    ) -> Outcome {
        let Some(mut task) = self.tasks.get_mut(&task) else {
            return Outcome::Ignored("task_not_known");
        };
        let Some(kind) = task.helper(helper, caps) else {
            return Outcome::OverCap("bytes");
        };
        kind.sum.add(more);
        let stage = task.stage;
        drop(task);
        let fits = stage.is_none_or(|stage| self.stage_helpers_gain(stage, more, caps));
        if fits {
            Outcome::Applied
        } else {
            Outcome::OverCap("bytes")
        }
    }

    /// Counts what helpers used for a stage: in its row, or in the overflow row where the stage has none or the bytes do
    /// not fit. False where they do not.
    pub(super) fn stage_helpers_gain(
        &mut self,
        stage: StageKey,
        more: &HelperSum,
        caps: &Caps,
    ) -> bool {
        let row = self.stages.get_mut(&stage);
        let fits = row.map(|mut stage| stage.helpers_gain(more, caps));
        if fits != Some(true) {
            self.stages_over_cap.helpers.add(more);
        }
        fits != Some(false)
    }
}

#[cfg(test)]
mod tests {
    use smtt_common::event::used::{CPU_NS, DISK_WAIT_NS, HELPER_SHIFT, UNTIL_EXIT};

    use super::*;
    use crate::state::Limits;
    use crate::state::bytes::HeapBytes as _;

    const TASK: u64 = 4;

    fn record(helper: u8, cpu_ns: u64) -> TaskUsed {
        let mut accounts = [0; ACCOUNTS];
        accounts[CPU_NS] = cpu_ns;
        TaskUsed {
            task_attempt_id: TASK,
            accounts,
            duration_ns: 1000,
            present: 1 << CPU_NS,
            flags: UNTIL_EXIT | u32::from(helper) << HELPER_SHIFT,
        }
    }

    #[test]
    fn helpers_have_sums_of_their_own_and_leave_those_of_the_task() {
        let (mut tasks, caps) = (Tasks::default(), Caps::new(Limits::default(), 1 << 20));
        for (helper, cpu_ns) in [(0, 7), (1, 10), (3, 5), (1, 20), (200, 1), (201, 2)] {
            assert!(matches!(
                tasks.used(&record(helper, cpu_ns), &caps),
                Outcome::Applied
            ));
        }
        tasks.helper_heap(TASK, Helper::PYTHON_WRITER, Some(64), &caps);
        tasks.helper_heap(TASK, Helper::PIPE_WRITER, None, &caps);
        let task = tasks.tasks.get(&TASK).expect("a task");
        assert_eq!(task.used.figures.account(CPU_NS), Some(7));
        assert_eq!(task.used.figures.heap_allocated_bytes, None);
        let of = |name: &str| {
            let sum = task.helpers.iter().find(|sum| sum.name() == name);
            let sum = sum.expect("a sum of that name");
            assert_eq!(sum.sum.figures.account(DISK_WAIT_NS), None);
            let figures = &sum.sum.figures;
            (
                sum.sum.threads,
                figures.account(CPU_NS),
                figures.heap_allocated_bytes,
            )
        };
        assert_eq!(of("python writer"), (2, Some(30), Some(64)));
        assert_eq!(of("pipe writer"), (1, Some(5), None));
        assert_eq!(of("other"), (2, Some(3), None));
        assert_eq!(task.helpers.len(), 3);
        assert_eq!(task.heap_bytes(), 3 * size_of::<HelperUsed>());
    }

    #[test]
    fn a_stage_has_the_helpers_of_its_tasks_whenever_it_becomes_known() {
        let stage = StageKey { id: 3, attempt: 1 };
        for known_first in [true, false] {
            let (mut tasks, caps) = (Tasks::default(), Caps::new(Limits::default(), 1 << 20));
            tasks.used(&record(0, 7), &caps);
            drop(tasks.stage(stage, &caps));
            let join = |tasks: &mut Tasks| {
                let brought = tasks
                    .task(TASK, &caps)
                    .and_then(|mut task| task.join(Some(stage)));
                tasks.joined(Some(stage), brought, 1, &caps);
            };
            if known_first {
                join(&mut tasks);
            }
            tasks.used(&record(1, 10), &caps);
            tasks.used(&record(3, 5), &caps);
            tasks.helper_heap(TASK, Helper::PYTHON_WRITER, Some(64), &caps);
            join(&mut tasks);
            let row = tasks.stages.get(&stage).expect("a stage");
            let sum = row.helpers.as_deref().expect("helpers");
            assert_eq!((sum.threads, sum.figures.account(CPU_NS)), (2, Some(15)));
            assert_eq!(sum.figures.heap_allocated_bytes, Some(64));
            assert_eq!(row.used.account(CPU_NS), Some(7));
            // A stage that leaves the table takes its helpers along.
            assert_eq!(tasks.fold_stages(1), 1);
            tasks.used(&record(1, 20), &caps);
            let over = tasks.stages_over_cap.helpers;
            assert_eq!((over.threads, over.figures.account(CPU_NS)), (3, Some(35)));
        }
    }

    #[test]
    fn a_helper_of_a_task_without_a_row_makes_none() {
        let (mut tasks, caps) = (Tasks::default(), Caps::new(Limits::default(), 1 << 20));
        let unknown = Outcome::Ignored("task_not_known");
        assert_eq!(tasks.used(&record(1, 7), &caps), unknown);
        let heap = tasks.helper_heap(TASK, Helper::PYTHON_WRITER, Some(64), &caps);
        assert_eq!(heap, unknown);
        assert!(tasks.tasks.get(&TASK).is_none());
    }

    #[test]
    fn helpers_for_whose_sum_a_stage_has_no_room_are_in_the_overflow_row() {
        let stage = StageKey { id: 3, attempt: 1 };
        let full = Caps::new(Limits::default(), 0);
        for known_first in [true, false] {
            let (mut tasks, caps) = (Tasks::default(), Caps::new(Limits::default(), 1 << 20));
            tasks.used(&record(0, 7), &caps);
            drop(tasks.stage(stage, &caps));
            let join = |tasks: &mut Tasks| {
                let brought = tasks
                    .task(TASK, &caps)
                    .and_then(|mut task| task.join(Some(stage)));
                tasks.joined(Some(stage), brought, 1, &full);
            };
            if known_first {
                join(&mut tasks);
                // The task has a sum for this kind already, and needs no room.
                let mut task = tasks.tasks.get_mut(&TASK).expect("a task");
                assert!(task.helper(Helper::PYTHON_WRITER, &caps).is_some());
                drop(task);
                let refused = tasks.used(&record(1, 10), &full);
                assert_eq!(refused, Outcome::OverCap("bytes"));
            } else {
                tasks.used(&record(1, 10), &caps);
                join(&mut tasks);
            }
            assert!(tasks.stages.get(&stage).expect("a stage").helpers.is_none());
            let over = tasks.stages_over_cap;
            let sum = (over.helpers.threads, over.helpers.figures.account(CPU_NS));
            assert_eq!(sum, (1, Some(10)), "stage known first: {known_first}");
            assert!(over.rows == 0 && over.is_shown(), "{over:?}");
        }
    }

    #[test]
    fn threads_of_a_worker_may_wait_for_a_disk_at_the_same_time() {
        let (mut tasks, caps) = (Tasks::default(), Caps::new(Limits::default(), 1 << 20));
        tasks.used(&record(0, 7), &caps);
        let mut worker = WorkerUsed {
            used: record(5, 10),
            ..WorkerUsed::default()
        };
        worker.used.present |= 1 << DISK_WAIT_NS;
        // One wait more than 64 threads can have is none: the kernel may count it from the machine's start.
        for (wait_ns, wanted) in [(64_001, None), (64_000, Some(64_000)), (2000, Some(66_000))] {
            worker.used.accounts[DISK_WAIT_NS] = wait_ns;
            let outcome = tasks.worker_used(&worker, 5000, &caps);
            assert_eq!(outcome, Outcome::Applied);
            let task = tasks.tasks.get(&TASK).expect("a task");
            let figures = task.helpers[0].sum.figures;
            assert_eq!(figures.account(DISK_WAIT_NS), wanted);
        }
    }

    #[test]
    fn helpers_without_room_are_refused() {
        let (mut tasks, caps) = (Tasks::default(), Caps::new(Limits::default(), 1 << 20));
        tasks.used(&record(0, 7), &caps);
        let full = Caps::new(Limits::default(), 0);
        let refused = tasks.used(&record(1, 7), &full);
        assert!(matches!(refused, Outcome::OverCap("bytes")));
        assert!(tasks.tasks.get(&TASK).expect("a task").helpers.is_empty());
    }
}
