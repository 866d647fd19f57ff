//! Page walks and cycles: every overflow of a sampled event adds its period to the context that it interrupted.
//!
//! The hook runs wherever the counter overflows, on x86 as a non-maskable interrupt. It may come in the middle of any
//! other hook, so it touches only tables whose rows can be looked up and added to at any time; where a new row
//! cannot be made just then, the sample is counted as refused.

use aya_ebpf::{
    EbpfContext, bindings::BPF_NOEXIST, helpers::generated::bpf_get_attach_cookie,
    macros::perf_event, programs::PerfEventContext,
};
use smtt_common::{
    counter::{ContextKey, Counter},
    event::{
        Kind,
        fault::{ACCESS_WRITE, FaultSample},
    },
    walk::{COOKIE_ADDRESS, COOKIE_SLOT_MASK, COOKIE_WRITE, WALK_SLOTS, WalkCounters},
};

use crate::{
    context::{Running, running},
    emit::record,
    maps::{
        BUDGETS, EXECUTORS, NO_WALKS, WALK_TOTALS, WALKS, add, add_below, count, setting, take,
    },
    tables::EEXIST,
};

/// An event's counter overflowed. The cookie says which event it is.
#[perf_event]
pub fn walk(ctx: PerfEventContext) -> i32 {
    // SAFETY: the context is this program's own.
    let (cookie, period, address) = unsafe {
        (
            bpf_get_attach_cookie(ctx.as_ptr()),
            (*ctx.ctx).sample_period,
            (*ctx.ctx).addr,
        )
    };
    let slot = (cookie & COOKIE_SLOT_MASK) as usize;
    if let Some(totals) = WALK_TOTALS.get_ptr_mut(0) {
        add_sample(totals, slot, period);
    }
    let Some(running) = running() else {
        return 0;
    };
    if slot < WALK_SLOTS {
        match row(&running) {
            Some(row) => add_sample(row, slot, period),
            None => count(Counter::WALK_SAMPLES_REFUSED),
        }
    }
    if cookie & COOKIE_ADDRESS != 0 && address != 0 {
        send(&running, address, cookie);
    }
    0
}

#[inline(always)]
fn add_sample(counters: *mut WalkCounters, slot: usize, period: u64) {
    if slot >= WALK_SLOTS {
        return;
    }
    // SAFETY: the callers pass pointers into map values, and the slot is below the number of slots.
    unsafe {
        add(
            (&raw mut (*counters).events).cast::<u64>().add(slot),
            period,
        );
        add((&raw mut (*counters).samples).cast::<u64>().add(slot), 1);
    }
}

/// The row of the context, or of the reason why there is none; made if it is new and the executor has not used up its
/// share.
#[inline(always)]
fn row(running: &Running) -> Option<*mut WalkCounters> {
    let key = if running.attributed {
        running.key
    } else {
        ContextKey::without_context(running.executor, running.class)
    };
    if let Some(row) = WALKS.get_ptr_mut(&key) {
        return Some(row);
    }
    let budget = BUDGETS.get_ptr_mut(running.executor)?;
    // SAFETY: the row was just looked up.
    let walks = unsafe { &raw mut (*budget).walks };
    if !add_below(walks, u64::from(setting!(contexts_per_executor))) {
        return None;
    }
    if let Err(error) = WALKS.insert(&key, &NO_WALKS, u64::from(BPF_NOEXIST)) {
        take(walks, 1);
        if error != EEXIST {
            return None;
        }
    }
    WALKS.get_ptr_mut(&key)
}

/// Sends a sample with the address of its data.
#[inline(always)]
fn send(running: &Running, address: u64, cookie: u64) {
    let Some(executor) = EXECUTORS.get_ptr_mut(running.executor) else {
        return;
    };
    // SAFETY (here and below): the row was just looked up.
    add(unsafe { &raw mut (*executor).samples_seen }, 1);
    let payload = FaultSample {
        address,
        access: if cookie & COOKIE_WRITE == 0 {
            0
        } else {
            ACCESS_WRITE
        },
        reserved: 0,
        context: running.key,
    };
    if !record(Kind::WALK_SAMPLE, running.executor, &payload) {
        add(unsafe { &raw mut (*executor).samples_ring_full }, 1);
    }
}
