//! Moves through the moments of several executors in order of time: how many were measured, the most that they held
//! together, and the sums of their limits.

use std::collections::HashMap;

use super::parts::{By, divide};
use super::{History, LIMITS, Moment};

/// Cells of a window.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// Milliseconds since the time line's start.
    pub from: i64,
    /// Milliseconds since the time line's start.
    pub to: i64,
    /// Number of cells.
    pub cells: usize,
}

impl Grid {
    /// Milliseconds of a cell.
    pub fn cell_ms(&self) -> f64 {
        (self.to - self.from) as f64 / self.cells as f64
    }

    /// The cell of a time within the window.
    pub fn cell(&self, time: i64) -> usize {
        let at = ((time - self.from).max(0) as f64 / self.cell_ms()) as usize;
        at.min(self.cells - 1)
    }

    /// Calls `add` with each cell that a time overlaps, and the milliseconds that they share.
    pub fn overlap(&self, begin: i64, end: i64, mut add: impl FnMut(usize, f64)) {
        let (begin, end) = (begin.max(self.from), end.min(self.to));
        if begin >= end {
            return;
        }
        let cell_ms = self.cell_ms();
        for cell in self.cell(begin)..=self.cell(end) {
            let left = cell as f64 * cell_ms;
            let low = ((begin - self.from) as f64).max(left);
            let high = ((end - self.from) as f64).min(left + cell_ms);
            if high > low {
                add(cell, high - low);
            }
        }
    }

    /// Moments of a history that stand for a time in the window.
    pub fn moments<'a>(&self, history: &'a History) -> &'a [Moment] {
        let all = &history.moments;
        let first = all.partition_point(|moment| moment.until <= self.from);
        let last = all.partition_point(|moment| moment.at < self.to);
        &all[first.min(last)..last]
    }
}

/// The sum of a limit in one cell.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    /// Largest sum at one moment.
    pub most: u64,
    /// Whether an executor that was measured at some moment has no such limit.
    pub is_partial: bool,
}

/// What the sweep finds in each cell.
#[derive(Debug, Default)]
pub struct Swept {
    /// Milliseconds in which at least one executor was measured.
    pub covered: Vec<f64>,
    /// Most executors that were measured at one moment.
    pub measured: Vec<u32>,
    /// Most bytes at one moment.
    pub most: Vec<u64>,
    /// Limits, as [`LIMITS`].
    pub limits: Vec<Vec<Sum>>,
}

/// Numbers that a browser reads exactly.
pub fn exact(bytes: u128) -> u64 {
    u64::try_from(bytes.min(1 << 53)).unwrap_or(1 << 53)
}

#[derive(Default)]
struct Now<'a> {
    bytes: u128,
    executors: u32,
    limits: [u128; LIMITS.len()],
    /// Executors that have the limit.
    known: [u32; LIMITS.len()],
    /// Executors of each control group, and its limit.
    groups: HashMap<&'a str, (u32, u64)>,
}

impl<'a> Now<'a> {
    fn begin(&mut self, history: &'a History, bytes: u128) {
        self.bytes += bytes;
        self.executors += 1;
        for limit in &history.limits {
            self.known[limit.kind] += 1;
            // A control group counts once, however many executors share it.
            let is_first = limit.group.as_ref().is_none_or(|group| {
                let known = self.groups.entry(group).or_insert((0, limit.bytes));
                known.0 += 1;
                known.0 == 1
            });
            if is_first {
                self.limits[limit.kind] += u128::from(limit.bytes);
            }
        }
    }

    fn end(&mut self, history: &'a History, bytes: u128) {
        self.bytes -= bytes;
        self.executors -= 1;
        for limit in &history.limits {
            self.known[limit.kind] -= 1;
            let counted = match &limit.group {
                None => Some(limit.bytes),
                Some(group) => self.groups.get_mut(group.as_str()).and_then(|known| {
                    known.0 -= 1;
                    (known.0 == 0).then_some(known.1)
                }),
            };
            if let (Some(group), Some(_)) = (&limit.group, counted) {
                self.groups.remove(group.as_str());
            }
            self.limits[limit.kind] -= u128::from(counted.unwrap_or(0));
        }
    }
}

/// Sweeps over the histories.
pub fn sweep(histories: &[&History], grid: &Grid, by: By) -> Swept {
    let mut swept = Swept {
        covered: vec![0.0; grid.cells],
        measured: vec![0; grid.cells],
        most: vec![0; grid.cells],
        limits: vec![vec![Sum::default(); grid.cells]; LIMITS.len()],
    };
    // Of two events at one time the end of a moment comes first, so that no executor is there twice.
    let mut events: Vec<(i64, bool, usize, u128)> = Vec::new();
    for (at, history) in histories.iter().enumerate() {
        for moment in grid.moments(history) {
            let mut bytes = 0_u128;
            divide(moment, by, &mut |_, value| bytes += u128::from(value));
            events.push((moment.at.max(grid.from), true, at, bytes));
            events.push((moment.until.min(grid.to), false, at, bytes));
        }
    }
    events.sort_unstable();
    let mut now = Now::default();
    let mut last = grid.from;
    for (time, is_begin, at, bytes) in events {
        if now.executors > 0 {
            grid.overlap(last, time, |cell, ms| {
                swept.covered[cell] += ms;
                swept.measured[cell] = swept.measured[cell].max(now.executors);
                swept.most[cell] = swept.most[cell].max(exact(now.bytes));
                for (kind, cells) in swept.limits.iter_mut().enumerate() {
                    let sum = &mut cells[cell];
                    sum.is_partial |= now.known[kind] < now.executors;
                    sum.most = sum.most.max(exact(now.limits[kind]));
                }
            });
        }
        last = time;
        if is_begin {
            now.begin(histories[at], bytes);
        } else {
            now.end(histories[at], bytes);
        }
    }
    swept
}
