//! Every table of the kernel side. All that a hook changes are preallocated, because a hook that runs inside a page fault
//! must not allocate. The sizes here are only defaults; the daemon sets them from its configuration.

use core::arch::asm;

use aya_ebpf::{
    Global,
    macros::map,
    maps::{Array, HashMap, LpmTrie, PerCpuArray, PerCpuHashMap, RingBuf},
};
use smtt_common::{
    counter::{COUNTERS as COUNTER_COUNT, ContextCounters, ContextKey, Counter, ExecutorCounters},
    event::used::{ACCOUNTS, KERNEL_ACCOUNTS, TaskBegin, WorkerBegin},
    page_walk::WalkCounters,
    settings::{
        Buckets, Budget, Group, InnerId, Process, SHARE_OWNER_ROWS, Settings, TableRows, Thread,
        User,
    },
};

/// Facts and samples on their way to the daemon. A task is a few facts of 160 bytes; 4 MiB holds the burst of
/// twenty thousand while the daemon is not scheduled.
#[map]
pub static RING: RingBuf = RingBuf::with_byte_size(4 << 20, 0);

/// Process id -> executor and role. The first look-up of every hook: small, so that it stays in the cache.
#[map]
pub static PROCESSES: HashMap<u32, Process> = HashMap::with_max_entries(4096, 0);

/// Executor and id in its pid namespace -> process id of a child: the marker reports a worker by the id that it sees. Only a
/// child with a row in [`PROCESSES`] has one.
#[map]
pub static INNER_IDS: HashMap<InnerId, u32> = HashMap::with_max_entries(4096, 0);

/// Thread id -> slot. Executors have some hundred threads with a slot.
#[map]
pub static THREADS: HashMap<u32, Thread> = HashMap::with_max_entries(16_384, 0);

/// Where a new row of [`THREADS`] is made, because the stack has no room for it.
#[map]
pub static NEW_THREAD: PerCpuArray<Thread> = PerCpuArray::with_max_entries(1, 0);

/// Thread id -> accounts of the thread when it began the task that it runs. Only a thread with a row in [`THREADS`] has
/// one, so the limits of that table hold here too.
#[map]
pub static TASKS: HashMap<u32, TaskBegin> = HashMap::with_max_entries(16_384, 0);

/// Process id -> accounts of a Python worker since it began to serve its task. Only a child with a row in [`PROCESSES`] has
/// one, so the limits of that table hold here too.
#[map]
pub static WORKERS: HashMap<u32, WorkerBegin> = HashMap::with_max_entries(4096, 0);

/// Context -> its faults. One row per live task, RDD and activity; the daemon removes quiet rows.
#[map]
pub static CONTEXTS: HashMap<ContextKey, ContextCounters> = HashMap::with_max_entries(65_536, 0);

/// Context, or the reason why there is none -> sampled page walks and cycles. Separate from [`CONTEXTS`], so that a
/// page fault touches only its own counters, and almost nothing is allocated where no event can be sampled.
#[map]
pub static WALKS: HashMap<ContextKey, WalkCounters> = HashMap::with_max_entries(1, 0);

/// All samples of each event, of all processes.
#[map]
pub static WALK_TOTALS: PerCpuArray<WalkCounters> = PerCpuArray::with_max_entries(1, 0);

/// Count of each open event at its last sample, by the event's number.
#[map]
pub static WALK_LAST: PerCpuArray<u64> =
    PerCpuArray::with_max_entries(smtt_common::page_walk::WALK_EVENTS as u32, 0);

/// Executor -> its totals, one copy per CPU because every fault without a context adds to it.
#[map]
pub static EXECUTORS: PerCpuHashMap<u64, ExecutorCounters> = PerCpuHashMap::with_max_entries(64, 0);

/// Executor -> its use of the tables above. Shared by all CPUs because a limit is for the whole machine; only facts
/// and new contexts touch it, not every fault.
#[map]
pub static BUDGETS: HashMap<u64, Budget> = HashMap::with_max_entries(64, 0);

