//! Rows of executors, processes and threads that the daemon adds to the kernel side's tables, and removes.

use anyhow::{Context as _, bail};
use smtt_common::context::{Range, SlotHead};
use smtt_common::settings::{InnerId, Process, ROLE_CHILD, TableOperation, Thread};
use smtt_machine::proc::{Handle, Started};

use super::wire::Wire;
use super::{Probes, owner, tables};

impl Probes {
    /// The key of a process, whose row is added if it has none. For executors that started before the daemon.
    ///
    /// # Errors
    /// When the process has ended, the table of executors is full, or the process's user has used up its share.
    pub fn adopt_executor(&mut self, pid: u32) -> anyhow::Result<u64> {
        let process = Handle::open(pid).with_context(|| format!("process {pid} ended"))?;
        self.adopt_found(pid, &process)
    }

    /// As [`Probes::adopt_executor`], for a process that was found before: a later one with its id gets no row.
    ///
    /// # Errors
    /// As [`Probes::adopt_executor`].
    pub fn adopt_found(&mut self, pid: u32, found: &Handle) -> anyhow::Result<u64> {
        let owner = owner::of(found).with_context(|| format!("process {pid} is not traced"))?;
        self.follow_executors(true);
        let described = self.map::<u32, Process>("PROCESSES")?.get(&pid, 0).is_ok();
        if !self.change(
            TableOperation::ADOPT_EXECUTOR,
            &[u64::from(pid), u64::from(owner.uid), owner.cgroup],
        )? {
            bail!(
                "no room for another executor of user {}: raise [limits] executors",
                self.shares.owners.share_of(owner.uid)
            );
        }
        let Wire(process) = self
            .map::<u32, Process>("PROCESSES")?
            .get(&pid, 0)
            .with_context(|| format!("process {pid} ended"))?;
        // The hook of its exit may have run before the row was there.
        if !found.is_running() {
            if !described {
                self.leave_executor(process.executor)?;
            }
            bail!("process {pid} ended");
        }
        Ok(process.executor)
    }

    /// Sets the slot of a thread in the kernel side's table, and the addresses of its Java heap. A thread that registered
    /// itself keeps its slot.
    ///
    /// # Errors
    /// When the table of threads is full, or the executor has used up its share.
    pub fn adopt_thread(
        &mut self,
        executor: u64,
        tid: u32,
        slot_address: u64,
        heap: Range,
    ) -> anyhow::Result<()> {
        let known = self
            .map::<u32, Thread>("THREADS")?
            .get(&tid, 0)
            .is_ok_and(|Wire(thread)| thread.executor == executor);
        if known
            || self.change(
                TableOperation::ADOPT_THREAD,
                &[
                    u64::from(tid),
                    executor,
                    slot_address,
                    heap.start,
                    heap.bytes,
                ],
            )?
        {
            return Ok(());
        }
        bail!("no room for thread {tid} in the table of threads: raise [limits] threads")
    }

    /// Removes a thread from the kernel side's table, for a thread that exited before it was adopted.
    ///
    /// # Errors
    /// When the kernel side's program cannot be run.
    pub fn forget_thread(&mut self, tid: u32, executor: u64) -> anyhow::Result<()> {
        self.change(TableOperation::FORGET_THREAD, &[u64::from(tid), executor])
            .map(drop)
    }

    /// Adds a child process that an executor had before its discovery. Returns false, and leaves no row, where that
    /// process has ended.
    ///
    /// # Errors
    /// When the table of processes is full, or the executor has used up its share.
    pub fn adopt_child(&mut self, executor: u64, child: Started) -> anyhow::Result<bool> {
        let pid = child.pid;
        let Ok(process) = Handle::open(pid) else {
            return Ok(false);
        };
        if process.start_ticks() != Some(child.start_ticks) {
            return Ok(false);
        }
        let added = self.change(TableOperation::ADOPT_CHILD, &[u64::from(pid), executor])?;
        // The hook of its exit may have run before the row was there.
        if !process.is_running() {
            if added {
                self.change(TableOperation::FORGET_PROCESS, &[u64::from(pid), executor])?;
            }
            return Ok(false);
        }
        if added || self.map::<u32, Process>("PROCESSES")?.get(&pid, 0).is_ok() {
            return Ok(true);
        }
        bail!("no room for process {pid} in the table of processes: raise [limits] processes")
    }

