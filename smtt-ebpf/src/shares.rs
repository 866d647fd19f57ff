//! Shares of the tables and of the ring: each executor has a limit of its own, and all executors of a user have one.
//!
//! Rows: a user gets another row while the rows that it holds are fewer than a fixed multiple of the free rows. One
//! user alone can hold `user_share` of a table, several get equal parts, and some rows are always free for the next.
//!
//! Ring: two token buckets for each executor and each user. The bucket of facts limits the daemon's time. The bucket of
//! bytes limits the part of the ring that others find full; it counts only while the ring is busy. Samples with an
//! address take from the same buckets, down to their half: the other half is for facts.

use core::ptr;

use aya_ebpf::{bindings::BPF_NOEXIST, helpers::bpf_ktime_get_boot_ns};
use smtt_common::settings::{Buckets, TableRows, USER_RATE, User};

use crate::{
    emit::ring_is_busy,
    maps::{
        BUDGETS, NO_USER, TOTALS, USERS, add_below, fetch_add, next, setting, take, take_at_most,
    },
    tables::SECOND_NS,
};

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
    let (own, uid) = unsafe { (table.of(&raw mut (*budget).rows), (*budget).owner.uid) };
    if !add_below(own, table.limit()) {
        return false;
    }
    if claim_for_user(uid, table) {
        return true;
    }
    take(own, 1);
    false
}

/// Counts one more row of a user; false when the user has no room.
#[inline(always)]
pub fn claim_for_user(uid: u32, table: Table) -> bool {
    let (Some(user), Some(totals)) = (user(uid), TOTALS.get_ptr_mut(0)) else {
        return false;
    };
    // SAFETY: the rows were just looked up.
    let (held, total) = unsafe { (table.of(&raw mut (*user).rows), table.of(totals)) };
    let used = next(total);
    let own = next(held);
    let size = table.size();
    let share = u64::from(setting!(user_share_permille));
    if used < size && own * (1000 - share) < (size - used) * share {
        return true;
    }
    take(held, 1);
    take(total, 1);
    false
}

/// Gives rows of an executor back.
#[inline(always)]
pub fn release(executor: u64, table: Table, count: u64) {
    let Some(budget) = BUDGETS.get_ptr_mut(executor) else {
        return;
    };
    // SAFETY: the row was just looked up.
    let (own, uid) = unsafe { (table.of(&raw mut (*budget).rows), (*budget).owner.uid) };
    take_at_most(own, count);
    release_of_user(uid, table, count);
}

/// Gives rows of a user back.
#[inline(always)]
pub fn release_of_user(uid: u32, table: Table, count: u64) {
    if let Some(user) = USERS.get_ptr_mut(uid) {
        // SAFETY: the row was just looked up.
        take_at_most(table.of(unsafe { &raw mut (*user).rows }), count);
    }
    if let Some(totals) = TOTALS.get_ptr_mut(0) {
        take_at_most(table.of(totals), count);
    }
}

/// The row of a user, which is added if it is missing.
#[inline(always)]
fn user(uid: u32) -> Option<*mut User> {
    if let Some(user) = USERS.get_ptr_mut(uid) {
        return Some(user);
    }
    // An error means that another processor added it, or that there are too many users: the look-up decides.
    let _ = USERS.insert(uid, &NO_USER, u64::from(BPF_NOEXIST));
    USERS.get_ptr_mut(uid)
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
    let (own, uid) = unsafe { (&raw mut (*budget).buckets, (*budget).owner.uid) };
    // SAFETY: the helper has no precondition.
    let now = unsafe { bpf_ktime_get_boot_ns() };
    let fact_ns = SECOND_NS / u64::from(setting!(facts_per_second)).max(1);
    let bytes_per_second = u64::from(setting!(bytes_per_second)).max(1);
    let bytes_ns = bytes * SECOND_NS / bytes_per_second;
    let burst_ns = u64::from(setting!(burst_bytes)) * SECOND_NS / bytes_per_second / part;
    let second_ns = SECOND_NS / part;
    let is_busy = ring_is_busy();
    let bursts = [second_ns, burst_ns];
    if !from(own, now, [fact_ns, bytes_ns], bursts, is_busy) {
        return false;
    }
    let Some(user) = user(uid) else {
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

/// Takes one record out of both buckets. What is taken from one bucket and refused by the next stays taken: a sender
/// above its rate gains nothing by trying.
#[inline(always)]
fn from(
    buckets: *mut Buckets,
    now: u64,
    costs: [u64; 2],
    bursts: [u64; 2],
    is_busy: bool,
) -> bool {
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
