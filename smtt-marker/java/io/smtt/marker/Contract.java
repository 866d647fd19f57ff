package io.smtt.marker;

// Generated from smtt-common by `cargo xtask tidy`; a test compares.

/**
 * What the marker shares with the kernel side and the daemon. Only constants, which the compiler copies to where they are
 * used, but for the names of activities.
 */
final class Contract {
    private Contract() {}

    // Slot file: sizes, and the state of a slot.
    static final int HEADER_SIZE = 4096;
    static final int SLOT_SIZE = 128;
    static final int SLOT_COUNT = 4096;
    static final int SLOT_FREE = 0;
    static final int SLOT_IN_USE = 1;

    // Slot file: offsets in the header.
    static final int HEADER_MAGIC = 0;
    static final int HEADER_VERSION = 8;
    static final int HEADER_SLOT_SIZE = 12;
    static final int HEADER_SLOT_COUNT = 16;
    static final int HEADER_PID = 20;
    static final int HEADER_RESYNC_REQUEST = 24;
    static final int HEADER_RESYNC_DONE = 32;
    static final int HEADER_SLOTS_REFUSED = 40;
    static final int HEADER_FACTS_WITHOUT_SLOT = 48;
    static final int HEADER_ADDRESS = 56;
    static final int HEADER_HEAP_ADDRESSES = 64;
    static final int HEADER_COLLECTIONS_BEGUN = 72;
    static final int HEADER_COLLECTIONS_ENDED = 80;
    static final int HEADER_ADDRESSES_EPOCH = 88;
    static final int HEADER_COLLECTION_ENDED_NS = 96;
    static final int HEADER_ADDRESSES_TOLD_NS = 104;

    // Slot file: offsets in a slot.
    static final int SLOT_HOT = 0;
    static final int SLOT_TASK_ATTEMPT_ID = 8;
    static final int SLOT_STAGE_ID = 16;
    static final int SLOT_STAGE_ATTEMPT = 20;
    static final int SLOT_PARTITION = 24;
    static final int SLOT_ATTEMPT_NUMBER = 28;
    static final int SLOT_TID = 32;
    static final int SLOT_GENERATION = 36;
    static final int SLOT_JOB_ID = 40;
    static final int SLOT_STATE = 44;
    static final int SLOT_FACTS_EMITTED = 48;

    // Hot word: places of its fields.
    static final int HOT_ACTIVITY_SHIFT = 56;
    static final int HOT_ACCESS_SHIFT = 54;
    static final int HOT_REGION_SHIFT = 52;
    static final int HOT_RDD_SHIFT = 24;
    static final long HOT_FIELD_MASK = 0xffffffL;

    // Hot word: activities.
    static final int ACTIVITY_IDLE = 0;
    static final int ACTIVITY_COMPUTE = 1;
    static final int ACTIVITY_SHUFFLE_WRITE = 2;
    static final int ACTIVITY_SORT = 3;
    static final int ACTIVITY_SPILL = 4;
    static final int ACTIVITY_MERGE = 5;
    static final int ACTIVITY_SHUFFLE_FETCH = 6;
    static final int ACTIVITY_TASK_DESERIALIZE = 7;
    static final int ACTIVITY_CACHE_READ = 8;
    static final int ACTIVITY_CACHE_WRITE = 9;
    static final int ACTIVITY_RESULT_SERIALIZE = 10;
    static final int ACTIVITY_BROADCAST = 11;
    static final int ACTIVITY_EVICT = 12;
    static final int ACTIVITY_PYTHON_EXCHANGE = 13;
    static final int ACTIVITY_PYTHON_WORKER = 14;
    static final int ACTIVITY_INSERT = 15;
    static final int ACTIVITY_HASH_GROW = 16;
    static final String[] ACTIVITY_NAMES = {
        "idle",
        "compute",
        "shuffle_write",
        "sort",
        "spill",
        "merge",
        "shuffle_fetch",
        "task_deserialize",
        "cache_read",
        "cache_write",
        "result_serialize",
        "broadcast",
        "evict",
        "python_exchange",
        "python_worker",
        "insert",
        "hash_grow",
    };

    // Hot word: accesses and regions.
    static final int ACCESS_NONE = 0;
    static final int ACCESS_READ = 1;
    static final int ACCESS_WRITE = 2;
    static final int REGION_NONE = 0;
    static final int REGION_STORAGE = 1;
    static final int REGION_EXECUTION = 2;

