//! Progress splits: the life of a task attempt in [`PARTS`] parts of equal length.
//!
//! While a task runs it keeps at most [`POINTS`] readings; when they are full every second one goes, and further ones
//! come half as often. After the end it keeps the shape of each series only: the share of each part. The parts of a
//! series that adds up are made of shares and total, so their sum is the total.

mod shape;
mod small;

use smtt_common::event::used::KERNEL_ACCOUNTS;

pub use self::shape::parts_of;
use self::shape::{State, Sum};
use self::small::Small;

/// Parts of a task's life.
pub const PARTS: usize = 12;
/// Most readings that a running task keeps.
pub const POINTS: usize = 12;
/// Series that add up.
pub const SUMS: usize = 5;
/// Series of a state.
pub const STATES: usize = 3;

/// Index of a series that adds up: time on a CPU.
pub const CPU: usize = 0;
/// Index of a series that adds up: bytes allocated on the Java heap.
pub const HEAP: usize = 1;
/// Index of a series that adds up: page faults of the task's thread.
pub const FAULTS: usize = 2;
/// Index of a series that adds up: bytes that system calls read.
pub const READ: usize = 3;
/// Index of a series that adds up: samples of page walks.
pub const WALKS: usize = 4;
/// Index of a series of a state: virtual memory of the process.
pub const VIRTUAL: usize = 0;
/// Index of a series of a state: resident memory of the process.
pub const RESIDENT: usize = 1;
/// Index of a series of a state: execution memory of the task.
pub const EXECUTION: usize = 2;

/// Each series that adds up, from begin to end; absent where it was not measured.
pub type Totals = [Option<u64>; SUMS];

/// A reading of a running task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    /// Milliseconds since the task's first reading.
    ms: u32,
    /// Growth since the first reading; not a number where it is absent.
    sums: [f32; SUMS],
    states: [Small; STATES],
}

impl Point {
    pub(super) fn new(duration_ns: u64, sums: &Totals, states: &[Option<u64>; STATES]) -> Self {
        Self {
            ms: u32::try_from(duration_ns / 1_000_000).unwrap_or(u32::MAX),
            sums: sums.map(|sum| sum.map_or(f32::NAN, |sum| sum as f32)),
            states: states.map(Small::new),
        }
    }
}

/// The readings of a running task.
#[derive(Clone, Copy, Debug)]
pub(super) struct Points {
    points: [Point; POINTS],
    len: u8,
    /// Least milliseconds between two readings that are kept.
    every_ms: u32,
}

impl Default for Points {
    fn default() -> Self {
        Self {
            points: [Point::new(0, &[None; SUMS], &[None; STATES]); POINTS],
            len: 0,
            every_ms: 1,
        }
    }
}

impl Points {
    /// Keeps a reading, where the last one is old enough.
    pub(super) fn push(&mut self, point: Point) {
        let last = self.all().last().map_or(0, |last| last.ms);
        if point.ms < last.saturating_add(self.every_ms) {
            return;
        }
        if usize::from(self.len) == POINTS {
            for kept in 0..POINTS / 2 {
                self.points[kept] = self.points[2 * kept + 1];
            }
            self.len = (POINTS / 2) as u8;
            // A little less than the distance of the kept ones: readings do not come exactly on time.
            let apart = u64::from(last) / (POINTS as u64 / 2);
            self.every_ms = (apart * 9 / 10).max(1) as u32;
            return self.push(point);
        }
        self.points[usize::from(self.len)] = point;
        self.len += 1;
    }

    fn all(&self) -> &[Point] {
        &self.points[..usize::from(self.len)]
    }
}

/// What a running task used until its last reading. A task has one only while it runs, and only once it was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Live {
    /// The accounts that the kernel itself keeps.
    pub(super) accounts: [u64; KERNEL_ACCOUNTS],
    /// Bytes that the task's thread has allocated on the Java heap; `u64::MAX` where they are not known.
    pub(super) heap_bytes: u64,
    pub(super) duration_ns: u64,
    pub(super) present: u32,
    pub(super) partial: bool,
    pub(super) points: Points,
}

