//! Charts as inline SVG: stacked areas over time, with a legend in words beside every colour.

use smtt_model::time::clock;
use smtt_model::units;

use super::markup::Markup;
use super::timeline::Series;
use std::fmt::Write as _;

/// Unit of a chart's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Events per second.
    PerSecond,
}

impl Unit {
    /// The word for the page's script.
    const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::PerSecond => "rate",
        }
    }

    fn shown(self, value: f64) -> String {
        // Values are never negative and small enough to be exact as floats.
        let whole = value.round() as u64;
        match self {
            Self::Bytes => units::bytes(whole).replace(".0 ", " "),
            Self::PerSecond => units::count(whole),
        }
    }

    /// A round number at or above a value, and the step between lines of the grid.
    fn scale(self, highest: f64) -> (f64, f64) {
        let base: f64 = match self {
            Self::Bytes => 1024.0,
            Self::PerSecond => 1000.0,
        };
        let highest = highest.max(1.0);
        let unit = base.powf((highest.ln() / base.ln()).floor());
        let steps = [
            0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 250.0, 500.0,
        ];
        let step = steps
            .iter()
            .map(|step| step * unit)
            .find(|step| highest / step <= 4.0);
        let step = step.unwrap_or(unit * 1000.0);
        ((highest / step).ceil() * step, step)
    }
}

/// Size of a chart on the page, as a class of its style.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// As wide as the page.
    Large,
    /// Beside others.
    Small,
}

/// Size of the picture in its own units, which the page stretches. Texts are outside of it and keep their size.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 100.0;

/// A chart with its heading and legend. `lines` are drawn over the areas and not stacked.
pub fn chart(
    markup: &mut Markup,
    title: &str,
    times_ms: &[u64],
    areas: &[Series],
    lines: &[Series],
    unit: Unit,
    size: Size,
) {
    let class = match size {
        Size::Large => "chart large",
        Size::Small => "chart",
    };
    markup.element("figure", &[("class", class)], |figure| {
        figure.line("figcaption", &[], title);
        if areas.is_empty() || times_ms.len() < 2 {
            figure.line("p", &[("class", "empty")], "nothing to draw");
            return;
        }
        draw(figure, title, times_ms, areas, lines, unit);
        legend(figure, areas, lines, unit);
    });
}

fn draw(
    figure: &mut Markup,
    title: &str,
    times_ms: &[u64],
    areas: &[Series],
    lines: &[Series],
    unit: Unit,
) {
    let moments = times_ms.len();
    let stacked = |moment: usize| {
        areas
            .iter()
            .map(|series| series.values[moment])
            .sum::<f64>()
    };
    let highest = (0..moments).map(stacked);
    let over = lines.iter().flat_map(|line| line.values.iter().copied());
    let (top, step) = unit.scale(highest.chain(over).fold(0.0, f64::max));
    let (first, last) = (times_ms[0], times_ms[moments - 1].max(times_ms[0] + 1));
    let x: Vec<f64> = times_ms
        .iter()
        .map(|time| (time - first) as f64 / (last - first) as f64 * WIDTH)
        .collect();
    let y = |value: f64| HEIGHT - value / top * HEIGHT;
    let marks = (top / step).round() as usize;
    figure.element("div", &[("class", "plot")], |plot| {
        plot.element("div", &[("class", "scale")], |scale| {
            for mark in (0..=marks).rev() {
                scale.line("span", &[], &unit.shown(mark as f64 * step));
            }
        });
        let box_of = format!("0 0 {WIDTH} {HEIGHT}");
        let (from, to) = (first.to_string(), last.to_string());
        let attributes = [
            ("viewBox", box_of.as_str()),
            ("preserveAspectRatio", "none"),
            ("role", "img"),
            ("aria-label", title),
            ("data-unit", unit.name()),
            ("data-from", &from),
            ("data-to", &to),
        ];
        plot.element("svg", &attributes, |svg| {
            for mark in 0..=marks {
                let at = format!("M0 {:.1}H{WIDTH}", y(mark as f64 * step));
                svg.element("path", &[("class", "grid"), ("d", &at)], |_| {});
            }
            let mut below = vec![0.0; moments];
            for series in areas {
                let above: Vec<f64> = below
                    .iter()
                    .zip(&series.values)
                    .map(|(below, value)| below + value)
                    .collect();
                let mut path = steps(&x, &above, unit, y);
                // Back along the lower edge, by the same steps.
                let mut lower = edge(&x, &below, unit);
                lower.reverse();
                for (at, value) in lower {
                    let _ = write!(path, "L{at:.1} {:.1}", y(value));
                }
                path.push('Z');
                svg.element(
                    "path",
                    &[("class", &format!("area {}", series.class)), ("d", &path)],
                    |path| {
                        path.line("title", &[], &series.label);
                    },
                );
                below = above;
            }
            for series in lines {
                let path = steps(&x, &series.values, unit, y);
                svg.element("path", &[("class", "line"), ("d", &path)], |line| {
                    line.line("title", &[], &series.label);
                });
            }
        });
        plot.element("div", &[("class", "times")], |times| {
            for time in [first, (first + last) / 2, last] {
                times.line("span", &[], &clock(time));
            }
        });
    });
}