    // What is known of addresses on the heap.
    static final int HEAP_ADDRESSES_UNVERIFIED = 0;
    static final int HEAP_ADDRESSES_FOLLOWED = 1;
    static final int HEAP_ADDRESSES_FOLLOWED_SLOWLY = 2;
    static final int HEAP_ADDRESSES_POLLED = 3;
    static final int HEAP_ADDRESSES_REFUSED = 4;

    // Facts: flags, codes and bounds.
    static final long REPORTED_AGAIN = 0x8L;
    static final long BLOCK_ON_HEAP = 0x1L;
    static final long BLOCK_SERIALIZED = 0x2L;
    static final long BLOCK_WITHOUT_TASK = 0x4L;
    static final long BLOCK_SAMPLED = 0x10L;
    static final long BLOCK_ARRAY = 0x20L;
    static final long PAGE_ON_HEAP = 0x1L;
    static final long CONSUMER_ESTIMATED = 0x1L;
    static final long NO_ADDRESS = 0x0L;
    static final long BEGUN_LATE = 0x1L;
    static final long EXHAUSTED_UNCAUGHT = 0x2L;
    static final int PAGE_ACTIVITY_SHIFT = 8;
    static final int PAYLOAD_MAX = 2048;
    static final int RANGES_PER_FACT = 96;
    static final int RANGES_PER_BLOCK = 4096;
    static final long OUTCOME_SUCCESS = 0x0L;
    static final long OUTCOME_FAILED = 0x1L;
    static final long OUTCOME_KILLED = 0x2L;
    static final long STORAGE_LEVEL_DISK = 0x1L;
    static final long STORAGE_LEVEL_MEMORY = 0x2L;
    static final long STORAGE_LEVEL_OFF_HEAP = 0x4L;
    static final long STORAGE_LEVEL_DESERIALIZED = 0x8L;
    static final int STORAGE_LEVEL_REPLICATION_SHIFT = 8;

    // Threads that help a task.
    static final int HELPER_PYTHON_WRITER = 1;
    static final int HELPER_R_WRITER = 2;
    static final int HELPER_PIPE_WRITER = 3;
    static final int HELPER_SCRIPT_WRITER = 4;
    static final int HELPER_PYTHON_WORKER = 5;

    // Figures of memory: form, flags and codes.
    static final int FIGURE_AGE_SHIFT = 8;
    static final int PEAK_METRICS = 24;
    static final long MEMORY_EXAMINED = 0x1L;
    static final long OVERHEAD_IS_DEFAULT = 0x2L;
    static final int MEMORY_HEAP_USED = 1;
    static final int MEMORY_HEAP_COMMITTED = 2;
    static final int MEMORY_HEAP_RESIDENT = 3;
    static final int MEMORY_HEAP_MAX = 4;
    static final int MEMORY_METASPACE = 5;
    static final int MEMORY_CODE_COMMITTED = 6;
    static final int MEMORY_CODE_RESIDENT = 7;
    static final int MEMORY_THREADS = 8;
    static final int MEMORY_STACKS_RESIDENT = 9;
    static final int MEMORY_DIRECT = 10;
    static final int MEMORY_MAPPED = 11;
    static final int MEMORY_EXECUTION_ON_HEAP = 12;
    static final int MEMORY_EXECUTION_OFF_HEAP = 13;
    static final int MEMORY_STORAGE_ON_HEAP = 14;
    static final int MEMORY_STORAGE_OFF_HEAP = 15;
    static final int MEMORY_EXECUTION_OFF_HEAP_RESIDENT = 16;
    static final int MEMORY_STORAGE_OFF_HEAP_RESIDENT = 17;
    static final int MEMORY_ANONYMOUS = 18;
    static final int MEMORY_EXAMINATION_NS = 19;
    static final int MEMORY_DIRECT_MAX = 20;
    static final int MEMORY_EXECUTOR_MEMORY = 21;
    static final int MEMORY_MEMORY_OVERHEAD = 22;
    static final int MEMORY_OFF_HEAP_SIZE = 23;
    static final int MEMORY_PYSPARK_MEMORY = 24;

