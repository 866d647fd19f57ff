//! Changes of a text of JSON that leave it JSON for the most part: other values, giant numbers, deep nesting, parts twice.

use serde_json::Value;

use super::rounds::{Random, changed};

/// Stands where a text is put that [`Value`] cannot have.
const PLACE: &str = "\u{1}place";

/// What takes the place of a value.
const VALUES: [&str; 17] = [
    "null",
    "true",
    "-1",
    "0.1",
    "1e308",
    "1e999",
    "2147483648",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "99999999999999999999999999",
    "\"\"",
    "\"\\ud800\"",
    "\"<script>\\u202e\\u0000&\"",
    "\"-9223372036854775808\"",
    "[]",
    "{}",
];

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(all) => all.iter().map(count).sum(),
        Value::Object(all) => all.values().map(count).sum(),
        _ => 0,
    }
}

/// The value of a number, in the order in which they are written.
fn at<'a>(value: &'a mut Value, left: &mut usize) -> Option<&'a mut Value> {
    if *left == 0 {
        return Some(value);
    }
    *left -= 1;
    match value {
        Value::Array(all) => all.iter_mut().find_map(|it| at(it, left)),
        Value::Object(all) => all.values_mut().find_map(|it| at(it, left)),
        _ => None,
    }
}

fn any<'a>(random: &mut Random, value: &'a mut Value) -> &'a mut Value {
    let mut number = random.below(count(value));
    at(value, &mut number).expect("is there")
}

/// A text with a change; `others` are texts whose parts are put into it.
pub fn changed_json(random: &mut Random, text: &str, others: &[String]) -> String {
    let Ok(mut value) = serde_json::from_str::<Value>(text) else {
        return text.to_owned();
    };
    let mut put = None;
    for _ in 0..1 + random.below(3) {
        let here = any(random, &mut value);
        match random.below(8) {
            0 => {
                let other: &String = random.of(others);
                if let Ok(mut other) = serde_json::from_str(other) {
                    *here = any(random, &mut other).take();
                }
            }
            1 => {
                let levels = [10, 127, 128, 1000, 20_000][random.below(5)];
                let (open, close) = [("[", "]"), ("{\"children\":[", "]}")][random.below(2)];
                put = Some(open.repeat(levels) + &close.repeat(levels));
                *here = PLACE.into();
            }
            2 => match here {
                Value::Array(all) if !all.is_empty() => {
                    let one = all[random.below(all.len())].clone();
                    let times = 1 + random.below(300);
                    all.extend(std::iter::repeat_n(one, times));
                }
                Value::Object(all) if !all.is_empty() => {
                    let key = all.keys().nth(random.below(all.len()));
                    let key = key.expect("a key").clone();
                    all.shift_remove(&key);
                }
                Value::String(text) => *text = text.repeat(random.below(1000)),
                other => *other = Value::Array(vec![other.take()]),
            },
            _ => {
                put = Some((*random.of(&VALUES)).to_owned());
                *here = PLACE.into();
            }
        }
    }
    let mut text = value.to_string();
    if let Some(put) = put {
        let place = Value::from(PLACE).to_string();
        text = text.replace(&place, &put);
    }
    if random.below(20) == 0 {
        let bytes = changed(random, &[text.into_bytes()]);
        text = String::from_utf8_lossy(&bytes).into_owned();
    }
    text
}
