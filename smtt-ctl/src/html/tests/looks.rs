//! Colours of the page: each can be told from what is behind it.

use std::collections::BTreeMap;

const SHEET: &str = include_str!("../style.css");
/// Least contrast of text: level AA of WCAG 2.2.
const OF_TEXT: f64 = 4.5;
/// Least contrast of what else has a meaning.
const OF_PARTS: f64 = 3.0;

/// Colours of a block of the style sheet that begins after a text.
fn colours(after: &str) -> BTreeMap<&'static str, &'static str> {
    let start = SHEET.find(after).unwrap_or_else(|| panic!("no {after}"));
    let block = &SHEET[start + after.len()..];
    let block = &block[block.find(":root{").expect("colours") + 6..];
    let block = &block[..block.find('}').expect("an end")];
    let pairs = block.split(';').filter_map(|pair| pair.split_once(':'));
    let pairs = pairs.map(|(name, value)| (name.trim(), value.trim()));
    pairs.filter(|(_, value)| value.starts_with('#')).collect()
}

/// Relative luminance. <https://www.w3.org/TR/WCAG22/#dfn-relative-luminance>
fn luminance(colour: &str) -> f64 {
    let digits = &colour[1..];
    let wide = digits.len() / 3;
    let part = |at: usize| {
        let digits = digits[at * wide..(at + 1) * wide].repeat(3 - wide);
        let value = u8::from_str_radix(&digits, 16).expect("a colour");
        let share = f64::from(value) / 255.0;
        match share <= 0.04045 {
            true => share / 12.92,
            false => ((share + 0.055) / 1.055).powf(2.4),
        }
    };
    0.2126 * part(0) + 0.7152 * part(1) + 0.0722 * part(2)
}

fn contrast(one: &str, other: &str) -> f64 {
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

#[test]
fn contrast_is_as_defined() {
    assert_eq!(contrast("#000", "#fff"), 21.0);
    assert!((contrast("#777777", "#fff") - 4.48).abs() < 0.01);
}

#[test]
fn every_colour_is_seen_in_light_in_dark_and_on_paper() {
    for (scheme, after) in [
        ("light", ""),
        ("dark", "@media (prefers-color-scheme:dark){"),
        ("paper", "@media print{"),
    ] {
        let colours = colours(after);
        assert!(colours.len() >= 19, "{scheme}: {colours:?}");
        for (name, colour) in &colours {
            let least = match *name {
                "--ground" | "--panel" => continue,
                "--ink" | "--soft" | "--high" | "--medium" | "--low" | "--k1" => OF_TEXT,
                _ => OF_PARTS,
            };
            for behind in ["--ground", "--panel"] {
                let ratio = contrast(colour, colours[behind]);
                assert!(
                    ratio >= least,
                    "{scheme}: {name} {colour} on {behind}: {ratio:.2}, at least {least}"
                );
            }
        }
    }
}