    // Peaks: codes, and Spark's names in the order of the codes, from 1 on.
    static final int PEAK_JVMHEAPMEMORY = 1;
    static final int PEAK_JVMOFFHEAPMEMORY = 2;
    static final int PEAK_ONHEAPEXECUTIONMEMORY = 3;
    static final int PEAK_OFFHEAPEXECUTIONMEMORY = 4;
    static final int PEAK_ONHEAPSTORAGEMEMORY = 5;
    static final int PEAK_OFFHEAPSTORAGEMEMORY = 6;
    static final int PEAK_ONHEAPUNIFIEDMEMORY = 7;
    static final int PEAK_OFFHEAPUNIFIEDMEMORY = 8;
    static final int PEAK_DIRECTPOOLMEMORY = 9;
    static final int PEAK_MAPPEDPOOLMEMORY = 10;
    static final int PEAK_PROCESSTREEJVMVMEMORY = 11;
    static final int PEAK_PROCESSTREEJVMRSSMEMORY = 12;
    static final int PEAK_PROCESSTREEPYTHONVMEMORY = 13;
    static final int PEAK_PROCESSTREEPYTHONRSSMEMORY = 14;
    static final int PEAK_PROCESSTREEOTHERVMEMORY = 15;
    static final int PEAK_PROCESSTREEOTHERRSSMEMORY = 16;
    static final int PEAK_MINORGCCOUNT = 17;
    static final int PEAK_MINORGCTIME = 18;
    static final int PEAK_MAJORGCCOUNT = 19;
    static final int PEAK_MAJORGCTIME = 20;
    static final int PEAK_TOTALGCTIME = 21;
    static final int PEAK_CONCURRENTGCCOUNT = 22;
    static final int PEAK_CONCURRENTGCTIME = 23;
    static final String PEAK_NAMES = "JVMHeapMemory JVMOffHeapMemory OnHeapExecutionMemory OffHeapExecutionMemory OnHeapStorageMemory OffHeapStorageMemory OnHeapUnifiedMemory OffHeapUnifiedMemory DirectPoolMemory MappedPoolMemory ProcessTreeJVMVMemory ProcessTreeJVMRSSMemory ProcessTreePythonVMemory ProcessTreePythonRSSMemory ProcessTreeOtherVMemory ProcessTreeOtherRSSMemory MinorGCCount MinorGCTime MajorGCCount MajorGCTime TotalGCTime ConcurrentGCCount ConcurrentGCTime";

    // Facts: bit that tells the constant of a string from that of a word.
    static final int STRING = 128;

    // Words and strings of executorDescribed.
    static final int EXECUTOR_DESCRIBED_SLOTS_ADDRESS = 0x0100;
    static final int EXECUTOR_DESCRIBED_SLOT_COUNT = 0x0101;
    static final int EXECUTOR_DESCRIBED_START_UNIX_MS = 0x0102;
    static final int EXECUTOR_DESCRIBED_HEAP_MAX_BYTES = 0x0103;
    static final int EXECUTOR_DESCRIBED_MISSING_HOOKS = 0x0104;
    static final int EXECUTOR_DESCRIBED_FLAGS = 0x0105;
    static final int EXECUTOR_DESCRIBED_APPLICATION_ID = 0x0180;
    static final int EXECUTOR_DESCRIBED_APPLICATION_NAME = 0x0181;
    static final int EXECUTOR_DESCRIBED_EXECUTOR_ID = 0x0182;
    static final int EXECUTOR_DESCRIBED_HOST = 0x0183;
    static final int EXECUTOR_DESCRIBED_SPARK_VERSION = 0x0184;
    static final int EXECUTOR_DESCRIBED_JAVA_VERSION = 0x0185;
    static final int EXECUTOR_DESCRIBED_MISSING_HOOK_NAMES = 0x0186;
    static final int EXECUTOR_DESCRIBED_APPLICATION_ATTEMPT_ID = 0x0187;
    static final int EXECUTOR_DESCRIBED_QUEUE = 0x0188;
    static final int EXECUTOR_DESCRIBED_KUBERNETES_NAMESPACE = 0x0189;
    static final int EXECUTOR_DESCRIBED_KUBERNETES_POD = 0x018a;

    // Words and strings of threadRegistered.
    static final int THREAD_REGISTERED_SLOT_ADDRESS = 0x0200;
    static final int THREAD_REGISTERED_TID = 0x0201;
    static final int THREAD_REGISTERED_GENERATION = 0x0202;
    static final int THREAD_REGISTERED_THREAD_NAME = 0x0280;

    // Words and strings of threadGone.
    static final int THREAD_GONE_SLOT_ADDRESS = 0x0300;
    static final int THREAD_GONE_TID = 0x0301;
    static final int THREAD_GONE_GENERATION = 0x0302;

