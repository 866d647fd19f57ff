//! Whether addresses on the Java heap are where they were told to be.
//!
//! Two things are set against each other: how many collections have begun, which the daemon reads from the slot file
//! *after* it received a batch of records, and after which collection all addresses had been told, which comes in the
//! order of the records themselves. While they differ, addresses are stale. So an address is never taken for current
//! too long, only too short.

use smtt_common::context::HeapAddresses;

use super::State;

/// What can be said of addresses on the Java heap now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// They were told, and the marker does not say whether there was a collection since.
    AsTold,
    /// The marker looks for collections now and then: they may have moved since.
    Polled,
    /// No collection has begun since they were told.
    Current,
    /// A collection has begun since, or facts about moves were lost.
    Stale,
    /// None are told.
    Refused,
}

impl Trust {
    /// Its name in every output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AsTold => "as told",
            Self::Polled => "polled",
            Self::Current => "current",
            Self::Stale => "stale",
            Self::Refused => "refused",
        }
    }

    /// Whether something may be said about a sample because of its address.
    #[must_use]
    pub const fn attributes(self) -> bool {
        matches!(self, Self::AsTold | Self::Current)
    }

    /// Whether it is worth looking at the pages at these addresses.
    #[must_use]
    pub const fn can_be_looked_at(self) -> bool {
        !matches!(self, Self::Stale | Self::Refused)
    }
}

/// See [`smtt_common::event::Kind::ADDRESSES_TOLD`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    collection: u64,
    time_ns: u64,
}

/// Collections of one executor, and what was told after them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap {
    way: HeapAddresses,
    begun: Option<u64>,
    told: Option<Told>,
    /// Facts with new addresses that arrived since everything was told the last time.
    moves: u64,
    /// Fewer arrived than were told: somewhere an address is out of date until everything is told again.
    moves_lost: bool,
}

impl Heap {
    /// What can be said now.
    #[must_use]
    pub fn trust(&self) -> Trust {
        match self.way {
            HeapAddresses::AS_TOLD => Trust::AsTold,
            HeapAddresses::REFUSED => Trust::Refused,
            HeapAddresses::FOLLOWED | HeapAddresses::FOLLOWED_SLOWLY => {
                let told = self.told.map(|told| told.collection);
                if told.is_some() && told == self.begun && !self.moves_lost {
                    Trust::Current
                } else {
                    Trust::Stale
                }
            }
            _ => Trust::Polled,
        }
    }

    /// The last collection, where addresses are known to be current after it.
    #[must_use]
    pub fn current_collection(&self) -> Option<u64> {
        self.begun.filter(|_| self.trust() == Trust::Current)
    }

    /// How the marker gets to know addresses.
    #[must_use]
    pub const fn way(&self) -> HeapAddresses {
        self.way
    }

    /// Collections that have begun since the marker follows them; `None` where it does not, or is not known to.
    #[must_use]
    pub const fn collections(&self) -> Option<u64> {
        self.begun
    }

    /// How long before `now_ns` an address on the heap was last known to be right, when it was told at `told_ns`; 0
    /// where it is right now. In nanoseconds.
    #[must_use]
    pub fn age_ns(&self, told_ns: u64, now_ns: u64) -> u64 {
        if self.trust() == Trust::Current {
            return 0;
        }
        let known_ns = self.told.map_or(told_ns, |told| told.time_ns.max(told_ns));
        now_ns.saturating_sub(known_ns)
    }

    /// What an executor says when it describes itself.
    pub(super) fn described(&mut self, flags: u64) {
        self.way = HeapAddresses((flags & 0xff) as u8);
    }

    /// What its slot file says.
    pub(super) fn read(&mut self, way: HeapAddresses, begun: u64) {
        self.way = way;
        let followed = matches!(
            way,
            HeapAddresses::FOLLOWED | HeapAddresses::FOLLOWED_SLOWLY
        );
        self.begun = followed.then_some(begun);
    }

    /// A fact told a new address.
    pub(super) fn moved(&mut self) {
        self.moves += 1;
    }

