//! Page faults: each is added to the context of the thread that it interrupted.
//!
//! There are four rungs, and one of them is attached: the raw tracepoints of the processor's exception; the return of
//! the kernel's fault handler by its trampoline; its entry by a kprobe; the kernel's software events. All but the last
//! distinguish reads from writes. Major faults are a separate software event, because only the kernel knows, after it
//! has handled a fault, that it had to wait for a disk.

use core::ptr;

use aya_ebpf::{
    helpers::{
        bpf_get_current_pid_tgid, bpf_probe_read_kernel, bpf_probe_read_user,
        generated::bpf_get_current_task,
    },
    macros::{fexit, kprobe, perf_event, raw_tracepoint},
    programs::{FExitContext, PerfEventContext, ProbeContext, RawTracePointContext},
};
use smtt_common::{
    context::SlotHead,
    counter::{ContextKey, FaultCounters, Unattributed},
    event::{
        Kind,
        fault::{ACCESS_UNKNOWN, ACCESS_WRITE, FaultSample},
    },
};

use crate::{
    context::{Running, is_idle, key, running},
    emit::{record, record_bytes},
    maps::{
        EXECUTORS, PROCESSES, SAMPLING, THREADS, add, may_be_traced, next, setting, take,
        take_at_most,
    },
    pending,
    shares::{spend_on_sample, uid},
    tables, touched,
};

/// Bit of the x86 error code: the page was there, and the access had no right to it.
const ERROR_PRESENT: u64 = 1 << 0;
/// Bit of the x86 error code: the access was a write.
const ERROR_WRITE: u64 = 1 << 1;
/// End of the lower half of the address space; user addresses are below it.
const USER_END: u64 = 1 << 63;
/// The `access` of a major fault, whose read or write another hook counts.
const MAJOR: u32 = 4;

/// `page_fault_user(address, registers, error code)`: a fault of user code.
#[raw_tracepoint]
pub fn fault_user(ctx: RawTracePointContext) -> i32 {
    let error_code = ctx.arg(2);
    fault::<true>(ctx.arg(0), access(error_code), is_fresh(error_code));
    0
}

/// `page_fault_kernel(address, registers, error code)`: a fault of kernel code. It counts if it concerns the process's
/// own memory, as in the kernel's `minflt`: a read into a fresh buffer, for example.
#[raw_tracepoint]
pub fn fault_kernel(ctx: RawTracePointContext) -> i32 {
    let address: u64 = ctx.arg(0);
    if address >= USER_END || !may_be_traced(running_pid()) || faults_off() {
        return 0;
    }
    let error_code = ctx.arg(2);
    fault::<true>(address, access(error_code), is_fresh(error_code));
    0
}

/// The running thread's last exception was counted, and the kernel does not count it.
#[inline(always)]
pub fn not_served() {
    let id = bpf_get_current_pid_tgid();
    let (pid, tid) = ((id >> 32) as u32, id as u32);
    // SAFETY (both): the row was just looked up; only its own thread writes a thread's mark, and a process's is changed
    // atomically.
    if let Some(thread) = THREADS.get_ptr_mut(tid)
        && unsafe { (*thread).pid } == pid
    {
        unsafe {
            (*thread).not_served = 1;
            (*thread).fault_began = 0;
        }
        touched::take_back(thread);
    } else if let Some(process) = PROCESSES.get_ptr_mut(pid) {
        add(unsafe { &raw mut (*process).not_served }, 1);
    }
}

/// Whether a thread without a row takes a mark of its process.
#[inline(always)]
fn leave_out(pid: u32) -> bool {
    let Some(process) = PROCESSES.get_ptr_mut(pid) else {
        return false;
    };
    // SAFETY: as above.
    let marks = unsafe { &raw mut (*process).not_served };
    unsafe { ptr::read_volatile(marks) as i64 > 0 && take_at_most(marks, 1) != 0 }
}

/// `FAULT_FLAG_WRITE` of the kernel's `enum fault_flag`.
const FLAG_WRITE: u32 = 1;
/// `FAULT_FLAG_TRIED`: the fault was begun before, and had to wait.
const FLAG_TRIED: u32 = 1 << 5;

/// `VM_FAULT_RETRY` of the kernel's `enum vm_fault_reason`: the handler will be called again for the same fault.
pub(super) const RESULT_RETRY: u32 = 0x400;
/// `VM_FAULT_ERROR`: the fault is not served, and the kernel does not count it.
pub(super) const RESULT_ERROR: u32 = 0x873;

