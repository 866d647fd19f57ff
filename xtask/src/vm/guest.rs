//! The emulated machines, as data.

use anyhow::{Result, bail};

use crate::processor::Processor;

impl Processor {
    /// Debian suite of the guest's programs, except the kernel.
    #[must_use]
    pub fn suite(self) -> &'static str {
        match self {
            Self::X86 => "bookworm",
            // The suite of their kernels; Debian supports RISC-V from it on.
            Self::Riscv | Self::Arm => "trixie",
        }
    }

    /// The emulator's program.
    #[must_use]
    pub fn emulator(self) -> &'static str {
        match self {
            Self::X86 => "qemu-system-x86_64",
            Self::Riscv => "qemu-system-riscv64",
            Self::Arm => "qemu-system-aarch64",
        }
    }

    /// The kernel's parameters for this processor.
    #[must_use]
    pub fn parameters(self) -> &'static str {
        match self {
            Self::X86 | Self::Riscv => "console=ttyS0",
            // One set of page tables: with two the emulator forgets its translations twice in each system call.
            Self::Arm => "console=ttyAMA0 kpti=off",
        }
    }

    /// The emulator's option for four processors on two nodes.
    #[must_use]
    pub fn four(self) -> &'static str {
        match self {
            Self::X86 | Self::Riscv => "4",
            // The emulator warns of a socket that spans nodes.
            Self::Arm => "4,sockets=2,cores=2",
        }
    }

    /// The emulator's options for the machine and its processor.
    #[must_use]
    pub fn machine(self) -> &'static [&'static str] {
        match self {
            Self::X86 => &["-machine", "q35"],
            // `pmu-mask` disables the fixed counters and leaves 13 programmable ones; 4-level page tables, because
            // OpenJDK's port for this processor does not support 5 levels.
            Self::Riscv => &[
                "-machine",
                "virt",
                "-cpu",
                "rv64,sscofpmf=true,pmu-mask=0xfff8,sv57=off",
            ],
            // A core of servers that signs no pointers: the emulator would compute each signature.
            Self::Arm => &["-machine", "virt", "-cpu", "neoverse-n1"],
        }
    }
}

