//! Faults of an executor's process from before the kernel side counted them.
//!
//! The kernel's count of the process, read before the counters, minus the counted faults of the process is never more
//! than what was there before: the counters are read later. It is exactly that where no fault happens in between, so the
//! largest of several readings is the answer.

use std::collections::BTreeMap;

use smtt_machine::proc;

/// Readings that are compared; a process that faults all the time has a lower bound after them.
const READINGS: u32 = 30;

/// The answers so far, by executor.
#[derive(Debug, Default)]
pub struct Before {
    found: BTreeMap<u64, Found>,
}

#[derive(Debug, Default)]
struct Found {
    faults: u64,
    readings: u32,
}

impl Before {
    /// The kernel's counts of the living executors that are still compared, by key. `living` has process ids and keys.
    pub fn kernel_counts(&self, living: &[(u32, u64)]) -> Vec<(u64, u64)> {
        living
            .iter()
            .filter(|(_, key)| {
                self.found
                    .get(key)
                    .is_none_or(|found| found.readings < READINGS)
            })
            .filter_map(|(pid, key)| Some((*key, proc::page_faults(*pid)?)))
            .collect()
    }

    /// Compares a count of the kernel with the faults of the process that were counted by a later moment.
    pub fn compare(&mut self, executor: u64, kernel: u64, counted: u64) {
        let found = self.found.entry(executor).or_default();
        found.faults = found.faults.max(kernel.saturating_sub(counted));
        found.readings += 1;
    }

    /// The answer for each executor.
    pub fn faults(&self) -> Vec<(u64, u64)> {
        self.found
            .iter()
            .map(|(executor, found)| (*executor, found.faults))
            .collect()
    }

    /// Forgets an executor.
    pub fn forget(&mut self, executor: u64) {
        self.found.remove(&executor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_difference_is_the_answer() {
        let mut before = Before::default();
        // 100 faults before; 7, 0 and 3 faults between the two reads.
        for (kernel, counted) in [(150, 57), (160, 60), (200, 103)] {
            before.compare(1, kernel, counted);
        }
        assert_eq!(before.faults(), [(1, 100)]);
        before.forget(1);
        assert!(before.faults().is_empty());
    }
}
