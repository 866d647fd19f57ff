//! The marker's facts as data: the JNI entry point, words and strings of each fact, in their order.
//!
//! The native library, the kernel side's probe table, the decoder and the tests all take names and order from here;
//! the marker's `Contract.java` and `FactForm.java` are generated from here by `cargo xtask tidy`.

use super::{Kind, PAYLOAD_MAX};

/// Form of one fact.
#[derive(Clone, Copy, Debug)]
pub struct Schema {
    /// Kind of the record.
    pub kind: Kind,
    /// Name of the native method of the marker's `Native` class; the exported symbol is [`SYMBOL_PREFIX`] and this.
    pub entry: &'static str,
    /// 64-bit words, in order.
    pub words: &'static [&'static str],
    /// Whether `range_count` (the last word) pairs of address and length follow the words.
    pub ranges: bool,
    /// Strings, in order.
    pub strings: &'static [&'static str],
    /// Bytes of UTF-8 that each string has at most; the marker cuts longer ones at a character boundary.
    pub string_limits: &'static [usize],
}

/// Entry points that libraries of earlier markers lack; such libraries are probed without them.
pub const LATER_KINDS: &[Kind] = &[
    Kind::RESYNC_TOLD,
    Kind::TASK_BEGUN,
    Kind::TASK_HEAP,
    Kind::TASK_HEAP_SO_FAR,
    Kind::RESOURCE_EXHAUSTED,
    Kind::MEMORY_TOLD,
    Kind::PEAKS_TOLD,
    Kind::TASK_METRICS,
    Kind::HELPER_BEGUN,
    Kind::HELPER_ENDED,
    Kind::SHUFFLE_FETCHED,
    Kind::JOB_DESCRIBED,
    Kind::COLLECTOR_PAUSED,
];

/// Kinds whose last strings earlier markers do not send, with the number of these strings. They decode as empty.
pub const LATER_STRINGS: &[(Kind, usize)] = &[
    (Kind::EXECUTOR_DESCRIBED, 4),
    (Kind::RDD_DESCRIBED, 2),
    (Kind::STAGE_DESCRIBED, 6),
];

/// Kind of facts whose entry point this version does not know: a newer marker tells them. The kernel side counts them.
pub const UNKNOWN_FACT: Kind = Kind(u16::MAX);

/// Prefix of the exported name of every entry point.
pub const SYMBOL_PREFIX: &str = "Java_io_smtt_marker_Native_";
/// Exported word of the native library: the [`crate::context::VERSION`] of the slot files that it makes. A library
/// without it is of an earlier marker and makes those of [`LAYOUT_BEFORE`].
pub const LAYOUT_SYMBOL: &str = "SMTT_SLOT_LAYOUT";
/// Layout of the slot files of libraries that do not state it.
pub const LAYOUT_BEFORE: u32 = 1;
/// File name of the native library.
pub const LIBRARY_NAME: &str = "libsmtt_marker.so";

