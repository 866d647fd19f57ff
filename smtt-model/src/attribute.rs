//! Attribution: the executor, task, stage and RDD that a fault context or a sampled address stands for.
//!
//! Pure: no I/O and no clock. The context is exact for the running work; the address is exact for off-heap memory and,
//! between two collections, for memory on the Java heap. Counts are attributed by context; sampled addresses are the
//! check (see [`Agreement`]).

use std::collections::{BTreeMap, HashMap, HashSet};

use rangemap::RangeMap;
use serde::{Deserialize, Serialize};
use smtt_common::context::{Access, Activity, HOT_FIELD_MASK, Region};
use smtt_common::counter::ContextKey;

use crate::sizes::{tree_bytes, tree_entry_bytes};
use crate::sort::small::sort_by_key;

/// Key of an RDD in every table: an id, no RDD, or the overflow row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RddKey {
    /// Spark's id of the RDD.
    Id(u32),
    /// Work or memory that belongs to no RDD (a task's own buffers, a broadcast).
    None,
    /// Several RDDs together: RDDs over a limit, and ids that do not fit a context word.
    Overflow,
}

impl RddKey {
    /// The RDD that a context names.
    #[must_use]
    pub fn of_context(rdd_plus_one: u32) -> Self {
        match rdd_plus_one {
            0 => Self::None,
            saturated if u64::from(saturated) >= HOT_FIELD_MASK => Self::Overflow,
            id => Self::Id(id - 1),
        }
    }

    /// The RDD that a fact names.
    #[must_use]
    pub fn of_fact(rdd_id: Option<u32>) -> Self {
        rdd_id.map_or(Self::None, Self::Id)
    }

    /// Id of the RDD, where the key stands for a single one.
    #[must_use]
    pub const fn id(self) -> Option<u32> {
        match self {
            Self::Id(id) => Some(id),
            Self::None | Self::Overflow => None,
        }
    }
}

/// A stage and its attempt. Fault contexts carry only the low 16 bits of the attempt, so every key uses these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StageKey {
    /// Id of the stage.
    pub id: u32,
    /// Low 16 bits of the stage's attempt.
    pub attempt: u16,
}

impl StageKey {
    /// The key of a stage that a fact names.
    #[must_use]
    pub const fn new(id: u32, attempt: u32) -> Self {
        Self {
            id,
            attempt: attempt as u16,
        }
    }
}

/// Activity of a thread, reduced to the codes that this version knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Doing {
    /// Activity; a single code without a name stands for every unknown activity.
    pub activity: Activity,
    /// Whether Spark read or wrote the RDD.
    pub access: Access,
    /// Spark's memory region: storage, execution or none.
    pub region: Region,
}

/// Code for every value without a name, so that garbage cannot create many rows.
const UNKNOWN: u8 = u8::MAX;

impl Doing {
    /// The activity in a context's coded words.
    #[must_use]
    pub fn of_context(activity: u8, access_region: u8) -> Self {
        let known = |name: Option<&str>, code| if name.is_some() { code } else { UNKNOWN };
        let (access, region) = (access_region & 0x0f, access_region >> 4);
        Self {
            activity: Activity(known(Activity(activity).name(), activity)),
            access: Access(known(Access(access).name(), access)),
            region: Region(known(Region(region).name(), region)),
        }
    }
}

/// The running work in Spark's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribution {
    /// RDD that was current.
    pub rdd: RddKey,
    /// Task attempt that ran.
    pub task: Option<u64>,
    /// Stage of the task.
    pub stage: Option<StageKey>,
    /// Activity of the thread.
    pub doing: Doing,
}

impl From<&ContextKey> for Attribution {
    fn from(context: &ContextKey) -> Self {
        Self {
            rdd: RddKey::of_context(context.rdd_plus_one),
            task: (context.task_attempt_id != u64::MAX).then_some(context.task_attempt_id),
            stage: (context.stage_id != u32::MAX).then_some(StageKey {
                id: context.stage_id,
                attempt: context.stage_attempt,
            }),
            doing: Doing::of_context(context.activity, context.access_region),
        }
    }
}

