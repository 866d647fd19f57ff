//! Columns and path of each listing.

use super::table::{Column, Form, column};

/// One listing of `smtt-ctl`.
#[derive(Clone, Copy, Debug)]
pub struct ListingKind {
    /// Path of the HTTP interface.
    pub path: &'static str,
    /// Plural noun for the rows.
    pub what: &'static str,
    /// Columns of the table.
    pub columns: &'static [Column],
    /// Whether the rows show page faults.
    pub shows_faults: bool,
}

const APPLICATION: Column = column("application_id", "APPLICATION", Form::Text, 1);
/// Shown where rows are of several attempts of applications.
pub const APPLICATION_ATTEMPT: Column =
    column("application_attempt_id", "APP ATTEMPT", Form::Word, 1);
/// Shown where rows are of earlier runs of the daemon.
pub const MEASURED: Column = column(super::earlier::EARLIER, "MEASURED", Form::Run, 0);
/// Shown where rows are of several users, and for executors.
pub const USER: Column = column("uid", "USER", Form::User, 1);
const EXECUTOR: Column = column("executor_id", "EXEC", Form::Word, 0);
const FAULTS: Column = column("page_faults", "FAULTS", Form::Count, 0);
const FAULT_TIME: Column = column("page_fault_time_ns", "FAULT TIME", Form::Duration, 2);
const READ: Column = column("page_faults_read", "READ", Form::Count, 2);
const WRITE: Column = column("page_faults_write", "WRITE", Form::Count, 2);
const MAJOR: Column = column("page_faults_major", "MAJOR", Form::Count, 5);
const STORAGE: Column = column("storage_memory_bytes", "STORAGE", Form::Bytes, 1);
const EXECUTION: Column = column("execution_memory_bytes", "EXECUTION", Form::Bytes, 3);
const PEAK: Column = column("execution_memory_peak_bytes", "PEAK", Form::Bytes, 3);
const PYTHON: Column = column("python_worker_peak_bytes", "PYTHON", Form::Bytes, 5);
const RDD: Column = column("rdd_id", "RDD", Form::Word, 0);
const STAGE: Column = column("stage_id", "STAGE", Form::Word, 0);
const ATTEMPT: Column = column("stage_attempt", "ATT", Form::Word, 7);

/// Columns of what the driver says of a job, an SQL execution or a stage.
const STATE: Column = column("state", "STATE", Form::Word, 3);
const TIME: Column = column("duration_ns", "TIME", Form::Duration, 3);

/// Columns of what tasks used; columns of accounts that the machine does not keep are absent.
const CPU: Column = column("cpu_ns", "CPU", Form::Duration, 2);
const SPARK_CPU: Column = column("spark_cpu_ns", "SPARK CPU", Form::Duration, 6);
const SPARK_COLLECTION: Column = column("spark_collection_ns", "SPARK GC", Form::Duration, 7);
const CPU_WAIT: Column = column("cpu_wait_ns", "CPU WAIT", Form::Duration, 4);
const DISK_WAIT: Column = column("disk_wait_ns", "DISK WAIT", Form::Duration, 4);
const ALLOCATED: Column = column("heap_allocated_bytes", "ALLOC", Form::Bytes, 3);
const TOUCHED_HEAP: Column = column("touched_heap_bytes", "TOUCHED HEAP", Form::Bytes, 7);
const TOUCHED_NATIVE: Column = column("touched_native_bytes", "TOUCHED NATIVE", Form::Bytes, 7);
const COLLECTION: Column = column("collection_ns", "GC", Form::Duration, 4);
const SWITCHES: Column = column("context_switches", "SWITCHES", Form::Count, 6);
const DISK_READ: Column = column("disk_read_bytes", "DISK R", Form::Bytes, 6);
const DISK_WRITTEN: Column = column("disk_written_bytes", "DISK W", Form::Bytes, 6);