    /// Whether the kernel side knows a child by its id in the executor's pid namespace, which has this number: then it has
    /// set the task itself.
    ///
    /// # Errors
    /// When the table is missing from the object.
    pub fn knows_inner_id(
        &mut self,
        executor: u64,
        pid: u32,
        namespace: u32,
    ) -> anyhow::Result<bool> {
        let id = Wire(InnerId {
            executor,
            pid,
            namespace,
        });
        Ok(self
            .map::<Wire<InnerId>, u32>("INNER_IDS")?
            .get(&id, 0)
            .is_ok())
    }

    /// Sets the context of a Python worker's task, for executors in another pid namespace.
    ///
    /// # Errors
    /// When that process is no child of that executor.
    pub fn set_worker_context(
        &mut self,
        executor: u64,
        pid: u32,
        context: SlotHead,
    ) -> anyhow::Result<()> {
        let Wire(process) = self
            .map::<u32, Process>("PROCESSES")?
            .get(&pid, 0)
            .with_context(|| format!("process {pid} belongs to no executor"))?;
        if process.executor != executor || process.role != ROLE_CHILD {
            bail!("process {pid} is no child of that executor");
        }
        let SlotHead {
            hot,
            task_attempt_id,
            stage_id,
            stage_attempt,
        } = context;
        self.change(
            TableOperation::SET_WORKER,
            &[
                u64::from(pid),
                executor,
                hot,
                task_attempt_id,
                u64::from(stage_id),
                u64::from(stage_attempt),
            ],
        )
        .map(drop)
    }

    pub(super) fn change(&self, operation: TableOperation, words: &[u64]) -> anyhow::Result<bool> {
        tables::change(&self.ebpf, operation, words)
    }

    /// Begins to free the rows of an executor: its processes and threads are not traced any more. The next reading
    /// removes the rest and has its last totals. In between, hooks that run on other processors at this moment end, so
    /// that the totals have what they count.
    ///
    /// # Errors
    /// When a table is missing from the object.
    pub fn leave_executor(&mut self, executor: u64) -> anyhow::Result<()> {
        if !self.leaving.contains(&executor) {
            self.leaving.push(executor);
        }
        self.remove_processes(executor)
    }

    /// Whether an executor has rows that stay.
    #[must_use]
    pub fn is_traced(&self, executor: u64) -> bool {
        !self.leaving.contains(&executor) && matches!(self.budget(executor), Ok(Some(_)))
    }

    /// Frees the rows of an executor at once. The next reading has its last totals.
    ///
    /// # Errors
    /// When a table is missing from the object.
    pub fn forget_executor(&mut self, executor: u64) -> anyhow::Result<()> {
        self.leave_executor(executor)?;
        self.remove_leaving()
    }

    pub(super) fn remove_leaving(&mut self) -> anyhow::Result<()> {
        while let Some(executor) = self.leaving.last().copied() {
            // A child that was born just before its parent's row went.
            self.remove_processes(executor)?;
            let last = self.reader.forget(&mut self.ebpf, executor)?;
            self.before.forget(executor);
            self.change(TableOperation::FORGET_EXECUTOR, &[executor])?;
            self.forgotten.push((executor, last));
            self.leaving.pop();
        }
        Ok(())
    }

    /// Removes the rows of an executor's processes and threads.
    fn remove_processes(&self, executor: u64) -> anyhow::Result<()> {
        let own = self.rows_of::<Process>("PROCESSES", |process| process.executor == executor)?;
        for pid in own {
            self.change(TableOperation::FORGET_PROCESS, &[u64::from(pid), executor])?;
        }
        let own = self.rows_of::<Thread>("THREADS", |thread| thread.executor == executor)?;
        for tid in own {
            self.change(TableOperation::FORGET_THREAD, &[u64::from(tid), executor])?;
        }
        Ok(())
    }
}
