//! Runs tasks again, in the order in which they were launched, each on the core that is free first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Milliseconds until the last of the tasks ends, on so many cores.
#[must_use]
pub fn length(durations: impl Iterator<Item = f64>, cores: usize) -> f64 {
    // In microseconds, because heaps order whole numbers.
    let mut free: BinaryHeap<Reverse<u64>> = (0..cores.max(1)).map(|_| Reverse(0)).collect();
    let mut end = 0;
    for duration in durations {
        #[cfg(test)]
        STEPS.set(STEPS.get() + 1);
        let Some(Reverse(begin)) = free.pop() else {
            break;
        };
        let until = begin.saturating_add((duration.max(0.0) * 1000.0) as u64);
        end = end.max(until);
        free.push(Reverse(until));
    }
    end as f64 / 1000.0
}

#[cfg(test)]
thread_local! {
    /// Tasks that this thread's simulations ran.
    pub(super) static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_take_the_core_that_is_free_first() {
        assert_eq!(length([3.0, 1.0, 1.0, 5.0].into_iter(), 2), 7.0);
        assert_eq!(length([3.0, 1.0, 1.0, 5.0].into_iter(), 1), 10.0);
        assert_eq!(length(std::iter::empty(), 0), 0.0);
    }
}
