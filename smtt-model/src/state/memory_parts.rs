//! The resident memory of an executor's JVM in parts that add up, and how the parts were over the last two minutes.

use std::collections::VecDeque;

use smtt_common::event::memory::MemoryFigure;

use super::bytes::Caps;
use super::memory_usage::{KernelMemory, MemoryUsage};

/// Names of the parts, and what they are called in a text.
pub const PARTS: &[(&str, &str)] = &[
    ("heap_storage", "heap: Spark storage"),
    ("heap_execution", "heap: Spark execution"),
    ("heap_other_objects", "heap: other objects and garbage"),
    ("heap_free", "heap: free, but resident"),
    ("off_heap_storage", "Spark storage off heap"),
    ("off_heap_execution", "Spark execution off heap"),
    ("direct_buffers", "direct buffers"),
    ("metaspace", "metaspace"),
    ("code_cache", "code cache"),
    ("thread_stacks", "thread stacks"),
    ("native_not_explained", "native, not explained"),
    ("heap_and_native", "heap and native, not divided"),
    ("since_examined", "touched since the examination"),
    ("mapped_files", "files: libraries, jars, mapped buffers"),
    ("shared_memory", "shared memory"),
];

/// Divisions of an executor's memory that are kept, and the time between two of them in nanoseconds: two minutes.
const KEPT: usize = 8;
const KEPT_EVERY_NS: u64 = 15_000_000_000;

/// A part of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Name of the part.
    pub name: &'static str,
    /// Bytes. Negative where other parts count the same bytes, or where memory was given back since the examination.
    pub bytes: i64,
    /// Whether Spark estimated it.
    pub estimated: bool,
}

/// Collects the parts of a sum.
#[derive(Default)]
pub(crate) struct Parts(pub(crate) Vec<Part>);

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl Parts {
    pub(crate) fn add(&mut self, name: &'static str, bytes: i64) {
        self.0.push(Part {
            name,
            bytes,
            estimated: false,
        });
    }

    pub(crate) fn known(&mut self, name: &'static str, bytes: Option<u64>) {
        if let Some(bytes) = bytes {
            self.add(name, signed(bytes));
        }
    }

    /// The rest of a sum: what its parts leave.
    pub(crate) fn rest(&self, sum: u64) -> i64 {
        let parts = self.0.iter();
        parts.fold(signed(sum), |rest, part| rest.saturating_sub(part.bytes))
    }
}

/// Parts of the JVM's anonymous memory at the examination; `None` before the first one.
fn anonymous(usage: &MemoryUsage) -> Option<(u64, Parts)> {
    use MemoryFigure as F;
    let of = |figure| usage.examined(figure);
    let sum = of(F::ANONYMOUS)?;
    let mut parts = Parts::default();
    if let (Some(resident), Some(used)) = (of(F::HEAP_RESIDENT), of(F::HEAP_USED)) {
        let used = used.min(resident);
        // Spark estimates the size of objects: no estimate exceeds what there is.
        let storage = of(F::STORAGE_ON_HEAP).map(|storage| storage.min(used));
        let left = used - storage.unwrap_or(0);
        let execution = of(F::EXECUTION_ON_HEAP).map(|execution| execution.min(left));
        for (name, bytes) in [("heap_storage", storage), ("heap_execution", execution)] {
            parts.known(name, bytes);
            if let Some(part) = parts.0.last_mut().filter(|_| bytes.is_some()) {
                part.estimated = true;
            }
        }
        let others = left - execution.unwrap_or(0);
        parts.add("heap_other_objects", signed(others));
        parts.add("heap_free", signed(resident - used));
    }
    parts.known("off_heap_storage", of(F::STORAGE_OFF_HEAP_RESIDENT));
    parts.known("off_heap_execution", of(F::EXECUTION_OFF_HEAP_RESIDENT));
    parts.known("direct_buffers", of(F::DIRECT));
    parts.known("metaspace", of(F::METASPACE));
    parts.known("code_cache", of(F::CODE_RESIDENT).or(of(F::CODE_COMMITTED)));
    parts.known("thread_stacks", of(F::STACKS_RESIDENT));
    let name = if of(F::HEAP_RESIDENT).is_some() {
        "native_not_explained"
    } else {
        "heap_and_native"
    };
    parts.add(name, parts.rest(sum));
    Some((sum, parts))
}

/// Parts of the JVM's resident memory.
#[must_use]
pub(crate) fn divided(usage: &MemoryUsage, kernel: &KernelMemory) -> Vec<Part> {
    let process = &kernel.process;
    let mut parts = match anonymous(usage) {
        Some((then, mut parts)) => {
            let since = signed(process.anonymous_bytes).saturating_sub(signed(then));
            parts.add("since_examined", since);
            parts
        }
        None => {
            let mut parts = Parts::default();
            parts.add("heap_and_native", signed(process.anonymous_bytes));
            parts
        }
    };
    parts.add("mapped_files", signed(process.file_bytes));
    parts.add("shared_memory", signed(process.shared_bytes));
    parts.0
}

/// A division as it is kept: bytes in KiB in the order of [`PARTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Division {
    time_ns: u64,
    kib: [i32; PARTS.len()],
}

/// Stands for a part that was not measured.
const ABSENT: i32 = i32::MIN;

/// The last divisions of an executor's memory, the oldest first.
#[derive(Clone, Debug, Default)]
pub struct Divisions(VecDeque<Division>);

impl Divisions {
    /// Bytes outside of the struct itself.
    pub(super) fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<Division>()
    }

    /// Keeps the division of this moment where the last one is old enough; the oldest one gives way.
    pub(super) fn keep(&mut self, usage: &MemoryUsage, now_ns: u64, caps: &Caps) {
        let due = |last: &Division| now_ns >= last.time_ns.saturating_add(KEPT_EVERY_NS);
        let Some(kernel) = usage.kernel.as_deref() else {
            return;
        };
        if !self.0.back().is_none_or(due) {
            return;
        }
        if self.0.len() >= KEPT {
            self.0.pop_front();
        } else if self.0.capacity() == 0 {
            if !caps.admit(KEPT * size_of::<Division>()) {
                return;
            }
            self.0.reserve_exact(KEPT);
        }
        let mut kib = [ABSENT; PARTS.len()];
        for part in divided(usage, kernel) {
            if let Some(at) = PARTS.iter().position(|(name, _)| *name == part.name) {
                let of = part.bytes >> 10;
                kib[at] = of.clamp(i64::from(ABSENT + 1), i64::from(i32::MAX)) as i32;
            }
        }
        self.0.push_back(Division {
            time_ns: now_ns,
            kib,
        });
    }

    /// Bytes of each part when it was first measured, in the last two minutes.
    #[must_use]
    pub fn first(&self) -> Vec<(&'static str, i64)> {
        let of = |(at, (name, _)): (usize, &(&'static str, &str))| {
            let mut all = self.0.iter().map(|division| division.kib[at]);
            let first = all.find(|kib| *kib != ABSENT)?;
            Some((*name, i64::from(first) << 10))
        };
        PARTS.iter().enumerate().filter_map(of).collect()
    }
}

/// What a part is called in a text.
#[must_use]
pub fn part_text(name: &str) -> &str {
    let found = PARTS.iter().find(|(known, _)| *known == name);
    found.map_or(name, |(_, text)| text)
}
