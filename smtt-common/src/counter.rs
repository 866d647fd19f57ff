//! The kernel side's counters: per context, per executor, and of what it dropped.

/// Key of the context table: the context in which the hardware event happened.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContextKey {
    /// See [`crate::settings::executor_key`].
    pub executor: u64,
    /// Task attempt id, or all ones for a thread that works on an RDD without a task.
    pub task_attempt_id: u64,
    /// Stage id, or all ones.
    pub stage_id: u32,
    /// RDD id plus one; zero for "no RDD".
    pub rdd_plus_one: u32,
    /// Attempt of the stage, its low 16 bits.
    pub stage_attempt: u16,
    /// See [`crate::context::Activity`].
    pub activity: u8,
    /// [`crate::context::Access`] in the low 4 bits, [`crate::context::Region`] in the high 4.
    pub access_region: u8,
    /// Zero.
    pub reserved: u32,
}

/// Page faults by access. `read + write + unknown` is the number of faults, which includes `major`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// Faults of loads and instruction fetches.
    pub read: u64,
    /// Faults of stores.
    pub write: u64,
    /// Faults whose hook cannot distinguish reads from writes.
    pub unknown: u64,
    /// Faults that the kernel counted as major.
    pub major: u64,
    /// Faults whose time was measured: those that began in a window (of the daemon's timer).
    pub timed: u64,
    /// Sum of the measured times, in nanoseconds.
    pub timed_ns: u64,
    /// Sum of their squares, in units of [`TIMED_SQUARE_UNIT_NS`] squared.
    pub timed_squares: u64,
}

/// Unit of the times whose squares are added up: a time of a second has a square of 3.9e15.
pub const TIMED_SQUARE_UNIT_NS: u64 = 16;

/// Value of the context table.
pub type ContextCounters = FaultCounters;

/// Number of [`Unattributed`] classes.
pub const UNATTRIBUTED_CLASSES: usize = 8;

coded! {
    /// Why a fault of an executor has no context.
    Unattributed: u8 {
        /// A thread without a slot that fits no other class.
        OTHER = 0 "other_thread",
        /// A thread of the collector, by its name.
        GC = 1 "gc_thread",
        /// A compiler thread, by its name.
        JIT = 2 "jit_thread",
        /// Another thread of the virtual machine itself, by its name.
        VM = 3 "vm_thread",
        /// A registered thread that does no Spark work now.
        IDLE = 4 "idle",
        /// A child process (a Python worker and its like) with no known task.
        CHILD = 5 "child_process",
        /// The slot could not be read.
        SLOT_UNREADABLE = 6 "slot_unreadable",
        /// The context table or the executor's share of it is full.
        TABLE_FULL = 7 "context_table_full",
    }
}

/// Value of the executor table, one copy per CPU. Sum over CPUs and:
/// all faults of the executor = attributed + sum of `unattributed`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecutorCounters {
    /// Faults that were added to a context. The kernel side leaves it zero: the daemon sums the contexts.
    pub attributed: FaultCounters,
    /// Faults without a context, by [`Unattributed`].
    pub unattributed: [FaultCounters; UNATTRIBUTED_CLASSES],
    /// Facts of the marker that reached the kernel side.
    pub facts_seen: u64,
    /// Facts of a newer marker whose entry points the daemon does not know, a part of `facts_seen`. They go no further.
    pub facts_unknown: u64,
    /// Facts refused because the executor or its user exceeded its rate.
    pub facts_rate_limited: u64,
    /// Facts refused for an absurd length.
    pub facts_too_long: u64,
    /// Facts whose bytes could not be read.
    pub facts_unreadable: u64,
    /// Facts lost because the ring was full.
    pub facts_ring_full: u64,
    /// Thread registrations refused because the executor or the table was full.
    pub threads_refused: u64,
    /// Fault samples due.
    pub samples_seen: u64,
    /// Fault samples lost because the ring was full.
    pub samples_ring_full: u64,
    /// Fault samples dropped by the rate limit.
    pub samples_rate_limited: u64,
    /// Records of the kernel side itself (fork, exit, tasks) that were due.
    pub records_seen: u64,
    /// Records of the kernel side itself lost because the ring was full.
    pub records_ring_full: u64,
    /// Records of the kernel side itself refused because the executor or its user exceeded its rate.
    pub records_rate_limited: u64,
}

/// Number of [`Counter`] values.
pub const COUNTERS: usize = 7;

coded! {
    /// Index of the kernel side's own counters, one copy per CPU; they belong to no executor.
    Counter: u32 {
        /// Records of the kernel side itself (fork, exit, tasks) about executors that the daemon has removed.
        RECORDS_WITHOUT_EXECUTOR = 0 "records_without_executor",
        /// Samples of page walks and cycles in executors that found no row.
        WALK_SAMPLES_REFUSED = 1 "walk_samples_refused",
        /// Facts of processes that have not described themselves.
        FACTS_UNKNOWN_PROCESS = 2 "facts_unknown_process",
        /// Executors refused because the table was full.
        EXECUTORS_REFUSED = 3 "executors_refused",
        /// Child processes refused because the table was full.
        PROCESSES_REFUSED = 4 "processes_refused",
        /// Map updates refused by the kernel because the table was busy.
        MAP_BUSY = 5 "map_busy",
        /// Records (of any kind) put on the ring.
        RECORDS_SUBMITTED = 6 "records_submitted",
    }
}

const _: () = {
    assert!(size_of::<ContextKey>() == 32);
    assert!(size_of::<FaultCounters>() == 56);
    assert!(size_of::<ExecutorCounters>() == 56 + 8 * 56 + 13 * 8);
};
