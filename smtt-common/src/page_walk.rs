//! Sampled counts of the processor's page-walk events per context.
//!
//! Every event that the daemon opens has a channel. Whenever an event's counter overflows, the kernel side adds what
//! the event has counted since its last sample to the channel of the context that was interrupted. That is the event's
//! period, or more where the interrupt was delayed: no event between two samples is lost, and none is invented. Only
//! the daemon knows what a channel counts (`smtt_daemon::probes::PageWalkReadings`); the kernel side only adds.

use crate::context::Activity;
use crate::counter::{ContextKey, Unattributed};

/// Channels for events. Three are used on most cores (cycles, reads, writes); events that take turns have their own.
pub const WALK_CHANNELS: usize = 8;

/// Most open events per CPU: a role that is a sum has several events for its channel.
pub const WALK_EVENTS: usize = 16;

/// Events of one context, by channel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkCounters {
    /// Sum of the counts from one sample to the next.
    pub events: [u64; WALK_CHANNELS],
    /// Number of samples in the sum.
    pub samples: [u64; WALK_CHANNELS],
}

impl WalkCounters {
    /// Adds `more`; saturates, because a wrong counter must not stop the daemon.
    pub fn add(&mut self, more: &Self) {
        for channel in 0..WALK_CHANNELS {
            self.events[channel] = self.events[channel].saturating_add(more.events[channel]);
            self.samples[channel] = self.samples[channel].saturating_add(more.samples[channel]);
        }
    }

    /// Whether there is no sample.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.samples.iter().all(|samples| *samples == 0)
    }
}

impl ContextKey {
    /// The row of an executor's samples that have no context. They are rare compared with page faults, so they share
    /// the contexts' table: no real context has the idle activity.
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

/// The cookie that the kernel side's program gets with every sample of an event: the channel in the low byte, and the
/// bits below.
pub const COOKIE_CHANNEL_MASK: u64 = 0xff;
/// Bit: the event's samples carry the address of the data and also go to the ring.
pub const COOKIE_ADDRESS: u64 = 1 << 8;
/// Bit: the sampled accesses are writes.
pub const COOKIE_WRITE: u64 = 1 << 9;
/// Position of the event's number, which is unique on its CPU and below [`WALK_EVENTS`].
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
