//! Columns of the tables. docs/HISTORY.md has a row for each; a test compares them.

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A small integer, 32 bits in the file.
    Int,
    /// An integer.
    Long,
    /// Milliseconds since 1970, as a timestamp in the file.
    Time,
    /// True or false.
    Flag,
    /// Text.
    Text,
}

/// One column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column<'a> {
    /// Name in the file.
    pub name: &'a str,
    /// What it holds.
    pub kind: Kind,
    /// Whether a row may be without a value.
    pub optional: bool,
    /// Where the value comes from, for the document.
    pub source: &'a str,
}

/// A column that this version does not know. A file of another version has it, and a merge keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// Name in the file.
    pub name: String,
    /// What it holds.
    pub kind: Kind,
}

impl Unknown {
    /// The column. Its values may be absent: other files are without it.
    pub(super) const fn column(&self) -> Column<'_> {
        Column {
            name: self.name.as_str(),
            kind: self.kind,
            optional: true,
            source: "",
        }
    }
}

pub(super) const fn column(
    name: &'static str,
    kind: Kind,
    optional: bool,
    source: &'static str,
) -> Column<'static> {
    Column {
        name,
        kind,
        optional,
        source,
    }
}

const fn metric(name: &'static str, source: &'static str) -> Column<'static> {
    column(name, Kind::Long, true, source)
}

/// A table: its name, its columns and the order of its rows.
#[derive(Debug)]
pub struct Table {
    /// Name of the file without suffix.
    pub name: &'static str,
    /// Columns in the order of the file.
    pub columns: &'static [Column<'static>],
    /// Columns by which the rows of a row group are sorted.
    pub order: &'static [usize],
}

/// Index of the first metric in [`TASKS`].
pub const FIRST_METRIC: usize = 19;
/// Metrics of a task that Spark's REST API shows, from [`FIRST_METRIC`] on.
pub const METRICS: usize = 34;
/// Index of the first peak of the executor in [`TASKS`].
pub const FIRST_PEAK: usize = FIRST_METRIC + METRICS + 2;

/// One row for each task attempt.
pub const TASKS: Table = Table {
    name: "tasks",
    columns: &TASK_COLUMNS,
    order: &[0, 1, 6, 8, 2],
};

/// One row for each SQL metric that a task attempt updated.
pub const TASK_SQL: Table = Table {
    name: "task_sql",
    columns: &[
        column("stage_id", Kind::Int, false, "Stage ID"),
        column("stage_attempt", Kind::Int, false, "Stage Attempt ID"),
        column("accumulator_id", Kind::Long, false, "Accumulables: ID"),
        column("task_id", Kind::Long, false, "Task ID"),
        column(
            "value",
            Kind::Long,
            true,
            "Accumulables: Update; absent where `same_as` is there",
        ),
        column(
            "same_as",
            Kind::Text,
            true,
            "column of `tasks` that has the task's value",
        ),
    ],
    order: &[0, 1, 2, 3],
};
/// Index of the value in [`TASK_SQL`].
pub const SQL_VALUE: usize = 4;
/// Index of the name of the column that has the value, in [`TASK_SQL`].
pub const SQL_SAME_AS: usize = 5;

/// Everything else: one JSON document for each job, stage, executor, RDD, query and so on.
pub const META: Table = Table {
    name: "meta",
    columns: &[
        column("kind", Kind::Text, false, "what the document describes"),
        column("id", Kind::Text, false, "its id within the kind"),
        column("json", Kind::Text, false, "the document"),
    ],
    order: &[],
};

/// All tables.
pub const TABLES: [&Table; 3] = [&TASKS, &TASK_SQL, &META];

const TASK_COLUMNS: [Column; FIRST_PEAK + PEAKS.len()] = {
    let mut all = [METRIC_COLUMNS[0]; FIRST_PEAK + PEAKS.len()];
    let mut at = 0;
    while at < FIRST_METRIC {
        all[at] = INFO_COLUMNS[at];
        at += 1;
    }
    at = 0;
    while at < METRIC_COLUMNS.len() {
        all[FIRST_METRIC + at] = METRIC_COLUMNS[at];
        at += 1;
    }
    at = 0;
    while at < PEAKS.len() {
        all[FIRST_PEAK + at] = metric(PEAKS[at].0, PEAKS[at].1);
        at += 1;
    }
    all
};

