//! Sums of memory of one RDD or of an executor.

/// Memory that one RDD holds. Off-heap bytes never exceed all bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryHeld {
    /// Bytes of the RDD's blocks in memory.
    pub storage_bytes: u64,
    /// Blocks of the RDD in memory.
    pub blocks: u64,
    /// Blocks stored as objects, whose size is Spark's estimate. Part of `blocks`.
    pub estimated_blocks: u64,
    /// Bytes of execution memory allocated while the RDD was current.
    pub execution_bytes: u64,
    /// Spark pages and grants in `execution_bytes`.
    pub pages: u64,
    /// Bytes of blocks outside of the Java heap. Part of `storage_bytes`.
    pub storage_off_heap_bytes: u64,
    /// Bytes of execution memory outside of the Java heap. Part of `execution_bytes`.
    pub execution_off_heap_bytes: u64,
}

impl MemoryHeld {
    /// Whether nothing is held.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.blocks == 0 && self.pages == 0
    }

    /// Adds the memory of another sum.
    pub fn add(&mut self, more: &Self) {
        self.storage_bytes = self.storage_bytes.saturating_add(more.storage_bytes);
        self.blocks += more.blocks;
        self.estimated_blocks += more.estimated_blocks;
        self.execution_bytes = self.execution_bytes.saturating_add(more.execution_bytes);
        self.pages += more.pages;
        self.storage_off_heap_bytes = self
            .storage_off_heap_bytes
            .saturating_add(more.storage_off_heap_bytes);
        self.execution_off_heap_bytes = self
            .execution_off_heap_bytes
            .saturating_add(more.execution_off_heap_bytes);
    }

    /// Subtracts memory that is no longer held.
    pub(super) fn take(&mut self, less: &Self) {
        self.storage_bytes = self.storage_bytes.saturating_sub(less.storage_bytes);
        self.blocks = self.blocks.saturating_sub(less.blocks);
        self.estimated_blocks = self.estimated_blocks.saturating_sub(less.estimated_blocks);
        self.execution_bytes = self.execution_bytes.saturating_sub(less.execution_bytes);
        self.pages = self.pages.saturating_sub(less.pages);
        self.storage_off_heap_bytes = self
            .storage_off_heap_bytes
            .saturating_sub(less.storage_off_heap_bytes);
        self.execution_off_heap_bytes = self
            .execution_off_heap_bytes
            .saturating_sub(less.execution_off_heap_bytes);
        // After saturation the sum is too small; keep it at least as large as its off-heap part.
        self.storage_bytes = self.storage_bytes.max(self.storage_off_heap_bytes);
        self.execution_bytes = self.execution_bytes.max(self.execution_off_heap_bytes);
    }
}

/// The off-heap part of `bytes`: all or nothing.
pub(super) const fn off_heap(on_heap: bool, bytes: u64) -> u64 {
    if on_heap { 0 } else { bytes }
}
