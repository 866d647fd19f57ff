//! Life and death of processes and threads: children belong to their executor, and nothing outlives its owner,
//! so that an id that is used again starts clean.

use aya_ebpf::helpers::bpf_probe_read_kernel;
use aya_ebpf::macros::raw_tracepoint;
use aya_ebpf::programs::RawTracePointContext;
use smtt_common::context::SlotHead;
use smtt_common::counter::Counter;
use smtt_common::event::exit::{ProcessForked, ProcessGone, REASON_EXEC, REASON_EXIT};
use smtt_common::settings::{Process, ROLE_CHILD, ROLE_EXECUTOR};

use crate::maps::{BUDGETS, PROCESSES, THREADS, add, count, setting};
use crate::{context, emit};

/// `sched:sched_process_fork(parent, child)`: a child process of an executor's process belongs to the executor.
#[raw_tracepoint(tracepoint = "sched_process_fork")]
pub fn fork(tracepoint: RawTracePointContext) -> i32 {
    let (pid, tid) = context::current();
    let Some(parent) = context::process(pid) else {
        return 0;
    };
    let child: u64 = tracepoint.arg(1);
    // SAFETY: the offsets come from the kernel's own type information; a bad address is an error value.
    let (child_pid, child_tgid) = unsafe {
        (
            bpf_probe_read_kernel((child + u64::from(setting!(task_pid_offset))) as *const u32).unwrap_or(0),
            bpf_probe_read_kernel((child + u64::from(setting!(task_tgid_offset))) as *const u32).unwrap_or(0),
        )
    };
    // A new thread has the process id of its process.
    if child_pid == 0 || child_pid != child_tgid {
        return 0;
    }
    let process = Process { executor: parent.executor, role: ROLE_CHILD, reserved: 0, context: SlotHead::default() };
    if PROCESSES.insert(child_tgid, process, 0).is_err() {
        count(Counter::PROCESSES_REFUSED);
        return 0;
    }
    emit::process_forked(parent.executor, pid, tid, ProcessForked { child_pid: child_tgid, reserved: 0 });
    0
}

/// `sched:sched_process_exit(task)`: runs on the thread that exits. The process is taken as gone when its first
/// thread goes; a JVM's and a Python worker's first thread goes last.
#[raw_tracepoint(tracepoint = "sched_process_exit")]
pub fn exit(_tracepoint: RawTracePointContext) -> i32 {
    let (pid, tid) = context::current();
    let Some(process) = context::process(pid) else {
        return 0;
    };
    let executor = process.executor;
    forget_thread(executor, tid);
    if pid == tid {
        let is_executor = u32::from(process.role == ROLE_EXECUTOR);
        let _ = PROCESSES.remove(pid);
        emit::process_gone(executor, pid, tid, ProcessGone { reason: REASON_EXIT, is_executor });
    }
    0
}

/// `sched:sched_process_exec(task, old_pid, bprm)`: the image is replaced, and with it every slot. A child stays a
/// child (Python is started that way); a JVM is an executor no more.
#[raw_tracepoint(tracepoint = "sched_process_exec")]
pub fn exec(tracepoint: RawTracePointContext) -> i32 {
    let (pid, tid) = context::current();
    let Some(process) = context::process(pid) else {
        return 0;
    };
    let executor = process.executor;
    let role = process.role;
    forget_thread(executor, tid);
    forget_thread(executor, tracepoint.arg::<u64>(1) as u32);
    if role == ROLE_EXECUTOR {
        let _ = PROCESSES.remove(pid);
        emit::process_gone(executor, pid, tid, ProcessGone { reason: REASON_EXEC, is_executor: 1 });
    }
    0
}

/// Removes a thread's row and gives its place back to the executor.
#[inline(always)]
fn forget_thread(executor: u64, tid: u32) {
    if THREADS.remove(tid).is_ok()
        && let Some(budget) = BUDGETS.get_ptr_mut(executor)
    {
        // SAFETY: a pointer into a map row; adding all ones subtracts one.
        add(unsafe { &raw mut (*budget).threads }, u64::MAX);
    }
}
