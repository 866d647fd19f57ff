//! Boot time and wall time, related once.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};

/// The relation between the kernel's boot clock, which stamps records, and the wall clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Wall time of boot, in nanoseconds since 1970.
    boot_unix_ns: u64,
}

impl Clock {
    /// Relates the two clocks now. A later step of the wall clock does not change times that were shown.
    #[must_use]
    pub fn start() -> Self {
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or(Duration::ZERO);
        Self {
            boot_unix_ns: u64::try_from(wall.as_nanos())
                .unwrap_or(u64::MAX)
                .saturating_sub(now_boot_ns()),
        }
    }

    /// Wall time in nanoseconds since 1970 of a record's time.
    #[must_use]
    pub fn unix_ns(&self, boot_ns: u64) -> u64 {
        self.boot_unix_ns.saturating_add(boot_ns)
    }
}

/// Nanoseconds since boot, including suspend: the clock of the kernel side.
#[must_use]
pub fn now_boot_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME)
        .map(|time| Duration::from(time).as_nanos() as u64)
        .unwrap_or(0)
}
