//! The time that page faults take, measured in short windows.
//!
//! The kernel's software events of page faults run these programs: one when the kernel begins to handle the exception,
//! two (minor and major) when it has served it. The daemon opens the events for a window and closes them again, so that a
//! fault outside of a window costs nothing. Threads with a slot and children of executors are measured.

use core::ptr;

use aya_ebpf::{
    helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns, bpf_probe_read_user},
    macros::perf_event,
    programs::PerfEventContext,
};
use smtt_common::{
    context::SlotHead,
    counter::{FaultCounters, TIMED_SQUARE_UNIT_NS, Unattributed},
    settings::{Process, ROLE_CHILD, Thread},
};

use crate::{
    context::{is_idle, running},
    maps::{FAULT_WINDOW, PROCESSES, THREADS, add, may_be_traced},
    pending,
};

/// Who has the running fault.
enum Faulting {
    Thread(*mut Thread),
    Child(*mut Process),
}

/// The kernel begins to handle a fault.
#[perf_event]
pub fn fault_began(ctx: PerfEventContext) -> i32 {
    let page = page(&ctx);
    // SAFETY (here and below): the row was just looked up; only its own thread writes a thread's time, and threads of a
    // child overwrite each other's, which the page shows. The helper only reads the clock.
    match faulting() {
        Some(Faulting::Thread(thread)) => unsafe {
            ptr::write_volatile(&raw mut (*thread).fault_page, page);
            ptr::write_volatile(&raw mut (*thread).fault_began, bpf_ktime_get_ns());
        },
        Some(Faulting::Child(process)) => unsafe {
            ptr::write_volatile(&raw mut (*process).fault_page, page);
            ptr::write_volatile(&raw mut (*process).fault_began, bpf_ktime_get_ns());
        },
        None => {}
    }
    0
}

/// The kernel has served a fault, which it counts at this moment.
#[perf_event]
pub fn fault_served(ctx: PerfEventContext) -> i32 {
    let Some(faulting) = faulting() else {
        return 0;
    };
    let (began, began_on) = match faulting {
        Faulting::Thread(thread) => unsafe {
            let page = ptr::read_volatile(&raw const (*thread).fault_page);
            (take(&raw mut (*thread).fault_began), page)
        },
        Faulting::Child(process) => unsafe {
            let page = ptr::read_volatile(&raw const (*process).fault_page);
            (take(&raw mut (*process).fault_began), page)
        },
    };
    let window = FAULT_WINDOW.get(0).copied().unwrap_or(u64::MAX);
    // A fault without an end (a signal, or the end came after the window) says nothing about this one.
    if began == 0 || began < window || began_on != page(&ctx) {
        return 0;
    }
    let took = unsafe { bpf_ktime_get_ns() }.saturating_sub(began);
    if let Some(counters) = counters(&faulting) {
        let units = took / TIMED_SQUARE_UNIT_NS;
        // SAFETY: a pointer into a map value.
        unsafe {
            add(&raw mut (*counters).timed_ns, took);
            add(
                &raw mut (*counters).timed_squares,
                units.wrapping_mul(units),
            );
            add(&raw mut (*counters).timed, 1);
        }
    }
    0
}

/// Low bits of the fault's page: some processors report the address, some its page.
#[inline(always)]
fn page(ctx: &PerfEventContext) -> u32 {
    // SAFETY: the context is this program's own.
    unsafe { ((*ctx.ctx).addr >> 12) as u32 }
}

/// Reads a time and sets it to zero.
///
/// # Safety
/// The pointer is into a map value.
#[inline(always)]
unsafe fn take(time: *mut u64) -> u64 {
    unsafe {
        let began = ptr::read_volatile(time);
        ptr::write_volatile(time, 0);
        began
    }
}

/// The row of the running thread, if it has a slot or is a child's.
#[inline(always)]
fn faulting() -> Option<Faulting> {
    let id = bpf_get_current_pid_tgid();
    let (pid, tid) = ((id >> 32) as u32, id as u32);
    if !may_be_traced(pid) {
        return None;
    }
    if let Some(thread) = THREADS.get_ptr_mut(tid)
        && unsafe { (*thread).pid } == pid
    {
        return Some(Faulting::Thread(thread));
    }
    let process = PROCESSES.get_ptr_mut(pid)?;
    (unsafe { (*process).role } == ROLE_CHILD).then_some(Faulting::Child(process))
}

/// The counters of the context, or of the class where there is none: those to which the fault itself is added.
#[inline(always)]
fn counters(faulting: &Faulting) -> Option<*mut FaultCounters> {
    let Faulting::Thread(thread) = *faulting else {
        let running = running()?;
        return if running.attributed {
            pending::row(&running.key)
        } else {
            pending::class(running.executor, running.class)
        };
    };
    let (executor, slot) = unsafe { ((*thread).executor, (*thread).slot_address) };
    // SAFETY: the helper checks the address; a slot that is not in memory is an error, not a wait.
    match unsafe { bpf_probe_read_user(slot as *const SlotHead) } {
        Ok(head) if !is_idle(&head) => {
            // On a rung that counts at this same event, its program may run after this one.
            if unsafe { (*thread).head } != head {
                pending::change(thread, &head);
            }
            Some(pending::place(thread, unsafe { (*thread).changes }))
        }
        Ok(_) => pending::class(executor, Unattributed::IDLE),
        Err(_) => pending::class(executor, Unattributed::SLOT_UNREADABLE),
    }
}
