//! The life of a task attempt in parts, as fields of its row: parts of equal time, and of equal input where it is known.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::used::UsedRow;
use crate::sort::small::Gather as _;
use crate::state::splits::{
    CPU, EXECUTION, FAULTS, HEAP, PARTS, READ, RESIDENT, VIRTUAL, WALKS, parts_of,
};
use crate::state::{State, Task};

/// The series of what system calls read, which is a task's input where [`reads_its_input`].
const READ_SERIES: &str = "call_read_bytes";
/// What a task may read besides its input: one part in so many of all that it reads.
const OTHER_READS: u64 = 8;

/// The series that add up, by the field of the task's row that has their total.
const SUMS: [(&str, usize); 5] = [
    ("cpu_ns", CPU),
    ("heap_allocated_bytes", HEAP),
    ("thread_page_faults", FAULTS),
    (READ_SERIES, READ),
    ("page_walk_samples", WALKS),
];
/// The series of a state.
const STATES: [(&str, usize); 3] = [
    ("virtual_bytes", VIRTUAL),
    ("resident_bytes", RESIDENT),
    ("execution_memory_bytes", EXECUTION),
];
/// The series of the time between the first and the last reading.
pub const WALL: &str = "wall_ns";

/// One series in parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Series {
    /// Growth in each part, or mean of a state in each part.
    pub parts: Vec<u64>,
    /// Sum of the parts; absent for a state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// Readings that the parts rest on, with begin and end; between two of them the growth is taken to be even.
    pub measured_points: u64,
}

/// The life of a task attempt in parts of equal time or of equal input.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitsRow {
    /// What the parts are equal in: `time` or `input`.
    pub progress_by: String,
    /// Readings of the task, with begin and end.
    pub measured_points: u64,
    /// Whether no reading was made within a part, so that its values are interpolated.
    pub interpolated: Vec<bool>,
    /// The series by name; what was not measured is absent.
    pub series: BTreeMap<String, Series>,
}

impl State {
    /// The splits of a task; `None` where the kernel's accounts of it are not known.
    pub(super) fn splits(&self, task: &Task) -> Option<SplitsRow> {
        let (parts, totals) = self.parts_of_task(task)?;
        // A reading at the begin and one at the end, or the last one of a running task.
        let with_ends = |points: u64| points + 2;
        let wall = task.shown().duration_ns;
        let mut series = BTreeMap::from([(
            WALL.to_owned(),
            Series {
                parts: parts_of(wall, &[1; PARTS]).to_vec(),
                total: Some(wall),
                measured_points: with_ends(0),
            },
        )]);
        for (name, index) in SUMS {
            if let Some(total) = totals[index] {
                let row = Series {
                    parts: parts.sum(index, total).to_vec(),
                    total: Some(total),
                    measured_points: with_ends(parts.points_of(index)),
                };
                series.insert(name.to_owned(), row);
            }
        }
        for (name, index) in STATES {
            if let Some(means) = parts.state(index) {
                let row = Series {
                    parts: means.to_vec(),
                    total: None,
                    measured_points: parts.points(),
                };
                series.insert(name.to_owned(), row);
            }
        }
        Some(SplitsRow {
            progress_by: "time".to_owned(),
            measured_points: with_ends(parts.points()),
            interpolated: parts.interpolated().to_vec(),
            series,
        })
    }
}

/// Whether what the thread's system calls read is the task's input: by Spark's own count, all but an eighth of it at most.
/// It is not where the input came from blocks in memory or over other threads, as a shuffle's.
pub(super) fn reads_its_input(used: &UsedRow) -> bool {
    let (Some(read), Some(input)) = (used.call_read_bytes, used.input_bytes) else {
        return false;
    };
    let other = read.checked_sub(input);
    let from_shuffles = used.shuffle_read_bytes.unwrap_or(0);
    input > 0
        && other.is_some_and(|other| other.saturating_add(from_shuffles) <= read / OTHER_READS)
}

/// A moment in the life, in parts of equal time: the whole parts before it, and the share of the next one.
#[derive(Clone, Copy)]
struct Moment {
    parts: usize,
    share: f64,
}

impl Moment {
    const BEGIN: Self = Self {
        parts: 0,
        share: 0.0,
    };
    const END: Self = Self {
        parts: PARTS,
        share: 0.0,
    };

