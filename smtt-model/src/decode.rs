//! Bytes -> [`Event`]. The decoder is total: it never panics, whatever bytes a foreign process wrote.
//!
//! The schemas of marker facts are in [`smtt_common::event::marker::MARKER_FACTS`]; records of the kernel side are
//! fixed structs. A payload that is too short, or holds an impossible id, is an error with a cause for the loss ledger.
//! Fields after the last known one are ignored.

mod death;
#[cfg(any(test, feature = "encode"))]
pub mod encode;
mod error;
mod fetch;
mod fields;
mod kernel;
mod marker;
mod memory;
mod metrics;

pub use death::{Exhausted, OomKilled, ProcessEnd, SignalSent};

use serde::{Deserialize, Serialize};
use smtt_common::context::Activity;
use smtt_common::counter::ContextKey;
use smtt_common::event::used::{Helper, TaskUsed};
use smtt_common::event::{Kind, RecordHeader};

pub use error::DecodeError;
pub use fetch::Fetched;
pub use memory::{Figure, MemoryReported, PeaksReported};
pub use metrics::{SPARK_METRICS, SPARK_TIMES, TaskMetrics};

/// One decoded record: time, process and fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds since boot.
    pub time_ns: u64,
    /// Key of the executor; zero where the kernel side does not know it.
    pub executor: u64,
    /// Process id in the initial pid namespace.
    pub pid: u32,
    /// Thread id in the initial pid namespace.
    pub tid: u32,
    /// User of the executor's process, as the kernel says, in the initial user namespace.
    pub uid: u32,
    /// The fact that the record reports.
    pub fact: Fact,
}

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
        /// Bytes that the helper allocated on the Java heap; `None` where the JVM does not say.
        allocated_bytes: Option<u64>,
    },
    /// A task's request for shuffle blocks of another executor ended.
    Fetched(Box<Fetched>),
    /// Where the memory of the executor's JVM is.
    MemoryReported(Box<MemoryReported>),
    /// Peaks of the executor, or while a stage ran.
    PeaksReported(Box<PeaksReported>),
    /// What a task used by the kernel's accounts.
    TaskUsed(Box<TaskUsed>),
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
        /// How it ended; `None` where the kernel does not say.
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

/// See [`Kind::EXECUTOR_DESCRIBED`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutorDescribed {
    /// Address of the slot file's header in the JVM.
    pub slots_address: u64,
    /// Slots in the slot file.
    pub slot_count: u64,
    /// Start of the JVM in milliseconds since 1970.
    pub start_unix_ms: u64,
    /// Maximum size of the Java heap, in bytes.
    pub heap_max_bytes: u64,
    /// Number of marker hooks whose target Spark does not have.
    pub missing_hooks: u64,
    /// Flags of the description: how the marker finds addresses on the heap.
    pub flags: u64,
    /// Spark's application id, as the executor claims it.
    pub application_id: String,
    /// Name of the application.
    pub application_name: String,
    /// Spark's executor id, as the executor claims it.
    pub executor_id: String,
    /// Host as Spark names it.
    pub host: String,
    /// Version of Spark.
    pub spark_version: String,
    /// Version of Java.
    pub java_version: String,
    /// Names of the missing hooks, joined with commas.
    pub missing_hook_names: String,
    /// Attempt of the application, where the cluster manager makes several; else empty.
    pub application_attempt_id: String,
    /// Queue of the cluster manager in which the application runs; empty where it has none, as the names of Kubernetes.
    pub queue: String,
    /// Kubernetes namespace, as the executor claims it.
    pub kubernetes_namespace: String,
    /// Kubernetes pod, as the executor claims it.
    pub kubernetes_pod: String,
}

/// Digits of the attempt of an application, at most.
const ATTEMPT_DIGITS: usize = 10;

impl ExecutorDescribed {
    /// Attempt of the application; `None` where its cluster manager makes only one, and where it is no number: folders
    /// have names of an id and an attempt.
    #[must_use]
    pub fn attempt(&self) -> Option<&str> {
        let attempt = self.application_attempt_id.as_str();
        let is_number = (1..=ATTEMPT_DIGITS).contains(&attempt.len())
            && attempt.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then_some(attempt)
    }
}

/// See [`Kind::THREAD_REGISTERED`] and [`Kind::THREAD_GONE`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadFact {
    /// Address of the slot.
    pub slot_address: u64,
    /// Thread id in the JVM's own pid namespace.
    pub tid: u32,
    /// Generation of the slot: counts its registrations.
    pub generation: u64,
    /// Name of the thread; empty when the thread releases the slot.
    pub name: String,
}

/// See [`Kind::RDD_DESCRIBED`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RddDescribed {
    /// Id of the RDD.
    pub rdd_id: u32,
    /// Partitions of the RDD.
    pub partitions: u64,
    /// Bits of [`smtt_common::event::marker::storage_level`].
    pub storage_level: u64,
    /// Name of the RDD; empty where it has none.
    pub name: String,
    /// Call site in the application that created the RDD.
    pub call_site: String,
    /// Storage level as Spark writes it.
    pub storage_level_text: String,
    /// Ids of the RDD's parents.
    pub parents: Vec<u32>,
    /// Name of the plan node or of the operation that made the RDD; empty where Spark has none.
    pub node: String,
    /// Spark's id of that node, unique in the application; empty where Spark has none.
    pub node_id: String,
}

