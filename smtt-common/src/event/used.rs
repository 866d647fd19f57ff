//! What a task attempt used, by the kernel's accounts of the thread that ran it.

/// Number of accounts.
pub const ACCOUNTS: usize = 14;
/// Number of accounts that the kernel itself keeps of each thread: the first ones.
pub const KERNEL_ACCOUNTS: usize = 11;

/// Index of an account: time on a CPU, in nanoseconds.
pub const CPU_NS: usize = 0;
/// Index of an account: time in which the thread could run and had no CPU, in nanoseconds.
pub const CPU_WAIT_NS: usize = 1;
/// Index of an account: time in which the thread waited for a disk, in nanoseconds. It is kept only where the kernel's
/// delay accounting is on.
pub const DISK_WAIT_NS: usize = 2;
/// Index of an account: switches to another thread because this one had to wait.
pub const SWITCHES_VOLUNTARY: usize = 3;
/// Index of an account: switches to another thread although this one could run.
pub const SWITCHES_INVOLUNTARY: usize = 4;
/// Index of an account: page faults without a disk access.
pub const FAULTS_MINOR: usize = 5;
/// Index of an account: page faults with a disk access.
pub const FAULTS_MAJOR: usize = 6;
/// Index of an account: bytes that system calls read from files, pipes and terminals, also from the page cache.
pub const CALL_READ_BYTES: usize = 7;
/// Index of an account: bytes that system calls wrote there.
pub const CALL_WRITTEN_BYTES: usize = 8;
/// Index of an account: bytes that were read from a disk.
pub const DISK_READ_BYTES: usize = 9;
/// Index of an account: bytes of pages that became dirty and go to a disk.
pub const DISK_WRITTEN_BYTES: usize = 10;
/// Index of an account of the kernel side: bytes of the Java heap that the thread touched first, in whole pages.
pub const TOUCHED_HEAP_BYTES: usize = 11;
/// Index of an account of the kernel side: bytes of other memory that the thread touched first, in whole pages.
pub const TOUCHED_NATIVE_BYTES: usize = 12;
/// Index of an account of the kernel side: bytes that the thread touched first, in whole pages, where it is not known which
/// of them are in the Java heap. It takes the place of the other two.
pub const TOUCHED_EITHER_BYTES: usize = 13;

/// Bit of `flags` in [`super::Kind::TASK_BEGUN`]: the task ran before the marker knew it.
pub const BEGUN_LATE: u64 = 1;

coded! {
    /// A thread that works for one task beside the task's own thread.
    Helper: u8 {
        /// Computes a Python worker's input and writes it, up to Spark 3.5 and where Spark pipelines the exchange.
        PYTHON_WRITER = 1 "python writer",
        /// Computes the input of an R worker and writes it.
        R_WRITER = 2 "R writer",
        /// Computes the input of the command of `RDD.pipe` and writes it.
        PIPE_WRITER = 3 "pipe writer",
        /// Computes the input of an SQL script transformation and writes it.
        SCRIPT_WRITER = 4 "script writer",
        /// A Python worker: a process, of which all threads count. The kernel side alone reports it.
        PYTHON_WORKER = 5 "python worker",
    }
}

/// Position in `flags` of [`TaskUsed`] and [`TaskBegin`] of the code of [`Helper`], which has one byte; zero for the task's
/// own thread.
pub const HELPER_SHIFT: u32 = 8;

/// Code of [`Helper`] in `flags`; zero for the task's own thread.
#[must_use]
pub const fn helper(flags: u32) -> Helper {
    Helper((flags >> HELPER_SHIFT) as u8)
}

/// Payload of [`super::Kind::TASK_USED`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskUsed {
    /// Id of the task attempt.
    pub task_attempt_id: u64,
    /// Growth of each account between the two readings; zero where `present` lacks its bit.
    pub accounts: [u64; ACCOUNTS],
    /// Time between the two readings, in nanoseconds.
    pub duration_ns: u64,
    /// A bit for each account that the kernel keeps and both readings have.
    pub present: u32,
    /// [`UNTIL_END`] and its like in the low bits, then [`PARTIAL`]; see [`HELPER_SHIFT`].
    pub flags: u32,
}

/// The second reading is at the task's reported end.
pub const UNTIL_END: u32 = 0;
/// The second reading is at the exit of the thread, before an end was reported.
pub const UNTIL_EXIT: u32 = 1;
/// The second reading is at the begin of the thread's next task, before an end was reported.
pub const UNTIL_NEXT: u32 = 2;
/// Bits of `flags` that state where the second reading is.
pub const UNTIL_MASK: u32 = 3;
/// Bit of `flags`: the first reading is later than the begin of the task, or missing; then no account is present.
pub const PARTIAL: u32 = 4;

/// Bit of `flags` of a worker's accounts: what it did after the task's service and before the next one. It adds to the
/// accounts of the service, and is no further one.
pub const REST: u32 = 8;

/// Payload of [`super::Kind::WORKER_USED`]: what a Python worker used while it served a task.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerUsed {
    /// Sums over the threads of its process. The helper in `flags` is [`Helper::PYTHON_WORKER`].
    pub used: TaskUsed,
    /// Process of the worker, in the initial pid namespace.
    pub pid: u32,
    /// Zero.
    pub reserved: u32,
}

/// Value of the table of Python workers (key: process id in the initial pid namespace): the service that goes on, or the
/// last one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerBegin {
    /// Key of the executor.
    pub executor: u64,
    /// Id of the task attempt that the worker serves, or served last.
    pub task_attempt_id: u64,
    /// The accounts at the begin of the service, or at its end once it has ended.
    pub before: [u64; KERNEL_ACCOUNTS],
    /// Where the next accounts are read to.
    pub after: [u64; KERNEL_ACCOUNTS],
    /// CPU time of threads that had ended at `before` and at `after`. Where it grew, an account that the kernel keeps of
    /// living threads only is not known.
    pub ended_threads_ns: [u64; 2],
    /// Time of `before`, in nanoseconds since boot. Zero while a CPU sends what the worker did since then.
    pub time_ns: u64,
    /// A bit for each account in `before`.
    pub present: u32,
    /// [`PARTIAL`] and [`REST`]: the service has ended.
    pub flags: u32,
}

/// Value of the table of running tasks (key: thread id in the initial pid namespace): the first reading.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskBegin {
    /// Key of the executor.
    pub executor: u64,
    /// Id of the task attempt.
    pub task_attempt_id: u64,
    /// The accounts at the begin.
    pub accounts: [u64; ACCOUNTS],
    /// Time of the reading, in nanoseconds since boot.
    pub time_ns: u64,
    /// As in [`TaskUsed`].
    pub present: u32,
    /// As in [`TaskUsed`].
    pub flags: u32,
}

const _: () = {
    assert!(size_of::<TaskUsed>() == 8 + 8 * ACCOUNTS + 16);
    assert!(size_of::<TaskBegin>() == 16 + 8 * ACCOUNTS + 16);
    assert!(size_of::<WorkerUsed>() == size_of::<TaskUsed>() + 8);
    assert!(size_of::<WorkerBegin>() == 16 + 16 * KERNEL_ACCOUNTS + 32);
};
