//! The marker's facts: one program for all JNI entry points. The attachment's cookie identifies the entry point.

use core::mem::offset_of;

use aya_ebpf::{
    EbpfContext,
    helpers::{
        bpf_get_current_pid_tgid, bpf_probe_read_user,
        generated::{bpf_get_attach_cookie, bpf_get_current_task},
    },
    macros::uprobe,
    programs::ProbeContext,
};
use aya_log_ebpf::warn;
use smtt_common::{
    context::{Range, Slot, SlotHead},
    counter::{Counter, ExecutorCounters},
    event::{
        Kind, PAYLOAD_MAX,
        marker::UNKNOWN_FACT,
        used::{BEGUN_LATE, HELPER_SHIFT, Helper, PARTIAL},
    },
    settings::ROLE_EXECUTOR,
};

use crate::{
    accounts,
    emit::{Outcome, ring_bytes, user_payload},
    maps::{EXECUTORS, add, count, counted},
    shares::{spend, uid},
    tables, workers,
};

/// A fact of the marker: third and fourth argument of the entry point are its payload's address and length.
#[uprobe]
pub fn marker(ctx: ProbeContext) -> u32 {
    let (Some(address), Some(length)) = (ctx.arg::<u64>(2), ctx.arg::<u64>(3)) else {
        return 0;
    };
    // SAFETY: the context is this program's own.
    let kind = Kind(unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } as u16);
    // The length is a Java int: the upper half of the register is not defined.
    fact(&ctx, kind, address, u64::from(length as u32));
    0
}

#[inline(always)]
fn fact(ctx: &ProbeContext, kind: Kind, address: u64, bytes: u64) {
    let id = bpf_get_current_pid_tgid();
    let (pid, tid) = ((id >> 32) as u32, id as u32);
    let executor = if kind == Kind::EXECUTOR_DESCRIBED {
        let executor = describe(pid);
        if executor == 0 {
            if counted(Counter::EXECUTORS_REFUSED) == 1 {
                warn!(ctx, "no room for executor {}: raise limits.executors", pid);
            }
            return;
        }
        executor
    } else {
        match tables::process(pid) {
            Some(process) if process.role == ROLE_EXECUTOR => process.executor,
            _ => {
                count(Counter::FACTS_UNKNOWN_PROCESS);
                return;
            }
        }
    };
    let Some(row) = EXECUTORS.get_ptr_mut(executor) else {
        count(Counter::FACTS_UNKNOWN_PROCESS);
        return;
    };
    // SAFETY (here and below): the row was just looked up and stays a map value for the whole run.
    add(unsafe { &raw mut (*row).facts_seen }, 1);
    if kind == UNKNOWN_FACT {
        // A newer marker's: what it says is not known, so it takes no room from facts that are.
        add(unsafe { &raw mut (*row).facts_unknown }, 1);
        return;
    }
    if bytes == 0 || bytes > PAYLOAD_MAX as u64 {
        add(unsafe { &raw mut (*row).facts_too_long }, 1);
        return;
    }
    // The tables are changed even when the fact is not sent: they have limits of their own.
    match kind {
        Kind::THREAD_REGISTERED => register(tid, executor, address),
        Kind::THREAD_GONE => unregister(tid, address),
        Kind::PYTHON_WORKER => worker(executor, address, bytes),
        Kind::TASK_BEGUN => begin_task(executor, address, bytes),
        Kind::HELPER_BEGUN => {
            if let Some((task, flags)) = helper(address, bytes) {
                accounts::begin(executor, task, flags);
            }
        }
        _ => {}
    }
    send(kind, executor, row, address, bytes);
    // After the fact, so that a reader knows the task's stage.
    if kind == Kind::TASK_ENDED {
        end_task(executor, address, bytes);
    } else if kind == Kind::HELPER_ENDED
        && let Some((task, flags)) = helper(address, bytes)
    {
        accounts::end_helper(executor, task, flags);
    }
}

/// The running process becomes an executor; zero where there is no room for it. Has a stack frame of its own, as
/// [`worker`].
#[inline(never)]
fn describe(pid: u32) -> u64 {
    tables::adopt_executor(pid, &tables::running_owner()).unwrap_or(0)
}

