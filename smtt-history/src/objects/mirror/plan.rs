//! Chooses the objects that become the files of a copy.

use std::collections::BTreeMap;

use smtt_store::history::columns::{META, TASK_SQL, TASKS};
use smtt_store::history::{parts, workers};

use super::super::bucket::Object;
use crate::live::FILE_BYTES;

/// Bytes that a file takes at least.
pub(super) const BLOCK: u64 = 4096;
/// An object that is a file of the copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) object: Object,
    /// Whether the object is larger than a reader accepts. Then the copy has a sparse file of its size in its place, which the reader refuses.
    pub(super) is_too_large: bool,
}

/// Files of a copy by their paths in it.
pub(super) type Plan = BTreeMap<String, Source>;

/// Number of a part from its file's name.
pub(super) fn part(name: &str) -> Option<(&'static str, u64)> {
    [META.name, TASKS.name, TASK_SQL.name]
        .into_iter()
        .find_map(|table| {
            let digits = name.strip_prefix(table)?.strip_prefix('-')?;
            let digits = digits.strip_suffix(".parquet")?;
            let number = digits.parse::<u64>().ok()?;
            (number > 0 && digits == format!("{number:06}")).then_some((table, number))
        })
}

/// Numbers of the finished parts among objects, ascending.
pub(in crate::objects) fn finished(objects: &[Object]) -> Vec<u64> {
    let numbers = objects.iter().filter_map(|object| part(&object.name));
    let metas = numbers.filter(|(table, _)| *table == META.name);
    let mut numbers: Vec<u64> = metas.map(|(_, number)| number).collect();
    numbers.sort_unstable();
    numbers
}

/// Objects of the parts up to a number.
pub(in crate::objects) fn parts_up_to(
    objects: &[Object],
    last: u64,
) -> impl Iterator<Item = &Object> {
    let is_of = move |object: &&Object| part(&object.name).is_some_and(|(_, it)| it <= last);
    objects.iter().filter(is_of)
}

/// Name of a table's object.
pub(in crate::objects) fn table(table: &str, generation: &str) -> String {
    format!("{table}.{generation}.parquet")
}

/// Files of an application that only has parts: the finished ones, of which readers take so many.
pub(super) fn plan_of_parts(objects: &[Object]) -> Plan {
    let numbers = finished(objects);
    // One more says to readers that there are more.
    let last = numbers.get(parts::MOST).or(numbers.last()).copied();
    let Some(last) = last else {
        return Plan::new();
    };
    let found = parts_up_to(objects, last).filter(|object| {
        part(&object.name).is_some_and(|(_, number)| numbers.binary_search(&number).is_ok())
    });
    let source = |object: &Object| Source {
        is_too_large: object.size > FILE_BYTES,
        object: object.clone(),
    };
    found
        .map(|object| (object.name.clone(), source(object)))
        .collect()
}

/// Files of the tables, `None` where one is missing.
pub(super) fn plan_of_tables(objects: &[Object], generation: Option<&str>) -> Option<Plan> {
    let tables = [META.name, TASKS.name, TASK_SQL.name].map(|name| {
        let file = format!("{name}.parquet");
        let wanted = generation.map_or_else(|| file.clone(), |it| table(name, it));
        let object = objects.iter().find(|object| object.name == wanted)?;
        let source = Source {
            object: object.clone(),
            is_too_large: false,
        };
        Some((file, source))
    });
    tables.into_iter().collect()
}

/// Names of the tables of a generation that are not among the objects.
pub(super) fn missing_tables(objects: &[Object], generation: &str) -> Vec<String> {
    let wanted = [META.name, TASKS.name, TASK_SQL.name].map(|name| table(name, generation));
    let is_missing = |name: &String| objects.iter().all(|object| object.name != *name);
    wanted.into_iter().filter(is_missing).collect()
}

/// The workers' files about an application.
pub(super) fn plan_of_workers(objects: &[Object]) -> Plan {
    let found = objects.iter().filter(|object| {
        let parts = object.name.split_once('/');
        parts.is_some_and(|(user, file)| workers::is_file(user, file))
    });
    let source = |object: &Object| Source {
        is_too_large: object.size > FILE_BYTES,
        object: object.clone(),
    };
    let found = found.take(workers::LISTED);
    found
        .map(|object| (object.name.clone(), source(object)))
        .collect()
}

/// Bytes on this machine: a small file takes a block, so files are bounded in number, too.
pub(super) fn size(source: &Source) -> u64 {
    if source.is_too_large {
        BLOCK
    } else {
        source.object.size.max(BLOCK)
    }
}
