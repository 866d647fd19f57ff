//! What a task used: the kernel's accounts of its thread, read when the thread begins the task and when it ends it.
//!
//! Only the thread itself reads its accounts and writes its row in [`TASKS`], so a row needs no lock.

use core::ffi::c_void;

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    helpers::{
        bpf_get_current_pid_tgid, bpf_ktime_get_boot_ns,
        generated::{bpf_get_current_task, bpf_probe_read_kernel},
    },
};
use smtt_common::event::{
    Kind,
    used::{
        ACCOUNTS, DISK_WAIT_NS, KERNEL_ACCOUNTS, PARTIAL, TaskBegin, TaskUsed, UNTIL_END,
        UNTIL_EXIT, UNTIL_NEXT, helper,
    },
};

use crate::{
    emit::own_record_with,
    maps::{NO_TASK, TASKS, account_offset, setting},
    tables::thread_executor,
    touched,
};

/// The running thread begins a task, or to help one. `flags` are those of [`TaskBegin`].
#[inline(always)]
pub fn begin(executor: u64, task_attempt_id: u64, flags: u32) {
    let tid = bpf_get_current_pid_tgid() as u32;
    // Without a row in `THREADS`, which the executor's share may refuse, the task's end is marked partial.
    if thread_executor(tid) != executor {
        return;
    }
    match TASKS.get_ptr_mut(tid) {
        Some(row) => send(row, UNTIL_NEXT),
        None => {
            let _ = TASKS.insert(tid, &NO_TASK, u64::from(BPF_NOEXIST));
        }
    }
    let Some(row) = TASKS.get_ptr_mut(tid) else {
        return;
    };
    // SAFETY: the row was just looked up, and is this thread's own.
    unsafe {
        (*row).executor = executor;
        (*row).task_attempt_id = task_attempt_id;
        (*row).flags = flags;
        let now = bpf_ktime_get_boot_ns();
        (*row).time_ns = now;
        (*row).present = read((&raw mut (*row).accounts).cast(), now);
    }
    if thread_executor(tid) != executor {
        // The daemon removed the thread meanwhile, because it forgot the executor.
        forget(tid);
    }
}

/// The running thread reports the end of a task. A task that another thread began, or that began before the probes were
/// attached, has no first reading.
#[inline(always)]
pub fn end(executor: u64, task_attempt_id: u64) {
    let tid = bpf_get_current_pid_tgid() as u32;
    if let Some(row) = TASKS.get_ptr_mut(tid)
        // SAFETY: the row was just looked up.
        && unsafe {
            (*row).executor == executor
                && (*row).task_attempt_id == task_attempt_id
                && helper((*row).flags).0 == 0
        }
    {
        send(row, UNTIL_END);
        forget(tid);
        return;
    }
    own_record_with(Kind::TASK_USED, executor, false, |used: *mut TaskUsed| {
        // SAFETY: the ring's place, which is ours until it is submitted.
        unsafe {
            let mut account = 0;
            while account < ACCOUNTS {
                *accounts(used).add(account) = 0;
                account += 1;
            }
            (*used).task_attempt_id = task_attempt_id;
            (*used).duration_ns = 0;
            (*used).present = 0;
            (*used).flags = UNTIL_END | PARTIAL;
        }
    });
}

/// The running thread ends to help a task. Another thread that reports it ends nothing.
#[inline(always)]
pub fn end_helper(executor: u64, task_attempt_id: u64, flags: u32) {
    let tid = bpf_get_current_pid_tgid() as u32;
    if let Some(row) = TASKS.get_ptr_mut(tid)
        // SAFETY: the row was just looked up.
        && unsafe {
            (*row).executor == executor
                && (*row).task_attempt_id == task_attempt_id
                && (*row).flags == flags
        }
    {
        send(row, UNTIL_END);
        forget(tid);
    }
}

/// The running thread exits: a task that it runs has no other end.
#[inline(always)]
pub fn exit() {
    if let Some(row) = TASKS.get_ptr_mut(bpf_get_current_pid_tgid() as u32) {
        send(row, UNTIL_EXIT);
    }
}

/// Removes the row of a thread, which goes with that in `THREADS`.
#[inline(always)]
pub fn forget(tid: u32) {
    let _ = TASKS.remove(tid);
}

/// Sends the growth of the running thread's accounts since the row was filled.
#[inline(always)]
fn send(row: *mut TaskBegin, until: u32) {
    // SAFETY (here and below): the callers have just looked the row up, and the place in the ring is ours until it is
    // submitted.
    let executor = unsafe { (*row).executor };
    own_record_with(
        Kind::TASK_USED,
        executor,
        false,
        |used: *mut TaskUsed| unsafe {
            let present = (*row).present & read(accounts(used), (*row).time_ns);
            let begin: *const u64 = (&raw const (*row).accounts).cast();
            let mut account = 0;
            while account < ACCOUNTS {
                // An account that only one reading has is absent, whatever its difference.
                let place = accounts(used).add(account);
                *place = (*place).wrapping_sub(*begin.add(account));
                account += 1;
            }
            (*used).task_attempt_id = (*row).task_attempt_id;
            (*used).duration_ns = bpf_ktime_get_boot_ns().wrapping_sub((*row).time_ns);
            (*used).present = present;
            (*used).flags = until | (*row).flags;
        },
    );
}

#[inline(always)]
fn accounts(used: *mut TaskUsed) -> *mut u64 {
    // SAFETY: only the address is computed.
    unsafe { (&raw mut (*used).accounts).cast() }
}

/// A bit for each account that the kernel keeps.
pub const ALL: u32 = (1 << KERNEL_ACCOUNTS) - 1;

/// Reads the running thread's accounts to `place`, zero where there is none; returns a bit for each that there is. The
/// first reading of the task is at `since_ns`.
///
/// No branch depends on what a helper returns: the verifier of Linux 6.1 follows each, and eleven are too many for it.
#[inline(always)]
fn read(place: *mut u64, since_ns: u64) -> u32 {
    // SAFETY: the helper has no precondition.
    let task = unsafe { bpf_get_current_task() };
    let mut absent = 0;
    let mut account = 0;
    while account < KERNEL_ACCOUNTS {
        let offset = account_offset(account);
        // SAFETY (here and below): the callers pass places for all accounts.
        let value = unsafe { place.add(account) };
        if offset == 0 {
            unsafe { *value = 0 };
            absent |= 1 << account;
        } else {
            absent |= copy(value, task, offset) << account;
            if account == DISK_WAIT_NS {
                // Null where delay accounting was off when the thread was made: no address that can be read.
                let delays = unsafe { *value };
                absent |= copy(value, delays, setting!(blkio_delay_offset)) << account;
            }
        }
        account += 1;
    }
    let touched = touched::read(place, bpf_get_current_pid_tgid() as u32, since_ns);
    ALL & !absent | touched
}

/// Copies a word of the kernel; 1 where there is none, and zero in its place.
#[inline(always)]
pub fn copy(place: *mut u64, base: u64, offset: u32) -> u32 {
    let address = (base + u64::from(offset)) as *const c_void;
    // SAFETY: the helper checks the address.
    let error = unsafe { bpf_probe_read_kernel(place.cast(), size_of::<u64>() as u32, address) };
    (error as u64 >> 63) as u32
}
