//! Adds a page fault to the counter of its context, or to a class of unattributed; and now and then sends its
//! address.

use smtt_common::counter::{ContextKey, Counter, ExecutorCounters, FaultCounters, Unattributed, UNATTRIBUTED_CLASSES};
use smtt_common::event::fault::FaultSample;
use smtt_common::settings::Process;

use crate::maps::{BUDGETS, CONTEXTS, EXECUTORS, SAMPLER, add, boot_second, count, setting};
use crate::{context, emit};

/// Which of the counters a fault adds to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Read,
    Write,
    Unknown,
    /// Counted besides one of the others.
    Major,
}

const NO_FAULTS: FaultCounters = FaultCounters { read: 0, write: 0, unknown: 0, major: 0 };

/// Counts a fault of the current thread, if its process belongs to an executor.
#[inline(always)]
pub fn fault(kind: Fault, address: u64) {
    let (pid, tid) = context::current();
    let Some(process) = context::process(pid) else {
        return;
    };
    let Some(executor) = EXECUTORS.get_ptr_mut(process.executor) else {
        return;
    };
    let found = context::of_current(process, tid);
    let counted = match found {
        Ok(key) => in_context(&key, kind),
        Err(class) => Err(class),
    };
    match counted {
        // SAFETY: a pointer into the executor's row on this CPU.
        Ok(()) => bump(unsafe { &raw mut (*executor).attributed }, kind),
        Err(class) => {
            let class = class.0 as usize;
            if class < UNATTRIBUTED_CLASSES {
                // SAFETY: as above, and the index is checked.
                bump(unsafe { (&raw mut (*executor).unattributed).cast::<FaultCounters>().add(class) }, kind);
            }
        }
    }
    if kind != Fault::Major {
        sample(process, executor, pid, tid, kind, address, found.ok());
    }
}

/// Adds to the context's counter, making its row where there is none yet.
#[inline(always)]
fn in_context(key: &ContextKey, kind: Fault) -> Result<(), Unattributed> {
    if let Some(row) = CONTEXTS.get_ptr_mut(key) {
        bump(row, kind);
        return Ok(());
    }
    let Some(budget) = BUDGETS.get_ptr_mut(key.executor) else {
        return Err(Unattributed::TABLE_FULL);
    };
    // SAFETY: a pointer into a map row.
    if unsafe { (*budget).contexts } >= u64::from(setting!(contexts_per_executor)) {
        return Err(Unattributed::TABLE_FULL);
    }
    const NOEXIST: u64 = 1;
    if CONTEXTS.insert(key, &NO_FAULTS, NOEXIST).is_ok() {
        // SAFETY: as above.
        add(unsafe { &raw mut (*budget).contexts }, 1);
    }
    let Some(row) = CONTEXTS.get_ptr_mut(key) else {
        count(Counter::MAP_BUSY);
        return Err(Unattributed::TABLE_FULL);
    };
    bump(row, kind);
    Ok(())
}

/// Adds one to the counter of that kind.
#[inline(always)]
fn bump(counters: *mut FaultCounters, kind: Fault) {
    // SAFETY: every caller passes a pointer into a map row.
    let counter = unsafe {
        match kind {
            Fault::Read => &raw mut (*counters).read,
            Fault::Write => &raw mut (*counters).write,
            Fault::Unknown => &raw mut (*counters).unknown,
            Fault::Major => &raw mut (*counters).major,
        }
    };
    add(counter, 1);
}

/// Sends every so-manieth fault with its address, within a rate.
#[inline(always)]
fn sample(process: &Process, executor: *mut ExecutorCounters, pid: u32, tid: u32, kind: Fault, address: u64, key: Option<ContextKey>) {
    let every = setting!(fault_sample_every);
    if every == 0 {
        return;
    }
    let Some(sampler) = SAMPLER.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: this CPU's own row; a fault hook that interrupts another on the same CPU at worst skews the interval.
    unsafe {
        (*sampler).faults += 1;
        if (*sampler).faults < u64::from(every) {
            return;
        }
        (*sampler).faults = 0;
        add(&raw mut (*executor).samples_seen, 1);
        let second = boot_second();
        if (*sampler).second != second {
            (*sampler).second = second;
            (*sampler).sent = 0;
        }
        (*sampler).sent += 1;
        if (*sampler).sent > u64::from(setting!(fault_samples_per_second)) {
            add(&raw mut (*executor).samples_rate_limited, 1);
            return;
        }
    }
    let access = match kind {
        Fault::Write => smtt_common::event::fault::ACCESS_WRITE,
        Fault::Unknown => smtt_common::event::fault::ACCESS_UNKNOWN,
        _ => 0,
    };
    let payload = FaultSample { address, access, reserved: 0, context: key.unwrap_or_default() };
    if !emit::fault_sample(process.executor, pid, tid, payload) {
        // SAFETY: as above.
        add(unsafe { &raw mut (*executor).samples_ring_full }, 1);
    }
}