/// Corners of an edge in steps, from left to right: nothing is known of how a value changed between two points. Bytes
/// hold from their point on, a rate up to its point.
fn edge(x: &[f64], values: &[f64], unit: Unit) -> Vec<(f64, f64)> {
    let mut corners = Vec::with_capacity(2 * values.len());
    let mut before: Option<(f64, f64)> = None;
    for (at, value) in x.iter().copied().zip(values.iter().copied()) {
        match before {
            Some((left, old)) if old != value => corners.push(match unit {
                Unit::Bytes => (at, old),
                Unit::PerSecond => (left, value),
            }),
            _ => {}
        }
        corners.push((at, value));
        before = Some((at, value));
    }
    // A corner in the middle of a level line says nothing.
    let mut short: Vec<(f64, f64)> = Vec::with_capacity(corners.len());
    for corner in corners {
        if let [.., a, b] = short[..]
            && a.1 == b.1
            && b.1 == corner.1
        {
            short.pop();
        }
        short.push(corner);
    }
    short
}

/// An edge in steps as the beginning of a path.
fn steps(x: &[f64], values: &[f64], unit: Unit, y: impl Fn(f64) -> f64) -> String {
    let mut path = String::new();
    for (at, value) in edge(x, values, unit) {
        let letter = if path.is_empty() { 'M' } else { 'L' };
        let _ = write!(path, "{letter}{at:.1} {:.1}", y(value));
    }
    path
}

/// Values for the script that shows them under the cursor: whole numbers, and how often each stands in a row.
fn runs(values: &[f64]) -> String {
    let mut text = String::new();
    let whole: Vec<u64> = values.iter().map(|value| value.round() as u64).collect();
    for run in whole.chunk_by(|left, right| left == right) {
        let gap = if text.is_empty() { "" } else { " " };
        let _ = match run.len() {
            1 => write!(text, "{gap}{}", run[0]),
            length => write!(text, "{gap}{}*{length}", run[0]),
        };
    }
    text
}

fn legend(figure: &mut Markup, areas: &[Series], lines: &[Series], unit: Unit) {
    figure.element("ul", &[("class", "legend")], |list| {
        for series in areas.iter().chain(lines) {
            let now = series.values.last().copied().unwrap_or(0.0);
            let most = series.values.iter().copied().fold(0.0, f64::max);
            let words = match unit {
                Unit::Bytes => format!("last {}, at most {}", unit.shown(now), unit.shown(most)),
                Unit::PerSecond => format!("at most {} per second", unit.shown(most)),
            };
            let values = runs(&series.values);
            list.element("li", &[("data-values", &values)], |item| {
                item.element("i", &[("class", &series.class)], |_| {});
                item.claimed(&series.label);
                item.text(" ");
                item.line("small", &[], &words);
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_round_and_hold_what_is_drawn() {
        for highest in [0.0, 1.0, 999.0, 1025.0, 5e6, 7.7e9, 3e15] {
            for unit in [Unit::Bytes, Unit::PerSecond] {
                let (top, step) = unit.scale(highest);
                assert!(
                    top >= highest && top / step <= 5.0 && step > 0.0,
                    "{highest}: {top} {step}"
                );
            }
        }
        assert_eq!(
            Unit::Bytes.scale(3.5 * 1024.0 * 1024.0),
            (4.0 * 1024.0 * 1024.0, 1024.0 * 1024.0)
        );
    }

    #[test]
    fn nothing_rises_between_two_points() {
        let x = [0.0, 10.0, 20.0, 30.0];
        let values = [1.0, 1.0, 3.0, 3.0];
        let held = edge(&x, &values, Unit::Bytes);
        assert_eq!(held, [(0.0, 1.0), (20.0, 1.0), (20.0, 3.0), (30.0, 3.0)]);
        let rate = edge(&x, &values, Unit::PerSecond);
        assert_eq!(rate, [(0.0, 1.0), (10.0, 1.0), (10.0, 3.0), (30.0, 3.0)]);
        for corners in [held, rate] {
            for pair in corners.windows(2) {
                let is_step = pair[0].0 == pair[1].0 || pair[0].1 == pair[1].1;
                assert!(is_step, "{pair:?}");
            }
        }
    }

    #[test]
    fn values_for_the_cursor_are_short() {
        assert_eq!(runs(&[0.0, 0.0, 1.4, 7.0, 7.0, 7.0]), "0*2 1 7*3");
        assert_eq!(runs(&[]), "");
    }
}
