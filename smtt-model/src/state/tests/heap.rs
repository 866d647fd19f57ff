//! Addresses on the Java heap: said to be right only where they are.

use super::*;
use smtt_common::context::HeapAddresses;

use crate::rows::{AddressState, PagesBy};
use crate::state::{Resolved, Seen, Trust};

const FOLLOWED: HeapAddresses = HeapAddresses::FOLLOWED;

fn told(collection: u64, moved_facts: u64) -> Fact {
    Fact::AddressesReported {
        collection,
        moved_facts,
    }
}

fn trust(state: &State) -> Trust {
    state.executors()[&key(1)].heap.trust()
}

/// An RDD with a block on the heap and one off it, and addresses that are current after two collections.
fn followed() -> State {
    let mut state = state();
    tell(
        &mut state,
        1,
        1,
        stored(block(7, 0, 4096, &[(0x10_000, 4096)])),
    );
    let off_heap = BlockFact {
        on_heap: false,
        ..block(7, 1, 4096, &[(0x90_000, 4096)])
    };
    tell(&mut state, 1, 1, stored(off_heap));
    state.set_collections(key(1), FOLLOWED, 2);
    tell(&mut state, 1, 2, told(2, 0));
    assert_eq!(trust(&state), Trust::Current);
    state
}

/// Samples at the addresses of both blocks; of how many something is said by address.
fn by_address(state: &mut State) -> u64 {
    let before = the_rdd(state, 1, 7).samples_by_address;
    for address in [0x10_010, 0x90_010] {
        let sample = Fact::FaultSample {
            address,
            write: Some(true),
            context: None,
        };
        tell(state, 1, 3, sample);
    }
    the_rdd(state, 1, 7).samples_by_address - before
}

#[test]
fn no_sample_is_attributed_by_a_stale_address() {
    let mut state = followed();
    assert_eq!(by_address(&mut state), 2);
    state.set_collections(key(1), FOLLOWED, 3);
    assert_eq!(by_address(&mut state), 1, "off the heap nothing moves");
    let moved = Fact::BlockMoved(Box::new(block(7, 0, 4096, &[(0x20_000, 4096)])));
    tell(&mut state, 1, 4, moved);
    assert_eq!(by_address(&mut state), 1, "others may not be reported yet");
    tell(&mut state, 1, 5, told(3, 1));
    assert_eq!(trust(&state), Trust::Current);
    assert_eq!(by_address(&mut state), 1, "nothing is where it was");
    assert_eq!(state.current_collection(key(1)), Some(3));
}

#[test]
fn figures_of_the_heap_are_absent_while_it_is_stale() {
    let mut state = followed();
    let targets = state.targets(key(1));
    let seen = Seen {
        pages: 1,
        examined_pages: 1,
        examined_bytes: 4096,
        present_bytes: 4096,
        ..Seen::default()
    };
    let owners = targets
        .owners
        .iter()
        .map(|ranges_id| (*ranges_id, seen.clone()));
    let resolved = Resolved {
        time_ns: 3,
        page_bytes: 4096,
        owners: owners.collect(),
        ..Resolved::default()
    };
    state.resolved(key(1), resolved);
    let row = |state: &State| {
        let rows = state.list_pages(&Filter::default(), PagesBy::Rdd).rows;
        (rows[0].resolved_bytes, rows[0].addresses)
    };
    assert_eq!(
        row(&state),
        (Some(8192), Some(AddressState::OnHeap(Trust::Current)))
    );
    state.set_collections(key(1), FOLLOWED, 3);
    assert_eq!(
        row(&state),
        (Some(4096), Some(AddressState::OnHeap(Trust::Stale)))
    );
    tell(&mut state, 1, 4, told(3, 0));
    assert_eq!(
        row(&state),
        (Some(8192), Some(AddressState::OnHeap(Trust::Current)))
    );
}

#[test]
fn an_executor_says_that_no_address_on_its_heap_is_told() {
    let mut state = state();
    tell(&mut state, 1, 1, described("app-1", "0"));
    state.set_collections(key(1), HeapAddresses::REFUSED, 0);
    let rows = state.list_executors(&Filter::default()).rows;
    assert_eq!(rows[0].heap_addresses, Trust::Refused);
    assert_eq!(rows[0].heap_addresses_by.as_deref(), Some("refused"));
    assert_eq!(rows[0].collections, None);
}
