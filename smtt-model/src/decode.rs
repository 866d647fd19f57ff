//! Bytes -> [`Event`]: total, without panics, for bytes that a foreign process wrote.
//!
//! The form of a marker's fact is [`smtt_common::event::marker::MARKER_FACTS`]; records of the kernel side are
//! fixed structs. A payload that is too short, or holds a number that cannot be an id, is an error with a name
//! for the loss ledger; a payload that is longer than known is read as far as it is known.

#[cfg(any(test, feature = "encode"))]
pub mod encode;
mod fields;
mod kernel;
mod marker;

use serde::{Deserialize, Serialize};
use smtt_common::context::Activity;
use smtt_common::counter::ContextKey;
use smtt_common::event::{Kind, RecordHeader};

/// One decoded record: when, by whom, what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds since boot.
    pub time_ns: u64,
    /// Key of the executor, zero where the kernel side does not know it.
    pub executor: u64,
    /// Process id in the initial pid namespace.
    pub pid: u32,
    /// Thread id in the initial pid namespace.
    pub tid: u32,
    /// What happened.
    pub fact: Fact,
}

/// What a record says. Text has no control characters left; ids that were "none" are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// An executor says who it is.
    ExecutorDescribed(Box<ExecutorDescribed>),
    /// A thread got a slot.
    ThreadRegistered(ThreadFact),
    /// A thread gave its slot back.
    ThreadGone(ThreadFact),
    /// Name, level and lineage of an RDD.
    RddDescribed(Box<RddDescribed>),
    /// Name and size of a stage.
    StageDescribed(StageDescribed),
    /// A task started.
    TaskStarted(TaskStarted),
    /// A task ended.
    TaskEnded(TaskEnded),
    /// A block is in memory.
    BlockStored(Box<BlockFact>),
    /// A cached block is being read.
    BlockRead(BlockRead),
    /// The collector moved a block's bytes.
    BlockMoved(Box<BlockFact>),
    /// A block left memory.
    BlockRemoved(BlockRemoved),
    /// Execution memory was allocated.
    PageAllocated(PageAllocated),
    /// Execution memory was freed.
    PageFreed(PageFreed),
    /// What one class of consumers used of a task's execution memory.
    ConsumerUsed(ConsumerUsed),
    /// A rare activity ended.
    Span(Span),
    /// A Python worker serves a task from now on, or no longer.
    PythonWorker(PythonWorker),
    /// All addresses on the Java heap are known again after a collection.
    AddressesTold {
        /// The last collection before that.
        collection: u64,
        /// Facts with new addresses that were told since the last of these facts, or since the last resync.
        moved_facts: u64,
    },
    /// The thread that tells everything again has told so many facts up to now.
    ResyncTold {
        /// The request that is being served.
        request: u64,
        /// Facts since the first of these, which has 0.
        facts: u64,
    },
    /// Everything alive has been told again.
    ResyncDone {
        /// The request that was served.
        request: u64,
    },
    /// A process of an executor forked.
    ProcessForked {
        /// The new process, in the initial pid namespace.
        child_pid: u32,
    },
    /// A process of an executor exited, or replaced its image.
    ProcessGone {
        /// Whether it replaced its image, else it exited.
        exec: bool,
        /// Whether it was the executor's JVM itself, else a child.
        is_executor: bool,
    },
    /// A sampled page fault with its address.
    FaultSample {
        /// Address that was touched.
        address: u64,
        /// Whether it was a write; `None` where the hook cannot tell.
        write: Option<bool>,
        /// The context that it was counted for; `None` where unattributed.
        context: Option<ContextKey>,
    },
    /// A sampled page walk with the address of its data.
    WalkSample {
        /// Address that was accessed.
        address: u64,
        /// Whether it was a write.
        write: Option<bool>,
        /// The context that it was counted for; `None` where unattributed.
        context: Option<ContextKey>,
    },
}

/// See [`Kind::EXECUTOR_DESCRIBED`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutorDescribed {
    /// Address of the slot file's header in the JVM.
    pub slots_address: u64,
    /// Slots in it.
    pub slot_count: u64,
    /// Start of the JVM, milliseconds since 1970.
    pub start_unix_ms: u64,
    /// Largest Java heap in bytes.
    pub heap_max_bytes: u64,
    /// Hooks of the marker that found no target.
    pub missing_hooks: u64,
    /// Room for later.
    pub flags: u64,
    /// Spark's application id, as the executor claims it.
    pub application_id: String,
    /// The application's name.
    pub application_name: String,
    /// Spark's executor id, as the executor claims it.
    pub executor_id: String,
    /// Host as Spark names it.
    pub host: String,
    /// Version of Spark.
    pub spark_version: String,
    /// Version of Java.
    pub java_version: String,
    /// The missing hooks by name, joined with commas.
    pub missing_hook_names: String,
}

