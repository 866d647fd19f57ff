package io.smtt.marker;

// Generated from smtt-common by `cargo xtask tidy`; a test compares.

/** The form of every fact: words in order, then (where marked) address ranges, then strings, each with its limit in bytes. */
enum FactForm {
    EXECUTOR_DESCRIBED(1, "executorDescribed", "slots_address slot_count start_unix_ms heap_max_bytes missing_hooks flags", false, "application_id application_name executor_id host spark_version java_version missing_hook_names application_attempt_id queue kubernetes_namespace kubernetes_pod", 200, 250, 100, 200, 60, 60, 700, 60, 90, 63, 128),
    THREAD_REGISTERED(2, "threadRegistered", "slot_address tid generation", false, "thread_name", 128),
    THREAD_GONE(3, "threadGone", "slot_address tid generation", false, ""),
    RDD_DESCRIBED(4, "rddDescribed", "rdd_id partitions storage_level", false, "name call_site storage_level_text parents node node_id", 300, 400, 100, 600, 300, 40),
    STAGE_DESCRIBED(5, "stageDescribed", "stage_id stage_attempt tasks job_id rdd_id", false, "name sql_execution_id sql_description job_description submitted_unix_ms completed_unix_ms failure", 400, 20, 300, 300, 20, 20, 300),
    JOB_DESCRIBED(31, "jobDescribed", "job_id started_unix_ms ended_unix_ms sql_execution_id", false, "failure", 300),
    TASK_STARTED(6, "taskStarted", "task_attempt_id stage_id stage_attempt partition attempt_number job_id", false, ""),
    TASK_ENDED(7, "taskEnded", "task_attempt_id stage_id stage_attempt outcome execution_memory_peak_bytes", false, "reason", 500),
    BLOCK_STORED(8, "blockStored", "rdd_id partition size_bytes flags task_attempt_id range_total range_first range_count", true, "block_id", 300),
    BLOCK_READ(9, "blockRead", "rdd_id partition task_attempt_id", false, "block_id", 200),
    BLOCK_MOVED(10, "blockMoved", "rdd_id partition size_bytes flags task_attempt_id range_total range_first range_count", true, "block_id", 300),
    BLOCK_REMOVED(11, "blockRemoved", "rdd_id partition", false, "block_id activity", 300, 3),
    PAGE_ALLOCATED(12, "pageAllocated", "task_attempt_id page_number address size_bytes flags rdd_id stage_id", false, "consumer", 200),
    PAGE_FREED(13, "pageFreed", "task_attempt_id page_number address size_bytes flags", false, "consumer", 200),
    CONSUMER_USED(17, "consumerUsed", "task_attempt_id instances peak_bytes counted_bytes flags", false, "consumer", 200),
    SPAN(14, "span", "task_attempt_id activity start_monotonic_ns duration_ns rdd_id", false, "name", 100),
    PYTHON_WORKER(15, "pythonWorker", "pid task_attempt_id hot stage_id stage_attempt", false, ""),
    RESYNC_DONE(16, "resyncDone", "request", false, ""),
    ADDRESSES_TOLD(18, "addressesTold", "collection moved_facts heap_addresses", false, ""),
    RESYNC_TOLD(19, "resyncTold", "request facts", false, ""),
    TASK_BEGUN(20, "taskBegun", "task_attempt_id flags", false, ""),
    TASK_HEAP(21, "taskHeap", "task_attempt_id allocated_bytes collection_ms", false, ""),
    TASK_HEAP_SO_FAR(22, "taskHeapSoFar", "task_attempt_id allocated_bytes", false, ""),
    RESOURCE_EXHAUSTED(24, "resourceExhausted", "source flags", false, "description", 200),
    MEMORY_TOLD(26, "memoryTold", "flags figures", true, ""),
    PEAKS_TOLD(27, "peaksTold", "stage_id stage_attempt figures", true, ""),
    TASK_METRICS(48, "taskMetrics", "task_attempt_id input_bytes input_records output_bytes output_records shuffle_read_bytes shuffle_read_records shuffle_write_bytes shuffle_write_records memory_spilled_bytes disk_spilled_bytes cpu_ns deserialize_cpu_ns run_ms collection_ms", false, ""),
    HELPER_BEGUN(28, "helperBegun", "task_attempt_id helper", false, ""),
    HELPER_ENDED(29, "helperEnded", "task_attempt_id helper allocated_bytes", false, ""),
    SHUFFLE_FETCHED(30, "shuffleFetched", "task_attempt_id start_monotonic_ns duration_ns requests blocks arrived_blocks failed_blocks arrived_bytes", false, "address executor_id", 200, 100),
    COLLECTOR_PAUSED(49, "collectorPaused", "number age_ns duration_ns", false, "");