/// User, by [`smtt_common::settings::Owner::share`] -> use of the tables above by all of the user's executors. A row lives as long as an executor of the user.
#[map]
pub static USERS: HashMap<u32, User> = HashMap::with_max_entries(64, 0);

/// User and cgroup -> number of executors. A row lives as long as such an executor.
#[map]
pub static GROUPS: HashMap<Group, u64> = HashMap::with_max_entries(64, 0);

/// Leading bits of a user id in network byte order -> the user to whom `/etc/subuid` gives these ids. The daemon fills it;
/// it is read only when an executor is adopted.
#[map]
pub static SHARE_OWNERS: LpmTrie<u32, u32> = LpmTrie::with_max_entries(SHARE_OWNER_ROWS, 0);

/// Rows in use of the tables above, one row.
#[map]
pub static TOTALS: Array<TableRows> = Array::with_max_entries(1, 0);

/// The kernel side's own counters, which belong to no executor.
#[map]
static COUNTERS: PerCpuArray<u64> = PerCpuArray::with_max_entries(COUNTER_COUNT as u32, 0);

/// Rows of [`FILTER`].
const FILTER_ROWS: usize = 4096;

/// Number of rows of [`PROCESSES`] by the low bits of the process id. The first check of every hook of page faults: a
/// process whose number is zero belongs to no executor. Process ids are dense, so the low bits are a good hash. A
/// variable and not a table, because its address is a constant of the program: a check is one load.
#[unsafe(no_mangle)]
static mut FILTER: [u64; FILTER_ROWS] = [0; FILTER_ROWS];

#[inline(always)]
fn filter(pid: u32) -> *mut u64 {
    let row = pid as usize & (FILTER_ROWS - 1);
    // SAFETY: the row is in bounds.
    unsafe { (&raw mut FILTER).cast::<u64>().add(row) }
}

/// Whether a process may have a row in [`PROCESSES`].
#[inline(always)]
pub fn may_be_traced(pid: u32) -> bool {
    // SAFETY: the pointer is valid for the program's life; other programs write whole words.
    unsafe { core::ptr::read_volatile(filter(pid)) != 0 }
}

/// Announces a row of [`PROCESSES`], before it is added.
#[inline(always)]
pub fn announce(pid: u32) {
    add(filter(pid), 1);
}

/// Takes back an announcement, after the row was removed.
#[inline(always)]
pub fn withdraw(pid: u32) {
    take(filter(pid), 1);
}

/// State of the sampling of faults.
#[repr(C)]
pub struct Sampling {
    /// Faults of executors on this CPU since the last sample.
    pub faults: u64,
    /// Second since boot that `samples` counts.
    pub second: u64,
    /// Samples in that second.
    pub samples: u64,
}

/// The sampled stream's state, one row: per CPU because its limit is per CPU.
#[map]
pub static SAMPLING: PerCpuArray<Sampling> = PerCpuArray::with_max_entries(1, 0);

/// When the current window of the timer of faults began, in nanoseconds of CLOCK_MONOTONIC: the daemon writes it.
#[map]
pub static FAULT_WINDOW: Array<u64> = Array::with_max_entries(1, 0);

/// Since when first touches of pages are counted, in nanoseconds since boot: the daemon writes it. Zero: they are not.
#[map]
pub static TOUCHES_SINCE: Array<u64> = Array::with_max_entries(1, 0);

/// Settings that the daemon writes before the object is loaded.
#[unsafe(no_mangle)]
static SETTINGS: Global<Settings> = Global::new(Settings {
    fault_sample_every: 0,
    fault_samples_per_second: 0,
    facts_per_second: 0,
    threads_per_executor: 0,
    contexts_per_executor: 0,
    processes_per_executor: 0,
    task_tgid_offset: 0,
    task_pid_offset: 0,
    task_signal_offset: 0,
    signal_live_offset: 0,
    task_pagefault_disabled_offset: 0,
    bytes_per_second: 0,
    burst_bytes: 0,
    user_share_permille: 0,
    context_rows: 0,
    thread_rows: 0,
    process_rows: 0,
    executor_rows: 0,
    account_offsets: [0; KERNEL_ACCOUNTS],
    blkio_delay_offset: 0,
    signal_exit_code_offset: 0,
    signal_maxrss_offset: 0,
    page_bytes: 0,
    vm_fault_address_offset: 0,
    task_leader_offset: 0,
    task_thread_node_offset: 0,
    signal_threads_offset: 0,
    signal_stats_lock_offset: 0,
    task_thread_pid_offset: 0,
    pid_level_offset: 0,
    pid_numbers_offset: 0,
    pid_namespace_number_offset: 0,
    signal_account_offsets: [0; KERNEL_ACCOUNTS],
});

