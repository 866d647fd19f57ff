//! Rows and bytes of each user, and what a user may still take.
//!
//! Shares are max-min fair: a user may use what others leave, and gives it back when a user with less wants it. Ended
//! executors go first, then rows of living ones that are only history, then a living executor as a whole.
//!
//! The executors of one user share its part in the same way by cgroup, once the kernel has reported their cgroups.

use std::collections::BTreeMap;
use std::sync::Arc;

use smtt_common::settings::Owner;

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
    /// Cgroup of each executor of the last reading.
    cgroups: BTreeMap<u64, u64>,
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

    /// Cgroup of an executor; 0 where it is not known yet.
    fn cgroup(&self, key: u64) -> u64 {
        self.cgroups.get(&key).copied().unwrap_or(0)
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

    pub(super) fn set_cgroups(&mut self, owners: &BTreeMap<u64, Owner>) {
        let cgroups = owners.iter().map(|(key, owner)| (*key, owner.cgroup));
        self.shares.cgroups = cgroups.collect();
    }

    /// What the cgroups of a user use.
    fn groups(&self, user: User) -> BTreeMap<u64, Use> {
        let mut groups: BTreeMap<u64, Use> = BTreeMap::new();
        for (key, executor) in &self.executors {
            if executor.share == user {
                let used = groups.entry(self.shares.cgroup(*key)).or_default();
                used.executors += 1;
                used.bytes += executor.settled.map_or(0, |(_, bytes)| bytes);
            }
        }
        groups
    }

    /// Whether an executor's cgroup uses less than an even share of its user's bytes.
    fn is_small_group(&self, key: u64, user: User) -> bool {
        let groups = self.groups(user);
        let own = groups.get(&self.shares.cgroup(key)).copied();
        let own = own.unwrap_or_default().bytes;
        groups.len() > 1 && own < self.shares.of(user).bytes / groups.len()
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
        let reserve = limits.state_bytes / SPARE;
        // Cgroups are only counted where they decide.
        let spare = if used < limits.state_bytes / users
            || (free <= 2 * reserve && self.is_small_group(key, user))
        {
            0
        } else {
            reserve
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
            if let Some(dead) = self.oldest_dead(|_, owner| owner == richest) {
                self.evict(dead);
                continue;
            }
            let groups = self.groups(richest);
            let most = groups.iter().max_by_key(|(_, used)| used.bytes);
            let Some(key) = most.and_then(|(group, _)| self.largest(richest, *group)) else {
                return;
            };
            self.shed(key);
        }
    }

    /// Frees bytes for a cgroup with less than an even share of its user's bytes, from the cgroup of that user with the
    /// most.
    pub(super) fn reclaim_within(&mut self, key: u64, user: User) {
        let spare = self.limits.state_bytes / SPARE;
        while self.limits.state_bytes.saturating_sub(self.shares.total) < spare {
            let groups = self.groups(user);
            let mine = self.shares.cgroup(key);
            let own = groups.get(&mine).copied().unwrap_or_default().bytes;
            let most = groups.iter().max_by_key(|(_, used)| used.bytes);
            let Some((group, most)) = most.map(|(group, used)| (*group, used.bytes)) else {
                return;
            };
            if group == mine || most <= own.saturating_add(spare) {
                return;
            }
            let of_group =
                |key: u64, owner: User| owner == user && self.shares.cgroup(key) == group;
            match self.oldest_dead(of_group) {
                Some(dead) => self.evict(dead),
                None => match self.largest(user, group) {
                    Some(largest) => self.shed(largest),
                    None => return,
                },
            }
        }
    }

    /// The executor with the most bytes of a user's cgroup.
    fn largest(&self, user: User, group: u64) -> Option<u64> {
        let all = self.executors.iter();
        all.filter(|(key, executor)| executor.share == user && self.shares.cgroup(**key) == group)
            .max_by_key(|(_, executor)| executor.settled)
            .map(|(key, _)| *key)
    }

    /// Frees rows of an executor that are only history, or the executor as a whole.
    fn shed(&mut self, key: u64) {
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

    /// The executor that died first, of those that `may_lose` selects by key and user.
    fn oldest_dead(&self, may_lose: impl Fn(u64, User) -> bool) -> Option<u64> {
        self.executors
            .iter()
            .filter(|(key, executor)| may_lose(**key, executor.share))
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
    /// executors; where none is dead, the youngest one of a user above its share, or of a cgroup above its share of the
    /// new executor's user. Returns whether a row is free.
    pub(super) fn free_row(&mut self, new: u64, user: User) -> bool {
        let losers = self.losers(user);
        let dead = losers
            .iter()
            .find_map(|(loser, _)| self.oldest_dead(|_, owner| owner == *loser));
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
        match dead
            .or_else(living)
            .or_else(|| self.youngest_beside(new, user))
        {
            Some(key) => {
                self.evict(key);
                true
            }
            None => false,
        }
    }

    /// The youngest executor of the largest cgroup of a user, where that cgroup is above its share of the user's rows and
    /// has more than the cgroup of a new executor. A new executor whose cgroup is not known yet has no claim.
    fn youngest_beside(&self, new: u64, user: User) -> Option<u64> {
        let mine = self.shares.cgroups.get(&new)?;
        let groups = self.groups(user);
        let own = groups.get(mine).map_or(0, |used| used.executors);
        let (group, most) = groups.iter().max_by_key(|(_, used)| used.executors)?;
        let share = share_of(self.shares.of(user).executors, self.limits.user_share);
        if group == mine || most.executors <= share || most.executors <= own + 1 {
            return None;
        }
        let all = self.executors.iter();
        all.filter(|(key, executor)| executor.share == user && self.shares.cgroup(**key) == *group)
            .map(|(key, executor)| (executor.first_seen_ns, *key))
            .max()
            .map(|(_, key)| key)
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
            .find_map(|(user, _)| self.oldest_dead(|_, owner| owner == *user));
        match dead {
            Some(key) => {
                self.evict(key);
                true
            }
            None => false,
        }
    }
}
