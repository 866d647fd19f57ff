//! The resolver's rate limit: pages per second and CPU time per second, whichever is less.
//!
//! Both are token buckets with room for a tenth of a second. A slice may begin while neither is empty. A slice may
//! overdraw a bucket; the next slice then waits until the debt is refilled.

/// Capacity of the buckets, in seconds of their rate.
const BURST: f64 = 0.1;

/// A bucket.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    per_second: f64,
    level: f64,
}

impl Bucket {
    fn new(per_second: u64) -> Self {
        let per_second = per_second as f64;
        Self {
            per_second,
            level: per_second * BURST,
        }
    }

    fn fill(&mut self, seconds: f64) {
        self.level = (self.level + self.per_second * seconds).min(self.per_second * BURST);
    }

    /// Seconds until the bucket is no longer empty.
    fn wait(&self) -> f64 {
        if self.level > 0.0 {
            0.0
        } else {
            (1.0 - self.level) / self.per_second
        }
    }
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    pages: Bucket,
    cpu_ns: Bucket,
    at_ns: u64,
}

impl Budget {
    /// Full buckets.
    #[must_use]
    pub fn new(pages_per_second: u64, cpu_ns_per_second: u64, now_ns: u64) -> Self {
        Self {
            pages: Bucket::new(pages_per_second.max(1)),
            cpu_ns: Bucket::new(cpu_ns_per_second.max(1)),
            at_ns: now_ns,
        }
    }

    /// Nanoseconds until the next slice may begin; zero when it may begin now.
    pub fn wait_ns(&mut self, now_ns: u64) -> u64 {
        let seconds = now_ns.saturating_sub(self.at_ns) as f64 / 1e9;
        self.at_ns = self.at_ns.max(now_ns);
        self.pages.fill(seconds);
        self.cpu_ns.fill(seconds);
        (self.pages.wait().max(self.cpu_ns.wait()) * 1e9).ceil() as u64
    }

    /// Takes the cost of a slice out of the buckets.
    pub fn spend(&mut self, pages: u64, cpu_ns: u64) {
        self.pages.level -= pages as f64;
        self.cpu_ns.level -= cpu_ns as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages inspected in ten seconds of slices of this cost.
    fn ten_seconds(pages: u64, cpu_ns: u64) -> u64 {
        let mut budget = Budget::new(1000, 2_000_000, 0);
        let (mut now, mut looked) = (0, 0);
        while now < 10_000_000_000 {
            let wait = budget.wait_ns(now);
            if wait == 0 {
                budget.spend(pages, cpu_ns);
                looked += pages;
                now += cpu_ns;
            }
            now += wait;
        }
        looked
    }

    #[test]
    fn the_pages_bind() {
        let looked = ten_seconds(64, 1000);
        assert!((9_900..=10_200).contains(&looked), "{looked}");
    }

    #[test]
    fn the_time_binds() {
        // 2 ms per second are 20 slices of 100 us, 200 in ten seconds.
        let looked = ten_seconds(10, 100_000);
        assert!((1_980..=2_030).contains(&looked), "{looked}");
    }

    #[test]
    fn one_slice_that_is_too_large_is_paid_for() {
        let mut budget = Budget::new(1000, 2_000_000, 0);
        budget.spend(5100, 0);
        let wait = budget.wait_ns(0);
        assert!((5_000_000_000..5_002_000_000).contains(&wait), "{wait}");
    }
}