    /// Every address was told.
    pub(super) fn addresses_told(&mut self, collection: u64, moved_facts: u64, time_ns: u64) {
        self.moves_lost |= self.moves < moved_facts;
        self.moves = 0;
        self.told = Some(Told {
            collection,
            time_ns,
        });
    }

    /// Everything alive was told again. Where not all of it came, `complete` is false, an address may be out of date.
    pub(super) fn told_again(&mut self, complete: bool) {
        self.moves = 0;
        self.moves_lost = !complete;
        // The marker says after it where it stands.
        self.told = None;
    }
}

impl State {
    /// What an executor's slot file says of its collections. Read it after the records that are taken in next.
    pub fn set_collections(&mut self, executor: u64, way: HeapAddresses, begun: u64) {
        if let Some(executor) = self.executors.get_mut(&executor) {
            executor.heap.read(way, begun);
        }
    }

    /// The last collection of an executor, where its addresses on the heap are current after it.
    #[must_use]
    pub fn current_collection(&self, executor: u64) -> Option<u64> {
        self.executors.get(&executor)?.heap.current_collection()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLLOWED: u64 = HeapAddresses::FOLLOWED.0 as u64;

    fn followed() -> Heap {
        let mut heap = Heap::default();
        heap.described(FOLLOWED);
        heap
    }

    #[test]
    fn addresses_are_current_only_between_their_telling_and_the_next_collection() {
        let mut heap = followed();
        assert_eq!(heap.trust(), Trust::Stale, "the slot file is not open yet");
        heap.read(HeapAddresses::FOLLOWED, 3);
        assert_eq!(heap.trust(), Trust::Stale, "nothing was told");
        heap.addresses_told(3, 0, 100);
        assert_eq!(heap.trust(), Trust::Current);
        assert_eq!(
            (heap.current_collection(), heap.age_ns(40, 500)),
            (Some(3), 0)
        );
        heap.read(HeapAddresses::FOLLOWED, 4);
        assert_eq!(heap.trust(), Trust::Stale);
        assert_eq!(
            heap.age_ns(40, 500),
            400,
            "since all were known to be right"
        );
        assert_eq!(heap.age_ns(300, 500), 200, "since this one was told");
        heap.addresses_told(4, 0, 600);
        assert_eq!(heap.trust(), Trust::Current);
    }

    #[test]
    fn a_lost_move_makes_addresses_stale_until_everything_is_told_again() {
        let mut heap = followed();
        heap.read(HeapAddresses::FOLLOWED, 1);
        heap.moved();
        heap.addresses_told(1, 2, 100);
        assert_eq!(heap.trust(), Trust::Stale);
        heap.read(HeapAddresses::FOLLOWED, 2);
        heap.moved();
        heap.addresses_told(2, 1, 200);
        assert_eq!(heap.trust(), Trust::Stale);
        heap.told_again(false);
        heap.addresses_told(2, 0, 250);
        assert_eq!(
            heap.trust(),
            Trust::Stale,
            "of what was told again some was lost"
        );
        heap.told_again(true);
        assert_eq!(heap.trust(), Trust::Stale);
        heap.addresses_told(2, 0, 300);
        assert_eq!(heap.trust(), Trust::Current);
    }

    #[test]
    fn a_marker_that_does_not_follow_collections_is_never_current() {
        let mut heap = Heap::default();
        heap.read(HeapAddresses::AS_TOLD, 0);
        assert_eq!(
            (heap.trust(), heap.trust().attributes()),
            (Trust::AsTold, true)
        );
        heap.addresses_told(0, 0, 1);
        assert_eq!(heap.age_ns(5, 12), 7);
        heap.read(HeapAddresses::POLLED, 0);
        assert_eq!(
            (heap.trust(), heap.trust().attributes()),
            (Trust::Polled, false)
        );
        heap.described(u64::from(HeapAddresses::REFUSED.0));
        assert_eq!(heap.trust(), Trust::Refused);
        heap.described(200);
        assert!(!heap.trust().attributes());
    }
}