    // Words and strings of rddDescribed.
    static final int RDD_DESCRIBED_RDD_ID = 0x0400;
    static final int RDD_DESCRIBED_PARTITIONS = 0x0401;
    static final int RDD_DESCRIBED_STORAGE_LEVEL = 0x0402;
    static final int RDD_DESCRIBED_NAME = 0x0480;
    static final int RDD_DESCRIBED_CALL_SITE = 0x0481;
    static final int RDD_DESCRIBED_STORAGE_LEVEL_TEXT = 0x0482;
    static final int RDD_DESCRIBED_PARENTS = 0x0483;
    static final int RDD_DESCRIBED_NODE = 0x0484;
    static final int RDD_DESCRIBED_NODE_ID = 0x0485;

    // Words and strings of stageDescribed.
    static final int STAGE_DESCRIBED_STAGE_ID = 0x0500;
    static final int STAGE_DESCRIBED_STAGE_ATTEMPT = 0x0501;
    static final int STAGE_DESCRIBED_TASKS = 0x0502;
    static final int STAGE_DESCRIBED_JOB_ID = 0x0503;
    static final int STAGE_DESCRIBED_RDD_ID = 0x0504;
    static final int STAGE_DESCRIBED_NAME = 0x0580;
    static final int STAGE_DESCRIBED_SQL_EXECUTION_ID = 0x0581;
    static final int STAGE_DESCRIBED_SQL_DESCRIPTION = 0x0582;
    static final int STAGE_DESCRIBED_JOB_DESCRIPTION = 0x0583;
    static final int STAGE_DESCRIBED_SUBMITTED_UNIX_MS = 0x0584;
    static final int STAGE_DESCRIBED_COMPLETED_UNIX_MS = 0x0585;
    static final int STAGE_DESCRIBED_FAILURE = 0x0586;

    // Words and strings of jobDescribed.
    static final int JOB_DESCRIBED_JOB_ID = 0x1f00;
    static final int JOB_DESCRIBED_STARTED_UNIX_MS = 0x1f01;
    static final int JOB_DESCRIBED_ENDED_UNIX_MS = 0x1f02;
    static final int JOB_DESCRIBED_SQL_EXECUTION_ID = 0x1f03;
    static final int JOB_DESCRIBED_FAILURE = 0x1f80;

    // Words and strings of taskStarted.
    static final int TASK_STARTED_TASK_ATTEMPT_ID = 0x0600;
    static final int TASK_STARTED_STAGE_ID = 0x0601;
    static final int TASK_STARTED_STAGE_ATTEMPT = 0x0602;
    static final int TASK_STARTED_PARTITION = 0x0603;
    static final int TASK_STARTED_ATTEMPT_NUMBER = 0x0604;
    static final int TASK_STARTED_JOB_ID = 0x0605;

    // Words and strings of taskEnded.
    static final int TASK_ENDED_TASK_ATTEMPT_ID = 0x0700;
    static final int TASK_ENDED_STAGE_ID = 0x0701;
    static final int TASK_ENDED_STAGE_ATTEMPT = 0x0702;
    static final int TASK_ENDED_OUTCOME = 0x0703;
    static final int TASK_ENDED_EXECUTION_MEMORY_PEAK_BYTES = 0x0704;
    static final int TASK_ENDED_REASON = 0x0780;

    // Words and strings of blockStored.
    static final int BLOCK_STORED_RDD_ID = 0x0800;
    static final int BLOCK_STORED_PARTITION = 0x0801;
    static final int BLOCK_STORED_SIZE_BYTES = 0x0802;
    static final int BLOCK_STORED_FLAGS = 0x0803;
    static final int BLOCK_STORED_TASK_ATTEMPT_ID = 0x0804;
    static final int BLOCK_STORED_RANGE_TOTAL = 0x0805;
    static final int BLOCK_STORED_RANGE_FIRST = 0x0806;
    static final int BLOCK_STORED_RANGE_COUNT = 0x0807;
    static final int BLOCK_STORED_BLOCK_ID = 0x0880;

    // Words and strings of blockRead.
    static final int BLOCK_READ_RDD_ID = 0x0900;
    static final int BLOCK_READ_PARTITION = 0x0901;
    static final int BLOCK_READ_TASK_ATTEMPT_ID = 0x0902;
    static final int BLOCK_READ_BLOCK_ID = 0x0980;

