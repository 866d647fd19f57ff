//! Facts on the ring buffer: one header, then a payload whose form depends on the kind.
//!
//! All facts of the marker have payloads of one simple form: the `words` of [`Schema`] as
//! little-endian 64-bit integers, then (where `ranges` is set) that many address and length pairs, then each
//! of the `strings` as a 16-bit length and UTF-8 bytes. A reader takes what it knows and ignores what follows,
//! so a newer marker may append words only by a new kind and strings at the end.
//!
//! Records made by the kernel side are fixed structs, one file each below.

pub mod death;
pub mod exit;
pub mod fault;
pub mod marker;
pub mod memory;
pub mod used;

pub use marker::{MARKER_FACTS, Schema};

/// Longest payload of a marker's fact; longer ones are refused by the kernel side and counted.
pub const PAYLOAD_MAX: usize = 2048;
/// Payload bytes that the kernel side reserves in the ring, smallest that fits.
pub const PAYLOAD_CLASSES: [usize; 3] = [128, 512, PAYLOAD_MAX];

/// What every record on the ring starts with.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordHeader {
    /// See [`Kind`].
    pub kind: u16,
    /// NUMA node of the CPU that the thread ran on, plus one; zero where it is not known.
    pub node_plus_one: u16,
    /// Bytes of payload that follow this header and are filled in.
    pub payload_bytes: u32,
    /// Nanoseconds since boot, including suspend (`CLOCK_BOOTTIME`).
    pub time_ns: u64,
    /// Key of the executor (see [`crate::settings::executor_key`]), or zero where it is not known.
    pub executor: u64,
    /// Process id, in the initial pid namespace.
    pub pid: u32,
    /// Thread id, in the initial pid namespace.
    pub tid: u32,
    /// User of the executor's process, in the initial user namespace (see [`crate::settings::Owner`]).
    pub uid: u32,
    /// Zero.
    pub reserved: u32,
}

coded! {
    /// Kind of a record on the ring.
    Kind: u16 {
        /// Application and id of an executor.
        EXECUTOR_DESCRIBED = 1 "executor_described",
        /// A thread got a slot.
        THREAD_REGISTERED = 2 "thread_registered",
        /// A thread gave its slot back.
        THREAD_GONE = 3 "thread_gone",
        /// Name, level and lineage of an RDD.
        RDD_DESCRIBED = 4 "rdd_described",
        /// Name and size of a stage.
        STAGE_DESCRIBED = 5 "stage_described",
        /// A task started.
        TASK_STARTED = 6 "task_started",
        /// A task ended, with its outcome.
        TASK_ENDED = 7 "task_ended",
        /// A block is in memory.
        BLOCK_STORED = 8 "block_stored",
        /// A cached block is being read.
        BLOCK_READ = 9 "block_read",
        /// The collector moved a block's bytes.
        BLOCK_MOVED = 10 "block_moved",
        /// A block left memory.
        BLOCK_REMOVED = 11 "block_removed",
        /// Execution memory was allocated.
        PAGE_ALLOCATED = 12 "page_allocated",
        /// Execution memory was freed.
        PAGE_FREED = 13 "page_freed",
        /// A rare activity ended.
        SPAN = 14 "span",
        /// A Python worker process serves a task from now on, or no longer.
        PYTHON_WORKER = 15 "python_worker",
        /// The snapshot of everything that is alive is complete.
        RESYNC_DONE = 16 "resync_done",
        /// What one class of consumers used of a task's execution memory, at the task's end.
        CONSUMER_USED = 17 "consumer_used",
        /// All addresses on the Java heap are known again after a collection.
        ADDRESSES_TOLD = 18 "addresses_told",
        /// Number of facts that the snapshot has reported so far.
        RESYNC_TOLD = 19 "resync_told",
        /// A thread begins a task: the fact comes from that thread, once, and no resync repeats it.
        TASK_BEGUN = 20 "task_begun",
        /// What a task used of the Java heap, from the thread that ran it, just before the task's end.
        TASK_HEAP = 21 "task_heap",
        /// What a running task has allocated on the Java heap so far.
        TASK_HEAP_SO_FAR = 22 "task_heap_so_far",
        /// The JVM ran out of something, or an error ends it, from the thread to which that happens.
        RESOURCE_EXHAUSTED = 24 "resource_exhausted",
        /// Where the memory of an executor's JVM is.
        MEMORY_TOLD = 26 "memory_told",
        /// Peaks of an executor, of its whole life or while a stage ran.
        PEAKS_TOLD = 27 "peaks_told",
        /// A thread begins to help a task: the fact comes from that thread, once.
        HELPER_BEGUN = 28 "helper_begun",
        /// A helper's heap, from the helper itself when it ends, or from another thread.
        HELPER_ENDED = 29 "helper_ended",
        /// A request for shuffle blocks of another executor ended, or several that are one sum.
        SHUFFLE_FETCHED = 30 "shuffle_fetched",
        /// A job of the application: its begin and, once it has ended, its end.
        JOB_DESCRIBED = 31 "job_described",
        /// The application stood still for the collector, or from when on the marker reports that.
        COLLECTOR_PAUSED = 49 "collector_paused",
        /// What a task read, wrote, exchanged and spilled by Spark's own metrics, just before the task's end.
        TASK_METRICS = 48 "task_metrics",
        /// A process of an executor forked.
        PROCESS_FORKED = 32 "process_forked",
        /// A process of an executor exited, or replaced its image.
        PROCESS_GONE = 33 "process_gone",
        /// A sampled page fault with its address.
        FAULT_SAMPLE = 34 "fault_sample",
        /// A sampled page walk with the address of its data; the payload is that of a fault sample.
        WALK_SAMPLE = 35 "walk_sample",
        /// What a task attempt used, by the kernel's accounts.
        TASK_USED = 40 "task_used",
        /// A signal that ends a process was sent to a process of an executor.
        SIGNAL_SENT = 41 "signal_sent",
        /// The kernel's OOM killer chose a process of an executor.
        OOM_KILLED = 42 "oom_killed",
        /// What a Python worker used while it served a task, by the kernel's accounts of its threads.
        WORKER_USED = 43 "worker_used",
    }
}

const _: () = {
    assert!(size_of::<RecordHeader>() == 40);
    assert!(core::mem::offset_of!(RecordHeader, time_ns) == 8);
    assert!(core::mem::offset_of!(RecordHeader, pid) == 24);
    assert!(core::mem::offset_of!(RecordHeader, uid) == 32);
};
