//! Placement: the resolver's results stand for the addresses that it examined, and for nothing else.

use smtt_common::context::HeapAddresses;

use super::*;
use crate::decode::{BlockRead, BlockRemoved};
use crate::rows::{AddressState, HotnessMethod, PagesBy, PagesRow};
use crate::state::{Accessed, Resolved, Seen, SizesBy, Targets};

const MIB: u64 = 1 << 20;

/// What was seen of an owner whose pages are all in memory, on one node each.
fn all_present(bytes: u64, node: u32) -> Seen {
    let mut seen = Seen {
        pages: bytes / 4096,
        examined_pages: bytes / 4096,
        examined_bytes: bytes,
        present_bytes: bytes,
        ..Seen::default()
    };
    seen.add_page_size(4096, bytes);
    seen.add_node(node, bytes);
    seen
}

/// One pass, in which every owner was seen so.
fn looked(targets: &Targets, seen: &Seen, time_ns: u64) -> Resolved {
    Resolved {
        time_ns,
        page_bytes: 4096,
        sizes_by: SizesBy::PageTables,
        owners: targets
            .owners
            .iter()
            .map(|ranges_id| (*ranges_id, seen.clone()))
            .collect(),
    }
}

fn off_heap(rdd: u32, partition: u32, address: u64) -> BlockFact {
    BlockFact {
        on_heap: false,
        ..block(rdd, partition, MIB, &[(address, MIB)])
    }
}

fn pages(state: &State, by: PagesBy) -> Vec<PagesRow> {
    state.list_pages(&Filter::default(), by).rows
}

#[test]
fn figures_are_absent_until_it_was_looked_at() {
    let mut state = state();
    tell(&mut state, 1, 1, stored(off_heap(7, 0, MIB)));
    let rows = pages(&state, PagesBy::Rdd);
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].held_bytes, MIB);
    assert_eq!(rows[0].present_bytes, None);
    assert_eq!(rows[0].nodes, None);
    assert_eq!(state.to_resolve(), [(key(1), MIB)]);

    let targets = state.targets(key(1));
    state.resolved(key(1), looked(&targets, &all_present(MIB, 0), 5));
    let row = &pages(&state, PagesBy::Rdd)[0];
    assert_eq!(row.present_bytes, Some(MIB));
    assert_eq!(row.swapped_bytes, Some(0));
    assert_eq!(row.estimated, Some(false));
    assert_eq!(row.addresses, Some(AddressState::Fixed));
}

#[test]
fn hotness_is_by_the_best_method_that_stands_for_where_the_block_is() {
    let mut state = state();
    for partition in 0..2 {
        let address = u64::from(partition + 1) * MIB;
        tell(&mut state, 1, 1, stored(off_heap(7, partition, address)));
    }
    let row = |state: &State| pages(state, PagesBy::Rdd).remove(0);
    let method = |state: &State| row(state).hotness_method;
    assert_eq!(method(&state), Some(HotnessMethod::BlockReads));
    assert_eq!(
        (row(&state).hot_bytes, row(&state).hotness),
        (None, Some(0.0))
    );

    let targets = state.block_targets(key(1));
    assert_eq!(targets.owners.len(), 2);
    let accessed = |share: f64, hot_bytes| Accessed {
        checked_bytes: MIB,
        hot_bytes,
        accessed: share * MIB as f64,
    };
    let found = [accessed(1.0, MIB), accessed(0.5, MIB / 2)];
    let found = targets.owners.iter().copied().zip(found).collect();
    state.accessed(key(1), 2, found);
    let both = row(&state);
    assert_eq!(both.hotness_method, Some(HotnessMethod::Damon));
    assert_eq!(
        (both.hotness, both.hot_bytes, both.checked_bytes),
        (Some(0.75), Some(MIB + MIB / 2), Some(2 * MIB))
    );
    assert_eq!(both.reads_per_minute, Some(0.0), "Spark's reads go on");

    // Both move: what was found was somewhere else.
    for partition in 0..2 {
        let address = u64::from(partition + 10) * MIB;
        tell(&mut state, 1, 3, stored(off_heap(7, partition, address)));
    }
    assert_eq!(row(&state).hot_bytes, None);
    assert_eq!(method(&state), Some(HotnessMethod::BlockReads));
}

