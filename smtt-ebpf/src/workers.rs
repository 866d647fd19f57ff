//! What Python workers used for the tasks that they served: the kernel's accounts of all threads of a worker's process, read
//! when the service begins and when it ends.
//!
//! Other processes read the accounts: the executor's thread whose task is served, or gets a worker that served another task.
//! Spark gives a worker to one task at a time, so a row has one writer. An executor that breaks this mixes its own rows.

use core::{ffi::c_void, ptr};

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    helpers::{
        bpf_ktime_get_boot_ns,
        generated::{bpf_get_current_task, bpf_probe_read_kernel},
    },
};
use smtt_common::{
    event::{
        Kind,
        used::{
            ACCOUNTS, CPU_NS, CPU_WAIT_NS, DISK_WAIT_NS, HELPER_SHIFT, Helper, KERNEL_ACCOUNTS,
            PARTIAL, REST, UNTIL_END, UNTIL_EXIT, UNTIL_NEXT, WorkerBegin, WorkerUsed,
        },
    },
    settings::{ADOPTED, Process, ROLE_CHILD},
};

use crate::{
    accounts::{ALL, copy},
    emit::own_record_with,
    maps::{
        NO_WORKER, PROCESSES, WORKERS, account_offset, compare_exchange, ended_account_offset,
        setting, take_all,
    },
};

/// Threads of a worker that are read. A worker with more has no accounts.
const THREADS: u32 = 64;

/// Accounts that the kernel keeps of living threads only.
const OF_LIVING: u32 = 1 << CPU_WAIT_NS | 1 << DISK_WAIT_NS;

/// Remembers the running child of an executor, which the daemon found.
#[inline(always)]
pub fn know(process: *const Process) {
    // SAFETY: a map value.
    if unsafe { ptr::read_volatile(&raw const (*process).leader) } != ADOPTED {
        return;
    }
    let mut leader = 0_u64;
    // SAFETY: the helper has no precondition.
    let task = unsafe { bpf_get_current_task() };
    let offset = setting!(task_leader_offset);
    if offset != 0 && copy(&raw mut leader, task, offset) == 0 {
        // SAFETY: a map value. Another thread writes the same.
        unsafe { ptr::write_volatile(&raw const (*process).leader as *mut u64, leader | ADOPTED) };
    }
}

/// A worker serves this task from now on, or none where it is `idle`. It must be a child of this executor. A task that it
/// serves already may be reported again.
#[inline(always)]
pub fn serve(pid: u32, executor: u64, task_attempt_id: u64, idle: bool) {
    let Some(process) = PROCESSES.get_ptr_mut(pid) else {
        return;
    };
    // SAFETY (here and below): the rows were just looked up and stay map values for the whole run.
    let leader = unsafe {
        if (*process).executor != executor || (*process).role != ROLE_CHILD {
            return;
        }
        let leader = ptr::read_volatile(&raw const (*process).leader);
        if idle && leader != ADOPTED {
            // What begins later begins while the kernel side knows the worker.
            compare_exchange(&raw mut (*process).leader, leader, leader & !ADOPTED);
        }
        leader
    };
    let mut row = WORKERS.get_ptr_mut(pid);
    if row.is_none() && !idle {
        let _ = WORKERS.insert(pid, &NO_WORKER, u64::from(BPF_NOEXIST));
        row = WORKERS.get_ptr_mut(pid);
    }
    let Some(row) = row else {
        return;
    };
    unsafe {
        let known = (*row).executor == executor;
        let ended = (*row).flags & REST != 0;
        let again = known && !ended && (*row).task_attempt_id == task_attempt_id;
        if again || (idle && (ended || !known)) {
            return;
        }
        let begin = claim(row);
        if known && begin == 0 {
            return;
        }
        let now = bpf_ktime_get_boot_ns();
        let present = read(row, leader & !ADOPTED, pid);
        let mut said = present;
        if known {
            let until = if idle { UNTIL_END } else { UNTIL_NEXT };
            said = send(row, pid, present, now.wrapping_sub(begin), until);
        }
        let mut account = 0;
        while account < KERNEL_ACCOUNTS {
            (*row).before[account] = (*row).after[account];
            account += 1;
        }
        (*row).ended_threads_ns[0] = (*row).ended_threads_ns[1];
        // What follows a service adds to figures that the service has.
        (*row).present = if idle { said } else { present };
        if idle {
            (*row).flags |= REST;
        } else {
            (*row).executor = executor;
            (*row).task_attempt_id = task_attempt_id;
            (*row).flags = if leader & ADOPTED == 0 { 0 } else { PARTIAL };
        }
        // Last: from here on another CPU may send what is in the row.
        compare_exchange(&raw mut (*row).time_ns, 0, now);
        if (*process).executor != executor {
            // The worker ended meanwhile.
            forget(pid);
        }
    }
}

/// The last thread of a process exits: a service that goes on has no other end.
#[inline(always)]
pub fn exit(pid: u32) {
    let Some(row) = WORKERS.get_ptr_mut(pid) else {
        return;
    };
    let Some(process) = PROCESSES.get_ptr_mut(pid) else {
        return;
    };
    // SAFETY: the rows were just looked up.
    unsafe {
        if (*row).executor != (*process).executor {
            return;
        }
        let begin = claim(row);
        if begin != 0 && (*row).flags & REST == 0 {
            let leader = ptr::read_volatile(&raw const (*process).leader);
            let present = read(row, leader & !ADOPTED, pid);
            let duration_ns = bpf_ktime_get_boot_ns().wrapping_sub(begin);
            send(row, pid, present, duration_ns, UNTIL_EXIT);
        }
    }
}

