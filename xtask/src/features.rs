//! Features that some tests need of a machine, and those that a machine must have.
//!
//! `cargo xtask test` and the scripts of emulated machines list the required features in [`MUST_HAVE`]. A test without
//! a required feature fails; a test without another one prints a line that begins with [`SKIPPED_LINE`].

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::paths::Jdk;

/// The environment variable with the required features, separated by commas.
pub const MUST_HAVE: &str = "SMTT_MUST_HAVE";

/// Prefix of the line of a skipped test; feature and reason follow.
pub const SKIPPED_LINE: &str = "skipped: ";

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
    (
        "memory_cgroup",
        "a memory controller of cgroups, version 1 or 2",
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
    ("loop_ext4", "ext4 on a loop device"),
    ("disk", "a working folder on a block device"),
    ("fuse", "file systems of programs, and /dev/fuse"),
    ("overlay", "overlay mounts"),
    ("jdk_after_17", "a JDK newer than 17"),
    ("jdk_25", "a JDK of release 25 or later"),
    ("systemd", "systemd-analyze, which judges a unit file"),
];

/// Features that tests on this machine must find: those of every machine that runs them, and those that a witness other
/// than the test itself shows.
#[must_use]
pub fn of_this_machine() -> Vec<&'static str> {
    let mut must = vec!["root", "software"];
    if cfg!(target_arch = "x86_64") {
        must.extend(["base_pages_4k", "raw_tracepoint"]);
    }
    let jdks = Jdk::all();
    if jdks.iter().any(|jdk| jdk.release > 17) {
        must.push("jdk_after_17");
    }
    if jdks.iter().any(|jdk| jdk.release >= 25) {
        must.push("jdk_25");
    }
    if Path::new("/proc/sys/kernel/ns_last_pid").exists() {
        must.push("last_pid");
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

/// Whether a file is on a block device of its own, so that the kernel counts what is read from it.
#[must_use]
pub fn on_block_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| {
        let device = file.dev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        Path::new(&format!("/sys/dev/block/{major}:{minor}")).exists()
    })
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
}
