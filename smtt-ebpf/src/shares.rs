//! Shares of the tables and of the ring: each executor has a limit of its own, and all executors of a user have one. The
//! user of a subordinate id (`/etc/subuid`) is the owner of its range: its ids give a user no second share.
//!
//! Rows: a user gets another row while the rows that it holds are fewer than a fixed multiple of the free rows. One
//! user alone can hold `user_share` of a table, several get equal parts, and some rows are always free for the next.
//!
//! Executors: the same rule again within a user, by cgroup.
//!
//! Ring: two token buckets for each executor and each user. The bucket of facts limits the daemon's time. The bucket of
//! bytes limits the part of the ring that others find full; it counts only while the ring is busy. Where there is a
//! second executor, a record costs more of it the fuller the ring is. Samples with an address take from the same
//! buckets, down to their half: the other half is for facts.

use core::ptr;

use aya_ebpf::{bindings::BPF_NOEXIST, helpers::bpf_ktime_get_boot_ns, maps::lpm_trie::Key};
use smtt_common::settings::{Buckets, Group, Owner, TableRows, USER_RATE, User};

use crate::{
    emit::ring_price,
    maps::{
        BUDGETS, GROUPS, NO_USER, SHARE_OWNERS, TOTALS, USERS, add_below, compare_exchange,
        fetch_add, next, setting, take, take_at_most,
    },
    tables::SECOND_NS,
};

/// The user whose share a process of this user uses: the owner of the range of subordinate ids that has its id.
#[inline(always)]
pub fn share_of(uid: u32) -> u32 {
    SHARE_OWNERS
        .get(Key::new(u32::BITS, uid.to_be()))
        .copied()
        .unwrap_or(uid)
}

/// A shared table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Table {
    Contexts,
    Threads,
    Processes,
    Walks,
    Executors,
}

impl Table {
    /// Where the table's rows are counted.
    #[inline(always)]
    const fn of(self, rows: *mut TableRows) -> *mut u64 {
        // SAFETY: the callers pass pointers to map values.
        unsafe {
            match self {
                Self::Contexts => &raw mut (*rows).contexts,
                Self::Threads => &raw mut (*rows).threads,
                Self::Processes => &raw mut (*rows).processes,
                Self::Walks => &raw mut (*rows).walks,
                Self::Executors => &raw mut (*rows).executors,
            }
        }
    }

    #[inline(always)]
    fn size(self) -> u64 {
        u64::from(match self {
            Self::Contexts | Self::Walks => setting!(context_rows),
            Self::Threads => setting!(thread_rows),
            Self::Processes => setting!(process_rows),
            Self::Executors => setting!(executor_rows),
        })
    }

    /// Rows that one executor may hold.
    #[inline(always)]
    fn limit(self) -> u64 {
        u64::from(match self {
            Self::Contexts | Self::Walks => setting!(contexts_per_executor),
            Self::Threads => setting!(threads_per_executor),
            Self::Processes => setting!(processes_per_executor),
            Self::Executors => 1,
        })
    }
}

/// Counts one more row of an executor; false when the executor, its user or the table has no room.
#[inline(always)]
pub fn claim(executor: u64, table: Table) -> bool {
    let Some(budget) = BUDGETS.get_ptr_mut(executor) else {
        return false;
    };
    // SAFETY: the row was just looked up.
    let (own, share) = unsafe { (table.of(&raw mut (*budget).rows), (*budget).owner.share) };
    if !add_below(own, table.limit()) {
        return false;
    }
    if claim_for_user(share, table) {
        return true;
    }
    take(own, 1);
    false
}

/// Counts one more row of a user; false when the user has no room. A user who holds nothing is refused only where the
/// table is full; that is checked first, so that a refusal adds no row to the table of users.
#[inline(always)]
pub fn claim_for_user(share: u32, table: Table) -> bool {
    let Some(totals) = TOTALS.get_ptr_mut(0) else {
        return false;
    };
    let total = table.of(totals);
    let size = table.size();
    let used = next(total);
    if used < size
        && let Some(user) = user(share)
    {
        // SAFETY: the row was just looked up.
        let held = unsafe { table.of(&raw mut (*user).rows) };
        let own = next(held);
        let part = u64::from(setting!(user_share_permille));
        // Executors keep the row: it may have been removed, and its memory may be another user's by now.
        let is_there =
            table != Table::Executors || (own < LEAVING && USERS.get_ptr_mut(share) == Some(user));
        if is_there && own * (1000 - part) < (size - used) * part {
            return true;
        }
        undo(held, own);
        if table == Table::Executors {
            leave_user(share);
        }
    }
    take(total, 1);
    false
}

