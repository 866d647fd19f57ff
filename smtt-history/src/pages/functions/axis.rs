//! The axis of time above a task's lanes, and its lines in them.

use maud::{Markup, html};
use smtt_model::units;

use super::share;

const MINUTE: u64 = 60_000_000_000;
const DAY: u64 = 24 * 60 * MINUTE;
/// Distances of marks within a power of ten, in tenths of it.
const TENTHS: [u64; 9] = [10, 15, 20, 25, 30, 40, 50, 60, 80];
/// Distances of a minute and more, in half minutes.
const HALF_MINUTES: [u64; 22] = [
    2, 3, 4, 6, 8, 10, 12, 20, 30, 40, 60, 90, 120, 180, 240, 360, 480, 720, 960, 1440, 2160, 2880,
];
/// Part of the width from which on a mark has no label: the label would be beyond the end.
const LAST: f64 = 88.0;

/// The longest distance of marks that fits into a time four times, of those whose labels are exact.
fn step(total: u64) -> u64 {
    let most = (total / 4).max(1);
    let fits = |step: &u64| *step <= most;
    if most >= DAY {
        return most / DAY * DAY;
    }
    if most >= MINUTE {
        let mut steps = HALF_MINUTES.iter().map(|it| it * MINUTE / 2).rev();
        return steps.find(fits).unwrap_or(MINUTE);
    }
    let decade = 10_u64.pow(most.ilog10());
    let mut steps = TENTHS.iter().map(|it| it * decade / 10).rev();
    steps.find(fits).unwrap_or(1)
}

/// Marks of the axis from zero on, in nanoseconds.
fn marks(total: u64) -> impl Iterator<Item = u64> {
    let step = step(total);
    (0..=total / step).map(move |at| at * step)
}

/// The axis, of about five labels.
pub(super) fn axis(total: u64) -> Markup {
    let place = |ns: u64| format!("{:.3}%", share(ns, total));
    html! {
        svg.axis aria-hidden="true" {
            @for ns in marks(total) {
                line x1=(place(ns)) x2=(place(ns)) y1="0" y2="100%" {}
                @if share(ns, total) <= LAST {
                    text x=(place(ns)) dx="4" y="12" { @if ns == 0 { "0" } @else { (units::duration(ns)) } }
                }
            }
        }
    }
}

/// The axis' lines in a lane of a height.
pub(super) fn grid(total: u64, height: usize) -> Markup {
    let line = |ns| format!("M{:.3} 0V{height}", share(ns, total));
    let lines: String = marks(total).skip(1).map(line).collect();
    html! { path.grid d=(lines) {} }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_about_five_marks_at_round_times() {
        let second = 1_000_000_000;
        let labels = |total| marks(total).map(units::duration).collect::<Vec<_>>();
        assert_eq!(
            labels(second),
            ["0 ns", "250.0 ms", "500.0 ms", "750.0 ms", "1.0 s"]
        );
        assert_eq!(
            labels(7 * second),
            ["0 ns", "1.5 s", "3.0 s", "4.5 s", "6.0 s"]
        );
        assert_eq!(
            labels(10 * MINUTE),
            ["0 ns", "2m00s", "4m00s", "6m00s", "8m00s", "10m00s"]
        );
        for total in [
            1,
            3,
            9,
            17,
            999,
            123_456_789,
            59 * second,
            239 * second,
            241 * second,
        ]
        .into_iter()
        .chain([7 * 60 * MINUTE, 3 * DAY, 40 * DAY, u64::MAX])
        {
            let all: Vec<u64> = marks(total).collect();
            assert!((2..=9).contains(&all.len()), "{total}: {all:?}");
            assert!(total < 9 || all.len() >= 5, "{total}: {all:?}");
            assert!(all.iter().all(|at| *at <= total));
        }
    }
}
