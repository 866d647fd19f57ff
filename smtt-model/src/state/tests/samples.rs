//! Blocks stored as objects: a sample says where they are likely to be, and stands in no figure of bytes.

use super::*;
use crate::decode::{BlockRead, Contents};
use crate::rows::{PagesBy, PagesRow, SampleRow};
use crate::state::{Resolved, Seen, SizesBy};

const MIB: u64 = 1 << 20;

/// A block of objects with four reported objects of 24 bytes.
fn objects(rdd: u32, partition: u32, from: u64) -> BlockFact {
    let ranges: Vec<(u64, u64)> = (0..4).map(|index| (from + index * 8192, 24)).collect();
    BlockFact {
        serialized: false,
        sampled: true,
        range_total: 4,
        ..block(rdd, partition, MIB, &ranges)
    }
}

/// A pass in which every page is in memory, each owner on the node of its number.
fn look(state: &mut State) {
    let targets = state.targets(key(1));
    let bytes = |owner: usize| -> u64 {
        let own = targets.ranges.iter().filter(|range| range.owner == owner);
        own.map(|range| range.length).sum()
    };
    let owners = targets.owners.iter().enumerate().map(|(owner, ranges_id)| {
        let bytes = bytes(owner);
        let mut seen = Seen {
            pages: 4,
            examined_pages: 4,
            examined_bytes: bytes,
            present_bytes: bytes,
            ..Seen::default()
        };
        seen.add_page_size(4096, bytes);
        seen.add_node(owner as u32, bytes);
        (*ranges_id, seen)
    });
    let resolved = Resolved {
        time_ns: 5,
        page_bytes: 4096,
        sizes_by: SizesBy::PageTables,
        owners: owners.collect(),
    };
    state.resolved(key(1), resolved);
}

fn the_rdd_row(state: &State) -> PagesRow {
    let rows = state.list_pages(&Filter::default(), PagesBy::Rdd).rows;
    assert_eq!(rows.len(), 1);
    rows[0].clone()
}

fn sample(row: &PagesRow) -> &SampleRow {
    row.sample.as_ref().expect("a sample was examined")
}

#[test]
fn a_sample_gives_shares_and_no_bytes() {
    let mut state = state();
    tell(&mut state, 1, 1, stored(objects(7, 0, MIB)));
    assert_eq!(the_rdd_row(&state).sampled_objects, None);
    // Each object may lie in a page of its own, however small it is.
    assert_eq!(state.to_resolve(), [(key(1), 4 * (24 + 4096))]);
    look(&mut state);
    let row = the_rdd_row(&state);
    assert_eq!((row.held_bytes, row.sampled_objects), (MIB, Some(4)));
    assert_eq!((row.resolved_bytes, row.present_bytes), (None, None));
    assert_eq!((&row.nodes, &row.page_sizes), (&None, &None));
    let said = sample(&row);
    assert_eq!((said.blocks, said.object_bytes), (1, 96));
    assert_eq!((said.present_share, said.nodes[0].share), (1.0, 1.0));
}

#[test]
fn a_sample_is_not_mixed_with_what_was_looked_at_whole() {
    let mut state = state();
    tell(&mut state, 1, 1, stored(objects(7, 0, MIB)));
    tell(
        &mut state,
        1,
        1,
        stored(block(7, 1, 2 * MIB, &[(8 * MIB, 2 * MIB)])),
    );
    look(&mut state);
    let row = the_rdd_row(&state);
    assert_eq!(row.held_bytes, 3 * MIB);
    assert_eq!(row.resolved_bytes, Some(2 * MIB));
    let on_nodes: u64 = row.nodes.iter().flatten().map(|node| node.bytes).sum();
    assert_eq!(on_nodes, 2 * MIB);
    assert_eq!((row.estimated, row.sampled_objects), (Some(false), Some(4)));
    assert_eq!(sample(&row).held_bytes, MIB);
}

#[test]
fn moved_objects_have_no_figures_until_they_are_looked_at_again() {
    let mut state = state();
    tell(&mut state, 1, 1, stored(objects(7, 0, MIB)));
    look(&mut state);
    let moved = objects(7, 0, 64 * MIB);
    tell(&mut state, 1, 2, Fact::BlockMoved(Box::new(moved)));
    assert_eq!(the_rdd_row(&state).sample, None);
    look(&mut state);
    assert_eq!(the_rdd_row(&state).sampled_objects, Some(4));
    // Handles could not be trusted any more: the objects have no addresses.
    let mut lost = objects(7, 0, 0);
    lost.ranges = vec![(0, 24); 4];
    tell(&mut state, 1, 3, Fact::BlockMoved(Box::new(lost)));
    assert!(state.targets(key(1)).ranges.is_empty());
    assert_eq!(the_rdd_row(&state).sample, None);
}

#[test]
fn reads_of_objects_are_on_no_node() {
    let mut state = state();
    tell(&mut state, 1, 1, stored(objects(7, 0, MIB)));
    look(&mut state);
    let read = BlockRead {
        block_id: "rdd_7_0".to_owned(),
        rdd_id: Some(7),
        partition: Some(0),
        task_attempt_id: None,
        node: Some(0),
    };
    tell(&mut state, 1, 2, Fact::BlockRead(read));
    let row = the_rdd_row(&state);
    assert_eq!((row.reads, row.remote_access_ratio), (Some(1), None));
}

#[test]
fn contents_are_told_apart() {
    let fact = objects(7, 0, MIB);
    let array = BlockFact {
        sampled: false,
        array: true,
        ..fact.clone()
    };
    let columns = BlockFact {
        sampled: false,
        ..fact.clone()
    };
    let nothing_told = BlockFact {
        range_total: 0,
        ..columns.clone()
    };
    let bytes = BlockFact {
        serialized: true,
        ..fact.clone()
    };
    for (fact, contents) in [
        (fact, Contents::Objects),
        (array, Contents::Array),
        (columns, Contents::Columns),
        (nothing_told, Contents::Objects),
        (bytes, Contents::Bytes),
    ] {
        assert_eq!(fact.contents(), contents, "{fact:?}");
    }
}
