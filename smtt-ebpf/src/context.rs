//! The only reader of a thread's slot: who is the interrupted thread, in Spark's terms?

use aya_ebpf::helpers::{bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_probe_read_user};
use smtt_common::context::{Hot, SlotHead};
use smtt_common::counter::{ContextKey, Unattributed};
use smtt_common::settings::{Process, ROLE_CHILD};

use crate::maps::{PROCESSES, THREADS};

/// The current thread's process and thread id, in the initial pid namespace.
#[inline(always)]
pub fn current() -> (u32, u32) {
    let both = bpf_get_current_pid_tgid();
    ((both >> 32) as u32, both as u32)
}

/// The process's row, if it belongs to an executor. The first and cheapest question of every hook.
#[inline(always)]
pub fn process(pid: u32) -> Option<&'static Process> {
    // SAFETY: rows of a preallocated map stay readable memory; a row that is replaced while it is read can only
    // misattribute an event of a process that is going away.
    unsafe { PROCESSES.get(pid) }
}

/// The context of the current thread, or why it has none.
#[inline(always)]
pub fn of_current(process: &Process, tid: u32) -> Result<ContextKey, Unattributed> {
    if process.role == ROLE_CHILD {
        return if process.context.hot == 0 { Err(Unattributed::CHILD) } else { Ok(key(process.executor, &process.context)) };
    }
    // SAFETY: as in `process`.
    let Some(thread) = (unsafe { THREADS.get(tid) }) else {
        return Err(class_of_name());
    };
    // SAFETY: reading user memory cannot harm; a bad address is an error value.
    let Ok(head) = (unsafe { bpf_probe_read_user(thread.slot_address as *const SlotHead) }) else {
        return Err(Unattributed::SLOT_UNREADABLE);
    };
    if Hot(head.hot).activity().0 == 0 {
        return Err(Unattributed::IDLE);
    }
    Ok(key(process.executor, &head))
}

/// The counter's key for what a slot says.
#[inline(always)]
fn key(executor: u64, head: &SlotHead) -> ContextKey {
    let hot = Hot(head.hot);
    ContextKey {
        executor,
        task_attempt_id: head.task_attempt_id,
        stage_id: head.stage_id,
        rdd_plus_one: hot.rdd_plus_one(),
        stage_attempt: head.stage_attempt as u16,
        activity: hot.activity().0,
        access_region: hot.access().0 | (hot.region().0 << 4),
        reserved: 0,
    }
}

/// Class of an unregistered thread, by the first two letters of its name as HotSpot gives it.
#[inline(always)]
fn class_of_name() -> Unattributed {
    let Ok(name) = bpf_get_current_comm() else {
        return Unattributed::OTHER;
    };
    match (name[0], name[1]) {
        // "GC Thread#0", "G1 Main Marker", "Shenandoah ...", "ZWorker#0", "XWorker#0", "ParGC ..."
        (b'G', b'C' | b'1') | (b'S', b'h') | (b'Z' | b'X', b'W' | b'D') | (b'P', b'a') => Unattributed::GC,
        // "C1 CompilerThre", "C2 CompilerThre"
        (b'C', b'1' | b'2') => Unattributed::JIT,
        // "VM Thread", "VM Periodic Tas"
        (b'V', b'M') => Unattributed::VM,
        _ => Unattributed::OTHER,
    }
}
