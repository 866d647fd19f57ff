//! The boot clock, which stamps every record of the kernel side.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds since boot, including suspend: the clock of the kernel side.
#[must_use]
pub fn now_boot_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME)
        .map(|time| Duration::from(time).as_nanos() as u64)
        .unwrap_or(0)
}
