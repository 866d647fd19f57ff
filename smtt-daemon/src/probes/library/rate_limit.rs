//! How many files a user may bring. Before Linux 6.6 each costs the kernel some 100 ms; forks of all processes wait for a
//! part of that.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Files at once.
const BURST: u32 = 32;
/// Time after which one more file is allowed.
const EACH: Duration = Duration::from_secs(2);

/// Files that each user has brought lately.
#[derive(Debug, Default)]
pub struct Pace {
    /// When the user's burst is whole again.
    whole: HashMap<u32, Instant>,
}

impl Pace {
    /// Counts a file of a user; false where it is one too many.
    pub fn admits(&mut self, user: u32, now: Instant) -> bool {
        self.whole.retain(|_, whole| *whole > now);
        let whole = self.whole.entry(user).or_insert(now);
        let next = *whole + EACH;
        let admitted = next <= now + EACH * BURST;
        if admitted {
            *whole = next;
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_admitted_and_then_a_steady_pace() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        let admitted =
            |pace: &mut Pace, user, now| (0..1000).filter(|_| pace.admits(user, now)).count();
        assert_eq!(admitted(&mut pace, 1000, now), BURST as usize);
        assert_eq!(admitted(&mut pace, 0, now), BURST as usize);
        assert_eq!(admitted(&mut pace, 1000, now + EACH * 10), 10);
        assert_eq!(
            admitted(&mut pace, 1000, now + EACH * 10_000),
            BURST as usize
        );
        assert_eq!(pace.whole.len(), 1);
    }
}
