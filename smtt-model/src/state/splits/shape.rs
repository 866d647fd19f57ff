//! Series between readings: straight lines, cut into parts of equal length.

use super::small::Small;
use super::{PARTS, Point};
use crate::sort::small::sort_by_key;

/// The shape of a series that adds up: the share of each part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sum {
    /// In proportion; all zero where nothing is known.
    shares: [u16; PARTS],
    /// Readings between begin and end.
    pub(super) points: u8,
}

/// The boundaries of the parts, from 0 to 1.
fn boundary(part: usize) -> f64 {
    part as f64 / PARTS as f64
}

impl Sum {
    /// The shape of a series with these values at these points between begin (0) and end (1).
    pub(super) fn new(points: &[(f64, f64)], total: f64) -> Self {
        let mut line = vec![(0.0, 0.0)];
        for (at, value) in points {
            // A reading never falls, and the account at the end is the last word.
            let before = line.last().map_or(0.0, |(_, value)| *value);
            line.push((*at, value.min(total).max(before)));
        }
        line.push((1.0, total));
        let at: [f64; PARTS] = std::array::from_fn(|part| {
            value_at(&line, boundary(part + 1)) - value_at(&line, boundary(part))
        });
        let most = at.into_iter().fold(0.0, f64::max);
        Self {
            shares: at.map(|share| match share > 0.0 {
                true => (share / most * f64::from(u16::MAX)).round().max(1.0) as u16,
                false => 0,
            }),
            points: points.len() as u8,
        }
    }

    pub(super) fn parts(&self, total: u64) -> [u64; PARTS] {
        parts_of(total, &self.shares)
    }
}

/// The value of a line of points at a place between the first and the last.
fn value_at(line: &[(f64, f64)], at: f64) -> f64 {
    let next = line.iter().position(|(place, _)| *place >= at);
    match next {
        Some(0) => line[0].1,
        Some(next) => {
            let ((from, low), (to, high)) = (line[next - 1], line[next]);
            low + (high - low) * (at - from) / (to - from)
        }
        None => line.last().map_or(0.0, |(_, value)| *value),
    }
}

/// Divides `total` by shares so that the parts add up to it: what is left after rounding down goes to the largest
/// remainders. Without a share the parts are equal.
#[must_use]
pub fn parts_of(total: u64, shares: &[u16; PARTS]) -> [u64; PARTS] {
    let all: u128 = shares.iter().map(|share| u128::from(*share)).sum();
    let shares = match all {
        0 => [1_u128; PARTS],
        _ => shares.map(u128::from),
    };
    let all: u128 = shares.iter().sum();
    let exact = shares.map(|share| u128::from(total) * share);
    let mut parts = exact.map(|part| (part / all) as u64);
    let left = total - parts.iter().sum::<u64>();
    let mut order: [usize; PARTS] = std::array::from_fn(|part| part);
    sort_by_key(&mut order, |part| std::cmp::Reverse(exact[*part] % all));
    for part in order.into_iter().take(left as usize) {
        parts[part] += 1;
    }
    parts
}

/// The mean of a state in each part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State([Small; PARTS]);

impl State {
    /// Means of a state with these values at these points. Before the first and after the last one it is constant.
    pub(super) fn new(points: &[(f64, f64)]) -> Self {
        let (Some((_, first)), Some((_, last))) = (points.first(), points.last()) else {
            return Self([Small::new(None); PARTS]);
        };
        let mut line = vec![(0.0, *first)];
        line.extend_from_slice(points);
        line.push((1.0, *last));
        Self(std::array::from_fn(|part| {
            let (from, to) = (boundary(part), boundary(part + 1));
            let mut area = 0.0;
            let mut before = (from, value_at(&line, from));
            let inner = line.iter().filter(|(at, _)| *at > from && *at < to);
            for next in inner.copied().chain([(to, value_at(&line, to))]) {
                area += (before.1 + next.1) / 2.0 * (next.0 - before.0);
                before = next;
            }
            Small::new(Some((area / (to - from)).round().max(0.0) as u64))
        }))
    }

    pub(super) fn parts(&self) -> Option<[u64; PARTS]> {
        let mut parts = [0; PARTS];
        for (part, mean) in parts.iter_mut().zip(self.0) {
            *part = mean.value()?;
        }
        Some(parts)
    }
}

const _: () = assert!(size_of::<Point>() == 32);
