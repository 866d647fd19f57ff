//! What surrounds the executors and decides what advice fits: settings of the kernel, nodes, swap, and how each JVM
//! was started. Read when somebody asks, not in the daemon's loop.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

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

/// Beginnings of options that are kept; everything else on a command line is nobody's business.
const OPTIONS: [&str; 12] = [
    "-Xms",
    "-Xmx",
    "-XX:+UseTransparentHugePages",
    "-XX:-UseTransparentHugePages",
    "-XX:+UseLargePages",
    "-XX:-UseLargePages",
    "-XX:+AlwaysPreTouch",
    "-XX:-AlwaysPreTouch",
    "-XX:+UseNUMA",
    "-XX:-UseNUMA",
    "-XX:+Use",
    "-XX:-Use",
];

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

impl Surroundings {
    /// Asks the machine that `root` is the root folder of, and the processes with these ids.
    #[must_use]
    pub fn read(root: &Path, pids: &[u32]) -> Self {
        let text = |path: &str| fs::read_to_string(root.join(path)).ok();
        let huge = |name: &str| {
            let text = text(&format!("sys/kernel/mm/transparent_hugepage/{name}"))?;
            chosen(&text).map(str::to_owned)
        };
        let memory = text("proc/meminfo");
        let kib = |name: &str| {
            let line = memory
                .as_ref()?
                .lines()
                .find_map(|line| line.strip_prefix(name));
            number(line?.trim_start_matches(':')).map(|kib| kib.saturating_mul(1024))
        };
        let swap = kib("SwapTotal");
        let nodes = text("sys/devices/system/node/has_memory").and_then(|text| list(&text));
        let node_cpus = node_cpus(&root.join("sys/devices/system/node"));
        Self {
            kernel: text("proc/sys/kernel/osrelease").map(|text| text.trim().to_owned()),
            transparent_huge_pages: huge("enabled"),
            transparent_huge_pages_defrag: huge("defrag"),
            // A count, not an amount of memory.
            reserved_huge_pages_free: kib("HugePages_Free").map(|pages| pages / 1024),
            memory_bytes: kib("MemTotal"),
            swap_bytes: swap,
            swap_used_bytes: swap
                .zip(kib("SwapFree"))
                .map(|(all, free)| all.saturating_sub(free)),
            swappiness: text("proc/sys/vm/swappiness").and_then(|text| text.trim().parse().ok()),
            nodes_with_cpus: nodes.as_ref().map(|nodes: &Vec<u32>| {
                let has_cpus = |node: &u32| node_cpus.iter().any(|(with, _)| with == node);
                nodes.iter().copied().filter(has_cpus).collect()
            }),
            nodes,
            processes: pids
                .iter()
                .filter_map(|pid| {
                    let folder = root.join(format!("proc/{pid}"));
                    folder
                        .is_dir()
                        .then(|| (*pid, process(&folder, &node_cpus)))
                })
                .collect(),
        }
    }
}

/// The word in brackets: the one of several that is chosen.
fn chosen(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word)
}

/// The first number of a text.
fn number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

/// Numbers written as `0-3,8`. At most so many as a machine can have CPUs.
fn list(text: &str) -> Option<Vec<u32>> {
    const MOST: u32 = 1 << 16;
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last >= MOST {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// The CPUs of each node that has any.
fn node_cpus(folder: &Path) -> Vec<(u32, Vec<u32>)> {
    let cpus = |path: PathBuf| fs::read_to_string(path).ok().and_then(|text| list(&text));
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let node = name.to_str()?.strip_prefix("node")?.parse().ok()?;
            Some((node, cpus(entry.path().join("cpulist"))?))
        })
        .filter(|(_, cpus)| !cpus.is_empty())
        .collect()
}

fn process(folder: &Path, node_cpus: &[(u32, Vec<u32>)]) -> Process {
    let status = fs::read_to_string(folder.join("status")).unwrap_or_default();
    let line = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    };
    let cpus = line("Cpus_allowed_list").and_then(list);
    let times = fs::read_to_string(folder.join("stat"))
        .ok()
        .and_then(|stat| times(&stat));
    Process {
        memory_nodes: line("Mems_allowed_list").and_then(list),
        cpu_nodes: cpus.as_ref().filter(|_| !node_cpus.is_empty()).map(|cpus| {
            let mut nodes: Vec<u32> = node_cpus
                .iter()
                .filter(|(_, of)| of.iter().any(|cpu| cpus.contains(cpu)))
                .map(|(node, _)| *node)
                .collect();
            nodes.sort_unstable();
            nodes
        }),
        cpus: cpus.map(|cpus| cpus.len() as u64),
        options: fs::read(folder.join("cmdline"))
            .ok()
            .filter(|line| !line.is_empty())
            .map(|line| options(&line)),
        user_ns: times.map(|(user, _)| user),
        system_ns: times.map(|(_, system)| system),
        swapped_bytes: line("VmSwap")
            .and_then(number)
            .map(|kib| kib.saturating_mul(1024)),
    }
}

/// Options that matter, of a command line with zeros between its words.
fn options(line: &[u8]) -> Vec<String> {
    line.split(|byte| *byte == 0)
        .map(String::from_utf8_lossy)
        // What follows the class is the application's.
        .take_while(|word| !word.starts_with("org.apache.spark."))
        .filter(|word| OPTIONS.iter().any(|beginning| word.starts_with(beginning)))
        .filter(|word| word.len() < 64)
        .map(std::borrow::Cow::into_owned)
        .collect()
}

