//! Sorting of rows by any of their fields, as JSON values.

mod pick;
pub mod small;

use std::cmp::Ordering;

use crate::sort::small::sort_by;

pub use self::pick::pick;

use serde::Serialize;
use serde_json::{Map, Value};

/// A row as a JSON object.
pub type Row = Map<String, Value>;

/// A field to sort by and the direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sort {
    /// Name of the field.
    pub column: String,
    /// Whether the largest comes first; `None` for the field's default: numbers descend, text ascends.
    pub descending: Option<bool>,
}

/// Why rows cannot be sorted as requested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SortError {
    /// The direction is neither `asc` nor `desc`.
    #[error("cannot sort {0:?}: write COLUMN, COLUMN:asc or COLUMN:desc")]
    Direction(String),
    /// No row has the field.
    #[error("cannot sort by {column:?}; the columns are: {known}")]
    Column {
        /// Requested field.
        column: String,
        /// Fields that the rows have.
        known: String,
    },
}

impl std::str::FromStr for Sort {
    type Err = SortError;

    fn from_str(text: &str) -> Result<Self, SortError> {
        let (column, descending) = match text.split_once(':') {
            None => (text, None),
            Some((column, "asc")) => (column, Some(false)),
            Some((column, "desc")) => (column, Some(true)),
            Some(_) => return Err(SortError::Direction(text.to_owned())),
        };
        Ok(Self {
            column: column.to_owned(),
            descending,
        })
    }
}

/// Order of two values; numbers before text, lists by their length. The order is total for all values, because sorting
/// by an inconsistent order may panic.
fn compare(left: &Value, right: &Value) -> Ordering {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => match (left.as_u64(), right.as_u64()) {
            (Some(left), Some(right)) => left.cmp(&right),
            _ => {
                let real = |number: &serde_json::Number| number.as_f64().unwrap_or(f64::MAX);
                // If they are equal as floats, the integer comes first.
                let by_value = real(left).total_cmp(&real(right));
                by_value.then_with(|| left.is_f64().cmp(&right.is_f64()))
            }
        },
        // Ids that are numbers as text ("10" after "9") sort as numbers, before all other text.
        (Value::String(left), Value::String(right)) => {
            match (left.parse::<u64>(), right.parse::<u64>()) {
                (Ok(left), Ok(right)) => left.cmp(&right),
                (Ok(_), Err(_)) => Ordering::Less,
                (Err(_), Ok(_)) => Ordering::Greater,
                (Err(_), Err(_)) => left.cmp(right),
            }
        }
        (Value::Bool(left), Value::Bool(right)) => left.cmp(right),
        (Value::Array(left), Value::Array(right)) => left.len().cmp(&right.len()),
        _ => kind(left).cmp(&kind(right)),
    }
}

/// Rank of a kind of value among the other kinds.
const fn kind(value: &Value) -> u8 {
    match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    }
}

/// The fields of a row. One that is no object has none.
fn fields(row: &impl Serialize) -> Row {
    match serde_json::to_value(row) {
        Ok(Value::Object(fields)) => fields,
        _ => Row::new(),
    }
}