/// The return of `handle_mm_fault(vma, address, flags, registers)`, by its trampoline. The result decides as in the
/// kernel's own count: a retried fault counts when it is done.
#[fexit(function = "handle_mm_fault")]
pub fn fault_fexit(ctx: FExitContext) -> i32 {
    // The result lies behind the arguments; the helper for it is newer than what is needed here.
    let result: u32 = ctx.arg(4);
    if result & (RESULT_RETRY | RESULT_ERROR) == 0 {
        handled(ctx.arg(1), ctx.arg(2), ctx.arg(3));
    }
    0
}

/// The entry of `handle_mm_fault`, by a kprobe. A fault that releases its mapping's lock and enters again without
/// `FAULT_FLAG_TRIED` counts twice; the first fault in a new mapping may do that.
#[kprobe]
pub fn fault_kprobe(ctx: ProbeContext) -> i32 {
    if let (Some(address), Some(flags), Some(registers)) = (ctx.arg(1), ctx.arg(2), ctx.arg(3)) {
        if flags & FLAG_TRIED == 0 {
            handled(address, flags, registers);
        }
    }
    0
}

/// Counts the faults that the exception would have counted. An access without an exception (a read of
/// `/proc/PID/mem`, for example) has no registers and does not count.
#[inline(always)]
fn handled(address: u64, flags: u32, registers: u64) {
    if registers == 0 {
        return;
    }
    fault::<false>(
        address,
        if flags & FLAG_WRITE == 0 {
            0
        } else {
            ACCESS_WRITE
        },
        false,
    );
}

/// The kernel's software event for minor page faults, without their access. The event for all page faults would also
/// count those that end in a signal.
#[perf_event]
pub fn fault_software(ctx: PerfEventContext) -> i32 {
    // SAFETY: the context is this program's own.
    fault::<false>(unsafe { (*ctx.ctx).addr }, ACCESS_UNKNOWN, false);
    0
}

/// The kernel's software event for major page faults, where [`fault_software`] counts the minor ones.
#[perf_event]
pub fn fault_software_major(ctx: PerfEventContext) -> i32 {
    // SAFETY: as above.
    fault::<false>(unsafe { (*ctx.ctx).addr }, ACCESS_UNKNOWN, false);
    0
}

/// The kernel's software event for major faults.
#[perf_event]
pub fn fault_major(_ctx: PerfEventContext) -> i32 {
    if let Some(running) = running() {
        add_up(&running, MAJOR);
    }
    0
}

#[inline(always)]
fn access(error_code: u64) -> u32 {
    if error_code & ERROR_WRITE == 0 {
        0
    } else {
        ACCESS_WRITE
    }
}

#[inline(always)]
fn is_fresh(error_code: u64) -> bool {
    error_code & ERROR_PRESENT == 0
}

/// Whether the kernel tries an access whose fault it will not serve (it has a fallback): no page fault in
/// the sense of `minflt`. A slot of ours that is not in memory comes here too.
#[inline(always)]
fn faults_off() -> bool {
    let offset = setting!(task_pagefault_disabled_offset);
    if offset == 0 {
        return false;
    }
    // SAFETY: the running task is there, and the helper checks the address.
    let off = unsafe {
        bpf_probe_read_kernel((bpf_get_current_task() + u64::from(offset)) as *const i32)
    };
    // The helper itself switches faults off while it reads.
    off.is_ok_and(|off| off > 1)
}

/// Id of the running process.
#[inline(always)]
fn running_pid() -> u32 {
    (bpf_get_current_pid_tgid() >> 32) as u32
}