/// An emulated machine.
#[derive(Debug)]
pub struct Guest {
    /// Name on the command line and in the output.
    pub name: &'static str,
    /// Processor of the guest.
    pub processor: Processor,
    /// Debian suite of the kernel.
    pub suite: &'static str,
    /// Debian package that depends on the newest kernel of that suite.
    pub kernel: &'static str,
    /// Memory of each of the two nodes, in MiB.
    pub node_mib: u32,
    /// Whether the guest has two more nodes: one with a processor and no memory, one with [`BARE_MIB`] of removable
    /// memory and no processor.
    pub bare_nodes: bool,
    /// Whether the guest has a disk with a JVM.
    pub jvm: bool,
    /// Features that the guest must have, beside those of every guest: rungs of the fault ladder, and what some tests
    /// require. `spare_machine`: a guest with a daemon, whose memory a test may use up. `suspend`: it is known to wake
    /// again.
    pub features: &'static str,
    /// Whether it runs by its name only, because its programs are built for it alone.
    pub by_name: bool,
    /// Seconds that its build and its tests take beside other work.
    pub seconds: u64,
    /// Rows that must be ok in this guest. The others may be unsupported, but never broken.
    pub must: &'static [&'static [&'static str]],
}

/// Memory of the node without a processor, in MiB: two of the blocks in which x86-64 removes memory.
pub const BARE_MIB: u32 = 256;

/// All emulated machines, in the order in which they run.
pub static ALL: [Guest; 4] = [
    Guest {
        name: "x86-6.1",
        processor: Processor::X86,
        suite: "bookworm",
        kernel: "linux-image-amd64",
        node_mib: 1024,
        bare_nodes: false,
        jvm: false,
        features: "raw_tracepoint,fexit,kprobe,software,memory_cgroup,memory_cgroup_2",
        by_name: false,
        seconds: 1200,
        must: &[X86_MUST, X86_BARE_MUST],
    },
    Guest {
        name: "x86-6.12",
        processor: Processor::X86,
        suite: "bookworm-backports",
        kernel: "linux-image-amd64",
        node_mib: 1024,
        bare_nodes: true,
        jvm: true,
        features: "raw_tracepoint,fexit,kprobe,software,damon,bare_nodes,suspend,spare_machine,memory_cgroup,\
                   memory_cgroup_2",
        by_name: false,
        seconds: 1500,
        must: &[X86_MUST, X86_JVM_MUST],
    },
    Guest {
        name: "riscv64",
        processor: Processor::Riscv,
        suite: "trixie",
        kernel: "linux-image-riscv64",
        node_mib: 2048,
        bare_nodes: false,
        jvm: true,
        features: "fexit,kprobe,software,dtlb_counters",
        by_name: false,
        seconds: 1800,
        must: &[&[
            "release",
            "processors",
            "nodes",
            "jvm",
            "every_rung_counts_the_same",
            "pads_are_hit_as_often_as_they_are_called",
            "pages::pages_that_were_swapped_out_are_reported",
            "guest_page_walks_of_every_rdd_are_those_that_its_threads_count_plainly",
            "guest_processors_that_go_and_come_are_sampled_again",
            "guest_events_without_a_counter_give_a_verdict_and_no_figure",
            "guest_shared_counters_are_shown_and_nothing_is_scaled_up",
            "the_cached_rdd_of_a_jvm_has_its_faults_and_dominates_the_scan",
        ]],
    },
    Guest {
        name: "arm64-6.12",
        processor: Processor::Arm,
        suite: "trixie",
        kernel: "linux-image-arm64",
        node_mib: 2048,
        bare_nodes: false,
        jvm: true,
        features: "fexit,kprobe,software,damon,spare_machine",
        by_name: true,
        seconds: 2400,
        must: &[&[
            "release",
            "processors",
            "nodes",
            "jvm",
            "every_rung_counts_the_same",
            "pads_are_hit_as_often_as_they_are_called",
            "pages::pages_that_were_swapped_out_are_reported",
            "the_cached_rdd_of_a_jvm_has_its_faults_and_dominates_the_scan",
            "remote_and_swapped_blocks_of_a_jvm_are_found_and_local_ones_are_not",
        ]],
    },
];

/// What every x86-64 guest must have.
const X86_MUST: &[&str] = &[
    "release",
    "processors",
    "nodes",
    "every_rung_counts_the_same",
    "pads_are_hit_as_often_as_they_are_called",
    "pages::pages_that_were_swapped_out_are_reported",
];

/// What an x86-64 guest without a JVM must have in addition.
const X86_BARE_MUST: &[&str] = &[
    "deaths::the_oom_killer_names_the_executor",
    "deaths::the_oom_killer_names_the_child",
];

/// What an x86-64 guest with a JVM must have in addition.
const X86_JVM_MUST: &[&str] = &[
    "jvm",
    "suspend::guest_an_executor_at_work_through_a_suspend_loses_nothing",
    "remote_and_swapped_blocks_of_a_jvm_are_found_and_local_ones_are_not",
    "cgroup_limits::a_daemon_in_a_pod_with_the_tree_of_the_host_sees_the_limits_of_others",
    "cgroup_limits::processes_that_are_killed_together_are_one_death",
];

impl Guest {
    /// Whether the guest must have that feature.
    #[must_use]
    pub fn has(&self, feature: &str) -> bool {
        self.features.split(',').any(|name| name == feature)
    }

    /// Whether the row must be ok in this guest.
    #[must_use]
    pub fn needs(&self, name: &str) -> bool {
        self.needed().any(|needed| needed == name)
    }

    /// All rows that must be ok in this guest.
    pub fn needed(&self) -> impl Iterator<Item = &'static str> {
        self.must.iter().copied().flatten().copied()
    }

    /// The guest of that name; without a name all but those that run by their name only.
    ///
    /// # Errors
    /// When no guest has that name.
    pub fn named(name: Option<&str>) -> Result<Vec<&'static Self>> {
        let found: Vec<_> = ALL
            .iter()
            .filter(|guest| name.map_or(!guest.by_name, |name| name == guest.name))
            .collect();
        if found.is_empty() {
            let names: Vec<_> = ALL.iter().map(|guest| guest.name).collect();
            bail!(
                "no emulated machine {:?}; there are {}",
                name.unwrap_or_default(),
                names.join(", ")
            );
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::Guest;

    #[test]
    fn guests_are_found_by_name_and_others_named() {
        assert_eq!(Guest::named(None).expect("all").len(), 3);
        assert!(Guest::named(Some("arm64-6.12")).expect("one")[0].by_name);
        assert_eq!(
            Guest::named(Some("riscv64")).expect("one")[0].suite,
            "trixie"
        );
        let refused = Guest::named(Some("vax"))
            .expect_err("no such guest")
            .to_string();
        assert!(refused.contains("x86-6.12"), "{refused}");
    }
}
