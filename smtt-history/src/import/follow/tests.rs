//! A log that is followed gives the tables of an import of the whole log, byte by byte, wherever it was cut; and only its new
//! bytes are read.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::sample::Index;
use xtask::event_log::{self, Shape};

use super::*;
use crate::codec::tests::{lz4, snappy};
use crate::import::{Admission, Before, Imported, follow, import, import_here};

/// Any application, also instead of an earlier import.
const ANY: Admission = Admission {
    name: None,
    replaces: true,
};
/// Rows of a row group, so that a short log has several.
const ROWS: usize = 40;
/// Bytes of a state at most.
const MOST: usize = 64 << 20;

/// A log of an application that fails tasks, tries them again and has SQL metrics.
fn log(tasks: usize) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("makes a folder");
    let path = folder.path().join("log");
    let shape = Shape {
        tasks,
        stages: 3,
        executors: 2,
        cores: 2,
        sql_metrics: 3,
    };
    event_log::write(&path, &shape).expect("writes");
    fs::read(path).expect("reads")
}

fn begun(store: &Path) -> Followed {
    let mut followed = Followed::begin(store, Bounds::default()).expect("begins");
    followed.reading.replay.out.end_groups_after(ROWS);
    followed
}

/// An import that begins with what an earlier one read.
fn look(store: &Path, log: &Path, followed: Option<Followed>) -> (Imported, Option<Followed>) {
    let before = Before {
        followed: Some(followed.unwrap_or_else(|| begun(store))),
        most: MOST,
    };
    follow(store, log, Bounds::default(), &ANY, before).expect("imports")
}

/// The tables of an application, byte by byte.
fn tables(imported: &Imported) -> [Vec<u8>; 3] {
    let table = |name: &str| fs::read(imported.folder.join(format!("{name}.parquet")));
    ["tasks", "task_sql", "meta"].map(|name| table(name).unwrap_or_default())
}

/// A follower and the folder of its log.
struct Lab {
    folder: tempfile::TempDir,
    followed: Option<Followed>,
    /// Whether its row groups are small.
    is_small: bool,
    looks: usize,
}

impl Lab {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("makes a folder"),
            followed: None,
            is_small: true,
            looks: 0,
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Looks at the log, and compares with an import of all of it. Whether it was followed.
    fn look(&mut self, log: &Path) -> bool {
        self.looks += 1;
        let found = Log::at(log).expect("is a log");
        // A log that is read anew has row groups of their usual size.
        let is_anew = self.followed.as_ref().is_some_and(|it| !it.is_of(&found));
        let has_begun = self.followed.as_ref().is_some_and(|it| it.mark.number > 0);
        self.is_small = !is_anew && (self.is_small || self.followed.is_none());
        let (imported, followed) = look(&self.at("store"), log, self.followed.take());
        let store = self.at(&format!("store-{}", self.looks));
        let before = Before {
            followed: self.is_small.then(|| begun(&store)),
            most: 0,
        };
        let (whole, none) = follow(&store, log, Bounds::default(), &ANY, before).expect("imports");
        assert!(none.is_none());
        let [left, right] = [&imported, &whole].map(|it| (it.sizes, it.lines, it.bytes, &it.named));
        assert_eq!(left, right);
        assert!(tables(&imported) == tables(&whole), "look {}", self.looks);
        self.followed = followed;
        has_begun && !is_anew
    }
}

fn append(path: &Path, bytes: &[u8]) {
    let file = File::options().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(bytes))
        .expect("writes");
}

/// Compresses as the suffix of a log's name says, a block for each flush.
fn packed(name: &str, text: &[u8], block: usize) -> Vec<u8> {
    let blocks: Vec<&[u8]> = text.chunks(block).collect();
    let frame = |block: &&[u8]| zstd::encode_all(*block, 1).expect("compresses");
    match name.rsplit_once('.') {
        Some((_, "zstd")) => blocks.iter().flat_map(frame).collect(),
        Some((_, "lz4")) => lz4(&blocks),
        Some((_, "snappy")) => snappy(&blocks),
        _ => text.to_vec(),
    }
}

