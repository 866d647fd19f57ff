//! Sorting and collecting with little code. The standard library's stable sort is 5 KB of machine code for each type of
//! rows, and a `BTreeMap` that is collected sorts its entries first: in the program of workers that was half a megabyte.
//! Here one function sorts places in a list, whatever the list has.

use std::cmp::Ordering;

/// Sorts a list as [`slice::sort_by`] does: equal items keep their order.
pub fn sort_by<Item>(items: &mut [Item], mut compare: impl FnMut(&Item, &Item) -> Ordering) {
    let swaps = swaps(items.len(), &mut |left, right| {
        compare(&items[left], &items[right])
    });
    for (left, right) in swaps {
        items.swap(left, right);
    }
}

/// Sorts a list as [`slice::sort_by_key`] does: items with equal keys keep their order.
pub fn sort_by_key<Item, Key: Ord>(items: &mut [Item], mut key: impl FnMut(&Item) -> Key) {
    sort_by(items, |left, right| key(left).cmp(&key(right)));
}

/// The exchanges of places that sort a list of this length.
fn swaps(length: usize, compare: &mut dyn FnMut(usize, usize) -> Ordering) -> Vec<(usize, usize)> {
    let mut order: Vec<usize> = (0..length).collect();
    order.sort_by(|left, right| compare(*left, *right));
    let mut swaps = Vec::new();
    for start in 0..length {
        // The item that belongs here comes from another place, that one's from the next, until the round ends.
        let mut at = start;
        while order[at] != start {
            let from = std::mem::replace(&mut order[at], at);
            swaps.push((at, from));
            at = from;
        }
        order[at] = at;
    }
    swaps
}

/// Collects an iterator without a sort.
pub trait Gather: Iterator + Sized {
    /// Collects the items one by one: of equal keys a map has the last value, as with [`Iterator::collect`].
    fn gather<All: Default + Extend<Self::Item>>(self) -> All {
        let mut all = All::default();
        all.extend(self);
        all
    }
}

impl<Items: Iterator> Gather for Items {}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::{Gather as _, sort_by, sort_by_key};

    proptest! {
        #[test]
        fn lists_are_sorted_as_by_the_standard_library(keys in proptest::collection::vec(0_u8..20, 0..200)) {
            let items: Vec<(u8, usize)> = keys.iter().copied().zip(0..).collect();
            let mut wanted = items.clone();
            wanted.sort_by_key(|(key, _)| *key);
            let mut found = items.clone();
            sort_by_key(&mut found, |(key, _)| *key);
            prop_assert_eq!(&found, &wanted);
            wanted.sort_by_key(|(key, _)| std::cmp::Reverse(*key));
            sort_by(&mut found, |left, right| right.0.cmp(&left.0));
            prop_assert_eq!(&found, &wanted);
        }

        #[test]
        fn maps_are_those_that_are_collected(keys in proptest::collection::vec(0_u8..20, 0..50)) {
            let items: Vec<(u8, usize)> = keys.iter().copied().zip(0..).collect();
            let wanted: BTreeMap<_, _> = items.iter().copied().collect();
            let found: BTreeMap<_, _> = items.iter().copied().gather();
            prop_assert_eq!(found, wanted);
            let wanted: BTreeSet<_> = keys.iter().collect();
            let found: BTreeSet<_> = keys.iter().gather();
            prop_assert_eq!(found, wanted);
        }
    }
}
