//! What a task used: the kernel's accounts of its thread, read when the thread begins the task and when it ends it.
//!
//! Only the thread itself reads its accounts and writes its row in [`TASKS`], so a row needs no lock.

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    helpers::{
        bpf_get_current_pid_tgid, bpf_ktime_get_boot_ns, bpf_probe_read_kernel,
        generated::bpf_get_current_task,
    },
};
use smtt_common::event::{
    Kind,
    used::{
        ACCOUNTS, BEGUN_LATE, DISK_WAIT_NS, PARTIAL, TaskBegin, TaskUsed, UNTIL_END, UNTIL_EXIT,
        UNTIL_NEXT,
    },
};

use crate::{
    emit::own_record_with,
    maps::{NO_TASK, TASKS, account_offset, setting},
    tables::thread_executor,
};

/// The running thread begins a task. `flags` are those of the fact.
#[inline(always)]
pub fn begin(executor: u64, task_attempt_id: u64, flags: u64) {
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
        (*row).flags = if flags & BEGUN_LATE == 0 { 0 } else { PARTIAL };
        (*row).time_ns = bpf_ktime_get_boot_ns();
        (*row).present = read((&raw mut (*row).accounts).cast());
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
        && unsafe { (*row).executor == executor && (*row).task_attempt_id == task_attempt_id }
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
    own_record_with(Kind::TASK_USED, executor, false, |used: *mut TaskUsed| unsafe {
        let present = (*row).present & read(accounts(used));
        let begin: *const u64 = (&raw const (*row).accounts).cast();
        let mut account = 0;
        while account < ACCOUNTS {
            let grown = (*accounts(used).add(account)).wrapping_sub(*begin.add(account));
            *accounts(used).add(account) = if present & (1 << account) == 0 {
                0
            } else {
                grown
            };
            account += 1;
        }
        (*used).task_attempt_id = (*row).task_attempt_id;
        (*used).duration_ns = bpf_ktime_get_boot_ns().wrapping_sub((*row).time_ns);
        (*used).present = present;
        (*used).flags = until | (*row).flags;
    });
}

#[inline(always)]
fn accounts(used: *mut TaskUsed) -> *mut u64 {
    // SAFETY: only the address is computed.
    unsafe { (&raw mut (*used).accounts).cast() }
}

/// Reads the running thread's accounts to `place`, zero where there is none; returns a bit for each that there is.
#[inline(always)]
fn read(place: *mut u64) -> u32 {
    // SAFETY: the helper has no precondition.
    let task = unsafe { bpf_get_current_task() };
    let mut present = 0;
    let mut account = 0;
    while account < ACCOUNTS {
        let offset = account_offset(account);
        let value = if offset == 0 {
            None
        } else if account == DISK_WAIT_NS {
            // Null where delay accounting was off when the thread was made.
            field(task, offset)
                .filter(|delays| *delays != 0)
                .and_then(|delays| field(delays, setting!(blkio_delay_offset)))
        } else {
            field(task, offset)
        };
        if value.is_some() {
            present |= 1 << account;
        }
        // SAFETY: the callers pass places for all accounts.
        unsafe { *place.add(account) = value.unwrap_or(0) };
        account += 1;
    }
    present
}

#[inline(always)]
fn field(base: u64, offset: u32) -> Option<u64> {
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel((base + u64::from(offset)) as *const u64) }.ok()
}
