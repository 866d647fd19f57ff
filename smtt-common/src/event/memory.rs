//! Figures of an executor's memory, as pairs of a coded word and a value: [`MEMORY_TOLD`](super::Kind::MEMORY_TOLD)
//! has a pair per [`MemoryFigure`], [`PEAKS_TOLD`](super::Kind::PEAKS_TOLD) one per [`PeakMetric`].
//!
//! The coded word has the figure's code in its lowest byte and the figure's age in milliseconds above it. A pair whose
//! code is unknown is ignored, so a newer marker may add figures.

/// Position of the age in a coded word, in milliseconds.
pub const FIGURE_AGE_SHIFT: u32 = 8;
/// Bit of `flags` in [`MEMORY_TOLD`](super::Kind::MEMORY_TOLD): the resident parts were examined for this fact, so all
/// its figures are of one moment.
pub const MEMORY_EXAMINED: u64 = 1;
/// Bit of `flags` in [`MEMORY_TOLD`](super::Kind::MEMORY_TOLD): `memory_overhead` is Spark's default, not configured.
pub const OVERHEAD_IS_DEFAULT: u64 = 2;

coded! {
    /// A figure of the memory of an executor's JVM. Bytes, unless its name states otherwise.
    MemoryFigure: u8 {
        /// Objects on the Java heap, garbage included.
        HEAP_USED = 1 "heap_used",
        /// Heap that the JVM may use without asking the kernel.
        HEAP_COMMITTED = 2 "heap_committed",
        /// Resident pages of the heap's address range.
        HEAP_RESIDENT = 3 "heap_resident",
        /// `-Xmx`, or the JVM's default.
        HEAP_MAX = 4 "heap_max",
        /// Committed metaspace, compressed class space included.
        METASPACE = 5 "metaspace",
        /// Committed code cache.
        CODE_COMMITTED = 6 "code_committed",
        /// Resident pages of the code cache's address range.
        CODE_RESIDENT = 7 "code_resident",
        /// Number of threads of the process.
        THREADS = 8 "threads",
        /// Resident pages of the stacks of all threads.
        STACKS_RESIDENT = 9 "stacks_resident",
        /// Direct buffers.
        DIRECT = 10 "direct",
        /// Mapped buffers: address space, not memory.
        MAPPED = 11 "mapped",
        /// Spark's execution memory on the heap.
        EXECUTION_ON_HEAP = 12 "execution_on_heap",
        /// Spark's execution memory outside of the heap.
        EXECUTION_OFF_HEAP = 13 "execution_off_heap",
        /// Spark's storage memory on the heap.
        STORAGE_ON_HEAP = 14 "storage_on_heap",
        /// Spark's storage memory outside of the heap.
        STORAGE_OFF_HEAP = 15 "storage_off_heap",
        /// Resident pages of Spark's pages of execution memory outside of the heap.
        EXECUTION_OFF_HEAP_RESIDENT = 16 "execution_off_heap_resident",
        /// Resident pages of Spark's blocks outside of the heap.
        STORAGE_OFF_HEAP_RESIDENT = 17 "storage_off_heap_resident",
        /// Anonymous resident memory of the process at the time of the examination.
        ANONYMOUS = 18 "anonymous",
        /// CPU time of the last examination, in nanoseconds.
        EXAMINATION_NS = 19 "examination_ns",
        /// `-XX:MaxDirectMemorySize`, or the JVM's default.
        DIRECT_MAX = 20 "direct_max",
        /// `spark.executor.memory`.
        EXECUTOR_MEMORY = 21 "executor_memory",
        /// `spark.executor.memoryOverhead`, or Spark's default for it.
        MEMORY_OVERHEAD = 22 "memory_overhead",
        /// `spark.memory.offHeap.size` where it is on.
        OFF_HEAP_SIZE = 23 "off_heap_size",
        /// `spark.executor.pyspark.memory`.
        PYSPARK_MEMORY = 24 "pyspark_memory",
    }
}

coded! {
    /// A peak, under the name that Spark's `ExecutorMetricType` gives it.
    PeakMetric: u8 {
        /// Used heap.
        JVM_HEAP = 1 "JVMHeapMemory",
        /// Used memory of the JVM outside of the heap: metaspace and code cache.
        JVM_OFF_HEAP = 2 "JVMOffHeapMemory",
        /// Execution memory on the heap.
        ON_HEAP_EXECUTION = 3 "OnHeapExecutionMemory",
        /// Execution memory outside of the heap.
        OFF_HEAP_EXECUTION = 4 "OffHeapExecutionMemory",
        /// Storage memory on the heap.
        ON_HEAP_STORAGE = 5 "OnHeapStorageMemory",
        /// Storage memory outside of the heap.
        OFF_HEAP_STORAGE = 6 "OffHeapStorageMemory",
        /// Execution and storage memory on the heap together.
        ON_HEAP_UNIFIED = 7 "OnHeapUnifiedMemory",
        /// Execution and storage memory outside of the heap together.
        OFF_HEAP_UNIFIED = 8 "OffHeapUnifiedMemory",
        /// Direct buffers.
        DIRECT_POOL = 9 "DirectPoolMemory",
        /// Mapped buffers.
        MAPPED_POOL = 10 "MappedPoolMemory",
        /// Address space of the JVM.
        JVM_VIRTUAL = 11 "ProcessTreeJVMVMemory",
        /// Resident memory of the JVM.
        JVM_RESIDENT = 12 "ProcessTreeJVMRSSMemory",
        /// Address space of Python processes.
        PYTHON_VIRTUAL = 13 "ProcessTreePythonVMemory",
        /// Resident memory of Python processes.
        PYTHON_RESIDENT = 14 "ProcessTreePythonRSSMemory",
        /// Address space of other child processes.
        OTHER_VIRTUAL = 15 "ProcessTreeOtherVMemory",
        /// Resident memory of other child processes.
        OTHER_RESIDENT = 16 "ProcessTreeOtherRSSMemory",
        /// Collections of the young generation.
        MINOR_COUNT = 17 "MinorGCCount",
        /// Their time, in milliseconds.
        MINOR_TIME = 18 "MinorGCTime",
        /// Collections of the old generation.
        MAJOR_COUNT = 19 "MajorGCCount",
        /// Their time, in milliseconds.
        MAJOR_TIME = 20 "MajorGCTime",
        /// Time of all collections, in milliseconds.
        TOTAL_TIME = 21 "TotalGCTime",
        /// Concurrent collections.
        CONCURRENT_COUNT = 22 "ConcurrentGCCount",
        /// Their pauses, in milliseconds.
        CONCURRENT_TIME = 23 "ConcurrentGCTime",
    }
}

/// Length of a table with an entry for each code of [`MemoryFigure`].
pub const MEMORY_FIGURES: usize = 25;
/// Length of a table with an entry for each code of [`PeakMetric`].
pub const PEAK_METRICS: usize = 24;

const _: () = {
    assert!(MemoryFigure::ALL.len() + 1 == MEMORY_FIGURES);
    assert!(PeakMetric::ALL.len() + 1 == PEAK_METRICS);
};