    // Words and strings of blockMoved.
    static final int BLOCK_MOVED_RDD_ID = 0x0a00;
    static final int BLOCK_MOVED_PARTITION = 0x0a01;
    static final int BLOCK_MOVED_SIZE_BYTES = 0x0a02;
    static final int BLOCK_MOVED_FLAGS = 0x0a03;
    static final int BLOCK_MOVED_TASK_ATTEMPT_ID = 0x0a04;
    static final int BLOCK_MOVED_RANGE_TOTAL = 0x0a05;
    static final int BLOCK_MOVED_RANGE_FIRST = 0x0a06;
    static final int BLOCK_MOVED_RANGE_COUNT = 0x0a07;
    static final int BLOCK_MOVED_BLOCK_ID = 0x0a80;

    // Words and strings of blockRemoved.
    static final int BLOCK_REMOVED_RDD_ID = 0x0b00;
    static final int BLOCK_REMOVED_PARTITION = 0x0b01;
    static final int BLOCK_REMOVED_BLOCK_ID = 0x0b80;
    static final int BLOCK_REMOVED_ACTIVITY = 0x0b81;

    // Words and strings of pageAllocated.
    static final int PAGE_ALLOCATED_TASK_ATTEMPT_ID = 0x0c00;
    static final int PAGE_ALLOCATED_PAGE_NUMBER = 0x0c01;
    static final int PAGE_ALLOCATED_ADDRESS = 0x0c02;
    static final int PAGE_ALLOCATED_SIZE_BYTES = 0x0c03;
    static final int PAGE_ALLOCATED_FLAGS = 0x0c04;
    static final int PAGE_ALLOCATED_RDD_ID = 0x0c05;
    static final int PAGE_ALLOCATED_STAGE_ID = 0x0c06;
    static final int PAGE_ALLOCATED_CONSUMER = 0x0c80;

    // Words and strings of pageFreed.
    static final int PAGE_FREED_TASK_ATTEMPT_ID = 0x0d00;
    static final int PAGE_FREED_PAGE_NUMBER = 0x0d01;
    static final int PAGE_FREED_ADDRESS = 0x0d02;
    static final int PAGE_FREED_SIZE_BYTES = 0x0d03;
    static final int PAGE_FREED_FLAGS = 0x0d04;
    static final int PAGE_FREED_CONSUMER = 0x0d80;

    // Words and strings of consumerUsed.
    static final int CONSUMER_USED_TASK_ATTEMPT_ID = 0x1100;
    static final int CONSUMER_USED_INSTANCES = 0x1101;
    static final int CONSUMER_USED_PEAK_BYTES = 0x1102;
    static final int CONSUMER_USED_COUNTED_BYTES = 0x1103;
    static final int CONSUMER_USED_FLAGS = 0x1104;
    static final int CONSUMER_USED_CONSUMER = 0x1180;

    // Words and strings of span.
    static final int SPAN_TASK_ATTEMPT_ID = 0x0e00;
    static final int SPAN_ACTIVITY = 0x0e01;
    static final int SPAN_START_MONOTONIC_NS = 0x0e02;
    static final int SPAN_DURATION_NS = 0x0e03;
    static final int SPAN_RDD_ID = 0x0e04;
    static final int SPAN_NAME = 0x0e80;

    // Words and strings of pythonWorker.
    static final int PYTHON_WORKER_PID = 0x0f00;
    static final int PYTHON_WORKER_TASK_ATTEMPT_ID = 0x0f01;
    static final int PYTHON_WORKER_HOT = 0x0f02;
    static final int PYTHON_WORKER_STAGE_ID = 0x0f03;
    static final int PYTHON_WORKER_STAGE_ATTEMPT = 0x0f04;

    // Words and strings of resyncDone.
    static final int RESYNC_DONE_REQUEST = 0x1000;

    // Words and strings of addressesTold.
    static final int ADDRESSES_TOLD_COLLECTION = 0x1200;
    static final int ADDRESSES_TOLD_MOVED_FACTS = 0x1201;
    static final int ADDRESSES_TOLD_HEAP_ADDRESSES = 0x1202;

    // Words and strings of resyncTold.
    static final int RESYNC_TOLD_REQUEST = 0x1300;
    static final int RESYNC_TOLD_FACTS = 0x1301;

    // Words and strings of taskBegun.
    static final int TASK_BEGUN_TASK_ATTEMPT_ID = 0x1400;
    static final int TASK_BEGUN_FLAGS = 0x1401;

