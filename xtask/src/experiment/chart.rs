//! Grouped bars as SVG: one row per workload, one bar per series; the label of an absent bar says so.

use std::fmt::Write;

/// One series: its name, its colour, and one optional value per row.
pub struct Series {
    /// Name in the legend.
    pub name: &'static str,
    /// Colour of the bars.
    pub colour: &'static str,
    /// Values, in the order of the rows.
    pub values: Vec<Option<f64>>,
}

const WIDTH: f64 = 900.0;
const LEFT: f64 = 170.0;
const RIGHT: f64 = 110.0;
const TOP: f64 = 84.0;
const BAR: f64 = 15.0;
const GAP: f64 = 14.0;

/// Draws the chart; `unit` follows every value, with `digits` decimals.
#[must_use]
pub fn bars(title: &str, rows: &[&str], series: &[Series], unit: &str, digits: usize) -> String {
    let row_height = BAR * series.len() as f64 + GAP;
    let height = TOP + row_height * rows.len() as f64 + 20.0;
    let most = series
        .iter()
        .flat_map(|series| series.values.iter().flatten())
        .fold(0.0_f64, |most, value| most.max(*value));
    let per_unit = if most > 0.0 {
        (WIDTH - LEFT - RIGHT) / most
    } else {
        0.0
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n<text x=\"16\" y=\"28\" font-size=\"17\" font-weight=\"bold\">{}</text>\n",
        escaped(title)
    );
    let mut text = |line: String| {
        svg.push_str(&line);
        svg.push('\n');
    };
    let mut x = 16.0;
    for series in series {
        text(format!(
            "<rect x=\"{x}\" y=\"46\" width=\"12\" height=\"12\" fill=\"{}\"/><text x=\"{}\" y=\"57\">{}</text>",
            series.colour,
            x + 18.0,
            escaped(series.name)
        ));
        x += 44.0 + 7.3 * series.name.len() as f64;
    }
    for (index, row) in rows.iter().enumerate() {
        let top = TOP + row_height * index as f64;
        text(format!(
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 10.0,
            top + BAR * series.len() as f64 / 2.0 + 4.5,
            escaped(row)
        ));
        for (place, series) in series.iter().enumerate() {
            let y = top + BAR * place as f64;
            let mut bar = String::new();
            let mut end = LEFT;
            let label = if let Some(value) = series.values.get(index).copied().flatten() {
                let length = value * per_unit;
                end += length;
                // Writing to a string cannot fail.
                let _ = write!(
                    bar,
                    "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"{:.1}\" fill=\"{}\"/>",
                    BAR - 2.0,
                    series.colour
                );
                format!("{value:.digits$} {unit}")
            } else {
                "absent".to_owned()
            };
            text(format!(
                "{bar}<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"11\">{label}</text>",
                end + 5.0,
                y + 10.5
            ));
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_fills_the_chart_and_absent_ones_are_no_bars() {
        let series = [Series {
            name: "a<b",
            colour: "#123456",
            values: vec![Some(50.0), None, Some(25.0)],
        }];
        let svg = bars("t", &["x", "y", "z"], &series, "%", 1);
        assert!(svg.contains("width=\"620.0\"") && svg.contains("width=\"310.0\""));
        assert_eq!(svg.matches("absent").count(), 1);
        assert!(svg.contains("a&lt;b") && !svg.contains("a<b"));
    }
}
