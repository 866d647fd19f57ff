//! Rows and bytes of each user, and what a user may still take.
//!
//! Shares are max-min fair: a user may use what others leave, and gives it back when a user with less wants it. Ended
//! executors go first, then rows of living ones that are only history, then a living executor as a whole.
//!
//! The executors of one user share its part in the same way by cgroup, once the kernel has reported their cgroups.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use smtt_common::settings::Owner;

use super::bytes::Caps;
use super::{Executor, Limits, State};
use crate::sort::small::{Gather as _, sort_by_key};
use crate::subordinate::SubordinateIds;

/// A user by [`Executor::share`]; `None` stands for executors whose user is not known yet.
pub type User = Option<u32>;

/// One part in `SPARE` of the budget stays free for users with less than an even share.
const SPARE: usize = 16;

/// What one user uses, or one of its cgroups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Use {
    pub executors: usize,
    pub bytes: usize,
}

/// What is counted of one executor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Settled {
    user: User,
    /// Its cgroup; 0 where it is not known yet.
    group: u64,
    is_dead: bool,
    bytes: usize,
}

/// Parts of the whole by number, and in the order of their bytes: a change and the largest part cost no pass over all.
#[derive(Debug)]
pub(super) struct Parts<K> {
    pub uses: BTreeMap<K, Use>,
    by_bytes: BTreeSet<(usize, K)>,
}

impl<K> Default for Parts<K> {
    fn default() -> Self {
        Self {
            uses: BTreeMap::new(),
            by_bytes: BTreeSet::new(),
        }
    }
}

impl<K: Copy + Ord> Parts<K> {
    fn of(&self, key: K) -> Use {
        self.uses.get(&key).copied().unwrap_or_default()
    }

    fn len(&self) -> usize {
        self.uses.len()
    }

    fn largest(&self) -> Option<(K, usize)> {
        self.by_bytes.last().map(|(bytes, key)| (*key, *bytes))
    }

    /// Replaces what a part uses; one without executors goes.
    fn set(&mut self, key: K, used: Use) {
        if let Some(before) = self.uses.remove(&key) {
            self.by_bytes.remove(&(before.bytes, key));
        }
        if used.executors > 0 {
            self.uses.insert(key, used);
            self.by_bytes.insert((used.bytes, key));
        }
    }

    fn add(&mut self, key: K, bytes: usize) {
        let mut used = self.of(key);
        used.executors += 1;
        used.bytes = used.bytes.saturating_add(bytes);
        self.set(key, used);
    }

    fn take(&mut self, key: K, bytes: usize) {
        let mut used = self.of(key);
        used.executors = used.executors.saturating_sub(1);
        used.bytes = used.bytes.saturating_sub(bytes);
        self.set(key, used);
    }
}

/// What all users use.
#[derive(Debug, Default)]
pub(super) struct Shares {
    total: usize,
    users: Parts<User>,
    /// Cgroups of each user.
    pub groups: BTreeMap<User, Parts<u64>>,
    ids: Arc<SubordinateIds>,
    /// Cgroup of each executor of the last reading.
    cgroups: BTreeMap<u64, u64>,
    /// Users and cgroups for which no row could be freed since the last change of users, cgroups or lives.
    without_room: BTreeSet<(User, Option<u64>)>,
    /// Searches through all executors.
    pub searches: u64,
}

impl Shares {
    pub(super) fn of(&self, user: User) -> Use {
        self.users.of(user)
    }

    /// Replaces what an executor used (`None`: it had no row) by what it uses now.
    fn change(&mut self, before: Option<Settled>, after: Option<Settled>) {
        if let Some(Settled {
            user, group, bytes, ..
        }) = before
        {
            self.total = self.total.saturating_sub(bytes);
            self.users.take(user, bytes);
            if let Some(groups) = self.groups.get_mut(&user) {
                groups.take(group, bytes);
                if groups.len() == 0 {
                    self.groups.remove(&user);
                }
            }
        }
        if let Some(Settled {
            user, group, bytes, ..
        }) = after
        {
            self.total = self.total.saturating_add(bytes);
            self.users.add(user, bytes);
            self.groups.entry(user).or_default().add(group, bytes);
        }
        let place = |settled: Settled| (settled.user, settled.group, settled.is_dead);
        if before.map(place) != after.map(place) {
            self.without_room.clear();
        }
    }

    /// Cgroup of an executor; 0 where it is not known yet.
    pub(super) fn cgroup(&self, key: u64) -> u64 {
        self.cgroups.get(&key).copied().unwrap_or(0)
    }

    /// What a cgroup of a user uses.
    fn of_group(&self, user: User, group: u64) -> Use {
        let groups = self.groups.get(&user);
        groups.map_or_else(Use::default, |groups| groups.of(group))
    }

    /// The cgroup of a user with the most bytes.
    fn largest_group(&self, user: User) -> Option<(u64, usize)> {
        self.groups.get(&user)?.largest()
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
        let cgroups: BTreeMap<u64, u64> = cgroups.gather();
        if self.shares.cgroups == cgroups {
            return;
        }
        self.shares.cgroups = cgroups;
        // An executor without a row may have a claim now.
        self.shares.without_room.clear();
        let keys: Vec<u64> = self.executors.keys().copied().collect();
        for key in keys {
            self.settle(key);
        }
    }