/// Places of a log, some of them after a line.
fn cuts(log: &[u8], cuts: &[(Index, bool)]) -> Vec<usize> {
    // The application's start is there.
    let first = 2000.min(log.len());
    let mut all: Vec<usize> = cuts
        .iter()
        .map(|(at, after_line)| {
            let at = first + at.index(log.len() - first);
            let end = log[at..].iter().position(|byte| *byte == b'\n');
            if *after_line {
                end.map_or(at, |end| at + end + 1)
            } else {
                at
            }
        })
        .collect();
    all.sort_unstable();
    all.push(log.len());
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn a_followed_log_gives_the_tables_of_an_import_of_all_of_it(
        places in prop::collection::vec((any::<Index>(), any::<bool>()), 1..4),
        name in prop::sample::select(vec!["app", "app.zstd", "app.lz4", "app.snappy"]),
        // The first block, which has the application's start, ends before the first cut.
        block in 100_usize..8_000,
    ) {
        let log = packed(name, &log(60), block);
        let mut lab = Lab::new();
        let path = lab.at(&format!("{name}.inprogress"));
        let mut from = 0;
        for cut in cuts(&log, &places) {
            append(&path, &log[from..cut]);
            from = cut;
            let followed = lab.looks > 0;
            prop_assert_eq!(lab.look(&path), followed);
        }
        prop_assert!(lab.followed.is_none(), "the application has ended");
    }

    #[test]
    fn parts_of_a_rolling_log_are_followed(
        places in prop::collection::vec((any::<Index>(), any::<bool>()), 1..4),
        ends in prop::collection::vec(any::<Index>(), 1..3),
        name in prop::sample::select(vec!["app", "app.zstd", "app.lz4"]),
    ) {
        let log = log(60);
        let mut lab = Lab::new();
        let folder = lab.at("eventlog_v2_app");
        fs::create_dir(&folder).expect("makes a folder");
        // Parts end after a line, and the last one anywhere.
        let ends: Vec<_> = ends.into_iter().map(|end| (end, true)).collect();
        let mut from = 0;
        for (number, end) in (1..).zip(cuts(&log, &ends)) {
            let part = packed(name, &log[from..end], 3000);
            from = end;
            let path = folder.join(format!("events_{number}_{name}"));
            let mut written = 0;
            for (at, _) in &places {
                let to = at.index(part.len() + 1).max(written);
                append(&path, &part[written..to]);
                written = to;
                if number > 1 {
                    prop_assert!(lab.look(&folder));
                }
            }
            append(&path, &part[written..]);
            lab.look(&folder);
        }
        prop_assert!(lab.followed.is_none(), "the application has ended");
    }
}

