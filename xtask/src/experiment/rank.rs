//! Spearman's rank correlation with its exact probability, for the few workloads that both sides have figures of.

/// Agreement of two orders.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Agreement {
    /// Number of compared pairs.
    pub pairs: usize,
    /// Rank correlation, -1 to 1.
    pub rho: f64,
    /// Probability of a correlation at least that far from 0, in either direction, if all orders were equally likely.
    pub probability: f64,
}

/// Most pairs for which all orders are tried.
const MOST: usize = 8;

/// Compares the orders; `None` with fewer than 3 or more than [`MOST`] pairs, or where one side is constant.
#[must_use]
pub fn spearman(pairs: &[(f64, f64)]) -> Option<Agreement> {
    if !(3..=MOST).contains(&pairs.len()) {
        return None;
    }
    let left = ranks(&pairs.iter().map(|pair| pair.0).collect::<Vec<_>>());
    let mut right = ranks(&pairs.iter().map(|pair| pair.1).collect::<Vec<_>>());
    let rho = correlation(&left, &right)?;
    let (mut orders, mut as_far) = (0_u32, 0_u32);
    let count = right.len();
    permute(&mut right, count, &mut |order| {
        orders += 1;
        // Sums of ranks in another order may differ in the last bit.
        if correlation(&left, order).is_some_and(|other| other.abs() >= rho.abs() - 1e-9) {
            as_far += 1;
        }
    });
    Some(Agreement {
        pairs: count,
        rho,
        probability: f64::from(as_far) / f64::from(orders),
    })
}

/// Ranks from 1; equal values share the mean of their ranks.
fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |value: &f64| {
        let below = values.iter().filter(|other| *other < value).count();
        let equal = values.iter().filter(|other| *other == value).count();
        below as f64 + (equal as f64 + 1.0) / 2.0
    };
    values.iter().map(rank).collect()
}

fn correlation(left: &[f64], right: &[f64]) -> Option<f64> {
    let mean = (left.len() as f64 + 1.0) / 2.0;
    let product = |one: &[f64], other: &[f64]| -> f64 {
        let terms = one.iter().zip(other).map(|(a, b)| (a - mean) * (b - mean));
        terms.sum()
    };
    let scale = (product(left, left) * product(right, right)).sqrt();
    (scale > 0.0).then(|| product(left, right) / scale)
}

/// Heap's algorithm: every order of the first `count` values.
fn permute(values: &mut [f64], count: usize, visit: &mut impl FnMut(&[f64])) {
    if count <= 1 {
        visit(values);
        return;
    }
    for index in 0..count {
        permute(values, count - 1, visit);
        if index + 1 < count {
            let other = if count.is_multiple_of(2) { index } else { 0 };
            values.swap(other, count - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::spearman;

    #[test]
    fn figures_are_those_of_the_tables() {
        // Critical values of the exact distribution: n = 5, rho 1.0 has 0.0167, rho 0.9 has 0.0833.
        let same = [
            (1.0, 10.0),
            (2.0, 20.0),
            (3.0, 30.0),
            (4.0, 40.0),
            (5.0, 50.0),
        ];
        let found = spearman(&same).expect("five pairs");
        assert!((found.rho - 1.0).abs() < 1e-9 && (found.probability - 2.0 / 120.0).abs() < 1e-9);
        let swapped = [
            (1.0, 20.0),
            (2.0, 10.0),
            (3.0, 30.0),
            (4.0, 40.0),
            (5.0, 50.0),
        ];
        let found = spearman(&swapped).expect("five pairs");
        assert!((found.rho - 0.9).abs() < 1e-9 && (found.probability - 10.0 / 120.0).abs() < 1e-9);
        let reversed = [(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)];
        assert!((spearman(&reversed).expect("three").rho + 1.0).abs() < 1e-9);
    }

    #[test]
    fn nothing_is_said_of_too_few_or_equal_values() {
        assert_eq!(spearman(&[(1.0, 2.0), (2.0, 3.0)]), None);
        assert_eq!(spearman(&[(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)]), None);
    }
}
