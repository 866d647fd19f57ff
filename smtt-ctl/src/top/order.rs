//! Order and choice of the rows of `smtt-ctl top`.

use std::cmp::Ordering;
use std::collections::HashMap;

use serde_json::{Map, Value};
use smtt_model::sort::small::sort_by;

use crate::table::Column;

/// Field that `top` itself adds to rows.
pub const RATE: &str = "page_faults_per_second";

/// The order of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Field of the row.
    pub field: &'static str,
    /// Whether small values come first.
    pub rises: bool,
}

/// Identity of a row between two refreshes. Two users or attempts may have the same ids.
pub fn identity(row: &Map<String, Value>) -> String {
    [
        "worker",
        "application_id",
        "application_attempt_id",
        "uid",
        "pid",
        "rdd_id",
        "stage_id",
        "stage_attempt",
        "task_attempt_id",
        "block_id",
        "name",
        "group",
    ]
    .iter()
    .map(|field| row.get(*field).map(Value::to_string).unwrap_or_default())
    .collect::<Vec<_>>()
    .join("/")
}

/// Adds the rate of page faults to rows whose counts of `before`, some seconds ago, are known. Returns the counts.
pub fn add_rates(
    rows: &mut [Map<String, Value>],
    before: &HashMap<String, u64>,
    seconds: Option<f64>,
) -> HashMap<String, u64> {
    let mut seen = HashMap::new();
    for row in rows {
        let Some(faults) = row.get("page_faults").and_then(Value::as_u64) else {
            continue;
        };
        let key = identity(row);
        if let (Some(before), Some(seconds)) = (before.get(&key), seconds) {
            let rate = faults.saturating_sub(*before) as f64 / seconds;
            row.insert(RATE.to_owned(), Value::from(rate.round() as u64));
        }
        seen.insert(key, faults);
    }
    seen
}

/// Sorts rows. Without an order those with current work come first, then those with most page faults.
pub fn sort(rows: &mut [Map<String, Value>], order: Option<Order>) {
    let falling = |field: &'static str| Order {
        field,
        rises: false,
    };
    sort_by(rows, |left, right| match order {
        Some(order) => compare(left, right, order),
        None => compare(left, right, falling(RATE))
            .then_with(|| compare(left, right, falling("page_faults")))
            .then_with(|| compare(left, right, falling("storage_memory_bytes"))),
    });
}

/// Order of two rows; one without the value is last in any direction.
fn compare(left: &Map<String, Value>, right: &Map<String, Value>, order: Order) -> Ordering {
    let value =
        |row: &'_ Map<String, Value>| row.get(order.field).filter(|it| !it.is_null()).cloned();
    let (left, right) = match (value(left), value(right)) {
        (Some(left), Some(right)) => (left, right),
        (left, right) => return right.is_some().cmp(&left.is_some()),
    };
    let rising = match (number(&left), number(&right)) {
        (Some(left), Some(right)) => left.total_cmp(&right),
        _ => left.to_string().cmp(&right.to_string()),
    };
    if order.rises {
        rising
    } else {
        rising.reverse()
    }
}

/// A value as a number: of a list its length. Ids are text in some rows.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::Bool(is) => Some(f64::from(u8::from(*is))),
        Value::Array(list) => Some(list.len() as f64),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

/// Whether a cell of a row has a text, in letters of any case.
pub fn has(row: &Map<String, Value>, columns: &[Column], text: &str) -> bool {
    let text = text.to_lowercase();
    let mut cells = columns.iter().map(|column| column.cell(row));
    text.is_empty() || cells.any(|cell| cell.to_lowercase().contains(&text))
}
