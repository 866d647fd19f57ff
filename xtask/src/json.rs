//! Fields of JSON answers: the daemon's rows and those of Spark's REST API.

use anyhow::{Context as _, Result};
use serde_json::Value;

/// The value of a field that is a whole number.
///
/// # Errors
/// When the row has no such field, with the whole row.
pub fn number(row: &Value, key: &str) -> Result<u64> {
    row[key]
        .as_u64()
        .with_context(|| format!("no number {key} in {row}"))
}

/// The value of a field that is a string.
///
/// # Errors
/// When the row has no such field, with the whole row.
pub fn text(row: &Value, key: &str) -> Result<String> {
    Ok(row[key]
        .as_str()
        .with_context(|| format!("no text {key} in {row}"))?
        .to_owned())
}

/// The value of a field that is a list.
///
/// # Errors
/// When the row has no such field, with the whole row.
pub fn list<'a>(row: &'a Value, key: &str) -> Result<&'a [Value]> {
    Ok(row[key]
        .as_array()
        .with_context(|| format!("no list {key} in {row}"))?)
}

/// Sum of a field over rows; a row without it adds nothing.
#[must_use]
pub fn sum<'a>(rows: impl IntoIterator<Item = &'a Value>, key: &str) -> u64 {
    rows.into_iter().filter_map(|row| row[key].as_u64()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_missing_field_is_named_and_never_zero() {
        let row = json!({ "a": 1, "b": "two", "c": [3], "d": -1 });
        assert_eq!(number(&row, "a").expect("a number"), 1);
        assert_eq!(text(&row, "b").expect("a text"), "two");
        assert_eq!(list(&row, "c").expect("a list"), [json!(3)]);
        for key in ["b", "d", "e"] {
            let error = number(&row, key).expect_err("no number").to_string();
            assert!(error.contains(&format!("no number {key} in ")), "{error}");
        }
        assert!(text(&row, "a").is_err() && list(&row, "a").is_err());
    }

    #[test]
    fn rows_without_the_field_add_nothing() {
        let rows = [json!({ "a": 1 }), json!({}), json!({ "a": 3 })];
        assert_eq!(sum(&rows, "a"), 4);
    }
}
