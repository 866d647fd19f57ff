//! Memory of a process's cgroup, of either version: limit, use, and how often the kernel had to end processes there.

mod trees;

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use smtt_model::postmortem::{CgroupLimits, FULL_PERCENT};
pub(crate) use trees::{Place, Trees};

/// Most folders from a cgroup to the root of its hierarchy.
const LEVELS: usize = 32;
/// Largest file that is read.
const FILE_MAX: u64 = 16 << 10;
/// Bytes of a cgroup's path that are kept.
const PATH_MAX: usize = 256;
/// A limit above this is none: the kernel writes the largest number of pages.
const NO_LIMIT: u64 = 1 << 60;

/// The memory cgroup of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryCgroup {
    root: PathBuf,
    path: PathBuf,
    version: u8,
}

/// Counts of a cgroup and those above it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Times that a limit was reached and memory could not be freed.
    pub limit_hits: Option<u64>,
    /// Processes that an OOM killer ended.
    pub oom_kills: Option<u64>,
}

/// What a cgroup may use at most, and has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    limit: Option<u64>,
    peak: Option<u64>,
}

/// The last readings of a cgroup. A container's goes with its last process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Last {
    /// Bytes in use.
    pub current: Option<u64>,
    /// Limit and most memory.
    pub bounds: Option<Bounds>,
}

impl MemoryCgroup {
    /// The cgroup that the text of `/proc/PID/cgroup` names; `None` where no memory controller has one, or no mount shows
    /// it.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        Self::below(Path::new("/"), text)
    }

    /// The same with the mounts of a machine below `root`.
    fn below(root: &Path, text: &str) -> Option<Self> {
        let Place {
            version,
            mount: root,
            path,
        } = Trees::of(root).place(text)?;
        let found = Self {
            root,
            path,
            version,
        };
        found.current().is_some().then_some(found)
    }

    /// Bytes that the cgroup uses.
    #[must_use]
    pub fn current(&self) -> Option<u64> {
        self.number(&self.path, ["memory.usage_in_bytes", "memory.current"])
    }

    /// What the kernel has counted here and above; nothing where the cgroup is gone.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        let mut add = |sum: fn(&mut Counts) -> &mut Option<u64>, more: Option<u64>| {
            if let Some(more) = more {
                *sum(&mut counts).get_or_insert(0) += more;
            }
        };
        for path in self.path.ancestors().take(LEVELS) {
            if self.version == 1 {
                add(
                    |counts| &mut counts.limit_hits,
                    self.number(path, ["memory.failcnt"; 2]),
                );
                let text = self.text(path, "memory.oom_control");
                add(
                    |counts| &mut counts.oom_kills,
                    text.and_then(|text| keyed(&text, "oom_kill")),
                );
            } else if let Some(text) = self.text(path, "memory.events.local") {
                // The other file of a group above has the counts of all groups below it, other users' included.
                add(|counts| &mut counts.limit_hits, keyed(&text, "oom"));
                add(|counts| &mut counts.oom_kills, keyed(&text, "oom_kill"));
            }
        }
        // Those above answer on, without its part.
        self.current().map(|_| counts).unwrap_or_default()
    }

    /// The smallest limit of the cgroup and those above it.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        let all = self.path.ancestors().take(LEVELS);
        all.filter_map(|path| self.number(path, ["memory.limit_in_bytes", "memory.max"]))
            .filter(|limit| *limit < NO_LIMIT)
            .min()
    }

    /// Its limit and its most memory; `None` where the cgroup is gone.
    #[must_use]
    pub fn bounds(&self) -> Option<Bounds> {
        let bounds = Bounds {
            limit: self.limit(),
            peak: self.number(&self.path, ["memory.max_usage_in_bytes", "memory.peak"]),
        };
        // The limit of a group above is not that of a cgroup that goes meanwhile.
        self.current().map(|_| bounds)
    }

    /// Limits, and the counts before and after a death. `last` are earlier readings.
    #[must_use]
    pub fn limits(
        &self,
        before: Option<Counts>,
        after: Option<Counts>,
        last: &Last,
    ) -> CgroupLimits {
        let pair = |count: fn(&Counts) -> Option<u64>| {
            let pair = (count(before.as_ref()?)?, count(after.as_ref()?)?);
            // A sum that has fallen lacks a cgroup that is gone.
            (pair.0 <= pair.1).then_some(pair)
        };
        let bounds = self.bounds().or(last.bounds).unwrap_or_default();
        let (limit_bytes, peak_bytes) = (bounds.limit, bounds.peak);
        let mut limit_hits = pair(|counts| counts.limit_hits);
        // Version 1 counts also limits at which memory could be freed.
        if self.version == 1
            && let Some((before, after)) = &mut limit_hits
            && let (Some(limit), Some(peak)) = (limit_bytes, peak_bytes)
            && peak < limit / 100 * FULL_PERCENT
        {
            *after = *before;
        }
        CgroupLimits {
            // Users may make groups with any names.
            path: crate::deaths::printable(&format!("/{}", self.path.display()), PATH_MAX),
            version: self.version,
            limit_bytes,
            peak_bytes,
            current_bytes: last.current,
            limit_hits,
            oom_kills: pair(|counts| counts.oom_kills),
        }
    }

    /// The number in the file of this version: that of version 1, that of version 2.
    fn number(&self, path: &Path, files: [&str; 2]) -> Option<u64> {
        let file = files[usize::from(self.version == 2)];
        self.text(path, file)?.trim().parse().ok()
    }

    fn text(&self, path: &Path, file: &str) -> Option<String> {
        let mut text = String::new();
        File::open(self.root.join(path).join(file))
            .ok()?
            .take(FILE_MAX)
            .read_to_string(&mut text)
            .ok()?;
        Some(text)
    }
}

