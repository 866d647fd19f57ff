//! Epochs of addresses on the Java heap: whether reported addresses are current or stale.
//!
//! The epoch is the number of collections. Two values are compared: the number of collections begun, which the daemon
//! reads from the slot file *after* it received a batch of records, and the collection after which all addresses were
//! reported, which arrives in the order of the records. While they differ, addresses are stale. So a stale address is
//! never taken for current; a current one may be taken for stale for a moment.

use serde::{Deserialize, Serialize};
use smtt_common::context::HeapAddresses;

use super::State;

/// State of the addresses on the Java heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trust {
    /// Addresses were reported, and the marker does not report collections.
    #[default]
    #[serde(rename = "unverified", alias = "as told")]
    Unverified,
    /// The marker polls for collections: objects may have moved since.
    #[serde(rename = "polled")]
    Polled,
    /// No collection has begun since the addresses were reported.
    #[serde(rename = "current")]
    Current,
    /// A collection has begun since the addresses were reported, or facts about moves were lost.
    #[serde(rename = "stale")]
    Stale,
    /// The marker reports no addresses on the heap.
    #[serde(rename = "refused")]
    Refused,
}

impl Trust {
    /// The name in every output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unverified => "unverified",
            Self::Polled => "polled",
            Self::Current => "current",
            Self::Stale => "stale",
            Self::Refused => "refused",
        }
    }

    /// Whether samples may be attributed by address.
    #[must_use]
    pub const fn attributes(self) -> bool {
        matches!(self, Self::Unverified | Self::Current)
    }

    /// Whether pages at these addresses may be examined.
    #[must_use]
    pub const fn can_be_inspected(self) -> bool {
        !matches!(self, Self::Stale | Self::Refused)
    }
}

/// See [`smtt_common::event::Kind::ADDRESSES_TOLD`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    collection: u64,
    time_ns: u64,
}

/// Collections of one executor and the addresses reported after them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap {
    way: HeapAddresses,
    begun: Option<u64>,
    told: Option<Told>,
    /// Facts with new addresses received since the last complete report.
    moves: u64,
    /// Fewer facts arrived than were sent: some address is stale until the next complete snapshot.
    moves_lost: bool,
}

