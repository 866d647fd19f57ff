//! Memory of processes and of their control groups, by the kernel's own counts. Nothing here walks page tables.

use std::fs;
use std::path::Path;

use crate::cgroup::{Place, Trees};
use smtt_model::state::{CgroupMemory, Child, ChildKind, ChildMemory, KernelMemory, ProcessMemory};

/// Depth of control groups that are searched for limits.
const DEPTH_MAX: usize = 32;
/// Limits of version 1 above this mean "none": the kernel rounds its largest number to pages.
const NO_LIMIT: u64 = 1 << 62;

/// Memory of a JVM, of these descendants of it, and of its control group; and the descendants that have
/// ended. `None` where the JVM has ended.
#[must_use]
pub fn read(root: &Path, pid: u32, children: &[Child]) -> Option<(KernelMemory, Vec<Child>)> {
    let status = status(root, pid)?;
    let gone = |child: &&Child| !is_there(root, child);
    let gone: Vec<Child> = children.iter().filter(gone).copied().collect();
    let there = children.iter().filter(|child| !gone.contains(child));
    let memory = KernelMemory {
        process: process(&status)?,
        children: there.filter_map(|one| child(root, one.pid)).collect(),
        children_unread: 0,
        cgroup: cgroup(root, pid),
    };
    Some((memory, gone))
}

/// Whether a process is the one that was reported: it is there, and began before the report. The kernel rounds the time of
/// its begin down.
#[must_use]
pub fn is_there(root: &Path, child: &Child) -> bool {
    stat(root, child.pid).is_some_and(|stat| began_before(&stat, child.told_ns))
}

/// As [`is_there`], and it has not ended: of an ended one the kernel keeps the number until its parent has asked.
#[must_use]
pub fn runs(root: &Path, child: &Child) -> bool {
    let Some(stat) = stat(root, child.pid) else {
        return false;
    };
    let state = fields(&stat).next();
    let is_dead = state.is_some_and(|state| ["Z", "X"].contains(&state));
    // The first thread may have ended before the others.
    let threads = fields(&stat).nth(17).and_then(|text| text.parse().ok());
    let has_others = threads.is_some_and(|threads: u64| threads > 1);
    began_before(&stat, child.told_ns) && (!is_dead || has_others)
}

fn stat(root: &Path, pid: u32) -> Option<String> {
    fs::read_to_string(root.join(format!("proc/{pid}/stat"))).ok()
}

/// The fields after the name, which may contain blanks and brackets.
fn fields(stat: &str) -> impl Iterator<Item = &str> {
    let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    rest.split_ascii_whitespace()
}

fn began_before(stat: &str, told_ns: u64) -> bool {
    let begin = fields(stat).nth(19);
    let begin = begin.and_then(|text| text.parse::<u64>().ok());
    let tick_ns = 1_000_000_000 / procfs::ticks_per_second().max(1);
    begin.is_some_and(|ticks| ticks.saturating_mul(tick_ns) <= told_ns)
}

fn status(root: &Path, pid: u32) -> Option<String> {
    fs::read_to_string(root.join(format!("proc/{pid}/status"))).ok()
}

fn child(root: &Path, pid: u32) -> Option<ChildMemory> {
    let status = status(root, pid)?;
    let name = line(&status, "Name")?.trim();
    // One id for each namespace, the innermost last.
    let ids = line(&status, "NSpid").and_then(|ids| ids.split_ascii_whitespace().last());
    Some(ChildMemory {
        pid,
        inner_pid: ids.and_then(|id| id.parse().ok()).unwrap_or(pid),
        kind: kind(name),
        memory: process(&status)?,
        name: name.chars().filter(|letter| !letter.is_control()).collect(),
    })
}

/// As Spark's `ProcfsMetricsGetter` divides processes.
fn kind(name: &str) -> ChildKind {
    let name = name.to_lowercase();
    if name.contains("java") {
        ChildKind::Java
    } else if name.contains("python") {
        ChildKind::Python
    } else {
        ChildKind::Other
    }
}