/// Puts a fact on the ring, or counts why not.
#[inline(always)]
fn send(kind: Kind, executor: u64, row: *mut ExecutorCounters, address: u64, bytes: u64) {
    // SAFETY (here and below): the caller has just looked the row up.
    if !spend(executor, ring_bytes(bytes)) {
        add(unsafe { &raw mut (*row).facts_rate_limited }, 1);
        return;
    }
    match user_payload(kind, executor, uid(executor), address, bytes) {
        Outcome::Sent => {}
        Outcome::RingFull => add(unsafe { &raw mut (*row).facts_ring_full }, 1),
        Outcome::Unreadable => add(unsafe { &raw mut (*row).facts_unreadable }, 1),
    }
}

/// The first word is the slot's address. Only the calling thread is registered: a thread id in the fact is untrusted,
/// and may be of another pid namespace.
#[inline(always)]
fn register(tid: u32, executor: u64, address: u64) {
    // SAFETY: the helper checks the address.
    let Ok(slot_address) = (unsafe { bpf_probe_read_user(address as *const u64) }) else {
        return;
    };
    let heap = slot_address.wrapping_add(offset_of!(Slot, heap) as u64);
    // SAFETY: the helper checks the address.
    let heap = unsafe { bpf_probe_read_user(heap as *const Range) }.unwrap_or_default();
    tables::adopt_thread(tid, executor, slot_address, &heap);
}

/// Removes a thread that gives its own slot back. Facts about other threads are ignored: those threads are removed
/// when they exit.
#[inline(always)]
fn unregister(tid: u32, address: u64) {
    // SAFETY: the helper checks the address.
    let Ok(slot_address) = (unsafe { bpf_probe_read_user(address as *const u64) }) else {
        return;
    };
    if tables::thread_slot(tid) == Some(slot_address) {
        tables::forget_thread(tid);
    }
}

/// The words are the task attempt and flags.
#[inline(always)]
fn begin_task(executor: u64, address: u64, bytes: u64) {
    if bytes < size_of::<[u64; 2]>() as u64 {
        return;
    }
    // SAFETY: the helper checks the address.
    if let Ok([task_attempt_id, flags]) = unsafe { bpf_probe_read_user(address as *const [u64; 2]) }
    {
        let flags = if flags & BEGUN_LATE == 0 { 0 } else { PARTIAL };
        accounts::begin(executor, task_attempt_id, flags);
    }
}

/// The first words of a helper's facts: the task attempt, and the helper's code as it is in the flags of accounts.
#[inline(always)]
fn helper(address: u64, bytes: u64) -> Option<(u64, u32)> {
    if bytes < size_of::<[u64; 2]>() as u64 {
        return None;
    }
    // SAFETY: the helper checks the address.
    let [task_attempt_id, helper] =
        unsafe { bpf_probe_read_user(address as *const [u64; 2]) }.ok()?;
    // Zero is the task's own thread, and a Python worker is a process of its own.
    let helper = helper as u8;
    (helper != 0 && helper != Helper::PYTHON_WORKER.0)
        .then_some((task_attempt_id, u32::from(helper) << HELPER_SHIFT))
}

/// The first word is the task attempt.
#[inline(always)]
fn end_task(executor: u64, address: u64, bytes: u64) {
    if bytes < size_of::<u64>() as u64 {
        return;
    }
    // SAFETY: the helper checks the address.
    if let Ok(task_attempt_id) = unsafe { bpf_probe_read_user(address as *const u64) } {
        accounts::end(executor, task_attempt_id);
    }
}

/// Has a stack frame of its own: Linux 6.1 allows 512 bytes for all frames together.
#[inline(never)]
fn worker(executor: u64, address: u64, bytes: u64) {
    if bytes < size_of::<[u64; 5]>() as u64 {
        return;
    }
    // SAFETY: the helper checks the address.
    let Ok(words) = (unsafe { bpf_probe_read_user(address as *const [u64; 5]) }) else {
        return;
    };
    let [said, task_attempt_id, hot, stage_id, stage_attempt] = words;
    // SAFETY: the helper has no precondition.
    let namespace = tables::inner(unsafe { bpf_get_current_task() }, 0).namespace;
    let pid = tables::child(executor, said as u32, namespace);
    let idle = task_attempt_id == u64::MAX;
    tables::set_worker(
        pid,
        executor,
        SlotHead {
            hot: if idle { 0 } else { hot },
            task_attempt_id,
            stage_id: stage_id as u32,
            stage_attempt: stage_attempt as u32,
        },
    );
    workers::serve(pid, executor, task_attempt_id, idle);
}
