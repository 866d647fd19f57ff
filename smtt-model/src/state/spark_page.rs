//! A Spark page, or a grant of execution memory without a page, of one executor.

use super::bytes::HeapBytes;
use super::memory_held::{MemoryHeld, off_heap};
use super::placement::{OwnerRanges, RangesId};
use crate::attribute::RddKey;

/// Key of a piece of execution memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SparkPageKey {
    /// A Spark page, by task attempt and Spark's page number.
    SparkPage(Option<u64>, u64),
    /// Bytes granted without a page, by task attempt and consumer.
    Grant(Option<u64>, String),
}

/// A Spark page or a grant of execution memory.
#[derive(Clone, Debug)]
pub struct SparkPage {
    pub(super) serial: u64,
    /// RDD that was current at the allocation.
    pub rdd: RddKey,
    /// Task attempt that owns the memory.
    pub task: Option<u64>,
    /// Address of the memory; zero where it has none.
    pub address: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Whether the memory is on the Java heap.
    pub on_heap: bool,
    /// Class of the consumer that allocated the memory.
    pub consumer: String,
    /// Whether the address is in the address map.
    pub(super) placed: bool,
    pub(super) told_ns: u64,
    /// Resync in which the grant was last reported, so that several grants of one consumer add up once.
    pub(super) told_in: Option<u64>,
}

impl HeapBytes for SparkPageKey {
    fn heap_bytes(&self) -> usize {
        match self {
            Self::SparkPage(..) => 0,
            Self::Grant(_, consumer) => consumer.capacity(),
        }
    }
}

impl HeapBytes for SparkPage {
    fn heap_bytes(&self) -> usize {
        self.consumer.capacity()
    }
}

/// Memory held by a Spark page or grant of this size.
pub(super) fn held_by_page(on_heap: bool, bytes: u64) -> MemoryHeld {
    MemoryHeld {
        execution_bytes: bytes,
        pages: 1,
        execution_off_heap_bytes: off_heap(on_heap, bytes),
        ..MemoryHeld::default()
    }
}

impl SparkPage {
    /// Time of the last report about the memory or its address, in nanoseconds since boot.
    #[must_use]
    pub const fn told_ns(&self) -> u64 {
        self.told_ns
    }

    /// Serial number, unique among the blocks and Spark pages of the executor.
    #[must_use]
    pub const fn serial(&self) -> u64 {
        self.serial
    }

    /// Identity of the memory at its address; `None` where it has none.
    #[must_use]
    pub fn ranges_id(&self) -> Option<RangesId> {
        OwnerRanges::at(self.address, self.size_bytes).ranges_id(self.serial)
    }

    /// Memory that it holds.
    pub(super) fn held(&self) -> MemoryHeld {
        held_by_page(self.on_heap, self.size_bytes)
    }
}
