//! What the daemon gives the kernel side: settings at load time, and the tables of traced processes.

/// Read-only settings, set when the object is loaded.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Every Nth fault of executors on a CPU is sampled with its address; 0 switches sampling off.
    pub fault_sample_every: u32,
    /// Most fault samples per second and CPU.
    pub fault_samples_per_second: u32,
    /// Facts per second that one executor may send; a user may send [`USER_RATE`] times that.
    pub facts_per_second: u32,
    /// Threads that one executor may register.
    pub threads_per_executor: u32,
    /// Contexts that one executor may have at a time.
    pub contexts_per_executor: u32,
    /// Child processes that one executor may have at a time.
    pub processes_per_executor: u32,
    /// Offset of `tgid` in the kernel's `task_struct`, from its BTF; 0 when not found (no fork tracking then).
    pub task_tgid_offset: u32,
    /// Offset of `pid` in the kernel's `task_struct`.
    pub task_pid_offset: u32,
    /// Offset of `signal` in the kernel's `task_struct`; 0 when not found (a process then counts as gone when its first
    /// thread exits).
    pub task_signal_offset: u32,
    /// Offset of `live` in the kernel's `signal_struct`: how many threads of the process have not exited.
    pub signal_live_offset: u32,
    /// Offset of `pagefault_disabled` in the kernel's `task_struct`; 0 when not found (faults that the kernel does not
    /// serve are then counted too).
    pub task_pagefault_disabled_offset: u32,
    /// Bytes of the ring per second that one executor may use while the ring is busy; a user may use [`USER_RATE`]
    /// times that.
    pub bytes_per_second: u32,
    /// Bytes of the ring that one user may use at once while the ring is busy; one executor may use half of that.
    pub burst_bytes: u32,
    /// Share of a table that one user may hold where no other user holds rows, in thousandths.
    pub user_share_permille: u32,
    /// Rows of the table of contexts, and of the table of page-walk samples.
    pub context_rows: u32,
    /// Rows of the table of threads.
    pub thread_rows: u32,
    /// Rows of the table of processes.
    pub process_rows: u32,
    /// Rows of the table of executors.
    pub executor_rows: u32,
    /// Offset of each account of [`crate::event::used`] in the kernel's `task_struct`; 0 when not found. That of
    /// `DISK_WAIT_NS` is the offset of the pointer `delays`.
    pub account_offsets: [u32; crate::event::used::KERNEL_ACCOUNTS],
    /// Offset of `blkio_delay` in the kernel's `task_delay_info`.
    pub blkio_delay_offset: u32,
    /// Offset of `group_exit_code` in the kernel's `signal_struct`; 0 when not found.
    pub signal_exit_code_offset: u32,
    /// Offset of `maxrss` in the kernel's `signal_struct`; 0 when not found.
    pub signal_maxrss_offset: u32,
    /// Bytes of a page, the unit of `maxrss`.
    pub page_bytes: u32,
    /// Offset of `address` in the kernel's `vm_fault`; 0 when not found.
    pub vm_fault_address_offset: u32,
    /// Offset of `group_leader` in the kernel's `task_struct`; 0 when not found.
    pub task_leader_offset: u32,
    /// Offset of `thread_node` in the kernel's `task_struct`.
    pub task_thread_node_offset: u32,
    /// Offset of `thread_head` in the kernel's `signal_struct`; 0 when not found (Python workers have no accounts then).
    pub signal_threads_offset: u32,
    /// Offset of `stats_lock` in the kernel's `signal_struct`, whose first word counts the changes of what ended threads
    /// had.
    pub signal_stats_lock_offset: u32,
    /// Offset of `thread_pid` in the kernel's `task_struct`; 0 when not found (Python workers in another pid namespace are
    /// then known to the daemon only).
    pub task_thread_pid_offset: u32,
    /// Offset of `level` in the kernel's `pid`.
    pub pid_level_offset: u32,
    /// Offset of `numbers` in the kernel's `pid`.
    pub pid_numbers_offset: u32,
    /// Offset of the number of a pid namespace, which is its inode's, in the kernel's `pid_namespace`.
    pub pid_namespace_number_offset: u32,
    /// Offset in the kernel's `signal_struct` of the sum of each account over ended threads; 0 where there is none.
    pub signal_account_offsets: [u32; crate::event::used::KERNEL_ACCOUNTS],
}

