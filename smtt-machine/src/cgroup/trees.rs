//! Where this process's mounts have the cgroups of other processes.
//!
//! `/proc/PID/cgroup` names a cgroup from the root of the reader's cgroup namespace on. A daemon in a container has a
//! namespace of its own: the paths of other containers begin with `/..` there, and its own mount has none of them. Where
//! the host's tree is mounted as well, `mountinfo` shows the root of that mount as `/../..`, with `..` for each level
//! between it and the namespace's root. The names of these levels are those on the way to the folder of the namespace's
//! root, which has the same inode in both mounts.

use std::borrow::Cow;
use std::fs::{self, File};
use std::os::unix::fs::{DirEntryExt as _, MetadataExt as _};
use std::path::{Component, Path, PathBuf};
use std::sync::LazyLock;

use smtt_model::sort::small::sort_by_key;

use crate::proc::{Bounds, Next, lines};

/// Where the hierarchies are mounted on most machines.
const USUAL: &str = "sys/fs/cgroup";
/// Most levels between the root of a mount and the root of the namespace.
const LEVELS: usize = 32;
/// Folders that a search for the namespace's root reads at most.
const FOLDERS: u32 = 1 << 14;
/// What is read of a `mountinfo`; the kernel allows 100,000 mounts in a namespace.
const MOUNTS: Bounds = Bounds {
    line: 16 << 10,
    lines: 1 << 17,
    bytes: 16 << 20,
};

/// The trees of this process. Mounts of a container do not change while it runs.
static OWN: LazyLock<Trees> = LazyLock::new(|| Trees::find(Path::new("/")));

/// The hierarchies of both versions that may count memory.
#[derive(Clone, Debug)]
pub(crate) struct Trees {
    first: Tree,
    second: Tree,
}

/// A mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Tree {
    mount: PathBuf,
    /// Path of the namespace's root below the mount.
    base: PathBuf,
}

/// A cgroup of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Version of the hierarchy.
    pub version: u8,
    /// The root of the hierarchy, as far as it is mounted.
    pub mount: PathBuf,
    /// Path below it.
    pub path: PathBuf,
}

/// The root of a mount, as `mountinfo` has it from the namespace's root on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Above(usize);

impl Trees {
    /// The trees of a machine below `root`.
    pub fn of(root: &Path) -> Cow<'static, Self> {
        if root == Path::new("/") {
            Cow::Borrowed(&*OWN)
        } else {
            Cow::Owned(Self::find(root))
        }
    }

    fn find(root: &Path) -> Self {
        let usual = root.join(USUAL);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        if let Ok(text) = File::open(root.join("proc/self/mountinfo")) {
            // What was read before an error counts.
            let _ = lines(text, &MOUNTS, |line| {
                if let Some((version, above, at)) = std::str::from_utf8(line).ok().and_then(mount) {
                    let mounts = if version == 1 {
                        &mut first
                    } else {
                        &mut second
                    };
                    mounts.push((above, root.join(at.trim_start_matches('/'))));
                }
                Next::Line
            });
        }
        let unified = usual.join("unified");
        let has_unified = unified.join("cgroup.controllers").exists();
        Self {
            first: Tree::of(&first, usual.join("memory")),
            second: Tree::of(&second, if has_unified { unified } else { usual }),
        }
    }

    /// The cgroup that counts the memory of a process, from the text of its `/proc/PID/cgroup`. `None` where there is none,
    /// or no mount shows it.
    pub fn place(&self, text: &str) -> Option<Place> {
        let line = |wanted: &dyn Fn(&str, &str) -> bool| {
            text.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':');
                let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
                wanted(id, controllers).then_some(path)
            })
        };
        // The controller is in one hierarchy only.
        let first = line(&|_, controllers| controllers.split(',').any(|name| name == "memory"));
        let (version, tree, path) = match first {
            Some(path) => (1, &self.first, path),
            None => {
                let path = line(&|id, controllers| id == "0" && controllers.is_empty())?;
                (2, &self.second, path)
            }
        };
        Some(Place {
            version,
            mount: tree.mount.clone(),
            path: tree.resolve(path)?,
        })
    }
}

impl Tree {
    /// The mount that shows the most; without one that shows the namespace's root, the usual place. A mount may lie below
    /// another one at the same place, and then it shows nothing.
    fn of(mounts: &[(Above, PathBuf)], usual: PathBuf) -> Self {
        let at_root = mounts.iter().filter(|(above, _)| *above == Above(0));
        let roots: Vec<&PathBuf> = at_root.map(|(_, at)| at).collect();
        let mut outer: Vec<_> = mounts
            .iter()
            .filter(|(above, _)| *above > Above(0))
            .collect();
        sort_by_key(&mut outer, |(above, _)| std::cmp::Reverse(*above));
        let found = outer.into_iter().find_map(|(above, at)| {
            roots.iter().find_map(|root| {
                let inode = fs::metadata(root).ok()?.ino();
                let base = find(at, above.0, inode, &mut { FOLDERS })?;
                Some(Self {
                    mount: at.clone(),
                    base,
                })
            })
        });
        found.unwrap_or_else(|| Self {
            mount: if roots.is_empty() || roots.contains(&&usual) {
                usual
            } else {
                roots[0].clone()
            },
            base: PathBuf::new(),
        })
    }