/// See [`Kind::STAGE_DESCRIBED`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageDescribed {
    /// Id of the stage.
    pub stage_id: u32,
    /// Attempt of the stage.
    pub stage_attempt: u32,
    /// Tasks of the whole stage on all executors.
    pub tasks: u64,
    /// Id of the job that the stage belongs to.
    pub job_id: Option<u32>,
    /// Id of the last RDD that the stage computes.
    pub rdd_id: Option<u32>,
    /// Name of the stage.
    pub name: String,
    /// Id of the SQL execution that submitted the stage.
    pub sql_execution_id: Option<u64>,
    /// Description of the SQL execution; empty where there is none.
    pub sql_description: String,
    /// Description of the job as the application set it; empty where it set none.
    pub job_description: String,
}

impl StageDescribed {
    /// Heap bytes of the texts.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.name.capacity() + self.sql_description.capacity() + self.job_description.capacity()
    }
}

/// See [`Kind::TASK_STARTED`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskStarted {
    /// Id of the task attempt, unique in the application.
    pub task_attempt_id: u64,
    /// Id of the task's stage.
    pub stage_id: u32,
    /// Attempt of the task's stage.
    pub stage_attempt: u32,
    /// Partition that the task computes.
    pub partition: u32,
    /// Number of this attempt among the attempts for the partition.
    pub attempt_number: u32,
    /// Id of the task's job.
    pub job_id: Option<u32>,
}

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The task returned its result.
    Succeeded,
    /// The task failed with an exception.
    Failed,
    /// The task was killed or interrupted.
    Killed,
}

/// See [`Kind::TASK_ENDED`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskEnded {
    /// Id of the task attempt.
    pub task_attempt_id: u64,
    /// Id of the task's stage.
    pub stage_id: u32,
    /// Attempt of the task's stage.
    pub stage_attempt: u32,
    /// How the task ended.
    pub outcome: Outcome,
    /// Peak of the task's execution memory, in bytes.
    pub execution_memory_peak_bytes: u64,
    /// Why the task failed or was killed; empty where it succeeded.
    pub reason: String,
}

/// See [`Kind::TASK_HEAP`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskHeap {
    /// Id of the task attempt.
    pub task_attempt_id: u64,
    /// Bytes that the task's own thread allocated; `None` where the JVM does not say.
    pub allocated_bytes: Option<u64>,
    /// Time of the JVM's collections while the task ran, in milliseconds; `None` where the JVM does not say.
    pub collection_ms: Option<u64>,
}

/// See [`Kind::BLOCK_STORED`] and [`Kind::BLOCK_MOVED`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockFact {
    /// Spark's name of the block.
    pub block_id: String,
    /// Id of the RDD that the block belongs to; `None` for broadcasts and other blocks.
    pub rdd_id: Option<u32>,
    /// Partition that the block holds.
    pub partition: Option<u32>,
    /// Size of the block in bytes, as Spark accounts for it.
    pub size_bytes: u64,
    /// Whether the bytes are on the Java heap.
    pub on_heap: bool,
    /// Whether the block holds serialised bytes instead of objects.
    pub serialized: bool,
    /// The block is an array of objects and the ranges are a sample of them.
    pub sampled: bool,
    /// The block is one array of numbers and the range covers it.
    pub array: bool,
    /// Whether a thread outside of a task stored the block.
    pub without_task: bool,
    /// Whether the fact belongs to a resync and is not new.
    pub reported_again: bool,
    /// Task attempt that stored the block.
    pub task_attempt_id: Option<u64>,
    /// Ranges of the block in all facts together.
    pub range_total: u64,
    /// Index of the first range of this fact.
    pub range_first: u64,
    /// Address and length in bytes of each range.
    pub ranges: Vec<(u64, u64)>,
}

/// Contents of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Contents {
    /// Serialised bytes: the ranges cover them.
    #[default]
    Bytes,
    /// A cached DataFrame: the ranges are the buffers of its columns.
    Columns,
    /// An array of numbers: the range covers it.
    Array,
    /// Objects anywhere on the heap: the ranges are a sample of them.
    Objects,
}

impl Contents {
    /// The name in every output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Columns => "columns",
            Self::Array => "array",
            Self::Objects => "objects",
        }
    }
}

impl BlockFact {
    /// What the block is made of.
    #[must_use]
    pub const fn contents(&self) -> Contents {
        match (self.serialized, self.array, self.sampled, self.range_total) {
            (true, ..) => Contents::Bytes,
            (_, true, ..) => Contents::Array,
            (_, _, true, _) | (.., 0) => Contents::Objects,
            _ => Contents::Columns,
        }
    }
}

/// See [`Kind::BLOCK_READ`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockRead {
    /// Spark's name of the block.
    pub block_id: String,
    /// Id of the block's RDD.
    pub rdd_id: Option<u32>,
    /// Partition that the block holds.
    pub partition: Option<u32>,
    /// Task attempt that reads the block.
    pub task_attempt_id: Option<u64>,
    /// NUMA node of the reading CPU.
    pub node: Option<u32>,
}

