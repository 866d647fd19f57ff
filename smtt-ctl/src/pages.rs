//! `smtt-ctl pages`: page placement.

use serde_json::{Map, Value};
use smtt_model::protocol::ListQuery;
use smtt_model::units;

use super::advise::wrapped;
use super::args::{PagesBy, Query};
use super::columns::ListingKind;
use super::groups::{self, Of};
use super::listing::no_match::no_match;
use super::listing::{data, heap_notes, text, unfiltered};
use super::output;
use super::table::{Column, Form, column};
use super::{Exit, Failure, Output, say};
use crate::client::Client;

/// Columns of all kinds of rows; columns without a value are hidden.
const COLUMNS: &[Column] = &[
    column("application_id", "APPLICATION", Form::Text, 1),
    super::columns::USER,
    column("executor_id", "EXEC", Form::Word, 0),
    column("rdd_id", "RDD", Form::Word, 1),
    column("name", "NAME", Form::Text, 3),
    column("block_id", "BLOCK", Form::Text, 1),
    column("task_attempt_id", "TASK", Form::Word, 1),
    column("held_bytes", "HELD", Form::Bytes, 0),
    column("sample", "OF SAMPLED OBJECTS", Form::Text, 3),
    column("resolved_bytes", "RESOLVED", Form::Bytes, 6),
    column("present_bytes", "PRESENT", Form::Bytes, 0),
    column("swapped_bytes", "SWAPPED", Form::Bytes, 2),
    column("untouched_bytes", "UNTOUCHED", Form::Bytes, 2),
    column("unmapped_bytes", "UNMAPPED", Form::Bytes, 9),
    column("page_sizes", "PAGE SIZES", Form::Word, 1),
    column("nodes", "NODES", Form::Word, 1),
    column("spanning_nodes", "SPANNING", Form::Count, 7),
    column("reads", "READS", Form::Count, 4),
    column("reads_per_minute", "PER MIN", Form::Real, 4),
    column("hotness", "ACCESSED", Form::Share, 4),
    column("hot_bytes", "HOT", Form::Bytes, 4),
    column("remote_access_ratio", "REMOTE", Form::Share, 1),
    column("examined_share", "EXAMINED", Form::Share, 5),
    column("addresses", "ADDRESSES", Form::Word, 8),
    column("age_ns", "AGE", Form::Duration, 4),
];

const fn kind(path: &'static str, what: &'static str) -> ListingKind {
    ListingKind {
        path,
        what,
        columns: COLUMNS,
        shows_faults: false,
    }
}

/// Requests the listing and prints it.
pub(super) async fn run(
    client: &Client,
    output: Output,
    query: &Query,
    by: &PagesBy,
    spanning: bool,
) -> Result<Exit, Failure> {
    let mut kind = if let Some(what) = by.by {
        Of::Pages.kind(what)
    } else if by.blocks || by.block.is_some() {
        kind("/v1/pages/blocks", "blocks")
    } else if by.tasks || by.task.is_some() {
        kind("/v1/pages/tasks", "tasks that hold execution memory")
    } else if by.executors {
        kind("/v1/pages/executors", "executors that hold memory")
    } else {
        kind("/v1/pages", "RDDs that hold memory")
    };
    if spanning {
        kind.what = "rows with bytes on more than one node";
    }
    let kind = match by.by {
        Some(_) => kind,
        None => client.kind(&kind),
    };
    let sort = query.sort.as_deref().map(|asked| kind.sort(asked));
    let question = ListQuery {
        task: by.task,
        block: by.block.clone(),
        spanning: spanning.then_some(true),
        ..query.filter.ordered(sort, query.rows(output.rows))
    };
    let mut listing = match by.by {
        Some(what) => {
            let mut groups =
                groups::rows(client, Of::Pages, what, &query.filter.question(), None).await?;
            let spans = |row: &Map<String, Value>| {
                row.get("spanning_nodes").and_then(Value::as_u64) > Some(0)
            };
            groups.rows.retain(|row| !spanning || spans(row));
            groups::ordered(&mut groups, &kind, query, output)?;
            groups
        }
        None => client.ask(kind.path, &question).await?,
    };
    if output.form == output::Form::Csv {
        listing.rows.iter_mut().for_each(add_examined_share);
    }
    if output.is_data() {
        data(client, &kind, query, &listing, output)?;
    } else if !listing.rows.is_empty() || question == unfiltered(&question) {
        listing.rows.iter_mut().for_each(make_readable);
        let mut said = text(&kind, &listing, query, output)?;
        let notes = if output.form == output::Form::Plain {
            String::new()
        } else {
            notes(&listing.rows, output)
        };
        said.push_str(&notes);
        let of_cluster = client
            .cluster()
            .filter(|_| output.form == output::Form::Text);
        if let Some(cluster) = of_cluster.filter(|_| by.by.is_some()) {
            said.push_str(&cluster.incomplete());
        }
        output.text(&said)?;
    }
    if listing.rows.is_empty() && question != unfiltered(&question) {
        return Err(no_match(client, kind.path, kind.what, &question).await);
    }
    let resolved = |row: &Map<String, Value>| row.get("resolved_bytes").is_some_and(Value::is_u64);
    if !listing.rows.is_empty()
        && !listing
            .rows
            .iter()
            .any(|row| resolved(row) || is_sampled(row))
    {
        say(
            "no page of it was examined: it is new (ask again after [placement] interval), its addresses are not known \
             yet, or [placement] pages_per_second is 0",
        );
        return Ok(Exit::Degraded);
    }
    Ok(Exit::Fine)
}

