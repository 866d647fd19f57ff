//! The axis of time above a task's lanes, and its lines in them.

use maud::{Markup, html};
use smtt_model::units;

use super::window::Window;

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

/// Marks of the axis in a window, in nanoseconds.
fn marks(from: u64, to: u64) -> impl Iterator<Item = u64> {
    let step = step(to - from);
    (from.div_ceil(step)..=to / step).map(move |at| at * step)
}

/// A mark's label. In a part of the task's time it has as many digits as the distance of two marks needs.
fn label(ns: u64, window: &Window) -> String {
    let step = step(window.to - window.from);
    if ns == 0 {
        return "0".to_owned();
    }
    if window.is_all() || step >= MINUTE {
        return units::duration(ns);
    }
    let digits = (0..9).find(|digits| step.is_multiple_of(10_u64.pow(9 - digits)));
    format!("{:.*} s", digits.unwrap_or(9) as usize, ns as f64 / 1e9)
}

/// The axis, of about five labels.
pub(super) fn axis(window: &Window) -> Markup {
    let place = |ns: u64| format!("{:.3}%", window.place(ns));
    html! {
        svg.axis aria-hidden="true" {
            @for ns in marks(window.from, window.to) {
                line x1=(place(ns)) x2=(place(ns)) y1="0" y2="100%" {}
                @if window.place(ns) <= LAST {
                    text x=(place(ns)) dx="4" y="12" { (label(ns, window)) }
                }
            }
        }
    }
}

/// The axis' lines in a lane of a height.
pub(super) fn grid(window: &Window, height: usize) -> Markup {
    let line = |ns| format!("M{:.3} 0V{height}", window.place(ns));
    let all = marks(window.from, window.to).filter(|ns| *ns > window.from);
    let lines: String = all.map(line).collect();
    html! { path.grid d=(lines) {} }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::routes::Parameters;

    #[test]
    fn an_axis_has_about_five_marks_at_round_times() {
        let second = 1_000_000_000;
        let labels = |total| marks(0, total).map(units::duration).collect::<Vec<_>>();
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
            let all: Vec<u64> = marks(0, total).collect();
            assert!((2..=9).contains(&all.len()), "{total}: {all:?}");
            assert!(total < 9 || all.len() >= 5, "{total}: {all:?}");
            assert!(all.iter().all(|at| *at <= total));
        }
    }
    #[test]
    fn a_part_of_the_time_has_labels_that_differ() {
        let labels = |from: u64, to: u64| -> Vec<String> {
            let all = [("from", from), ("to", to)];
            let all = all.map(|(name, ns)| (name.to_owned(), ns.to_string()));
            let window = Window::new(&Parameters(all.to_vec()), 7200 * 1_000_000_000);
            let window = window.expect("is a window");
            let all = marks(window.from, window.to);
            all.map(|ns| label(ns, &window)).collect()
        };
        let ms = 1_000_000;
        assert_eq!(
            labels(400 * ms, 900 * ms),
            ["0.4 s", "0.5 s", "0.6 s", "0.7 s", "0.8 s", "0.9 s"].map(str::to_owned)
        );
        assert_eq!(
            labels(3_600_000 * ms, 3_600_000 * ms + ms),
            [
                "3600.00000 s",
                "3600.00025 s",
                "3600.00050 s",
                "3600.00075 s",
                "3600.00100 s"
            ]
        );
        assert_eq!(
            labels(3_000_000 * ms, 4_200_000 * ms),
            ["50m00s", "55m00s", "1h00m", "1h05m", "1h10m"]
        );
    }
}
