//! Sums of memory: what one RDD holds, or all of them.

/// What one RDD holds. The bytes off the heap are never more than all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryHeld {
    /// Bytes of its blocks in memory.
    pub storage_bytes: u64,
    /// Its blocks in memory.
    pub blocks: u64,
    /// Of them, how many are objects, whose size Spark only estimates.
    pub estimated_blocks: u64,
    /// Bytes of execution memory that were allocated while it was current.
    pub execution_bytes: u64,
    /// Pages and grants that make them up.
    pub pages: u64,
    /// Of the bytes of blocks, those outside of the Java heap.
    pub storage_off_heap_bytes: u64,
    /// Of the bytes of execution memory, those outside of the Java heap.
    pub execution_off_heap_bytes: u64,
}

impl MemoryHeld {
    /// Whether it holds nothing.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.blocks == 0 && self.pages == 0
    }

    /// Adds what another one holds.
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

    /// Takes away what is held no longer.
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
        // A sum that had stopped at the largest number leaves less than there is, but never less than a part of it.
        self.storage_bytes = self.storage_bytes.max(self.storage_off_heap_bytes);
        self.execution_bytes = self.execution_bytes.max(self.execution_off_heap_bytes);
    }
}
