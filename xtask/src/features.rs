//! Features of a machine that some tests need, and those that this machine must have.
//!
//! `cargo xtask test` and the scripts of emulated machines name in [`MUST_HAVE`] what must be there. A test that misses
//! one of these fails; a test that misses another one says so in a line that begins with [`SKIPPED_LINE`].

use std::path::Path;

use crate::paths::Jdk;

/// The environment variable with the features that must be there, separated by commas.
pub const MUST_HAVE: &str = "SMTT_MUST_HAVE";

/// How the line of a test that did not run begins; feature and reason follow.
pub const SKIPPED_LINE: &str = "skipped: ";

/// Name and meaning of every feature that a test may need.
pub const ALL: [(&str, &str); 19] = [
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
    ("damon", "DAMON in the kernel"),
    ("free_damon", "DAMON that no other program uses"),
    ("processor_switch", "a CPU that the test may take offline"),
    (
        "madvise_huge_pages",
        "transparent huge pages for memory that asks for them",
    ),
    ("loop_ext4", "ext4 on a loop device"),
    ("jdk_after_17", "a JDK newer than 17"),
    ("jdk_25", "a JDK of release 25 or later"),
];

/// What the tests on this machine may not miss: what every machine that runs them has, and what this one has by a
/// witness other than the test's own.
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
