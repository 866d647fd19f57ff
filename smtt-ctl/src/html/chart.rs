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

/// Size of a chart in its own units: pixels at full width.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub width: f64,
    pub height: f64,
}

/// Margins for the labels of the axes.
const LEFT: f64 = 62.0;
const BOTTOM: f64 = 20.0;
const TOP: f64 = 8.0;
const RIGHT: f64 = 8.0;

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
    markup.element("figure", &[], |figure| {
        figure.line("figcaption", &[], title);
        if areas.is_empty() || times_ms.len() < 2 {
            figure.line("p", &[("class", "empty")], "nothing to draw");
            return;
        }
        draw(figure, title, times_ms, areas, lines, unit, size);
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
    size: Size,
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
    let x = |moment: usize| {
        let share = (times_ms[moment] - first) as f64 / (last - first) as f64;
        LEFT + share * (size.width - LEFT - RIGHT)
    };
    let y = |value: f64| size.height - BOTTOM - value / top * (size.height - TOP - BOTTOM);
    let place = |value: f64| format!("{value:.1}");
    let box_of = format!("0 0 {} {}", size.width, size.height);
    let attributes = [
        ("class", if size.width > 500.0 { "large" } else { "" }),
        ("viewBox", box_of.as_str()),
        ("role", "img"),
        ("aria-label", title),
    ];
    figure.element("svg", &attributes, |svg| {
        let mut line = 0.0;
        while line <= top * 1.001 {
            let at = place(y(line));
            let (from, to) = (place(LEFT), place(size.width - RIGHT));
            svg.element(
                "line",
                &[
                    ("class", "grid"),
                    ("x1", &from),
                    ("x2", &to),
                    ("y1", &at),
                    ("y2", &at),
                ],
                |_| {},
            );
            let (left, down) = (place(LEFT - 6.0), place(y(line) + 4.0));
            svg.line(
                "text",
                &[("class", "axis end"), ("x", &left), ("y", &down)],
                &unit.shown(line),
            );
            line += step;
        }
        let mut below = vec![0.0; moments];
        for series in areas {
            let mut path = String::new();
            for (moment, base) in below.iter().enumerate() {
                let letter = if moment == 0 { 'M' } else { 'L' };
                let _ = write!(
                    path,
                    "{letter}{:.1} {:.1}",
                    x(moment),
                    y(base + series.values[moment])
                );
            }
            for moment in (0..moments).rev() {
                let _ = write!(path, "L{:.1} {:.1}", x(moment), y(below[moment]));
            }
            path.push('Z');
            svg.element(
                "path",
                &[("class", &format!("area {}", series.class)), ("d", &path)],
                |path| {
                    path.line("title", &[], &series.label);
                },
            );
            below
                .iter_mut()
                .zip(&series.values)
                .for_each(|(below, value)| *below += value);
        }
        for series in lines {
            let points: Vec<String> = (0..moments)
                .map(|moment| format!("{:.1},{:.1}", x(moment), y(series.values[moment])))
                .collect();
            svg.element(
                "polyline",
                &[("class", "line"), ("points", &points.join(" "))],
                |line| {
                    line.line("title", &[], &series.label);
                },
            );
        }
        let down = place(size.height - 5.0);
        for (class, at, moment) in [
            ("axis", LEFT, 0),
            ("axis end", size.width - RIGHT, moments - 1),
        ] {
            let words = clock(times_ms[moment]);
            svg.line(
                "text",
                &[("class", class), ("x", &place(at)), ("y", &down)],
                &words,
            );
        }
        if size.width > 500.0 {
            let middle = place((LEFT + size.width - RIGHT) / 2.0);
            let attributes = [
                ("class", "axis middle"),
                ("x", middle.as_str()),
                ("y", &down),
            ];
            svg.line("text", &attributes, &clock((first + last) / 2));
        }
    });
}

fn legend(figure: &mut Markup, areas: &[Series], lines: &[Series], unit: Unit) {
    figure.element("ul", &[("class", "legend")], |list| {
        for series in areas.iter().chain(lines) {
            let now = series.values.last().copied().unwrap_or(0.0);
            let most = series.values.iter().copied().fold(0.0, f64::max);
            let mut words = match unit {
                Unit::Bytes => format!("last {}, at most {}", unit.shown(now), unit.shown(most)),
                Unit::PerSecond => format!("at most {} per second", unit.shown(most)),
            };
            words.insert(0, ' ');
            list.element("li", &[], |item| {
                item.element("i", &[("class", &series.class)], |_| {});
                item.claimed(&series.label);
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
}
