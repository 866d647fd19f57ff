//! What surrounds the executors and decides what advice fits: settings of the kernel, nodes, swap, and how each JVM
//! was started. `smtt_machine::surroundings` reads them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What advice depends on beside the daemon's own figures. What could not be read is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Surroundings {
    /// Release of the kernel.
    pub kernel: Option<String>,
    /// Transparent huge pages for anonymous memory: `always`, `madvise` or `never`.
    pub transparent_huge_pages: Option<String>,
    /// How hard the kernel tries for them at a page fault: `always`, `defer`, `defer+madvise`, `madvise` or `never`.
    pub transparent_huge_pages_defrag: Option<String>,
    /// Reserved huge pages (hugetlbfs) of the default size that are free.
    pub reserved_huge_pages_free: Option<u64>,
    /// Memory of the machine in bytes.
    pub memory_bytes: Option<u64>,
    /// Swap space of the machine in bytes; zero where there is none.
    pub swap_bytes: Option<u64>,
    /// Swap space that is used, in bytes.
    pub swap_used_bytes: Option<u64>,
    /// How readily the kernel swaps, 0 to 200.
    pub swappiness: Option<u32>,
    /// NUMA nodes that have memory.
    pub nodes: Option<Vec<u32>>,
    /// Of them, nodes that have CPUs as well: those that a worker can be bound to.
    pub nodes_with_cpus: Option<Vec<u32>>,
    /// The living executors, by process id.
    pub processes: BTreeMap<u32, Process>,
}

/// How an executor's JVM was started and where it may run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Nodes that it may take memory from.
    pub memory_nodes: Option<Vec<u32>>,
    /// CPUs that it may run on.
    pub cpus: Option<u64>,
    /// Nodes of these CPUs.
    pub cpu_nodes: Option<Vec<u32>>,
    /// Its options that advice depends on, from its command line. A later option wins over an earlier one.
    pub options: Option<Vec<String>>,
    /// CPU time in user mode, in nanoseconds.
    pub user_ns: Option<u64>,
    /// CPU time in the kernel, in nanoseconds: faults, system calls.
    pub system_ns: Option<u64>,
    /// Bytes of it that are swapped out.
    pub swapped_bytes: Option<u64>,
}

impl Process {
    /// Whether a switch (`-XX:+NAME`) is on by its last mention; `None` where the command line cannot be read.
    #[must_use]
    pub fn switch(&self, name: &str) -> Option<bool> {
        let options = self.options.as_ref()?.iter().rev();
        let mut said = options.filter_map(|option| {
            let switch = option.strip_prefix("-XX:")?;
            match (switch.strip_prefix('+'), switch.strip_prefix('-')) {
                (Some(on), _) if on == name => Some(true),
                (_, Some(off)) if off == name => Some(false),
                _ => None,
            }
        });
        Some(said.next().unwrap_or(false))
    }

    /// Whether an option begins so; `None` where the command line cannot be read.
    #[must_use]
    pub fn has(&self, beginning: &str) -> Option<bool> {
        let options = self.options.as_ref()?;
        Some(options.iter().any(|option| option.starts_with(beginning)))
    }

    /// Whether it is bound to one node of a machine with several, CPUs and memory; `None` where that is not known.
    #[must_use]
    pub fn bound_to_a_node(&self) -> Option<bool> {
        let (memory, cpus) = (self.memory_nodes.as_ref()?, self.cpu_nodes.as_ref()?);
        // CPUs of a node without memory, or memory of one without CPUs, are not of one node.
        Some(cpus.len() <= 1 && memory.len() <= 1 && (cpus.is_empty() || cpus == memory))
    }
}