const INFO_COLUMNS: [Column; FIRST_METRIC] = [
    column("stage_id", Kind::Int, false, "Stage ID"),
    column("stage_attempt", Kind::Int, false, "Stage Attempt ID"),
    column("task_id", Kind::Long, false, "Task ID"),
    column("task_index", Kind::Int, false, "Index"),
    column("attempt", Kind::Int, false, "Attempt"),
    column("partition", Kind::Int, true, "Partition ID"),
    column("executor_id", Kind::Text, false, "Executor ID"),
    column("host", Kind::Text, false, "Host"),
    column("launch_time", Kind::Time, false, "Launch Time"),
    column(
        "duration_ms",
        Kind::Long,
        true,
        "Finish Time - Launch Time; absent while it runs",
    ),
    column(
        "getting_result_time",
        Kind::Time,
        true,
        "Getting Result Time",
    ),
    column(
        "status",
        Kind::Text,
        false,
        "SUCCESS, FAILED, KILLED or RUNNING",
    ),
    column("locality", Kind::Text, false, "Locality"),
    column("speculative", Kind::Flag, false, "Speculative"),
    column("task_type", Kind::Text, true, "Task Type"),
    column("end_reason", Kind::Text, true, "Task End Reason: Reason"),
    column(
        "error",
        Kind::Text,
        true,
        "the message that Spark shows for the reason",
    ),
    column(
        "accumulators",
        Kind::Text,
        true,
        "Accumulables of the application, as JSON",
    ),
    column(
        "has_metrics",
        Kind::Flag,
        false,
        "whether Task Metrics are present",
    ),
];

const METRIC_COLUMNS: [Column; METRICS + 2] = [
    metric("executor_deserialize_time_ms", "Executor Deserialize Time"),
    metric(
        "executor_deserialize_cpu_time_ns",
        "Executor Deserialize CPU Time",
    ),
    metric("executor_run_time_ms", "Executor Run Time"),
    metric("executor_cpu_time_ns", "Executor CPU Time"),
    metric("result_size_bytes", "Result Size"),
    metric("jvm_gc_time_ms", "JVM GC Time"),
    metric("result_serialization_time_ms", "Result Serialization Time"),
    metric("memory_spilled_bytes", "Memory Bytes Spilled"),
    metric("disk_spilled_bytes", "Disk Bytes Spilled"),
    metric("peak_execution_memory_bytes", "Peak Execution Memory"),
    metric("input_bytes", "Input Metrics: Bytes Read"),
    metric("input_records", "Input Metrics: Records Read"),
    metric("output_bytes", "Output Metrics: Bytes Written"),
    metric("output_records", "Output Metrics: Records Written"),
    metric(
        "shuffle_remote_blocks",
        "Shuffle Read Metrics: Remote Blocks Fetched",
    ),
    metric(
        "shuffle_local_blocks",
        "Shuffle Read Metrics: Local Blocks Fetched",
    ),
    metric(
        "shuffle_fetch_wait_time_ms",
        "Shuffle Read Metrics: Fetch Wait Time",
    ),
    metric(
        "shuffle_remote_bytes",
        "Shuffle Read Metrics: Remote Bytes Read",
    ),
    metric(
        "shuffle_remote_bytes_to_disk",
        "Shuffle Read Metrics: Remote Bytes Read To Disk",
    ),
    metric(
        "shuffle_local_bytes",
        "Shuffle Read Metrics: Local Bytes Read",
    ),
    metric(
        "shuffle_read_records",
        "Shuffle Read Metrics: Total Records Read",
    ),
    metric(
        "shuffle_remote_requests_ms",
        "Shuffle Read Metrics: Remote Requests Duration",
    ),
    metric(
        "shuffle_corrupt_merged_chunks",
        "Push Based Shuffle: Corrupt Merged Block Chunks",
    ),
    metric(
        "shuffle_merged_fallbacks",
        "Push Based Shuffle: Merged Fetch Fallback Count",
    ),
    metric(
        "shuffle_merged_remote_blocks",
        "Push Based Shuffle: Merged Remote Blocks Fetched",
    ),
    metric(
        "shuffle_merged_local_blocks",
        "Push Based Shuffle: Merged Local Blocks Fetched",
    ),
    metric(
        "shuffle_merged_remote_chunks",
        "Push Based Shuffle: Merged Remote Chunks Fetched",
    ),
    metric(
        "shuffle_merged_local_chunks",
        "Push Based Shuffle: Merged Local Chunks Fetched",
    ),
    metric(
        "shuffle_merged_remote_bytes",
        "Push Based Shuffle: Merged Remote Bytes Read",
    ),
    metric(
        "shuffle_merged_local_bytes",
        "Push Based Shuffle: Merged Local Bytes Read",
    ),
    metric(
        "shuffle_merged_remote_requests_ms",
        "Push Based Shuffle: Merged Remote Requests Duration",
    ),
    metric(
        "shuffle_write_bytes",
        "Shuffle Write Metrics: Shuffle Bytes Written",
    ),
    metric(
        "shuffle_write_time_ns",
        "Shuffle Write Metrics: Shuffle Write Time",
    ),
    metric(
        "shuffle_write_records",
        "Shuffle Write Metrics: Shuffle Records Written",
    ),
    metric(
        "peak_on_heap_execution_memory_bytes",
        "Peak On Heap Execution Memory (Spark 4)",
    ),
    metric(
        "peak_off_heap_execution_memory_bytes",
        "Peak Off Heap Execution Memory (Spark 4)",
    ),
];