/// The same in the order of the tables.
const USED: [Column; 12] = [
    CPU,
    SPARK_CPU,
    CPU_WAIT,
    DISK_WAIT,
    ALLOCATED,
    TOUCHED_HEAP,
    TOUCHED_NATIVE,
    COLLECTION,
    SPARK_COLLECTION,
    SWITCHES,
    DISK_READ,
    DISK_WRITTEN,
];

/// Page faults of stages, jobs, tasks and RDDs.
const ALL_FAULTS: [Column; 5] = [FAULTS, FAULT_TIME, READ, WRITE, MAJOR];

/// How the tasks of a stage or job ended.
const TASKS_BY_END: [Column; 5] = [
    column("tasks_running", "RUN", Form::Count, 2),
    column("tasks_succeeded", "DONE", Form::Count, 1),
    column("tasks_failed", "FAIL", Form::Count, 4),
    column("tasks_killed", "KILL", Form::Count, 8),
    column("tasks_lost", "LOST", Form::Count, 9),
];

/// Columns of page walks. Columns that the machine cannot measure are absent. Estimates have a tilde, occupancies are
/// named so.
const PAGE_WALKS: [Column; 14] = [
    column("page_walk_read_ratio", "WALK R", Form::SmallShare, 1),
    column("page_walk_write_ratio", "WALK W", Form::SmallShare, 1),
    column("page_walk_ratio", "WALK", Form::SmallShare, 1),
    column(
        "page_walk_read_estimated_ratio",
        "~WALK R",
        Form::SmallShare,
        1,
    ),
    column(
        "page_walk_write_estimated_ratio",
        "~WALK W",
        Form::SmallShare,
        1,
    ),
    column("page_walk_estimated_ratio", "~WALK", Form::SmallShare, 1),
    column("page_walk_read_occupancy_per_cycle", "OCC R", Form::Real, 1),
    column(
        "page_walk_write_occupancy_per_cycle",
        "OCC W",
        Form::Real,
        1,
    ),
    column("page_walk_occupancy_per_cycle", "OCC", Form::Real, 1),
    column("dtlb_read_misses", "MISS R", Form::Count, 2),
    column("dtlb_write_misses", "MISS W", Form::Count, 2),
    column("dtlb_misses", "MISS", Form::Count, 2),
    column("cycles", "CYCLES", Form::Count, 5),
    column("page_walk_samples", "SAMPLES", Form::Count, 4),
];

/// Joins groups of columns into one list.
macro_rules! columns {
    ($($group:expr),+ $(,)?) => {{
        const GROUPS: &[&[Column]] = &[$($group),+];
        const ALL: [Column; count(GROUPS)] = join(GROUPS);
        &ALL
    }};
}

const fn count(groups: &[&[Column]]) -> usize {
    let (mut sum, mut group) = (0, 0);
    while group < groups.len() {
        sum += groups[group].len();
        group += 1;
    }
    sum
}

const fn join<const ALL: usize>(groups: &[&[Column]]) -> [Column; ALL] {
    let mut all = [APPLICATION; ALL];
    let (mut at, mut group) = (0, 0);
    while group < groups.len() {
        let mut index = 0;
        while index < groups[group].len() {
            all[at] = groups[group][index];
            at += 1;
            index += 1;
        }
        group += 1;
    }
    all
}

/// `smtt-ctl executors`.
pub const EXECUTORS: ListingKind = ListingKind {
    path: "/v1/executors",
    what: "executors",
    shows_faults: true,
    columns: columns![
        &[
            APPLICATION,
            USER,
            EXECUTOR,
            column("pid", "PID", Form::Word, 2),
            column("kind", "KIND", Form::Word, 3),
            column("state", "STATE", Form::Word, 1),
            FAULTS,
            FAULT_TIME,
            column("unattributed_share", "UNATTR", Form::Share, 1),
            column("page_faults_before_tracing", "BEFORE", Form::Count, 5),
            column("page_faults_major", "MAJOR", Form::Count, 8),
        ],
        &PAGE_WALKS,
        &[
            STORAGE,
            EXECUTION,
            column("tasks_running", "RUN", Form::Count, 3),
            column("tasks_succeeded", "DONE", Form::Count, 4),
            column("tasks_failed", "FAIL", Form::Count, 4),
            column("execution_memory_by_consumer", "HELD BY", Form::Holders, 5),
            column("blocks", "BLOCKS", Form::Count, 6),
            column("heap_addresses", "HEAP ADDRESSES", Form::Word, 6),
            column("facts_dropped", "DROPPED", Form::Count, 7),
            column("slots_refused", "NO SLOT", Form::Count, 8),
            column("spark_version", "SPARK", Form::Word, 9),
            column("host", "HOST", Form::Text, 10),
        ],
    ],
};