    /// Whether an executor's cgroup uses less than an even share of its user's bytes.
    fn is_small_group(&self, key: u64, user: User) -> bool {
        let groups = self.shares.groups.get(&user).map_or(0, Parts::len);
        let own = self.shares.of_group(user, self.shares.cgroup(key)).bytes;
        groups > 1 && own < self.shares.of(user).bytes / groups
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
        let after = Settled {
            user: executor.share,
            group: self.shares.cgroup(key),
            is_dead: executor.died_ns.is_some(),
            bytes: executor.bytes(),
        };
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
        let settled = self.executors.get(&key);
        let settled = settled.and_then(|executor| executor.settled);
        let (user, own) = settled.map_or((None, 0), |settled| (settled.user, settled.bytes));
        let used = self.shares.of(user).bytes;
        let users = self.shares.users.len().max(1);
        let free = limits.state_bytes.saturating_sub(self.shares.total);
        let mut room = limits.state_per_executor_bytes.saturating_sub(own);
        if users > 1 {
            room = room.min(limits.user_bytes().saturating_sub(used));
        }
        let reserve = limits.state_bytes / SPARE;
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
            let Some((richest, most)) = self.shares.users.largest() else {
                return;
            };
            if richest == user || most <= used.saturating_add(spare) {
                return;
            }
            self.shares.searches += 1;
            if let Some(dead) = self.oldest_dead(|_, owner| owner == richest) {
                self.evict(dead);
                continue;
            }
            let most = self.shares.largest_group(richest);
            let Some(key) = most.and_then(|(group, _)| self.largest(richest, group)) else {
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
            let mine = self.shares.cgroup(key);
            let own = self.shares.of_group(user, mine).bytes;
            let Some((group, most)) = self.shares.largest_group(user) else {
                return;
            };
            if group == mine || most <= own.saturating_add(spare) {
                return;
            }
            self.shares.searches += 1;
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
            .max_by_key(|(_, executor)| executor.settled.map(|settled| settled.bytes))
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

    /// The executor that died first, of those that `may_lose` selects by key and user; of those whose deaths are not judged
    /// only where there is no other.
    fn oldest_dead(&self, may_lose: impl Fn(u64, User) -> bool) -> Option<u64> {
        self.executors
            .iter()
            .filter(|(key, executor)| may_lose(**key, executor.share))
            .filter_map(|(key, executor)| {
                Some((executor.is_death_unjudged(), executor.died_ns?, *key))
            })
            .min()
            .map(|(.., key)| key)
    }

    fn evict(&mut self, key: u64) {
        let executor = self.executors.get(&key);
        let is_alive = executor.is_some_and(|executor| executor.died_ns.is_none());
        self.executors_evicted += u64::from(is_alive);
        self.forget(key);
        self.evicted.push(key);
    }

    /// Users by number of executors, the most first, that may lose a row to `user`.
    fn losers(&self, user: User) -> Vec<(User, Use)> {
        let own = self.shares.of(user).executors;
        let above = own >= self.limits.user_executors();
        let mut losers: Vec<_> = self
            .shares
            .users
            .uses
            .iter()
            .map(|(other, used)| (*other, *used))
            .filter(|(other, used)| *other == user || (!above && used.executors > own))
            .collect();
        sort_by_key(&mut losers, |(_, used)| std::cmp::Reverse(used.executors));
        losers
    }

    /// Frees a row for a new executor of this user in a full table: the longest dead one of the user with the most
    /// executors; where none is dead, the youngest one of a user above its share, or of a cgroup above its share of the
    /// new executor's user. Returns whether a row is free.
    pub(super) fn free_row(&mut self, new: u64, user: User) -> bool {
        // Facts of an executor without a row cost no search each.
        let place = (user, self.shares.cgroups.get(&new).copied());
        if self.shares.without_room.contains(&place) {
            return false;
        }
        self.shares.searches += 1;
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
            None => {
                self.shares.without_room.insert(place);
                false
            }
        }
    }

    /// The youngest executor of the largest cgroup of a user, where that cgroup is above its share of the user's rows and
    /// has more than the cgroup of a new executor. A new executor whose cgroup is not known yet has no claim.
    fn youngest_beside(&self, new: u64, user: User) -> Option<u64> {
        let mine = self.shares.cgroups.get(&new)?;
        let groups = &self.shares.groups.get(&user)?.uses;
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

    /// Removes the oldest dead executor of the user with the most executors, if its death is judged; users with less than
    /// an even share lose none.
    pub(super) fn evict_dead(&mut self) -> bool {
        let even = self.executors.len() / self.shares.users.len().max(1);
        let mut users: Vec<_> = self.shares.users.uses.iter().collect();
        users.retain(|(_, used)| used.executors >= even);
        sort_by_key(&mut users, |(_, used)| std::cmp::Reverse(used.executors));
        let dead = users.into_iter().find_map(|(user, _)| {
            self.oldest_dead(|key, owner| owner == *user && !self.awaits_judgement(key))
        });
        match dead {
            Some(key) => {
                self.evict(key);
                true
            }
            None => false,
        }
    }
}
