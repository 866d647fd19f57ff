//! Colours that stand side by side differ for people with and without a colour vision deficiency, and from the ground.

use std::collections::BTreeMap;

use crate::pages::FILES;

/// Least distance of two colours that stand side by side.
const DISTANCE: f64 = 10.0;
/// Least contrast of a graphic with its ground, and of a text: level AA of WCAG 2.2.
const CONTRAST: (f64, f64) = (3.0, 4.5);

/// Simulations of a full deficiency in linear light: Machado, Oliveira, Fernandes, "A Physiologically-based Model for
/// Simulation of Color Vision Deficiency", IEEE TVCG 15 (6), 2009, severity 1.0.
/// <https://www.inf.ufrgs.br/~oliveira/pubs_files/CVD_Simulation/CVD_Simulation.html>
const SIMULATIONS: [(&str, [[f64; 3]; 3]); 4] = [
    (
        "no deficiency",
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
    ),
    (
        "protanopia",
        [
            [0.152_286, 1.052_583, -0.204_868],
            [0.114_503, 0.786_281, 0.099_216],
            [-0.003_882, -0.048_116, 1.051_998],
        ],
    ),
    (
        "deuteranopia",
        [
            [0.367_322, 0.860_646, -0.227_968],
            [0.280_085, 0.672_501, 0.047_413],
            [-0.011_820, 0.042_940, 0.968_881],
        ],
    ),
    (
        "tritanopia",
        [
            [1.255_528, -0.076_749, -0.178_779],
            [-0.078_411, 0.930_809, 0.147_602],
            [0.004_733, 0.691_367, 0.303_900],
        ],
    ),
];

/// Linear light of a colour such as `#0072b2`.
fn linear(hex: &str) -> [f64; 3] {
    let digits: Vec<u32> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
    let part = |at: usize| {
        let value = match digits.len() {
            3 => digits[at] * 17,
            6 => digits[2 * at] * 16 + digits[2 * at + 1],
            _ => panic!("{hex} is no colour"),
        };
        let value = f64::from(value) / 255.0;
        if value <= 0.040_45 {
            value / 12.92
        } else {
            ((value + 0.055) / 1.055).powf(2.4)
        }
    };
    [part(0), part(1), part(2)]
}

fn through(matrix: &[[f64; 3]; 3], light: [f64; 3]) -> [f64; 3] {
    matrix.map(|row| row.iter().zip(light).map(|(by, part)| by * part).sum())
}