    // Words and strings of taskHeap.
    static final int TASK_HEAP_TASK_ATTEMPT_ID = 0x1500;
    static final int TASK_HEAP_ALLOCATED_BYTES = 0x1501;
    static final int TASK_HEAP_COLLECTION_MS = 0x1502;

    // Words and strings of taskHeapSoFar.
    static final int TASK_HEAP_SO_FAR_TASK_ATTEMPT_ID = 0x1600;
    static final int TASK_HEAP_SO_FAR_ALLOCATED_BYTES = 0x1601;

    // Words and strings of resourceExhausted.
    static final int RESOURCE_EXHAUSTED_SOURCE = 0x1800;
    static final int RESOURCE_EXHAUSTED_FLAGS = 0x1801;
    static final int RESOURCE_EXHAUSTED_DESCRIPTION = 0x1880;

    // Words and strings of memoryTold.
    static final int MEMORY_TOLD_FLAGS = 0x1a00;
    static final int MEMORY_TOLD_FIGURES = 0x1a01;

    // Words and strings of peaksTold.
    static final int PEAKS_TOLD_STAGE_ID = 0x1b00;
    static final int PEAKS_TOLD_STAGE_ATTEMPT = 0x1b01;
    static final int PEAKS_TOLD_FIGURES = 0x1b02;

    // Words and strings of taskMetrics.
    static final int TASK_METRICS_TASK_ATTEMPT_ID = 0x3000;
    static final int TASK_METRICS_INPUT_BYTES = 0x3001;
    static final int TASK_METRICS_INPUT_RECORDS = 0x3002;
    static final int TASK_METRICS_OUTPUT_BYTES = 0x3003;
    static final int TASK_METRICS_OUTPUT_RECORDS = 0x3004;
    static final int TASK_METRICS_SHUFFLE_READ_BYTES = 0x3005;
    static final int TASK_METRICS_SHUFFLE_READ_RECORDS = 0x3006;
    static final int TASK_METRICS_SHUFFLE_WRITE_BYTES = 0x3007;
    static final int TASK_METRICS_SHUFFLE_WRITE_RECORDS = 0x3008;
    static final int TASK_METRICS_MEMORY_SPILLED_BYTES = 0x3009;
    static final int TASK_METRICS_DISK_SPILLED_BYTES = 0x300a;
    static final int TASK_METRICS_CPU_NS = 0x300b;
    static final int TASK_METRICS_DESERIALIZE_CPU_NS = 0x300c;
    static final int TASK_METRICS_RUN_MS = 0x300d;
    static final int TASK_METRICS_COLLECTION_MS = 0x300e;

    // Words and strings of helperBegun.
    static final int HELPER_BEGUN_TASK_ATTEMPT_ID = 0x1c00;
    static final int HELPER_BEGUN_HELPER = 0x1c01;

    // Words and strings of helperEnded.
    static final int HELPER_ENDED_TASK_ATTEMPT_ID = 0x1d00;
    static final int HELPER_ENDED_HELPER = 0x1d01;
    static final int HELPER_ENDED_ALLOCATED_BYTES = 0x1d02;

    // Words and strings of shuffleFetched.
    static final int SHUFFLE_FETCHED_TASK_ATTEMPT_ID = 0x1e00;
    static final int SHUFFLE_FETCHED_START_MONOTONIC_NS = 0x1e01;
    static final int SHUFFLE_FETCHED_DURATION_NS = 0x1e02;
    static final int SHUFFLE_FETCHED_REQUESTS = 0x1e03;
    static final int SHUFFLE_FETCHED_BLOCKS = 0x1e04;
    static final int SHUFFLE_FETCHED_ARRIVED_BLOCKS = 0x1e05;
    static final int SHUFFLE_FETCHED_FAILED_BLOCKS = 0x1e06;
    static final int SHUFFLE_FETCHED_ARRIVED_BYTES = 0x1e07;
    static final int SHUFFLE_FETCHED_ADDRESS = 0x1e80;
    static final int SHUFFLE_FETCHED_EXECUTOR_ID = 0x1e81;

    // Words and strings of collectorPaused.
    static final int COLLECTOR_PAUSED_NUMBER = 0x3100;
    static final int COLLECTOR_PAUSED_AGE_NS = 0x3101;
    static final int COLLECTOR_PAUSED_DURATION_NS = 0x3102;
}
