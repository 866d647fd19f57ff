//! Where the memory of an executor's processes is: what the marker reports of the JVM, and what the kernel reports.

use serde::{Deserialize, Serialize};
use smtt_common::event::memory::{MEMORY_FIGURES, MemoryFigure, PeakMetric};

use super::State;
use crate::decode::MemoryReported;

/// A figure that was not reported.
const ABSENT: u64 = u64::MAX;

/// Memory of one process by the kernel's own counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// `VmRSS`: the sum of the next three.
    pub resident_bytes: u64,
    /// `RssAnon`.
    pub anonymous_bytes: u64,
    /// `RssFile`.
    pub file_bytes: u64,
    /// `RssShmem`.
    pub shared_bytes: u64,
    /// `VmHWM`: the most that was resident.
    pub resident_peak_bytes: u64,
    /// `VmSize`.
    pub virtual_bytes: u64,
    /// `VmPeak`.
    pub virtual_peak_bytes: u64,
    /// `VmSwap`.
    pub swapped_bytes: u64,
}

/// Kind of a child process, by its name, as Spark's process tree divides them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildKind {
    /// A JVM.
    Java,
    /// A Python process.
    Python,
    /// Any other.
    Other,
}

/// A child process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildMemory {
    /// Process id in the initial pid namespace.
    pub pid: u32,
    /// Process id in its own pid namespace.
    pub inner_pid: u32,
    /// Name of the program, at most 15 bytes.
    pub name: String,
    /// Kind, by its name.
    pub kind: ChildKind,
    /// Its memory.
    pub memory: ProcessMemory,
}

/// Memory of a control group with everything in it, by the kernel's own counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupMemory {
    /// Path below the controller's mount.
    pub path: String,
    /// Version of the control groups: 1 or 2.
    pub version: u8,
    /// `memory.current`, or `memory.usage_in_bytes`.
    pub current_bytes: u64,
    /// Smallest `memory.max` (`memory.limit_in_bytes`) of the group and those above it; `None` without a limit.
    pub limit_bytes: Option<u64>,
    /// `memory.peak`, or `memory.max_usage_in_bytes`.
    pub peak_bytes: Option<u64>,
    /// Anonymous memory.
    pub anonymous_bytes: u64,
    /// Page cache, shared memory included.
    pub file_bytes: u64,
    /// Shared memory and tmpfs.
    pub shared_bytes: u64,
    /// Memory of the kernel for the group: stacks, page tables, slabs, sockets.
    pub kernel_bytes: Option<u64>,
}

/// What the kernel reports of an executor's processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelMemory {
    /// The JVM.
    pub process: ProcessMemory,
    /// Its descendants that are alive.
    pub children: Vec<ChildMemory>,
    /// Descendants that were not read, beyond the limit of one reading.
    pub children_unread: u64,
    /// The JVM's control group; `None` in the root group.
    pub cgroup: Option<CgroupMemory>,
}

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryUsage {
    latest: [u64; MEMORY_FIGURES],
    examined: [u64; MEMORY_FIGURES],
    /// Time of the last examination of the resident parts, in nanoseconds since boot.
    pub examined_ns: Option<u64>,
    /// Whether the memory overhead is Spark's default.
    pub overhead_is_default: bool,
    /// What the kernel reports.
    pub kernel: Option<Box<KernelMemory>>,
    /// Time of that reading, in nanoseconds since boot.
    pub kernel_ns: u64,
}

impl Default for MemoryUsage {
    fn default() -> Self {
        Self {
            latest: [ABSENT; MEMORY_FIGURES],
            examined: [ABSENT; MEMORY_FIGURES],
            examined_ns: None,
            overhead_is_default: false,
            kernel: None,
            kernel_ns: 0,
        }
    }
}

impl MemoryUsage {
    /// The last value of a figure.
    #[must_use]
    pub fn latest(&self, figure: MemoryFigure) -> Option<u64> {
        known(&self.latest, figure)
    }

