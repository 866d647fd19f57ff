//! Adds and removes executors, processes and threads. All changes of those tables are here, so that an executor's use
//! of them is counted in one place.

use core::{ffi::c_void, ptr};

use aya_ebpf::{
    bindings::{BPF_ANY, BPF_NOEXIST},
    helpers::{
        bpf_get_current_uid_gid, bpf_ktime_get_boot_ns,
        generated::{bpf_get_current_cgroup_id, bpf_probe_read_kernel},
    },
};
use smtt_common::{
    context::{Range, SlotHead},
    counter::Counter,
    settings::{
        Buckets, Budget, CHANGING, CONTESTED, InnerId, Owner, Process, ROLE_CHILD, ROLE_EXECUTOR,
        TableRows, executor_key, executor_pid,
    },
};

use crate::{
    accounts,
    maps::{
        BUDGETS, EXECUTORS, INNER_IDS, NEW_THREAD, NO_EXECUTOR_COUNTERS, PROCESSES, THREADS, add,
        announce, compare_exchange, count, fetch_add, fetch_or, setting, take_all, withdraw,
    },
    pending,
    shares::{
        Table, claim, claim_executor, know_cgroup, release, release_executor, release_of_user,
        share_of,
    },
    workers,
};

/// Nanoseconds in a second.
pub const SECOND_NS: u64 = 1_000_000_000;

/// Seconds since boot.
#[inline(always)]
pub fn boot_second() -> u64 {
    // SAFETY: the helper has no precondition.
    unsafe { bpf_ktime_get_boot_ns() / SECOND_NS }
}

/// The row of a process, copied.
#[inline(always)]
pub fn process(pid: u32) -> Option<Process> {
    // SAFETY: copied at once; a row that is deleted meanwhile may be reused, which misattributes one event.
    unsafe { PROCESSES.get(pid).copied() }
}

/// The real user and the cgroup of the running process.
#[inline(always)]
pub fn running_owner() -> Owner {
    Owner {
        // SAFETY: the helper has no precondition.
        cgroup: unsafe { bpf_get_current_cgroup_id() },
        uid: bpf_get_current_uid_gid() as u32,
        share: 0,
    }
}

/// Makes a process an executor and returns its key. An existing executor keeps its key and its owner, whose cgroup may
/// become known.
///
/// Several threads of the process and the daemon may do this at the same time. One of them makes the row; the others
/// take back what they made and return the key in that row.
#[inline(always)]
pub fn adopt_executor(pid: u32, owner: &Owner) -> Option<u64> {
    if let Some(known) = process(pid)
        && known.role == ROLE_EXECUTOR
    {
        know_cgroup(known.executor, owner.cgroup);
        return Some(known.executor);
    }
    let owner = Owner {
        share: share_of(owner.uid),
        ..*owner
    };
    if !claim_executor(&owner) {
        count(Counter::EXECUTORS_REFUSED);
        return None;
    }
    let second = boot_second();
    let mut key = executor_key(pid, second);
    let mut made = EXECUTORS.insert(key, &NO_EXECUTOR_COUNTERS, u64::from(BPF_NOEXIST));
    if made == Err(EEXIST) {
        // The same process was an executor earlier in this second, and replaced its image.
        key = executor_key(pid, second + 1);
        made = EXECUTORS.insert(key, &NO_EXECUTOR_COUNTERS, u64::from(BPF_NOEXIST));
    }
    if made.is_err() {
        release_executor(&owner, 1);
        count(Counter::EXECUTORS_REFUSED);
        return None;
    }
    let budget = Budget {
        rows: TableRows {
            contexts: 0,
            threads: 0,
            processes: 0,
            walks: 0,
            executors: 1,
        },
        buckets: Buckets {
            facts_full_ns: 0,
            bytes_full_ns: 0,
        },
        owner,
    };
    let placed = if BUDGETS.insert(key, &budget, u64::from(BPF_ANY)).is_ok() {
        place(pid, key)
    } else {
        0
    };
    if placed == key {
        return Some(key);
    }
    let _ = BUDGETS.remove(key);
    let _ = EXECUTORS.remove(key);
    release_executor(&owner, 1);
    if placed == 0 {
        count(Counter::EXECUTORS_REFUSED);
        return None;
    }
    Some(placed)
}

/// Makes the row of a process that of executor `key`. Returns the key that the row then has, zero where there is no
/// room. A plain number: the compiler may leave one half of an `Option` undefined, and the verifier rejects a read of it.
#[inline(always)]
fn place(pid: u32, key: u64) -> u64 {
    let row = Process {
        executor: key,
        role: ROLE_EXECUTOR,
        fault_page: 0,
        context: NO_HEAD,
        context_changes: 0,
        not_served: 0,
        fault_began: 0,
        leader: 0,
        inner_pid: 0,
        namespace: 0,
    };
    match insert_process(pid, &row) {
        Ok(()) => key,
        Err(EEXIST) => promote(pid, key),
        Err(_) => 0,
    }
}