/// CPU time in user mode and in the kernel, in nanoseconds, of the text of `/proc/PID/stat`.
fn times(stat: &str) -> Option<(u64, u64)> {
    let tick_ns = 1_000_000_000 / procfs::ticks_per_second().max(1);
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    let time = |at: usize| fields.get(at)?.parse::<u64>().ok()?.checked_mul(tick_ns);
    Some((time(11)?, time(12)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_and_this_process_can_be_read() {
        let own = std::process::id();
        let read = Surroundings::read(Path::new("/"), &[own]);
        assert!(read.memory_bytes > Some(1 << 20), "{read:?}");
        let process = read.processes.get(&own).expect("we live");
        assert!(process.cpus > Some(0), "{process:?}");
        assert!(process.user_ns.is_some() && process.system_ns.is_some());
        assert_eq!(process.options.as_deref(), Some(&[][..]), "we are no JVM");
    }

    #[test]
    fn a_machine_is_what_its_files_say() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        write(
            "sys/kernel/mm/transparent_hugepage/enabled",
            "always [madvise] never\n",
        );
        write(
            "proc/meminfo",
            "MemTotal:  2048 kB\nHugePages_Free:  7\nSwapTotal: 100 kB\nSwapFree: 40 kB\n",
        );
        write("sys/devices/system/node/has_memory", "0-1\n");
        write("sys/devices/system/node/node0/cpulist", "0-1\n");
        write("sys/devices/system/node/node1/cpulist", "2-3\n");
        write(
            "proc/7/status",
            "Cpus_allowed_list:\t2-3\nMems_allowed_list:\t1\nVmSwap:\t 8 kB\n",
        );
        write(
            "proc/7/stat",
            "7 (ja va)) S 1 1 1 0 -1 0 0 0 0 0 100 50 0 0 0 0 0 0 0",
        );
        write(
            "proc/7/cmdline",
            "java\0-Xmx1g\0-Dpassword=secret\0-XX:+AlwaysPreTouch\0-XX:-AlwaysPreTouch\0org.apache.spark.Main\0-Xms1\0",
        );
        write(
            "proc/8/status",
            "Cpus_allowed_list:\t0-3\nMems_allowed_list:\t0-1\n",
        );
        let read = Surroundings::read(root.path(), &[7, 8, 9]);
        assert_eq!(read.transparent_huge_pages.as_deref(), Some("madvise"));
        assert_eq!(
            read.transparent_huge_pages_defrag, None,
            "absent, not a guess"
        );
        assert_eq!(
            (read.memory_bytes, read.reserved_huge_pages_free),
            (Some(2 << 20), Some(7))
        );
        assert_eq!(
            (read.swap_bytes, read.swap_used_bytes),
            (Some(102_400), Some(61_440))
        );
        assert_eq!(read.nodes.as_deref(), Some(&[0, 1][..]));
        assert!(!read.processes.contains_key(&9));
        let bound = &read.processes[&7];
        assert_eq!(bound.bound_to_a_node(), Some(true));
        assert_eq!((bound.cpus, bound.swapped_bytes), (Some(2), Some(8192)));
        assert_eq!(
            bound.options.as_deref().map(<[String]>::len),
            Some(3),
            "no secret: {bound:?}"
        );
        assert_eq!(
            bound.switch("AlwaysPreTouch"),
            Some(false),
            "the last one wins"
        );
        assert_eq!(
            (bound.has("-Xms"), bound.has("-Xmx")),
            (Some(false), Some(true))
        );
        let free = &read.processes[&8];
        assert_eq!(free.bound_to_a_node(), Some(false));
        assert_eq!(
            free.switch("AlwaysPreTouch"),
            None,
            "no command line, no answer"
        );
    }

    #[test]
    fn nodes_without_memory_or_without_cpus_are_no_whole_nodes() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        // Node 2 has no memory, node 3 no CPU, and those of node 1 are offline.
        write("sys/devices/system/node/has_memory", "0-1,3\n");
        for (node, cpus) in [(0, "0-1\n"), (1, "\n"), (2, "4\n"), (3, "\n")] {
            write(&format!("sys/devices/system/node/node{node}/cpulist"), cpus);
        }
        for (pid, cpus, memory) in [
            (7, "0-1", "0"),
            (8, "4", "0"),
            (9, "0-1", "3"),
            (10, "0,4", "0"),
        ] {
            let status = format!("Cpus_allowed_list:\t{cpus}\nMems_allowed_list:\t{memory}\n");
            write(&format!("proc/{pid}/status"), &status);
        }
        let read = Surroundings::read(root.path(), &[7, 8, 9, 10]);
        assert_eq!(read.nodes.as_deref(), Some(&[0, 1, 3][..]));
        assert_eq!(read.nodes_with_cpus.as_deref(), Some(&[0][..]));
        let bound = |pid| read.processes[&pid].bound_to_a_node();
        assert_eq!(bound(7), Some(true));
        assert_eq!(bound(8), Some(false), "its CPU has no memory of its own");
        assert_eq!(bound(9), Some(false), "its memory has no CPU of its own");
        assert_eq!(bound(10), Some(false));
        // A kernel without nodes.
        let read = Surroundings::read(&root.path().join("proc"), &[]);
        assert_eq!((read.nodes, read.nodes_with_cpus), (None, None));
    }

    #[test]
    fn lists_are_read() {
        assert_eq!(list("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(list("0-4294967295"), None);
        assert_eq!(list("x"), None);
    }
}
