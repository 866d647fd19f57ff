package io.smtt.marker;

/**
 * The form of every fact: words in order, then (where marked) address ranges, then strings.
 *
 * <p>The contract is {@code smtt_common::event::MARKER_FACTS}; {@code cargo xtask} runs {@link #main} when it builds
 * the jar and refuses a difference.
 */
public enum FactForm {
    EXECUTOR_DESCRIBED("executorDescribed", "slots_address slot_count start_unix_ms heap_max_bytes missing_hooks flags", false,
            "application_id application_name executor_id host spark_version java_version missing_hook_names"),
    THREAD_REGISTERED("threadRegistered", "slot_address tid generation", false, "thread_name"),
    THREAD_GONE("threadGone", "slot_address tid generation", false, ""),
    RDD_DESCRIBED("rddDescribed", "rdd_id partitions storage_level", false, "name call_site storage_level_text parents"),
    STAGE_DESCRIBED("stageDescribed", "stage_id stage_attempt tasks job_id rdd_id", false, "name"),
    TASK_STARTED("taskStarted", "task_attempt_id stage_id stage_attempt partition attempt_number job_id", false, ""),
    TASK_ENDED("taskEnded", "task_attempt_id stage_id stage_attempt outcome execution_memory_peak_bytes", false, "reason"),
    BLOCK_STORED("blockStored", "rdd_id partition size_bytes flags task_attempt_id range_total range_first range_count", true, "block_id"),
    BLOCK_READ("blockRead", "rdd_id partition task_attempt_id", false, "block_id"),
    BLOCK_MOVED("blockMoved", "rdd_id partition size_bytes flags task_attempt_id range_total range_first range_count", true, "block_id"),
    BLOCK_REMOVED("blockRemoved", "rdd_id partition", false, "block_id activity"),
    PAGE_ALLOCATED("pageAllocated", "task_attempt_id page_number address size_bytes flags rdd_id stage_id", false, "consumer"),
    PAGE_FREED("pageFreed", "task_attempt_id page_number address size_bytes flags", false, "consumer"),
    CONSUMER_USED("consumerUsed", "task_attempt_id instances peak_bytes counted_bytes flags", false, "consumer"),
    SPAN("span", "task_attempt_id activity start_monotonic_ns duration_ns rdd_id", false, "name"),
    PYTHON_WORKER("pythonWorker", "pid task_attempt_id hot stage_id stage_attempt", false, ""),
    RESYNC_DONE("resyncDone", "request", false, ""),
    ADDRESSES_TOLD("addressesTold", "collection moved_facts heap_addresses", false, ""),
    RESYNC_TOLD("resyncTold", "request facts", false, "");

    final String entry;
    final String[] words;
    final boolean ranges;
    final String[] strings;

    FactForm(String entry, String words, boolean ranges, String strings) {
        this.entry = entry;
        this.words = words.split(" ");
        this.ranges = ranges;
        this.strings = strings.isEmpty() ? new String[0] : strings.split(" ");
    }

    /** Prints every form on one line: entry, words, ranges, strings. */
    public static void main(String[] arguments) {
        for (FactForm form : values()) {
            System.out.println(form.entry + " | " + String.join(" ", form.words) + " | " + form.ranges + " | " + String.join(" ", form.strings));
        }
    }
}