/// Makes a child of an executor an executor, as in a local cluster, in its row: the process has a row at any moment.
/// Returns as [`place`].
#[inline(always)]
fn promote(pid: u32, key: u64) -> u64 {
    let Some(row) = PROCESSES.get_ptr_mut(pid) else {
        return 0;
    };
    // SAFETY: the row was just looked up, and this process has not ended. Volatile, so that the compiler keeps the order
    // of the stores.
    unsafe {
        let holder = &raw mut (*row).executor;
        let parent = ptr::read_volatile(holder);
        // The row is being removed.
        if parent == 0 {
            return 0;
        }
        // A key has the id of its process: with the process's own id, another thread was first.
        if executor_pid(parent) == pid {
            return parent;
        }
        let found = compare_exchange(holder, parent, key);
        if found != parent {
            return if executor_pid(found) == pid { found } else { 0 };
        }
        ptr::write_volatile(&raw mut (*row).context.hot, 0);
        ptr::write_volatile(&raw mut (*row).role, ROLE_EXECUTOR);
        forget_inner(parent, &inner_of(row));
        release(parent, Table::Processes, 1);
    }
    key
}

/// Adds the row of a process that has none.
#[inline(always)]
fn insert_process(pid: u32, row: &Process) -> Result<(), i32> {
    announce(pid);
    let made = PROCESSES.insert(pid, row, u64::from(BPF_NOEXIST));
    if made.is_err() {
        withdraw(pid);
    }
    made
}

/// Removes a dead executor, whose other rows were removed before, and gives back what it still holds.
#[inline(always)]
pub fn forget_executor(executor: u64) {
    // SAFETY: copied at once.
    if let Some(Budget { rows, owner, .. }) = unsafe { BUDGETS.get(executor).copied() }
        && BUDGETS.remove(executor).is_ok()
    {
        release_of_user(owner.share, Table::Contexts, rows.contexts);
        release_of_user(owner.share, Table::Threads, rows.threads);
        release_of_user(owner.share, Table::Processes, rows.processes);
        release_of_user(owner.share, Table::Walks, rows.walks);
        release_executor(&owner, rows.executors);
    }
    let _ = EXECUTORS.remove(executor);
}

/// Makes a process a child of an executor; false when there is no room. `leader` is that of [`Process`].
///
/// A process with the id of the executor's own process is refused: the executor is dead and left descendants, and one of
/// them got its id. The id in a key distinguishes an executor's own row from that of a child.
#[inline(always)]
pub fn adopt_child(pid: u32, executor: u64, leader: u64, inner: &Inner) -> bool {
    if executor_pid(executor) == pid {
        return false;
    }
    if !claim(executor, Table::Processes) {
        count(Counter::PROCESSES_REFUSED);
        return false;
    }
    let row = Process {
        executor,
        role: ROLE_CHILD,
        fault_page: 0,
        context: NO_HEAD,
        context_changes: 0,
        not_served: 0,
        fault_began: 0,
        leader,
        inner_pid: inner.pid,
        namespace: inner.namespace,
    };
    match insert_process(pid, &row) {
        Ok(()) => {
            if inner.pid != 0 {
                let id = inner_id(executor, inner);
                let _ = INNER_IDS.insert(id, &pid, u64::from(BPF_ANY));
            }
            true
        }
        Err(error) => {
            release(executor, Table::Processes, 1);
            if error != EEXIST {
                count(Counter::PROCESSES_REFUSED);
            }
            false
        }
    }
}