/// New rows start from these: constants in memory, because a row of 360 bytes does not fit well on a stack of 512.
pub static NO_CONTEXT_COUNTERS: ContextCounters = ContextCounters {
    read: 0,
    write: 0,
    unknown: 0,
    major: 0,
    timed: 0,
    timed_ns: 0,
    timed_squares: 0,
};
/// See [`NO_CONTEXT_COUNTERS`].
pub static NO_TASK: TaskBegin = TaskBegin {
    executor: 0,
    task_attempt_id: 0,
    accounts: [0; ACCOUNTS],
    time_ns: 0,
    present: 0,
    flags: 0,
};
/// See [`NO_CONTEXT_COUNTERS`].
pub static NO_WORKER: WorkerBegin = WorkerBegin {
    executor: 0,
    task_attempt_id: 0,
    before: [0; KERNEL_ACCOUNTS],
    after: [0; KERNEL_ACCOUNTS],
    ended_threads_ns: [0; 2],
    time_ns: 0,
    present: 0,
    flags: 0,
};
/// See [`NO_CONTEXT_COUNTERS`].
pub static NO_WALKS: WalkCounters = WalkCounters {
    events: [0; smtt_common::page_walk::WALK_CHANNELS],
    samples: [0; smtt_common::page_walk::WALK_CHANNELS],
};
/// See [`NO_CONTEXT_COUNTERS`].
pub static NO_USER: User = User {
    rows: TableRows {
        contexts: 0,
        threads: 0,
        processes: 0,
        walks: 0,
        executors: 0,
    },
    buckets: Buckets {
        facts_full_ns: 0,
        bytes_full_ns: 0,
    },
};
/// See [`NO_CONTEXT_COUNTERS`].
pub static NO_EXECUTOR_COUNTERS: ExecutorCounters = ExecutorCounters {
    attributed: NO_CONTEXT_COUNTERS,
    unattributed: [NO_CONTEXT_COUNTERS; smtt_common::counter::UNATTRIBUTED_CLASSES],
    facts_seen: 0,
    facts_unknown: 0,
    facts_rate_limited: 0,
    facts_too_long: 0,
    facts_unreadable: 0,
    facts_ring_full: 0,
    threads_refused: 0,
    samples_seen: 0,
    samples_ring_full: 0,
    samples_rate_limited: 0,
    records_seen: 0,
    records_ring_full: 0,
    records_rate_limited: 0,
};

/// One word of the settings. Each is read by itself: the whole struct would be copied to the stack.
macro_rules! setting {
    ($field:ident) => {
        $crate::maps::settings_word(core::mem::offset_of!(
            smtt_common::settings::Settings,
            $field
        ))
    };
}
pub(crate) use setting;

/// Offset of an account in the kernel's `task_struct`, zero where the kernel has none.
#[inline(always)]
pub fn account_offset(account: usize) -> u32 {
    settings_word(core::mem::offset_of!(Settings, account_offsets) + size_of::<u32>() * account)
}

/// Offset in the kernel's `signal_struct` of the sum of an account over ended threads, zero where the kernel has none.
#[inline(always)]
pub fn ended_account_offset(account: usize) -> u32 {
    settings_word(
        core::mem::offset_of!(Settings, signal_account_offsets) + size_of::<u32>() * account,
    )
}

