//! Where the memory of each executor is, as rows that add up.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use smtt_common::event::memory::{MemoryFigure, PeakMetric};

use super::{ExecutorId, ExecutorState, Filter, Listing};
use crate::sort::small::Gather as _;
use crate::state::memory_parts::{Part, Parts, divided};
use crate::state::{ChildKind, Executor, KernelMemory, MemoryUsage, Peaks, State};

/// Memory of one executor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryRow {
    /// Identity of the executor.
    #[serde(flatten)]
    pub who: ExecutorId,
    /// Whether the executor's process is alive.
    pub state: ExecutorState,
    /// Resident memory of the JVM, `VmRSS`: the sum of `parts`. Absent where the kernel was not asked.
    pub resident_bytes: Option<u64>,
    /// Age of the kernel's figures, in nanoseconds.
    pub age_ns: Option<u64>,
    /// Age of the parts that are anonymous memory, in nanoseconds: they were examined together. Absent where the marker
    /// has not reported them; then anonymous memory is one part.
    pub examined_age_ns: Option<u64>,
    /// CPU time of that examination in the executor, in nanoseconds.
    pub examination_ns: Option<u64>,
    /// Parts of the JVM's resident memory.
    pub parts: Vec<MemoryPart>,
    /// Committed bytes of the heap, resident or not.
    pub heap_committed_bytes: Option<u64>,
    /// Threads of the JVM at the last examination.
    pub threads: Option<u64>,
    /// Live child processes.
    pub children: Vec<ChildRow>,
    /// Child processes that were not read.
    pub children_unread: u64,
    /// The control group; absent in the root group.
    pub cgroup: Option<CgroupRow>,
    /// Limits, and what is free to each.
    pub limits: Vec<LimitRow>,
    /// Peaks by Spark's names of the metrics.
    pub peaks: BTreeMap<String, PeakRow>,
}

/// A part of a sum.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPart {
    /// Name of the part.
    pub name: String,
    /// Bytes. Negative where other parts count the same bytes, or where memory was given back since the examination.
    pub bytes: i64,
    /// Whether Spark estimated it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
}

/// A child process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildRow {
    /// Process id on the host.
    pub pid: u32,
    /// Name of the program.
    pub name: String,
    /// Kind, by its name.
    pub kind: ChildKind,
    /// Resident memory. Pages that processes share after a fork count in each.
    pub resident_bytes: u64,
    /// The most that was resident.
    pub resident_peak_bytes: u64,
    /// Anonymous part of the resident memory.
    pub anonymous_bytes: u64,
}

/// A control group with its parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupRow {
    /// Path below the controller's mount.
    pub path: String,
    /// Version of the control groups.
    pub version: u8,
    /// Memory of the group: the sum of `parts`.
    pub current_bytes: u64,
    /// The most that it had.
    pub peak_bytes: Option<u64>,
    /// Its limit, or that of a group above it.
    pub limit_bytes: Option<u64>,
    /// Parts of the group's memory.
    pub parts: Vec<MemoryPart>,
}

/// A limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitRow {
    /// Name of the limit.
    pub name: String,
    /// The limit.
    pub limit_bytes: u64,
    /// What counts against it; absent where that was not measured.
    pub used_bytes: Option<u64>,
    /// What is free; negative where the limit is exceeded.
    pub free_bytes: Option<i64>,
    /// Whether it is a default, not configured.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_default: bool,
}

/// A peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeakRow {
    /// The highest value: bytes, collections, or milliseconds, as in Spark.
    pub value: u64,
    /// Time since it was reached or first seen, in nanoseconds.
    pub age_ns: u64,
}