/// Sets the slot of a thread; false when there is no room for another thread of that executor.
///
/// The new row is made in [`NEW_THREAD`], because the stack has no room for it. Another program that preempts this one on
/// its processor may write there as well: then the row is not as it was made, and goes again.
#[inline(always)]
pub fn adopt_thread(tid: u32, executor: u64, slot_address: u64, heap: &Range) -> bool {
    // SAFETY: copied at once.
    if unsafe { THREADS.get(tid) }
        .is_some_and(|thread| thread.executor == executor && thread.slot_address == slot_address)
    {
        // A new row would lose the faults that the thread adds to this one meanwhile.
        return true;
    }
    pending::flush(tid);
    // The row's previous executor, zero for none, and its counts: the accounts of a running task are differences. Plain
    // numbers: the compiler may leave one half of an `Option` undefined, and the verifier rejects a read of it.
    let (mut before, mut touched) = (0, [0; 2]);
    // SAFETY: copied at once.
    if let Some(thread) = unsafe { THREADS.get(tid) } {
        before = thread.executor;
        touched = thread.touched;
    }
    let new = before != executor;
    if new && !claim(executor, Table::Threads) {
        return refuse_thread(executor);
    }
    let Some(row) = NEW_THREAD.get_ptr_mut(0) else {
        return refuse_thread(executor);
    };
    // SAFETY: the row of this processor; all its other fields stay zero.
    let inserted = unsafe {
        (*row).slot_address = slot_address;
        (*row).executor = executor;
        (*row).pid = executor_pid(executor);
        (*row).heap = *heap;
        (*row).touched = touched;
        // Another CPU may have made the row since: of both, one counts.
        let flags = if before == 0 { BPF_NOEXIST } else { BPF_ANY };
        THREADS.insert(tid, &*row, u64::from(flags)).is_ok()
    };
    if !inserted {
        if new {
            release(executor, Table::Threads, 1);
        }
        // SAFETY: copied at once.
        let made = unsafe { THREADS.get(tid) };
        return made.is_some_and(|thread| thread.slot_address == slot_address)
            || refuse_thread(executor);
    }
    if new && before != 0 {
        // The row outlived its thread, and the thread id is reused.
        release(before, Table::Threads, 1);
    }
    // A row that has gone meanwhile was given back by who removed it.
    // SAFETY: copied at once.
    let as_made = unsafe { THREADS.get(tid) }.is_none_or(|thread| {
        thread.executor == executor && thread.slot_address == slot_address && thread.heap == *heap
    });
    if !as_made && THREADS.remove(tid).is_ok() {
        release(executor, Table::Threads, 1);
        return refuse_thread(executor);
    }
    true
}

#[inline(always)]
fn refuse_thread(executor: u64) -> bool {
    if let Some(row) = EXECUTORS.get_ptr_mut(executor) {
        // SAFETY: the row was just looked up.
        add(unsafe { &raw mut (*row).threads_refused }, 1);
    }
    false
}

/// The slot of a thread.
#[inline(always)]
pub fn thread_slot(tid: u32) -> Option<u64> {
    // SAFETY: copied at once.
    unsafe { THREADS.get(tid).map(|thread| thread.slot_address) }
}

/// The executor of a thread, zero for none.
#[inline(always)]
pub fn thread_executor(tid: u32) -> u64 {
    // SAFETY: copied at once.
    unsafe { THREADS.get(tid) }.map_or(0, |thread| thread.executor)
}

/// Removes a thread's row.
#[inline(always)]
pub fn forget_thread(tid: u32) {
    // SAFETY: copied at once.
    let Some(executor) = (unsafe { THREADS.get(tid) }).map(|thread| thread.executor) else {
        return;
    };
    pending::flush(tid);
    if THREADS.remove(tid).is_ok() {
        accounts::forget(tid);
        release(executor, Table::Threads, 1);
    }
}

/// Removes a process's row and returns its executor, if this call was the one that removed it.
///
/// Who takes the executor out of the row has removed it. A processor that makes the child an executor meanwhile
/// ([`promote`]) exchanges the same word, so that the row is given back once, to the executor that it was of last.
#[inline(always)]
pub fn forget_process(pid: u32) -> Option<u64> {
    let row = PROCESSES.get_ptr_mut(pid)?;
    // SAFETY: the row was just looked up.
    let executor = take_all(unsafe { &raw mut (*row).executor });
    // SAFETY: as above.
    let inner = unsafe { inner_of(row) };
    if PROCESSES.remove(pid).is_ok() {
        withdraw(pid);
    }
    workers::forget(pid);
    if executor == 0 {
        return None;
    }
    forget_inner(executor, &inner);
    if executor_pid(executor) != pid {
        release(executor, Table::Processes, 1);
    }
    Some(executor)
}

/// How often a writer looks whether another one's change of the context has ended. A change takes some ten nanoseconds; only
/// one whose thread lost its processor lasts longer.
const CHANGE_TRIES: u32 = 32;

/// Begins a change of a context, if no other one goes on. Returns the count during the change.
#[inline(always)]
fn begin_change(changes: *mut u64) -> Option<u64> {
    for _ in 0..CHANGE_TRIES {
        let seen = fetch_add(changes, 0);
        let next = (seen & !CONTESTED) + 1;
        if seen & CHANGING == 0 && compare_exchange(changes, seen, next) == seen {
            return Some(next);
        }
    }
    None
}

/// Ends the change that has this count. Where the thread lost its processor meanwhile, the row may be that of another process
/// by now, whose count is left alone.
#[inline(always)]
fn end_change(changes: *mut u64, during: u64) {
    if compare_exchange(changes, during, during + 1) != during {
        let contested = during | CONTESTED;
        compare_exchange(changes, contested, contested + 1);
    }
}

