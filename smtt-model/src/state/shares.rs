//! Rows and bytes of each user, and what a user may still take.
//!
//! Shares are max-min fair: a user may use what others leave, and gives it back when a user with less wants it. Ended
//! executors go first, then rows of living ones that are only history, then a living executor as a whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::bytes::Caps;
use super::{Executor, Limits, State};
use crate::subordinate::SubordinateIds;

/// A user by [`Executor::share`]; `None` stands for executors whose user is not known yet.
pub type User = Option<u32>;

/// One part in `SPARE` of the budget stays free for users with less than an even share.
const SPARE: usize = 16;

/// What one user uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Use {
    pub executors: usize,
    pub bytes: usize,
}

/// What all users use.
#[derive(Debug, Default)]
pub(super) struct Shares {
    total: usize,
    by_user: BTreeMap<User, Use>,
    ids: Arc<SubordinateIds>,
}

impl Shares {
    pub(super) fn of(&self, user: User) -> Use {
        self.by_user.get(&user).copied().unwrap_or_default()
    }

    /// Replaces what an executor used (`None`: it had no row) by what it uses now.
    fn change(&mut self, before: Option<(User, usize)>, after: Option<(User, usize)>) {
        if let Some((user, bytes)) = before {
            self.total = self.total.saturating_sub(bytes);
            if let Some(used) = self.by_user.get_mut(&user) {
                used.bytes = used.bytes.saturating_sub(bytes);
                used.executors = used.executors.saturating_sub(1);
                if used.executors == 0 {
                    self.by_user.remove(&user);
                }
            }
        }
        if let Some((user, bytes)) = after {
            self.total = self.total.saturating_add(bytes);
            let used = self.by_user.entry(user).or_default();
            used.bytes = used.bytes.saturating_add(bytes);
            used.executors += 1;
        }
    }

    fn richest(&self) -> Option<(User, Use)> {
        let all = self.by_user.iter().map(|(user, used)| (*user, *used));
        all.max_by_key(|(_, used)| used.bytes)
    }
}

/// A share of an amount, rounded down.
fn share_of(amount: usize, share: f64) -> usize {
    (amount as f64 * share.clamp(0.0, 1.0)) as usize
}

impl Limits {
    /// Bytes that a user may hold while another user has an executor.
    fn user_bytes(&self) -> usize {
        share_of(self.state_bytes, self.user_share)
    }

    /// Executors that a user may have at the expense of others.
    fn user_executors(&self) -> usize {
        share_of(self.executors, self.user_share).max(1)
    }
}

impl State {
    /// Sets the ranges of subordinate ids: their ids use the share of the user to whom a range belongs. Executors keep the
    /// share that they have.
    pub fn set_subordinate_ids(&mut self, ids: Arc<SubordinateIds>) {
        self.shares.ids = ids;
    }

    /// The user whose share processes of this user use.
    #[must_use]
    pub fn share_of(&self, uid: Option<u32>) -> User {
        Some(self.shares.ids.share_of(uid?))
    }