    final int kind;
    final String entry;
    final String[] words;
    final boolean ranges;
    final String[] strings;
    /** Bytes of each string, at most. */
    final int[] limits;

    FactForm(int kind, String entry, String words, boolean ranges, String strings, int... limits) {
        this.kind = kind;
        this.entry = entry;
        this.words = words.split(" ");
        this.ranges = ranges;
        this.strings = strings.isEmpty() ? new String[0] : strings.split(" ");
        this.limits = limits;
    }

    /** Place of the word that a constant of {@link Contract} names; refuses a constant of another fact. */
    int placeOfWord(int word) {
        return place(word, kind << 8, words.length);
    }

    /** Place of the string that a constant names. */
    int placeOfString(int string) {
        return place(string, kind << 8 | Contract.STRING, strings.length);
    }

    private int place(int constant, int first, int count) {
        int place = constant - first;
        if (place < 0 || place >= count) {
            throw new IllegalArgumentException("0x" + Integer.toHexString(constant) + " belongs to another fact than " + entry);
        }
        return place;
    }

    /** The constant of the word at a place. */
    int word(int place) {
        return kind << 8 | place;
    }

    /** The constant of the string at a place. */
    int string(int place) {
        return kind << 8 | Contract.STRING | place;
    }

    /** Calls the entry point, where a probe may sit. */
    void call(long address, int length) {
        switch (kind) {
            case 1: Native.executorDescribed(address, length); break;
            case 2: Native.threadRegistered(address, length); break;
            case 3: Native.threadGone(address, length); break;
            case 4: Native.rddDescribed(address, length); break;
            case 5: Native.stageDescribed(address, length); break;
            case 31: Native.jobDescribed(address, length); break;
            case 6: Native.taskStarted(address, length); break;
            case 7: Native.taskEnded(address, length); break;
            case 8: Native.blockStored(address, length); break;
            case 9: Native.blockRead(address, length); break;
            case 10: Native.blockMoved(address, length); break;
            case 11: Native.blockRemoved(address, length); break;
            case 12: Native.pageAllocated(address, length); break;
            case 13: Native.pageFreed(address, length); break;
            case 17: Native.consumerUsed(address, length); break;
            case 14: Native.span(address, length); break;
            case 15: Native.pythonWorker(address, length); break;
            case 16: Native.resyncDone(address, length); break;
            case 18: Native.addressesTold(address, length); break;
            case 19: Native.resyncTold(address, length); break;
            case 20: Native.taskBegun(address, length); break;
            case 21: Native.taskHeap(address, length); break;
            case 22: Native.taskHeapSoFar(address, length); break;
            case 24: Native.resourceExhausted(address, length); break;
            case 26: Native.memoryTold(address, length); break;
            case 27: Native.peaksTold(address, length); break;
            case 48: Native.taskMetrics(address, length); break;
            case 28: Native.helperBegun(address, length); break;
            case 29: Native.helperEnded(address, length); break;
            case 30: Native.shuffleFetched(address, length); break;
            case 49: Native.collectorPaused(address, length); break;
            default: throw new IllegalStateException(entry);
        }
    }
}