fn line<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

/// The memory in a `status`; `None` for a process without memory, such as a zombie.
fn process(status: &str) -> Option<ProcessMemory> {
    let bytes = |name| {
        let number = line(status, name)?.split_whitespace().next()?;
        Some(number.parse::<u64>().ok()?.saturating_mul(1024))
    };
    Some(ProcessMemory {
        resident_bytes: bytes("VmRSS")?,
        anonymous_bytes: bytes("RssAnon")?,
        file_bytes: bytes("RssFile")?,
        shared_bytes: bytes("RssShmem")?,
        resident_peak_bytes: bytes("VmHWM")?,
        virtual_bytes: bytes("VmSize")?,
        virtual_peak_bytes: bytes("VmPeak")?,
        swapped_bytes: bytes("VmSwap").unwrap_or(0),
    })
}

/// The control group of a process that counts its memory. The root group has no limit and holds the whole machine.
fn group(root: &Path, pid: u32) -> Option<Place> {
    let groups = fs::read_to_string(root.join(format!("proc/{pid}/cgroup"))).ok()?;
    let place = Trees::of(root).place(&groups)?;
    (!place.path.as_os_str().is_empty()).then_some(place)
}

fn cgroup(root: &Path, pid: u32) -> Option<CgroupMemory> {
    let Place {
        version,
        mount,
        path,
    } = group(root, pid)?;
    let folder = mount.join(&path);
    let stat = fs::read_to_string(folder.join("memory.stat")).ok()?;
    let field = |name: &str| {
        stat.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    };
    let number = |folder: &Path, name: &str| -> Option<u64> {
        fs::read_to_string(folder.join(name))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    let (current, limit, peak) = match version {
        1 => (
            "memory.usage_in_bytes",
            "memory.limit_in_bytes",
            "memory.max_usage_in_bytes",
        ),
        _ => ("memory.current", "memory.max", "memory.peak"),
    };
    let above = folder.ancestors().take(DEPTH_MAX);
    let above = above.take_while(|folder| **folder != mount);
    let limit_bytes = above
        .filter_map(|folder| number(folder, limit))
        .filter(|limit| *limit < NO_LIMIT)
        .min();
    let (anonymous, file, shared, kernel) = match version {
        1 => (
            field("total_rss")?,
            field("total_cache")?,
            field("total_shmem").unwrap_or(0),
            number(&folder, "memory.kmem.usage_in_bytes"),
        ),
        _ => (
            field("anon")?,
            field("file")?,
            field("shmem").unwrap_or(0),
            field("kernel").map(|kernel: u64| kernel.saturating_add(field("sock").unwrap_or(0))),
        ),
    };
    Some(CgroupMemory {
        version,
        current_bytes: number(&folder, current)?,
        limit_bytes,
        peak_bytes: number(&folder, peak),
        anonymous_bytes: anonymous,
        file_bytes: file,
        shared_bytes: shared,
        kernel_bytes: kernel,
        // Users may make groups with any names.
        path: path
            .to_string_lossy()
            .chars()
            .filter(|letter| !letter.is_control())
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_memory_adds_up() {
        let pid = std::process::id();
        let child = |pid, told_ns| Child { pid, told_ns };
        let (own, ended) = (child(pid, u64::MAX), child(u32::MAX, u64::MAX));
        // A process of the same id that was reported before this one began: another one.
        let before = child(pid, 1);
        let children = [own, ended, before];
        let (memory, gone) = read(Path::new("/"), pid, &children).expect("we are here");
        assert_eq!(gone, [ended, before]);
        let now_ns = crate::clock::now_boot_ns();
        assert!(is_there(Path::new("/"), &child(pid, now_ns)));
        let process = memory.process;
        assert_eq!(
            process.anonymous_bytes + process.file_bytes + process.shared_bytes,
            process.resident_bytes
        );
        assert!(process.resident_peak_bytes >= process.resident_bytes);
        assert!(process.virtual_bytes > process.resident_bytes);
        assert_eq!(memory.children.len(), 1);
        assert_eq!(memory.children[0].kind, ChildKind::Other);
    }

    #[test]
    fn an_ended_process_is_there_and_does_not_run() {
        let mut ended = std::process::Command::new("true").spawn().expect("started");
        let child = Child {
            pid: ended.id(),
            told_ns: u64::MAX,
        };
        let begin = std::time::Instant::now();
        // The kernel keeps its number until it is waited for.
        while runs(Path::new("/"), &child) && begin.elapsed().as_secs() < 30 {
            std::thread::yield_now();
        }
        assert!(is_there(Path::new("/"), &child));
        assert!(!runs(Path::new("/"), &child));
        ended.wait().expect("ended");
        assert!(!is_there(Path::new("/"), &child));
        let own = Child {
            pid: std::process::id(),
            told_ns: u64::MAX,
        };
        assert!(runs(Path::new("/"), &own));
    }

    /// A machine in a folder, with a process of pid 7 in a group.
    fn machine(groups: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        write("proc/7/cgroup", groups);
        for (path, text) in files {
            write(&format!("sys/fs/cgroup/{path}"), text);
        }
        root
    }

    #[test]
    fn a_group_of_version_2_is_read() {
        let stat = "anon 70\nfile 30\nkernel 5\nsock 1\nshmem 10\nfile_mapped 9\n";
        let root = machine(
            "0::/kubepods/pod/box\n",
            &[
                ("kubepods/pod/box/memory.stat", stat),
                ("kubepods/pod/box/memory.current", "110\n"),
                ("kubepods/pod/box/memory.max", "max\n"),
                ("kubepods/pod/box/memory.peak", "120\n"),
                ("kubepods/pod/memory.max", "400\n"),
                ("kubepods/memory.max", "900\n"),
            ],
        );
        let group = cgroup(root.path(), 7).expect("a group");
        let wanted = CgroupMemory {
            path: "kubepods/pod/box".into(),
            version: 2,
            current_bytes: 110,
            limit_bytes: Some(400),
            peak_bytes: Some(120),
            anonymous_bytes: 70,
            file_bytes: 30,
            shared_bytes: 10,
            kernel_bytes: Some(6),
        };
        assert_eq!(group, wanted);
    }

    #[test]
    fn a_group_of_version_1_is_read() {
        let stat = "cache 1\nrss 2\ntotal_cache 30\ntotal_rss 70\ntotal_shmem 10\n";
        let root = machine(
            "4:memory:/a\n1:cpu:/\n0::/\n",
            &[
                ("memory/a/memory.stat", stat),
                ("memory/a/memory.usage_in_bytes", "100\n"),
                ("memory/a/memory.limit_in_bytes", "9223372036854771712\n"),
                ("memory/a/memory.max_usage_in_bytes", "101\n"),
            ],
        );
        let group = cgroup(root.path(), 7).expect("a group");
        assert_eq!((group.version, group.limit_bytes), (1, None));
        assert_eq!((group.current_bytes, group.peak_bytes), (100, Some(101)));
        assert_eq!((group.anonymous_bytes, group.file_bytes), (70, 30));
        assert_eq!(group.kernel_bytes, None);
    }

    #[test]
    fn the_root_group_and_one_outside_of_our_namespace_are_none() {
        for groups in ["0::/\n", "4:memory:/\n0::/x\n", "0::/../x\n", "", "0:\n"] {
            let root = machine(
                groups,
                &[("memory.stat", "anon 1\nfile 1\n"), ("memory.current", "2")],
            );
            assert_eq!(cgroup(root.path(), 7), None, "{groups:?}");
        }
    }
}
