//! Counts of faults on their way from a thread's row to the row of their context.
//!
//! Each move takes a count out of the thread's row in one step and adds it to the context's row, so that a fault is in
//! one of them, or for a moment in none, and never in both. The thread itself moves its faults when its context
//! changes; the daemon moves those of the last context before it reads the contexts.

use core::ptr;

use aya_ebpf::bindings::BPF_NOEXIST;
use smtt_common::{
    context::SlotHead,
    counter::{ContextKey, Counter, FaultCounters, Unattributed},
    settings::Thread,
};

use crate::{
    context::key,
    maps::{CONTEXTS, EXECUTORS, NO_CONTEXT_COUNTERS, THREADS, add, count, take_all},
    shares::{Table, claim, release},
    tables::EEXIST,
};

/// Sets the running thread's context, after its faults in the last one are moved.
#[inline(always)]
pub fn change(thread: *mut Thread, head: &SlotHead) {
    // SAFETY (here and below): the callers pass rows that they have just looked up. Volatile, so that the compiler keeps
    // the order of the stores.
    unsafe {
        let changes = ptr::read_volatile(&raw const (*thread).changes);
        ptr::write_volatile(&raw mut (*thread).changes, changes.wrapping_add(1));
        let (executor, last) = ((*thread).executor, (*thread).head);
        let counts = take_counts(place(thread, changes));
        ptr::write_volatile(&raw mut (*thread).head, *head);
        ptr::write_volatile(&raw mut (*thread).changes, changes.wrapping_add(2));
        give(executor, &last, &counts);
    }
}

/// Moves the faults of a thread's last context. Called on any processor.
#[inline(always)]
pub fn flush(tid: u32) {
    let Some(thread) = THREADS.get_ptr_mut(tid) else {
        return;
    };
    // SAFETY: as above.
    unsafe {
        let changes = ptr::read_volatile(&raw const (*thread).changes);
        let (executor, head) = (
            (*thread).executor,
            ptr::read_volatile(&raw const (*thread).head),
        );
        if changes & 1 != 0 || ptr::read_volatile(&raw const (*thread).changes) != changes {
            // The thread moves them itself at this moment.
            return;
        }
        let pending = place(thread, changes);
        let counts = take_counts(pending);
        let since = ptr::read_volatile(&raw const (*thread).changes).wrapping_sub(changes);
        if since < CHANGES_OF_A_PLACE {
            // The next context uses the other place, so these are of the context that was read.
            give(executor, &head, &counts);
        } else {
            // They may be of a later context, which moves them.
            add_counts(pending, &counts);
        }
    }
}

/// `changes` after which a place in `pending` is in use again.
const CHANGES_OF_A_PLACE: u32 = 4;

/// The counters of the running context's faults after this number of changes.
#[inline(always)]
pub fn place(thread: *mut Thread, changes: u32) -> *mut FaultCounters {
    // SAFETY: as above; the index is below the number of places.
    unsafe {
        (&raw mut (*thread).pending)
            .cast::<FaultCounters>()
            .add(Thread::place(changes))
    }
}

#[inline(always)]
fn take_counts(counters: *mut FaultCounters) -> FaultCounters {
    // SAFETY: as above.
    unsafe {
        FaultCounters {
            read: take_all(&raw mut (*counters).read),
            write: take_all(&raw mut (*counters).write),
            unknown: take_all(&raw mut (*counters).unknown),
            major: 0,
            ..take_times(counters)
        }
    }
}

/// Most contexts have no measured time: then this is one load.
#[inline(always)]
fn take_times(counters: *mut FaultCounters) -> FaultCounters {
    // SAFETY: as above.
    unsafe {
        if ptr::read_volatile(&raw const (*counters).timed) == 0 {
            return NO_CONTEXT_COUNTERS;
        }
        FaultCounters {
            timed: take_all(&raw mut (*counters).timed),
            timed_ns: take_all(&raw mut (*counters).timed_ns),
            timed_squares: take_all(&raw mut (*counters).timed_squares),
            ..NO_CONTEXT_COUNTERS
        }
    }
}

/// Adds counts of a context to its row.
#[inline(always)]
fn give(executor: u64, head: &SlotHead, counts: &FaultCounters) {
    if counts.read | counts.write | counts.unknown | counts.timed == 0 {
        return;
    }
    if let Some(counters) = row(&key(executor, head)) {
        add_counts(counters, counts);
    } else if let Some(counters) = class(executor, Unattributed::TABLE_FULL) {
        add_counts(counters, counts);
    }
}

#[inline(always)]
fn add_counts(counters: *mut FaultCounters, counts: &FaultCounters) {
    // SAFETY: as above.
    unsafe {
        add(&raw mut (*counters).read, counts.read);
        add(&raw mut (*counters).write, counts.write);
        add(&raw mut (*counters).unknown, counts.unknown);
        if counts.timed != 0 {
            add(&raw mut (*counters).timed, counts.timed);
            add(&raw mut (*counters).timed_ns, counts.timed_ns);
            add(&raw mut (*counters).timed_squares, counts.timed_squares);
        }
    }
}

/// The counters of an executor's faults without a context, by class.
#[inline(always)]
pub fn class(executor: u64, class: Unattributed) -> Option<*mut FaultCounters> {
    let row = EXECUTORS.get_ptr_mut(executor)?;
    // SAFETY: the row was just looked up, and the index is below the number of classes.
    Some(unsafe {
        (&raw mut (*row).unattributed)
            .cast::<FaultCounters>()
            .add(usize::from(class.0 & 7))
    })
}

/// The context's row. A new row is created if the executor has not used up its share.
#[inline(always)]
pub fn row(key: &ContextKey) -> Option<*mut FaultCounters> {
    if let Some(row) = CONTEXTS.get_ptr_mut(key) {
        return Some(row);
    }
    if !claim(key.executor, Table::Contexts) {
        return None;
    }
    if let Err(error) = CONTEXTS.insert(key, &NO_CONTEXT_COUNTERS, u64::from(BPF_NOEXIST)) {
        release(key.executor, Table::Contexts, 1);
        if error != EEXIST {
            if error != E2BIG {
                count(Counter::MAP_BUSY);
            }
            return None;
        }
    }
    CONTEXTS.get_ptr_mut(key)
}

/// The kernel's answer for a full table.
const E2BIG: i32 = -7;
