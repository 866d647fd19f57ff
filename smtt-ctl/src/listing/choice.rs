//! Columns that the user chooses, by a heading of the table or a field of the JSON.

use std::cell::RefCell;
use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::Failure;
use crate::table::{Column, Form};

/// Name that chooses every column of the table.
pub(super) const ALL: &str = "all";

/// The chosen columns; `None` without a choice.
pub(crate) fn chosen(
    table: &[Column],
    asked: &[String],
    rows: &[Map<String, Value>],
) -> Result<Option<Vec<Column>>, Failure> {
    match asked {
        [] => Ok(None),
        [all] if all == ALL => Ok(Some(table.to_vec())),
        names => names
            .iter()
            .map(|name| named(table, name.trim(), rows).ok_or_else(|| unknown(table, name, rows)))
            .collect::<Result<_, _>>()
            .map(Some),
    }
}

fn named(table: &[Column], name: &str, rows: &[Map<String, Value>]) -> Option<Column> {
    let spaced = name.replace(['_', '-'], " ");
    let is_heading = |column: &&Column| {
        column.heading.eq_ignore_ascii_case(name) || column.heading.eq_ignore_ascii_case(&spaced)
    };
    let known = table.iter().find(|column| column.field == name);
    if let Some(column) = known.or_else(|| table.iter().find(is_heading)) {
        return Some(*column);
    }
    let values = || rows.iter().filter_map(|row| row.get(name));
    let first = values()
        .find(|value| !value.is_null())
        .or_else(|| values().next())?;
    let field = lasting(name);
    let heading = lasting(&name.to_uppercase().replace('_', " "));
    Some(Column {
        field,
        heading,
        form: form(name, first),
        rank: 0,
    })
}

/// Form of a field without a column, by its unit.
fn form(name: &str, value: &Value) -> Form {
    match value {
        Value::Number(_) if name.ends_with("_ns") => Form::Duration,
        Value::Number(_) if name.ends_with("_bytes") => Form::Bytes,
        Value::Number(_) if name.ends_with("_id") || name == "pid" || name == "uid" => Form::Word,
        Value::Number(_) if name.ends_with("_share") => Form::Share,
        Value::Number(_) if name.ends_with("_ratio") => Form::SmallShare,
        Value::Number(number) if number.is_u64() => Form::Count,
        Value::Number(_) => Form::Real,
        Value::Bool(_) => Form::YesNo,
        _ => Form::Text,
    }
}

fn unknown(table: &[Column], name: &str, rows: &[Map<String, Value>]) -> Failure {
    let headings: Vec<&str> = table.iter().map(|column| column.heading).collect();
    let mut more: Vec<&str> = Vec::new();
    for field in rows.iter().flat_map(Map::keys) {
        let known = table.iter().any(|column| column.field == field) || more.contains(&&**field);
        if !known {
            more.push(field);
        }
    }
    let more = match more.is_empty() {
        true => String::new(),
        false => format!("; further fields: {}", more.join(", ")),
    };
    Failure::Question(format!(
        "no column {name:?}: the columns are {}{more}",
        headings.join(", ")
    ))
}

/// The same text for the rest of the run: a listing that is repeated has the same columns each time.
fn lasting(text: &str) -> &'static str {
    thread_local! {
        static KNOWN: RefCell<HashSet<&'static str>> = RefCell::default();
    }
    KNOWN.with_borrow_mut(|known| {
        if let Some(found) = known.get(text) {
            return *found;
        }
        let text: &'static str = String::leak(text.to_owned());
        known.insert(text);
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::RDDS;
    use serde_json::json;

    fn rows() -> Vec<Map<String, Value>> {
        let row =
            json!({"rdd_id": 7, "storage_memory_peak_bytes": 5, "call_site": null, "parents": [1]});
        vec![row.as_object().cloned().expect("an object")]
    }

    #[test]
    fn columns_are_headings_or_fields() {
        let asked = [
            "rdd",
            "page_faults",
            "walk-r",
            "storage_memory_peak_bytes",
            "parents",
        ]
        .map(str::to_owned);
        let chosen = chosen(RDDS.columns, &asked, &rows())
            .expect("known")
            .expect("some");
        let seen: Vec<(&str, Form)> = chosen
            .iter()
            .map(|column| (column.field, column.form))
            .collect();
        assert_eq!(
            seen,
            [
                ("rdd_id", Form::Word),
                ("page_faults", Form::Count),
                ("page_walk_read_ratio", Form::SmallShare),
                ("storage_memory_peak_bytes", Form::Bytes),
                ("parents", Form::Text),
            ]
        );
        assert_eq!(chosen[3].heading, "STORAGE MEMORY PEAK BYTES");
    }

    #[test]
    fn an_unknown_column_is_refused_with_the_known_ones() {
        let said = chosen(RDDS.columns, &["size".to_owned()], &rows())
            .expect_err("unknown")
            .to_string();
        assert!(said.contains("no column \"size\": the columns are APPLICATION, USER, EXEC"));
        assert!(said.ends_with("further fields: storage_memory_peak_bytes, parents"));
    }
}