    /// When so many parts of the input of `PARTS` had been read.
    fn of_input(part: usize, read: &[u64]) -> Self {
        let total: u128 = read.iter().map(|part| u128::from(*part)).sum();
        let wanted = total * part as u128;
        let mut before = 0;
        for (parts, here) in read.iter().map(|part| u128::from(*part)).enumerate() {
            let all = PARTS as u128;
            if (before + here) * all >= wanted && here > 0 {
                return Self {
                    parts,
                    share: (wanted - before * all) as f64 / (here * all) as f64,
                };
            }
            before += here;
        }
        Self::END
    }

    fn position(self) -> f64 {
        self.parts as f64 + self.share
    }

    /// Growth of a series until this moment. It never falls from one moment to a later one.
    fn growth(self, parts: &[u64]) -> u64 {
        let whole: u64 = parts[..self.parts].iter().sum();
        let here = parts.get(self.parts).copied().unwrap_or(0);
        whole + ((here as f64 * self.share) as u64).min(here)
    }
}

/// Mean of a state between two moments, of its means in parts of equal time.
fn mean(parts: &[u64], from: Moment, to: Moment) -> u64 {
    let (from, to) = (from.position(), to.position());
    if to <= from {
        return parts[(from as usize).min(PARTS - 1)];
    }
    let weighted = parts.iter().enumerate().map(|(at, mean)| {
        let overlap = to.min(at as f64 + 1.0) - from.max(at as f64);
        overlap.max(0.0) * *mean as f64
    });
    (weighted.sum::<f64>() / (to - from)) as u64
}