/// Sentences below the table.
fn notes(rows: &[Map<String, Value>], output: Output) -> String {
    let mut said = String::new();
    let is_estimated =
        |row: &Map<String, Value>| row.get("estimated").and_then(Value::as_bool) == Some(true);
    if rows.iter().any(is_estimated) {
        said.push_str(&note(
            "EXAMINED below 100 %: estimated from that share of the pages, evenly spaced",
            output,
        ));
    }
    if rows.iter().any(is_sampled) {
        said.push_str(&note(
            "OF SAMPLED OBJECTS and ~: blocks stored as objects have no contiguous bytes (HELD is Spark's estimate); \
             the shares are estimated from that number of examined objects",
            output,
        ));
    }
    said.push_str(&heap_notes(rows, "addresses", output));
    said
}

/// A sentence below the table.
fn note(text: &str, output: Output) -> String {
    let lines = wrapped(text, output.width.unwrap_or(usize::MAX), 0);
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Whether figures of the row come from a sample of objects.
fn is_sampled(row: &Map<String, Value>) -> bool {
    row.get("sampled_objects").is_some_and(Value::is_u64)
}

/// A sample of objects in one cell: their number and shares.
fn sample_text(row: &Map<String, Value>) -> Option<String> {
    let (objects, sample) = (row.get("sampled_objects")?.as_u64()?, row.get("sample")?);
    let parts = |field: &str, key: &str, name: &dyn Fn(u64) -> String| {
        let known = sampled_parts(sample, field, key).into_iter();
        known
            .map(|(key, share)| format!("{} {}", name(key), units::whole_share(share)))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut said = vec![
        parts("nodes", "node", &node_name),
        parts("page_sizes", "page_bytes", &size_name),
    ];
    for (field, word) in [("swapped_share", "swapped"), ("unmapped_share", "unmapped")] {
        let share = sample[field].as_f64().unwrap_or(0.0);
        if share > 0.0 {
            said.push(format!("{word} {}", units::whole_share(share)));
        }
    }
    said.retain(|part| !part.is_empty());
    Some(format!("{objects}: {}", said.join("; ")))
}

fn node_name(node: u64) -> String {
    format!("node {node}")
}

fn size_name(bytes: u64) -> String {
    units::bytes(bytes).replace(".0 ", " ")
}

/// Parts of a sample with their shares.
fn sampled_parts(sample: &Value, field: &str, key: &str) -> Vec<(u64, f64)> {
    let parts = sample[field].as_array().map_or(&[][..], Vec::as_slice);
    let part = |part: &Value| Some((part[key].as_u64()?, part["share"].as_f64()?));
    parts.iter().filter_map(part).collect()
}

/// Parts as text: each with its share; a single part as its name alone.
fn shares(parts: &[(u64, f64)], name: &dyn Fn(u64) -> String) -> String {
    match parts {
        [] => String::new(),
        [(only, _)] => name(*only),
        _ => {
            let part = |(key, share): &(u64, f64)| {
                format!("{} {}", name(*key), units::whole_share(*share))
            };
            parts.iter().map(part).collect::<Vec<_>>().join(", ")
        }
    }
}

/// Adds the examined pages as a share.
fn add_examined_share(row: &mut Map<String, Value>) {
    let pages = |field: &str| row.get(field).and_then(Value::as_u64);
    let share = pages("examined_pages")
        .zip(pages("pages"))
        .map(|(looked, pages)| looked as f64 / pages.max(1) as f64);
    row.insert("examined_share".to_owned(), share.into());
}

/// Formats lists as text.
fn make_readable(row: &mut Map<String, Value>) {
    add_examined_share(row);
    let number = |value: &Value, field: &str| value.get(field).and_then(Value::as_u64);
    let parts = |row: &Map<String, Value>, field: &str, key: &str, name: &dyn Fn(u64) -> String| {
        let list = row.get(field).and_then(Value::as_array);
        let list: Vec<(u64, u64)> = list
            .map_or(&[][..], Vec::as_slice)
            .iter()
            .filter_map(|part| Some((number(part, key)?, number(part, "bytes")?)))
            .collect();
        let all: u64 = list.iter().map(|(_, bytes)| bytes).sum();
        let of_all = |(key, bytes): &(u64, u64)| (*key, *bytes as f64 / all.max(1) as f64);
        let said = shares(&list.iter().map(of_all).collect::<Vec<_>>(), name);
        // Where a row has only a sample of objects, the sample fills this cell too: its own column may not fit.
        let sample = row.get("sample").filter(|_| said.is_empty());
        let sampled = sample.map(|sample| shares(&sampled_parts(sample, field, key), name));
        match sampled.filter(|sampled| !sampled.is_empty()) {
            Some(sampled) => format!("~{sampled}"),
            None => said,
        }
    };
    let sizes = parts(row, "page_sizes", "page_bytes", &size_name);
    let nodes = parts(row, "nodes", "node", &node_name);
    row.insert("page_sizes".to_owned(), sizes.into());
    row.insert("nodes".to_owned(), nodes.into());
    let sample = sample_text(row);
    row.insert("sample".to_owned(), sample.into());
    // Hotness by reads has a column of its own.
    if row.get("hotness_method").and_then(Value::as_str) != Some("damon") {
        row.insert("hotness".to_owned(), Value::Null);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use smtt_model::rows::PagesRow;

    #[test]
    fn every_column_is_a_field_of_its_row() {
        let Ok(Value::Object(row)) = serde_json::to_value(PagesRow::default()) else {
            panic!("rows of pages are not objects")
        };
        for column in COLUMNS {
            assert!(
                row.contains_key(column.field) || column.field == "examined_share",
                "{}",
                column.field
            );
        }
    }

    #[test]
    fn page_sizes_and_nodes_are_shown_at_eighty_columns() {
        let rows: Vec<Map<String, Value>> = ["app-20260101120000-0001", "app-20260101120000-0002"]
            .iter()
            .filter_map(|app| {
                let mut row = json!({
                    "application_id": app, "executor_id": "driver", "rdd_id": 7, "name": "ranks of all the pages",
                    "held_bytes": 123_456_789, "present_bytes": 123_456_789, "resolved_bytes": 123_456_789,
                    "swapped_bytes": 0, "untouched_bytes": 0, "unmapped_bytes": 0, "spanning_nodes": 0,
                    "page_sizes": [{"page_bytes": 4096, "bytes": 100}], "nodes": [{"node": 0, "bytes": 100}],
                    "sampled_objects": 2, "sample": {"nodes": [{"node": 0, "share": 1.0}],
                        "page_sizes": [{"page_bytes": 4096, "share": 1.0}]},
                    "reads": 3, "pages": 2, "examined_pages": 1, "age_ns": 1_000_000_000, "addresses": "current",
                });
                make_readable(row.as_object_mut()?);
                row.as_object().cloned()
            })
            .collect();
        let text = super::super::table::render(
            COLUMNS,
            &rows,
            Output {
                width: Some(80),
                ..Output::default()
            },
        );
        for heading in ["EXEC", "RDD", "HELD", "PRESENT", "PAGE SIZES", "NODES"] {
            assert!(text.contains(heading), "no {heading} in\n{text}");
        }
    }

    #[test]
    fn parts_are_shown_as_shares_and_a_whole_by_its_name() {
        let Value::Object(mut row) = json!({
            "page_sizes": [{"page_bytes": 4096, "bytes": 100}, {"page_bytes": 2_097_152, "bytes": 300}],
            "nodes": [{"node": 1, "bytes": 400}],
            "pages": 8,
            "examined_pages": 2,
        }) else {
            panic!("an object")
        };
        make_readable(&mut row);
        assert_eq!(row["page_sizes"], "4 KiB 25 %, 2 MiB 75 %");
        assert_eq!(row["nodes"], "node 1");
        assert_eq!(row["examined_share"], 0.25);
        assert_eq!(row["sample"], Value::Null);
        let Value::Object(mut objects) = json!({
            "page_sizes": null, "nodes": null, "sampled_objects": 64,
            "sample": {"nodes": [{"node": 0, "share": 0.62}, {"node": 1, "share": 0.38}],
                "page_sizes": [{"page_bytes": 4096, "share": 1.0}], "swapped_share": 0.0},
        }) else {
            panic!("an object")
        };
        make_readable(&mut objects);
        assert_eq!(objects["page_sizes"], "~4 KiB");
        assert_eq!(objects["nodes"], "~node 0 62 %, node 1 38 %");
        row.insert("sampled_objects".to_owned(), json!(64));
        row.insert(
            "sample".to_owned(),
            json!({"nodes": [{"node": 0, "share": 0.62}, {"node": 1, "share": 0.38}],
                "page_sizes": [{"page_bytes": 4096, "share": 1.0}], "swapped_share": 0.002}),
        );
        make_readable(&mut row);
        assert_eq!(
            row["sample"],
            "64: node 0 62 %, node 1 38 %; 4 KiB 100 %; swapped <1 %"
        );
    }
}