impl Attribution {
    /// The activity to count under: the context's own where it has an entry or `admit` grants one, else the one that
    /// stands for all others.
    pub(crate) fn doing_within(&self, known: bool, admit: impl FnOnce() -> bool) -> Doing {
        if known || admit() {
            self.doing
        } else {
            Doing {
                activity: Activity(UNKNOWN),
                access: Access(UNKNOWN),
                region: Region(UNKNOWN),
            }
        }
    }
}

/// Bytes of a piece of the address map.
const PIECE_BYTES: usize = size_of::<(u64, u64, Owner)>();

/// Owner of an address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Serial number of the block or Spark page; unique in an executor.
    pub serial: u64,
    /// Whether the owner is a cached block instead of a Spark page.
    pub is_block: bool,
    /// Whether the range is on the Java heap.
    pub on_heap: bool,
    /// RDD that the owner belongs to.
    pub rdd: RddKey,
}

/// Maps the addresses of one executor to cached blocks and Spark pages.
///
/// Ranges may overlap while not all moves of a collection are reported: the range reported last wins.
///
/// A removal visits few pieces of other owners, so that a range over many pieces is as cheap as any: pieces that it did
/// not reach stay until enough of their owners are gone to pay for a pass over the map.
#[derive(Debug, Default)]
pub struct AddressMap {
    ranges: RangeMap<u64, Owner>,
    /// Owners with a removal that did not reach every piece.
    unreached: HashSet<u64>,
    /// Owners in `unreached` that are gone.
    ghosts: HashSet<u64>,
    /// Pieces visited by removals since the start.
    #[cfg(test)]
    visited: u64,
}

/// Pieces of other owners that one removal visits.
const FOREIGN_VISITS: usize = 64;
/// One owner that is gone pays for this many pieces of a pass that removes what it left.
const PASS_VISITS: usize = 128;

impl AddressMap {
    /// Bytes that one more range adds: it may split a piece in two.
    pub const RANGE_BYTES: usize = 2 * tree_entry_bytes(PIECE_BYTES);

    /// Bytes of the map.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let sets = self.unreached.capacity() + self.ghosts.capacity();
        tree_bytes(self.ranges.len(), PIECE_BYTES) + sets * 2 * size_of::<u64>()
    }

    /// An owner and all its ranges are gone.
    pub fn gone(&mut self, serial: u64) {
        if !self.unreached.remove(&serial) {
            return;
        }
        self.ghosts.insert(serial);
        if self.ghosts.len() * PASS_VISITS < self.ranges.len() {
            return;
        }
        #[cfg(test)]
        {
            self.visited += self.ranges.len() as u64;
        }
        let ghosts = std::mem::take(&mut self.ghosts);
        let left = self.ranges.iter();
        let left = left.filter(|(_, owner)| ghosts.contains(&owner.serial));
        let left: Vec<_> = left.map(|(range, _)| range.clone()).collect();
        for range in left {
            self.ranges.remove(range);
        }
    }

    /// Assigns a range to `owner`. Refuses empty ranges and ranges beyond the address space.
    pub fn insert(&mut self, address: u64, length: u64, owner: Owner) -> bool {
        match address.checked_add(length) {
            Some(end) if length > 0 => {
                self.ranges.insert(address..end, owner);
                true
            }
            _ => false,
        }
    }

    /// Removes a range from its owner, except parts that another owner has received since.
    pub fn remove(&mut self, address: u64, length: u64, serial: u64) {
        let Some(end) = address.checked_add(length).filter(|_| length > 0) else {
            return;
        };
        let wanted = address..end;
        let (mut mine, mut foreign) = (Vec::new(), 0);
        for (range, owner) in self.ranges.overlapping(&wanted) {
            #[cfg(test)]
            {
                self.visited += 1;
            }
            if owner.serial == serial {
                mine.push(range.start.max(address)..range.end.min(end));
            } else if foreign < FOREIGN_VISITS {
                foreign += 1;
            } else {
                self.unreached.insert(serial);
                break;
            }
        }
        for range in mine {
            self.ranges.remove(range);
        }
    }

    /// The owner of an address.
    #[must_use]
    pub fn owner(&self, address: u64) -> Option<Owner> {
        let owner = self.ranges.get(&address).copied()?;
        (!self.ghosts.contains(&owner.serial)).then_some(owner)
    }

    /// Number of pieces in the map.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether the map is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