impl SplitsRow {
    /// The same life in parts of equal input, of which the thread's system calls read the same number of bytes. What was
    /// before the first byte is in the first part, what was after the last in the last. `None` without a reading between
    /// begin and end, or where the thread read nothing.
    pub(super) fn by_input(&self) -> Option<Self> {
        let read = self.series.get(READ_SERIES)?;
        if read.measured_points <= 2 || read.total? == 0 || read.parts.len() != PARTS {
            return None;
        }
        let mut moments = [Moment::BEGIN; PARTS + 1];
        for (part, moment) in moments.iter_mut().enumerate().skip(1) {
            *moment = Moment::of_input(part, &read.parts);
        }
        moments[PARTS] = Moment::END;
        let between = |of: &dyn Fn(Moment, Moment) -> u64| -> Vec<u64> {
            moments
                .windows(2)
                .map(|pair| of(pair[0], pair[1]))
                .collect()
        };
        let series = self.series.iter().map(|(name, series)| {
            let parts = &series.parts;
            let parts = match series.total {
                Some(_) => between(&|from, to| to.growth(parts) - from.growth(parts)),
                None => between(&|from, to| mean(parts, from, to)),
            };
            let row = Series {
                parts,
                ..series.clone()
            };
            (name.clone(), row)
        });
        // Only a part that covers a whole part of time with a reading certainly has one.
        let is_interpolated = |pair: &[Moment]| {
            let (from, to) = (pair[0].position(), pair[1].position());
            let mut parts = self.interpolated.iter().enumerate();
            !parts.any(|(at, is)| !is && from <= at as f64 && at as f64 + 1.0 <= to)
        };
        Some(Self {
            progress_by: "input".to_owned(),
            measured_points: self.measured_points,
            interpolated: moments.windows(2).map(is_interpolated).collect(),
            series: series.gather(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(series: &[(&str, [u64; PARTS], bool)]) -> SplitsRow {
        let series = series.iter().map(|(name, parts, adds_up)| {
            let series = Series {
                parts: parts.to_vec(),
                total: adds_up.then(|| parts.iter().sum()),
                measured_points: 5,
            };
            ((*name).to_owned(), series)
        });
        SplitsRow {
            progress_by: "time".to_owned(),
            measured_points: 5,
            interpolated: vec![false; PARTS],
            series: series.gather(),
        }
    }

    #[test]
    fn the_use_of_a_slow_quarter_of_the_input_is_in_its_parts() {
        // A quarter of the input takes nine parts of the time and all of the CPU, the rest three.
        let fast = [10, 10, 10, 10, 10, 10, 10, 10, 10, 90, 90, 90];
        let slow = [7, 7, 7, 7, 7, 7, 7, 7, 7, 0, 0, 0];
        let held = [2, 2, 2, 2, 2, 2, 2, 2, 2, 8, 8, 8];
        let by_time = row(&[
            (READ_SERIES, fast, true),
            ("cpu_ns", slow, true),
            ("resident_bytes", held, false),
            (WALL, [100; PARTS], true),
        ]);
        let by_input = by_time.by_input().expect("it was read");
        let parts = |name: &str| by_input.series[name].parts.clone();
        assert_eq!(parts(READ_SERIES), [30; PARTS]);
        assert_eq!(parts("cpu_ns"), [21, 21, 21, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(
            parts("resident_bytes"),
            [2, 2, 2, 8, 8, 8, 8, 8, 8, 8, 8, 8]
        );
        assert_eq!(parts(WALL)[..3], [300; 3]);
        assert_eq!(parts(WALL)[3..].iter().sum::<u64>(), 300);
        // The fast parts are each a third of a part of time, in which a reading may be in any of the three.
        assert_eq!(by_input.interpolated[..3], [false; 3]);
        assert_eq!(by_input.interpolated[3..], [true; PARTS - 3]);
        assert_eq!(by_input.progress_by, "input");
    }

    #[test]
    fn waiting_before_and_after_the_input_is_in_the_first_and_last_part() {
        let middle = [0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0];
        let by_input = row(&[(READ_SERIES, middle, true), (WALL, [12; PARTS], true)]);
        let parts = by_input.by_input().expect("it was read").series[WALL]
            .parts
            .clone();
        assert_eq!(parts[0], 4 * 12 + 1);
        assert_eq!(parts[PARTS - 1], 7 * 12 + 1);
        assert_eq!(parts.iter().sum::<u64>(), 144);
    }

    #[test]
    fn without_a_reading_or_a_byte_there_are_no_parts_of_input() {
        assert_eq!(row(&[(READ_SERIES, [0; PARTS], true)]).by_input(), None);
        assert_eq!(row(&[(WALL, [1; PARTS], true)]).by_input(), None);
        let mut unread = row(&[(READ_SERIES, [1; PARTS], true)]);
        for series in unread.series.values_mut() {
            series.measured_points = 2;
        }
        assert_eq!(unread.by_input(), None);
    }

    #[test]
    fn only_a_thread_that_reads_little_else_reads_its_input() {
        let of = |read, input, shuffle| {
            reads_its_input(&UsedRow {
                call_read_bytes: read,
                input_bytes: input,
                shuffle_read_bytes: shuffle,
                ..UsedRow::default()
            })
        };
        assert!(of(Some(800), Some(800), None));
        assert!(of(Some(800), Some(700), Some(0)));
        assert!(!of(Some(800), Some(699), None));
        assert!(!of(Some(800), Some(700), Some(1)));
        // Blocks in memory are input that no call read.
        assert!(!of(Some(800), Some(801), None));
        assert!(!of(Some(0), Some(0), None));
        assert!(!of(None, Some(800), None) && !of(Some(800), None, None));
    }

    proptest! {
        #[test]
        fn parts_of_input_add_up(
            read: [u32; PARTS], other in prop::array::uniform12(0..u64::MAX / 16), state: [u64; PARTS],
        ) {
            let by_time = row(&[
                (READ_SERIES, read.map(u64::from), true),
                ("cpu_ns", other, true),
                ("resident_bytes", state, false),
            ]);
            let Some(by_input) = by_time.by_input() else {
                prop_assert!(read.iter().all(|part| *part == 0));
                return Ok(());
            };
            for (name, series) in &by_input.series {
                prop_assert_eq!(series.parts.len(), PARTS);
                if let Some(total) = series.total {
                    prop_assert_eq!(series.parts.iter().sum::<u64>(), total, "{}", name);
                } else {
                    let (least, most) = (state.iter().min(), state.iter().max());
                    for mean in &series.parts {
                        // The mean of large numbers is as exact as a floating-point number.
                        prop_assert!(Some(&mean.saturating_add(mean >> 50).saturating_add(1)) >= least);
                        prop_assert!(Some(&(mean - (mean >> 50))) <= most);
                    }
                }
            }
            let even = by_input.series[READ_SERIES].total.unwrap_or(0) / PARTS as u64;
            for part in &by_input.series[READ_SERIES].parts {
                prop_assert!(part.abs_diff(even) <= 2, "{:?}", by_input.series[READ_SERIES]);
            }
        }
    }
}
