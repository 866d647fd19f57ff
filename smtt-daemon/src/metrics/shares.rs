//! Fair shares of the series.

use std::collections::BTreeMap;

use smtt_model::sort::small;

/// Shares `all` among claimants max-min fairly: a claimant gets what it wants or an even share of what the others leave.
pub(super) fn max_min<Key: Clone + Ord>(
    wants: &BTreeMap<Key, usize>,
    all: usize,
) -> BTreeMap<Key, usize> {
    let mut by_want: Vec<(usize, &Key)> = wants.iter().map(|(key, want)| (*want, key)).collect();
    small::sort_by(&mut by_want, Ord::cmp);
    let mut left = all;
    let mut claimants = by_want.len();
    let mut shares = BTreeMap::new();
    for (want, key) in by_want {
        let share = want.min(left / claimants);
        left -= share;
        claimants -= 1;
        shares.insert(key.clone(), share);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_wants_are_met_and_the_rest_is_even() {
        let of = |wants: &[(u32, usize)], all| {
            let wants = wants.iter().copied().collect();
            max_min(&wants, all).into_values().collect::<Vec<_>>()
        };
        assert_eq!(of(&[(1, 1000), (2, 6)], 100), [94, 6]);
        assert_eq!(of(&[(1, 1000), (2, 60)], 100), [50, 50]);
        assert_eq!(of(&[(1, 10), (2, 1000), (3, 30)], 70), [10, 30, 30]);
        assert_eq!(of(&[(1, 5)], 0), [0]);
        assert!(of(&[], 5).is_empty());
    }
}
