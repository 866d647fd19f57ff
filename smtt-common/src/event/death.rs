//! What ends processes of executors from outside: signals, and the kernel's OOM killer.

use super::exit::NAME_LENGTH;

/// Payload of [`super::Kind::SIGNAL_SENT`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignalSent {
    /// Process that gets the signal, in the initial pid namespace.
    pub target_pid: u32,
    /// 1 when it is the executor's JVM itself, 0 for a child such as a Python worker.
    pub is_executor: u32,
    /// Number of the signal.
    pub signal: u32,
    /// [`FROM_KERNEL`] or zero.
    pub flags: u32,
    /// Process that sends the signal; the running one where the kernel sends it.
    pub sender_pid: u32,
    /// Real user of that process, in the initial user namespace.
    pub sender_uid: u32,
    /// Command name of the sending thread.
    pub sender_name: [u8; NAME_LENGTH],
}

/// Bit of `flags`: the kernel itself sends the signal, as the OOM killer does.
pub const FROM_KERNEL: u32 = 1;

/// Payload of [`super::Kind::OOM_KILLED`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OomKilled {
    /// The victim, in the initial pid namespace.
    pub victim_pid: u32,
    /// 1 when it is the executor's JVM itself, 0 for a child such as a Python worker.
    pub is_executor: u32,
}

/// `SIGHUP`, `SIGINT`, `SIGABRT`, `SIGKILL` and `SIGTERM`, each as a bit.
pub const ENDING_SIGNALS: u32 = 1 << 1 | 1 << 2 | 1 << 6 | 1 << 9 | 1 << 15;
/// Signals by which the processor reports a program's error: `SIGILL`, `SIGTRAP`, `SIGBUS`, `SIGFPE` and `SIGSEGV`. A JVM
/// gets many of them from itself, on purpose.
pub const CRASH_SIGNALS: u32 = 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 11;

/// Whether a signal that a thread gets while it runs, with this `si_code`, reports a page fault that the kernel does not
/// serve: `SIGSEGV` without a mapping, without the right or without the protection key; `SIGBUS` behind the end of a
/// file or on broken memory. The kernel counts no fault then.
#[inline(always)]
#[must_use]
pub const fn ends_fault(signal: u32, code: u32) -> bool {
    match signal {
        7 => code == 2 || code == 4,
        11 => code == 1 || code == 2 || code == 4,
        _ => false,
    }
}

const _: () = {
    assert!(size_of::<SignalSent>() == 40);
    assert!(size_of::<OomKilled>() == 8);
};