#[test]
fn a_log_that_was_replaced_truncated_or_changed_is_read_anew() {
    let log = log(60);
    let (half, most) = (log.len() / 2, log.len() * 3 / 4);
    let changed = |at: usize| {
        let mut log = log.clone();
        let byte = &mut log[at];
        *byte = if *byte == b'0' { b'1' } else { b'0' };
        log
    };
    type Change<'a> = Box<dyn Fn(&Path) + 'a>;
    let changes: [(&str, bool, Change<'_>); 6] = [
        (
            "grows",
            true,
            Box::new(|path| append(path, &log[half..most])),
        ),
        (
            "is renamed",
            true,
            Box::new(|path| {
                append(path, &log[half..most]);
                let other = path.with_extension("moved");
                fs::rename(path, &other).expect("renames");
                fs::rename(other, path).expect("renames");
            }),
        ),
        (
            "is another file",
            false,
            Box::new(|path| {
                let other = path.with_extension("other");
                fs::write(&other, &log[..most]).expect("writes");
                fs::rename(other, path).expect("renames");
            }),
        ),
        (
            "is shorter",
            false,
            Box::new(|path| fs::write(path, &log[..half - 1000]).expect("writes")),
        ),
        (
            "is as long and newer",
            false,
            Box::new(|path| {
                std::thread::sleep(Duration::from_millis(20));
                fs::write(path, &changed(5000)[..half]).expect("writes");
            }),
        ),
        (
            "has other bytes where it ended",
            false,
            Box::new(|path| {
                fs::write(path, &changed(half - 1500)[..most]).expect("writes");
            }),
        ),
    ];
    for (what, is_followed, change) in changes {
        let mut lab = Lab::new();
        let path = lab.at("app.inprogress");
        fs::write(&path, &log[..half]).expect("writes");
        assert!(!lab.look(&path));
        change(&path);
        assert_eq!(lab.look(&path), is_followed, "{what}");
    }
}

#[test]
fn a_part_that_was_read_and_has_changed_makes_all_be_read_anew() {
    let log = log(60);
    let lines: Vec<&[u8]> = log.split_inclusive(|byte| *byte == b'\n').collect();
    let (first, rest) = lines.split_at(lines.len() / 2);
    let mut lab = Lab::new();
    let folder = lab.at("eventlog_v2_app");
    fs::create_dir(&folder).expect("makes a folder");
    let at = |name: &str| folder.join(name);
    fs::write(at("events_1_app"), first.concat()).expect("writes");
    fs::write(at("events_2_app"), rest[..5].concat()).expect("writes");
    assert!(!lab.look(&folder));
    append(&at("events_2_app"), &rest[5..10].concat());
    assert!(lab.look(&folder));
    append(&at("events_1_app"), b"{}\n");
    assert!(!lab.look(&folder));
    // Spark puts one part in the place of several.
    fs::write(at("events_1_app.compact"), first.concat()).expect("writes");
    assert!(!lab.look(&folder));
}

/// Bytes that this thread has read, as the kernel counts them.
fn bytes_read() -> u64 {
    let io = fs::read_to_string("/proc/thread-self/io").expect("reads");
    let count = io.lines().find_map(|line| line.strip_prefix("rchar: "));
    count.and_then(|count| count.parse().ok()).expect("counts")
}

#[test]
fn a_second_look_reads_the_new_bytes_only() {
    for name in ["app", "app.zstd", "app.lz4", "app.snappy"] {
        let log = packed(name, &log(1500), 32 << 10);
        let lab = Lab::new();
        let (store, path) = (lab.at("store"), lab.at(name));
        let old = log.len() - log.len() / 20;
        append(&path, &log[..old]);
        let mut before = Before {
            followed: None,
            most: MOST,
        };
        let mut looks = Vec::new();
        for new in [&log[..0], &log[old..log.len() - 1000]] {
            append(&path, new);
            let begun = bytes_read();
            let nothing = |_: &str| Ok(false);
            let done = import_here(&store, &path, Bounds::default(), &ANY, nothing, before);
            looks.push(bytes_read() - begun);
            before = Before {
                followed: done.expect("imports").1,
                most: MOST,
            };
        }
        // The last bytes are compared, and the block is read again that has the end of the last line.
        let (new, again) = ((log.len() - 1000 - old) as u64, 2 * 4096 + (34 << 10));
        assert!(looks[0] >= old as u64, "{name}: {looks:?}");
        assert!(looks[1] < new + again, "{name}: {looks:?}, {new} new bytes");
        assert!(
            again < old as u64 / 2,
            "{name}: the log is too short to show it"
        );
    }
}

#[test]
fn what_is_kept_is_bounded() {
    let log = log(60);
    let lab = Lab::new();
    let store = lab.at("store");
    let path = lab.at("app");
    fs::write(&path, &log[..log.len() / 2]).expect("writes");
    let bytes = look(&store, &path, None).1.expect("is kept").bytes();
    assert!((10_000..10 << 20).contains(&bytes), "{bytes}");
    let before = Before {
        followed: None,
        most: bytes / 2,
    };
    let done = follow(&store, &path, Bounds::default(), &ANY, before).expect("imports");
    assert!(done.1.is_none(), "it is larger than the bound");
    let logs = Logs::new(4 * bytes - 1);
    for name in ["a", "b", "a", "c", "d"] {
        logs.put(name, look(&store, &path, None).1.expect("is kept"));
    }
    assert!(logs.take("b").is_none(), "it was read before the others");
    assert!(logs.take("a").is_some());
    assert!(logs.take("a").is_none(), "it was taken");
    drop(logs);
    // Their files go with them.
    let names = fs::read_dir(&store).expect("lists").flatten();
    let names = names.filter(|entry| entry.file_name().to_string_lossy().starts_with(".import-"));
    assert_eq!(names.count(), 0);
    import(&store, &path, Bounds::default(), &ANY).expect("imports");
}
