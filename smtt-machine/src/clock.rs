//! The boot clock, which stamps every record of the kernel side, the wall clock, and a thread's CPU time.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

fn now(clock: ClockId) -> u64 {
    clock_gettime(clock)
        .map(|time| Duration::from(time).as_nanos() as u64)
        .unwrap_or(0)
}

/// Nanoseconds since boot, including suspend: the clock of the kernel side.
#[must_use]
pub fn now_boot_ns() -> u64 {
    now(ClockId::CLOCK_BOOTTIME)
}

/// Nanoseconds since 1970.
#[must_use]
pub fn now_unix_ns() -> u64 {
    now(ClockId::CLOCK_REALTIME)
}

/// CPU time of this thread: its waits for a CPU are no cost of what it does.
#[must_use]
pub fn thread_cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// The kernel's id of this run of the machine; empty where it is not known.
#[must_use]
pub fn boot_id() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    text.unwrap_or_default().trim().to_owned()
}