/// Agreement of sampled fault addresses with the contexts that the faults were counted for.
///
/// Only reported memory can agree or disagree: most faults of a JVM touch new objects, which are not yet cached blocks
/// or Spark pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreement {
    /// Samples received.
    pub samples: u64,
    /// Samples with an address in a cached block.
    pub in_blocks: u64,
    /// Samples with an address in a Spark page.
    pub in_pages: u64,
    /// Samples in memory of a known RDD whose context names the same RDD.
    pub agree: u64,
    /// Samples in memory of a known RDD whose context names another RDD or none.
    pub disagree: u64,
}

impl Agreement {
    /// Counts one sample.
    pub fn add(&mut self, owner: Option<Owner>, context: Option<RddKey>) {
        self.samples += 1;
        let Some(owner) = owner else { return };
        if owner.is_block {
            self.in_blocks += 1;
        } else {
            self.in_pages += 1;
        }
        if owner.rdd.id().is_some() {
            if context == Some(owner.rdd) {
                self.agree += 1;
            } else {
                self.disagree += 1;
            }
        }
    }

    /// Share of comparable samples whose address and context name the same RDD; `None` without comparable samples.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        let compared = self.agree + self.disagree;
        (compared > 0).then(|| self.agree as f64 / compared as f64)
    }
}

/// Ids that an executor claims, and what decides between equal claims.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Key of the executor, assigned by the kernel side: not a claim.
    pub key: u64,
    /// User of the process, as the kernel reports it: not a claim.
    pub uid: Option<u32>,
    /// Process id in the initial pid namespace.
    pub pid: u32,
    /// When it was first seen, nanoseconds since boot.
    pub first_seen_ns: u64,
    /// Claimed application id; empty where the executor has not described itself.
    pub application_id: String,
    /// Claimed executor id.
    pub executor_id: String,
}

/// Names of an executor where names must be unique.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// User of the process, as the kernel reports it.
    pub uid: Option<u32>,
    /// Application id; empty where it is not known.
    pub application_id: String,
    /// Executor id, with the process id added where the claim alone would not be unique.
    pub executor_id: String,
    /// Whether another executor claimed the same ids before.
    pub claimed_twice: bool,
}

