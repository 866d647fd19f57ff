//! What failed and is tried again, with growing pauses.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Pause before the first retry; it doubles up to the last.
const FIRST: Duration = Duration::from_secs(1);
const LAST: Duration = Duration::from_secs(60);

/// What failed, with the time of the next try and the pause after it.
#[derive(Debug)]
pub struct Retries<K>(BTreeMap<K, (Instant, Duration)>);

impl<K> Default for Retries<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Copy> Retries<K> {
    /// A try failed. Returns whether it was the first one.
    pub fn failed(&mut self, what: K, now: Instant) -> bool {
        let first = !self.0.contains_key(&what);
        let (next, pause) = self.0.entry(what).or_insert((now, FIRST));
        *next = now + *pause;
        *pause = (*pause * 2).min(LAST);
        first
    }

    /// What is not to be tried again.
    pub fn retain(&mut self, stays: impl Fn(&K) -> bool) {
        self.0.retain(|what, _| stays(what));
    }

    /// What is due now.
    pub fn due(&self, now: Instant) -> Vec<K> {
        let due = self.0.iter().filter(|(_, (next, _))| *next <= now);
        due.map(|(what, _)| *what).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_due_again_after_growing_pauses() {
        let (mut retries, start) = (Retries::default(), Instant::now());
        let mut tries = Vec::new();
        assert!(retries.failed(7, start), "the first time");
        for second in 0..200 {
            let now = start + Duration::from_secs(second);
            if retries.due(now) == [7] {
                tries.push(second);
                assert!(!retries.failed(7, now));
            }
        }
        assert_eq!(tries, [1, 3, 7, 15, 31, 63, 123, 183]);
        retries.retain(|what| *what != 7);
        assert!(retries.due(start + LAST * 100).is_empty());
        assert!(retries.failed(7, start), "forgotten");
    }
}