/// CIE L*a*b* of linear light, with white D65.
fn lab(light: [f64; 3]) -> [f64; 3] {
    const XYZ: [[f64; 3]; 3] = [
        [0.412_456_4, 0.357_576_1, 0.180_437_5],
        [0.212_672_9, 0.715_152_2, 0.072_175_0],
        [0.019_333_9, 0.119_192_0, 0.950_304_1],
    ];
    let curve = |part: f64| {
        if part > 216.0 / 24_389.0 {
            part.cbrt()
        } else {
            (24_389.0 / 27.0 * part + 16.0) / 116.0
        }
    };
    let [x, y, z] = through(&XYZ, light);
    let [x, y, z] = [curve(x / 0.950_47), curve(y), curve(z / 1.088_83)];
    [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
}

/// The colour as each of [`SIMULATIONS`] sees it.
fn seen(hex: &str) -> [[f64; 3]; 4] {
    let light = linear(hex);
    SIMULATIONS.map(|(_, matrix)| lab(through(&matrix, light).map(|part| part.clamp(0.0, 1.0))))
}

/// The distance of 1976.
fn distance(left: [f64; 3], right: [f64; 3]) -> f64 {
    let squares = left
        .iter()
        .zip(right)
        .map(|(left, right)| (left - right).powi(2));
    squares.sum::<f64>().sqrt()
}

/// The contrast of WCAG 2.2.
fn contrast(left: &str, right: &str) -> f64 {
    let light = |hex: &str| {
        let [red, green, blue] = linear(hex);
        0.2126 * red + 0.7152 * green + 0.0722 * blue
    };
    let (left, right) = (light(left), light(right));
    (left.max(right) + 0.05) / (left.min(right) + 0.05)
}

/// Colours of the light and of the dark scheme by their names, without the two hyphens.
fn schemes() -> [(&'static str, BTreeMap<&'static str, &'static str>); 2] {
    let (_, _, css) = FILES.iter().find(|it| it.0 == "page.css").expect("has one");
    let (light, rest) = css
        .split_once("@media (prefers-color-scheme:dark)")
        .expect("has both");
    let (dark, _) = rest.split_once("}}").expect("ends");
    let colours = |text: &'static str| {
        let all = text.split("--").skip(1).filter_map(|it| it.split_once(':'));
        let all = all.filter(|(_, value)| value.starts_with('#'));
        let end = |value: &'static str| value[1..].find(|it: char| !it.is_ascii_hexdigit());
        all.map(|(name, value)| (name, &value[..end(value).map_or(value.len(), |at| at + 1)]))
            .collect()
    };
    [("light", colours(light)), ("dark", colours(dark))]
}

/// Classes of the colours that one picture has.
fn pictures() -> Vec<(&'static str, Vec<String>)> {
    let list = |letter: &str, count: usize| -> Vec<String> {
        (0..count).map(|at| format!("{letter}{at}")).collect()
    };
    // The lanes of a task's functions.
    let functions = include_str!("functions.rs");
    let (_, activities) = functions
        .split_once("ACTIVITIES: [")
        .expect("has the table");
    let (activities, _) = activities.split_once("];").expect("ends");
    let classes = activities.split('"').skip(3).step_by(4).map(str::to_owned);
    let functions: Vec<String> = classes.collect();
    assert!(
        functions.contains(&"s9".to_owned()) && functions.contains(&"p0".to_owned()),
        "{functions:?}"
    );
    let mut memory = list("s", 12);
    memory.push("p0".to_owned());
    vec![
        ("parts", list("p", 10)),
        ("stages", list("s", 12)),
        ("outcomes", list("o", 5)),
        ("localities", list("l", 6)),
        ("memory", memory),
        ("functions", functions),
    ]
}

#[test]
fn colours_that_stand_side_by_side_differ_for_everybody() {
    let mut faults = Vec::new();
    for (scheme, colours) in schemes() {
        for (picture, classes) in pictures() {
            let mut least = (f64::MAX, String::new());
            for (at, left) in classes.iter().enumerate() {
                for ground in ["ground", "panel"] {
                    let found = contrast(colours[left.as_str()], colours[ground]);
                    if found < CONTRAST.0 {
                        faults.push(format!("{scheme}, {left} on {ground}: contrast {found:.2}"));
                    }
                }
                for right in classes[at + 1..].iter().filter(|right| *right != left) {
                    let both = [left, right].map(|it| seen(colours[it.as_str()]));
                    for (of, (by, _)) in SIMULATIONS.iter().enumerate() {
                        let found = distance(both[0][of], both[1][of]);
                        if found < least.0 {
                            least = (found, format!("{left} and {right} with {by}"));
                        }
                    }
                }
            }
            println!(
                "{scheme}, {picture}: least distance {:.1}, {}",
                least.0, least.1
            );
            if least.0 < DISTANCE {
                faults.push(format!("{scheme}, {picture}: {:.1}, {}", least.0, least.1));
            }
        }
        // The names of jobs are written on these.
        for bar in ["s0", "o1"] {
            let found = contrast(colours[bar], colours["ground"]);
            if found < CONTRAST.1 {
                faults.push(format!("{scheme}, text on {bar}: contrast {found:.2}"));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn distances_are_those_of_known_colours() {
    let normal = |left: &str, right: &str| distance(seen(left)[0], seen(right)[0]);
    assert!((normal("#000", "#fff") - 100.0).abs() < 0.1);
    assert!((contrast("#000", "#fff") - 21.0).abs() < 0.01);
    // Red and green of one lightness: far apart, and near for those who cannot tell them.
    let (left, right) = (seen("#b3761e"), seen("#6b8e23"));
    assert!(
        distance(left[0], right[0]) > 40.0,
        "{}",
        distance(left[0], right[0])
    );
    assert!(
        distance(left[1], right[1]) < 20.0,
        "{}",
        distance(left[1], right[1])
    );
}
