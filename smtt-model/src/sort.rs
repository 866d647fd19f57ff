//! Sorting of rows by any of their fields, as JSON values.

use std::cmp::Ordering;

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
    for row in rows {
        let fields = fields(&row);
        let keys = by.iter().zip(&mut found).map(|(sort, found)| {
            let value = fields.get(&sort.column);
            *found |= value.is_some();
            // The same field may be named twice.
            value.cloned().unwrap_or(Value::Null)
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
    keyed.sort_by(|(left, _), (right, _)| {
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
        // Ids and names are whatever executors say. An order in which 9 < 10 < 1a < 9 ends a sort with a panic.
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
}
