//! Page walks and cycles: every overflow of a sampled event adds what the event has counted since its last sample to
//! the context that it interrupted.
//!
//! The hook runs wherever the counter overflows, on x86 as a non-maskable interrupt. It may interrupt any other hook,
//! so it touches only tables whose rows can be looked up and added to at any time; where a new row cannot be created
//! at that moment, the sample is counted as refused.

use core::ptr;

use aya_ebpf::{
    EbpfContext,
    bindings::{BPF_NOEXIST, bpf_perf_event_value},
    helpers::generated::{bpf_get_attach_cookie, bpf_perf_prog_read_value},
    macros::perf_event,
    programs::PerfEventContext,
};
use smtt_common::{
    counter::{ContextKey, Counter},
    event::{
        Kind,
        fault::{ACCESS_WRITE, FaultSample},
    },
    page_walk::{
        COOKIE_ADDRESS, COOKIE_CHANNEL_MASK, COOKIE_EVENT_SHIFT, COOKIE_WRITE, WALK_CHANNELS,
        WALK_EVENTS, WalkCounters,
    },
};

use crate::{
    context::{Running, running},
    emit::{record, record_bytes},
    maps::{EXECUTORS, NO_WALKS, WALK_LAST, WALK_TOTALS, WALKS, add, count},
    shares::{Table, claim, release, spend_on_sample, uid},
    tables::EEXIST,
};

/// Runs when an event's counter overflows. The cookie identifies the event.
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
    let channel = (cookie & COOKIE_CHANNEL_MASK) as usize;
    // With period 1 each sample is one event; counted events without a sample belong to other processes.
    let events = if period == 1 {
        1
    } else {
        since_last_sample(&ctx, cookie).unwrap_or(period)
    };
    if let Some(totals) = WALK_TOTALS.get_ptr_mut(0) {
        add_sample(totals, channel, events);
    }
    let Some(running) = running() else {
        return 0;
    };
    if channel < WALK_CHANNELS {
        match row(&running) {
            Some(row) => add_sample(row, channel, events),
            None => count(Counter::WALK_SAMPLES_REFUSED),
        }
    }
    if cookie & COOKIE_ADDRESS != 0 && address != 0 {
        send(&running, address, cookie);
    }
    0
}

/// The event's count since its last sample on this CPU; `None` where the kernel does not report it.
#[inline(always)]
fn since_last_sample(ctx: &PerfEventContext, cookie: u64) -> Option<u64> {
    let event = (cookie >> COOKIE_EVENT_SHIFT) as u32 & (WALK_EVENTS as u32 - 1);
    let last = WALK_LAST.get_ptr_mut(event)?;
    let mut now = bpf_perf_event_value {
        counter: 0,
        enabled: 0,
        running: 0,
    };
    // SAFETY: the context is this program's own, and the buffer has the size that the helper gets.
    let read = unsafe {
        bpf_perf_prog_read_value(
            ctx.ctx,
            &raw mut now,
            size_of::<bpf_perf_event_value>() as u32,
        )
    };
    if read != 0 {
        return None;
    }
    // SAFETY: the row was just looked up; an event's samples on one CPU come one after the other.
    let before = unsafe { ptr::replace(last, now.counter) };
    Some(if now.counter >= before {
        now.counter - before
    } else {
        // The event was closed and opened again.
        now.counter
    })
}

#[inline(always)]
fn add_sample(counters: *mut WalkCounters, channel: usize, events: u64) {
    if channel >= WALK_CHANNELS {
        return;
    }
    // SAFETY: the callers pass pointers into map values, and the channel is below the number of channels.
    unsafe {
        add(
            (&raw mut (*counters).events).cast::<u64>().add(channel),
            events,
        );
        add((&raw mut (*counters).samples).cast::<u64>().add(channel), 1);
    }
}

/// The row of the context, or of the reason why there is none. A new row is created if the executor has not used up
/// its share.
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
    if !claim(running.executor, Table::Walks) {
        return None;
    }
    if let Err(error) = WALKS.insert(&key, &NO_WALKS, u64::from(BPF_NOEXIST)) {
        release(running.executor, Table::Walks, 1);
        if error != EEXIST {
            return None;
        }
    }
    WALKS.get_ptr_mut(&key)
}

/// Sends a sample with the address of its data, within the rates of the executor and its user.
#[inline(always)]
fn send(running: &Running, address: u64, cookie: u64) {
    let Some(executor) = EXECUTORS.get_ptr_mut(running.executor) else {
        return;
    };
    // SAFETY (here and below): the row was just looked up.
    add(unsafe { &raw mut (*executor).samples_seen }, 1);
    if !spend_on_sample(running.executor, record_bytes::<FaultSample>()) {
        add(unsafe { &raw mut (*executor).samples_rate_limited }, 1);
        return;
    }
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
    if !record(
        Kind::WALK_SAMPLE,
        running.executor,
        uid(running.executor),
        &payload,
    ) {
        add(unsafe { &raw mut (*executor).samples_ring_full }, 1);
    }
}