    /// Bytes of all executors' tables.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.shares.total
    }

    /// Counts the bytes of an executor's tables after a change.
    pub(super) fn settle(&mut self, key: u64) {
        let Some(executor) = self.executors.get_mut(&key) else {
            return;
        };
        let after = (executor.share, executor.bytes());
        if executor.settled != Some(after) {
            let before = executor.settled.replace(after);
            self.shares.change(before, Some(after));
        }
    }

    /// The executor has no row any more.
    pub(super) fn unsettle(&mut self, executor: &Executor) {
        self.shares.change(executor.settled, None);
    }

    /// The limits of one executor's tables at this moment.
    pub(super) fn caps(&self, key: u64) -> Caps {
        let limits = self.limits;
        let (user, own) = self
            .executors
            .get(&key)
            .and_then(|executor| executor.settled)
            .unwrap_or_default();
        let used = self.shares.of(user).bytes;
        let users = self.shares.by_user.len().max(1);
        let free = limits.state_bytes.saturating_sub(self.shares.total);
        let mut room = limits.state_per_executor_bytes.saturating_sub(own);
        if users > 1 {
            room = room.min(limits.user_bytes().saturating_sub(used));
        }
        let spare = if used < limits.state_bytes / users {
            0
        } else {
            limits.state_bytes / SPARE
        };
        Caps::new(limits, room.min(free.saturating_sub(spare)))
    }

    /// Frees bytes for a user with less than an even share, from the user with the most.
    pub(super) fn reclaim_for(&mut self, user: User) {
        let spare = self.limits.state_bytes / SPARE;
        while self.limits.state_bytes.saturating_sub(self.shares.total) < spare {
            let used = self.shares.of(user).bytes;
            let Some((richest, most)) = self.shares.richest() else {
                return;
            };
            if richest == user || most.bytes <= used.saturating_add(spare) {
                return;
            }
            if let Some(dead) = self.oldest_dead(|owner| owner == richest) {
                self.evict(dead);
                continue;
            }
            let of_richest = self
                .executors
                .iter()
                .filter(|(_, executor)| executor.settled.map(|(owner, _)| owner) == Some(richest));
            let largest = of_richest
                .max_by_key(|(_, executor)| executor.settled)
                .map(|(key, _)| *key);
            let Some(key) = largest else { return };
            let before = self.shares.total;
            let own = self.executors.get(&key).map_or(0, Executor::bytes);
            if let Some(executor) = self.executors.get_mut(&key) {
                executor.shed();
            }
            self.settle(key);
            let freed = before.saturating_sub(self.shares.total);
            // Hardly any of it was history: it is mostly running tasks and memory in use, which only go with it.
            if freed < own / 4 {
                self.evict(key);
            }
        }
    }

    /// The executor that died first, of those whose user `may_lose` selects.
    fn oldest_dead(&self, may_lose: impl Fn(User) -> bool) -> Option<u64> {
        self.executors
            .iter()
            .filter(|(_, executor)| may_lose(executor.share))
            .filter_map(|(key, executor)| Some((executor.died_ns?, *key)))
            .min()
            .map(|(_, key)| key)
    }

    fn evict(&mut self, key: u64) {
        self.forget(key);
        self.evicted.push(key);
    }

    /// Users by number of executors, the most first, that may lose a row to `user`.
    fn losers(&self, user: User) -> Vec<(User, Use)> {
        let own = self.shares.of(user).executors;
        let above = own >= self.limits.user_executors();
        let mut losers: Vec<_> = self
            .shares
            .by_user
            .iter()
            .map(|(other, used)| (*other, *used))
            .filter(|(other, used)| *other == user || (!above && used.executors > own))
            .collect();
        losers.sort_by_key(|(_, used)| std::cmp::Reverse(used.executors));
        losers
    }

    /// Frees a row for a new executor of this user in a full table: the longest dead one of the user with the most
    /// executors; where none is dead, the youngest one of a user above its share. Returns whether a row is free.
    pub(super) fn free_row(&mut self, user: User) -> bool {
        let losers = self.losers(user);
        let dead = losers
            .iter()
            .find_map(|(loser, _)| self.oldest_dead(|owner| owner == *loser));
        let most = self.limits.user_executors();
        let own = self.shares.of(user).executors;
        let living = || {
            let (loser, used) = losers.first().filter(|(loser, _)| *loser != user)?;
            // A reading without a user is no claim on another's living executor.
            let above = user.is_some() && used.executors > most && used.executors > own + 1;
            let rows = self.executors.iter().filter(|_| above);
            rows.filter(|(_, executor)| executor.share == *loser)
                .map(|(key, executor)| (executor.first_seen_ns, *key))
                .max()
                .map(|(_, key)| key)
        };
        match dead.or_else(living) {
            Some(key) => {
                self.evict(key);
                true
            }
            None => false,
        }
    }

    /// Removes the oldest dead executor of the user with the most executors; users with less than an even share lose
    /// none.
    pub(super) fn evict_dead(&mut self) -> bool {
        let even = self.executors.len() / self.shares.by_user.len().max(1);
        let mut users: Vec<_> = self.shares.by_user.iter().collect();
        users.retain(|(_, used)| used.executors >= even);
        users.sort_by_key(|(_, used)| std::cmp::Reverse(used.executors));
        let dead = users
            .into_iter()
            .find_map(|(user, _)| self.oldest_dead(|owner| owner == *user));
        match dead {
            Some(key) => {
                self.evict(key);
                true
            }
            None => false,
        }
    }
}