#[test]
fn what_is_freed_moved_or_stored_anew_loses_its_figures() {
    let mut state = state();
    for partition in 0..3 {
        let address = u64::from(partition + 1) * MIB;
        tell(&mut state, 1, 1, stored(off_heap(7, partition, address)));
    }
    let targets = state.targets(key(1));
    // During the scan one is freed and one is moved.
    tell(
        &mut state,
        1,
        2,
        Fact::BlockRemoved(BlockRemoved {
            block_id: "rdd_7_0".to_owned(),
            ..BlockRemoved::default()
        }),
    );
    tell(
        &mut state,
        1,
        2,
        Fact::BlockMoved(Box::new(off_heap(7, 1, 64 * MIB))),
    );
    state.resolved(key(1), looked(&targets, &all_present(MIB, 0), 2));
    let rows = pages(&state, PagesBy::Block);
    let seen: Vec<_> = rows
        .iter()
        .map(|row| (row.block_id.as_deref(), row.present_bytes))
        .collect();
    assert_eq!(
        seen,
        [(Some("rdd_7_1"), None), (Some("rdd_7_2"), Some(MIB))]
    );
    // The figures of the RDD stand for what they were made of.
    let rdd = &pages(&state, PagesBy::Rdd)[0];
    assert_eq!(rdd.held_bytes, 2 * MIB);
    assert_eq!(rdd.resolved_bytes, Some(MIB));
    assert_eq!(rdd.present_bytes, Some(MIB));
    // Another block at the place of the last one is not the last one.
    tell(
        &mut state,
        1,
        3,
        Fact::BlockRemoved(BlockRemoved {
            block_id: "rdd_7_2".to_owned(),
            ..BlockRemoved::default()
        }),
    );
    tell(&mut state, 1, 3, stored(off_heap(7, 2, 3 * MIB)));
    assert!(
        pages(&state, PagesBy::Block)
            .iter()
            .all(|row| row.present_bytes.is_none())
    );
}