/// `smtt-ctl stages`.
pub const STAGES: ListingKind = ListingKind {
    path: "/v1/stages",
    what: "stages",
    shows_faults: true,
    columns: columns![
        &[
            APPLICATION,
            USER,
            EXECUTOR,
            STAGE,
            ATTEMPT,
            column("name", "NAME", Form::Text, 1),
            STATE,
            TIME,
        ],
        &TASKS_BY_END,
        &[column("task_time_ns", "TASK TIME", Form::Duration, 3),],
        &USED,
        &ALL_FAULTS,
        &PAGE_WALKS,
        &[
            column("execution_memory_bytes", "EXECUTION", Form::Bytes, 6),
            PEAK,
            PYTHON,
        ],
    ],
};

/// Columns of jobs and of SQL executions, whose id comes first.
macro_rules! work_columns {
    ($field:literal, $heading:literal) => {
        columns![
            &[
                APPLICATION,
                USER,
                column($field, $heading, Form::Word, 0),
                column("name", "NAME", Form::Text, 0),
                STATE,
                TIME,
                column("stages", "STAGES", Form::Count, 2),
                column("executors", "EXECS", Form::Count, 6),
            ],
            &TASKS_BY_END,
            &[column("task_time_ns", "TASK TIME", Form::Duration, 1),],
            &USED,
            &ALL_FAULTS,
            &[
                PEAK,
                column("jvm_resident_max_bytes", "MAX RSS", Form::Bytes, 6),
                column("jvm_virtual_max_bytes", "MAX VIRT", Form::Bytes, 8),
                PYTHON,
                column("input_bytes", "IN", Form::Bytes, 5),
                column("input_records", "IN RECS", Form::Count, 7),
                column("output_bytes", "OUT", Form::Bytes, 5),
                column("output_records", "OUT RECS", Form::Count, 7),
                column("shuffle_read_bytes", "SHUF R", Form::Bytes, 5),
                column("shuffle_read_records", "SHUF R RECS", Form::Count, 8),
                column("shuffle_write_bytes", "SHUF W", Form::Bytes, 5),
                column("shuffle_write_records", "SHUF W RECS", Form::Count, 8),
                column("memory_spilled_bytes", "SPILLED", Form::Bytes, 5),
                column("disk_spilled_bytes", "SPILL DISK", Form::Bytes, 8),
            ]
        ]
    };
}

/// `smtt-ctl jobs`.
pub const JOBS: ListingKind = ListingKind {
    path: "/v1/jobs",
    what: "jobs",
    shows_faults: true,
    columns: work_columns!("job_id", "JOB"),
};

/// `smtt-ctl queries`.
pub const QUERIES: ListingKind = ListingKind {
    path: "/v1/queries",
    what: "SQL executions",
    shows_faults: true,
    columns: work_columns!("sql_execution_id", "QUERY"),
};

