//! Features that some tests need of a machine, and those that a machine must have.
//!
//! `cargo xtask test` and the scripts of emulated machines list the required features in [`MUST_HAVE`]. A test without
//! a required feature fails; a test without another one prints a line that begins with [`SKIPPED_LINE`].

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

pub use smtt_skip::{MUST_HAVE, SKIPPED_LINE};

use crate::paths::{Jdk, Paths};
use crate::process::is_root;

/// The kernel's type information.
const TYPES: &str = "/sys/kernel/btf/vmlinux";
/// A type of kernels that have uprobes of many addresses in one link.
const UPROBE_MULTI: &[u8] = b"\0bpf_uprobe_multi_link\0";

/// Name and meaning of every feature that a test may need.
pub const ALL: &[(&str, &str)] = &[
    ("root", "CAP_BPF, CAP_PERFMON and what else root may do"),
    ("base_pages_4k", "base pages of 4 KiB"),
    (
        "raw_tracepoint",
        "the raw tracepoint exceptions:page_fault_user",
    ),
    ("fexit", "fexit programs on the kernel's fault handler"),
    ("kprobe", "kprobes"),
    (
        "uprobe_multi",
        "uprobes of many addresses in one link, since Linux 6.6",
    ),
    (
        "tracepoints",
        "tracefs with the tracepoint of page faults, and perf events of it",
    ),
    ("btf", "the kernel's type information"),
    ("software", "software perf events"),
    ("no_counters", "a processor without hardware counters"),
    ("dtlb_counters", "hardware counters of dTLB misses"),
    ("numa", "a kernel with NUMA"),
    ("two_nodes", "two NUMA nodes with memory and CPUs"),
    (
        "bare_nodes",
        "a NUMA node without memory and one without CPUs",
    ),
    ("swap", "swap space"),
    ("npm", "Node.js and npm, for a server of Azure's protocol"),
    (
        "other_versions",
        "versions of Spark beyond those that are set up",
    ),
    (
        "memory_cgroup",
        "a memory controller of cgroups, version 1 or 2",
    ),
    (
        "memory_cgroup_2",
        "a memory controller of cgroups, version 2, and none of version 1",
    ),
    ("cpu_cgroup", "a CPU controller of cgroups, version 1 or 2"),
    (
        "pids_cgroup",
        "a controller of processes and threads of cgroups, version 1 or 2",
    ),
    (
        "cheap_huge_pages",
        "memory that costs less to touch on huge pages than on small ones",
    ),
    ("damon", "DAMON in the kernel"),
    ("free_damon", "DAMON that no other program uses"),
    ("processor_switch", "a CPU that the test may take offline"),
    (
        "suspend",
        "suspend to memory, and a clock that wakes the machine again",
    ),
    (
        "spare_machine",
        "a machine whose memory a test may use up: an emulated one",
    ),
    (
        "madvise_huge_pages",
        "transparent huge pages for memory that asks for them",
    ),
    (
        "last_pid",
        "a kernel in which the next process id can be set (CONFIG_CHECKPOINT_RESTORE)",
    ),
    (
        "delay_accounting",
        "a switch for the kernel's account of waits for disks",
    ),
    ("loop_ext4", "ext4 on a loop device"),
    ("disk", "a working folder on a block device"),
    ("fuse", "file systems of programs, and /dev/fuse"),
    ("overlay", "overlay mounts"),
    ("jdk_after_17", "a JDK newer than 17"),
    ("jdk_21", "a JDK of release 21"),
    ("jdk_25", "a JDK of release 25 or later"),
    (
        "network_namespaces",
        "network namespaces with pairs of interfaces, and iproute2",
    ),
    ("systemd", "systemd-analyze, which judges a unit file"),
    (
        "page_walk_list",
        "the list of page-walk events beside the checkout, from which the table of CPUs was made",
    ),
];

/// Features that tests on this machine must find: those of every machine that runs them, and those that a witness other
/// than the test itself shows.
#[must_use]
pub fn of_this_machine() -> Vec<&'static str> {
    let mut must = vec!["software"];
    // Stages that need root refuse without it; the unit tests do not.
    if is_root() {
        must.push("root");
    }
    if cfg!(target_arch = "x86_64") {
        must.extend(["base_pages_4k", "raw_tracepoint"]);
        if is_root() && mounted("tracefs") {
            must.push("tracepoints");
        }
    }
    if Path::new("/sys/kernel/btf").exists() {
        must.push("btf");
    }
    if fs::read(TYPES).is_ok_and(|types| has(&types, UPROBE_MULTI)) {
        must.push("uprobe_multi");
    }
    if Paths::find().is_ok_and(|paths| paths.root.join("../shared/page-walk-events.json").exists())
    {
        must.push("page_walk_list");
    }
    let jdks = Jdk::all();
    if jdks.iter().any(|jdk| jdk.release > 17) {
        must.push("jdk_after_17");
    }
    if jdks.iter().any(|jdk| jdk.release == 21) {
        must.push("jdk_21");
    }
    if jdks.iter().any(|jdk| jdk.release >= 25) {
        must.push("jdk_25");
    }
    if has_npm() {
        must.push("npm");
    }
    if Path::new("/proc/sys/kernel/ns_last_pid").exists() {
        must.push("last_pid");
    }
    if Path::new("/proc/sys/kernel/task_delayacct").exists() {
        must.push("delay_accounting");
    }
    let ip = ["/sbin/ip", "/usr/sbin/ip"];
    if Path::new("/proc/self/ns/net").exists() && ip.iter().any(|ip| Path::new(ip).exists()) {
        must.push("network_namespaces");
    }
    if on_block_device(Path::new(".")) {
        must.push("disk");
    }
    if Path::new("/dev/loop-control").exists() {
        must.push("loop_ext4");
    }
    if Path::new("/sys/kernel/mm/damon/admin").exists() {
        must.push("damon");
    }
    if Path::new("/sys/devices/system/node/node0/numastat").exists() {
        must.push("numa");
    }
    must
}

/// Whether Node.js and npm are in the search path.
#[must_use]
pub fn has_npm() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<_> = std::env::split_paths(&path).collect();
    ["node", "npm"]
        .iter()
        .all(|name| folders.iter().any(|folder| folder.join(name).is_file()))
}

/// Whether a file is on a block device of its own, so that the kernel counts what is read from it.
#[must_use]
pub fn on_block_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| {
        let device = file.dev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        Path::new(&format!("/sys/dev/block/{major}:{minor}")).exists()
    })
}

/// Whether a file system of this kind is mounted somewhere.
fn mounted(kind: &str) -> bool {
    fs::read_to_string("/proc/mounts").is_ok_and(|mounts| {
        mounts
            .lines()
            .any(|line| line.split(' ').nth(2) == Some(kind))
    })
}

fn has(bytes: &[u8], word: &[u8]) -> bool {
    bytes.windows(word.len()).any(|part| part == word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_must_be_there_is_in_the_list() {
        let names: BTreeSet<&str> = ALL.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), ALL.len(), "a name is there twice");
        for name in of_this_machine() {
            assert!(names.contains(name), "{name} is not in the list");
        }
    }

    #[test]
    fn mounts_and_types_are_found_by_whole_names() {
        assert!(mounted("proc") && !mounted("pro"));
        assert!(has(b"a\0bpf_uprobe_multi_link\0b", UPROBE_MULTI));
        assert!(!has(b"a\0bpf_uprobe_multi_links\0b", UPROBE_MULTI));
    }
}