#[test]
fn a_read_while_addresses_are_stale_has_its_place_unless_the_block_moves() {
    let mut state = state();
    let followed = HeapAddresses::FOLLOWED;
    let told = |state: &mut State, collection| {
        let told = Fact::AddressesReported {
            collection,
            moved_facts: 0,
        };
        tell(state, 1, 1, told);
    };
    let read = |state: &mut State| {
        let fact = BlockRead {
            block_id: "rdd_7_0".to_owned(),
            rdd_id: Some(7),
            partition: Some(0),
            node: Some(0),
            ..BlockRead::default()
        };
        assert_eq!(tell(state, 1, 2, Fact::BlockRead(fact)), Outcome::Applied);
    };
    let examine = |state: &mut State, node| {
        let targets = state.targets(key(1));
        state.resolved(key(1), looked(&targets, &all_present(MIB, node), 2));
    };
    let by_node = |state: &State| {
        let row = &pages(state, PagesBy::Block)[0];
        (row.read_local_bytes, row.read_remote_bytes)
    };
    let on_heap = |ranges: &[(u64, u64)]| block(7, 0, MIB, ranges);
    tell(&mut state, 1, 1, rdd(7, "read", "memory"));
    tell(&mut state, 1, 1, stored(on_heap(&[(MIB, MIB)])));
    state.set_collections(key(1), followed, 0);
    told(&mut state, 0);
    examine(&mut state, 0);
    read(&mut state);
    assert_eq!(by_node(&state), (Some(MIB), Some(0)));
    // A reading of the counts that came too late: nothing moved.
    state.collections_unread(key(1));
    read(&mut state);
    examine(&mut state, 0);
    assert_eq!(by_node(&state), (Some(MIB), Some(0)), "no place yet");
    state.set_collections(key(1), followed, 0);
    let targets = state.targets(key(1));
    state.resolved(key(1), looked(&targets, &Seen::default(), 2));
    assert_eq!(by_node(&state), (Some(MIB), Some(0)), "not examined");
    examine(&mut state, 0);
    assert_eq!(by_node(&state), (Some(2 * MIB), Some(0)));
    // A collection that leaves the block where it is, and a scan that ends before that is known.
    state.set_collections(key(1), followed, 1);
    read(&mut state);
    state.resolved(key(1), looked(&targets, &all_present(MIB, 0), 3));
    assert_eq!(by_node(&state), (Some(2 * MIB), Some(0)), "no place yet");
    told(&mut state, 1);
    examine(&mut state, 0);
    assert_eq!(by_node(&state), (Some(3 * MIB), Some(0)));
    // One that moves it to the other node: where the read was is not known.
    state.set_collections(key(1), followed, 2);
    read(&mut state);
    let moved = BlockFact {
        reported_again: true,
        ..on_heap(&[(2 * MIB, MIB)])
    };
    tell(&mut state, 1, 3, Fact::BlockMoved(Box::new(moved)));
    told(&mut state, 2);
    examine(&mut state, 1);
    assert_eq!(by_node(&state), (Some(3 * MIB), Some(0)));
    read(&mut state);
    assert_eq!(by_node(&state), (Some(3 * MIB), Some(MIB)));
    // Under a collector that moves objects meanwhile, no address is ever right.
    state.set_collections(key(1), HeapAddresses::REFUSED, 2);
    read(&mut state);
    state.set_collections(key(1), followed, 2);
    examine(&mut state, 1);
    assert_eq!(by_node(&state), (Some(3 * MIB), Some(MIB)));
}

#[test]
fn one_block_can_be_asked_for() {
    let mut state = state();
    for partition in 0..3 {
        let address = u64::from(partition + 1) * MIB;
        tell(&mut state, 1, 1, stored(off_heap(7, partition, address)));
    }
    tell(&mut state, 1, 1, Fact::PageAllocated(page(5, Some(0), MIB)));
    let wanted = Filter {
        block: Some("rdd_7_1".to_owned()),
        ..Filter::default()
    };
    let named: Vec<_> = state
        .list_pages(&wanted, PagesBy::Block)
        .rows
        .into_iter()
        .map(|row| row.block_id)
        .collect();
    assert_eq!(named, [Some("rdd_7_1".to_owned())]);
    // Of its RDD, the part that is this block.
    let rdd = &state.list_pages(&wanted, PagesBy::Rdd).rows[0];
    assert_eq!(rdd.held_bytes, MIB);
    assert_eq!(state.list_blocks(&wanted).rows.len(), 1);
}

#[test]
fn a_sample_stands_for_all_bytes_and_the_states_add_up() {
    let mut state = state();
    tell(&mut state, 1, 1, stored(off_heap(7, 0, MIB)));
    tell(&mut state, 1, 1, stored(off_heap(7, 1, 3 * MIB)));
    let targets = state.targets(key(1));
    let mut seen = Seen {
        pages: 256,
        examined_pages: 7,
        examined_bytes: 7 * 4096,
        present_bytes: 4 * 4096,
        swapped_bytes: 4096,
        untouched_bytes: 2 * 4096,
        ..Seen::default()
    };
    seen.add_page_size(4096, 2 * 4096);
    seen.add_page_size(2 * MIB, 2 * 4096);
    seen.add_node(0, 3 * 4096);
    seen.add_node(1, 4096);
    state.resolved(key(1), looked(&targets, &seen, 5));
    let row = &pages(&state, PagesBy::Rdd)[0];
    assert_eq!(row.estimated, Some(true));
    assert_eq!(row.pages, Some(512));
    assert_eq!(row.spanning_nodes, Some(2));
    let states = [
        row.present_bytes,
        row.swapped_bytes,
        row.untouched_bytes,
        row.unmapped_bytes,
    ];
    assert_eq!(states.iter().flatten().sum::<u64>(), 2 * MIB);
    assert_eq!(row.swapped_bytes, Some(2 * MIB / 7));
    assert_eq!(row.huge_page_bytes, Some(2 * MIB * 2 / 7));
    let nodes: Vec<_> = row.nodes.iter().flatten().map(|node| node.bytes).collect();
    assert_eq!(nodes, [2 * MIB * 3 / 7, 2 * MIB / 7]);
}