/// The word of the settings at that offset; see [`setting`].
#[inline(always)]
pub fn settings_word(offset: usize) -> u32 {
    let settings: *const u8 = core::ptr::from_ref(&SETTINGS).cast();
    // SAFETY: the callers pass offsets of the struct's own words, all of which are 32 bits wide. Volatile
    // because the daemon writes them before the object is loaded, which the compiler cannot know.
    unsafe { core::ptr::read_volatile(settings.add(offset).cast::<u32>()) }
}

/// Adds to a counter that several CPUs, or a program and the one it was preempted by, may write at once.
///
/// As an instruction of its own because this target has no compare-and-swap, so that the library offers no atomic
/// additions on it.
#[inline(always)]
pub fn add(counter: *mut u64, count: u64) {
    // SAFETY: the callers pass pointers into map values, aligned to 8 and valid for the whole program run.
    unsafe {
        asm!("lock *(u64 *)({counter} + 0) += {count}", counter = in(reg) counter, count = in(reg) count);
    }
}

/// Subtracts from such a counter.
#[inline(always)]
pub fn take(counter: *mut u64, count: u64) {
    add(counter, count.wrapping_neg());
}

/// Subtracts from such a counter, which does not stay below zero. Returns what it gave.
#[inline(always)]
pub fn take_at_most(counter: *mut u64, count: u64) -> u64 {
    // Another CPU may just have taken too much, and not yet given it back.
    let before = fetch_add(counter, count.wrapping_neg()) as i64;
    if before >= count as i64 {
        return count;
    }
    let given = if before > 0 { before as u64 } else { 0 };
    add(counter, count - given);
    given
}

/// Adds one to such a counter and returns the old value.
#[inline(always)]
pub fn next(counter: *mut u64) -> u64 {
    fetch_add(counter, 1)
}

/// Adds to such a counter and returns the old value.
#[inline(always)]
pub fn fetch_add(counter: *mut u64, count: u64) -> u64 {
    let mut value = count;
    // SAFETY: as for `add`.
    unsafe {
        asm!(
            "{value} = atomic_fetch_add((u64 *)({counter} + 0), {value})",
            counter = in(reg) counter,
            value = inout(reg) value,
        );
    }
    value
}

/// Sets bits of such a value and returns the old one.
#[inline(always)]
pub fn fetch_or(value: *mut u64, bits: u64) -> u64 {
    let mut old = bits;
    // SAFETY: as for `add`.
    unsafe {
        asm!(
            "{old} = atomic_fetch_or((u64 *)({value} + 0), {old})",
            value = in(reg) value,
            old = inout(reg) old,
        );
    }
    old
}

/// Sets such a counter to zero and returns the old value.
#[inline(always)]
pub fn take_all(counter: *mut u64) -> u64 {
    let mut value = 0_u64;
    // SAFETY: as for `add`.
    unsafe {
        asm!(
            "{value} = xchg_64({counter} + 0, {value})",
            counter = in(reg) counter,
            value = inout(reg) value,
        );
    }
    value
}

/// Sets such a value to `new` if it is `expected`, in one step. Returns the old value.
#[inline(always)]
pub fn compare_exchange(value: *mut u64, expected: u64, new: u64) -> u64 {
    let found: u64;
    // SAFETY: as for `add`. The instruction compares with r0 and leaves the old value there.
    unsafe {
        asm!(
            "r0 = cmpxchg_64({value} + 0, r0, {new})",
            value = in(reg) value,
            new = in(reg) new,
            inout("r0") expected => found,
        );
    }
    found
}

/// Adds one and returns true if the value was below the limit; otherwise takes the addition back.
#[inline(always)]
pub fn add_below(counter: *mut u64, limit: u64) -> bool {
    if next(counter) < limit {
        return true;
    }
    take(counter, 1);
    false
}

/// Adds one to a counter of the kernel side itself.
#[inline(always)]
pub fn count(counter: Counter) {
    if let Some(value) = COUNTERS.get_ptr_mut(counter.0) {
        add(value, 1);
    }
}

/// Value of one of the kernel side's own counters on this CPU.
#[inline(always)]
pub fn counted(counter: Counter) -> u64 {
    COUNTERS.get(counter.0).copied().unwrap_or(0)
}