/// See [`Kind::THREAD_REGISTERED`] and [`Kind::THREAD_GONE`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadFact {
    /// Address of the slot.
    pub slot_address: u64,
    /// Thread id in the JVM's own pid namespace.
    pub tid: u32,
    /// Which registration of the slot.
    pub generation: u64,
    /// Name of the thread; empty when it goes.
    pub name: String,
}

/// See [`Kind::RDD_DESCRIBED`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RddDescribed {
    /// Id of the RDD.
    pub rdd_id: u32,
    /// Its partitions.
    pub partitions: u64,
    /// Bits of [`smtt_common::event::marker::storage_level`].
    pub storage_level: u64,
    /// Its name, empty where it has none.
    pub name: String,
    /// Where in the application it was made.
    pub call_site: String,
    /// The storage level as Spark writes it.
    pub storage_level_text: String,
    /// Ids of its parents.
    pub parents: Vec<u32>,
}

/// See [`Kind::STAGE_DESCRIBED`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageDescribed {
    /// Id of the stage.
    pub stage_id: u32,
    /// Its attempt.
    pub stage_attempt: u32,
    /// Tasks of the whole stage, on all executors.
    pub tasks: u64,
    /// Its job.
    pub job_id: Option<u32>,
    /// Its last RDD.
    pub rdd_id: Option<u32>,
    /// Its name.
    pub name: String,
}

/// See [`Kind::TASK_STARTED`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskStarted {
    /// Id of the attempt, unique in the application.
    pub task_attempt_id: u64,
    /// Its stage.
    pub stage_id: u32,
    /// Attempt of the stage.
    pub stage_attempt: u32,
    /// Partition that it computes.
    pub partition: u32,
    /// Number of the attempt for this partition.
    pub attempt_number: u32,
    /// Its job.
    pub job_id: Option<u32>,
}

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It returned its result.
    Succeeded,
    /// It threw.
    Failed,
    /// It was killed or interrupted.
    Killed,
}

/// See [`Kind::TASK_ENDED`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskEnded {
    /// Id of the attempt.
    pub task_attempt_id: u64,
    /// Its stage.
    pub stage_id: u32,
    /// Attempt of the stage.
    pub stage_attempt: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// Most execution memory that it held at a time, in bytes.
    pub execution_memory_peak_bytes: u64,
    /// Why it failed or was killed; empty when it succeeded.
    pub reason: String,
}

/// See [`Kind::BLOCK_STORED`] and [`Kind::BLOCK_MOVED`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockFact {
    /// Spark's name of the block.
    pub block_id: String,
    /// RDD whose partition it holds; `None` for broadcasts and others.
    pub rdd_id: Option<u32>,
    /// Partition that it holds.
    pub partition: Option<u32>,
    /// Size in bytes as Spark accounts for it.
    pub size_bytes: u64,
    /// The bytes are on the Java heap.
    pub on_heap: bool,
    /// Serialised bytes, else objects.
    pub serialized: bool,
    /// An array of objects; the ranges are some of them.
    pub sampled: bool,
    /// One array of numbers; its range is all of them.
    pub array: bool,
    /// Stored by a thread without a task.
    pub without_task: bool,
    /// Told again for a resync, not new.
    pub told_again: bool,
    /// Task attempt that stored it.
    pub task_attempt_id: Option<u64>,
    /// Ranges that the block has in all facts together.
    pub range_total: u64,
    /// Index of the first range of this fact.
    pub range_first: u64,
    /// Address and length in bytes of each range.
    pub ranges: Vec<(u64, u64)>,
}

/// What a block is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Serialised bytes: the ranges are all of them.
    Bytes,
    /// A cached DataFrame: the ranges are the buffers of its columns.
    Columns,
    /// An array of numbers: the range is all of them.
    Array,
    /// Objects, wherever they lie: the ranges are a sample of them.
    Objects,
}

impl Contents {
    /// Its name in every output.
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
    /// Its RDD.
    pub rdd_id: Option<u32>,
    /// Its partition.
    pub partition: Option<u32>,
    /// Task attempt that reads it.
    pub task_attempt_id: Option<u64>,
    /// NUMA node of the CPU that it is read from.
    pub node: Option<u32>,
}

/// See [`Kind::BLOCK_REMOVED`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockRemoved {
    /// Spark's name of the block.
    pub block_id: String,
    /// Its RDD.
    pub rdd_id: Option<u32>,
    /// Its partition.
    pub partition: Option<u32>,
    /// What the thread was doing; `None` where it was idle or is not known.
    pub activity: Option<Activity>,
}