/// `smtt-ctl tasks`.
pub const TASKS: ListingKind = ListingKind {
    path: "/v1/tasks",
    what: "tasks",
    shows_faults: true,
    columns: columns![
        &[
            APPLICATION,
            USER,
            EXECUTOR,
            STAGE,
            ATTEMPT,
            column("task_attempt_id", "TASK", Form::Word, 0),
            column("partition", "PART", Form::Word, 3),
            column("state", "STATE", Form::Word, 0),
            column("duration_ns", "TIME", Form::Duration, 1),
        ],
        &USED,
        &ALL_FAULTS,
        &PAGE_WALKS,
        &[
            PEAK,
            column(
                "execution_memory_spark_peak_bytes",
                "SPARK PEAK",
                Form::Bytes,
                4,
            ),
            PYTHON,
            column("consumers", "HELD BY", Form::Holders, 5),
            column("reason", "REASON", Form::Text, 8),
        ],
    ],
};

/// `smtt-ctl tasks --failed`.
pub const FAILED_TASKS: ListingKind = ListingKind {
    path: "/v1/tasks/failed",
    what: "failed tasks",
    ..TASKS
};

/// `smtt-ctl rdds`.
pub const RDDS: ListingKind = ListingKind {
    path: "/v1/rdds",
    what: "RDDs",
    shows_faults: true,
    columns: columns![
        &[
            APPLICATION,
            USER,
            EXECUTOR,
            RDD,
            column("name", "NAME", Form::Text, 0),
            column("node", "NODE", Form::Text, 6),
            column("storage_level_name", "LEVEL", Form::Level, 7),
            column("partitions_cached", "CACHED", Form::Count, 4),
        ],
        &ALL_FAULTS,
        &PAGE_WALKS,
        &[
            STORAGE,
            EXECUTION,
            column("sql_execution_id", "QUERY", Form::Word, 9),
            column("call_site", "CALL SITE", Form::Text, 9),
        ],
    ],
};

/// `smtt-ctl blocks`.
pub const BLOCKS: ListingKind = ListingKind {
    path: "/v1/blocks",
    what: "blocks",
    shows_faults: false,
    columns: &[
        APPLICATION,
        USER,
        EXECUTOR,
        column("block_id", "BLOCK", Form::Text, 0),
        RDD,
        column("partition", "PART", Form::Word, 3),
        column("size_bytes", "SIZE", Form::Bytes, 0),
        column("ranges", "RANGES", Form::Length, 4),
        column("on_heap", "ON HEAP", Form::YesNo, 2),
        column("contents", "CONTENTS", Form::Word, 2),
        column("reads", "READS", Form::Count, 3),
        column("age_ns", "AGE", Form::Duration, 5),
        column("stage_id", "STAGE", Form::Word, 6),
    ],
};

/// Whether the largest value of a listing's column comes first; `None` where the values of such columns decide it.
pub(super) fn descends(path: &str, field: &str) -> Option<bool> {
    let kinds = [
        &EXECUTORS,
        &STAGES,
        &JOBS,
        &QUERIES,
        &TASKS,
        &FAILED_TASKS,
        &RDDS,
        &BLOCKS,
    ];
    let columns = kinds
        .iter()
        .filter(|kind| kind.path == path)
        .flat_map(|kind| kind.columns);
    let column = columns.into_iter().find(|column| column.field == field)?;
    match column.form {
        form if form.is_number() => Some(true),
        Form::Holders => Some(true),
        Form::Text | Form::Title | Form::YesNo => Some(false),
        _ => None,
    }
}