/// Value of the process table (key: process id in the initial pid namespace).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Key of the process's executor.
    pub executor: u64,
    /// See [`ROLE_EXECUTOR`] and [`ROLE_CHILD`].
    pub role: u32,
    /// Page of the child's fault that began last, its low 32 bits: another thread's fault is on another page.
    pub fault_page: u32,
    /// Context of the faults of a Python worker that serves a task. A zero hot word means "no task known".
    pub context: crate::context::SlotHead,
    /// Twice the number of changes of `context`, with [`CHANGING`] during a change, so that a reader on another processor
    /// detects one; and [`CONTESTED`].
    pub context_changes: u64,
    /// Faults of threads without a row that were counted and then ended in a signal. As many of the next are not
    /// counted.
    pub not_served: u64,
    /// As [`Thread::fault_began`], of the child's thread that began a fault last.
    pub fault_began: u64,
    /// Address of the `task_struct` of a child's first thread, with [`ADOPTED`]; zero where it is not known.
    pub leader: u64,
    /// Id of a child in its own pid namespace, where that is another one than the initial one's; else zero.
    pub inner_pid: u32,
    /// Number of that namespace; zero in the initial one.
    pub namespace: u32,
}

/// Key of the table of children in other pid namespaces, whose value is the process id in the initial one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InnerId {
    /// Key of the executor.
    pub executor: u64,
    /// Id of the child in its own pid namespace.
    pub pid: u32,
    /// Number of that namespace: an executor's children may be in several.
    pub namespace: u32,
}

/// Bit of [`Process::leader`]: the daemon found the child, so that a service of it may have begun before.
pub const ADOPTED: u64 = 1;
/// Bit of [`Process::context_changes`]: the context is being changed. Only one writer sets it.
pub const CHANGING: u64 = 1;
/// Bit of [`Process::context_changes`]: a second writer gave up. The context then means no task, until the next change.
pub const CONTESTED: u64 = 1 << 63;

/// The JVM that described itself.
pub const ROLE_EXECUTOR: u32 = 1;
/// A descendant of such a JVM.
pub const ROLE_CHILD: u32 = 2;

/// Value of the thread table (key: thread id in the initial pid namespace).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Address of the thread's slot in its process.
    pub slot_address: u64,
    /// Key of the executor.
    pub executor: u64,
    /// Process of the thread, in the initial pid namespace.
    pub pid: u32,
    /// Twice the number of changes of `head`, and one more during a change, so that a reader on another processor
    /// detects one.
    pub changes: u32,
    /// Context of the pending faults.
    pub head: crate::context::SlotHead,
    /// Faults of the thread in that context which its row in the table of contexts does not have yet. Contexts use
    /// the two places in turn ([`Self::place`]).
    pub pending: [crate::counter::FaultCounters; 2],
    /// 1 when the thread's last fault was counted and then ended in a signal: the next one is not counted. Only the
    /// thread itself writes it.
    pub not_served: u32,
    /// Page of the fault that began last, its low 32 bits. A fault that ends in a signal has no end: the next one is on
    /// another page.
    pub fault_page: u32,
    /// When the running fault began, in nanoseconds of CLOCK_MONOTONIC; zero for none. Only the thread itself writes it,
    /// and only in a window of the daemon's timer of faults.
    pub fault_began: u64,
    /// Reserved addresses of the Java heap; zero bytes where they are not known.
    pub heap: crate::context::Range,
    /// Pages of the Java heap that the thread touched first, and other pages. Only the thread itself writes them.
    pub touched: [u64; 2],
    /// Page of the fault that began last, with [`FIRST_TOUCH`] and what else is true of it; zero where the
    /// page was there.
    pub first_touch: u64,
}

/// Bit of [`Thread::first_touch`]: the page was not present.
pub const FIRST_TOUCH: u64 = 1;
/// Bit of [`Thread::first_touch`]: the access was a write.
pub const FIRST_WRITE: u64 = 2;
/// Bit of [`Thread::first_touch`]: the page was counted as native memory.
pub const FIRST_NATIVE: u64 = 4;

impl Thread {
    /// Index of the place in `pending` that is in use after this number of `changes`.
    #[inline(always)]
    #[must_use]
    pub const fn place(changes: u32) -> usize {
        (changes >> 1 & 1) as usize
    }
}