/// Names that are unique for each user. The same application id claimed by two users is two applications, so no process
/// of one user takes a name from another's. Among executors of one user with the same claim the first one keeps the
/// plain name.
#[must_use]
pub fn names(mut claims: Vec<Claim>) -> BTreeMap<u64, Names> {
    sort_by_key(&mut claims, |claim| (claim.first_seen_ns, claim.key));
    let mut taken: HashMap<(Option<u32>, String, String), u64> = HashMap::new();
    let mut names = BTreeMap::new();
    for claim in claims {
        let plain = if claim.executor_id.is_empty() {
            format!("pid {}", claim.pid)
        } else {
            claim.executor_id
        };
        let first = *taken
            .entry((claim.uid, claim.application_id.clone(), plain.clone()))
            .or_insert(claim.key)
            == claim.key;
        let mut executor_id = plain;
        // A forged id may equal the longer name, so the key is added until the name is unique.
        while !first
            && *taken
                .entry((claim.uid, claim.application_id.clone(), executor_id.clone()))
                .or_insert(claim.key)
                != claim.key
        {
            executor_id = format!("{executor_id} (pid {})", claim.pid);
        }
        names.insert(
            claim.key,
            Names {
                uid: claim.uid,
                application_id: claim.application_id,
                executor_id,
                claimed_twice: !first,
            },
        );
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(serial: u64, rdd: u32) -> Owner {
        Owner {
            serial,
            is_block: true,
            on_heap: true,
            rdd: RddKey::Id(rdd),
        }
    }

    #[test]
    fn a_context_names_its_rdd_or_none_or_too_large() {
        assert_eq!(RddKey::of_context(0), RddKey::None);
        assert_eq!(RddKey::of_context(8), RddKey::Id(7));
        assert_eq!(RddKey::of_context(0xff_ffff), RddKey::Overflow);
    }

    #[test]
    fn unknown_codes_fall_together() {
        let doing = Doing::of_context(200, 0x0f);
        assert_eq!(doing, Doing::of_context(201, 0x0e));
        assert_eq!(Doing::of_context(8, 0x11).region, Region::STORAGE);
    }

    #[test]
    fn the_last_range_told_wins_and_only_its_owner_can_take_it_away() {
        let mut map = AddressMap::default();
        assert!(map.insert(0x1000, 0x3000, owner(1, 7)));
        assert!(map.insert(0x2000, 0x1000, owner(2, 8)));
        map.remove(0x1000, 0x3000, 1);
        assert_eq!(map.owner(0x1000), None);
        assert_eq!(map.owner(0x2fff), Some(owner(2, 8)));
        assert_eq!(map.owner(0x3000), None);
        assert_eq!(map.len(), 1);
    }

    #[test]
    fn impossible_ranges_are_refused() {
        let mut map = AddressMap::default();
        assert!(!map.insert(u64::MAX - 1, 10, owner(1, 7)));
        assert!(!map.insert(0x1000, 0, owner(1, 7)));
        map.remove(u64::MAX - 1, 10, 1);
        assert!(map.is_empty());
    }

    #[test]
    fn removals_visit_few_pieces_of_others() {
        let mut map = AddressMap::default();
        let page = 4096;
        // Large ranges that each keep one page at their front, below many small ones.
        for large in 0..1000 {
            assert!(map.insert(large * page, 1 << 40, owner(large, 7)));
        }
        for small in 0..20_000 {
            assert!(map.insert((1000 + 2 * small) * page, page, owner(10_000 + small, 8)));
        }
        for large in 0..1000 {
            map.remove(large * page, 1 << 40, large);
            map.gone(large);
        }
        // A search of every piece for every range would be twenty million.
        assert!(map.visited < 500_000, "{} pieces", map.visited);
        for large in 0..1000 {
            assert_eq!(map.owner(large * page), None);
        }
        assert_eq!(map.owner(1001 * page), None, "between two small ranges");
        assert_eq!(map.owner(1000 * page), Some(owner(10_000, 8)));
    }

    #[test]
    fn equal_claims_of_two_users_are_two_applications() {
        let claim = |key, uid| Claim {
            key,
            uid: Some(uid),
            pid: 10,
            first_seen_ns: key,
            application_id: "app-victim".to_owned(),
            executor_id: "7".to_owned(),
        };
        let names = names(vec![claim(1, 666), claim(2, 1000)]);
        for (key, uid) in [(1, 666), (2, 1000)] {
            let name = &names[&key];
            assert_eq!((name.executor_id.as_str(), name.uid), ("7", Some(uid)));
            assert!(!name.claimed_twice);
        }
    }

    #[test]
    fn agreement_compares_only_memory_that_has_an_rdd() {
        let mut agreement = Agreement::default();
        agreement.add(None, Some(RddKey::Id(7)));
        agreement.add(Some(owner(1, 7)), Some(RddKey::Id(7)));
        agreement.add(Some(owner(1, 7)), Some(RddKey::Id(9)));
        agreement.add(
            Some(Owner {
                serial: 2,
                is_block: false,
                on_heap: false,
                rdd: RddKey::None,
            }),
            None,
        );
        assert_eq!(
            agreement,
            Agreement {
                samples: 4,
                in_blocks: 2,
                in_pages: 1,
                agree: 1,
                disagree: 1
            }
        );
        assert_eq!(agreement.share(), Some(0.5));
        assert_eq!(Agreement::default().share(), None);
    }

    #[test]
    fn a_forged_claim_never_takes_the_name_of_an_earlier_one() {
        let claim = |key, pid, executor_id: &str| Claim {
            key,
            uid: Some(1000),
            pid,
            first_seen_ns: key,
            application_id: "app-1".to_owned(),
            executor_id: executor_id.to_owned(),
        };
        let names = names(vec![
            claim(3, 30, "1"),
            claim(1, 10, "1"),
            claim(2, 20, "1 (pid 30)"),
            claim(4, 40, ""),
        ]);
        assert_eq!(
            (names[&1].executor_id.as_str(), names[&1].claimed_twice),
            ("1", false)
        );
        assert_eq!(names[&2].executor_id, "1 (pid 30)");
        assert_eq!(
            (names[&3].executor_id.as_str(), names[&3].claimed_twice),
            ("1 (pid 30) (pid 30)", true)
        );
        assert_eq!(names[&4].executor_id, "pid 40");
    }
}