/// Names of all fields that some row has, in the order in which they come.
fn columns<R: Serialize>(rows: impl Iterator<Item = R>) -> String {
    let mut names: Vec<String> = Vec::new();
    for row in rows {
        for name in fields(&row).keys() {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
    }
    names.join(", ")
}

/// Sorts rows by several fields, the most important first. Rows without a value come last either way; rows that are
/// equal keep their order. Only the fields to sort by are held as JSON values.
///
/// # Errors
/// When no row has such a field and there are rows.
pub fn sort<R: Serialize>(rows: Vec<R>, by: &[Sort]) -> Result<Vec<R>, SortError> {
    let mut found = vec![false; by.len()];
    let mut keyed: Vec<(Vec<Value>, R)> = Vec::with_capacity(rows.len());
    let names: Vec<&str> = by.iter().map(|sort| sort.column.as_str()).collect();
    for row in rows {
        let values = pick(&row, &names).into_iter().zip(&mut found);
        let keys = values.map(|(value, found)| {
            *found |= value.is_some();
            value.unwrap_or(Value::Null)
        });
        keyed.push((keys.collect(), row));
    }
    if keyed.is_empty() {
        return Ok(Vec::new());
    }
    if let Some(missing) = found.iter().position(|found| !found) {
        return Err(SortError::Column {
            column: by[missing].column.clone(),
            known: columns(keyed.iter().map(|(_, row)| row)),
        });
    }
    let descending: Vec<bool> = by
        .iter()
        .enumerate()
        .map(|(at, sort)| {
            let numbers = || {
                let mut values = keyed.iter().map(|(keys, _)| &keys[at]);
                values.any(|value| value.is_number() || value.is_array())
            };
            sort.descending.unwrap_or_else(numbers)
        })
        .collect();
    sort_by(&mut keyed, |(left, _), (right, _)| {
        let fields = left.iter().zip(right).zip(&descending);
        fields
            .map(
                |((left, right), descending)| match (left.is_null(), right.is_null()) {
                    (true, true) => Ordering::Equal,
                    (true, false) => Ordering::Greater,
                    (false, true) => Ordering::Less,
                    (false, false) if *descending => compare(right, left),
                    (false, false) => compare(left, right),
                },
            )
            .find(|order| order.is_ne())
            .unwrap_or(Ordering::Equal)
    });
    Ok(keyed.into_iter().map(|(_, row)| row).collect())
}

/// Sort keys of rows that are not in memory together: byte strings whose order is that of [`sort`].
#[derive(Debug)]
pub struct Keys {
    by: Vec<Sort>,
    /// Direction of each field; `None` until a row has a value for a field without a direction.
    descending: Vec<Option<bool>>,
    found: Vec<bool>,
    /// Fields of the rows, until every field to sort by is found.
    known: Vec<String>,
    rows: bool,
}

impl Keys {
    /// Keys for these fields, the most important first.
    #[must_use]
    pub fn new(by: Vec<Sort>) -> Self {
        Self {
            descending: by.iter().map(|sort| sort.descending).collect(),
            found: vec![false; by.len()],
            by,
            known: Vec::new(),
            rows: false,
        }
    }

    /// The key of a row.
    pub fn of(&mut self, row: &impl Serialize) -> Vec<u8> {
        self.rows = true;
        let fields = fields(row);
        let mut key = Vec::new();
        for (at, sort) in self.by.iter().enumerate() {
            let value = fields.get(&sort.column);
            self.found[at] |= value.is_some();
            let value = value.unwrap_or(&Value::Null);
            if value.is_null() {
                // After every value, in both directions.
                key.push(u8::MAX);
                continue;
            }
            let descending =
                *self.descending[at].get_or_insert_with(|| value.is_number() || value.is_array());
            key.push(0);
            let begin = key.len();
            encode(value, &mut key);
            if descending {
                for byte in &mut key[begin..] {
                    *byte = !*byte;
                }
            }
        }
        if self.found.contains(&false) {
            for name in fields.keys() {
                if !self.known.contains(name) {
                    self.known.push(name.clone());
                }
            }
        }
        key
    }

    /// Checks that the rows had the fields.
    ///
    /// # Errors
    /// When no row has such a field and there are rows.
    pub fn check(&self) -> Result<(), SortError> {
        match self.found.iter().position(|found| !found) {
            Some(missing) if self.rows => Err(SortError::Column {
                column: self.by[missing].column.clone(),
                known: self.known.join(", "),
            }),
            _ => Ok(()),
        }
    }
}

/// Appends bytes whose order is that of [`compare`]. No encoding is the beginning of another one.
fn encode(value: &Value, into: &mut Vec<u8>) {
    into.push(kind(value));
    match value {
        Value::Number(number) => {
            let bits = number.as_f64().unwrap_or(f64::MAX).to_bits();
            // The order of the bits of positive numbers is theirs, that of negative ones the opposite.
            let ordered = bits ^ if bits >> 63 == 1 { u64::MAX } else { 1 << 63 };
            into.extend(ordered.to_be_bytes());
            into.push(u8::from(number.is_f64()));
            into.extend(number.as_u64().unwrap_or(0).to_be_bytes());
        }
        Value::String(text) => match text.parse::<u64>() {
            Ok(number) => {
                into.push(0);
                into.extend(number.to_be_bytes());
            }
            Err(_) => {
                into.push(1);
                for byte in text.bytes() {
                    into.push(byte);
                    if byte == 0 {
                        into.push(u8::MAX);
                    }
                }
                into.extend([0, 0]);
            }
        },
        Value::Bool(value) => into.push(u8::from(*value)),
        Value::Array(values) => into.extend((values.len() as u64).to_be_bytes()),
        Value::Object(_) | Value::Null => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rows() -> Vec<Row> {
        [
            json!({"n": 2, "s": "9"}),
            json!({"n": null, "s": "b"}),
            json!({"n": 10, "s": "10"}),
        ]
        .into_iter()
        .filter_map(|row| row.as_object().cloned())
        .collect()
    }

    fn sorted(by: &str) -> Vec<Value> {
        let by: Sort = by.parse().expect("a sort");
        let rows = sort(rows(), std::slice::from_ref(&by)).expect("sorted");
        rows.iter().map(|row| row[&by.column].clone()).collect()
    }

    #[test]
    fn numbers_descend_and_text_ascends_unless_told() {
        assert_eq!(sorted("n"), [json!(10), json!(2), Value::Null]);
        assert_eq!(sorted("n:asc"), [json!(2), json!(10), Value::Null]);
        assert_eq!(sorted("s"), [json!("9"), json!("10"), json!("b")]);
        assert_eq!(sorted("s:desc"), [json!("b"), json!("10"), json!("9")]);
    }

    #[test]
    fn any_mixture_of_values_has_one_order() {
        // Ids and names are whatever executors report. An order in which 9 < 10 < 1a < 9 ends a sort with a panic.
        let values = [
            json!("9"),
            json!("10"),
            json!("1a"),
            json!("009"),
            json!("18446744073709551616"),
            json!("driver"),
            json!(""),
            json!(7),
            json!(7.5),
            json!(u64::MAX),
            json!(u64::MAX - 1),
            json!(1.844_674_407_370_955_2e19),
            json!(-3),
            json!(true),
            json!([1]),
            json!({"a": 1}),
            Value::Null,
        ];
        for (a, b, c) in values.iter().flat_map(|a| {
            let pairs = values
                .iter()
                .flat_map(|b| values.iter().map(move |c| (b, c)));
            pairs.map(move |(b, c)| (a, b, c))
        }) {
            assert_eq!(compare(a, b), compare(b, a).reverse(), "{a} {b}");
            if compare(a, b).is_le() && compare(b, c).is_le() {
                assert!(compare(a, c).is_le(), "{a} <= {b} <= {c}");
            }
        }
        let rows: Vec<Row> = (0..500)
            .map(|at| Row::from_iter([("s".to_owned(), values[at * 7 % values.len()].clone())]))
            .collect();
        let by = Sort {
            column: "s".to_owned(),
            descending: None,
        };
        assert_eq!(sort(rows, &[by]).expect("sorted").len(), 500);
    }

    #[test]
    fn the_first_field_decides_and_the_next_ones_where_it_does_not() {
        let rows = [(1, "b"), (2, "a"), (1, "a")];
        let rows: Vec<Value> = rows.map(|(n, s)| json!({"n": n, "s": s})).into();
        let by = ["n:desc", "s"].map(|by| by.parse().expect("a sort"));
        let sorted = sort(rows, &by).expect("sorted");
        let shown: Vec<String> = sorted.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                r#"{"n":2,"s":"a"}"#,
                r#"{"n":1,"s":"a"}"#,
                r#"{"n":1,"s":"b"}"#
            ]
        );
    }

    #[test]
    fn errors_say_what_there_is() {
        let by = Sort {
            column: "x".to_owned(),
            descending: None,
        };
        // A field that only a later row has can be sorted by too.
        let mut rows = rows();
        rows[1].insert("later".to_owned(), json!(1));
        let error = sort(rows, std::slice::from_ref(&by)).expect_err("no such column");
        assert_eq!(
            error.to_string(),
            "cannot sort by \"x\"; the columns are: n, s, later"
        );
        assert!("n:up".parse::<Sort>().is_err());
        assert_eq!(sort(Vec::<Row>::new(), &[by]), Ok(Vec::new()));
    }

    #[test]
    fn keys_sort_as_rows_do() {
        let values = [
            json!(null),
            json!(0),
            json!(7),
            json!(-3),
            json!(2.5),
            json!(7.0),
            json!(u64::MAX),
            json!(u64::MAX - 1),
            json!("10"),
            json!("9"),
            json!(""),
            json!("a"),
            json!("a\u{0}"),
            json!("a\u{0}b"),
            json!("ab"),
            json!(true),
            json!(false),
            json!([1, 2]),
            json!([3]),
        ];
        let mut rows = Vec::new();
        for a in &values {
            for b in &values {
                let row = json!({"a": a, "b": b});
                rows.extend(row.as_object().cloned());
            }
        }
        for by in [["a:asc", "b:asc"], ["a:desc", "b:asc"], ["b:asc", "a:desc"]] {
            let by: Vec<Sort> = by.iter().map(|by| by.parse().expect("a sort")).collect();
            let expected = sort(rows.clone(), &by).expect("sorted");
            let mut keys = Keys::new(by);
            let mut keyed: Vec<(Vec<u8>, Row)> =
                rows.iter().map(|row| (keys.of(row), row.clone())).collect();
            keyed.sort_by(|left, right| left.0.cmp(&right.0));
            let sorted: Vec<Row> = keyed.into_iter().map(|(_, row)| row).collect();
            assert_eq!(sorted, expected);
            keys.check().expect("both are found");
        }
        let mut keys = Keys::new(vec!["c".parse().expect("a sort")]);
        keys.check().expect("no rows");
        let _ = keys.of(&rows[0]);
        let error = keys.check().expect_err("no row has it");
        assert!(
            error.to_string().ends_with("the columns are: a, b"),
            "{error}"
        );
    }
}