/// Peaks of the executor while the task ran ("Task Executor Metrics"): name of the column, name in the log.
pub const PEAKS: [(&str, &str); 23] = [
    ("peak_jvm_heap_bytes", "JVMHeapMemory"),
    ("peak_jvm_off_heap_bytes", "JVMOffHeapMemory"),
    ("peak_on_heap_execution_bytes", "OnHeapExecutionMemory"),
    ("peak_off_heap_execution_bytes", "OffHeapExecutionMemory"),
    ("peak_on_heap_storage_bytes", "OnHeapStorageMemory"),
    ("peak_off_heap_storage_bytes", "OffHeapStorageMemory"),
    ("peak_on_heap_unified_bytes", "OnHeapUnifiedMemory"),
    ("peak_off_heap_unified_bytes", "OffHeapUnifiedMemory"),
    ("peak_direct_pool_bytes", "DirectPoolMemory"),
    ("peak_mapped_pool_bytes", "MappedPoolMemory"),
    (
        "peak_process_tree_jvm_virtual_bytes",
        "ProcessTreeJVMVMemory",
    ),
    (
        "peak_process_tree_jvm_resident_bytes",
        "ProcessTreeJVMRSSMemory",
    ),
    (
        "peak_process_tree_python_virtual_bytes",
        "ProcessTreePythonVMemory",
    ),
    (
        "peak_process_tree_python_resident_bytes",
        "ProcessTreePythonRSSMemory",
    ),
    (
        "peak_process_tree_other_virtual_bytes",
        "ProcessTreeOtherVMemory",
    ),
    (
        "peak_process_tree_other_resident_bytes",
        "ProcessTreeOtherRSSMemory",
    ),
    ("minor_gc_count", "MinorGCCount"),
    ("minor_gc_time_ms", "MinorGCTime"),
    ("major_gc_count", "MajorGCCount"),
    ("major_gc_time_ms", "MajorGCTime"),
    ("total_gc_time_ms", "TotalGCTime"),
    ("concurrent_gc_count", "ConcurrentGCCount"),
    ("concurrent_gc_time_ms", "ConcurrentGCTime"),
];
