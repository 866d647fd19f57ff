//! What the processor's exception does not report of a page that was not present: a large page came, or the page was
//! only hidden or swapped out.
//!
//! Each program runs within the fault whose exception [`crate::probe::fault`] has counted just before, on its thread.

use aya_ebpf::{helpers::bpf_get_current_pid_tgid, macros::fexit, programs::FExitContext};
use smtt_common::settings::Thread;

use crate::{
    maps::{THREADS, may_be_traced},
    probe::fault::{RESULT_ERROR, RESULT_RETRY},
    touched,
};

/// The return of `do_huge_pmd_anonymous_page(fault)`: one fault makes 512 pages resident. The errors include the one with
/// which the kernel falls back to a small page.
#[fexit(function = "do_huge_pmd_anonymous_page")]
pub fn large_page(ctx: FExitContext) -> i32 {
    // The result lies behind the argument.
    let result: u32 = ctx.arg(1);
    if result & (RESULT_RETRY | RESULT_ERROR) == 0
        && let Some(thread) = thread()
    {
        touched::large_page(thread, ctx.arg(0));
    }
    0
}

/// The return of `do_swap_page(fault)`: the page table had an entry, so the page was there before. It is swapped out, or
/// the kernel moves it.
#[fexit(function = "do_swap_page")]
pub fn swapped_out(_ctx: FExitContext) -> i32 {
    take_back();
    0
}

/// The return of `task_numa_fault`: the kernel had hidden the page, to see which node reads it.
#[fexit(function = "task_numa_fault")]
pub fn numa_hint(_ctx: FExitContext) -> i32 {
    take_back();
    0
}

#[inline(always)]
fn take_back() {
    if let Some(thread) = thread() {
        touched::take_back(thread);
    }
}

/// The running thread's row.
#[inline(always)]
fn thread() -> Option<*mut Thread> {
    let id = bpf_get_current_pid_tgid();
    let (pid, tid) = ((id >> 32) as u32, id as u32);
    if !may_be_traced(pid) {
        return None;
    }
    let thread = THREADS.get_ptr_mut(tid)?;
    // SAFETY: the row was just looked up.
    (unsafe { (*thread).pid } == pid).then_some(thread)
}
