//! The order in which Scala 2.13 visits its immutable sets and maps of integers: Spark's answers show it, in lists of jobs
//! and in which of several tasks with the same value is named.

/// Elements up to which a set keeps the order of insertion.
const SMALL: usize = 4;

/// Integers of a set in Scala's order; `inserted` has them in the order of insertion.
pub(super) fn order(inserted: &[i32]) -> Vec<i32> {
    let mut out = Vec::with_capacity(inserted.len());
    if inserted.len() <= SMALL {
        out.extend_from_slice(inserted);
    } else {
        let hashed = inserted
            .iter()
            .map(|&value| (improve(value), value))
            .collect();
        visit(hashed, 0, &mut out);
    }
    out
}

/// Scala's `Hashing.improve`.
const fn improve(value: i32) -> u32 {
    let value = value as u32;
    let mut hash = value.wrapping_add(!(value << 9));
    hash ^= hash >> 14;
    hash = hash.wrapping_add(hash << 4);
    hash ^ (hash >> 10)
}

/// A node of the trie has 32 places. It visits the places with one element first, then the others, which are nodes.
fn visit(hashed: Vec<(u32, i32)>, shift: u32, out: &mut Vec<i32>) {
    if shift >= 32 {
        out.extend(hashed.into_iter().map(|(_, value)| value));
        return;
    }
    let mut places: [Vec<(u32, i32)>; 32] = Default::default();
    for element in hashed {
        places[(element.0 >> shift & 31) as usize].push(element);
    }
    let single = places.iter().filter(|place| place.len() == 1);
    out.extend(single.flatten().map(|(_, value)| *value));
    for place in places {
        if place.len() > 1 {
            visit(place, shift + 5, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::order;

    #[test]
    fn small_sets_keep_their_order_and_large_ones_are_scala_s() {
        assert_eq!(order(&[9, 1, 5, 2]), [9, 1, 5, 2]);
        // As Spark 4.0.5 listed the jobs of a query.
        assert_eq!(order(&[7, 8, 9, 10, 11]), [10, 9, 7, 11, 8]);
        let mut many = order(&(0..5000).collect::<Vec<_>>());
        assert_ne!(many[..5], [0, 1, 2, 3, 4]);
        many.sort_unstable();
        assert_eq!(many, (0..5000).collect::<Vec<_>>());
    }
}