    /// The path below the mount of a path from the namespace's root on.
    fn resolve(&self, path: &str) -> Option<PathBuf> {
        let mut found = self.base.clone();
        let mut down = false;
        for part in Path::new(path).components() {
            match part {
                Component::RootDir => {}
                Component::ParentDir if !down && found.pop() => {}
                Component::Normal(name) => {
                    down = true;
                    found.push(name);
                }
                // It leads out of what is mounted.
                _ => return None,
            }
        }
        Some(found)
    }
}

/// A line of `mountinfo` with a hierarchy that may count memory: its version, where its root is above that of the
/// namespace, and its place. `None` for a part of a hierarchy, and for a place with blanks.
fn mount(line: &str) -> Option<(u8, Above, &str)> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, at) = (left.next()?, left.next()?);
    let mut right = right.split(' ');
    let (kind, options) = (right.next()?, right.nth(1)?);
    let version = match kind {
        "cgroup2" => 2,
        "cgroup" if options.split(',').any(|option| option == "memory") => 1,
        _ => return None,
    };
    let parts: Vec<_> = Path::new(root).components().collect();
    let (first, above) = parts.split_first()?;
    let whole = *first == Component::RootDir
        && above.len() <= LEVELS
        && above.iter().all(|part| *part == Component::ParentDir);
    (whole && !at.contains('\\')).then_some((version, Above(above.len()), at))
}

/// The path of the folder with this inode, so many levels below `folder`.
fn find(folder: &Path, levels: usize, inode: u64, left: &mut u32) -> Option<PathBuf> {
    *left = left.checked_sub(1)?;
    let entries = fs::read_dir(folder).ok()?.flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    for entry in folders {
        if levels > 1 {
            if let Some(rest) = find(&entry.path(), levels - 1, inode, left) {
                return Some(Path::new(&entry.file_name()).join(rest));
            }
        } else if entry.ino() == inode {
            return Some(entry.file_name().into());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_with_their_place_in_the_tree() {
        let line = |root: &str, rest: &str| {
            let line = format!("35 24 0:30 {root} /host/cgroup ro,relatime shared:9 - {rest}");
            mount(&line).map(|(version, above, at)| (version, above.0, at.to_owned()))
        };
        let at = "/host/cgroup".to_owned();
        assert_eq!(line("/", "cgroup2 none rw"), Some((2, 0, at.clone())));
        assert_eq!(
            line("/../..", "cgroup2 none rw,nsdelegate"),
            Some((2, 2, at.clone()))
        );
        assert_eq!(line("/..", "cgroup none rw,cpu,memory"), Some((1, 1, at)));
        for (root, rest) in [
            ("/a", "cgroup2 none rw"),
            ("/../a", "cgroup2 none rw"),
            ("/", "cgroup none rw,cpu"),
            ("/", "tmpfs none rw,memory"),
        ] {
            assert_eq!(line(root, rest), None, "{root} {rest}");
        }
        assert_eq!(mount("1 2 0:3 / /a\\040b rw - cgroup2 none rw"), None);
    }

    /// A machine below a folder: the cgroups of a host at `host`, and those of a container at the usual place.
    fn machine(mounts: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        let at = |path: &str| root.path().join(path);
        for path in [
            "host/pods/other/box",
            "host/pods/mine/box",
            "host/system",
            "proc/self",
            "sys/fs",
        ] {
            fs::create_dir_all(at(path)).expect("made");
        }
        // A bind mount, as far as the inode goes.
        std::os::unix::fs::symlink(at("host/pods/mine/box"), at("sys/fs/cgroup")).expect("made");
        fs::write(at("proc/self/mountinfo"), mounts).expect("written");
        root
    }

    #[test]
    fn paths_that_lead_upwards_are_found_in_the_tree_of_the_host() {
        let own = "1 2 0:3 / /sys/fs/cgroup ro - cgroup2 none rw\n";
        let machine_with_host = machine(&format!(
            "{own}4 2 0:3 /../../.. /host ro - cgroup2 none rw\n"
        ));
        let trees = Trees::of(machine_with_host.path());
        let place = |path: &str| {
            let place = trees.place(&format!("0::{path}\n"))?;
            assert_eq!(
                (place.version, place.mount),
                (2, machine_with_host.path().join("host"))
            );
            Some(place.path.display().to_string())
        };
        assert_eq!(place("/../../other/box").as_deref(), Some("pods/other/box"));
        assert_eq!(place("/../../../system").as_deref(), Some("system"));
        assert_eq!(place("/").as_deref(), Some("pods/mine/box"));
        assert_eq!(place("/below").as_deref(), Some("pods/mine/box/below"));
        assert_eq!(place("/../../../../out"), None);
        assert_eq!(place("/a/../b"), None);

        // Without the host's tree, and with one in which our root is not at that level.
        for more in ["", "4 2 0:3 /../.. /host ro - cgroup2 none rw\n"] {
            let machine = machine(&format!("{own}{more}"));
            let trees = Trees::of(machine.path());
            let place = |path: &str| Some(trees.place(&format!("0::{path}\n"))?.path);
            assert_eq!(place("/../../other/box"), None, "{more}");
            assert_eq!(place("/below"), Some("below".into()), "{more}");
        }
    }
}
