//! What the processor's counters tell about page walks, sampled: how many events of each kind fell into a context.
//!
//! Every event that the daemon opens has a channel. Whenever an event's counter overflows, the kernel side adds what the
//! event has counted since its last sample to the channel of the context that was interrupted. That is the event's period,
//! and more where the interrupt came late or was held back: no event is lost between two samples, and none is made
//! up. What a channel counts is the daemon's knowledge (`smtt_daemon::probes::PageWalkReadings`); the kernel side only
//! adds.

use crate::context::Activity;
use crate::counter::{ContextKey, Unattributed};

/// Channels for events. Three are used on most cores (cycles, reads, writes); events that take turns have their own.
pub const WALK_CHANNELS: usize = 8;

/// Events that are open on one CPU at most: a role that is a sum has several for its channel.
pub const WALK_EVENTS: usize = 16;

/// Events of one context, by channel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkCounters {
    /// Events: what was counted from one sample to the next, added up.
    pub events: [u64; WALK_CHANNELS],
    /// Samples that they are known from.
    pub samples: [u64; WALK_CHANNELS],
}

impl WalkCounters {
    /// Adds `more`; saturates, because a counter that lies must not stop the daemon.
    pub fn add(&mut self, more: &Self) {
        for channel in 0..WALK_CHANNELS {
            self.events[channel] = self.events[channel].saturating_add(more.events[channel]);
            self.samples[channel] = self.samples[channel].saturating_add(more.samples[channel]);
        }
    }

    /// Whether no sample fell here.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.samples.iter().all(|samples| *samples == 0)
    }
}

impl ContextKey {
    /// The row of an executor's samples that have no context. They are rare next to page faults, so they share the
    /// contexts' table: no context of a channel is idle.
    #[must_use]
    pub const fn without_context(executor: u64, class: Unattributed) -> Self {
        Self {
            executor,
            task_attempt_id: u64::MAX,
            stage_id: u32::MAX,
            rdd_plus_one: 0,
            stage_attempt: 0,
            activity: Activity::IDLE.0,
            access_region: class.0,
            reserved: 0,
        }
    }

    /// Why the samples of this row have no context; `None` where they have one.
    #[must_use]
    pub const fn class(&self) -> Option<Unattributed> {
        if self.activity == Activity::IDLE.0 {
            Some(Unattributed(self.access_region))
        } else {
            None
        }
    }
}

/// What the kernel side's program is told with every sample of an event: its channel in the low byte, and the bits below.
pub const COOKIE_CHANNEL_MASK: u64 = 0xff;
/// The event's samples carry the address of the data: they also go to the ring.
pub const COOKIE_ADDRESS: u64 = 1 << 8;
/// The accesses of such an event are writes.
pub const COOKIE_WRITE: u64 = 1 << 9;
/// Where the event's number is, unique on its CPU and below [`WALK_EVENTS`].
pub const COOKIE_EVENT_SHIFT: u32 = 16;

const _: () = {
    assert!(size_of::<WalkCounters>() == 128);
    assert!(WALK_CHANNELS.is_power_of_two() && WALK_EVENTS.is_power_of_two());
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_without_context_says_why() {
        let row = ContextKey::without_context(7, Unattributed::GC);
        assert_eq!(row.class(), Some(Unattributed::GC));
        let context = ContextKey {
            activity: Activity::COMPUTE.0,
            access_region: 1,
            ..ContextKey::default()
        };
        assert_eq!(context.class(), None);
    }
}
