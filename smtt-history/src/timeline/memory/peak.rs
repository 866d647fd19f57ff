//! The most memory that executors held at one moment of any window, for many windows: one sweep, then a tree of maxima.

use super::parts::{By, divide};
use super::sweep::exact;
use super::{History, Memory};

/// Bytes that all executors held together, as steps over time.
#[derive(Debug, Default)]
pub struct Peaks {
    /// Begins of the steps, in milliseconds since the time line's start.
    times: Vec<i64>,
    /// Maxima of the steps: those of step `n` at `times.len() + n`, above them those of two each. Absent where no executor
    /// was measured.
    most: Vec<Option<u64>>,
}

impl Peaks {
    /// Of what the workers wrote.
    #[must_use]
    pub fn of(memory: &Memory) -> Self {
        let mut events: Vec<(i64, i128, i64)> = Vec::new();
        let moments = |history: &History| -> Vec<(i64, i64, i128)> {
            let all = history.moments.iter().map(|moment| {
                let mut bytes = 0_i128;
                divide(moment, By::Region, &mut |_, value| {
                    bytes += i128::from(value)
                });
                (moment.at, moment.until, bytes)
            });
            all.collect()
        };
        for (from, until, bytes) in memory.histories.iter().flat_map(moments) {
            events.push((from, bytes, 1));
            events.push((until, -bytes, -1));
        }
        events.sort_unstable();
        let (mut times, mut steps) = (Vec::new(), Vec::new());
        let (mut bytes, mut executors) = (0_i128, 0);
        for (at, (time, change, by)) in events.iter().enumerate() {
            bytes += change;
            executors += by;
            if events.get(at + 1).is_none_or(|next| next.0 != *time) {
                times.push(*time);
                let held = u128::try_from(bytes).unwrap_or(0);
                steps.push((executors > 0).then(|| exact(held)));
            }
        }
        let count = steps.len();
        let mut most = vec![None; count];
        most.append(&mut steps);
        for at in (1..count).rev() {
            most[at] = most[2 * at].max(most[2 * at + 1]);
        }
        Self { times, most }
    }

    /// The most at one moment between two times; absent where no executor was measured then.
    #[must_use]
    pub fn within(&self, from: i64, to: i64) -> Option<u64> {
        let count = self.times.len();
        // The step that a window begins in began before it.
        let first = self.times.partition_point(|time| *time <= from);
        let last = self.times.partition_point(|time| *time <= to);
        let (mut left, mut right) = (count + first.saturating_sub(1), count + last);
        let mut found = None;
        while left < right {
            if left % 2 == 1 {
                found = found.max(self.most[left]);
                left += 1;
            }
            if right % 2 == 1 {
                right -= 1;
                found = found.max(self.most[right]);
            }
            left /= 2;
            right /= 2;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use smtt_model::state::history::RddPoint;

    use super::super::Moment;
    use super::*;

    fn history(moments: &[(i64, i64, u64)]) -> History {
        let moment = |(at, until, bytes): &(i64, i64, u64)| Moment {
            at: *at,
            until: *until,
            rdds: vec![RddPoint {
                storage_heap_bytes: *bytes,
                ..RddPoint::default()
            }],
            ..Moment::default()
        };
        History {
            moments: moments.iter().map(moment).collect(),
            ..History::default()
        }
    }

    #[test]
    fn a_window_has_the_most_of_its_steps_and_nothing_where_no_executor_was_measured() {
        let given = [
            history(&[(0, 10, 5), (10, 20, 50), (40, 50, 7)]),
            history(&[(5, 12, 100), (12, 30, 1)]),
        ];
        let peaks = Peaks::of(&Memory {
            histories: given.to_vec(),
            ..Memory::default()
        });
        assert_eq!(peaks.within(-5, -1), None);
        assert_eq!(peaks.within(31, 39), None);
        assert_eq!(peaks.within(60, 90), None);
        for from in -2..55_i64 {
            for to in from..56 {
                let at = |time: i64| {
                    let moments = given.iter().flat_map(|history| &history.moments);
                    let now = moments.filter(|it| it.at <= time && time < it.until);
                    let all: Vec<u64> = now.map(|it| it.rdds[0].storage_heap_bytes).collect();
                    (!all.is_empty()).then(|| all.iter().sum::<u64>())
                };
                let expected = (from..=to).filter_map(at).max();
                assert_eq!(peaks.within(from, to), expected, "{from} to {to}");
            }
        }
        assert_eq!(Peaks::of(&Memory::default()).within(0, 9), None);
    }
}
