//! Surroundings of the executors that advice depends on: kernel settings, NUMA nodes, swap, and the JVMs' options.
//! `smtt_machine::surroundings` reads them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Inputs of the advice besides the daemon's own figures. A field that could not be read is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Surroundings {
    /// Release of the kernel.
    pub kernel: Option<String>,
    /// Transparent huge pages for anonymous memory: `always`, `madvise` or `never`.
    pub transparent_huge_pages: Option<String>,
    /// Defragmentation for transparent huge pages at a page fault: `always`, `defer`, `defer+madvise`, `madvise` or
    /// `never`.
    pub transparent_huge_pages_defrag: Option<String>,
    /// Free reserved huge pages (hugetlbfs) of the default size.
    pub reserved_huge_pages_free: Option<u64>,
    /// Memory of the machine in bytes.
    pub memory_bytes: Option<u64>,
    /// Swap space of the machine in bytes; zero where there is none.
    pub swap_bytes: Option<u64>,
    /// Used swap space in bytes.
    pub swap_used_bytes: Option<u64>,
    /// The kernel's swappiness, 0 to 200.
    pub swappiness: Option<u32>,
    /// NUMA nodes that have memory.
    pub nodes: Option<Vec<u32>>,
    /// NUMA nodes with memory and CPUs: nodes that a worker can be bound to.
    pub nodes_with_cpus: Option<Vec<u32>>,
    /// The living executors, by process id.
    pub processes: BTreeMap<u32, Process>,
}

/// Options of an executor's JVM and the CPUs and nodes that it may use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Nodes that the process may allocate memory on.
    pub memory_nodes: Option<Vec<u32>>,
    /// CPUs that the process may run on.
    pub cpus: Option<u64>,
    /// Nodes of the CPUs that the process may run on.
    pub cpu_nodes: Option<Vec<u32>>,
    /// JVM options that advice depends on, from the command line. A later option overrides an earlier one.
    pub options: Option<Vec<String>>,
    /// Why the options are absent, where the process exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options_unread: Option<String>,
    /// CPU time in user mode, in nanoseconds.
    pub user_ns: Option<u64>,
    /// CPU time in kernel mode, in nanoseconds: page faults, system calls.
    pub system_ns: Option<u64>,
    /// Bytes of the process that are swapped out.
    pub swapped_bytes: Option<u64>,
}

impl Process {
    /// Whether the last occurrence of a switch (`-XX:+NAME`) enables it; `None` where the command line is unavailable.
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

    /// Whether an option starts with `beginning`; `None` where the command line is unavailable.
    #[must_use]
    pub fn has(&self, beginning: &str) -> Option<bool> {
        let options = self.options.as_ref()?;
        Some(options.iter().any(|option| option.starts_with(beginning)))
    }

    /// Whether the process is bound, with CPUs and memory, to one of several nodes; `None` where that is unknown.
    #[must_use]
    pub fn bound_to_a_node(&self) -> Option<bool> {
        let (memory, cpus) = (self.memory_nodes.as_ref()?, self.cpu_nodes.as_ref()?);
        // A node with CPUs and another one with memory are two nodes.
        Some(cpus.len() <= 1 && memory.len() <= 1 && (cpus.is_empty() || cpus == memory))
    }
}