/// Counts one more executor of an owner; false when its user or its cgroup has no room. A cgroup gets another row while
/// it holds fewer than the fixed multiple of the rows that its user may still add: where many processes run as one user,
/// one cgroup cannot take the whole share.
#[inline(always)]
pub fn claim_executor(owner: &Owner) -> bool {
    if !claim_for_user(owner.share, Table::Executors) {
        return false;
    }
    let key = group(owner);
    let _ = GROUPS.insert(key, 0, u64::from(BPF_NOEXIST));
    if let (Some(held), Some(user), Some(totals)) = (
        GROUPS.get_ptr_mut(key),
        USERS.get_ptr_mut(owner.share),
        TOTALS.get_ptr_mut(0),
    ) {
        // SAFETY: the rows were just looked up; other programs write whole words.
        let (own, used) = unsafe {
            (
                ptr::read_volatile(&raw const (*user).rows.executors),
                ptr::read_volatile(&raw const (*totals).executors),
            )
        };
        let part = u64::from(setting!(user_share_permille));
        // As they were before this claim.
        let (own, used) = (own.saturating_sub(1), used.saturating_sub(1));
        let free = Table::Executors.size().saturating_sub(used);
        let left = (free * part).saturating_sub(own * (1000 - part));
        let before = next(held);
        let is_there = before < LEAVING && GROUPS.get_ptr_mut(key) == Some(held);
        // A cgroup without an executor is not refused.
        if is_there && (before == 0 || before * (1000 - part) * 1000 < left * part) {
            return true;
        }
        undo(held, before);
        leave_group(key);
    }
    release_executor_of_user(owner.share, 1);
    false
}

#[inline(always)]
fn group(owner: &Owner) -> Group {
    Group {
        cgroup: owner.cgroup,
        share: owner.share,
        reserved: 0,
    }
}

/// Counts an executor whose cgroup was not known in its cgroup. The daemon may not know it: in a cgroup namespace of its
/// own it sees no paths beyond.
#[inline(always)]
pub fn know_cgroup(executor: u64, cgroup: u64) {
    let Some(budget) = BUDGETS.get_ptr_mut(executor) else {
        return;
    };
    // SAFETY: the row was just looked up; other programs write whole words.
    let (place, share) = unsafe { (&raw mut (*budget).owner.cgroup, (*budget).owner.share) };
    // SAFETY: as above.
    if cgroup == 0 || unsafe { ptr::read_volatile(place) } != 0 {
        return;
    }
    let key = |cgroup| Group {
        cgroup,
        share,
        reserved: 0,
    };
    let _ = GROUPS.insert(key(cgroup), 0, u64::from(BPF_NOEXIST));
    let Some(held) = GROUPS.get_ptr_mut(key(cgroup)) else {
        return;
    };
    let before = next(held);
    let is_there = before < LEAVING && GROUPS.get_ptr_mut(key(cgroup)) == Some(held);
    // One of several threads that describe their process at once.
    if is_there && compare_exchange(place, 0, cgroup) == 0 {
        release_group(key(0), 1);
        return;
    }
    undo(held, before);
    leave_group(key(cgroup));
}

/// Gives rows of an executor back.
#[inline(always)]
pub fn release(executor: u64, table: Table, count: u64) {
    let Some(budget) = BUDGETS.get_ptr_mut(executor) else {
        return;
    };
    // SAFETY: the row was just looked up.
    let (own, share) = unsafe { (table.of(&raw mut (*budget).rows), (*budget).owner.share) };
    let given = take_at_most(own, count);
    release_of_user(share, table, given);
}

/// Gives rows of a user back.
#[inline(always)]
pub fn release_of_user(share: u32, table: Table, count: u64) {
    if let Some(user) = USERS.get_ptr_mut(share) {
        // SAFETY: the row was just looked up.
        take_at_most(table.of(unsafe { &raw mut (*user).rows }), count);
    }
    if let Some(totals) = TOTALS.get_ptr_mut(0) {
        take_at_most(table.of(totals), count);
    }
}

/// Gives the row of an executor back. The rows of its cgroup and of its user go with their last executor.
#[inline(always)]
pub fn release_executor(owner: &Owner, count: u64) {
    release_group(group(owner), count);
    release_executor_of_user(owner.share, count);
}

#[inline(always)]
fn release_group(key: Group, count: u64) {
    if let Some(held) = GROUPS.get_ptr_mut(key) {
        take_at_most(held, count);
    }
    leave_group(key);
}

#[inline(always)]
fn release_executor_of_user(share: u32, count: u64) {
    release_of_user(share, Table::Executors, count);
    leave_user(share);
}

/// Number of executors of a row that is being removed. From then on no executor is counted in it: a processor that adds
/// one finds a count that is no less.
const LEAVING: u64 = 1 << 63;

/// Takes one back from a count that was `before`. The count of a row that is being removed stays: its memory may be
/// another row's by now, whose count is set anew.
#[inline(always)]
fn undo(count: *mut u64, before: u64) {
    if before < LEAVING {
        take(count, 1);
    }
}

