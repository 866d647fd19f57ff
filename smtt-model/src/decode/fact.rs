//! Content of a record: one variant for each kind of fact.

use smtt_common::counter::ContextKey;
use smtt_common::event::used::{Helper, TaskUsed, WorkerUsed};

use super::{
    BlockFact, BlockRead, BlockRemoved, ConsumerUsed, ExecutorDescribed, Exhausted, Fetched,
    JobDescribed, MemoryReported, OomKilled, PageAllocated, PageFreed, Paused, PeaksReported,
    ProcessEnd, PythonWorker, RddDescribed, SignalSent, Span, StageDescribed, TaskEnded, TaskHeap,
    TaskMetrics, TaskStarted, ThreadFact,
};

/// Content of a record. Text contains no control characters; an id of "none" is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// An executor described itself.
    ExecutorDescribed(Box<ExecutorDescribed>),
    /// A thread got a slot.
    ThreadRegistered(ThreadFact),
    /// A thread released its slot.
    ThreadGone(ThreadFact),
    /// Name, storage level and lineage of an RDD.
    RddDescribed(Box<RddDescribed>),
    /// Name and size of a stage.
    StageDescribed(StageDescribed),
    /// Begin and end of a job.
    JobDescribed(JobDescribed),
    /// A task started.
    TaskStarted(TaskStarted),
    /// A task ended.
    TaskEnded(TaskEnded),
    /// A block was stored in memory.
    BlockStored(Box<BlockFact>),
    /// A read of a cached block began.
    BlockRead(BlockRead),
    /// The collector moved a block's bytes.
    BlockMoved(Box<BlockFact>),
    /// A block left memory.
    BlockRemoved(BlockRemoved),
    /// Execution memory was allocated.
    PageAllocated(PageAllocated),
    /// Execution memory was freed.
    PageFreed(PageFreed),
    /// Execution memory that one class of consumers used in a task.
    ConsumerUsed(ConsumerUsed),
    /// A rare activity ended.
    Span(Span),
    /// A Python worker began or ended serving a task.
    PythonWorker(PythonWorker),
    /// All addresses on the Java heap are reported again after a collection.
    AddressesReported {
        /// Last collection before this report.
        collection: u64,
        /// Facts with new addresses since the previous report or the last resync.
        moved_facts: u64,
    },
    /// Progress of a resync: the number of facts that the marker's thread has sent so far.
    ResyncReported {
        /// Request that is being served.
        request: u64,
        /// Facts sent since the first record of this kind, which has 0.
        facts: u64,
    },
    /// The snapshot of a resync is complete: everything alive has been reported again.
    ResyncDone {
        /// Request that was served.
        request: u64,
    },
    /// A thread began a task.
    TaskBegun {
        /// Id of the task attempt.
        task_attempt_id: u64,
        /// Whether the task ran before the marker knew it.
        late: bool,
    },
    /// What a task used of the Java heap.
    TaskHeap(TaskHeap),
    /// What a task read, wrote, exchanged and spilled, by Spark's metrics.
    TaskMetrics(Box<TaskMetrics>),
    /// What a running task has allocated on the Java heap so far.
    TaskHeapSoFar {
        /// Id of the task attempt.
        task_attempt_id: u64,
        /// Bytes that the task's own thread allocated.
        allocated_bytes: u64,
    },
    /// A thread began to help a task.
    HelperBegun {
        /// Id of the task attempt.
        task_attempt_id: u64,
        /// What the thread does.
        helper: Helper,
    },
    /// A helper of a task ended.
    HelperEnded {
        /// Id of the task attempt.
        task_attempt_id: u64,
        /// What the thread did.
        helper: Helper,
        /// Bytes that the helper allocated on the Java heap; `None` where the JVM does not report it.
        allocated_bytes: Option<u64>,
    },
    /// A task's request for shuffle blocks of another executor ended.
    Fetched(Box<Fetched>),
    /// The application stood still for the collector.
    Paused(Paused),
    /// Where the memory of the executor's JVM is.
    MemoryReported(Box<MemoryReported>),
    /// Peaks of the executor, or while a stage ran.
    PeaksReported(Box<PeaksReported>),
    /// What a task used by the kernel's accounts.
    TaskUsed(Box<TaskUsed>),
    /// See [`Kind::WORKER_USED`].
    WorkerUsed(Box<WorkerUsed>),
    /// A process of an executor forked.
    ProcessForked {
        /// Process id of the child in the initial pid namespace.
        child_pid: u32,
    },
    /// A process of an executor exited or replaced its image.
    ProcessGone {
        /// Whether the process replaced its image instead of exiting.
        exec: bool,
        /// Whether it was the executor's JVM instead of a child.
        is_executor: bool,
        /// How it ended; `None` where the kernel does not report it.
        end: Option<Box<ProcessEnd>>,
    },
    /// A signal that ends a process was sent to a process of an executor.
    SignalSent(Box<SignalSent>),
    /// The kernel's OOM killer chose a process of an executor.
    OomKilled(OomKilled),
    /// The JVM ran out of something, or an error ends it.
    Exhausted(Box<Exhausted>),
    /// A sampled page fault with its address.
    FaultSample {
        /// Faulting address.
        address: u64,
        /// Whether the access was a write; `None` where the hook cannot distinguish.
        write: Option<bool>,
        /// Context that the fault was counted for; `None` where unattributed.
        context: Option<ContextKey>,
    },
    /// A sampled page walk with the address of its data.
    WalkSample {
        /// Accessed address.
        address: u64,
        /// Whether the access was a write; `None` where unknown.
        write: Option<bool>,
        /// Context that the page walk was counted for; `None` where unattributed.
        context: Option<ContextKey>,
    },
}
