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

/// Fields that tell executors apart: two users or attempts may have the same ids.
const EXECUTOR: [&str; 5] = [
    "worker",
    "application_id",
    "application_attempt_id",
    "uid",
    "pid",
];

fn joined(row: &Map<String, Value>, fields: &[&str]) -> String {
    let text = |field: &&str| row.get(*field).map(Value::to_string).unwrap_or_default();
    fields.iter().map(text).collect::<Vec<_>>().join("/")
}

/// Identity of a row between two refreshes.
pub fn identity(row: &Map<String, Value>) -> String {
    const FURTHER: [&str; 7] = [
        "rdd_id",
        "stage_id",
        "stage_attempt",
        "task_attempt_id",
        "block_id",
        "name",
        "group",
    ];
    format!("{}/{}", joined(row, &EXECUTOR), joined(row, &FURTHER))
}

/// Page faults of an RDD on an executor, which are part of those of its group.
pub struct Work {
    /// Identity of the group now: a query or a name is learned after the first page faults.
    group: String,
    executor: String,
    /// Identity of the RDD, whatever is learned of it.
    rdd: String,
    faults: u64,
}

impl Work {
    /// The work of an RDD of a group; `None` where page faults are not measured.
    pub fn of(group: &str, rdd: &Map<String, Value>) -> Option<Self> {
        let of = ["application_id", "application_attempt_id", "uid"];
        let of = of.iter().filter_map(|field| rdd.get_key_value(*field));
        let mut row: Map<String, Value> = of.map(|(key, it)| (key.clone(), it.clone())).collect();
        row.insert("group".to_owned(), group.into());
        let executor = joined(rdd, &EXECUTOR);
        // Rows without an id are known by their names.
        let id = rdd.get("rdd_id").filter(|id| !id.is_null());
        let id = id.or_else(|| rdd.get("name"));
        Some(Self {
            group: identity(&row),
            rdd: format!("{executor}/{}", id.unwrap_or(&Value::Null)),
            executor,
            faults: rdd.get("page_faults")?.as_u64()?,
        })
    }
}

/// Adds to groups the rates of their RDDs whose counts of `before`, some seconds ago, are known. Those of an executor
/// that was there before began with none, unless conditions on RDDs may have hidden them. Returns the counts.
pub fn add_sums(
    groups: &mut [Map<String, Value>],
    work: Vec<Work>,
    before: &HashMap<String, u64>,
    seconds: Option<f64>,
    shows_all: bool,
) -> HashMap<String, u64> {
    let mut seen = HashMap::new();
    let mut sums: HashMap<String, u64> = HashMap::new();
    for it in work {
        let is_new = shows_all && before.contains_key(&it.executor);
        let known = before.get(&it.rdd).copied();
        if let Some(old) = known.or(is_new.then_some(0)) {
            let sum = sums.entry(it.group).or_default();
            *sum = sum.saturating_add(it.faults.saturating_sub(old));
        }
        seen.insert(it.executor, 0);
        seen.insert(it.rdd, it.faults);
    }
    for group in groups {
        if let (Some(sum), Some(seconds)) = (sums.get(&identity(group)), seconds) {
            let rate = *sum as f64 / seconds;
            group.insert(RATE.to_owned(), Value::from(rate.round() as u64));
        }
    }
    seen
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
