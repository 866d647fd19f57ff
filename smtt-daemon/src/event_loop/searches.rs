//! When the processes of an executor in another pid namespace may be searched. A search reads all of `/proc` on the event
//! loop, and an executor chooses how often it reports a worker: users have shares of the time.

use std::collections::BTreeMap;

/// Searches of one user may take one part of the time in this many.
const USER_SHARE: u64 = 40;
/// All searches together may take one part of the time in this many.
const SHARE: u64 = 5;

/// Times in nanoseconds since boot.
#[derive(Debug, Default)]
pub(super) struct Searches {
    all_ns: u64,
    /// By user; those that may search are not here.
    users_ns: BTreeMap<u32, u64>,
}

impl Searches {
    /// Whether processes of this user may be searched now.
    pub(super) fn may_begin(&self, user: u32, now_ns: u64) -> bool {
        let own = self.users_ns.get(&user).copied().unwrap_or(0);
        now_ns >= own.max(self.all_ns)
    }

    /// Records a search for this user.
    pub(super) fn record(&mut self, user: u32, begin_ns: u64, end_ns: u64) {
        let took = end_ns.saturating_sub(begin_ns);
        self.all_ns = end_ns.saturating_add((SHARE - 1).saturating_mul(took));
        self.users_ns.retain(|_, until| *until > end_ns);
        let until = end_ns.saturating_add((USER_SHARE - 1).saturating_mul(took));
        self.users_ns.insert(user, until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_who_wants_all_searches_leaves_time_to_others() {
        const TOOK: u64 = 10;
        let (greedy, other) = (1..=4, 5);
        let mut searches = Searches::default();
        let (mut now, mut waited) = (0, 0);
        let mut by_user = BTreeMap::<u32, u64>::new();
        while now < 1_000_000 {
            // The greedy ones ask first, always.
            let next = greedy.clone().find(|user| searches.may_begin(*user, now));
            if let Some(user) = next {
                searches.record(user, now, now + TOOK);
                *by_user.entry(user).or_default() += TOOK;
                now += TOOK;
            }
            if now % 10_000 < TOOK {
                let begin = now;
                while !searches.may_begin(other, now) {
                    now += 1;
                }
                waited = waited.max(now - begin);
                searches.record(other, now, now + TOOK);
                now += TOOK;
            }
            now += 1;
            assert!(searches.users_ns.len() <= (USER_SHARE / SHARE) as usize);
        }
        assert!(
            waited <= SHARE * TOOK,
            "the other user waited {waited}, a search takes {TOOK}"
        );
        for (user, took) in by_user {
            let share = took as f64 / now as f64;
            assert!(
                (0.015..=0.0251).contains(&share),
                "user {user}: {share} of the time"
            );
        }
    }
}
