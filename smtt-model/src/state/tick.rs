//! One tick: everything that is read outside at regular intervals, taken in at once and in one order.

use smtt_common::context::HeapAddresses;

use super::{SlotFileCounters, State};
use crate::readings::Readings;

/// What one tick of the daemon has read.
#[derive(Clone, Debug, Default)]
pub struct Tick {
    /// The kernel side's counters.
    pub readings: Readings,
    /// Counters of each executor's slot file, read after the kernel side's, so that they are never behind them.
    pub slots: Vec<(u64, SlotFileCounters)>,
    /// Of each executor, how its addresses on the heap are tracked and how many collections have begun.
    pub collections: Vec<(u64, HeapAddresses, u64)>,
    /// Executors that were asked for a resync, with the number of the request.
    pub requests: Vec<(u64, u64)>,
    /// Executors whose process is gone though no record said so.
    pub dead: Vec<u64>,
}

impl State {
    /// Takes in a tick. Counters come before the ends of executors, so that a dead executor keeps its last counts; the
    /// point of the history comes after both; rows are forgotten last. Returns the keys of forgotten executors, whose
    /// rows in the kernel side can go too.
    pub fn take_in(&mut self, tick: &Tick, now_ns: u64) -> Vec<u64> {
        self.add(&tick.readings, now_ns);
        for (executor, slots) in &tick.slots {
            self.set_slots(*executor, *slots);
        }
        for (executor, addresses, begun) in &tick.collections {
            self.set_collections(*executor, *addresses, *begun);
        }
        for (executor, request) in &tick.requests {
            self.resync_requested(*executor, *request, now_ns);
        }
        for executor in &tick.dead {
            self.executor_gone(*executor, now_ns);
        }
        self.record_history(now_ns);
        self.expire(now_ns)
    }
}