/// Bit of `flags` in block facts: the bytes are on the Java heap and may move.
pub const BLOCK_ON_HEAP: u64 = 1;
/// Bit of `flags` in block facts: serialised bytes, else objects.
pub const BLOCK_SERIALIZED: u64 = 2;
/// Bit of `flags` in block facts: stored by a thread without a task (a replica, a promotion).
pub const BLOCK_WITHOUT_TASK: u64 = 4;
/// Bit of `flags` in block and page facts: reported for a resync, not new.
pub const REPORTED_AGAIN: u64 = 8;
/// Bit of `flags` in block facts: the block is an array of objects, which has no contiguous bytes. Each range is one of
/// its elements, the whole object with its header and nothing of what it refers to: an evenly spread sample.
/// `range_total` is how many were taken; 0 where none could be.
pub const BLOCK_SAMPLED: u64 = 16;
/// Bit of `flags` in block facts: the block is one array of numbers, which is its only range.
pub const BLOCK_ARRAY: u64 = 32;
/// Bit of `flags` in page facts: the page is on the Java heap.
pub const PAGE_ON_HEAP: u64 = 1;
/// Position of the thread's activity code in `flags` of page facts; the code is zero in a resync.
pub const PAGE_ACTIVITY_SHIFT: u32 = 8;
/// Bit of `flags` in facts about consumers: what is counted is Spark's estimate of the size of objects.
pub const CONSUMER_ESTIMATED: u64 = 1;
/// `source` of an exhausted resource: the JVM reported it to its tool interface.
pub const EXHAUSTED_BY_JVM: u64 = 1;
/// `source` of an exhausted resource: an error that no code caught, with which Spark ends the process.
pub const EXHAUSTED_UNCAUGHT: u64 = 2;
/// Bytes of the text of an exhausted resource.
pub const EXHAUSTED_TEXT_MAX: usize = 200;
/// Most address ranges in one fact; further ranges follow in further facts.
pub const RANGES_PER_FACT: usize = 96;
/// Most address ranges of one block that the marker tracks; the daemon keeps no more.
pub const RANGES_PER_BLOCK: usize = 4096;
/// Bytes of a block's name.
const BLOCK_ID_MAX: usize = 300;
/// Bytes of the name of a consumer's class.
const CONSUMER_NAME_MAX: usize = 200;
/// `address` of an execution memory grant that has no page (byte counts of spillable collections).
pub const NO_ADDRESS: u64 = 0;

/// Outcome word of a task's end.
pub mod outcome {
    /// The task returned its result.
    pub const SUCCESS: u64 = 0;
    /// The task threw an exception.
    pub const FAILED: u64 = 1;
    /// The task was killed or interrupted.
    pub const KILLED: u64 = 2;
}

/// Bits of the `storage_level` word.
pub mod storage_level {
    /// Uses disk.
    pub const DISK: u64 = 1;
    /// Uses memory.
    pub const MEMORY: u64 = 2;
    /// Outside the Java heap.
    pub const OFF_HEAP: u64 = 4;
    /// Kept as objects.
    pub const DESERIALIZED: u64 = 8;
    /// Replication count, from this bit on.
    pub const REPLICATION_SHIFT: u32 = 8;
}

