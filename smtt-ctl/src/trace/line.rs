//! A record as one line: text in the paper's column order, or comma-separated values.

use serde_json::Value;
use smtt_model::units;
use smtt_store::record::{COLUMNS, FOLDER_COLUMNS};

use super::{Record, number, word};
use crate::output::field;

/// Separator of the columns of the text.
pub(super) const SEPARATOR: &str = " | ";

/// Headings of the text: the paper's columns.
pub(super) const HEADINGS: [&str; 7] = [
    "TIME",
    "ACCESS",
    "SPARK SEMANTICS",
    "VIRTUAL ADDRESS",
    "VIRTUAL PAGES",
    "PHYSICAL ADDRESS",
    "PHYSICAL PAGES",
];

pub(super) fn csv(record: &Record) -> String {
    let names = COLUMNS.iter().map(|column| column.name);
    let fields: Vec<String> = FOLDER_COLUMNS
        .into_iter()
        .chain(names)
        .map(|name| record.get(name).map_or_else(String::new, field))
        .collect();
    fields.join(",")
}

/// One line of text; an unknown value is a dash.
pub(super) fn text(record: &Record) -> String {
    let columns = [
        word(record, "time").unwrap_or("-").to_owned(),
        word(record, "access").unwrap_or("-").to_owned(),
        semantics(record),
        address(record),
        virtual_pages(record),
        frames(record),
        physical_pages(record),
    ];
    columns.join(SEPARATOR)
}

fn or_dash(parts: Vec<String>) -> String {
    if parts.is_empty() {
        "-".to_owned()
    } else {
        parts.join(" ")
    }
}

fn semantics(record: &Record) -> String {
    let mut parts = Vec::new();
    let mut add = |name: &str, label: &str| {
        if let Some(value) = record.get(name) {
            let value = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            if !value.is_empty() {
                parts.push(if label.is_empty() {
                    value
                } else {
                    format!("{label} {value}")
                });
            }
        }
    };
    add("kind", "");
    add("application_id", "application");
    add("executor_id", "executor");
    add("stage_id", "stage");
    add("stage_attempt", "attempt");
    add("task_attempt_id", "task");
    add("rdd_id", "rdd");
    add("partition", "partition");
    add("block_id", "block");
    add("region", "");
    add("activity", "activity");
    add("consumer", "by");
    if let Some(size) = number(record, "size_bytes") {
        parts.push(units::bytes(size));
    }
    if let Some(duration) = number(record, "duration_ns") {
        parts.push(units::duration(duration));
    }
    or_dash(parts)
}

fn address(record: &Record) -> String {
    let Some(address) = number(record, "virtual_address") else {
        return "-".to_owned();
    };
    let length = number(record, "length_bytes").unwrap_or(0);
    let mut text = format!("{address:#x}+{length}");
    let first = number(record, "range_first").unwrap_or(0);
    if let Some(total) = number(record, "range_total").filter(|total| *total > 1) {
        text.push_str(&format!(" (range {} of {total})", first + 1));
    }
    if let Some(age) = number(record, "address_age_ms").filter(|age| *age > 0) {
        let age = units::duration(age.saturating_mul(1_000_000));
        text.push_str(&format!(" told {age} before"));
    }
    text
}

fn virtual_pages(record: &Record) -> String {
    let mut parts = Vec::new();
    if let Some(first) = number(record, "first_page") {
        parts.push(format!("from {first:#x}"));
    }
    if let Some(pages) = number(record, "pages") {
        parts.push(format!("{pages} pages"));
    }
    if record.get("crosses_pages") == Some(&Value::Bool(true)) {
        parts.push("crosses pages".to_owned());
    }
    for (name, label) in [("present_bytes", "present"), ("swapped_bytes", "swapped")] {
        if let Some(bytes) = number(record, name) {
            parts.push(format!("{} {label}", units::bytes(bytes)));
        }
    }
    if let Some(examined) = number(record, "examined_bytes") {
        let age = units::duration(number(record, "examined_age_ms").unwrap_or(0) * 1_000_000);
        parts.push(format!(
            "of {} examined {age} before",
            units::bytes(examined)
        ));
    }
    or_dash(parts)
}

fn frames(record: &Record) -> String {
    let frames = record.get("frames").and_then(Value::as_array);
    let frames = frames.map_or(&[][..], Vec::as_slice);
    or_dash(
        frames
            .iter()
            .filter_map(Value::as_u64)
            .map(|frame| format!("{:#x}", frame.saturating_mul(4096)))
            .collect(),
    )
}

fn physical_pages(record: &Record) -> String {
    let mut parts = Vec::new();
    for (name, label) in [
        ("bytes_in_2mib_pages", "2 MiB"),
        ("bytes_in_1gib_pages", "1 GiB"),
    ] {
        if let Some(bytes) = number(record, name).filter(|bytes| *bytes > 0) {
            parts.push(format!("{} in {label} pages", units::bytes(bytes)));
        }
    }
    if let Some(nodes) = record.get("nodes") {
        parts.push(format!("nodes {nodes}"));
    }
    if let Some(hotness) = record.get("hotness").and_then(Value::as_f64) {
        parts.push(format!("{hotness:.1} reads per minute"));
    }
    or_dash(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn record(value: Value) -> Record {
        match value {
            Value::Object(record) => record,
            other => panic!("no object: {other}"),
        }
    }

    #[test]
    fn a_line_has_the_papers_columns_and_dashes_where_nothing_is_known() {
        let line = text(&record(json!({
            "time": "2026-01-31T12:00:00.000000Z", "access": "write", "kind": "put",
            "application_id": "app-1", "executor_id": "0", "rdd_id": 7, "partition": 3, "block_id": "rdd_7_3",
            "region": "storage", "size_bytes": 8192, "virtual_address": 4096, "length_bytes": 8192,
            "range_first": 0, "range_total": 2, "first_page": 1, "pages": 2, "crosses_pages": true,
        })));
        let columns: Vec<&str> = line.split(SEPARATOR).collect();
        assert_eq!(columns.len(), HEADINGS.len(), "{line}");
        assert_eq!(columns[1], "write");
        assert!(
            columns[2].starts_with(
                "put application app-1 executor 0 rdd 7 partition 3 block rdd_7_3 storage"
            ),
            "{line}"
        );
        assert_eq!(columns[3], "0x1000+8192 (range 1 of 2)");
        assert_eq!(columns[4], "from 0x1 2 pages crosses pages");
        assert_eq!((columns[5], columns[6]), ("-", "-"));
    }

    #[test]
    fn commas_and_quotes_survive_csv() {
        let line = csv(&record(json!({
            "uid": 7, "application_id": "a,\"b\"", "host": "h", "further_addresses": [1, 2],
        })));
        assert!(line.starts_with("7,\"a,\"\"b\"\"\",h,"), "{line}");
        assert!(line.contains(",1 2,"), "{line}");
        // One comma is in a quoted field.
        let fields = COLUMNS.len() + FOLDER_COLUMNS.len();
        assert_eq!(line.matches(',').count(), fields);
    }
}
