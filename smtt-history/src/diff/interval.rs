//! The interval of the difference of two totals, from the spread over tasks.
//!
//! A stage's total is the sum over its tasks. Where both runs have the same tasks by index, each index gives one difference,
//! and Student's interval of their sum is used: how large partitions are then does not matter. Otherwise it is Welch's
//! interval of the two sums. Both need tasks that are independent of one another: what slows all tasks of a run alike (a
//! busy machine) is in no spread over tasks.

use serde::Serialize;

/// Degrees of freedom at most; more give a narrower interval by less than 1 %.
const MOST_DEGREES: u32 = 400;

/// An interval of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Lower end, in the unit of the figure.
    pub low: f64,
    /// Upper end, in the unit of the figure.
    pub high: f64,
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Variance of a sample.
fn variance(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    squares / values.len().saturating_sub(1).max(1) as f64
}

/// The interval of `second`'s sum minus `first`'s. `paired` says that the two have the same tasks in the same order.
#[must_use]
pub fn difference(first: &[f64], second: &[f64], paired: bool, confidence: f64) -> Interval {
    let total = second.iter().sum::<f64>() - first.iter().sum::<f64>();
    let (error, degrees) = if paired {
        let each: Vec<f64> = first
            .iter()
            .zip(second)
            .map(|(left, right)| right - left)
            .collect();
        let count = each.len() as f64;
        ((count * variance(&each)).sqrt(), count - 1.0)
    } else {
        let of = |values: &[f64]| values.len() as f64 * variance(values);
        let (left, right) = (of(first), of(second));
        let share = |square: f64, count: usize| square.powi(2) / (count as f64 - 1.0).max(1.0);
        let below = share(left, first.len()) + share(right, second.len());
        let degrees = if below > 0.0 {
            (left + right).powi(2) / below
        } else {
            1.0
        };
        ((left + right).sqrt(), degrees)
    };
    let degrees = degrees.clamp(1.0, f64::from(MOST_DEGREES)) as u32;
    let half = error * quantile(confidence, degrees);
    Interval {
        low: total - half,
        high: total + half,
    }
}

/// Probability that Student's t lies within `-t..t`: Abramowitz and Stegun, 26.7.3 and 26.7.4.
fn within(t: f64, degrees: u32) -> f64 {
    let angle = (t / f64::from(degrees).sqrt()).atan();
    let (sine, cosine) = angle.sin_cos();
    let is_odd = degrees % 2 == 1;
    let mut term = if is_odd { cosine } else { 1.0 };
    let mut sum = if degrees == 1 { 0.0 } else { term };
    let mut step = if is_odd { 3 } else { 2 };
    while degrees > 2 && step < degrees - 1 {
        term *= cosine * cosine * f64::from(step - 1) / f64::from(step);
        sum += term;
        step += 2;
    }
    if is_odd {
        std::f64::consts::FRAC_2_PI * (angle + sine * sum)
    } else {
        sine * sum
    }
}

/// The `t` whose `-t..t` has a probability.
#[must_use]
pub fn quantile(probability: f64, degrees: u32) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while within(high, degrees) < probability && high < 1e9 {
        high *= 2.0;
    }
    for _ in 0..80 {
        let middle = (low + high) / 2.0;
        if within(middle, degrees) < probability {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Printed tables of Student's distribution.
    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (degrees, probability, expected) in [
            (1, 0.95, 12.706),
            (2, 0.95, 4.303),
            (3, 0.95, 3.182),
            (4, 0.99, 4.604),
            (5, 0.99, 4.032),
            (10, 0.95, 2.228),
            (11, 0.99, 3.106),
            (30, 0.99, 2.750),
            (30, 0.999, 3.646),
            (120, 0.95, 1.980),
            (120, 0.999, 3.373),
        ] {
            let found = quantile(probability, degrees);
            assert!(
                (found - expected).abs() < 6e-4,
                "{degrees} {probability}: {found}, not {expected}"
            );
        }
    }

    #[test]
    fn pairs_remove_what_partitions_differ_in() {
        let first: Vec<f64> = (0..50).map(|at| f64::from(at) * 100.0).collect();
        let second: Vec<f64> = first
            .iter()
            .zip(0..)
            .map(|(it, at)| it + 10.0 + f64::from(at % 3))
            .collect();
        let paired = difference(&first, &second, true, 0.99);
        assert!(paired.low > 500.0 && paired.high < 600.0, "{paired:?}");
        let alone = difference(&first, &second, false, 0.99);
        assert!(alone.low < 0.0 && alone.high > 1000.0, "{alone:?}");
    }

    #[test]
    fn a_difference_without_spread_is_a_point() {
        let found = difference(&[1.0; 9], &[3.0; 9], true, 0.99);
        assert_eq!((found.low, found.high), (18.0, 18.0));
        let found = difference(&[1.0; 9], &[3.0; 4], false, 0.99);
        assert_eq!((found.low, found.high), (3.0, 3.0));
    }
}