/// Removes the row of a user without executors.
#[inline(always)]
fn leave_user(share: u32) {
    if let Some(user) = USERS.get_ptr_mut(share)
        // SAFETY: the row was just looked up.
        && compare_exchange(unsafe { &raw mut (*user).rows.executors }, 0, LEAVING) == 0
    {
        let _ = USERS.remove(share);
    }
}

/// Removes the row of a cgroup without executors.
#[inline(always)]
fn leave_group(key: Group) {
    if let Some(held) = GROUPS.get_ptr_mut(key)
        && compare_exchange(held, 0, LEAVING) == 0
    {
        let _ = GROUPS.remove(key);
    }
}

/// The row of a user, which is added if it is missing.
#[inline(always)]
fn user(share: u32) -> Option<*mut User> {
    if let Some(user) = USERS.get_ptr_mut(share) {
        return Some(user);
    }
    // An error means that another processor added it, or that there are too many users: the look-up decides.
    let _ = USERS.insert(share, &NO_USER, u64::from(BPF_NOEXIST));
    USERS.get_ptr_mut(share)
}

/// The user of an executor, as the records have it.
#[inline(always)]
pub fn uid(executor: u64) -> u32 {
    // SAFETY: copied at once.
    unsafe { BUDGETS.get(executor) }.map_or(0, |budget| budget.owner.uid)
}

/// Whether an executor may put a record of this size on the ring now. Processors that decide at the same moment may let
/// a few more through: it is a brake, not a measurement.
#[inline(always)]
pub fn spend(executor: u64, bytes: u64) -> bool {
    spend_part(executor, bytes, 1)
}

/// As [`spend`], for a sample with an address: it leaves half of each bucket to facts, which no other record repeats.
#[inline(always)]
pub fn spend_on_sample(executor: u64, bytes: u64) -> bool {
    spend_part(executor, bytes, 2)
}

/// Takes a record out of the executor's and its user's buckets, of which one `part`-th may be used.
#[inline(always)]
fn spend_part(executor: u64, bytes: u64, part: u64) -> bool {
    let Some(budget) = BUDGETS.get_ptr_mut(executor) else {
        return false;
    };
    // SAFETY: the row was just looked up.
    let (own, share) = unsafe { (&raw mut (*budget).buckets, (*budget).owner.share) };
    // SAFETY: the helper has no precondition.
    let now = unsafe { bpf_ktime_get_boot_ns() };
    let fact_ns = SECOND_NS / u64::from(setting!(facts_per_second)).max(1);
    let bytes_per_second = u64::from(setting!(bytes_per_second)).max(1);
    let price = ring_price();
    // Without another executor there is none to leave room to.
    let cost = bytes * if is_alone() { 1 } else { price.max(1) };
    let bytes_ns = cost * SECOND_NS / bytes_per_second;
    let burst_ns = u64::from(setting!(burst_bytes)) * SECOND_NS / bytes_per_second / part;
    let second_ns = SECOND_NS / part;
    let is_busy = price > 0;
    // Half of the user's burst, so that one executor cannot use all of it.
    let bursts = [second_ns, burst_ns / 2];
    if !from(own, now, [fact_ns, bytes_ns], bursts, is_busy) {
        return false;
    }
    let Some(user) = user(share) else {
        return false;
    };
    // SAFETY: the row was just looked up.
    let all = unsafe { &raw mut (*user).buckets };
    from(
        all,
        now,
        [fact_ns / USER_RATE, bytes_ns / USER_RATE],
        [second_ns, burst_ns / USER_RATE],
        is_busy,
    )
}

/// Whether there is no second executor.
#[inline(always)]
fn is_alone() -> bool {
    TOTALS
        .get_ptr_mut(0)
        // SAFETY: the row was just looked up; other processors write whole words.
        .is_some_and(|totals| unsafe { ptr::read_volatile(Table::Executors.of(totals)) } <= 1)
}

/// Takes one record out of both buckets. What is taken from one bucket and refused by the next stays taken: a sender
/// above its rate gains nothing by trying.
#[inline(always)]
fn from(buckets: *mut Buckets, now: u64, costs: [u64; 2], bursts: [u64; 2], is_busy: bool) -> bool {
    // SAFETY: the callers pass pointers to map values.
    let (facts, bytes) = unsafe {
        (
            &raw mut (*buckets).facts_full_ns,
            &raw mut (*buckets).bytes_full_ns,
        )
    };
    if !from_one(facts, now, costs[0], bursts[0]) {
        return false;
    }
    from_one(bytes, now, costs[1], bursts[1]) || !is_busy
}

/// Takes from a bucket that is full at the time `full`; false, and nothing is taken, when it holds less than `cost`.
#[inline(always)]
fn from_one(full: *mut u64, now: u64, cost: u64, burst_ns: u64) -> bool {
    // SAFETY: a map value; other processors write whole words.
    unsafe {
        if ptr::read_volatile(full) < now {
            ptr::write_volatile(full, now);
        }
    }
    let before = fetch_add(full, cost);
    if before + cost <= now + burst_ns {
        return true;
    }
    take(full, cost);
    false
}
