//! Rows of blocks and of page placement, added up by what their RDDs have in common.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Map, Value, json};
use smtt_model::rows::{ApplicationKey, GroupBy, OVERFLOW, RddRow, rdd_groups_of};
use smtt_model::sort::small::sort_by_key;

use super::Of;

/// A row as a JSON object.
type Row = Map<String, Value>;

/// How the values of a field become that of a group; null where no row has one.
#[derive(Clone, Copy)]
enum Fold {
    Sum,
    Most,
    /// True where it is true of any row.
    Any,
    /// Bytes by the field of this name: by page size or by node.
    Parts(&'static str),
}

const BLOCKS: &[(&str, Fold)] = &[
    ("size_bytes", Fold::Sum),
    ("size_estimated", Fold::Any),
    ("blocks", Fold::Sum),
    ("blocks_unread", Fold::Sum),
    ("off_heap_bytes", Fold::Sum),
    ("object_bytes", Fold::Sum),
    ("reads", Fold::Sum),
    ("range_total", Fold::Sum),
    ("age_ns", Fold::Most),
];

const PAGES: &[(&str, Fold)] = &[
    ("held_bytes", Fold::Sum),
    ("sampled_objects", Fold::Sum),
    ("resolved_bytes", Fold::Sum),
    ("present_bytes", Fold::Sum),
    ("swapped_bytes", Fold::Sum),
    ("untouched_bytes", Fold::Sum),
    ("unmapped_bytes", Fold::Sum),
    ("zero_page_bytes", Fold::Sum),
    ("huge_page_bytes", Fold::Sum),
    ("page_sizes", Fold::Parts("page_bytes")),
    ("nodes", Fold::Parts("node")),
    ("node_unknown_bytes", Fold::Sum),
    ("spanning_nodes", Fold::Sum),
    ("pages", Fold::Sum),
    ("examined_pages", Fold::Sum),
    ("estimated", Fold::Any),
    ("reads", Fold::Sum),
    ("hot_bytes", Fold::Sum),
    ("checked_bytes", Fold::Sum),
    ("read_local_bytes", Fold::Sum),
    ("read_remote_bytes", Fold::Sum),
    ("age_ns", Fold::Most),
];

/// States of addresses, the most reliable first: a group has the last one of its rows.
const ADDRESSES: [&str; 6] = [
    "fixed",
    "current",
    "polled",
    "unverified",
    "stale",
    "refused",
];

/// Shares of a sample that are of the bytes of its blocks.
const SHARES: [&str; 4] = [
    "present_share",
    "swapped_share",
    "untouched_share",
    "unmapped_share",
];

fn number(row: &Row, field: &str) -> Option<u64> {
    row.get(field)?.as_u64()
}

fn text<'a>(row: &'a Row, field: &str) -> &'a str {
    row.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// The application of a row.
pub(crate) fn application(row: &Row) -> ApplicationKey {
    let said = |field: &str| Some(row.get(field)?.as_str()?.to_owned());
    ApplicationKey {
        id: said("application_id"),
        attempt: said("application_attempt_id"),
        uid: number(row, "uid").and_then(|uid| u32::try_from(uid).ok()),
    }
}

/// Elements of a list with the number that tells them apart.
fn parts<'a>(list: &'a Value, key: &'a str) -> impl Iterator<Item = (u64, &'a Value)> {
    let list = list.as_array().map_or(&[][..], Vec::as_slice);
    list.iter()
        .filter_map(move |part| Some((part[key].as_u64()?, part)))
}

/// Estimates from samples of objects, each weighted with the bytes that it stands for.
#[derive(Default)]
struct Sample {
    sums: BTreeMap<&'static str, f64>,
    /// By page size and by node.
    parts: [BTreeMap<u64, f64>; 2],
}

/// Lists of a sample, and what tells their elements apart.
const SAMPLED: [(&str, &str); 2] = [("page_sizes", "page_bytes"), ("nodes", "node")];

impl Sample {
    fn add(&mut self, sample: &Value) {
        let real = |field: &str| sample[field].as_f64().unwrap_or(0.0);
        let held = real("held_bytes");
        for field in ["blocks", "held_bytes", "object_bytes"] {
            *self.sums.entry(field).or_default() += real(field);
        }
        for field in SHARES {
            *self.sums.entry(field).or_default() += held * real(field);
        }
        let present = held * real("present_share");
        for (sums, (field, key)) in self.parts.iter_mut().zip(SAMPLED) {
            for (key, part) in parts(&sample[field], key) {
                *sums.entry(key).or_default() += present * part["share"].as_f64().unwrap_or(0.0);
            }
        }
    }