/// Adds one fault to its context, or to its class where it has none.
///
/// A thread with a slot is the common case: its row has the context of the last fault and the faults in it since then,
/// so that the faults of a context cost one look-up each. A change of the context moves them to the context's row.
///
/// With `BEFORE` the hook runs before the kernel handles the fault. Where the kernel does not serve it but sends a signal,
/// it counts none: then the program of signals leaves a mark ([`not_served`]), and the next exception of the same thread
/// (of the same process, for threads without a row) is left out. Only there the processor reports whether the page was
/// `fresh`.
#[inline(always)]
fn fault<const BEFORE: bool>(address: u64, access: u32, fresh: bool) {
    let id = bpf_get_current_pid_tgid();
    let (pid, tid) = ((id >> 32) as u32, id as u32);
    if !may_be_traced(pid) {
        return;
    }
    if let Some(thread) = THREADS.get_ptr_mut(tid)
        // SAFETY (here and below): the row was just looked up, and only its own thread removes it while the thread runs.
        && unsafe { (*thread).pid } == pid
    {
        if BEFORE {
            touched::fault(thread, address, access, fresh);
        }
        if BEFORE && unsafe { (*thread).not_served != 0 } {
            unsafe { (*thread).not_served = 0 };
            return;
        }
        let (executor, slot) = unsafe { ((*thread).executor, (*thread).slot_address) };
        // SAFETY: the helper checks the address; a slot that is not in memory is an error, not a wait.
        let class = match unsafe { bpf_probe_read_user(slot as *const SlotHead) } {
            Ok(head) if !is_idle(&head) => {
                if unsafe { (*thread).head } != head {
                    pending::change(thread, &head);
                }
                let changes = unsafe { (*thread).changes };
                add_access(pending::place(thread, changes), access);
                if is_sampled() {
                    sample(executor, &key(executor, &head), address, access);
                }
                return;
            }
            Ok(_) => Unattributed::IDLE,
            Err(_) => Unattributed::SLOT_UNREADABLE,
        };
        unattributed(executor, class, access);
        if is_sampled() {
            sample(executor, &ContextKey::default(), address, access);
        }
        return;
    }
    let Some(running) = running() else {
        return;
    };
    if BEFORE && leave_out(pid) {
        return;
    }
    add_up(&running, access);
    if is_sampled() {
        sample(running.executor, &running.key, address, access);
    }
}

/// Adds one fault without the thread's row.
#[inline(always)]
fn add_up(running: &Running, access: u32) {
    if !running.attributed {
        unattributed(running.executor, running.class, access);
    } else if let Some(context) = pending::row(&running.key) {
        add_access(context, access);
    } else {
        unattributed(running.executor, Unattributed::TABLE_FULL, access);
    }
}

/// Adds one fault without a context to its class.
#[inline(always)]
fn unattributed(executor: u64, class: Unattributed, access: u32) {
    if let Some(counters) = pending::class(executor, class) {
        add_access(counters, access);
    }
}

#[inline(always)]
fn add_access(counters: *mut FaultCounters, access: u32) {
    // SAFETY: the callers pass pointers into map values.
    let counter = unsafe {
        match access {
            0 => &raw mut (*counters).read,
            ACCESS_WRITE => &raw mut (*counters).write,
            MAJOR => &raw mut (*counters).major,
            _ => &raw mut (*counters).unknown,
        }
    };
    add(counter, 1);
}

/// Whether this fault is the Nth since the last sample of this processor.
#[inline(always)]
fn is_sampled() -> bool {
    let every = u64::from(setting!(fault_sample_every));
    if every == 0 {
        return false;
    }
    let Some(state) = SAMPLING.get_ptr_mut(0) else {
        return false;
    };
    // SAFETY: the row was just looked up and stays a map value for the whole run. The interval is kept without atomic
    // additions: a hook that interrupts this one on its CPU at most shifts a sample.
    unsafe {
        let faults = ptr::read_volatile(&raw const (*state).faults) + 1;
        ptr::write_volatile(
            &raw mut (*state).faults,
            if faults < every { faults } else { 0 },
        );
        faults >= every
    }
}

/// Sends a fault with its address, within the processor's limit per second and the rates of the executor and its user.
#[inline(always)]
fn sample(executor: u64, context: &ContextKey, address: u64, access: u32) {
    let (Some(state), Some(row)) = (SAMPLING.get_ptr_mut(0), EXECUTORS.get_ptr_mut(executor))
    else {
        return;
    };
    // SAFETY (here and below): the rows were just looked up and stay map values for the whole run.
    add(unsafe { &raw mut (*row).samples_seen }, 1);
    let second = tables::boot_second();
    unsafe {
        if ptr::read_volatile(&raw const (*state).second) != second {
            ptr::write_volatile(&raw mut (*state).second, second);
            ptr::write_volatile(&raw mut (*state).samples, 0);
        }
    }
    if next(unsafe { &raw mut (*state).samples }) >= u64::from(setting!(fault_samples_per_second)) {
        add(unsafe { &raw mut (*row).samples_rate_limited }, 1);
        return;
    }
    if !spend_on_sample(executor, record_bytes::<FaultSample>()) {
        // Its place is for another executor.
        take(unsafe { &raw mut (*state).samples }, 1);
        add(unsafe { &raw mut (*row).samples_rate_limited }, 1);
        return;
    }
    let payload = FaultSample {
        address,
        access,
        reserved: 0,
        context: *context,
    };
    if !record(Kind::FAULT_SAMPLE, executor, uid(executor), &payload) {
        add(unsafe { &raw mut (*row).samples_ring_full }, 1);
    }
}
