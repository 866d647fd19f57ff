//! Reads the surroundings of the executors: settings of the kernel, nodes, swap, and the options of each JVM.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use smtt_model::advise::surroundings::{Process, Surroundings};
use smtt_model::sort::small::Gather as _;

use crate::cpu::list;
use crate::proc::stat;

/// Prefixes of the options that are kept. Everything else on a command line may be secret and is dropped.
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

/// Most bytes of a command line that are read.
const COMMAND_LINE_MAX: u64 = 1 << 20;

/// Reads the machine with the root folder `root`, and the processes with these ids without their options: no file that
/// is read here lies in a process's own memory.
#[must_use]
pub fn read(root: &Path, pids: &[u32]) -> Surroundings {
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
    Surroundings {
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
            .gather(),
    }
}

/// The word in brackets: the selected one of several.
fn chosen(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word)
}

/// The first number of a text.
fn number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
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
    let times = fs::read(folder.join("stat"))
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
        options: None,
        options_unread: None,
        user_ns: times.map(|(user, _)| user),
        system_ns: times.map(|(_, system)| system),
        swapped_bytes: line("VmSwap")
            .and_then(number)
            .map(|kib| kib.saturating_mul(1024)),
    }
}

/// Reads the JVM options of a process. The command line lies in the memory of the process, which can let the reader wait
/// for any time: call it where nothing else waits.
///
/// # Errors
/// When the process has ended or has no command line.
pub fn options(root: &Path, pid: u32) -> io::Result<Vec<String>> {
    let mut line = Vec::new();
    fs::File::open(root.join(format!("proc/{pid}/cmdline")))?
        .take(COMMAND_LINE_MAX)
        .read_to_end(&mut line)?;
    if line.is_empty() {
        return Err(io::Error::other("it has no command line"));
    }
    Ok(options_of(&line))
}

/// The relevant options of a command line with zeros between its words.
fn options_of(line: &[u8]) -> Vec<String> {
    line.split(|byte| *byte == 0)
        .map(String::from_utf8_lossy)
        // The words after the class belong to the application.
        .take_while(|word| !word.starts_with("org.apache.spark."))
        .filter(|word| OPTIONS.iter().any(|beginning| word.starts_with(beginning)))
        .filter(|word| word.len() < 64)
        .map(std::borrow::Cow::into_owned)
        .collect()
}

/// CPU time in user mode and in the kernel, in nanoseconds, from the text of `/proc/PID/stat`.
fn times(text: &[u8]) -> Option<(u64, u64)> {
    let stat = stat(text)?;
    let tick_ns = 1_000_000_000 / procfs::ticks_per_second().max(1);
    let ns = |ticks: u64| ticks.checked_mul(tick_ns);
    Some((ns(stat.utime)?, ns(stat.stime)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_and_this_process_can_be_read() {
        let own = std::process::id();
        let found = read(Path::new("/"), &[own]);
        assert!(found.memory_bytes > Some(1 << 20), "{found:?}");
        let process = found.processes.get(&own).expect("we live");
        assert!(process.cpus > Some(0), "{process:?}");
        assert!(process.user_ns.is_some() && process.system_ns.is_some());
        let options = options(Path::new("/"), own).expect("we live");
        assert!(options.is_empty(), "we are no JVM: {options:?}");
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
        let found = read(root.path(), &[7, 8, 9]);
        assert_eq!(found.transparent_huge_pages.as_deref(), Some("madvise"));
        assert_eq!(
            found.transparent_huge_pages_defrag, None,
            "absent, not a guess"
        );
        assert_eq!(
            (found.memory_bytes, found.reserved_huge_pages_free),
            (Some(2 << 20), Some(7))
        );
        assert_eq!(
            (found.swap_bytes, found.swap_used_bytes),
            (Some(102_400), Some(61_440))
        );
        assert_eq!(found.nodes.as_deref(), Some(&[0, 1][..]));
        assert!(!found.processes.contains_key(&9));
        let mut bound = found.processes[&7].clone();
        bound.options = options(root.path(), 7).ok();
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
        assert!(options(root.path(), 8).is_err());
        let free = &found.processes[&8];
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
        let found = read(root.path(), &[7, 8, 9, 10]);
        assert_eq!(found.nodes.as_deref(), Some(&[0, 1, 3][..]));
        assert_eq!(found.nodes_with_cpus.as_deref(), Some(&[0][..]));
        let bound = |pid| found.processes[&pid].bound_to_a_node();
        assert_eq!(bound(7), Some(true));
        assert_eq!(bound(8), Some(false), "its CPU has no memory of its own");
        assert_eq!(bound(9), Some(false), "its memory has no CPU of its own");
        assert_eq!(bound(10), Some(false));
        // A kernel without nodes.
        let found = read(&root.path().join("proc"), &[]);
        assert_eq!((found.nodes, found.nodes_with_cpus), (None, None));
    }
}