    fn row(self) -> Value {
        let held = self.sums.get("held_bytes").copied().unwrap_or(0.0);
        if held <= 0.0 {
            return Value::Null;
        }
        let mut row = json!({ "estimated": true });
        for (field, sum) in self.sums {
            row[field] = match SHARES.contains(&field) {
                true => json!(sum / held),
                false => json!(sum as u64),
            };
        }
        for (sums, (field, key)) in self.parts.into_iter().zip(SAMPLED) {
            let all: f64 = sums.values().sum();
            let part = |(of, sum): (u64, f64)| json!({ key: of, "share": sum / all });
            if all > 0.0 {
                row[field] = sums.into_iter().map(part).collect();
            }
        }
        row
    }
}

/// The rows of a group.
#[derive(Default)]
struct Sum {
    row: Row,
    queries: BTreeSet<u64>,
    rdds: BTreeSet<u64>,
    /// Process ids are those of one worker.
    executors: BTreeSet<(String, u64)>,
    /// DAMON's checks that found an access, by the bytes that they stand for.
    accessed: Option<f64>,
    addresses: Option<usize>,
    sample: Sample,
}

impl Sum {
    fn add(&mut self, row: &Row, folds: &[(&'static str, Fold)]) {
        self.rdds.extend(number(row, "rdd_id"));
        let process = number(row, "pid").unwrap_or_default();
        self.executors
            .insert((text(row, "worker").to_owned(), process));
        for (field, fold) in folds {
            let Some(value) = row.get(*field).filter(|value| !value.is_null()) else {
                continue;
            };
            let old = self.row.entry(*field).or_insert(Value::Null);
            *old = folded(old, value, *fold);
        }
        if text(row, "hotness_method") == "damon" {
            let share = row.get("hotness").and_then(Value::as_f64).unwrap_or(0.0);
            let bytes = number(row, "checked_bytes").unwrap_or(0) as f64;
            *self.accessed.get_or_insert_default() += share * bytes;
        }
        let state = text(row, "addresses");
        let state = ADDRESSES.iter().position(|known| *known == state);
        self.addresses = self.addresses.max(state);
        if let Some(sample) = row.get("sample") {
            self.sample.add(sample);
        }
    }

    fn finish(self, mut group: Row, of: Of, folds: &[(&'static str, Fold)]) -> Row {
        for (field, count) in [
            ("sql_executions", self.queries.len()),
            ("rdds", self.rdds.len()),
            ("executors", self.executors.len()),
        ] {
            group.insert(field.to_owned(), count.into());
        }
        let mut workers = self.executors.iter().map(|(worker, _)| worker);
        let first = workers.next();
        let of_workers = workers.any(|worker| Some(worker) != first);
        // Sorting knows a column without a value by its null.
        for (field, _) in folds {
            group.insert((*field).to_owned(), Value::Null);
        }
        group.extend(self.row);
        if of != Of::Pages {
            return group;
        }
        let sum = |field: &str| number(&group, field).map(|sum| sum as f64);
        let ratio = |of: f64, all: f64| (all > 0.0).then(|| of / all);
        let remote = sum("read_remote_bytes").zip(sum("read_local_bytes"));
        let remote = remote.and_then(|(remote, local)| ratio(remote, remote + local));
        let accessed = self.accessed.zip(sum("checked_bytes"));
        let accessed = accessed.and_then(|(accessed, all)| ratio(accessed, all));
        group.insert("remote_access_ratio".to_owned(), json!(remote));
        group.insert("hotness".to_owned(), json!(accessed));
        let method = accessed.map(|_| "damon");
        group.insert("hotness_method".to_owned(), json!(method));
        let state = self.addresses.map(|state| ADDRESSES[state]);
        group.insert("addresses".to_owned(), json!(state));
        let mut sample = self.sample.row();
        if of_workers {
            // Node 0 of one worker is not that of another one.
            group.insert("nodes".to_owned(), Value::Null);
            if let Some(sample) = sample.as_object_mut() {
                sample.remove("nodes");
            }
        }
        group.insert("sample".to_owned(), sample);
        group
    }
}

fn folded(old: &Value, more: &Value, fold: Fold) -> Value {
    let (sum, figure) = (old.as_u64().unwrap_or(0), more.as_u64().unwrap_or(0));
    match fold {
        Fold::Sum => sum.saturating_add(figure).into(),
        Fold::Most => sum.max(figure).into(),
        Fold::Any => (old.as_bool() == Some(true) || more.as_bool() == Some(true)).into(),
        Fold::Parts(key) => {
            let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
            for (of, part) in parts(old, key).chain(parts(more, key)) {
                let sum = sums.entry(of).or_default();
                *sum = sum.saturating_add(part["bytes"].as_u64().unwrap_or(0));
            }
            let part = |(of, bytes): (u64, u64)| json!({ key: of, "bytes": bytes });
            sums.into_iter().map(part).collect()
        }
    }
}

/// What a block adds to its group.
fn block(row: &mut Row) {
    let size = number(row, "size_bytes").unwrap_or(0);
    let is = |field: &str| row.get(field).and_then(Value::as_bool);
    let part = |is_part: bool| if is_part { size } else { 0 };
    let (off_heap, objects) = (
        part(is("on_heap") == Some(false)),
        part(is("serialized") == Some(false)),
    );
    let unread = u64::from(number(row, "reads") == Some(0));
    for (field, value) in [
        ("blocks", 1),
        ("blocks_unread", unread),
        ("off_heap_bytes", off_heap),
        ("object_bytes", objects),
    ] {
        row.insert(field.to_owned(), value.into());
    }
}

/// Rows of blocks or of pages by RDD, added up; those with most bytes first. `rdds` are the RDDs of the same executors.
pub(super) fn add_up(rows: Vec<Row>, rdds: &[RddRow], of: Of, by: GroupBy) -> Vec<Row> {
    let folds = match of {
        Of::Pages => PAGES,
        _ => BLOCKS,
    };
    // RDDs without an id are known by their names.
    let mut known = HashMap::new();
    for (rdd, group) in rdds.iter().zip(rdd_groups_of(rdds, by)) {
        if let Some(id) = rdd.rdd_id {
            // A dead executor and one of another application may have the same process id.
            let worker = rdd.who.worker.as_deref().unwrap_or_default();
            let executor = (worker, rdd.who.pid, rdd.who.application());
            known.insert((executor, id), (group, rdd.sql_execution_id));
        }
    }
    let mut sums: BTreeMap<String, (Row, Sum)> = BTreeMap::new();
    for mut row in rows {
        if of == Of::Blocks {
            block(&mut row);
        }
        let id = number(&row, "rdd_id").and_then(|id| u32::try_from(id).ok());
        let process = number(&row, "pid").and_then(|pid| u32::try_from(pid).ok());
        let process = process.unwrap_or_default();
        let executor = (text(&row, "worker"), process, application(&row));
        let found = id.and_then(|id| known.get(&(executor, id)));
        let (name, query) = match (found, id) {
            (Some((group, query)), _) => (group.clone(), *query),
            // It is beyond the limit of the executor's table, or came after the question for RDDs, which is the first.
            (None, Some(_)) => (OVERFLOW.to_owned(), None),
            (None, None) => (special(&row).to_owned(), None),
        };
        let mut group = Row::new();
        for field in ["application_id", "application_attempt_id", "uid"] {
            if let Some(value) = row.get(field) {
                group.insert(field.to_owned(), value.clone());
            }
        }
        group.insert("group".to_owned(), name.into());
        let key = Value::Object(group.clone()).to_string();
        let (_, sum) = sums.entry(key).or_insert_with(|| (group, Sum::default()));
        sum.queries.extend(query);
        sum.add(&row, folds);
    }
    let finish = |(group, sum): (Row, Sum)| sum.finish(group, of, folds);
    let mut rows: Vec<Row> = sums.into_values().map(finish).collect();
    let (most, _) = folds[0];
    sort_by_key(&mut rows, |row| std::cmp::Reverse(number(row, most)));
    rows
}

/// The name of a row without an RDD.
fn special(row: &Row) -> &str {
    match text(row, "name") {
        "" => smtt_model::rows::NO_RDD,
        name => name,
    }
}

#[cfg(test)]
mod tests;
