//! Files in HDFS that are pointers: their names, and those that a folder has.

use hdfs_native::client::FileStatus;
use object_store::Result;

use super::super::bucket::{Object, PAGES, POINTER};
use super::super::publish::is_orphan;
use super::walk::NAMES;
use super::{generic, object, split, tag};

/// The highest number: more digits than these are no number.
const LAST: u64 = 999_999_999_999;
/// Files of an application's folder that are looked at, at most.
const MOST: usize = PAGES * NAMES;
/// Files that a writer deletes, at most: of pointers before its own, and of those that killed writers left.
const DELETED: usize = 1_000;

/// Name of a pointer's file.
pub(super) fn numbered(number: u64) -> String {
    format!("tables-{number:06}.json")
}

/// Number of a pointer's file.
pub(super) fn number_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("tables-")?.strip_suffix(".json")?;
    let number = digits.parse().ok()?;
    ((1..=LAST).contains(&number) && name == numbered(number)).then_some(number)
}

/// The number after one.
pub(super) fn next(after: u64) -> Result<u64> {
    let next = after.checked_add(1).filter(|it| *it <= LAST);
    next.ok_or_else(|| {
        let last = numbered(LAST);
        generic(format!(
            "it has {last}, which none can follow: remove that file"
        ))
    })
}

/// Prefix of the hidden files that become pointers.
pub(super) fn hidden() -> String {
    format!(".{POINTER}.")
}

/// The pointer of an application, which is the file with the highest number.
pub(super) struct Numbered {
    pub(super) number: u64,
    pub(super) status: FileStatus,
}

impl Numbered {
    /// The number is in the tag, so that two pointers of one moment differ.
    pub(super) fn tag(&self) -> String {
        format!("{}-{}", self.number, tag(&self.status))
    }

    pub(super) fn object(&self) -> Object {
        let (folder, _) = split(&self.status.path);
        Object {
            tag: Some(self.tag()),
            ..object(&format!("{folder}/{POINTER}"), &self.status)
        }
    }
}

/// What an application's folder has of pointers. Whoever may write the folder decides how many that are, so it has a bound.
#[derive(Default)]
pub(super) struct Pointers {
    /// The pointer that counts.
    pub(super) last: Option<Numbered>,
    /// Paths of pointers before it.
    pub(super) old: Vec<String>,
    /// Paths of hidden files whose writers are gone.
    pub(super) orphans: Vec<String>,
    seen: usize,
}

impl Pointers {
    /// Adds a file of the folder.
    pub(super) fn take(&mut self, status: FileStatus) -> Result<()> {
        self.seen += 1;
        if self.seen > MOST {
            return Err(generic(format!("its folder has more than {MOST} files")));
        }
        let (_, name) = split(&status.path);
        if status.isdir {
            return Ok(());
        }
        if let Some(number) = number_of(name) {
            let it = Numbered { number, status };
            let old = match &mut self.last {
                Some(last) if last.number > number => Some(it),
                last => last.replace(it),
            };
            keep(&mut self.old, old.map(|it| it.status.path));
        } else if name.starts_with(&hidden()) && is_orphan(object("", &status).modified_ms) {
            keep(&mut self.orphans, Some(status.path));
        }
        Ok(())
    }
}

/// Adds a path to those that are deleted, while there are few. The next writer deletes others.
fn keep(paths: &mut Vec<String>, path: Option<String>) {
    if paths.len() < DELETED {
        paths.extend(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> FileStatus {
        FileStatus {
            path: format!("/history/app/{name}"),
            length: 1,
            isdir: false,
            permission: 0o640,
            owner: String::new(),
            group: String::new(),
            modification_time: 1,
            access_time: 1,
            replication: None,
            blocksize: None,
        }
    }

    #[test]
    fn pointers_are_known_by_their_names() {
        assert_eq!(number_of("tables-000001.json"), Some(1));
        assert_eq!(number_of("tables-1234567.json"), Some(1_234_567));
        assert_eq!(number_of("tables-999999999999.json"), Some(LAST));
        for name in [
            "tables.json",
            "tables-000000.json",
            "tables-00001.json",
            "tables-0000001.json",
            "tables-+00001.json",
            "tables-1000000000000.json",
            "tables-18446744073709551615.json",
            ".tables-000001.json",
            "tables-000001.json.tmp",
        ] {
            assert_eq!(number_of(name), None, "{name}");
        }
    }

    #[test]
    fn no_number_follows_the_last_one() {
        assert_eq!(next(0).expect("is one"), 1);
        assert_eq!(next(LAST - 1).expect("is one"), LAST);
        for last in [LAST, u64::MAX] {
            let said = super::super::super::connect::line(&next(last).expect_err("is none"));
            assert!(said.contains("tables-999999999999.json"), "{said}");
        }
    }

    #[test]
    fn a_folder_full_of_pointers_takes_little_memory_and_ends() {
        let mut found = Pointers::default();
        // The highest comes neither first nor last.
        for number in (1..=5_000).chain([900_000]).chain(5_001..=10_000) {
            found.take(file(&numbered(number))).expect("is within");
        }
        for number in 0..3_000 {
            let name = format!("{}{number:016x}", hidden());
            found.take(file(&name)).expect("is within");
        }
        let last = found.last.as_ref().map(|it| it.number);
        assert_eq!(last, Some(900_000));
        assert_eq!((found.old.len(), found.orphans.len()), (DELETED, DELETED));
        assert!(!found.old.contains(&file(&numbered(900_000)).path));
        // A folder and a hidden file of a writer that still runs are none of them.
        let mut few = Pointers::default();
        let folder = FileStatus {
            isdir: true,
            ..file(&numbered(1))
        };
        let young = FileStatus {
            modification_time: u64::MAX >> 1,
            ..file(&hidden())
        };
        few.take(folder).expect("is within");
        few.take(young).expect("is within");
        assert!(few.last.is_none() && few.old.is_empty() && few.orphans.is_empty());
        let more = (0..MOST).map(|_| found.take(file("other")));
        let ended = more.filter_map(Result::err).next().expect("ends");
        let said = super::super::super::connect::line(&ended);
        assert!(said.contains("more than 400000 files"), "{said}");
    }
}