    /// The value of a figure at the last examination.
    #[must_use]
    pub fn examined(&self, figure: MemoryFigure) -> Option<u64> {
        known(&self.examined, figure)
    }

    /// The marker reported figures.
    pub(super) fn reported(&mut self, reported: &MemoryReported, now_ns: u64) {
        self.overhead_is_default = reported.overhead_is_default;
        for figure in &reported.figures {
            let named = MemoryFigure(figure.code).name().is_some();
            if let Some(latest) = self
                .latest
                .get_mut(usize::from(figure.code))
                .filter(|_| named)
            {
                *latest = figure.value;
            }
        }
        if reported.examined {
            self.examined = self.latest;
            self.examined_ns = Some(now_ns);
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.kernel.as_ref().map_or(0, |kernel| {
            let names = kernel.children.iter().map(|child| child.name.capacity());
            size_of::<KernelMemory>()
                + kernel.children.capacity() * size_of::<ChildMemory>()
                + names.sum::<usize>()
                + kernel
                    .cgroup
                    .as_ref()
                    .map_or(0, |group| group.path.capacity())
        })
    }
}

fn known(figures: &[u64; MEMORY_FIGURES], figure: MemoryFigure) -> Option<u64> {
    figures
        .get(usize::from(figure.0))
        .copied()
        .filter(|value| *value != ABSENT)
}

/// An executor whose processes are to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryTargets {
    /// Key of the executor.
    pub executor: u64,
    /// Process id of its JVM.
    pub pid: u32,
    /// Its descendants.
    pub children: Vec<Child>,
}

/// A descendant of an executor. Its process id may be used again where its end was not reported: a process that began
/// after the report of this one's birth is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child {
    /// Process id.
    pub pid: u32,
    /// Time of the report of its birth, in nanoseconds since boot.
    pub told_ns: u64,
}

impl State {
    /// Living executors, with at most `children_max` children each.
    #[must_use]
    pub fn memory_targets(&self, children_max: usize) -> Vec<MemoryTargets> {
        let living = self.executors().iter();
        let living = living.filter(|(_, executor)| executor.died_ns.is_none());
        living
            .map(|(key, executor)| MemoryTargets {
                executor: *key,
                pid: executor.pid,
                children: executor.children(children_max),
            })
            .collect()
    }

    /// Removes descendants of an executor that have ended: their ends were not reported.
    pub fn children_gone(&mut self, executor: u64, gone: &[Child]) {
        self.change_known(executor, |executor, _| {
            for child in gone {
                if executor.children.get(&child.pid) == Some(&child.told_ns) {
                    executor.children.remove(&child.pid);
                }
            }
        });
    }