/// See [`Kind::BLOCK_REMOVED`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockRemoved {
    /// Spark's name of the block.
    pub block_id: String,
    /// Id of the block's RDD.
    pub rdd_id: Option<u32>,
    /// Partition that the block holds.
    pub partition: Option<u32>,
    /// Activity of the removing thread; `None` where it was idle or unknown.
    pub activity: Option<Activity>,
}

/// See [`Kind::PAGE_ALLOCATED`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageAllocated {
    /// Task attempt that owns the memory.
    pub task_attempt_id: Option<u64>,
    /// Page number in the task's page table; `None` for a grant without a Spark page.
    pub page_number: Option<u64>,
    /// Address of the memory; zero where it has none.
    pub address: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Whether the memory is on the Java heap.
    pub on_heap: bool,
    /// Whether the fact belongs to a resync and is not new.
    pub reported_again: bool,
    /// RDD that was current at the allocation.
    pub rdd_id: Option<u32>,
    /// Stage of the task.
    pub stage_id: Option<u32>,
    /// Class of the consumer that allocated the memory.
    pub consumer: String,
    /// Activity of the allocating thread; `None` where it was idle or unknown.
    pub activity: Option<Activity>,
}

/// See [`Kind::PAGE_FREED`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageFreed {
    /// Task attempt that owned the memory.
    pub task_attempt_id: Option<u64>,
    /// Page number in the task's page table; `None` for a grant without a Spark page.
    pub page_number: Option<u64>,
    /// Address of the memory; zero where it had none.
    pub address: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Whether the memory was on the Java heap.
    pub on_heap: bool,
    /// Class of the consumer that had allocated the memory.
    pub consumer: String,
    /// Activity of the freeing thread; `None` where it was idle or unknown.
    pub activity: Option<Activity>,
}

/// See [`Kind::CONSUMER_USED`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerUsed {
    /// Task attempt that the consumers worked for.
    pub task_attempt_id: Option<u64>,
    /// Number of consumers of this class.
    pub instances: u64,
    /// Sum of the consumers' peaks, in bytes.
    pub peak_bytes: u64,
    /// Bytes of these consumers that Spark counts into the task's `peakExecutionMemory`; `None` where the marker did
    /// not see it.
    pub counted_bytes: Option<u64>,
    /// Whether `counted_bytes` is Spark's estimate of the size of objects.
    pub estimated: bool,
    /// Class of the consumers.
    pub consumer: String,
}

/// See [`Kind::SPAN`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Task attempt that performed the activity.
    pub task_attempt_id: Option<u64>,
    /// Code of [`smtt_common::context::Activity`]; 255 where the code does not fit.
    pub activity: u8,
    /// Start in nanoseconds of the monotonic clock.
    pub start_monotonic_ns: u64,
    /// Duration in nanoseconds.
    pub duration_ns: u64,
    /// RDD that was current.
    pub rdd_id: Option<u32>,
    /// Details of the activity.
    pub name: String,
}

/// See [`Kind::PYTHON_WORKER`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PythonWorker {
    /// Process id of the worker in the JVM's own pid namespace.
    pub pid: u32,
    /// Task that the worker serves; `None` when it returns to the pool.
    pub task_attempt_id: Option<u64>,
    /// Context word for the worker's page faults.
    pub hot: u64,
    /// Stage of the worker's task.
    pub stage_id: Option<u32>,
    /// Attempt of the stage.
    pub stage_attempt: u32,
}

/// Decodes one record.
///
/// # Errors
/// When the kind is unknown, the payload is shorter than its schema, or an id is impossible.
pub fn decode(header: &RecordHeader, payload: &[u8]) -> Result<Event, DecodeError> {
    decode_cut(header, payload).map(|(event, _)| event)
}

/// As [`decode`]; also returns the number of strings that were cut to the limits of the schema. The marker cuts its
/// strings there, so a longer one does not come from a marker.
///
/// # Errors
/// As [`decode`].
pub fn decode_cut(header: &RecordHeader, payload: &[u8]) -> Result<(Event, u32), DecodeError> {
    let kind = Kind(header.kind);
    let stated = usize::try_from(header.payload_bytes).unwrap_or(usize::MAX);
    if payload.len() < stated {
        return Err(DecodeError::Truncated {
            kind,
            field: "payload",
        });
    }
    let payload = &payload[..stated];
    let (mut fact, cut) = match smtt_common::event::marker::schema(kind) {
        Some(schema) => marker::decode(schema, payload)?,
        None => (kernel::decode(kind, payload)?, 0),
    };
    if let Fact::BlockRead(read) = &mut fact {
        // The node comes from the kernel side, not from the marker.
        read.node = header.node_plus_one.checked_sub(1).map(u32::from);
    }
    let event = Event {
        time_ns: header.time_ns,
        executor: header.executor,
        pid: header.pid,
        tid: header.tid,
        uid: header.uid,
        fact,
    };
    Ok((event, cut))
}

#[cfg(test)]
mod tests;
