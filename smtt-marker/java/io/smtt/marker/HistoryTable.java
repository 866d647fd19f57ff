package io.smtt.marker;

import java.util.ArrayList;
import java.util.List;

/**
 * Columns of the history's tables, as docs/HISTORY.md lists them. {@code tests/tests/history/live.rs} compares them with
 * those of {@code smtt-store}.
 */
final class HistoryTable {
    /** Metrics of a task that Spark's REST API shows. */
    static final int METRICS = 34;
    /** Peaks of an executor, by Spark's names. */
    static final String[] PEAKS = {
        "JVMHeapMemory", "JVMOffHeapMemory", "OnHeapExecutionMemory", "OffHeapExecutionMemory", "OnHeapStorageMemory",
        "OffHeapStorageMemory", "OnHeapUnifiedMemory", "OffHeapUnifiedMemory", "DirectPoolMemory", "MappedPoolMemory",
        "ProcessTreeJVMVMemory", "ProcessTreeJVMRSSMemory", "ProcessTreePythonVMemory", "ProcessTreePythonRSSMemory",
        "ProcessTreeOtherVMemory", "ProcessTreeOtherRSSMemory", "MinorGCCount", "MinorGCTime", "MajorGCCount",
        "MajorGCTime", "TotalGCTime", "ConcurrentGCCount", "ConcurrentGCTime",
    };

    static final HistoryTable TASKS = new HistoryTable("tasks",
            "int stage_id", "int stage_attempt", "long task_id", "int task_index", "int attempt", "int? partition",
            "text executor_id", "text host", "time launch_time", "long? duration_ms", "time? getting_result_time",
            "text status", "text locality", "flag speculative", "text? task_type", "text? end_reason", "text? error",
            "text? accumulators", "flag has_metrics",
            "long? executor_deserialize_time_ms", "long? executor_deserialize_cpu_time_ns",
            "long? executor_run_time_ms", "long? executor_cpu_time_ns", "long? result_size_bytes",
            "long? jvm_gc_time_ms", "long? result_serialization_time_ms", "long? memory_spilled_bytes",
            "long? disk_spilled_bytes", "long? peak_execution_memory_bytes", "long? input_bytes",
            "long? input_records", "long? output_bytes", "long? output_records", "long? shuffle_remote_blocks",
            "long? shuffle_local_blocks", "long? shuffle_fetch_wait_time_ms", "long? shuffle_remote_bytes",
            "long? shuffle_remote_bytes_to_disk", "long? shuffle_local_bytes", "long? shuffle_read_records",
            "long? shuffle_remote_requests_ms", "long? shuffle_corrupt_merged_chunks",
            "long? shuffle_merged_fallbacks", "long? shuffle_merged_remote_blocks",
            "long? shuffle_merged_local_blocks", "long? shuffle_merged_remote_chunks",
            "long? shuffle_merged_local_chunks", "long? shuffle_merged_remote_bytes",
            "long? shuffle_merged_local_bytes", "long? shuffle_merged_remote_requests_ms",
            "long? shuffle_write_bytes", "long? shuffle_write_time_ns", "long? shuffle_write_records",
            "long? peak_on_heap_execution_memory_bytes", "long? peak_off_heap_execution_memory_bytes",
            "long? peak_jvm_heap_bytes", "long? peak_jvm_off_heap_bytes", "long? peak_on_heap_execution_bytes",
            "long? peak_off_heap_execution_bytes", "long? peak_on_heap_storage_bytes",
            "long? peak_off_heap_storage_bytes", "long? peak_on_heap_unified_bytes",
            "long? peak_off_heap_unified_bytes", "long? peak_direct_pool_bytes", "long? peak_mapped_pool_bytes",
            "long? peak_process_tree_jvm_virtual_bytes", "long? peak_process_tree_jvm_resident_bytes",
            "long? peak_process_tree_python_virtual_bytes", "long? peak_process_tree_python_resident_bytes",
            "long? peak_process_tree_other_virtual_bytes", "long? peak_process_tree_other_resident_bytes",
            "long? minor_gc_count", "long? minor_gc_time_ms", "long? major_gc_count", "long? major_gc_time_ms",
            "long? total_gc_time_ms", "long? concurrent_gc_count", "long? concurrent_gc_time_ms",
            // Only in parts: the numbers of the events that started and ended the task.
            "long? started_event", "long ended_event");
    static final HistoryTable TASK_SQL = new HistoryTable("task_sql",
            "int stage_id", "int stage_attempt", "long accumulator_id", "long task_id", "long value");
    static final HistoryTable META = new HistoryTable("meta", "text kind", "text id", "text json");

    /** What a column holds. */
    enum Kind { INT, LONG, TIME, FLAG, TEXT }

    final String name;
    final Kind[] kinds;
    final boolean[] optional;
    final String[] columns;

    /** Columns are written as {@code <kind>[?] <name>}; with a question mark a value may be absent. */
    private HistoryTable(String name, String... columns) {
        this.name = name;
        this.columns = new String[columns.length];
        kinds = new Kind[columns.length];
        optional = new boolean[columns.length];
        for (int i = 0; i < columns.length; i++) {
            String[] words = columns[i].split(" ");
            optional[i] = words[0].endsWith("?");
            kinds[i] = Kind.valueOf(words[0].replace("?", "").toUpperCase(java.util.Locale.ROOT));
            this.columns[i] = words[1];
        }
    }

    int width() {
        return columns.length;
    }

    /** The schema in Parquet's own notation. */
    String schema() {
        StringBuilder schema = new StringBuilder("message history {\n");
        for (int i = 0; i < columns.length; i++) {
            schema.append(optional[i] ? "optional " : "required ");
            switch (kinds[i]) {
                case INT:
                    schema.append("int32 ").append(columns[i]);
                    break;
                case LONG:
                    schema.append("int64 ").append(columns[i]);
                    break;
                case TIME:
                    schema.append("int64 ").append(columns[i]).append(" (TIMESTAMP(MILLIS,true))");
                    break;
                case FLAG:
                    schema.append("boolean ").append(columns[i]);
                    break;
                default:
                    schema.append("binary ").append(columns[i]).append(" (UTF8)");
            }
            schema.append(";\n");
        }
        return schema.append("}").toString();
    }

    /** Columns that a dictionary makes smaller. */
    List<String> repeated() {
        List<String> found = new ArrayList<>();
        for (int i = 0; i < columns.length; i++) {
            if (kinds[i] == Kind.TEXT && this != META || columns[i].startsWith("stage_")) {
                found.add(columns[i]);
            }
        }
        return found;
    }
}