/// The value of a key in a file of keys and values.
fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == key).then(|| value.trim().parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn write(folder: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(folder).expect("a folder");
        for (name, text) in files {
            fs::write(folder.join(name), text).expect("a file");
        }
    }

    #[test]
    fn a_cgroup_of_version_2_has_the_smallest_limit_and_all_events() {
        let scratch = tempfile::tempdir().expect("a folder");
        let root = &scratch.path().join("sys/fs/cgroup");
        write(root, &[("cgroup.controllers", "memory\n")]);
        let above = [
            ("memory.max", "1000\n"),
            ("memory.events.local", "oom 2\noom_kill 1\n"),
        ];
        write(&root.join("a"), &above);
        let own = [
            ("memory.max", "max\n"),
            ("memory.current", "900\n"),
            ("memory.peak", "999\n"),
            (
                "memory.events.local",
                "low 7\noom 1\noom_kill 1\noom_group_kill 0\n",
            ),
        ];
        write(&root.join("a/b"), &own);
        let group = MemoryCgroup::below(scratch.path(), "0::/a/b\n").expect("it is there");
        assert_eq!((group.current(), group.limit()), (Some(900), Some(1000)));
        let counts = group.counts();
        assert_eq!((counts.limit_hits, counts.oom_kills), (Some(3), Some(2)));
        let limits = group.limits(Some(Counts::default()), Some(counts), &Last::default());
        assert_eq!(limits.limit_hits, None, "nothing was counted before");
        assert_eq!(limits.peak_bytes, Some(999));
        let bounds = group.bounds();
        // A container's cgroup goes with its last process; those above it stay.
        fs::remove_dir_all(root.join("a/b")).expect("removed");
        assert_eq!((group.counts(), group.bounds()), (Counts::default(), None));
        let last = Last {
            current: Some(900),
            bounds,
        };
        let limits = group.limits(Some(counts), None, &last);
        assert_eq!(
            (limits.limit_bytes, limits.peak_bytes),
            (Some(1000), Some(999))
        );
        assert_eq!((limits.limit_hits, limits.current_bytes), (None, Some(900)));
        for outside in ["0::/../a\n", "0::/none\n", "7:cpu:/a/b\n", ""] {
            assert_eq!(
                MemoryCgroup::below(scratch.path(), outside),
                None,
                "{outside:?}"
            );
        }
    }

    #[test]
    fn a_limit_of_version_1_counts_only_where_the_cgroup_was_full() {
        let scratch = tempfile::tempdir().expect("a folder");
        let root = scratch.path().join("sys/fs/cgroup/memory");
        write(&root, &[]);
        let files = |peak: &'static str| {
            [
                ("memory.limit_in_bytes", "1000000\n"),
                ("memory.usage_in_bytes", "900\n"),
                ("memory.max_usage_in_bytes", peak),
                ("memory.failcnt", "5\n"),
                (
                    "memory.oom_control",
                    "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
                ),
            ]
        };
        write(&root.join("a"), &files("1000000\n"));
        let text = "4:cpu,memory:/a\n0::/\n";
        let group = MemoryCgroup::below(scratch.path(), text).expect("it is there");
        let before = Counts {
            limit_hits: Some(4),
            oom_kills: Some(2),
        };
        let last = Last {
            current: Some(7),
            bounds: None,
        };
        let limits = group.limits(Some(before), Some(group.counts()), &last);
        assert_eq!(limits.limit_hits, Some((4, 5)));
        assert_eq!(
            (limits.oom_kills, limits.current_bytes),
            (Some((2, 3)), Some(7))
        );
        write(&root.join("a"), &files("500000\n"));
        let limits = group.limits(Some(before), Some(group.counts()), &last);
        assert_eq!(limits.limit_hits, Some((4, 4)), "the page cache was freed");
        let fewer = Counts::default();
        let limits = group.limits(
            Some(before),
            Some(Counts {
                limit_hits: Some(3),
                ..fewer
            }),
            &last,
        );
        assert_eq!(limits.limit_hits, None, "a cgroup above is gone");
    }
}