impl Default for Live {
    fn default() -> Self {
        Self {
            accounts: [0; KERNEL_ACCOUNTS],
            heap_bytes: u64::MAX,
            duration_ns: 0,
            present: 0,
            partial: false,
            points: Points::default(),
        }
    }
}

/// Most bytes that splits and figures of a running task take.
pub const LIVE_BYTES_MAX: usize = 512;
const _: () = assert!(size_of::<Live>() <= LIVE_BYTES_MAX);

/// The shape of each series of a task, in parts of equal time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parts {
    sums: [Sum; SUMS],
    states: [State; STATES],
    /// A bit for each part with a reading in it.
    measured: u16,
    /// Readings between begin and end.
    points: u8,
}

impl Parts {
    /// The parts of a task that took `duration_ns` and used `totals`.
    pub(super) fn new(points: &Points, duration_ns: u64, totals: &Totals) -> Self {
        let end = duration_ns as f64 / 1e6;
        let inner: Vec<&Point> = points
            .all()
            .iter()
            .filter(|point| f64::from(point.ms) < end)
            .collect();
        let mut measured = 0;
        for point in &inner {
            let part = (f64::from(point.ms) * PARTS as f64 / end) as usize;
            measured |= 1 << part.min(PARTS - 1);
        }
        let sums = std::array::from_fn(|series| {
            let known = inner.iter().map(|point| (point.ms, point.sums[series]));
            let known = known.filter(|(_, value)| !value.is_nan());
            let known: Vec<_> = known
                .map(|(ms, value)| (f64::from(ms) / end, f64::from(value)))
                .collect();
            // Samples of page walks come later than the accounts.
            let last = known.last().map_or(0.0, |(_, value)| *value);
            Sum::new(&known, totals[series].map_or(last, |total| total as f64))
        });
        let states = std::array::from_fn(|series| {
            let known = inner.iter().filter_map(|point| {
                let value = point.states[series].value()?;
                Some((f64::from(point.ms) / end, value as f64))
            });
            State::new(&known.collect::<Vec<_>>())
        });
        Self {
            sums,
            states,
            measured,
            points: inner.len() as u8,
        }
    }

    /// The parts of a task without a reading between begin and end: every series grows evenly.
    #[must_use]
    pub fn even() -> Self {
        Self::new(&Points::default(), 1, &[None; SUMS])
    }

    /// The parts of a series that adds up; their sum is `total`.
    #[must_use]
    pub fn sum(&self, series: usize, total: u64) -> [u64; PARTS] {
        self.sums[series].parts(total)
    }

    /// Readings of a series that adds up, between begin and end.
    #[must_use]
    pub fn points_of(&self, series: usize) -> u64 {
        u64::from(self.sums[series].points)
    }

    /// The mean of a state in each part; absent where it was never read.
    #[must_use]
    pub fn state(&self, series: usize) -> Option<[u64; PARTS]> {
        self.states[series].parts()
    }

    /// Whether there is no reading in a part, so that its values are interpolated.
    #[must_use]
    pub fn interpolated(&self) -> [bool; PARTS] {
        std::array::from_fn(|part| self.measured & 1 << part == 0)
    }

    /// Readings between begin and end.
    #[must_use]
    pub fn points(&self) -> u64 {
        u64::from(self.points)
    }
}

/// What a task keeps for its splits.
#[derive(Clone, Debug, Default)]
pub(super) enum Splits {
    /// No reading between begin and end.
    #[default]
    None,
    /// The task runs, or its last accounts have not arrived.
    Live(Box<Live>),
    /// The task has ended.
    Ended(Box<Parts>),
}

impl Splits {
    pub(super) fn live(&self) -> Option<&Live> {
        match self {
            Self::Live(live) => Some(live),
            _ => None,
        }
    }

    pub(super) const fn bytes(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Live(_) => size_of::<Live>(),
            Self::Ended(_) => size_of::<Parts>(),
        }
    }
}

#[cfg(test)]
mod tests;