/// Peaks by Spark's names.
#[must_use]
pub fn peaks(of: &Peaks, now_ns: u64) -> BTreeMap<String, PeakRow> {
    let row = |metric: &PeakMetric| {
        let peak = of.of(*metric)?;
        let row = PeakRow {
            value: peak.value,
            age_ns: now_ns.saturating_sub(peak.time_ns),
        };
        Some((metric.name()?.to_owned(), row))
    };
    PeakMetric::ALL.iter().filter_map(row).gather()
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl Parts {
    fn rows(self) -> Vec<MemoryPart> {
        self.0.into_iter().map(Into::into).collect()
    }
}

impl From<Part> for MemoryPart {
    fn from(part: Part) -> Self {
        Self {
            name: part.name.to_owned(),
            bytes: part.bytes,
            estimated: part.estimated,
        }
    }
}

fn cgroup(kernel: &KernelMemory) -> Option<CgroupRow> {
    let group = kernel.cgroup.as_ref()?;
    let mut parts = Parts::default();
    let of = |kind| {
        let of = kernel
            .children
            .iter()
            .filter(move |child| child.kind == kind);
        of.fold(0_u64, |sum, child| {
            sum.saturating_add(child.memory.anonymous_bytes)
        })
    };
    parts.add("jvm", signed(kernel.process.anonymous_bytes));
    for (name, kind) in [
        ("python_workers", ChildKind::Python),
        ("child_jvms", ChildKind::Java),
        ("other_children", ChildKind::Other),
    ] {
        if kernel.children.iter().any(|child| child.kind == kind) {
            parts.add(name, signed(of(kind)));
        }
    }
    // Pages that processes share after a fork count in each process and once in the group.
    let others = parts.rest(group.anonymous_bytes);
    let name = if others < 0 {
        "counted_in_several_processes"
    } else {
        "other_processes"
    };
    parts.add(name, others);
    parts.add(
        "page_cache",
        signed(group.file_bytes.saturating_sub(group.shared_bytes)),
    );
    parts.add("shared_memory", signed(group.shared_bytes));
    parts.known("kernel", group.kernel_bytes);
    let rest = parts.rest(group.current_bytes);
    parts.add("not_explained", rest);
    Some(CgroupRow {
        path: group.path.clone(),
        version: group.version,
        current_bytes: group.current_bytes,
        peak_bytes: group.peak_bytes,
        limit_bytes: group.limit_bytes,
        parts: parts.rows(),
    })
}

/// Limits of an executor's memory in bytes, by the names of their settings.
#[must_use]
pub fn memory_limits(usage: &MemoryUsage) -> Vec<(String, u64)> {
    let limits = limits(usage).into_iter();
    limits.map(|row| (row.name, row.limit_bytes)).collect()
}

fn limits(usage: &MemoryUsage) -> Vec<LimitRow> {
    use MemoryFigure as F;
    let of = |figure| usage.latest(figure);
    let sum = |figures: &[MemoryFigure]| {
        figures
            .iter()
            .map(|figure| of(*figure))
            .try_fold(0_u64, |sum, bytes| Some(sum.saturating_add(bytes?)))
    };
    let kernel = usage.kernel.as_deref();
    let python = kernel.map(|kernel| {
        let of = kernel
            .children
            .iter()
            .filter(|child| child.kind == ChildKind::Python);
        of.fold(0_u64, |sum, child| {
            sum.saturating_add(child.memory.resident_bytes)
        })
    });
    // What Spark's overhead is for: everything that is resident beside the heap and beside the memory with a limit of
    // its own, in this process and its children.
    let outside = kernel
        .zip(usage.examined(F::HEAP_RESIDENT))
        .map(|(kernel, heap)| {
            let children = kernel
                .children
                .iter()
                .map(|child| child.memory.resident_bytes);
            let all = children.fold(kernel.process.resident_bytes, u64::saturating_add);
            let spark = [F::STORAGE_OFF_HEAP_RESIDENT, F::EXECUTION_OFF_HEAP_RESIDENT];
            let spark = spark
                .iter()
                .filter_map(|figure| usage.examined(*figure))
                .fold(0, u64::saturating_add);
            let own = python
                .filter(|_| of(F::PYSPARK_MEMORY).is_some())
                .unwrap_or(0);
            all.saturating_sub(heap)
                .saturating_sub(spark)
                .saturating_sub(own)
        });
    let group = kernel.and_then(|kernel| kernel.cgroup.as_ref());
    let row = |name: &str, limit: Option<u64>, used: Option<u64>| {
        let limit_bytes = limit?;
        Some(LimitRow {
            name: name.to_owned(),
            limit_bytes,
            used_bytes: used,
            free_bytes: used.map(|used| signed(limit_bytes).saturating_sub(signed(used))),
            is_default: false,
        })
    };
    let overhead = row(
        "spark.executor.memoryOverhead",
        of(F::MEMORY_OVERHEAD),
        outside,
    );
    let off_heap = sum(&[F::EXECUTION_OFF_HEAP, F::STORAGE_OFF_HEAP]);
    [
        row("-Xmx", of(F::HEAP_MAX), of(F::HEAP_USED)),
        row(
            "spark.executor.memory",
            of(F::EXECUTOR_MEMORY),
            of(F::HEAP_COMMITTED),
        ),
        overhead.map(|row| LimitRow {
            is_default: usage.overhead_is_default,
            ..row
        }),
        row("spark.memory.offHeap.size", of(F::OFF_HEAP_SIZE), off_heap),
        row(
            "spark.executor.pyspark.memory",
            of(F::PYSPARK_MEMORY),
            python,
        ),
        row("-XX:MaxDirectMemorySize", of(F::DIRECT_MAX), of(F::DIRECT)),
        row(
            "memory.max",
            group.and_then(|group| group.limit_bytes),
            group.map(|group| group.current_bytes),
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

impl State {
    /// Memory of the executors that the filter selects.
    #[must_use]
    pub fn list_memory(&self, filter: &Filter) -> Listing<MemoryRow> {
        self.listing(filter, |_, executor, rows| {
            rows.push(memory_row(executor, &executor.usage, self.now_ns()))
        })
    }
}

/// Memory of an executor at a time, by what was known of its processes then.
#[must_use]
pub(crate) fn memory_row(executor: &Executor, usage: &MemoryUsage, now_ns: u64) -> MemoryRow {
    let kernel = usage.kernel.as_deref();
    let age = |time_ns: u64| now_ns.saturating_sub(time_ns);
    MemoryRow {
        who: ExecutorId::new(executor),
        state: if executor.died_ns.is_some() {
            ExecutorState::Dead
        } else {
            ExecutorState::Alive
        },
        resident_bytes: kernel.map(|kernel| kernel.process.resident_bytes),
        age_ns: kernel.map(|_| age(usage.kernel_ns)),
        examined_age_ns: usage.examined_ns.map(age),
        examination_ns: usage.latest(MemoryFigure::EXAMINATION_NS),
        parts: kernel.map_or_else(Vec::new, |kernel| {
            divided(usage, kernel).into_iter().map(Into::into).collect()
        }),
        heap_committed_bytes: usage.latest(MemoryFigure::HEAP_COMMITTED),
        threads: usage.latest(MemoryFigure::THREADS),
        children: kernel.map_or_else(Vec::new, |kernel| {
            let row = |child: &crate::state::ChildMemory| ChildRow {
                pid: child.pid,
                name: child.name.clone(),
                kind: child.kind,
                resident_bytes: child.memory.resident_bytes,
                resident_peak_bytes: child.memory.resident_peak_bytes,
                anonymous_bytes: child.memory.anonymous_bytes,
            };
            kernel.children.iter().map(row).collect()
        }),
        children_unread: kernel.map_or(0, |kernel| kernel.children_unread),
        cgroup: kernel.and_then(cgroup),
        limits: limits(usage),
        peaks: peaks(&executor.peaks, now_ns),
    }
}
