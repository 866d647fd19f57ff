//! Leaves out columns of `tasks` that are sums of others. Where that holds for all rows of a row group, the column is empty
//! there.
//!
//! The file's own metadata lists these columns with their row groups. So a value that was left out differs from one that the
//! log does not have. [`super::read::Reader`] computes the values as if they were in the file.

use super::batch::Batch;

/// Key of the columns and their row groups in a file's own metadata: `column:first-last`, separated by commas.
pub const DERIVED_KEY: &str = "smtt.history.derived";

/// Columns, each with those of which its values are sums. An absent one adds nothing; where all are absent, so is the sum.
pub const DERIVED: [(&str, &[&str]); 4] = [
    ("partition", &["task_index"]),
    (
        "total_gc_time_ms",
        &[
            "minor_gc_time_ms",
            "major_gc_time_ms",
            "concurrent_gc_time_ms",
        ],
    ),
    (
        "peak_on_heap_unified_bytes",
        &["peak_on_heap_execution_bytes", "peak_on_heap_storage_bytes"],
    ),
    (
        "peak_off_heap_unified_bytes",
        &[
            "peak_off_heap_execution_bytes",
            "peak_off_heap_storage_bytes",
        ],
    ),
];

/// The sum of values of one row.
pub(super) fn sum(values: impl Iterator<Item = Option<i64>>) -> Option<i64> {
    values
        .flatten()
        .reduce(|sum, value| sum.wrapping_add(value))
}

/// Indices of the columns whose values are sums of others in all rows.
pub(super) fn of_batch(batch: &Batch) -> Vec<usize> {
    let columns = batch.table().columns;
    let index = |name: &&str| columns.iter().position(|column| column.name == *name);
    let all = DERIVED.iter().filter_map(|(name, of)| {
        let at = index(name)?;
        let of: Vec<usize> = of.iter().map(index).collect::<Option<_>>()?;
        let is_sum = |row: usize| {
            let values = of.iter().map(|&column| batch.number(column, row));
            batch.number(at, row) == sum(values)
        };
        (0..batch.len()).all(is_sum).then_some(at)
    });
    all.collect()
}

/// Row groups in which a column has no values of its own, as they are written.
#[derive(Clone, Debug, Default)]
pub(super) struct Groups(Vec<(usize, usize, usize)>);

impl Groups {
    /// Adds a row group to those of a column.
    pub(super) fn add(&mut self, column: usize, group: usize) {
        let last = self.0.iter_mut().rfind(|it| it.0 == column);
        match last {
            Some((_, _, last)) if *last + 1 == group => *last = group,
            _ => self.0.push((column, group, group)),
        }
    }

    /// The text for the file's own metadata; `None` where there is nothing to say.
    pub(super) fn text(&self, name: impl Fn(usize) -> &'static str) -> Option<String> {
        let of = |(column, first, last): &(usize, usize, usize)| {
            format!("{}:{first}-{last}", name(*column))
        };
        let all: Vec<String> = self.0.iter().map(of).collect();
        (!all.is_empty()).then(|| all.join(","))
    }
}

/// For each of [`DERIVED`] the row groups in which it has no values of its own; empty where there is none. What is no such
/// text says nothing.
pub(super) fn parsed(text: &str, groups: usize) -> [Vec<bool>; DERIVED.len()] {
    let mut all = [const { Vec::new() }; DERIVED.len()];
    for part in text.split(',') {
        let Some((name, range)) = part.split_once(':') else {
            continue;
        };
        let at = DERIVED.iter().position(|(known, _)| *known == name);
        let range = range
            .split_once('-')
            .and_then(|(first, last)| Some((first.parse().ok()?, last.parse::<usize>().ok()?)));
        if let Some((at, (first, last))) = at.zip(range) {
            let of: &mut Vec<bool> = &mut all[at];
            // Ranges ascend, so that no text takes more time than there are row groups.
            if first >= of.len() && first <= last && last < groups {
                of.resize(first, false);
                of.resize(last + 1, true);
            }
        }
    }
    all
}
