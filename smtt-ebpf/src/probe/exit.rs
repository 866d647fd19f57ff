//! Birth and death of processes that belong to executors: fork, exec and exit.

use aya_ebpf::{
    helpers::{bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_probe_read_kernel},
    macros::raw_tracepoint,
    programs::RawTracePointContext,
};
use smtt_common::{
    event::{
        Kind,
        exit::{NAME_LENGTH, ProcessForked, ProcessGone, REASON_EXEC, REASON_EXIT},
    },
    settings::{ROLE_EXECUTOR, executor_pid},
};

use crate::{
    accounts,
    emit::own_record,
    maps::{may_be_traced, setting},
    tables, workers,
};

/// `sched_process_fork(parent, child)`: a child of an executor's process belongs to that executor.
///
/// The hook fires for new threads too; those have their parent's process id. The ids of the child are fields of
/// the kernel's task, whose offsets the daemon takes from the kernel's own type information.
///
/// The child has not run yet, so rows with its ids are of an earlier process whose end was missed: the daemon may have
/// added them just after that end. They are removed, whichever process the parent is; otherwise the new process would
/// count for them.
#[raw_tracepoint]
pub fn fork(ctx: RawTracePointContext) -> i32 {
    let child: u64 = ctx.arg(1);
    let (Some(child_pid), Some(child_tid)) = (
        field::<u32>(child, setting!(task_tgid_offset)),
        field::<u32>(child, setting!(task_pid_offset)),
    ) else {
        return 0;
    };
    tables::forget_thread(child_tid);
    // A new thread has its process's id; a new process has its own, equal to its first thread's.
    if child_pid != child_tid {
        return 0;
    }
    if may_be_traced(child_pid) {
        tables::forget_process(child_pid);
    }
    let pid = (bpf_get_current_pid_tgid() >> 32) as u32;
    let Some(parent) = tables::process(pid) else {
        return 0;
    };
    if tables::adopt_child(
        child_pid,
        parent.executor,
        child,
        &tables::inner(child, child_pid),
    ) {
        own_record(
            Kind::PROCESS_FORKED,
            parent.executor,
            &ProcessForked {
                child_pid,
                reserved: 0,
            },
            false,
        );
    }
    0
}

/// `sched_process_exec(task, old tid, binary)`: an executor that replaces its image is no executor any more; a
/// child stays a child. All other threads are gone by now, each through its own exit.
#[raw_tracepoint]
pub fn exec(ctx: RawTracePointContext) -> i32 {
    let pid = (bpf_get_current_pid_tgid() >> 32) as u32;
    let Some(process) = tables::process(pid) else {
        return 0;
    };
    let old_tid: u64 = ctx.arg(1);
    // The thread that called exec takes the process's id, so two rows may be stale.
    tables::forget_thread(old_tid as u32);
    tables::forget_thread(pid);
    if process.role == ROLE_EXECUTOR && tables::forget_process(pid).is_some() {
        own_record(
            Kind::PROCESS_GONE,
            process.executor,
            &ProcessGone {
                reason: REASON_EXEC,
                is_executor: 1,
                status: 0,
                status_known: 0,
                peak_rss_bytes: 0,
                name: [0; NAME_LENGTH],
            },
            true,
        );
    }
    0
}

/// `sched_process_exit(task)`: fires for every thread; the process is gone when none of its threads is left.
#[raw_tracepoint]
pub fn exit(ctx: RawTracePointContext) -> i32 {
    let id = bpf_get_current_pid_tgid();
    let (pid, tid) = ((id >> 32) as u32, id as u32);
    if may_be_traced(pid) {
        accounts::exit();
    }
    // Before the process is examined: of two last threads that exit at once, the other one may have removed its row.
    tables::forget_thread(tid);
    if tables::process(pid).is_none() {
        return 0;
    }
    if !last_thread(ctx.arg(0), pid == tid) {
        return 0;
    }
    workers::exit(pid);
    if let Some(executor) = tables::forget_process(pid) {
        let is_executor = u32::from(executor_pid(executor) == pid);
        let (status, peak_rss_bytes) = ending(ctx.arg(0)).unwrap_or_default();
        own_record(
            Kind::PROCESS_GONE,
            executor,
            &ProcessGone {
                reason: REASON_EXIT,
                is_executor,
                status,
                // A process was resident before it exited.
                status_known: u32::from(peak_rss_bytes != 0),
                peak_rss_bytes,
                name: bpf_get_current_comm().unwrap_or_default(),
            },
            is_executor != 0,
        );
    }
    0
}

/// Whether the exiting thread is its process's last. The kernel has already subtracted it from `signal->live` here
/// (two threads that exit at once may both see zero; the row can be removed only once).
#[inline(always)]
fn last_thread(task: u64, is_first: bool) -> bool {
    let signal_offset = setting!(task_signal_offset);
    if signal_offset == 0 {
        return is_first;
    }
    let live = field::<u64>(task, signal_offset)
        .and_then(|signal| field::<i32>(signal, setting!(signal_live_offset)));
    live.map_or(is_first, |live| live <= 0)
}

/// The status that the parent's `wait` gets, and the most resident bytes. The kernel has set both when its last thread
/// exits.
#[inline(always)]
fn ending(task: u64) -> Option<(u32, u64)> {
    let (status, peak) = (
        setting!(signal_exit_code_offset),
        setting!(signal_maxrss_offset),
    );
    if status == 0 || peak == 0 {
        return None;
    }
    let signal = field::<u64>(task, setting!(task_signal_offset))?;
    let pages = field::<u64>(signal, peak)?;
    Some((
        field::<u32>(signal, status)?,
        pages * u64::from(setting!(page_bytes)),
    ))
}

/// A field of a kernel struct.
#[inline(always)]
pub(super) fn field<T>(base: u64, offset: u32) -> Option<T> {
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel((base + u64::from(offset)) as *const T) }.ok()
}