#[test]
fn what_is_on_more_than_one_node_can_be_asked_for() {
    let mut state = state();
    tell(&mut state, 1, 1, stored(off_heap(7, 0, MIB)));
    tell(&mut state, 1, 1, stored(off_heap(8, 0, 3 * MIB)));
    let targets = state.targets(key(1));
    let mut saw = looked(&targets, &all_present(MIB, 0), 5);
    saw.owners[1].1.add_node(1, 4096);
    state.resolved(key(1), saw);
    let spanning = Filter {
        spanning: Some(true),
        ..Filter::default()
    };
    for by in [PagesBy::Rdd, PagesBy::Block] {
        assert_eq!(pages(&state, by).len(), 2);
        let rows = state.list_pages(&spanning, by).rows;
        assert_eq!((rows.len(), rows[0].spanning_nodes), (1, Some(1)));
    }
}

#[test]
fn a_dead_executor_has_no_pages_and_takes_in_none() {
    let mut state = state();
    tell(&mut state, 1, 1, stored(off_heap(7, 0, MIB)));
    let targets = state.targets(key(1));
    state.executor_gone(key(1), 2);
    state.resolved(key(1), looked(&targets, &all_present(MIB, 0), 3));
    assert!(pages(&state, PagesBy::Executor).is_empty());
    assert!(state.to_resolve().is_empty());
    assert!(state.targets(key(1)).ranges.is_empty());
    // Nor does one that was never heard of.
    state.resolved(key(2), Resolved::default());
    assert_eq!(state.executors().len(), 1);
}

#[test]
fn execution_memory_counts_for_its_task_and_rdd() {
    let mut state = state();
    tell(&mut state, 1, 1, Fact::PageAllocated(page(5, Some(0), MIB)));
    tell(&mut state, 1, 1, Fact::PageAllocated(page(5, None, 100)));
    let targets = state.targets(key(1));
    assert_eq!(targets.ranges.len(), 1, "a grant has no address");
    state.resolved(key(1), looked(&targets, &all_present(MIB, 1), 2));
    let task = &pages(&state, PagesBy::Task)[0];
    assert_eq!(task.task_attempt_id, Some(5));
    assert_eq!(task.held_bytes, MIB + 100);
    assert_eq!(task.present_bytes, Some(MIB));
    assert_eq!(pages(&state, PagesBy::Rdd)[0].rdd_id, Some(7));
    assert!(pages(&state, PagesBy::Block).is_empty());
}

#[test]
fn absurd_addresses_are_no_targets_and_overflow_nothing() {
    let mut state = state();
    let ranges = [(0, MIB), (u64::MAX, 2), (MIB, 0), (MIB, u64::MAX - 2 * MIB)];
    tell(
        &mut state,
        1,
        1,
        stored(BlockFact {
            range_total: 4,
            ..block(7, 0, u64::MAX, &ranges)
        }),
    );
    let targets = state.targets(key(1));
    for range in &targets.ranges {
        assert!(range.length > 0 && range.address.checked_add(range.length).is_some());
    }
    state.resolved(
        key(1),
        looked(&targets, &all_present(u64::MAX / 4096 * 4096, 0), 2),
    );
    assert_eq!(pages(&state, PagesBy::Executor).len(), 1);
}
