//! What the daemon gives the kernel side: settings at load time, and the tables of traced processes.

/// Read-only settings, set when the object is loaded.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Every Nth fault of executors on a CPU is sampled with its address; 0 switches sampling off.
    pub fault_sample_every: u32,
    /// Most fault samples per second and CPU.
    pub fault_samples_per_second: u32,
    /// Facts per second that one executor may send.
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
    /// Zero.
    pub reserved: u32,
}

/// Value of the process table (key: process id in the initial pid namespace).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Key of the process's executor.
    pub executor: u64,
    /// See [`ROLE_EXECUTOR`] and [`ROLE_CHILD`].
    pub role: u32,
    /// Zero.
    pub reserved: u32,
    /// Context of the faults of a Python worker that serves a task. A zero hot word means "no task known".
    pub context: crate::context::SlotHead,
}

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
}

/// Who runs an executor, as the kernel said when the kernel side adopted it. No fact of a process changes it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// Id of the process's cgroup in the unified hierarchy; zero where unknown.
    pub cgroup: u64,
    /// Effective user, in the initial user namespace.
    pub uid: u32,
    /// Zero.
    pub reserved: u32,
}

/// Value of the budget table (key: executor key): one executor's use of the shared tables.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// Contexts in the table.
    pub contexts: u64,
    /// Threads in the table.
    pub threads: u64,
    /// Child processes in the table.
    pub processes: u64,
    /// Rows of page-walk samples in their table.
    pub walks: u64,
    /// Second (since boot) that `facts` counts.
    pub second: u64,
    /// Facts in that second.
    pub facts: u64,
}

coded! {
    /// Operations of the kernel side's `tables` program, the only way in which the daemon changes those tables while
    /// they are in use. The program's arguments are the operation and then the words named here.
    TableOperation: u64 {
        /// pid: make it an executor, as if it had described itself.
        ADOPT_EXECUTOR = 1 "adopt_executor",
        /// pid, executor key: make it a child of that executor.
        ADOPT_CHILD = 2 "adopt_child",
        /// tid, executor key, slot address: give the thread a slot.
        ADOPT_THREAD = 3 "adopt_thread",
        /// pid, executor key, hot word, task attempt id, stage id, stage attempt: set the task of a Python worker.
        SET_WORKER = 4 "set_worker",
        /// tid: remove the thread, which has exited.
        FORGET_THREAD = 5 "forget_thread",
        /// pid: remove the process, which has exited.
        FORGET_PROCESS = 6 "forget_process",
        /// executor key, count: this number of its contexts was removed from the table.
        RELEASE_CONTEXTS = 7 "release_contexts",
        /// executor key, count: this number of its rows was removed from the table of page-walk samples.
        RELEASE_WALKS = 8 "release_walks",
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
    assert!(size_of::<Settings>() == 48);
    assert!(size_of::<Process>() == 40);
    assert!(size_of::<Thread>() == 16);
    assert!(size_of::<Budget>() == 48);
    assert!(size_of::<Owner>() == 16);
};