/// Who runs an executor, as the kernel reported when the kernel side adopted it. No fact of a process changes it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// Id of the process's cgroup in the unified hierarchy; zero where unknown.
    pub cgroup: u64,
    /// Real user, in the initial user namespace.
    pub uid: u32,
    /// User whose share of the tables and of the ring the executor uses: the owner of the range of subordinate ids that
    /// has `uid`, else `uid` itself. The kernel side sets it when it adopts the executor.
    pub share: u32,
}

/// Key of the table of groups: the executors of one user in one cgroup.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group {
    /// See [`Owner::cgroup`].
    pub cgroup: u64,
    /// See [`Owner::share`].
    pub share: u32,
    /// Zero.
    pub reserved: u32,
}

/// Rows of the table of subordinate ids: blocks of ids with the same leading bits.
pub const SHARE_OWNER_ROWS: u32 = 8192;

/// How many times the rate of one executor all executors of one user may use.
pub const USER_RATE: u64 = 2;

/// Rows in the shared tables.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableRows {
    /// Contexts.
    pub contexts: u64,
    /// Threads.
    pub threads: u64,
    /// Child processes.
    pub processes: u64,
    /// Rows of page-walk samples.
    pub walks: u64,
    /// Executors, living and dead.
    pub executors: u64,
}

/// The two token buckets of an executor, or of a user. A bucket is one time: the moment at which it is full again.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buckets {
    /// When the bucket of facts is full, in nanoseconds since boot.
    pub facts_full_ns: u64,
    /// When the bucket of bytes is full, in nanoseconds since boot.
    pub bytes_full_ns: u64,
}

/// Value of the budget table (key: executor key): one executor's use of the shared tables and of the ring.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// Rows of the executor.
    pub rows: TableRows,
    /// Buckets of the executor.
    pub buckets: Buckets,
    /// Who runs the executor.
    pub owner: Owner,
}

/// Value of the table of users (key: [`Owner::share`]): the use of the shared tables and of the ring by all executors of
/// a user.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// Rows of the user.
    pub rows: TableRows,
    /// Buckets of the user.
    pub buckets: Buckets,
}

coded! {
    /// Operations of the kernel side's `tables` program, the only way in which the daemon changes those tables while
    /// they are in use. The program's arguments are the operation and then the words named here.
    TableOperation: u64 {
        /// pid, user id, cgroup id: make it an executor of that owner, as if it had described itself.
        ADOPT_EXECUTOR = 1 "adopt_executor",
        /// pid, executor key: make it a child of that executor.
        ADOPT_CHILD = 2 "adopt_child",
        /// tid, executor key, slot address, start and bytes of the Java heap: give the thread of the executor's process a
        /// slot.
        ADOPT_THREAD = 3 "adopt_thread",
        /// pid, executor key, hot word, task attempt id, stage id, stage attempt: set the task of a Python worker.
        SET_WORKER = 4 "set_worker",
        /// tid, executor key: remove the thread, which has exited. A row of another executor stays; zero means any.
        FORGET_THREAD = 5 "forget_thread",
        /// pid, executor key: remove the process, which has exited. A row of another executor stays.
        FORGET_PROCESS = 6 "forget_process",
        /// executor key, count: this number of its contexts was removed from the table.
        RELEASE_CONTEXTS = 7 "release_contexts",
        /// executor key, count: this number of its rows was removed from the table of page-walk samples.
        RELEASE_WALKS = 8 "release_walks",
        /// executor key: remove the executor and give back what it still holds, after its other rows were removed.
        FORGET_EXECUTOR = 9 "forget_executor",
        /// tid: move the thread's pending faults to the table of contexts.
        FLUSH_THREAD = 10 "flush_thread",
    }
}

/// Key of an executor: the process id and the second since boot at which it was first seen, so that a reused process
/// id gives another key.
#[must_use]
pub const fn executor_key(pid: u32, boot_seconds: u64) -> u64 {
    (boot_seconds << 32) | pid as u64
}

/// The process id in an executor key.
#[must_use]
pub const fn executor_pid(key: u64) -> u32 {
    key as u32
}

const _: () = {
    assert!(size_of::<Settings>() == 212);
    assert!(size_of::<Process>() == 80);
    assert!(size_of::<Thread>() == 216);
    assert!(size_of::<Budget>() == 72);
    assert!(size_of::<Owner>() == 16);
    assert!(size_of::<InnerId>() == 16);
    assert!(size_of::<Group>() == 16);
    assert!(size_of::<TableRows>() == 40);
    assert!(size_of::<User>() == 56);
};