    /// Takes what the kernel reports of an executor's processes at a time.
    pub fn set_memory(&mut self, executor: u64, mut kernel: KernelMemory, now_ns: u64) {
        self.change_known(executor, |executor, caps| {
            if executor.died_ns.is_some() {
                return;
            }
            kernel.children_unread = executor
                .children
                .len()
                .saturating_sub(kernel.children.len()) as u64;
            let process = &kernel.process;
            let mut children = Vec::new();
            for (kind, resident, virtual_bytes) in [
                (
                    ChildKind::Python,
                    PeakMetric::PYTHON_RESIDENT,
                    PeakMetric::PYTHON_VIRTUAL,
                ),
                (
                    ChildKind::Other,
                    PeakMetric::OTHER_RESIDENT,
                    PeakMetric::OTHER_VIRTUAL,
                ),
            ] {
                let of = kernel.children.iter().filter(|child| child.kind == kind);
                let (mut sum, mut size) = (0_u64, 0_u64);
                for child in of {
                    sum = sum.saturating_add(child.memory.resident_bytes);
                    size = size.saturating_add(child.memory.virtual_bytes);
                }
                children.extend([(resident, sum), (virtual_bytes, size)]);
            }
            let seen = |resident, size| {
                let jvm = [
                    (PeakMetric::JVM_RESIDENT, resident),
                    (PeakMetric::JVM_VIRTUAL, size),
                ];
                jvm.into_iter().chain(children.iter().copied())
            };
            for (metric, value) in seen(process.resident_peak_bytes, process.virtual_peak_bytes) {
                executor.peaks.see(metric, value, now_ns);
            }
            // A stage that ran at the reading before has the high-water marks that rose since then.
            let before_ns = executor.usage.kernel_ns;
            let before = executor.usage.kernel.as_ref().map(|before| before.process);
            let risen = |mark: u64, known: Option<u64>, now: u64| match known {
                Some(known) if known < mark => mark,
                _ => now,
            };
            let since = seen(
                risen(
                    process.resident_peak_bytes,
                    before.map(|before| before.resident_peak_bytes),
                    process.resident_bytes,
                ),
                risen(
                    process.virtual_peak_bytes,
                    before.map(|before| before.virtual_peak_bytes),
                    process.virtual_bytes,
                ),
            );
            let since: Vec<_> = since.collect();
            let now: Vec<_> = seen(process.resident_bytes, process.virtual_bytes).collect();
            executor
                .tasks
                .processes_seen(&now, &since, before_ns, now_ns, caps);
            executor.workers_seen(&kernel);
            let before = executor.usage.heap_bytes();
            executor.usage.kernel_ns = now_ns;
            executor.usage.kernel = Some(Box::new(kernel));
            let after = executor.usage.heap_bytes();
            // Without room the children are left out: the JVM's own figures have a fixed size.
            if after > before
                && !caps.admit(after - before)
                && let Some(kernel) = &mut executor.usage.kernel
            {
                kernel.children_unread += kernel.children.len() as u64;
                kernel.children = Vec::new();
            }
        });
    }
}

/// The container whose cgroup has this path: an id of 64 hexadecimal digits (`/kubepods/pod.../ID`,
/// `.../docker-ID.scope`), or a container of YARN (`/hadoop-yarn/container_...`). Of nested ones it is the outermost, because
/// a container names those inside. What a user's own service manager runs (`user@1000.service/...`) is named by that user and
/// counts as none.
pub(super) fn container_id(path: &str) -> Option<&str> {
    let of_machine = |name: &&str| !name.starts_with("user@");
    path.split('/').take_while(of_machine).find_map(|name| {
        let name = name.strip_suffix(".scope").unwrap_or(name);
        let is_yarn = name.strip_prefix("container_").is_some_and(|rest| {
            rest.starts_with(|first: char| first == 'e' || first.is_ascii_digit())
        });
        let id = name.rsplit_once('-').map_or(name, |(_, id)| id);
        let is_id = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        match (is_yarn, is_id) {
            (true, _) => Some(name),
            (false, true) => Some(id),
            (false, false) => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::container_id;

    #[test]
    fn containers_are_found_in_the_names_of_cgroups() {
        let id = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
        for path in [
            format!("kubepods/burstable/pod5f7b1a1e-6c1c-4c5b-9d35-8a8f6f6a1b0c/{id}"),
            format!("kubepods.slice/kubepods-pod5f7b.slice/cri-containerd-{id}.scope"),
            format!("system.slice/docker-{id}.scope"),
            format!("machine.slice/libpod-{id}.scope/container"),
            format!("system.slice/docker-{id}.scope/docker/{}", "0".repeat(64)),
        ] {
            assert_eq!(container_id(&path), Some(id), "{path}");
        }
        let claimed =
            format!("user.slice/user-1000.slice/user@1000.service/app.slice/docker-{id}.scope");
        assert_eq!(container_id(&claimed), None);
        let yarn = "container_e17_1410901177871_0001_01_000005";
        assert_eq!(container_id(&format!("hadoop-yarn/{yarn}")), Some(yarn));
        for path in [
            "",
            "user.slice/user-1000.slice/session-3.scope",
            "container_",
            &id[1..],
        ] {
            assert_eq!(container_id(path), None, "{path}");
        }
    }
}
