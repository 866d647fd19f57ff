//! The marker's JNI entry points: one program on all of them, told apart by the cookie of the attachment.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::bpf_probe_read_user;
use aya_ebpf::helpers::generated::bpf_get_attach_cookie;
use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use smtt_common::context::SlotHead;
use smtt_common::counter::{Counter, ExecutorCounters, FaultCounters, UNATTRIBUTED_CLASSES};
use smtt_common::event::{Kind, PAYLOAD_MAX};
use smtt_common::settings::{Budget, Process, ROLE_CHILD, ROLE_EXECUTOR, Thread, executor_key};

use crate::maps::{BUDGETS, EXECUTORS, PROCESSES, THREADS, add, boot_second, count, setting};
use crate::{context, emit};

const NO_FAULTS: FaultCounters = FaultCounters { read: 0, write: 0, unknown: 0, major: 0 };

/// A fresh executor's row, too large for the stack.
static NEW_EXECUTOR: ExecutorCounters = ExecutorCounters {
    attributed: NO_FAULTS,
    unattributed: [NO_FAULTS; UNATTRIBUTED_CLASSES],
    facts_seen: 0,
    facts_rate_limited: 0,
    facts_too_long: 0,
    facts_unreadable: 0,
    facts_ring_full: 0,
    threads_refused: 0,
    samples_seen: 0,
    samples_ring_full: 0,
    samples_rate_limited: 0,
};

/// Entry points have the form `(JNIEnv*, jclass, payload address, payload length)`.
#[uprobe]
pub fn marker(probe: ProbeContext) -> u32 {
    // SAFETY: a helper that takes the program's context.
    let kind = Kind(unsafe { bpf_get_attach_cookie(probe.as_ptr()) } as u16);
    let address: u64 = probe.arg(2).unwrap_or(0);
    let length: u64 = probe.arg::<u64>(3).unwrap_or(0) & 0xffff_ffff;
    let (pid, tid) = context::current();

    if kind == Kind::EXECUTOR_DESCRIBED {
        register_executor(pid);
    }
    let Some(process) = context::process(pid) else {
        count(Counter::FACTS_UNKNOWN_PROCESS);
        return 0;
    };
    let (Some(executor), Some(budget)) = (EXECUTORS.get_ptr_mut(process.executor), BUDGETS.get_ptr_mut(process.executor)) else {
        count(Counter::FACTS_UNKNOWN_PROCESS);
        return 0;
    };
    // SAFETY: pointers into map rows, here and below.
    unsafe {
        add(&raw mut (*executor).facts_seen, 1);
        if length > PAYLOAD_MAX as u64 {
            add(&raw mut (*executor).facts_too_long, 1);
            return 0;
        }
        if over_rate(budget) {
            add(&raw mut (*executor).facts_rate_limited, 1);
            return 0;
        }
        match kind {
            Kind::THREAD_REGISTERED => register_thread(process, tid, address, executor, budget),
            Kind::THREAD_GONE => forget_own_thread(tid, address, budget),
            Kind::PYTHON_WORKER => set_worker_context(process, address),
            _ => {}
        }
        match emit::fact(kind, process.executor, pid, tid, address, length as u32) {
            Ok(()) => {}
            Err(emit::Lost::RingFull) => add(&raw mut (*executor).facts_ring_full, 1),
            Err(emit::Lost::Unreadable) => add(&raw mut (*executor).facts_unreadable, 1),
        }
    }
    0
}