/// See [`Kind::PAGE_ALLOCATED`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageAllocated {
    /// Task attempt that owns it.
    pub task_attempt_id: Option<u64>,
    /// Spark's number in the task's page table; `None` for a grant without a page.
    pub page_number: Option<u64>,
    /// Where it is, zero where it has no address.
    pub address: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// On the Java heap.
    pub on_heap: bool,
    /// Told again for a resync, not new.
    pub told_again: bool,
    /// RDD that was current.
    pub rdd_id: Option<u32>,
    /// Stage of the task.
    pub stage_id: Option<u32>,
    /// Class that asked for it.
    pub consumer: String,
    /// What the thread was doing; `None` where it was idle or is not known.
    pub activity: Option<Activity>,
}

/// See [`Kind::PAGE_FREED`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageFreed {
    /// Task attempt that owns it.
    pub task_attempt_id: Option<u64>,
    /// Spark's number in the task's page table; `None` for a grant without a page.
    pub page_number: Option<u64>,
    /// Where it is, zero where it has no address.
    pub address: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// On the Java heap.
    pub on_heap: bool,
    /// Class that asked for it.
    pub consumer: String,
    /// What the thread was doing; `None` where it was idle or is not known.
    pub activity: Option<Activity>,
}

/// See [`Kind::CONSUMER_USED`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerUsed {
    /// Task attempt that they worked for.
    pub task_attempt_id: Option<u64>,
    /// How many there were.
    pub instances: u64,
    /// The most that each of them held, added up, in bytes.
    pub peak_bytes: u64,
    /// What Spark counts of them into the task's `peakExecutionMemory`, in bytes; `None` where it was not seen.
    pub counted_bytes: Option<u64>,
    /// What is counted is Spark's estimate of the size of objects.
    pub estimated: bool,
    /// Their class.
    pub consumer: String,
}

/// See [`Kind::SPAN`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Task attempt that did it.
    pub task_attempt_id: Option<u64>,
    /// Code of [`smtt_common::context::Activity`]; 255 where it does not fit.
    pub activity: u8,
    /// Start, nanoseconds of the monotonic clock.
    pub start_monotonic_ns: u64,
    /// Duration in nanoseconds.
    pub duration_ns: u64,
    /// RDD that was current.
    pub rdd_id: Option<u32>,
    /// What exactly.
    pub name: String,
}

/// See [`Kind::PYTHON_WORKER`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PythonWorker {
    /// Process id in the JVM's own pid namespace.
    pub pid: u32,
    /// Task that it serves; `None` when it goes back to the pool.
    pub task_attempt_id: Option<u64>,
    /// Hot word of its faults.
    pub hot: u64,
    /// Stage of the task.
    pub stage_id: Option<u32>,
    /// Attempt of the stage.
    pub stage_attempt: u32,
}

/// Why a record could not be decoded. Each variant is a cause in the loss ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A kind that this version does not know.
    #[error("record of unknown kind {0}")]
    UnknownKind(u16),
    /// The payload ends too early.
    #[error("{} record ends before its {field}", .kind.name().unwrap_or("unknown"))]
    Truncated {
        /// Kind of the record.
        kind: Kind,
        /// First field that is not there in full.
        field: &'static str,
    },
    /// A number that cannot be what its field says.
    #[error("{} record has an impossible {field}", .kind.name().unwrap_or("unknown"))]
    Invalid {
        /// Kind of the record.
        kind: Kind,
        /// The field.
        field: &'static str,
    },
}

impl DecodeError {
    /// Name of the cause in the loss ledger.
    #[must_use]
    pub const fn cause(&self) -> &'static str {
        match self {
            Self::UnknownKind(_) => "unknown_kind",
            Self::Truncated { .. } => "truncated",
            Self::Invalid { .. } => "invalid",
        }
    }
}

/// Decodes one record.
///
/// # Errors
/// When the kind is unknown, the payload is shorter than its form, or an id is impossible.
pub fn decode(header: &RecordHeader, payload: &[u8]) -> Result<Event, DecodeError> {
    let kind = Kind(header.kind);
    let stated = usize::try_from(header.payload_bytes).unwrap_or(usize::MAX);
    if payload.len() < stated {
        return Err(DecodeError::Truncated {
            kind,
            field: "payload",
        });
    }
    let payload = &payload[..stated];
    let mut fact = match smtt_common::event::marker::schema(kind) {
        Some(schema) => marker::decode(schema, payload)?,
        None => kernel::decode(kind, payload)?,
    };
    if let Fact::BlockRead(read) = &mut fact {
        // The kernel side's word, not the marker's.
        read.node = header.node_plus_one.checked_sub(1).map(u32::from);
    }
    Ok(Event {
        time_ns: header.time_ns,
        executor: header.executor,
        pid: header.pid,
        tid: header.tid,
        fact,
    })
}

#[cfg(test)]
mod tests;