/// Removes the row of a worker, which goes with that in `PROCESSES`.
#[inline(always)]
pub fn forget(pid: u32) {
    let _ = WORKERS.remove(pid);
}

/// Takes the right to send what the worker did, and returns since when; zero where another CPU has it. A task's end and its
/// worker's exit may come at once: one of them sends.
#[inline(always)]
fn claim(row: *mut WorkerBegin) -> u64 {
    // SAFETY: the callers have just looked the row up.
    take_all(unsafe { &raw mut (*row).time_ns })
}

/// Sends the growth of the accounts from `before` to `after`; returns a bit for each that is known.
#[inline(always)]
fn send(row: *mut WorkerBegin, pid: u32, present: u32, duration_ns: u64, until: u32) -> u32 {
    // SAFETY (here and below): the callers have just looked the row up, and the place in the ring is ours until it is
    // submitted.
    let executor = unsafe { (*row).executor };
    let mut present = present & unsafe { (*row).present };
    if unsafe { (*row).ended_threads_ns[0] != (*row).ended_threads_ns[1] } {
        present &= !OF_LIVING;
    }
    own_record_with(
        Kind::WORKER_USED,
        executor,
        false,
        |worker: *mut WorkerUsed| unsafe {
            let used = &raw mut (*worker).used;
            let mut account = 0;
            while account < ACCOUNTS {
                (*used).accounts[account] = if account < KERNEL_ACCOUNTS {
                    (*row).after[account].wrapping_sub((*row).before[account])
                } else {
                    0
                };
                account += 1;
            }
            (*used).task_attempt_id = (*row).task_attempt_id;
            (*used).duration_ns = duration_ns;
            (*used).present = present;
            (*used).flags =
                until | (*row).flags | u32::from(Helper::PYTHON_WORKER.0) << HELPER_SHIFT;
            (*worker).pid = pid;
            (*worker).reserved = 0;
        },
    );
    present
}

/// Reads the sums over the threads of a process to `after`, zero where there is none; returns a bit for each that there is.
/// `leader` is the address of its first thread, where it is known: the memory may be another's by now, so its id decides.
///
/// The kernel moves what a thread had to the sums of ended threads when it ends, under a lock that counts its holders: where
/// the count changed meanwhile, a thread may be in both or in none, and nothing is known.
///
/// As in [`crate::accounts`] no branch depends on what a helper returns, but for the ends of the list.
#[inline(always)]
fn read(row: *mut WorkerBegin, leader: u64, pid: u32) -> u32 {
    let threads = setting!(signal_threads_offset);
    if threads == 0 || leader == 0 || word32(leader, setting!(task_tgid_offset)) != pid {
        return 0;
    }
    let mut signal = 0;
    let mut absent = copy(&raw mut signal, leader, setting!(task_signal_offset));
    absent = if absent == 0 { 0 } else { ALL };
    let changes = word32(signal, setting!(signal_stats_lock_offset));
    let mut account = 0;
    while account < KERNEL_ACCOUNTS {
        // SAFETY (here and below): the callers have just looked the row up.
        let place = unsafe { (&raw mut (*row).after).cast::<u64>().add(account) };
        let (of_thread, of_ended) = (account_offset(account), ended_account_offset(account));
        unsafe { *place = 0 };
        if of_thread == 0 || (of_ended == 0 && OF_LIVING & 1 << account == 0) {
            absent |= 1 << account;
        } else if of_ended != 0 {
            absent |= copy(place, signal, of_ended) << account;
        }
        account += 1;
    }
    unsafe { (*row).ended_threads_ns[1] = (*row).after[CPU_NS] };
    let head = signal + u64::from(threads);
    let mut node = 0;
    absent |= copy(&raw mut node, head, 0);
    let mut thread = 0;
    while thread < THREADS && node != head && node != 0 {
        absent |= add_thread(
            row,
            node.wrapping_sub(u64::from(setting!(task_thread_node_offset))),
        );
        let from = node;
        node = 0;
        let _ = copy(&raw mut node, from, 0);
        thread += 1;
    }
    let same = changes == word32(signal, setting!(signal_stats_lock_offset));
    if node != head || changes & 1 != 0 || !same {
        return 0;
    }
    ALL & !absent
}

/// Adds the accounts of a living thread; returns a bit for each that cannot be read.
#[inline(always)]
fn add_thread(row: *mut WorkerBegin, task: u64) -> u32 {
    let mut absent = 0;
    let mut account = 0;
    while account < KERNEL_ACCOUNTS {
        let offset = account_offset(account);
        if offset != 0 {
            let mut value = 0_u64;
            absent |= copy(&raw mut value, task, offset) << account;
            if account == DISK_WAIT_NS {
                // Null where delay accounting was off when the thread was made: no address that can be read.
                let delays = value;
                absent |= copy(&raw mut value, delays, setting!(blkio_delay_offset)) << account;
            }
            // SAFETY: the callers have just looked the row up.
            unsafe {
                let place = (&raw mut (*row).after).cast::<u64>().add(account);
                *place = (*place).wrapping_add(value);
            }
        }
        account += 1;
    }
    absent
}

/// A word of the kernel, zero where there is none.
#[inline(always)]
fn word32(base: u64, offset: u32) -> u32 {
    let mut value = 0_u32;
    let address = (base + u64::from(offset)) as *const c_void;
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel((&raw mut value).cast(), size_of::<u32>() as u32, address) };
    value
}
