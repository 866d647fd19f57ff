//! One tick: everything that the daemon reads at regular intervals, applied together and in a fixed order.

use smtt_common::context::HeapAddresses;

use super::{SlotFileCounters, State};
use crate::readings::Readings;

/// Readings of one tick of the daemon.
#[derive(Clone, Debug, Default)]
pub struct Tick {
    /// The kernel side's counters.
    pub readings: Readings,
    /// Counters of each executor's slot file, read after the kernel side's counters, so that they are never behind
    /// those.
    pub slots: Vec<(u64, SlotFileCounters)>,
    /// How each executor's addresses on the heap are tracked, and how many collections have begun there.
    pub collections: Vec<(u64, HeapAddresses, u64)>,
    /// Executors whose slot file could not be read for this tick: they keep their last counters, and their addresses on
    /// the heap are stale.
    pub unread: Vec<u64>,
    /// Executors with a requested resync, and the number of the request.
    pub requests: Vec<(u64, u64)>,
    /// Executors whose process is gone without a record of its exit, by their slot file.
    pub dead: Vec<u64>,
}

impl State {
    /// Applies a tick. Counters come before the ends of executors, so that a dead executor keeps its last counts; the
    /// point of the history follows; expired rows are removed last. Returns the keys of removed executors: their rows
    /// in the kernel side can be removed too.
    pub fn take_in(&mut self, tick: &Tick, now_ns: u64) -> Vec<u64> {
        self.add(&tick.readings, now_ns);
        for (executor, slots) in &tick.slots {
            self.set_slots(*executor, *slots);
        }
        for (executor, addresses, begun) in &tick.collections {
            self.set_collections(*executor, *addresses, *begun);
        }
        for executor in &tick.unread {
            self.collections_unread(*executor);
        }
        for (executor, request) in &tick.requests {
            self.resync_requested(*executor, *request, now_ns);
        }
        for executor in tick.dead.iter().chain(&tick.readings.gone) {
            self.executor_gone(*executor, now_ns);
        }
        self.record_history(now_ns);
        self.expire(now_ns)
    }
}
