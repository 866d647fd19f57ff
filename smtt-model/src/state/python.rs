//! Python workers: which task each one serves, and the most memory that was resident in a task's workers.

use std::collections::BTreeMap;

use crate::sort::small::Gather as _;

use super::Executor;
use super::memory_usage::{ChildKind, KernelMemory};

/// The task that a Python worker serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Id of the task attempt.
    pub task_attempt_id: u64,
    /// Time of the report, in nanoseconds since boot.
    pub since_ns: u64,
}

impl Executor {
    /// Takes the resident memory of workers for the tasks that they serve: what a task's workers hold together now, and
    /// a worker's high-water mark where it rose since the reading before while the worker served the task.
    pub(super) fn workers_seen(&mut self, kernel: &KernelMemory) {
        let before_ns = self.usage.kernel_ns;
        let before: BTreeMap<u32, u64> = self
            .usage
            .kernel
            .iter()
            .flat_map(|before| &before.children)
            .map(|child| (child.pid, child.memory.resident_peak_bytes))
            .gather();
        let mut held: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for child in &kernel.children {
            let served = self.python_workers.get(&child.inner_pid);
            let Some(served) = served.filter(|_| child.kind == ChildKind::Python) else {
                continue;
            };
            let (sum, most) = held.entry(served.task_attempt_id).or_default();
            *sum = sum.saturating_add(child.memory.resident_bytes);
            let mark = child.memory.resident_peak_bytes;
            let rose = before.get(&child.pid).is_some_and(|known| *known < mark);
            if rose && served.since_ns <= before_ns {
                *most = mark.max(*most);
            }
        }
        for (id, (sum, most)) in held {
            if let Some(mut task) = self.tasks.tasks.get_mut(&id)
                && !task.state.ended()
            {
                let peak = Some(sum.max(most));
                task.python_peak_bytes = task.python_peak_bytes.max(peak);
                let stage = task.stage;
                drop(task);
                if let Some(mut stage) = stage.and_then(|key| self.tasks.stages.get_mut(&key)) {
                    stage.python_peak_bytes = stage.python_peak_bytes.max(peak);
                }
            }
        }
    }
}