/// Makes the rows of a process that describes itself as an executor. One that is known keeps its key; a child of
/// an executor that does so (a local cluster in one JVM starts its executors) becomes one itself.
#[inline(always)]
fn register_executor(pid: u32) {
    if context::process(pid).is_some_and(|process| process.role == ROLE_EXECUTOR) {
        return;
    }
    let key = executor_key(pid, boot_second());
    if EXECUTORS.insert(key, &NEW_EXECUTOR, 0).is_err() {
        count(Counter::EXECUTORS_REFUSED);
        return;
    }
    let budget = Budget { contexts: 0, threads: 0, second: 0, facts: 0 };
    let process = Process { executor: key, role: ROLE_EXECUTOR, reserved: 0, context: SlotHead::default() };
    if BUDGETS.insert(key, budget, 0).is_err() || PROCESSES.insert(pid, process, 0).is_err() {
        let _ = EXECUTORS.remove(key);
        let _ = BUDGETS.remove(key);
        count(Counter::EXECUTORS_REFUSED);
    }
}

/// Counts a fact against the executor's rate. Two CPUs may both start a new second; then a few facts go free.
#[inline(always)]
unsafe fn over_rate(budget: *mut Budget) -> bool {
    let second = boot_second();
    // SAFETY: a pointer into a map row.
    unsafe {
        if (*budget).second != second {
            (*budget).second = second;
            (*budget).facts = 0;
        }
        add(&raw mut (*budget).facts, 1);
        (*budget).facts > u64::from(setting!(facts_per_second))
    }
}

/// Remembers where the calling thread's slot is. A thread can only speak for itself.
#[inline(always)]
unsafe fn register_thread(process: &Process, tid: u32, address: u64, executor: *mut ExecutorCounters, budget: *mut Budget) {
    // SAFETY: reading user memory cannot harm; a bad address is an error value.
    let Ok(slot_address) = (unsafe { bpf_probe_read_user(address as *const u64) }) else {
        return;
    };
    let thread = Thread { slot_address, executor: process.executor };
    // SAFETY: pointers into map rows.
    unsafe {
        let known = THREADS.get_ptr(tid).is_some();
        if !known && (*budget).threads >= u64::from(setting!(threads_per_executor)) {
            add(&raw mut (*executor).threads_refused, 1);
            return;
        }
        if THREADS.insert(tid, thread, 0).is_err() {
            add(&raw mut (*executor).threads_refused, 1);
        } else if !known {
            add(&raw mut (*budget).threads, 1);
        }
    }
}

/// Forgets the calling thread's slot. Told for another thread (one that died) it changes nothing here: its exit did.
#[inline(always)]
unsafe fn forget_own_thread(tid: u32, address: u64, budget: *mut Budget) {
    // SAFETY: as in `register_thread`.
    unsafe {
        let Ok(slot_address) = bpf_probe_read_user(address as *const u64) else {
            return;
        };
        if THREADS.get(tid).is_some_and(|thread| thread.slot_address == slot_address) && THREADS.remove(tid).is_ok() {
            add(&raw mut (*budget).threads, u64::MAX);
        }
    }
}

/// Gives a Python worker of this executor the context of the task that it serves. The ids are those of the JVM's
/// pid namespace; where that is not the initial one no row of this executor matches, and the daemon does it.
#[inline(always)]
unsafe fn set_worker_context(process: &Process, address: u64) {
    /// The words of the fact.
    #[repr(C)]
    struct Words {
        pid: u64,
        task_attempt_id: u64,
        hot: u64,
        stage_id: u64,
        stage_attempt: u64,
    }
    // SAFETY: as in `register_thread`; a worker's row has one writer, the JVM that it serves.
    unsafe {
        let Ok(words) = bpf_probe_read_user(address as *const Words) else {
            return;
        };
        let Some(worker) = PROCESSES.get_ptr_mut(words.pid as u32) else {
            return;
        };
        if (*worker).executor != process.executor || (*worker).role != ROLE_CHILD {
            return;
        }
        let serves = words.task_attempt_id != u64::MAX;
        (*worker).context.hot = 0;
        (*worker).context.task_attempt_id = words.task_attempt_id;
        (*worker).context.stage_id = words.stage_id as u32;
        (*worker).context.stage_attempt = words.stage_attempt as u32;
        (*worker).context.hot = if serves { words.hot } else { 0 };
    }
}