impl ListingKind {
    /// The requested sort, with a heading of the table translated into its field.
    #[must_use]
    pub fn sort(&self, asked: &str) -> String {
        let (column, direction) = asked
            .split_once(':')
            .map_or((asked, None), |(column, way)| (column, Some(way)));
        let field = self
            .columns
            .iter()
            .find(|known| known.heading.eq_ignore_ascii_case(column))
            .map_or(column, |known| known.field);
        direction.map_or_else(|| field.to_owned(), |way| format!("{field}:{way}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use smtt_model::rows::{
        BlockRow, CourseRow, ExecutorRow, JobRow, RddRow, StageRow, TaskRow, UsedRow, WorkState,
    };

    #[test]
    fn every_column_is_a_field_of_its_row() {
        let used = UsedRow {
            cpu_ns: Some(0),
            cpu_wait_ns: Some(0),
            disk_wait_ns: Some(0),
            heap_allocated_bytes: Some(0),
            touched_heap_bytes: Some(0),
            touched_native_bytes: Some(0),
            collection_ns: Some(0),
            context_switches: Some(0),
            disk_read_bytes: Some(0),
            disk_written_bytes: Some(0),
            input_bytes: Some(0),
            input_records: Some(0),
            output_bytes: Some(0),
            output_records: Some(0),
            shuffle_read_bytes: Some(0),
            shuffle_read_records: Some(0),
            shuffle_write_bytes: Some(0),
            shuffle_write_records: Some(0),
            memory_spilled_bytes: Some(0),
            disk_spilled_bytes: Some(0),
            spark_cpu_ns: Some(0),
            spark_collection_ns: Some(0),
            ..UsedRow::default()
        };
        let course = CourseRow {
            state: Some(WorkState::Running),
            duration_ns: Some(0),
            ..CourseRow::default()
        };
        let rows = [
            (&EXECUTORS, serde_json::to_value(ExecutorRow::default())),
            (
                &STAGES,
                serde_json::to_value(StageRow {
                    state: Some(WorkState::Running),
                    duration_ns: Some(0),
                    python_worker_peak_bytes: Some(0),
                    used,
                    ..StageRow::default()
                }),
            ),
            (
                &TASKS,
                serde_json::to_value(TaskRow {
                    reason: Some(String::new()),
                    execution_memory_spark_peak_bytes: Some(0),
                    python_worker_peak_bytes: Some(0),
                    used,
                    ..TaskRow::default()
                }),
            ),
            (
                &JOBS,
                serde_json::to_value(JobRow {
                    course: course.clone(),
                    job_id: Some(0),
                    jvm_resident_max_bytes: Some(0),
                    jvm_virtual_max_bytes: Some(0),
                    python_worker_peak_bytes: Some(0),
                    used,
                    ..JobRow::default()
                }),
            ),
            (
                &QUERIES,
                serde_json::to_value(JobRow {
                    course: course.clone(),
                    sql_execution_id: Some(0),
                    jvm_resident_max_bytes: Some(0),
                    jvm_virtual_max_bytes: Some(0),
                    python_worker_peak_bytes: Some(0),
                    used,
                    ..JobRow::default()
                }),
            ),
            (&RDDS, serde_json::to_value(RddRow::default())),
            (&BLOCKS, serde_json::to_value(BlockRow::default())),
        ];
        for (kind, row) in rows {
            let Ok(Value::Object(row)) = row else {
                panic!("{} are not objects", kind.what)
            };
            // Columns of page walks are present where page walks are measured.
            let walks = PAGE_WALKS;
            for column in kind.columns {
                assert!(
                    row.contains_key(column.field)
                        || walks.iter().any(|walk| walk.field == column.field),
                    "{}: {}",
                    kind.what,
                    column.field
                );
            }
        }
    }

    /// Whether a listing is one of those that a cell of docs/FIGURES.md names: a list, or `all but` a list.
    fn names(cell: &str, listing: &str) -> bool {
        let (others, is_in) = match cell.strip_prefix("all but ") {
            Some(others) => (others, false),
            None => (cell, true),
        };
        let mut listings = others.split([',', ' ']).map(str::trim);
        matches!(cell, "all" | "theirs") || listings.any(|it| it == listing) == is_in
    }

    /// Whether a row of a table explains the heading in a listing. In tables without a cell of listings it is in all.
    fn explains(row: &str, heading: &str, listing: &str) -> bool {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let mut headings = cells[0].split(',').map(|it| it.trim().trim_matches('`'));
        headings.any(|it| it == heading) && (cells.len() < 3 || names(cells[1], listing))
    }

    #[test]
    fn every_heading_is_explained() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/FIGURES.md");
        let document = std::fs::read_to_string(path).expect("docs/FIGURES.md");
        let (_, columns) = document.split_once("\n## Columns\n").expect("its section");
        let (columns, _) = columns
            .split_once("\n### Bytes by place")
            .expect("those of pages");
        let rows: Vec<&str> = columns.lines().filter(|it| it.starts_with("| `")).collect();
        let mut missing = Vec::new();
        for (listing, kind) in [
            ("executors", &EXECUTORS),
            ("stages", &STAGES),
            ("jobs", &JOBS),
            ("queries", &QUERIES),
            ("tasks", &TASKS),
            ("tasks", &FAILED_TASKS),
            ("rdds", &RDDS),
            ("blocks", &BLOCKS),
        ] {
            let added = [&APPLICATION_ATTEMPT, &MEASURED];
            for column in kind.columns.iter().chain(added) {
                let heading = column.heading;
                if !rows.iter().any(|row| explains(row, heading, listing)) {
                    missing.push(format!("{heading} of {listing}"));
                }
            }
        }
        assert!(missing.is_empty(), "{path} lacks {missing:?}");
    }

    #[test]
    fn every_heading_of_sums_is_explained() {
        use crate::args::By;
        use crate::groups::Of;
        use clap::ValueEnum as _;

        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/FIGURES.md");
        let document = std::fs::read_to_string(path).expect("docs/FIGURES.md");
        let (_, sums) = document.split_once("\n### Sums").expect("its section");
        let (_, pages) = document
            .split_once("\n### Bytes by place")
            .expect("its section");
        let rows = |of: &str| -> Vec<String> {
            let rows = of.lines().filter(|it| it.starts_with("| `"));
            rows.map(str::to_owned).collect()
        };
        let (all, sums, pages) = (rows(&document), rows(sums), rows(pages));
        for (of, listing, own) in [
            (Of::Rdds, "rdds", &sums),
            (Of::Blocks, "blocks", &sums),
            (Of::Pages, "pages", &pages),
        ] {
            for column in By::value_variants()
                .iter()
                .flat_map(|by| of.kind(*by).columns)
            {
                let heading = column.heading;
                let is_explained = own.iter().any(|row| explains(row, heading, "sums"))
                    || all.iter().any(|row| explains(row, heading, listing));
                assert!(is_explained, "{path} lacks {heading} of {listing} --by");
            }
        }
    }

    #[test]
    fn a_heading_is_explained_by_a_row_about_its_listing() {
        let row = "| `STATE` | executors, jobs | text about `TIME` |";
        assert!(explains(row, "STATE", "executors") && explains(row, "STATE", "jobs"));
        assert!(!explains(row, "STATE", "tasks") && !explains(row, "TIME", "jobs"));
        let others = "| `EXEC`, `HOST` | all but jobs and queries | text |";
        assert!(explains(others, "HOST", "tasks") && !explains(others, "HOST", "queries"));
        assert!(explains("| `CPU` | text |", "CPU", "jobs"));
        assert!(!explains("| `CPU WAIT` | text |", "CPU", "jobs"));
    }

    #[test]
    fn every_figure_and_ratio_has_its_column() {
        use smtt_model::cpu::FigureName::*;
        let walks = PAGE_WALKS;
        let has = |field: &str| walks.iter().any(|column| column.field == field);
        for figure in [
            ReadWalkCycles,
            WriteWalkCycles,
            WalkCycles,
            ReadWalkOccupancy,
            WriteWalkOccupancy,
            WalkOccupancy,
            DtlbReadMisses,
            DtlbWriteMisses,
            DtlbMisses,
        ] {
            assert!(has(figure.ratio_key()), "{figure:?}");
            let counted = matches!(figure, DtlbReadMisses | DtlbWriteMisses | DtlbMisses);
            assert!(!counted || has(figure.key()), "{figure:?}");
        }
    }

    #[test]
    fn a_heading_can_be_sorted_by() {
        assert_eq!(RDDS.sort("faults:asc"), "page_faults:asc");
        assert_eq!(RDDS.sort("partitions"), "partitions");
    }
}
