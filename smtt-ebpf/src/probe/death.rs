//! What ends processes of executors from outside: signals, and the kernel's OOM killer.

use aya_ebpf::{
    helpers::{
        bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_get_current_uid_gid,
        generated::bpf_probe_read_kernel,
    },
    macros::raw_tracepoint,
    programs::RawTracePointContext,
};
use smtt_common::{
    event::{
        Kind,
        death::{CRASH_SIGNALS, ENDING_SIGNALS, FROM_KERNEL, OomKilled, SignalSent, ends_fault},
    },
    settings::ROLE_EXECUTOR,
};

use super::{exit::field, fault};
use crate::{
    emit::own_record,
    maps::{may_be_traced, setting},
    tables,
};

/// `signal_generate(signal, info, task, to the whole process, result)`, for every signal on the machine.
///
/// Signals of the processor (`SIGSEGV` and its like) count only where another process sends them: a JVM gets its own all
/// the time, and one that really crashes ends itself with `SIGABRT`.
#[raw_tracepoint]
pub fn signal(ctx: RawTracePointContext) -> i32 {
    let signal: u64 = ctx.arg(0);
    let signal = signal as u32;
    if signal > 15 || (ENDING_SIGNALS | CRASH_SIGNALS) >> signal & 1 == 0 {
        return 0;
    }
    let Some(target_pid) = field::<u32>(ctx.arg(2), setting!(task_tgid_offset)) else {
        return 0;
    };
    if !may_be_traced(target_pid) {
        return 0;
    }
    let Some(process) = tables::process(target_pid) else {
        return 0;
    };
    let (info, result): (u64, u64) = (ctx.arg(1), ctx.arg(4));
    let running = bpf_get_current_pid_tgid();
    let sender_pid = (running >> 32) as u32;
    if sender_pid == target_pid && CRASH_SIGNALS >> signal & 1 != 0 {
        let target = field::<u32>(ctx.arg(2), setting!(task_pid_offset));
        if target == Some(running as u32) && ends_fault(signal, code(info)) {
            fault::not_served();
        }
        return 0;
    }
    let is_executor = u32::from(process.role == ROLE_EXECUTOR);
    own_record(
        Kind::SIGNAL_SENT,
        process.executor,
        &SignalSent {
            target_pid,
            is_executor,
            signal,
            flags: if from_kernel(info) { FROM_KERNEL } else { 0 },
            sender_pid,
            sender_uid: bpf_get_current_uid_gid() as u32,
            sender_name: bpf_get_current_comm().unwrap_or_default(),
        },
        // The first one ends the process, so nothing can send many.
        is_executor != 0 && signal == SIGKILL && result == DELIVERED,
    );
    0
}

const SIGKILL: u32 = 9;
/// `TRACE_SIGNAL_DELIVERED`.
const DELIVERED: u64 = 0;
/// `SEND_SIG_PRIV`: an address that stands for "the kernel".
const SEND_SIG_PRIV: u64 = 1;
/// `SI_KERNEL`.
const SI_KERNEL: u32 = 0x80;
/// Offset of `si_code` in `kernel_siginfo`, after `si_signo` and `si_errno`: part of the interface to processes.
const SI_CODE: u64 = 8;

/// Whether the kernel itself sends the signal.
#[inline(always)]
fn from_kernel(info: u64) -> bool {
    if info <= SEND_SIG_PRIV {
        return info == SEND_SIG_PRIV;
    }
    code(info) == SI_KERNEL
}

/// The signal's `si_code`; zero, which is a process's own, where there is none.
#[inline(always)]
fn code(info: u64) -> u32 {
    let mut code = 0_u32;
    if info <= SEND_SIG_PRIV {
        return code;
    }
    // SAFETY: the helper checks the address, and the place is that large.
    let read =
        unsafe { bpf_probe_read_kernel((&raw mut code).cast(), 4, (info + SI_CODE) as *const _) };
    if read == 0 { code } else { 0 }
}

/// `mark_victim(task, user)`; before Linux 6.8 `mark_victim(pid)`. A process id is no address of the kernel.
#[raw_tracepoint]
pub fn oom(ctx: RawTracePointContext) -> i32 {
    let given: u64 = ctx.arg(0);
    let victim_pid = if given >> 32 == 0 {
        given as u32
    } else {
        match field::<u32>(given, setting!(task_tgid_offset)) {
            Some(pid) => pid,
            None => return 0,
        }
    };
    let Some(process) = tables::process(victim_pid) else {
        return 0;
    };
    let is_executor = u32::from(process.role == ROLE_EXECUTOR);
    own_record(
        Kind::OOM_KILLED,
        process.executor,
        &OomKilled {
            victim_pid,
            is_executor,
        },
        is_executor != 0,
    );
    0
}
