//! The kernel's clock as an event. It divides the time of tasks on CPUs by activity where the processor's cycles cannot:
//! every machine has it, and it says nothing of page walks.

use std::collections::BTreeSet;

use smtt_common::page_walk::{COOKIE_EVENT_SHIFT, WALK_CHANNELS, WALK_EVENTS};
use smtt_model::cpu::{Encoding, Quantity, Role};

use super::period::Period;
use super::{WantedChannel, WantedEvent, WantedGroup};

/// Name of the event, in perf's notation.
pub const CLOCK: &str = "cpu-clock";
/// The clock's channel: no event of page walks has it.
pub const CLOCK_CHANNEL: usize = WALK_CHANNELS - 1;
/// The clock's number on each CPU.
pub(super) const CLOCK_EVENT: usize = WALK_EVENTS - 1;
/// `PERF_COUNT_SW_CPU_CLOCK`.
const CPU_CLOCK: u64 = 0;

/// The clock's event on some CPUs, with what its channel means.
#[must_use]
pub fn clock(samples_per_second: u32, cpus: BTreeSet<u32>) -> (WantedGroup, WantedChannel) {
    let encoding = Encoding::software(CPU_CLOCK);
    let period = Period::new(
        &encoding,
        Quantity::Cycles,
        true,
        u64::from(samples_per_second),
    );
    let channel = WantedChannel {
        role: Role::Cycles,
        event: CLOCK.to_owned(),
        quantity: Quantity::Cycles,
        pass: 0,
        period,
        cycles: None,
        hardware: false,
    };
    let group = WantedGroup {
        cpus,
        pass: 0,
        events: vec![WantedEvent {
            encoding,
            // The only one of its list.
            channel: 0,
            cookie: (CLOCK_EVENT << COOKIE_EVENT_SHIFT | CLOCK_CHANNEL) as u64,
            addresses: false,
        }],
    };
    (group, channel)
}
