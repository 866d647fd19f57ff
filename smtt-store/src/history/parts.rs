//! Parts of a history: files `<table>-<number>.parquet` that a driver writes while its application runs. The driver renames
//! the part's `meta` last, so a part without it is not finished.

use std::collections::BinaryHeap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::columns::META;

/// Parts of an application that are read at most.
pub const MOST: usize = 100_000;
/// Column of the number of the event that started a task; only in parts.
pub const STARTED: &str = "started_event";
/// Column of the number of the event that ended a task; only in parts.
pub const ENDED: &str = "ended_event";
/// Kind of a document that is an event of Spark; its id is the event's number.
pub const EVENT: &str = "event";
/// Kind of the document that describes its part.
pub const PART: &str = "part";

/// Path of a table's part.
#[must_use]
pub fn path(folder: &Path, table: &str, number: u64) -> PathBuf {
    folder.join(format!("{table}-{number:06}.parquet"))
}

/// The finished parts in an application's folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Numbers of the first [`MOST`] parts, ascending.
    pub numbers: Vec<u64>,
    /// Parts after those.
    pub beyond: u64,
    /// The greatest number of all.
    pub last: Option<u64>,
}

/// Numbers of the finished parts in an application's folder, ascending, [`MOST`] of them at most; none where the folder has
/// no part.
///
/// # Errors
/// When the folder cannot be listed.
pub fn list(folder: &Path) -> io::Result<Vec<u64>> {
    Ok(listed(folder)?.numbers)
}

/// The finished parts in an application's folder.
///
/// # Errors
/// When the folder cannot be listed.
pub fn listed(folder: &Path) -> io::Result<Listed> {
    listed_up_to(folder, MOST)
}

fn listed_up_to(folder: &Path, most: usize) -> io::Result<Listed> {
    let mut first = BinaryHeap::new();
    let (mut beyond, mut last) = (0, None);
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let number = name
            .to_str()
            .and_then(|name| name.strip_prefix(META.name)?.strip_prefix('-'))
            .and_then(|name| name.strip_suffix(".parquet"))
            .and_then(|digits| {
                let number = digits.parse::<u64>().ok()?;
                (number > 0 && digits == format!("{number:06}")).then_some(number)
            });
        let Some(number) = number else { continue };
        last = last.max(Some(number));
        first.push(number);
        if first.len() > most {
            first.pop();
            beyond += 1;
        }
    }
    Ok(Listed {
        numbers: first.into_sorted_vec(),
        beyond,
        last,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_finished_parts_are_listed() {
        let folder = tempfile::tempdir().expect("makes a folder");
        for name in [
            "meta-000002.parquet",
            "meta-1000000.parquet",
            "meta-000001.parquet",
            ".meta-000003.parquet.inprogress",
            "tasks-000004.parquet",
            "meta-+00005.parquet",
            "meta-.parquet",
            "meta-000000.parquet",
            "meta-0000007.parquet",
            "meta-99999999999999999999.parquet",
            "meta.parquet",
        ] {
            fs::write(folder.path().join(name), "").expect("writes");
        }
        let found = list(folder.path()).expect("lists");
        assert_eq!(found, [1, 2, 1_000_000]);
        let last = path(folder.path(), "meta", 1_000_000);
        assert!(last.exists() && path(folder.path(), "tasks", 4).exists());
    }

    #[test]
    fn beyond_the_limit_the_first_parts_are_listed_and_the_others_counted() {
        let folder = tempfile::tempdir().expect("makes a folder");
        for number in [9, 2, u64::MAX, 4, 7] {
            fs::write(path(folder.path(), "meta", number), "").expect("writes");
        }
        let found = listed_up_to(folder.path(), 3).expect("lists");
        assert_eq!((found.numbers, found.beyond), (vec![2, 4, 7], 2));
        assert_eq!(found.last, Some(u64::MAX));
    }
}