/// Every fact that the marker reports.
pub const MARKER_FACTS: &[Schema] = &[
    Schema {
        kind: Kind::EXECUTOR_DESCRIBED,
        entry: "executorDescribed",
        // slots_address: where the header is mapped; missing_hooks: how many of the marker's hooks found no target;
        // flags: the lowest byte is `HeapAddresses`.
        words: &[
            "slots_address",
            "slot_count",
            "start_unix_ms",
            "heap_max_bytes",
            "missing_hooks",
            "flags",
        ],
        ranges: false,
        strings: &[
            "application_id",
            "application_name",
            "executor_id",
            "host",
            "spark_version",
            "java_version",
            "missing_hook_names",
            "application_attempt_id",
            "queue",
            "kubernetes_namespace",
            "kubernetes_pod",
        ],
        string_limits: &[200, 250, 100, 200, 60, 60, 700, 60, 90, 63, 128],
    },
    Schema {
        kind: Kind::THREAD_REGISTERED,
        entry: "threadRegistered",
        words: &["slot_address", "tid", "generation"],
        ranges: false,
        strings: &["thread_name"],
        string_limits: &[128],
    },
    Schema {
        kind: Kind::THREAD_GONE,
        entry: "threadGone",
        words: &["slot_address", "tid", "generation"],
        ranges: false,
        strings: &[],
        string_limits: &[],
    },
    Schema {
        kind: Kind::RDD_DESCRIBED,
        entry: "rddDescribed",
        words: &["rdd_id", "partitions", "storage_level"],
        ranges: false,
        // parents: ids joined with commas. node and node_id: name and id of Spark's innermost scope around the RDD, empty
        // where there is none.
        strings: &[
            "name",
            "call_site",
            "storage_level_text",
            "parents",
            "node",
            "node_id",
        ],
        string_limits: &[300, 400, 100, 600, 300, 40],
    },
    Schema {
        kind: Kind::STAGE_DESCRIBED,
        entry: "stageDescribed",
        words: &["stage_id", "stage_attempt", "tasks", "job_id", "rdd_id"],
        ranges: false,
        // sql_execution_id: decimal digits, as the times. All but the name are empty where Spark has none.
        strings: &[
            "name",
            "sql_execution_id",
            "sql_description",
            "job_description",
            "submitted_unix_ms",
            "completed_unix_ms",
            "failure",
        ],
        string_limits: &[400, 20, 300, 300, 20, 20, 300],
    },
    Schema {
        kind: Kind::JOB_DESCRIBED,
        entry: "jobDescribed",
        // By the driver's clock. ended_unix_ms is -1 while the job runs, sql_execution_id where no SQL execution submitted
        // it.
        words: &[
            "job_id",
            "started_unix_ms",
            "ended_unix_ms",
            "sql_execution_id",
        ],
        ranges: false,
        // failure: empty unless the job failed.
        strings: &["failure"],
        string_limits: &[300],
    },
    Schema {
        kind: Kind::TASK_STARTED,
        entry: "taskStarted",
        words: &[
            "task_attempt_id",
            "stage_id",
            "stage_attempt",
            "partition",
            "attempt_number",
            "job_id",
        ],
        ranges: false,
        strings: &[],
        string_limits: &[],
    },
    Schema {
        kind: Kind::TASK_ENDED,
        entry: "taskEnded",
        words: &[
            "task_attempt_id",
            "stage_id",
            "stage_attempt",
            "outcome",
            "execution_memory_peak_bytes",
        ],
        ranges: false,
        strings: &["reason"],
        string_limits: &[500],
    },
    Schema {
        kind: Kind::BLOCK_STORED,
        entry: "blockStored",
        // A block with more ranges than fit comes as several facts: range_first says where this one goes on.
        words: &[
            "rdd_id",
            "partition",
            "size_bytes",
            "flags",
            "task_attempt_id",
            "range_total",
            "range_first",
            "range_count",
        ],
        ranges: true,
        strings: &["block_id"],
        string_limits: &[BLOCK_ID_MAX],
    },
    Schema {
        kind: Kind::BLOCK_READ,
        entry: "blockRead",
        words: &["rdd_id", "partition", "task_attempt_id"],
        ranges: false,
        strings: &["block_id"],
        string_limits: &[200],
    },
    Schema {
        kind: Kind::BLOCK_MOVED,
        entry: "blockMoved",
        words: &[
            "rdd_id",
            "partition",
            "size_bytes",
            "flags",
            "task_attempt_id",
            "range_total",
            "range_first",
            "range_count",
        ],
        ranges: true,
        strings: &["block_id"],
        string_limits: &[BLOCK_ID_MAX],
    },
    Schema {
        kind: Kind::BLOCK_REMOVED,
        entry: "blockRemoved",
        words: &["rdd_id", "partition"],
        ranges: false,
        // activity: the code of what the thread was doing, in decimal digits.
        strings: &["block_id", "activity"],
        string_limits: &[BLOCK_ID_MAX, 3],
    },
    Schema {
        kind: Kind::PAGE_ALLOCATED,
        entry: "pageAllocated",
        // page_number: Spark's number in the task's page table (made unique for managers without a task), or -1 for a
        // grant without a page. With REPORTED_AGAIN a page may have another address than before, and a grant is the
        // sum that its consumer holds now.
        words: &[
            "task_attempt_id",
            "page_number",
            "address",
            "size_bytes",
            "flags",
            "rdd_id",
            "stage_id",
        ],
        ranges: false,
        strings: &["consumer"],
        string_limits: &[CONSUMER_NAME_MAX],
    },
    Schema {
        kind: Kind::PAGE_FREED,
        entry: "pageFreed",
        words: &[
            "task_attempt_id",
            "page_number",
            "address",
            "size_bytes",
            "flags",
        ],
        ranges: false,
        strings: &["consumer"],
        string_limits: &[CONSUMER_NAME_MAX],
    },
    Schema {
        kind: Kind::CONSUMER_USED,
        entry: "consumerUsed",
        // peak_bytes: the most that each instance of the class held, added up. counted_bytes: what Spark counts of
        // them into the task's peakExecutionMemory, or -1 where part of the task's life was not seen.
        words: &[
            "task_attempt_id",
            "instances",
            "peak_bytes",
            "counted_bytes",
            "flags",
        ],
        ranges: false,
        strings: &["consumer"],
        string_limits: &[CONSUMER_NAME_MAX],
    },
    Schema {
        kind: Kind::SPAN,
        entry: "span",
        // Times are CLOCK_MONOTONIC, as System.nanoTime gives them on Linux.
        words: &[
            "task_attempt_id",
            "activity",
            "start_monotonic_ns",
            "duration_ns",
            "rdd_id",
        ],
        ranges: false,
        strings: &["name"],
        string_limits: &[100],
    },
    Schema {
        kind: Kind::PYTHON_WORKER,
        entry: "pythonWorker",
        // pid in the JVM's pid namespace; task_attempt_id -1 when the worker goes back to the pool.
        words: &["pid", "task_attempt_id", "hot", "stage_id", "stage_attempt"],
        ranges: false,
        strings: &[],
        string_limits: &[],
    },
    Schema {
        kind: Kind::RESYNC_DONE,
        entry: "resyncDone",
        words: &["request"],
        ranges: false,
        strings: &[],
        string_limits: &[],
    },
    Schema {
        kind: Kind::ADDRESSES_TOLD,
        entry: "addressesTold",
        // collection: number of ended collections at the look-up of the addresses, with none begun since; moved_facts:
        // facts with new addresses since the last fact of this kind or the last resync; heap_addresses: as in the
        // header.
        words: &["collection", "moved_facts", "heap_addresses"],
        ranges: false,
        strings: &[],
        string_limits: &[],
    },
    Schema {
        kind: Kind::RESYNC_TOLD,
        entry: "resyncTold",
        // Reported only by the thread that reports the snapshot: first with 0, then, before RESYNC_DONE, with the
        // number of facts of any kind that the thread has reported in between. A reader that counts the facts of that
        // thread detects losses.
        words: &["request", "facts"],
        ranges: false,
        strings: &[],
        string_limits: &[],
    },
    Schema {
        kind: Kind::TASK_BEGUN,
        entry: "taskBegun",
        // Only from the thread that runs the task. flags: see `BEGUN_LATE`.
        words: &["task_attempt_id", "flags"],
        ranges: false,
        strings: &[],
        string_limits: &[],
    },
    Schema {
        kind: Kind::TASK_HEAP,
        entry: "taskHeap",
        // allocated_bytes: by the thread that ran the task; collection_ms: by all collections of the JVM meanwhile; -1
        // where the JVM does not report it.
        words: &["task_attempt_id", "allocated_bytes", "collection_ms"],
        ranges: false,
        strings: &[],
        string_limits: &[],
    },
    Schema {
        kind: Kind::TASK_HEAP_SO_FAR,
        entry: "taskHeapSoFar",
        // As in TASK_HEAP, from another thread while the task runs.
        words: &["task_attempt_id", "allocated_bytes"],
        ranges: false,
        strings: &[],
        string_limits: &[],
    },
    Schema {
        kind: Kind::RESOURCE_EXHAUSTED,
        entry: "resourceExhausted",
        // source: see `EXHAUSTED_BY_JVM`. flags: those of JVMTI's event ResourceExhausted, zero for an error.
        words: &["source", "flags"],
        ranges: false,
        // What the JVM reports, or the error's class and message.
        strings: &["description"],
        string_limits: &[EXHAUSTED_TEXT_MAX],
    },
    Schema {
        kind: Kind::MEMORY_TOLD,
        entry: "memoryTold",
        // Each pair is a figure of `super::memory::MemoryFigure`.
        words: &["flags", "figures"],
        ranges: true,
        strings: &[],
        string_limits: &[],
    },
    Schema {
        kind: Kind::PEAKS_TOLD,
        entry: "peaksTold",
        // stage_id: -1 for the executor's whole life. Each pair is a peak of `super::memory::PeakMetric`.
        words: &["stage_id", "stage_attempt", "figures"],
        ranges: true,
        strings: &[],
        string_limits: &[],
    },
    Schema {
        kind: Kind::TASK_METRICS,
        entry: "taskMetrics",
        // Spark's `TaskMetrics` as the executor reports them to its driver; bytes that were read are remote and local
        // ones together.
        words: &[
            "task_attempt_id",
            "input_bytes",
            "input_records",
            "output_bytes",
            "output_records",
            "shuffle_read_bytes",
            "shuffle_read_records",
            "shuffle_write_bytes",
            "shuffle_write_records",
            "memory_spilled_bytes",
            "disk_spilled_bytes",
            // -1 where Spark had not read its clocks yet when the marker reported the end.
            "cpu_ns",
            "deserialize_cpu_ns",
            "run_ms",
            "collection_ms",
        ],
        ranges: false,
        strings: &[],
        string_limits: &[],
    },
    Schema {
        kind: Kind::HELPER_BEGUN,
        entry: "helperBegun",
        // Only from the helper's own thread. helper: a code of `super::used::Helper`.
        words: &["task_attempt_id", "helper"],
        ranges: false,
        strings: &[],
        string_limits: &[],
    },
    Schema {
        kind: Kind::HELPER_ENDED,
        entry: "helperEnded",
        // From the helper's own thread at its end. allocated_bytes: -1 where the JVM does not report it.
        words: &["task_attempt_id", "helper", "allocated_bytes"],
        ranges: false,
        strings: &[],
        string_limits: &[],
    },
    Schema {
        kind: Kind::SHUFFLE_FETCHED,
        entry: "shuffleFetched",
        // From any thread, when the last block has arrived or failed; from the task's end where that comes first. requests
        // is 1, or the number of requests that this fact sums up: then it has neither times nor texts.
        words: &[
            "task_attempt_id",
            "start_monotonic_ns",
            "duration_ns",
            "requests",
            "blocks",
            "arrived_blocks",
            "failed_blocks",
            "arrived_bytes",
        ],
        ranges: false,
        // Host and port, and Spark's id, of the executor or service that was asked.
        strings: &["address", "executor_id"],
        string_limits: &[200, 100],
    },
    Schema {
        kind: Kind::COLLECTOR_PAUSED,
        entry: "collectorPaused",
        // number: of the pause, from 0 on. age_ns: time from its end to this report. duration_ns: -1 where this is no pause:
        // then those before that number, and that time, are reported as far as they will be, and each one from there on will be.
        words: &["number", "age_ns", "duration_ns"],
        ranges: false,
        strings: &[],
        string_limits: &[],
    },
];

/// Bytes of a fact whose ranges and strings are all as long as they may be.
const fn longest(fact: &Schema) -> usize {
    let mut bytes = 8 * fact.words.len();
    if fact.ranges {
        bytes += 16 * RANGES_PER_FACT;
    }
    let mut at = 0;
    while at < fact.string_limits.len() {
        bytes += 2 + fact.string_limits[at];
        at += 1;
    }
    bytes
}

const _: () = {
    let mut at = 0;
    while at < MARKER_FACTS.len() {
        let fact = &MARKER_FACTS[at];
        assert!(
            fact.strings.len() == fact.string_limits.len(),
            "every string has a limit"
        );
        assert!(longest(fact) <= PAYLOAD_MAX, "a fact may be too long");
        at += 1;
    }
};

/// The form of a kind's payload, or `None` where the kind is not a marker's.
#[must_use]
pub fn schema(kind: Kind) -> Option<&'static Schema> {
    MARKER_FACTS.iter().find(|schema| schema.kind == kind)
}