impl Heap {
    /// Current state of the addresses.
    #[must_use]
    pub fn trust(&self) -> Trust {
        match self.way {
            HeapAddresses::UNVERIFIED => Trust::Unverified,
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

    /// The last collection, where addresses are current after it.
    #[must_use]
    pub fn current_collection(&self) -> Option<u64> {
        self.begun.filter(|_| self.trust() == Trust::Current)
    }

    /// How the marker finds addresses.
    #[must_use]
    pub const fn way(&self) -> HeapAddresses {
        self.way
    }

    /// Collections begun since the marker started to count them; `None` where it does not count them or that is
    /// unknown.
    #[must_use]
    pub const fn collections(&self) -> Option<u64> {
        self.begun
    }

    /// Age in nanoseconds, at `now_ns`, of the last moment at which a heap address reported at `told_ns` was known to
    /// be right; 0 where it is right now.
    #[must_use]
    pub fn age_ns(&self, told_ns: u64, now_ns: u64) -> u64 {
        if self.trust() == Trust::Current {
            return 0;
        }
        let known_ns = self.told.map_or(told_ns, |told| told.time_ns.max(told_ns));
        now_ns.saturating_sub(known_ns)
    }

    /// Applies the flags of an executor's description.
    pub(super) fn described(&mut self, flags: u64) {
        self.way = HeapAddresses((flags & 0xff) as u8);
    }

    /// Applies the counts of the slot file.
    pub(super) fn read(&mut self, way: HeapAddresses, begun: u64) {
        self.way = way;
        let followed = matches!(
            way,
            HeapAddresses::FOLLOWED | HeapAddresses::FOLLOWED_SLOWLY
        );
        self.begun = followed.then_some(begun);
    }

    /// The counts of the slot file could not be read: a collection may have begun.
    pub(super) fn unread(&mut self) {
        self.begun = None;
    }

    /// Counts a fact with a new address.
    pub(super) fn moved(&mut self) {
        self.moves += 1;
    }

    /// All addresses are reported.
    pub(super) fn addresses_reported(&mut self, collection: u64, moved_facts: u64, time_ns: u64) {
        self.moves_lost |= self.moves < moved_facts;
        self.moves = 0;
        self.told = Some(Told {
            collection,
            time_ns,
        });
    }

    /// A resync has ended. Where facts of it were lost (`complete` is false), an address may be stale.
    pub(super) fn reported_again(&mut self, complete: bool) {
        self.moves = 0;
        self.moves_lost = !complete;
        // The marker reports its epoch after the resync.
        self.told = None;
    }
}

impl State {
    /// Sets the collection counts of an executor's slot file. Read them after the records that are applied next.
    pub fn set_collections(&mut self, executor: u64, way: HeapAddresses, begun: u64) {
        if let Some(executor) = self.executors.get_mut(&executor) {
            executor.heap.read(way, begun);
        }
    }

    /// The slot file of an executor could not be read in time: its heap addresses are stale until the next reading.
    pub fn collections_unread(&mut self, executor: u64) {
        if let Some(executor) = self.executors.get_mut(&executor) {
            executor.heap.unread();
        }
    }

    /// The last collection of an executor, where its heap addresses are current after it.
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
        assert_eq!(heap.trust(), Trust::Stale, "nothing was reported");
        heap.addresses_reported(3, 0, 100);
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
        assert_eq!(heap.age_ns(300, 500), 200, "since this one was reported");
        heap.addresses_reported(4, 0, 600);
        assert_eq!(heap.trust(), Trust::Current);
    }

    #[test]
    fn addresses_are_stale_while_the_slot_file_cannot_be_read() {
        let mut heap = followed();
        heap.read(HeapAddresses::FOLLOWED, 3);
        heap.addresses_reported(3, 0, 100);
        heap.unread();
        assert_eq!(
            (heap.trust(), heap.current_collection()),
            (Trust::Stale, None)
        );
        heap.addresses_reported(3, 0, 200);
        assert_eq!(heap.trust(), Trust::Stale);
        heap.read(HeapAddresses::FOLLOWED, 3);
        assert_eq!(heap.trust(), Trust::Current);
        heap.read(HeapAddresses::UNVERIFIED, 0);
        heap.unread();
        assert_eq!(
            heap.trust(),
            Trust::Unverified,
            "no collections are counted"
        );
    }

    #[test]
    fn a_lost_move_makes_addresses_stale_until_everything_is_told_again() {
        let mut heap = followed();
        heap.read(HeapAddresses::FOLLOWED, 1);
        heap.moved();
        heap.addresses_reported(1, 2, 100);
        assert_eq!(heap.trust(), Trust::Stale);
        heap.read(HeapAddresses::FOLLOWED, 2);
        heap.moved();
        heap.addresses_reported(2, 1, 200);
        assert_eq!(heap.trust(), Trust::Stale);
        heap.reported_again(false);
        heap.addresses_reported(2, 0, 250);
        assert_eq!(heap.trust(), Trust::Stale, "facts of the resync were lost");
        heap.reported_again(true);
        assert_eq!(heap.trust(), Trust::Stale);
        heap.addresses_reported(2, 0, 300);
        assert_eq!(heap.trust(), Trust::Current);
    }

    #[test]
    fn a_marker_that_does_not_follow_collections_is_never_current() {
        let mut heap = Heap::default();
        heap.read(HeapAddresses::UNVERIFIED, 0);
        assert_eq!(
            (heap.trust(), heap.trust().attributes()),
            (Trust::Unverified, true)
        );
        heap.addresses_reported(0, 0, 1);
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

    #[test]
    fn the_word_of_earlier_daemons_is_read() {
        let read: Trust = serde_json::from_str("\"as told\"").expect("a state");
        assert_eq!((read, read.name()), (Trust::Unverified, "unverified"));
    }
}