/// Sets the task of a Python worker, which must be a child of this executor. Of two writers at once one waits; one that has
/// waited for too long leaves the worker without a task, because it is not known which of both is right.
#[inline(always)]
pub fn set_worker(pid: u32, executor: u64, head: SlotHead) {
    let Some(row) = PROCESSES.get_ptr_mut(pid) else {
        return;
    };
    // SAFETY: the row was just looked up. The counts around the stores tell a fault of the worker in between, which counts
    // as unattributed rather than for a mixture. The stores are volatile so that the compiler keeps them there.
    unsafe {
        if (*row).executor != executor || (*row).role != ROLE_CHILD {
            return;
        }
        let (context, changes) = (&raw mut (*row).context, &raw mut (*row).context_changes);
        let Some(during) = begin_change(changes) else {
            fetch_or(changes, CONTESTED);
            return;
        };
        core::ptr::write_volatile(&raw mut (*context).task_attempt_id, head.task_attempt_id);
        core::ptr::write_volatile(&raw mut (*context).stage_id, head.stage_id);
        core::ptr::write_volatile(&raw mut (*context).stage_attempt, head.stage_attempt);
        core::ptr::write_volatile(&raw mut (*context).hot, head.hot);
        end_change(changes, during);
    }
}

/// Id of a process in its own pid namespace.
pub struct Inner {
    /// The id; zero where it is the same as in the initial namespace, or not known.
    pub pid: u32,
    /// Number of that namespace; zero where it is the initial one, or not known.
    pub namespace: u32,
}

/// No id but that in the initial namespace.
pub const NOT_INNER: Inner = Inner {
    pid: 0,
    namespace: 0,
};

/// Process id of a child that the marker reports by the id that it sees, in the pid namespace of this number.
#[inline(always)]
pub fn child(executor: u64, said: u32, namespace: u32) -> u32 {
    if namespace == 0 {
        return said;
    }
    let id = Inner {
        pid: said,
        namespace,
    };
    // SAFETY: copied at once.
    let known = unsafe { INNER_IDS.get(inner_id(executor, &id)).copied() };
    match known {
        Some(pid) if process(pid).is_some_and(|row| row.namespace == namespace) => pid,
        _ => said,
    }
}

#[inline(always)]
fn inner_id(executor: u64, inner: &Inner) -> InnerId {
    InnerId {
        executor,
        pid: inner.pid,
        namespace: inner.namespace,
    }
}

/// The id in a row.
///
/// # Safety
/// The row was just looked up.
#[inline(always)]
unsafe fn inner_of(row: *const Process) -> Inner {
    // SAFETY: the caller's.
    unsafe {
        Inner {
            pid: (*row).inner_pid,
            namespace: (*row).namespace,
        }
    }
}

/// Removes what [`child`] finds for a child that is none any more.
#[inline(always)]
fn forget_inner(executor: u64, inner: &Inner) {
    if inner.pid != 0 {
        let _ = INNER_IDS.remove(inner_id(executor, inner));
    }
}

/// The id of a thread's process in its own pid namespace; `pid` is that in the initial one.
#[inline(always)]
pub fn inner(task: u64, pid: u32) -> Inner {
    /// Bytes of the kernel's `upid`: an id, and behind it the address of its namespace.
    const UPID: u32 = 16;
    const ADDRESS: u32 = 8;
    /// The kernel's `MAX_PID_NS_LEVEL`.
    const LEVELS: u32 = 32;
    let offset = setting!(task_thread_pid_offset);
    let (mut ids, mut level, mut own) = (0_u64, 0_u32, 0_u32);
    if offset == 0 || accounts::copy(&raw mut ids, task, offset) != 0 {
        return NOT_INNER;
    }
    word(&raw mut level, ids, setting!(pid_level_offset));
    if level == 0 || level > LEVELS {
        return NOT_INNER;
    }
    let id = setting!(pid_numbers_offset) + UPID * level;
    word(&raw mut own, ids, id);
    let (mut address, mut namespace) = (0_u64, 0_u32);
    if accounts::copy(&raw mut address, ids, id + ADDRESS) != 0 {
        return NOT_INNER;
    }
    let number = setting!(pid_namespace_number_offset);
    word(&raw mut namespace, address, number);
    Inner {
        pid: if own == pid { 0 } else { own },
        namespace,
    }
}

/// Copies a word of the kernel, zero where there is none.
#[inline(always)]
fn word(place: *mut u32, base: u64, offset: u32) {
    let address = (base + u64::from(offset)) as *const c_void;
    // SAFETY: the helper checks the address, and fills the place.
    unsafe { bpf_probe_read_kernel(place.cast(), size_of::<u32>() as u32, address) };
}

/// The kernel's answer for a row that exists.
pub const EEXIST: i32 = -17;

/// No task known.
const NO_HEAD: SlotHead = SlotHead {
    hot: 0,
    task_attempt_id: 0,
    stage_id: 0,
    stage_attempt: 0,
};
